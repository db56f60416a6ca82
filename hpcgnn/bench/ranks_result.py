"""RanksResult shows what `hpcgnn bench ranks` found: the table of every benchmark, and its own picture."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from hpcgnn.bench.result import BenchmarkResult

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLUMNS = 3


@dataclass(frozen=True)
class RanksResult(BenchmarkResult):
    """Holds the measurements of `hpcgnn bench ranks`."""

    def figure(self) -> Figure:
        """Return seconds over neighbors, a panel a work and a line a number of ranks; needs matplotlib."""
        from matplotlib.figure import Figure

        works = list(dict.fromkeys(row.group for row in self.measurements))
        num_ranks = sorted({row.details["num_ranks"] for row in self.measurements})
        num_lines = -(-len(works) // COLUMNS)
        figure = Figure(figsize=(11, 1 + 2.6 * num_lines), layout="constrained")
        panels = figure.subplots(num_lines, COLUMNS, squeeze=False).ravel()
        for panel, work in zip(panels, works, strict=False):
            for ranks in num_ranks:
                rows = [row for row in self.measurements if (row.group, row.details["num_ranks"]) == (work, ranks)]
                panel.plot([row.details["num_neighbors"] for row in rows], [row.median() for row in rows], marker="o",
                           label=f"{ranks:,} ranks")
            panel.set(title=work, xlabel="neighbors", ylabel="seconds", xscale="log", yscale="log")
        for panel in panels[len(works):]:
            panel.set_axis_off()
        panels[0].legend(frameon=False)
        return figure
