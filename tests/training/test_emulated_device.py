"""Training on the device's own kernels, emulated on the CPU: the host's losses up to rounding, and its bytes."""

from __future__ import annotations

import shutil

import numpy as np
import pytest
import torch
from covering import long_but
from cuda.emulation import COMPILER, EmulatedBackend
from mpi4py import MPI
from stand_in_device import StandInDevice, WatchedComm
from training_setup import easy_graph, losses, train, write_once

from hpcgnn.config import MODELS
from hpcgnn.exchange import device_transport
from hpcgnn.exchange.device_transport import StagedTransport
from hpcgnn.nn.names import RELATIONAL
from hpcgnn.ops.cuda.module import use_backend
from hpcgnn.ops.dispatch import device_kernels_on_cpu
from hpcgnn.ops.streams import use_streams
from hpcgnn.training import session

ON_DEVICES = [model for model in MODELS if model not in RELATIONAL]
TINY = "synthetic:nodes=30,mean_degree=4,classes=3,features=6,signal=2"
SETTINGS = {"epochs": 2, "eval_every": 2, "hidden": 8, "heads": 2, "checkpoint_every": 0}
KERNELS = {"sage-max": {"maximum", "normalize", "mask"}, "sgc": {"aggregate", "mask"}}    # what each model starts
SENT = ("sent_bytes_payload", "sent_bytes_parameters", "width_histogram")


def train_on_emulated_kernels(monkeypatch, comm, shards, out, **settings):
    """Metrics of every epoch, and the backend that the kernels ran on."""
    cpu, device = torch.device("cpu"), StandInDevice()
    monkeypatch.setattr(session, "choose_device", lambda comm, name: cpu)
    monkeypatch.setattr(device_transport, "choose_transport", lambda comm, name, where: StagedTransport(where))
    with use_backend(EmulatedBackend()) as backend, device_kernels_on_cpu(), use_streams(device):
        _, metrics, _ = train(WatchedComm(comm, device), shards, out, device="cuda", **settings)
    return metrics, backend


@pytest.mark.covering(1)
@pytest.mark.parallel([1, 2])
@pytest.mark.parametrize("model, bits, code", [
    # The other models start the kernels of these; with --all they do so, too.
    *(pytest.param(model, 32, "affine", marks=() if model in ("sage", "sage-max", "gin", "gcnii", "sgc") else
                   pytest.mark.long) for model in ON_DEVICES),
    *long_but((1, 2), [("gcn", 2, "affine"), ("gat", 2, "affine"), ("gcn", 2, "rotated"), ("gat", 1, "rotated")])])
@pytest.mark.skipif(shutil.which(COMPILER) is None, reason=f"there is no {COMPILER} to compile the kernels with")
def test_emulated_kernels_train_as_the_host(monkeypatch, shared_path, model, bits, code):
    comm = MPI.COMM_WORLD
    shards = write_once(comm, easy_graph(spec=TINY), shared_path / "shards")
    settings = {**SETTINGS, "model": model, "method": "uniform", "bits": bits, "code": code}
    _, expected, _ = train(comm, shards, shared_path / "host", **settings)
    found, backend = train_on_emulated_kernels(monkeypatch, comm, shards, shared_path / "device", **settings)
    np.testing.assert_allclose(losses(found), losses(expected), rtol=1e-5, atol=0)
    assert [[record[key] for key in SENT] for record in found] == [[record[key] for key in SENT] for record in expected]
    started = {name.split("_")[0] for name, _, _ in backend.launches}
    assert KERNELS.get(model, {"aggregate", "normalize", "mask"}) <= started
    assert comm.size == 1 or {"quantize", "dequantize"} <= started
    rotating = {"quantize_rotated_f32", "dequantize_rotated_f32"} & {name for name, _, _ in backend.launches}
    assert len(rotating) == (2 if code == "rotated" and comm.size > 1 else 0)


@pytest.mark.parallel([1, 2])
@pytest.mark.skipif(shutil.which(COMPILER) is None, reason=f"there is no {COMPILER} to compile the kernels with")
def test_emulated_kernels_train_recipes_as_the_host(monkeypatch, shared_path):
    comm = MPI.COMM_WORLD
    shards = write_once(comm, easy_graph(spec=TINY), shared_path / "shards")
    settings = {**SETTINGS, "model": "gcn", "layers": 3, "norm": "batch", "residual": True, "optimizer": "adamw",
                "weight_decay": 0.05, "ema": 0.9, "edge_dropout": 0.3, "label_inputs": 0.5, "input_dropout": 0.2}
    _, expected, _ = train(comm, shards, shared_path / "host", **settings)
    found, _ = train_on_emulated_kernels(monkeypatch, comm, shards, shared_path / "device", **settings)
    np.testing.assert_allclose(losses(found), losses(expected), rtol=1e-5, atol=0)


@pytest.mark.parallel([1, 2])
@pytest.mark.skipif(shutil.which(COMPILER) is None, reason=f"there is no {COMPILER} to compile the kernels with")
def test_half_sums_are_trained_with_where_they_are_asked_for(monkeypatch, shared_path):
    comm = MPI.COMM_WORLD
    shards = write_once(comm, easy_graph(spec=TINY), shared_path / "shards")
    settings = {**SETTINGS, "model": "gcn", "precision": "fp16"}
    kernels, found = {}, {}
    for sums in ("half", "float32"):
        found[sums], backend = train_on_emulated_kernels(monkeypatch, comm, shards, shared_path / sums, sums=sums,
                                                         **settings)
        kernels[sums] = {name for name, _, _ in backend.launches if name.startswith("aggregate_")}
    assert all("half" in name or "spilled" in name for name in kernels["half"])
    assert kernels["float32"] and not any("half" in name for name in kernels["float32"])
    np.testing.assert_allclose(losses(found["half"]), losses(found["float32"]), rtol=1e-2)
    assert not np.array_equal(losses(found["half"]), losses(found["float32"]))
