"""Layers over batches refuse what their kernel would read past its end, and codes whose sums pass 32 bits."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from hpcgnn.errors import KernelError
from hpcgnn.ops.batch_tiles import BatchTiles
from hpcgnn.ops.bit_gemm import pack_codes
from hpcgnn.ops.integer_layers import PADDING, BatchedLayers, IntegerLayer
from hpcgnn.ops.tiles import tiles_of_csr

NUM_ROWS, IN_DIM, OUT_DIM = 5, 7, 3
ONES = np.ones(NUM_ROWS, np.float32)
COLUMNS = np.ones(PADDING, np.float32)


def a_layer(in_dim=IN_DIM, out_dim=OUT_DIM):
    return IntegerLayer(map=np.ones((out_dim, in_dim), np.int8), ratio=COLUMNS, mapped_step=COLUMNS, bias=0 * COLUMNS,
                        row_step=ONES, row_limit=ONES, row_factor=None, mapped_limit=1.0, epsilon=0.0, mapped_bits=2,
                        takes_tiles=np.zeros(1, np.uint8), adds_near=True, scales_mapped=False)


def layers_of(*layers, in_dim=IN_DIM):
    """Layers over one batch of rows without an arc."""
    indptr = np.zeros(NUM_ROWS + 1, np.int64)
    tiles = BatchTiles.stack([tiles_of_csr(indptr, np.empty(0, np.int32), NUM_ROWS)], indptr)
    rows = pack_codes(torch.ones(NUM_ROWS, in_dim, dtype=torch.uint8), 1, False)
    return BatchedLayers(list(layers), tiles, np.empty(0, np.int32), rows, 0)


def test_rows_without_a_neighbor_keep_their_own_codes():
    logits, hidden = layers_of(a_layer(), a_layer(OUT_DIM, 2)).forward()
    # Seven ones are mapped to 7, and to the largest code, 1; so are the three of the second layer.
    np.testing.assert_array_equal(hidden, np.ones((NUM_ROWS, OUT_DIM)))
    np.testing.assert_array_equal(logits, np.ones((NUM_ROWS, 2)))


@pytest.mark.parametrize("change, words", [
    ({"map": np.ones((OUT_DIM, IN_DIM + 1), np.int8)}, "codes of shape .5, 7."),
    ({"map": np.ones((OUT_DIM, IN_DIM), np.int16)}, "contiguous int8 weights, a row an output, found int16"),
    ({"map": np.ones((IN_DIM, OUT_DIM), np.int8).T}, "contiguous int8 weights"),
    ({"own": np.ones((OUT_DIM, IN_DIM + 1), np.int8), "own_scale": COLUMNS}, "maps 7 columns"),
    ({"own": np.ones((OUT_DIM + 1, IN_DIM), np.int8), "own_scale": COLUMNS}, "row itself has 4 outputs"),
    ({"own": np.ones((OUT_DIM, IN_DIM), np.int8)}, "needs float32 scales"),
    ({"second": np.ones((2, OUT_DIM + 1), np.int8)}, "maps 3 columns"),
    ({"second": np.ones((2, OUT_DIM), np.int8), "second_scale": COLUMNS, "second_bias": COLUMNS}, "needs float32"),
    ({"ratio": COLUMNS[:OUT_DIM]}, "one a padded column"),
    ({"row_step": ONES[1:]}, "one a row"),
    ({"row_limit": ONES.astype(np.float64)}, "needs float32"),
    ({"row_factor": ONES[1:]}, "one a row"),
    ({"norm_weight": COLUMNS}, "needs float32"),
    ({"norm_weight": COLUMNS[:OUT_DIM], "norm_bias": COLUMNS}, "needs float32"),
    ({"takes_tiles": np.zeros(2, np.uint8)}, "over 1 batches needs a choice"),
    ({"takes_tiles": None}, "over 1 batches needs a choice"),
    ({"scales_mapped": True}, "there is none"),
])
def test_what_does_not_fit_is_refused(change, words):
    with pytest.raises(KernelError, match=words):
        layers_of(replace(a_layer(), **change))


def test_layers_that_do_not_follow_each_other_and_none_at_all_are_refused():
    with pytest.raises(KernelError, match="layer 1 reads 7 columns, expected those of the layer before, 3"):
        layers_of(a_layer(), a_layer())
    with pytest.raises(KernelError, match="codes of shape"):
        layers_of()


def test_sums_that_could_pass_32_bits_are_refused():
    with pytest.raises(KernelError, match="70000 products of codes could pass 2147483647; use fewer columns"):
        layers_of(a_layer(70_000), in_dim=70_000)
