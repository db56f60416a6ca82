"""Loads of a larger graph of the same kind, from those of a smaller one in as many parts. It is a prediction."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

import numpy as np

from hpcgnn.errors import ConfigError
from hpcgnn.planning.loads import Pairs, PartLoads


@dataclass(frozen=True)
class GraphSizes:
    """Sizes of a graph; edges are arcs, both directions of an undirected edge. `train` may be left out, as 0: then the
    share of training nodes is the smaller graph's.
    """

    nodes: int
    edges: int
    features: int
    classes: int
    train: int = 0


def parse_sizes(text: str) -> GraphSizes:
    """Read "nodes=111059956,edges=3228124712,features=128,classes=172".

    Raises
    ------
    ConfigError      a size that is missing, unknown, given twice or no positive whole number
    """
    names, found = [own.name for own in fields(GraphSizes)], {}
    for item in text.split(","):
        name, _, number = item.strip().partition("=")
        if name not in names:
            raise ConfigError(f"--as has {item.strip()!r}; expected {', '.join(f'{known}=N' for known in names)}")
        if name in found or not number.isdigit() or int(number) == 0:
            raise ConfigError(f"--as has {item.strip()!r}; expected {name}=N once, with a positive whole number N")
        found[name] = int(number)
    missing = [name for name in names if name not in found and name != "train"]
    if missing:
        raise ConfigError(f"--as lacks {missing[0]}=N; expected {', '.join(f'{name}=N' for name in names)}")
    return GraphSizes(**found)


def drawn_training_nodes(num_nodes: int, larger: GraphSizes, seed: int) -> np.ndarray:
    """Draw as large a share of a smaller graph's nodes as the larger graph trains on, (num_nodes,) bool."""
    chosen = np.zeros(num_nodes, bool)
    count = max(1, round(num_nodes * min(1.0, larger.train / larger.nodes)))
    chosen[np.random.default_rng(seed).choice(num_nodes, count, replace=False)] = True
    return chosen


def scaled_loads(loads: PartLoads, larger: GraphSizes, smaller: GraphSizes) -> PartLoads:
    """Even the parts out and grow them: rows with the nodes, arcs with the edges, and halo rows with the rows.

    So the larger graph is taken to look the same at its own size, cut into as many parts: a part's halo rows over its
    rows stay what they are. Denser graphs have more, up to all; graphs of local structure have fewer, the larger their
    parts. All parts have the mean's rows and arcs, since one that a hub fills alone is no picture of a part that is
    hundreds of times as large: how uneven a cut of the larger graph would be is not predicted.
    """
    loads = evened(loads)
    rows, arcs = larger.nodes / smaller.nodes, larger.edges / smaller.edges
    growth = {"num_inner": rows, "num_halo": rows, "rows_within": rows, "num_edges": arcs, "arcs_within": arcs,
              "far_arcs_within": arcs, "central_arcs_within": arcs}
    grown = {name: _times(getattr(loads, name), factor) for name, factor in growth.items()}
    pairs = loads.pairs
    return replace(loads, pairs=Pairs(pairs.source, pairs.destination, _times(pairs.rows_within, rows),
                                      _times(pairs.rows, rows)), **grown)


def evened(loads: PartLoads) -> PartLoads:
    """Give all parts the mean's rows and arcs; each then receives from the same parts as before, in proportion."""
    amounts = {own.name: getattr(loads, own.name) for own in fields(loads)
               if isinstance(getattr(loads, own.name), np.ndarray)}
    means = {name: np.repeat(amount.mean(axis=0, keepdims=True), loads.num_parts, axis=0)
             for name, amount in amounts.items()}
    pairs = loads.pairs
    shares = [column * _ratio(column, pairs.destination, loads.num_parts)[pairs.destination]
              for column in (*pairs.rows_within.T, pairs.rows)]
    even = Pairs(pairs.source, pairs.destination, np.stack(shares[:-1], axis=1), shares[-1])
    return replace(loads, pairs=even, shared=None, **means)


def _ratio(rows: np.ndarray, destination: np.ndarray, num_parts: int) -> np.ndarray:
    """Return the mean rows that parts receive over those of each, (num_parts,)."""
    received = np.bincount(destination, weights=rows, minlength=num_parts)
    return received.mean() / np.maximum(received, 1)


def _times(amount: np.ndarray, factor: float) -> np.ndarray:
    return np.round(amount * factor).astype(np.int64)
