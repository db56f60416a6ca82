"""Edges of the degree-corrected block model: pairs of nodes drawn in proportion to their power-law weights, no pair
twice. Labels and features are not known here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np

from hpcgnn.datasets.block_model import BlockModel
from hpcgnn.datasets.options import ProgressTask
from hpcgnn.errors import DatasetError

CHUNK_PAIRS = 1 << 23
MIN_DRAW = 1024
MAX_BARREN_ROUNDS = 20
# Fullest share of all possible pairs that is still drawn quickly.
MAX_FILL = 0.5
# Least copies of a node among the stubs: below it, rounding would distort the weights.
MIN_COPIES = 4


@dataclass(frozen=True)
class Stubs:
    """Nodes repeated in proportion to their weight and grouped by block, so that one random index draws a node.

    Attributes
    ----------
    node : (num_stubs,) int64 or int32
    block : (num_nodes,) int64
    start, length : (num_blocks,) int64     stubs of block b are node[start[b]:start[b] + length[b]]
    """

    node: np.ndarray
    block: np.ndarray
    start: np.ndarray
    length: np.ndarray


def draw_edges(model: BlockModel, block: np.ndarray, rng: np.random.Generator,
               task: ProgressTask) -> tuple[np.ndarray, np.ndarray]:
    """Draw the undirected edges, each once.

    Parameters
    ----------
    model : BlockModel
    block : (num_nodes,) int64        class of each node

    Returns
    -------
    source, target : (num_undirected_edges,) int32, int64 from 2**31 nodes on; source < target

    Raises
    ------
    DatasetError                      more edges inside or between classes than there is room for
    """
    num_within = round(model.homophily * model.num_undirected_edges)
    num_between = model.num_undirected_edges - num_within
    size = np.bincount(block, minlength=model.classes)
    room_within = int((size * (size - 1)).sum()) // 2
    room_between = model.nodes * (model.nodes - 1) // 2 - room_within
    _check_room(num_within, room_within, "inside classes")
    _check_room(num_between, room_between, "between classes")
    stubs = _make_stubs(model, block, rng)
    id_type = np.int32 if model.nodes < 1 << 31 else np.int64
    source, target = (np.empty(num_within + num_between, id_type) for _ in range(2))
    done = 0
    for wanted, draw in ((num_within, _pairs_within), (num_between, _pairs_between)):
        keys = _draw_distinct(wanted, partial(draw, stubs, rng=rng), rng, task)
        for first in range(0, wanted, CHUNK_PAIRS):
            chunk = keys[first:first + CHUNK_PAIRS]
            source[done:done + len(chunk)], target[done:done + len(chunk)] = np.divmod(chunk, model.nodes)
            done += len(chunk)
    return source, target


def _check_room(wanted: int, room: int, where: str) -> None:
    if wanted > MAX_FILL * room:
        raise DatasetError(f"synthetic: needs {wanted} edges {where}, more than half of the {room} possible ones; "
                           "lower mean_degree, or change homophily or classes")


def _make_stubs(model: BlockModel, block: np.ndarray, rng: np.random.Generator) -> Stubs:
    weight = (1 - rng.random(model.nodes)) ** (-1 / (model.exponent - 1))
    weight *= model.mean_degree / weight.mean()
    # A hub can't have more neighbors in its class than the class has nodes, so the tail is cut where it would.
    weight = np.minimum(weight, max(model.mean_degree, 0.5 * model.nodes / model.classes / max(model.homophily, 0.5)))
    copies = (weight * max(1.0, MIN_COPIES / weight.min()) + rng.random(model.nodes)).astype(np.int64)
    order = np.argsort(block, kind="stable").astype(np.int32 if model.nodes < 1 << 31 else np.int64)
    length = np.bincount(block, weights=copies, minlength=model.classes).astype(np.int64)
    return Stubs(np.repeat(order, copies[order]), block, np.cumsum(length) - length, length)


def _pairs_within(stubs: Stubs, count: int, rng: np.random.Generator) -> np.ndarray:
    first = stubs.node[rng.integers(len(stubs.node), size=count)]
    block = stubs.block[first]
    second = stubs.node[stubs.start[block] + (rng.random(count) * stubs.length[block]).astype(np.int64)]
    return _keys(first, second, first != second, len(stubs.block))


def _pairs_between(stubs: Stubs, count: int, rng: np.random.Generator) -> np.ndarray:
    first = stubs.node[rng.integers(len(stubs.node), size=count)]
    second = stubs.node[rng.integers(len(stubs.node), size=count)]
    return _keys(first, second, stubs.block[first] != stubs.block[second], len(stubs.block))


def _keys(first: np.ndarray, second: np.ndarray, keep: np.ndarray, num_nodes: int) -> np.ndarray:
    first, second = first[keep], second[keep]
    return np.minimum(first, second).astype(np.int64) * num_nodes + np.maximum(first, second)


def _draw_distinct(wanted: int, draw: Callable[[int], np.ndarray], rng: np.random.Generator,
                   task: ProgressTask) -> np.ndarray:
    """Draw exactly `wanted` distinct keys, ascending: drop what is there already, and draw again what is missing."""
    keys = np.empty(0, dtype=np.int64)
    num_barren = 0
    while (missing := wanted - len(keys)) > 0:
        fresh = _distinct(draw(min(CHUNK_PAIRS, max(MIN_DRAW, missing + missing // 4))))
        fresh = fresh[~_is_member(fresh, keys)]
        if len(fresh) > missing:
            fresh = rng.choice(fresh, missing, replace=False)
        num_barren = 0 if len(fresh) else num_barren + 1
        if num_barren > MAX_BARREN_ROUNDS:
            raise DatasetError(f"synthetic: found only {len(keys)} of {wanted} distinct edges; "
                               "lower mean_degree or raise exponent")
        # Two sorted runs: a stable sort merges them in linear time.
        keys = np.concatenate([keys, np.sort(fresh)])
        keys.sort(kind="stable")
        task.advance(len(fresh))
    return keys


def _distinct(values: np.ndarray) -> np.ndarray:
    """Distinct values, ascending; np.unique hashes 64-bit integers, which is several times slower than sorting them."""
    values.sort()
    is_first = np.ones(len(values), dtype=bool)
    np.not_equal(values[1:], values[:-1], out=is_first[1:])
    return values[is_first]


def _is_member(values: np.ndarray, ordered: np.ndarray) -> np.ndarray:
    if len(ordered) == 0:
        return np.zeros(len(values), dtype=bool)
    position = np.minimum(np.searchsorted(ordered, values), len(ordered) - 1)
    return ordered[position] == values
