"""A training loop of your own on a rank's graph, without checkpoints, metrics or a best epoch:

hpcgnn preprocess synthetic:nodes=1000,mean_degree=8,classes=4,features=16,homophily=0.9 --parts 2 --out shards/small-p2
mpirun -n 2 python examples/own_loop.py shards/small-p2
"""

import sys
from pathlib import Path

from hpcgnn.run.launch import run_parallel  # isort: skip  # before torch, which starts threads

import torch

from hpcgnn.config import TrainConfig
from hpcgnn.training.evaluate import evaluate
from hpcgnn.training.learner import Learner
from hpcgnn.training.session import Session
from hpcgnn.training.trainer import train_epoch


class Mine(torch.nn.Module):
    def __init__(self, in_dim, out_dim):
        super().__init__()
        self.linear = torch.nn.Linear(2 * in_dim, out_dim)

    def forward(self, graph, x):
        return self.linear(torch.cat([x, graph.aggregate(graph.halo(x), "mean")], dim=1))


def train(comm):
    session = Session.open(comm, Path(sys.argv[1]), TrainConfig.of(method="uniform", bits=4))
    torch.manual_seed(0)              # equal weights
    learner = Learner.of(session, Mine(session.info.num_features, session.info.num_classes))
    controller = session.config.method.controller(session.method_context())
    for epoch in range(20):
        session.exchange.begin_epoch(controller.plan(seed=0, epoch=epoch))
        trace = train_epoch(session, learner, seed=0, epoch=epoch)
        controller.observe(trace.loss, trace.epoch_seconds, session.exchange.traces())
    scores = evaluate(comm, learner.model, session.graph, session.objective, session.score)
    if comm.rank == 0:
        print(f"test accuracy {scores.test_score:.4f}")


run_parallel(train)
