"""Sender: the one way by which rows leave a rank: they are encoded, counted and posted.

Which rows leave, and what becomes of those that arrive, is an exchange kind's business.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from mpi4py import MPI

from hpcgnn.exchange.arrival import Arrival
from hpcgnn.exchange.carrier import Carrier
from hpcgnn.exchange.codec import MessageArena, Messages, encode
from hpcgnn.exchange.delivery import RowChecks
from hpcgnn.exchange.plan import ExchangePlan, Rounds
from hpcgnn.exchange.ring import EXCHANGES, MAX_TAG, Link, Transfer
from hpcgnn.exchange.trace import Tracer
from hpcgnn.exchange.traffic import Traffic
from hpcgnn.exchange.transport import Transport
from hpcgnn.ops.counter import BACKWARD, CounterKey
from hpcgnn.ops.quantization import Buffer
from hpcgnn.run.watchdog import HERE

Place = tuple[int, int, int]    # layer, purpose and dim of an exchange
Encode = Callable[[Messages, torch.Tensor, CounterKey, list[Buffer]], torch.Tensor | None]


@dataclass(frozen=True)
class Outgoing:
    """Hold the rows that one exchange of one pass sends.

    Attributes
    ----------
    messages : Messages
    rows : (n, dim) tensor            of which the messages hold some
    key : CounterKey                  of the draws of their rounding and rotation
    traffic : Traffic                 counts them
    rounds : (destination, source) of each round of the ring, places in the peers of the messages
    span : (start, stop) or None      halo rows of the one peer that the messages are of; None is all
    """

    messages: Messages
    rows: torch.Tensor
    key: CounterKey
    traffic: Traffic
    rounds: Rounds
    span: tuple[int, int] | None = None

    @property
    def is_gradient(self) -> bool:
        """Tell whether gradients of halo rows go home, where they are added."""
        return self.key.purpose == BACKWARD

    @property
    def place(self) -> Place:
        """Return what names the exchange in every epoch."""
        return self.key.layer, self.key.purpose, self.messages.dim


class Sender:
    """Send the messages of one rank, and count them.

    Parameters
    ----------
    comm : MPI communicator
    plan : ExchangePlan
    algorithm : {"ring", "alltoallv"}
    transport : Transport
    link : Link
    pipeline : {"thread", "polling", "whole"}
        how messages that nobody waits for travel: in pieces, carried by a thread or between blocks of rows, or whole

    Attributes
    ----------
    comm, plan, transport : as they were given
    carrier : Carrier or None                  of messages that nobody waits for, where they travel in pieces
    training, evaluation, setup : Traffic      kept apart; evaluation and setup are no part of an epoch's bytes
    tracer : Tracer                            notes the ranges of training's rows
    """

    def __init__(self, comm: MPI.Comm, plan: ExchangePlan, algorithm: str, transport: Transport, link: Link,
                 pipeline: str = "thread"):
        self.comm, self.plan, self.transport = comm, plan, transport
        self._algorithm, self._link, self._arena = EXCHANGES[algorithm], link, MessageArena(transport, is_passing=True)
        self.training, self.evaluation, self.setup = Traffic(), Traffic(), Traffic()
        self.tracer = Tracer(transport.streams, plan.peers)
        self.carrier: Carrier | None = None
        self._pipeline = pipeline

    @property
    def arena_bytes(self) -> int:
        """Return the memory of the messages that exchanges reuse."""
        return self._arena.num_bytes

    def open_carrier(self) -> None:
        """Collective: have a carrier for messages that nobody waits for, where they travel in pieces: those of the
        host's memory, around the ring.
        """
        if (self.carrier is None and self._pipeline != "whole" and self.comm.size > 1
                and self.transport.name == "host" and self._algorithm is Transfer):
            self.carrier = Carrier(self.comm, self._pipeline)

    def close_carrier(self) -> None:
        """Collective: end the carrier, if there is one; nothing may be on its way."""
        if self.carrier is not None:
            self.carrier.close()
            self.carrier = None

    def meet(self, node: MPI.Comm, traffic: Traffic) -> None:
        """Collective in a node: return when all of its ranks have come here; the carrier's pieces go on meanwhile."""
        HERE.note("waits for the other ranks of its node")
        with traffic.waiting():
            request = node.Ibarrier()
            if self.carrier is None:
                request.Wait()
            else:
                self.carrier.drive_until(request.Test, lambda: None)
        HERE.note("computes")

    def send(self, outgoing: Outgoing, arena: MessageArena | None = None, encoding: Encode = encode,
             sends: np.ndarray | None = None, is_open: bool = False) -> Arrival:
        """Encode the rows of every message and post them.

        Parameters
        ----------
        arena : MessageArena or None     where the messages lie; by default one that the next exchange reuses
        encoding : function              see `hpcgnn.exchange.codec.encode`
        sends : (num_peers,) bool        the peers that send, this rank among them; None is all
        is_open : bool                   nobody waits for the messages in this epoch, so the carrier takes them, or
            without one all rounds are posted at once
        """
        messages, key, traffic, streams = outgoing.messages, outgoing.key, outgoing.traffic, self.transport.streams
        arena = arena or self._arena
        send, receive = arena.slices(messages.send_sizes, messages.receive_sizes)
        arriving, does_send = receive, sends is None or sends[self.plan.own_place]
        if not does_send:
            send = [buffer[:0] for buffer in send]
        if sends is not None:
            arriving = [buffer if does else buffer[:0] for does, buffer in zip(sends, receive, strict=True)]
        started, checks, peers = time.perf_counter(), None, messages.peers
        with streams.message.after_computing():
            if does_send:
                streams.message.keep(outgoing.rows)
                found = encoding(messages, outgoing.rows, key, send)
                checks = None if found is None else RowChecks(found, messages.send_rows, key, streams)
                traffic.count(messages, send)
                if traffic is self.training:
                    self.tracer.note(messages, key, send)
            is_carried = is_open and self.carrier is not None
            delivery = None if is_carried else arena.deliver(self.comm, peers, send, arriving, _tag(key), checks,
                                                             is_open)
        traffic.quantize_seconds += time.perf_counter() - started
        if is_carried:
            transfer = self.carrier.take(peers, outgoing.rounds, send, arriving, _tag(key), self._link, traffic,
                                         _name_of_tag)
        else:
            transfer = self._algorithm(self.comm, peers, outgoing.rounds, send, arriving, _tag(key), self._link,
                                       traffic, is_open, delivery, _name_of_tag)
        return Arrival(messages, receive, arena.received, transfer, key, traffic, streams,
                       is_read_once=arena is self._arena and arena.is_passing)


def _tag(key: CounterKey) -> int:
    """Return one exchange's tag, equal on all ranks; exchanges that could be confused have different tags."""
    return (4 * key.layer + key.purpose) % MAX_TAG


def _name_of_tag(tag: int) -> str:
    return f"layer {tag // 4}, {'backward' if tag % 4 == BACKWARD else 'forward'},"
