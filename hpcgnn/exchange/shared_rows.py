"""SharedRows: halo rows and their gradients on their way between the ranks of a node, through memory that they share.

Between nodes they cross as messages of gateways; see `hpcgnn.exchange.compute_node`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch

from hpcgnn.exchange.arrival import Arrival, PassedOn
from hpcgnn.exchange.compute_node import ComputeNode
from hpcgnn.exchange.shared_memory import HALVES, SharedMemory
from hpcgnn.exchange.traffic import Traffic
from hpcgnn.ops.aggregation import add_product, from_csr, multiply
from hpcgnn.ops.arena import empty

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
