"""RunFolder: the files that a run leaves, config.toml, metrics.jsonl and summary.json. Only rank 0 writes.

What the numbers mean is documented in README.md, "The run folder".
"""

from __future__ import annotations

import json
import math
import os
import platform
import statistics
import sys
from collections import Counter
from importlib.metadata import version
from pathlib import Path
from typing import Any

import mpi4py.MPI as MPI

import hpcgnn
from hpcgnn.config import as_toml
from hpcgnn.errors import TrainingError
from hpcgnn.nn.quantized_models import QuantizedStack
from hpcgnn.nn.quantizer import BITS_A_KB, RowQuantizer
from hpcgnn.ops.host.simd import simd_level

CONFIG, METRICS, SUMMARY, CHECKPOINT = "config.toml", "metrics.jsonl", "summary.json", "checkpoint.h5"


class RunFolder:
    """One run's folder. Every method is for rank 0 alone.

    Raises (all methods)
    ------
    TrainingError      a file can't be written
    """

    def __init__(self, path: Path):
        self.path = Path(path)

    @property
    def checkpoint(self) -> Path:
        return self.path / CHECKPOINT

    def create(self, overwrite: bool, resume: bool = False) -> None:
        """Make the folder. An earlier run in it is refused, or removed with `overwrite`.

        With `resume`, a run that was stopped before its first checkpoint is removed too: nothing of it can go on.
        """
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            probe = self.path / f".writable-{os.getpid()}"
            probe.touch()
            probe.unlink()
        except OSError as error:
            raise TrainingError(f"run folder {self.path} can't be written: {error.strerror}; "
                                "choose another with --out") from error
        old = [name for name in (METRICS, SUMMARY, CHECKPOINT) if (self.path / name).exists()]
        if old and not overwrite and not (resume and old == [METRICS]):
            raise TrainingError(f"{self.path} already holds a run ({', '.join(old)}); continue it with --resume, "
                                "replace it with --overwrite, or choose another --out")
        self._remove(*old, *self._torn_checkpoints())

    def write_config(self, settings: dict[str, Any], provenance: dict[str, Any]) -> None:
        """config.toml: the resolved settings, which --config takes again, and where they were used."""
        self._write(CONFIG, as_toml({"": settings, "provenance": provenance}))

    def append_metrics(self, record: dict[str, Any]) -> None:
        """Add one line to metrics.jsonl. A number that is not finite is written as null, as JSON demands."""
        try:
            with open(self.path / METRICS, "a") as file:
                file.write(json.dumps(_finite(record)) + "\n")
        except OSError as error:
            raise TrainingError(f"{self.path / METRICS} can't be written: {error.strerror}") from error

    def metrics_bytes(self) -> int:
        """Length of metrics.jsonl so far."""
        file = self.path / METRICS
        return file.stat().st_size if file.exists() else 0

    def truncate_metrics(self, num_bytes: int) -> None:
        """Forget the lines of epochs that the checkpoint does not hold, and the summary of a run that goes on."""
        file = self.path / METRICS
        found = self.metrics_bytes()
        if found < num_bytes:
            raise TrainingError(f"{file} has {found} bytes, its checkpoint was written after {num_bytes}; "
                                "restore it, or start again with --overwrite")
        try:
            os.truncate(file, num_bytes)
        except OSError as error:
            raise TrainingError(f"{file} can't be cut back to its checkpoint: {error.strerror}") from error
        self._remove(SUMMARY, *self._torn_checkpoints())

    def read_metrics(self) -> list[dict[str, Any]]:
        """All lines of metrics.jsonl."""
        with open(self.path / METRICS) as file:
            return [json.loads(line) for line in file]

    def write_summary(self, summary: dict[str, Any]) -> None:
        """summary.json, whose presence says that the run is complete."""
        self._write(SUMMARY, json.dumps(_finite(summary), indent=2) + "\n")

    def _torn_checkpoints(self) -> list[str]:
        """What a rank 0 that was killed while it wrote a checkpoint has left."""
        return [path.name for path in self.path.glob(f"{CHECKPOINT}.tmp-*")]

    def _remove(self, *names: str) -> None:
        try:
            for name in names:
                (self.path / name).unlink(missing_ok=True)
        except OSError as error:
            raise TrainingError(f"{self.path / name} can't be removed: {error.strerror}") from error

    def _write(self, name: str, text: str) -> None:
        path, temporary = self.path / name, self.path / f"{name}.tmp"
        try:
            temporary.write_text(text)
            os.replace(temporary, path)
        except OSError as error:
            temporary.unlink(missing_ok=True)
            raise TrainingError(f"{path} can't be written: {error.strerror}") from error


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def score_statistics(scores: list[float]) -> tuple[float, float]:
    """Mean and sample standard deviation (0 for one score)."""
    return statistics.fmean(scores), statistics.stdev(scores) if len(scores) > 1 else 0.0


def epoch_statistics(metrics: list[dict[str, Any]]) -> dict[str, Any]:
    """Median seconds, mean bytes, widths and modes of the recorded epochs."""
    payload = statistics.fmean(record["sent_bytes_payload"] for record in metrics)
    parameters = statistics.fmean(record["sent_bytes_parameters"] for record in metrics)
    rows: Counter = Counter()
    for record in metrics:
        rows.update(record["width_histogram"])
    sent = 8 * sum(record["sent_bytes_payload"] for record in metrics)
    values = sum(8 * record["sent_bytes_payload"] / record["mean_bits"] for record in metrics if record["mean_bits"])
    return {
        "mean_bits": sent / values if values else None,
        "width_histogram": dict(rows),
        "synchronous_share": statistics.fmean(record["mode"] == "sync" for record in metrics),
        "assign_seconds": sum(record["assign_seconds"] for record in metrics),
        "median_epoch_seconds": statistics.median(record["epoch_seconds"] for record in metrics),
        "sent_bytes_per_epoch": payload + parameters,
        "sent_bytes_payload_per_epoch": payload,
        "sent_bytes_parameters_per_epoch": parameters,
    }


def quantized_statistics(model: QuantizedStack, results: list[dict[str, Any]]) -> dict[str, Any]:
    """What the integers take, means over the seeds' best models: `feature_kb`, `mean_feature_bits` and `feature_bits`
    as in `QuantizedStack.feature_size`; `weight_bits` and `scale_bits`, of weights and of all that goes with them;
    `stored_kb`, all of that, and `float_kb`, the same features and weights as float32. `widths_by_degree`, an entry a
    row quantizer that learns them, is of the last seed's best model: in-degrees that nodes have, how many, bits.
    """
    columns = zip(*(result["feature_bits"] for result in results), strict=True)
    feature_kb = statistics.fmean(result["feature_kb"] for result in results)
    sizes = model.stored_bits()
    return {
        "quantize": model.scheme.name, "target_kb": model.target_kb, "feature_kb": feature_kb,
        "mean_feature_bits": statistics.fmean(result["mean_feature_bits"] for result in results),
        "feature_bits": [statistics.fmean(column) for column in columns],
        "meets_target": all(result["meets_target"] for result in results),
        "widths_by_degree": [_widths_of(quantizer) for quantizer in model.row_quantizers
                             if isinstance(quantizer, RowQuantizer) and quantizer.learns_width],
        "weight_bits": sizes.weights, "scale_bits": sizes.scales,
        "stored_kb": feature_kb + (sizes.weights + sizes.scales) / BITS_A_KB, "float_kb": sizes.floats / BITS_A_KB,
    }


def _widths_of(quantizer: RowQuantizer) -> dict[str, list[int]]:
    counts, width = quantizer.counts.long().cpu(), quantizer.scale().bit_width
    degree = counts.nonzero()[:, 0]
    return {"in_degree": degree.tolist(), "num_nodes": counts[degree].tolist(), "bit_width": width[degree].tolist()}


def software_versions() -> dict[str, str]:
    """What the run was computed with."""
    return {
        "hpcgnn": hpcgnn.__version__,
        "python": platform.python_version(),
        "torch": version("torch"),
        "numpy": version("numpy"),
        "mpi4py": version("mpi4py"),
        "mpi": MPI.Get_library_version().splitlines()[0].strip("\x00 "),
        "platform": f"{sys.platform} {platform.machine()}",
        "simd": simd_level(),
    }
