"""`BenchmarkResult` shows a benchmark's measurements and machine as a table, bench.json and bench.png.

A picture needs matplotlib, an optional extra.
"""

from __future__ import annotations

import importlib.util
import io
import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich import box
from rich.console import Console
from rich.table import Table

from hpcgnn.bench.timing import CEILING, Measurement
from hpcgnn.errors import ConfigError
from hpcgnn.run.output import time_text

if TYPE_CHECKING:
    from matplotlib.figure import Figure

JSON, TABLE, PICTURE = "bench.json", "table.txt", "bench.png"
WIDEST = 1000


@dataclass(frozen=True)
class BenchmarkResult:
    kind: str                                            # name of the subcommand
    # from `describe_machine` before the first measurement; on a GPU also the chip and CUDA
    machine: dict[str, Any]
    measurements: list[Measurement] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)    # parts that could not be measured, with the reason

    def remarks(self) -> list[str]:
        machine = self.machine
        load = machine["load_average"][0]
        busy = f"; load average {load:.1f} at the start" + (": the machine was busy" if load > 0.5 else "")
        lines = [f"{machine['processor']}, {machine['threads']} of {machine['cores']} cores, {machine['simd']}, "
                 f"allocator {machine['allocator']}{busy}",
                 " ".join(f"{name} {number}" for name, number in machine["versions"].items())
                 + (f", commit {machine['commit']}" if machine["commit"] else "")]
        return [*self._chip_lines(), *lines,
                *dict.fromkeys(remark for row in self.measurements for remark in row.remarks),
                *(f"not measured: {failure}" for failure in self.failures)]

    def _chip_lines(self) -> list[str]:
        if "chip" not in self.machine:
            return []
        chip, cuda = self.machine["chip"], self.machine["cuda"]
        return [f"{chip['name']}, compute capability {'.'.join(map(str, chip['capability']))}, "
                f"{chip['num_processors']} multiprocessors, {chip['memory_bytes'] / 2**30:.0f} GiB, "
                f"{round(chip['l2_bytes'] / 2**20) or 'unknown'} MiB of L2; driver {chip['driver'] or 'unknown'}, "
                f"CUDA {cuda['torch']}, cupy {cuda['cupy']}"]

    def as_text(self) -> str:
        return print_to_text(self.tables(), self.remarks())

    def tables(self) -> list[Table | str]:
        return [_table_of(self.measurements)]

    def write(self, folder: Path) -> None:
        """Write bench.json and table.txt. Raises ConfigError if a file can't be written."""
        records = [row.as_record() for row in self.measurements]
        contents = {"kind": self.kind, "machine": self.machine, "failures": self.failures, "measurements": records}
        try:
            (folder / JSON).write_text(json.dumps(contents, indent=1) + "\n")
            (folder / TABLE).write_text(self.as_text())
        except OSError as error:
            raise ConfigError(f"--out {folder} can't hold the results: {error.strerror}") from error

    def draw(self, folder: Path) -> str | None:
        """Write bench.png; return None, or why there is none. Raises ConfigError if it can't be written."""
        missing = why_no_picture(PICTURE)
        if missing is None:
            figure = self.figure()
            figure.suptitle(f"hpcgnn bench {self.kind}, {self.machine['processor']}")
            try:
                figure.savefig(folder / PICTURE, dpi=150)
            except OSError as reason:
                raise ConfigError(f"the picture {folder / PICTURE} can't be written: {reason}") from reason
        return missing

    def figure(self) -> Figure:
        return draw_bars(self.measurements)


def open_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"--out {folder} can't be used as a folder: {error.strerror}") from error


def why_no_picture(name: str) -> str | None:
    """Why the picture can't be drawn; None if it can."""
    if importlib.util.find_spec("matplotlib") is not None:
        return None
    return f"there is no {name}: matplotlib is not installed; run pip install 'hpcgnn[report]'"


def table_text(measurements: Iterable[Measurement], remarks: Iterable[str]) -> str:
    return print_to_text([_table_of(list(measurements))], remarks)


def print_to_text(tables: Iterable[Table | str], remarks: Iterable[str]) -> str:
    """Write tables, or lines, and remarks, as wide as needed: digits are never cut."""
    out = io.StringIO()
    console = Console(file=out, width=WIDEST)
    for part in (*tables, *remarks):
        console.print(part, markup=False, highlight=False, soft_wrap=isinstance(part, str))
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines()) + "\n"


def _table_of(rows: list[Measurement]) -> Table:
    peers = list(dict.fromkeys(peer for row in rows for peer in row.peers))
    table = Table(box=box.SIMPLE_HEAD, caption="a peer's column: its seconds over ours", caption_justify="left")
    table.add_column("work")
    table.add_column("case")
    for heading in ("median", "rate", "of the ceiling", *peers):
        table.add_column(heading, justify="right", no_wrap=True)
    for before, row in zip([None, *rows], rows, strict=False):
        if before is not None and before.group != row.group:
            table.add_section()
        table.add_row(row.group, row.case, *_cells(row),
                      *(f"{row.peer_ratio[peer]:.2f}" if peer in row.seconds else "" for peer in peers))
    return table


def _cells(row: Measurement) -> tuple[str, str, str]:
    rate = "" if row.rate is None else f"{row.rate:,.{1 if row.rate >= 10 else 2}f} {row.unit}"
    share = "" if row.ceiling_share is None else f"{100 * row.ceiling_share:.0f} %"
    return time_text(row.median()), rate, share


def draw_bars(measurements: list[Measurement]) -> Figure:
    """Draw the share of each ceiling and the ratio to each peer.

    Ceilings, and work with neither a ceiling nor a peer, are left out.
    """
    from matplotlib.figure import Figure

    shown = [row for row in measurements if row.group != CEILING and (CEILING in row.seconds or row.peers)]
    figure = Figure(figsize=(11, 1.6 + 0.34 * max(len(shown), 3)), layout="constrained")
    shares, ratios = figure.subplots(1, 2, sharey=True)
    labels = [f"{row.group}: {row.case}" for row in shown]
    shares.barh(labels, [100 * (row.ceiling_share or 0) for row in shown])
    shares.axvline(100, color="black", linewidth=0.8)
    shares.set(xlabel="share of the ceiling (%)", ylim=(len(shown) - 0.5, -0.5))
    _draw_ratios(ratios, shown)
    return figure


def _draw_ratios(axes, shown: list[Measurement]) -> None:
    peers = list(dict.fromkeys(peer for row in shown for peer in row.peers))
    height = 0.8 / max(len(peers), 1)
    for number, peer in enumerate(peers):
        places = [place for place, row in enumerate(shown) if peer in row.seconds]
        axes.barh([place - 0.4 + (number + 0.5) * height for place in places],
                  [shown[place].peer_ratio[peer] for place in places], height=height, label=peer)
    axes.axvline(1, color="black", linewidth=0.8)
    axes.set(xlabel="a peer's seconds over ours")
    if peers:
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter("{x:g}")
        axes.figure.legend(loc="outside lower right", ncols=len(peers), frameon=False)
