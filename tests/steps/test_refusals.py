"""What can't be joined with steps is refused in a sentence that says what can."""

from __future__ import annotations

import pytest
import torch
from made_steps import share_clusters
from mpi4py import MPI
from training_setup import SMALL, easy_graph, random_owner, train, write

from hpcgnn.config import TrainConfig
from hpcgnn.errors import CollectiveError, ConfigError
from hpcgnn.training.learner import Learner
from hpcgnn.training.recipe import Recipe
from hpcgnn.training.session import Session
from hpcgnn.training.trainer import train_epoch


@pytest.mark.parametrize("value", ["0", "-1", "4097", "1.5", "many", "", "\u0663", "rows:", "rows:0",
                                   "rows:4097", "rows:auto", "40rows"])
def test_steps_are_a_number_or_auto(value):
    with pytest.raises(ConfigError, match="steps must be a number from 1 to 4096, rows: and such a number, or auto"):
        TrainConfig.of(steps=value)


@pytest.mark.parametrize("others, found", [({"rematerialize": True}, "rematerialize"),
                                           ({"nodes_aware": "on"}, "nodes_aware on"),
                                           ({"pre_aggregation": "on"}, "pre_aggregation on")])
def test_settings_that_need_all_rows_at_once_are_refused(others, found):
    with pytest.raises(ConfigError, match=f"steps 4 can't be used with {found}: .*; choose one"):
        TrainConfig.of(steps="4", **others)
    TrainConfig.of(steps="1", **others)


def test_a_history_without_steps_is_refused():
    with pytest.raises(ConfigError, match="history bf16 has no effect on an epoch of one step; leave it out"):
        TrainConfig.of(history="bf16")


def test_more_steps_than_clusters_end_before_the_first_epoch(tmp_path):
    shards = write(easy_graph(), random_owner(easy_graph(), 1), 1, tmp_path / "shards")
    with pytest.raises(CollectiveError, match="an epoch of 200 steps needs at least 200 clusters of about 106 rows, "
                                              "and this graph has 3; choose at most 3 for --steps"):
        train(MPI.COMM_SELF, shards, tmp_path / "run", steps="200")


class Summing(torch.nn.Module):
    """A model that sums over all nodes."""

    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(12, 4)

    def forward(self, graph, x):
        return self.linear(x) - graph.sum_over_ranks(x.sum(0))[:4]


def test_a_model_that_sums_over_all_nodes_is_refused(tmp_path, monkeypatch):
    share_clusters(monkeypatch)
    shards = write(easy_graph(), random_owner(easy_graph(), 1), 1, tmp_path / "shards")
    session = Session.open(MPI.COMM_SELF, shards, TrainConfig.of(**{**SMALL, "steps": "4"}), recipe=Recipe(Summing()))
    with pytest.raises(ConfigError, match=r"sums over all rows of the graph.*leave --steps out"):
        list(session.steps.steps(session.new_model(0), 0, 0, 4))


class Skipping(torch.nn.Module):
    """A model that leaves its second layer out in every second epoch."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.last = (torch.nn.Linear(12, 12) for _ in range(3))

    def forward(self, graph, x):
        h = self.first(graph.aggregate(graph.halo(torch.relu(x)), "mean"))
        if graph.current_pass.epoch % 2 == 0:
            h = self.second(graph.aggregate(graph.halo(h), "mean"))
        return self.last(h)[:, :4]


def test_a_step_that_would_read_the_rows_of_another_layer_is_refused(tmp_path, monkeypatch):
    share_clusters(monkeypatch)
    shards = write(easy_graph(), random_owner(easy_graph(), 1), 1, tmp_path / "shards")
    session = Session.open(MPI.COMM_SELF, shards, TrainConfig.of(**{**SMALL, "steps": "4"}), recipe=Recipe(Skipping()))
    learner = Learner.start(session, 0, None)
    train_epoch(session, learner, 0, 0, num_steps=4)
    with pytest.raises(ConfigError, match="exchanged rows 1 times in a step, and 2 times in the pass over all rows"):
        train_epoch(session, learner, 0, 1, num_steps=4)
