"""Training on a GPU: the host's losses, up to rounding and to bits drawn alike. Left out where there is none."""

from __future__ import annotations

import numpy as np
import pytest
from cuda.conftest import HAS_GPU
from mpi4py import MPI
from reference_partition import with_relations
from training_setup import easy_graph, losses, train, write_once

from hpcgnn.config import MODELS
from hpcgnn.nn.names import RELATIONAL

GRAPH = "synthetic:nodes=400,mean_degree=8,classes=4,features=24,signal=2"
SETTINGS = {"epochs": 6, "eval_every": 3, "hidden": 32, "heads": 2, "checkpoint_every": 0}
pytestmark = pytest.mark.skipif(not HAS_GPU, reason="there is no GPU that torch and cupy can use")


def losses_of(comm, shards, out, **settings):
    return losses(train(comm, shards, out, **{**SETTINGS, **settings})[1])


@pytest.mark.parallel([1, 2])
@pytest.mark.parametrize("model", [model for model in MODELS if model not in RELATIONAL])
def test_every_model_trains_as_on_the_host(shared_path, model):
    comm = MPI.COMM_WORLD
    shards = write_once(comm, easy_graph(spec=GRAPH), shared_path / "shards")
    expected, found = (losses_of(comm, shards, shared_path / device, model=model, device=device, dropout=0.3)
                       for device in ("cpu", "cuda"))
    np.testing.assert_allclose(found, expected, rtol=2e-3, atol=0)


@pytest.mark.parallel([1, 2])
@pytest.mark.parametrize("settings", [{"num_bases": 2}, {"num_blocks": 2}, {"num_bases": 0, "method": "uniform",
                                                                            "bits": 4}], ids=str)
def test_relations_train_as_on_the_host(shared_path, settings):
    comm = MPI.COMM_WORLD
    shards = write_once(comm, with_relations(easy_graph(spec=GRAPH)), shared_path / "shards")
    expected, found = (losses_of(comm, shards, shared_path / device, model="rgcn", device=device, **settings)
                       for device in ("cpu", "cuda"))
    np.testing.assert_allclose(found, expected, rtol=2e-3, atol=0)


@pytest.mark.parallel(2)
def test_sums_before_sending_train_as_on_the_host(shared_path):
    comm = MPI.COMM_WORLD
    shards = write_once(comm, easy_graph(spec=GRAPH), shared_path / "shards")
    expected, found = (losses_of(comm, shards, shared_path / device, model="gcn", device=device, pre_aggregation="on")
                       for device in ("cpu", "cuda"))
    np.testing.assert_allclose(found, expected, rtol=2e-3, atol=0)


@pytest.mark.parallel([1, 2])
@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_half_precision_trains_near_the_host(shared_path, precision):
    comm = MPI.COMM_WORLD
    shards = write_once(comm, easy_graph(spec=GRAPH), shared_path / "shards")
    expected = losses_of(comm, shards, shared_path / "cpu", model="gcn")
    found = losses_of(comm, shards, shared_path / "cuda", model="gcn", device="cuda", precision=precision)
    np.testing.assert_allclose(found, expected, rtol=0.05, atol=0.02)


@pytest.mark.parallel([1, 2])
@pytest.mark.parametrize("scheme", ["degree-aware", "layer-aware", "uniform", "degree-quant"])
@pytest.mark.parametrize("model", ["gcn", "gin", "sage", "gat"])
def test_integers_train_near_the_host(shared_path, model, scheme):
    comm = MPI.COMM_WORLD
    shards = write_once(comm, easy_graph(spec=GRAPH), shared_path / "shards")
    expected, found = (losses_of(comm, shards, shared_path / device, model=model, device=device, quantize=scheme)
                       for device in ("cpu", "cuda"))
    np.testing.assert_allclose(found[0], expected[0], rtol=1e-3)
    np.testing.assert_allclose(found, expected, rtol=0.1, atol=0.02)


@pytest.mark.parallel(2)
@pytest.mark.parametrize("method, settings", [("uniform", {"bits": 2}), ("uniform", {"bits": 4, "code": "rotated"}),
                                              ("adaqp", {}), ("sylvie", {}), ("vanilla", {})])
def test_every_method_exchanges_as_on_the_host(shared_path, method, settings):
    comm = MPI.COMM_WORLD
    shards = write_once(comm, easy_graph(spec=GRAPH), shared_path / "shards")
    expected, found = (losses_of(comm, shards, shared_path / device, model="gcn", device=device, method=method,
                                 **settings) for device in ("cpu", "cuda"))
    np.testing.assert_allclose(found, expected, rtol=0.02, atol=0.01)


@pytest.mark.parallel(1)
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("model", ["sage", "gcn", "gin", "gat"])
def test_replayed_steps_have_the_bits_of_others(shared_path, model, precision):
    comm = MPI.COMM_WORLD
    shards = write_once(comm, easy_graph(spec=GRAPH), shared_path / "shards")
    expected, found = (losses_of(comm, shards, shared_path / step_graph, model=model, device="cuda", dropout=0.3,
                                 precision=precision, step_graph=step_graph) for step_graph in ("off", "on"))
    assert found.tobytes() == expected.tobytes()
