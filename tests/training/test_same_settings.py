"""Ranks that were given different settings are refused at the start, with the setting, its values and their ranks."""

from __future__ import annotations

import functools

import pytest
import torch
from mpi4py import MPI

import hpcgnn
from hpcgnn.errors import CollectiveError
from hpcgnn.training.alike import check_same, description_of
from hpcgnn.training.job import Job
from hpcgnn.training.job import train as train_job

REMEDY = "; give all ranks the same; if a program draws them, draw on rank 0 and hand them out with comm.bcast"


def own(rank, on_zero, on_others):
    return on_zero if rank == 0 else on_others


@pytest.mark.parallel([1, 2, 3])
def test_equal_settings_pass():
    check_same(MPI.COMM_WORLD, {"lr": 0.01, "out": None, "nothing": float("nan")})


@pytest.mark.parallel([2, 3])
def test_the_settings_their_values_and_ranks_are_named():
    comm = MPI.COMM_WORLD
    others = "rank 1" if comm.size == 2 else "ranks 1, 2"
    given = {"seed": 1, "lr": own(comm.rank, 0.01, 0.02), **({"bits": 4} if comm.rank == 0 else {})}
    with pytest.raises(CollectiveError) as refused:
        check_same(comm, given, "the model's ")
    assert str(refused.value) == (
        f"settings differ between the ranks: the model's lr is 0.01 on rank 0 and 0.02 on {others}; the model's bits "
        f"is 4 on rank 0 and not given on {others}{REMEDY}")


@pytest.mark.parallel([2])
def test_of_long_texts_the_place_is_shown_where_they_differ():
    comm = MPI.COMM_WORLD
    with pytest.raises(CollectiveError) as refused:
        check_same(comm, {"model": "x" * 200 + own(comm.rank, "hidden=16", "hidden=32") + "y" * 200})
    assert "hidden=16" in str(refused.value) and "hidden=32" in str(refused.value)
    assert len(str(refused.value)) < 400


@pytest.mark.parallel([2])
@pytest.mark.parametrize("name, values", [
    ("method", ("vanilla", "sylvie")), ("hidden", (8, 16)), ("lr", (0.01, 0.02)), ("seed", (0, 1)), ("epochs", (2, 3)),
    ("dropout", (0.1, 0.5)), ("early_stop", (0, 1)), ("precision", ("fp32", "bf16")), ("eval_every", (1, 2)),
    ("bits", (2, 4))])
def test_a_job_refuses_each_setting(shared_path, shards, name, values):
    comm = MPI.COMM_WORLD
    base = {"epochs": 2, "hidden": 8, "layers": 2} | ({"method": "uniform"} if name == "bits" else {})
    with pytest.raises(CollectiveError, match="settings differ between the ranks: ") as refused:
        train_job(comm, Job(shards, {**base, name: values[comm.rank]}, out=shared_path / "run"))
    assert f"{name} is {values[0]} on rank 0 and {values[1]} on rank 1" in str(refused.value)
    assert not (shared_path / "run").exists()


class Net(torch.nn.Module):
    """A layer that a program brings."""

    def __init__(self, num_outputs, share):
        super().__init__()
        self.linear, self.dropout = torch.nn.Linear(12, num_outputs), torch.nn.Dropout(share)

    def forward(self, graph, x):
        return self.dropout(self.linear(x))


@pytest.mark.parallel([2])
@pytest.mark.parametrize("what", ["out", "resume", "model", "factory", "loss", "weights", "optimizer",
                                  "made optimizer"])
def test_what_a_program_brings_is_compared(shared_path, shards, what):
    comm = MPI.COMM_WORLD
    graph = hpcgnn.open(shards)
    number, model, given = own(comm.rank, 0.125, 0.25), Net(4, 0.5), {"out": shared_path / "run"}
    rates = {"lr": number}      # not seen before the optimizer is made
    if what == "out":
        given["out"] = shared_path / f"run-{comm.rank}"
    elif what == "resume":
        given["resume"] = comm.rank == 0
    elif what == "model":
        model = Net(4, number)
    elif what == "factory":
        model = lambda: Net(4, own(comm.rank, 0.125, 0.25))      # noqa: E731
    elif what == "loss":
        given["loss"] = lambda outputs, labels: torch.nn.functional.cross_entropy(
            outputs, labels, label_smoothing=number, reduction="none")
    elif what == "weights":
        given["loss"] = torch.nn.CrossEntropyLoss(torch.tensor([1.0, 1.0, 1.0, number]), reduction="none")
    elif what == "optimizer":
        given["optimizer"] = functools.partial(torch.optim.AdamW, lr=number)
    else:
        given["optimizer"] = lambda weights: torch.optim.AdamW(weights, **rates)
    with pytest.raises(CollectiveError, match="settings differ between the ranks"):
        hpcgnn.fit(model, graph, epochs=1, **given)


class Counted(hpcgnn.Callback):
    """Counts the epochs that it sees."""

    def __init__(self):
        self.epochs, self.rank = 0, MPI.COMM_WORLD.rank

    def on_epoch_end(self, run, record):
        self.epochs += 1
        return self.epochs == 2


@pytest.mark.parallel([2])
def test_a_callback_may_be_rank_zeros_alone(shared_path, shards):
    comm = MPI.COMM_WORLD
    graph = hpcgnn.open(shards)
    callback = Counted()
    hpcgnn.fit(Net(4, 0.0), graph, epochs=9, out=shared_path / "run", callbacks=[callback] if comm.rank == 0 else [])
    assert callback.epochs == (2 if comm.rank == 0 else 0)


def test_a_rank_may_keep_its_own_number_where_it_changes_nothing():
    def loss_of(rank):
        return lambda outputs, labels: (outputs, rank)

    assert description_of(loss_of(0)) == description_of(loss_of(1))

    class Clock:
        def __init__(self, seconds):
            self.seconds = seconds

        def loss(self, outputs, labels):
            return outputs

    first, other = Clock(0.25), Clock(0.5)
    assert description_of(lambda: first).partition(" ")[2] == description_of(lambda: other).partition(" ")[2]
    assert description_of(first.loss) == description_of(other.loss)
    assert description_of(Counted()) == description_of(Counted())


def test_a_class_that_a_model_holds_is_described_by_its_name():
    model = Net(4, 0.0)
    model.kinds = [torch.Tensor, torch.nn.Linear]      # PyTorch Geometric's Sequential holds the first
    assert description_of(model).count("kinds=Tensor, Linear") == 1


@pytest.mark.parallel([2])
def test_a_function_that_reads_the_graph_makes_the_model(shared_path, shards):
    """What a rank knows of its own part is in a graph."""
    graph = hpcgnn.open(shards)
    hpcgnn.fit(lambda: Net(graph.num_classes, 0.0), graph, epochs=1, out=shared_path / "run")
