"""LateMessages: in an asynchronous epoch, the messages of a step are read in the next step.

While they travel, the rank computes; the next step waits for them where it sends its own. Rows go to the history, as
fresh ones do. Gradients belong to rows that other steps do not compute, so a second history keeps them for an epoch,
until a step computes the same rows again.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from hpcgnn.exchange.arrival import Arrival, PassedOn
from hpcgnn.exchange.kinds.in_steps import KeptInSteps
from hpcgnn.exchange.state import State
from hpcgnn.graph.batch import Batch
from hpcgnn.graph.hop import ExchangeSite
from hpcgnn.ops.counter import BACKWARD, FORWARD, CounterKey
from hpcgnn.ops.resident import on_device
from hpcgnn.steps.history import History, KeptRows


class LateMessages:
    """Messages on their way to the next step, and the last gradients of the rows that this rank shares.

    kind : KeptInSteps                  says which exchanges of an epoch are read late
    node_id : (num_rows,) int64
    is_shared : (num_inner,) bool       rows that other ranks read, too

    Reference: PipeGCN (Wan et al., ICLR 2022), section 3.2, whose messages wait an epoch. Deviation: they wait a step,
    and a row is as old as its last computation.
    """

    def __init__(self, kind: KeptInSteps, node_id: np.ndarray, is_shared: np.ndarray):
        self._kind, self._is_shared = kind, is_shared
        self._place = np.cumsum(is_shared) - 1      # of a shared row in `_gradients`
        self._gradients = History(node_id[:len(is_shared)][is_shared])
        self._open: dict[tuple[int, int], Callable[[], None]] = {}

    def is_late(self, site: ExchangeSite, purpose: int) -> bool:
        return self._kind.reads_stale(site.layer, purpose)

    def settle(self, layer: int | None = None, purpose: int | None = None) -> None:
        """Collective: wait for the messages of one exchange of the last step, or of all, and keep what they bring."""
        for place in [(layer, purpose)] if layer is not None else list(self._open):
            if place in self._open:
                self._open.pop(place)()

    def expect_rows(self, arrival: Arrival, site: ExchangeSite, batch: Batch, table: KeptRows, key: CounterKey,
                    like: torch.Tensor) -> None:
        """Keep the rows of `arrival` in `table` before the next step reads it; they have the type of `like`."""
        def keep() -> None:
            # Rows too far from the loss do not travel, and keep their values.
            rows = like.new_empty((batch.num_fresh, like.shape[1]))
            table.read(batch.far, rows)
            before = rows.clone() if self._kind.smoothing else None
            arrival.finish(rows)
            table.keep(batch.far, rows if before is None else rows.lerp_(before, self._kind.smoothing), key)

        self._open[site.layer, FORWARD] = keep

    def expect_gradients(self, arrival: Arrival, site: ExchangeSite, batch: Batch, like: torch.Tensor) -> LastGradients:
        """Keep the gradients of `arrival` for the next epoch; return those of the last epoch."""
        gradients = self._of_batch(arrival, site, batch, like)
        self._open[site.layer, BACKWARD] = lambda: gradients.take(self._kind.smoothing)
        return gradients

    def fresh_gradients(self, arrival: Arrival, site: ExchangeSite, batch: Batch, like: torch.Tensor) -> LastGradients:
        """Return the gradients of `arrival`, which are kept as well."""
        gradients = self._of_batch(arrival, site, batch, like)
        gradients.is_late = False
        return gradients

    def _of_batch(self, arrival: Arrival, site: ExchangeSite, batch: Batch, like: torch.Tensor) -> LastGradients:
        rows = np.flatnonzero(self._is_shared[batch.rows])
        key = CounterKey(site.seed, site.epoch, BACKWARD, site.layer)
        table = self._gradients.table(site.layer, like.new_empty((0, like.shape[1]), dtype=torch.float32))
        return LastGradients(arrival, table, len(batch.rows), rows, self._place[batch.rows[rows]], key, site.loss_scale)

    @property
    def num_bytes(self) -> int:
        return self._gradients.num_bytes

    def forget(self) -> None:
        self._open = {}
        self._gradients.forget()

    def state(self) -> State:
        """Collective: the last gradients; first waits for messages on their way."""
        self.settle()
        return self._gradients.state()

    def restore(self, state: State, device: torch.device) -> None:
        self._gradients.restore(state, device)


class LastGradients(PassedOn):
    """The gradients of one exchange of a step: the last epoch's, or the gradients that arrive.

    rows : (n,) int64       shared rows of the batch
    place : (n,) int64      their places in `table`, which has gradients without the loss scale
    """

    is_late = True

    def __init__(self, arrival: Arrival, table: KeptRows, num_batch: int, rows: np.ndarray, place: np.ndarray,
                 key: CounterKey, loss_scale: float):
        self.arrival, self._table, self._num_batch, self._scale = arrival, table, num_batch, loss_scale
        self._rows, self._at, self._key = rows, place, key

    def wait(self) -> None:
        if not self.is_late:
            self.arrival.wait()

    def finish(self, rows: torch.Tensor) -> None:
        """Add the gradients of the last epoch to `rows`, or, if not late, the gradients that arrive."""
        if not self.is_late:
            self.take(0.0)
        known = rows.new_empty((len(self._at), rows.shape[1]), dtype=torch.float32)
        self._table.read(self._at, known)
        is_here = self._rows < len(rows)       # a gradient reaches the first rows of a batch only
        if not is_here.all():
            known = known[torch.from_numpy(is_here).to(rows.device)]
        rows.index_add_(0, on_device(self._rows[is_here], rows), (known * self._scale).to(rows.dtype))

    def take(self, smoothing: float) -> None:
        """Wait for what arrives, and keep it; `smoothing` weighs what was kept before."""
        arrived = torch.zeros((self._num_batch, self.arrival.messages.dim), device=self.arrival.device)
        self.arrival.finish(arrived)
        now = arrived.index_select(0, on_device(self._rows, arrived)) / self._scale
        if smoothing:
            before = torch.empty_like(now)
            self._table.read(self._at, before)
            now = now.lerp_(before, smoothing)
        self._table.keep(self._at, now, self._key)
