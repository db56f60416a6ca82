"""`Topology` holds the edges of a graph for kernels, from an .npz archive or drawn."""

from __future__ import annotations

import zipfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from hpcgnn.data.dataset import GraphDataset
from hpcgnn.data.options import SourceOptions
from hpcgnn.data.source import load_source
from hpcgnn.errors import ConfigError, DatasetError

DRAWN = "drawn:"
SYNTHETIC_DEGREE = 20
DRAWN_FEATURES, DRAWN_CLASSES = 100, 47      # for a graph to train on, as in ogbn-products
DRAWN_SPLITS = 0.08, 0.02                    # shares of a drawn graph's nodes: training and validation
BYTES_A_ARC = 400      # for rows of 256 columns that products read and write, and for drawing


@dataclass(frozen=True)
class Topology:
    """Edges as CSR by destination: indptr (num_nodes + 1,) int64, indices (num_edges,) int32."""

    name: str
    indptr: np.ndarray
    indices: np.ndarray

    @property
    def num_nodes(self) -> int:
        return len(self.indptr) - 1

    @property
    def num_edges(self) -> int:
        return len(self.indices)

    @property
    def inverse_degree(self) -> np.ndarray:
        """1 / in-degree, (num_nodes,) float32; 1 for nodes without edges."""
        return (1 / np.maximum(np.diff(self.indptr), 1)).astype(np.float32)


def drawn_arcs(source: str) -> int | None:
    """Number of edges that `drawn:EDGES` asks for; None for the path of an archive.

    Raises ConfigError: it is no number, or too small.
    """
    if not source.startswith(DRAWN):
        return None
    try:
        num_edges = round(float(source.removeprefix(DRAWN)))
    except (ValueError, OverflowError):
        num_edges = 0
    if num_edges < SYNTHETIC_DEGREE:
        raise ConfigError(f"{source} is no graph to draw; expected {DRAWN}EDGES with at least {SYNTHETIC_DEGREE} "
                          f"edges, as in {DRAWN}20e6")
    return num_edges


def read_topology(path: Path) -> Topology:
    """Read the edges of an .npz archive with `indptr` and `indices`.

    Raises DatasetError: the file can't be read, lacks one of them, or they are not a CSR.
    """
    try:
        with np.load(path, allow_pickle=False) as archive:
            indptr, indices = archive["indptr"].astype(np.int64), archive["indices"].astype(np.int32)
    except (OSError, ValueError, KeyError, zipfile.BadZipFile) as error:
        raise DatasetError(f"{path} is no graph archive ({error}); expected an .npz file with indptr and indices, "
                           "see docs/own-data.md") from error
    num_nodes = len(indptr) - 1
    is_csr = num_nodes > 0 and indptr[0] == 0 and indptr[-1] == len(indices) and (np.diff(indptr) >= 0).all()
    if not is_csr or (len(indices) and not 0 <= indices.min() <= indices.max() < num_nodes):
        raise DatasetError(f"{path} holds no CSR of a square matrix; expected indptr that rises from 0 to the number "
                           "of edges, and indices of existing nodes")
    return Topology(path.stem, indptr, indices)


def draw_communities(num_edges: int) -> Topology:
    """Draw a block model with power-law degrees and about `num_edges` edges, 20 per node.

    Raises DatasetError for too few edges.
    """
    num_nodes = round(num_edges / SYNTHETIC_DEGREE)
    drawn = load_source(f"synthetic:nodes={num_nodes},mean_degree={SYNTHETIC_DEGREE},features=1", SourceOptions())
    return Topology(f"synthetic-{drawn.num_edges / 1e6:.3g}M", drawn.indptr, drawn.indices.astype(np.int32))


def arcs_that_fit(num_edges: float, free_bytes: int) -> int:
    """`num_edges`, or the most edges that can be drawn and multiplied in the free memory."""
    return min(round(num_edges), free_bytes // BYTES_A_ARC)


def draw_power_law(num_edges: int, place: str) -> Topology:
    """Draw a directed graph of 20 edges per node in seconds, with power-law in- and out-degrees (exponent 3).

    Each end of an edge is node floor(n u^2) of a random order, u uniform. There are no communities, so neighbors' rows
    lie far apart. An edge may occur twice. Columns ascend within a row. Torch's device `place` draws.
    """
    num_nodes = num_edges // SYNTHETIC_DEGREE
    rng = torch.Generator(place).manual_seed(0)
    one, other = _drawn_ends(num_edges, num_nodes, rng)
    return Topology(f"power-law-{num_edges / 1e6:.3g}M", *_laid_out(one.mul_(num_nodes).add_(other), num_nodes))


def _drawn_ends(num_edges: int, num_nodes: int, rng: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    order = torch.randperm(num_nodes, generator=rng, device=rng.device)

    def ends() -> torch.Tensor:
        uniform = torch.rand(num_edges, generator=rng, device=rng.device, dtype=torch.float64)
        return order[(uniform.square() * num_nodes).long().clamp_(max=num_nodes - 1)]

    return ends(), ends()


def _laid_out(arcs: torch.Tensor, num_nodes: int, has_duplicates: bool = True) -> tuple[np.ndarray, np.ndarray]:
    # CSR of edges as target * num_nodes + source, in any order.
    arcs = arcs.sort().values
    arcs = arcs if has_duplicates else arcs.unique_consecutive()
    degree = torch.bincount(arcs // num_nodes, minlength=num_nodes).cpu().numpy()
    return (np.concatenate([[0], np.cumsum(degree)]).astype(np.int64),
            (arcs % num_nodes).to(torch.int32).cpu().numpy())


def drawn_size(source: str) -> tuple[int, int] | None:
    """Numbers of edges and nodes that `drawn:EDGES` or `drawn:EDGES,NODES` asks for; None for the path of an archive.

    Raises ConfigError: one of them is no number, or fewer nodes than 2.
    """
    if not source.startswith(DRAWN):
        return None
    arcs, comma, nodes = source.removeprefix(DRAWN).partition(",")
    num_edges = drawn_arcs(DRAWN + arcs)
    try:
        num_nodes = round(float(nodes)) if comma else num_edges // SYNTHETIC_DEGREE
    except (ValueError, OverflowError):
        num_nodes = 0
    if num_nodes < 2:
        raise ConfigError(f"{source} is no graph to draw; expected {DRAWN}EDGES or {DRAWN}EDGES,NODES with at least "
                          f"2 nodes, as in {DRAWN}124e6,2449029")
    return num_edges, num_nodes


def draw_training_graph(num_edges: int, num_nodes: int, place: str) -> GraphDataset:
    """Draw a symmetric graph to train on; ends as in `draw_power_law`.

    Duplicates and self-loops are removed, so there are somewhat fewer edges. Features are normal around a random center
    of the node's class, so that a training learns something. `num_edges` counts both directions.
    """
    rng = torch.Generator(place).manual_seed(0)
    one, other = _drawn_ends(num_edges // 2, num_nodes, rng)
    arcs = torch.cat([one * num_nodes + other, other * num_nodes + one])[(one != other).repeat(2)]
    indptr, indices = _laid_out(arcs, num_nodes, has_duplicates=False)
    labels = torch.randint(DRAWN_CLASSES, (num_nodes,), generator=rng, device=place)
    centers = torch.randn(DRAWN_CLASSES, DRAWN_FEATURES, generator=rng, device=place)
    features = torch.randn(num_nodes, DRAWN_FEATURES, generator=rng, device=place).add_(centers[labels])
    place_of = np.random.default_rng(0).random(num_nodes)
    is_train, is_val = place_of < DRAWN_SPLITS[0], place_of >= 1 - DRAWN_SPLITS[1]
    is_train[0], is_val[0] = True, False      # even a tiny graph has a training node
    return GraphDataset(f"drawn-{len(indices) / 1e6:.3g}M", indptr, indices, features.cpu().numpy(),
                        labels.cpu().numpy(), DRAWN_CLASSES, is_train, is_val, ~(is_train | is_val))
