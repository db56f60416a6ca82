"""This module finds steps before training: those of least squared error, over a grid, the same on all ranks.

It knows groups of values, whether they are in-degrees, columns or rows of weights.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch

from hpcgnn.errors import CollectiveError
from hpcgnn.nn.quantized.fake_quantization import codes_of

CLIPPED = (1.1, 1.25, 1.4, 1.6, 1.8, 2.0, 2.5, 3.0, 4.0, 6.0)     # peaks tried, in largest codes
TOLERANCE = 1e-3                 # among errors so near, relative, the largest step wins: fewer codes are in use
NEGLIGIBLE = 1e-10               # of the sum of squares
VALUES_AT_ONCE = 1 << 20


class StepFit(NamedTuple):
    """Holds for each group (num_groups,) float32 steps, and float64 squared errors with them and sums of squares, over
    all ranks.
    """

    step: np.ndarray
    error: np.ndarray
    energy: np.ndarray


def search_steps(comm, values: torch.Tensor, group: torch.Tensor, max_code: np.ndarray) -> StepFit:
    """Collective: return the step of least squared error for each group of values.

    Parameters
    ----------
    comm : MPI communicator, or None where all ranks hold the same values
    values : (n,) float32, group : (n,) int64 below num_groups         zeros fit any step and may be left out
    max_code : (num_groups,) int                                       at least 1

    Returns
    -------
    StepFit      a group without values other than zero takes the step of the nearest that has some; 1 where none has

    Raises
    ------
    CollectiveError      values that are not finite
    """
    magnitude, group = values.detach().cpu().abs(), group.cpu()     # once, before training
    is_kept = magnitude != 0
    magnitude, group = magnitude[is_kept], group[is_kept]
    peak = _peaks(comm, magnitude, group, len(max_code))
    if not np.isfinite(peak).all():
        raise CollectiveError("rows to quantize hold NaN or infinity; look for extreme values in the features")
    steps = np.maximum(peak / _divisors(max_code), np.finfo(np.float32).tiny).astype(np.float32)
    errors = np.zeros((len(steps) + 1, len(max_code)))
    for some, their_group in zip(magnitude.split(VALUES_AT_ONCE), group.split(VALUES_AT_ONCE), strict=True):
        errors += _errors(some, their_group, steps, max_code)
    errors, energy = np.split(errors if comm is None else comm.allreduce(errors), [-1])
    is_good = errors <= (1 + TOLERANCE) * errors.min(axis=0) + NEGLIGIBLE * energy
    best = is_good.argmax(axis=0), np.arange(len(max_code))     # divisors ascend, so steps descend
    return StepFit(take_nearest(steps[best], peak > 0, 1.0), errors[best], energy[0])


def take_nearest(table: np.ndarray, is_known: np.ndarray, default: float) -> np.ndarray:
    """The table with its unknown entries replaced by the nearest known one, the lower of two; `default` without any."""
    known = np.flatnonzero(is_known)
    if not len(known):
        return np.full_like(table, default)
    place = np.arange(len(table))
    after = known[np.minimum(np.searchsorted(known, place), len(known) - 1)]
    before = known[np.maximum(np.searchsorted(known, place, "right") - 1, 0)]
    return table[np.where(np.abs(place - before) <= np.abs(after - place), before, after)]


def _divisors(max_code: np.ndarray) -> np.ndarray:
    """(num_candidates, num_groups): codes that the largest value is given, ascending: whole numbers, every one up to 8
    and a fifth more each time, at most max_code, and then clipped.
    """
    whole = np.union1d(np.arange(1, 9), np.round(1.2 ** np.arange(64)))
    whole = whole[whole < 2 * max_code.max(initial=1)]
    return np.concatenate([np.minimum(whole[:, None], max_code), np.multiply.outer(CLIPPED, max_code)])


def _peaks(comm, magnitude: torch.Tensor, group: torch.Tensor, num_groups: int) -> np.ndarray:
    peak = torch.zeros(num_groups).scatter_reduce_(0, group, magnitude, "amax").numpy()
    return peak if comm is None else np.max(comm.allgather(peak), axis=0)


def _errors(magnitude: torch.Tensor, group: torch.Tensor, steps: np.ndarray, max_code: np.ndarray) -> np.ndarray:
    """Return (num_steps + 1, num_groups) float64: squared errors of each step, and the sum of squares."""
    index, num_groups = group.numpy(), steps.shape[1]
    limit = torch.from_numpy(max_code.astype(np.float32))[group]
    of_steps = []
    for row in torch.from_numpy(steps):
        step = row[group]
        difference = codes_of(magnitude, step, limit).mul_(step).sub_(magnitude)
        of_steps.append(np.bincount(index, difference.square_().double().numpy(), num_groups))
    return np.stack([*of_steps, np.bincount(index, magnitude.square().double().numpy(), num_groups)])
