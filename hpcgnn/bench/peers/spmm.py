"""Sparse products of peers: for each, the function that its users call, prepared for one graph, precision and place."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.sparse
import torch

from hpcgnn.bench.graphs import Topology
from hpcgnn.bench.peers.dgl_import import import_dgl
from hpcgnn.bench.place import PRECISION

HOST = "cpu"
CUSPARSE = "cuSPARSE"

Product = Callable[..., object]


def mean_peers(graph: Topology, precision: str, peers: tuple[str, ...], place: str) -> dict[str, Product | None]:
    """Per peer, its function that averages the rows of in-neighbors; None if it has none in this precision."""
    if place == HOST:
        return {peer: PEER_PRODUCTS[peer](graph, precision) for peer in peers}
    return {CUSPARSE: cusparse_product(graph, precision, place)} if "torch" in peers else {}


def sampled_peers(graph: Topology, precision: str, peers: tuple[str, ...], place: str) -> dict[str, Product]:
    """torch's sampled product (SDDMM): per edge, the dot product of two rows; {} if torch is no peer."""
    if "torch" not in peers:
        return {}
    weights = weights_of(graph, precision, place)

    def sample(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        return torch.sparse.sampled_addmm(weights, left, right.t(), beta=0.0)

    return {"torch" if place == HOST else CUSPARSE: sample}


def weights_of(graph: Topology, precision: str, place: str) -> torch.Tensor:
    """The mean as torch's sparse matrix."""
    values = torch.from_numpy(weights_of_arcs(graph)).to(place, PRECISION[precision])
    return csr_tensor(graph.indptr, graph.indices, values, place)


def csr_tensor(indptr: np.ndarray, indices: np.ndarray, values: torch.Tensor, place: str = HOST) -> torch.Tensor:
    """A square sparse matrix of `values`, which are in their place; on a device indices of 32 bits are faster."""
    index = np.int64 if place == HOST else np.int32
    ends = (torch.from_numpy(array.astype(index)).to(values.device) for array in (indptr, indices))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Sparse (CSR tensor support|invariant checks)", UserWarning)
        return torch.sparse_csr_tensor(*ends, values, size=(len(indptr) - 1, len(indptr) - 1))


def weights_of_arcs(graph: Topology) -> np.ndarray:
    """Weights that turn a sum into a mean, (num_edges,) float32."""
    return np.repeat(graph.inverse_degree, np.diff(graph.indptr))


def cusparse_product(graph: Topology, precision: str, place: str) -> Product:
    # The result goes into existing memory: torch.sparse.mm would write zeros first.
    weights = weights_of(graph, precision, place)
    outputs: dict[str, Any] = {}

    def multiply(rows: torch.Tensor) -> torch.Tensor:
        if rows.shape[1] not in outputs:
            outputs.clear()
            outputs[rows.shape[1]] = torch.empty_like(rows)
        out = outputs[rows.shape[1]]
        return torch.addmm(out, weights, rows, beta=0.0, out=out)

    return multiply


def torch_product(graph: Topology, precision: str) -> Product:
    # MKL has no 16-bit product, so torch's own reduction is used for 16 bits.
    if precision == "fp32":
        matrix = weights_of(graph, precision, HOST)
        return lambda rows: torch.sparse.mm(matrix, rows)
    matrix = csr_tensor(graph.indptr, graph.indices, torch.ones(graph.num_edges, dtype=PRECISION[precision]))
    return lambda rows: torch.sparse.mm(matrix, rows, "mean")


def pyg_product(graph: Topology, precision: str) -> Product:
    # PyTorch Geometric's own choice for a CSR adjacency and a mean.
    from torch_geometric.utils import spmm

    matrix = csr_tensor(graph.indptr, graph.indices, torch.ones(graph.num_edges, dtype=PRECISION[precision]))
    return lambda rows: spmm(matrix, rows, reduce="mean")


def scipy_product(graph: Topology, precision: str) -> Product | None:
    # SciPy's product runs on one thread.
    if precision != "fp32":
        return None
    shape = graph.num_nodes, graph.num_nodes
    arcs = weights_of_arcs(graph), graph.indices, graph.indptr.astype(np.int32)
    matrix = scipy.sparse.csr_matrix(arcs, shape=shape)
    return lambda rows: matrix @ rows.numpy()


def dgl_product(graph: Topology, precision: str) -> Product:
    # DGL's mean would also divide the result; its sum is timed instead.
    dgl = import_dgl()
    target = np.repeat(np.arange(graph.num_nodes, dtype=np.int32), np.diff(graph.indptr))
    arcs = torch.from_numpy(graph.indices), torch.from_numpy(target)
    made = dgl.graph(arcs, num_nodes=graph.num_nodes, idtype=torch.int32).formats(["csc"])
    made.create_formats_()
    return lambda rows: dgl.ops.copy_u_sum(made, rows)


PEER_PRODUCTS: dict[str, Callable[[Topology, str], Product | None]] = {
    "torch": torch_product, "scipy": scipy_product, "pyg": pyg_product, "dgl": dgl_product}
