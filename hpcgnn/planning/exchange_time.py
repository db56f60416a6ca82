"""Seconds of one exchange, by a closed form and by a simulation of how hpcgnn posts it; and of a sum over all ranks.

Example with three ranks: in round 1 rank 0 sends to 1 and receives from 2, in round 2 it sends to 2 and receives from
1. The simulation takes events by time: a message that both its sides have posted, or a short one that leaves at once.
"""

from __future__ import annotations

import heapq
import math

import numpy as np

from hpcgnn.planning.cluster import Network

EAGER_BYTES = 4096      # shorter messages are sent by MPI without asking; this is Open MPI's limit within a node


def exchange_seconds(source: np.ndarray, destination: np.ndarray, num_bytes: np.ndarray, num_ranks: int,
                     network: Network) -> float:
    """Seconds until an exchange has ended on all ranks, if nobody waits for a late partner: a lower bound.

    A rank's rounds follow each other; each takes the longer of its message out and its message in. Short messages leave
    before they are requested, and travel at the same time as all others. All messages from or to a node share its
    network interface. The slowest rank, message or interface counts.

    Parameters
    ----------
    source, destination : (n,) int64      ranks, each pair at most once; messages without bytes take no time
    num_bytes : (n,) number
    """
    is_sent = num_bytes > 0
    source, destination, num_bytes = source[is_sent], destination[is_sent], num_bytes[is_sent]
    if not len(source):
        return 0.0
    alone = message_seconds(source, destination, num_bytes, network)
    in_turn = np.where(num_bytes > EAGER_BYTES, alone, 0.0)
    # A round of a rank: one message to the rank i places on, and one from the rank i places back.
    offset = (destination - source) % num_ranks
    place, which = np.unique(np.concatenate([source * num_ranks + offset, destination * num_ranks + offset]),
                             return_inverse=True)
    longest = np.zeros(len(place))
    np.maximum.at(longest, which.ravel(), np.concatenate([in_turn, in_turn]))
    of_rank = np.bincount(place // num_ranks, weights=longest, minlength=num_ranks)
    return max(float(of_rank.max()), float(alone.max()), _interface_seconds(source, destination, num_bytes, network))


def message_seconds(source: np.ndarray, destination: np.ndarray, num_bytes: np.ndarray,
                    network: Network) -> np.ndarray:
    """Seconds of each message alone, (n,)."""
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
    """Seconds of an Allreduce of `num_bytes` bytes: halves are exchanged and summed, then gathered.

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


NOBODY = -1


def simulate_exchange(source: np.ndarray, destination: np.ndarray, num_bytes: np.ndarray, num_ranks: int,
                      network: Network) -> np.ndarray:
    """Time at which each rank has sent and received all its messages, (num_ranks,) seconds; all start at 0.

    Round i of rank r sends to r + i and receives from r - i, and is posted when round i - 1 has ended; rounds without
    bytes are left out. A long message begins when both sides have posted it, a short one when its sender has. Messages
    between nodes take turns at the interfaces of the sending and the receiving node. Parameters are as in
    `exchange_seconds`.
    """
    is_sent = num_bytes > 0
    source, destination, num_bytes = source[is_sent], destination[is_sent], num_bytes[is_sent]
    finished = np.zeros(num_ranks)
    if not len(source):
        return finished
    return _Exchange(source, destination, num_bytes, num_ranks, network).run(finished)


class _Exchange:
    def __init__(self, source: np.ndarray, destination: np.ndarray, num_bytes: np.ndarray, num_ranks: int,
                 network: Network):
        offset = (destination - source) % num_ranks
        rank = np.concatenate([source, destination])
        place, step = np.unique(rank * num_ranks + np.concatenate([offset, offset]), return_inverse=True)
        step, num = step.ravel(), len(source)
        owner = place // num_ranks
        self._send_step, self._receive_step = step[:num].tolist(), step[num:].tolist()
        self._sends, self._receives = [NOBODY] * len(place), [NOBODY] * len(place)
        for message, (out, into) in enumerate(zip(self._send_step, self._receive_step, strict=True)):
            self._sends[out], self._receives[into] = message, message
        self._pending = np.bincount(step, minlength=len(place)).tolist()
        self._ended = [0.0] * len(place)
        self._owner = owner.tolist()
        self._firsts = np.flatnonzero(np.append(True, owner[1:] != owner[:-1])).tolist()
        self._seconds = message_seconds(source, destination, num_bytes, network).tolist()
        leaving, arriving = source // network.ranks_per_node, destination // network.ranks_per_node
        is_far = leaving != arriving
        self._busy = np.where(is_far, num_bytes / network.nic_rate, 0.0).tolist() if is_far.any() else [0.0] * num
        self._leaving, self._arriving = leaving.tolist(), arriving.tolist()
        num_nodes = int(max(leaving.max(), arriving.max())) + 1
        self._out_free, self._in_free = [0.0] * num_nodes, [0.0] * num_nodes
        self._is_short = (num_bytes <= EAGER_BYTES).tolist()
        self._posted: list[float | None] = [None] * num       # when the first side of a long message was posted
        self._arrived: list[float | None] = [None] * num      # when a short message arrives, or is requested
        self._events: list[tuple[float, int]] = []
        self._to_post: list[tuple[int, float]] = []           # rounds after an ended round, and when that ended

    def run(self, finished: np.ndarray) -> np.ndarray:
        self._to_post += [(step, 0.0) for step in self._firsts]
        self._post_all()
        while self._events:
            now, message = heapq.heappop(self._events)
            arrival = self._carry(message, now)
            if self._is_short[message]:
                self._meet(message, arrival)
            else:
                self._end_side(self._send_step[message], arrival)
                self._end_side(self._receive_step[message], arrival)
            self._post_all()
        np.maximum.at(finished, np.array(self._owner), np.array(self._ended))
        return finished

    def _post_all(self) -> None:
        while self._to_post:
            self._post(*self._to_post.pop())

    def _post(self, step: int, now: float) -> None:
        sent, received = self._sends[step], self._receives[step]
        if received != NOBODY:
            if self._is_short[received]:
                self._meet(received, now)
            else:
                self._ready(received, now)
        if sent != NOBODY:
            if self._is_short[sent]:
                heapq.heappush(self._events, (now, sent))
                self._end_side(step, now)
            else:
                self._ready(sent, now)

    def _ready(self, message: int, now: float) -> None:
        earlier = self._posted[message]
        if earlier is None:
            self._posted[message] = now
        else:
            heapq.heappush(self._events, (max(now, earlier), message))

    def _meet(self, message: int, now: float) -> None:
        # A short message has arrived, or its receiver wants it; with both, the receiver goes on.
        earlier = self._arrived[message]
        if earlier is None:
            self._arrived[message] = now
        else:
            self._end_side(self._receive_step[message], max(now, earlier))

    def _carry(self, message: int, now: float) -> float:
        busy = self._busy[message]
        if not busy:
            return now + self._seconds[message]
        leaving, arriving = self._leaving[message], self._arriving[message]
        begin = max(now, self._out_free[leaving], self._in_free[arriving])
        self._out_free[leaving] = self._in_free[arriving] = begin + busy
        return begin + self._seconds[message]

    def _end_side(self, step: int, now: float) -> None:
        # After the last message of a round, the next round is posted.
        self._ended[step] = max(self._ended[step], now)
        self._pending[step] -= 1
        following = step + 1
        if not self._pending[step] and following < len(self._owner) and self._owner[following] == self._owner[step]:
            self._to_post.append((following, self._ended[step]))
