"""given_graph: recognizes the kind of a user's object by its attributes, without importing its library."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.sparse

from hpcgnn.data.given import GivenGraph
from hpcgnn.data.networks import graph_of_ends, graph_of_matrix, graph_of_networkx
from hpcgnn.data.pyg import are_graphs, graph_of_data, graph_of_dgl, is_graph
from hpcgnn.data.tables import Choices, columns_of, graph_of_tables, is_table
from hpcgnn.errors import DatasetError

DEFAULT_NAME = "graph"
EXPECTED = ("a PyG Data, a DGL or NetworkX graph, a SciPy sparse matrix, a table of edges of pandas or Arrow, an array "
            "of edges, or a source such as \"npz:FILE\"")


def given_graph(data: Any, choices: Choices) -> GivenGraph:
    """Take an object apart.

    Parameters
    ----------
    data : PyG Data or dict of its tensors, a list or dataset of these, DGL graph, SciPy or torch sparse matrix,
        NetworkX graph, table of edges, (2, E) or (E, 2) array, or a pair of arrays

    Raises DatasetError for an object of another kind, or one that lacks what a graph needs.
    """
    name = choices.name or _name_of(data)
    for takes, refused, kind, take in KINDS:
        if takes(data):
            unused = [what for what in refused if _is_given(choices, what)]
            if unused:
                raise DatasetError(f"{unused[0]}= says nothing of {kind}; leave it out")
            return take(data, choices, name)
    raise DatasetError(f"a graph can't be made of a {type(data).__module__}.{type(data).__name__}; pass {EXPECTED}")


def _is_given(choices: Choices, what: str) -> bool:
    value, default = getattr(choices, what), getattr(Choices(), what)
    return value is not default and not (isinstance(value, str) and value == default)


def _name_of(data: Any) -> str:
    name = getattr(data, "name", "")
    return name if isinstance(name, str) and name.isidentifier() else DEFAULT_NAME


def _of_tables(data: Any, choices: Choices, name: str) -> GivenGraph:
    return graph_of_tables(columns_of(data, "edges"), choices, name)


def _is_dgl(data: Any) -> bool:
    return hasattr(data, "ndata") and hasattr(data, "edata")


def _is_networkx(data: Any) -> bool:
    return all(hasattr(data, name) for name in ("adj", "is_directed", "nodes", "edges"))


def _is_pyg(data: Any) -> bool:
    return is_graph(data) or are_graphs(data)


def _are_ends(data: Any) -> bool:
    return isinstance(data, np.ndarray | list | tuple) or hasattr(data, "detach")


def _is_matrix(data: Any) -> bool:
    return scipy.sparse.issparse(data) or hasattr(data, "sparse_sizes") or (
        hasattr(data, "detach") and "sparse" in str(getattr(data, "layout", "")))


OF_TABLES, OF_MATRICES = ("nodes", "source", "target"), ("rows",)
# Tells an object, choices that say nothing of it, what it is called, and what takes it apart.
KINDS: tuple[tuple[Callable[[Any], bool], tuple[str, ...], str, Callable[[Any, Choices, str], GivenGraph]], ...] = (
    (_is_matrix, OF_TABLES, "a matrix", graph_of_matrix),
    (_is_dgl, (*OF_TABLES, *OF_MATRICES), "a DGL graph", graph_of_dgl),
    (_is_networkx, (*OF_TABLES, *OF_MATRICES, "node_ids"), "a NetworkX graph", graph_of_networkx),
    (_is_pyg, (*OF_TABLES, *OF_MATRICES), "a PyG Data", graph_of_data),
    (is_table, OF_MATRICES, "a table of edges", _of_tables),
    (_are_ends, (*OF_TABLES, *OF_MATRICES), "an array of edges", graph_of_ends),
)
