"""Training with rotated codes: the same bits every time, fewer bytes, and losses near to those of rows as they are."""

from __future__ import annotations

import numpy as np
import pytest
from mpi4py import MPI
from training_setup import losses, train, without_seconds

from hpcgnn.methods import METHODS

COMM = MPI.COMM_WORLD
SETTINGS = {"model": "sage", "dropout": 0.5, "epochs": 4, "eval_every": 4, "hidden": 64}
OPTIONS = {"sylvie": {"descent_window": 1, "most_motion": 9.0, "deterministic": True},
           "sylvie-paper": {"descent_window": 1, "deterministic": True},
           "joint": {"descent_window": 1, "most_motion": 9.0, "deterministic": True, "period": 2},
           "adaqp": {"period": 2, "group_size": 20, "solver": "greedy", "deterministic": True},
           "bns": {"share": 0.5}, "sancus": {"skip_change": 0.3}, "uniform": {"bits": 2}}


@pytest.mark.parallel(2)
@pytest.mark.parametrize("method", [
    pytest.param(method, marks=() if method in ("sancus", "pipegcn", "bns", "joint") else pytest.mark.long)
    for method in METHODS])
def test_runs_repeat_to_the_bit_by_every_method(shared_path, shards, method):
    settings = {**SETTINGS, "method": method, **OPTIONS.get(method, {}), "code": "rotated"}
    runs = [train(COMM, shards, shared_path / name, **settings)[1] for name in ("first", "second")]
    assert without_seconds(runs[0]) == without_seconds(runs[1])
    assert losses(runs[0])[-1] < 0.9 * losses(runs[0])[0]


@pytest.mark.parallel(2)
@pytest.mark.parametrize("bits, near", [(1, 0.3), (2, 0.1), (4, 0.03), (8, 0.005)])
def test_losses_stay_near_those_of_rows_as_they_are(shared_path, shards, bits, near):
    """Bounds are about twice the largest difference of either code on this graph."""
    expected = losses(train(COMM, shards, shared_path / "vanilla", **SETTINGS)[1])
    for code in ("affine", "rotated"):
        found = losses(train(COMM, shards, shared_path / code, **SETTINGS, method="uniform", bits=bits, code=code,
                             sum_bits=32)[1])
        np.testing.assert_allclose(found, expected, rtol=near, err_msg=code)


@pytest.mark.parallel([2])
def test_each_direction_saves_two_bytes_a_row(shared_path, shards):
    sent = {}
    for code in ("affine", "rotated", "rotated-forward", "rotated-backward"):
        summary, _, _ = train(COMM, shards, shared_path / code, **{**SETTINGS, "epochs": 1}, method="uniform", bits=1,
                              code=code)
        sent[code] = summary["sent_bytes_messages_per_epoch"]
    saved = {code: sent["affine"] - num_bytes for code, num_bytes in sent.items()}
    assert saved["rotated-forward"] > 0 and saved["rotated-backward"] > 0
    assert saved["rotated"] == saved["rotated-forward"] + saved["rotated-backward"]


@pytest.mark.parallel([2])
@pytest.mark.parametrize("settings", [{"method": "uniform", "bits": 32}, {"method": "pipegcn"}],
                         ids=lambda settings: settings["method"])
def test_rows_that_are_sent_as_they_stand_are_not_rotated(shared_path, shards, settings):
    runs = [train(COMM, shards, shared_path / code, **SETTINGS, **settings, code=code)[1]
            for code in ("affine", "rotated")]
    assert without_seconds(runs[0]) == without_seconds(runs[1])


@pytest.mark.parallel([2])
@pytest.mark.parametrize("settings", [
    {"precision": "bf16"}, {"precision": "fp16", "exchange": "alltoallv"}, {"rematerialize": True},
    {"overlap": False, "predict": "previous"}, {"model": "gat", "heads": 2},
], ids=str)
def test_rotated_rows_train_with_what_changes_how_rows_are_kept_or_sent(shared_path, shards, settings):
    expected, found = (losses(train(COMM, shards, shared_path / code, **{**SETTINGS, **settings}, method="uniform",
                                    bits=4, code=code)[1]) for code in ("affine", "rotated"))
    np.testing.assert_allclose(found, expected, rtol=0.02)


@pytest.mark.parallel([2])
@pytest.mark.parametrize("method, bits, hidden, is_rotated", [
    ("uniform", 1, 8, True), ("uniform", 1, 7, False), ("uniform", 8, 32, False)])
def test_a_method_rotates_rows_of_few_bits_that_are_wide_enough(shared_path, shards, method, bits, hidden, is_rotated):
    """A rotated row has 2 bytes of parameters, an affine one 4; the last layer's rows are narrow."""
    settings = {"method": method, "bits": bits, "hidden": hidden, "layers": 3, "epochs": 1}
    sent = {}
    for code in ("auto", "affine", "rotated"):
        _, metrics, _ = train(COMM, shards, shared_path / code, code=code, **settings)
        sent[code] = metrics[0]["sent_bytes_parameters"]
    assert sent["rotated"] * 2 == sent["affine"]
    assert (sent["auto"] < sent["affine"]) is is_rotated and sent["auto"] >= sent["rotated"]


@pytest.mark.parallel([2])
@pytest.mark.parametrize("method, is_rotated", [("sylvie", True), ("joint", True), ("sylvie-paper", False),
                                                ("adaqp", False), ("random", False)])
def test_methods_of_the_papers_have_the_papers_codes(shared_path, shards, method, is_rotated):
    sent = {}
    for code in ("auto", "affine"):
        _, metrics, _ = train(COMM, shards, shared_path / code, code=code, method=method, hidden=32, layers=3, epochs=1)
        sent[code] = metrics[0]["sent_bytes_parameters"]
    assert (sent["auto"] < sent["affine"]) is is_rotated
