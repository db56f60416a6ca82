"""SpMM of peers: for each the function that a user of it would call, prepared for one graph. Nothing is timed here.

Each takes a Topology and a precision, and returns a function of the rows, or None where the peer has none.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable

import numpy as np
import scipy.sparse
import torch

from hpcgnn.bench.graphs import Topology
from hpcgnn.bench.peers.dgl_import import import_dgl

Product = Callable[[torch.Tensor], object]


def _sparse_tensor(graph: Topology, values: torch.Tensor) -> torch.Tensor:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Sparse (CSR tensor support|invariant checks)", UserWarning)
        return torch.sparse_csr_tensor(torch.from_numpy(graph.indptr), torch.from_numpy(graph.indices.astype(np.int64)),
                                       values, size=(graph.num_nodes, graph.num_nodes))


def _weights(graph: Topology) -> np.ndarray:
    return np.repeat(graph.inverse_degree, np.diff(graph.indptr))


def torch_product(graph: Topology, precision: str) -> Product:
    """torch.sparse: a CSR of weights times the rows (MKL); in bfloat16 its own reduction, since MKL has none."""
    if precision == "fp32":
        matrix = _sparse_tensor(graph, torch.from_numpy(_weights(graph)))
        return lambda rows: torch.sparse.mm(matrix, rows)
    matrix = _sparse_tensor(graph, torch.ones(graph.num_edges, dtype=torch.bfloat16))
    return lambda rows: torch.sparse.mm(matrix, rows, "mean")


def pyg_product(graph: Topology, precision: str) -> Product:
    """PyTorch Geometric's own choice for a CSR adjacency and aggregation by mean."""
    from torch_geometric.utils import spmm

    dtype = torch.float32 if precision == "fp32" else torch.bfloat16
    matrix = _sparse_tensor(graph, torch.ones(graph.num_edges, dtype=dtype))
    return lambda rows: spmm(matrix, rows, reduce="mean")


def scipy_product(graph: Topology, precision: str) -> Product | None:
    """SciPy's CSR times a dense matrix, on one thread: it has no other."""
    if precision != "fp32":
        return None
    shape = graph.num_nodes, graph.num_nodes
    matrix = scipy.sparse.csr_matrix((_weights(graph), graph.indices, graph.indptr.astype(np.int32)), shape=shape)
    return lambda rows: matrix @ rows.numpy()


def dgl_product(graph: Topology, precision: str) -> Product:
    """DGL's sum over in-neighbors; its mean would divide the result besides, which is not counted against it."""
    dgl = import_dgl()
    target = np.repeat(np.arange(graph.num_nodes, dtype=np.int32), np.diff(graph.indptr))
    arcs = torch.from_numpy(graph.indices), torch.from_numpy(target)
    made = dgl.graph(arcs, num_nodes=graph.num_nodes, idtype=torch.int32).formats(["csc"])
    made.create_formats_()
    return lambda rows: dgl.ops.copy_u_sum(made, rows)


PEER_PRODUCTS: dict[str, Callable[[Topology, str], Product | None]] = {
    "torch": torch_product, "scipy": scipy_product, "pyg": pyg_product, "dgl": dgl_product}
