"""`synthetic:SETTINGS`: a degree-corrected stochastic block model with power-law degrees, planted labels and features.

Edges are pairs of nodes drawn in proportion to their weights, no pair twice. They are drawn in chunks, so drawing tens
of millions takes little more memory than the graph.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from functools import partial

import numpy as np

from hpcgnn.data.arcs import without_repeats
from hpcgnn.data.arrays import RowFile, keep_rows
from hpcgnn.data.assemble import assemble_dataset
from hpcgnn.data.cleaning import BYTES_A_NODE, build_csr
from hpcgnn.data.dataset import GraphDataset
from hpcgnn.data.labels import Labels
from hpcgnn.data.options import ProgressTask, SourceOptions, check_memory, convert_setting, split_settings
from hpcgnn.errors import DatasetError


@dataclass(frozen=True)
class BlockModel:
    """Settings of a synthetic graph. On the default one, models of two layers reach a test accuracy of 0.75 to 0.9.

    nodes : int
    mean_degree : float      neighbors per node; the graph has round(nodes * mean_degree / 2) undirected edges
    classes, features : int
    homophily : float        share of the edges that join two nodes of the same class
    exponent : float         exponent of the power law of the degrees, P(degree) ~ degree**-exponent, above 2
    signal : float           distance of a class's mean feature row from the origin, in standard deviations of the noise
    multi_label : bool       indicator rows: the node's class, often a companion class, seldom others
    relations : int          relations of edges, one of them drawn for each pair of nodes, the same both ways; 0: none
    seed : int
    """

    nodes: int = 20_000
    mean_degree: float = 20.0
    classes: int = 16
    features: int = 64
    homophily: float = 0.65
    exponent: float = 2.5
    signal: float = 0.5
    multi_label: bool = False
    relations: int = 0
    seed: int = 0

    def __post_init__(self) -> None:
        for setting, is_valid, expected in (
            ("classes", self.classes >= 2, "at least 2"),
            ("nodes", self.nodes >= 2 * self.classes, f"at least two for each of the {self.classes} classes"),
            ("mean_degree", 0 < self.mean_degree < self.nodes, f"a positive number below {self.nodes}"),
            ("features", self.features >= 1, "at least 1"),
            ("homophily", 0 <= self.homophily <= 1, "a number from 0 to 1"),
            ("exponent", 2 < self.exponent < float("inf"), "a number above 2"),
            ("signal", 0 <= self.signal < float("inf"), "a non-negative number"),
            ("relations", 0 <= self.relations < 1 << 31, "a non-negative integer"),
            ("seed", self.seed >= 0, "a non-negative integer"),
        ):
            if not is_valid:
                raise DatasetError(f"synthetic: has {setting}={getattr(self, setting)}; expected {expected}")

    @property
    def num_undirected_edges(self) -> int:
        return round(self.nodes * self.mean_degree / 2)


def parse_block_model(text: str, seed: int) -> BlockModel:
    """Read "nodes=1000,homophily=0.7"; `seed` is used if the text names none."""
    kinds = {field.name: type(field.default) for field in fields(BlockModel)}
    settings = split_settings(text, tuple(kinds), "synthetic:")
    values = {key: convert_setting(key, value, kinds[key], "synthetic:") for key, value in settings.items()}
    return BlockModel(**{"seed": seed, **values})


CHUNK_PAIRS = 1 << 23
MIN_DRAW = 1024
MAX_BARREN_ROUNDS = 20
# Largest share of all possible pairs that can still be drawn quickly.
MAX_FILL = 0.5
# Least copies of a node among the stubs: with fewer, rounding would distort the weights.
MIN_COPIES = 4


@dataclass(frozen=True)
class Stubs:
    """Nodes repeated in proportion to their weight and grouped by block, so that one random index draws a node.

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
        runs = _draw_distinct(wanted, partial(draw, stubs, rng=rng), rng, task)
        while runs:
            keys = runs.pop()
            for first in range(0, len(keys), CHUNK_PAIRS):
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
    # A hub can't have more neighbors in its class than the class has nodes, so the tail is cut there.
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
                   task: ProgressTask) -> list[np.ndarray]:
    """Distinct keys, int64, in runs that ascend, each at most half as long as the one before.

    So a key is moved about once for each doubling of their number.
    """
    runs: list[np.ndarray] = []
    missing, num_barren = wanted, 0
    while missing > 0:
        fresh = draw(min(CHUNK_PAIRS, max(MIN_DRAW, missing + missing // 4)))
        fresh.sort()      # np.unique hashes 64-bit integers, several times slower
        fresh = without_repeats(fresh)
        for run in runs:
            fresh = fresh[~_is_member(fresh, run)]
        if len(fresh) > missing:
            fresh = rng.choice(fresh, missing, replace=False)
        num_barren = 0 if len(fresh) else num_barren + 1
        if num_barren > MAX_BARREN_ROUNDS:
            raise DatasetError(f"synthetic: found only {wanted - missing} of {wanted} distinct edges; "
                               "lower mean_degree or raise exponent")
        missing -= len(fresh)
        task.advance(len(fresh))
        fresh.sort()
        runs.append(fresh)
        while len(runs) > 1 and 2 * len(runs[-1]) > len(runs[-2]):
            fresh = np.concatenate([runs.pop(), runs.pop()])
            fresh.sort(kind="stable")      # merges two ascending runs
            runs.append(fresh)
    return runs


def _is_member(values: np.ndarray, ordered: np.ndarray) -> np.ndarray:
    if len(ordered) == 0:
        return np.zeros(len(values), dtype=bool)
    position = np.minimum(np.searchsorted(ordered, values), len(ordered) - 1)
    return ordered[position] == values


FEATURE_BLOCK_ROWS = 1 << 16
COMPANION_PROBABILITY, STRAY_PROBABILITY = 0.5, 0.02


def load_synthetic(rest: str, options: SourceOptions) -> GraphDataset:
    """Generate the graph that the settings `rest` describe: undirected, named "synthetic", split at random.

    Reference: Karrer and Newman, Phys. Rev. E 83, 016107 (2011), the degree-corrected block model. Deviation: the
    numbers of edges inside and between classes are fixed rather than Poisson, and no pair is drawn twice, so mean
    degree and homophily are met exactly.
    """
    model = parse_block_model(rest, options.seed)
    feature_bytes = 4 * model.features if options.scratch is None else 0
    check_memory("synthetic", f"{model.nodes:,} nodes and {model.num_undirected_edges:,} edges",
                 model.nodes * (feature_bytes + BYTES_A_NODE) + 8 * model.num_undirected_edges)
    class_rng, edge_rng, label_rng, feature_rng = map(np.random.default_rng,
                                                      np.random.SeedSequence(model.seed).spawn(4))
    block = class_rng.integers(model.classes, size=model.nodes)
    source, target = draw_edges(model, block, edge_rng, options.progress("drawing edges", model.num_undirected_edges))
    graph = build_csr(source, target, model.nodes, True, "synthetic", options.progress, options.scratch)
    del source, target
    if model.relations:
        names = tuple(f"relation {number}" for number in range(model.relations))
        graph = graph._replace(edge_type=draw_relations(model, graph.indptr, graph.indices), relation_names=names)
    labels = _multi_labels(block, model.classes, label_rng) if model.multi_label else block
    features = _draw_features(model, labels, feature_rng, options) if options.feature_kind != "structural" else None
    return assemble_dataset("synthetic", graph, features, Labels(labels, model.classes), None,
                            replace(options, seed=model.seed))


def draw_relations(model: BlockModel, indptr: np.ndarray, indices: np.ndarray) -> np.ndarray:
    """The relation of each edge, (num_edges,) int32: a function of the seed and its two nodes, whatever their order."""
    relation = np.empty(len(indices), np.int32)
    salt = np.random.SeedSequence(model.seed).generate_state(1, np.uint64)
    for start in range(0, model.nodes, FEATURE_BLOCK_ROWS):
        ends = indptr[start:start + FEATURE_BLOCK_ROWS + 1]
        target = np.repeat(np.arange(start, start + len(ends) - 1), np.diff(ends))
        source = indices[ends[0]:ends[-1]].astype(np.int64)
        mixed = np.minimum(source, target) * model.nodes + np.maximum(source, target)
        # SplitMix64: Steele et al., OOPSLA 2014. Products wrap, as they are meant to.
        mixed = mixed.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15) + salt
        for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
            mixed = (mixed ^ (mixed >> np.uint64(shift))) * np.uint64(factor)
        mixed = (mixed ^ (mixed >> np.uint64(31))) >> np.uint64(32)
        relation[ends[0]:ends[-1]] = (mixed * np.uint64(model.relations)) >> np.uint64(32)
    return relation


def _multi_labels(block: np.ndarray, num_classes: int, rng: np.random.Generator) -> np.ndarray:
    # A node has its block's class, the next one with COMPANION_PROBABILITY, any other with STRAY_PROBABILITY.
    nodes = np.arange(len(block))
    labels = (rng.random((len(block), num_classes), dtype=np.float32) < STRAY_PROBABILITY).astype(np.uint8)
    has_companion = rng.random(len(block)) < COMPANION_PROBABILITY
    labels[nodes[has_companion], (block[has_companion] + 1) % num_classes] = 1
    labels[nodes, block] = 1
    return labels


def _draw_features(model: BlockModel, labels: np.ndarray, rng: np.random.Generator,
                   options: SourceOptions) -> np.ndarray | RowFile:
    # Standard normal noise around a random mean row per class; a node of several classes gets the sum of their means.
    means = rng.standard_normal((model.classes, model.features))
    means = (model.signal * means / np.linalg.norm(means, axis=1, keepdims=True)).astype(np.float32)
    task = options.progress("drawing features", model.nodes)

    def blocks() -> Iterator[np.ndarray]:
        for start in range(0, model.nodes, FEATURE_BLOCK_ROWS):
            label = labels[start:start + FEATURE_BLOCK_ROWS]
            features = rng.standard_normal((len(label), model.features), dtype=np.float32)
            features += label @ means if labels.ndim == 2 else means[label]
            task.advance(len(label))
            yield features

    return keep_rows(blocks(), options.scratch, "drawn features")
