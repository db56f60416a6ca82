"""The campaigns' own machinery: what it must notice, and what it must not forget."""

from __future__ import annotations

import faulthandler
import json
import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
from campaigns import hostile_archives
from campaigns.calls import fault_in
from campaigns.forked import Worker, run_forked
from campaigns.runner import Limits, Result, read_result, run_campaign, write_result

from hpcgnn.errors import ShardError


@dataclass
class Counting:
    """A campaign whose cases fail where `fails(number)`."""

    fails: Callable[[int], bool]
    cases: range = range(-2, 50)

    def try_case(self, number):
        return f"fault {number}" if self.fails(number) else None

    def close(self):
        return


def run(folder, limits, result=None, fails=lambda number: number % 10 == 3):
    return run_campaign(Counting(fails), result or Result("counting", 0, "abc"), folder, limits)


def test_a_campaign_tries_its_corpus_first_and_every_case_once(tmp_path):
    result = run(tmp_path, Limits())
    assert (result.tried, result.next_case) == (52, 50)
    assert [failure["case"] for failure in result.failures] == [3, 13, 23, 33, 43]


def test_a_campaign_that_goes_on_ends_as_one_that_was_not_stopped(tmp_path, monkeypatch):
    monkeypatch.setattr("campaigns.runner.commit_name", lambda: "abc")
    run(tmp_path, Limits(num_cases=17))
    resumed = run(tmp_path, Limits(), read_result(tmp_path, "counting", 0))
    whole = run(tmp_path, Limits())
    assert (resumed.tried, resumed.failures, resumed.next_case) == (whole.tried, whole.failures, whole.next_case)


@pytest.mark.parametrize("seed, commit", [(1, "abc"), (0, "abd")])
def test_a_result_of_another_seed_or_commit_is_not_gone_on_with(tmp_path, monkeypatch, seed, commit):
    monkeypatch.setattr("campaigns.runner.commit_name", lambda: commit)
    write_result(tmp_path, Result("counting", 0, "abc"))
    assert read_result(tmp_path, "counting", seed) is None


def test_the_json_names_what_was_tried_and_what_failed(tmp_path):
    run(tmp_path, Limits(num_cases=10))
    kept = json.loads((tmp_path / "counting.json").read_text())
    assert {key: kept[key] for key in ("campaign", "tried", "failed", "failures", "seed", "commit")} == {
        "campaign": "counting", "tried": 10, "failed": 1, "failures": [{"case": 3, "what": "fault 3"}], "seed": 0,
        "commit": "abc"}


def test_a_case_that_crashes_hangs_or_ends_is_told_and_the_next_one_is_tried():
    def try_case(number):
        if number == 1:
            faulthandler.disable()      # which would print where
            os.kill(os.getpid(), signal.SIGSEGV)
        if number == 2:
            time.sleep(60)
        if number == 3:
            os._exit(7)
        return None

    worker = Worker(try_case, seconds=1.0)
    assert [worker.ask(number) for number in range(5)] == [
        None, "ended by SIGSEGV", "no end within 1 s", "ended with status 7 and without an answer", None]
    worker.close()


def test_a_program_that_hangs_is_ended_and_what_one_said_is_kept(tmp_path):
    assert run_forked(lambda: time.sleep(60), tmp_path, 0.5)[0] is None

    def fail():
        raise ShardError("a.h5 is missing")

    status, said = run_forked(fail, tmp_path, 20.0)
    assert status == 1 and "ShardError: a.h5 is missing" in said


@pytest.mark.parametrize("status, said, fault", [
    (0, "", None), (1, "hpcgnn: a.h5 is missing\n", None), (75, "hpcgnn: stopped\n", None),
    (1, "", "status 1 with 0 sentences: "), (-11, "", "ended by signal 11"),
    (1, "hpcgnn: a\nhpcgnn: b\n", "status 1 with 2 sentences: hpcgnn: a | hpcgnn: b"),
    (0, "Traceback (most recent call last):\nValueError: bad\n", "traceback: ValueError: bad (not in hpcgnn)"),
])
def test_one_sentence_and_a_status_is_the_only_way_to_fail(status, said, fault):
    assert fault_in(status, said) == fault


def test_the_oracle_of_archives_reads_the_base_and_refuses_what_contradicts_itself():
    base = hostile_archives.base_arrays()
    truth = hostile_archives.truth_of(base)
    np.testing.assert_array_equal(truth.labels, base["labels"])
    assert (truth.arcs[:, 0] != truth.arcs[:, 1]).all() and len(np.unique(truth.arcs, axis=0)) == len(truth.arcs)
    for name, array in (("labels", np.full(24, 0.5)), ("labels", np.full(24, 2**64 - 1, np.uint64)),
                        ("train_mask", np.full(24, "False")), ("train_mask", np.full(24, np.nan)),
                        ("indices", -base["indices"]), ("features", np.full((24, 5), np.inf)),
                        ("features", np.empty((24, 0), np.float32))):
        assert hostile_archives.truth_of({**base, name: array}) is None
