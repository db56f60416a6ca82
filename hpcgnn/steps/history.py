"""History: the rows of each layer as they were last computed or received."""

from __future__ import annotations

import numpy as np
import torch

from hpcgnn.errors import ConfigError, KernelError
from hpcgnn.exchange.state import State
from hpcgnn.steps.kept_rows import CodedRows, DenseRows, KeptRows

Site = tuple[int, int]      # (number of exchanges before this one in a pass, number of columns)
STORED = "stored"


class History:
    """One row per local node for each exchange of a pass.

    `kind` is "stored" (the rows' own type), "bf16", or "8" or "4", codes of that many bits.
    """

    def __init__(self, node_id: np.ndarray, kind: str = STORED):
        self._node_id, self._kind = node_id, kind
        self._tables: dict[Site, KeptRows] = {}

    def table(self, layer: int, like: torch.Tensor) -> KeptRows:
        """The rows of a layer, with the columns and device of `like`."""
        site = layer, like.shape[1]
        if site not in self._tables:
            self._tables[site] = self._new_table(like.shape[1], like.dtype, like.device)
        return self._tables[site]

    def check(self, num_exchanges: int) -> None:
        """Raise ConfigError if a pass had another number of exchanges than the pass that filled these rows."""
        expected = 1 + max((layer for layer, _ in self._tables), default=-1)
        if num_exchanges != expected or len(self._tables) != expected:
            raise ConfigError(f"this model exchanged rows {num_exchanges} times in a step, and {expected} times in the "
                              "pass over all rows before it, so a step would read rows of another layer; leave --steps "
                              "out, or let every pass run the same layers")

    def _new_table(self, dim: int, dtype: torch.dtype, device: torch.device) -> KeptRows:
        if self._kind.isdigit():
            return CodedRows(self._node_id, dim, int(self._kind), device)
        return DenseRows(len(self._node_id), dim, dtype if self._kind == STORED else torch.bfloat16, device)

    @property
    def num_bytes(self) -> int:
        return sum(table.num_bytes for table in self._tables.values())

    @property
    def is_empty(self) -> bool:
        return not self._tables

    def forget(self) -> None:
        self._tables = {}

    def state(self) -> State:
        """Return all rows as arrays; 16-bit types as their bits."""
        return {f"{layer}-{dim}-{table.kind}": table.state() for (layer, dim), table in self._tables.items()}

    def restore(self, state: State, device: torch.device) -> None:
        """Continue from what `state` returned; KernelError if the rows are of another part or kind."""
        self._tables = {}
        for name, values in state.items():
            layer, dim, kind = name.split("-")
            table = self._new_table(int(dim), getattr(torch, kind, torch.float32), device)
            if table.kind != kind:
                raise KernelError(f"rows were kept as {kind}, and this run keeps them as {table.kind}; go on with the "
                                  "same history")
            table.restore(values)
            self._tables[int(layer), int(dim)] = table
