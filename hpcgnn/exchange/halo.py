"""HaloExchange: the step that brings halo rows here and takes their gradients home.

It joins plan, codec and ring, and counts what it sends; training decides the bits.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch
from mpi4py import MPI

from hpcgnn.exchange.bits import BitPlan, UniformBits
from hpcgnn.exchange.codec import Codec, decode, encode
from hpcgnn.exchange.plan import ExchangePlan
from hpcgnn.exchange.reach import Reach
from hpcgnn.exchange.ring import EXCHANGES, MessageArena
from hpcgnn.graph.hop import ExchangeSite
from hpcgnn.ops.aggregation import PackedRows
from hpcgnn.ops.counter import BACKWARD, FORWARD, CounterKey

MAX_TAG = 32767    # the least upper bound of tags that MPI grants


@dataclass
class Traffic:
    """What this rank handed to MPI, and the seconds that it took, since the last `take`."""

    payload_bytes: int = 0
    parameter_bytes: int = 0
    num_values: int = 0
    exchange_seconds: float = 0.0
    quantize_seconds: float = 0.0

    def take(self) -> Traffic:
        """Return the counts so far and start again from zero."""
        taken = Traffic(**self.__dict__)
        self.__init__()
        return taken


class HaloExchange:
    """Exchanges of one rank.

    Parameters
    ----------
    comm : MPI communicator with one rank a part
    plan : ExchangePlan
    bit_plan : BitPlan                          widths of training messages
    algorithm : {"ring", "alltoallv"}
    full_bits : {32, 16}                        width of rows as they are stored; evaluation's
    reach : Reach or None                       rows that training passes may leave out

    Attributes
    ----------
    training, evaluation, setup : Traffic       kept apart; evaluation and setup are no part of an epoch's bytes
    """

    def __init__(self, comm: MPI.Comm, plan: ExchangePlan, bit_plan: BitPlan, algorithm: str = "ring",
                 full_bits: int = 32, reach: Reach | None = None):
        self._comm, self._plan, self._algorithm = comm, plan, EXCHANGES[algorithm]
        self._bit_plan, self._reach = bit_plan, reach
        self._arena = MessageArena()
        self._full_codec = Codec(plan, UniformBits(full_bits))
        self._training_codecs: dict[int | None, Codec] = {None: Codec(plan, bit_plan)}
        self.training, self.evaluation, self.setup = Traffic(), Traffic(), Traffic()

    @property
    def is_alone(self) -> bool:
        """Whether this rank neither sends nor receives a row."""
        return self._plan.is_alone

    def fetch(self, h: torch.Tensor, out: torch.Tensor, site: ExchangeSite) -> None:
        """Collective: see `hpcgnn.graph.hop.Exchange`."""
        key = CounterKey(site.seed, site.epoch, FORWARD, site.layer)
        self._exchange(h, out, self._codec(site), self._traffic(site), key, accumulate=False)

    def fetch_packed(self, h: torch.Tensor, site: ExchangeSite) -> PackedRows | None:
        """Collective: see `hpcgnn.graph.hop.Exchange`."""
        key = CounterKey(site.seed, site.epoch, FORWARD, site.layer)
        messages = self._codec(site).messages(key.layer, key.purpose, h.shape[1])
        if not messages.is_packed:
            return None
        self._exchange(h, None, self._codec(site), self._traffic(site), key, accumulate=False)
        return PackedRows(self._arena.received, *messages.halo_rows)

    def take_home(self, gradient: torch.Tensor, total: torch.Tensor, site: ExchangeSite) -> None:
        """Collective: see `hpcgnn.graph.hop.Exchange`."""
        # The sender is part of the key: errors that several ranks make on one node's gradient are independent.
        key = CounterKey(site.seed, site.epoch, BACKWARD, site.layer, self._plan.rank)
        self._exchange(gradient, total, self._codec(site), self._traffic(site), key, accumulate=True)

    def input_rows(self, features: torch.Tensor) -> torch.Tensor:
        """Collective: inner features followed by halo features, which cross once, in float32."""
        rows = torch.empty(self._plan.num_inner + self._plan.num_halo, features.shape[1], dtype=torch.float32)
        rows[:self._plan.num_inner] = features
        self._exchange(features, rows[self._plan.num_inner:], Codec(self._plan, UniformBits(32)), self.setup,
                       CounterKey(0, 0, FORWARD, 0), accumulate=False)
        return rows

    def _codec(self, site: ExchangeSite) -> Codec:
        if not site.is_training:
            return self._full_codec
        if site.reach not in self._training_codecs:
            plan = self._reach.plan_within(self._plan, site.reach)
            self._training_codecs[site.reach] = Codec(plan, self._bit_plan)
        return self._training_codecs[site.reach]

    def _traffic(self, site: ExchangeSite) -> Traffic:
        return self.training if site.is_training else self.evaluation

    def _exchange(self, outgoing: torch.Tensor, incoming: torch.Tensor | None, codec: Codec, traffic: Traffic,
                  key: CounterKey, accumulate: bool) -> None:
        messages = codec.messages(key.layer, key.purpose, outgoing.shape[1])
        send, receive = self._arena.slices(messages.send_sizes, messages.receive_sizes)
        started = time.perf_counter()
        encode(messages, outgoing, key, send)
        encoded = time.perf_counter()
        sent = self._algorithm(self._comm, self._plan.rounds, send, receive, _tag(key))
        received = time.perf_counter()
        if incoming is not None:
            decode(messages, receive, incoming, accumulate)
        decoded = time.perf_counter()
        traffic.parameter_bytes += messages.parameter_bytes
        traffic.payload_bytes += sent - messages.parameter_bytes
        traffic.num_values += messages.num_values
        traffic.exchange_seconds += received - encoded
        traffic.quantize_seconds += (encoded - started) + (decoded - received)


def _tag(key: CounterKey) -> int:
    """Equal on all ranks for one exchange; two exchanges that could be confused have different tags."""
    return (4 * key.layer + key.purpose) % MAX_TAG
