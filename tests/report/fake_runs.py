"""Run folders as `hpcgnn train` leaves them, with made-up numbers, for the tests of the report."""

import json
import math
from pathlib import Path


def epoch_record(seed: int, epoch: int, scale: float, is_evaluated: bool) -> dict:
    """A line of metrics.jsonl; `scale` divides the bytes."""
    score = 0.8 - 0.5 * math.exp(-epoch / 10) + 0.01 * math.sin(7 * seed + epoch) if is_evaluated else None
    return {
        "seed": seed, "epoch": epoch, "loss": 3 * math.exp(-epoch / 12) + 0.02 * seed + 0.05,
        "epoch_seconds": 0.4 + 0.2 / scale, "compute_seconds": 0.3, "exchange_seconds": 0.2 / scale,
        "quantize_seconds": 0.05, "sent_bytes_payload": int(64e6 / scale), "sent_bytes_parameters": 400_000,
        "mean_bits": 32 / scale, "train_score": score, "val_score": score, "test_score": score and score - 0.01,
        "val_loss": None, "a_later_key": [1, "x"],
    }


def write_run(path: Path, scale: float = 1.0, num_epochs: int = 40, seeds: tuple[int, ...] = (0,),
              is_complete: bool = True) -> Path:
    """Write one run folder and return its path."""
    path.mkdir(parents=True)
    bits = int(32 / scale)
    path.joinpath("config.toml").write_text(
        f'model = "sage"\nmethod = "uniform"\nbits = {bits}\nhidden = 256\n\n'
        '[provenance]\ndataset = "cora <b>"\nranks = 2\n')
    records = [epoch_record(seed, epoch, scale, epoch % 5 == 0)
               for seed in seeds for epoch in range(1, num_epochs + 1)]
    path.joinpath("metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    if is_complete:
        path.joinpath("summary.json").write_text(json.dumps({
            "dataset": "cora <b>", "model": "sage", "method": "uniform", "bits": bits, "ranks": 2,
            "seeds": list(seeds), "score_name": "accuracy", "val_score": 0.79, "test_score": 0.7812,
            "test_score_std": 0.0041 if len(seeds) > 1 else 0.0, "median_epoch_seconds": 0.4 + 0.2 / scale,
            "sent_bytes_per_epoch": 64e6 / scale + 4e5, "sent_bytes_messages_per_epoch": 64e6 / scale + 4e5,
            "sent_bytes_payload_per_epoch": 64e6 / scale,
            "sent_bytes_parameters_per_epoch": 4e5, "peak_rss_bytes": 1_234_567_890, "setup_bytes": 4_210_944,
            "num_epochs_recorded": len(records), "versions": {"hpcgnn": "0.1.0", "mpi": "Open MPI v5"},
        }))
    return path


def adaptive_fields(seed: int, epoch: int, num_ranks: int, rows: int = 1000) -> dict:
    """What a line of metrics.jsonl has besides with an adaptive method: every fifth epoch is synchronous at 2 bits,
    the others are asynchronous at 1 bit, and a quarter of the rows have 8 bits throughout."""
    is_sync = epoch % 5 == 1
    base = 2 if is_sync else 1
    pairs = [[(epoch + 10 * sender + receiver) * 1000 * (sender != receiver) for receiver in range(num_ranks)]
             for sender in range(num_ranks)]
    return {
        "mode": "sync" if is_sync else "async", "base_bits": base, "mean_bits": 0.75 * base + 2,
        "width_histogram": {str(base): rows * 3 // 4, "8": rows // 4}, "assign_seconds": 0.001,
        "ldr": (0.3 * math.exp(-epoch / 12) + 0.01 * math.sin(epoch + seed)) if epoch > 1 else None,
        "blocked_seconds": 0.08 if is_sync else 0.01, "travel_seconds": 0.1, "staleness": 0 if is_sync else 1,
        **({"sent_bytes_by_pair": pairs, "by_rank": costs_by_rank(epoch, num_ranks)} if epoch % 5 == 0 else {}),
    }


def costs_by_rank(epoch: int, num_ranks: int) -> dict:
    """What each rank did in an epoch; rank r computes 1 + r / 10 times as long as rank 0."""
    ranks = range(num_ranks)
    return {"compute_seconds": [0.3 * (1 + rank / 10) for rank in ranks], "quantize_seconds": [0.01] * num_ranks,
            "exchange_seconds": [0.1] * num_ranks, "blocked_seconds": [0.04] * num_ranks,
            "sent_bytes": [1000 * (epoch + rank) for rank in ranks], "rss_bytes": [3e8 + 1e6 * rank for rank in ranks]}


def write_adaptive_run(path: Path, num_epochs: int = 40, seeds: tuple[int, ...] = (0,), num_ranks: int = 4,
                       **changes) -> Path:
    """Write an unfinished run of an adaptive method; a field of `changes` has that value in every line."""
    return rewrite(write_run(path, 16, num_epochs, seeds, is_complete=False), lambda record: {
        **record, **adaptive_fields(record["seed"], record["epoch"], num_ranks), **changes})


def lines_of(path: Path) -> list[dict]:
    return [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]


def rewrite(path: Path, change) -> Path:
    """Replace every line of the metrics by what `change` makes of it."""
    lines = [json.dumps(change(record)) + "\n" for record in lines_of(path)]
    (path / "metrics.jsonl").write_text("".join(lines))
    return path


def with_summary(path: Path, **changes) -> Path:
    """Change fields of the summary; None leaves one out."""
    summary = {**json.loads((path / "summary.json").read_text()), **changes}
    known = {name: value for name, value in summary.items() if value is not None}
    (path / "summary.json").write_text(json.dumps(known))
    return path
