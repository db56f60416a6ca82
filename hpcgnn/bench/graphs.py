"""Graphs for kernels: the arcs alone, from .npz archives or drawn at random. Features and labels are not read."""

from __future__ import annotations

import zipfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from hpcgnn.datasets.options import SourceOptions
from hpcgnn.datasets.source import load_source
from hpcgnn.errors import DatasetError

SYNTHETIC_DEGREE = 20


@dataclass(frozen=True)
class Topology:
    """A graph's arcs as CSR by destination: indptr (num_nodes + 1,) int64, indices (num_edges,) int32."""

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
        """(num_nodes,) float32, 1 / in-degree, 1 where there is none."""
        return (1 / np.maximum(np.diff(self.indptr), 1)).astype(np.float32)


def read_topology(path: Path) -> Topology:
    """Arcs of an .npz archive with `indptr` and `indices`.

    Raises
    ------
    DatasetError      the file can't be read, lacks one of them, or they are no CSR
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
                           "of arcs, and indices of existing nodes")
    return Topology(path.stem, indptr, indices)


def draw_topology(num_edges: float) -> Topology:
    """A block model with power-law degrees and about `num_edges` arcs, 20 a node.

    Raises
    ------
    DatasetError      too few arcs for such a graph
    """
    num_nodes = round(num_edges / SYNTHETIC_DEGREE)
    drawn = load_source(f"synthetic:nodes={num_nodes},mean_degree={SYNTHETIC_DEGREE},features=1", SourceOptions())
    return Topology(f"synthetic-{drawn.num_edges / 1e6:.3g}M", drawn.indptr, drawn.indices.astype(np.int32))
