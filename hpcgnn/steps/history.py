"""History: the rows of each layer as they were last computed or received, as values or as codes of few bits."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TypeAlias

import numpy as np
import torch

from hpcgnn.errors import ConfigError, KernelError
from hpcgnn.exchange.state import State, fill, on_host
from hpcgnn.ops.aggregation import PackedRows
from hpcgnn.ops.arena import empty, keep_long
from hpcgnn.ops.counter import CounterKey
from hpcgnn.ops.quantization import MessageLayout, dequantize_rows, quantize_rows
from hpcgnn.ops.resident import on_device, resident

Places: TypeAlias = np.ndarray | torch.Tensor
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


class KeptRows(ABC):
    """One row of `dim` columns per node, zero at first; `kind` is part of the name in a checkpoint."""

    kind: str

    @abstractmethod
    def keep(self, index: np.ndarray, rows: torch.Tensor, key: CounterKey) -> None:
        """Store (n, dim) rows at the first n places of `index`, int64; KernelError if a row can't be coded."""

    @abstractmethod
    def read(self, index: np.ndarray, rows: torch.Tensor) -> None:
        """Write the rows at the first n places of `index` to `rows` (n, dim)."""

    @abstractmethod
    def in_place(self, dtype: torch.dtype) -> torch.Tensor | PackedRows | None:
        """Return the table if an aggregation of rows of `dtype` can read it directly; else None."""

    @property
    @abstractmethod
    def num_bytes(self) -> int:
        pass

    @abstractmethod
    def state(self) -> np.ndarray:
        """Return all rows as an array; 16-bit types as their bits."""

    @abstractmethod
    def restore(self, values: np.ndarray) -> None:
        """Take what `state` returned; KernelError if the rows are of another part."""


class DenseRows(KeptRows):
    def __init__(self, num_rows: int, dim: int, dtype: torch.dtype, device: torch.device):
        self.kind = str(dtype).removeprefix("torch.")
        self._table = keep_long(empty((num_rows, dim), dtype, device)).zero_()

    def keep(self, index: np.ndarray, rows: torch.Tensor, key: CounterKey) -> None:
        self._table.index_copy_(0, on_device(index, rows)[:len(rows)], rows.to(self._table.dtype))

    def read(self, index: np.ndarray, rows: torch.Tensor) -> None:
        at = on_device(index, rows)[:len(rows)]
        if self._table.dtype == rows.dtype:
            torch.index_select(self._table, 0, at, out=rows)
        else:
            rows.copy_(self._table.index_select(0, at))

    def in_place(self, dtype: torch.dtype) -> torch.Tensor | None:
        return self._table if self._table.dtype == dtype else None

    @property
    def num_bytes(self) -> int:
        return self._table.nbytes

    def state(self) -> np.ndarray:
        return on_host(self._bits)

    def restore(self, values: np.ndarray) -> None:
        if values.shape != tuple(self._table.shape):
            raise KernelError(f"rows of shape {values.shape} were kept where {len(self._table)} of "
                              f"{self._table.shape[1]} are expected")
        self._bits.copy_(torch.from_numpy(np.ascontiguousarray(values)))

    @property
    def _bits(self) -> torch.Tensor:
        return self._table if self._table.dtype == torch.float32 else self._table.view(torch.int16)


class CodedRows(KeptRows):
    """Rows as affine codes, rounded to nearest: at 8 bits off by about 1/510 of the row's range.

    The table has the layout of one message with all rows, so that an aggregation decodes rows while it gathers them.
    """

    def __init__(self, node_id: np.ndarray, dim: int, bit_width: int, device: torch.device):
        self.kind = f"{bit_width}bit"
        self._node_id = node_id
        self._layout = MessageLayout.build(np.full(len(node_id), bit_width, np.uint8), dim)
        on_cpu = device.type == "cpu"
        message = np.zeros(self._layout.num_bytes, np.uint8)
        self._message = message if on_cpu else torch.from_numpy(message).to(device)
        layout = self._layout
        self._packed = PackedRows(self._message, layout.bit_width, layout.payload_offset, layout.parameter_offset)
        if not on_cpu:      # on a device, places are gathered where they are read
            self._node_id = on_device(resident(node_id), self._message)
            self._layout = layout.beside(self._message)

    def keep(self, index: np.ndarray, rows: torch.Tensor, key: CounterKey) -> None:
        quantize_rows(rows.contiguous(), *self._places(index, rows), key, self._message, "nearest")

    def read(self, index: np.ndarray, rows: torch.Tensor) -> None:
        dequantize_rows(self._message, *self._places(index, rows), rows)

    def _places(self, index: np.ndarray, rows: torch.Tensor) -> tuple[Places, Places, MessageLayout]:
        if isinstance(self._message, np.ndarray):
            at, order = index[:len(rows)], np.arange(len(rows), dtype=np.int32)
        else:
            at = on_device(index, rows)[:len(rows)]
            order = torch.arange(len(rows), dtype=torch.int32, device=rows.device)
        return order, self._node_id[at], self._layout.at(at)

    def in_place(self, dtype: torch.dtype) -> PackedRows:
        return self._packed

    @property
    def num_bytes(self) -> int:
        layout = self._layout
        places = (layout.bit_width, layout.payload_offset, layout.parameter_offset)
        return len(self._message) + sum(array.nbytes for array in places)

    def state(self) -> np.ndarray:
        return on_host(self._message)

    def restore(self, values: np.ndarray) -> None:
        fill(self._message, values)
