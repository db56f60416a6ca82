"""The compiled random draws, revealed one by one through stochastic rounding and through dropout masks."""

from __future__ import annotations

import numpy as np
import pytest
from reference import draws_of, stream_of

from hpcgnn._ext import pointwise, quantization
from hpcgnn.errors import KernelError
from hpcgnn.ops.counter import BACKWARD, DROPOUT, FORWARD, CounterKey

STOCHASTIC = 0
ONE, NEXT = 0x3F800000, 0x3F81    # 1 as float32 bits, and the bfloat16 above 1


def carries(node_id, dim, key, dropped):
    """Whether 1 + dropped low bits rounds up to bfloat16, that is draw + dropped >= 2^16: (n, dim) bool."""
    rows = (ONE + dropped).astype(np.uint32).view(np.float32)
    num_rows = len(node_id)
    payload = np.empty((num_rows, dim), np.uint16)
    offset = 2 * dim * np.arange(num_rows, dtype=np.int64)
    quantization.quantize_rows(rows.view(np.uint8), 0, dim, np.arange(num_rows, dtype=np.int32), node_id,
                               np.full(num_rows, 16, np.uint8), offset, offset, *key, STOCHASTIC, False, 0,
                               payload.reshape(-1).view(np.uint8))
    return payload == NEXT


def compiled_draws(node_id, dim, key):
    """Every draw by bisection, a bit a call."""
    draws = np.zeros((len(node_id), dim), np.int64)
    for bit in 1 << np.arange(15, -1, -1):
        draws += bit * carries(node_id, dim, key, (1 << 16) - (draws + bit))
    return draws


def test_compiled_philox_gives_the_published_vector_of_zeros(simd):
    # Random123: 6627e8d5 e169c58d bc57ac4c 9b00dbd8.
    expected = [0xE8D5, 0x6627, 0xC58D, 0xE169, 0xAC4C, 0xBC57, 0xDBD8, 0x9B00]
    assert compiled_draws(np.zeros(1, np.int64), 8, (0, 0, 0))[0].tolist() == expected


@pytest.mark.parametrize("dim", [1, 7, 41, 128, 129, 257])
def test_compiled_draws_equal_the_oracle(simd, dim):
    # The key and node id of Random123's digits of pi, and ids at the ends of 32 and 64 bits.
    node_id = np.array([0, 1, 0x0370734413198A2E, 2**32 - 1, 2**32, 2**63 - 1], np.int64)
    key = 0xA4093822, 0x299F31D0, 0x85A308D3
    np.testing.assert_array_equal(compiled_draws(node_id, dim, key), draws_of(node_id, dim, *key))


def test_dropout_uses_the_same_draws(simd):
    node_id = np.array([3, 2**40 + 5], np.int64)
    draws, rows = draws_of(node_id, 41, 7, 8, 9), np.ones((2, 41), np.float32)
    for threshold in [1, int(draws[0, 0]), int(draws[0, 0]) + 1, 1 << 15, (1 << 16) - 1]:
        out = np.empty_like(rows)
        pointwise.dropout_rows(rows.view(np.uint8), node_id, 7, 8, 9, threshold, 1.0, out.view(np.uint8))
        np.testing.assert_array_equal(out != 0, draws >= threshold)


def test_stream_packs_purpose_layer_and_part():
    key = CounterKey(seed=1, epoch=2, purpose=BACKWARD, layer=4095, part=65535)
    assert key.stream == stream_of(2, 4095, 65535) == 0x2FFFFFFF
    assert (DROPOUT, FORWARD, BACKWARD) == (0, 1, 2)


def test_every_field_of_the_key_changes_the_draws():
    streams = [stream_of(FORWARD, 0), stream_of(BACKWARD, 0), stream_of(FORWARD, 1), stream_of(FORWARD, 0, 1)]
    keys = [(seed, epoch, stream) for seed in (0, 1) for epoch in (0, 1) for stream in streams]
    seen = {compiled_draws(np.array([node], np.int64), 64, key).tobytes() for key in keys for node in (0, 1)}
    assert len(seen) == 2 * len(keys)


@pytest.mark.parametrize("place", [{"layer": 4096}, {"part": 65536}, {"layer": -1}])
def test_a_layer_or_part_that_would_share_its_draws_is_refused(place):
    key = CounterKey(0, 0, BACKWARD, 0)
    assert key._replace(layer=4095, part=65535).stream == 0x2FFFFFFF
    with pytest.raises(KernelError, match="layers below 4096 and parts below 65536"):
        _ = key._replace(**place).stream
