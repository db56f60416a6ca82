"""What a run folder holds: the fields that readers rely on, with the numbers that partition and seeds imply."""

from __future__ import annotations

import dataclasses
import errno
import math
import os
import statistics

import numpy as np
import pytest
from mpi4py import MPI
from training_setup import easy_graph, on_rank_zero, random_owner, train, write_once

from hpcgnn.cli.train import read_settings
from hpcgnn.config import TrainConfig, settings_of
from hpcgnn.errors import TrainingError
from hpcgnn.partition.partition import find_halos
from hpcgnn.registry import read_json, read_toml
from hpcgnn.shards.reader import read_graph_info
from hpcgnn.training.checkpoint import Progress
from hpcgnn.training.run_folder import RunFolder, replace_text

EVERY_EPOCH = {"seed", "epoch", "loss", "epoch_seconds", "compute_seconds", "exchange_seconds", "quantize_seconds",
               "sent_bytes_payload", "sent_bytes_parameters", "mean_bits", "blocked_seconds", "travel_seconds",
               "staleness", "width_histogram", "mode", "base_bits", "ldr", "assign_seconds", "hidden_seconds",
               "sent_bytes_sums", "sent_bytes_control", "stale_share", "motion", "num_steps", "by_row",
               "sent_bytes_between_nodes", "shared_bytes"}
EVALUATED = {"train_score", "val_score", "test_score", "val_loss", "sent_bytes_by_pair"}
SUMMARY = {"dataset", "model", "method", "bits", "ranks", "seeds", "score_name", "val_score", "test_score",
           "test_score_std", "median_epoch_seconds", "sent_bytes_per_epoch", "peak_rss_bytes", "versions",
           "precision", "rows_within", "mean_bits", "width_histogram", "synchronous_share", "assign_seconds",
           "method_state_bytes"}


def num_rows_sent(dataset, num_parts):
    """Rows that cross in one exchange: halo rows of all parts."""
    return sum(len(halo.node_id) for halo in find_halos(dataset, random_owner(dataset, num_parts), num_parts))


@pytest.mark.parallel([1, 2, 3, 4])
def test_metrics_have_a_line_an_epoch_with_all_fields(shared_path, shards):
    comm = MPI.COMM_WORLD
    _, metrics, _ = train(comm, shards, shared_path / "run", epochs=5, eval_every=2, method="uniform", bits=8)
    assert [record["epoch"] for record in metrics] == list(range(1, 6))
    expected = EVALUATED | ({"by_rank"} if comm.size > 1 else set())
    for record in metrics:
        is_evaluated = record["epoch"] in (2, 4, 5)
        assert set(record) == EVERY_EPOCH | (expected if is_evaluated else set())
        parts = [record[name] for name in ("compute_seconds", "exchange_seconds", "quantize_seconds")]
        assert min(parts) >= 0 and sum(parts) == pytest.approx(record["epoch_seconds"])
        assert 0 <= record["hidden_seconds"] <= record["travel_seconds"] <= record["epoch_seconds"]
        assert 0 <= record["blocked_seconds"] <= record["exchange_seconds"]


@pytest.mark.parallel([1, 2, 3])
def test_bytes_of_sums_and_of_decisions_are_counted_apart_from_the_payload(shared_path):
    comm = MPI.COMM_WORLD
    dataset = easy_graph()
    shards = write_once(comm, dataset, shared_path / "shards")
    _, metrics, run = train(comm, shards, shared_path / "run", epochs=4, method="adaqp", period=3,
                            epoch_rows="all")
    gradients = comm.size * run.learner.gradients.flat.nbytes if comm.size > 1 else 0
    # One byte for each row that leaves a rank, in the exchanges of the epochs that were traced.
    each = [sum(record["width_histogram"].values()) for record in metrics]
    assert [record["sent_bytes_sums"] for record in metrics] == [gradients] * 4
    assert [record["sent_bytes_control"] > 0 for record in metrics] == [comm.size > 1 and epoch in (0, 3)
                                                                         for epoch in range(4)]
    assert all(record["sent_bytes_control"] in (0, rows) for record, rows in zip(metrics, each, strict=True))


@pytest.mark.covering(1)
@pytest.mark.parallel([1, 2, 3, 4])
@pytest.mark.parametrize("model", ["gcn", "sage"])
@pytest.mark.parametrize("bits", [1, 2, 4, 8, 16, 32])
def test_sent_bytes_follow_from_the_partition_and_the_widths(shared_path, model, bits):
    comm = MPI.COMM_WORLD
    dataset = easy_graph()
    shards = write_once(comm, dataset, shared_path / "shards")
    summary, metrics, _ = train(comm, shards, shared_path / "run", model=model, layers=3, hidden=10, epochs=1,
                                method="uniform", bits=bits, epoch_rows="all")
    # Layers 2 and 3 send the narrower side, 10 and 4 columns, forward and backward; the input crossed once, before.
    num_rows = num_rows_sent(dataset, comm.size)
    payload = 2 * num_rows * ((10 * bits + 7) // 8 + (4 * bits + 7) // 8)
    # Rotated rows, those of 8 columns and more below 8 bits, have a step alone; affine ones a zero point too.
    parameters = 2 * num_rows * ((2 if bits < 8 else 4) + 4) if bits <= 8 else 0
    for record in metrics:
        assert (record["sent_bytes_payload"], record["sent_bytes_parameters"]) == (payload, parameters)
        assert record["mean_bits"] == (8 * payload / (2 * num_rows * (10 + 4)) if num_rows else None)
    assert summary["sent_bytes_messages_per_epoch"] == payload + parameters
    sums = {record["sent_bytes_sums"] for record in metrics}
    assert sums == {summary["sent_bytes_sums_per_epoch"]} and (max(sums) > 0) == (comm.size > 1)
    assert summary["sent_bytes_per_epoch"] == payload + parameters + sums.pop()
    assert summary["setup_bytes"] == num_rows * dataset.num_features * 4


@pytest.mark.parallel([1, 2, 3])
def test_summary_has_all_fields(shared_path, shards):
    comm = MPI.COMM_WORLD
    summary, metrics, _ = train(comm, shards, shared_path / "run", seed=5, epochs=2)
    assert set(summary) >= SUMMARY
    assert (summary["dataset"], summary["model"], summary["method"], summary["bits"], summary["ranks"]) == (
        "synthetic", "gcn", "vanilla", 32, comm.size)
    assert (summary["seeds"], summary["score_name"], summary["test_score_std"]) == ([5], "accuracy", 0.0)
    assert summary["median_epoch_seconds"] == statistics.median(record["epoch_seconds"] for record in metrics)
    assert 50e6 < summary["peak_rss_bytes"] < 50e9
    assert {"hpcgnn", "python", "torch", "numpy", "mpi4py", "mpi"} <= set(summary["versions"])
    assert summary["fingerprint"] == dataclasses.asdict(read_graph_info(shards).fingerprint)
    stored = on_rank_zero(comm, lambda: (shared_path / "run/summary.json").read_text())
    assert read_json(stored) == (summary, True)


@pytest.mark.parallel([1, 2])
def test_repeat_gives_mean_and_deviation_over_consecutive_seeds(shared_path, shards):
    comm = MPI.COMM_WORLD
    summary, metrics, _ = train(comm, shards, shared_path / "all", seed=3, repeat=2, epochs=2)
    alone = [train(comm, shards, shared_path / str(seed), seed=seed, epochs=2) for seed in (3, 4)]
    assert summary["seeds"] == [3, 4]
    scores = [one["test_score"] for one, _, _ in alone]
    assert [result["test_score"] for result in summary["results"]] == scores
    assert summary["test_score"] == pytest.approx(np.mean(scores))
    assert summary["test_score_std"] == pytest.approx(np.std(scores, ddof=1))
    assert [(record["seed"], record["epoch"], record["loss"]) for record in metrics] == [
        (record["seed"], record["epoch"], record["loss"]) for _, lines, _ in alone for record in lines]


@pytest.mark.parallel([2])
def test_a_score_that_fits_the_labels_is_chosen_and_reported(shared_path):
    comm = MPI.COMM_WORLD
    for spec, asked, expected in (("classes=5,multi_label=true", "auto", "micro_f1"), ("classes=2", "auto", "accuracy"),
                                  ("classes=2", "roc_auc", "roc_auc"), ("classes=3", "macro_f1", "macro_f1")):
        dataset = easy_graph(spec=f"synthetic:nodes=120,mean_degree=6,features=8,{spec}")
        shards = write_once(comm, dataset, shared_path / f"shards-{spec}")
        summary, _, _ = train(comm, shards, shared_path / f"run-{spec}-{asked}", score=asked, epochs=1)
        assert summary["score_name"] == expected
        assert 0 < summary["test_score"] <= 1


def test_config_is_taken_again_by_config(tmp_path):
    config = TrainConfig.of(model="gcn", lr=1e-3, dropout=0.0, method="uniform", bits=4)
    folder = RunFolder(tmp_path / "run")
    folder.create(overwrite=False)
    folder.write_config(settings_of(config), {"shards": 'a "quoted" \\ folder', "ranks": 2})
    path = tmp_path / "run/config.toml"
    assert TrainConfig.of(**read_settings(path)) == config
    assert read_toml(path)["provenance"] == {"shards": 'a "quoted" \\ folder', "ranks": 2}


def test_a_file_that_can_not_be_replaced_stays_and_nothing_is_left_beside_it(tmp_path, monkeypatch):
    def refuse(*paths):
        raise OSError("no")

    file = tmp_path / "config.toml"
    replace_text(file, "before")
    monkeypatch.setattr("os.replace", refuse)
    with pytest.raises(OSError, match="no"):
        replace_text(file, "after")
    assert file.read_text() == "before" and list(tmp_path.iterdir()) == [file]


@pytest.mark.parametrize("number, remedy", [(errno.ENOENT, "the folder was moved or removed; put it back"), (
    errno.EROFS, "make it writable"), (errno.EDQUOT, "free space on its disk")])
def test_the_remedy_for_a_file_that_can_not_be_written_suits_its_cause(tmp_path, monkeypatch, number, remedy):
    def refuse(*words):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr("hpcgnn.training.run_folder.open", refuse, raising=False)
    with pytest.raises(TrainingError, match=f"{os.strerror(number)}; {remedy}, then go on with --resume$"):
        RunFolder(tmp_path).append_metrics({"epoch": 1})


def test_numbers_that_are_not_finite_are_null(tmp_path):
    folder = RunFolder(tmp_path)
    folder.append_metrics({"loss": math.nan, "nested": {"scores": [math.inf, 1.0]}})
    folder.write_summary({"val_score": -math.inf})
    assert folder.read_metrics() == [{"loss": None, "nested": {"scores": [None, 1.0]}}]
    assert read_json((tmp_path / "summary.json").read_text()) == ({"val_score": None}, True)


def test_truncation_forgets_lines_behind_the_checkpoint_and_the_summary(tmp_path):
    folder = folder_of_epochs(tmp_path, 5)
    folder.write_summary({})
    assert folder.go_on_from(Progress(epoch=3), 0) is None
    assert epochs_in(folder) == [(0, 1), (0, 2), (0, 3)]
    assert not (tmp_path / "summary.json").exists()


@pytest.mark.parametrize("name", ["metrics.jsonl", "summary.json", "checkpoint.h5", "checkpoint-previous.h5"])
def test_a_folder_that_holds_a_run_is_refused_or_replaced(tmp_path, name):
    (tmp_path / name).write_text("old")
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(TrainingError, match=f"already holds a run \\({name}\\); continue it with --resume"):
        RunFolder(tmp_path).create(overwrite=False)
    assert (tmp_path / name).read_text() == "old"
    RunFolder(tmp_path).create(overwrite=True)
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_a_folder_of_shards_takes_no_run(tmp_path):
    (tmp_path / "graph.h5").write_text("mine")
    for overwrite in (False, True):
        with pytest.raises(TrainingError, match="holds shards; choose another with --out"):
            RunFolder(tmp_path).create(overwrite)
    assert [path.name for path in tmp_path.iterdir()] == ["graph.h5"]


@pytest.mark.parallel([2])
def test_training_leaves_the_shards_as_they_were(shared_path, shards):
    comm = MPI.COMM_WORLD
    before = [path.read_bytes() for path in sorted(shards.iterdir())]
    train(comm, shards, shared_path / "run", epochs=1)
    assert [path.read_bytes() for path in sorted(shards.iterdir())] == before
    assert read_graph_info(shards).num_parts == comm.size


def test_a_finished_run_whose_checkpoint_is_gone_is_not_replaced_by_resume(tmp_path):
    (tmp_path / "metrics.jsonl").write_text("{}\n")
    (tmp_path / "summary.json").write_text("{}\n")
    with pytest.raises(TrainingError, match="already holds a run"):
        RunFolder(tmp_path).create(overwrite=False, resume=True)
    assert (tmp_path / "summary.json").exists() and (tmp_path / "metrics.jsonl").exists()


def test_a_torn_checkpoint_goes_when_the_run_goes_on(tmp_path):
    folder = folder_of_epochs(tmp_path, 2)
    for name in ("checkpoint.h5.tmp-77", "checkpoint-incoming.h5", "checkpoint-incoming.h5.tmp-77"):
        (tmp_path / name).write_bytes(b"half")
    folder.go_on_from(Progress(epoch=1), 0)
    assert [path.name for path in tmp_path.iterdir()] == ["metrics.jsonl"]
    assert epochs_in(folder) == [(0, 1)]


def folder_of_epochs(path, *num_epochs):
    """A run folder with lines of so many epochs a seed."""
    folder = RunFolder(path)
    for seed, count in enumerate(num_epochs):
        for epoch in range(1, count + 1):
            folder.append_metrics({"seed": seed, "epoch": epoch, "loss": 0.5})
    return folder


def epochs_in(folder):
    return [(record["seed"], record["epoch"]) for record in folder.read_metrics()]


@pytest.mark.parametrize("spoil, kept", [
    (lambda content: content[:-1], [1, 2, 3, 4]),
    (lambda content: content[:-30], [1, 2, 3, 4]),
    (lambda content: content + b"\0" * 4096, [1, 2, 3, 4, 5]),
    (lambda content: content[:-40] + b"\0" * 40, [1, 2, 3, 4]),
    (lambda content: content.replace(b'"epoch": 2', b'"epoch": 7'), [1, 3, 4, 5]),
    (lambda content: content.replace(b'"loss": 0.5', b'"loss": 0.6', 1), [2, 3, 4, 5]),
    (lambda content: content[:70] + b"\n" + content[70:], [1, 3, 4, 5]),
    (lambda content: b"", []),
    (lambda content: b"\xff\xfe\n[]\n{}\n[" + b"[" * 100_000 + b"\n", []),
], ids=["a byte", "half a line", "NUL behind", "NUL tail", "epoch", "value", "line break", "empty", "others"])
def test_damaged_metrics_lose_the_damaged_lines_only_and_say_so(tmp_path, spoil, kept):
    folder = folder_of_epochs(tmp_path, 5)
    metrics = tmp_path / "metrics.jsonl"
    metrics.write_bytes(spoil(metrics.read_bytes()))
    sentence = folder.go_on_from(Progress(epoch=5), 0)
    assert epochs_in(folder) == [(0, epoch) for epoch in kept]
    if len(kept) < 5:
        assert sentence.startswith(f"{metrics} lacks the lines of {5 - len(kept)} of the 5 epochs that its checkpoint")
    else:
        assert sentence is None
    folder.append_metrics({"seed": 0, "epoch": 6, "loss": 0.5})
    assert epochs_in(folder)[-1] == (0, 6)
    # The lines that come later are counted right when this run is resumed once more.
    folder.go_on_from(Progress(epoch=5), 0)
    assert epochs_in(folder) == [(0, epoch) for epoch in kept]


def test_metrics_of_several_seeds_are_cut_in_the_seed_of_the_checkpoint(tmp_path):
    folder = folder_of_epochs(tmp_path, 3, 3, 3)
    progress = Progress(seed_index=1, epoch=2, finished=[{"seed": 0, "epochs": 3}])
    assert folder.go_on_from(progress, 0) is None
    assert epochs_in(folder) == [(0, 1), (0, 2), (0, 3), (1, 1), (1, 2)]


def test_metrics_that_are_gone_are_begun_anew(tmp_path):
    folder = RunFolder(tmp_path)
    assert folder.go_on_from(Progress(epoch=2), 0).startswith(f"{tmp_path / 'metrics.jsonl'} lacks the lines of 2 of ")
    assert (tmp_path / "metrics.jsonl").read_bytes() == b""
