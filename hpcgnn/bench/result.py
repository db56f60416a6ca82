"""BenchmarkResult shows what a benchmark found, with its machine, as a table, bench.json and bench.png."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpcgnn.bench.picture import check_matplotlib, draw_bars
from hpcgnn.bench.table import print_table
from hpcgnn.bench.timing import Measurement
from hpcgnn.errors import ConfigError

JSON, PICTURE = "bench.json", "bench.png"


@dataclass(frozen=True)
class BenchmarkResult:
    """Holds everything of one `hpcgnn bench`.

    Attributes
    ----------
    kind : {"kernels", "epoch", "exchange"}
    machine : dict                        see hpcgnn.bench.machine, taken before the first measurement
    measurements : list of Measurement
    """

    kind: str
    machine: dict[str, Any]
    measurements: list[Measurement]

    def remarks(self) -> list[str]:
        """Sentences for the reader: the machine, its load and allocator, and what a peer can't do."""
        machine = self.machine
        load = machine["load_average"][0]
        busy = f"; load average {load:.1f} at the start" + (": the machine was busy" if load > 0.5 else "")
        lines = [f"{machine['processor']}, {machine['threads']} of {machine['cores']} cores, {machine['simd']}, "
                 f"allocator {machine['allocator']}{busy}",
                 " ".join(f"{name} {number}" for name, number in machine["versions"].items())
                 + (f", commit {machine['commit']}" if machine["commit"] else "")]
        return lines + list(dict.fromkeys(remark for row in self.measurements for remark in row.remarks))

    def show(self) -> None:
        """Print the table and the remarks to standard output."""
        print_table(self.measurements, self.remarks())

    def write(self, folder: Path) -> None:
        """Write bench.json and bench.png.

        Raises
        ------
        ConfigError      a file can't be written, or matplotlib is not installed
        """
        open_folder(folder)
        records = [row.as_record() for row in self.measurements]
        try:
            (folder / JSON).write_text(json.dumps(
                {"kind": self.kind, "machine": self.machine, "measurements": records}, indent=1) + "\n")
        except OSError as error:
            raise ConfigError(f"{folder / JSON} can't be written: {error.strerror}") from error
        draw_bars(self.measurements, f"hpcgnn bench {self.kind}, {self.machine['processor']}", folder / PICTURE)


def open_folder(folder: Path) -> None:
    """Make the folder for the results, before anything is measured; raises ConfigError where it can't be used."""
    check_matplotlib()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"--out {folder} can't be used as a folder: {error.strerror}") from error
