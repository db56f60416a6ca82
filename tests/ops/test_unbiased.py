"""The mean of what arrives is what was sent, over many keys, at every width and for the rows that break other codecs.

Bound: the N values received of one number are independent and lie in an interval of one step, so by Hoeffding their
mean leaves its expectation by more than step * sqrt(ln(2 / delta) / 2N) with probability delta. Here N = 2^16 and
delta = 1e-9, a column: 0.0128 steps. Seeds are fixed. The expectation itself differs from the input by at most 2^-14
steps (test_reference.py) and by the float32 rounding of zero_point + step * code, 2^-23 of the largest value.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from reference import bf16_value

from hpcgnn.ops.counter import BACKWARD, FORWARD, CounterKey
from hpcgnn.ops.quantization import MessageLayout, dequantize_rows, quantize_rows

DIM, NUM_NODES, DELTA = 24, 1 << 12, 1e-9
KEYS = [CounterKey(seed, epoch, purpose, layer) for seed in (0, 9) for epoch in (0, 700) for purpose in
        (FORWARD, BACKWARD) for layer in (0, 3)]
NUM_DRAWS = NUM_NODES * len(KEYS)
HOEFFDING = np.sqrt(np.log(2 / DELTA) / (2 * NUM_DRAWS))
ROWS = {"ordinary": (0.0, 1.0), "constant": (3.14159, 0.0), "tiny-range": (0.0, 1e-6), "tiny-range at 1": (1.0, 1e-6),
        "offset": (20.0, 0.5), "negative offset": (-20.0, 0.5), "denormal": (0.0, 1e-40), "huge": (0.0, 1e38)}


def received_of(row, bits):
    """The row as it arrives under every key and node id: (num_draws, dim) float32, and its step."""
    layout = MessageLayout.build(np.full(NUM_NODES, bits), DIM)
    every, same = np.arange(NUM_NODES), np.zeros(NUM_NODES, np.int32)
    message, received = np.empty(layout.num_bytes, np.uint8), torch.empty(len(KEYS), NUM_NODES, DIM)
    for i, key in enumerate(KEYS):
        quantize_rows(torch.from_numpy(row[None]), same, every, layout, key, message)
        dequantize_rows(message, every.astype(np.int32), every, layout, received[i])
    step = bf16_value(message[2:4].view("<u2"))[0] if bits <= 8 else None
    return received.reshape(-1, DIM).numpy(), step


def row_of(kind):
    offset, spread = ROWS[kind]
    return (offset + spread * np.random.default_rng(5).uniform(-1, 1, DIM)).astype(np.float32)


@pytest.mark.parametrize("kind", ROWS)
@pytest.mark.parametrize("bits", [1, 2, 4, 8])
def test_dequantized_mean_equals_the_input(bits, kind):
    row = row_of(kind)
    received, step = received_of(row, bits)
    error = np.abs(received.mean(axis=0, dtype=np.float64) - row)
    assert (error <= (HOEFFDING + 2.0**-14) * np.float64(step) + 2.0**-23 * np.abs(row).max()).all()


@pytest.mark.parametrize("kind", ROWS)
def test_mean_of_bfloat16_rows_equals_the_input(kind):
    row = row_of(kind)
    received, _ = received_of(row, 16)
    half = (row.view(np.uint32) >> 16).astype(np.uint16)
    step = np.abs(bf16_value(half + np.uint16(1)).astype(np.float64) - bf16_value(half))
    assert (np.abs(received - row) < step).all()
    assert (np.abs(received.mean(axis=0, dtype=np.float64) - row) <= HOEFFDING * step).all()


@pytest.mark.parametrize("bits", [1, 2, 4, 8])
def test_variance_is_that_of_two_neighboring_codes(bits):
    """Var = step^2 f (1 - f) with f the distance to the code below, in steps; so at most step^2 / 4.

    The fourth moment of a Bernoulli variable bounds the standard deviation of its sample variance by 1 / (4 sqrt N),
    0.001 steps squared; the test grants five of them.
    """
    row = row_of("ordinary")
    received, step = received_of(row, bits)
    fraction = np.mod((row - received.min(axis=0)).astype(np.float64) / step, 1)
    expected = step.astype(np.float64) ** 2 * fraction * (1 - fraction)
    assert np.abs(received.var(axis=0, dtype=np.float64) - expected).max() <= 0.005 * step**2


def test_errors_of_columns_nodes_and_epochs_are_uncorrelated():
    """Correlations of N = 65536 pairs: normal with deviation 1/256, so below 6/256 (probability 1 - 2e-9 each)."""
    received, _ = received_of(row_of("ordinary"), 1)
    error = received - received.mean(axis=0)
    error = error[:, error.std(axis=0) > 0] / error.std(axis=0)[error.std(axis=0) > 0]
    columns = (error.T @ error) / len(error) - np.eye(error.shape[1])
    neighbors = (error[1:] * error[:-1]).mean(axis=0)
    epochs = (error[NUM_NODES:] * error[:-NUM_NODES]).mean(axis=0)
    assert max(np.abs(columns).max(), np.abs(neighbors).max(), np.abs(epochs).max()) < 6 / 256
