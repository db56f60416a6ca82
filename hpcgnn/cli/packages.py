"""Output of `hpcgnn inspect --packages`: the size of the features in each format, and the packages' bits."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import click
from rich import box
from rich.table import Table

from hpcgnn.lowbit.formats import DENSE, IDEAL, PACKAGE, StoredSize, sizes
from hpcgnn.lowbit.package_shards import read_packages
from hpcgnn.run.output import size_text, wrapped
from hpcgnn.shards.schema import GraphInfo

SCALE_BITS = 32


@dataclass
class PackageCount:
    """Packages of all parts: bits by format, bits of the index, and the sum of the rows' widths."""

    formats: dict[str, StoredSize]
    index_bits: int
    width_bits: int


def count_packages(folder: Path, info: GraphInfo) -> PackageCount:
    """Read the packages of all parts, one at a time.

    Raises
    ------
    ShardError                features are not packages, or a part can't be read
    KernelError               a package is malformed
    """
    count = PackageCount({}, 0, 0)
    for part in range(info.num_parts):
        packed, _ = read_packages(folder, part, info)
        for name, size in sizes(packed).items():
            count.formats[name] = count.formats.get(name, StoredSize(0, 0)) + size
        count.index_bits += packed.stored_bits["index"]
        count.width_bits += int(packed.bit_width().sum())
    return count


def package_lines(count: PackageCount, info: GraphInfo) -> list[str]:
    """Average bits; the second line counts every stored bit."""
    num_rows, num_values = max(info.num_nodes, 1), max(info.num_nodes * info.num_features, 1)
    stored = count.formats[PACKAGE].bits + SCALE_BITS * info.num_nodes
    return [
        f"packages: {count.width_bits / num_rows:.3f} bits per node on average, zero rows counted as 0",
        f"packages: {stored / num_values:.3f} bits stored per value, {32 * num_values / max(stored, 1):.1f} times less "
        f"than float32: {size_text(stored / 8)} with positions, {size_text(count.index_bits / 8)} of index and "
        f"{size_text(SCALE_BITS * info.num_nodes / 8)} of scales",
    ]


def sizes_table(formats: dict[str, StoredSize], title: str = "features by format") -> Table:
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, collapse_padding=True,
                  pad_edge=False, caption_justify="left",
                  caption="ideal: non-zero values at their own widths; dense, bitmap, csr, coo: at the largest width; "
                          "positions of packages: the index too")
    table.add_column("format", no_wrap=True)
    for heading in ("values", "positions", "all", "values / ideal", "all / dense"):
        table.add_column(heading, justify="right", no_wrap=True)
    ideal, dense = max(formats[IDEAL].bits, 1), max(formats[DENSE].bits, 1)
    for name, size in formats.items():
        table.add_row(name, *(size_text(bits / 8) for bits in (size.value_bits, size.position_bits, size.bits)),
                      f"{size.value_bits / ideal:.3f}", f"{size.bits / dense:.3f}")
    return table


def print_packages(folder: Path, info: GraphInfo, print_table) -> None:
    """Count and print; `print_table` takes a rich Table. Errors as in `count_packages`."""
    count = count_packages(folder, info)
    for line in package_lines(count, info):
        click.echo(wrapped(line))
    print_table(sizes_table(count.formats))
