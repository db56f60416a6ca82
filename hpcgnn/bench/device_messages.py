"""Quantizing and packing one message on the GPU, and back, against copies of as many bytes and torch's operations."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import torch

from hpcgnn.bench.device_ceilings import copy_of
from hpcgnn.bench.device_timing import Device
from hpcgnn.bench.peers.torch_messages import TorchMessage
from hpcgnn.bench.timing import CEILING, OURS, Measurement
from hpcgnn.ops.counter import FORWARD, CounterKey
from hpcgnn.ops.cuda.resident import resident
from hpcgnn.ops.quantization import NO_BAD_ROW, MessageLayout, dequantize_rows, start_quantizing

BITS = (1, 2, 4, 8)
KEY = CounterKey(0, 0, FORWARD, 0)


def measure_messages(device: Device, num_rows: int, width: int) -> list[Measurement]:
    """Two measurements a bit-width, of a message of `num_rows` rows. Rates count rows and message: all that moves."""
    rows = device.random_rows(num_rows, width)
    received, first_bad = torch.empty_like(rows), torch.full((1,), NO_BAD_ROW, dtype=torch.int32, device=device.place)
    index, node_id = resident(np.arange(num_rows, dtype=np.int32)), resident(np.arange(num_rows))
    packing, unpacking = [], []
    for bits in BITS:
        layout = MessageLayout.build(np.full(num_rows, bits, np.uint8), width)
        message = torch.empty(layout.num_bytes, dtype=torch.uint8, device=device.place)
        moved, case = rows.nbytes + layout.num_bytes, f"{num_rows:,} x {width}, {bits} bit"
        copy, packed = copy_of(device, moved), TorchMessage(rows, bits)
        packing.append(device.measure("quantize + pack", case, moved / 1e9, "GB/s", {
            CEILING: copy, OURS: partial(start_quantizing, rows, index, node_id, layout, KEY, message, first_bad),
            "torch": partial(TorchMessage, rows, bits)}))
        unpacking.append(device.measure("unpack + dequantize", case, moved / 1e9, "GB/s", {
            CEILING: copy, OURS: partial(dequantize_rows, message, index, node_id, layout, received),
            "torch": partial(_made_on, device.place, packed.unpack)}))
    return packing + unpacking


def _made_on(place: str, work: Callable[[], torch.Tensor]) -> torch.Tensor:
    """Do the work with `place` as torch's default device, because the peer makes small tensors of its own."""
    with torch.device(place):
        return work()
