"""Adaptive-Package encoded and decoded, against passes over the dense rows and against libraries' bitmaps and CSR.

Rates count the dense rows: a byte a code, four bytes a float32 value.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np
import scipy.sparse
import torch

from hpcgnn.bench.ceilings import read_stream, write_stream
from hpcgnn.bench.memory import zeros
from hpcgnn.bench.timing import CEILING, OURS, Effort, Measurement, measure
from hpcgnn.quantized.formats import DENSE, IDEAL, PACKAGE, sizes
from hpcgnn.quantized.package import PackagedRows
from hpcgnn.quantized.package_writer import encode


@dataclass(frozen=True)
class PackageBenchmark:
    """Random rows of the widths and densities asked for; width 0 draws 1 to 8 bits for each row."""

    num_rows: int
    dim: int
    widths: tuple[int, ...]
    densities: tuple[float, ...]
    effort: Effort

    def measure(self) -> Iterator[Measurement]:
        """Three measurements a width and density."""
        for width in self.widths:
            for density in self.densities:
                yield from self._measure_one(width, density)

    def _measure_one(self, width: int, density: float) -> Iterator[Measurement]:
        codes, bit_width = random_codes(self.num_rows, self.dim, width, density)
        packed = encode(codes, bit_width)
        case = f"{self.num_rows:,} x {self.dim}, {width or '1-8'} bit, {100 * density:g} % non-zero"
        remarks = [size_remark(packed, case)]
        amount = codes.nbytes / 1e9
        encoding = measure("package encode", case, amount, "GB/s",
                           {CEILING: read_stream(torch.from_numpy(codes)), OURS: partial(encode, codes, bit_width),
                            "scipy CSR": partial(scipy.sparse.csr_matrix, codes)}, self.effort, remarks)
        encoding.details.update(
            bits=width or "1-8", density=density,
            stored_bits={name: [size.value_bits, size.position_bits] for name, size in sizes(packed).items()})
        yield encoding
        decoded = zeros(codes.shape, "uint8")
        yield measure("package decode", f"codes, {case}", amount, "GB/s",
                      {CEILING: write_stream(torch.from_numpy(decoded)),
                       OURS: partial(packed.codes, out=decoded), **_peers(codes, decoded)}, self.effort)
        rows, scale = zeros(codes.shape, "float32"), np.full(self.num_rows, 0.5, np.float32)
        yield measure("package decode", f"float32, {case}", 4 * amount, "GB/s",
                      {CEILING: write_stream(torch.from_numpy(rows)),
                       OURS: partial(packed.values, scale, out=rows)}, self.effort)


def random_codes(num_rows: int, dim: int, width: int, density: float) -> tuple[np.ndarray, np.ndarray]:
    """Unsigned codes of `width` bits, or of 1 to 8 where width is 0, and the widths, (num_rows,) uint8."""
    rng = np.random.default_rng(0)
    bit_width = rng.integers(1, 9, num_rows, np.uint8) if width == 0 else np.full(num_rows, width, np.uint8)
    codes = zeros((num_rows, dim), "uint8")
    codes[:] = rng.integers(0, 255, codes.shape, np.uint8) % ((1 << bit_width.astype(np.int64)) - 1)[:, None] + 1
    codes[rng.random(codes.shape, np.float32) >= density] = 0
    return codes, bit_width


def size_remark(packed: PackagedRows, case: str) -> str:
    """Bytes of the formats, as a sentence."""
    found = sizes(packed)
    shares = ", ".join(f"{name} {size.bits / found[DENSE].bits:.3f}" for name, size in found.items() if name != DENSE)
    overhead = found[PACKAGE].value_bits / max(found[IDEAL].bits, 1)
    return f"{case}: values of packages over the ideal {overhead:.3f}; sizes over dense: {shares}"


def _peers(codes: np.ndarray, out: np.ndarray) -> dict[str, Callable]:
    """CSR by scipy and a bitmap by NumPy, whose values are bytes already: neither unpacks bits of values."""
    csr, bitmap, values = scipy.sparse.csr_matrix(codes), np.packbits(codes != 0, axis=1), codes[codes != 0]
    return {"scipy CSR": partial(csr.toarray, out=out), "numpy bitmap": partial(_read_bitmap, bitmap, values, out)}


def _read_bitmap(bitmap: np.ndarray, values: np.ndarray, out: np.ndarray) -> None:
    out[:] = 0
    out[np.unpackbits(bitmap, axis=1, count=out.shape[1]).view(bool)] = values
