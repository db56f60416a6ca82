"""One training epoch: forward, loss, backward, one Allreduce of the gradients, one step, and what it cost."""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np
import torch
from mpi4py import MPI

from hpcgnn.exchange.halo import HaloExchange
from hpcgnn.nn.quantized.models import QuantizedStack
from hpcgnn.ops.adam import StepCheck, check_of
from hpcgnn.ops.quantization import BIT_WIDTHS
from hpcgnn.training.gradients import FlatGradients
from hpcgnn.training.learner import Learner
from hpcgnn.training.precision import LossScale
from hpcgnn.training.session import Session
from hpcgnn.training.soundness import fault_in, signs_of
from hpcgnn.whereabouts import HERE


@dataclass(frozen=True)
class EpochTrace:
    """Record what all ranks did in one epoch. Seconds are means over the ranks, bytes sums of what went to MPI.

    `exchange_seconds` passed in MPI's calls, `blocked_seconds` of them waiting; `travel_seconds` passed from posting
    messages to their arrival noticed, whatever was computed meanwhile. `staleness` is the age in epochs of the oldest
    halo row read, `width_histogram` the rows sent at each width. `mean_bits` is bits a message value, parameters not
    counted; None where no value was sent.
    `stop_signal` is not 0 where some rank was asked to stop, `fault` not empty where something went wrong.
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


def train_epoch(session: Session, learner: Learner, seed: int, epoch: int, stop_signal: int = 0) -> EpochTrace:
    """Collective: train one epoch on the whole graph.

    The loss is the mean over all training nodes of all ranks, so that gradients are those of one process, and where the
    model has a `penalty`, that too. A step whose scaled gradients overflow is left out, on all ranks.

    Parameters
    ----------
    seed, epoch : int      key the random draws; epochs count from 0
    stop_signal : int      number of the signal that asked this rank to stop; 0 is none
    """
    comm, model, gradients, objective = session.comm, learner.model, learner.gradients, session.objective
    started = time.perf_counter()
    model.train()
    session.graph.begin_forward(seed, epoch, is_training=True, num_hops=getattr(model, "num_hops", None))
    gradients.zero()
    loss = objective.loss_sum(model(session.graph, session.graph.x), "train") / objective.num_global["train"]
    if hasattr(model, "penalty"):
        # All ranks have the whole penalty; gradients and losses are sums over ranks.
        loss = loss + model.penalty() / comm.size
    if isinstance(model, QuantizedStack):
        model.move_pressure()
    (loss * learner.loss_scale.value).backward()
    HERE.note("waits for the sum of the gradients")
    gradients.sum_over_ranks(comm)
    HERE.note("computes")
    check = _step(learner)
    if isinstance(model, QuantizedStack):
        model.clamp_widths()
    seconds = time.perf_counter() - started
    return _reduce_trace(comm, loss.item(), seconds, session.exchange, stop_signal, check)


def _step(learner: Learner) -> StepCheck:
    """Move the weights, unless their gradients overflow, and return a check of them: FlatAdam makes it in its own pass,
    for any other optimizer the weights are read once more.
    """
    gradients, optimizer, loss_scale = learner.gradients, learner.optimizer, learner.loss_scale
    check = optimizer.step() if _is_usable(gradients, loss_scale) else getattr(optimizer, "last_check", None)
    if isinstance(check, StepCheck):
        return check
    weights = [parameter.detach().flatten().float() for parameter in gradients.places]
    # With float16 a step whose scaled gradients overflow is left out, on all ranks; that is no fault.
    found = gradients.flat if not loss_scale.is_dynamic else torch.zeros_like(gradients.flat[:1])
    return check_of(found, torch.cat(weights))


def _is_usable(gradients: FlatGradients, loss_scale: LossScale) -> bool:
    """Unscale the gradients where they are scaled. All ranks hold the same sums, so they decide alike."""
    if not loss_scale.is_dynamic:
        return True
    is_finite = gradients.unscale(loss_scale.value)
    loss_scale.update(is_finite)
    return is_finite


def _reduce_trace(comm: MPI.Comm, loss: float, seconds: float, exchange: HaloExchange, stop_signal: int,
                  check: StepCheck) -> EpochTrace:
    """Collective: one Allreduce for all sums that an epoch reports, one for maxima. Counts are exact below 2**53."""
    traffic = exchange.training.take()
    exchange.last_sent = traffic.sent_by_peer
    sums = np.array([loss, seconds, traffic.exchange_seconds, traffic.quantize_seconds, traffic.payload_bytes,
                     traffic.parameter_bytes, traffic.num_values, stop_signal, traffic.blocked_seconds,
                     traffic.travel_seconds, *traffic.width_rows], dtype=np.float64)
    HERE.note("waits for the sum of the losses")
    comm.Allreduce(MPI.IN_PLACE, sums)
    largest = np.array([traffic.staleness, *signs_of(check)], dtype=np.int64)
    comm.Allreduce(MPI.IN_PLACE, largest, MPI.MAX)
    HERE.note("ends the epoch")
    (loss, seconds, exchanging, quantizing, payload, parameters, num_values, signals, blocked,
     travel) = sums[:10].tolist()
    return EpochTrace(
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
        width_histogram={str(bits): int(rows) for bits, rows in zip(BIT_WIDTHS, sums[10:], strict=True) if rows},
        fault=fault_in(largest[1:]),
    )
