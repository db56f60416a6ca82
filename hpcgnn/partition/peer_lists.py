"""Digests of the lists that two parts must hold alike: rows that one needs are those that the other sends.

Nobody is asked for them here.
"""

from __future__ import annotations

import hashlib

import numpy as np

from hpcgnn.partition.partition import Partition


def needed_digests(part: Partition, key: str) -> np.ndarray:
    """Digest the halo rows by owning part, (num_parts,) int64: their ids, in-degrees and importance, in order.

    Parameters
    ----------
    key : str                 hashed too, so that lists of two generations of shards never agree
    """
    halo = slice(part.num_inner, None)
    return _digests(key, part.halo_offset, part.halo_id, part.in_degree[halo], part.importance[halo])


def sent_digests(part: Partition, key: str) -> np.ndarray:
    """Return the digest that each receiving part must have of what it needs of this one, (num_parts,) int64."""
    rows = part.boundary_index
    return _digests(key, part.boundary_offset, part.inner_id[rows], part.in_degree[rows], part.importance[rows])


def _digests(key: str, offset: np.ndarray, *columns: np.ndarray) -> np.ndarray:
    found = np.empty(len(offset) - 1, np.int64)
    for peer, (first, last) in enumerate(zip(offset[:-1].tolist(), offset[1:].tolist(), strict=True)):
        digest = hashlib.blake2b(f"{key} {last - first}".encode(), digest_size=8)
        for column in columns:
            digest.update(np.ascontiguousarray(column[first:last]).data)
        found[peer] = int.from_bytes(digest.digest(), "little", signed=True)
    return found
