"""Workloads of `hpcgnn bench accelerator`: counts of a trained model's codes, or of a graph with drawn ones; sweeps.

A trained model runs once on its whole graph, and the codes that each of its maps reads are counted. A graph without a
model gets GCN, GIN and SAGE of two layers with assumed widths. `values_by_degree` shows why rows with many neighbors
need more bits (MEGA's Fig. 3).
"""

from __future__ import annotations

import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse

from hpcgnn.accelerators.workload import NUM_SLICES, FeatureCounts, Product, Workload
from hpcgnn.bench.graphs import DRAWN, Topology, read_topology
from hpcgnn.bench.inference import models_of, read_models, refuse_waiting
from hpcgnn.bench.inference_host import bit_rows
from hpcgnn.bench.inference_work import BatchedGraph
from hpcgnn.data.dataset import GraphDataset
from hpcgnn.data.options import SourceOptions
from hpcgnn.data.source import load_source
from hpcgnn.errors import ConfigError
from hpcgnn.graph.reductions import degree_factor
from hpcgnn.lowbit.inference.coded_rows import CodedRows, LayerRows
from hpcgnn.lowbit.inference.host_pass import REDUCTIONS, RankNeighborhood, forward_codes
from hpcgnn.lowbit.integer_model import IntegerModel
from hpcgnn.lowbit.package import PackagedRows
from hpcgnn.nn.layers import LINEAR

MOST_POINTS = 64      # runs of a sweep


def read_workloads(sources: tuple[str, ...], seen: list[DegreeValues]) -> Iterator[Workload]:
    """Yield the workload of each trained model, and of gcn, gin and sage for each graph without a model.

    Parameters
    ----------
    sources : tuple of str      .npz archives, model files (.h5), and drawn:NAME with a name of DRAWN_GRAPHS; a graph
                                followed by ":gcn", ":gin" or ":sage" gets this model only
    seen : list                 is filled with a trained model's values by in-degree

    Raises ConfigError: a model without its graph among the sources, or of an unsupported kind; an unknown name.
    """
    waiting = read_models(Path(one) for one in sources if one.endswith(".h5"))
    for said in (one for one in sources if not one.endswith(".h5")):
        source, _, kind = said.rpartition(":")
        source, kinds = (source, (kind,)) if kind in HIDDEN else (said, tuple(HIDDEN))
        if source.startswith(DRAWN):
            yield from drawn_workloads(source.removeprefix(DRAWN), kinds)
            continue
        if not _has_labels(source):
            for kind in kinds:
                yield topology_workload(read_topology(Path(source)), kind)
            continue
        dataset = load_source(f"npz:{source}", SourceOptions(feature_kind="auto", normalize_features="auto"))
        fitting = models_of(waiting, dataset)
        work = BatchedGraph.whole(dataset) if fitting else None
        for path in fitting:
            model = waiting.pop(path)
            seen.append(values_by_degree(path.stem, work, model))
            yield trained_workload(work, model, path.stem)
        if not fitting:
            for kind in kinds:
                yield untrained_workload(dataset, kind)
    refuse_waiting(waiting)


@dataclass(frozen=True)
class Sweep:
    """Values that one number of the first design takes in turn.

    `path` is one of `Design.names` or "workload.bit_width".
    """

    path: str
    values: tuple[Any, ...]

    @classmethod
    def parse(cls, text: str) -> Sweep:
        """Read PATH=VALUES: values with commas, or FIRST:LAST, which doubles; a value with slashes is a list.

        Raises ConfigError: another form, or too many values.
        """
        path, equals, said = text.partition("=")
        first, colon, last = said.partition(":")
        try:
            if not equals or not path or not said:
                raise ValueError
            values = _doubled(float(first), float(last)) if colon else [_value(word) for word in said.split(",")]
        except ValueError:
            raise ConfigError(f"--sweep {text!r} can't be read; expected PATH=A,B,C or PATH=FIRST:LAST, as in "
                              "buffers.input=64:1024 or rules.package_lengths=64/128/192,32/64/96") from None
        if len(values) > MOST_POINTS:
            raise ConfigError(f"--sweep {text!r} asks for {len(values)} runs; expected at most {MOST_POINTS}")
        return cls(path, tuple(values))


def _doubled(first: float, last: float) -> list[float | int]:
    if not 0 < first <= last:
        raise ValueError
    values: list[float | int] = []
    while first <= last and len(values) <= MOST_POINTS:
        values.append(int(first) if first == int(first) else first)
        first *= 2
    return values


def _value(word: str) -> Any:
    if "/" in word:
        return [int(part) for part in word.split("/")]
    try:
        number = float(word)
    except ValueError:
        if not word:
            raise
        return word
    return int(number) if number == int(number) else number


@dataclass(frozen=True)
class DegreeValues:
    """Mean absolute values of aggregated rows, by in-degree."""

    name: str
    in_degree: np.ndarray    # (n,) int64, the in-degrees that occur, ascending
    mean: np.ndarray         # (n,) float64, over the columns of all rows with this in-degree


def values_by_degree(name: str, work: BatchedGraph, model: IntegerModel) -> DegreeValues:
    """Sum the rows that a model's first convolution maps, as it does, and average them by in-degree."""
    convolution, rows, part = model.convolutions[0], bit_rows(work, model), work.part
    weights = convolution.neighbor
    mapped = rows.product(0, len(work.in_degree), weights) * rows.step[:, None] * weights.scale.step
    arcs = scipy.sparse.csr_matrix((np.ones(len(part.indices), np.float32), part.indices, part.indptr),
                                   shape=(len(mapped), len(mapped)))
    factor = degree_factor(work.in_degree, REDUCTIONS[convolution.kind])
    if convolution.kind == "gcn":
        mapped *= factor[:, None]
    sums = arcs @ mapped + ((1 + convolution.epsilon) * mapped if convolution.kind != "sage" else 0)
    values = np.abs(sums if factor is None else sums * factor[:, None]).mean(axis=1)
    in_degree, place, count = np.unique(work.in_degree, return_inverse=True, return_counts=True)
    return DegreeValues(name, in_degree.astype(np.int64), np.bincount(place, values) / count)


def draw_degrees(path: Path, found: list[DegreeValues]) -> None:
    """Draw one panel per model; nothing without models. Raises ConfigError where the file can't be written."""
    from matplotlib.figure import Figure

    if not found:
        return
    figure = Figure(figsize=(8, 2.6 * len(found)), layout="constrained")
    for axes, one in zip(figure.subplots(len(found), squeeze=False)[:, 0], found, strict=True):
        axes.scatter(one.in_degree, one.mean, s=8)
        axes.set(xlabel="in-degree", ylabel="mean |value|", title=f"{one.name}: after the first aggregation (Fig. 3)")
    save_picture(figure, path)


def save_picture(figure: Any, path: Path) -> None:
    try:
        figure.savefig(path, dpi=130)
    except OSError as error:
        raise ConfigError(f"{path} can't be written: {error}") from error


HIDDEN = {"gcn": 128, "gin": 128, "sage": 256}      # columns between two layers; MEGA, Table III
NUM_SAMPLED = 25                                    # neighbors per node in GraphSage; MEGA, Table III
SEED = 0                                            # seed of drawn neighbors and counts
HIDDEN_DENSITY = 0.5                                # assumed: ReLU leaves half of the centered values
NUM_FEATURES, NUM_CLASSES = 128, 40                 # assumed for a graph without features and labels
# Assumed for a graph without a trained model: (share of nodes with fewer in-neighbors, width from there on).
DRAWN_WIDTHS = ((0.0, 2), (0.8, 3), (0.95, 4), (0.99, 6))


@dataclass(frozen=True)
class DrawnGraph:
    """A graph drawn with the sizes of MEGA's Table II, because its data is not at hand.

    `density` is the share of nonzero features (GCNAX, Table I).
    """

    num_nodes: int
    num_arcs: int
    num_features: int
    num_classes: int
    density: float


DRAWN_GRAPHS = {
    "nell": DrawnGraph(65_755, 251_550, 61_278, 210, 0.0001),
    "reddit": DrawnGraph(232_965, 114_615_892, 602, 41, 1.0),
    # ogbn-products has 2,449,029 nodes and 61,859,140 edges in one direction.
    "products": DrawnGraph(2_449_029, 123_718_280, 100, 47, 1.0),
}


def trained_workload(work: BatchedGraph, model: IntegerModel, name: str) -> Workload:
    firsts: list[FeatureCounts] = []
    seconds: list[list[FeatureCounts]] = []

    def observe(rows: LayerRows) -> None:
        firsts.append(counts_of_packages(rows.packages()))
        seconds.append([])

    def observe_second(_: int, rows: CodedRows) -> None:
        seconds[-1].append(counts_of_packages(rows.packages()))

    rows = bit_rows(work, model)
    forward_codes(model, rows, RankNeighborhood(work.part, work.alone), observe, observe_second)
    products = []
    for number, (convolution, first) in enumerate(zip(model.convolutions, firsts, strict=True)):
        out_dim = len(convolution.neighbor.codes)
        combined = out_dim * (1 if convolution.own is None else 2)
        products.append(Product(f"layer {number + 1}", first, combined, out_dim))
        if convolution.second is not None:
            products.append(Product(f"layer {number + 1}, second map", joined(seconds[number]),
                                    len(convolution.second.codes), 0))
    # Rows and edges are in the order of the part.
    indptr, indices = arcs_of_model(work.part.indptr, work.part.indices, model.convolutions[0].kind)
    return Workload(name, indptr, indices, tuple(products))


def counts_of_packages(packed: PackagedRows) -> FeatureCounts:
    slice_dim = -(-packed.dim // NUM_SLICES)
    nonzeros = np.zeros((packed.num_rows, NUM_SLICES), np.int32)
    for first, codes in packed.blocks(max(1, (1 << 24) // packed.dim)):
        for index in range(NUM_SLICES):
            columns = codes[:, index * slice_dim:(index + 1) * slice_dim]
            nonzeros[first:first + len(codes), index] = np.count_nonzero(columns, axis=1)
    return FeatureCounts(nonzeros, np.maximum(packed.bit_width(), 1), packed.dim)


def joined(parts: list[FeatureCounts]) -> FeatureCounts:
    return FeatureCounts(np.concatenate([part.nonzeros for part in parts]),
                         np.concatenate([part.bit_width for part in parts]), parts[0].dim)


def untrained_workload(dataset: GraphDataset, kind: str) -> Workload:
    """Count a graph's features as they are; widths and hidden rows are assumed."""
    rng = np.random.default_rng(SEED)
    in_degree = np.diff(dataset.indptr)
    features = FeatureCounts(_feature_counts(dataset.features), drawn_widths(in_degree), dataset.features.shape[1])
    return _drawn_model(Topology(dataset.name, dataset.indptr.astype(np.int64), dataset.indices.astype(np.int32)),
                        features, dataset.num_classes or NUM_CLASSES, kind, rng)


def _has_labels(source: str) -> bool:
    try:
        with np.load(source, allow_pickle=False) as archive:
            return bool({"labels", "targets"} & set(archive.files))
    except (OSError, ValueError, zipfile.BadZipFile):
        return True


def topology_workload(graph: Topology, kind: str) -> Workload:
    """Take a graph without features; NUM_FEATURES nonzero columns and NUM_CLASSES classes are assumed."""
    rng = np.random.default_rng(SEED)
    nonzeros = np.full((graph.num_nodes, NUM_SLICES), NUM_FEATURES // NUM_SLICES, np.int32)
    features = FeatureCounts(nonzeros, drawn_widths(np.diff(graph.indptr)), NUM_FEATURES)
    return _drawn_model(graph, features, NUM_CLASSES, kind, rng)


def drawn_workloads(name: str, kinds: tuple[str, ...]) -> Iterator[Workload]:
    """Draw a graph with the sizes in DRAWN_GRAPHS and power-law in-degrees, and counts of its features.

    Raises ConfigError for an unknown name.
    """
    if name not in DRAWN_GRAPHS:
        raise ConfigError(f"there is no {DRAWN}{name}; choose {', '.join(DRAWN + one for one in DRAWN_GRAPHS)}")
    graph, rng = DRAWN_GRAPHS[name], np.random.default_rng(SEED)
    arcs = draw_arcs(graph.num_nodes, graph.num_arcs, rng)
    topology = Topology(name, *arcs)
    slice_dim = -(-graph.num_features // NUM_SLICES)
    columns = np.clip(graph.num_features - np.arange(NUM_SLICES) * slice_dim, 0, slice_dim)
    nonzeros = rng.binomial(columns, graph.density, (graph.num_nodes, NUM_SLICES)).astype(np.int32)
    features = FeatureCounts(nonzeros, drawn_widths(np.diff(topology.indptr)), graph.num_features)
    for kind in kinds:
        yield _drawn_model(topology, features, graph.num_classes, kind, rng)


def draw_arcs(num_nodes: int, num_arcs: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Draw edges of a graph with communities and power-law degrees (exponent 3).

    One end of an edge is node floor(n u^2) of a random order, u uniform. The other end is one of the 256 nodes around
    it in that order for half of the edges (assumed), and drawn as the first end for the others.

    Returns
    -------
    indptr : (num_nodes + 1,) int64
    indices : (at most num_arcs,) int32, ascending within a row, without duplicates
    """
    first = np.minimum((rng.random(num_arcs) ** 2 * num_nodes).astype(np.int64), num_nodes - 1)
    place = rng.permutation(num_nodes)
    node_at = np.argsort(place)
    second = np.minimum((rng.random(num_arcs) ** 2 * num_nodes).astype(np.int64), num_nodes - 1)
    is_near = rng.random(num_arcs) < 0.5
    near = node_at[(place[first[is_near]] + rng.integers(-128, 129, int(is_near.sum()))) % num_nodes]
    second[is_near] = near
    key = np.unique(first * num_nodes + second)
    row, column = key // num_nodes, key % num_nodes
    kept = row != column
    indptr = np.concatenate([[0], np.cumsum(np.bincount(row[kept], minlength=num_nodes))]).astype(np.int64)
    return indptr, column[kept].astype(np.int32)


def drawn_widths(in_degree: np.ndarray) -> np.ndarray:
    rank = np.argsort(np.argsort(in_degree, kind="stable"), kind="stable") / max(len(in_degree), 1)
    width = np.empty(len(in_degree), np.uint8)
    for share, bits in DRAWN_WIDTHS:
        width[rank >= share] = bits
    return width


def _drawn_model(graph: Topology, features: FeatureCounts, num_classes: int, kind: str,
                 rng: np.random.Generator) -> Workload:
    hidden = HIDDEN[kind]
    slice_dim = -(-hidden // NUM_SLICES)
    nonzeros = rng.binomial(slice_dim, HIDDEN_DENSITY, (graph.num_nodes, NUM_SLICES)).astype(np.int32)
    between = FeatureCounts(nonzeros, features.bit_width, hidden)
    rows = [features, between]
    if kind == "gin":
        maps = [("layer 1", features, hidden, hidden), ("layer 1, second map", between, hidden, 0),
                ("layer 2", between, hidden, hidden), ("layer 2, second map", between, num_classes, 0)]
    else:
        copies = 1 + LINEAR[kind].has_self
        maps = [(f"layer {number + 1}", rows[number], copies * dim, dim) for number, dim in
                enumerate((hidden, num_classes))]
    indptr, indices = arcs_of_model(graph.indptr, graph.indices, kind)
    return Workload(f"{graph.name} {kind}", indptr, indices, tuple(Product(*one) for one in maps))


def arcs_of_model(indptr: np.ndarray, indices: np.ndarray, kind: str) -> tuple[np.ndarray, np.ndarray]:
    """The CSR that a model sums over: with self-loops for gcn and gin, at most NUM_SAMPLED edges per node for sage."""
    num_nodes = len(indptr) - 1
    if kind == "sage":
        return sampled(indptr, indices, NUM_SAMPLED, np.random.default_rng(SEED))
    nodes = np.arange(num_nodes, dtype=np.int32)
    row = np.repeat(nodes, np.diff(indptr))
    column = np.empty(len(indices) + num_nodes, np.int32)
    # An edge moves by the number of self-loops inserted before it.
    column[np.arange(len(indices)) + row + (indices > row)] = indices
    column[indptr[:-1] + nodes + np.bincount(row[indices < row], minlength=num_nodes)] = nodes
    return indptr + np.arange(num_nodes + 1), column


def sampled(indptr: np.ndarray, indices: np.ndarray, most: int,
            rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Keep at most `most` edges of each row, evenly spaced from a random start, so that each is equally likely."""
    num_arcs = np.diff(indptr)
    num_kept = np.minimum(num_arcs, most)
    start = np.concatenate([[0], np.cumsum(num_kept)]).astype(np.int64)
    rank = np.arange(start[-1]) - np.repeat(start[:-1], num_kept)
    begin = np.where(num_arcs > most, rng.random(len(num_arcs)), 0)
    step = num_arcs / np.maximum(num_kept, 1)
    place = ((rank + np.repeat(begin, num_kept)) * np.repeat(step, num_kept)).astype(np.int64)
    return start, indices[np.repeat(indptr[:-1], num_kept) + place].astype(np.int32)


def _feature_counts(features: np.ndarray | scipy.sparse.csr_matrix) -> np.ndarray:
    rows = scipy.sparse.csr_matrix(features)
    slice_dim = -(-rows.shape[1] // NUM_SLICES)
    kept = rows.data != 0
    row = np.repeat(np.arange(rows.shape[0]), np.diff(rows.indptr))[kept]
    key = row * NUM_SLICES + rows.indices[kept] // slice_dim
    return np.bincount(key, minlength=rows.shape[0] * NUM_SLICES).reshape(-1, NUM_SLICES).astype(np.int32)
