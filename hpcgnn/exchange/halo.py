"""HaloExchange: the step that brings halo rows here and takes their gradients home.

It joins plan, codec, transfer and what a method keeps between epochs, and counts what it sends; training decides.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable

import numpy as np
import torch
from mpi4py import MPI

from hpcgnn.errors import KernelError
from hpcgnn.exchange.arrival import Arrival, ReceivedTable
from hpcgnn.exchange.bits import BitPlan, UniformBits
from hpcgnn.exchange.codec import Codec, Messages, encode
from hpcgnn.exchange.flight import Flight
from hpcgnn.exchange.kept import State
from hpcgnn.exchange.memory import Memory
from hpcgnn.exchange.peerwise import GradientsByPeer, RowsByPeer, halo_spans_of, round_messages
from hpcgnn.exchange.plan import ExchangePlan
from hpcgnn.exchange.reach import Reach
from hpcgnn.exchange.ring import EXCHANGES, Link, MessageArena
from hpcgnn.exchange.row_checks import RowChecks
from hpcgnn.exchange.sampling import kept_halo, sampled
from hpcgnn.exchange.schedule import EpochPlan, Execution
from hpcgnn.exchange.tables import PredictedRows, encode_difference
from hpcgnn.exchange.trace import Trace
from hpcgnn.exchange.traffic import Traffic
from hpcgnn.exchange.transport import HOST, Transport
from hpcgnn.graph.hop import ExchangeSite
from hpcgnn.ops.counter import BACKWARD, FORWARD, CounterKey
from hpcgnn.ops.cuda.resident import on_device
from hpcgnn.ops.quantization import Buffer

MAX_TAG = 32767    # the least upper bound of tags that MPI grants
PLANS_KEPT = 4     # plans whose layouts are kept: SYLVIE's base widths return, widths drawn or solved anew don't


class HaloExchange:
    """Exchanges of one rank.

    Parameters
    ----------
    comm : MPI communicator with one rank a part
    plan : ExchangePlan
    bit_plan : BitPlan                          widths of training messages, until `begin_epoch` says otherwise
    algorithm : {"ring", "alltoallv"}
    full_bits : {32, 16}                        width of rows as they are stored; evaluation's
    reach : Reach or None                       rows that training passes may leave out
    execution : Execution
    transport : Transport                       where messages lie, beside the rows, and how they travel

    Attributes
    ----------
    halo_spans : see `hpcgnn.graph.hop.Exchange`; not None where the execution rematerializes
    training, evaluation, setup : Traffic       kept apart; evaluation and setup are no part of an epoch's bytes
    last_sent : dict                            rank -> bytes sent to it in the last training epoch
    """

    def __init__(self, comm: MPI.Comm, plan: ExchangePlan, bit_plan: BitPlan, algorithm: str = "ring",
                 full_bits: int = 32, reach: Reach | None = None, execution: Execution | None = None,
                 transport: Transport = HOST):
        self._comm, self._plan, self._algorithm = comm, plan, EXCHANGES[algorithm]
        self._reach, self._execution = reach, execution or Execution()
        self._epoch_plan = EpochPlan(bit_plan)
        self._transport, self._streams = transport, transport.streams
        self._arena, self._link = MessageArena(transport), Link(self._execution.link_bytes_per_second)
        self._full_codec = Codec(plan, UniformBits(full_bits))
        self._codecs: OrderedDict[tuple, dict[int | None, Codec]] = OrderedDict()
        self._sample: tuple[tuple[int, int], np.ndarray] | None = None
        self.halo_spans = halo_spans_of(plan) if self._execution.rematerializes else None
        self._memory = Memory(plan, self._execution, transport)
        self.training, self.evaluation, self.setup = Traffic(), Traffic(), Traffic()
        self._traces: dict[tuple[int, int], Trace] = {}
        self._unread: list[tuple[Messages, CounterKey, torch.Tensor]] = []
        self.last_sent: dict[int, int] = {}

    @property
    def is_alone(self) -> bool:
        """Tell whether this rank neither sends nor receives a row."""
        return self._plan.is_alone

    @property
    def state_bytes(self) -> int:
        """Memory that the method keeps between epochs: messages, reconstructions, means."""
        return self._memory.num_bytes

    @property
    def keeps_state(self) -> bool:
        """Tell whether training reads anything of earlier epochs, and so a resumed run needs `state`."""
        return self._memory.is_used

    def state(self) -> State:
        """Collective: all that the next epoch reads of earlier ones, valid until then; it changes nothing of them."""
        # What is waited for here is no part of an epoch's seconds.
        seconds = self.training.exchange_seconds, self.training.blocked_seconds
        self._memory.settle()
        self.training.exchange_seconds, self.training.blocked_seconds = seconds
        self._streams.message.join()
        return self._memory.state()

    def restore(self, state: State) -> None:
        """Go on from what `state` returned on this rank, before the first epoch."""
        self._memory.restore(state)

    def begin_epoch(self, epoch_plan: EpochPlan) -> None:
        """Take the plan of the next training pass, the same on all ranks."""
        self._epoch_plan = epoch_plan
        if epoch_plan.is_traced:
            self._traces, self._unread = {}, []

    def forget(self) -> None:
        """Collective: end what is on its way and keep nothing of earlier epochs, before another training or the end."""
        self._memory.forget()

    def start_fetch(self, h: torch.Tensor, site: ExchangeSite) -> Arrival:
        """Collective: see `hpcgnn.graph.hop.Exchange`."""
        return self._start(h, site, CounterKey(site.seed, site.epoch, FORWARD, site.layer))

    def start_take_home(self, gradient: torch.Tensor, site: ExchangeSite) -> Arrival:
        """Collective: see `hpcgnn.graph.hop.Exchange`."""
        return self._start(gradient, site, self._backward_key(site))

    def start_fetch_by_peer(self, h: torch.Tensor, site: ExchangeSite) -> RowsByPeer:
        """Collective: see `hpcgnn.graph.hop.Exchange`."""
        key = CounterKey(site.seed, site.epoch, FORWARD, site.layer)
        complete = self._complete_sample(site) if self._is_sampled(site) else None

        def start(number: int) -> Arrival:
            source = self._plan.rounds[number][1]
            after = None if complete is None else lambda rows: complete(rows, *self.halo_spans[source])
            return self._start_round(number, h, site, key, after)

        sources = tuple(source for _, source in self._plan.rounds)
        return RowsByPeer(sources, self.halo_spans, h.shape[1], h.dtype, h.device, start)

    def start_take_home_by_peer(self, gradient_of: Callable[[int], torch.Tensor],
                                site: ExchangeSite) -> GradientsByPeer:
        """Collective: see `hpcgnn.graph.hop.Exchange`."""
        key = self._backward_key(site)

        def start(number: int) -> Arrival:
            gradient = gradient_of(self._plan.rounds[number][0])
            if self._is_sampled(site) and site.is_scaled:
                gradient = gradient / self._execution.share
            return self._start_round(number, gradient, site, key)

        return GradientsByPeer(len(self._plan.rounds), start)

    def present(self, site: ExchangeSite) -> np.ndarray | None:
        """See `hpcgnn.graph.hop.Exchange`."""
        if not self._is_sampled(site):
            return None
        return self._kept_halo(site)

    def input_rows(self, features: torch.Tensor) -> torch.Tensor:
        """Collective: inner features followed by halo features, which cross once, in float32."""
        shape = self._plan.num_inner + self._plan.num_halo, features.shape[1]
        rows = torch.empty(shape, dtype=torch.float32, device=features.device)
        rows[:self._plan.num_inner] = features
        messages = Codec(self._plan, UniformBits(32)).messages(0, FORWARD, features.shape[1])
        flight = self._send(messages, features, CounterKey(0, 0, FORWARD, 0), MessageArena(self._transport), self.setup)
        Arrival((flight,), 0, 0, None, False, self.setup, None, self._streams).finish(rows[self._plan.num_inner:])
        return rows

    def _backward_key(self, site: ExchangeSite) -> CounterKey:
        # The sender is part of the key: errors that several ranks make on one node's gradient are independent.
        return CounterKey(site.seed, site.epoch, BACKWARD, site.layer, self._plan.rank)

    def _start_round(self, number: int, outgoing: torch.Tensor, site: ExchangeSite, key: CounterKey,
                     after: Callable[[torch.Tensor], None] | None = None) -> Arrival:
        """Start one round of the ring as an exchange of its own; its halo rows are counted from the peer's first."""
        whole = self._codec(site).messages(key.layer, key.purpose, outgoing.shape[1])
        messages = round_messages(whole, self._plan.rounds[number], key.purpose, self.halo_spans)
        traffic = self.training if site.is_training else self.evaluation
        flight = self._send(messages, outgoing, key, self._arena, traffic, rounds=self._plan.rounds[number:number + 1])
        return Arrival((flight,), key.epoch, 0, None, key.purpose == BACKWARD, traffic, after, self._streams)

    def _start(self, outgoing: torch.Tensor, site: ExchangeSite, key: CounterKey) -> Arrival:
        traffic = self.training if site.is_training else self.evaluation
        messages = self._codec(site).messages(key.layer, key.purpose, outgoing.shape[1])
        accumulate = key.purpose == BACKWARD
        if not site.is_training:
            flight = self._send(messages, outgoing, key, self._arena, traffic)
            return Arrival((flight,), key.epoch, 0, None, accumulate, traffic, None, self._streams)
        if self._execution.skip_change is not None:
            return self._start_broadcast(messages, outgoing, key)
        after = None
        if self._is_sampled(site):
            after = None if accumulate else self._complete_sample(site)
            outgoing = outgoing / self._execution.share if accumulate and site.is_scaled else outgoing
        if not self._memory.keeps_rows:
            flight = self._send(messages, outgoing, key, self._arena, traffic)
            return Arrival((flight,), key.epoch, 0, None, accumulate, traffic, after, self._streams)
        return self._start_at_site(messages, outgoing, key, accumulate)

    def _start_at_site(self, messages: Messages, outgoing: torch.Tensor, key: CounterKey,
                       accumulate: bool) -> Arrival:
        """Start an exchange whose messages or reconstructions outlive the epoch."""
        site = self._memory.at((key.layer, key.purpose, outgoing.shape[1]))
        is_asynchronous = self._epoch_plan.is_asynchronous
        if is_asynchronous and site.previous is None:
            raise KernelError(f"epoch {key.epoch} is asynchronous and no rows of layer {key.layer} were sent before "
                              "it; the first epoch must be synchronous")
        flight = self._send(messages, outgoing, key, site.next_arena(), self.training, site.table)
        before, site.previous = site.previous, flight
        flights = [before] if is_asynchronous else [one for one in (before, flight) if one is not None]
        return Arrival(tuple(flights), key.epoch, self._execution.staleness, site.table, accumulate, self.training,
                       None, self._streams)

    def _start_broadcast(self, messages: Messages, outgoing: torch.Tensor, key: CounterKey) -> Arrival:
        """Start an exchange in which a rank sends only if its rows have moved or grown too old."""
        broadcaster = self._memory.at((key.layer, key.purpose, outgoing.shape[1]))
        sends = broadcaster.agree(self._comm, outgoing, messages.send_index, key.epoch)
        flight = self._send(messages, outgoing, key, broadcaster.arena, self.training, sends=sends)
        has_rows = np.array([len(rows) > 0 for rows in messages.receive_rows])
        age = broadcaster.age(key.epoch, has_rows)
        return Arrival((flight,), key.epoch + age, self._execution.staleness, None, key.purpose == BACKWARD,
                       self.training, None, self._streams)

    def _send(self, messages: Messages, outgoing: torch.Tensor, key: CounterKey, arena: MessageArena, traffic: Traffic,
              table: ReceivedTable | None = None, sends: np.ndarray | None = None,
              rounds: tuple[tuple[int, int], ...] | None = None) -> Flight:
        """Encode the rows of every message and post them; `sends` names the ranks that do, None is all."""
        send, receive = arena.slices(messages.send_sizes, messages.receive_sizes)
        if sends is not None and not sends[self._plan.rank]:
            send = [buffer[:0] for buffer in send]
        arriving = receive if sends is None else [buffer if sends[peer] else buffer[:0]
                                                  for peer, buffer in enumerate(receive)]
        started, is_open = time.perf_counter(), self._epoch_plan.is_asynchronous and traffic is self.training
        with self._streams.message.after_computing():
            found = None
            if sends is None or sends[self._plan.rank]:
                self._streams.message.keep(outgoing)
                if isinstance(table, PredictedRows):
                    found = encode_difference(messages, outgoing, key, send, table.sent)
                else:
                    found = encode(messages, outgoing, key, send)
                self._note_sent(messages, key, send, traffic)
            checks = RowChecks(found, messages.send_rows, key, self._streams)
            delivery = arena.deliver(self._comm, send, arriving, _tag(key), checks, is_open)
        traffic.quantize_seconds += time.perf_counter() - started
        transfer = self._algorithm(self._comm, rounds or self._plan.rounds, send, arriving, _tag(key), self._link,
                                   traffic, is_open, delivery, _name_of_tag)
        return Flight(messages, receive, arena.received, transfer, key.epoch)

    def _note_sent(self, messages: Messages, key: CounterKey, send: list[Buffer], traffic: Traffic) -> None:
        traffic.parameter_bytes += messages.parameter_bytes
        traffic.payload_bytes += messages.payload_bytes
        traffic.num_values += messages.num_values
        traffic.width_rows += messages.width_rows
        for peer, buffer in enumerate(send):
            if len(buffer):
                traffic.sent_by_peer[peer] = traffic.sent_by_peer.get(peer, 0) + len(buffer)
        if traffic is self.training and self._epoch_plan.is_traced:
            self._note_ranges(messages, key, send)

    def _note_ranges(self, messages: Messages, key: CounterKey, send: list[Buffer]) -> None:
        if isinstance(send[0], np.ndarray):
            self._add_trace(key, Trace.read(messages, send))
            return
        # The device's kernels are only queued; their parameters are kept there and read when the epoch has ended.
        heads = [buffer[:layout.parameter_bytes] for buffer, layout in zip(send, messages.send_layouts, strict=True)]
        self._unread.append((messages, key, torch.cat(heads)))

    def _add_trace(self, key: CounterKey, trace: Trace) -> None:
        before = self._traces.get((key.layer, key.purpose))
        self._traces[key.layer, key.purpose] = trace if before is None else before.joined(trace)

    @property
    def traces(self) -> dict[tuple[int, int], Trace]:
        """Return the Trace of each (layer, purpose) in the last epoch that was traced. Waits for a device."""
        self._streams.message.join()
        for messages, key, parameters in self._unread:
            sizes = [layout.parameter_bytes for layout in messages.send_layouts]
            heads = np.split(parameters.cpu().numpy(), np.cumsum(sizes)[:-1])
            self._add_trace(key, Trace.read(messages, heads))
        self._unread = []
        return self._traces

    def _codec(self, site: ExchangeSite) -> Codec:
        if not site.is_training:
            return self._full_codec
        bit_plan = self._epoch_plan.bit_plan
        is_sampled = self._is_sampled(site)
        # A codec holds its plan, so no other plan has the same id while it is kept.
        rows = id(bit_plan), (site.seed, site.epoch) if is_sampled else None
        by_reach = self._codecs.setdefault(rows, {})
        self._codecs.move_to_end(rows)
        if site.reach not in by_reach:
            plan = self._plan if site.reach is None else self._reach.plan_within(self._plan, site.reach)
            if is_sampled:
                plan = sampled(plan, self._execution.share, site.seed, site.epoch)
            by_reach[site.reach] = Codec(plan, bit_plan)
            if len(self._codecs) > PLANS_KEPT:
                self._codecs.popitem(last=False)
        return by_reach[site.reach]

    def _is_sampled(self, site: ExchangeSite) -> bool:
        return site.is_training and self._execution.share < 1.0

    def _kept_halo(self, site: ExchangeSite) -> np.ndarray:
        """Return (num_halo,) bool, the epoch's sample of halo rows."""
        if self._sample is None or self._sample[0] != (site.seed, site.epoch):
            sample = kept_halo(self._plan, self._execution.share, site.seed, site.epoch)
            self._sample = (site.seed, site.epoch), sample
        return self._sample[1]

    def _complete_sample(self, site: ExchangeSite) -> Callable[..., None]:
        """Return a function that keeps a sum over halo rows unbiased: it zeroes those left out, and divides the others
        by the share.

        It takes the rows start .. stop - 1, all by default.
        """
        is_absent = ~self._kept_halo(site)

        def complete(rows: torch.Tensor, start: int = 0, stop: int | None = None) -> None:
            absent = np.flatnonzero(is_absent[start:stop])
            rows.index_fill_(0, on_device(absent, rows), 0)
            if site.is_scaled:
                rows /= self._execution.share

        return complete


def _tag(key: CounterKey) -> int:
    """Return one exchange's tag, equal on all ranks; exchanges that could be confused have different tags."""
    return (4 * key.layer + key.purpose) % MAX_TAG


def _name_of_tag(tag: int) -> str:
    return f"layer {tag // 4}, {'backward' if tag % 4 == BACKWARD else 'forward'},"
