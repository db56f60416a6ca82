"""This module starts trainings in processes of their own: ours by `hpcgnn train`, a peer's by its driver.

Nothing here imports NumPy or torch.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from hpcgnn.bench.environment import allocator_name, thread_environment, with_tcmalloc
from hpcgnn.errors import ConfigError, TrainingError

WARM_UP_EPOCHS = 2    # memory is allocated and caches are filled in these


@dataclass(frozen=True)
class EpochSettings:
    """Describes a training that all contestants can do: dropout, convolution, LayerNorm, ReLU; Adam.

    Attributes
    ----------
    eval_every : epochs between evaluations; the last epoch has one too
    """

    model: str
    layers: int
    hidden: int
    epochs: int
    seed: int
    eval_every: int
    dropout: float = 0.5
    lr: float = 0.01

    def is_evaluated(self, epoch: int) -> bool:
        """Say whether scores are taken after this many epochs."""
        return epoch == self.epochs or epoch % self.eval_every == 0


@dataclass(frozen=True)
class Trained:
    """Holds what one training gave: seconds of its epochs without the first two, peak bytes of its largest process, and
    the test score at the best validation score.
    """

    epoch_seconds: list[float]
    peak_bytes: int
    test_score: float
    allocator: str


def hpcgnn_command(*arguments: object) -> list[str]:
    """Return this version's command line in a new process."""
    return [sys.executable, "-m", "hpcgnn", *map(str, arguments)]


def find_mpirun() -> str:
    """Return the launcher of $MPIRUN, or the first on PATH; raises ConfigError where there is none."""
    found = os.environ.get("MPIRUN") or shutil.which("mpirun") or shutil.which("mpiexec")
    if found is None:
        raise ConfigError("there is no mpirun on PATH; install MPI, set MPIRUN to its launcher, or leave --ranks out")
    return found


def preprocess(archive: Path, shards: Path, ranks: int) -> Path:
    """Cut an .npz archive into shards; structural features are made where it has none."""
    run(hpcgnn_command("preprocess", f"npz:{archive}", "--out", shards, "--parts", ranks), os.environ)
    return shards


def train_ours(settings: EpochSettings, shards: Path, precision: str, ranks: int, threads: int, out: Path,
               device: str = "cpu") -> Trained:
    """Run `hpcgnn train` on shards of `ranks` parts."""
    flags = {**asdict(settings), "norm": "layer", "weight_decay": 0, "method": "vanilla", "early_stop": 0, "repeat": 1,
             "checkpoint_every": 0}
    if precision != "fp32":
        flags["precision"] = precision
    if device != "cpu":
        flags["device"] = device
    command = hpcgnn_command("train", shards, "--out", out, "--overwrite",
                             *(f"--{name.replace('_', '-')}={value}" for name, value in flags.items()))
    environment = thread_environment(threads)
    run([find_mpirun(), "-n", str(ranks), *command] if ranks > 1 else command, environment)
    lines = (out / "metrics.jsonl").read_text().splitlines()
    summary = json.loads((out / "summary.json").read_text())
    return Trained([json.loads(line)["epoch_seconds"] for line in lines][WARM_UP_EPOCHS:], summary["peak_rss_bytes"],
                   summary["test_score"], allocator_name(environment))


def train_peer(peer: str, settings: EpochSettings, arrays: Path, threads: int) -> Trained:
    """Run a peer's driver on the exported arrays, under tcmalloc where that is installed."""
    environment = with_tcmalloc(thread_environment(threads))
    command = [sys.executable, "-m", f"hpcgnn.bench.peers.{peer}_epoch", str(arrays), json.dumps(asdict(settings))]
    result = json.loads(run(command, environment).splitlines()[-1])
    return Trained(result["epoch_seconds"][WARM_UP_EPOCHS:], result["peak_bytes"], result["test_score"],
                   allocator_name(environment))


def run(command: list[str], environment: Mapping[str, str]) -> str:
    """Return the standard output of a command; raises TrainingError with its last line of complaint where it fails."""
    done = subprocess.run(command, env=dict(environment), capture_output=True, text=True)
    if done.returncode:
        raise TrainingError(f"{' '.join(command[:6])} … failed with status {done.returncode}: {complaint(done.stderr)}")
    return done.stdout


def complaint(text: str) -> str:
    """Pick from a failed program's output hpcgnn's own sentence, or else the last line."""
    lines = [line for line in text.splitlines() if line.strip()] or ["it said nothing"]
    return next((line for line in lines if line.startswith("hpcgnn: ")), lines[-1])
