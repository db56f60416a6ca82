"""Relations of a graph's edges, and the relation by which an edge's reverse is stored.

`--symmetrize` gives every edge (u, r, v) of R relations the reverse (v, r + R, u). Three relations likes, knows, owns
become six: the reverse of knows (1) is "knows reverse" (4), and the reverse of that is knows. "Who likes v?" then asks
for the target of v by "likes reverse", so every question is about targets.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hpcgnn.data.hold_out import num_reversible


@dataclass(frozen=True)
class Relations:
    """The relations of a graph.

    number : int               0 if edges are of one kind
    has_reverses : bool        each edge of relation r has a reverse of relation r + number / 2
    """

    number: int = 0
    has_reverses: bool = False

    @classmethod
    def of(cls, names: tuple[str, ...]) -> Relations:
        return cls(len(names), num_reversible(names) > 0)

    def reverse(self, relation: np.ndarray) -> np.ndarray:
        """The relation of each edge's reverse."""
        return (relation + self.number // 2) % self.number
