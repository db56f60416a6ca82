"""Fingerprint: what tells a graph, its split and its features from others of the same name. Nothing is hashed here."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields

DIGEST_BYTES = 16
DIGEST = re.compile(f"[0-9a-f]{{{2 * DIGEST_BYTES}}}")


@dataclass(frozen=True)
class Fingerprint:
    """Digests of the cleaned source graph, 32 hexadecimal digits each.

    They depend neither on the number of parts nor on the partitioner or the order of rows, so shards of one source that
    was cut in several ways have the same.

    Attributes
    ----------
    graph : str               nodes and arcs, and the arcs' weights where there are such
    split : str               labels or targets, their number of classes, and the three masks
    features : str            values as they are stored, and the form in which they are
    """

    graph: str
    split: str
    features: str

    def differences(self, other: Fingerprint) -> tuple[str, ...]:
        """Return names of the digests in which two fingerprints differ."""
        return tuple(item.name for item in fields(self) if getattr(self, item.name) != getattr(other, item.name))

    @property
    def is_valid(self) -> bool:
        """Tell whether each digest is well formed: lower-case hexadecimal digits of the right number."""
        return all(isinstance(digest, str) and DIGEST.fullmatch(digest)
                   for digest in (self.graph, self.split, self.features))
