"""Charts of what adaptive runs decided epoch by epoch: widths of message rows, synchronous or not, and learned widths.

A run has a panel of its own, which shows its first seed: decisions have no mean.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from hpcgnn.report.chart import Chart, NumberedRuns
from hpcgnn.report.formats import format_number, format_percent
from hpcgnn.report.run_folder import Run
from hpcgnn.report.series import MAX_POINTS, rounded


def has_varying_widths(run: Run) -> bool:
    """Whether the run sent rows of several widths, or moved a base width: one width alone is no picture."""
    used = {width for record in run.first_seed for width, rows in (record.get("width_histogram") or {}).items() if rows}
    has_base = any(record.get("base_bits") is not None for record in run.first_seed)
    return len(used) > 1 or (bool(used) and has_base)


def has_stale_epochs(run: Run) -> bool:
    """Whether any epoch ran asynchronously or read a halo row of an earlier one."""
    return any(record.get("mode") == "async" or record.get("staleness") for record in run.first_seed)


def widths_chart(runs: NumberedRuns) -> Chart | None:
    """Shares of message rows by width over epochs, stacked from the narrowest, and the base width over them."""
    members = [(number, run) for number, run in runs if has_varying_widths(run)]
    if not members:
        return None
    panels, said = [], []
    for number, run in members:
        epochs, shares = epoch_range(run), width_shares(run)
        kept = _kept(epochs)
        means = {width: float(np.nanmean(share)) for width, share in shares.items()}
        widest = max(means, key=means.get)
        said.append(f"{run.name} sends {format_number(means[widest])} % of its rows at {widest} "
                    f"bit{'s' * (widest > 1)}")
        base = np.array([np.nan if value is None else value for value in epoch_values(run, "base_bits")], float)
        panels.append({"run": number, "title": run.name, "epochs": epochs[kept].tolist(), "widths": list(shares),
                       "shares": [rounded(share[kept]) for share in shares.values()],
                       "base": rounded(base[kept]) if np.isfinite(base).any() else None})
    return Chart("widths", "Widths of rows", "areas", "Share of message rows sent at each bit-width in each epoch, all "
                 "ranks together; the line is the base width of methods that have one." + _of_first_seed(members),
                 _join(said), {"panels": panels})


def execution_chart(runs: NumberedRuns) -> Chart | None:
    """Synchronous and asynchronous epochs, and the age of the oldest halo row that was read."""
    members = [(number, run) for number, run in runs if has_stale_epochs(run)]
    if not members:
        return None
    panels, said = [], []
    for number, run in members:
        epochs, modes = epoch_range(run), epoch_values(run, "mode")
        ages = np.array([np.nan if value is None else value for value in epoch_values(run, "staleness")], float)
        kept = _kept(epochs)
        panels.append({"run": number, "title": run.name, "epochs": epochs[kept].tolist(),
                       "modes": [modes[place] for place in kept.tolist()],
                       "ages": rounded(ages[kept]) if np.isfinite(ages).any() else None})
        oldest = int(np.nanmax(ages)) if np.isfinite(ages).any() else 0
        late = f", with rows up to {oldest} epoch{'s' * (oldest > 1)} old" if oldest else ""
        asynchronous = format_percent(modes.count("async") / len(modes))
        said.append(f"{asynchronous} % of the epochs of {run.name} ran asynchronously{late}")
    return Chart("execution", "Execution and staleness", "bands", "Which epochs waited for their messages "
                 "(synchronous) and which used earlier ones (asynchronous); the line is the largest age, in epochs, of "
                 "a halo row that was read." + _of_first_seed(members), _join(said), {"panels": panels})


def degrees_chart(runs: NumberedRuns) -> Chart | None:
    """Bits that degree-aware training chose for a node's row by its in-degree, a panel a run."""
    members = [(number, run) for number, run in runs if run.summary.get("widths_by_degree")]
    if not members:
        return None
    panels = [{"run": number, "title": run.name, "layers": run.summary["widths_by_degree"]} for number, run in members]
    said = [f"{run.name} gives its {len(layers)} layers {min(widths)} to {max(widths)} bits" for _, run in members
            if (layers := run.summary["widths_by_degree"])
            and (widths := [width for layer in layers for width in layer["bit_width"]])]
    return Chart("degrees", "Learned widths by in-degree", "dots", "Bits of a node's row in each layer, signs "
                 "included, that training chose by the node's in-degree, at the end of the last seed; a larger dot "
                 "is more nodes.", _join(said), {"panels": panels})


def epoch_range(run: Run) -> np.ndarray:
    """All epochs from the first seed's first to its last, (num_epochs,) int64."""
    epochs = [record["epoch"] for record in run.first_seed]
    return np.arange(min(epochs), max(epochs) + 1)


def epoch_values(run: Run, key: str) -> list[Any]:
    """The first seed's values of one key over `epoch_range`, None where it was not recorded."""
    by_epoch = {record["epoch"]: record.get(key) for record in run.first_seed}
    return [by_epoch.get(epoch) for epoch in epoch_range(run).tolist()]


def width_shares(run: Run) -> dict[int, np.ndarray]:
    """Percentage of message rows by width, ascending, each (num_epochs,) float64, NaN where nothing was sent."""
    histograms = [{int(width): rows for width, rows in (histogram or {}).items()}
                  for histogram in epoch_values(run, "width_histogram")]
    total = np.array([sum(histogram.values()) or np.nan for histogram in histograms])
    widths = sorted({width for histogram in histograms for width, rows in histogram.items() if rows})
    return {width: 100 * np.array([histogram.get(width, 0) for histogram in histograms]) / total for width in widths}


def _kept(epochs: np.ndarray) -> np.ndarray:
    return np.arange(0, len(epochs), -(-len(epochs) // MAX_POINTS))


def _of_first_seed(runs: NumberedRuns) -> str:
    return " Of several seeds, the first is shown." if any(len(run.seeds) > 1 for _, run in runs) else ""


def _join(said: list[str]) -> str:
    shown = said[:3] + ([f"and {len(said) - 3} more runs are drawn below"] if len(said) > 3 else [])
    return "; ".join(shown) + "." if said else ""
