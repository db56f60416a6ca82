"""Steps that are replayed as a CUDA graph: the losses and weights of steps that are not, to the last bit."""

from __future__ import annotations

import re

import pytest
import torch
from covering import long_but
from cuda.conftest import need_compiler
from cuda.separate_memory import CapturingBackend, separate_memory
from mpi4py import MPI
from stand_in_device import WatchedComm
from training_setup import assert_same_bits, easy_graph, losses, write_once

import hpcgnn
from hpcgnn.config import TrainConfig
from hpcgnn.errors import ConfigError, HpcgnnError, TrainingError
from hpcgnn.training.checkpoint import read_checkpoint
from hpcgnn.training.objective import Objective
from hpcgnn.training.recipe import Recipe
from hpcgnn.training.run_folder import RunFolder
from hpcgnn.training.session import Session
from hpcgnn.training.trainer import TrainingRun

COMM = MPI.COMM_WORLD

GRAPH = "synthetic:nodes=30,mean_degree=4,classes=3,features=8,signal=2"
SHAPE = {"model": "sage", "hidden": 8, "layers": 2, "epochs": 5, "eval_every": 5, "dropout": 0.3, "device": "cuda"}
RECIPES = {
    "sage, adamw, schedule": {"optimizer": "adamw", "weight_decay": 0.01, "warmup": 4, "schedule": "cosine"},
    "sage, bf16, sylvie": {"precision": "bf16", "method": "sylvie"},
    "sage, ema": {"layers": 3, "residual": True, "norm": "none", "ema": 0.5},
    "gcn, pipegcn, batch norm": {"model": "gcn", "method": "pipegcn", "norm": "batch"},
    "gin, two seeds": {"model": "gin", "repeat": 2},
    "gat, bf16": {"model": "gat", "heads": 2, "precision": "bf16"},
    "appnp": {"model": "appnp"},
}


@pytest.fixture
def shards(shared_path):
    need_compiler()
    return write_once(COMM, easy_graph(spec=GRAPH), shared_path / "shards")


def trained(shards, out, settings, resumed=None, recipe=None):
    """How often a step was captured, and the metrics."""
    with separate_memory(CapturingBackend()) as device:
        config = TrainConfig.of(**{**SHAPE, **settings})
        session = Session.open(WatchedComm(COMM, device.streams), shards, config, recipe=recipe or Recipe())
        folder = RunFolder(out)
        if resumed is None:
            folder.create(overwrite=False)
        else:
            folder.go_on_from(resumed.progress, config.seed)
        TrainingRun(session, folder, resumed).execute()
    return len(device.backend.graphs), folder.read_metrics()


@pytest.mark.parametrize("recipe", long_but((0, 3, 5), RECIPES))
def test_replayed_steps_have_the_bits_of_others(shards, shared_path, recipe):
    settings = RECIPES[recipe]
    _, expected = trained(shards, shared_path / "whole", settings)
    num_graphs, metrics = trained(shards, shared_path / "replayed", {**settings, "step_graph": "on"})
    assert num_graphs == settings.get("repeat", 1)
    assert losses(metrics).tobytes() == losses(expected).tobytes()
    assert_same_bits(shared_path / "replayed/checkpoint.h5", shared_path / "whole/checkpoint.h5")


def test_a_run_goes_on_with_or_without_replays(shards, shared_path):
    trained(shards, shared_path / "whole", {})
    for first, then in (("on", "off"), ("off", "on")):
        out = shared_path / first
        trained(shards, out, {"epochs": 3, "step_graph": first})
        trained(shards, out, {"step_graph": then}, resumed=read_checkpoint(out / "checkpoint.h5"))
        assert_same_bits(out / "checkpoint.h5", shared_path / "whole/checkpoint.h5")


def test_callbacks_that_say_so_may_watch(shards, shared_path):
    """A model that they change in spite of it is captured anew when it is forgotten."""
    class Watch(hpcgnn.Callback):
        changes_nothing = True

        def on_epoch_end(self, run, record):
            if record["epoch"] == 4:
                run.model.dropout = 0.0
                if run.learner.step_graph:
                    run.learner.step_graph.forget()

    found = [trained(shards, shared_path / step_graph, {"epochs": 8, "step_graph": step_graph},
                     recipe=Recipe(callbacks=(Watch(),))) for step_graph in ("off", "on")]
    assert [number for number, _ in found] == [0, 2]
    assert losses(found[0][1]).tobytes() == losses(found[1][1]).tobytes()


def test_a_step_that_waits_is_no_graph(shards, shared_path, monkeypatch):
    loss_sum = Objective.loss_sum
    monkeypatch.setattr(Objective, "loss_sum", lambda *arguments: loss_sum(*arguments) * float(torch.ones(
        1, device="cuda")))
    with pytest.raises(TrainingError, match=r"this step can't be captured as a CUDA graph \(operation not permitted "
                                            r"when stream is capturing\); use --set step_graph=off"):
        trained(shards, shared_path / "run", {"step_graph": "on"})


@pytest.mark.parametrize("settings, text", [
    ({"device": "cpu"}, "step_graph = on has no effect on device cpu, only on cuda"),
    ({"precision": "fp16"}, "step_graph can't be used with precision fp16: the host reads"),
    ({"clip_norm": 1.0}, "step_graph can't be used with clip_norm 1.0: the host reads the gradients' norm"),
    ({"model": "some:Net"}, "step_graph can't be used with model some:Net: its Python would not run again"),
    *(({name: value}, f"step_graph can't be used with {name} {value}: ") for name, value in (
        ("steps", "4"), ("edge_dropout", 0.2), ("label_inputs", 0.5), ("task", "links"), ("quantize", "uniform"),
        ("store_activations", 4)))])
def test_settings_whose_steps_depend_on_the_host_are_refused(settings, text):
    with pytest.raises(ConfigError, match=re.escape(text)):
        TrainConfig.of(**{"device": "cuda", "step_graph": "on", **settings})


@pytest.mark.parametrize("recipe", [Recipe(callbacks=(hpcgnn.Callback(),)), Recipe(optimizer=torch.optim.SGD)])
def test_a_program_of_ones_own_is_refused(shards, shared_path, recipe):
    with pytest.raises(HpcgnnError, match="step_graph can't be used with a model, loss, optimizer or callback of your"):
        trained(shards, shared_path / "run", {"step_graph": "on"}, recipe=recipe)


@pytest.mark.parallel(2)
def test_two_ranks_are_refused(shards, shared_path):
    with pytest.raises(HpcgnnError, match="step_graph can't be used on 2 ranks, whose messages the host sends in a"):
        trained(shards, shared_path / "run", {"step_graph": "on"})
