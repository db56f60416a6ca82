"""Bytes that a rank holds at its fullest moment, by kind, from sizes alone; see `hpcgnn.training.forecast.Memory`."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from hpcgnn.planning.arena import RankSize, arena_bytes
from hpcgnn.planning.cluster import Cluster
from hpcgnn.planning.loads import Pairs, PartLoads
from hpcgnn.planning.messages import Messages
from hpcgnn.planning.model import Exchange, Layer, ModelSize, exchanges_of

KINDS = ("process", "reading", "features", "structure", "weights", "activations", "gradients", "halo_rows", "messages",
         "shared_rows", "method_state")
ARRAYS_OF_WEIGHTS = 7      # weights, their best copy, gradients, two moments, a rate and a decay of each
BYTES_A_ARC = 8            # by destination and by source
BYTES_A_ROW = 32           # ids, degrees, ends of both orders, a scale
BYTES_A_LISTED_ROW = 16    # of a message: its id, where it lies here, its place in the whole list
BYTES_A_PLACE = 17         # of it in the message: two offsets and its width
BYTES_A_NODE = 11          # labels and masks
BYTES_OF_MOMENTS = 8       # of a normalized row
FLOAT = 4
PAGE_BYTES = 4096
COPIES_OF_STATE = 2        # the messages that the next epoch reads, and what a checkpoint says of them


def memory_of(size: ModelSize, loads: PartLoads, messages: Messages, cluster: Cluster) -> dict[str, np.ndarray]:
    """Return bytes of each of KINDS, (num_parts,) each.

    `reading` is what the part takes while it is read, above what training takes in its place later; `structure` has the
    arcs and what says where the rows of messages lie; `features` have the halo rows; `gradients` are what else lies in
    the arena: the rows of the backward pass, rows that are made again for it, and what whole chunks have more than
    tensors; `shared_rows` are what a rank sees of the table that the ranks of its node share.

    Parameters
    ----------
    loads : PartLoads      whose `shared` pairs are sent where the method shares the rows of a node
    """
    known, none = loads.num_inner + loads.num_halo, np.zeros(loads.num_parts)
    sent = loads.shared if messages.shares_rows and loads.shared is not None else loads.pairs
    exchanges = list(exchanges_of(size))
    widest = max((exchange.dim for exchange in exchanges), default=0)
    own, shared_rows = none, none
    if sent is loads.shared and exchanges:
        own, shared_rows = _shared(loads, sent, cluster, widest * size.item_bytes)
    kept = _activations(size, loads)
    by_exchange = {exchange: _both_ways(exchange, messages, sent, loads.num_parts) for exchange in exchanges}
    sent_bytes = np.max([sum(both) for both in by_exchange.values()], axis=0) if exchanges else none
    state = sum(both[1] for both in by_exchange.values()) if messages.is_asynchronous else none
    halo_rows, layers = loads.num_halo * widest * size.item_bytes, size.layers(loads)
    arena = arenas_of(size, loads, messages, sent, own)
    rest = np.maximum(0, arena - (kept - _moments(size, layers)) - halo_rows - sent_bytes - state)
    reading = loads.num_inner * FLOAT * size.in_dim + (known * FLOAT * size.in_dim if size.item_bytes < FLOAT else 0)
    return {
        "process": none + cluster.process_bytes,
        "reading": loads.num_inner * BYTES_A_NODE + np.maximum(0, reading - arena),
        "features": known * size.in_dim * size.item_bytes,
        "structure": (loads.num_edges * BYTES_A_ARC + known * BYTES_A_ROW
                      + layout_bytes(exchanges, messages, sent, loads)),
        "weights": none + FLOAT * ARRAYS_OF_WEIGHTS * size.num_weights,
        "activations": kept,
        "gradients": rest,
        "halo_rows": halo_rows,
        "messages": sent_bytes,
        "shared_rows": shared_rows * widest * size.item_bytes,
        "method_state": COPIES_OF_STATE * state}


def layout_bytes(exchanges: list[Exchange], messages: Messages, sent: Pairs, loads: PartLoads) -> np.ndarray:
    """Return the bytes of lists of rows, one for each number of hops to the loss, and of the rows' places in messages,
    those to send and those received: of a training pass, and of an evaluation, which sends all rows.
    """
    def of_ends(rows: np.ndarray) -> np.ndarray:
        return sum(_sums_of_ends(sent, rows, loads.num_parts))

    travelling = {exchange: messages.rows(exchange, sent) for exchange in exchanges}
    by_reach = {exchange.reach: rows for exchange, rows in travelling.items()}
    evaluated = [sent.rows for exchange in exchanges if not exchange.is_backward]
    return (BYTES_A_LISTED_ROW * sum(map(of_ends, by_reach.values()), of_ends(sent.rows))
            + BYTES_A_PLACE * sum(map(of_ends, [*travelling.values(), *evaluated]), np.zeros(loads.num_parts)))


def arenas_of(size: ModelSize, loads: PartLoads, messages: Messages, sent: Pairs, own: np.ndarray) -> np.ndarray:
    """Return the bytes of each part's arena, (num_parts,).

    Parameters
    ----------
    sent : Pairs                   of the messages
    own : (num_parts,) number      inner rows that other ranks of the node read, where they share rows; else 0
    """
    full = replace(messages, bits=8 * size.item_bytes, share=1.0, rotated=())
    exchanges, parts, layers = list(exchanges_of(size)), loads.num_parts, size.layers(loads)
    training = {exchange: _both_ways(exchange, messages, sent, parts) for exchange in exchanges}
    evaluation = {exchange.layer: _sums_of_ends(sent, sent.rows * full.row_bytes(exchange), parts)
                  for exchange in exchanges if not exchange.is_backward}
    return np.array([arena_bytes(size, RankSize(
        [_of_part(layer, part) for layer in layers], int(loads.num_inner[part]), int(loads.num_halo[part]),
        int(own[part]), lambda exchange, part=part: tuple(ends[part] for ends in training[exchange]),
        lambda exchange, part=part: tuple(ends[part] for ends in evaluation[exchange.layer]),
        messages.is_asynchronous)) for part in range(parts)])


def _shared(loads: PartLoads, sent: Pairs, cluster: Cluster, row_bytes: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the inner rows that other ranks of the node read, at most, where a row has several readers in the node;
    and the rows of both tables of the node, forward and back, whose memory counts as the rank's.
    """
    node, parts = np.arange(loads.num_parts) // cluster.network.ranks_per_node, loads.num_parts
    near = loads.pairs.where(node[loads.pairs.source] == node[loads.pairs.destination])
    own = np.minimum(np.bincount(near.source, weights=near.rows, minlength=parts), loads.num_inner)
    come = np.bincount(sent.destination, weights=sent.rows, minlength=parts)
    in_table, of_gradients = (np.bincount(node, weights=rows)[node] for rows in (own + come, loads.num_halo))
    rows_a_page = max(1, PAGE_BYTES // row_bytes)
    return own, (_rows_of_pages(own + come, loads.num_halo - come, in_table, rows_a_page)
                 + _rows_of_pages(loads.num_halo, own + come, of_gradients, rows_a_page))


def _rows_of_pages(written: np.ndarray, read: np.ndarray, table: np.ndarray, rows_a_page: int) -> np.ndarray:
    """Return how many rows of a table lie in pages that a rank touches: it writes some in a row, and reads others at
    random places of the rest.
    """
    rest = np.maximum(table - written, 1)
    return written + rest * (1 - (1 - np.clip(read / rest, 0, 1)) ** rows_a_page)


def _both_ways(exchange: Exchange, messages: Messages, pairs: Pairs, num_parts: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the bytes that each part sends and receives in a training pass."""
    ends = _sums_of_ends(pairs, messages.rows(exchange, pairs) * messages.row_bytes(exchange), num_parts)
    return ends[::-1] if exchange.is_backward else ends


def _sums_of_ends(pairs: Pairs, values: np.ndarray, num_parts: int) -> tuple[np.ndarray, np.ndarray]:
    return tuple(np.bincount(side, weights=values, minlength=num_parts) for side in (pairs.source, pairs.destination))


def _of_part(layer: Layer, part: int) -> Layer:
    """Return a layer with the numbers of one part."""
    arrays = ("rows_in", "rows_out", "arcs", "far_arcs", "central_arcs")
    return replace(layer, **{name: int(getattr(layer, name)[part]) for name in arrays})


def _activations(size: ModelSize, loads: PartLoads) -> np.ndarray:
    """Return what the forward pass keeps for the backward pass."""
    item, layers = size.item_bytes, size.layers(loads)
    kept = _moments(size, layers)
    for layer in layers:
        if not layer.maps_first:
            kept = kept + item * layer.rows_out * layer.in_dim
        elif layer.number == 0:      # the masked rows, of the input halo rows too
            kept = kept + item * layer.in_dim * (layer.rows_in + loads.num_halo)
        kept = kept + item * layer.rows_out * layer.out_dim      # what normalization and ReLU read, or the loss
    return kept


def _moments(size: ModelSize, layers: list[Layer]) -> np.ndarray:
    """Return the bytes of normalized rows' means and deviations, which are torch's own tensors."""
    return BYTES_OF_MOMENTS * sum(layer.rows_out for layer in layers[:-1]) + 0.0 * layers[-1].rows_out
