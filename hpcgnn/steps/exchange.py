"""StepExchange: where a step's LocalGraph finds the rows that the step does not compute.

Rows that other ranks compute in the same step come from them, by the exchange of the run; all others from the history.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch

from hpcgnn.errors import ConfigError
from hpcgnn.exchange.arrival import Arrival
from hpcgnn.exchange.halo import HaloExchange
from hpcgnn.exchange.plan import ExchangePlan, RowList
from hpcgnn.graph.batch import Batch
from hpcgnn.graph.hop import ExchangeSite
from hpcgnn.ops.aggregation import PackedRows
from hpcgnn.ops.counter import FORWARD, CounterKey
from hpcgnn.ops.cuda.resident import on_device
from hpcgnn.steps.history import History
from hpcgnn.steps.kept_rows import KeptRows

PlanWithin = Callable[[int | None], ExchangePlan]      # from the hops within which the loss must be, None for any


class StepExchange:
    """What the LocalGraph of one step asks; see `hpcgnn.graph.hop.Exchange`.

    Parameters
    ----------
    exchange : HaloExchange      of the run
    history : History
    batch : Batch
    is_shared : bool             there are other ranks

    Attributes
    ----------
    num_returning : see `Exchange`
    """

    is_alone = False
    halo_spans = None
    reads_history = True

    def __init__(self, exchange: HaloExchange, history: History, batch: Batch, is_shared: bool):
        self._exchange, self._history, self._batch, self._is_shared = exchange, history, batch, is_shared
        self.num_returning = batch.num_fresh

    def start_fetch(self, h: torch.Tensor, site: ExchangeSite) -> FarRows:
        """Collective: keep the batch's rows, and have the far ones come."""
        table = self._history.table(site.layer, h)
        key = CounterKey(site.seed, site.epoch, FORWARD, site.layer)
        table.keep(self._batch.rows, h.detach(), key)
        arrival = self._exchange.start_fetch(h, site) if self._is_shared else None
        return FarRows(table, key, self._batch, arrival, h.dtype)

    def start_take_home(self, gradient: torch.Tensor, site: ExchangeSite) -> Arrival | NoRows:
        """Collective: send the gradients of fresh rows home. Rows of the history are constants."""
        if not self._is_shared:
            return NoRows()
        return self._exchange.start_take_home(gradient[:self.num_returning], site)

    def input_rows(self, features: torch.Tensor) -> torch.Tensor:
        """Refuse rows that would have to cross in every step.

        Raises
        ------
        ConfigError
        """
        raise ConfigError("this model shares rows of its own with all ranks once, which an epoch of several steps "
                          "can't; leave --steps out")

    def sum_over_ranks(self, values: torch.Tensor) -> None:
        """Refuse sums over all rows, of which a step has some.

        Raises
        ------
        ConfigError
        """
        raise ConfigError("this model sums over all rows of the graph, such as for a batch norm, and a step computes "
                          "some of them; leave --steps out")

    def present(self, site: ExchangeSite) -> np.ndarray | None:
        """Return None: all rows are here."""


class FarRows:
    """The far rows of one layer, some of them on their way; see `hpcgnn.graph.hop.ArrivalInTable`.

    Parameters
    ----------
    table : KeptRows                         rows of the history, which learns what arrives
    key : CounterKey                         of the exchange
    batch : Batch                            whose far rows are wanted
    arrival : Arrival or None                of the fresh ones, which come first
    dtype : torch.dtype                      of the rows of the pass
    """

    def __init__(self, table: KeptRows, key: CounterKey, batch: Batch, arrival: Arrival | None, dtype: torch.dtype):
        self._table, self._key, self._far, self._num_fresh = table, key, batch.far, batch.num_fresh
        self._arrival, self._dtype = arrival, dtype

    def poll(self) -> bool:
        """See `Arrival`."""
        return self._arrival is None or self._arrival.poll()

    def wait(self) -> None:
        """See `Arrival`."""
        if self._arrival is not None:
            self._arrival.wait()

    def packed(self) -> PackedRows | None:
        """See `Arrival`; rows of the history are not packed."""
        return None

    def rows_in_message(self, dtype: torch.dtype) -> None:
        """See `Arrival`; rows of the history lie in no message."""

    def in_place(self) -> torch.Tensor | PackedRows | None:
        """See `hpcgnn.graph.hop.ArrivalInTable`. Codes are no place for rows that other ranks compute in this step,
        which are read as they came, as their owner reads them.
        """
        rows = self._table.in_place(self._dtype)
        if self._arrival is None or rows is None:
            return rows
        if not isinstance(rows, torch.Tensor):
            return None
        self._receive(rows.index_select(0, on_device(self._far, rows)[:self._num_fresh]))
        return rows

    def finish(self, rows: torch.Tensor) -> None:
        """See `Arrival`."""
        self._table.read(self._far, rows)
        if self._arrival is not None:
            self._receive(rows[:self._num_fresh])

    def _receive(self, fresh: torch.Tensor) -> None:
        """Wait; take the fresh rows. Those that don't travel, since the loss is too far away, stay what they are."""
        self._arrival.finish(fresh)
        self._table.keep(self._far, fresh, self._key)


class NoRows:
    """Gradients of rows that no other rank has; see `hpcgnn.graph.hop.Arrival`."""

    def poll(self) -> bool:
        """See `Arrival`."""
        return True

    def wait(self) -> None:
        """See `Arrival`."""

    def packed(self) -> PackedRows | None:
        """See `Arrival`."""
        return None

    def rows_in_message(self, dtype: torch.dtype) -> None:
        """See `Arrival`."""

    def finish(self, rows: torch.Tensor) -> None:
        """See `Arrival`."""


def step_plans(plan_within: PlanWithin, batch: Batch, place: np.ndarray, num_inner: int) -> PlanWithin:
    """Return what makes the plan of a step's rows, in the step's own numbers, from that of all rows.

    Parameters
    ----------
    plan_within : function                     see `HaloExchange.plan_within`
    batch : Batch
    place : (num_inner + num_halo,) int32      of each row of the batch in `rows`, of each fresh halo row in `far`; -1
                                               elsewhere
    num_inner : int
    """
    def of_step(hops: int | None) -> ExchangePlan:
        within = plan_within(hops)
        return replace(within, num_inner=len(batch.rows), num_halo=batch.num_fresh,
                       boundary=tuple(_placed(rows, place[:num_inner]) for rows in within.boundary),
                       halo=tuple(_placed(rows, place[num_inner:]) for rows in within.halo))

    return of_step


def _placed(rows: RowList, place: np.ndarray) -> RowList:
    """Return the rows that have a place, by it."""
    at = place[rows.index]
    kept = at >= 0
    return RowList(at[kept], rows.node_id[kept], rows.position[kept])
