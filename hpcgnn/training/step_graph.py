"""StepGraph: a step of training as a CUDA graph, so that the host starts one graph where it started 60 to 130 kernels.

On a small graph a GPU waits for Python to start its kernels. The first steps are taken as they are; then one is
captured: the host goes through it once, while the device only notes what it would do. That and all later steps are
replays. Nothing that the host decides in a step may change afterwards, so settings whose steps depend on the host are
refused, and what changes in every step lies in the device's memory (`hpcgnn.ops.cuda.step_numbers`).
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

import torch

from hpcgnn.errors import TrainingError
from hpcgnn.training.optimizer import FlatAdam

if TYPE_CHECKING:
    from hpcgnn.training.optimizer import OwnOptimizer

Result = TypeVar("Result")
AS_THEY_ARE = 2      # first steps, in which kernels are compiled and arrays are brought to the device


class StepGraph:
    """Takes the steps of one training on one rank, whose model and optimizer are hpcgnn's."""

    def __init__(self, device: torch.device):
        from hpcgnn.ops.cuda.step_numbers import StepNumbers

        self._numbers, self._num_taken = StepNumbers(device), 0
        self._replay: Callable[[], object] | None = None
        self._results: list[object] = []

    def take(self, step: Callable[[], Result], optimizer: FlatAdam | OwnOptimizer, epoch: int) -> Result:
        """Take a step; its results hold the device's values until the next one.

        Raises TrainingError if the optimizer moves some weights only, or a step can't be captured.
        """
        self._num_taken += 1
        if self._num_taken <= AS_THEY_ARE:
            return step()
        factors = optimizer.next_factors() if isinstance(optimizer, FlatAdam) else None
        if not isinstance(optimizer, FlatAdam) or factors is None:
            raise TrainingError("step_graph replays steps that move all weights alike, and the optimizer has moved "
                                "some of them; use --set step_graph=off")
        self._numbers.write(epoch, factors)
        if self._replay is None:
            self._replay = self._captured(step)
        else:
            optimizer.note_replay()
        self._replay()
        return self._results[0]      # type: ignore[return-value]

    def forget(self) -> None:
        """Begin anew, with steps as they are: the model has changed."""
        self._replay, self._results, self._num_taken = None, [], 0

    def _captured(self, step: Callable[[], Result]) -> Callable[[], object]:
        from hpcgnn.ops.cuda.module import captured

        torch.cuda.synchronize()
        gc.collect()      # nothing of a pass may be freed while the next is captured
        torch.cuda.empty_cache()      # a graph has memory of its own
        self._results = []
        with self._numbers.in_use():
            try:
                return captured([lambda: self._results.append(step())])
            except RuntimeError as reason:
                raise TrainingError(f"this step can't be captured as a CUDA graph ({str(reason).splitlines()[0]}); use "
                                    "--set step_graph=off") from reason
