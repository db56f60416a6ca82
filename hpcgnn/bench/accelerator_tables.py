"""Tables of `hpcgnn bench accelerator`: cycles and what waits, bytes of DRAM, joules, and means beside the paper's."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator

import numpy as np
from rich import box
from rich.console import Console
from rich.table import Table

from hpcgnn.accelerators.design import FOLDER, Design
from hpcgnn.accelerators.schedule import KINDS
from hpcgnn.accelerators.simulate import Outcome

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

FIRST = "mega"                  # whose gain over the others is told
PAPER = FOLDER / "reference" / "paper.toml"
MEASURES: dict[str, Callable[[Outcome], float]] = {
    "speedup": lambda outcome: outcome.cycles,
    "dram": lambda outcome: outcome.timing.dram_bytes,
    "energy": lambda outcome: outcome.energy.total,
}
HEADINGS = {"speedup": "speed-up", "dram": "DRAM reduction", "energy": "energy saving"}
WIDTH = 150
CAPTION = ("busiest: the unit with the most busy cycles of each pass, as a share of all cycles; waits: cycles "
           "that would not be there if DRAM answered at once; DRAM counts whole bursts")


def name_of(outcome: Outcome) -> str:
    """Return the design's name, with what was changed."""
    return ", ".join([outcome.design, *(f"{path.rpartition('.')[2]} {_said(value)}"
                                        for path, value in outcome.changes.items())])


def _said(value: object) -> str:
    return "/".join(map(str, value)) if isinstance(value, list) else str(value)


def kinds_of(outcomes: list[Outcome]) -> list[str]:
    """Return the kinds of requests that any outcome has."""
    return [kind for kind in KINDS if any(kind in outcome.timing.dram_bytes_by_kind() for outcome in outcomes)]


def waiting_share(outcome: Outcome) -> tuple[float, float]:
    """Return the shares of all cycles in which the busiest unit of each pass works, and which DRAM costs."""
    busy = waiting = 0
    for one in outcome.timing.passes:
        busy += max((stage.busy_cycles for stage in one.stages), default=0)
        waiting += one.dram_stall_cycles
    cycles = max(outcome.cycles, 1)
    return busy / cycles, waiting / cycles


def print_designs(chosen: tuple[Design, ...]) -> None:
    """Print what each design has, as Tables IV, V and VII: units, bits of a value, and KB by buffer."""
    table = Table(box=box.SIMPLE_HEAD, title="designs", title_justify="left", collapse_padding=True, pad_edge=False)
    for heading in ("design", "dataflow", "units", "bits", "KB", "of buffers"):
        table.add_column(heading, justify="right" if heading in ("bits", "KB") else "left")
    for design in chosen:
        table.add_row(design.name, design.kind, ", ".join(f"{count:,} {unit}" for unit, count in design.units.items()),
                      str(design.bit_width or "mixed"), f"{sum(design.buffers.values()):,g}",
                      ", ".join(f"{name} {kb:,g}" for name, kb in design.buffers.items()))
    Console(width=max(Console().width, WIDTH)).print(table)


def print_outcomes(outcomes: list[Outcome]) -> None:
    """Print one table a workload, a row a design or a value of the sweep."""
    console = Console(width=max(Console().width, WIDTH))
    for workload in dict.fromkeys(outcome.workload for outcome in outcomes):
        rows = [outcome for outcome in outcomes if outcome.workload == workload]
        console.print(_table(workload, rows))


def _table(workload: str, rows: list[Outcome]) -> Table:
    kinds = kinds_of(rows)
    table = Table(box=box.SIMPLE_HEAD, title=workload, title_justify="left", caption=CAPTION, caption_justify="left",
                  collapse_padding=True, pad_edge=False)
    table.add_column("design", no_wrap=True)
    for heading in ("10^3 cycles", "of the first", "busiest %", "waits %", "MB of DRAM", *kinds, "mJ in all", "DRAM",
                    "SRAM", "units", "leaks"):
        table.add_column(heading, justify="right", min_width=max(map(len, heading.split())))
    for outcome in rows:
        busy, waiting = waiting_share(outcome)
        energy = outcome.energy
        joules = (energy.total, energy.dram, energy.sram, energy.processing, energy.leakage)
        moved = outcome.timing.dram_bytes_by_kind()
        table.add_row(name_of(outcome), _short(outcome.cycles / 1e3), f"{outcome.cycles / max(rows[0].cycles, 1):.2f}",
                      f"{100 * busy:.0f}", f"{100 * waiting:.0f}", _short(outcome.timing.dram_bytes / 1e6),
                      *(_short(moved[kind] / 1e6) if kind in moved else "" for kind in kinds),
                      *(_short(1e3 * part) for part in joules))
    return table


def _short(number: float) -> str:
    """Three digits, and all of them before the point."""
    return f"{number:,.0f}" if number >= 100 else f"{number:.3g}" if number >= 0.001 or not number else f"{number:.1e}"


def gains(outcomes: list[Outcome]) -> Iterator[tuple[str, str, dict[str, float]]]:
    """Yield measure, design, and MEGA's gain over it by workload, where both ran it as they are."""
    plain = {(outcome.workload, outcome.design): outcome for outcome in outcomes if not outcome.changes}
    others = dict.fromkeys(design for _, design in plain if design != FIRST)
    for measure, value in MEASURES.items():
        for design in others:
            found = {workload: value(plain[workload, design]) / value(plain[workload, FIRST])
                     for workload in dict.fromkeys(workload for workload, _ in plain)
                     if (workload, design) in plain and (workload, FIRST) in plain}
            if found:
                yield measure, design, found


def reported() -> dict[str, dict[str, float]]:
    """Return what the paper reports, by measure and design."""
    return tomllib.loads(PAPER.read_text())


def print_gains(outcomes: list[Outcome]) -> None:
    """Print MEGA's gain over each design by workload, its means, and the paper's average."""
    found = list(gains(outcomes))
    if not found:
        return
    workloads = list(dict.fromkeys(workload for *_, by_workload in found for workload in by_workload))
    console, paper = Console(width=max(Console().width, WIDTH)), reported()
    table = Table(box=box.SIMPLE_HEAD, title=f"what {FIRST} gains", title_justify="left", collapse_padding=True,
                  pad_edge=False)
    table.add_column("over", no_wrap=True)
    for heading in (*workloads, "geometric mean", "mean", "paper's"):
        table.add_column(heading, justify="right")
    for measure in MEASURES:
        table.add_section()
        table.add_row(f"[bold]{HEADINGS[measure]}")
        for _, design, by_workload in (one for one in found if one[0] == measure):
            values = np.array(list(by_workload.values()))
            cells = [f"{by_workload[one]:.2f}" if one in by_workload else "" for one in workloads]
            said = paper[measure].get(design) or (paper["original"].get(design) if measure == "speedup" else None)
            table.add_row(design, *cells, f"{np.exp(np.log(values).mean()):.2f}", f"{values.mean():.2f}",
                          "" if said is None else f"{said:g}")
    console.print(table)
