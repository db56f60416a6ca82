"""Reads shards: graph.h5, which describes the whole graph, and one part; and checks a whole folder of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from hpcgnn.data.options import Progress, silent
from hpcgnn.errors import ShardError
from hpcgnn.partition.partition import Partition, needed_digests, sent_digests
from hpcgnn.shards import schema
from hpcgnn.shards.feature_formats import PACKAGE, feature_format
from hpcgnn.shards.features import hash_clusters
from hpcgnn.shards.folder import find_shard, shards_in
from hpcgnn.shards.schema import (
    ATTRIBUTES,
    COUNTS,
    GRAPH_VERSIONS,
    GraphInfo,
    check_attributes,
    check_layout,
    holds,
    integer_of,
    load_info,
    load_texts,
)
from hpcgnn.shards.sealed import AGAIN, open_sealed
from hpcgnn.shards.structure import (
    QUANTILES,
    find_graph_fault,
    find_part_fault,
    find_row_fault,
    graph_layout,
    part_layout,
)

ELSEWHERE = "name a folder that hpcgnn preprocess --out has made"


def read_graph_info(folder: Path) -> GraphInfo:
    """Read graph.h5.

    Raises
    ------
    ShardError                graph.h5 is missing, truncated, damaged, incomplete or of another format
    """
    path = find_shard(schema.graph_file(folder))
    if not path.exists() and (folder / "metrics.jsonl").is_file():
        raise ShardError(f"{folder} is the folder of a run and holds no shards; name the folder of shards that the run "
                         "was trained on, as config.toml there does")
    with open_sealed(path, schema.GRAPH_KIND, GRAPH_VERSIONS, advice=AGAIN if shards_in(folder) else ELSEWHERE) as file:
        return _load_graph(file, path)


def _load_graph(file: h5py.File, path: Path) -> GraphInfo:
    check_attributes(file, path, ATTRIBUTES)
    counts = {name: integer_of(file, path, name) for name in COUNTS}
    crosses = not holds(file, "boundary_degree") or file["boundary_degree"].size
    check_layout(file, path, graph_layout(counts["num_nodes"], counts["num_parts"], QUANTILES if crosses else 0))
    info = load_info(file, path)
    _refuse(path, find_graph_fault(info))
    return info


def _refuse(path: Path, fault: str | None) -> None:
    if fault is not None:
        raise ShardError(f"{path} {fault}; {AGAIN}")


def read_partition(folder: Path, part: int, num_parts: int, info: GraphInfo | None = None,
                   expands_packages: bool = True) -> Partition:
    """Read one part.

    Parameters
    ----------
    num_parts : int           parts that the caller runs with, one per rank
    info : GraphInfo          graph.h5 of this folder if the caller has read it; it is then not read again
    expands_packages : bool   False: features stored as packages are left out, (num_inner, 0)

    Raises
    ------
    ShardError                the graph was cut into another number of parts; a file is missing, truncated, damaged,
                              incomplete, of another format or from another run of preprocess than graph.h5
    """
    info = info or read_graph_info(folder)
    check_num_parts(info, num_parts)
    with open_part(folder, part, info) as file:
        return load_part(file, find_shard(schema.part_file(folder, part)), part, info, expands_packages)


def load_part(file: h5py.File, path: Path, part: int, info: GraphInfo, expands_packages: bool) -> Partition:
    """`read_partition` from a file of `open_part`."""
    scalars: dict[str, Any] = {name: integer_of(file, path, name) for name in schema.PART_SCALARS}
    arrays: dict[str, Any] = {name: file[name][()] for name in part_layout(info, part) if name != "features"}
    if info.node_names == "texts":
        arrays[schema.INNER_NAME] = load_texts(file, path, schema.INNER_NAME, info.statistics[part].num_inner)
    if info.feature_dtype == PACKAGE and not expands_packages:
        features = np.empty((len(arrays["inner_id"]), 0), np.float32)
    else:
        features = _read_features(file, path, info, part)
    partition = Partition(**scalars, **arrays, features=features)
    _refuse(path, find_part_fault(partition, info))
    return partition


def read_inner_id(folder: Path, part: int, num_parts: int, info: GraphInfo) -> np.ndarray:
    """Return the global node ids of one part's inner rows, (num_inner,) int64; errors as in `read_partition`."""
    check_num_parts(info, num_parts)
    with open_part(folder, part, info) as file:
        path = find_shard(schema.part_file(folder, part))
        check_layout(file, path, {"inner_id": (np.int64, (info.statistics[part].num_inner,))})
        return file["inner_id"][()]


def read_owner(folder: Path, info: GraphInfo) -> np.ndarray:
    """The part that owns each node, (num_nodes,) int32; errors as `read_graph_info`."""
    path = find_shard(schema.graph_file(folder))
    with open_sealed(path, schema.GRAPH_KIND, GRAPH_VERSIONS) as file:
        check_attributes(file, path, ("run_id",))
        check_layout(file, path, {"owner": (np.int32, (info.num_nodes,))})
        if file.attrs["run_id"] != info.run_id:
            raise ShardError(f"{path} was replaced while it was read; start again")
        return file["owner"][()]


def _read_features(file: h5py.File, path: Path, info: GraphInfo, part: int) -> np.ndarray:
    return feature_format(info.feature_dtype).load(file, path, (info.statistics[part].num_inner, info.num_features))


@contextmanager
def open_part(folder: Path, part: int, info: GraphInfo) -> Iterator[h5py.File]:
    """Open a part file, with its attributes and layout checked; errors as in `read_partition`."""
    path = find_shard(schema.part_file(folder, part))
    with open_sealed(path, schema.PART_KIND, schema.part_version(info.feature_dtype)) as file:
        check_attributes(file, path, ("run_id", *schema.PART_SCALARS))
        if file.attrs["run_id"] != info.run_id:
            raise ShardError(f"{path} is from another run of hpcgnn preprocess than the {schema.GRAPH_FILE} beside it; "
                             f"{AGAIN}")
        for name, expected in (("part", part), ("num_parts", info.num_parts), ("num_nodes_global", info.num_nodes)):
            found = integer_of(file, path, name)
            if found != expected:
                raise ShardError(f"{path} holds {name} {found}, expected {name} {expected}; {AGAIN}")
        check_layout(file, path, part_layout(info, part))
        if info.feature_dtype == PACKAGE and not holds(file, schema.PACKAGES):
            raise ShardError(f"{path} has no {schema.PACKAGES}; {AGAIN}")
        yield file


def check_num_parts(info: GraphInfo, num_parts: int) -> None:
    """Raise ShardError unless the graph was cut into `num_parts` parts."""
    if info.num_parts != num_parts:
        parts = "1 part" if info.num_parts == 1 else f"{info.num_parts} parts"
        started = "1 rank was" if num_parts == 1 else f"{num_parts} ranks were"
        raise ShardError(f"{info.name} was partitioned into {parts} but {started} started; "
                         f"use mpirun -n {info.num_parts} or run hpcgnn preprocess --parts {num_parts}")


def verify_shards(folder: Path, progress: Progress = silent) -> GraphInfo:
    """Check every file of a folder from end to end, and that the parts fit each other.

    In memory at a time: the owner and the cluster of each node, and one part.

    Raises ShardError as read_partition, and for a node in no part or in a wrong one, parts with lists that differ,
    or clusters with another digest than graph.h5 has.
    """
    info = read_graph_info(folder)
    owner = read_owner(folder, info)
    cluster = np.empty(info.num_nodes if info.num_clusters else 0, np.int32)
    needed = np.empty((info.num_parts, info.num_parts), np.int64)
    promised, in_split = np.empty_like(needed), np.zeros(3, np.int64)
    task = progress("verifying parts", info.num_parts)
    for number in range(info.num_parts):
        part = read_partition(folder, number, info.num_parts, info)
        fault = find_row_fault(part) or _find_owner_fault(part, owner)
        if fault is not None:
            raise ShardError(f"{schema.part_file(folder, number)} {fault}; {AGAIN}")
        needed[number] = needed_digests(part, info.run_id, range(info.num_parts))
        promised[:, number] = sent_digests(part, info.run_id, range(info.num_parts))
        if part.cluster is not None:
            cluster[part.inner_id] = part.cluster
        in_split += [np.count_nonzero(mask) for mask in (part.train_mask, part.val_mask, part.test_mask)]
        task.advance(1)
    for receiver, sender in np.argwhere(needed != promised)[:1]:
        raise ShardError(f"{folder}: the rows that part {receiver} needs of part {sender} differ from the rows that "
                         f"part {sender} sends to it; {AGAIN}")
    if info.num_clusters and hash_clusters(cluster) != info.cluster_digest:
        raise ShardError(f"{folder} has clusters that do not match the cluster_digest of graph.h5; {AGAIN}")
    if in_split.tolist() != [info.num_train, info.num_val, info.num_test]:
        raise ShardError(f"{folder} has {', '.join(map(str, in_split))} nodes in the train, val and test masks of its "
                         f"parts, and graph.h5 says {info.num_train}, {info.num_val}, {info.num_test}; {AGAIN}")
    return info


def _find_owner_fault(part: Partition, owner: np.ndarray) -> str | None:
    if (owner[part.inner_id] != part.part).any():
        return "has inner_id that graph.h5 gives to another part"
    if not np.array_equal(owner[part.halo_id], np.repeat(np.arange(part.num_parts), np.diff(part.halo_offset))):
        return "has halo_id under another owner than graph.h5 names"
    return None
