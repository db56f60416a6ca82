"""Adaptive-Package: rows of small codes as packages of non-zero values and a list of their positions.

A package holds values of one bit width, and has one of three lengths. Its header names the length and the width, so
rows of different widths share a stream. Zeros are not stored: per row, positions are a bitmap or, if shorter, a list of
columns. Example: the row 0 3 0 1 at 2 bits stores the values 3 and 1 and the bitmap 0101. An index entry every
`interval` rows says where reading can start.

`PackageWriter` encodes rows as they come, `PackagedRows` decodes them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from hpcgnn._ext import package as kernels
from hpcgnn.errors import KernelError

SLACK_BYTES = 16   # the kernels may zero this many bytes after what they write

HEADER_BITS = 5
MAX_BIT_WIDTH = 8
MIN_LENGTH, MAX_LENGTH = 8, 4096
MAX_INTERVAL = 2**31 - 1
INDEX_BITS = 160    # bits of an index entry: int64 bit, int32 number of values, int64 bit of positions
MAX_DIM = 2**30    # sums of gaps between columns fit int32

# Numbers as in ext/src/package.h; the last fault is found in Python.
WASTED_BITS = 13
FAULTS = {
    1: "a package passes the end of the stream",
    2: "a package has mode 3",
    3: "the bit-width changes inside the row",
    4: "a stored value is zero",
    5: "the padding of a package is not zero",
    6: "a package is longer than its values need, or was left before it was full",
    7: "a column is past the last one",
    8: "the index names another place",
    9: "the stream goes on after the last package",
    10: "its positions pass the end of the positions",
    11: "the positions go on after the last row",
    12: "its list of columns is longer than a list of the other columns would be",
    WASTED_BITS: "positions take more bits than they need",
}

INTERVAL = 64


@dataclass(frozen=True)
class PackageFormat:
    """How packages are cut.

    Attributes
    ----------
    lengths : (int, int, int)        bits of values of a short, medium and long package; ascending, in 8 .. 4096
    is_signed : bool                 a value is sign and magnitude (codes are int8), not magnitude alone (codes are
                                     uint8)

    Raises
    ------
    KernelError                      other lengths

    Reference: MEGA, section V-B: 64, 128 and 192 bits.
    """

    lengths: tuple[int, int, int] = (64, 128, 192)
    is_signed: bool = False

    def __post_init__(self) -> None:
        lengths = (MIN_LENGTH, *self.lengths, MAX_LENGTH)
        if len(self.lengths) != 3 or list(lengths) != sorted(lengths):
            raise KernelError(f"package lengths are {', '.join(map(str, self.lengths))}; expected three numbers of "
                              f"bits that do not descend, from {MIN_LENGTH} to {MAX_LENGTH}")

    @property
    def dtype(self) -> np.dtype:
        """Type of the codes."""
        return np.dtype(np.int8 if self.is_signed else np.uint8)

    def max_code(self, bit_width: int) -> int:
        """Largest magnitude of `bit_width` bits; MEGA's Eq. 2 if signed."""
        return 2 ** (bit_width - self.is_signed) - 1


@dataclass(frozen=True)
class PackagedRows:
    """Rows as an Adaptive-Package stream.

    Attributes
    ----------
    format : PackageFormat
    num_rows, dim : int
    num_bits, num_position_bits : int                bits of stream and positions; later bits of the last byte are zero
    stream : (ceil(num_bits / 8),) uint8             packages, one after the other: see ext/src/package.h
    positions : (ceil(num_position_bits / 8),) uint8      see ext/src/package_positions.h
    interval : int                                   rows from one index entry to the next
    index_bit : (ceil(num_rows / interval),) int64   first bit of the open package as the row begins
    index_values : same shape, int32                 values in that package so far
    index_position : same shape, int64               first position bit of the row's block

    Raises
    ------
    KernelError                                      an array of another type or length, or ones behind the last bit
    """

    format: PackageFormat
    num_rows: int
    dim: int
    num_bits: int
    num_position_bits: int
    stream: np.ndarray
    positions: np.ndarray
    interval: int
    index_bit: np.ndarray
    index_values: np.ndarray
    index_position: np.ndarray

    def __post_init__(self) -> None:
        if not 1 <= self.interval <= MAX_INTERVAL:
            raise KernelError(f"packages have an index entry every {self.interval} rows; expected 1 to {MAX_INTERVAL}")
        # A row takes at least one bit of positions, so a forged row count can't exceed the size of the file.
        if not (0 <= self.num_rows <= max(self.num_position_bits, 0) and 0 <= self.dim <= MAX_DIM):
            raise KernelError(f"packages of {self.num_rows} rows of {self.dim} columns have {self.num_position_bits} "
                              f"bits of positions; expected at least one bit per row and at most {MAX_DIM} columns")
        layout = layout_of(self.num_rows, self.num_bits, self.num_position_bits, self.interval)
        for name, (dtype, shape) in layout.items():
            array = getattr(self, name)
            if array.dtype != dtype or array.shape != shape:
                raise KernelError(f"packages of {self.num_rows} rows of {self.dim} columns have {name} of "
                                  f"{array.dtype} and shape {array.shape}; expected {np.dtype(dtype)} and {shape}")
        for num_bits, array in ((self.num_bits, self.stream), (self.num_position_bits, self.positions)):
            if num_bits % 8 and array[-1] >> num_bits % 8:
                raise KernelError(f"packages can't be read: bits after the last of {num_bits} are not zero")

    @property
    def stored_bits(self) -> dict[str, int]:
        """Bits of packages, positions and index, with their padding to whole bytes."""
        return {"packages": 8 * self.stream.size, "positions": 8 * self.positions.size,
                "index": INDEX_BITS * self.index_bit.size}

    def codes(self, first: int = 0, last: int | None = None, out: np.ndarray | None = None) -> np.ndarray:
        """Decode rows [first, last) to (last - first, dim) uint8, or int8 where signed, into `out` if given.

        Raises KernelError for malformed packages, or an `out` that does not fit.
        """
        first, last = self.range_of(first, last)
        out = np.empty((last - first, self.dim), self.format.dtype) if out is None else out
        _check_array("out", out, self.format.dtype, (last - first, self.dim))
        self._decode(first, last, codes=out)
        return out

    def values(self, scale: np.ndarray, first: int = 0, last: int | None = None,
               out: np.ndarray | None = None) -> np.ndarray:
        """Decode rows [first, last) to float32, times their scales (last - first,) float32, into `out` if given.

        Raises KernelError for malformed packages, or a scale or `out` that does not fit.
        """
        first, last = self.range_of(first, last)
        out = np.empty((last - first, self.dim), np.float32) if out is None else out
        _check_array("scale", scale, np.dtype(np.float32), (last - first,))
        _check_array("out", out, np.dtype(np.float32), (last - first, self.dim))
        self._decode(first, last, rows=out, scale=scale)
        return out

    def chosen(self, node: np.ndarray) -> np.ndarray:
        """Decode the rows `node`, (n,) int64 in any order, to (n, dim) codes.

        Raises KernelError for a row that is not there, or malformed packages.
        """
        node = np.ascontiguousarray(node, np.int64)
        if node.size and (node.min() < 0 or node.max() >= self.num_rows):
            raise KernelError(f"rows {node.min()} to {node.max()} were asked for; "
                              f"rows run from 0 to {self.num_rows - 1}")
        # Each row is read from the index entry before it.
        codes = np.empty((len(node), self.dim), self.format.dtype)
        self.refuse(*kernels.decode_chosen(self.source, node, codes.view(np.uint8)))
        return codes

    def blocks(self, num_rows: int) -> Iterator[tuple[int, np.ndarray]]:
        """Decode in order, `num_rows` rows at a time: (first row, codes). Errors as in `codes`."""
        for first in range(0, self.num_rows, num_rows):
            yield first, self.codes(first, min(first + num_rows, self.num_rows))

    def bitmap(self) -> np.ndarray:
        """Return (num_rows, ceil(dim / 8)) uint8, with bit j % 8 of byte j // 8 set for a non-zero column j."""
        bitmap = np.empty((self.num_rows, -(-self.dim // 8)), np.uint8)
        self.refuse(*kernels.read_bitmaps(self.source, 0, self.num_rows, bitmap))
        return bitmap

    def bit_width(self) -> np.ndarray:
        """Bit width of each row, (num_rows,) uint8; 0 for a row of zeros. Errors as in `codes`."""
        width = np.zeros(self.num_rows, np.uint8)
        self._decode(0, self.num_rows, width=width)
        return width

    def check(self) -> PackagedRows:
        """Read all rows and return self. If nothing is raised, the bits equal PackageWriter's output for these rows.

        Raises KernelError for a package, position or index entry that is malformed, or takes more bits than it needs.
        """
        self._decode(0, self.num_rows)
        writer = PositionWriter(self.dim, self.interval)
        writer.append(self.bitmap())
        num_bits, positions, _ = writer.finish()
        if num_bits != self.num_position_bits or not np.array_equal(positions, self.positions):
            self.refuse(WASTED_BITS, self._first_other_row(positions))
        return self

    def _first_other_row(self, positions: np.ndarray) -> int:
        size = min(len(positions), len(self.positions))
        is_same = positions[:size] == self.positions[:size]
        last_bit = 8 * (size if is_same.all() else int(is_same.argmin())) + 7
        return max(int(np.searchsorted(self.index_position, last_bit, "right")) - 1, 0) * self.interval

    @property
    def source(self) -> tuple:
        arrays = (self.stream, self.positions, self.index_bit, self.index_values, self.index_position)
        return (np.array(self.format.lengths, np.int64), self.format.is_signed, self.num_rows, self.dim, self.num_bits,
                self.num_position_bits, self.interval, *(np.ascontiguousarray(array) for array in arrays))

    def range_of(self, first: int, last: int | None) -> tuple[int, int]:
        """Return rows [first, last), to the end if last is None; KernelError for missing rows."""
        last = self.num_rows if last is None else last
        if not 0 <= first <= last <= self.num_rows:
            raise KernelError(f"rows {first} to {last} were asked for; there are {self.num_rows}")
        return first, last

    def _decode(self, first: int, last: int, codes=None, rows=None, scale=None, width=None) -> None:
        as_bytes = None if codes is None else codes.view(np.uint8)
        self.refuse(*kernels.decode_rows(self.source, first, last, as_bytes, rows, scale, width))

    def refuse(self, fault: int, row: int) -> None:
        if fault:
            raise KernelError(f"packages can't be read at row {row} of {self.num_rows}: {FAULTS[fault]}; "
                              "encode the rows again")


def layout_of(num_rows: int, num_bits: int, num_position_bits: int, interval: int
              ) -> dict[str, tuple[type, tuple[int, ...]]]:
    """Type and shape of the arrays of `PackagedRows`, by name."""
    entries = (-(-num_rows // interval),)
    return {"stream": (np.uint8, (-(-num_bits // 8),)), "positions": (np.uint8, (-(-num_position_bits // 8),)),
            "index_bit": (np.int64, entries), "index_values": (np.int32, entries),
            "index_position": (np.int64, entries)}


@dataclass
class PackageWriter:
    """Encodes rows as they come; keeps all packages, positions and index.

    Attributes
    ----------
    dim : int                        columns of a row, up to 2^30
    format : PackageFormat
    interval : int                   rows from one index entry to the next

    Raises
    ------
    KernelError                      another number of columns, or an interval below 1
    """

    dim: int
    format: PackageFormat = field(default_factory=PackageFormat)
    interval: int = INTERVAL

    def __post_init__(self) -> None:
        if not 0 <= self.dim <= MAX_DIM or not 1 <= self.interval <= MAX_INTERVAL:
            raise KernelError(f"packages of {self.dim} columns with an index entry every {self.interval} rows; "
                              f"expected 0 to {MAX_DIM} columns and 1 to {MAX_INTERVAL} rows")
        self._lengths = np.array(self.format.lengths, np.int64)
        self._place = np.zeros(3, np.int64)
        self._num_rows = self._num_bits = 0
        self._stream = np.zeros(0, np.uint8)
        self._index_bit, self._index_values = np.zeros(0, np.int64), np.zeros(0, np.int32)
        self._positions = PositionWriter(self.dim, self.interval)

    def append(self, codes: np.ndarray, bit_width: np.ndarray) -> None:
        """Encode the next rows: codes (num_rows, dim), uint8 or signed int8, at bit widths (num_rows,) of 1 to 8.

        Raises KernelError for shapes, types or widths that do not fit, and for a code that needs more than its width.
        """
        codes, width = self._checked(codes, bit_width)
        counts = np.zeros(len(codes), np.int32)
        bad = kernels.count_codes(codes, width, self.format.is_signed, counts)
        if bad >= 0:
            values = codes[bad].view(self.format.dtype).astype(int)
            raise KernelError(f"row {self._num_rows + bad} has the code {values[np.abs(values).argmax()]}, and its "
                              f"{width[bad]} bits reach {self.format.max_code(int(width[bad]))}; use more bits")
        # Measure first, so that the stream has room for all packages.
        self._num_bits = kernels.measure_stream(self._lengths, self._place, counts, width)
        num_rows = self._num_rows + len(codes)
        self._stream = grown(self._stream, self._num_bits // 8 + SLACK_BYTES)
        self._index_bit = grown(self._index_bit, -(-num_rows // self.interval))
        self._index_values = grown(self._index_values, -(-num_rows // self.interval))
        bitmap = np.empty((len(codes), -(-self.dim // 8)), np.uint8)
        kernels.append_rows(self._lengths, self.format.is_signed, self._place, codes, width, self._num_rows,
                            self.interval, self._stream, bitmap, self._index_bit, self._index_values)
        self._positions.append(bitmap)
        self._num_rows = num_rows

    def finish(self) -> PackagedRows:
        """Return all rows so far."""
        num_entries = -(-self._num_rows // self.interval)
        num_position_bits, positions, index_position = self._positions.finish()
        return PackagedRows(self.format, self._num_rows, self.dim, self._num_bits, num_position_bits,
                            self._stream[:-(-self._num_bits // 8)].copy(), positions, self.interval,
                            self._index_bit[:num_entries].copy(), self._index_values[:num_entries].copy(),
                            index_position)

    def _checked(self, codes: np.ndarray, bit_width: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        width = np.asarray(bit_width)
        if codes.ndim != 2 or codes.shape[1] != self.dim or codes.dtype != self.format.dtype:
            raise KernelError(f"codes are {codes.dtype} of shape {codes.shape}; "
                              f"expected {self.format.dtype} of {self.dim} columns")
        if width.shape != (len(codes),):
            raise KernelError(f"bit_width has shape {width.shape}; expected one entry for each of {len(codes)} rows")
        if width.size and not 1 <= width.min() <= width.max() <= MAX_BIT_WIDTH:
            bad = width.min() if width.min() < 1 else width.max()
            raise KernelError(f"a row has bit-width {bad}; expected 1 to {MAX_BIT_WIDTH}")
        return np.ascontiguousarray(codes).view(np.uint8), np.ascontiguousarray(width, np.uint8)


def encode(codes: np.ndarray, bit_width: np.ndarray, form: PackageFormat | None = None) -> PackagedRows:
    """Encode rows as packages.

    Parameters
    ----------
    codes : (num_rows, dim) uint8, or int8 if the format is signed
    bit_width : (num_rows,) int      1 to 8, enough for every code of the row
    form : PackageFormat             by default unsigned, of 64, 128 and 192 bits

    Raises KernelError as `PackageWriter.append`.
    """
    writer = PackageWriter(codes.shape[1], form or PackageFormat())
    writer.append(codes, bit_width)
    return writer.finish()


@dataclass
class PositionWriter:
    """Encodes positions as rows come; `interval` rows share a block, which starts where an index entry points."""

    dim: int
    interval: int

    def __post_init__(self) -> None:
        self._waiting = np.empty((0, -(-self.dim // 8)), np.uint8)
        self._num_bits = 0
        self._positions, self._index = np.zeros(0, np.uint8), np.zeros(0, np.int64)

    def append(self, bitmap: np.ndarray) -> None:
        """Encode the next rows, (num_rows, ceil(dim / 8)) uint8; bits past the last column are zero."""
        rows = np.concatenate([self._waiting, bitmap]) if len(self._waiting) else bitmap
        num_whole = len(rows) // self.interval * self.interval
        self._num_bits, self._positions, self._index = self._written(rows[:num_whole], self._positions)
        self._waiting = rows[num_whole:].copy()

    def finish(self) -> tuple[int, np.ndarray, np.ndarray]:
        """Return the number of bits, the positions as bytes, and each block's first bit, (num_blocks,) int64."""
        # Into a copy: if the last block gets more rows, it is written again.
        num_bits, positions, index = self._written(self._waiting, self._positions.copy())
        return num_bits, positions[:-(-num_bits // 8)], index

    def _written(self, rows: np.ndarray, positions: np.ndarray) -> tuple[int, np.ndarray, np.ndarray]:
        num_blocks = -(-len(rows) // self.interval)
        counts, gap_bits = np.empty(len(rows), np.int32), np.empty(len(rows), np.int64)
        count_width, index = np.empty(num_blocks, np.uint8), np.empty(num_blocks, np.int64)
        num_bits = self._num_bits + kernels.plan_positions(rows, self.dim, self.interval, counts, gap_bits, count_width)
        positions = grown(positions, num_bits // 8 + SLACK_BYTES)
        kernels.write_positions(rows, self.dim, self.interval, counts, gap_bits, count_width, self._num_bits, positions,
                                index)
        return num_bits, positions, np.concatenate([self._index, index])


def grown(array: np.ndarray, size: int) -> np.ndarray:
    if size <= len(array):
        return array
    larger = np.zeros(max(size, 2 * len(array)), array.dtype)
    larger[:len(array)] = array
    return larger


def _check_array(name: str, array: np.ndarray, dtype: np.dtype, shape: tuple[int, ...]) -> None:
    if array.shape != shape or array.dtype != dtype or not array.flags.c_contiguous:
        raise KernelError(f"{name} is {array.dtype} of shape {array.shape}; "
                          f"expected contiguous {dtype} of shape {shape}")
