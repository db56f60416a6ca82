"""A model's draws by generators are those of its epoch: alike on all ranks, and the same in a run that was resumed."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from mpi4py import MPI

import hpcgnn
from hpcgnn.training.alike import alike_draws

COMM = MPI.COMM_WORLD


class Drawing(torch.nn.Module):
    """Scales its answers by what `draw` gives in training."""

    def __init__(self, draw):
        super().__init__()
        torch.manual_seed(0)
        self.lin, self.draw, self.drawn = torch.nn.Linear(12, 4), draw, []
        self.own, self.of_numpy = torch.Generator(), np.random.default_rng(3)

    def forward(self, graph, x):
        factor = 0.5 + self.draw(self) if self.training else 1.0
        self.drawn.append(float(factor))
        return self.lin(graph.aggregate(graph.halo(x), "mean")) * factor


DRAWS = {
    "torch": lambda self: float(torch.rand(())),
    "python": lambda self: random.random(),
    "numpy": lambda self: np.random.rand(),  # noqa: NPY002
    "own of torch": lambda self: float(torch.rand((), generator=self.own)),
    "own of numpy": lambda self: float(self.of_numpy.random()),
}


@pytest.mark.covering(1)
@pytest.mark.parallel([1, 2])
@pytest.mark.parametrize("kind", DRAWS)
def test_a_resumed_run_draws_as_one_that_was_never_stopped(shared_path, shards, kind):
    graph = hpcgnn.open(shards)

    def losses(out, *epochs):
        for number, until in enumerate(epochs):
            torch.manual_seed(17 * number + COMM.rank)      # what has drawn before, on each rank
            random.seed(number)
            run = hpcgnn.fit(Drawing(DRAWS[kind]), graph, out=shared_path / out, epochs=until, eval_every=2, lr=0.05,
                             resume=number > 0)
        return [row["loss"] for row in run.metrics], run.model.drawn
    whole, drawn = losses("whole", 4)
    assert len(set(drawn)) > 3 and set(COMM.allgather(tuple(drawn))) == {tuple(drawn)}
    assert losses("parts", 2, 4)[0] == whole


def test_the_programs_own_draws_are_left_as_they_are():
    def draws():
        return torch.rand(2).tolist(), np.random.rand(2).tolist(), random.random()  # noqa: NPY002

    def seed():
        torch.manual_seed(1), np.random.seed(1), random.seed(1)  # noqa: NPY002

    seed()
    expected = draws()
    seed()
    with alike_draws(torch.nn.Identity(), 1, 2, 3):
        first = draws()
    assert draws() == expected
    with alike_draws(torch.nn.Identity(), 1, 2, 3):
        assert draws() == first
    with alike_draws(torch.nn.Identity(), 1, 3, 3):
        assert draws() != first
