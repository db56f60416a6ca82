"""Graphs that come without labels and are trained on all the same: made labels, and every sign that they are made.

Which file the graph comes from is not known here.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from hpcgnn.datasets.assemble import assemble_dataset
from hpcgnn.datasets.dataset import CleaningReport, GraphDataset
from hpcgnn.datasets.features import Features
from hpcgnn.datasets.labels import made_labels
from hpcgnn.datasets.options import SourceOptions
from hpcgnn.datasets.what_was_read import NOWHERE, Origins
from hpcgnn.errors import DatasetError


def assemble_made_dataset(name: str, graph: tuple[np.ndarray, np.ndarray, CleaningReport], features: Features | None,
                          options: SourceOptions, remarks: tuple[str, ...] = (),
                          edge_weight: np.ndarray | None = None, node_name: np.ndarray | None = None,
                          origins: Origins = NOWHERE) -> GraphDataset:
    """Join a cleaned graph with labels made of its in-degrees and a random split.

    The name of the dataset says so, and with it every run and report: no such score is a benchmark.

    Parameters
    ----------
    graph, features, remarks, edge_weight, node_name, origins      as of assemble_dataset
    options : SourceOptions   made_classes is given

    Raises
    ------
    DatasetError              more classes than nodes, or what assemble_dataset refuses
    """
    num_classes = options.made_classes
    labels = made_labels(graph[0], graph[1], num_classes, name)
    remark = (f"MADE LABELS: the source has none; {num_classes} classes of equal size by rank of in-degree stand in, "
              "so no score on them is a benchmark")
    return assemble_dataset(f"{name}-made-labels-{num_classes}", graph, features, labels, num_classes, None, options,
                            (*remarks, remark), edge_weight, node_name,
                            origins=replace(origins, labels="in-degrees, made"))


def refuse_given_labels(source: str, options: SourceOptions) -> None:
    """Raise DatasetError if labels are to be made for a source that has its own."""
    if options.made_classes is not None:
        raise DatasetError(f"{source} has labels of its own; leave out --make-labels")
