"""EpochTrace: results and costs of one training epoch of all ranks. `StepsTaken`: the same for an unfinished epoch.

An epoch went well if everything is finite and every rank has the same weights: `fault_in` finds what is wrong on any
rank, from numbers that are summed with the rest.

With a deterministic method, decisions must not depend on a clock, so `modeled_seconds` replaces measured seconds.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from mpi4py import MPI

from hpcgnn.config import TrainConfig
from hpcgnn.errors import CollectiveError
from hpcgnn.exchange.state import State
from hpcgnn.exchange.traffic import Traffic
from hpcgnn.ops.adam import StepCheck, UnreadCheck, worst_of
from hpcgnn.run.watchdog import HERE
from hpcgnn.widths import BIT_WIDTHS

MEMORY_BYTES_PER_SECOND, LINK_BYTES_PER_SECOND = 1e10, 1e9
PASSES = 3     # forward, and two products backward
HALF_BITS = 32
GROWN = 2.0      # a loss of this multiple of its first value has diverged


@dataclass(frozen=True)
class EpochTrace:
    """Results and costs of one epoch on all ranks. Seconds are means over ranks, bytes are sums of bytes given to MPI.

    `exchange_seconds` passed in MPI calls; `blocked_seconds` of them were waits for messages or gradient sums. During
    `travel_seconds` some message was on its way; for `hidden_seconds` of these the rank was not blocked.
    `sent_bytes_sums` went into sums over ranks and is not part of the payload. Of payload and parameters,
    `sent_bytes_between_nodes` went to ranks that share no memory with the sender. `shared_bytes` are rows and gradients
    passed through shared memory, without MPI. `staleness` is the age in epochs of the oldest halo row read,
    `width_histogram` the rows sent at each bit width, `mean_bits` the bits per message value without parameters (None
    if none was sent). `stop_signal` is not 0 if some rank was asked to stop, `fault` not empty if something went wrong.
    """

    loss: float
    epoch_seconds: float
    compute_seconds: float
    exchange_seconds: float
    quantize_seconds: float
    sent_bytes_payload: int
    sent_bytes_parameters: int
    mean_bits: float | None
    stop_signal: int
    blocked_seconds: float
    travel_seconds: float
    staleness: int
    width_histogram: dict[str, int]
    fault: str = ""
    hidden_seconds: float = 0.0
    sent_bytes_sums: int = 0
    sent_bytes_between_nodes: int = 0
    shared_bytes: int = 0

    @classmethod
    def sum_over_ranks(cls, comm: MPI.Comm, loss: float, seconds: float, traffic: Traffic, stop_signal: int,
                       check: StepCheck, mates: Collection[int]) -> EpochTrace:
        """Collective: one Allreduce for all sums and one for all maxima. Counts are exact below 2**53.

        Parameters
        ----------
        loss : this rank's share of the mean loss
        seconds : length of the epoch on this rank
        stop_signal : signal that asked this rank to stop; 0 is none
        check : check of this rank's weights and gradients
        mates : ranks of this rank's node
        """
        between = sum(sent for rank, sent in traffic.sent_by_peer.items() if rank not in mates)
        sums = np.array([loss, seconds, traffic.exchange_seconds, traffic.quantize_seconds, traffic.payload_bytes,
                         traffic.parameter_bytes, traffic.num_values, stop_signal, traffic.blocked_seconds,
                         traffic.travel_seconds, traffic.hidden_seconds, traffic.sum_bytes, between,
                         traffic.shared_bytes, *traffic.width_rows], dtype=np.float64)
        HERE.note("waits for the sum of the losses")
        comm.Allreduce(MPI.IN_PLACE, sums)
        largest = np.array([traffic.staleness, *signs_of(check)], dtype=np.int64)
        comm.Allreduce(MPI.IN_PLACE, largest, MPI.MAX)
        HERE.note("ends the epoch")
        (loss, seconds, exchanging, quantizing, payload, parameters, num_values, signals, blocked,
         travel, hidden, sum_bytes, between, shared) = sums[:14].tolist()
        return cls(
            loss=loss,
            epoch_seconds=seconds / comm.size,
            compute_seconds=(seconds - exchanging - quantizing) / comm.size,
            exchange_seconds=exchanging / comm.size,
            quantize_seconds=quantizing / comm.size,
            sent_bytes_payload=int(payload),
            sent_bytes_parameters=int(parameters),
            mean_bits=8 * payload / num_values if num_values else None,
            stop_signal=int(signals),
            blocked_seconds=blocked / comm.size,
            travel_seconds=travel / comm.size,
            staleness=int(largest[0]),
            width_histogram={str(bits): int(rows) for bits, rows in zip(BIT_WIDTHS, sums[14:], strict=True) if rows},
            fault=fault_in(largest[1:]),
            hidden_seconds=hidden / comm.size,
            sent_bytes_sums=int(sum_bytes),
            sent_bytes_between_nodes=int(between),
            shared_bytes=int(shared),
        )


@dataclass
class StepsTaken:
    """Results of an epoch's steps so far on this rank, so that a run may stop between two steps."""

    losses: list[float] = field(default_factory=list)      # per step, this rank's share of the epoch's mean loss
    # One per step since the last `read`, and one for all steps before it.
    checks: list[StepCheck | UnreadCheck] = field(default_factory=list)
    seconds: float = 0.0      # spent before this process began, like `traffic`
    traffic: Traffic | None = None
    unread: list[torch.Tensor] = field(default_factory=list)      # losses since the last `read`, on any device

    @property
    def number(self) -> int:
        """Steps of the epoch so far, those before a stop among them."""
        return len(self.losses) + len(self.unread)

    def note(self, loss: torch.Tensor, check: StepCheck | UnreadCheck) -> None:
        """Add a step, without waiting for it; `loss` is this rank's share of the step's mean loss."""
        self.unread.append(loss.reshape(()))
        self.checks.append(check)

    def read(self, num_steps: int) -> tuple[float, StepCheck]:
        """Wait for the steps of an epoch of `num_steps`; return the sum of their losses, and what is worst in them."""
        check = worst_of(self.checks).read()
        self.losses += [loss / num_steps for loss in torch.stack(self.unread).tolist()] if self.unread else []
        self.checks, self.unread = [check], []
        return sum(self.losses), check

    def with_earlier(self, traffic: Traffic) -> Traffic:
        """Traffic of the whole epoch, from that of this process."""
        return traffic if self.traffic is None else traffic.plus(self.traffic)

    def state(self, num_steps: int, by_row: bool, seconds: float, traffic: Traffic) -> State:
        """State for a checkpoint, including this process's seconds and traffic."""
        (_, check), traffic = self.read(num_steps), self.with_earlier(traffic)
        return {"num_steps": num_steps, "by_row": int(by_row), "seconds": self.seconds + seconds,
                "losses": np.array(self.losses), "traffic": traffic.state(),
                "largest": np.array([check.largest_gradient, check.largest_result]),
                "hash": np.array([check.hash], np.uint64)}

    @classmethod
    def of_state(cls, state: State | None) -> StepsTaken:
        """Continue from a `state()`; None begins an epoch."""
        if state is None:
            return cls()
        check = StepCheck(float(state["largest"][0]), float(state["largest"][1]), int(state["hash"][0]))
        return cls(state["losses"].tolist(), [check], float(state["seconds"]), Traffic.of_state(state["traffic"]))


def costs_of(seconds: float, traffic: Traffic) -> dict[str, float]:
    """Costs of an epoch on this rank: seconds of computing, packing, MPI, and blocked in MPI; bytes sent."""
    return {
        "compute_seconds": seconds - traffic.exchange_seconds - traffic.quantize_seconds,
        "quantize_seconds": traffic.quantize_seconds, "exchange_seconds": traffic.exchange_seconds,
        "blocked_seconds": traffic.blocked_seconds, "sent_bytes": sum(traffic.sent_by_peer.values()),
    }


def modeled_seconds(trace: EpochTrace, num_edges: int, config: TrainConfig, num_ranks: int,
                    is_asynchronous: bool) -> float:
    """Seconds of an epoch on a machine of fixed bandwidths; messages hidden behind computation are free.

    Each layer reads one float32 row per edge of the whole graph, forward and backward.
    """
    computing = PASSES * num_edges * config.layers * config.hidden * 4 / MEMORY_BYTES_PER_SECOND / num_ranks
    sending = (trace.sent_bytes_payload + trace.sent_bytes_parameters) / LINK_BYTES_PER_SECOND / num_ranks
    return max(computing, sending) if is_asynchronous else computing + sending


def remark_on_divergence(losses: Sequence[float], lr: float) -> str | None:
    """A sentence if the loss of a training ended far above its first value, else None."""
    if len(losses) < 3 or not losses[0] > 0 or min(losses[-3:]) <= GROWN * losses[0]:
        return None
    return (f"the training has diverged: its loss was {losses[0]:.4g} in the first epoch and {losses[-1]:.4g} in the "
            f"last one; its scores mean little, try a lower --lr than {lr:g}")


def signs_of(check: StepCheck) -> np.ndarray:
    """Findings of a step as int64 numbers; the ranks take the largest of each."""
    high, low = check.hash >> HALF_BITS, check.hash & (1 << HALF_BITS) - 1
    return np.array([high, -high, low, -low, not check.has_finite_gradients, not check.has_finite_results], np.int64)


def fault_in(largest: np.ndarray) -> str:
    """The first thing that is wrong on any rank, or ""; `largest`, (6,) int64, is the maximum of `signs_of`."""
    high, minus_high, low, minus_low, bad_gradients, bad_results = largest.tolist()
    if bad_gradients:
        return "gradients"
    if bad_results:
        return "weights"
    return "replicas" if (high, low) != (-minus_high, -minus_low) else ""


def fault_error(comm: MPI.Comm, fault: str, loss: float, epoch: int, check: StepCheck,
                features: torch.Tensor) -> CollectiveError:
    """Collective: the error for a fault in `epoch`, counted from 1."""
    if fault == "replicas" and math.isfinite(loss):
        return CollectiveError(_differing_ranks(comm.allgather(check.hash), epoch))
    largest = float(features.float().abs().amax()) if features.numel() else 0.0
    advice = ("lower --lr, or look for extreme values in the features: the largest is "
              f"{comm.allreduce(largest, MPI.MAX):.3g}")
    if not math.isfinite(loss):
        return CollectiveError(f"the loss of epoch {epoch} is {loss}; {advice}")
    if fault == "gradients":
        return CollectiveError(f"the gradients of epoch {epoch} are not finite; {advice}")
    return CollectiveError(f"the weights or Adam's moments are not finite after epoch {epoch}, with a largest "
                           f"gradient of {check.largest_gradient:.3g}; {advice}")


def _differing_ranks(hashes: list[int], epoch: int) -> str:
    usual = max(hashes, key=hashes.count)
    others = [str(rank) for rank, found in enumerate(hashes) if found != usual]
    one = len(others) == 1
    return (f"after epoch {epoch} rank{'' if one else 's'} {', '.join(others)} {'has' if one else 'have'} other "
            "weights than most ranks, though all took the same steps; look for another processor, version or "
            "environment there, or for failing memory, then go on from the last checkpoint with --resume")
