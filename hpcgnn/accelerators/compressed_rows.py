"""Where rows in CSR lie in DRAM: those that a product reads, and those that it leaves for the next one.

No accelerator's dataflow is known here.
"""

from __future__ import annotations

import numpy as np

from hpcgnn.accelerators.row_requests import result_dim, size_in_bytes
from hpcgnn.accelerators.workload import FeatureCounts, Workload


def compressed_start(nonzeros: np.ndarray, bit_width: int, id_bytes: int) -> np.ndarray:
    """Return the byte where each row of CSR begins, and the number of bytes, (num_rows + 1,) int64.

    A row has an offset, and an id and a value for each value that is not zero.

    Parameters
    ----------
    nonzeros : (num_rows,) int64
    """
    return starts_of(id_bytes + id_bytes * nonzeros + size_in_bytes(nonzeros, bit_width))


def result_start(workload: Workload, index: int, bit_width: int, id_bytes: int) -> np.ndarray:
    """Return where the rows that product `index` leaves begin, and the number of bytes, (num_nodes + 1,) int64: as the
    next product reads them; dense after the last one.
    """
    dim = result_dim(workload.products[index])
    after = _rows_after(workload, index)
    if after is None or after.dim != dim:
        return starts_of(np.full(workload.num_nodes, size_in_bytes(dim, bit_width), np.int64))
    return compressed_start(after.row_nonzeros(), bit_width, id_bytes)


def _rows_after(workload: Workload, index: int) -> FeatureCounts | None:
    return workload.products[index + 1].rows if index + 1 < len(workload.products) else None


def starts_of(sizes: np.ndarray) -> np.ndarray:
    """Return where things of these sizes begin, one after the other, and their size in all, (n + 1,) int64."""
    start = np.zeros(len(sizes) + 1, np.int64)
    np.cumsum(sizes, out=start[1:])
    return start
