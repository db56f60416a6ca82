"""Writes a partitioned graph as a folder of shards: the parts first and graph.h5 last."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import h5py
import numpy as np

import hpcgnn
from hpcgnn.data.dataset import GraphDataset
from hpcgnn.data.options import ProgressTask, silent
from hpcgnn.errors import ConfigError
from hpcgnn.partition.build import build_partition
from hpcgnn.partition.order import order_rows
from hpcgnn.partition.partition import Halo, Partition, find_halos
from hpcgnn.partition.statistics import PartitionStatistics, degree_quantiles, measure_partition, node_importance
from hpcgnn.shards import schema
from hpcgnn.shards.feature_formats import FEATURE_FORMATS
from hpcgnn.shards.features import FeatureStorage, fingerprint_of, hash_clusters, store_features
from hpcgnn.shards.fingerprint import Fingerprint
from hpcgnn.shards.folder import ALONE, NO_STAGES, Crew, Stages, by_leader, check_folder, incoming
from hpcgnn.shards.records import store_info, store_texts
from hpcgnn.shards.schema import GRAPH_VERSION, GRAPH_VERSION_OF_MORE, GraphInfo, Provenance
from hpcgnn.shards.sealed import write_sealed
from hpcgnn.shards.sharing import shared_graph

NAME_KINDS = {"i": "integers", "U": "texts", "O": "texts"}


def write_shards(dataset: GraphDataset | None, owner: np.ndarray | None, num_parts: int, out_dir: Path,
                 feature_format: str, provenance: Provenance,
                 progress: Callable[[str, float | None], ProgressTask] = silent, overwrite: bool = False,
                 reorder: str = "none", feature_bits: int = 8, cluster: np.ndarray | None = None,
                 crew: Crew = ALONE, stages: Stages = NO_STAGES) -> GraphInfo:
    """Collective: write every part of `dataset`, then graph.h5, and return what graph.h5 holds.

    Each rank finds the halos of every crew.size-th part, orders its rows and writes it; the files are the same for any
    number of ranks. A run that fails or is killed leaves what the folder held.

    Parameters
    ----------
    dataset, owner, cluster   None on ranks other than 0
    owner : (num_nodes,) int32, values < num_parts
    feature_format : {"float32", "float16", "package"}
    overwrite : bool          replace the shards that out_dir holds
    reorder : str             order of rows in each part, see order_rows; with provenance's seed
    feature_bits : int        widest row of packages, 1 .. 8; 2 .. 8 if a feature is negative
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
        if feature_format not in FEATURE_FORMATS:
            raise ConfigError(f"feature format is {feature_format!r}; expected one of {', '.join(FEATURE_FORMATS)}")
        storage = FeatureStorage.choose(dataset, feature_format, feature_bits)
        check_folder(out_dir, overwrite)
        return storage, uuid.uuid4().hex

    storage, run_id = by_leader(crew, prepare)
    with (_incoming_of(crew, out_dir, overwrite) as staging,
          shared_graph(crew, staging, dataset, owner, cluster) as (dataset, owner, cluster)):
        own = range(crew.rank, num_parts, crew.size)
        halos = _all_halos(crew, dataset, owner, num_parts, own, progress)

        def write() -> tuple[Fingerprint | None, list[PartitionStatistics]]:
            # The last rank has the fewest parts.
            fingerprint = fingerprint_of(dataset, storage, progress) if crew.rank == crew.size - 1 else None
            return fingerprint, _write_parts(dataset, owner, halos, own, staging, storage, run_id, progress,
                                             (reorder, provenance.seed), cluster, stages)

        written = crew.gather(crew.together(write))
        statistics = sorted((counts for _, found in written for counts in found), key=lambda counts: counts.part)

        def finish() -> GraphInfo:
            info = _describe(dataset, storage.form, provenance, run_id, written[-1][0], statistics,
                             degree_quantiles(dataset, halos), cluster)
            version = GRAPH_VERSION_OF_MORE if info.says_more else GRAPH_VERSION
            write_sealed(schema.graph_file(staging), schema.GRAPH_KIND, version,
                         partial(_store_graph, info=info, owner=owner))
            return info

        return by_leader(crew, finish)


@contextmanager
def _incoming_of(crew: Crew, out_dir: Path, overwrite: bool) -> Iterator[Path]:
    """Collective: the folder of `incoming`, which rank 0 enters and leaves, so that shards are replaced once."""
    with ExitStack() as stack:
        staging = by_leader(crew, lambda: stack.enter_context(incoming(out_dir, overwrite)))
        yield staging
        by_leader(crew, stack.close)


def _all_halos(crew: Crew, dataset: GraphDataset, owner: np.ndarray, num_parts: int, own: range,
               progress: Callable[[str, float | None], ProgressTask]) -> list[Halo]:
    """Collective: find the halos of this rank's parts; return the halos of all parts."""
    found = crew.gather(crew.together(lambda: find_halos(dataset, owner, num_parts, progress, own)))
    return [found[part % crew.size][part // crew.size] for part in range(num_parts)]


def _write_parts(dataset: GraphDataset, owner: np.ndarray, halos: list[Halo], own: range, folder: Path,
                 storage: FeatureStorage, run_id: str, progress: Callable[[str, float | None], ProgressTask],
                 order: tuple[str, int], cluster: np.ndarray | None, stages: Stages) -> list[PartitionStatistics]:
    # Half of a row is done when it has its place and its edges, the other half when its features are written.
    task = progress("writing parts", 2 * int(np.bincount(owner, minlength=len(halos))[own].sum()))
    # A part's topology is built in memory; its features pass through in blocks.
    topology = replace(dataset, features=np.empty((dataset.num_nodes, 0), np.float32))
    importance = node_importance(dataset, halos)
    statistics = []
    for part in own:
        inner_id = np.flatnonzero(owner == part)
        ordered, _ = stages.result(f"order-{part:04d}", lambda: (order_rows(topology, inner_id, *order), ""))  # noqa: B023
        partition = build_partition(topology, owner, part, len(halos), halos, *order, importance, cluster, ordered)
        task.advance(partition.num_inner)
        fill = partial(_store_part, partition=partition, run_id=run_id, dataset=dataset, storage=storage, task=task)
        write_sealed(schema.part_file(folder, part), schema.PART_KIND, schema.part_version(storage.form), fill)
        statistics.append(measure_partition(partition))
    return statistics


def _store_part(file: h5py.File, partition: Partition, run_id: str, dataset: GraphDataset, storage: FeatureStorage,
                task: ProgressTask) -> None:
    file.attrs["run_id"] = run_id
    for name in schema.PART_SCALARS:
        file.attrs[name] = getattr(partition, name)
    for name in schema.PART_ARRAYS:
        file[name] = getattr(partition, name)
    for name in (schema.EDGE_WEIGHT, schema.CLUSTER):
        if getattr(partition, name) is not None:
            file[name] = getattr(partition, name)
    if partition.inner_name is not None:
        if partition.inner_name.dtype.kind in "UO":
            store_texts(file, schema.INNER_NAME, partition.inner_name)
        else:
            file[schema.INNER_NAME] = partition.inner_name
    store_features(file, dataset, partition.inner_id, storage, task)


def _store_graph(file: h5py.File, info: GraphInfo, owner: np.ndarray) -> None:
    store_info(file, info)
    file["owner"] = owner


def _describe(dataset: GraphDataset, feature_format: str, provenance: Provenance, run_id: str,
              fingerprint: Fingerprint, statistics: list[PartitionStatistics],
              boundary_degree: np.ndarray, cluster: np.ndarray | None) -> GraphInfo:
    return GraphInfo(
        run_id=run_id, hpcgnn_version=hpcgnn.__version__, name=dataset.name,
        num_nodes=dataset.num_nodes, num_edges=dataset.num_edges,
        num_features=dataset.num_features, num_classes=dataset.num_classes, num_parts=len(statistics),
        num_train=int(dataset.train_mask.sum()), num_val=int(dataset.val_mask.sum()),
        num_test=int(dataset.test_mask.sum()),
        is_multi_label=dataset.is_multi_label, feature_dtype=feature_format,
        provenance=provenance, cleaning=dataset.cleaning, fingerprint=fingerprint, statistics=tuple(statistics),
        boundary_degree=tuple(boundary_degree.tolist()),
        task=dataset.task, class_names=dataset.class_names, has_edge_weights=dataset.edge_weight is not None,
        node_names="none" if dataset.node_name is None else NAME_KINDS[dataset.node_name.dtype.kind],
        num_clusters=0 if cluster is None else int(cluster.max()) + 1,
        cluster_digest="" if cluster is None else hash_clusters(cluster),
    )
