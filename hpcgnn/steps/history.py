"""History: what the rows of each layer were when they were last computed or received."""

from __future__ import annotations

import numpy as np
import torch

from hpcgnn.errors import KernelError
from hpcgnn.exchange.state import State, on_host
from hpcgnn.ops.arena import empty

Site = tuple[int, int]      # exchanges before it in a pass, columns


class History:
    """Keep a row of each node that this rank has, for each place in a pass where rows are exchanged.

    Parameters
    ----------
    num_rows : int                    inner and halo rows
    dtype : torch.dtype or None       that rows are kept in; None is their own
    """

    def __init__(self, num_rows: int, dtype: torch.dtype | None = None):
        self._num_rows, self._dtype = num_rows, dtype
        self._tables: dict[Site, torch.Tensor] = {}

    def table(self, layer: int, like: torch.Tensor) -> torch.Tensor:
        """Return the rows of a layer, (num_rows, dim) beside `like`; zeros before the first were kept."""
        site = layer, like.shape[1]
        if site not in self._tables:
            self._tables[site] = empty((self._num_rows, like.shape[1]), self._dtype or like.dtype, like.device).zero_()
        return self._tables[site]

    @property
    def num_bytes(self) -> int:
        """Return the memory of all rows."""
        return sum(table.nbytes for table in self._tables.values())

    @property
    def is_empty(self) -> bool:
        """Tell whether no rows are kept."""
        return not self._tables

    def forget(self) -> None:
        """Keep nothing."""
        self._tables = {}

    def state(self) -> State:
        """Return all rows as arrays; 16-bit ones as their bits."""
        return {f"{layer}-{dim}-{str(table.dtype).removeprefix('torch.')}": on_host(_as_bits(table))
                for (layer, dim), table in self._tables.items()}

    def restore(self, state: State, device: torch.device) -> None:
        """Go on from what `state` returned.

        Raises
        ------
        KernelError      rows of another part
        """
        self._tables = {}
        for name, rows in state.items():
            layer, dim, dtype = name.split("-")
            if rows.shape != (self._num_rows, int(dim)):
                raise KernelError(f"rows of shape {rows.shape} were kept where {self._num_rows} of {dim} are expected")
            table = empty(rows.shape, getattr(torch, dtype), device)
            _as_bits(table).copy_(torch.from_numpy(np.ascontiguousarray(rows)))
            self._tables[int(layer), int(dim)] = table


def _as_bits(table: torch.Tensor) -> torch.Tensor:
    return table if table.dtype == torch.float32 else table.view(torch.int16)
