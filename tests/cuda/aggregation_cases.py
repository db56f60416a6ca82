"""Sparse matrices with every kind of row, their dense float64 form, and the device's product over them."""

from __future__ import annotations

import numpy as np
import torch

from hpcgnn.ops.aggregation import PackedRows, SparseRows, from_csr
from hpcgnn.ops.counter import FORWARD, CounterKey
from hpcgnn.ops.cuda import aggregation as cuda
from hpcgnn.ops.quantization import MessageLayout, dequantize_rows, quantize_rows

STORAGES = [torch.float32, torch.bfloat16, torch.float16]
# Half a unit in the last place of the storage, relative; and the smallest number that a sum may be off by.
ROUNDING = {torch.float32: 2.0**-24, torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11}
SMALLEST = {torch.float32: 2.0**-126, torch.bfloat16: 2.0**-126, torch.float16: 2.0**-25}
HUB, NUM_ROWS, NUM_COLUMNS = 7, 40, 60


def matrix_of(hub=700, num_rows=NUM_ROWS, num_columns=NUM_COLUMNS, seed=0, **scaling) -> SparseRows:
    """Empty rows, also the last; one row of `hub` entries; entries that no row names between the others."""
    rng = np.random.default_rng(seed)
    length = rng.integers(0, 20, num_rows)
    length[[3, 4, num_rows - 1]] = 0
    length[HUB] = hub
    unused = rng.integers(0, 3, num_rows)
    end = np.cumsum(length + unused) - unused
    return SparseRows(end - length, end, rng.integers(0, num_columns, int((length + unused).sum())).astype(np.int32),
                      num_columns, **scaling)


def stored(matrix: SparseRows) -> SparseRows:
    """The same rows as a CSR that names every entry, for oracles."""
    rows = [matrix.indices[first:end] for first, end in zip(matrix.begin, matrix.end, strict=True)]
    indptr = np.concatenate([[0], np.cumsum([len(row) for row in rows])]).astype(np.int64)
    return from_csr(indptr, np.concatenate(rows), matrix.num_columns)


def indptr_of(matrix: SparseRows) -> np.ndarray:
    return np.append(matrix.begin, matrix.end[-1])


def scales(matrix: SparseRows, seed=1) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {"row_scale": rng.uniform(0.1, 2, matrix.num_rows).astype(np.float32),
            "column_scale": rng.uniform(0.1, 2, matrix.num_columns).astype(np.float32)}


def dense_of(matrix: SparseRows, weight: np.ndarray | None = None) -> np.ndarray:
    """(num_rows, num_columns) float64; weight (num_entries,) is of each entry."""
    dense = np.zeros((matrix.num_rows, matrix.num_columns))
    weight = matrix.entry_scale if weight is None else weight
    for v in range(matrix.num_rows):
        entries = slice(matrix.begin[v], matrix.end[v])
        np.add.at(dense[v], matrix.indices[entries], 1.0 if weight is None else weight[entries])
        dense[v, v] += v < matrix.num_self
    for scale, axis in ((matrix.row_scale, 1), (matrix.column_scale, 0)):
        if scale is not None:
            dense *= np.expand_dims(scale.astype(np.float64), axis)
    return dense


def rows_of(num_rows, dim, dtype=torch.float32, seed=1) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).normal(size=(num_rows, dim)).astype(np.float32)).to(dtype)


def multiply(matrix, near, far=None, out=None, entry_scale=None, entry_index=None, packed=None, span=None):
    """What `hpcgnn.ops.aggregation` asks of the device for its products: weighted, added, stored by spans, or whole."""
    is_added = out is not None and span is None
    if out is None:
        out = torch.full((matrix.num_rows, near.shape[1]), torch.nan, dtype=near.dtype, device=near.device)
    if entry_scale is not None:
        cuda.multiply_weighted(matrix, near, entry_scale, entry_index, out)
    else:
        tasks = matrix.tasks if span is None else matrix.tasks_of(*span)
        cuda.multiply(matrix, near, far if packed is None else packed, out, tasks, is_added)
    return out


def packed_rows(sent: torch.Tensor) -> tuple[PackedRows, torch.Tensor]:
    """Far rows of every width in a message, in another order than in the table; and their values, in float32.

    The message of 1 + 4 n rows ends with one of 8 bits, behind which nothing may be read.
    """
    width, dim = np.resize(np.array([8, 1, 2, 4], np.uint8), len(sent)), sent.shape[1]
    layout, node_id = MessageLayout.build(width, dim), np.arange(len(sent))
    message = np.empty(layout.num_bytes, np.uint8)
    order = np.random.default_rng(3).permutation(len(sent)).astype(np.int32)
    quantize_rows(sent, order, node_id, layout, CounterKey(0, 1, FORWARD, 2), message)
    far = torch.empty(len(sent), dim)
    dequantize_rows(message, order, node_id, layout, far)
    place = np.argsort(order)
    return PackedRows(message, width[place], layout.payload_offset[place], layout.parameter_offset[place]), far


def assert_near(found, dense, rows, dtype, start=None, rounding=None):
    """Within the bound of float32 sums, (terms + 3) 2^-24 of the sum of magnitudes, and one rounding to the storage."""
    rows = rows.double().cpu().numpy()
    exact = dense @ rows + (0 if start is None else start.double().numpy())
    magnitude = abs(dense) @ abs(rows) + (0 if start is None else abs(start.double().numpy()))
    terms = 800 + 3
    bound = terms * 2.0**-24 * magnitude * (1 + ROUNDING[dtype]) + ROUNDING[dtype] * abs(exact) + SMALLEST[dtype]
    if rounding is not None:
        bound = bound + rounding * magnitude
    assert found.dtype == dtype
    assert (abs(found.double().cpu().numpy() - exact) <= bound).all()
