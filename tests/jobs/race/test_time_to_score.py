"""jobs/measurements/race/time_to_score.py: targets, the trial that is shown, and the command from end to end."""

from __future__ import annotations

import importlib.util
import json
import math
import subprocess
import sys
import time
from pathlib import Path

import pytest
from fork_server import served
from parallel_run import clean_environment

from hpcgnn.command_line import run
from hpcgnn.errors import ConfigError, TrainingError

sys.path.insert(0, str(Path(__file__).parents[3] / "jobs"))

from measurements.race import benchmark, time_to_score
from measurements.race.benchmark import REFERENCE, Graph, RaceBenchmark, Trials
from measurements.race.contestants import Ours, Peer, RaceSettings
from measurements.race.curve import Point, Settings, Training, Trial
from measurements.race.result import RaceResult

MACHINE = {"load_average": [0.0], "processor": "a processor", "threads": 1, "cores": 2, "simd": "avx2",
           "allocator": "glibc", "versions": {"hpcgnn": "0"}, "commit": ""}
DROPOUT = ((0.5, 0.0),)
SCRIPT = Path(time_to_score.__file__)
SMALL = "synthetic:nodes=300,mean_degree=6,classes=3,features=8"


def training(*scores, seconds=1.0, updates=1, sent=0):
    """A training whose epoch takes so many seconds, with these validation scores and test scores 0.1 below."""
    return Training([Point(epoch, updates * epoch, seconds * epoch, sent * epoch, score, score - 0.1)
                     for epoch, score in enumerate(scores, 1)], 1000, "glibc")


# The benchmark, with trainings that are made up

@pytest.fixture
def race(monkeypatch):
    """A race of full-graph training, twice as fast steps and a peer that fails; returns what it trained as well."""
    trained = []

    def train(contestant, race, settings, seed, course):
        trained.append((contestant.name, str(settings), seed))
        if isinstance(contestant, Peer):
            raise TrainingError("it failed")
        seconds = 1.0 if contestant == REFERENCE else 0.25
        return training(0.3, 0.5, 0.6 if settings.lr == 0.01 else 0.55, seconds=seconds, sent=10)

    monkeypatch.setattr(benchmark, "train", train)
    monkeypatch.setattr(benchmark, "call_in_child", lambda threads, function, *arguments:
                        {"export_arrays": {"name": "tiny"}, "count_parts": 1}[function])
    monkeypatch.setattr(RaceBenchmark, "_shards", lambda self, folder: folder)
    made = RaceBenchmark(Graph("tiny"), [RaceSettings("sage", 3, 60.0)], [REFERENCE, Ours(steps="8"),
                         Peer("dgl", "uniform")], ((0.5, True), (1.0, True)),
                         Trials((0.003, 0.01), DROPOUT, (64,), 2), 1, 1, ["a remark"])
    return made, trained


def test_targets_are_shares_of_the_best_score_of_full_graph_training_and_seeds_are_for_the_chosen_trial(race):
    made, trained = race
    full, steps = made.measure()
    assert [target.score for target in full.targets] == [pytest.approx(0.3), pytest.approx(0.6)]
    assert full.seconds() == [1.0, 3.0] and steps.seconds() == [0.25, 0.75]
    low, high = (f"lr {rate}, dropout 0.5:0" for rate in (0.003, 0.01))
    assert str(steps.chosen.settings) == high and sorted(steps.chosen.by_seed) == [0, 1]
    assert trained[:3] == [(full.case, low, 0), (full.case, high, 0), (full.case, high, 1)]
    assert made.failures == ["dgl uniform: it failed"]


def test_scores_that_are_asked_for_need_no_full_graph_training(race):
    made, trained = race
    made.contestants, made.targets = [Ours(steps="8")], ((0.3, False), (0.58, False))
    row, = made.measure()
    assert {name for name, *_ in trained} == {row.case} and row.seconds() == [0.25, 0.75]
    assert [str(target) for target in row.targets] == ["30 %", "58 %"]


def test_in_a_short_race_a_trial_ends_when_it_can_not_be_the_first(race, monkeypatch):
    made, _ = race
    made.is_short, made.contestants, made.targets = True, [Ours(steps="8")], ((0.4, False),)
    made.trials, limits = Trials((0.003, 0.01, 0.1), DROPOUT, (), 1), {}

    def train(contestant, race, settings, seed, course):
        limits[settings.lr] = race.seconds
        return training(0.3, 0.5, seconds={0.003: 7.0, 0.01: 5.0, 0.1: 9.0}[settings.lr])

    monkeypatch.setattr(benchmark, "train", train)
    row, = made.measure()
    assert limits == {0.003: 60.0, 0.01: 14.0, 0.1: 10.0} and row.chosen.settings.lr == 0.01


def test_each_target_has_the_trial_that_was_first_there(race, monkeypatch):
    made, _ = race
    made.contestants, made.targets = [Ours(steps="8"), Peer("dgl", "uniform")], ((0.3, False), (0.6, False))
    curves = {0.003: (0.1, 0.2, 0.6), 0.01: (0.4, 0.5, 0.5)}
    monkeypatch.setattr(benchmark, "train", lambda contestant, race, settings, seed, course:
                        training(*curves[settings.lr], seconds=6.0 if isinstance(contestant, Peer) else 2.0))
    ours, peer = made.measure()
    assert ours.seconds() == [2.0, 6.0] and [trial.settings.lr for trial in ours.firsts] == [0.01, 0.003]
    assert ours.chosen.settings.lr == 0.003 and peer.is_peer
    text = RaceResult("time-to-score", MACHINE, [ours, peer]).as_text()
    assert cells_of(text, "hpcgnn vanilla, 8 steps: sooner")[:3] == ["hpcgnn vanilla, 8 steps: sooner", "3.00", "3.00"]
    assert ("dgl uniform, 2 trials: lr 0.01, dropout 0.5:0, batch 1 x 64 (30 %); lr 0.003, dropout 0.5:0, "
            "batch 1 x 64 (60 %)") in " ".join(text.split())


def test_a_short_race_ends_all_but_full_graph_training_with_the_highest_target(race, monkeypatch):
    made, _ = race
    enough, train = {}, benchmark.train

    def note(contestant, race, settings, seed, course):
        enough[contestant.name] = race.enough
        return train(contestant, race, settings, seed, course)

    monkeypatch.setattr(benchmark, "train", note)
    for is_short, limit in ((False, math.inf), (True, pytest.approx(0.6))):
        made.is_short = is_short
        full, steps = made.measure()
        assert enough[full.case] == math.inf and enough[steps.case] == limit


def test_a_trial_that_fails_is_told_and_leaves_the_others(race, monkeypatch):
    made, _ = race
    made.contestants = [REFERENCE, Peer("dgl", "sampler", (1, 2, 4))]
    seconds = {1: 2.0, 2: 1.5, 4: 1.0}      # of an epoch

    def train(contestant, race, settings, seed, course):
        if settings.processes == 4 and settings.lr == 0.01:
            raise TrainingError("out of memory")
        return training(0.3, 0.5, 0.6, seconds=seconds[settings.processes])

    monkeypatch.setattr(benchmark, "train", train)
    made.trials = Trials((0.01,), DROPOUT, (64,), 1)
    full, peer = made.measure()
    assert str(peer.chosen.settings) == "lr 0.01, dropout 0.5:0, batch 2 x 32, fanout 5,5,5"
    assert [(trial.settings.processes, trial.settings.fanout) for trial in peer.trials] == [
        (1, (5, 5, 5)), (1, (15, 10, 5)), (2, (5, 5, 5)), (2, (15, 10, 5))]
    assert made.failures == ["dgl sampler, lr 0.01, dropout 0.5:0, batch 4 x 16, fanout 5,5,5: out of memory"]
    text = RaceResult("time-to-score", MACHINE, [full, peer]).as_text()
    assert cells_of(text, "dgl sampler")[:2] == ["dgl sampler", "1.50 (1)"]
    assert {trial["processes"] for trial in peer.as_record()["trials"]} == {1, 2}


def cells_of(text: str, start: str) -> list[str]:
    """The cells of the row that begins so, of a table in Markdown."""
    line = next(line for line in text.splitlines() if line.startswith(f"| {start} "))
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_the_table_and_the_record_say_who_was_when_where(race, tmp_path):
    made, _ = race
    result = RaceResult("time-to-score", MACHINE, list(made.measure()), made.failures)
    text = result.as_text()
    assert "tiny sage 3 x 256: validation score to reach, 50 % = 30.00, 100 % = 60.00; medians of 2 seeds\n" in text
    assert cells_of(text, "contestant") == ["contestant", "s to 50 %", "s to 100 %", "s/epoch",
                                            "val, test %", "MB/epoch", "peak GB"]
    assert cells_of(text, "hpcgnn vanilla, 8 steps") == [
        "hpcgnn vanilla, 8 steps", "0.250 (1)", "0.750 (3)", "0.250", "60.00, 50.00", "1.00e-05", "1.00e-06"]
    assert "a remark" in text and "not measured: dgl uniform: it failed" in text
    result.write(tmp_path)
    full, _ = json.loads((tmp_path / "bench.json").read_text())["measurements"]
    assert [one["seconds"] for one in full["targets"]] == [1.0, 3.0]
    assert [point["val_score"] for point in full["trials"][0]["seeds"]["0"]["points"]] == [0.3, 0.5, 0.55]


def test_a_target_that_is_not_reached_is_a_dash_and_null(race):
    made, _ = race
    full, *_ = made.measure()
    poor = Trial(Settings(0.01), {0: training(0.1)})
    never = benchmark.ScoreRow("g", "c", [poor], full.targets, [poor, poor])
    assert RaceResult("time-to-score", MACHINE, [never]).as_text().count("–") >= 2
    assert [one["seconds"] for one in never.as_record()["targets"]] == [None, None]


def test_a_table_of_three_targets_has_120_columns():
    curve = Training([Point(epoch, 90 * epoch, 12.34 * epoch, 0, 0.6 + epoch / 1000, 0.6) for epoch in range(1, 99)],
                     12_345_678_901, "tcmalloc")
    targets = [benchmark.Target(share * 0.698, share) for share in (0.95, 0.98, 1.0)]
    trial = Trial(Settings(0.003), {0: curve})
    group = "ogbn_arxiv_nofeat sage 3 x 256"
    rows = [benchmark.ScoreRow(group, contestant.name, [trial], targets, [trial] * 3, is_peer)
            for contestant, is_peer in ((Ours("vanilla", "auto", "bf16"), False), (Peer("dgl", "sampler"), True))]
    text = RaceResult("time-to-score", MACHINE, rows).as_text()
    assert max(len(line) for line in text.splitlines()) <= 120
    assert cells_of(text, "hpcgnn vanilla, auto, bf16")[3] == "1,209 (98)"


# The command

def run_command(*arguments):
    return subprocess.run(served([SCRIPT, *arguments]),
                          capture_output=True, text=True, env=clean_environment())


@pytest.mark.long
def test_the_command_leaves_a_table_a_picture_and_the_curves(tmp_path):
    done = run_command(SMALL, "--epochs", 4, "--lr", "0.01", "--target", "0.5,1.0", "--method", "vanilla,uniform:2",
                       "--ranks", 2, "--threads", 1, "--out", tmp_path)
    assert done.returncode == 0, done.stderr
    assert "hpcgnn vanilla, full graph" in done.stdout and "hpcgnn uniform:2, full graph" in done.stdout
    content = json.loads((tmp_path / "bench.json").read_text())
    full, uniform = content["measurements"]
    points = full["trials"][0]["seeds"]["0"]["points"]
    assert [point["epoch"] for point in points] == [1, 2, 3, 4]
    assert full["targets"][1]["score"] == max(point["val_score"] for point in points)
    assert full["targets"][1]["seconds"] <= points[-1]["seconds"] and full["epoch_bytes"] > uniform["epoch_bytes"] > 0
    assert full["peak_bytes"] > 50e6
    if importlib.util.find_spec("matplotlib") is not None:
        assert (tmp_path / "bench.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.long
@pytest.mark.parametrize("package, contestants", [("dgl", ["dgl sampler", "dgl labor", "dgl uniform"]),
                                                  ("torch_geometric", ["pyg clusters"])])
def test_peers_train_on_the_same_graph(package, contestants, tmp_path):
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed")
    peer = {"dgl": "dgl", "torch_geometric": "pyg"}[package]
    done = run_command(SMALL, "--epochs", 3, "--lr", "0.01", "--dropout", "0.2", "--set", "batch=64", "--threads", 2,
                       "--peer", f"{peer}:1,{peer}:2", "--out", tmp_path)
    assert done.returncode == 0, done.stderr
    rows = {row["case"]: row for row in json.loads((tmp_path / "bench.json").read_text())["measurements"]}
    assert set(contestants) < set(rows)
    for name in contestants:
        assert {trial["processes"] for trial in rows[name]["trials"]} == {1, 2}
        one, two = (next(trial for trial in rows[name]["trials"] if trial["processes"] == processes)
                    ["seeds"]["0"]["points"][-1] for processes in (1, 2))
        for last in (one, two):
            assert last["epoch"] == 3 and last["updates"] > 3 and 0.2 < last["val_score"] <= 1
        assert one["sent_bytes"] == 0 and two["sent_bytes"] % (2 * two["updates"]) == 0 < two["sent_bytes"]


def test_a_batch_that_processes_can_not_divide_is_refused():
    time_to_score.check_batches((8, 64), {"dgl": (1, 8), "pyg": (2,)})
    time_to_score.check_batches((1,), {})
    with pytest.raises(ConfigError, match="batch has 4, which 8 processes of a peer can't divide; ask for larger"):
        time_to_score.check_batches((64, 4), {"dgl": (1, 8)})


@pytest.mark.parametrize("arguments, status, complaint", [
    (["nowhere.npz"], 1, "there is no graph nowhere.npz; expected an .npz archive, a folder of shards, drawn:EDGES"),
    (["drawn:3"], 1, "drawn:3 is no graph to draw"),
    ([SMALL, "--target", "2"], 1, "--target is '2'"),
    ([SMALL, "--target", "0.9,62%"], 1, "--target is '0.9,62%'"),
    ([SMALL, "--dropout", "0.2:1"], 1, "--dropout has '0.2:1'; expected RATE or RATE:INPUT"),
    ([SMALL, "--model", "sgc"], 2, "--model has 'sgc'; expected a list of sage, gcn, gat, pyg-sage"),
    ([SMALL, "--model", "gin", "--peer", "dgl:1"], 1, "--model has gin, which no peer trains; leave it or --peer out"),
    ([SMALL, "--lr", "0"], 2, "--lr is '0'; expected positive numbers"),
    ([SMALL, "--peer", "torch"], 1, "--peer has 'torch'; expected a list of dgl, dgl-sampler, dgl-labor, dgl-uniform,"),
    ([SMALL, "--peer", "dgl-clusters:2"], 1, "--peer has 'dgl-clusters'; expected a list of dgl, dgl-sampler"),
    ([SMALL, "--peer", "dgl:x"], 1, "--peer has 'dgl:x'; expected PEER or PEER:PROCESSES, as in dgl:2"),
    ([SMALL, "--set", "seconds=0"], 2, "--set seconds: 0.0 is not in the range x>0"),
])
def test_what_can_not_be_raced_is_refused_before_anything_trains(arguments, status, complaint, capsys):
    assert run(arguments, time_to_score.command) == status
    assert complaint in capsys.readouterr().err


def children_of(process: int) -> list[int]:
    """The processes that one has begun, directly or not."""
    text = Path(f"/proc/{process}/task/{process}/children")
    own = [int(child) for child in text.read_text().split()] if text.exists() else []
    return own + [later for child in own for later in children_of(child)]


def words_of(process: int) -> list[bytes]:
    """The command line of a process; none where it has just ended."""
    try:
        return Path(f"/proc/{process}/cmdline").read_bytes().split(b"\0")
    except (FileNotFoundError, ProcessLookupError):
        return []


@pytest.mark.long
def test_a_benchmark_that_is_ended_ends_its_training(tmp_path):
    command = [sys.executable, SCRIPT, SMALL, "--epochs", "1000000"]
    with subprocess.Popen(command, env=clean_environment(), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as bench:
        begun, deadline = [], time.monotonic() + 60
        while not begun and time.monotonic() < deadline:
            begun = [child for child in children_of(bench.pid) if b"train" in words_of(child)]
            time.sleep(0.1)
        bench.terminate()
        assert begun and bench.wait(30) != 0
        assert b"Traceback" not in bench.stderr.read()
    assert not [child for child in begun if Path(f"/proc/{child}").exists()]
