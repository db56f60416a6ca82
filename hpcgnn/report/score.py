"""ScoreKind: what the runs of a report are scored by, how that is written, and which of two values is better."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hpcgnn.report.formats import LOW_SCORES, UNKNOWN
from hpcgnn.report.run_folder import Run

TITLES = {"micro_f1": "micro-F1", "roc_auc": "ROC AUC", "mae": "MAE", "rmse": "RMSE", "r2": "R²"}
NO_SHARES = ("r2", *LOW_SCORES)      # for runs whose summary does not say it


@dataclass(frozen=True)
class ScoreKind:
    """A score's name, whether it is a share of 0 to 1, shown in percent, and whether less is better."""

    name: str = "score"
    is_share: bool = True
    prefers_low: bool = False

    @property
    def title(self) -> str:
        """Return the name as a reader knows it: micro-F1 for micro_f1."""
        return TITLES.get(self.name, self.name)

    @property
    def unit(self) -> str:
        """Return the unit: "%" or none."""
        return "%" if self.is_share else ""

    @property
    def scale(self) -> int:
        """Return what a score is multiplied by where it is shown."""
        return 100 if self.is_share else 1

    @property
    def heading(self) -> str:
        """Return the name with its unit: accuracy (%)."""
        return self.title + (f" ({self.unit})" if self.unit else "")

    def show(self, score: float | None, deviation: float | None = None, with_unit: bool = False) -> str:
        """Write a score, with its deviation over seeds where there is one: 81.23 ± 0.41."""
        if score is None:
            return UNKNOWN
        text = f"{100 * score:.2f}" if self.is_share else f"{score:.4g}"
        if deviation:
            text += f" ± {100 * deviation:.2f}" if self.is_share else f" ± {deviation:.2g}"
        return f"{text} {self.unit}".rstrip() if with_unit else text

    def show_gap(self, gap: float) -> str:
        """Write the distance of two scores: 1.20 points, or a number."""
        return f"{100 * gap:.2f} points" if self.is_share else f"{gap:.3g}"

    def best(self, scores: dict[Any, float]) -> Any:
        """Return the key of the best score, the first of equal ones."""
        return (min if self.prefers_low else max)(scores, key=scores.get)


def score_kind(runs: list[Run]) -> ScoreKind:
    """Return the kind of score that all runs which name one share; a score without a name where they differ."""
    kinds = {kind for run in runs if (kind := _kind_of(run)).name != "score"}
    return kinds.pop() if len(kinds) == 1 else ScoreKind(is_share=all(kind.is_share for kind in kinds))


def _kind_of(run: Run) -> ScoreKind:
    summary, name = run.summary, str(run.summary["score_name"])
    return ScoreKind(name, bool(summary.get("score_is_share", name not in NO_SHARES)),
                     bool(summary.get("score_prefers_low", name in LOW_SCORES)))
