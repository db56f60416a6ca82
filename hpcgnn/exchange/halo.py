"""HaloExchange: brings halo rows to this rank and takes their gradients home.

Way of a row in `start_fetch(h, site)`, from its owner to its reader:
1. The codec of the site (`codec.py`) lists for each peer the rows of `h` to send and their bits.
2. The exchange kind (`kinds/`) decides what travels now and what is read: fresh, sampled, skipped or last epoch's rows.
3. `Sender.send` quantizes the rows into one buffer per peer and posts the buffers (`ring.py`, `delivery.py`).
4. The peer's `Arrival.finish` waits for its buffers and decodes them into its halo rows.

`start_take_home` is the same with the lists swapped: gradients of halo rows are sent, and the owner adds them.

Evaluation sends all rows fresh in their storage type. Sharing rows in a compute node, and summing rows before they are
sent, wrap steps 3 and 4 (`compute_node.py`, `pre_aggregation.py`).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from mpi4py import MPI

from hpcgnn.exchange.arrival import Arrival
from hpcgnn.exchange.bits import BitPlan, EpochPlan, UniformBits
from hpcgnn.exchange.codec import UNROTATED, Codec, Codecs, Coding, MessageArena, Messages, key_of_sender
from hpcgnn.exchange.compute_node import ComputeNode, SharedFetch, SharedGradients, SharedRows
from hpcgnn.exchange.kinds import ExchangeKind, Fresh
from hpcgnn.exchange.kinds.by_peer import GradientsByPeer, RowsByPeer, halo_spans_of, round_messages, round_of
from hpcgnn.exchange.plan import ExchangePlan
from hpcgnn.exchange.pre_aggregation import OutgoingRows, SummedGradients
from hpcgnn.exchange.quantized_sums import QuantizedSums
from hpcgnn.exchange.reach import Reach
from hpcgnn.exchange.sender import HOST_RING, Outgoing, Sender, Wire
from hpcgnn.exchange.state import State
from hpcgnn.exchange.trace import Trace
from hpcgnn.exchange.traffic import Traffic
from hpcgnn.graph.hop import ExchangeSite
from hpcgnn.graph.reductions import weighted_degree
from hpcgnn.ops.counter import BACKWARD, FORWARD, CounterKey
from hpcgnn.partition.partition import Partition

FLOAT_BITS = 32


class Call(NamedTuple):
    """One exchange of a training pass; `number` is its round if halo rows arrive peer by peer."""

    site: ExchangeSite
    purpose: int
    dim: int
    number: int | None


@dataclass(frozen=True)
class Savings:
    """Ways to send fewer rows."""

    node: ComputeNode | None = None        # ranks that share rows arriving at one of them
    outgoing: OutgoingRows | None = None   # table of sent rows if some are sums; None: inner rows are sent
    inputs: HaloExchange | None = None     # brings the input rows if sums are sent


NO_SAVINGS = Savings()


class HaloExchange:
    """All exchanges of one rank.

    comm : MPI communicator with one rank per part
    plan : ExchangePlan                which rows go where
    bit_plan : BitPlan                 widths of training messages until the first `begin_epoch`
    wire : Wire                        how messages travel
    coding : Coding                    bits and codes apart from the bit plan
    reach : Reach or None              rows that training passes may leave out
    kind : ExchangeKind or None        None: fresh rows
    last_sent : dict                   rank -> bytes sent to it in the last training epoch
    last_costs : dict                  seconds and bytes of that epoch on this rank, by name
    """

    def __init__(self, comm: MPI.Comm, plan: ExchangePlan, bit_plan: BitPlan, wire: Wire = HOST_RING,
                 coding: Coding = UNROTATED, reach: Reach | None = None, kind: ExchangeKind | None = None,
                 savings: Savings = NO_SAVINGS):
        self._outgoing, self._inputs = savings.outgoing, savings.inputs
        self._comm, self._plan, self._reach, self._bit_plan = comm, plan, reach, bit_plan
        self._sender, self._coding = Sender(comm, plan, wire), coding
        self._kind, self._evaluation_kind = kind or Fresh(), Fresh()
        self._full_codec, self._codecs = Codec(plan, UniformBits(coding.full_bits)), Codecs(coding)
        self._sums = QuantizedSums(comm, coding.sum_bits) if coding.sum_bits < FLOAT_BITS else None
        self.halo_spans = halo_spans_of(plan) if wire.by_peer else None
        node = savings.node
        self._shared = None if node is None else SharedRows(node, partial(self._sender.meet, node.comm))
        self.training, self.evaluation = self._sender.training, self._sender.evaluation
        self.setup = self._sender.setup if savings.inputs is None else savings.inputs.setup
        self.last_sent: dict[int, int] = {}
        self.last_costs: dict[str, float] = {}
        self._calls: list[Call] = []
        self._step_plan: Callable[[int | None], ExchangePlan] | None = None
        self._step_codecs: dict[int | None, Codec] = {}
        self._is_first_step = True

    @property
    def is_alone(self) -> bool:
        return self._plan.is_alone if self._shared is None else self._shared.is_idle

    @property
    def num_halo(self) -> int:
        return self._plan.num_halo if self._shared is None else self._shared.node.num_halo

    @property
    def num_returning(self) -> None:
        return None

    @property
    def reads_history(self) -> bool:
        return False

    @property
    def state_bytes(self) -> int:
        return self._kind.num_bytes

    @property
    def keeps_state(self) -> bool:
        return self._kind.keeps_state

    def state(self) -> State:
        """Collective: return the data of earlier epochs that the next epoch reads, valid until then."""
        # Waiting here does not count as the epoch's time. Waits here are not part of an epoch's seconds.
        seconds = self.training.exchange_seconds, self.training.blocked_seconds
        self._kind.settle()
        self.training.exchange_seconds, self.training.blocked_seconds = seconds
        self._sender.transport.streams.message.join()
        return self._kind.state()

    def restore(self, state: State) -> None:
        """Continue from what `state` returned on this rank, before the first epoch."""
        self._kind.restore(self._sender, state)

    def begin_epoch(self, epoch_plan: EpochPlan) -> None:
        """Take the plan of the next training pass, the same on all ranks."""
        self._kind.begin_epoch(epoch_plan)
        if epoch_plan.is_asynchronous:
            self._sender.open_carrier()
        self.training.restart_clock()
        self._bit_plan, self._calls = epoch_plan.bit_plan, []
        self._sender.tracer.begin_epoch(epoch_plan.is_traced)

    def begin_step(self, plan_of_step: Callable[[int | None], ExchangePlan], is_first: bool) -> None:
        """Exchange rows of one step in training, on all ranks; `plan_of_step` is its `plan_within`."""
        self._step_plan, self._step_codecs, self._is_first_step = plan_of_step, {}, is_first

    def end_steps(self) -> None:
        self._step_plan, self._step_codecs, self._is_first_step = None, {}, True

    def plan_within(self, hops: int | None) -> ExchangePlan:
        """Return the plan of the rows within `hops` hops of the loss through their receiver; None: all rows."""
        return self._plan if hops is None else self._reach.plan_within(self._plan, hops)

    def forget(self) -> None:
        """Collective: finish messages on their way, and discard all data of earlier epochs."""
        self._kind.forget()
        self._sender.close_carrier()
        if self._shared is not None:
            self._shared.release()

    def giving_way(self, meets: bool = True) -> AbstractContextManager[None]:
        """Collective: pause asynchronous messages in a block; see `Carrier.giving_way`."""
        carrier = self._sender.carrier
        return nullcontext() if carrier is None else carrier.giving_way(meets)

    def traces(self) -> dict[tuple[int, int], Trace]:
        """Return the Trace of each (layer, purpose) in the last traced epoch. Waits for a device."""
        return self._sender.tracer.traces()

    def movements(self) -> dict[tuple[int, int], np.ndarray]:
        """Return by (layer, purpose) how far the sent rows moved, see `Movement.sums`. Waits for a device."""
        return {place: sums.cpu().numpy() for place, sums in self._kind.movements().items()}

    def start_fetch(self, h: torch.Tensor, site: ExchangeSite) -> Arrival | SharedFetch:
        rows = h if self._outgoing is None else self._outgoing.of(h, site)
        arrival = self._start(rows, site, FORWARD)
        return arrival if self._shared is None else SharedFetch(self._shared, self._shared.own_rows(rows), arrival)

    def start_take_home(self, gradient: torch.Tensor,
                        site: ExchangeSite) -> Arrival | SharedGradients | SummedGradients:
        if self._shared is None:
            arrival = self._start(gradient, site, BACKWARD)
        else:
            own, leaving = self._shared.sum_gradients(gradient, self._traffic_of(site))
            arrival = SharedGradients(self._shared, own, self._start(leaving, site, BACKWARD))
        return arrival if self._outgoing is None else SummedGradients(self._outgoing, arrival, site)

    def start_fetch_by_peer(self, h: torch.Tensor, site: ExchangeSite) -> RowsByPeer:
        sources = tuple(source for _, source in self._plan.rounds)
        return RowsByPeer(sources, self.halo_spans, h.shape[1], h.dtype, h.device,
                          lambda number: self._start(h, site, FORWARD, number))

    def start_take_home_by_peer(self, gradient_of: Callable[[int], torch.Tensor],
                                site: ExchangeSite) -> GradientsByPeer:
        rounds = self._plan.rounds
        return GradientsByPeer(len(rounds), lambda number: self._start(gradient_of(rounds[number][0]), site, BACKWARD,
                                                                       number))

    def present(self, site: ExchangeSite) -> np.ndarray | None:
        return self._kind.present(self._plan, site) if site.is_training else None

    def input_rows(self, features: torch.Tensor) -> torch.Tensor:
        """Collective: return inner features followed by halo features, which are sent once, in their storage type."""
        if self._inputs is not None:
            return self._inputs.input_rows(features)
        shape = self._plan.num_inner + self.num_halo, features.shape[1]
        rows = torch.empty(shape, dtype=features.dtype, device=features.device)
        rows[:self._plan.num_inner] = features
        arrival, halo = self._start_as_it_is(features, self.setup), rows[self._plan.num_inner:]
        if self._shared is None:
            arrival.finish(halo)
        else:
            own = self._shared.own_rows(rows[:self._plan.num_inner])
            self._shared.fetch(own, arrival, halo)
            self._shared.release()      # features are wider than all later rows
        return rows

    def received_values(self, values: np.ndarray) -> np.ndarray:
        """Collective: send one number per row, (plan.num_inner,) float32; return them, then the received ones."""
        found = torch.empty(self._plan.num_halo, 1)
        self._start_as_it_is(torch.from_numpy(values)[:, None], Traffic()).finish(found)
        return np.concatenate([values, found[:, 0].numpy()])

    def sent_home(self, values: np.ndarray) -> np.ndarray:
        """Collective: sum numbers of halo rows, (num_halo,) float32, over the node's ranks; return (plan.num_halo,)."""
        if self._shared is None:
            return values
        return self._shared.sum_gradients(torch.from_numpy(values)[:, None], Traffic())[1][:, 0].numpy()

    def _start_as_it_is(self, rows: torch.Tensor, traffic: Traffic) -> Arrival:
        messages = Codec(self._plan, UniformBits(8 * rows.itemsize)).messages(0, FORWARD, rows.shape[1])
        outgoing = Outgoing(messages, rows, CounterKey(0, 0, FORWARD, 0), traffic, self._plan.rounds)
        return self._sender.send(outgoing, MessageArena(self._sender.transport))

    def sum_over_ranks(self, values: torch.Tensor) -> None:
        """Collective: sum float32 values in place; seconds and bytes count as training's."""
        if self._comm.size == 1:
            return
        started = time.perf_counter()
        with self.training.waiting(), self.giving_way():
            self._sender.transport.sum_over_ranks(self._comm, values)
        self.training.exchange_seconds += time.perf_counter() - started
        self.training.sum_bytes += values.nbytes

    def sum_gradients(self, values: torch.Tensor, key: CounterKey) -> None:
        """Collective: replace gradients (n,) float32 by their sums over all ranks, in `sum_bits` bits.

        `key` has the purpose SUM and rounds stochastically.
        """
        if self._sums is None or self._comm.size == 1:
            self.sum_over_ranks(values)
            return
        started = time.perf_counter()
        with self.training.waiting(), self.giving_way():
            self.training.sum_bytes += self._sums.sum(values, key)
        self.training.exchange_seconds += time.perf_counter() - started

    def weighted_degree(self, part: Partition, device: torch.device | None = None) -> np.ndarray | None:
        """Collective: return the sum of in-neighbors' weights, (num_inner + num_halo,) float32; None without any."""
        if part.edge_weight is None:
            return None
        own = torch.from_numpy(weighted_degree(part.indptr, part.edge_weight)).to(device)
        return self.input_rows(own[:, None])[:, 0].cpu().numpy()

    def _start(self, rows: torch.Tensor, site: ExchangeSite, purpose: int, number: int | None = None) -> Arrival:
        key = key_of_sender(CounterKey(site.seed, site.epoch, purpose, site.layer), self._plan.rank)
        call = Call(site, purpose, rows.shape[1], number)
        messages, rounds, span = self._messages(self._codec(site), call), self._plan.rounds, None
        if number is not None:
            span, rounds = self.halo_spans[rounds[number][1]], round_of(messages)
        kind = self._kind if site.is_training else self._evaluation_kind
        traffic = self._traffic_of(site)
        if site.is_training and self._is_first_step:     # all steps have the same calls
            self._calls.append(call)
        return kind.start(self._sender, Outgoing(messages, rows, key, traffic, rounds, span), site)

    def _traffic_of(self, site: ExchangeSite) -> Traffic:
        return self.training if site.is_training else self.evaluation

    def _messages(self, codec: Codec, call: Call) -> Messages:
        messages = codec.messages(call.site.layer, call.purpose, call.dim)
        if call.number is None:
            return messages
        return round_messages(messages, self._plan.rounds[call.number], call.purpose, self.halo_spans)

    @property
    def may_skip(self) -> bool:
        return self._kind.may_skip

    @property
    def message_bytes(self) -> int:
        return self._sender.arena_bytes + (0 if self._shared is None else self._shared.num_bytes)

    @property
    def widest_row(self) -> int:
        return max((call.dim for call in self._calls), default=0)

    def bytes_under(self, bit_plan: BitPlan, epoch: int) -> int:
        """Return the bytes that this rank would send if the exchanges since `begin_epoch` used another bit plan."""
        total, codecs = 0, {}
        for call in self._calls:
            site = replace(call.site, epoch=epoch)
            if site.reach not in codecs:
                codecs[site.reach] = Codec(self._travelling(site), bit_plan, self._coding)
            messages = self._messages(codecs[site.reach], call)
            total += messages.payload_bytes + messages.parameter_bytes
        return total

    def _travelling(self, site: ExchangeSite) -> ExchangePlan:
        return self._kind.travelling(self.plan_within(site.reach), site)

    def _codec(self, site: ExchangeSite) -> Codec:
        if not site.is_training:
            return self._full_codec
        if self._step_plan is not None:
            if site.reach not in self._step_codecs:
                self._step_codecs[site.reach] = Codec(self._step_plan(site.reach), self._bit_plan, self._coding)
            return self._step_codecs[site.reach]
        return self._codecs.find(self._bit_plan, self._kind.drawn_for(site), site.reach, lambda: self._travelling(site))
