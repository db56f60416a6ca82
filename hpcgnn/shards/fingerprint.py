"""Fingerprint: what tells a graph, its split and its features from others of the same name. Nothing is hashed here."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

from hpcgnn.errors import CheckpointError, HpcgnnError

if TYPE_CHECKING:
    from hpcgnn.shards.schema import GraphInfo

DIGEST_BYTES = 16
DIGEST = re.compile(f"[0-9a-f]{{{2 * DIGEST_BYTES}}}")


@dataclass(frozen=True)
class Fingerprint:
    """Digests of the cleaned source graph, 32 hexadecimal digits each.

    They depend neither on the number of parts nor on the partitioner or the order of rows, so shards of one source that
    was cut in several ways have the same.

    Attributes
    ----------
    graph : str               nodes and arcs
    split : str               labels, number of classes, and the three masks
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


def check_fingerprint(source: str, written: Fingerprint, info: GraphInfo, other_graph: bool,
                      error: type[HpcgnnError] = CheckpointError) -> None:
    """Check that something was made on the graph, the split and the features that these shards hold.

    Parameters
    ----------
    source : str              what was made, as a sentence names it
    written : Fingerprint     of the shards that it was made on
    info : GraphInfo          of the shards that it is to work on
    other_graph : bool        the user said --other-graph: anything is accepted

    Raises
    ------
    error                     names what differs
    """
    found = written.differences(info.fingerprint)
    if found and not other_graph:
        raise error(f"{source} was made on other data of the name {info.name} than these shards hold: its "
                    f"{_joined(found)} {'differ' if len(found) > 1 or found[0] == 'features' else 'differs'}; name the "
                    "shards that it was made on, or pass --other-graph if other ones are meant")


def _joined(names: tuple[str, ...]) -> str:
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))
