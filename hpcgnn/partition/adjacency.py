"""The undirected neighbor lists that a partitioner works on. They serve to choose owners and clusters; training keeps
the arcs.

No partitioner is called here.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from hpcgnn._ext import partition as kernels
from hpcgnn.datasets.arcs import RowsOfEntries, sort_arcs
from hpcgnn.datasets.dataset import GraphDataset
from hpcgnn.datasets.options import Progress, silent
from hpcgnn.errors import ConfigError

MAX_NODES = np.iinfo(np.int32).max


def symmetric_adjacency(dataset: GraphDataset, advice: str = "use --partitioner contiguous or random",
                        scratch: Path | None = None, progress: Progress = silent) -> tuple[np.ndarray, np.ndarray]:
    """Return neighbor lists of the graph with every arc taken in both directions.

    Parameters
    ----------
    scratch : Path or None    folder for arcs of a large directed graph while they are sorted, see sort_arcs
    progress : callable(description, total) -> ProgressTask

    Returns
    -------
    indptr : (num_nodes + 1,) int64
    indices : (num_neighbors,) int32, ascending within a row; the dataset's own arrays where it is symmetric already

    Raises
    ------
    ConfigError               the graph has more nodes than 32-bit ids can name
    """
    if dataset.num_nodes > MAX_NODES:
        raise ConfigError(f"{dataset.name} has {dataset.num_nodes} nodes, metis and ldg take at most {MAX_NODES}; "
                          f"{advice}")
    indptr = np.ascontiguousarray(dataset.indptr, dtype=np.int64)
    indices = np.ascontiguousarray(dataset.indices, dtype=np.int32)
    if kernels.has_symmetric_rows(indptr, indices, np.empty(dataset.num_nodes, np.int64)):
        return indptr, indices
    task = progress("adding reverse edges", 2 * len(indices))
    both = sort_arcs(indices, RowsOfEntries(indptr, len(indices), dataset.name), dataset.num_nodes, True, scratch, task)
    return both.indptr, both.indices
