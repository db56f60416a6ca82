"""Whether an epoch went well: everything finite, and the same weights on every rank."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from mpi4py import MPI

from hpcgnn.errors import CollectiveError
from hpcgnn.ops.adam import StepCheck

HALF_BITS = 32
GROWN = 2.0      # a loss of this multiple of its first value has diverged


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
