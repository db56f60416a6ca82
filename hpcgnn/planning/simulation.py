"""A discrete-event simulation of one exchange as hpcgnn posts it: ring order, rounds that wait, interfaces in common.

One event is a message that both its sides have posted, or that leaves without asking; they are taken by time.
"""

from __future__ import annotations

import heapq

import numpy as np

from hpcgnn.planning.cluster import Network
from hpcgnn.planning.exchange_time import EAGER_BYTES, message_seconds

NOBODY = -1


def simulate_exchange(source: np.ndarray, destination: np.ndarray, num_bytes: np.ndarray, num_ranks: int,
                      network: Network) -> np.ndarray:
    """Return when each rank has all its messages out and in, (num_ranks,) seconds; all start at 0.

    Round i of rank r sends to r + i and receives from r - i, and is posted when round i - 1 has ended; rounds without
    bytes are left out. A long message begins when both sides have posted it, a short one when its sender has. Messages
    between nodes take turns at the interface of the node that they leave, and of the one that they come to.

    Parameters
    ----------
    source, destination : (n,) int64      ranks, each pair once at most
    num_bytes : (n,) number
    """
    is_sent = num_bytes > 0
    source, destination, num_bytes = source[is_sent], destination[is_sent], num_bytes[is_sent]
    finished = np.zeros(num_ranks)
    if not len(source):
        return finished
    return _Exchange(source, destination, num_bytes, num_ranks, network).run(finished)


class _Exchange:
    """The state of a simulation; lists, since single elements of arrays are slow."""

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
        self._arrived: list[float | None] = [None] * num      # when a short message will be there, or is wanted
        self._events: list[tuple[float, int]] = []
        self._to_post: list[tuple[int, float]] = []           # rounds whose predecessor has ended, and when

    def run(self, finished: np.ndarray) -> np.ndarray:
        """Take event after event; write and return when each rank has finished."""
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
        """Note that one side of a long message is posted; with the second it can begin."""
        earlier = self._posted[message]
        if earlier is None:
            self._posted[message] = now
        else:
            heapq.heappush(self._events, (max(now, earlier), message))

    def _meet(self, message: int, now: float) -> None:
        """Note that a short message has arrived, or that its receiver wants it; with both the receiver goes on."""
        earlier = self._arrived[message]
        if earlier is None:
            self._arrived[message] = now
        else:
            self._end_side(self._receive_step[message], max(now, earlier))

    def _carry(self, message: int, now: float) -> float:
        """Return when a message that begins now has arrived."""
        busy = self._busy[message]
        if not busy:
            return now + self._seconds[message]
        leaving, arriving = self._leaving[message], self._arriving[message]
        begin = max(now, self._out_free[leaving], self._in_free[arriving])
        self._out_free[leaving] = self._in_free[arriving] = begin + busy
        return begin + self._seconds[message]

    def _end_side(self, step: int, now: float) -> None:
        """Note that a message of a round has ended for its rank; after the last one the next round is to be posted."""
        self._ended[step] = max(self._ended[step], now)
        self._pending[step] -= 1
        following = step + 1
        if not self._pending[step] and following < len(self._owner) and self._owner[following] == self._owner[step]:
            self._to_post.append((following, self._ended[step]))
