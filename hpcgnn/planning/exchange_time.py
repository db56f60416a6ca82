"""Seconds of one exchange by a closed form, and of a sum over all ranks. The simulation is in `simulation`."""

from __future__ import annotations

import math

import numpy as np

from hpcgnn.planning.cluster import Network

EAGER_BYTES = 4096      # of a short message, that MPI sends without asking: Open MPI's limit within a node is this


def exchange_seconds(source: np.ndarray, destination: np.ndarray, num_bytes: np.ndarray, num_ranks: int,
                     network: Network) -> float:
    """Return the seconds in which an exchange has ended on all ranks where nobody waits for a late partner.

    A rank's rounds of the ring follow each other; each takes the longer of its message out and its message in, but for
    short messages, which leave before they are asked for and travel beside all others. All messages of a node that
    leave it, or come to it, share its network interface. The slowest rank, message or interface counts: a lower
    bound.

    Parameters
    ----------
    source, destination : (n,) int64      ranks, each pair once at most; messages without bytes take no time
    num_bytes : (n,) number
    """
    is_sent = num_bytes > 0
    source, destination, num_bytes = source[is_sent], destination[is_sent], num_bytes[is_sent]
    if not len(source):
        return 0.0
    alone = message_seconds(source, destination, num_bytes, network)
    in_turn = np.where(num_bytes > EAGER_BYTES, alone, 0.0)
    # A round of a rank: what it sends to the rank so many places on, and what comes from as many places back.
    offset = (destination - source) % num_ranks
    place, which = np.unique(np.concatenate([source * num_ranks + offset, destination * num_ranks + offset]),
                             return_inverse=True)
    longest = np.zeros(len(place))
    np.maximum.at(longest, which.ravel(), np.concatenate([in_turn, in_turn]))
    of_rank = np.bincount(place // num_ranks, weights=longest, minlength=num_ranks)
    return max(float(of_rank.max()), float(alone.max()), _interface_seconds(source, destination, num_bytes, network))


def message_seconds(source: np.ndarray, destination: np.ndarray, num_bytes: np.ndarray,
                    network: Network) -> np.ndarray:
    """Return the seconds of each message where it is alone, (n,)."""
    is_near = source // network.ranks_per_node == destination // network.ranks_per_node
    seconds = np.empty(len(source))
    if is_near.any():
        seconds[is_near] = network.within_latency + num_bytes[is_near] / network.within_rate
    if not is_near.all():
        rate = min(network.between_rate, network.nic_rate)
        seconds[~is_near] = network.between_latency + num_bytes[~is_near] / rate
    return seconds


def _interface_seconds(source: np.ndarray, destination: np.ndarray, num_bytes: np.ndarray, network: Network) -> float:
    leaving, arriving = source // network.ranks_per_node, destination // network.ranks_per_node
    is_far = leaving != arriving
    if not is_far.any():
        return 0.0
    busiest = max(np.bincount(node[is_far], weights=num_bytes[is_far]).max() for node in (leaving, arriving))
    return float(busiest) / network.nic_rate + network.between_latency


def sum_seconds(num_bytes: int, num_ranks: int, network: Network) -> float:
    """Return the seconds of an Allreduce of so many bytes: halves are exchanged and summed, then gathered.

    Reference: Rabenseifner, "Optimization of collective reduction operations", ICCS 2004: 2 log2(P) messages and
    2 (P - 1) / P times the bytes, both ways. Here the ranks of a node sum first, then one of each node.
    """
    seconds, nodes = 0.0, -(-num_ranks // network.ranks_per_node)
    near = min(num_ranks, network.ranks_per_node)
    levels = [(near, network.within_latency, network.within_rate)] if near > 1 else []
    if nodes > 1:
        levels.append((nodes, network.between_latency, min(network.between_rate, network.nic_rate)))
    for ranks, latency, rate in levels:
        seconds += 2 * math.ceil(math.log2(ranks)) * latency + 2 * (ranks - 1) / ranks * num_bytes / rate
    return seconds
