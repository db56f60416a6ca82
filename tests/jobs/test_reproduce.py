"""jobs/reproduce.sh: every run of every table is one of the program, columns are right, finished runs are kept."""

import itertools
import json
import os
import shlex
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import h5py
import numpy as np
import pytest
from fork_server import FOLDER, served
from parallel_run import clean_environment, is_open_mpi, launcher

from hpcgnn.cli.train import read_assignments
from hpcgnn.config import known_settings, resolve_train_config
from hpcgnn.methods import METHODS as KNOWN_METHODS

pytest.importorskip("matplotlib", reason="matplotlib, which draws the figures, is not installed")
JOBS = Path(__file__).parents[2] / "jobs"
sys.path.insert(0, str(JOBS))
import reproduce as program  # noqa: E402
from reproduce import preprocess_command, train_command  # noqa: E402
from reproduce_columns import COLUMNS, Finished, epoch_of_share  # noqa: E402
from reproduce_conditions import Conditions  # noqa: E402
from reproduce_figures import draw  # noqa: E402
from reproduce_runs import GRAPHS, METHODS, STAND_INS, paper_run  # noqa: E402
from reproduce_tables import TABLES  # noqa: E402

ALL_TABLES = [(paper, name) for paper, tables in TABLES.items() for name in tables]
AS_THEY_ARE = Conditions.read({"HPCGNN_DATASETS": "/graphs"})
VANILLA = paper_run("sylvie", "reddit", 4, "sage", "vanilla", 3)
PIPEGCN = paper_run("sylvie", "reddit", 4, "sage", "pipegcn", 3)


def is_awaited(run):
    """Whether this version lacks the method or a setting that the run is of."""
    asked, known = METHODS[run.method], {own.name for own in known_settings()}
    return asked["method"] not in KNOWN_METHODS or not asked.keys() <= {*known, "method"}


def config_of(run):
    """What `hpcgnn train` makes of the command."""
    words = train_command(run, AS_THEY_ARE)
    assert words[:2] == ["hpcgnn", "train"]
    flags = dict(word[2:].split("=") for word in words if word.startswith(("--model=", "--method=")))
    assigned = tuple(word for before, word in itertools.pairwise(words) if before == "--set")
    return resolve_train_config(run.graph.name, {**flags, **read_assignments(assigned)})


@pytest.mark.parametrize("paper, name", ALL_TABLES)
def test_every_run_of_a_table_is_one_that_the_program_takes(paper, name):
    table = TABLES[paper][name]
    runs = [run for run in table.runs if not is_awaited(run)]
    for run in runs:
        config = config_of(run)
        assert (config.model, config.epochs) == (run.model, run.graph.epochs)
        assert config.method.name == METHODS[run.method]["method"]
    assert runs and set(table.columns) <= {*COLUMNS}


def test_runs_of_one_folder_are_alike():
    """Tables share runs by their folder, so two that differ must not meet in one."""
    found = defaultdict(set)
    for paper, name in ALL_TABLES:
        for run in TABLES[paper][name].runs:
            found[run.folder].add((run.shards, run.ranks, repr(sorted(run.of_method().items()))))
    assert len(found) > 400 and {len(alike) for alike in found.values()} == {1}


def test_every_graph_of_the_papers_has_a_stand_in_with_its_evidence():
    assert {graph for graph, _ in STAND_INS.values()} <= {*GRAPHS}
    for graph in GRAPHS.values():
        assert graph.evidence and "@" not in graph.evidence


@pytest.mark.parametrize("source, model, layers, hidden, dropout", [      # SYLVIE, Table VI
    ("reddit", "sage", 4, 256, 0.5), ("yelp", "gcnii", 8, 512, 0.5), ("ogbn-products", "gat", 3, 128, 0.3),
    ("amazonproducts", "dagnn", 6, 256, 0.5),
])
def test_runs_of_sylvie_have_the_shape_of_its_table(source, model, layers, hidden, dropout):
    config = config_of(paper_run("sylvie", source, 4, model, "vanilla", 1))
    assert (config.layers, config.hidden, config.dropout) == (layers, hidden, dropout)


def test_only_methods_with_groups_have_the_sizes_of_adaqp():
    words = {method: train_command(paper_run("adaqp", "reddit", 2, "gcn", method, 3), AS_THEY_ARE)
             for method in ("vanilla", "sancus", "adaqp", "joint", "group-50")}
    sizes = {method: [word for word in found if "group_size" in word] for method, found in words.items()}
    assert sizes == {"vanilla": [], "sancus": [], "adaqp": ["group_size=100"], "joint": ["group_size=100"],
                     "group-50": ["group_size=50"]}


def test_a_run_is_shortened_narrowed_and_paced_apart_from_the_whole_ones():
    conditions = Conditions.read({"HPCGNN_REPRODUCE_EPOCHS": "3", "HPCGNN_REPRODUCE_HIDDEN": "8",
                                  "HPCGNN_REPRODUCE_LINK_MBPS": "125", "HPCGNN_REPRODUCE_SEEDS": "2",
                                  "HPCGNN_REPRODUCE_METHODS": "vanilla", "HPCGNN_REPRODUCE_RANKS": "2"})
    (run,) = set(conditions.of(TABLES["sylvie"]["XIII"]))
    config = config_of(run)
    assert (config.epochs, config.hidden, config.link_mbps, run.seeds) == (3, 8, 125.0, 2)
    assert conditions.runs == Path("runs/reproduce/3-epochs-8-hidden-125-MBps") and config.eval_every == 3
    assert AS_THEY_ARE.runs == Path("runs/reproduce/full")


def test_features_are_conditioned_as_the_graph_says():
    words = preprocess_command(VANILLA, AS_THEY_ARE)
    assert words[2] == "npz:/graphs/amazon_computers.npz" and words[-2:] == ["--normalize-features", "standard"]
    assert words[words.index("--out") + 1] == "runs/reproduce/shards/amazon_computers-standard-p4"


# Columns

def write_run(folder, run, scores, std, seconds=0.5, curve=(10.0, 50.0, 90.0), **summary):
    """A run of 12 epochs a seed, the first 10 of which are ten times as slow, evaluated every fourth."""
    path = folder / run.folder
    path.mkdir(parents=True)
    lines = [{"seed": seed, "epoch": epoch, "epoch_seconds": seconds * (10 if epoch <= 10 else 1),
              "assign_seconds": 0.1, "compute_seconds": 0.25, "quantize_seconds": 0.0, "exchange_seconds": 0.25,
              "blocked_seconds": 0.125,
              **({"val_score": curve[epoch // 4 - 1] / 100} if epoch % 4 == 0 else {})}
             for seed in range(scores[0]) for epoch in range(1, 13)]
    (path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (path / "summary.json").write_text(json.dumps({
        "seeds": list(range(scores[0])), "test_score": scores[1], "test_score_std": std, "mean_bits": 2.0,
        "sent_bytes_per_epoch": 6e6, "sent_bytes_payload_per_epoch": 5e6, "sent_bytes_parameters_per_epoch": 1e6,
        "synchronous_share": 0.25, "method_state_bytes": 1, **summary}))
    path.with_name(path.name + ".seconds").write_text("60\n140\n")
    return Finished.read(folder, folder / "shards", run)


def cells(found, vanilla, *columns):
    return [COLUMNS[column](found, vanilla) for column in columns]


def test_a_difference_to_vanilla_has_the_standard_error_of_both(tmp_path):
    vanilla = write_run(tmp_path, VANILLA, (4, 0.90), 0.02, sent_bytes_payload_per_epoch=47e6)
    found = write_run(tmp_path, PIPEGCN, (9, 0.88), 0.03, seconds=0.25)
    # in percent: 2 / sqrt(4) and 3 / sqrt(9) are 1 each
    assert cells(found, vanilla, "seeds", "score", "± std", "less vanilla", "± its error") == [
        "9", "88.00", "3.00", "-2.00", "1.41"]
    assert cells(vanilla, vanilla, "less vanilla", "± its error") == ["+0.00", "-"]
    assert cells(found, None, "less vanilla", "± its error", "times vanilla", "times fewer") == ["-"] * 4
    assert cells(found, vanilla, "s an epoch", "epochs a s", "times vanilla") == ["0.2500", "4.00", "2.00"]
    assert cells(found, vanilla, "payload MB", "parameters MB", "times fewer", "mean bits", "asynchronous") == [
        "5.000", "1.000", "8.0", "2.00", "75 %"]


def test_the_wall_clock_of_a_training_is_split(tmp_path):
    found = write_run(tmp_path, VANILLA, (2, 0.90), 0.02)
    # A seed: 10 epochs of 5 s and 2 of 0.5 s; 12 times 0.1 s of assignment; the rest of half of 200 s.
    assert cells(found, found, "training s", "assigning s", "rest s", "offline s") == ["51.0", "1.20", "47.8", "-"]
    shards = tmp_path / "shards"
    shards.mkdir()
    (shards / f"{VANILLA.shards}.seconds").write_text("7.5\n")
    assert cells(Finished.read(tmp_path, shards, VANILLA), found, "offline s") == ["7.5"]


def test_the_epoch_of_a_share_of_vanillas_gain(tmp_path):
    vanilla = write_run(tmp_path, VANILLA, (1, 0.9), 0.0, curve=(10.0, 86.0, 90.0))
    slower = write_run(tmp_path, PIPEGCN, (1, 0.9), 0.0, curve=(10.0, 85.9, 86.0))
    assert (epoch_of_share(vanilla, vanilla), epoch_of_share(slower, vanilla)) == (8, 12)     # 10 + 0.95 * 80 is 86
    never = write_run(tmp_path / "never", PIPEGCN, (1, 0.9), 0.0, curve=(10.0, 20.0, 30.0))
    assert cells(never, vanilla, "epoch of 95 %", "s to 95 %", "best validation") == ["-", "-", "30.00"]


def test_gradients_have_the_size_of_the_weights(tmp_path):
    found = write_run(tmp_path, VANILLA, (1, 0.9), 0.0)
    with h5py.File(found.folder / "checkpoint.h5", "w") as file:
        file["model/convolutions.0.weight"], file["model/convolutions.0.bias"] = np.zeros((300, 100)), np.zeros(500)
    assert cells(found, found, "gradients MB") == ["0.122"]      # 4 * 30,500 bytes


@pytest.mark.parametrize("kind", ["throughput", "curves", "sensitivity", "wall", "parts", "ranks"])
def test_a_figure_is_a_picture(tmp_path, kind):
    found = {run.folder: write_run(tmp_path, run, (2, 0.9), 0.01) for run in (VANILLA, PIPEGCN)}
    picture = draw(kind, "A title", found, tmp_path / "figure.png")
    assert picture.read_bytes().startswith(b"\x89PNG\r\n")
    if kind == "curves":
        assert (tmp_path / "figure.csv").read_text().splitlines()[1:4] == [
            f"amazon_computers,4,sage,vanilla,{epoch},{score}" for epoch, score in (
                (4, "10.000"), (8, "50.000"), (12, "90.000"))]


# The program

def environment_of(tmp_path, **variables):
    """The program's environment, in which ranks start as tests start them."""
    flags = "--bind-to none " if is_open_mpi() else ""
    (tmp_path / "bin").mkdir(exist_ok=True)
    (tmp_path / "bin/hpcgnn").write_text(f'#!/bin/sh\nexec {shlex.join(served(["-m", "hpcgnn"]))} "$@"\n')
    (tmp_path / "bin/hpcgnn").chmod(0o755)
    kept = {name: value for name, value in clean_environment().items() if "HPCGNN_" not in name or name == FOLDER}
    return {**kept, "BASH_FUNC_hpcgnn_mpirun%%": f'() {{ {launcher()} {flags}-n "$@"; }}',
            "PATH": f"{tmp_path}/bin:{os.environ['PATH']}", "HPCGNN_DATASETS": str(tmp_path / "graphs"),
            "HPCGNN_REPRODUCE_OUT": str(tmp_path / "out"),
            **{f"HPCGNN_REPRODUCE_{name}": value for name, value in variables.items()}}


def reproduce(tmp_path, *arguments, **variables):
    """Run the program."""
    return subprocess.run(served([JOBS / "reproduce.py", *arguments]), capture_output=True, text=True, cwd=tmp_path,
                          env=environment_of(tmp_path, **variables))


SMALL = {"DATASETS": "yelp", "MODELS": "gcn", "METHODS": "vanilla pipegcn", "EPOCHS": "2", "HIDDEN": "8"}


@pytest.fixture
def graphs(tmp_path):
    """A ring of 40 nodes under the name of the stand-in of Yelp."""
    (tmp_path / "graphs").mkdir()
    nodes = np.arange(40)
    neighbors = np.sort(np.stack([(nodes - 1) % 40, (nodes + 1) % 40], axis=1), axis=1)
    np.savez(tmp_path / "graphs/flickr_attr.npz", indptr=np.arange(0, 81, 2),
             indices=neighbors.ravel().astype(np.int32), num_features=4,
             features=np.random.default_rng(0).normal(size=(40, 4)).astype(np.float32),
             labels=nodes % 3, num_classes=3, train_mask=nodes < 20, val_mask=(nodes >= 20) & (nodes < 30),
             test_mask=nodes >= 30)


@pytest.mark.long
@pytest.mark.usefixtures("graphs")
def test_a_table_is_trained_printed_and_gone_on_with(tmp_path):
    done = reproduce(tmp_path, "sylvie", "IX", **SMALL, SEEDS="1")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "yelp is flickr_attr" in done.stdout and "A TRIAL of 2 epochs" in done.stdout
    assert [line.split(" | ")[:4] for line in done.stdout.splitlines() if line.startswith("| flickr")] == [
        ["| flickr_attr", "2", "gcn", "vanilla"], ["| flickr_attr", "2", "gcn", "pipegcn"]]
    runs = tmp_path / "out/2-epochs-8-hidden/flickr_attr-p2/sylvie-gcn"
    first = {name: (runs / name / "metrics.jsonl").read_text() for name in ("vanilla", "pipegcn")}
    assert reproduce(tmp_path, "sylvie", "IX", **SMALL, SEEDS="2").returncode == 0
    for name, lines in first.items():
        assert (runs / name / "metrics.jsonl").read_text().startswith(lines)
        assert json.loads((runs / name / "summary.json").read_text())["seeds"] == [0, 1]
    again = reproduce(tmp_path, "sylvie", "IX", **SMALL, SEEDS="1")
    assert again.returncode == 0 and again.stderr == ""
    assert "| pipegcn | 2 |" in reproduce(tmp_path, "sylvie", "IX", "--table-only", **SMALL).stdout


@pytest.mark.usefixtures("graphs")
def test_a_run_that_fails_is_told_and_the_others_go_on(tmp_path):
    broken = tmp_path / "out/2-epochs-8-hidden/flickr_attr-p2/sylvie-gcn/vanilla"
    broken.parent.mkdir(parents=True)
    broken.write_text("no folder")
    done = reproduce(tmp_path, "sylvie", "IX", **SMALL, SEEDS="1")
    assert done.returncode == 1 and "| pipegcn | 1 |" in done.stdout
    (failed,) = [line for line in done.stdout.splitlines() if "failed" in line]
    assert failed.startswith("- flickr_attr-p2/sylvie-gcn/vanilla failed: ") and "can't be written" in failed
    assert "- 1 of 2 runs are missing or have fewer seeds than asked for" in done.stdout


def test_a_dry_run_prints_the_commands_and_does_nothing(tmp_path):
    done = reproduce(tmp_path, "sylvie", "IX", "--dry-run", **SMALL)
    words = [line.split()[:2] for line in done.stdout.splitlines()]
    assert words == [["hpcgnn", "preprocess"], ["hpcgnn_mpirun", "2"], ["hpcgnn_mpirun", "2"]]
    assert os.listdir(tmp_path) == ["bin"]


@pytest.mark.parametrize("arguments, variables, sentence", [
    (("sylvie", "IX"), {}, "HPCGNN_DATASETS is '{folder}/graphs'; set it to the folder that holds the"),
    (("nobody",), {}, "there is no paper 'nobody'; there are fidelity, codes, sylvie, adaqp"),
    (("sylvie", "XX"), {}, "sylvie has no table 'XX'; it has I, II,"),
    (("sylvie", "IX"), {"SEEDS": "0"}, "HPCGNN_REPRODUCE_SEEDS must be a whole number of at least 1, found '0'"),
    (("sylvie", "IX"), {"LINK_MBPS": "-1"}, "HPCGNN_REPRODUCE_LINK_MBPS must be a number of MB/s above 0, found '-1'"),
    (("sylvie", "X"), {"RANKS": "3"}, "HPCGNN_REPRODUCE_RANKS names '3', which is not in what is asked for; there"),
])
def test_what_can_not_be_done_is_one_sentence(tmp_path, monkeypatch, capsys, arguments, variables, sentence):
    monkeypatch.setattr(sys, "argv", ["reproduce.py", *arguments])
    monkeypatch.setattr(os, "environ", environment_of(tmp_path, **variables))
    assert program.main() == 1
    complaint = capsys.readouterr().err
    assert complaint.startswith("hpcgnn: " + sentence.format(folder=tmp_path)) and complaint.count("\n") == 1
