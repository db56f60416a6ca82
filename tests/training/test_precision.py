"""Training in 16 bits: as accurate as float32 on easy and on hub-heavy graphs, and the loss scale of float16."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from mpi4py import MPI
from training_setup import SMALL, easy_graph, losses, on_rank_zero, train, write_once

from hpcgnn.config import TrainConfig
from hpcgnn.data.dataset import GraphDataset
from hpcgnn.training.learner import Learner
from hpcgnn.training.precision import GROWTH, STEPS_TO_GROW, LossScale
from hpcgnn.training.session import Session
from hpcgnn.training.trainer import train_epoch


def hub_graph(num_leaves: int = 12_000) -> GraphDataset:
    """Four hubs, each the neighbor of every leaf, features of ten: a float16 sum over a hub's neighbors overflows."""
    leaves = np.arange(4, num_leaves + 4)
    degree = np.concatenate([np.full(4, num_leaves), np.full(num_leaves, 4)])
    indices = np.concatenate([np.tile(leaves, 4), np.tile(np.arange(4), num_leaves)]).astype(np.int32)
    labels = np.concatenate([[0, 1, 0, 1], leaves % 2])
    rng = np.random.default_rng(0)
    features = (10 + rng.normal(size=(num_leaves + 4, 6)) + 2 * labels[:, None]).astype(np.float32)
    base = easy_graph()
    part = rng.permutation(num_leaves + 4)
    masks = {f"{split}_mask": part % 3 == i for i, split in enumerate(("train", "val", "test"))}
    return replace(base, indptr=np.concatenate([[0], np.cumsum(degree)]), indices=indices, features=features,
                   labels=labels.astype(base.labels.dtype), num_classes=2, **masks).check()


@pytest.mark.covering(1)
@pytest.mark.parallel([1, 2])
@pytest.mark.parametrize("model", ["gcn", "sage"])
def test_the_loss_follows_that_of_float32(shared_path, shards, model):
    comm = MPI.COMM_WORLD
    settings = {"model": model, "layers": 3, "hidden": 16, "epochs": 20, "lr": 0.03, "dropout": 0.5}
    wide, expected, _ = train(comm, shards, shared_path / "fp32", **settings)
    for precision, tolerance in (("bf16", 0.05), ("fp16", 0.01)):
        narrow, found, _ = train(comm, shards, shared_path / precision, precision=precision, **settings)
        np.testing.assert_allclose(losses(found)[:5], losses(expected)[:5], rtol=tolerance)
        assert narrow["test_score"] == pytest.approx(wide["test_score"], abs=0.06), precision


@pytest.fixture(scope="module")
def hubs(tmp_path_factory):
    """Shards of the graph of hubs, which no test may change."""
    comm = MPI.COMM_WORLD
    folder = on_rank_zero(comm, lambda: tmp_path_factory.mktemp("hubs"))
    return write_once(comm, hub_graph(), folder / "shards")


@pytest.mark.covering(1)
@pytest.mark.parallel([1, 2])
@pytest.mark.parametrize("model", ["gcn", "sage", pytest.param("gat", marks=pytest.mark.long),
                                   pytest.param("gin", marks=pytest.mark.long)])
def test_hubs_of_12_000_neighbors_stay_finite_and_accurate(shared_path, hubs, model):
    comm = MPI.COMM_WORLD
    settings = {"model": model, "layers": 2, "hidden": 8, "epochs": 12, "eval_every": 6, "dropout": 0.0,
                "norm": "layer"}
    wide, _, _ = train(comm, hubs, shared_path / "fp32", **settings)
    for precision in ("bf16", "fp16"):
        narrow, metrics, _ = train(comm, hubs, shared_path / precision, precision=precision, **settings)
        assert np.isfinite(losses(metrics)).all(), precision
        # GIN takes a scaled mean in 16 bits, which may well be better than its sum.
        assert narrow["test_score"] >= wide["test_score"] - 0.01, precision
        assert narrow["test_score"] > (0.7 if model == "sage" else 0.49)    # only sage sees a leaf apart from its hubs


@pytest.mark.parallel([2])
@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_rows_of_16_bits_travel_as_they_are_stored(shared_path, shards, precision):
    comm = MPI.COMM_WORLD
    _, wide, _ = train(comm, shards, shared_path / "fp32", epochs=1)
    summary, narrow, _ = train(comm, shards, shared_path / precision, precision=precision, epochs=1)
    assert 2 * narrow[0]["sent_bytes_payload"] == wide[0]["sent_bytes_payload"] > 0
    assert narrow[0]["mean_bits"] == summary["bits"] == 16


@pytest.mark.covering(1)
@pytest.mark.parallel([1, 2])
@pytest.mark.parametrize("bits", [1, 8])
def test_messages_of_few_bits_carry_rows_of_16(shared_path, shards, bits):
    comm = MPI.COMM_WORLD
    _, metrics, _ = train(comm, shards, shared_path / "run", precision="bf16", method="uniform", bits=bits,
                          epochs=10, lr=0.1, hidden=16)
    assert losses(metrics)[-1] < 0.5 * losses(metrics)[0]


@pytest.mark.covering(1)
@pytest.mark.parallel([1, 2])
@pytest.mark.parametrize("bits", [2, 16])
def test_a_step_that_overflows_is_left_out_and_the_scale_falls(shards, bits):
    comm = MPI.COMM_WORLD
    session = Session.open(comm, shards, TrainConfig.of(**{**SMALL, "precision": "fp16", "method": "uniform",
                                                        "bits": bits}))
    learner = Learner.start(session, 0, None)
    learner.loss_scale.value = 2.0 ** 40
    before = torch.nn.utils.parameters_to_vector(learner.model.parameters()).clone()
    for epoch in range(40):
        train_epoch(session, learner, 0, epoch)
        after = torch.nn.utils.parameters_to_vector(learner.model.parameters())
        assert torch.isfinite(after).all()
        if epoch == 0:
            assert torch.equal(after, before) and learner.loss_scale.value == 2.0 ** 39
    assert not torch.equal(after, before) and learner.loss_scale.value < 2.0 ** 39
    assert len(set(comm.allgather(learner.loss_scale.value))) == 1


def test_the_scale_grows_after_good_steps_only():
    scale = LossScale.of("fp16")
    first = scale.value
    for _ in range(STEPS_TO_GROW - 1):
        scale.update(is_finite=True)
    assert scale.value == first
    scale.update(is_finite=True)
    assert (scale.value, scale.good_steps) == (first * GROWTH, 0)
    scale.update(is_finite=False)
    assert scale.value == first


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_wide_ranges_need_no_scale(precision):
    scale = LossScale.of(precision)
    scale.update(is_finite=False)
    assert scale == LossScale(1.0, 0, is_dynamic=False)
