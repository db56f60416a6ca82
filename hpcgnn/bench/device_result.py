"""DeviceResult shows what `hpcgnn bench device` found, as a table and bench.json that name the chip. No picture is
drawn, so that a machine without matplotlib will do.
"""

from __future__ import annotations

import io
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console

from hpcgnn.bench.result import JSON, BenchmarkResult
from hpcgnn.bench.table import WIDEST, measurement_table
from hpcgnn.errors import ConfigError

TABLE = "table.txt"


@dataclass(frozen=True)
class DeviceResult(BenchmarkResult):
    """Holds what BenchmarkResult does; its `machine` also has the chip and the versions of CUDA.

    Attributes
    ----------
    failures : list of str     parts that could not be measured, with the reason
    """

    failures: list[str] = field(default_factory=list)

    def remarks(self) -> list[str]:
        """Describe the chip first, then what every benchmark says, then the parts that failed."""
        chip, cuda = self.machine["chip"], self.machine["cuda"]
        first = (f"{chip['name']}, compute capability {'.'.join(map(str, chip['capability']))}, "
                 f"{chip['num_processors']} multiprocessors, {chip['memory_bytes'] / 2**30:.0f} GiB, "
                 f"{round(chip['l2_bytes'] / 2**20) or 'unknown'} MiB of L2; driver {chip['driver'] or 'unknown'}, "
                 f"CUDA {cuda['torch']}, cupy {cuda['cupy']}")
        return [first, *super().remarks(), *(f"not measured: {failure}" for failure in self.failures)]

    def as_text(self) -> str:
        """The table and the remarks."""
        out = io.StringIO()
        console = Console(file=out, width=WIDEST)
        console.print(measurement_table(self.measurements))
        for remark in self.remarks():
            console.print(remark, markup=False, highlight=False, soft_wrap=True)
        return "\n".join(line.rstrip() for line in out.getvalue().splitlines()) + "\n"

    def write(self, folder: Path) -> None:
        """Write bench.json and table.txt.

        Raises
        ------
        ConfigError      a file can't be written
        """
        contents: dict[str, Any] = {
            "kind": self.kind, "machine": self.machine, "failures": self.failures,
            "measurements": [row.as_record() for row in self.measurements]}
        try:
            folder.mkdir(parents=True, exist_ok=True)
            (folder / JSON).write_text(json.dumps(contents, indent=1) + "\n")
            (folder / TABLE).write_text(self.as_text())
        except OSError as error:
            raise ConfigError(f"--out {folder} can't hold the results: {error.strerror}") from error
