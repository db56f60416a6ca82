"""Measure encoding and decoding of Adaptive-Packages against dense passes and libraries' formats.

    python jobs/measurements/packages.py [--repeat 7] [--threads 1] [--out DIR]

Rates count the dense rows: one byte per code, four bytes per float32 value.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import click
import numpy as np
import scipy.sparse

from hpcgnn.bench import environment
from hpcgnn.bench.place import Place, zeros
from hpcgnn.bench.timing import CEILING, OURS, Measurement
from hpcgnn.cli.measurement import Shared, finish, open_place
from hpcgnn.lowbit.formats import DENSE, IDEAL, PACKAGE, sizes
from hpcgnn.lowbit.package import PackagedRows, encode

NUM_ROWS, DIM = 100_000, 256            # dense rows, larger than every cache
MIXED = 0                               # as a width: 1 to 8 bits for each row
WIDTHS, DENSITIES = (1, 2, 4, 8, MIXED), (0.05, 0.5, 1.0)


@dataclass(frozen=True)
class PackageBenchmark:
    """Encodes and decodes random rows of each width and density (share of nonzeros)."""

    place: Place
    num_rows: int = NUM_ROWS
    dim: int = DIM
    widths: tuple[int, ...] = WIDTHS
    densities: tuple[float, ...] = DENSITIES

    def measure(self) -> Iterator[Measurement]:
        for width in self.widths:
            for density in self.densities:
                yield from self._measure_one(width, density)

    def _measure_one(self, width: int, density: float) -> Iterator[Measurement]:
        self.place.begin(f"draws and encodes rows of {width or '1 to 8'} bits, {100 * density:g} % of them not zero")
        codes, bit_width = random_codes(self.num_rows, self.dim, width, density)
        packed = encode(codes, bit_width)
        case = f"{self.num_rows:,} x {self.dim}, {width or '1-8'} bit, {100 * density:g} % non-zero"
        remarks = [size_remark(packed, case)]
        amount = codes.nbytes / 1e9
        measure, moving = self.place.measure, self.place.moving
        encoding = measure("package encode", case, amount, "GB/s",
                           {CEILING: moving(codes.nbytes, 0), OURS: partial(encode, codes, bit_width),
                            "scipy CSR": partial(scipy.sparse.csr_matrix, codes)}, remarks)
        encoding.details.update(
            bits=width or "1-8", density=density,
            stored_bits={name: [size.value_bits, size.position_bits] for name, size in sizes(packed).items()})
        yield encoding
        decoded = zeros(codes.shape, "uint8")
        yield measure("package decode", f"codes, {case}", amount, "GB/s",
                      {CEILING: moving(0, decoded.nbytes),
                       OURS: partial(packed.codes, out=decoded), **_peers(codes, decoded)})
        rows, scale = zeros(codes.shape, "float32"), np.full(self.num_rows, 0.5, np.float32)
        yield measure("package decode", f"float32, {case}", 4 * amount, "GB/s",
                      {CEILING: moving(0, rows.nbytes), OURS: partial(packed.values, scale, out=rows)})


def random_codes(num_rows: int, dim: int, width: int, density: float) -> tuple[np.ndarray, np.ndarray]:
    """Draw unsigned codes of `width` bits, or of 1 to 8 for MIXED, and the widths, (num_rows,) uint8."""
    rng = np.random.default_rng(0)
    bit_width = rng.integers(1, 9, num_rows, np.uint8) if width == MIXED else np.full(num_rows, width, np.uint8)
    codes = zeros((num_rows, dim), "uint8")
    codes[:] = rng.integers(0, 255, codes.shape, np.uint8) % ((1 << bit_width.astype(np.int64)) - 1)[:, None] + 1
    codes[rng.random(codes.shape, np.float32) >= density] = 0
    return codes, bit_width


def size_remark(packed: PackagedRows, case: str) -> str:
    found = sizes(packed)
    shares = ", ".join(f"{name} {size.bits / found[DENSE].bits:.3f}" for name, size in found.items() if name != DENSE)
    overhead = found[PACKAGE].value_bits / max(found[IDEAL].bits, 1)
    return f"{case}: values of packages over the ideal {overhead:.3f}; sizes over dense: {shares}"


def _peers(codes: np.ndarray, out: np.ndarray) -> dict[str, Callable]:
    # The peers' values are bytes already, so they unpack no bits.
    csr, bitmap, values = scipy.sparse.csr_matrix(codes), np.packbits(codes != 0, axis=1), codes[codes != 0]
    return {"scipy CSR": partial(csr.toarray, out=out), "numpy bitmap": partial(_read_bitmap, bitmap, values, out)}


def _read_bitmap(bitmap: np.ndarray, values: np.ndarray, out: np.ndarray) -> None:
    out[:] = 0
    out[np.unpackbits(bitmap, axis=1, count=out.shape[1]).view(bool)] = values


@click.command(help=__doc__.partition("\n")[0])
@click.option("--repeat", type=click.IntRange(min=1), default=7, show_default=True)
@click.option("--threads", type=click.IntRange(min=1), default=1, show_default=True)
@click.option("--out", type=click.Path(path_type=Path), help="Folder for bench.json, table.txt and bench.png.")
def main(repeat: int, threads: int, out: Path | None) -> None:
    wanted = environment.with_kept_memory(environment.thread_environment(threads))
    environment.run_in(wanted, (__file__,))
    shared = Shared(repeat, threads, out)
    machine, place = open_place("packages", shared, threads)
    finish("packages", machine, PackageBenchmark(place), shared)


if __name__ == "__main__":
    main()
