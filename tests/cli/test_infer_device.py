"""`hpcgnn infer` and `quantize` with `--device cuda`, emulated: the host's answers, and what they say of copies."""

from __future__ import annotations

import re
import shutil
from contextlib import contextmanager

import pytest
import torch
from cuda.conftest import HAS_GPU
from cuda.emulation import COMPILER, EmulatedBackend
from integer_models import some_model
from mpi4py import MPI
from training_setup import easy_graph, on_rank_zero, train, write_once

from hpcgnn.exchange import device_transport
from hpcgnn.exchange.device_transport import StagedTransport
from hpcgnn.lowbit.inference.model_file import read_model, write_model
from hpcgnn.lowbit.inference.predictions import read_predictions
from hpcgnn.ops.cuda.module import use_backend
from hpcgnn.ops.dispatch import device_kernels_on_cpu
from hpcgnn.run import launch
from hpcgnn.shards.features import FeatureStorage, fingerprint_of
from hpcgnn.training import session

SPEC = "synthetic:nodes=90,mean_degree=6,classes=4,features=12,signal=2"


@pytest.fixture
def emulating(monkeypatch):
    """A block in which a device is there: a GPU, or the CPU with emulated kernels."""
    if not HAS_GPU and shutil.which(COMPILER) is None:
        pytest.skip(f"there is no {COMPILER} to compile the kernels with")

    @contextmanager
    def block():
        if HAS_GPU:
            yield None
            return
        for module in (launch, session):
            monkeypatch.setattr(module, "choose_device", lambda comm, name: torch.device("cpu"))
        monkeypatch.setattr(device_transport, "choose_transport", lambda comm, name, where: StagedTransport(where))
        with use_backend(EmulatedBackend()) as backend, device_kernels_on_cpu():
            yield backend
    return block


@pytest.fixture
def shards(shared_path):
    return write_once(MPI.COMM_WORLD, easy_graph(spec=SPEC), shared_path / "shards")


def model_file(path, kind):
    """Collective: a file of random weights that fits the graph."""
    made_on = fingerprint_of(easy_graph(spec=SPEC), FeatureStorage("float32"))
    on_rank_zero(MPI.COMM_WORLD, lambda: write_model(path, some_model(kind, num_nodes=90, num_layers=3, has_norm=True),
                                                     made_on))
    return path


def run(hpcgnn, path, shards, out, *options):
    status, printed, complaints = hpcgnn("infer", path, shards, "--repeat", 2, "--out", out, *options)
    assert (status, complaints) == (0, "")
    return printed, on_rank_zero(MPI.COMM_WORLD, lambda: read_predictions(out))


@pytest.mark.covering(1)
@pytest.mark.parallel([1, 2])
@pytest.mark.parametrize("kind", ["gcn", "sage", "gin", "gat"])
@pytest.mark.parametrize("options", [(), ("--clusters", 6, "--set", "batch_size=2")], ids=["whole", "batches"])
def test_a_device_answers_what_the_host_does(hpcgnn, emulating, shards, shared_path, kind, options):
    path = model_file(shared_path / "m.h5", kind)
    _, expected = run(hpcgnn, path, shards, shared_path / "host.h5", *options)
    with emulating() as backend:
        printed, found = run(hpcgnn, path, shards, shared_path / "device.h5", *options, "--device", "cuda")
    for name in ("logits", "embeddings", "prediction"):
        assert getattr(found, name).tobytes() == getattr(expected, name).tobytes(), name
    line, = [line for line in printed.splitlines() if line.startswith("device: ")]
    if options:
        said = re.fullmatch(r"device: cuda; (\d+) copies per pass, [\d.]+ .B of packed batches on rank 0",
                            line)
        assert said is not None and int(said[1]) == 1, line
    else:
        assert line == "device: cuda; bits of features, edges and weights stay there"
    if backend is not None:
        started = {name for name, _, _ in backend.launches}
        assert any(name.startswith("map_") for name in started) and any(name.startswith("finish_") for name in started)
        assert ("finish_mma16" in started or "finish_mma8" in started) == (bool(options) and kind != "gat")


@pytest.mark.parallel([1, 2])
def test_a_run_is_calibrated_on_a_device(hpcgnn, emulating, shards, shared_path):
    train(MPI.COMM_WORLD, shards, shared_path / "run", epochs=3, hidden=8)
    status, _, complaints = hpcgnn("quantize", shared_path / "run", shards, "--out", shared_path / "host.h5")
    assert (status, complaints) == (0, "")
    with emulating():
        status, printed, complaints = hpcgnn("quantize", shared_path / "run", shards, "--out",
                                             shared_path / "device.h5", "--device", "cuda")
    assert (status, complaints) == (0, ""), complaints
    assert "after  accuracy: " in printed
    models = [on_rank_zero(MPI.COMM_WORLD, lambda name=name: read_model(shared_path / name)[0])
              for name in ("host.h5", "device.h5")]
    for one, other in zip(*(model.convolutions for model in models), strict=True):
        assert abs(one.neighbor.codes.astype(int) - other.neighbor.codes).max() <= 1


@pytest.mark.parametrize("options, complaint", [
    (("--set", "pack_features=true"), "pack_features multiplies from packages on the host"),
    (("--clusters", 4, "--set", "aggregation=tiles"), "attention weighs neighbors one by one"),
])
def test_what_a_device_can_not_do_is_one_sentence(hpcgnn, emulating, shards, shared_path, options, complaint):
    path = model_file(shared_path / "m.h5", "gat")
    with emulating():
        status, _, complaints = hpcgnn("infer", path, shards, *options, "--device", "cuda")
    assert status != 0 and complaint in complaints


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
@pytest.mark.parallel([1, 2])
def test_no_device_is_one_sentence(hpcgnn, shards, shared_path):
    path = model_file(shared_path / "m.h5", "gcn")
    status, _, complaints = hpcgnn("infer", path, shards, "--device", "cuda")
    assert status == 1 and len(complaints.splitlines()) == 1 and "cuda" in complaints.lower()
