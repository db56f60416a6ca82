"""`hpcgnn bench epoch` times epochs of trainings, in processes of their own, against the sum of ceilings and peers.

This process stays small and imports neither NumPy nor torch: a child's peak memory must not begin with its parent's.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from hpcgnn.bench.child import call_in_child
from hpcgnn.bench.environment import find_tcmalloc
from hpcgnn.bench.epoch_runs import EpochSettings, Trained, preprocess, train_ours, train_peer
from hpcgnn.bench.timing import CEILING, OURS, Begin, Measurement, say_nothing
from hpcgnn.units import size_text, time_text

LAYERS = 3
EVAL_EVERY = 5      # epochs between evaluations, which are not timed; the score is that at the best of them

RunKey = tuple[str, str]    # name of the contestant, precision


@dataclass(frozen=True)
class EpochBenchmark:
    """Runs the measurements of `hpcgnn bench epoch`.

    Attributes
    ----------
    source : .npz archive, or a folder of shards
    num_ranks : 0, or ranks of one thread each that train besides the one process
    peers : of "dgl", "pyg"; they train in float32
    repeat : rounds; round r trains everything once, with seed r
    begin : is told of each training before it starts
    """

    source: Path
    models: tuple[str, ...]
    precisions: tuple[str, ...]
    threads: int
    num_ranks: int
    peers: tuple[str, ...]
    epochs: int
    repeat: int
    hidden: int
    begin: Begin = say_nothing

    def measure(self) -> Iterator[Measurement]:
        """Yield one measurement a model and precision."""
        with tempfile.TemporaryDirectory(prefix="hpcgnn-bench-") as folder:
            shards = self._shards(Path(folder))
            arrays = Path(folder) / "graph.npz"
            facts = self._in_child("export_arrays", next(iter(shards.values())), arrays)
            for model in self.models:
                yield from self._measure_model(model, shards, arrays, facts, Path(folder))

    def _shards(self, folder: Path) -> dict[int, Path]:
        """Return folders of shards by number of ranks."""
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
        """Make one measurement of all runs; ours on `main_ranks` are what the others are compared with."""
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
    """Name a contestant of ours."""
    return f"{OURS} 1 process" if ranks == 1 else f"{OURS} {ranks} x 1"


def memory_line(case: str, chosen: dict[str, list[Trained]]) -> str:
    """Tell the peak memory of every contestant's largest process."""
    parts = (f"{name} {size_text(max(run.peak_bytes for run in trained))}" for name, trained in chosen.items())
    return f"{case}: peak memory of the largest process: {', '.join(parts)}"


def score_line(case: str, chosen: dict[str, list[Trained]]) -> str:
    """Tell the mean test score of every contestant over the rounds, with its standard deviation."""
    parts = []
    for name, trained in chosen.items():
        scores = [100 * run.test_score for run in trained]
        spread = f" ± {statistics.stdev(scores):.2f}" if len(scores) > 1 else ""
        parts.append(f"{name} {statistics.mean(scores):.2f}{spread}")
    return f"{case}: test score in % at the best validation score, mean of the rounds: {', '.join(parts)}"


def ceiling_line(case: str, ceiling: dict[str, float]) -> str:
    """Write the terms that the ceiling is the sum of, as one line."""
    return f"{case}: ceiling, no row skipped = " + " + ".join(
        f"{time_text(seconds)} {name}" for name, seconds in ceiling.items())
