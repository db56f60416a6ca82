"""The peers' arrays and the sum of ceilings of `hpcgnn bench epoch`, computed in another process by `call_in_child`."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch

from hpcgnn.bench.place import PRECISION, Place, Work
from hpcgnn.bench.timing import OURS, Effort
from hpcgnn.errors import DatasetError
from hpcgnn.shards.reader import read_graph_info
from hpcgnn.shards.source import whole_graph

PLACE = Place(Effort(repeat=5))
NODE_ARRAYS = ("features", "labels", "train_mask", "val_mask", "test_mask")


def count_parts(shards: Path) -> int:
    return read_graph_info(shards).num_parts


def export_arrays(shards: Path, out: Path) -> dict[str, Any]:
    """Write the whole graph of a folder of shards as an .npz archive; return its sizes.

    Raises DatasetError: nodes have several labels; the peers' drivers need one class.
    """
    info = read_graph_info(shards)
    if info.is_multi_label:
        raise DatasetError(f"{info.name} has several labels per node; this benchmark needs one class per node")
    dataset = whole_graph(shards, info)
    nodes: dict[str, Any] = {name: getattr(dataset, name) for name in NODE_ARRAYS}
    order = np.lexsort((dataset.indices, np.repeat(np.arange(info.num_nodes), np.diff(dataset.indptr))))
    np.savez(out, indptr=dataset.indptr, indices=dataset.indices[order].astype(np.int32), num_classes=info.num_classes,
             **nodes)
    return {"name": info.name, "num_features": info.num_features, "num_classes": info.num_classes}


def epoch_ceiling(arrays: Path, dims: list[int], model: str, precision: str) -> dict[str, float]:
    """Seconds that the products, sums and passes of one epoch would take, each alone at its ceiling.

    `dims` are the columns of input, hidden layers and output.
    """
    with np.load(arrays) as archive:
        indptr, indices = archive["indptr"], archive["indices"]
    num_nodes, dtype = len(indptr) - 1, PRECISION[precision]
    gathers = {width: _median(PLACE.gathering(PLACE.random_rows(num_nodes, width, dtype), indices))
               for width in set(layer_widths(dims))}
    return {"products": _product_seconds(num_nodes, layer_products(dims, 2 if model == "sage" else 1), precision),
            "sums": sum(gathers[width] for width in layer_widths(dims)),
            "passes": _pass_seconds(num_nodes, dims, dtype)}


def layer_products(dims: list[int], per_layer: int) -> list[tuple[int, int, int]]:
    """Multiplications, columns read and columns written per node of each layer's products.

    Lists the forward, the weights' gradient, and the rows' gradient except the input's. The narrower side is summed
    over neighbors and counts once per weight; the wider one counts once for all weights.
    """
    products = []
    for layer, (left, right) in enumerate(pairwise(dims)):
        num_in, num_out = (left, per_layer * right) if right < left else (per_layer * left, right)
        columns = [(num_in, num_out), (num_in + num_out, 0)] + ([(num_out, num_in)] if layer else [])
        products += [(per_layer * left * right, *sides) for sides in columns]
    return products


def _product_seconds(num_nodes: int, products: list[tuple[int, int, int]], precision: str) -> float:
    # On registers, or the time to read and write memory if that is longer.
    whole = sum(multiplied for multiplied, *_ in products)
    seconds = _median(PLACE.multiplying(precision, num_nodes * whole)) / whole
    row_bytes = num_nodes * PRECISION[precision].itemsize
    return sum(max(seconds * multiplied, _median(PLACE.moving(row_bytes * read, row_bytes * written)))
               for multiplied, read, written in products)


def layer_widths(dims: list[int]) -> list[int]:
    """Columns of every sum over neighbors: each layer's narrower side, forward and backward.

    The first layer has no backward if it sums the constant input.
    """
    narrow = [min(pair) for pair in pairwise(dims)]
    return narrow + (narrow if dims[1] < dims[0] else narrow[1:])


def _pass_seconds(num_nodes: int, dims: list[int], dtype: torch.dtype) -> float:
    # Dropout of the input; each hidden matrix is read and written, and in the backward two are read and one is written.
    seconds = 0.0
    for layer, width in enumerate(dims[:-1]):
        num_bytes = num_nodes * width * dtype.itemsize
        seconds += _median(PLACE.moving(num_bytes, num_bytes))
        if layer:
            seconds += _median(PLACE.moving(2 * num_bytes, num_bytes))
    return seconds


def _median(work: Work) -> float:
    return PLACE.measure("epoch", "", 0.0, "s", {OURS: work}).median()
