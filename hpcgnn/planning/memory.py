"""Bytes that a rank holds at its fullest moment, by kind, from sizes alone; see `hpcgnn.training.forecast.Memory`."""

from __future__ import annotations

import numpy as np

from hpcgnn.planning.cluster import Cluster
from hpcgnn.planning.loads import PartLoads
from hpcgnn.planning.messages import Messages
from hpcgnn.planning.model import ModelSize, exchanges_of

KINDS = ("process", "reading", "features", "structure", "weights", "activations", "gradients", "halo_rows", "messages",
         "method_state")
ARRAYS_OF_WEIGHTS = 7      # weights, their best copy, gradients, two moments, a rate and a decay of each
BYTES_A_ARC = 8            # by destination and by source
BYTES_A_ROW = 32           # ids, degrees, ends of both orders, a scale
BYTES_A_NODE = 11          # labels and masks
BYTES_OF_MOMENTS = 8       # of a normalized row
FLOAT = 4


def memory_of(size: ModelSize, loads: PartLoads, messages: Messages, cluster: Cluster) -> dict[str, np.ndarray]:
    """Return bytes of each of KINDS, (num_parts,) each.

    `reading` is what the part takes while it is read, above what training takes in its place later; `features` have
    the halo rows and, after the first evaluation, what the input aggregates to; `gradients` are the rows of the
    backward pass that are there when most is.
    """
    known, none = loads.num_inner + loads.num_halo, np.zeros(loads.num_parts)
    kept, most = _activations(size, loads)
    exchanges = list(exchanges_of(size))
    widest = max((exchange.dim for exchange in exchanges), default=0)
    sent = np.maximum(np.bincount(loads.pairs.source, weights=loads.pairs.rows, minlength=loads.num_parts),
                      loads.num_halo)
    by_value = max(size.item_bytes, messages.bits / 8)
    halo_rows, sent_bytes = loads.num_halo * widest * size.item_bytes, 2 * sent * widest * by_value
    reading = loads.num_inner * FLOAT * size.in_dim + (known * FLOAT * size.in_dim if size.item_bytes < FLOAT else 0)
    return {
        "process": none + cluster.process_bytes,
        "reading": loads.num_inner * BYTES_A_NODE + np.maximum(0, reading - most - halo_rows - sent_bytes),
        "features": (known + loads.num_inner) * size.in_dim * size.item_bytes,
        "structure": loads.num_edges * BYTES_A_ARC + known * BYTES_A_ROW,
        "weights": none + FLOAT * ARRAYS_OF_WEIGHTS * size.num_weights,
        "activations": kept,
        "gradients": most - kept,
        "halo_rows": halo_rows,
        "messages": sent_bytes,
        "method_state": none + (sum(_state_bytes(messages, exchange, loads) for exchange in exchanges)
                                if messages.is_asynchronous else 0)}


def _state_bytes(messages: Messages, exchange, loads: PartLoads) -> np.ndarray:
    """Return what stays of an exchange until the next epoch: its messages, out and in."""
    rows = messages.rows(exchange, loads.pairs) * messages.row_bytes(exchange)
    return sum(np.bincount(side, weights=rows, minlength=loads.num_parts)
               for side in (loads.pairs.source, loads.pairs.destination))


def _activations(size: ModelSize, loads: PartLoads) -> tuple[np.ndarray, np.ndarray]:
    """Return what the forward pass keeps for the backward pass, and the most that is there in the latter."""
    item, kept, most = size.item_bytes, np.zeros(loads.num_parts), np.zeros(loads.num_parts)
    for layer in size.layers(loads):
        is_input = layer.number == 0
        sums = 0 if layer.maps_first else layer.rows_out * layer.in_dim
        if layer.maps_first and is_input:      # the masked rows, of the input halo rows too
            kept = kept + item * layer.in_dim * (layer.rows_in + loads.num_halo)
        kept = kept + item * sums
        out, rows = layer.rows_out * layer.out_dim, layer.rows_in * layer.in_dim     # and their gradients
        # Masked rows are made again for the gradients of weights; sums are gone before the pass back.
        again = rows if is_input or size.maps_a_layer == 2 else 0
        back = 0 if is_input else rows + layer.sum_dim * (layer.rows_in if layer.maps_first else layer.rows_out) - sums
        most = np.maximum(most, kept + item * (out + np.maximum(again, back)))
        kept = kept + item * out      # what normalization and ReLU read, or the loss
        if layer.number < size.num_layers - 1:
            kept = kept + BYTES_OF_MOMENTS * layer.rows_out
    return kept, np.maximum(most, kept)
