"""Turns rows of a matrix into the bytes of one message and back, each row at its own bit-width.

A row of 2 bits is divided into 3 steps from its smallest to its largest value. Each value is rounded up or down to a
step at random, so that the expectation is the value itself; four codes fill a byte. The message holds zero_point and
step of all rows first, then the codes of row after row.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TypeAlias

import numpy as np
import torch

from hpcgnn._ext import quantization as kernels
from hpcgnn.errors import KernelError
from hpcgnn.ops.counter import CounterKey
from hpcgnn.ops.dispatch import STORAGE_NUMBER, STORAGES, as_bytes, by_device, device_kernels
from hpcgnn.ops.resident import make_resident, on_device
from hpcgnn.widths import BIT_WIDTHS, PACKED_WIDTHS

ROUNDINGS = ("stochastic", "nearest")
CODES = ("affine", "rotated")
PARAMETER_BYTES: dict[str, int] = {"affine": 4, "rotated": 2}      # zero_point and step, bfloat16 each; or only step
MOST_ROTATED_COLUMNS = 1 << 15                     # most columns for which a rotation draws signs
LARGEST_PARAMETER_WIDTH = PACKED_WIDTHS[-1]   # wider rows are 16- or 32-bit values and need no parameters
IS_WIDTH = np.isin(np.arange(256), BIT_WIDTHS)     # by width
NO_BAD_ROW = 2**31 - 1        # a device's note if all rows of a message can be quantized

# Bytes of a message: an array on the host, else a tensor on the rows' device.
Buffer: TypeAlias = np.ndarray | torch.Tensor


@dataclass(frozen=True)
class MessageLayout:
    """The place of every row in one message; sender and receiver compute it from widths and code.

    Parameters of all rows come first, then the rows' payload, in the order of the rows.

    dim : int                                     columns of a row
    bit_width : (num_rows,) uint8, of BIT_WIDTHS
    payload_offset, parameter_offset : (num_rows,) int64, bytes from the start of the message
    payload_bytes, parameter_bytes : int
    code : one of CODES                           code of rows of 1 to 8 bits; see `quantize_rows`
    """

    dim: int
    bit_width: np.ndarray
    payload_offset: np.ndarray
    parameter_offset: np.ndarray
    payload_bytes: int
    parameter_bytes: int
    code: str = "affine"

    def __post_init__(self):
        make_resident(self, "bit_width", "payload_offset", "parameter_offset")

    @classmethod
    def build(cls, bit_width: np.ndarray, dim: int, code: str = "affine") -> MessageLayout:
        """Lay out rows of `dim` columns; KernelError for unknown widths or codes, and rows too wide to be rotated."""
        if code not in CODES:
            raise KernelError(f"code must be one of {CODES}, found {code!r}")
        bit_width = np.ascontiguousarray(bit_width, dtype=np.uint8)
        if not IS_WIDTH[bit_width].all():
            raise KernelError(f"bit-widths must be among {BIT_WIDTHS}, found {sorted(set(bit_width.tolist()))}")
        has_parameters = bit_width <= LARGEST_PARAMETER_WIDTH
        if code == "rotated" and has_parameters.any() and dim > MOST_ROTATED_COLUMNS:
            raise KernelError(f"rows of at most {MOST_ROTATED_COLUMNS} columns can be rotated, found {dim}; "
                              "use affine codes")
        row_bytes = (bit_width.astype(np.int64) * dim + 7) // 8
        parameters_end = PARAMETER_BYTES[code] * np.cumsum(has_parameters, dtype=np.int64)
        parameter_bytes = int(parameters_end[-1]) if len(parameters_end) else 0
        row_end = parameter_bytes + np.cumsum(row_bytes)
        return cls(
            dim=dim,
            bit_width=bit_width,
            payload_offset=row_end - row_bytes,
            parameter_offset=parameters_end - PARAMETER_BYTES[code] * has_parameters,
            payload_bytes=int(row_end[-1]) - parameter_bytes if len(row_end) else 0,
            parameter_bytes=parameter_bytes,
            code=code,
        )

    @cached_property
    def is_rotated(self) -> bool:
        return self.code == "rotated" and self.parameter_bytes > 0

    @cached_property
    def num_rows(self) -> int:
        return len(self.bit_width)

    @cached_property
    def num_bytes(self) -> int:
        return self.payload_bytes + self.parameter_bytes

    def beside(self, message: torch.Tensor) -> MessageLayout:
        """The layout with tensors on a message's device in place of arrays; `at` then gathers there."""
        return replace(self, bit_width=on_device(self.bit_width, message),
                       payload_offset=on_device(self.payload_offset, message),
                       parameter_offset=on_device(self.parameter_offset, message))

    def at(self, index: np.ndarray | torch.Tensor) -> MessageLayout:
        return replace(self, bit_width=self.bit_width[index], payload_offset=self.payload_offset[index],
                       parameter_offset=self.parameter_offset[index])


def quantize_rows(rows: torch.Tensor, row_index: np.ndarray, node_id: np.ndarray, layout: MessageLayout,
                  key: CounterKey, message: Buffer, rounding: str = "stochastic") -> None:
    """Gather rows, round each to its bit-width and write the message.

    A row of 1 to 8 bits becomes stochastic codes, with bfloat16 zero_point (rounded down) and step (rounded up). A row
    of 32 bits is sent as float32 values; a row of 16 bits is rounded stochastically to bfloat16 if it is stored in
    float32, else sent as stored. The expectation of the dequantized row over keys is the row, up to 2**-17 + 2**(bits -
    22) steps.

    Rounding to the nearest is biased but contractive, which messages with differences need. 8 bits: parameters as
    above. 2 and 4 bits: least squares over the row's codes. 1 bit: the means above and below a split, at the row's mean
    or halfway to either end, whichever leaves the least squared error. 16 bits of float32: nearest bfloat16.

    Code "rotated": random signs (drawn by the key) and Hadamard transforms first rotate a row of 1 to 8 bits, so that
    its columns resemble Gaussian draws. They are coded evenly about zero: at 1 bit by sign, else at the steps with
    least squared error for a Gaussian. The only parameter is a bfloat16 step: with stochastic rounding it makes
    <decoded, row> = |row|**2, so the result is unbiased over keys; otherwise it has the least squared error.

    Parameters
    ----------
    rows : (n, dim) float32, bfloat16 or float16, contiguous
    row_index : (layout.num_rows,) int32        rows to send
    node_id : (layout.num_rows,) int64          their global ids, which key the rounding
    message : (layout.num_bytes,) uint8         written; on the device of the rows
    rounding : one of ROUNDINGS

    Raises KernelError for NaN, infinity or a magnitude above 1.6e38 in a row of 1 to 8 bits (waits for a device).

    Reference: AdaQP, Eq. (4); SYLVIE, Eq. (3). Deviation: parameters are rounded before the codes are drawn, so that
    the estimate stays unbiased on the wire. Contractive: Richtarik et al., EF21, NeurIPS 2021. Rotated: Vargaftik et
    al., DRIVE, NeurIPS 2021; EDEN, ICML 2022; steps: Max, 1960. Deviations: even steps, not centroids, at 2 bits and
    more; overlapping transforms if no power of two fits a row.
    """
    _check_shapes(rows, row_index, node_id, layout, message)
    if rounding not in ROUNDINGS:
        raise KernelError(f"rounding must be one of {ROUNDINGS}, found {rounding!r}")
    found = _quantize_rows.on(rows.device)(rows, row_index, node_id, layout, key, message, rounding == "nearest")
    if found >= 0:
        refuse_bad_row(found, node_id, key)


def start_quantizing(rows: torch.Tensor, row_index: np.ndarray, node_id: np.ndarray, layout: MessageLayout,
                     key: CounterKey, message: torch.Tensor, first_bad: torch.Tensor,
                     rounding: str = "stochastic") -> None:
    """`quantize_rows` on a device's current stream, without waiting for the stream.

    `first_bad`, (1,) int32 on the device, holds NO_BAD_ROW before; it becomes the position of the first row that can't
    be quantized. Give it to `refuse_bad_row` once the stream has been waited for.
    """
    _check_shapes(rows, row_index, node_id, layout, message)
    if rounding not in ROUNDINGS:
        raise KernelError(f"rounding must be one of {ROUNDINGS}, found {rounding!r}")
    device_kernels("quantization", rows.device).start_quantizing(rows, row_index, node_id, layout, key, message,
                                                                 rounding == "nearest", first_bad)


def refuse_bad_row(found: int, node_id: np.ndarray, key: CounterKey) -> None:
    """Raise KernelError if `found` is a position in node_id (num_rows,) int64: that row can't be quantized."""
    if 0 <= found < len(node_id):
        raise KernelError(f"message row of node {int(node_id[found])} (layer {key.layer}, epoch {key.epoch}) "
                          "holds a value that is NaN, infinite or too large to quantize; lower the learning rate")


def dequantize_rows(message: Buffer, row_index: np.ndarray, node_id: np.ndarray, layout: MessageLayout,
                    rows: torch.Tensor, accumulate: bool = False, key: CounterKey | None = None) -> None:
    """Read a message into rows[row_index], assigning or, with `accumulate`, adding; arguments as in `quantize_rows`.

    Values and sums are computed in float32 and rounded once, to the nearest, ties to even. A rotated row is infinite or
    NaN if its norm times the square root of its columns exceeds float32. row_index must be distinct. Only rotated rows
    need `key`, which must be the key that quantized them.

    Raises KernelError for rotated rows without a key.

    Reference: AdaQP, Eq. (5).
    """
    _check_shapes(rows, row_index, node_id, layout, message)
    if key is None and layout.is_rotated:
        raise KernelError("rotated rows are read with the key that they were quantized with, found none")
    _dequantize_rows.on(rows.device)(message, row_index, node_id, layout, rows, accumulate, key)


def parameters_of(message: np.ndarray, layout: MessageLayout) -> tuple[np.ndarray, np.ndarray]:
    """zero_point and step of the rows of a message on the host, (layout.num_rows,) float32 each.

    The codes of a row of b <= 8 bits span step * (2**b - 1) from zero_point on; for a rotated row this is the span
    after the rotation, and zero_point is -step * (2**b - 1) / 2. A row of 16 or 32 bits has 0 and 0.
    """
    if len(message) != layout.parameter_bytes:
        _check_bytes(layout, message)
    halves = message[:layout.parameter_bytes].view("<u2").astype(np.uint32) << np.uint32(16)
    is_coded = layout.bit_width <= LARGEST_PARAMETER_WIDTH
    zero_point, step = np.zeros((2, layout.num_rows), np.float32)
    values = halves.view(np.float32).reshape(-1, PARAMETER_BYTES[layout.code] // 2)
    step[is_coded] = values[:, -1]
    if layout.code == "rotated":
        top = 2.0 ** layout.bit_width[is_coded] - 1
        with np.errstate(over="ignore", invalid="ignore"):    # large rows overflow; damaged messages hold any bytes
            zero_point[is_coded] = (-0.5 * top * step[is_coded]).astype(np.float32)
    else:
        zero_point[is_coded] = values[:, 0]
    return zero_point, step


def _check_shapes(rows: torch.Tensor, row_index: np.ndarray, node_id: np.ndarray, layout: MessageLayout,
                  message: Buffer) -> None:
    if rows.dtype not in STORAGES or not rows.is_contiguous() or rows.ndim != 2 or rows.shape[1] != layout.dim:
        raise KernelError(f"rows must be contiguous float32, bfloat16 or float16 of {layout.dim} columns, "
                          f"found {rows.dtype} of shape {tuple(rows.shape)}")
    if not len(row_index) == len(node_id) == layout.num_rows:
        raise KernelError(f"message of {layout.num_rows} rows was given {len(row_index)} row indices "
                          f"and {len(node_id)} node ids")
    place = str(message.device) if isinstance(message, torch.Tensor) else "cpu"
    if place != str(rows.device):
        raise KernelError(f"a message on {place} can't hold rows on {rows.device}; they belong on one device")
    if len(message) != layout.num_bytes:
        _check_bytes(layout, message)


def _check_bytes(layout: MessageLayout, message: Buffer) -> None:
    if len(message) != layout.num_bytes:
        raise KernelError(f"message needs {layout.num_bytes} bytes, its buffer has {len(message)}")


@by_device("quantization")
def _quantize_rows(rows: torch.Tensor, row_index: np.ndarray, node_id: np.ndarray, layout, key: CounterKey,
                   message: np.ndarray, is_nearest: bool) -> int:
    rotation = key.rotation().stream if layout.is_rotated else 0
    found = kernels.quantize_rows(as_bytes(rows), STORAGE_NUMBER[rows.dtype], layout.dim, row_index, node_id,
                                 layout.bit_width, layout.payload_offset, layout.parameter_offset, key.seed, key.epoch,
                                 key.stream, is_nearest, layout.is_rotated, rotation, message)
    if found < -1:
        raise _outside(-2 - found, row_index, layout, len(rows), len(message))
    return found


@by_device("quantization")
def _dequantize_rows(message: np.ndarray, row_index: np.ndarray, node_id: np.ndarray, layout, rows: torch.Tensor,
                     accumulate: bool, key: CounterKey | None = None) -> None:
    seed, epoch, rotation = (key.seed, key.epoch, key.rotation().stream) if layout.is_rotated else (0, 0, 0)
    found = kernels.dequantize_rows(message, row_index, node_id, layout.bit_width, layout.payload_offset,
                                    layout.parameter_offset, seed, epoch, layout.is_rotated, rotation, accumulate,
                                    STORAGE_NUMBER[rows.dtype], layout.dim, as_bytes(rows))
    if found < -1:
        raise _outside(-2 - found, row_index, layout, len(rows), len(message))


def _outside(i: int, row_index: np.ndarray, layout, num_rows: int, num_bytes: int) -> KernelError:
    return KernelError(f"row {i} of a message has {layout.dim} columns at {layout.bit_width[i]} bits from byte "
                       f"{layout.payload_offset[i]} of {num_bytes} on, and is row {row_index[i]} of {num_rows}; "
                       "expected a row within the message and the table")
