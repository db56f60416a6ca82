"""`hpcgnn bench epoch`: times epochs of trainings, each in its own process, against peers and the sum of the ceilings.

Ours is `hpcgnn train`; a peer runs by its driver in `peers/`. This process imports neither NumPy nor torch, because a
child's peak memory begins with its parent's.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from hpcgnn.bench.environment import allocator_name, call_in_child, find_tcmalloc, thread_environment, with_tcmalloc
from hpcgnn.bench.timing import CEILING, OURS, Begin, Measurement, say_nothing
from hpcgnn.errors import ConfigError, TrainingError
from hpcgnn.run.output import size_text, time_text

WARM_UP_EPOCHS = 2    # warm-up epochs allocate memory and fill caches


@dataclass(frozen=True)
class EpochSettings:
    """A training that all contestants can do: dropout, convolution, LayerNorm, ReLU; Adam.

    `eval_every` is the number of epochs between evaluations; the last epoch has one too.
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
        return epoch == self.epochs or epoch % self.eval_every == 0


@dataclass(frozen=True)
class Trained:
    """Result of one training.

    Holds the seconds of the epochs without the first two, the peak bytes of the largest process, and the test score at
    the evaluation with the best validation score.
    """

    epoch_seconds: list[float]
    peak_bytes: int
    test_score: float
    allocator: str


def hpcgnn_command(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "hpcgnn", *map(str, arguments)]


def find_mpirun() -> str:
    """The launcher of $MPIRUN, or the first on PATH. Raises ConfigError where there is none."""
    found = os.environ.get("MPIRUN") or shutil.which("mpirun") or shutil.which("mpiexec")
    if found is None:
        raise ConfigError("there is no mpirun on PATH; install MPI, set MPIRUN to its launcher, or leave --ranks out")
    return found


def preprocess(archive: Path, shards: Path, ranks: int) -> Path:
    run(hpcgnn_command("preprocess", f"npz:{archive}", "--out", shards, "--parts", ranks), os.environ)
    return shards


def train_ours(settings: EpochSettings, shards: Path, precision: str, ranks: int, threads: int, out: Path,
               device: str = "cpu") -> Trained:
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
    """Standard output of a command. Raises TrainingError with its last line of complaint if it fails."""
    done = subprocess.run(command, env=dict(environment), capture_output=True, text=True)
    if done.returncode:
        raise TrainingError(f"{' '.join(command[:6])} … failed with status {done.returncode}: {complaint(done.stderr)}")
    return done.stdout


def complaint(text: str) -> str:
    """hpcgnn's own sentence in a failed program's output, or else its last line."""
    lines = [line for line in text.splitlines() if line.strip()] or ["it said nothing"]
    return next((line for line in lines if line.startswith("hpcgnn: ")), lines[-1])


LAYERS = 3
EVAL_EVERY = 5      # epochs between evaluations; evaluations are not timed, and the best one gives the score

RunKey = tuple[str, str]    # name of the contestant, precision


@dataclass(frozen=True)
class EpochBenchmark:
    source: Path              # .npz archive, or a folder of shards
    models: tuple[str, ...]
    precisions: tuple[str, ...]
    threads: int
    num_ranks: int            # ranks, one thread each, of a second training besides the one process; 0: none
    peers: tuple[str, ...]    # "dgl", "pyg"; they train in float32
    epochs: int
    repeat: int               # rounds; round r trains everything once, with seed r
    hidden: int
    begin: Begin = say_nothing

    def measure(self) -> Iterator[Measurement]:
        with tempfile.TemporaryDirectory(prefix="hpcgnn-bench-") as folder:
            shards = self._shards(Path(folder))
            arrays = Path(folder) / "graph.npz"
            facts = self._in_child("export_arrays", next(iter(shards.values())), arrays)
            for model in self.models:
                yield from self._measure_model(model, shards, arrays, facts, Path(folder))

    def _shards(self, folder: Path) -> dict[int, Path]:
        if self.source.is_dir():
            return {self._in_child("count_parts", self.source): self.source}
        wanted = [1, self.num_ranks] if self.num_ranks > 1 else [1]
        return {ranks: preprocess(self.source, folder / f"p{ranks}", ranks) for ranks in wanted}

    def _measure_model(self, model: str, shards: dict[int, Path], arrays: Path, facts: dict,
                       folder: Path) -> Iterator[Measurement]:
        ceilings = {precision: self._in_child("epoch_ceiling", arrays, self._dims(facts), model, precision)
                    for precision in self.precisions}
        runs: dict[RunKey, list[Trained]] = {}
        for seed in range(self.repeat):
            settings = EpochSettings(model, LAYERS, self.hidden, self.epochs, seed, EVAL_EVERY)
            for key, trained in self._train_round(settings, shards, arrays, folder):
                runs.setdefault(key, []).append(trained)
        for precision in self.precisions:
            yield self._summarize(facts["name"], model, precision, runs, ceilings[precision], min(shards))

    def _train_round(self, settings: EpochSettings, shards: dict[int, Path], arrays: Path,
                     folder: Path) -> Iterator[tuple[RunKey, Trained]]:
        for precision in self.precisions:
            for ranks, parts in shards.items():
                threads = self.threads if ranks == 1 else 1
                self._begin(f"{ours(ranks)}, {precision}", settings)
                yield (ours(ranks), precision), train_ours(settings, parts, precision, ranks, threads, folder / "run")
        for peer in self.peers:
            self._begin(peer, settings)
            yield (peer, "fp32"), train_peer(peer, settings, arrays, self.threads)

    def _begin(self, contestant: str, settings: EpochSettings) -> None:
        self.begin(f"trains {settings.model}: {contestant}, round {settings.seed + 1} of {self.repeat}")

    def _dims(self, facts: dict) -> list[int]:
        return [facts["num_features"], *[self.hidden] * (LAYERS - 1), facts["num_classes"]]

    def _in_child(self, function: str, *arguments):
        return call_in_child(self.threads, function, *arguments)

    def _summarize(self, name: str, model: str, precision: str, runs: dict[RunKey, list[Trained]],
                   ceiling: dict[str, float], main_ranks: int) -> Measurement:
        chosen = {contestant: trained for (contestant, used), trained in runs.items()
                  if used == precision or contestant in self.peers}
        chosen = {OURS if contestant == ours(main_ranks) else contestant: trained
                  for contestant, trained in chosen.items()}
        seconds = {contestant: [second for run in trained for second in run.epoch_seconds]
                   for contestant, trained in chosen.items()}
        case = f"{name} {model} {LAYERS} x {self.hidden} {precision}"
        remarks = [memory_line(case, chosen), score_line(case, chosen), ceiling_line(case, ceiling)]
        if self.peers and find_tcmalloc() is None:
            remarks.append("tcmalloc is not installed: peers ran with glibc's allocator, which slows them down")
        details = {contestant: [asdict(run) for run in trained] for contestant, trained in chosen.items()}
        return Measurement("epoch", case, 0.0, "s", {CEILING: [sum(ceiling.values())], **seconds}, remarks,
                           {"runs": details, "ceiling_seconds": ceiling})


def ours(ranks: int) -> str:
    return f"{OURS} 1 process" if ranks == 1 else f"{OURS} {ranks} x 1"


def memory_line(case: str, chosen: dict[str, list[Trained]]) -> str:
    parts = (f"{name} {size_text(max(run.peak_bytes for run in trained))}" for name, trained in chosen.items())
    return f"{case}: peak memory of the largest process: {', '.join(parts)}"


def score_line(case: str, chosen: dict[str, list[Trained]]) -> str:
    parts = []
    for name, trained in chosen.items():
        scores = [100 * run.test_score for run in trained]
        spread = f" ± {statistics.stdev(scores):.2f}" if len(scores) > 1 else ""
        parts.append(f"{name} {statistics.mean(scores):.2f}{spread}")
    return f"{case}: test score in % at the best validation score, mean of the rounds: {', '.join(parts)}"


def ceiling_line(case: str, ceiling: dict[str, float]) -> str:
    return f"{case}: ceiling, no row skipped = " + " + ".join(
        f"{time_text(seconds)} {name}" for name, seconds in ceiling.items())
