"""The content of summary.json, computed from the lines of a run's metrics, for runs without one.

The keys are the same for every run; a value that no line has is None.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable
from typing import Any

from hpcgnn.report.formats import LOW_SCORES

Records = tuple[dict[str, Any], ...]
SENT = ("payload", "parameters", "sums", "control")      # what a rank hands to MPI in training, `sent_bytes_...`


def summarize(config: dict[str, Any], provenance: dict[str, Any], records: Records) -> dict[str, Any]:
    known = {**provenance, **config}
    sent = {part: statistics.fmean(record.get(f"sent_bytes_{part}") or 0 for record in records) for part in SENT}
    seconds, modes = values_of(records, "epoch_seconds"), values_of(records, "mode")
    score = "score" if config.get("score") in (None, "auto") else config["score"]
    return {
        **{key: known.get(key) for key in ("dataset", "model", "method", "ranks")},
        "score_name": score,
        **_best_scores(records, min if score in LOW_SCORES else max),
        "median_epoch_seconds": statistics.median(seconds) if seconds else None,
        "sent_bytes_per_epoch": sum(sent.values()),
        "sent_bytes_messages_per_epoch": sent["payload"] + sent["parameters"],
        **{f"sent_bytes_{part}_per_epoch": num_bytes for part, num_bytes in sent.items()},
        "mean_bits": _mean_bits(records),
        "synchronous_share": modes.count("sync") / len(modes) if modes else None,
        "width_histogram": _width_histogram(records),
        "peak_rss_bytes": None,
        "other_cores": None,
    }


def values_of(records: Records, key: str) -> list[Any]:
    return [record[key] for record in records if record.get(key) is not None]


def _mean_bits(records: Records) -> float | None:
    sent = [record for record in records if record.get("mean_bits") and record.get("sent_bytes_payload")]
    if not sent:
        return None
    payload_bits = [8 * record["sent_bytes_payload"] for record in sent]
    num_values = [bits / record["mean_bits"] for bits, record in zip(payload_bits, sent, strict=True)]
    return sum(payload_bits) / sum(num_values)


def _width_histogram(records: Records) -> dict[str, int] | None:
    total: Counter[str] = Counter()
    for histogram in values_of(records, "width_histogram"):
        total.update(histogram)
    return dict(sorted(total.items(), key=lambda item: int(item[0]))) or None


def _best_scores(records: Records, better: Callable[..., float]) -> dict[str, Any]:
    best: dict[int, dict[str, Any]] = {}
    for record in records:
        if record.get("val_score") is None or record.get("test_score") is None:
            continue
        seed = record.get("seed", 0)
        if seed not in best or better(record["val_score"], best[seed]["val_score"]) != best[seed]["val_score"]:
            best[seed] = record
    if not best:
        return {"val_score": None, "test_score": None, "test_score_std": None}
    test = [record["test_score"] for record in best.values()]
    return {
        "val_score": statistics.fmean(record["val_score"] for record in best.values()),
        "test_score": statistics.fmean(test),
        "test_score_std": statistics.stdev(test) if len(test) > 1 else 0.0,
    }
