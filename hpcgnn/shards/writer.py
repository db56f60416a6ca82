"""Makes a folder of shards from a graph: chooses owners and clusters, writes the parts, and graph.h5 last."""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np

import hpcgnn
from hpcgnn.data.dataset import GraphDataset
from hpcgnn.data.hold_out import TEST, VALIDATION
from hpcgnn.data.options import Progress, silent
from hpcgnn.errors import ConfigError
from hpcgnn.partition.build import Cut, partition_of
from hpcgnn.partition.choices import (
    BALANCES,
    DEFAULT_LAYERS,
    DEFAULT_PARTITIONER,
    DEFAULT_REORDER,
    FRUGAL_PARTITIONERS,
    MEASURED,
    MOST_LAYERS,
    ROWS_A_CLUSTER,
    TRAINING,
    default_balance,
    split_balance,
)
from hpcgnn.partition.clusters import cluster_nodes
from hpcgnn.partition.order import order_rows
from hpcgnn.partition.owner import choose_owners, own_parts, read_own_parts
from hpcgnn.partition.partition import (
    Halo,
    Partition,
    PartitionStatistics,
    degree_quantiles,
    find_halos,
    measure_partition,
    node_importance,
)
from hpcgnn.partition.work import TrainingWork
from hpcgnn.run.output import tell
from hpcgnn.shards import schema
from hpcgnn.shards.feature_formats import FEATURE_FORMATS, feature_format
from hpcgnn.shards.features import FeatureStorage, fingerprint_of, hash_clusters, store_features
from hpcgnn.shards.folder import (
    ALONE,
    NO_STAGES,
    Crew,
    Stages,
    by_leader,
    check_folder,
    incoming,
    kept_stages,
    shared_graph,
)
from hpcgnn.shards.reader import read_graph_info, read_owner
from hpcgnn.shards.schema import Fingerprint, GraphInfo, Provenance, store_info, store_texts
from hpcgnn.shards.sealed import write_sealed
from hpcgnn.shards.source import owner_in_shards

NAME_KINDS = {"i": "integers", "U": "texts", "O": "texts"}


@dataclass(frozen=True)
class Measured:
    """The folder of earlier shards, the layers of a run on them, and each part's seconds to compute an epoch."""

    shards: str
    num_layers: int
    seconds: tuple[float, ...]

    def owner(self, dataset: GraphDataset) -> np.ndarray:
        """The part of each node in these shards, (num_nodes,) int32.

        Raises ConfigError if the shards are of another graph or number of parts, ShardError if they can't be read.
        """
        info = read_graph_info(Path(self.shards))
        if (info.num_nodes, info.num_edges) != (dataset.num_nodes, dataset.num_edges):
            raise ConfigError(f"the run of balance run:FOLDER used {self.shards} ({info.num_nodes:,} nodes, "
                              f"{info.num_edges:,} edges), but {dataset.name} has {dataset.num_nodes:,} nodes and "
                              f"{dataset.num_edges:,} edges; give a run on the same graph")
        if info.num_parts != len(self.seconds):
            raise ConfigError(f"the run of balance run:FOLDER had {len(self.seconds)} ranks, and {self.shards} holds "
                              f"{info.num_parts} parts now; train on it again")
        return read_owner(Path(self.shards), info)


@dataclass(frozen=True)
class Making:
    """How a graph is cut and stored; `hpcgnn.preprocess` describes each option.

    `measured` is the run that balance "run:FOLDER" names; cluster_rows None is ROWS_A_CLUSTER, or 0 with a frugal
    partitioner. Raises ConfigError for an impossible option.
    """

    parts: int = 1
    partitioner: Any = DEFAULT_PARTITIONER
    owner: Any = None
    balance: str | None = None
    reorder: str = DEFAULT_REORDER
    seed: int = 0
    feature_format: str = "float32"
    feature_bits: int = 8
    cluster_rows: int | None = None
    overwrite: bool = False
    measured: Measured | None = None

    def __post_init__(self) -> None:
        for name, least in (("parts", 1), ("cluster_rows", 0)):
            value = getattr(self, name)
            if value is None and name == "cluster_rows":
                continue
            if not isinstance(value, int) or value < least:
                raise ConfigError(f"{name} is {value!r}; expected a whole number of at least {least}")
        if self.owner is not None and self.partitioner != DEFAULT_PARTITIONER:
            raise ConfigError(f"owner says the part of each node, so partitioner={self.partitioner!r} has no effect; "
                              "leave one out")
        if self.own_parts is not None and self.balance is not None:
            raise ConfigError(f"parts come from {self.cut_by}, so balance {self.balance} has no effect; "
                              "leave it out")
        if not split_balance(self.what_is_balanced)[0]:
            raise ConfigError(f"balance must be one of {', '.join(BALANCES)}, {TRAINING}:LAYERS with 1 to "
                              f"{MOST_LAYERS} layers, or {MEASURED}:FOLDER, found {self.balance!r}")

    @property
    def own_parts(self) -> Any:
        """The user's own array or file with the part of each node, or None."""
        return own_parts(self.partitioner, self.owner)

    @property
    def cut_by(self) -> str:
        """The partitioner's name, the file of the user's own parts, or "array"."""
        own = self.own_parts
        return self.partitioner if own is None else str(own) if isinstance(own, Path) else "array"

    @property
    def nodes_a_cluster(self) -> int:
        """The option `cluster_rows`, or its default; 0 for no clusters."""
        if self.cluster_rows is not None:
            return self.cluster_rows
        return 0 if self.cut_by in FRUGAL_PARTITIONERS else ROWS_A_CLUSTER

    @property
    def what_is_balanced(self) -> str:
        """The option `balance`, or the partitioner's default if the option was not given."""
        return self.balance or default_balance(self.cut_by)


def make_shards(dataset: GraphDataset | None, out: Path, how: Making, source: str, settings: dict[str, Any],
                progress: Progress = silent, scratch: Path | None = None, crew: Crew = ALONE) -> GraphInfo:
    """Collective: cut a graph into parts on rank 0, and write them on all ranks.

    `source` and `settings` are kept in the shards as their provenance; `scratch` is for large temporary files.
    `dataset` is None on ranks other than 0. Raises ConfigError or ShardError as choose_owners, cluster_nodes and
    write_shards.
    """
    kind, layers = split_balance(how.what_is_balanced)
    measured = how.measured

    def own() -> tuple[np.ndarray, str]:
        work = None
        if measured is not None:
            work = TrainingWork(measured.num_layers, measured.owner(dataset), measured.seconds)
        elif kind == TRAINING:
            work = TrainingWork(int(layers or DEFAULT_LAYERS))
        owner, refinement = choose_owners(dataset, how.parts, how.partitioner, how.seed,
                                          kind if measured is None else TRAINING, scratch, progress, work)
        return owner, json.dumps({} if refinement is None else refinement.as_settings())

    def cut() -> tuple[np.ndarray | None, str, np.ndarray | None]:
        if crew.rank:
            return None, "", None
        owner, found = (given, "{}") if given is not None else stages.result("owner", own)
        return owner, found, clusters() if how.nodes_a_cluster else None

    def clusters() -> np.ndarray | None:
        try:
            return stages.result("clusters", lambda: (
                cluster_nodes(dataset, how.nodes_a_cluster, how.seed, scratch, progress), ""))[0]
        except ConfigError as reason:
            if how.cluster_rows is not None:
                raise
            # Without clusters the shards train all the same.
            tell(f"hpcgnn: no clusters are stored, so each rank of a training in steps cuts its own: {reason}")
            return None

    def read_own() -> np.ndarray | None:
        own = how.own_parts
        if crew.rank or own is None:
            return None
        if isinstance(own, Path) and own.is_dir():
            return owner_in_shards(own, dataset, how.parts)
        return read_own_parts(own, dataset, how.parts)

    given = crew.together(read_own)
    decisive = {item.name: getattr(how, item.name) for item in fields(Making)
                if item.name not in ("overwrite", "partitioner", "owner")}
    decisive["partitioner"] = how.cut_by if given is None else hashlib.blake2b(given.tobytes()).hexdigest()
    with kept_stages(crew, Path(out), dataset, decisive, progress) as stages:
        owner, found, cluster = crew.together(cut)
        # Shards without clusters lack this setting, so they have the same bytes as from versions without the option.
        settings = {name: value for name, value in settings.items() if name != "cluster_rows"}
        if crew.share(cluster is not None):
            settings["cluster_rows"] = how.nodes_a_cluster
        provenance = Provenance(source, how.cut_by, how.seed, settings | json.loads(crew.share(found)))
        return write_shards(dataset, owner, out, how, provenance, cluster, crew, stages)


def write_shards(dataset: GraphDataset | None, owner: np.ndarray | None, out_dir: Path, how: Making,
                 provenance: Provenance, cluster: np.ndarray | None = None, crew: Crew = ALONE,
                 stages: Stages = NO_STAGES) -> GraphInfo:
    """Collective: write every part of `dataset`, then graph.h5, and return what graph.h5 holds.

    Each rank finds the halos of every crew.size-th part, orders its rows and writes it; the files are the same for any
    number of ranks. A run that fails or is killed leaves the folder's earlier shards in place.

    Parameters
    ----------
    dataset, owner, cluster   None on ranks other than 0
    owner : (num_nodes,) int32, values < how.parts
    how : Making              says how features are stored and rows ordered; the order uses provenance.seed
    cluster : (num_nodes,) int32 or None     from cluster_nodes
    stages : Stages           keep the order of each part in case the run is interrupted

    Raises
    ------
    ConfigError               an unknown feature format or order, a feature value beyond float16, or feature_bits out
                              of range
    ShardError                out_dir holds shards and overwrite is off, can't be written, or its disk is full
    """
    out_dir = Path(out_dir)

    def prepare() -> tuple[FeatureStorage, str]:
        if how.feature_format not in FEATURE_FORMATS:
            raise ConfigError(f"feature format is {how.feature_format!r}; expected one of {', '.join(FEATURE_FORMATS)}")
        storage = feature_format(how.feature_format).choose(dataset, how.feature_format, how.feature_bits)
        check_folder(out_dir, how.overwrite)
        return storage, uuid.uuid4().hex

    storage, run_id = by_leader(crew, prepare)
    with (_incoming_of(crew, out_dir, how.overwrite) as staging,
          shared_graph(crew, staging, dataset, owner, cluster) as (dataset, owner, cluster)):
        own = range(crew.rank, how.parts, crew.size)
        halos = _all_halos(crew, dataset, owner, how.parts, own, stages.progress)
        cut = Cut(dataset, owner, halos, cluster)

        def write() -> tuple[Fingerprint | None, list[PartitionStatistics]]:
            # The last rank has the fewest parts.
            fingerprint = fingerprint_of(dataset, storage, stages.progress) if crew.rank == crew.size - 1 else None
            return fingerprint, _write_parts(cut, own, staging, storage, run_id, (how.reorder, provenance.seed), stages)

        written = crew.gather(crew.together(write))
        statistics = sorted((counts for _, found in written for counts in found), key=lambda counts: counts.part)

        def finish() -> GraphInfo:
            info = _describe(cut, storage.form, provenance, run_id, written[-1][0], statistics)

            def fill(file: h5py.File) -> None:
                store_info(file, info)
                file["owner"] = owner

            write_sealed(schema.graph_file(staging), schema.GRAPH_KIND, info.graph_version, fill)
            return info

        return by_leader(crew, finish)


@contextmanager
def _incoming_of(crew: Crew, out_dir: Path, overwrite: bool) -> Iterator[Path]:
    """Collective: yield the folder of `incoming`, a context that only rank 0 opens, so shards are replaced once."""
    with ExitStack() as stack:
        staging = by_leader(crew, lambda: stack.enter_context(incoming(out_dir, overwrite)))
        yield staging
        by_leader(crew, stack.close)


def _all_halos(crew: Crew, dataset: GraphDataset, owner: np.ndarray, num_parts: int, own: range,
               progress: Progress) -> list[Halo]:
    """Collective: find the halos of this rank's parts; return the halos of all parts."""
    found = crew.gather(crew.together(lambda: find_halos(dataset, owner, num_parts, progress, own)))
    return [found[part % crew.size][part // crew.size] for part in range(num_parts)]


def _write_parts(cut: Cut, own: range, folder: Path, storage: FeatureStorage, run_id: str, order: tuple[str, int],
                 stages: Stages) -> list[PartitionStatistics]:
    dataset, owner = cut.dataset, cut.owner
    # Half of a row is done when it has its place and its edges, the other half when its features are written.
    num_rows = int(np.bincount(owner, minlength=cut.num_parts)[own].sum())
    task = stages.progress("writing parts", 2 * num_rows)
    # A part's topology is built in memory; its features pass through in blocks.
    topology = replace(dataset, features=np.empty((dataset.num_nodes, 0), np.float32))
    cut = replace(cut, dataset=topology, importance=node_importance(dataset, cut.halos))

    def write(part: int) -> PartitionStatistics:
        inner_id = np.flatnonzero(owner == part)
        ordered, _ = stages.result(f"order-{part:04d}", lambda: (order_rows(topology, inner_id, *order), ""))
        partition = partition_of(cut, part, ordered)
        task.advance(partition.num_inner)

        def fill(file: h5py.File) -> None:
            file.attrs["run_id"] = run_id
            _store_part(file, partition)
            store_features(file, dataset, partition.inner_id, storage, folder, task)

        write_sealed(schema.part_file(folder, part), schema.PART_KIND, schema.part_version(storage.form), fill)
        return measure_partition(partition)

    return [write(part) for part in own]      # a function, so that one part is in memory at a time


def _store_part(file: h5py.File, partition: Partition) -> None:
    for name in schema.PART_SCALARS:
        file.attrs[name] = getattr(partition, name)
    for name in (*schema.PART_ARRAYS, schema.EDGE_WEIGHT, schema.EDGE_TYPE, schema.EDGE_ATTR, schema.CLUSTER,
                 schema.HELD_OUT):
        if getattr(partition, name) is not None:
            file[name] = getattr(partition, name)
    if partition.inner_name is not None:
        if partition.inner_name.dtype.kind in "UO":
            store_texts(file, schema.INNER_NAME, partition.inner_name)
        else:
            file[schema.INNER_NAME] = partition.inner_name


def _describe(cut: Cut, feature_format: str, provenance: Provenance, run_id: str, fingerprint: Fingerprint,
              statistics: list[PartitionStatistics]) -> GraphInfo:
    dataset, cluster, held = cut.dataset, cut.cluster, cut.dataset.held_out
    stored = () if held is None else tuple(
        int((cut.owner[held[:, :2]] == part).any(axis=1).sum()) for part in range(cut.num_parts))
    return GraphInfo(
        run_id=run_id, hpcgnn_version=hpcgnn.__version__, name=dataset.name,
        num_nodes=dataset.num_nodes, num_edges=dataset.num_edges,
        num_features=dataset.num_features, num_classes=dataset.num_classes, num_parts=len(statistics),
        num_train=int(dataset.train_mask.sum()), num_val=int(dataset.val_mask.sum()),
        num_test=int(dataset.test_mask.sum()),
        is_multi_label=dataset.is_multi_label, feature_dtype=feature_format,
        provenance=provenance, cleaning=dataset.cleaning, fingerprint=fingerprint, statistics=tuple(statistics),
        boundary_degree=tuple(degree_quantiles(dataset, cut.halos).tolist()),
        task=dataset.task, class_names=dataset.class_names, has_edge_weights=dataset.edge_weight is not None,
        node_names="none" if dataset.node_name is None else NAME_KINDS[dataset.node_name.dtype.kind],
        num_clusters=0 if cluster is None else int(cluster.max()) + 1,
        cluster_digest="" if cluster is None else hash_clusters(cluster),
        num_val_links=0 if held is None else int((held[:, 2] == VALIDATION).sum()),
        num_test_links=0 if held is None else int((held[:, 2] == TEST).sum()), links_of_parts=stored,
        relation_names=dataset.relation_names, node_types=dataset.node_types, type_columns=dataset.type_columns,
        relation_columns=dataset.relation_columns, feature_names=dataset.feature_names,
        num_edge_features=0 if dataset.edge_attr is None else dataset.edge_attr.shape[1],
    )
