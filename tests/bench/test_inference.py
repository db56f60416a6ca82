"""`hpcgnn bench inference`: float and integer sides compute one network, the peer too, and the table is whole."""

from __future__ import annotations

import importlib.util
import itertools
import json

import numpy as np
import pytest
import scipy.sparse
import torch

from hpcgnn.__main__ import main
from hpcgnn.bench.float_batches import FloatBatches, integer_model, random_stack
from hpcgnn.bench.inference import LAYERS
from hpcgnn.inference.batches.cut import cut_batches
from hpcgnn.inference.batches.run import BatchedRun, pack_features

KINDS = ("gcn", "gin", "sage")


def some_graph(num_nodes=120, seed=0):
    """A symmetric graph, and features from 0 to 1."""
    rng = np.random.default_rng(seed)
    chosen = np.triu(rng.random((num_nodes, num_nodes)) < 0.1, 1)
    matrix = scipy.sparse.csr_matrix(chosen | chosen.T)
    features = rng.uniform(0, 1, (num_nodes, 20)).astype(np.float32)
    return matrix.indptr.astype(np.int64), matrix.indices.astype(np.int32), features


def some_work(kind, num_clusters=8, batch_size=2):
    indptr, indices, features = some_graph()
    batches = cut_batches(indptr, indices, num_clusters, batch_size)
    return random_stack(kind, [20, 8, 8, 3], 8), batches, features[batches.node_id], np.diff(indptr)[batches.node_id]


def float_oracle(stack, batches, h):
    """Dense, in float64."""
    shape = batches.num_rows, batches.num_rows
    matrix = scipy.sparse.csr_matrix((np.ones(len(batches.indices)), batches.indices, batches.indptr), shape).toarray()
    if stack[0].kind == "gcn":
        matrix += np.eye(len(matrix))
        factor = 1 / np.sqrt(matrix.sum(axis=1))
        matrix *= factor[:, None] * factor
    for number, layer in enumerate(stack):
        mapped = h @ layer.weight.double().numpy().T
        if layer.kind == "gcn":
            z = matrix @ mapped
        elif layer.kind == "sage":
            mean = matrix / np.maximum(matrix.sum(axis=1, keepdims=True), 1)
            z = mean @ mapped + h @ layer.own.double().numpy().T
        else:
            z = np.maximum(matrix @ mapped + (1 + layer.epsilon) * mapped, 0) @ layer.second.double().numpy().T
        h = z if number + 1 == len(stack) else np.maximum(z, 0)
    return h


@pytest.mark.parametrize("kind", KINDS)
def test_the_float_side_computes_the_network(kind):
    stack, batches, rows, _ = some_work(kind)
    np.testing.assert_allclose(FloatBatches(stack, batches, rows).forward(), float_oracle(stack, batches, rows),
                               rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_the_integer_model_is_the_float_network_at_eight_bits(kind):
    stack, batches, rows, in_degree = some_work(kind)
    floats = FloatBatches(stack, batches, rows)
    errors = []
    for bits in (2, 4, 8):
        model = integer_model(stack, bits, floats, "made")
        logits, _ = BatchedRun(model, pack_features(model, batches, rows, in_degree), "gather").forward()
        errors.append(np.abs(logits - floats.forward()).mean() / np.abs(floats.forward()).mean())
    assert errors[2] < 0.05 and errors[2] < errors[1] < errors[0]


def test_the_bfloat16_side_is_the_network_to_its_eight_bits():
    stack, batches, rows, _ = some_work("sage")
    wide = FloatBatches(stack, batches, rows).forward()
    narrow = FloatBatches(stack, batches, rows, torch.bfloat16).forward()
    assert 0 < np.abs(narrow - wide).mean() < 2**-6 * np.abs(wide).mean()


@pytest.mark.parametrize("kind", ["gcn", "gin"])
def test_dgl_computes_the_same_batches(kind):
    if importlib.util.find_spec("dgl") is None:
        pytest.skip("dgl is not installed")
    from hpcgnn.bench.peers.dgl_batches import DglBatches

    stack, batches, rows, _ = some_work(kind)
    ours = FloatBatches(stack, batches, rows).forward()
    for work in (batches, batches.joined()):
        np.testing.assert_allclose(DglBatches(stack, work, rows).forward(), ours, rtol=1e-4, atol=1e-4)


def test_weights_of_a_stack_are_the_same_each_time():
    first, second = (random_stack("gin", [20, 8, 3], 16) for _ in range(2))
    assert all(torch.equal(a.second, b.second) for a, b in zip(first, second, strict=True))
    assert [tuple(one.weight.shape) for one in first] == [(16, 20), (16, 8)]


@pytest.fixture
def archive(tmp_path):
    indptr, indices, features = some_graph()
    np.savez(tmp_path / "made.npz", indptr=indptr, indices=indices, features=features,
             labels=np.arange(len(features)) % 4)
    return tmp_path / "made.npz"


def run(arguments, monkeypatch):
    monkeypatch.setattr("hpcgnn.bench.environment.run_in", lambda environment: None)    # this process is small enough
    with pytest.raises(SystemExit) as stop:
        main(["bench", "inference", *map(str, arguments)])
    return stop.value.code


def test_the_command_measures_every_model_and_width(archive, tmp_path, capsys, monkeypatch):
    code = run([archive, "--bits", "2,8", "--clusters", "33", "--repeat", "3", "--out", tmp_path / "out"],
               monkeypatch)
    printed = capsys.readouterr()
    assert not code, printed.err
    rows = json.loads((tmp_path / "out/bench.json").read_text())["measurements"]
    for row, (kind, bits) in zip(rows, itertools.product(KINDS, (2, 8)), strict=True):
        assert f"{kind} {LAYERS} x" in row["case"] and row["case"].endswith(f"{bits} bits")
        assert set(row["seconds"]) == {"hpcgnn", "tiles", "gather", "hpcgnn fp32", "hpcgnn bf16"}
        assert 0 <= row["zero_tile_share"] <= 1 and 0 <= row["tile_choice_share"] <= 1
        assert row["packed_bytes"] > 0 and row["auto_over_better"] > 0
    assert "% of the tiles are zero and jumped" in printed.out


@pytest.mark.parametrize("flags, words", [
    (["--bits", "1"], "expected 2 to 8"),
    (["--bits", "9"], "expected 2 to 8"),
    (["--model", "gat"], "expected a list of gcn, gin, sage"),
])
def test_what_can_not_be_measured_is_refused(archive, flags, words, capsys, monkeypatch):
    assert run([archive, *flags], monkeypatch) == 2
    assert words in capsys.readouterr().err
