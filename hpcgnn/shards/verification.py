"""Checks a whole folder of shards, part after part, and that the parts fit each other."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from hpcgnn.data.options import Progress, silent
from hpcgnn.errors import ShardError
from hpcgnn.partition.partition import Partition, needed_digests, sent_digests
from hpcgnn.shards import schema
from hpcgnn.shards.features import hash_clusters
from hpcgnn.shards.reader import read_graph_info, read_owner, read_partition
from hpcgnn.shards.schema import GraphInfo
from hpcgnn.shards.sealed import AGAIN
from hpcgnn.shards.structure import find_row_fault


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
    _check_pairs(folder, needed != promised)
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


def _check_pairs(folder: Path, differs: np.ndarray) -> None:
    for receiver, sender in np.argwhere(differs)[:1]:
        raise ShardError(f"{folder}: the rows that part {receiver} needs of part {sender} differ from the rows that "
                         f"part {sender} sends to it; {AGAIN}")
