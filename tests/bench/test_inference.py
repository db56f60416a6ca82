"""`hpcgnn bench inference`: float and integer sides compute one network, the peer too, and the table is whole."""

from __future__ import annotations

import importlib.util
import itertools
import json

import numpy as np
import pytest
import torch
from inference_setup import float_oracle, some_work, trained_file, write_archive
from integer_models import some_model

from hpcgnn.bench.float_networks import FloatBatches, float_stack, integer_model, random_stack
from hpcgnn.bench.inference import HIDDEN, LAYERS
from hpcgnn.bench.peers.torch_batches import TorchBatches
from hpcgnn.lowbit.inference.host_pass import HostPass, pack_features
from hpcgnn.lowbit.inference.model_file import write_model
from hpcgnn.shards.schema import Fingerprint

KINDS = ("gcn", "gin", "sage")


@pytest.mark.parametrize("side", [FloatBatches, TorchBatches])
@pytest.mark.parametrize("has_norm", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_the_float_sides_compute_the_network(kind, has_norm, side):
    stack, batches, rows, _ = some_work(kind, has_norm=has_norm)
    np.testing.assert_allclose(side(stack, batches, rows).forward(), float_oracle(stack, batches, rows),
                               rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_torch_quantizes_the_maps_of_the_network(kind):
    stack, batches, rows, _ = some_work(kind)
    exact, found = (TorchBatches(stack, batches, rows, is_int8).forward() for is_int8 in (False, True))
    assert 0 < np.abs(found - exact).mean() < 0.05 * np.abs(exact).mean()


@pytest.mark.parametrize("kind", KINDS)
def test_a_model_of_integers_has_the_float_network_that_it_was_made_of(kind):
    stack, batches, rows, _ = some_work(kind)
    seen = []
    expected = FloatBatches(stack, batches, rows).forward(seen)
    again = float_stack(integer_model(stack, 8, seen, "made"))
    found = FloatBatches(again, batches, rows).forward()
    assert 0 < np.abs(found - expected).mean() < 0.03 * np.abs(expected).mean()
    assert [one.norm_weight is None for one in again] == [False, False, True]


@pytest.mark.parametrize("kind", KINDS)
def test_the_integer_model_is_the_float_network_at_eight_bits(kind):
    stack, batches, rows, in_degree = some_work(kind)
    seen, errors = [], []
    expected = FloatBatches(stack, batches, rows).forward(seen)
    for bits in (2, 4, 8):
        model = integer_model(stack, bits, seen, "made")
        logits, _ = HostPass.over_batches(model, pack_features(model, batches, rows, in_degree), "gather").forward()
        errors.append(np.abs(logits - expected).mean() / np.abs(expected).mean())
    assert errors[2] < 0.05 and errors[2] < errors[1] < errors[0]


def test_the_bfloat16_side_is_the_network_to_its_eight_bits():
    stack, batches, rows, _ = some_work("sage")
    wide = FloatBatches(stack, batches, rows).forward()
    narrow = FloatBatches(stack, batches, rows, torch.bfloat16).forward()
    assert 0 < np.abs(narrow - wide).mean() < 2**-6 * np.abs(wide).mean()


@pytest.mark.parametrize("kind", KINDS)
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
    return write_archive(tmp_path / "made.npz")


@pytest.fixture
def measured(bench, tmp_path):
    """measured(*words): the measurements of the command, and what it prints."""
    def run(*words):
        status, printed, complaints = bench("inference", *words, "--out", tmp_path / "out")
        assert not status, complaints
        return json.loads((tmp_path / "out/bench.json").read_text())["measurements"], printed

    return run


def test_the_command_measures_every_model_and_width(measured, archive):
    rows, printed = measured(archive, "--bits", "2,8", "--clusters", "33", "--repeat", "1")
    for row, (kind, bits) in zip(rows, itertools.product(KINDS, (2, 8)), strict=True):
        assert f"{kind} {LAYERS} x" in row["case"] and row["case"].endswith(f"{bits} bits")
        assert set(row["seconds"]) == {"hpcgnn", "tiles", "gather", "hpcgnn fp32", "hpcgnn bf16"}
        assert 0 <= row["zero_tile_share"] <= 1 and 0 <= row["tile_choice_share"] <= 1
        assert row["packed_bytes"] > 0 and row["auto_over_better"] > 0
    assert "% of the tiles are zero and skipped" in printed


def test_a_whole_graph_is_measured_too(measured, archive):
    rows, printed = measured(archive, "--bits", "4", "--clusters", "0", "--repeat", "1", "--peer", "torch")
    for row, (kind, bits) in zip(rows, itertools.product(KINDS, (4,)), strict=True):
        assert row["case"] == f"made, {kind} {LAYERS} x {HIDDEN[kind]}, whole, {bits} bits"
        assert set(row["seconds"]) == {"hpcgnn", "hpcgnn fp32", "hpcgnn bf16", "torch fp32", "torch int8"}
        assert 0 < row["row_bytes"] < row["bf16_row_bytes"]
    assert "tiles" not in printed and "times as long; features and rows take" in printed


def test_models_from_files_answer_for_the_graph_that_they_were_made_on(measured, archive, tmp_path):
    files = [trained_file(tmp_path / f"{kind}-4.h5", kind) for kind in KINDS]
    rows, _ = measured(archive, *files, "--clusters", "33", "--repeat", "1", "--peer", "torch")
    assert [row["case"].rsplit(", ")[-1] for row in rows] == [f"{kind}-4" for kind in KINDS]
    for row in rows:
        assert set(row["seconds"]) == {"hpcgnn", "tiles", "gather", "hpcgnn fp32", "hpcgnn bf16", "torch fp32",
                                       "torch int8"}
        assert row["same_class_as_fp32"] > 0.5 and row["row_bytes"] > 0


@pytest.mark.parametrize("make, words", [
    (lambda path: trained_file(path, "gcn", num_nodes=121), "made on made of 121 nodes, which is no graph here"),
    (lambda path: trained_file(path, "gcn", name="other"), "made on other of 120 nodes"),
    (lambda path: gat_file(path), "is a model of gat; expected one of gcn, gin, sage"),
])
def test_models_of_no_archive_or_kind_are_refused(bench, archive, tmp_path, make, words):
    code, _, complaints = bench("inference", archive, make(tmp_path / "m.h5"), "--clusters", "33", "--repeat", "3")
    assert code and words in complaints


def gat_file(path):
    write_model(path, some_model("gat"), Fingerprint("0" * 32, "1" * 32, "2" * 32))
    return path


@pytest.mark.parametrize("flags, words", [
    (["--bits", "1"], "expected 2 to 8"),
    (["--bits", "9"], "expected 2 to 8"),
    (["--model", "gat"], "expected a list of gcn, gin, sage"),
])
def test_what_can_not_be_measured_is_refused(bench, archive, flags, words):
    code, _, complaints = bench("inference", archive, *flags)
    assert code == 2 and words in complaints
