"""Run a workload on a design: its passes through the timeline, its events to the prices."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from hpcgnn.accelerators import gcnax, grow, hygcn, mega, sgcn
from hpcgnn.accelerators.design import Design
from hpcgnn.accelerators.dram import read_dram
from hpcgnn.accelerators.energy import Energy, energy_of
from hpcgnn.accelerators.schedule import Pass
from hpcgnn.accelerators.timeline import Timing, run
from hpcgnn.accelerators.workload import Workload
from hpcgnn.errors import ConfigError

DATAFLOWS: dict[str, Callable[[Design, Workload], list[Pass]]] = {
    "mega": mega.passes, "hygcn": hygcn.passes, "gcnax": gcnax.passes, "grow": grow.passes, "sgcn": sgcn.passes}
WORKLOAD = "workload.bit_width"      # this change applies to the workload, all others to the design


@dataclass(frozen=True)
class Outcome:
    """What an inference costs on a design; `changes` are the numbers of the design that differ, by path."""

    workload: str
    design: str
    changes: Mapping[str, Any]
    timing: Timing
    energy: Energy

    @property
    def cycles(self) -> int:
        return self.timing.cycles


def simulate(design: Design, workload: Workload, changes: Mapping[str, Any] | None = None) -> Outcome:
    """Run a workload on a design, with the numbers in `changes` replaced.

    Raises ConfigError for an unknown dataflow, or a design that can't hold the workload.

    Reference: MEGA, section VI; this repeats its comparison (Fig. 14 to 22).
    """
    changes = dict(changes or {})
    of_design = {path: value for path, value in changes.items() if path != WORKLOAD}
    design = design.changed(of_design)
    if design.kind not in DATAFLOWS:
        raise ConfigError(f"{design.name} is of kind {design.kind!r}; choose {', '.join(DATAFLOWS)}")
    if WORKLOAD in changes:
        if changes[WORKLOAD] not in range(1, 33):
            raise ConfigError(f"{WORKLOAD} is {changes[WORKLOAD]!r}; expected 1 to 32")
        workload = workload.at_width(changes[WORKLOAD])
    elif design.bit_width:
        workload = workload.at_width(design.bit_width)
    timing = run(DATAFLOWS[design.kind](design, workload), read_dram(design.dram), design.clock_ghz)
    energy = energy_of(design, timing.events(), timing.dram_bytes, timing.cycles)
    return Outcome(workload.name, design.name, changes, timing, energy)
