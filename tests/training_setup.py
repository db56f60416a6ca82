"""Small graphs, their shards and one training of them, for tests that run as one rank or as several."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pytest
from mpi4py import MPI

from hpcgnn.config import TrainConfig
from hpcgnn.data.cleaning import CleanGraph
from hpcgnn.data.dataset import CleaningReport, GraphDataset
from hpcgnn.data.hold_out import hold_out
from hpcgnn.data.options import SourceOptions
from hpcgnn.data.source import load_source
from hpcgnn.ops import limited_arena
from hpcgnn.shards.schema import Provenance
from hpcgnn.shards.writer import Making, write_shards
from hpcgnn.training.checkpoint import Checkpoint, read_checkpoint
from hpcgnn.training.run_folder import RunFolder
from hpcgnn.training.session import Session
from hpcgnn.training.trainer import TrainingRun

Result = TypeVar("Result")
RELATIONS = ("likes", "knows", "owns")
EASY = "synthetic:nodes=240,mean_degree=8,classes=4,features=12,signal=2"
SMALL = {"model": "gcn", "layers": 2, "hidden": 8, "epochs": 4, "eval_every": 2, "checkpoint_every": 4}


@pytest.fixture
def shared_path(tmp_path_factory):
    """A folder that is the same on all ranks."""
    return on_rank_zero(MPI.COMM_WORLD, lambda: tmp_path_factory.mktemp("shared"))


def disk_path() -> str:
    """A folder for temporary files that lies on a disk; pytest's may lie in memory (see jobs/test.sh)."""
    wanted = [os.environ.get("TMPDIR", "/tmp"), "/var/tmp", os.getcwd()]
    on_disk = [folder for folder in wanted if limited_arena.file_system_of(Path(folder)) not in limited_arena.IN_MEMORY]
    return on_disk[0] if on_disk else pytest.skip(f"none of {', '.join(wanted)} lies on a disk")


def easy_graph(seed: int = 0, spec: str = EASY) -> GraphDataset:
    """A graph on which two layers learn nearly everything."""
    return load_source(spec, SourceOptions(seed=seed))


def typed_csr(triples: Any, num_nodes: int, symmetrize: bool = False, names: tuple[str, ...] = RELATIONS,
              attr: np.ndarray | None = None) -> CleanGraph:
    """A graph of edges (source, relation, target), with reverses if asked, in the order that sources give it."""
    source, relation, target = np.array(triples).T
    if symmetrize:
        source, relation, target = (np.concatenate(ends) for ends in (
            (source, target), (relation, relation + len(names)), (target, source)))
        names = (*names, *(f"{name} reverse" for name in names))
    order = np.lexsort((relation, source, target))
    indptr = np.concatenate([[0], np.cumsum(np.bincount(target, minlength=num_nodes))])
    return CleanGraph(indptr, source[order].astype(np.int32), CleaningReport(is_symmetric=symmetrize), None,
                      relation[order].astype(np.int32), None if attr is None else attr[order], names)


def typed_graph(symmetrize: bool, num_nodes: int = 120, num_edges: int = 500,
                shares: tuple[float, float] = (0.1, 0.2), seed: int = 0) -> GraphDataset:
    """A graph of three relations, in which two nodes may have several; half of its links leave from few nodes."""
    random = np.random.default_rng(seed)
    source = random.integers(0, num_nodes, num_edges) // (1 + 9 * (np.arange(num_edges) % 2))
    relation, target = random.integers(0, 3, num_edges), random.integers(0, num_nodes, num_edges)
    triples = np.unique(np.stack([source, relation, target], axis=1)[source != target], axis=0)
    graph, held = hold_out(typed_csr(triples, num_nodes, symmetrize), None, shares, seed, "typed")
    whole = easy_graph(seed, f"synthetic:nodes={num_nodes},mean_degree=6,classes=4,features=12,signal=2")
    return replace(whole, indptr=graph.indptr, indices=graph.indices, cleaning=graph.report, held_out=held,
                   edge_type=graph.edge_type, relation_names=graph.relation_names).check()


def random_owner(dataset: GraphDataset, num_parts: int, seed: int = 0) -> np.ndarray:
    """Owners drawn at random, (num_nodes,) int32."""
    return np.random.default_rng(seed).integers(0, num_parts, dataset.num_nodes).astype(np.int32)


def write(dataset: GraphDataset, owner: np.ndarray, num_parts: int, folder: Path) -> Path:
    """Write shards from one process."""
    write_shards(dataset, owner, folder, Making(num_parts, reorder="none", overwrite=True),
                 Provenance("test", "given", 0))
    return folder


def on_rank_zero(comm: MPI.Comm, step: Callable[[], Result]) -> Result:
    """Collective: what `step` returns on rank 0, on every rank; if it raises, all ranks do."""
    result = failure = None
    if comm.rank == 0:
        try:
            result = step()
        except Exception as error:
            failure = error
    result, failure = comm.bcast((result, failure))
    if failure is not None:
        raise failure
    return result


def write_once(comm: MPI.Comm, dataset: GraphDataset, folder: Path, seed: int = 0) -> Path:
    """Collective: shards of one part a rank, with owners drawn at random."""
    return on_rank_zero(comm, lambda: write(dataset, random_owner(dataset, comm.size, seed), comm.size, folder))


def shards_of(make: Callable[[], GraphDataset], scope: str = "module") -> Callable[..., Path]:
    """A fixture: shards of a graph, a part for each rank, which no test may change."""
    @pytest.fixture(scope=scope)
    def shards(tmp_path_factory):
        folder = on_rank_zero(MPI.COMM_WORLD, lambda: tmp_path_factory.mktemp("shards"))
        return write_once(MPI.COMM_WORLD, make(), folder / "shards")

    return shards


shards = shards_of(easy_graph, "session")


def train(comm: MPI.Comm, shards: Path, out: Path, folder_type: type[RunFolder] = RunFolder,
          resumed: Checkpoint | None = None, **settings) -> tuple[dict[str, Any], list[dict[str, Any]], TrainingRun]:
    """Collective: train with SMALL and `settings`; rank 0's summary, all metrics and the run, on every rank."""
    session = Session.open(comm, shards, TrainConfig.of(**{**SMALL, **settings}))
    folder = folder_type(out)
    if comm.rank == 0 and resumed is None:
        folder.create(overwrite=False)
    if comm.rank == 0 and resumed is not None:
        folder.go_on_from(resumed.progress, session.config.seed)
    run = TrainingRun(session, folder, resumed)
    summary = run.execute()
    return (*comm.bcast((summary, folder.read_metrics()) if comm.rank == 0 else None), run)


def train_as_one(comm: MPI.Comm, dataset: GraphDataset, folder: Path,
                 **settings) -> tuple[dict[str, Any], list[dict[str, Any]], dict[str, Any], list[dict[str, Any]]]:
    """Collective: summary and metrics of all ranks, then those of one rank; nodes are dealt out at random."""
    def alone() -> tuple[dict[str, Any], list[dict[str, Any]]]:
        one = write_once(MPI.COMM_SELF, dataset, folder / "one")
        return train(MPI.COMM_SELF, one, folder / "alone", **settings)[:2]

    shards = write_once(comm, dataset, folder / "shards")
    return (*train(comm, shards, folder / "run", **settings)[:2], *on_rank_zero(comm, alone))


def stopping_folder(epoch: int, number: int = signal.SIGTERM, seed: int = 0) -> type[RunFolder]:
    """A run folder whose writer gets a signal while it records an epoch; all ranks stop at their next step."""
    class StoppingFolder(RunFolder):
        def append_metrics(self, record):
            super().append_metrics(record)
            if (record["seed"], record["epoch"]) == (seed, epoch):
                os.kill(os.getpid(), number)

    return StoppingFolder


def losses(metrics: list[dict[str, Any]]) -> np.ndarray:
    """Loss by epoch, (num_epochs,) float64."""
    return np.array([record["loss"] for record in metrics])


def without_seconds(metrics: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Metrics but for times, and what each rank's were."""
    return [{key: value for key, value in record.items() if not key.endswith("_seconds") and key != "by_rank"}
            for record in metrics]


def assert_same_bits(found: Path, expected: Path) -> None:
    """Weights, best weights and moments of two checkpoints agree in every bit, and so does their progress."""
    a, b = read_checkpoint(found), read_checkpoint(expected)
    groups = [("model", a.model, b.model), ("best_model", a.best_model, b.best_model)]
    assert a.optimizer.keys() == b.optimizer.keys()
    groups += [(f"optimizer {number}", a.optimizer[number], b.optimizer[number]) for number in a.optimizer]
    for name, mine, other in groups:
        assert mine.keys() == other.keys() and len(mine) > 0, name
        for key in mine:
            assert mine[key].dtype == other[key].dtype, f"{name}/{key}"
            assert mine[key].numpy().tobytes() == other[key].numpy().tobytes(), f"{name}/{key}"
    assert a.progress == b.progress


def arcs_where(dataset: GraphDataset, keeps: Callable[[np.ndarray, np.ndarray], np.ndarray]) -> GraphDataset:
    """The graph of the arcs source -> target for which keeps(source, target), both (num_edges,), is true."""
    target = np.repeat(np.arange(dataset.num_nodes), np.diff(dataset.indptr))
    kept = keeps(dataset.indices, target)
    indptr = np.concatenate([[0], np.cumsum(np.bincount(target[kept], minlength=dataset.num_nodes))])
    return replace(dataset, indptr=indptr, indices=dataset.indices[kept]).check()


def two_islands(num_nodes: int = 60, seed: int = 0) -> GraphDataset:
    """Two halves without an edge between them: nodes below num_nodes / 2, and the others."""
    whole = easy_graph(seed, f"synthetic:nodes={num_nodes},mean_degree=6,classes=3,features=6,signal=2")
    half = num_nodes // 2
    return arcs_where(whole, lambda source, target: (source < half) == (target < half))


def snapshot(*folders: Path) -> dict[str, bytes]:
    """Every file below the folders with its content."""
    return {str(path): path.read_bytes() for folder in folders for path in sorted(folder.rglob("*")) if path.is_file()}
