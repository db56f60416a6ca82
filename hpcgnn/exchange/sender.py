"""Sender: quantizes the rows of one exchange, counts their bytes and posts the messages.

Every row that leaves a rank passes `Sender.send`: encode into an arena's buffers, count, hand the buffers to a transfer
(or to the carrier, if nobody waits for the messages), and return an `Arrival` for the messages of the peers.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from mpi4py import MPI

from hpcgnn.exchange.arrival import Arrival, Travel
from hpcgnn.exchange.codec import MessageArena, Messages, encode
from hpcgnn.exchange.plan import ExchangePlan, Rounds
from hpcgnn.exchange.trace import Tracer
from hpcgnn.exchange.traffic import Traffic
from hpcgnn.exchange.transfer import EXCHANGES, HOST, MAX_TAG, Checks, HostDelivery, Link, Transfer, Transport
from hpcgnn.ops.counter import BACKWARD, CounterKey
from hpcgnn.ops.quantization import Buffer
from hpcgnn.ops.streams import Streams
from hpcgnn.run.watchdog import HERE

if TYPE_CHECKING:
    from hpcgnn.exchange.carrier import Carrier

Place = tuple[int, int, int]    # layer, purpose and dim of an exchange
Encode = Callable[[Messages, torch.Tensor, CounterKey, list[Buffer]], torch.Tensor | None]


@dataclass(frozen=True)
class Outgoing:
    """The rows that one exchange sends."""

    messages: Messages
    rows: torch.Tensor                   # (n, dim); the messages hold some of these rows
    key: CounterKey                      # randomness of rounding and rotation
    traffic: Traffic
    rounds: Rounds                       # (destination, source) of each round, as indices into the messages' peers
    span: tuple[int, int] | None = None  # (start, stop), halo rows if the messages have one peer; None: all
    has_new_rows: bool = True            # False: other columns of rows that were sent just before

    @property
    def is_gradient(self) -> bool:
        """Whether these are gradients of halo rows, which their owners add."""
        return self.key.purpose == BACKWARD

    @property
    def place(self) -> Place:
        return self.key.layer, self.key.purpose, self.messages.dim


@dataclass(frozen=True)
class Wire:
    """How messages travel."""

    algorithm: str = "ring"           # or "alltoallv"
    transport: Transport = HOST       # memory of messages and their way to MPI
    link: Link | None = None          # imitates a slower network
    # how asynchronous messages travel: in pieces, moved by a thread ("thread") or between blocks of rows ("polling"),
    # or "whole"
    pipeline: str = "thread"
    by_peer: bool = False             # halo rows arrive peer by peer, and again in the backward pass


HOST_RING = Wire()


class Sender:
    """Send the messages of one rank and count them.

    carrier : Carrier or None                  moves asynchronous messages in pieces
    training, evaluation, setup : Traffic      only `training` enters the numbers of an epoch
    tracer : Tracer                            notes the ranges of training's rows
    """

    def __init__(self, comm: MPI.Comm, plan: ExchangePlan, wire: Wire):
        self.comm, self.plan, self.transport = comm, plan, wire.transport
        self._algorithm, self._link, self._pipeline = EXCHANGES[wire.algorithm], wire.link, wire.pipeline
        self._arena = MessageArena(wire.transport, is_passing=True)
        self.training, self.evaluation, self.setup = Traffic(), Traffic(), Traffic()
        self.tracer = Tracer(wire.transport.streams, plan.peers)
        self.carrier: Carrier | None = None

    @property
    def arena_bytes(self) -> int:
        return self._arena.num_bytes

    def open_carrier(self) -> None:
        """Collective: open a carrier if asynchronous messages travel in pieces: in host memory, around the ring."""
        if (self.carrier is None and self._pipeline != "whole" and self.comm.size > 1
                and self.transport.name == "host" and self._algorithm is Transfer):
            from hpcgnn.exchange.carrier import Carrier

            self.carrier = Carrier(self.comm, self._pipeline)

    def close_carrier(self) -> None:
        """Collective: close the carrier; nothing may be on its way."""
        if self.carrier is not None:
            self.carrier.close()
            self.carrier = None

    def meet(self, node: MPI.Comm, traffic: Traffic) -> None:
        """Collective in a node: wait for all of its ranks; the carrier goes on meanwhile."""
        HERE.note("waits for the other ranks of its node")
        with traffic.waiting():
            request = node.Ibarrier()
            if self.carrier is None:
                request.Wait()
            else:
                self.carrier.drive_until(request.Test, lambda: None)
        HERE.note("computes")

    @contextmanager
    def pacing(self, num_bytes: int) -> Iterator[None]:
        """A block that takes at least as long as the imitated link needs for `num_bytes` each way."""
        until = 0.0 if self._link is None else self._link.reserve(num_bytes)
        yield
        time.sleep(max(0.0, until - time.perf_counter()))

    def send(self, outgoing: Outgoing, arena: MessageArena | None = None, encoding: Encode = encode,
             sends: np.ndarray | None = None, is_open: bool = False) -> Arrival:
        """Encode the rows of every message and post them.

        arena : MessageArena or None     memory of the messages; by default an arena that the next exchange reuses
        encoding : function              see `hpcgnn.exchange.codec.encode`
        sends : (num_peers,) bool        peers that send, this rank included; None: all
        is_open : bool                   nobody waits in this epoch: the carrier takes the messages, or all rounds are
                                         posted at once
        """
        messages, key, traffic, streams = outgoing.messages, outgoing.key, outgoing.traffic, self.transport.streams
        arena = arena or self._arena
        # 1. Buffers: one per peer and direction. A rank that skips this exchange sends and receives empty messages.
        send, receive = arena.slices(messages.send_sizes, messages.receive_sizes)
        arriving, does_send = receive, sends is None or sends[self.plan.own_place]
        if not does_send:
            send = [buffer[:0] for buffer in send]
        if sends is not None:
            arriving = [buffer if does else buffer[:0] for does, buffer in zip(sends, receive, strict=True)]
        # 2. Encode on the message stream, after the kernels that computed the rows.
        started, checks = time.perf_counter(), None
        tag = (4 * key.layer + key.purpose) % MAX_TAG     # exchanges that could be confused have different tags
        with streams.message.after_computing():
            if does_send:
                streams.message.keep(outgoing.rows)
                found = encoding(messages, outgoing.rows, key, send)
                checks = None if found is None else _checks_of(found, messages, key, streams)
                messages.count(traffic, outgoing.has_new_rows)
                if traffic is self.training and self.tracer.is_traced:
                    self.tracer.note(messages, key, send)
            delivery = self.transport.deliver(self.comm, messages.peers, send, arriving, tag, arena.staging, checks,
                                              is_open)
        # 3. Post. The carrier copies nothing: it keeps the buffers until they have left.
        traffic.quantize_seconds += time.perf_counter() - started
        if is_open and self.carrier is not None and isinstance(delivery, HostDelivery):
            transfer: Travel = self.carrier.take(delivery, outgoing.rounds, self._link, traffic, _name_of_tag)
        else:
            transfer = self._algorithm(delivery, outgoing.rounds, self._link, traffic, is_open, _name_of_tag)
        return Arrival(messages, receive, arena.received, transfer, key, traffic, streams,
                       is_read_once=arena is self._arena and arena.is_passing)


def _checks_of(found: torch.Tensor, messages: Messages, key: CounterKey, streams: Streams) -> Checks:
    from hpcgnn.exchange.device_transport import RowChecks

    return RowChecks(found, messages.send_rows, key, streams)


def _name_of_tag(tag: int) -> str:
    return f"layer {tag // 4}, {'backward' if tag % 4 == BACKWARD else 'forward'},"
