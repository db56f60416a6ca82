"""WeightAverage: the average of the last steps' weights, used for scores and for the saved model.

Steps of few rows make weights jump around the point where they would settle; their average does not. The average is
over a share of an epoch's steps, and over the last tenth of all steps as soon as that is more: early, the weights still
travel, so old weights only hold the average back; later, a longer average is calmer. With a decay it is over the steps
of all epochs: with 0.9 the last step counts 0.1, the step before 0.09, and so on. Training reads the average once:
an epoch of one step after epochs of many steps begins at it, unless it has a decay.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import nn

from hpcgnn.errors import CollectiveError

Weights = dict[str, torch.Tensor]
SHARE_OF_ALL = 0.1      # of the steps since the average began, see data/benchmarks/steps.md


class Averaged(NamedTuple):
    """Averaged weights by name, and the number of steps averaged so far."""

    num_steps: int
    weights: Weights


class WeightAverage:
    """Exponential average of a model's trained weights, without its buffers.

    With `decay` above 0, each step leaves decay * average + (1 - decay) * weights, beginning with the weights after the
    first step, as torch.optim.swa_utils.AveragedModel with get_ema_multi_avg_fn(decay). Else the average reaches back
    `share` of an epoch's steps, or SHARE_OF_ALL of the steps so far if these are more; until it has as many, it is the
    plain mean. Epochs of one step, and a share of 0, have no average. References: Polyak and Juditsky, 1992; Shamir and
    Zhang, ICML 2013 (averages over a share of all steps).
    """

    def __init__(self, model: nn.Module, share: float, decay: float = 0.0):
        self._weights = dict(model.named_parameters())
        self._share, self._decay, self._num_steps = share, decay, 0
        self._average: Weights = {}

    @torch.no_grad()
    def note(self, num_steps: int) -> None:
        """Take in the weights after one of the epoch's `num_steps` steps."""
        if not self._decay and (num_steps == 1 or not self._share):
            self._average, self._num_steps = {}, 0
            return
        self._num_steps += 1
        span = max(1.0, self._share * num_steps, SHARE_OF_ALL * self._num_steps)
        for name, weights in self._weights.items():
            if weights.requires_grad and name not in self._average:
                self._average[name] = weights.detach().clone()
        newest = 1 - self._decay if self._decay else max(1 / span, 1 / self._num_steps)
        if self._average:      # all at once, which a device starts as one kernel
            torch._foreach_lerp_(list(self._average.values()), [self._weights[name] for name in self._average], newest)

    def take(self) -> None:
        """Replace the weights by their average over a share, if there is one: exact steps go on from there."""
        if self._decay or not self._average:
            return
        self._write(self._average)
        self._average, self._num_steps = {}, 0

    @contextmanager
    def in_model(self) -> Iterator[None]:
        """Within the block, the model holds its average; afterwards exactly its own weights."""
        own = {name: self._weights[name].detach().clone() for name in self._average}
        self._write(self._average)
        try:
            yield
        finally:
            self._write(own)

    @torch.no_grad()
    def _write(self, values: Weights) -> None:
        for name, weights in values.items():
            self._weights[name].copy_(weights)

    def state(self) -> Averaged | None:
        """A view of the average; None if there is none."""
        return Averaged(self._num_steps, self._average) if self._average else None

    def restore(self, state: Averaged | None) -> None:
        """Continue from a `state()`; raises CollectiveError if it belongs to other weights."""
        trained = {name: weights for name, weights in self._weights.items() if weights.requires_grad}
        found = {} if state is None else state.weights
        fits = trained.keys() <= found.keys() <= self._weights.keys() and all(
            tensor.shape == self._weights[name].shape for name, tensor in found.items())
        if state is not None and not fits:
            raise CollectiveError("the checkpoint has an average of other weights, not of the weights that this model "
                                  "trains; this run did not write the checkpoint, start without --resume")
        self._num_steps = 0 if state is None else state.num_steps
        self._average = {name: tensor.to(self._weights[name], copy=True) for name, tensor in found.items()}
