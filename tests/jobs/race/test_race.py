"""Curves, trials, contestants and runs of a race to a validation score, apart from each other."""

from __future__ import annotations

import math
import re
import sys
from pathlib import Path

import pytest

from hpcgnn.bench.environment import thread_environment
from hpcgnn.errors import ConfigError, TrainingError

sys.path.insert(0, str(Path(__file__).parents[3] / "jobs"))

from measurements.race import contestants, runs
from measurements.race.contestants import (
    Ours,
    Peer,
    RaceSettings,
    list_ours,
    list_peers,
    parse_dropouts,
    parse_methods,
    parse_processes,
    parse_steps,
    parse_targets,
)
from measurements.race.curve import Point, Settings, Training, Trial, fastest, search
from measurements.race.runs import points_of, run_within


def training(*scores, seconds=1.0, updates=1, sent=0):
    """A training whose epoch takes so many seconds, with these validation scores and test scores 0.1 below."""
    return Training([Point(epoch, updates * epoch, seconds * epoch, sent * epoch, score, score - 0.1)
                     for epoch, score in enumerate(scores, 1)], 1000, "glibc")


def trial(*trainings, lr=0.01, batch=0):
    return Trial(Settings(lr, batch), dict(enumerate(trainings)))


# Curves and trials

def test_a_score_is_reached_at_the_first_evaluation_that_has_it():
    curve = training(0.2, 0.5, 0.4, 0.5, 0.6, seconds=2.0, updates=3)
    assert curve.reach(0.5) == Point(2, 6, 4.0, 0, 0.5, 0.4) and curve.reach(0.61) is None
    assert curve.best.epoch == 5 and curve.epoch_seconds == 2.0
    assert training(0.5, 0.5).best.epoch == 1


def test_the_whole_of_a_score_is_reached_by_the_training_that_set_it():
    curve = training(0.1, 0.7, 0.3)
    assert curve.reach(1.0 * curve.best.val_score).epoch == 2


def test_a_trial_tells_medians_over_its_seeds_and_never_where_half_of_them_fail():
    three = trial(training(0.1, 0.6), training(0.6, 0.6), training(0.1, 0.2))
    assert three.seconds_to(0.6) == 2.0 and three.best_score == 0.6
    assert three.seconds_to(0.65) == math.inf
    two = trial(training(0.1, 0.6), training(0.4, 0.4))
    assert two.best_score == 0.4 and two.seconds_to(two.best_score) == 1.5


def test_the_trial_shown_comes_first_to_the_target_or_else_has_the_best_score():
    slow, fast = trial(training(0.5, 0.9)), trial(training(0.7, 0.8))
    assert fastest([slow, fast], 0.6) is fast and fastest([slow, fast], 0.85) is slow
    assert fastest([fast, slow], 0.95) is slow
    slow.by_seed[1] = training(0.7, 0.7)
    assert fastest([slow, fast], 0.6) is fast       # a seed that the others have not trained does not count


CHOICES = [{"lr": 1.0}, {"lr": 2.0}], [{"batch": 1}, {"batch": 2}, {"batch": 3}]


def searched(seconds, targets=(0.5,), choices=CHOICES):
    """Trials of a search where a training of lr and batch reaches 0.5 after so many seconds, and what each was given.

    Instead of seconds there may be scores of its epochs.
    """
    given = []

    def train(settings, enough):
        given.append((settings.lr, settings.batch, enough))
        needed = seconds.get((settings.lr, settings.batch))
        return None if needed is None else training(*needed) if isinstance(needed, tuple) else \
            training(0.5, seconds=needed)

    return search(list(choices), train, list(targets)), given


def test_a_search_changes_one_setting_at_a_time_until_no_change_is_better():
    # The second rate is better only with the third batch, which is found with the first rate.
    seconds = {(1.0, 1): 9.0, (2.0, 1): 10.0, (1.0, 2): 8.0, (1.0, 3): 7.0, (2.0, 3): 3.0, (2.0, 2): 5.0}
    trials, given = searched(seconds)
    assert fastest(trials, 0.5).settings == Settings(2.0, batch=3)
    assert [(lr, batch) for lr, batch, _ in given] == [(1, 1), (2, 1), (1, 2), (1, 3), (2, 3), (2, 2)]
    assert [enough for *_, enough in given] == [math.inf, 9.0, 9.0, 8.0, 7.0, 3.0]      # the best one's seconds so far


def test_a_search_leaves_out_what_fails_and_without_a_target_takes_the_best_score():
    trials, _ = searched({(1.0, 2): 4.0}, choices=([{"lr": 1.0}], [{"batch": 1}, {"batch": 2}]))
    assert [trial.settings.batch for trial in trials] == [2]
    curves = {(1.0, 1): (0.5, 0.6), (2.0, 1): (0.3, 0.9), (2.0, 2): (0.9, 0.1), (2.0, 3): (0.7,)}
    trials, given = searched(curves, targets=())
    assert len(trials) == 4 and {enough for *_, enough in given} == {math.inf}
    assert fastest(trials, 2.0).best_score == 0.9
    trials, _ = searched({(1.0, 1): (0.5, 0.7), (2.0, 1): (0.1, 0.5, 0.7)}, targets=(0.5, 0.7))
    assert fastest(trials, 0.7).settings.lr == 1.0


# Contestants

def test_peers_try_processes_batches_and_where_they_draw_neighbors_fanouts():
    assert Ours().choices((512, 1024)) == []
    both = [{"processes": 1}, {"processes": 2}], [{"batch": 512}, {"batch": 2048}]
    drawn = [{"fanout": (5, 5, 5)}, {"fanout": (15, 10, 5)}]
    assert Peer("dgl", "labor", (1, 2)).choices((512, 2048)) == [drawn, *both]
    assert Peer("dgl", "uniform", (1, 2)).choices((512, 2048)) == [[{"fanout": ()}], *both]
    assert str(Settings(0.01, 0.3, 0.0, 512, 2, (5, 5, 5))) == "lr 0.01, dropout 0.3:0, batch 2 x 256, fanout 5,5,5"


def test_a_contestant_has_its_flags_only_where_they_differ_from_full_graph_training():
    assert Ours().flags() == {"method": "vanilla"} and Ours().name == "hpcgnn vanilla, full graph"
    auto = Ours("uniform:1", "auto", "bf16")
    assert auto.flags() == {"method": "uniform", "bits": "1", "steps": "auto", "precision": "bf16"}
    assert auto.name == "hpcgnn uniform:1, auto, bf16"
    assert list_ours(("vanilla", "joint"), ("1", "8"), ("fp32",))[1] == Ours("vanilla", "8")


def test_pygs_sampler_is_left_out_with_a_sentence_where_its_library_is_missing(monkeypatch):
    monkeypatch.setattr(contestants.importlib.util, "find_spec", lambda name: None)
    peers, remarks = list_peers({"dgl": (1, 2), "pyg": (4,)})
    assert [peer.name for peer in peers] == ["dgl sampler", "dgl labor", "dgl uniform", "pyg clusters"]
    assert remarks == ["pyg sampler is left out: PyTorch Geometric's NeighborLoader needs pyg-lib or torch-sparse, and "
                       "neither is installed"]
    assert [peer.processes for peer in peers] == [(1, 2), (1, 2), (1, 2), (4,)]
    monkeypatch.setattr(contestants.importlib.util, "find_spec", lambda name: name == "torch_sparse")
    peers, remarks = list_peers({"pyg": (1,), "dgl-labor": (2,), "dgl-uniform": (2,)})
    assert [peer.driver for peer in peers] == [
        f"measurements.race.{name}" for name in ("pyg_sampler", "pyg_clusters", "dgl_sampler", "dgl_uniform")]
    assert remarks == []


@pytest.mark.parametrize("parse, text, complaint", [
    (parse_steps, "4,0", "--steps has '0'; expected positive numbers, rows:NUMBER or auto"),
    (parse_steps, "rows:0", "--steps has 'rows:0'; expected positive numbers, rows:NUMBER or auto"),
    (parse_steps, "many", "--steps has 'many'"),
    (lambda text: parse_methods(text, ("vanilla", "uniform")), "vanilla,unifrom",
     "--method has 'unifrom'; expected METHOD or METHOD:BITS of vanilla, uniform"),
    (lambda text: parse_methods(text, ("uniform",)), "uniform:x", "--method has 'uniform:x'"),
    (lambda text: parse_processes(text, (1,)), "dgl:0", "--peer has 'dgl:0'; expected PEER or PEER:PROCESSES"),
    (lambda text: parse_processes(text, (1,)), "pyg,dgl:two", "--peer has 'dgl:two'"),
    (parse_targets, "0.9,1.1", "--target is '0.9,1.1'; expected shares above 0 and up to 1"),
    (parse_targets, "best", "--target is 'best'"),
    (parse_targets, "62%,0.9", "--target is '62%,0.9'"),
    (parse_targets, "101%", "--target is '101%'"),
    (parse_dropouts, "0.2,much", "--dropout has 'much'; expected RATE or RATE:INPUT"),
    (parse_dropouts, "0.2:1", "--dropout has '0.2:1'; expected RATE or RATE:INPUT, from 0 up to below 1"),
])
def test_an_option_that_can_not_be_read_is_refused(parse, text, complaint):
    with pytest.raises(ConfigError, match=re.escape(complaint)):
        parse(text)


def test_lists_are_read_once_each_and_targets_ascend():
    assert parse_steps("1, auto,8,1") == ("1", "auto", "8")
    assert parse_targets("1.0,0.95") == ((0.95, True), (1.0, True))
    assert parse_targets("64%, 62.5%") == ((0.625, False), (0.64, False))
    assert parse_dropouts("0.5, 0.2:0,0.5:0.5") == ((0.5, 0.5), (0.2, 0.0))
    assert parse_methods("uniform:1,vanilla", ("vanilla", "uniform")) == ("uniform:1", "vanilla")
    assert parse_processes("dgl:4, pyg,dgl:1,", (1, 2)) == {"dgl": (1, 4), "pyg": (1, 2)}
    assert parse_processes("", (1, 2)) == {}


# Runs

def record(epoch, val_score, **changes):
    return {"epoch": epoch, "epoch_seconds": 1.0, "assign_seconds": 0.5, "sent_bytes_payload": 10,
            "sent_bytes_parameters": 1, "sent_bytes_sums": 100, "sent_bytes_control": None, "val_score": val_score,
            "test_score": val_score, **changes}


def test_points_are_the_evaluations_of_a_run_after_all_that_came_before_them():
    records = [record(1, 0.9), record(2, 0.4), record(3, 0.5, assign_seconds=None)]
    for name in ("val_score", "test_score"):     # of an epoch that is not evaluated
        del records[0][name]
    assert list(points_of(records)) == [Point(2, 2, 3.0, 222, 0.4, 0.4), Point(3, 3, 4.0, 333, 0.5, 0.5)]
    assert [point.updates for point in points_of(records, "8")] == [16, 24]
    told = [record(1, 0.1, num_steps=4), record(2, 0.2, num_steps=1)]
    assert [point.updates for point in points_of(told, "auto")] == [4, 5]


SLOW_RUN = """
import json, pathlib, signal, sys, time
signal.signal(signal.SIGUSR1, lambda *_: sys.exit(75))
with pathlib.Path(sys.argv[1]).open("w") as metrics:
    while True:
        metrics.write(json.dumps({"epoch_seconds": 1.0, "val_score": 0.4}) + "\\n"); metrics.flush(); time.sleep(0.01)
"""


@pytest.mark.parametrize("limit, enough", [(3.0, 0.5), (1e9, 0.4)])
def test_a_run_is_stopped_when_it_has_trained_longer_than_the_limit_or_has_a_score_that_is_enough(tmp_path, limit,
                                                                                                   enough):
    metrics, race = tmp_path / "run/metrics.jsonl", RaceSettings("sage", 1, limit, enough=enough)
    metrics.parent.mkdir()
    peak = run_within([sys.executable, "-c", SLOW_RUN, str(metrics)], thread_environment(1), metrics, race)
    assert peak > 1e6 and len(runs.read_records(metrics)) > (3 if enough == 0.5 else 0)


def test_a_run_that_fails_is_told_by_its_own_sentence(tmp_path):
    command = [sys.executable, "-c", "import sys; print('hpcgnn: no shards', file=sys.stderr); sys.exit(75)"]
    with pytest.raises(TrainingError, match="failed with status 75: hpcgnn: no shards"):
        run_within(command, thread_environment(1), tmp_path / "run/metrics.jsonl", RaceSettings("sage", 1, 3.0))
