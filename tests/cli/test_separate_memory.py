"""The commands that take --device cuda, on a device whose memory is apart from the host's, without a GPU.

Benchmarks run on torch's device "meta" instead: see tests/bench/test_device.py.
"""

from __future__ import annotations

import pytest
from covering import long_but
from cuda.conftest import need_compiler
from cuda.separate_memory import separate_memory
from integer_models import some_model
from mpi4py import MPI
from training_setup import easy_graph, on_rank_zero, write_once

from hpcgnn.lowbit.inference.model_file import write_model
from hpcgnn.shards.features import FeatureStorage, fingerprint_of

SPEC = "synthetic:nodes=48,mean_degree=6,classes=4,features=12,signal=2"
CUDA = ("--device", "cuda")


@pytest.fixture
def graph():
    need_compiler()
    return easy_graph(spec=SPEC)


@pytest.fixture
def shards(graph, shared_path):
    return write_once(MPI.COMM_WORLD, graph, shared_path / "shards")


def run(hpcgnn, *arguments):
    """Collective: what a command prints; on rank 0 the kernels that it has launched."""
    with separate_memory() as device:
        status, printed, complaints = hpcgnn(*arguments)
    assert status == 0, complaints
    return printed, {name for name, _, _ in device.backend.launches}


@pytest.mark.covering(1)
@pytest.mark.parallel([1, 2])
@pytest.mark.parametrize("kind, options", [("gcn", ()), ("gat", ()),
                                           ("sage", ("--clusters", 6, "--set", "batch_size=2")),
                                           ("gin", ("--clusters", 6, "--set", "aggregation=gather"))])
def test_integers_answer(hpcgnn, graph, shards, shared_path, kind, options):
    path = shared_path / "m.h5"
    model = some_model(kind, num_nodes=48, num_layers=3, has_norm=True)
    made_on = fingerprint_of(graph, FeatureStorage("float32"))
    on_rank_zero(MPI.COMM_WORLD, lambda: write_model(path, model, made_on))
    out = shared_path / "o.h5"
    printed, launched = run(hpcgnn, "infer", path, shards, "--repeat", 2, "--out", out, *options, *CUDA)
    has_mapped = any(name.startswith("map_") for name in launched)      # a rank may come too late for any batch
    assert "device: cuda" in printed and MPI.COMM_WORLD.allreduce(has_mapped, MPI.LOR)


@pytest.mark.covering(1)
@pytest.mark.parallel([1, 2])
@pytest.mark.parametrize("settings", long_but((0, 1), [
    ["--model", "gin"], ["--model", "sage", "--steps", "rows:2"],
    ["--model", "gat", "--set", "heads=2", "--quantize", "degree-aware"]]))
def test_a_run_is_trained_continued_quantized_and_answered(hpcgnn, shards, shared_path, settings):
    out = shared_path / "run"
    run(hpcgnn, "train", shards, "--epochs", 1, "--hidden", 8, "--out", out, *settings, *CUDA)
    run(hpcgnn, "train", shards, "--resume", "--epochs", 2, "--out", out, *CUDA)
    run(hpcgnn, "quantize", out, shards, "--out", shared_path / "q.h5", *CUDA)
    run(hpcgnn, "infer", out, shards, "--repeat", 1, "--clusters", 4, *CUDA)
    run(hpcgnn, "predict", out, shards, "--out", shared_path / "p.csv")


def test_a_run_is_forecast(hpcgnn, shards):
    printed, launched = run(hpcgnn, "train", shards, "--dry-run", "--epochs", 3, "--steps", "rows:2", *CUDA)
    assert "memory" in printed and launched
