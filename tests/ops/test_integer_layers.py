"""Layers sum codes exactly, a byte each or packed, and refuse what would be read past its end or pass 32 bits."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch

from hpcgnn.errors import KernelError
from hpcgnn.ops.bit_gemm import pack_codes
from hpcgnn.ops.integer_layers import PADDING, BatchedLayers, DegreeScales, GraphLayers, IntegerLayer
from hpcgnn.ops.row_codes import RowBits
from hpcgnn.ops.tiles import BatchTiles, tiles_of_csr

NUM_ROWS, IN_DIM, OUT_DIM = 5, 7, 3
ONES = np.ones(NUM_ROWS, np.float32)
COLUMNS = np.ones(PADDING, np.float32)
DEGREE = np.arange(NUM_ROWS, dtype=np.int32)
SCALES = DegreeScales(ONES[:2], ONES[:2])


def a_layer(in_dim=IN_DIM, out_dim=OUT_DIM):
    return IntegerLayer(map=np.ones((out_dim, in_dim), np.int8), ratio=COLUMNS, mapped_step=COLUMNS, bias=0 * COLUMNS,
                        rows=SCALES, row_factor=None, mapped_limit=1.0, epsilon=0.0, mapped_bits=2,
                        takes_tiles=np.zeros(1, np.uint8), adds_near=True, scales_mapped=False)


def layers_of(*layers, in_dim=IN_DIM):
    """Layers over one batch of rows without an arc."""
    indptr = np.zeros(NUM_ROWS + 1, np.int64)
    tiles = BatchTiles.stack([tiles_of_csr(indptr, np.empty(0, np.int32), NUM_ROWS)], indptr)
    rows = pack_codes(torch.ones(NUM_ROWS, in_dim, dtype=torch.uint8), 1, False)
    return BatchedLayers(list(layers), tiles, np.empty(0, np.int32), DEGREE, rows, False)


def test_rows_without_a_neighbor_keep_their_own_codes():
    logits, hidden = layers_of(a_layer(), a_layer(OUT_DIM, 2)).forward()
    # Seven ones are mapped to 7, and to the largest code, 1; so are the three of the second layer.
    np.testing.assert_array_equal(hidden, np.ones((NUM_ROWS, OUT_DIM)))
    np.testing.assert_array_equal(logits, np.ones((NUM_ROWS, 2)))


@pytest.mark.parametrize("change, words", [
    ({"map": np.ones((OUT_DIM, IN_DIM + 1), np.int8)}, "codes of shape .5, 7."),
    ({"map": np.ones((OUT_DIM, IN_DIM), np.int16)}, "contiguous int8 weights, one row per output, found int16"),
    ({"map": np.ones((IN_DIM, OUT_DIM), np.int8).T}, "contiguous int8 weights"),
    ({"own": np.ones((OUT_DIM, IN_DIM + 1), np.int8), "own_scale": COLUMNS}, "maps 7 columns"),
    ({"own": np.ones((OUT_DIM + 1, IN_DIM), np.int8), "own_scale": COLUMNS}, "row itself has 4 outputs"),
    ({"own": np.ones((OUT_DIM, IN_DIM), np.int8)}, "needs float32 scales"),
    ({"second": np.ones((2, OUT_DIM + 1), np.int8)}, "maps 3 columns"),
    ({"second": np.ones((2, OUT_DIM), np.int8), "second_scale": COLUMNS, "second_bias": COLUMNS}, "has no scales"),
    ({"second": np.ones((2, OUT_DIM), np.int8), "second_scale": COLUMNS, "second_rows": SCALES}, "needs float32"),
    ({"ratio": COLUMNS[:OUT_DIM]}, "padded column"),
    ({"rows": DegreeScales(ONES[:2], ONES[:3])}, "per row, in-degree or"),
    ({"rows": DegreeScales(ONES[:0], ONES[:0])}, "per row, in-degree or"),
    ({"rows": DegreeScales(ONES, ONES.astype(np.float64))}, "needs float32"),
    ({"row_factor": ONES[1:]}, "one per row"),
    ({"norm_weight": COLUMNS}, "needs float32"),
    ({"norm_weight": COLUMNS[:OUT_DIM], "norm_bias": COLUMNS}, "needs float32"),
    ({"takes_tiles": np.zeros(2, np.uint8)}, "over 1 batches needs one choice"),
    ({"takes_tiles": None}, "over 1 batches needs one choice"),
    ({"scales_mapped": True}, "there is none"),
])
def test_what_does_not_fit_is_refused(change, words):
    with pytest.raises(KernelError, match=words):
        layers_of(replace(a_layer(), **change))


def some_rows(num_rows, rng):
    """CSR of rows with no entry, few, and more than fields of 2, 4 or 8 bits can sum without a carry."""
    counts = rng.permutation(np.r_[0, 1, 17, 18, 85, 86, 300, rng.integers(0, 9, num_rows - 7)])
    return np.r_[0, np.cumsum(counts)].astype(np.int64)


@pytest.mark.covering
@pytest.mark.parametrize("adds_near", [True, False])
@pytest.mark.parametrize("dim", [1, 8, 16, 33, 64, 100, 130, 300])
@pytest.mark.parametrize("bits", [2, 3, 4, 5, 8])
def test_sums_of_packed_rows_are_those_of_their_codes(byte_level, bits, dim, adds_near):
    rng, num_rows, num_others = np.random.default_rng(dim), 60, 13
    indptr, limit = some_rows(num_rows, rng), 2 ** (bits - 1) - 1
    indices = rng.integers(0, num_rows + num_others, indptr[-1]).astype(np.int32)
    columns, degree = np.ones(-(-dim // 32) * 32, np.float32), np.zeros(num_rows, np.int32)
    weights = rng.integers(-3, 4, (dim, 5)).astype(np.int8)
    layer = IntegerLayer(map=weights, ratio=columns, mapped_step=columns, bias=0 * columns, rows=SCALES,
                         row_factor=None, mapped_limit=float(limit), epsilon=0.5, mapped_bits=bits,
                         takes_tiles=None, adds_near=adds_near, scales_mapped=False)
    codes = rng.integers(-1, 2, (num_rows, 5)).astype(np.int8)
    rows = RowBits.pack(codes, rng.integers(2, 9, num_rows))
    layers = GraphLayers([layer], indptr, indices, num_others, degree, rows)
    others = rng.integers(-limit, limit + 1, (num_others, dim)).astype(np.int8)
    layers.mapped[0].put(num_rows, others)
    layers.begin()
    mapped = np.clip(codes.astype(np.int64) @ weights.T, -limit, limit)
    everything = np.concatenate([mapped, others])
    np.testing.assert_array_equal(layers.mapped[0][:], everything)
    np.testing.assert_array_equal(layers.mapped[0][np.array([3, 70, 0])], everything[[3, 70, 0]])
    logits = np.full((num_rows, dim), np.nan, np.float32)
    layers.convolve(0, 0, 50, logits, logits[:, :0].copy())
    assert np.isnan(logits[50:]).all()
    layers.convolve(0, 50, num_rows, logits, logits[:, :0].copy())
    sums = np.stack([everything[indices[start:stop]].sum(axis=0) for start, stop in itertools.pairwise(indptr)])
    np.testing.assert_array_equal(logits, sums + 1.5 * mapped if adds_near else sums)
    stored = 2 if bits == 2 else 4 if bits < 5 else 8
    assert layers.mapped[0].table.nbytes == 73 * (-(-dim // 32) * 32 if stored == 8 else -(-dim * stored // 64) * 8)


@pytest.mark.parametrize("change, words", [
    (lambda indptr, indices: (indptr.astype(np.int32), indices), "int64 indptr"),
    (lambda indptr, indices: (indptr, indices[1:]), "from 0 to 4"),
    (lambda indptr, indices: (indptr[::-1].copy(), indices), "from 0 to 5"),
    (lambda indptr, indices: (np.array([0, 4, 3, 5, 5, 5]), indices), "has -1 to 4 entries"),
    (lambda indptr, indices: (indptr, indices + np.int32(4)), "entries name rows 4 to 8; expected 0 to 6"),
    (lambda indptr, indices: (indptr, indices - np.int32(1)), "entries name rows -1 to 3"),
])
def test_entries_that_name_no_row_are_refused(change, words):
    indptr, indices = np.arange(NUM_ROWS + 1), np.arange(NUM_ROWS, dtype=np.int32)
    rows = RowBits.pack(np.ones((NUM_ROWS, IN_DIM), np.uint8), np.ones(NUM_ROWS, int))
    with pytest.raises(KernelError, match=words):
        GraphLayers([a_layer()], *change(indptr, indices), 2, DEGREE, rows)


@pytest.mark.parametrize("degree", [DEGREE[1:], DEGREE.astype(np.int64), DEGREE - np.int32(1)])
def test_in_degrees_that_do_not_fit_are_refused(degree):
    rows = RowBits.pack(np.ones((NUM_ROWS, IN_DIM), np.uint8), np.ones(NUM_ROWS, int))
    with pytest.raises(KernelError, match="in-degree of 0 or more each, int32"):
        GraphLayers([a_layer()], np.zeros(NUM_ROWS + 1, np.int64), np.empty(0, np.int32), 0, degree, rows)


def test_layers_that_do_not_follow_each_other_and_none_at_all_are_refused():
    with pytest.raises(KernelError, match="layer 1 reads 7 columns, expected as many as the layer before has, 3"):
        layers_of(a_layer(), a_layer())
    with pytest.raises(KernelError, match="codes of shape"):
        layers_of()


def test_sums_that_could_pass_32_bits_are_refused():
    with pytest.raises(KernelError, match="70000 products of codes could pass 2147483647; use fewer columns"):
        layers_of(a_layer(70_000), in_dim=70_000)
