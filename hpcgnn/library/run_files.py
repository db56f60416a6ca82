"""RunFiles: a run's folder as a table, a figure and a page; FinishedRun: a run whose scores are known.

`Run` and `OpenedRun` of hpcgnn/library/run.py are such runs, and LaunchedRun, which `hpcgnn.launch` returns. This file
imports neither MPI nor torch.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpcgnn.errors import ConfigError
from hpcgnn.report.formats import format_bytes, format_seconds
from hpcgnn.report.run_folder import Run as StoredRun
from hpcgnn.report.run_folder import read_runs
from hpcgnn.report.series import ScoreKind
from hpcgnn.run.notebook import html_table, show_page
from hpcgnn.run.output import is_notebook

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from pandas import DataFrame


class RunFiles:
    """What `hpcgnn report` makes of a run folder. Each method raises ConfigError if the folder is missing or damaged.

    On several ranks each may call them; only rank 0 writes files.
    """

    path: Path

    @property
    def _writes(self) -> bool:
        return True

    def to_pandas(self) -> DataFrame:
        """A `pandas.DataFrame` with a row for each epoch; its columns are those of `to_csv`.

        Raises
        ------
        ConfigError      pandas is not installed
        """
        from hpcgnn.report.page import epoch_rows

        try:
            from pandas import DataFrame
        except ImportError as missing:
            raise ConfigError("to_pandas() needs pandas, which is not installed; run pip install pandas") from missing
        return DataFrame(epoch_rows(read_runs([self.path])))

    def to_csv(self, path: str | Path) -> Path:
        """Write a CSV table with a row for each epoch, as `hpcgnn report RUN --out FILE.csv`; return its path."""
        from hpcgnn.report.page import write_epochs

        return write_epochs(read_runs([self.path]), Path(path)) if self._writes else Path(path)

    def report(self, path: str | Path | None = None) -> Path:
        """Write the HTML page of `hpcgnn report`, by default into the run folder; return its path.

        In a notebook the page is shown, too.
        """
        from hpcgnn.report.page import write_report

        target = self.path / "report.html" if path is None else Path(path)
        if self._writes:
            write_report(read_runs([self.path]), target)
            if is_notebook():
                show_page(target.read_text(encoding="utf-8"))
        return target

    def plot(self) -> Figure:
        """A `matplotlib.figure.Figure` of the loss and the scores by epoch, means over the seeds.

        Raises
        ------
        ConfigError      matplotlib is not installed
        """
        from hpcgnn.report.charts import curves_figure

        return curves_figure(read_runs([self.path])[0])


class FinishedRun(RunFiles):
    """A run with its `summary`, the content of summary.json."""

    summary: dict[str, Any]

    @property
    def test_score(self) -> float:
        """Test score at the epoch of the best validation score, averaged over the seeds."""
        return self.summary["test_score"]

    @property
    def val_score(self) -> float:
        """Best validation score, averaged over the seeds."""
        return self.summary["val_score"]

    def _facts(self) -> dict[str, str]:
        known = self.summary
        kind = ScoreKind(known["score_name"], known["score_is_share"], known["score_prefers_low"])
        num_epochs, num_seeds = known["num_epochs_recorded"], len(known["seeds"])
        return {
            "model": known["model"],
            "graph": known["dataset"],
            "method": f"{known['method']}, {known['ranks']} rank{'s' * (known['ranks'] != 1)}",
            f"best validation {kind.title}": kind.show(known["val_score"], with_unit=True),
            f"test {kind.title} at that epoch": kind.show(known["test_score"], known["test_score_std"], with_unit=True),
            **({f"{kind.title} by chance": kind.show(known["test_score_by_chance"], with_unit=True)}
               if "test_score_by_chance" in known else {}),
            "epochs": f"{num_epochs:,}" + (f" of {num_seeds} seeds" if num_seeds > 1 else ""),
            "an epoch": f"{format_bytes(known['sent_bytes_per_epoch'])} sent, "
                        f"{format_seconds(known['median_epoch_seconds'])}",
        }

    def __repr__(self) -> str:
        facts = self._facts()
        width = max(map(len, facts))
        return "\n".join([f"Run({self.path})", *(f"  {name:{width}}  {value}" for name, value in facts.items())])

    def _repr_html_(self) -> str:
        return html_table(f"Run {self.path}", self._facts())


@dataclass(frozen=True, repr=False)
class LaunchedRun(FinishedRun, StoredRun):
    """A run that other processes have trained, as its folder says it."""
