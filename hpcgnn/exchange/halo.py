"""HaloExchange: the differentiable step that brings halo rows here and takes their gradients home.

It joins plan, codec and ring, and counts what it sends; training decides the bits.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch
from mpi4py import MPI

from hpcgnn.exchange.bits import FULL_PRECISION, BitPlan
from hpcgnn.exchange.codec import Codec, decode, encode
from hpcgnn.exchange.plan import ExchangePlan
from hpcgnn.exchange.ring import EXCHANGES, MessageArena
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
    bit_plan : BitPlan                          widths of training messages; evaluation travels in float32
    algorithm : {"ring", "alltoallv"}

    Attributes
    ----------
    training, evaluation, setup : Traffic       kept apart; evaluation and setup are no part of an epoch's bytes
    """

    def __init__(self, comm: MPI.Comm, plan: ExchangePlan, bit_plan: BitPlan, algorithm: str = "ring"):
        self._comm, self._plan, self._algorithm = comm, plan, EXCHANGES[algorithm]
        self.rank = plan.rank
        self._arena = MessageArena()
        self._training_codec = Codec(plan, bit_plan)
        self._full_codec = Codec(plan, FULL_PRECISION)
        self.training, self.evaluation, self.setup = Traffic(), Traffic(), Traffic()

    def halo(self, h: torch.Tensor, layer: int, epoch: int, seed: int, is_training: bool) -> torch.Tensor:
        """Collective: see `LocalGraph.halo`."""
        codec = self._training_codec if is_training else self._full_codec
        traffic = self.training if is_training else self.evaluation
        return _Halo.apply(h, self, codec, traffic, CounterKey(seed, epoch, FORWARD, layer))

    def input_rows(self, features: torch.Tensor) -> torch.Tensor:
        """Collective: inner features followed by halo features, which cross once, in float32."""
        return self.bring(features, self._full_codec, self.setup, CounterKey(0, 0, FORWARD, 0))

    def bring(self, h: torch.Tensor, codec: Codec, traffic: Traffic, key: CounterKey) -> torch.Tensor:
        """Collective: (num_inner, dim) rows to (num_inner + num_halo, dim)."""
        rows = torch.empty(self._plan.num_rows, h.shape[1], dtype=torch.float32)
        rows[:self._plan.num_inner] = h
        self._exchange(rows, rows, codec, traffic, key, accumulate=False)
        return rows

    def take_home(self, gradient: torch.Tensor, codec: Codec, traffic: Traffic, key: CounterKey) -> torch.Tensor:
        """Collective: (num_inner + num_halo, dim) gradients to (num_inner, dim), halo rows added at their owners."""
        gradient = gradient.contiguous()
        total = gradient[:self._plan.num_inner].clone()
        self._exchange(gradient, total, codec, traffic, key, accumulate=True)
        return total

    def _exchange(self, outgoing: torch.Tensor, incoming: torch.Tensor, codec: Codec, traffic: Traffic,
                  key: CounterKey, accumulate: bool) -> None:
        messages = codec.messages(key.layer, key.purpose, outgoing.shape[1])
        send, receive = self._arena.slices(messages.send_sizes, messages.receive_sizes)
        started = time.perf_counter()
        encode(messages, outgoing, key, send)
        encoded = time.perf_counter()
        sent = self._algorithm(self._comm, self._plan.rounds, send, receive, _tag(key))
        received = time.perf_counter()
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


class _Halo(torch.autograd.Function):
    @staticmethod
    def forward(ctx, h: torch.Tensor, exchange: HaloExchange, codec: Codec, traffic: Traffic, key: CounterKey):
        ctx.arguments = exchange, codec, traffic, key
        return exchange.bring(h, codec, traffic, key)

    @staticmethod
    def backward(ctx, gradient: torch.Tensor):
        exchange, codec, traffic, key = ctx.arguments
        # The sender is part of the key: errors that several ranks make on one node's gradient are independent.
        back = key._replace(purpose=BACKWARD, part=exchange.rank)
        return exchange.take_home(gradient, codec, traffic, back), None, None, None, None
