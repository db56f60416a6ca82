"""Write a partitioned graph as a folder of shards, the parts first and graph.h5 last. Nothing is read back here."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import h5py
import numpy as np

import hpcgnn
from hpcgnn.datasets.dataset import GraphDataset
from hpcgnn.datasets.options import ProgressTask, silent
from hpcgnn.errors import ConfigError
from hpcgnn.partition.build import build_partition
from hpcgnn.partition.halo import Halo, find_halos
from hpcgnn.partition.importance import degree_quantiles, node_importance
from hpcgnn.partition.partition import Partition
from hpcgnn.partition.statistics import PartitionStatistics, measure_partition
from hpcgnn.shards import schema
from hpcgnn.shards.feature_formats import FEATURE_FORMATS
from hpcgnn.shards.features import FeatureStorage, store_features
from hpcgnn.shards.fingerprint import Fingerprint
from hpcgnn.shards.folder import check_folder, incoming
from hpcgnn.shards.hashing import fingerprint_of, hash_clusters
from hpcgnn.shards.records import store_info
from hpcgnn.shards.schema import GRAPH_VERSION, GRAPH_VERSION_OF_MORE, GraphInfo, Provenance
from hpcgnn.shards.sealed import write_sealed
from hpcgnn.shards.texts import store_texts

NAME_KINDS = {"i": "integers", "U": "texts"}


def write_shards(dataset: GraphDataset, owner: np.ndarray, num_parts: int, out_dir: Path, feature_format: str,
                 provenance: Provenance, progress: Callable[[str, float | None], ProgressTask] = silent,
                 overwrite: bool = False, reorder: str = "none", feature_bits: int = 8,
                 cluster: np.ndarray | None = None) -> GraphInfo:
    """Write every part of `dataset`, then graph.h5. A run that fails or is killed leaves what the folder held.

    Memory: the graph's own arrays, all halo ids, 4 bytes a node of importance, one part without its features, and one
    block of features, or the packages of one part.

    Parameters
    ----------
    owner : (num_nodes,) int32, values < num_parts
    out_dir : Path            made if it is not there
    feature_format : {"float32", "float16", "package"}     packages hold rounded features, see quantize_features
    progress : callable(description, total) -> ProgressTask
    overwrite : bool          replace the shards that out_dir holds
    reorder : str                       order of rows in each part, see order_rows; by provenance's seed
    feature_bits : int        widest row of packages, 1 .. 8; 2 .. 8 where a feature is negative
    cluster : (num_nodes,) int32, what cluster_nodes returns, or None: parts hold none

    Returns
    -------
    info : GraphInfo          what graph.h5 holds

    Raises
    ------
    ConfigError               an unknown feature format or order, a feature value beyond float16, or feature_bits out
                              of range
    ShardError                out_dir holds shards and overwrite is off, can't be written, or its disk is full
    """
    if feature_format not in FEATURE_FORMATS:
        raise ConfigError(f"feature format is {feature_format!r}; expected one of {', '.join(FEATURE_FORMATS)}")
    storage = FeatureStorage.choose(dataset, feature_format, feature_bits)
    out_dir = Path(out_dir)
    check_folder(out_dir, overwrite)
    fingerprint = fingerprint_of(dataset, storage, progress)
    halos = find_halos(dataset, owner, num_parts, progress)
    run_id = uuid.uuid4().hex
    with incoming(out_dir, overwrite) as staging:
        statistics = _write_parts(dataset, owner, halos, staging, storage, run_id, progress,
                                  (reorder, provenance.seed), cluster)
        info = _describe(dataset, storage.form, provenance, run_id, fingerprint, statistics,
                         degree_quantiles(dataset, halos), cluster)
        version = GRAPH_VERSION_OF_MORE if info.says_more else GRAPH_VERSION
        write_sealed(schema.graph_file(staging), schema.GRAPH_KIND, version,
                     partial(_store_graph, info=info, owner=owner))
    return info


def _write_parts(dataset: GraphDataset, owner: np.ndarray, halos: list[Halo], folder: Path, storage: FeatureStorage,
                 run_id: str, progress: Callable[[str, float | None], ProgressTask],
                 order: tuple[str, int], cluster: np.ndarray | None) -> list[PartitionStatistics]:
    task = progress("writing parts", 2 * dataset.num_nodes)     # half for the order of rows and their arcs
    # A part's topology is built in memory; its features pass through in blocks.
    topology = replace(dataset, features=np.empty((dataset.num_nodes, 0), np.float32))
    importance = node_importance(dataset, halos)
    statistics = []
    for part in range(len(halos)):
        partition = build_partition(topology, owner, part, len(halos), halos, *order, importance, cluster)
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
        if partition.inner_name.dtype.kind == "U":
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
