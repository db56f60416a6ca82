"""Integer models with random weights, whose codes use their whole ranges, for tests."""

from __future__ import annotations

import numpy as np

from hpcgnn.lowbit.integer_model import (
    ColumnScale,
    IntegerConvolution,
    IntegerMap,
    IntegerModel,
    Normalization,
    RowScale,
)


def row_scale(rng, bits=None, is_signed=False, num_degrees=12, scale=0.1):
    """Steps and widths that differ from in-degree to in-degree."""
    low = 1 + is_signed
    width = np.full(num_degrees, bits) if bits else rng.integers(low, 9, num_degrees)
    return RowScale((scale * rng.uniform(0.5, 2, num_degrees)).astype(np.float32), width.astype(np.uint8), is_signed)


def integer_map(rng, out_dim, in_dim, bits=4):
    limit = 2 ** (bits - 1) - 1
    codes = rng.integers(-limit, limit + 1, (out_dim, in_dim)).astype(np.int8)
    return IntegerMap(codes, column_scale(rng, out_dim, bits, 0.1))


def column_scale(rng, dim, bits, scale):
    return ColumnScale((scale * rng.uniform(0.5, 2, dim)).astype(np.float32), bits)


def real(rng, *shape):
    return rng.normal(0, 0.3, shape).astype(np.float32)


def convolution(rng, kind, in_dim, out_dim, is_last, is_first, bits=None, mapped_bits=6, heads=2, has_norm=False):
    averages = kind == "gat" and is_last
    mapped_dim = heads * out_dim if averages else out_dim
    rows = row_scale(rng, bits, is_signed=is_first)
    extra = {}
    if kind == "sage":
        extra["own"] = integer_map(rng, out_dim, in_dim, 3)
    if kind == "gin":
        extra |= {"epsilon": 0.25, "second_rows": row_scale(rng, bits), "second": integer_map(rng, out_dim, out_dim, 5),
                  "second_bias": real(rng, out_dim)}
    if kind == "gat":
        extra |= {"attention": real(rng, 2, mapped_dim), "heads": heads, "averages_heads": averages}
    norm = None
    if has_norm and not is_last:
        norm = Normalization(1 + real(rng, out_dim), real(rng, out_dim), 1e-5)
    return IntegerConvolution(kind, rows, integer_map(rng, mapped_dim, in_dim), column_scale(rng, mapped_dim,
                              mapped_bits, 0.2), real(rng, out_dim), norm=norm, **extra)


def some_model(kind, num_features=12, hidden=10, num_classes=4, num_layers=2, seed=0, dataset="synthetic",
               num_nodes=240, is_multi_label=False, **options):
    """A stack of convolutions of one kind."""
    rng = np.random.default_rng(seed)
    dims = [num_features] + [hidden] * (num_layers - 1) + [num_classes]
    convolutions = [convolution(rng, kind, dims[i], dims[i + 1], i == num_layers - 1, i == 0, **options)
                    for i in range(num_layers)]
    return IntegerModel(convolutions, dataset, num_nodes, num_features, num_classes, is_multi_label, "calibrated")
