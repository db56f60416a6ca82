"""StepExchange: brings a step's graph the rows that the step does not compute.

Rows that other ranks compute in the same step come by the run's exchange; all other rows come from the history.
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

PlanWithin = Callable[[int | None], ExchangePlan]      # from the number of hops to the loss; None is any number


class StepExchange:
    """The exchange of one step's LocalGraph; `exchange` is the run's."""

    is_alone = False
    halo_spans = None
    reads_history = True

    def __init__(self, exchange: HaloExchange, history: History, batch: Batch, is_shared: bool):
        self._exchange, self._history, self._batch, self._is_shared = exchange, history, batch, is_shared
        self.num_returning = batch.num_fresh

    def start_fetch(self, h: torch.Tensor, site: ExchangeSite) -> FarRows:
        """Collective: keep the batch's rows in the history, and start to fetch the far rows."""
        table = self._history.table(site.layer, h)
        key = CounterKey(site.seed, site.epoch, FORWARD, site.layer)
        table.keep(self._batch.rows, h.detach(), key)
        arrival = self._exchange.start_fetch(h, site) if self._is_shared else None
        return FarRows(table, key, self._batch, arrival, h.dtype)

    def start_take_home(self, gradient: torch.Tensor, site: ExchangeSite) -> Arrival | NoRows:
        """Collective: send the gradients of fresh rows home; rows of the history are constants."""
        if not self._is_shared:
            return NoRows()
        return self._exchange.start_take_home(gradient[:self.num_returning], site)

    def input_rows(self, features: torch.Tensor) -> torch.Tensor:
        """Raise ConfigError: these rows would have to cross in every step."""
        raise ConfigError("this model shares rows of its own with all ranks once per epoch, which epochs of several "
                          "steps can't do; leave --steps out")

    def sum_over_ranks(self, values: torch.Tensor) -> None:
        """Raise ConfigError: a step has only some of the rows."""
        raise ConfigError("this model sums over all rows of the graph, such as for a batch norm, and a step computes "
                          "some of them; leave --steps out")

    def present(self, site: ExchangeSite) -> np.ndarray | None:
        pass


class FarRows:
    """The far rows of one layer, some of them on their way; see `hpcgnn.graph.hop.ArrivalInTable`.

    `arrival`, or None, brings the fresh rows, which come first; `dtype` is the type of the rows of the pass.
    """

    def __init__(self, table: KeptRows, key: CounterKey, batch: Batch, arrival: Arrival | None, dtype: torch.dtype):
        self._table, self._key, self._far, self._num_fresh = table, key, batch.far, batch.num_fresh
        self._arrival, self._dtype = arrival, dtype

    def poll(self) -> bool:
        return self._arrival is None or self._arrival.poll()

    def wait(self) -> None:
        if self._arrival is not None:
            self._arrival.wait()

    def packed(self) -> PackedRows | None:
        return None

    def rows_in_message(self, dtype: torch.dtype) -> None:
        pass

    def in_place(self) -> torch.Tensor | PackedRows | None:
        # Coded tables can't take fresh rows: fresh rows are read unrounded, as their owner reads them.
        rows = self._table.in_place(self._dtype)
        if self._arrival is None or rows is None:
            return rows
        if not isinstance(rows, torch.Tensor):
            return None
        self._receive(rows.index_select(0, on_device(self._far, rows)[:self._num_fresh]))
        return rows

    def finish(self, rows: torch.Tensor) -> None:
        self._table.read(self._far, rows)
        if self._arrival is not None:
            self._receive(rows[:self._num_fresh])

    def _receive(self, fresh: torch.Tensor) -> None:
        # Rows too far from the loss are not sent and keep their last values.
        self._arrival.finish(fresh)
        self._table.keep(self._far, fresh, self._key)


class NoRows:
    """Arrival of gradients that no other rank has."""

    def poll(self) -> bool:
        return True

    def wait(self) -> None:
        pass

    def packed(self) -> PackedRows | None:
        return None

    def rows_in_message(self, dtype: torch.dtype) -> None:
        pass

    def finish(self, rows: torch.Tensor) -> None:
        pass


def step_plans(plan_within: PlanWithin, batch: Batch, place: np.ndarray, num_inner: int) -> PlanWithin:
    """Return a function that makes the plan of a step's rows, in the step's numbers, from the plan of all rows.

    `place`, (num_inner + num_halo,) int32, is the place of each batch row in `rows` and of each fresh halo row in
    `far`; else -1.
    """
    def of_step(hops: int | None) -> ExchangePlan:
        within = plan_within(hops)
        return replace(within, num_inner=len(batch.rows), num_halo=batch.num_fresh,
                       boundary=tuple(_placed(rows, place[:num_inner]) for rows in within.boundary),
                       halo=tuple(_placed(rows, place[num_inner:]) for rows in within.halo))

    return of_step


def _placed(rows: RowList, place: np.ndarray) -> RowList:
    at = place[rows.index]
    kept = at >= 0
    return RowList(at[kept], rows.node_id[kept], rows.position[kept])
