"""Mean values after the first aggregation by in-degree: MEGA's Fig. 3, why rows with many in-neighbors are wider."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import scipy.sparse

from hpcgnn.bench.inference_host import bit_rows
from hpcgnn.bench.inference_work import BatchedGraph
from hpcgnn.errors import ConfigError
from hpcgnn.graph.normalization import degree_factor
from hpcgnn.inference.neighborhood import REDUCTIONS
from hpcgnn.quantized.integer_model import IntegerModel


@dataclass(frozen=True)
class DegreeValues:
    """Mean absolute values of aggregated rows.

    Attributes
    ----------
    name : str                       of the model
    in_degree : (n,) int64           that occur, ascending
    mean : (n,) float64              over the columns of all rows with this in-degree
    """

    name: str
    in_degree: np.ndarray
    mean: np.ndarray


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
    """Draw one panel a model, and nothing where there is none.

    Raises
    ------
    ConfigError      the file can't be written
    """
    from matplotlib.figure import Figure

    if not found:
        return
    figure = Figure(figsize=(8, 2.6 * len(found)), layout="constrained")
    for axes, one in zip(figure.subplots(len(found), squeeze=False)[:, 0], found, strict=True):
        axes.scatter(one.in_degree, one.mean, s=8)
        axes.set(xlabel="in-degree", ylabel="mean |value|", title=f"{one.name}: after the first aggregation (Fig. 3)")
    try:
        figure.savefig(path, dpi=130)
    except OSError as error:
        raise ConfigError(f"{path} can't be written: {error}") from error
