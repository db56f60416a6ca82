"""Numbers of threads, and messages through hpcgnn.ops.quantization with NumPy arrays on both sides."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from hpcgnn.ops.quantization import MessageLayout, dequantize_rows, quantize_rows


@pytest.fixture
def threads():
    """threads(number) sets the threads of torch and of the kernels, which share one OpenMP."""
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


@pytest.fixture
def send():
    """send(rows, bit_width, node_id, key) -> (layout, message) of all rows in order."""
    def send_rows(rows, bit_width, node_id, key):
        layout = MessageLayout.build(np.asarray(bit_width), rows.shape[1])
        message = np.full(layout.num_bytes, 0xAA, np.uint8)
        quantize_rows(torch.from_numpy(rows), np.arange(len(rows), dtype=np.int32), node_id, layout, key, message)
        return layout, message
    return send_rows


@pytest.fixture
def receive():
    """receive(layout, message) -> (num_rows, dim) float32."""
    def receive_rows(layout, message):
        rows = torch.full((layout.num_rows, layout.dim), torch.nan)
        every = np.arange(layout.num_rows)
        dequantize_rows(message, every.astype(np.int32), every, layout, rows)
        return rows.numpy()
    return receive_rows
