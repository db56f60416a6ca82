"""Digests of the lists that two parts must hold alike: rows that one needs are those that the other sends.

Nobody is asked for them here.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import numpy as np

from hpcgnn.partition.partition import Partition


def needed_digests(part: Partition, key: str, peers: Iterable[int]) -> np.ndarray:
    """Digest the halo rows of each owning part of `peers`, (num_peers,) int64: ids, in-degrees, importance, in order.

    Parameters
    ----------
    key : str                 hashed too, so that lists of two generations of shards never agree
    """
    halo = slice(part.num_inner, None)
    return _digests(key, peers, part.halo_offset, part.halo_id, part.in_degree[halo], part.importance[halo])


def sent_digests(part: Partition, key: str, peers: Iterable[int]) -> np.ndarray:
    """Return the digest that each receiving part must have of what it needs of this one, (num_peers,) int64."""
    rows = part.boundary_index
    return _digests(key, peers, part.boundary_offset, part.inner_id[rows], part.in_degree[rows], part.importance[rows])


def _digests(key: str, peers: Iterable[int], offset: np.ndarray, *columns: np.ndarray) -> np.ndarray:
    found = []
    for peer in peers:
        first, last = int(offset[peer]), int(offset[peer + 1])
        digest = hashlib.blake2b(f"{key} {last - first}".encode(), digest_size=8)
        for column in columns:
            digest.update(np.ascontiguousarray(column[first:last]).data)
        found.append(int.from_bytes(digest.digest(), "little", signed=True))
    return np.array(found, np.int64)
