"""FlatAdam: Adam over one buffer of all weights.

torch's own would import its compiler first, which doubles the time that a rank takes to start and reads thousands of
files, and on CPUs takes all weights in one pass from torch 2.4 on only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn

from hpcgnn.errors import CollectiveError
from hpcgnn.ops.adam import StepCheck, adam_step
from hpcgnn.training.gradients import FlatGradients

Moments = dict[int, dict[str, torch.Tensor]]
MOST_STEPS = 2.0 ** 53       # that a float counts


@dataclass(frozen=True)
class WeightGroup:
    """Weights with one learning rate and one weight decay."""

    parameters: Sequence[nn.Parameter]
    lr: float
    weight_decay: float = 0.0


class FlatAdam:
    """Adam with L2 weight decay, as torch.optim.Adam has it; weights become views of one buffer.

    Parameters
    ----------
    gradients : FlatGradients        of the same weights
    groups : sequence of WeightGroup      every weight in one of them

    Attributes
    ----------
    last_check : StepCheck           of the last step
    """

    def __init__(self, gradients: FlatGradients, groups: Sequence[WeightGroup]):
        self._gradient, self._groups = gradients.flat, groups
        self._weights, self._lr, self._decay, self._mean, self._square = (torch.zeros_like(gradients.flat)
                                                                          for _ in range(5))
        self._place: dict[nn.Parameter, slice] = gradients.places
        self._num_steps, self._factor = 0, 1.0
        self.last_check = StepCheck()
        for group in groups:
            for parameter in group.parameters:
                place = self._place[parameter]
                self._lr[place], self._decay[place] = group.lr, group.weight_decay
                self._weights[place] = parameter.detach().flatten()
                parameter.data = self._weights[place].view_as(parameter)

    def step(self) -> StepCheck:
        """Move all weights against their gradients; whether all is finite, and which weights these are."""
        self._num_steps += 1
        self.last_check = adam_step(self._weights, self._gradient, self._lr, self._decay, self._mean, self._square,
                                    self._num_steps)
        return self.last_check

    def forget(self) -> None:
        """Begin with moments of zero again, as before the first step."""
        self._mean.zero_()
        self._square.zero_()
        self._num_steps = 0

    def scale_rate(self, factor: float) -> None:
        """From now on, take every learning rate times `factor`, which replaces the last one."""
        if factor != self._factor:
            for group in self._groups:
                for parameter in group.parameters:
                    self._lr[self._place[parameter]] = factor * group.lr
            self._factor = factor

    def state(self) -> Moments:
        """Moments of each weight, numbered group by group; empty before the first step."""
        if self._num_steps == 0:
            return {}
        step = torch.tensor(float(self._num_steps))
        return {number: {"step": step, "exp_avg": self._mean[place].view_as(parameter),
                         "exp_avg_sq": self._square[place].view_as(parameter)}
                for number, (parameter, place) in enumerate(self._numbered())}

    def load_state(self, state: Moments) -> None:
        """Go on from what `state` returned; raises CollectiveError where its moments are not of these weights, or their
        numbers of steps are none or differ.
        """
        for number, (_, place) in enumerate(self._numbered()):
            if number in state:
                self._check_fit(state[number], place)
                self._mean[place] = state[number]["exp_avg"].flatten().to(self._mean)
                self._square[place] = state[number]["exp_avg_sq"].flatten().to(self._square)
        steps = {float(moments["step"]) for moments in state.values() if "step" in moments}
        if steps:
            self._num_steps = _one_number_of_steps(steps)

    def _check_fit(self, moments: dict[str, torch.Tensor], place: slice) -> None:
        num_weights = place.stop - place.start
        found = {name: moments[name].numel() for name in ("step", "exp_avg", "exp_avg_sq") if name in moments}
        if found != {"step": 1, "exp_avg": num_weights, "exp_avg_sq": num_weights}:
            raise CollectiveError(f"the checkpoint's optimizer has {found} for {num_weights} weights of this model; it "
                                  "was not written by this run, start without --resume")

    def _numbered(self) -> list[tuple[nn.Parameter, slice]]:
        return [(parameter, self._place[parameter]) for group in self._groups for parameter in group.parameters]


def _one_number_of_steps(steps: set[float]) -> int:
    step = min(steps)
    if len(steps) > 1 or not 1 <= step < MOST_STEPS or step != int(step):
        raise CollectiveError(f"the checkpoint's optimizer has taken {', '.join(f'{one:g}' for one in sorted(steps))} "
                              "steps, and its weights take the same positive number; it was not written by this run, "
                              "start without --resume")
    return int(step)
