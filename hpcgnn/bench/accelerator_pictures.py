"""Pictures of `hpcgnn bench accelerator`, after MEGA's Fig. 1 and 14 to 22: speed, DRAM, energy and what waits."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpcgnn.accelerators.simulate import Outcome
from hpcgnn.bench.accelerator_tables import kinds_of, name_of, waiting_share
from hpcgnn.errors import ConfigError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ENERGY_PARTS = {"DRAM": "dram", "SRAM": "sram", "units": "processing", "leakage": "leakage"}


def draw_outcomes(path: Path, outcomes: list[Outcome]) -> None:
    """Draw a row of panels a workload: cycles, DRAM by kind, energy by part.

    Raises
    ------
    ConfigError      the file can't be written
    """
    from matplotlib.figure import Figure

    workloads = list(dict.fromkeys(outcome.workload for outcome in outcomes))
    widest = max(sum(outcome.workload == workload for outcome in outcomes) for workload in workloads)
    figure = Figure(figsize=(15, len(workloads) * (1.2 + 0.3 * widest)), layout="constrained")
    panels = figure.subplots(len(workloads), 3, squeeze=False)
    for row, workload in zip(panels, workloads, strict=True):
        shown = [outcome for outcome in outcomes if outcome.workload == workload]
        _draw_cycles(row[0], workload, shown)
        _draw_stack(row[1], shown, {kind: [outcome.timing.dram_bytes_by_kind().get(kind, 0) / 1e6 for outcome in shown]
                                    for kind in kinds_of(shown)}, "MB of DRAM (Fig. 16)")
        _draw_stack(row[2], shown, {label: [1e3 * getattr(outcome.energy, part) for outcome in shown]
                                    for label, part in ENERGY_PARTS.items()}, "mJ (Fig. 17, 18)")
    _save(figure, path)


def _draw_cycles(axes: Any, workload: str, shown: list[Outcome]) -> None:
    shares = [waiting_share(outcome) for outcome in shown]
    cycles = [outcome.cycles / 1e6 for outcome in shown]
    parts = {"the busiest unit works": [busy * one for (busy, _), one in zip(shares, cycles, strict=True)],
             "it waits for DRAM": [waits * one for (_, waits), one in zip(shares, cycles, strict=True)],
             "it waits for other units": [max(1 - busy - waits, 0) * one
                                          for (busy, waits), one in zip(shares, cycles, strict=True)]}
    _draw_stack(axes, shown, parts, "10^6 cycles (Fig. 1a, 14, 20a)")
    axes.set_title(workload, loc="left")


def _draw_stack(axes: Any, shown: list[Outcome], parts: dict[str, list[float]], label: str) -> None:
    places = range(len(shown))
    left = [0.0] * len(shown)
    for name, widths in parts.items():
        axes.barh(places, widths, left=left, label=name)
        left = [before + width for before, width in zip(left, widths, strict=True)]
    axes.set_yticks(places, [name_of(outcome) for outcome in shown])
    axes.set(xlabel=label, ylim=(len(shown) - 0.5, -0.5))
    axes.legend(frameon=False, fontsize="small")


def _save(figure: Figure, path: Path) -> None:
    try:
        figure.savefig(path, dpi=130)
    except OSError as error:
        raise ConfigError(f"{path} can't be written: {error}") from error
