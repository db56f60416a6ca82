"""`hpcgnn bench accelerator`: inferences on models of MEGA and its peers, as tables and pictures after MEGA's figures.

Tables show cycles and waits, DRAM bytes and joules; the last one shows MEGA's gains next to the paper's. The picture
follows Fig. 1 and 14 to 22: speed, DRAM, energy and what waits.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from rich import box
from rich.table import Table

from hpcgnn.accelerators.design import Design, read_named
from hpcgnn.accelerators.energy import REFERENCE
from hpcgnn.accelerators.schedule import KINDS
from hpcgnn.accelerators.simulate import Outcome, simulate
from hpcgnn.bench.accelerator_workload import DegreeValues, Sweep, read_workloads, save_picture
from hpcgnn.errors import ConfigError
from hpcgnn.run.output import print_fitted, terminal_width

FIRST = "mega"                  # the table shows MEGA's gain over all other designs
MEASURES: dict[str, Callable[[Outcome], float]] = {
    "speedup": lambda outcome: outcome.cycles,
    "dram": lambda outcome: outcome.timing.dram_bytes,
    "energy": lambda outcome: outcome.energy.total,
}
HEADINGS = {"speedup": "speed-up", "dram": "DRAM reduction", "energy": "energy saving"}
CAPTION = ("busiest: the unit with the most busy cycles of each pass, as a share of all cycles; waits: cycles "
           "that would not be there if DRAM answered at once; DRAM counts whole bursts")


def name_of(outcome: Outcome) -> str:
    changes = ((path.rpartition(".")[2], "/".join(map(str, value)) if isinstance(value, list) else value)
               for path, value in outcome.changes.items())
    return ", ".join([outcome.design, *(f"{name} {said}" for name, said in changes)])


def kinds_of(outcomes: list[Outcome]) -> list[str]:
    return [kind for kind in KINDS if any(kind in outcome.timing.dram_bytes_by_kind() for outcome in outcomes)]


def waiting_share(outcome: Outcome) -> tuple[float, float]:
    """Shares of all cycles: cycles in which the busiest unit of each pass works, and cycles lost to DRAM."""
    busy = waiting = 0
    for one in outcome.timing.passes:
        busy += max((stage.busy_cycles for stage in one.stages), default=0)
        waiting += one.dram_stall_cycles
    cycles = max(outcome.cycles, 1)
    return busy / cycles, waiting / cycles


def _titled(title: str, caption: str | None = None) -> Table:
    return Table(box=box.SIMPLE_HEAD, title=title, title_justify="left", caption=caption, caption_justify="left",
                 collapse_padding=True, pad_edge=False)


def _print(table: Table) -> None:
    print_fitted(table, sys.stdout, terminal_width())


def print_designs(chosen: tuple[Design, ...]) -> None:
    table = _titled("designs")
    for heading in ("design", "dataflow", "units", "bits", "KB", "of buffers"):
        table.add_column(heading, justify="right" if heading in ("bits", "KB") else "left")
    for design in chosen:
        table.add_row(design.name, design.kind, ", ".join(f"{count:,} {unit}" for unit, count in design.units.items()),
                      str(design.bit_width or "mixed"), f"{sum(design.buffers.values()):,g}",
                      ", ".join(f"{name} {kb:,g}" for name, kb in design.buffers.items()))
    _print(table)


def print_outcomes(outcomes: list[Outcome]) -> None:
    for workload in dict.fromkeys(outcome.workload for outcome in outcomes):
        _print(_table(workload, [outcome for outcome in outcomes if outcome.workload == workload]))


def _table(workload: str, rows: list[Outcome]) -> Table:
    kinds = kinds_of(rows)
    table = _titled(workload, CAPTION)
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
    return f"{number:,.0f}" if number >= 100 else f"{number:.3g}" if number >= 0.001 or not number else f"{number:.1e}"


def gains(outcomes: list[Outcome]) -> Iterator[tuple[str, str, dict[str, float]]]:
    """Yield measure, design, and MEGA's gain over the design on each workload that both ran unchanged."""
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
    return read_named("table", "paper", REFERENCE)[1]


def print_gains(outcomes: list[Outcome]) -> None:
    """Print MEGA's gain over each design by workload, its means, and the paper's average."""
    found = list(gains(outcomes))
    if not found:
        return
    workloads = list(dict.fromkeys(workload for *_, by_workload in found for workload in by_workload))
    paper = reported()
    table = _titled(f"what {FIRST} gains")
    table.add_column("over", no_wrap=True)
    for heading in (*workloads, "geometric mean", "mean", "paper's"):
        table.add_column(heading, justify="right")
    for measure in MEASURES:
        table.add_section()
        table.add_row(HEADINGS[measure])
        for _, design, by_workload in (one for one in found if one[0] == measure):
            values = np.array(list(by_workload.values()))
            cells = [f"{by_workload[one]:.2f}" if one in by_workload else "" for one in workloads]
            said = paper[measure].get(design) or (paper["original"].get(design) if measure == "speedup" else None)
            table.add_row(design, *cells, f"{np.exp(np.log(values).mean()):.2f}", f"{values.mean():.2f}",
                          "" if said is None else f"{said:g}")
    _print(table)


ENERGY_PARTS = {"DRAM": "dram", "SRAM": "sram", "units": "processing", "leakage": "leakage"}


def draw_outcomes(path: Path, outcomes: list[Outcome]) -> None:
    """Draw one row of panels per workload.

    The first panel compares each outcome with the largest one, on a logarithmic scale; the others show the parts of its
    cycles, DRAM bytes and energy as shares, with the total to the right of the bar. Raises ConfigError where the file
    can't be written.
    """
    from matplotlib.figure import Figure

    workloads = list(dict.fromkeys(outcome.workload for outcome in outcomes))
    widest = max(sum(outcome.workload == workload for outcome in outcomes) for workload in workloads)
    figure = Figure(figsize=(20, len(workloads) * (1.4 + 0.3 * widest)), layout="constrained")
    panels = figure.subplots(len(workloads), 4, squeeze=False)
    for row, workload in zip(panels, workloads, strict=True):
        shown = [outcome for outcome in outcomes if outcome.workload == workload]
        _draw_gains(row[0], workload, shown)
        _draw_cycles(row[1], shown)
        _draw_shares(row[2], shown, {kind: [outcome.timing.dram_bytes_by_kind().get(kind, 0) / 1e6 for outcome in shown]
                                    for kind in kinds_of(shown)}, "MB of DRAM")
        _draw_shares(row[3], shown, {label: [1e3 * getattr(outcome.energy, part) for outcome in shown]
                                    for label, part in ENERGY_PARTS.items()}, "mJ (Fig. 1b, 18)")
    save_picture(figure, path)


def _draw_gains(axes: Any, workload: str, shown: list[Outcome]) -> None:
    places = range(len(shown))
    for number, (measure, value) in enumerate(MEASURES.items()):
        most = max(value(outcome) for outcome in shown)
        axes.barh([place + (number - 1) * 0.27 for place in places],
                  [most / max(value(outcome), most * 1e-9) for outcome in shown], height=0.27, label=HEADINGS[measure])
    axes.set_yticks(places, [name_of(outcome) for outcome in shown])
    axes.set(xscale="log", xlabel="ratio to the largest (Fig. 14, 16, 17)", ylim=(len(shown) - 0.5, -0.5))
    axes.set_title(workload, loc="left")
    axes.legend(frameon=False, fontsize="small", loc="center left", bbox_to_anchor=(1.0, 0.5))


def _draw_cycles(axes: Any, shown: list[Outcome]) -> None:
    shares = [waiting_share(outcome) for outcome in shown]
    cycles = [outcome.cycles / 1e6 for outcome in shown]
    parts = {"the busiest unit works": [busy * one for (busy, _), one in zip(shares, cycles, strict=True)],
             "it waits for DRAM": [waits * one for (_, waits), one in zip(shares, cycles, strict=True)],
             "it waits for other units": [max(1 - busy - waits, 0) * one
                                          for (busy, waits), one in zip(shares, cycles, strict=True)]}
    _draw_shares(axes, shown, parts, "10^6 cycles (Fig. 1a, 20a)")


def _draw_shares(axes: Any, shown: list[Outcome], parts: dict[str, list[float]], unit: str) -> None:
    places = range(len(shown))
    totals = [max(sum(widths[place] for widths in parts.values()), 1e-12) for place in places]
    left = [0.0] * len(shown)
    for name, widths in parts.items():
        shares = [100 * width / total for width, total in zip(widths, totals, strict=True)]
        axes.barh(places, shares, left=left, label=name)
        left = [before + share for before, share in zip(left, shares, strict=True)]
    for place, total in zip(places, totals, strict=True):
        axes.text(101, place, f"{total:.3g}", va="center", fontsize="small")
    axes.set_yticks(places, [name_of(outcome) for outcome in shown])
    axes.set(xlabel=f"% of its {unit}", xlim=(0, 112), ylim=(len(shown) - 0.5, -0.5))
    axes.legend(frameon=False, fontsize="small", loc="center left", bbox_to_anchor=(1.0, 0.5))


JSON, PICTURE, DEGREES = "accelerator.json", "accelerator.png", "degrees.png"


def outcomes_of(sources: tuple[str, ...], designs: tuple[Design, ...], sweep: Sweep | None, degrees: list[DegreeValues],
                begin: Callable[[str], None]) -> Iterator[tuple[Outcome, float]]:
    """Yield each outcome and the seconds that its model took; `begin` is told each step.

    Every workload runs on every design, or on the first design at each value of the sweep. `degrees` is filled with an
    entry per trained model that was read.
    """
    points: list[tuple[Design, dict[str, Any]]] = [(design, {}) for design in designs] if sweep is None else [
        (designs[0], {sweep.path: value}) for value in sweep.values]
    for workload in read_workloads(sources, degrees):
        for design, changes in points:
            begin(f"models {workload.name} on {design.name}")
            started = time.perf_counter()
            yield simulate(design, workload, changes), time.perf_counter() - started


def write_outcomes(folder: Path, machine: dict[str, Any], outcomes: list[tuple[Outcome, float]],
                   degrees: list[DegreeValues]) -> None:
    """Write outcomes, with the seconds of their models, as JSON. Raises ConfigError where the file can't be written."""
    records = [{"workload": outcome.workload, "design": outcome.design, "changes": dict(outcome.changes),
                "cycles": outcome.cycles, "energy_joules": {**asdict(outcome.energy), "total": outcome.energy.total},
                "timing": asdict(outcome.timing), "model_seconds": seconds} for outcome, seconds in outcomes]
    by_degree = {one.name: {"in_degree": one.in_degree.tolist(), "mean": one.mean.tolist()} for one in degrees}
    try:
        (folder / JSON).write_text(json.dumps({"machine": machine, "outcomes": records, "by_degree": by_degree},
                                              indent=1) + "\n")
    except OSError as error:
        raise ConfigError(f"{folder} can't take {JSON}: {error}") from error
