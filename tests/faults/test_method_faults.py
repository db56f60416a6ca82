"""Faults of the adaptive methods: settings that can't work, and rows that can't be sent; one sentence, all ranks go."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from faults.test_shared_faults import assert_refused
from mpi4py import MPI
from parallel_run import hpcgnn, run_parallel_command
from training_setup import arcs_where, easy_graph, random_owner, snapshot, write, write_once

COMM = MPI.COMM_WORLD


@pytest.fixture
def shards(shared_path):
    return write_once(COMM, easy_graph(), shared_path / "shards")


@pytest.mark.parallel([1, 2])
@pytest.mark.parametrize("flags, sentence", [
    (["--method", "adaqp", "--set", "widths=2,3"],
     "widths is '2,3'; expected some of 1, 2, 4, 8 in ascending order, as in 2,4,8, or one of 1, 2, 4, 8, "
     "16, 32"),
    (["--method", "sylvie", "--set", "widths=8,4"],
     "widths is '8,4'; expected some of 1, 2, 4, 8 in ascending order, as in 2,4,8, or one of 1, 2, 4, 8, "
     "16, 32"),
    (["--method", "sylvie", "--set", "percentiles=90,80,99"],
     "percentiles is '90,80,99'; expected numbers between 0 and 100 in ascending order, as in 80,92.5,98"),
    (["--method", "sylvie", "--set", "percentiles=many"], "percentiles is 'many'; expected numbers…"),
    (["--method", "sylvie", "--set", "widths=2,4"],
     "percentiles is '85,95,99', 3 of them; 2 widths need 1, so change percentiles or widths"),
    (["--method", "adaqp", "--set", "staleness=2"],
     "staleness = 2 has no effect on method adaqp, only on sancus; leave it out or change --method"),
    (["--set", "lam=0.25"],
     "lam = 0.25 has no effect on method vanilla, only on adaqp; leave it out or change --method"),
    (["--method", "sylvie", "--set", "rematerialize=true"], "method sylvie can't be used with rematerialize: …"),
    (["--method", "joint", "--set", "solver=highs"],
     "method joint spends a budget of bits, which solver highs can't; use bisection or greedy"),
    (["--method", "bns", "--set", "predict=previous"], "method bns can't be used with predict previous: …"),
])
def test_settings_that_a_method_has_no_use_for_or_can_t_read_are_refused(capsys, shared_path, shards, flags, sentence):
    assert_refused(capsys, shared_path, sentence, shards, "--out", shared_path / "run", *flags)


@pytest.mark.parametrize("flags", [
    pytest.param(["--method", "sylvie"], id="sylvie"),
    pytest.param(["--method", "adaqp", "--set", "predict=previous"], id="adaqp", marks=pytest.mark.long)])
def test_a_row_that_can_t_be_quantized_is_named_and_takes_all_ranks_down(tmp_path, flags):
    """A huge feature on rank 1 makes a message that no width can hold, in the first epoch."""
    whole = easy_graph()
    owner = random_owner(whole, 2)
    # Arcs lead from rank 1 to rank 0 only, so rank 0 sends no message forward that could fail first.
    dataset = arcs_where(whole, lambda source, target: owner[source] >= owner[target])
    crossing = arcs_where(whole, lambda source, target: owner[source] > owner[target])
    features = dataset.features.copy()
    features[crossing.indices[0]] = 3e38
    write(replace(dataset, features=np.ascontiguousarray(features)), owner, 2, tmp_path / "shards")
    before = snapshot(tmp_path / "shards")
    ended = run_parallel_command(2, hpcgnn(
        "train", "shards", "--model", "sage", "--norm", "none", "--dropout", 0, "--layers", 3, "--hidden", 64, "--out",
        "run", *flags), tmp_path)
    assert ended.status != 0
    (sentence,) = ended.sentences
    assert sentence.startswith(f"hpcgnn: rank 1: message row of node {crossing.indices[0]} (layer 0, epoch 0")
    assert "NaN, infinite or too large to quantize" in sentence
    assert snapshot(tmp_path / "shards") == before
