"""Fingerprint: tells a graph, its split and its features from other data of the same name."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields

DIGEST_BYTES = 16
DIGEST = re.compile(f"[0-9a-f]{{{2 * DIGEST_BYTES}}}")


@dataclass(frozen=True)
class Fingerprint:
    """Digests of the cleaned source graph, 32 hexadecimal digits each.

    The digests do not depend on parts, partitioner or the order of rows: all shards of one source have the same.

    graph : str               nodes, and edges with their weights, relations and attributes
    split : str               labels or targets, the number of classes, and the three masks
    features : str            values as they are stored, and their form
    """

    graph: str
    split: str
    features: str

    def differences(self, other: Fingerprint) -> tuple[str, ...]:
        """Names of the digests that differ."""
        return tuple(item.name for item in fields(self) if getattr(self, item.name) != getattr(other, item.name))

    @property
    def is_valid(self) -> bool:
        return all(isinstance(digest, str) and DIGEST.fullmatch(digest)
                   for digest in (self.graph, self.split, self.features))
