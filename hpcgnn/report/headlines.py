"""The first screen of the page: score, time and bytes in large figures, each with a sentence next to it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hpcgnn.report.comparison import best_run, differences_from
from hpcgnn.report.formats import format_bytes, format_number, format_seconds
from hpcgnn.report.run_folder import Run
from hpcgnn.report.series import ScoreKind, mean_over_seeds, score_kind, total_bytes
from hpcgnn.report.tables import training_seconds

DISTURBING_CORES = 0.25      # of other programs, from which a remark says so


@dataclass(frozen=True)
class Headline:
    title: str
    text: str
    run: int | None
    remark: str


def headlines(runs: list[Run]) -> list[Headline]:
    return _of_one(runs[0]) if len(runs) == 1 else _of_several(runs)


def _of_one(run: Run) -> list[Headline]:
    summary, kind = run.summary, score_kind([run])
    found = []
    if summary["test_score"] is not None:
        epochs = [str(result["best_epoch"]) for result in summary.get("results", []) if "best_epoch" in result]
        where = f"best validation at epoch {', '.join(epochs)}" if epochs else "at the best validation score"
        found.append(Headline(f"test {kind.title}", _score_text(run, kind), None, where))
    if summary["median_epoch_seconds"] is not None:
        found.append(Headline("an epoch", format_seconds(summary["median_epoch_seconds"]), None,
                              f"median of {len(run.records):,}; {format_seconds(training_seconds(run))} of training"
                              + (" a seed" if len(run.seeds) > 1 else "") + _disturbed([run])))
    if summary["sent_bytes_per_epoch"]:
        total = float(np.nansum(mean_over_seeds(total_bytes(run))[0]))
        bits = f"; {format_number(summary['mean_bits'])} bits per value of messages" if summary["mean_bits"] else ""
        messages = summary["sent_bytes_messages_per_epoch"]
        if messages < summary["sent_bytes_per_epoch"]:
            bits = f"; {format_bytes(messages)} of an epoch are messages{bits}"
        found.append(Headline("sent per epoch", format_bytes(summary["sent_bytes_per_epoch"]), None,
                              f"{format_bytes(total)} in the whole training{bits}"))
    if summary["peak_rss_bytes"]:
        found.append(Headline("peak memory", format_bytes(summary["peak_rss_bytes"]), None,
                              "of the rank that holds most" if summary["ranks"] != 1 else "of the only rank"))
    return found


def _of_several(runs: list[Run]) -> list[Headline]:
    kind, best, found = score_kind(runs), best_run(runs), []
    if best is not None:
        found.append(Headline(f"test {kind.title}, best by validation", _score_text(runs[best], kind), best,
                              _against(runs, best, "score")))
    for key, field, title, write in (("time", "median_epoch_seconds", "shortest epoch", format_seconds),
                                     ("bytes", "sent_bytes_per_epoch", "fewest bytes per epoch", format_bytes)):
        # A run on one rank sends nothing; it does not compete.
        known = [(run.summary[field], number) for number, run in enumerate(runs) if run.summary[field]]
        if known:
            value, number = min(known)
            remark = _against(runs, number, key) + (_disturbed([runs[number], runs[0]]) if key == "time" else "")
            found.append(Headline(title, write(value), number, remark))
    return found


def _disturbed(runs: list[Run]) -> str:
    """A clause for each of the runs in which other programs took so many cores that its seconds say little."""
    known = {run.name: run.summary.get("other_cores") or 0.0 for run in runs}
    return "".join(f"; other programs used {format_number(cores)} cores during {name}"
                   for name, cores in known.items() if cores >= DISTURBING_CORES)


def _against(runs: list[Run], number: int, key: str) -> str:
    if number == 0:
        return "the first run"
    difference = differences_from(runs, 0)[number][key]
    if difference.value is None:
        return f"{runs[0].name} has none to compare with"
    word = "as" if difference.text == "same" else "against" if key == "score" else "than"
    return f"{difference.text} {word} {runs[0].name}"


def _score_text(run: Run, kind: ScoreKind) -> str:
    return kind.show(run.summary["test_score"], run.summary["test_score_std"], with_unit=True)
