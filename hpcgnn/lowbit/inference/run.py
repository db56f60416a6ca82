"""IntegerRun: an integer model on the shards of all ranks, with its answers, scores, seconds and bytes.

`open` turns a rank's input rows into the first convolution's codes; floats are not kept. A pass runs on the device or
the host, with the same bits.
"""

from __future__ import annotations

import resource
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import cast

import numpy as np
import torch
from mpi4py import MPI

from hpcgnn.errors import ConfigError
from hpcgnn.exchange.plan import ExchangePlan
from hpcgnn.lowbit.formats import StoredSize, sizes
from hpcgnn.lowbit.inference.code_exchange import CodeExchange
from hpcgnn.lowbit.inference.coded_rows import BitRows, PackedCodes
from hpcgnn.lowbit.inference.device_pass import DevicePass
from hpcgnn.lowbit.inference.host_pass import Answer, HostPass, RankNeighborhood
from hpcgnn.lowbit.inference.model_source import StoredPart, classes_of_model
from hpcgnn.lowbit.integer_model import IntegerModel
from hpcgnn.lowbit.package import PackagedRows
from hpcgnn.nn.models import INTEGERS_REFUSE
from hpcgnn.ops.simd import simd_level
from hpcgnn.partition.partition import Partition
from hpcgnn.run.launch import together
from hpcgnn.shards.schema import GraphInfo
from hpcgnn.training.batch_graph import INTEGERS_REFUSE_TYPES
from hpcgnn.training.evaluate import as_trained
from hpcgnn.training.objective import SPLITS, Objective
from hpcgnn.training.scores import SCORES


def refuse_edge_weights(part: Partition) -> None:
    if part.edge_weight is not None:
        raise ConfigError(INTEGERS_REFUSE)
    if part.has_typed_edges:      # parallel edges are one bit
        raise ConfigError(INTEGERS_REFUSE_TYPES)


@dataclass(frozen=True)
class RowBytes:
    # forms of input rows in shards, and in memory
    stored_form: str
    form: str
    # bytes of input rows in these forms
    stored: int
    kept: int
    # bytes of rows between convolutions, in memory; None if passes go layer by layer, in batches or on a device
    between: int | None = None


@dataclass(frozen=True)
class IntegerRun:
    comm: MPI.Comm
    model: IntegerModel
    info: GraphInfo
    part: Partition                     # without features
    # form and bytes of this rank's input rows in its shard
    stored_form: str
    stored_bytes: int
    rows: BitRows | PackedCodes         # what the first convolution reads
    exchange: CodeExchange
    objective: Objective
    device: torch.device | None = None  # None is the host

    @classmethod
    def open(cls, comm: MPI.Comm, model: IntegerModel, stored: StoredPart, info: GraphInfo,
             packs_features: bool = False, device: torch.device | None = None) -> IntegerRun:
        """Collective: code this rank's rows, with labels in the order of the model's classes.

        packs_features keeps the first convolution's codes as packages instead of bits, and multiplies from them. Raises
        CollectiveError for an instruction set that a processor lacks, features that don't fit the first codes, or
        labels of another task.
        """
        together(comm, simd_level)
        part = stored.part
        together(comm, lambda: refuse_edge_weights(part))
        scale, in_degree = model.convolutions[0].rows, part.in_degree[:part.num_inner]
        coded = together(comm, lambda: stored.rows.coded(scale, in_degree))
        rows = together(comm, lambda: PackedCodes(coded.packages(), coded.step) if packs_features
                        else BitRows.of(coded, scale, in_degree))
        part = replace(part, labels=together(comm, lambda: as_trained(part.labels, info, classes_of_model(model))))
        masks = {"train": part.train_mask, "val": part.val_mask, "test": part.test_mask}
        exchange = CodeExchange(comm, ExchangePlan.build(part))
        return cls(comm, model, info, part, stored.rows.form, stored.rows.num_bytes, rows, exchange,
                   Objective.build(comm, part.labels, masks), device)

    @property
    def in_degree(self) -> np.ndarray:
        return self.part.in_degree[:self.part.num_inner]

    def forward(self) -> Answer:
        """Collective: run one pass, from the first convolution's codes."""
        return self._pass.forward()

    def packed_layers(self) -> list[PackagedRows]:
        """Collective: pack what each convolution reads, in one more pass."""
        layers: list[PackagedRows] = []
        self._host_pass(keeps_codes=True).forward(lambda coded: layers.append(coded.packages()))
        return layers

    @cached_property
    def _pass(self) -> HostPass | DevicePass:
        """Collective, the first time: the model and the rows, on the device or the host."""
        if self.device is None:
            return self._host_pass()
        return together(self.comm, lambda: DevicePass.over_graph(
            self.model, self.part, self.exchange, cast(BitRows, self.rows).coded(), self.device))

    def _host_pass(self, keeps_codes: bool = False) -> HostPass:
        return HostPass(self.model, RankNeighborhood(self.part, self.exchange), self.rows, keeps_codes)

    def row_steps(self) -> list[np.ndarray]:
        return [scale.step[scale.entry(self.in_degree)] for scale in (one.rows for one in self.model.convolutions)]

    def scores(self, logits: np.ndarray, score: str) -> dict[str, float]:
        """Collective: return the score by split, nan for a split without nodes."""
        tensor = torch.from_numpy(logits)
        return {split: SCORES[score](self.comm, tensor[rows], self.objective.labels[rows])
                for split, rows in ((split, self.objective.rows[split]) for split in SPLITS)}

    def memory(self, is_in_batches: bool = False) -> RowBytes:
        """Collective: return the bytes of rows of all ranks; passes in batches keep theirs elsewhere."""
        is_counted = (self.device is None and not is_in_batches and isinstance(self._pass, HostPass)
                      and self._pass.is_compiled)
        between = self._pass.row_bytes if is_counted else 0
        total = self.comm.allreduce(np.array([self.stored_bytes, self.rows.num_bytes, between])).tolist()
        return RowBytes(self.stored_form, self.rows.form, total[0], total[1], total[2] if is_counted else None)


def peak_bytes(comm: MPI.Comm) -> int:
    """Collective: return the largest resident set of any rank since its start."""
    return comm.allreduce(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024, MPI.MAX)


def format_sizes(comm: MPI.Comm, layers: Iterable[PackagedRows]) -> dict[str, StoredSize]:
    """Collective: return `hpcgnn.lowbit.formats.sizes` summed over layers and ranks."""
    total: dict[str, StoredSize] = {}
    for of_ranks in zip(*comm.allgather([sizes(packed) for packed in layers]), strict=True):
        for one in of_ranks:
            total = {name: total.get(name, StoredSize(0, 0)) + size for name, size in one.items()}
    return total
