"""Measure every way to multiply codes with weight codes, against torch's int8 and fp32.

    python jobs/measurements/combination.py [--repeat 11] [--threads 1] [--out DIR]

Rates count 2 * rows * columns * outputs operations for every way, width and density. The ceiling of a way does as many
products on registers as that way needs; `auto` picks another way and has none.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import click
import numpy as np
import torch

from hpcgnn.bench import environment
from hpcgnn.bench.place import Place
from hpcgnn.bench.timing import CEILING, OURS, Effort, Measurement
from hpcgnn.cli.measurement import Shared, finish, open_place
from hpcgnn.lowbit.package import encode
from hpcgnn.lowbit.package_features import combine_packages
from hpcgnn.ops.combination import WAYS, combine

sys.path.append(str(Path(__file__).resolve().parents[1]))
from measurements.packages import random_codes

OPERATIONS = "GOP/s"
NUM_ROWS, DIM, NUM_OUTPUTS = 2708, 1433, 64     # Cora's features, and a layer as wide as MEGA's
WIDTHS, WEIGHT_BITS, DENSITIES = (1, 2, 4, 8), 4, (0.01, 0.1, 0.5, 1.0)
PACKAGES, SERIAL_PACKAGES = "packages", "packages, serial"
INT8, FP32 = "torch int8", "torch fp32"
ALL_CODES, ALL_BITS, NON_ZERO = "ceiling: all codes", "ceiling: all bits", "ceiling: codes that are not zero"
CEILING_OF = {"dense": ALL_CODES, "bits": ALL_BITS, **dict.fromkeys(("sparse", "serial", PACKAGES, SERIAL_PACKAGES),
                                                                   NON_ZERO)}


@dataclass(frozen=True)
class CombinationBenchmark:
    """Multiplies random codes of each width and density (share of nonzeros) by random weights."""

    place: Place
    num_rows: int = NUM_ROWS
    dim: int = DIM
    num_outputs: int = NUM_OUTPUTS
    widths: tuple[int, ...] = WIDTHS
    weight_bits: int = WEIGHT_BITS
    densities: tuple[float, ...] = DENSITIES

    def measure(self) -> Iterator[Measurement]:
        rng = np.random.default_rng(1)
        half = 2 ** (self.weight_bits - 1)
        weight = torch.from_numpy(rng.integers(-half, half, (self.num_outputs, self.dim), dtype=np.int8))
        for width in self.widths:
            for density in self.densities:
                yield from self._measure_one(width, density, weight)

    def _measure_one(self, width: int, density: float, weight: torch.Tensor) -> Iterator[Measurement]:
        case = f"{self.num_rows:,} x {self.dim} x {self.num_outputs}, {width} x {self.weight_bits} bit, {density:g}"
        self.place.begin(f"combination: {case}")
        codes, bit_width = random_codes(self.num_rows, self.dim, width, density)
        ways, peers = self._ways(codes, bit_width, weight, width), self._peers(codes, weight)
        ceilings = self._ceilings(width, int(np.count_nonzero(codes)))
        seconds = time_in_any_order(ways | peers | ceilings, self.place)
        amount = 2 * self.num_rows * self.dim * self.num_outputs / 1e9
        for way in ways:
            bound = CEILING_OF.get(way)
            yield Measurement("combination", f"{way}: {case}", amount, OPERATIONS,
                              ({CEILING: seconds[bound]} if bound else {}) | {OURS: seconds[way]}
                              | {name: seconds[name] for name in peers},
                              details={"way": way, "bits": width, "density": density})

    def _ways(self, codes: np.ndarray, bit_width: np.ndarray, weight: torch.Tensor,
              width: int) -> dict[str, Callable]:
        packages = encode(codes, bit_width)
        ways: dict[str, Callable] = {
            way: partial(combine, torch.from_numpy(codes), weight, code_bits=width, weight_bits=self.weight_bits,
                         way=way) for way in WAYS}
        for name, is_serial in ((PACKAGES, False), (SERIAL_PACKAGES, True)):
            ways[name] = partial(combine_packages, packages, weight.numpy(), weight_bits=self.weight_bits,
                                 is_serial=is_serial)
        return ways

    def _ceilings(self, width: int, num_codes: int) -> dict[str, Callable]:
        num_all = self.num_rows * self.dim * self.num_outputs
        return {ALL_CODES: self.place.multiplying_bytes(num_all),
                ALL_BITS: self.place.multiplying_bits(num_all * width * self.weight_bits),
                NON_ZERO: self.place.multiplying_bytes(num_codes * self.num_outputs)}

    def _peers(self, codes: np.ndarray, weight: torch.Tensor) -> dict[str, Callable]:
        # int8 reads codes over 127 as negative numbers, which takes the same time.
        right, out = weight.T.contiguous(), self.place.empty_rows(self.num_rows, self.num_outputs)
        return {INT8: partial(torch._int_mm, torch.from_numpy(codes).view(torch.int8), right),
                FP32: partial(torch.mm, torch.from_numpy(codes).float(), right.float(), out=out)}


def time_in_any_order(contestants: dict[str, Callable], place: Place) -> dict[str, list[float]]:
    """Time contestants as `Place.interleave` does, in a new order each round.

    A contestant finds the data of the one before it in the caches; with a fixed order this favors the same ones always.
    """
    rng, names = random.Random(0), list(contestants)
    seconds: dict[str, list[float]] = {name: [] for name in names}
    once = replace(place, effort=Effort(1))
    for _ in range(place.effort.repeat):
        rng.shuffle(names)
        for name, spent in once.interleave({name: contestants[name] for name in names}).items():
            seconds[name] += spent
    return seconds


@click.command(help=__doc__.partition("\n")[0])
@click.option("--repeat", type=click.IntRange(min=1), default=11, show_default=True)
@click.option("--threads", type=click.IntRange(min=1), default=1, show_default=True)
@click.option("--out", type=click.Path(path_type=Path), help="Folder for bench.json, table.txt and bench.png.")
def main(repeat: int, threads: int, out: Path | None) -> None:
    wanted = environment.with_kept_memory(environment.thread_environment(threads))
    environment.run_in(wanted, (__file__,))
    shared = Shared(repeat, threads, out)
    machine, place = open_place("combination", shared, threads)
    finish("combination", machine, CombinationBenchmark(place), shared)


if __name__ == "__main__":
    main()
