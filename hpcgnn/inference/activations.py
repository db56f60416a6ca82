"""The codes that the layers of an integer model read, as Adaptive-Packages, and what they take in each format.

Where files lie is not known here.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from mpi4py import MPI

from hpcgnn.inference.coded_rows import CodedRows
from hpcgnn.quantized.formats import StoredSize, sizes
from hpcgnn.quantized.package import PackageFormat, PackedRows
from hpcgnn.quantized.package_writer import encode


def packed_rows(coded: CodedRows) -> PackedRows:
    """Codes of rows as packages, each row at its own width."""
    is_signed = coded.codes.dtype == np.int8
    width = np.frexp(coded.limit)[1] + is_signed
    return encode(coded.codes, width, PackageFormat(is_signed=is_signed))


def format_sizes(comm: MPI.Comm, layers: Iterable[PackedRows]) -> dict[str, StoredSize]:
    """Collective: what each format takes for the rows of all layers and ranks, by name; see
    `hpcgnn.quantized.formats.sizes`.
    """
    total: dict[str, StoredSize] = {}
    for of_ranks in zip(*comm.allgather([sizes(packed) for packed in layers]), strict=True):
        for one in of_ranks:
            total = {name: total.get(name, StoredSize(0, 0)) + size for name, size in one.items()}
    return total
