"""The codes that the layers of an integer model read, as Adaptive-Packages, and what they take in each format.

Where files lie is not known here.
"""

from __future__ import annotations

from collections.abc import Iterable

from mpi4py import MPI

from hpcgnn.quantized.formats import StoredSize, sizes
from hpcgnn.quantized.package import PackagedRows


def format_sizes(comm: MPI.Comm, layers: Iterable[PackagedRows]) -> dict[str, StoredSize]:
    """Collective: sum `hpcgnn.quantized.formats.sizes` of the rows over all layers and ranks."""
    total: dict[str, StoredSize] = {}
    for of_ranks in zip(*comm.allgather([sizes(packed) for packed in layers]), strict=True):
        for one in of_ranks:
            total = {name: total.get(name, StoredSize(0, 0)) + size for name, size in one.items()}
    return total
