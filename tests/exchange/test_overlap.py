"""Overlap changes when rows are summed, never what they sum to."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mpi4py import MPI
from training_setup import easy_graph, shared_path, train, without_seconds, write_once  # noqa: F401

from hpcgnn.ops.spans import MAX_SPANS, MIN_BLOCK, blocks, spans

COMM = MPI.COMM_WORLD
CASES = [{}, {"method": "uniform", "bits": 2},
         {"method": "uniform", "bits": 4, "precision": "bf16", "epoch_rows": "all"}]
MORE_CASES = [{"epoch_rows": "all"}, {"method": "uniform", "bits": 16}, {"precision": "bf16"}]


@pytest.mark.parallel(2)
@pytest.mark.parametrize("cases", [CASES, pytest.param(MORE_CASES, marks=pytest.mark.long)], ids=["short", "long"])
def test_losses_and_scores_with_overlap_are_those_without_bit_for_bit(shared_path, cases):  # noqa: F811
    shards = write_once(COMM, easy_graph(), shared_path / "shards")
    for number, case in enumerate(cases):
        settings = {"model": "sage", "layers": 3, "dropout": 0.5, "epochs": 2, "eval_every": 2, **case}
        found, expected = (train(COMM, shards, shared_path / f"{number}-{overlap}", **settings, overlap=overlap)[1]
                           for overlap in (True, False))
        assert without_seconds(found) == without_seconds(expected), case


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 3 * MIN_BLOCK)), min_size=0, max_size=MAX_SPANS + 4))
def test_spans_cover_every_row_once_and_central_ones_have_no_halo_neighbor(runs):
    is_marginal = np.concatenate([np.full(length, value) for value, length in runs] or [np.zeros(0, bool)])
    central, marginal = spans(is_marginal)
    covered = np.zeros(len(is_marginal), int)
    for start, stop in central + marginal:
        covered[start:stop] += 1
    assert (covered == 1).all()
    for start, stop in central:
        assert not is_marginal[start:stop].any()


def test_rows_that_alternate_too_often_are_all_marginal():
    is_marginal = np.arange(4 * MAX_SPANS) % 2 == 0
    assert spans(is_marginal) == ((), ((0, 4 * MAX_SPANS),))


@pytest.mark.parametrize("num_central, is_worth_it", [(1, False), (8, False), (9, True)])
def test_few_central_rows_hide_nothing(num_central, is_worth_it):
    is_marginal = np.arange(128) >= num_central
    central, marginal = spans(is_marginal)
    assert central == (((0, num_central),) if is_worth_it else ())
    assert marginal == ((num_central if is_worth_it else 0, 128),)


@pytest.mark.parametrize("length", [0, 1, MIN_BLOCK, MIN_BLOCK + 1, 100 * MIN_BLOCK])
def test_blocks_are_the_range_in_order(length):
    pieces = blocks(7, 7 + length)
    assert all(before[1] == after[0] for before, after in itertools.pairwise(pieces))
    assert sum(stop - start for start, stop in pieces) == length
    assert not pieces or (pieces[0][0], pieces[-1][1]) == (7, 7 + length)
    assert len(pieces) <= 8
