"""From a dataset to a folder of shards: choose owners and clusters, then write."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from hpcgnn.data.dataset import GraphDataset
from hpcgnn.data.options import ProgressTask, silent
from hpcgnn.errors import ConfigError
from hpcgnn.partition.choices import DEFAULT_LAYERS, DEFAULT_PARTITIONER, DEFAULT_REORDER, TRAINING
from hpcgnn.partition.clusters import cluster_nodes
from hpcgnn.partition.owner import choose_owners, read_own_parts
from hpcgnn.partition.work import TrainingWork
from hpcgnn.shards.folder import ALONE, Crew, kept_stages
from hpcgnn.shards.reader import read_graph_info, read_owner
from hpcgnn.shards.schema import GraphInfo, Provenance
from hpcgnn.shards.writer import write_shards


@dataclass(frozen=True)
class Measured:
    """The folder of earlier shards, and the seconds that each of its parts took to compute an epoch."""

    shards: str
    seconds: tuple[float, ...]

    def owner(self, dataset: GraphDataset) -> np.ndarray:
        """The parts that were measured, (num_nodes,) int32.

        Raises ConfigError if the shards are of another graph or number of parts, ShardError if they can't be read.
        """
        info = read_graph_info(Path(self.shards))
        if (info.num_nodes, info.num_edges) != (dataset.num_nodes, dataset.num_edges):
            raise ConfigError(f"the run to balance by was trained on {self.shards}, which holds {info.num_nodes:,} "
                              f"nodes and {info.num_edges:,} edges, and {dataset.name} has {dataset.num_nodes:,} and "
                              f"{dataset.num_edges:,}; give a run on the same graph")
        if info.num_parts != len(self.seconds):
            raise ConfigError(f"the run to balance by had {len(self.seconds)} ranks, and {self.shards} holds "
                              f"{info.num_parts} parts now; train on it again")
        return read_owner(Path(self.shards), info)


@dataclass(frozen=True)
class Making:
    """How a graph is cut and stored: the options of `hpcgnn preprocess` by name.

    `layers` and `measured` are what --balance says after the colon. `own_parts` is an array or a Path with the part of
    each node, instead of a partitioner.
    """

    parts: int = 1
    partitioner: str = DEFAULT_PARTITIONER
    balance: str | None = None
    reorder: str = DEFAULT_REORDER
    seed: int = 0
    feature_format: str = "float32"
    feature_bits: int = 8
    cluster_rows: int = 0
    overwrite: bool = False
    layers: int = DEFAULT_LAYERS
    measured: Measured | None = None
    own_parts: Any = None


def make_shards(dataset: GraphDataset | None, out: Path, how: Making, source: str, settings: dict[str, Any],
                progress: Callable[[str, float | None], ProgressTask] = silent,
                scratch: Path | None = None, crew: Crew = ALONE) -> GraphInfo:
    """Collective: cut a graph into parts on rank 0, and write them on all ranks.

    `source` and `settings` are kept in the shards as their provenance; `scratch` is for large temporary files.
    `dataset` is None on ranks other than 0. Raises ConfigError or ShardError as choose_owners, cluster_nodes and
    write_shards.
    """
    def own() -> tuple[np.ndarray, str]:
        work = None
        if how.balance == TRAINING:
            measured = how.measured
            work = TrainingWork(how.layers) if measured is None else TrainingWork(
                how.layers, measured.owner(dataset), measured.seconds)
        owner, refinement = choose_owners(dataset, how.parts, how.partitioner, how.seed, how.balance, scratch, progress,
                                          work)
        return owner, json.dumps({} if refinement is None else refinement.as_settings())

    def cut() -> tuple[np.ndarray | None, str, np.ndarray | None]:
        if crew.rank:
            return None, "", None
        owner, found = (given, "{}") if given is not None else stages.result("owner", own)
        cluster = None
        if how.cluster_rows:
            cluster = cluster_nodes(dataset, how.cluster_rows, how.seed, scratch, progress)
        return owner, found, cluster

    given = crew.together(lambda: None if crew.rank or how.own_parts is None else read_own_parts(
        how.own_parts, dataset, how.parts))
    how = replace(how, own_parts=None)
    unused = {"overwrite", "own_parts"} | (set() if how.balance == TRAINING else {"layers", "measured"})
    decisive = {name: value for name, value in asdict(how).items() if name not in unused}
    if given is not None:
        decisive["partitioner"] = hashlib.blake2b(given.tobytes()).hexdigest()
    with kept_stages(crew, Path(out), dataset, decisive, progress) as stages:
        owner, found, cluster = crew.together(cut)
        # Shards without clusters stay as they were before these could be asked for, to the byte.
        settings = {name: value for name, value in settings.items() if name != "cluster_rows" or value}
        provenance = Provenance(source, how.partitioner, how.seed, settings | json.loads(crew.share(found)))
        return write_shards(dataset, owner, how.parts, out, how.feature_format, provenance, progress, how.overwrite,
                            how.reorder, how.feature_bits, cluster, crew, stages)
