"""SharedMemory: bytes that all ranks of a node read and write, without a name that could be left behind.

SharedRows: halo rows and their gradients on their way between the ranks of a node, through memory that they share.

Between nodes they cross as messages of gateways; see `hpcgnn.exchange.compute_node`.

ComputeNode: ranks that share a memory share one copy of each row from elsewhere, which crosses to them once.

Of the ranks of a node that read rows of a rank of another node, one is the gateway: each such row comes to it once,
whoever reads it, and lies in a table that all of the node read. So messages between nodes are those of an ordinary
ExchangePlan, whose halo rows are what comes to the gateways. Rows of the node's own ranks go through the table too.

What is computed here depends on the partition and on who shares a memory, not on rows; `shared_rows` moves these.

Reference: SuperGCN (arXiv 2411.16025) has a leader a node; a gateway for each owner spreads its work over the ranks.
"""

from __future__ import annotations

import mmap
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace

import numpy as np
import torch
from mpi4py import MPI

from hpcgnn.errors import KernelError
from hpcgnn.exchange.arrival import Arrival, PassedOn
from hpcgnn.exchange.plan import NO_ROWS, ExchangePlan, RowList, ring_rounds
from hpcgnn.exchange.reach import Reach, tell_owners
from hpcgnn.exchange.swap import swap_rows
from hpcgnn.exchange.traffic import Traffic
from hpcgnn.ops.aggregation import SparseRows, add_product, from_csr, multiply
from hpcgnn.ops.arena import empty

HALVES = 2
ALIGNMENT = 64      # bytes; each half begins on a cache line


class SharedMemory:
    """Hold two halves of memory that the ranks of a node share; each is grown when more is asked of it.

    The memory is a file without a name: it lives as long as some rank has it mapped, and needs no room in /dev/shm.

    Parameters
    ----------
    node : MPI communicator      of ranks that run under one kernel
    """

    def __init__(self, node: MPI.Comm):
        self._node = node
        self._bytes = torch.empty(0, dtype=torch.uint8)

    @property
    def num_bytes(self) -> int:
        """Return the size of both halves."""
        return len(self._bytes)

    def rows(self, half: int, shape: tuple[int, int], dtype: torch.dtype) -> torch.Tensor:
        """Collective in the node: return rows at the start of a half, the same memory on all ranks; their values are
        what was last written there, and are lost where the memory grows.

        Parameters
        ----------
        half : {0, 1}

        Raises
        ------
        KernelError      on all ranks: the system gives no memory, or ranks can't reach each other's
        """
        num_bytes = shape[0] * shape[1] * dtype.itemsize
        if num_bytes > self.num_bytes // HALVES:
            self._grow(-(-num_bytes // ALIGNMENT) * ALIGNMENT)
        start = half * (self.num_bytes // HALVES)
        return self._bytes[start:start + num_bytes].view(dtype).view(shape)

    def release(self) -> None:
        """Give the memory back once no rank of the node uses it any more."""
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
    """Return a file's bytes, (num_bytes,) uint8, which stay when it is closed."""
    file = os.open(path, os.O_RDWR)
    try:
        return torch.from_numpy(np.frombuffer(mmap.mmap(file, num_bytes), np.uint8))
    finally:
        os.close(file)


Meet = Callable[[Traffic], None]


class SharedRows:
    """Move rows between the ranks of a node.

    Every exchange writes to the memory, meets the other ranks once, and reads. The next one writes to the other half,
    so a rank that is slow to read is not overtaken. All ranks of the node have the same exchanges in the same order.

    Parameters
    ----------
    node : ComputeNode
    meet : function      returns when all ranks of the node have called it; the seconds are the traffic's

    Attributes
    ----------
    node : as it was given
    is_idle : bool       no rank of the node reads a row of another or is read by one
    """

    def __init__(self, node: ComputeNode, meet: Meet):
        self.node, self.is_idle = node, node.is_idle
        self._meet, self._memory, self._half = meet, SharedMemory(node.comm), 0
        self._place, self._own_index = torch.from_numpy(node.place), torch.from_numpy(node.own_index)
        order = np.argsort(node.own_index)
        ends = np.searchsorted(node.own_index[order], np.arange(node.plan.num_inner + 1))
        self._to_inner = from_csr(ends.astype(np.int64), order.astype(np.int32), len(order))

    @property
    def num_bytes(self) -> int:
        """Return this rank's share of the memory."""
        return self._memory.num_bytes // self.node.comm.size

    def release(self) -> None:
        """Give the memory back until rows travel again."""
        self._memory.release()

    def own_rows(self, h: torch.Tensor) -> torch.Tensor:
        """Return a copy, (num_own, dim), of the rows that other ranks of the node read, as they are when a message
        would be encoded: the caller may mask them where they lie.

        Parameters
        ----------
        h : (n, dim)      the first inner rows; others, which no pass that leaves them out reads, are as any of these
        """
        own = empty((len(self._own_index), h.shape[1]), h.dtype)
        if not len(h):
            return own.zero_()
        return torch.index_select(h, 0, self._own_index.clamp(max=len(h) - 1), out=own)

    def fetch(self, own: torch.Tensor, arrival: Arrival, rows: torch.Tensor) -> None:
        """Collective in the node: write the halo rows, (num_halo, dim), that are inner ones of another rank of the
        node, or that come from elsewhere.

        Parameters
        ----------
        own : (num_own, dim)    what this rank has for the others, see `own_rows`
        arrival : Arrival       of the rows that this rank is the gateway of
        """
        node = self.node
        table = self._next(node.num_rows, rows)
        arrival.finish(table[slice(*node.received_rows)])
        with _counted(arrival.traffic):
            table[slice(*node.own_rows)] = own
            arrival.traffic.shared_bytes += own.nbytes
            self._meet(arrival.traffic)
            torch.index_select(table, 0, self._place, out=rows)

    def sum_gradients(self, gradient: torch.Tensor, traffic: Traffic) -> tuple[torch.Tensor, torch.Tensor]:
        """Collective in the node: add up what its ranks have of each row's gradient, in the order of the ranks.

        Parameters
        ----------
        gradient : (num_halo, dim)

        Returns
        -------
        (num_own, dim), of the rows that other ranks of the node read, and (plan.num_halo, dim), which are to go home
        """
        node = self.node
        with _counted(traffic):
            table = self._next(node.num_gradients, gradient)
            table[slice(*node.gradient_rows)] = gradient
            traffic.shared_bytes += gradient.nbytes
            self._meet(traffic)
            total = multiply(node.sums, table)
        return total[:len(node.own_index)], total[len(node.own_index):]

    def add_own(self, own: torch.Tensor, rows: torch.Tensor) -> None:
        """Add gradients that `sum_gradients` returned to those of the first inner rows, (n, dim)."""
        add_product(self._to_inner.rows(0, len(rows)), own, None, rows)

    def _next(self, num_rows: int, like: torch.Tensor) -> torch.Tensor:
        self._half = (self._half + 1) % HALVES
        return self._memory.rows(self._half, (num_rows, like.shape[1]), like.dtype)


@dataclass(frozen=True)
class SharedFetch(PassedOn):
    """Halo rows on their way; see `hpcgnn.graph.hop.Arrival`.

    Attributes
    ----------
    shared : SharedRows
    own : (num_own, dim)     this rank's rows that others of the node read
    arrival : Arrival        of the rows that this rank is the gateway of
    """

    shared: SharedRows
    own: torch.Tensor
    arrival: Arrival

    def finish(self, rows: torch.Tensor) -> None:
        """Collective in the node: see `hpcgnn.graph.hop.Arrival`."""
        self.shared.fetch(self.own, self.arrival, rows)


@dataclass(frozen=True)
class SharedGradients(SharedFetch):
    """Gradients on their way home; `own` is what the node's own ranks add to those of inner rows."""

    def finish(self, rows: torch.Tensor) -> None:
        """See `hpcgnn.graph.hop.Arrival`."""
        self.arrival.finish(rows)
        self.shared.add_own(self.own, rows)


@contextmanager
def _counted(traffic: Traffic) -> Iterator[None]:
    """Count the seconds of a block as the exchange's."""
    started = time.perf_counter()
    yield
    traffic.exchange_seconds += time.perf_counter() - started


Numbers = int | np.ndarray


def split_nodes(comm: MPI.Comm, ranks_per_node: int = 0) -> MPI.Comm:
    """Collective: return the communicator of the ranks that share this one's memory, in the order of their ranks.

    Parameters
    ----------
    ranks_per_node : int      so many consecutive ones of them count as a node, such as those of a socket; 0 is all
    """
    machine = comm.Split_type(MPI.COMM_TYPE_SHARED, comm.rank)
    if not ranks_per_node:
        return machine
    node = machine.Split(machine.rank // ranks_per_node, machine.rank)
    machine.Free()
    return node


def are_worth_it(comm: MPI.Comm, node: MPI.Comm) -> bool:
    """Collective: tell whether there are several nodes, and several ranks in one of them."""
    return comm.allreduce(node.size, MPI.MAX) > 1 and comm.allreduce(node.size, MPI.MIN) < comm.size


@dataclass(frozen=True)
class ComputeNode:
    """What a rank shares with the others of its node.

    The table has a block of rows for each rank of the node, in their order: its own rows that others of the node read,
    then those that it is the gateway of, by owner; both by ascending global id. On the way back there is a table with
    the gradients of all halo rows of all the ranks, in their order.

    Attributes
    ----------
    comm : MPI communicator                    of the node
    plan : ExchangePlan                        of the messages between nodes; its halo rows are those that come here
    num_rows : int                             of the table
    own_rows : (start, stop)                   of the table, this rank's rows
    received_rows : (start, stop)              of the table, what this rank is the gateway of: `plan.num_halo` rows
    own_index : (num_own,) int64               this rank's inner rows that others of the node read
    place : (num_halo,) int64                  the row of the table that each halo row is
    num_gradients : int                        halo rows of all ranks of the node
    gradient_rows : (start, stop)              of these, this rank's
    sums : SparseRows                          (num_own + plan.num_halo, num_gradients), which of them are of each row
    """

    comm: MPI.Comm
    plan: ExchangePlan
    num_rows: int
    own_rows: tuple[int, int]
    received_rows: tuple[int, int]
    own_index: np.ndarray
    place: np.ndarray
    num_gradients: int
    gradient_rows: tuple[int, int]
    sums: SparseRows

    @property
    def num_halo(self) -> int:
        """Return how many rows of other ranks this rank reads, those of its own node among them."""
        return len(self.place)

    @property
    def is_idle(self) -> bool:
        """Tell, alike on all ranks of the node, whether none of them reads a row of another or is read by one."""
        return bool(self.comm.allreduce(self.plan.is_alone and not self.num_gradients, MPI.LAND))

    @classmethod
    def build(cls, comm: MPI.Comm, node: MPI.Comm, plan: ExchangePlan) -> ComputeNode:
        """Collective: agree in each node on who is the gateway of whom.

        Parameters
        ----------
        comm : MPI communicator      of all ranks
        node : MPI communicator      of this one's node, see `split_nodes`
        plan : ExchangePlan          of the rows that each rank sends to each
        """
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
        """Collective: return what training passes may leave out of the messages between nodes: a row is as near to the
        loss as through the nearest of its readers here.

        Parameters
        ----------
        comm : MPI communicator      of all ranks
        reach : Reach                of this rank's own halo rows
        """
        of_all, halo = np.concatenate(self.comm.allgather(reach.halo)), np.empty(0, np.int32)
        begin = self.sums.begin[len(self.own_index):]
        if len(begin):
            halo = np.minimum.reduceat(of_all[self.sums.indices[begin[0]:]], begin - begin[0])
        return replace(reach, halo=halo, boundary=tell_owners(comm, self.plan, halo))


@dataclass(frozen=True)
class _Table:
    """The rows of a node's table, in order, alike on all its ranks.

    Attributes
    ----------
    holder : (num_rows,) int64         ranks of the node, from 0, ascending
    is_received : (num_rows,) bool     the row is of another node
    owner : (num_rows,) int64          rank of all
    node_id : (num_rows,) int64
    starts : (ranks of the node + 1,) int64      where the halo rows of each begin among those of all
    place : (halo rows of all,) int64            row of the table
    """

    holder: np.ndarray
    is_received: np.ndarray
    owner: np.ndarray
    node_id: np.ndarray
    starts: np.ndarray
    place: np.ndarray

    @classmethod
    def of_node(cls, node: MPI.Comm, plan: ExchangePlan, mates: np.ndarray) -> _Table:
        """Collective: lay out the rows that the ranks of a node read."""
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
        """Return which gradients are of the rows first .. last - 1, in the order of the ranks that have them."""
        entries = np.flatnonzero((self.place >= first) & (self.place < last))
        rows = self.place[entries] - first
        indptr = np.concatenate([[0], np.cumsum(np.bincount(rows, minlength=last - first))]).astype(np.int64)
        return from_csr(indptr, entries[np.argsort(rows, kind="stable")].astype(np.int32), len(self.place))


def _gateway_of(owner: np.ndarray, owners: np.ndarray, readers: np.ndarray, num_readers: int) -> np.ndarray:
    """Return the rank of the node that each owner's rows come to, as `_gateway` of those that read some.

    owner : of each row; owners, readers : of each row that a rank reads; num_readers : ranks of the node
    """
    pairs = np.unique(owners * num_readers + readers)
    known, begin, counts = np.unique(pairs // num_readers, return_index=True, return_counts=True)
    gateways = (pairs % num_readers)[_gateway(known, begin, counts)]
    return gateways[np.searchsorted(known, owner)]


def _gateway(owner: Numbers, begin: Numbers, num_readers: Numbers) -> Numbers:
    """Return which of a node's readers of an owner's rows, in order from `begin`, is the gateway: owners take turns."""
    return begin + owner % num_readers


def _leaving(comm: MPI.Comm, plan: ExchangePlan, mates: np.ndarray) -> dict[int, RowList]:
    """Collective: return the rows that leave for each gateway of another node: what any rank of that node reads."""
    node_of = swap_rows(comm, plan.peers, np.full(len(plan.peers), mates[0]))
    leaving = {}
    for node in np.unique(node_of[node_of != mates[0]]).tolist():
        readers = [place for place in np.flatnonzero(node_of == node).tolist() if len(plan.boundary[place])]
        if readers:
            gateway = readers[_gateway(plan.rank, 0, len(readers))]
            leaving[plan.peers[gateway]] = _union(plan.boundary[place] for place in readers)
    return leaving


def _union(lists: Iterable[RowList]) -> RowList:
    """Return the rows of all lists of a rank, each once."""
    lists = [NO_ROWS, *lists]
    node_id, first = np.unique(np.concatenate([rows.node_id for rows in lists]), return_index=True)
    return RowList(np.concatenate([rows.index for rows in lists])[first], node_id,
                   np.arange(len(node_id), dtype=np.int32))


def _by_owner(owner: np.ndarray, node_id: np.ndarray) -> dict[int, RowList]:
    """Return rows that come here, counted from 0, by their owners, which ascend."""
    owners, begin, counts = np.unique(owner, return_index=True, return_counts=True)
    rows = np.arange(len(owner), dtype=np.int32)
    return {rank: RowList(rows[start:start + count], node_id[start:start + count], rows[:count])
            for rank, start, count in zip(owners.tolist(), begin.tolist(), counts.tolist(), strict=True)}


def _plan_between(plan: ExchangePlan, leaving: Mapping[int, RowList], received: Mapping[int, RowList]) -> ExchangePlan:
    """Return the plan in which those rows leave for and come from other nodes, and no others travel."""
    peers = tuple(sorted({plan.rank, *leaving, *received}))
    return replace(plan, num_halo=sum(map(len, received.values())), peers=peers,
                   boundary=tuple(leaving.get(peer, NO_ROWS) for peer in peers),
                   halo=tuple(received.get(peer, NO_ROWS) for peer in peers),
                   rounds=ring_rounds(plan.rank, plan.num_ranks, peers))
