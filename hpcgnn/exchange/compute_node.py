"""ComputeNode: ranks of one machine share one copy of each row from elsewhere, through shared memory.

Several ranks of a node may read the same row of another node. One of them, the gateway, receives the row as an ordinary
message and writes it to a table that all ranks of the node read. Rows between ranks of the node also go through the
table. Example: ranks 0 and 1 on node A both read row 9 of rank 2 on node B. Plain messages carry the row twice; here it
comes once, to gateway 0, and rank 1 reads it from the table. Backward, the gateway sends the sum of the node's
gradients.

Each owner has its own gateway, so the work spreads over the ranks. Messages between nodes form an ordinary
ExchangePlan.

Reference: SuperGCN (arXiv 2411.16025) has one leader per node; a gateway per owner spreads its work over the ranks.
"""

from __future__ import annotations

import mmap
import os
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace

import numpy as np
import torch
from mpi4py import MPI

from hpcgnn.errors import KernelError
from hpcgnn.exchange.arrival import Arrival, PassedOn
from hpcgnn.exchange.halo import Around, HaloExchange
from hpcgnn.exchange.plan import NO_ROWS, ExchangePlan, RowList, ring_rounds
from hpcgnn.exchange.reach import Reach, tell_owners
from hpcgnn.exchange.traffic import Traffic
from hpcgnn.exchange.transfer import swap_rows
from hpcgnn.graph.hop import ExchangeSite
from hpcgnn.ops.aggregation import SparseRows, add_product, from_csr, multiply
from hpcgnn.ops.arena import empty, empty_table

HALVES = 2
ALIGNMENT = 64      # bytes; each half begins on a cache line
Numbers = int | np.ndarray


@dataclass(frozen=True)
class ComputeNode:
    """The rows that a rank shares with the other ranks of its node.

    The table has one block per rank of the node: first the rank's own rows that other ranks of the node read, then,
    sorted by owner, the rows for which it is the gateway; both ascend in global id. In the backward pass the table
    holds the halo gradients of all ranks, in order.
    """

    comm: MPI.Comm                  # communicator of the node
    plan: ExchangePlan              # messages between nodes
    num_rows: int                   # rows of the table
    # (start, stop) of this rank's own rows, and of the rows for which it is the gateway
    own_rows: tuple[int, int]
    received_rows: tuple[int, int]
    own_index: np.ndarray           # (num_own,) int64, inner rows that other ranks of the node read
    place: np.ndarray               # (num_halo,) int64, row of the table of each halo row
    num_gradients: int              # halo rows of all ranks of the node
    gradient_rows: tuple[int, int]  # (start, stop) of this rank's gradients
    sums: SparseRows                # (num_own + plan.num_halo, num_gradients), the gradients that each row sums

    @property
    def num_halo(self) -> int:
        return len(self.place)

    @property
    def is_idle(self) -> bool:
        return bool(self.comm.allreduce(self.plan.is_alone and not self.num_gradients, MPI.LAND))

    @classmethod
    def build(cls, comm: MPI.Comm, node: MPI.Comm, plan: ExchangePlan) -> ComputeNode:
        """Collective: agree on the gateways for a plan of plain messages between all ranks."""
        mates = np.array(node.allgather(comm.rank))
        table = _Table.of_node(node, plan, mates)
        first, last = np.searchsorted(table.holder, [node.rank, node.rank + 1]).tolist()
        middle = first + int((~table.is_received[first:last]).sum())
        within = _union(rows for peer, rows in zip(plan.peers, plan.boundary, strict=True) if peer in mates)
        own_index = within.index[np.searchsorted(within.node_id, table.node_id[first:middle])].astype(np.int64)
        start, stop = table.starts[node.rank:node.rank + 2].tolist()
        received = _by_owner(table.owner[middle:last], table.node_id[middle:last])
        return cls(node, _plan_between(plan, _leaving(comm, plan, mates), received), len(table.holder),
                   (first, middle), (middle, last), own_index, table.place[start:stop], len(table.place),
                   (start, stop), table.sums(first, last))

    def reach(self, comm: MPI.Comm, reach: Reach) -> Reach:
        """Collective: return the reach for messages between nodes: the least hops among a row's readers here."""
        of_all, halo = np.concatenate(self.comm.allgather(reach.halo)), np.empty(0, np.int32)
        begin = self.sums.begin[len(self.own_index):]
        if len(begin):
            halo = np.minimum.reduceat(of_all[self.sums.indices[begin[0]:]], begin - begin[0])
        return replace(reach, halo=halo, boundary=tell_owners(comm, self.plan, halo))


@dataclass(frozen=True)
class _Table:
    holder: np.ndarray       # (num_rows,) int64, ranks within the node, ascending
    is_received: np.ndarray  # (num_rows,) bool, whether the row comes from another node
    owner: np.ndarray        # (num_rows,) int64, global rank
    node_id: np.ndarray
    starts: np.ndarray       # (ranks of the node + 1,) int64, first halo row of each rank among all
    place: np.ndarray        # (halo rows of all ranks,) int64, row of the table

    @classmethod
    def of_node(cls, node: MPI.Comm, plan: ExchangePlan, mates: np.ndarray) -> _Table:
        owners = np.repeat(np.array(plan.peers), list(map(len, plan.halo)))
        told = node.allgather((owners, np.concatenate([rows.node_id for rows in plan.halo])))
        lengths = [len(owners) for owners, _ in told]
        owners, node_ids = (np.concatenate(arrays) for arrays in zip(*told, strict=True))
        readers = np.repeat(np.arange(node.size), lengths)
        node_id, first, row = np.unique(node_ids, return_index=True, return_inverse=True)
        owner = owners[first]
        is_received = ~np.isin(owner, mates)
        holder = np.where(is_received, _gateway_of(owner, owners, readers, node.size), np.searchsorted(mates, owner))
        order = np.lexsort((node_id, owner, is_received, holder))
        place = np.empty(len(order), np.int64)
        place[order] = np.arange(len(order))
        return cls(holder[order], is_received[order], owner[order], node_id[order],
                   np.concatenate([[0], np.cumsum(lengths)]), place[row])

    def sums(self, first: int, last: int) -> SparseRows:
        entries = np.flatnonzero((self.place >= first) & (self.place < last))
        rows = self.place[entries] - first
        indptr = np.concatenate([[0], np.cumsum(np.bincount(rows, minlength=last - first))]).astype(np.int64)
        return from_csr(indptr, entries[np.argsort(rows, kind="stable")].astype(np.int32), len(self.place))


def _gateway_of(owner: np.ndarray, owners: np.ndarray, readers: np.ndarray, num_readers: int) -> np.ndarray:
    pairs = np.unique(owners * num_readers + readers)
    known, begin, counts = np.unique(pairs // num_readers, return_index=True, return_counts=True)
    gateways = (pairs % num_readers)[_gateway(known, begin, counts)]
    return gateways[np.searchsorted(known, owner)]


def _gateway(owner: Numbers, begin: Numbers, num_readers: Numbers) -> Numbers:
    # Owners take turns among their readers.
    return begin + owner % num_readers


def _leaving(comm: MPI.Comm, plan: ExchangePlan, mates: np.ndarray) -> dict[int, RowList]:
    node_of = swap_rows(comm, plan.peers, np.full(len(plan.peers), mates[0]))
    leaving = {}
    for node in np.unique(node_of[node_of != mates[0]]).tolist():
        readers = [place for place in np.flatnonzero(node_of == node).tolist() if len(plan.boundary[place])]
        if readers:
            gateway = readers[_gateway(plan.rank, 0, len(readers))]
            leaving[plan.peers[gateway]] = _union(plan.boundary[place] for place in readers)
    return leaving


def _union(lists: Iterable[RowList]) -> RowList:
    lists = [NO_ROWS, *lists]
    node_id, first = np.unique(np.concatenate([rows.node_id for rows in lists]), return_index=True)
    return RowList(np.concatenate([rows.index for rows in lists])[first], node_id,
                   np.arange(len(node_id), dtype=np.int32))


def _by_owner(owner: np.ndarray, node_id: np.ndarray) -> dict[int, RowList]:
    owners, begin, counts = np.unique(owner, return_index=True, return_counts=True)
    rows = np.arange(len(owner), dtype=np.int32)
    return {rank: RowList(rows[start:start + count], node_id[start:start + count], rows[:count])
            for rank, start, count in zip(owners.tolist(), begin.tolist(), counts.tolist(), strict=True)}


def _plan_between(plan: ExchangePlan, leaving: Mapping[int, RowList], received: Mapping[int, RowList]) -> ExchangePlan:
    peers = tuple(sorted({plan.rank, *leaving, *received}))
    return replace(plan, num_halo=sum(map(len, received.values())), peers=peers,
                   boundary=tuple(leaving.get(peer, NO_ROWS) for peer in peers),
                   halo=tuple(received.get(peer, NO_ROWS) for peer in peers),
                   rounds=ring_rounds(plan.rank, plan.num_ranks, peers))


class SharedExchange(Around):
    """The exchange of a rank that shares halo rows with the other ranks of its node; `exchange` is between nodes.

    Each exchange writes to one half of the node's memory, meets the other ranks once, and reads. The next exchange uses
    the other half, so it can't overwrite rows that a slow rank still reads.
    """

    def __init__(self, exchange: HaloExchange | Around, node: ComputeNode):
        super().__init__(exchange)
        self._node, self._memory, self._half = node, SharedMemory(node.comm), 0
        self.is_alone, self.num_halo = node.is_idle, node.num_halo
        self.overlaps = not self.is_alone
        self._place, self._own_index = torch.from_numpy(node.place), torch.from_numpy(node.own_index)
        order = np.argsort(node.own_index)
        ends = np.searchsorted(node.own_index[order], np.arange(node.plan.num_inner + 1))
        self._to_inner = from_csr(ends.astype(np.int64), order.astype(np.int32), len(order))

    def takes_columns(self, site: ExchangeSite, dtype: torch.dtype) -> bool:
        return False      # the table that a node shares has whole rows

    def start_fetch(self, h: torch.Tensor, site: ExchangeSite) -> SharedFetch:
        arrival = self.exchange.start_fetch(h, site)
        return SharedFetch(self, self._own_rows(h), arrival)

    def start_take_home(self, gradient: torch.Tensor, site: ExchangeSite) -> SharedGradients:
        traffic = self.exchange.training if site.is_training else self.exchange.evaluation
        own, leaving = self._sum_gradients(gradient, traffic)
        return SharedGradients(self, own, self.exchange.start_take_home(leaving, site))

    def input_rows(self, features: torch.Tensor) -> torch.Tensor:
        """Collective: see `HaloExchange.input_rows`."""
        num_inner = len(features)
        rows = empty_table((num_inner + self.num_halo, features.shape[1]), features.dtype)
        rows[:num_inner] = features
        SharedFetch(self, self._own_rows(features), self.exchange.start_input(features)).finish(rows[num_inner:])
        self._memory.release()      # features are wider than all rows that come later
        return rows

    def sent_home(self, values: np.ndarray) -> np.ndarray:
        return self._sum_gradients(torch.from_numpy(values)[:, None], Traffic())[1][:, 0].numpy()

    @property
    def message_bytes(self) -> int:
        return self.exchange.message_bytes + self._memory.num_bytes // self._node.comm.size

    def forget(self) -> None:
        self.exchange.forget()
        self._memory.release()

    def _own_rows(self, h: torch.Tensor) -> torch.Tensor:
        """Copy the rows of `h`, (n, dim), that the node's ranks read, (num_own, dim); `h` may change afterwards.

        `h` has the first inner rows; a pass that leaves out the others never reads their values here.
        """
        own = empty((len(self._own_index), h.shape[1]), h.dtype)
        if not len(h):
            return own.zero_()
        return torch.index_select(h, 0, self._own_index.clamp(max=len(h) - 1), out=own)

    def fetch(self, own: torch.Tensor, arrival: Arrival, rows: torch.Tensor) -> None:
        """Collective in the node: write the halo rows, (num_halo, dim), from `_own_rows` and the gateway's arrival."""
        node = self._node
        table = self._next(node.num_rows, rows)
        arrival.finish(table[slice(*node.received_rows)])
        with _counted(arrival.traffic):
            table[slice(*node.own_rows)] = own
            arrival.traffic.shared_bytes += own.nbytes
            self.exchange.meet(node.comm, arrival.traffic)
            torch.index_select(table, 0, self._place, out=rows)

    def _sum_gradients(self, gradient: torch.Tensor, traffic: Traffic) -> tuple[torch.Tensor, torch.Tensor]:
        """Collective in the node: sum each row's gradients, (num_halo, dim), over the ranks, in rank order.

        Returns the sums for this rank's rows that other ranks of the node read, (num_own, dim), and the sums to be
        sent to their owners on other nodes, (plan.num_halo, dim).
        """
        node = self._node
        with _counted(traffic):
            table = self._next(node.num_gradients, gradient)
            table[slice(*node.gradient_rows)] = gradient
            traffic.shared_bytes += gradient.nbytes
            self.exchange.meet(node.comm, traffic)
            total = multiply(node.sums, table)
        return total[:len(node.own_index)], total[len(node.own_index):]

    def add_own(self, own: torch.Tensor, rows: torch.Tensor) -> None:
        """Add the first result of `_sum_gradients` to the gradients of the first inner rows, (n, dim)."""
        add_product(self._to_inner.rows(0, len(rows)), own, None, rows)

    def _next(self, num_rows: int, like: torch.Tensor) -> torch.Tensor:
        self._half = (self._half + 1) % HALVES
        return self._memory.rows(self._half, (num_rows, like.shape[1]), like.dtype)


@dataclass(frozen=True)
class SharedFetch(PassedOn):
    """Halo rows on their way through the node's table."""

    shared: SharedExchange
    own: torch.Tensor  # (num_own, dim), this rank's rows that other ranks of the node read
    arrival: Arrival   # arrival of the rows for which this rank is the gateway

    def finish(self, rows: torch.Tensor) -> None:
        """Collective in the node: see `hpcgnn.graph.hop.Arrival`."""
        self.shared.fetch(self.own, self.arrival, rows)


@dataclass(frozen=True)
class SharedGradients(SharedFetch):
    """Gradients on their way to their owners; `own` holds the gradients that the node's ranks add to inner rows."""

    def finish(self, rows: torch.Tensor) -> None:
        self.arrival.finish(rows)
        self.shared.add_own(self.own, rows)


@contextmanager
def _counted(traffic: Traffic) -> Iterator[None]:
    started = time.perf_counter()
    yield
    traffic.exchange_seconds += time.perf_counter() - started


class SharedMemory:
    """Two halves of memory that the ranks of a node share; grown on demand.

    The memory is an unnamed file that lives while some rank has it mapped. So nothing is left behind, and /dev/shm is
    not used.
    """

    def __init__(self, node: MPI.Comm):
        self._node = node
        self._bytes = torch.empty(0, dtype=torch.uint8)

    @property
    def num_bytes(self) -> int:
        return len(self._bytes)

    def rows(self, half: int, shape: tuple[int, int], dtype: torch.dtype) -> torch.Tensor:
        """Collective in the node: return the same memory on all ranks, at the start of half 0 or 1; growth discards it.

        Raises KernelError on all ranks if the system gives no memory, or ranks can't map each other's memory.
        """
        num_bytes = shape[0] * shape[1] * dtype.itemsize
        if num_bytes > self.num_bytes // HALVES:
            self._grow(-(-num_bytes // ALIGNMENT) * ALIGNMENT)
        start = half * (self.num_bytes // HALVES)
        return self._bytes[start:start + num_bytes].view(dtype).view(shape)

    def release(self) -> None:
        self._bytes = torch.empty(0, dtype=torch.uint8)

    def _grow(self, half_bytes: int) -> None:
        self.release()
        made, problem = None, None
        if self._node.rank == 0:
            try:
                made = os.memfd_create("hpcgnn")
                os.ftruncate(made, HALVES * half_bytes)
            except OSError as error:
                problem = error
        path = self._node.bcast(None if problem else f"/proc/{os.getpid()}/fd/{made}")
        if path is not None:
            try:
                self._bytes = _mapped(path, HALVES * half_bytes)
            except OSError as error:
                problem = error
        problems = [text for text in self._node.allgather(problem and str(problem)) if text]
        if made is not None:
            os.close(made)
        if problems:
            raise KernelError(f"the ranks of this node can't share {HALVES * half_bytes:,} bytes of memory "
                              f"({problems[0]}); use --set nodes_aware=off")


def _mapped(path: str, num_bytes: int) -> torch.Tensor:
    file = os.open(path, os.O_RDWR)
    try:
        return torch.from_numpy(np.frombuffer(mmap.mmap(file, num_bytes), np.uint8))
    finally:
        os.close(file)
