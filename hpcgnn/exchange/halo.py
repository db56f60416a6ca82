"""HaloExchange: brings halo rows to this rank and sends their gradients to the owners.

Way of a row in `start_fetch(h, site)`, from its owner to its reader:
1. The codec of the site (`codec.py`) lists for each peer the rows of `h` to send and their bits.
2. The exchange kind (`kinds/`) decides what travels now and what is read: fresh, sampled, skipped or last epoch's rows.
3. `Sender.send` quantizes the rows into one buffer per peer and posts the buffers (`transfer.py`).
4. The peer's `Arrival.finish` waits for its buffers and decodes them into its halo rows.

`start_take_home` is the same with the lists swapped: gradients of halo rows are sent, and the owner adds them.

Evaluation sends all rows fresh in their storage type. An exchange of rows that ranks of a node share, of rows that are
summed before they are sent, or of one that waits at once is a wrapper around a HaloExchange, an `Around`
(`compute_node.py`, `pre_aggregation.py`, `Waiting`).
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from mpi4py import MPI

from hpcgnn.errors import KernelError
from hpcgnn.exchange.arrival import Arrival, PassedOn
from hpcgnn.exchange.bits import BitPlan, EpochPlan, UniformBits
from hpcgnn.exchange.codec import UNROTATED, Codec, Codecs, Coding, MessageArena, Messages, key_of_sender
from hpcgnn.exchange.kinds.fresh import Fresh
from hpcgnn.exchange.kinds.kind import ExchangeKind
from hpcgnn.exchange.plan import ExchangePlan
from hpcgnn.exchange.reach import Reach
from hpcgnn.exchange.sender import HOST_RING, Outgoing, Sender, Wire
from hpcgnn.exchange.state import State
from hpcgnn.exchange.trace import Trace
from hpcgnn.exchange.traffic import Traffic
from hpcgnn.exchange.transfer import Transport
from hpcgnn.graph.hop import Exchange, ExchangeSite
from hpcgnn.graph.reductions import weighted_degree
from hpcgnn.ops.arena import empty, empty_table, in_memory, is_limited, set_aside
from hpcgnn.ops.column_ranges import ColumnRange, cut, join
from hpcgnn.ops.counter import BACKWARD, FORWARD, CounterKey
from hpcgnn.partition.partition import Partition

if TYPE_CHECKING:
    from hpcgnn.exchange.kinds.by_peer import GradientsByPeer, RowsByPeer
    from hpcgnn.exchange.quantized_sums import QuantizedSums

FLOAT_BITS = 32
INPUT_RANGES, LEAST_COLUMNS = 8, 16      # ranges in which input rows travel within --memory, and the narrowest
IN_STEPS, OF_SUMS = "in_steps", "sums of gradients"    # in `state`, beside the names of exchanges
PlanWithin = Callable[[int | None], ExchangePlan]      # of hops to the loss; None: any


class Call(NamedTuple):
    """One exchange of a training pass; `number` is its round if halo rows arrive peer by peer."""

    site: ExchangeSite
    purpose: int
    dim: int
    number: int | None


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

    num_returning, reads_history = None, False

    def __init__(self, comm: MPI.Comm, plan: ExchangePlan, bit_plan: BitPlan, wire: Wire = HOST_RING,
                 coding: Coding = UNROTATED, reach: Reach | None = None, kind: ExchangeKind | None = None):
        self._comm, self._plan, self._reach, self._bit_plan = comm, plan, reach, bit_plan
        self._sender, self._coding = Sender(comm, plan, wire), coding
        self._kind = kind or Fresh()
        self._kinds = {True: self._kind, False: Fresh()}     # by whether a site is in training
        self._kind_of_steps: ExchangeKind | None = None
        self._is_in_steps = False
        self._full_codecs: dict[range | None, Codec] = {}     # of evaluation, by the nodes that travel
        self._codecs = Codecs(coding)
        has_codes = coding.sum_bits < FLOAT_BITS and comm.size > 1
        self._sums = _sums_in_codes(comm, coding.sum_bits, wire.transport) if has_codes else None
        self.halo_spans = plan.halo_spans if wire.by_peer else None
        self.is_alone, self.num_halo, self.overlaps = plan.is_alone, plan.num_halo, not plan.is_alone
        self.training, self.evaluation, self.setup = self._sender.training, self._sender.evaluation, self._sender.setup
        self.last_sent: dict[int, int] = {}
        self.last_costs: dict[str, float] = {}
        self._calls: list[Call] = []
        self._plan_of_step: PlanWithin | None = None

    @property
    def state_bytes(self) -> int:
        of_sums = 0 if self._sums is None else self._sums.num_bytes
        return of_sums + sum(kind.num_bytes for kind in self._all_kinds)

    @property
    def _all_kinds(self) -> tuple[ExchangeKind, ...]:
        """The kind of whole epochs and, if it is another one, the kind of steps."""
        of_steps = self._kind_of_steps
        return (self._kind,) if of_steps in (None, self._kind) else (self._kind, of_steps)

    @property
    def kind_of_steps(self) -> ExchangeKind:
        """The kind of the exchanges of steps, which keeps its own rows.

        Raises ConfigError if the method needs all rows at once.
        """
        if self._kind_of_steps is None:
            self._kind_of_steps = self._kind.in_steps()
        return self._kind_of_steps

    @property
    def keeps_state(self) -> bool:
        return self._sums is not None or any(kind.keeps_state for kind in self._all_kinds)

    def settle(self) -> None:
        """Collective: wait for messages on their way, without reading them."""
        # Waits here are not part of an epoch's seconds.
        seconds = self.training.exchange_seconds, self.training.blocked_seconds
        for kind in self._all_kinds:
            kind.settle()
        self.training.exchange_seconds, self.training.blocked_seconds = seconds
        self._sender.transport.streams.message.join()

    def state(self) -> State:
        """Collective: return the data of earlier epochs that the next epoch reads, valid until then."""
        self.settle()
        whole, *of_steps = (kind.state() for kind in self._all_kinds)
        sums = {} if self._sums is None else {OF_SUMS: self._sums.state()}
        return {**whole, **({IN_STEPS: of_steps[0]} if of_steps else {}), **sums}

    def restore(self, state: State) -> None:
        """Continue from what `state` returned on this rank, before the first epoch."""
        whole = {name: kept for name, kept in state.items() if name not in (IN_STEPS, OF_SUMS)}
        for kind, kept in zip(self._all_kinds, (whole, state.get(IN_STEPS, {})), strict=False):
            kind.restore(self._sender, kept)
        if self._sums is not None:
            self._sums.restore(state.get(OF_SUMS, {}))      # none where `sum_bits` was 32 before

    def begin_epoch(self, epoch_plan: EpochPlan) -> None:
        """Take the plan of the next training pass, the same on all ranks."""
        if epoch_plan.is_traced and self._coding.send_share < 1.0:
            raise KernelError("an epoch traces the ranges of all rows, and messages have only some; use send_share=1")
        for kind in self._all_kinds:
            kind.begin_epoch(epoch_plan)
        self._is_in_steps = epoch_plan.num_steps > 1
        if epoch_plan.is_asynchronous:
            self._sender.open_carrier()
        self.training.restart_clock()
        self._bit_plan, self._calls = epoch_plan.bit_plan, []
        self._sender.tracer.begin_epoch(epoch_plan.is_traced)

    def of_step(self, plan_of_step: PlanWithin, is_first: bool) -> HaloExchange:
        """Return a view of this exchange for one step of all ranks; `plan_of_step` is the `plan_within` of its rows."""
        view = copy.copy(self)
        view._plan_of_step, view._codecs = plan_of_step, Codecs(self._coding)
        view._kind = self.kind_of_steps
        view._kinds = {True: view._kind, False: self._kinds[False]}
        view._calls = self._calls if is_first else []      # all steps have the same calls
        return view

    def end_epoch(self, sent_by_peer: dict[int, int], costs: dict[str, float]) -> None:
        """Note what the training epoch has sent and cost."""
        self.last_sent, self.last_costs = sent_by_peer, costs

    def plan_within(self, hops: int | None) -> ExchangePlan:
        """Return the plan of the rows within `hops` hops of the loss, see `Reach.plan_within`; None: all rows."""
        return self._plan if hops is None else self._reach.plan_within(self._plan, hops)

    def forget(self) -> None:
        """Collective: finish messages on their way, and discard all data of earlier epochs."""
        for kind in self._all_kinds:
            kind.forget()
        self.forget_sums()
        self._sender.close_carrier()

    def forget_sums(self) -> None:
        """Discard what the codes of the last sum of gradients lacked: the next gradients are of other weights."""
        if self._sums is not None:
            self._sums.forget()

    def giving_way(self, meets: bool = True) -> AbstractContextManager[None]:
        """Collective: pause asynchronous messages in a block; see `Carrier.giving_way`."""
        carrier = self._sender.carrier
        return nullcontext() if carrier is None else carrier.giving_way(meets)

    def meet(self, node: MPI.Comm, traffic: Traffic) -> None:
        """Collective in a node: wait for all of its ranks; asynchronous messages go on meanwhile."""
        self._sender.meet(node, traffic)

    def traces(self) -> dict[tuple[int, int], Trace]:
        """Return the Trace of each (layer, purpose) in the last traced epoch. Waits for a device."""
        return self._sender.tracer.traces()

    def movements(self) -> dict[tuple[int, int], np.ndarray]:
        """Return by (layer, purpose) how far the sent rows moved, see `Movement.sums`. Waits for a device."""
        kind = self.kind_of_steps if self._is_in_steps else self._kind
        return {place: sums.cpu().numpy() for place, sums in kind.movements().items()}

    def takes_columns(self, site: ExchangeSite, dtype: torch.dtype) -> bool:
        """Whether messages hold fresh and unquantized rows, so that columns may travel apart; see `Exchange`."""
        bits = 8 * dtype.itemsize
        if not site.is_training:
            return self._coding.full_bits == bits
        is_plain = type(self._kind) is Fresh and self._bit_plan == UniformBits(bits)
        return is_plain and self._coding.send_share == 1.0 and not self._sender.tracer.is_traced

    def start_fetch(self, h: torch.Tensor, site: ExchangeSite) -> Arrival:
        return self._kinds[site.is_training].start(self._sender, self._outgoing(h, site, FORWARD), site)

    def start_take_home(self, gradient: torch.Tensor, site: ExchangeSite) -> Arrival:
        return self._kinds[site.is_training].start(self._sender, self._outgoing(gradient, site, BACKWARD), site)

    def start_fetch_by_peer(self, h: torch.Tensor, site: ExchangeSite) -> RowsByPeer:
        from hpcgnn.exchange.kinds.by_peer import RowsByPeer

        sources = tuple(source for _, source in self._plan.rounds)
        return RowsByPeer(sources, self.halo_spans, h.shape[1], h.dtype, h.device,
                          lambda number: self._start_round(h, site, FORWARD, number))

    def start_take_home_by_peer(self, gradient_of: Callable[[int], torch.Tensor],
                                site: ExchangeSite) -> GradientsByPeer:
        from hpcgnn.exchange.kinds.by_peer import GradientsByPeer

        rounds = self._plan.rounds
        return GradientsByPeer(len(rounds), lambda number: self._start_round(gradient_of(rounds[number][0]), site,
                                                                             BACKWARD, number))

    def _start_round(self, rows: torch.Tensor, site: ExchangeSite, purpose: int, number: int) -> Arrival:
        return self._kinds[site.is_training].start(self._sender, self._outgoing(rows, site, purpose, number), site)

    def present(self, site: ExchangeSite) -> np.ndarray | None:
        return self._kind.present(self._plan, site) if site.is_training else None

    def input_rows(self, features: torch.Tensor) -> torch.Tensor:
        """Collective: return inner features followed by halo features, which are sent once, in their storage type."""
        rows = empty_table((self._plan.num_inner + self.num_halo, features.shape[1]), features.dtype, features.device)
        rows[:self._plan.num_inner] = features
        if is_limited():
            self._bring_input_by_ranges(features, rows[self._plan.num_inner:])
        else:
            self.start_input(features).finish(rows[self._plan.num_inner:])
        return rows

    def _bring_input_by_ranges(self, features: torch.Tensor, halo: torch.Tensor) -> None:
        # Rows are read and written in the order of the messages, so they and the messages lie in memory.
        ranges, brought = cut(features, max(LEAST_COLUMNS, -(-features.shape[1] // INPUT_RANGES))), list[ColumnRange]()
        while ranges:
            first, columns = ranges.pop(0)
            far = empty((len(halo), columns.shape[1]), halo.dtype)
            with in_memory(columns):
                arrival = self.start_input(columns)
            with in_memory(far):
                arrival.finish(far)
            brought.append(ColumnRange(first, set_aside(far)))
        join(brought, halo)

    def start_input(self, features: torch.Tensor) -> Arrival:
        """Collective: start to bring the halo rows of `features`, in their storage type."""
        return self._start_as_it_is(features, self.setup)

    def received_values(self, values: np.ndarray) -> np.ndarray:
        """Collective: send one number per row, (plan.num_inner,) float32; return them, then the received ones."""
        found = torch.empty(self._plan.num_halo, 1)
        self._start_as_it_is(torch.from_numpy(values)[:, None], Traffic()).finish(found)
        return np.concatenate([values, found[:, 0].numpy()])

    def sent_home(self, values: np.ndarray) -> np.ndarray:
        """Collective: sum numbers of halo rows, (num_halo,) float32, over the node's ranks; return (plan.num_halo,)."""
        return values

    def _start_as_it_is(self, rows: torch.Tensor, traffic: Traffic) -> Arrival:
        messages = Codec(self._plan, UniformBits(8 * rows.itemsize)).messages(0, FORWARD, rows.shape[1])
        outgoing = Outgoing(messages, rows, CounterKey(0, 0, FORWARD, 0), traffic, self._plan.rounds)
        return self._sender.send(outgoing, MessageArena(self._sender.transport))

    def sum_over_ranks(self, values: torch.Tensor) -> None:
        """Collective: sum float32 values in place; seconds and bytes count as training's."""
        if self._comm.size == 1:
            return
        started = time.perf_counter()
        with self.training.waiting(), self.giving_way(), self._sender.pacing(self._passed_on(values.nbytes)):
            self._sender.transport.sum_over_ranks(self._comm, values)
        self.training.exchange_seconds += time.perf_counter() - started
        self.training.sum_bytes += values.nbytes

    def sum_gradients(self, values: torch.Tensor, key: CounterKey, scale: float = 1.0) -> None:
        """Collective: replace gradients (n,) float32 by their sums over all ranks, in `sum_bits` bits.

        `key` has the purpose SUM and rounds stochastically. What codes lack is added before the next sum. `scale` is
        the loss scale of the gradients.
        """
        if self._sums is None:
            self.sum_over_ranks(values)
            return
        started = time.perf_counter()
        with self.training.waiting(), self.giving_way(), self._sender.pacing(self._sums.sent_bytes(len(values))):
            self.training.sum_bytes += self._sums.sum(values, key, scale)
        self.training.exchange_seconds += time.perf_counter() - started

    def _passed_on(self, num_bytes: int) -> int:
        # A sum of n bytes over P ranks takes each rank 2 n (P - 1) / P to send, and as many to receive, around a ring.
        return 2 * num_bytes * (self._comm.size - 1) // self._comm.size

    def spoil_if_overflowed(self, gradients: torch.Tensor) -> None:
        """Make a step's gradients of the weights NaN if gradients that were sent have overflowed, and not as NaN."""

    def _outgoing(self, rows: torch.Tensor, site: ExchangeSite, purpose: int, number: int | None = None) -> Outgoing:
        key = key_of_sender(CounterKey(site.seed, site.epoch, purpose, site.layer), self._plan.rank)
        messages, rounds, span = self._codec(site).messages(site.layer, purpose, rows.shape[1]), self._plan.rounds, None
        if number is not None:
            span, messages = self.halo_spans[rounds[number][1]], self._of_round(messages, purpose, number)
            rounds = ((0, len(messages.peers) - 1),)      # of the places of its one or two peers
        if site.is_training:
            self._calls.append(Call(site, purpose, rows.shape[1], number))
        return Outgoing(messages, rows, key, self.training if site.is_training else self.evaluation, rounds, span,
                        has_new_rows=site.first_column == 0)

    def _of_round(self, messages: Messages, purpose: int, number: int) -> Messages:
        from hpcgnn.exchange.kinds.by_peer import round_messages

        return round_messages(messages, self._plan.rounds[number], purpose, self.halo_spans)

    @property
    def may_skip(self) -> bool:
        return self._kind.may_skip

    @property
    def message_bytes(self) -> int:
        return self._sender.arena_bytes

    @property
    def widest_row(self) -> int:
        return max((call.dim for call in self._calls), default=0)

    def bytes_under(self, bit_plan: BitPlan, epoch: int) -> int:
        """Return the bytes that this rank would send if the exchanges since `begin_epoch` used another bit plan."""
        total, codecs = 0, {}
        for call in self._calls:
            site = replace(call.site, epoch=epoch)
            rows = site.reach, site.nodes
            if rows not in codecs:
                codecs[rows] = Codec(self._travelling(site), bit_plan, self._coding)
            messages = codecs[rows].messages(site.layer, call.purpose, call.dim)
            if call.number is not None:
                messages = self._of_round(messages, call.purpose, call.number)
            total += messages.payload_bytes + messages.parameter_bytes
        return total

    def _travelling(self, site: ExchangeSite) -> ExchangePlan:
        within = (self._plan_of_step or self.plan_within)(site.reach)
        return self._kind.travelling(within if site.nodes is None else within.of_nodes(site.nodes), site)

    def _codec(self, site: ExchangeSite) -> Codec:
        if not site.is_training:
            if site.nodes not in self._full_codecs:
                plan = self._plan if site.nodes is None else self._plan.of_nodes(site.nodes)
                self._full_codecs[site.nodes] = Codec(plan, UniformBits(self._coding.full_bits))
            return self._full_codecs[site.nodes]
        return self._codecs.find(self._bit_plan, self._kind.drawn_for(site), (site.reach, site.nodes),
                                 lambda: self._travelling(site))


def _sums_in_codes(comm: MPI.Comm, bits: int, transport: Transport) -> QuantizedSums:
    from hpcgnn.exchange.quantized_sums import QuantizedSums

    return QuantizedSums(comm, bits, transport)


def weighted_degree_of(exchange: Exchange, part: Partition,
                       device: torch.device | None = None) -> np.ndarray | None:
    """Collective: return the sum of in-neighbors' weights, (num_inner + num_halo,) float32; None without any."""
    if part.edge_weight is None:
        return None
    own = torch.from_numpy(weighted_degree(part.indptr, part.edge_weight)).to(device)
    return exchange.input_rows(own[:, None])[:, 0].cpu().numpy()


class Around:
    """Base of wrappers of another `exchange`: passes on to it everything that a subclass does not define."""

    def __init__(self, exchange: HaloExchange | Around):
        self.exchange = exchange

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name == "exchange":
            raise AttributeError(name)
        return getattr(self.exchange, name)

    def of_step(self, plan_of_step: PlanWithin, is_first: bool) -> Around:
        view = copy.copy(self)
        view.exchange = self.exchange.of_step(plan_of_step, is_first)
        return view


class Waiting(Around):
    """Waits for all rows at the start, so that layers compute nothing meanwhile."""

    overlaps = False

    def start_fetch(self, h: torch.Tensor, site: ExchangeSite) -> Arrival:
        return _arrived(self.exchange.start_fetch(h, site))

    def start_take_home(self, gradient: torch.Tensor, site: ExchangeSite) -> Arrival:
        return _arrived(self.exchange.start_take_home(gradient, site))


class Unscaled(Around):
    """Sends float16 gradients without the loss scale, as float32: they are kept, and the scale may be another one when
    they are read.

    Values that overflowed are sent as 0, so that all that is kept is finite, and all ranks skip the step.
    """

    def __init__(self, exchange: HaloExchange | Around):
        super().__init__(exchange)
        self._overflows: list[torch.Tensor] = []     # of the current step, shared with the views of steps

    def start_take_home(self, gradient: torch.Tensor, site: ExchangeSite) -> ScaledGradients:
        self._overflows.append(torch.isfinite(gradient).all().logical_not_())
        rows = gradient.nan_to_num(0.0, 0.0, 0.0).float().div_(site.loss_scale)
        return ScaledGradients(self.exchange.start_take_home(rows, site), site.loss_scale)

    def spoil_if_overflowed(self, gradients: torch.Tensor) -> None:
        if self._overflows:
            gradients[:1].masked_fill_(torch.stack(self._overflows).any(), float("nan"))
            self._overflows.clear()


class ScaledGradients(PassedOn):
    """Gradients without a loss scale, which `finish` adds with the `scale` of the pass that reads them."""

    def __init__(self, arrival: Any, scale: float):
        self.arrival, self.messages, self.device, self._scale = arrival, arrival.messages, arrival.device, scale

    def finish(self, rows: torch.Tensor) -> None:
        # The scale is a power of two, so only the sum is rounded.
        unscaled = rows.float() / self._scale
        self.arrival.finish(unscaled)
        rows.copy_(unscaled.mul_(self._scale))


def _arrived(arrival: Arrival) -> Arrival:
    arrival.wait()
    return arrival
