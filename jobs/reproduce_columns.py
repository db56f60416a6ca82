"""What the columns of jobs/reproduce.sh say of a finished run. A column is a function of it and of vanilla's."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median
from typing import Any

import h5py
from reproduce_runs import Run
from score_table import less, score

WARM_UP = 10      # epochs of a seed whose seconds don't count, as in SYLVIE, section VI; all count in shorter runs
SHARE_OF_GAIN = 0.95


@dataclass(frozen=True)
class Finished:
    """A run that is complete.

    Attributes
    ----------
    summary : of summary.json
    epochs : the lines of metrics.jsonl
    wall_seconds : of all its `hpcgnn train`, from the first command to the last; None where that was not noted
    offline_seconds : of preprocessing; None where that was not noted
    """

    run: Run
    folder: Path
    summary: dict[str, Any]
    epochs: list[dict[str, Any]]
    wall_seconds: float | None
    offline_seconds: float | None

    @classmethod
    def read(cls, runs: Path, shards: Path, run: Run) -> Finished | None:
        """Return the run below the folder of all runs; None where it is not complete with any seeds."""
        folder = runs / run.folder
        if not (folder / "summary.json").exists():
            return None
        epochs = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        return cls(run, folder, json.loads((folder / "summary.json").read_text()), epochs,
                   seconds_in(seconds_file(folder)), seconds_in(seconds_file(shards / run.shards)))

    @property
    def num_seeds(self) -> int:
        """Return how many trainings the run has."""
        return len(self.summary["seeds"])

    def counted(self) -> list[dict[str, Any]]:
        """Return the epochs after the warm-up, all of them where none is."""
        return [line for line in self.epochs if line["epoch"] > WARM_UP] or self.epochs

    def median_of(self, column: str) -> float:
        """Return the median of a column over the epochs that count."""
        return median(line[column] for line in self.counted())

    def a_seed(self, column: str) -> float:
        """Return the sum of a column over the epochs of a seed, the mean over seeds."""
        return sum(line[column] for line in self.epochs) / self.num_seeds

    def rest(self) -> float | None:
        """Return the seconds of a seed that are neither training nor assignment: start of the ranks, set-up of the
        exchange, evaluation, files.
        """
        if self.wall_seconds is None:
            return None
        return self.wall_seconds / self.num_seeds - self.a_seed("epoch_seconds") - self.a_seed("assign_seconds")

    def num_weights(self) -> int:
        """Return how many weights the model has, of its checkpoint."""
        with h5py.File(self.folder / "checkpoint.h5") as file:
            return sum(file["model"][name].size for name in file["model"])

    def curve(self) -> tuple[list[int], list[float]]:
        """Return the epochs of evaluations and the validation score in percent, the mean over seeds."""
        found: dict[int, list[float]] = {}
        for line in self.epochs:
            if line.get("val_score") is not None:
                found.setdefault(line["epoch"], []).append(100 * line["val_score"])
        return sorted(found), [fmean(found[epoch]) for epoch in sorted(found)]


def seconds_file(folder: Path) -> Path:
    """Return the file beside a folder that has the seconds of the commands that made it, one a line."""
    return folder.with_name(folder.name + ".seconds")


def seconds_in(file: Path) -> float | None:
    """Return the sum of the lines; None where there is no file."""
    return sum(map(float, file.read_text().split())) if file.exists() else None


def epoch_of_share(found: Finished, vanilla: Finished | None) -> int | None:
    """Return the first evaluated epoch with 95 % of vanilla's gain: from its first validation score to its best."""
    if vanilla is None:
        return None
    _, reference = vanilla.curve()
    goal = reference[0] + SHARE_OF_GAIN * (max(reference) - reference[0])
    return next((epoch for epoch, value in zip(*found.curve(), strict=True) if value >= goal), None)


def _seconds_to_share(found: Finished, vanilla: Finished | None) -> str:
    epoch = epoch_of_share(found, vanilla)
    return "-" if epoch is None else f"{epoch * found.a_seed('epoch_seconds') / found.run.epochs:.1f}"


def _times(found: Finished, vanilla: Finished | None) -> str:
    return "-" if vanilla is None else f"{vanilla.median_of('epoch_seconds') / found.median_of('epoch_seconds'):.2f}"


def _fewer(found: Finished, vanilla: Finished | None) -> str:
    sent = _message_bytes(found.summary)      # what the papers count
    return f"{_message_bytes(vanilla.summary) / sent:.1f}" if vanilla is not None and sent else "-"


def _message_bytes(summary: dict) -> float:
    return summary["sent_bytes_payload_per_epoch"] + summary["sent_bytes_parameters_per_epoch"]


def _less(place: int) -> Callable[[Finished, Finished | None], str]:
    def of(found: Finished, vanilla: Finished | None) -> str:
        return less(found.summary, None if vanilla is None else vanilla.summary)[place]
    return of


def _number(value: float | None, digits: int) -> str:
    return "-" if value is None or not math.isfinite(value) else f"{value:.{digits}f}"


def _median(column: str) -> Callable[[Finished, Finished | None], str]:
    return lambda found, _: _number(found.median_of(column), 4)


def _setting(name: str) -> Callable[[Finished, Finished | None], str]:
    return lambda found, _: setting_text(found.run, name)


def setting_text(run: Run, name: str) -> str:
    """Return a setting that the run was asked to have, "default" where it was not."""
    return str(run.of_method().get(name, "default"))


COLUMNS: dict[str, Callable[[Finished, Finished | None], str]] = {
    "graph": lambda found, _: found.run.graph.name,
    "P": lambda found, _: str(found.run.ranks),
    "model": lambda found, _: found.run.model,
    "method": lambda found, _: found.run.method,
    "setting": lambda found, _: found.run.setting,
    "seeds": lambda found, _: str(found.num_seeds),
    "score": lambda found, _: score(found.summary)[1],
    "± std": lambda found, _: score(found.summary)[2] if found.num_seeds > 1 else "-",
    "less vanilla": _less(0),
    "± its error": _less(1),
    "s an epoch": _median("epoch_seconds"),
    "epochs a s": lambda found, _: _number(1 / found.median_of("epoch_seconds"), 2),
    "times vanilla": _times,
    "payload MB": lambda found, _: _number(found.summary["sent_bytes_payload_per_epoch"] / 1e6, 3),
    "parameters MB": lambda found, _: _number(found.summary["sent_bytes_parameters_per_epoch"] / 1e6, 3),
    "times fewer": _fewer,
    "mean bits": lambda found, _: _number(found.summary["mean_bits"], 2),
    "asynchronous": lambda found, _: f"{100 * (1 - found.summary['synchronous_share']):.0f} %",
    "computing s": _median("compute_seconds"),
    "quantizing s": _median("quantize_seconds"),
    "exchanging s": _median("exchange_seconds"),
    "blocked s": _median("blocked_seconds"),
    "offline s": lambda found, _: _number(found.offline_seconds, 1),
    "rest s": lambda found, _: _number(found.rest(), 1),
    "assigning s": lambda found, _: _number(found.a_seed("assign_seconds"), 2),
    "training s": lambda found, _: _number(found.a_seed("epoch_seconds"), 1),
    "state MB": lambda found, _: _number(found.summary["method_state_bytes"] / 1e6, 1),
    "gradients MB": lambda found, _: _number(found.num_weights() * 4 / 1e6, 3),
    "best validation": lambda found, _: _number(max(found.curve()[1]), 2),
    "epoch of 95 %": lambda found, vanilla: str(epoch_of_share(found, vanilla) or "-"),
    "s to 95 %": _seconds_to_share,
    **{name: _setting(name) for name in ("layers", "hidden", "norm", "lr", "dropout", "epochs", "group_size", "lam")},
}
