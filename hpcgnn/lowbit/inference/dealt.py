"""Batches of the whole graph, dealt out to ranks: batch b goes to rank b mod P.

Rank 0 gathers the edges of all parts and cuts them, so batches do not depend on the partition. Rows travel to the ranks
of their batches, and answers back to the owners. No integer depends on the rank that computes a batch.
"""

from __future__ import annotations

from dataclasses import astuple, dataclass
from typing import Any, cast

import numpy as np
import torch
from mpi4py import MPI

from hpcgnn.lowbit.inference.batches import Batches, PackedBatches, cut_batches
from hpcgnn.lowbit.inference.device_pass import CopiedBatches
from hpcgnn.lowbit.inference.host_pass import AggregationCounts, HostPass
from hpcgnn.lowbit.integer_model import IntegerModel
from hpcgnn.partition.partition import Partition
from hpcgnn.run.launch import together
from hpcgnn.training.batch_graph import gather_arcs


@dataclass(frozen=True)
class DealtBatches:
    comm: MPI.Comm
    batches: Batches
    sent: list[np.ndarray]  # (n,) int64 per rank, inner rows in that rank's batches, ascending
    # (n,) int64 per rank, rows of this rank's batches that the other rank owns, in the order of arrival
    received: list[np.ndarray]
    # rows and edges of this rank's part
    num_inner: int
    num_arcs: int

    @classmethod
    def deal(cls, comm: MPI.Comm, part: Partition, num_clusters: int, batch_size: int, *,
             keeps_all: bool = False) -> DealtBatches:
        """Collective: cut the graph of all parts, see `cut_batches`; CollectiveError if rank 0 can't."""
        arcs = gather_arcs(comm, part)
        cut = together(comm, lambda: None if arcs is None else cut_batches(
            *arcs, num_clusters, batch_size, keeps_all=keeps_all))
        shares = None if cut is None else [cut.chosen(np.arange(r, cut.num_batches, comm.size))
                                           for r in range(comm.size)]
        batches = comm.scatter(shares)
        sent = [np.flatnonzero(np.isin(part.inner_id, ids)) for ids in comm.allgather(batches.node_id)]
        ids = comm.alltoall([part.inner_id[rows] for rows in sent])
        order = np.argsort(batches.node_id)
        received = [order[np.searchsorted(batches.node_id, one, sorter=order)] for one in ids]
        return cls(comm, batches, sent, received, part.num_inner, part.num_edges)

    def to_batches(self, rows: np.ndarray) -> np.ndarray:
        """Collective: send inner rows (num_inner, ...) to their batches; return (batches.num_rows, ...)."""
        return _scattered(self.comm.alltoall([rows[index] for index in self.sent]), self.received, rows,
                          self.batches.num_rows)

    def to_owners(self, rows: np.ndarray) -> np.ndarray:
        """Collective: send rows of batches to their owners; return (num_inner, ...)."""
        return _scattered(self.comm.alltoall([rows[index] for index in self.received]), self.sent, rows,
                          self.num_inner)


@dataclass(frozen=True)
class BatchTotals:
    num_batches: int
    num_entries: int     # edges within batches; num_arcs counts all edges
    num_arcs: int
    packed_bytes: int    # bytes of the packed objects


class DealtRun:
    """Collective: an integer model on the batches of all ranks, on `device` or, with None, the host.

    `codes`, (num_inner, num_features) int8 or uint8, are read by the first convolution; in_degree, (num_inner,), has
    the in-degrees in the whole graph. Raises CollectiveError for an unknown `aggregation`, or if sums over a batch
    could overflow.
    """

    def __init__(self, dealt: DealtBatches, model: IntegerModel, codes: np.ndarray, in_degree: np.ndarray,
                 aggregation: str = "auto", device: torch.device | None = None):
        self._dealt = dealt
        codes, degrees = dealt.to_batches(codes), dealt.to_batches(in_degree.astype(np.int64))
        bit_width = int(model.convolutions[0].rows.bit_width.max())
        packed = PackedBatches.pack(dealt.batches, codes, degrees, bit_width)
        self._run = together(dealt.comm, lambda: HostPass.over_batches(model, packed, aggregation) if device is None
                             else CopiedBatches(model, packed, device, aggregation))
        self._totals = BatchTotals(dealt.batches.num_batches, len(dealt.batches.indices), dealt.num_arcs, packed.nbytes)

    def forward(self) -> tuple[np.ndarray, np.ndarray]:
        """Collective: return logits (num_inner, num_classes) and embeddings (num_inner, hidden), float32."""
        first, second = self._run.forward()
        return self._dealt.to_owners(first), self._dealt.to_owners(second)

    @property
    def copied(self) -> tuple[int, int]:
        run = cast(CopiedBatches, self._run)      # asked only of runs on a device
        return run.copies, run.copied_bytes

    def counts(self) -> AggregationCounts:
        """Collective: the counts of all ranks' passes so far."""
        return _summed(self._dealt.comm, self._run.counts)

    def totals(self) -> BatchTotals:
        """Collective: the totals over all ranks' batches."""
        return _summed(self._dealt.comm, self._totals)


def _summed(comm: MPI.Comm, own: Any) -> Any:
    """Collective: sum all ranks' counts."""
    return type(own)(*map(sum, zip(*comm.allgather(astuple(own)), strict=True)))


def _scattered(parts: list[np.ndarray], places: list[np.ndarray], like: np.ndarray, num_rows: int) -> np.ndarray:
    out = np.empty((num_rows, *like.shape[1:]), like.dtype)
    for part, place in zip(parts, places, strict=True):
        out[place] = part
    return out
