"""Quantizing and packing one message, and back, against torch's own operations and one pass over the rows."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from hpcgnn.bench.ceilings import read_stream, write_stream
from hpcgnn.bench.memory import empty_rows, random_rows, zeros
from hpcgnn.bench.peers.torch_messages import TorchMessage
from hpcgnn.bench.timing import CEILING, OURS, Effort, Measurement, measure
from hpcgnn.ops.counter import FORWARD, CounterKey
from hpcgnn.ops.quantization import MessageLayout, dequantize_rows, quantize_rows

BITS = (1, 2, 4, 8)


def measure_messages(num_rows: int, width: int, peers: tuple[str, ...], effort: Effort) -> list[Measurement]:
    """Two measurements a bit-width, of a message of `num_rows` rows. Rates count the float32 side."""
    rows, received = random_rows(num_rows, width), empty_rows(num_rows, width)
    index, node_id = np.arange(num_rows, dtype=np.int32), np.arange(num_rows)
    key = CounterKey(0, 0, FORWARD, 0)
    packing, unpacking = [], []
    for bits in BITS:
        layout = MessageLayout.build(np.full(num_rows, bits, np.uint8), width)
        message = zeros((layout.num_bytes,), "uint8")
        pack: dict[str, Callable] = {
            CEILING: read_stream(rows), OURS: partial(quantize_rows, rows, index, node_id, layout, key, message)}
        unpack: dict[str, Callable] = {
            CEILING: write_stream(received), OURS: partial(dequantize_rows, message, index, node_id, layout, received)}
        if "torch" in peers:
            packed = TorchMessage(rows, bits)
            pack["torch"], unpack["torch"] = partial(TorchMessage, rows, bits), packed.unpack
        case, amount = f"{num_rows:,} x {width}, {bits} bit", rows.nbytes / 1e9
        packing.append(measure("quantize + pack", case, amount, "GB/s", pack, effort))
        unpacking.append(measure("unpack + dequantize", case, amount, "GB/s", unpack, effort))
    return packing + unpacking
