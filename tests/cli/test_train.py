"""`hpcgnn train` from its arguments to its run folder: which settings win, what --resume takes, what is printed."""

from __future__ import annotations

import json

import pytest
from mpi4py import MPI
from training_setup import SMALL, easy_graph, on_rank_zero, random_owner, without_seconds, write

from hpcgnn.config import TrainConfig
from hpcgnn.errors import CollectiveError
from hpcgnn.registry import read_toml
from hpcgnn.shards import reader
from hpcgnn.training.checkpoint import read_checkpoint
from hpcgnn.training.job import Job, train
from hpcgnn.training.run_folder import RunFolder

SETTINGS = {**SMALL, "epochs": 12, "checkpoint_every": 12}
FLAGS = [f"--{name.replace('_', '-')}={value}" for name, value in SETTINGS.items()]


def settings_of(path):
    """The resolved settings that a run folder holds, on every rank."""
    settings = on_rank_zero(MPI.COMM_WORLD, lambda: read_toml(path / "config.toml"))
    return settings, settings.pop("provenance")


def summary_of(path):
    return on_rank_zero(MPI.COMM_WORLD, lambda: json.loads((path / "summary.json").read_text()))


@pytest.mark.parallel([1, 2, 3])
def test_a_run_prints_its_result_and_leaves_all_its_files(hpcgnn, shards, shared_path):
    out = shared_path / "run"
    status, printed, complaints = hpcgnn("train", shards, "--out", out, *FLAGS, "--seed", 3)
    assert (status, complaints) == (0, "")
    summary = summary_of(out)
    num_ranks = MPI.COMM_WORLD.size
    line, folder = printed.splitlines()
    assert line.startswith(f"synthetic gcn fp32 vanilla bits=32 ranks={num_ranks}: test accuracy "
                           f"{100 * summary['test_score']:.2f} %, ")
    assert folder == f"run folder: {out}"
    names = on_rank_zero(MPI.COMM_WORLD, lambda: sorted(path.name for path in out.iterdir()))
    assert names == ["checkpoint-previous.h5", "checkpoint.h5", "config.toml", "metrics.jsonl", "summary.json"]
    settings, provenance = settings_of(out)
    assert TrainConfig.of(**settings) == TrainConfig.of(**{"eval_every": 2, **SETTINGS, "seed": 3})
    assert (provenance["dataset"], provenance["ranks"]) == ("synthetic", num_ranks)


@pytest.mark.parallel([1, 2])
def test_flags_win_over_the_file_and_the_file_over_the_defaults(hpcgnn, shards, shared_path):
    file = shared_path / "settings.toml"
    on_rank_zero(MPI.COMM_WORLD, lambda: file.write_text('hidden = 5\nlayers = 1\nepochs = 2\nmodel = "gcn"\n'))
    out = shared_path / "run"
    assert hpcgnn("train", shards, "--config", file, "--layers", 2, "--out", out)[0] == 0
    settings, _ = settings_of(out)
    assert [settings[name] for name in ("hidden", "layers", "epochs", "model", "eval_every")] == [5, 2, 2, "gcn", 5]


@pytest.mark.parallel([1, 2])
def test_a_runs_config_repeats_it(hpcgnn, shards, shared_path):
    first, second = shared_path / "first", shared_path / "second"
    assert hpcgnn("train", shards, *FLAGS, "--seed", 9, "--out", first)[0] == 0
    assert hpcgnn("train", shards, "--config", first / "config.toml", "--out", second)[0] == 0
    lines = on_rank_zero(MPI.COMM_WORLD, lambda: [RunFolder(path).read_metrics() for path in (first, second)])
    assert without_seconds(lines[0]) == without_seconds(lines[1])


@pytest.mark.parallel([1, 2])
def test_the_default_run_folder_is_named_after_the_run(hpcgnn, shards, shared_path, monkeypatch):
    monkeypatch.chdir(shared_path)
    ranks = MPI.COMM_WORLD.size
    for method, name in (([], f"synthetic-gcn-vanilla-p{ranks}"),
                         (["--method", "uniform", "--bits", 4], f"synthetic-gcn-uniform4-p{ranks}")):
        _, printed, _ = hpcgnn("train", shards, *FLAGS, "--epochs", 1, *method)
        assert printed.splitlines()[-1] == f"run folder: runs/{name}"


@pytest.mark.parallel([1, 2])
def test_resume_takes_the_settings_of_the_run_and_new_flags(hpcgnn, shards, shared_path):
    out = shared_path / "run"
    assert hpcgnn("train", shards, "--out", out, *FLAGS, "--lr", 0.02, "--epochs", 4)[0] == 0
    status, printed, complaints = hpcgnn("train", shards, "--out", out, "--resume", "--epochs", 6)
    assert (status, complaints) == (0, "") and "run folder" in printed
    settings, _ = settings_of(out)
    assert [settings[name] for name in ("model", "hidden", "lr", "epochs")] == ["gcn", 8, 0.02, 6]
    epochs = on_rank_zero(MPI.COMM_WORLD, lambda: [line["epoch"] for line in RunFolder(out).read_metrics()])
    assert epochs == [1, 2, 3, 4, 5, 6]


@pytest.mark.parallel([1, 2])
def test_resume_without_a_checkpoint_starts_anew_and_says_so(hpcgnn, shards, shared_path):
    out = shared_path / "run"

    def killed_early():
        out.mkdir()
        (out / "metrics.jsonl").write_text('{"seed": 0, "epoch": 1}\n')

    on_rank_zero(MPI.COMM_WORLD, killed_early)
    status, _, complaints = hpcgnn("train", shards, "--out", out, *FLAGS, "--resume")
    assert (status, complaints) == (0, f"{out / 'checkpoint.h5'} does not exist yet; starting anew\n")
    lines = on_rank_zero(MPI.COMM_WORLD, lambda: RunFolder(out).read_metrics())
    assert [line["epoch"] for line in lines] == list(range(1, 13))


@pytest.mark.parallel([1, 2])
def test_overwrite_replaces_a_run(hpcgnn, shards, shared_path):
    out = shared_path / "run"
    for epochs in (4, 2):
        assert hpcgnn("train", shards, "--out", out, *FLAGS, "--epochs", epochs, "--overwrite")[0] == 0
    assert on_rank_zero(MPI.COMM_WORLD, lambda: len(RunFolder(out).read_metrics())) == 2
    status, _, complaint = hpcgnn("train", shards, "--out", out, "--overwrite", "--resume")
    assert (status, complaint) == (2, "hpcgnn: --resume and --overwrite contradict each other\n")


def start(comm, shards, out, resume=False, **flags):
    """Collective: what the command does after MPI has started."""
    train(comm, Job(shards, {**SETTINGS, **flags}, out=out, resume=resume))


@pytest.mark.parallel([2, 3])
def test_a_run_begun_by_one_rank_is_resumed_by_several(shards, shared_path):
    comm, out = MPI.COMM_WORLD, shared_path / "run"

    def begin():
        dataset = easy_graph()
        one = write(dataset, random_owner(dataset, 1), 1, shared_path / "one")
        start(MPI.COMM_SELF, one, out, epochs=6)
        start(MPI.COMM_SELF, one, shared_path / "whole")

    on_rank_zero(comm, begin)
    start(comm, shards, out, resume=True)
    lines = on_rank_zero(comm, lambda: [RunFolder(path).read_metrics() for path in (out, shared_path / "whole")])
    assert [line["loss"] for line in lines[0]] == pytest.approx([line["loss"] for line in lines[1]], rel=1e-4)
    assert settings_of(out)[1]["ranks"] == comm.size


@pytest.mark.parallel([2])
@pytest.mark.parametrize("flags, complaint", [
    ({"hidden": 9}, "was written with hidden = 8 and can't go on with 9; leave it out, or choose another --out"),
    ({"model": "sage"}, "was written with model = 'gcn' and can't go on with 'sage'; "),
    ({"seed": 4}, "was written with seed = 0 and can't go on with 4; "),
])
def test_resume_with_settings_that_weights_dont_fit_is_refused(shards, shared_path, flags, complaint):
    comm, out = MPI.COMM_WORLD, shared_path / "run"
    start(comm, shards, out)
    before = on_rank_zero(comm, lambda: (out / "checkpoint.h5").read_bytes())
    with pytest.raises(CollectiveError) as refused:
        start(comm, shards, out, resume=True, **flags)
    assert str(refused.value).startswith(f"{out / 'checkpoint.h5'} {complaint}")
    assert on_rank_zero(comm, lambda: (out / "checkpoint.h5").read_bytes()) == before


@pytest.mark.parallel([2])
def test_epochs_that_are_behind_the_checkpoint_change_nothing(shards, shared_path):
    comm, out = MPI.COMM_WORLD, shared_path / "run"
    start(comm, shards, out)
    start(comm, shards, out, resume=True, epochs=4)
    assert on_rank_zero(comm, lambda: read_checkpoint(out / "checkpoint.h5")).progress.epoch == 12
    assert summary_of(out)["results"][0]["epochs"] == 12


METHODS = [["sylvie", "--set", "widths=2,4,8", "--set", "percentiles=90,99", "--set", "descent_window=2"],
           ["adaqp", "--set", "period=3", "--set", "group_size=30", "--set", "lam=0.7", "--set", "solver=greedy"],
           ["joint", "--set", "predict=previous", "--set", "deterministic=true"],
           ["sancus", "--set", "staleness=2", "--set", "skip_change=0.2"], ["bns", "--set", "share=0.5"]]


@pytest.mark.parallel([1, 2])
def test_flags_of_every_method_reach_its_run(hpcgnn, shards, shared_path):
    small = ("--model", "sage", "--layers", 2, "--hidden", 8, "--epochs", 6, "--eval-every", 3)
    for method, *flags in METHODS:
        out = shared_path / method
        status, _, complaints = hpcgnn("train", shards, "--method", method, *small, *flags, "--out", out)
        assert status == 0, complaints
        (settings, _), summary = settings_of(out), summary_of(out)
        metrics = on_rank_zero(MPI.COMM_WORLD, RunFolder(out).read_metrics)
        for flag, value in zip(flags, [*flags[1:], None], strict=True):
            name, text = value.split("=") if flag == "--set" else (flag[2:].replace("-", "_"), value)
            if flag.startswith("--"):
                assert str(settings[name]).lower() == text
        assert (summary["method"], summary["epochs"], len(metrics)) == (method, 6, 6)
        assert 0 <= summary["synchronous_share"] <= 1
        assert {"mode", "base_bits", "ldr", "assign_seconds", "staleness", "blocked_seconds",
                "travel_seconds", "width_histogram"} <= set(metrics[0])
    assert settings["share"] == 0.5


@pytest.mark.parallel([1, 2])
def test_train_predict_quantize_and_infer_read_one_part_and_check_their_settings_once(hpcgnn, shards, shared_path,
                                                                                             monkeypatch):
    run = shared_path / "run"
    seen, open_sealed, check = [], reader.open_sealed, TrainConfig.__post_init__
    monkeypatch.setattr(reader, "open_sealed", lambda path, *more, **named: seen.append(path.name) or open_sealed(
        path, *more, **named))
    monkeypatch.setattr(TrainConfig, "__post_init__", lambda config: seen.append("settings") or check(config))
    part, small = f"part-{MPI.COMM_WORLD.rank:04d}.h5", ("--epochs", 5, "--hidden", 8)
    for words in (("train", shards, "--out", run, *small), ("predict", run, shards), ("quantize", run, shards),
                  ("infer", run, shards, "--repeat", 1)):
        seen.clear()
        status, _, complaints = hpcgnn(*words)
        assert status == 0, complaints
        assert (seen.count(part), seen.count("settings")) == (1, 1), words
