"""Movement: how far the rows of an exchange move from epoch to epoch, measured where they are whole, at their sender.

Receivers hold quantized rows, whose errors at 1 or 2 bits are far larger than what rows move in an epoch.
"""

from __future__ import annotations

import numpy as np
import torch

from hpcgnn.exchange.state import State, Stateful, on_host, table_of
from hpcgnn.ops.cuda.resident import on_device

SAMPLED_ROWS = 2048     # of one exchange of one rank
NUM_SUMS = 4
EPOCHS_BACK = 2


class Movement(Stateful):
    """Compare a sample of the rows that one exchange sends with the same rows one and two epochs earlier.

    Attributes
    ----------
    sums : (NUM_SUMS,) float64 tensor      over the sample, of the newest epoch: squares of its values, squares of their
        change over one epoch, and over two, and the squares of how much the last two differ row by row, which is the
        variance of their difference; all 0 before there are two epochs to compare with
    """

    def __init__(self) -> None:
        self._earlier: list[torch.Tensor] = []     # newest first
        self._index: np.ndarray | None = None
        self.sums = torch.zeros(NUM_SUMS, dtype=torch.float64)

    def note(self, rows: torch.Tensor, sent: np.ndarray) -> None:
        """Measure the rows of an epoch.

        Parameters
        ----------
        rows : (n, dim) tensor
        sent : (num_sent,) int32      places of the rows that leave; the sample is spread evenly over them
        """
        if self._index is None or len(self._index) != min(len(sent), SAMPLED_ROWS):
            self._index, self._earlier = sent[_spread(len(sent))], []
        now = rows.detach()[on_device(self._index, rows).long()].float()
        before = [table for table in self._earlier if table.shape == now.shape]
        if len(before) == EPOCHS_BACK:
            once, twice = (_square_sums(now - table) for table in before)
            self.sums = torch.stack([_square_sums(now).sum(), once.sum(), twice.sum(), (twice - once).square().sum()])
        else:
            self.sums = torch.zeros(NUM_SUMS, dtype=torch.float64, device=now.device)
        self._earlier = [now, *before[:EPOCHS_BACK - 1]]

    @property
    def num_bytes(self) -> int:
        """See `Stateful`."""
        return sum(4 * table.numel() for table in self._earlier)

    def state(self) -> State:
        """See `Stateful`."""
        return {"index": np.empty(0, np.int32) if self._index is None else self._index, "sums": on_host(self.sums),
                **{f"rows-{age}": on_host(table) for age, table in enumerate(self._earlier)}}

    def restore(self, state: State, device: torch.device) -> None:
        """See `Stateful`."""
        names = [name for name in (f"rows-{age}" for age in range(EPOCHS_BACK)) if name in state]
        self._earlier = [table_of(state[name], device) for name in names]
        self.sums = torch.from_numpy(np.array(state["sums"], np.float64)).to(device)
        self._index = np.ascontiguousarray(state["index"], np.int32) if names else None


def _spread(num_sent: int) -> np.ndarray:
    return np.arange(min(num_sent, SAMPLED_ROWS)) * num_sent // max(1, min(num_sent, SAMPLED_ROWS))


def _square_sums(rows: torch.Tensor) -> torch.Tensor:
    return rows.double().square().sum(1)
