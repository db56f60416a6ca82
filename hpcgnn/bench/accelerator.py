"""`hpcgnn bench accelerator` models inferences on MEGA's accelerator and on those that it is compared with.

Nothing is timed on this machine but the model itself; tables and pictures are made by accelerator_tables and
accelerator_pictures.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from hpcgnn.accelerators.design import Design
from hpcgnn.accelerators.simulate import Outcome, simulate
from hpcgnn.bench.accelerator_degrees import DegreeValues
from hpcgnn.bench.accelerator_sweep import Sweep
from hpcgnn.bench.accelerator_workload import read_workloads
from hpcgnn.errors import ConfigError

JSON, PICTURE, DEGREES = "accelerator.json", "accelerator.png", "degrees.png"


@dataclass(frozen=True)
class AcceleratorBenchmark:
    """Runs every workload on every design, and where there is a sweep, on the first design at each of its values.

    Attributes
    ----------
    sources : see read_workloads
    designs : tuple of Design
    sweep : Sweep or None
    degrees : list of DegreeValues       of the trained models that have been read
    """

    sources: tuple[str, ...]
    designs: tuple[Design, ...]
    sweep: Sweep | None = None
    degrees: list[DegreeValues] = field(default_factory=list)

    def outcomes(self, begin: Callable[[str], None]) -> Iterator[tuple[Outcome, float]]:
        """Yield each outcome and the seconds that its model took; `begin` is told what is under way."""
        for workload in read_workloads(self.sources, self.degrees):
            for design, changes in self._points():
                begin(f"models {workload.name} on {design.name}")
                started = time.perf_counter()
                yield simulate(design, workload, changes), time.perf_counter() - started

    def _points(self) -> Iterator[tuple[Design, dict[str, Any]]]:
        if self.sweep is None:
            yield from ((design, {}) for design in self.designs)
            return
        for value in self.sweep.values:
            yield self.designs[0], {self.sweep.path: value}


def record(outcome: Outcome, seconds: float) -> dict[str, Any]:
    """Return what accelerator.json holds of an outcome."""
    return {"workload": outcome.workload, "design": outcome.design, "changes": dict(outcome.changes),
            "cycles": outcome.cycles, "energy_joules": {**asdict(outcome.energy), "total": outcome.energy.total},
            "timing": asdict(outcome.timing), "model_seconds": seconds}


def write_outcomes(folder: Path, machine: dict[str, Any], records: list[dict[str, Any]],
                   degrees: list[DegreeValues]) -> None:
    """Write accelerator.json.

    Raises
    ------
    ConfigError      the file can't be written
    """
    by_degree = {one.name: {"in_degree": one.in_degree.tolist(), "mean": one.mean.tolist()} for one in degrees}
    try:
        (folder / JSON).write_text(json.dumps({"machine": machine, "outcomes": records, "by_degree": by_degree},
                                              indent=1) + "\n")
    except OSError as error:
        raise ConfigError(f"{folder} can't take {JSON}: {error}") from error
