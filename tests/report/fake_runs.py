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
        "val_loss": None, "mode": "a later key",
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
            "sent_bytes_per_epoch": 64e6 / scale + 4e5, "sent_bytes_payload_per_epoch": 64e6 / scale,
            "sent_bytes_parameters_per_epoch": 4e5, "peak_rss_bytes": 1_234_567_890, "setup_bytes": 4_210_944,
            "versions": {"hpcgnn": "0.1.0", "mpi": "Open MPI v5"},
        }))
    return path
