"""Pictures of `hpcgnn bench accelerator`, after MEGA's Fig. 1 and 14 to 22: speed, DRAM, energy and what waits."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpcgnn.accelerators.simulate import Outcome
from hpcgnn.bench.accelerator_tables import HEADINGS, MEASURES, kinds_of, name_of, waiting_share
from hpcgnn.errors import ConfigError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ENERGY_PARTS = {"DRAM": "dram", "SRAM": "sram", "units": "processing", "leakage": "leakage"}


def draw_outcomes(path: Path, outcomes: list[Outcome]) -> None:
    """Draw a row of panels a workload: each outcome beside the one that takes most, on a logarithmic scale, and parts
    of its cycles, of its bytes of DRAM and of its energy, as shares, with the whole behind the bar.

    Raises
    ------
    ConfigError      the file can't be written
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
    _save(figure, path)


def _draw_gains(axes: Any, workload: str, shown: list[Outcome]) -> None:
    places = range(len(shown))
    for number, (measure, value) in enumerate(MEASURES.items()):
        most = max(value(outcome) for outcome in shown)
        axes.barh([place + (number - 1) * 0.27 for place in places],
                  [most / max(value(outcome), most * 1e-9) for outcome in shown], height=0.27, label=HEADINGS[measure])
    axes.set_yticks(places, [name_of(outcome) for outcome in shown])
    axes.set(xscale="log", xlabel="over the one that takes most (Fig. 14, 16, 17)", ylim=(len(shown) - 0.5, -0.5))
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
    """Draw each outcome's parts as shares of their sum, which stands behind the bar."""
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


def _save(figure: Figure, path: Path) -> None:
    try:
        figure.savefig(path, dpi=130)
    except OSError as error:
        raise ConfigError(f"{path} can't be written: {error}") from error
