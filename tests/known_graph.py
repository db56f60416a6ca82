"""A small graph as plain Python holds it, and what shards say of the same graph, both by the nodes' ids."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from hpcgnn.shards.reader import read_partition, verify_shards
from hpcgnn.shards.schema import GraphInfo

SPLITS = ("train", "val", "test")


@dataclass
class KnownGraph:
    """Arcs with weights, and by node features, label and split ("" for none)."""

    arcs: dict[tuple, float]
    features: dict[Any, list[float]]
    labels: dict[Any, Any]
    split: dict[Any, str] = field(default_factory=dict)

    @property
    def ids(self) -> list:
        return list(self.features)

    def ends(self) -> list[tuple]:
        return list(self.arcs)

    def weights(self) -> list[float]:
        return list(self.arcs.values())

    def matrix(self) -> np.ndarray:
        return np.array(list(self.features.values()), np.float32)

    def mask(self, word: str) -> np.ndarray:
        return np.array([self.split[node] == word for node in self.ids])

    def numbered(self) -> KnownGraph:
        """The same graph with nodes called 0, 1, 2, ..."""
        place = {node: number for number, node in enumerate(self.ids)}
        return self.renamed(place)

    def renamed(self, names: dict) -> KnownGraph:
        return KnownGraph({(names[u], names[v]): weight for (u, v), weight in self.arcs.items()},
                          *({names[node]: value for node, value in held.items()}
                            for held in (self.features, self.labels, self.split)))

    def both_ways(self) -> KnownGraph:
        """With the reverse of every arc that lacks it, of its weight."""
        arcs = {(v, u): weight for (u, v), weight in self.arcs.items()} | self.arcs
        return KnownGraph(arcs, self.features, self.labels, self.split)


def make_known_graph(num_nodes: int = 14, num_arcs: int = 40, seed: int = 3) -> KnownGraph:
    """A directed graph: text ids in no order, weights that float32 holds exactly, three classes by name."""
    rng = np.random.default_rng(seed)
    first = rng.choice(["zoe", "al", "bo"], num_nodes)
    ids = [f"{name}-é{number * 5 % num_nodes}" for number, name in enumerate(first)]
    codes = rng.choice(num_nodes * num_nodes, 2 * num_arcs, replace=False)
    pairs = [(int(code) // num_nodes, int(code) % num_nodes) for code in codes]
    arcs = {(ids[u], ids[v]): float(rng.integers(1, 64)) / 8 for u, v in pairs if u != v}
    arcs = dict(list(arcs.items())[:num_arcs])
    words = ["train", "val", "test", "train", ""] * num_nodes
    return KnownGraph(arcs, {node: rng.integers(-50, 50, 3).astype(float).tolist() for node in ids},
                      {node: str(rng.choice(["art", "bio", "law"])) for node in ids},
                      dict(zip(ids, words, strict=False)))


def graph_in_shards(folder: Path) -> KnownGraph:
    """Read all parts back; arcs weigh 1 where shards hold no weights."""
    return _graph_in_parts(folder, verify_shards(folder))


def _graph_in_parts(folder: Path, info: GraphInfo) -> KnownGraph:
    parts = [read_partition(folder, part, info.num_parts, info) for part in range(info.num_parts)]
    name_of = {}
    for part in parts:
        names = part.inner_id if part.inner_name is None else part.inner_name
        name_of |= dict(zip(part.inner_id.tolist(), names.tolist(), strict=True))
    found = KnownGraph({}, {}, {}, {})
    for part in parts:
        local = [name_of[node] for node in [*part.inner_id.tolist(), *part.halo_id.tolist()]]
        weight = np.ones(part.num_edges) if part.edge_weight is None else part.edge_weight
        for row in range(part.num_inner):
            for place in range(part.indptr[row], part.indptr[row + 1]):
                found.arcs[local[part.indices[place]], local[row]] = float(weight[place])
            found.features[local[row]] = part.features[row].tolist()
            found.labels[local[row]] = _label(info, part.labels[row])
            masks = (part.train_mask, part.val_mask, part.test_mask)
            found.split[local[row]] = next((word for word, mask in zip(SPLITS, masks, strict=True) if mask[row]), "")
    return found


def _label(info, label):
    if info.task == "classes" and info.class_names:
        return None if label < 0 else info.class_names[label]
    return label.tolist()


def assert_same(folder: Path, known: KnownGraph, has_weights: bool = True, has_splits: bool = True) -> None:
    """Check that shards hold a known graph, under its ids."""
    info = verify_shards(folder)
    found = _graph_in_parts(folder, info)
    assert info.has_edge_weights == has_weights
    assert found.arcs == (known.arcs if has_weights else dict.fromkeys(known.arcs, 1.0))
    assert found.features == known.features
    assert found.labels == known.labels
    if has_splits:
        assert found.split == known.split
