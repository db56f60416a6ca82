"""Faults that all ranks learn of together: one sentence, a non-zero status on every rank, and every file as it was.

How such an end looks from outside of mpirun is tested in test_process_faults.py.
"""

from __future__ import annotations

import re
import shutil
import zlib
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from mpi4py import MPI
from training_setup import SMALL, easy_graph, on_rank_zero, random_owner, snapshot, write, write_once

from hpcgnn.__main__ import main
from hpcgnn.config import TrainConfig
from hpcgnn.errors import ConfigError
from hpcgnn.shards.sealed import SEAL_BYTES, parse_seal
from hpcgnn.training.checkpoint import read_checkpoint
from hpcgnn.training.optimizer import FlatAdam
from hpcgnn.training.run_folder import RunFolder
from hpcgnn.training.run_lock import RunLock

SETTINGS = {**SMALL, "epochs": 12, "checkpoint_every": 5}
FLAGS = [f"--{name.replace('_', '-')}={value}" for name, value in SETTINGS.items()]
COMM = MPI.COMM_WORLD
CHECKPOINT_ADVICE = "; start without --resume, or restore the file"


@pytest.fixture(autouse=True)
def no_lines_of_progress(monkeypatch):
    monkeypatch.setenv("HPCGNN_PROGRESS", "0")


@pytest.fixture
def shards(shared_path):
    return write_once(COMM, easy_graph(), shared_path / "shards")


FINISHED = []


@pytest.fixture
def out(capsys, tmp_path_factory, shared_path, shards):
    """Collective: the folder of a finished run on the shards, a copy of one that all tests share."""
    if not FINISHED:
        folder = on_rank_zero(COMM, lambda: tmp_path_factory.mktemp("finished")) / "run"
        assert set(train(capsys, shards, "--out", folder, *FLAGS)[0]) == {0}
        FINISHED.append(folder)
    return on_rank_zero(COMM, lambda: Path(shutil.copytree(FINISHED[0], shared_path / "run")))


def train(capsys, *arguments):
    """Collective: `hpcgnn train` on all ranks: every rank's exit status and standard error."""
    with pytest.raises(SystemExit) as stop:
        main(["train", *map(str, arguments)])
    status = stop.value.code or 0
    return list(zip(*COMM.allgather((status, capsys.readouterr().err)), strict=True))


def assert_refused(capsys, shared_path, sentence, *arguments, status=1):
    """One line on rank 0 that is this sentence, with … for any words; the status on all ranks, no file touched."""
    before = on_rank_zero(COMM, lambda: snapshot(shared_path))
    statuses, complaints = train(capsys, *arguments)
    assert set(statuses) == {status}
    pattern = ".*".join(map(re.escape, f"hpcgnn: {sentence}\n".split("…")))
    assert re.fullmatch(pattern, complaints[0]), complaints[0]
    assert set(complaints[1:]) <= {""}
    assert on_rank_zero(COMM, lambda: snapshot(shared_path)) == before


def flip_a_bit(content):
    middle = len(content) // 2
    return content[:middle] + bytes([content[middle] ^ 4]) + content[middle + 1:]


def as_format_0(content):
    """What an older version wrote: its own number, with a seal that is right otherwise."""
    seal = parse_seal(content[:SEAL_BYTES])
    return replace(seal, version=0).render() + content[SEAL_BYTES:]


@pytest.mark.parallel([1, 2, 3])
@pytest.mark.parametrize("parts_more", [1, 3])
def test_another_number_of_parts_than_ranks(capsys, shared_path, parts_more):
    num_parts = COMM.size + parts_more
    dataset = easy_graph()
    shards = on_rank_zero(COMM, lambda: write(dataset, random_owner(dataset, num_parts), num_parts, shared_path / "g"))
    assert_refused(capsys, shared_path, f"synthetic was partitioned into {num_parts} parts but {COMM.size} rank…started"
                   f"; use mpirun -n {num_parts} or run hpcgnn preprocess --parts {COMM.size}",
                   shards, "--out", shared_path / "run")


@pytest.mark.parallel([2, 3])
@pytest.mark.parametrize("damage, complaint", [
    (None, "is missing"), (lambda content: content[:-7], "is truncated: it has {less} bytes, expected {size}"),
    (flip_a_bit, "is damaged: its checksum is {crc}, expected {sealed_crc}"),
    (as_format_0, "has format 0, this version reads {version}…"),
], ids=["missing", "truncated", "bit flipped", "older"])
@pytest.mark.parametrize("name", ["graph.h5", "part-0001.h5"])
def test_a_bad_shard(capsys, shared_path, shards, name, damage, complaint):
    path = shards / name

    def spoil():
        content = path.read_bytes()
        seal = parse_seal(content[:SEAL_BYTES])
        path.unlink()
        if damage is not None:
            path.write_bytes(damage(content))
        crc = zlib.crc32(damage(content)[SEAL_BYTES:]) if damage else 0
        return complaint.format(less=len(content) - 7, size=len(content), crc=f"{crc:08x}",
                                sealed_crc=f"{seal.crc:08x}", version=seal.version)

    words = on_rank_zero(COMM, spoil)
    where = "" if name == "graph.h5" else "rank 1: "
    assert_refused(capsys, shared_path, f"{where}{path} {words}; run hpcgnn preprocess again", shards, "--out",
                   shared_path / "run")


@pytest.mark.parallel([2])
def test_a_part_from_another_run_of_preprocess(capsys, shared_path, shards):
    other = write_once(COMM, easy_graph(seed=1), shared_path / "other")
    on_rank_zero(COMM, lambda: (shards / "part-0001.h5").write_bytes((other / "part-0001.h5").read_bytes()))
    assert_refused(capsys, shared_path, f"rank 1: {shards / 'part-0001.h5'} is from another run of hpcgnn preprocess "
                   "than the graph.h5 beside it; run hpcgnn preprocess again", shards, "--out", shared_path / "run")


@pytest.mark.parallel([1, 2, 3])
def test_no_training_node_in_the_whole_graph(capsys, shared_path):
    dataset = easy_graph()
    # preprocess refuses such a graph, so nothing but the writer itself makes these shards.
    dataset = replace(dataset, train_mask=np.zeros_like(dataset.train_mask))
    shards = write_once(COMM, dataset, shared_path / "shards")
    assert_refused(capsys, shared_path, f"{shards} has no training node in the whole graph; at least one is needed "
                   "to train; a trained model predicts for it by hpcgnn predict",
                   shards, "--out", shared_path / "run")


@pytest.mark.parallel([1, 2])
@pytest.mark.parametrize("content, complaint", [
    ("hiden = 8\n", "unknown setting 'hiden' in {file}; did you mean 'hidden'?"),
    ("[table]\nx = 1\n", "unknown setting 'table' in {file}; known settings are model, …, staleness, skip_change"),
    ("lr = \n", "configuration file {file} is not valid TOML: …"),
    (None, "configuration file {file} can't be read: No such file or directory"),
], ids=["unknown", "table", "malformed", "missing"])
def test_a_bad_configuration_file(capsys, shared_path, shards, content, complaint):
    file = shared_path / "settings.toml"
    if content is not None:
        on_rank_zero(COMM, lambda: file.write_text(content))
    assert_refused(capsys, shared_path, complaint.format(file=file), shards, "--config", file, "--out",
                   shared_path / "run")


@pytest.mark.parallel([1, 2])
@pytest.mark.parametrize("flags, status, sentence", [
    (["--method", "vanilla", "--bits", 2], 1,
     "bits = 2 has no effect on method vanilla, only on uniform; leave it out or change --method"),
    (["--dropout", 1.5], 1, "dropout must be at most 0.999, found 1.5"),
    (["--hiden", 8], 2, "No such option…--hiden…--hidden…"),
    (["--device", "cuda"], 1, "…; use --device cpu"),
    (["--set", "score=roc_auc"], 1, "score roc_auc needs two classes, synthetic has 4; use accuracy"),
    (["--preset", "sylvie"], 1, "preset 'sylvie' has no settings for dataset 'synthetic'; no preset does"),
])
def test_flags_that_are_unknown_or_contradict(capsys, shared_path, shards, flags, status, sentence):
    assert_refused(capsys, shared_path, sentence, shards, "--out", shared_path / "run", *flags, status=status)


@pytest.mark.parallel([1, 2])
def test_a_run_folder_that_cant_be_written(capsys, shared_path, shards):
    on_rank_zero(COMM, lambda: (shared_path / "file").write_text("mine"))
    where = "rank 0: " if COMM.size > 1 else ""
    for name, why in (("file/run", "Not a directory"), ("x" * 300, "File name too long")):
        out = shared_path / name
        assert_refused(capsys, shared_path, f"{where}run folder {out} can't be written: {why}; choose another with "
                       "--out", shards, "--out", out)


@pytest.mark.parallel([1, 2])
def test_a_run_folder_that_holds_a_run(capsys, shared_path, shards, out):
    where = "rank 0: " if COMM.size > 1 else ""
    assert_refused(capsys, shared_path, f"{where}{out} already holds a run (metrics.jsonl, summary.json, "
                   "checkpoint.h5, checkpoint-previous.h5); continue it with --resume, replace it with --overwrite, or "
                   "choose another --out", shards, "--out", out, *FLAGS)


@pytest.mark.parallel([1, 2])
@pytest.mark.parametrize("how", [["--resume"], ["--overwrite"], [], ["--config"]], ids=" ".join)
def test_a_run_folder_that_another_run_is_writing_in(capsys, shared_path, shards, out, how):
    arguments = [*how, out / "config.toml"] if how == ["--config"] else how
    where = "rank 0: " if COMM.size > 1 else ""
    with RunLock(out) if COMM.rank == 0 else nullcontext():
        assert_refused(capsys, shared_path, f"{where}{out} is in use by another run: process … on …, since …; wait "
                       "until that ends, or choose another --out", shards, "--out", out, *arguments)
    assert set(train(capsys, shards, "--out", out, "--resume", "--epochs", 14)[0]) == {0}
    assert on_rank_zero(COMM, lambda: read_epochs(out)) == list(range(1, 15))


@pytest.mark.parallel([1, 2])
@pytest.mark.parametrize("damage, complaint", [
    (lambda content: content[:-7], "is truncated: it has {less} bytes, expected {size}" + CHECKPOINT_ADVICE),
    (as_format_0, "has format 0, this version reads 5 and 6" + CHECKPOINT_ADVICE),
], ids=["truncated", "older"])
def test_a_bad_checkpoint(capsys, shared_path, shards, out, damage, complaint):

    def spoil():
        (out / "checkpoint-previous.h5").unlink()
        content = (out / "checkpoint.h5").read_bytes()
        (out / "checkpoint.h5").write_bytes(damage(content))
        return complaint.format(less=len(content) - 7, size=len(content))

    sentence = f"{out / 'checkpoint.h5'} {on_rank_zero(COMM, spoil)}"
    assert_refused(capsys, shared_path, sentence, shards, "--out", out, "--resume")


@pytest.mark.parallel([1, 2])
def test_a_checkpoint_of_another_graph(capsys, shared_path, shards, out):
    other = write_once(COMM, replace(easy_graph(), name="moons"), shared_path / "other")
    assert_refused(capsys, shared_path, f"{out / 'checkpoint.h5'} was trained on synthetic, these shards hold moons; "
                   "choose another --out, or pass --other-graph if it is meant to go on with this graph",
                   other, "--out", out, "--resume")
    wider = write_once(COMM, easy_graph(spec="synthetic:nodes=240,mean_degree=8,classes=4,features=13"),
                       shared_path / "wider")
    assert_refused(capsys, shared_path, "the model was trained on 12 columns of features, and synthetic has 13; give "
                   "the source the same columns in the same order", wider, "--out", out, "--resume", "--other-graph")


@pytest.mark.parallel([1, 2])
def test_another_split_of_the_same_graph(capsys, shared_path, shards, out):
    """Its test nodes may have been training nodes."""
    dataset = easy_graph()
    other = write_once(COMM, replace(dataset, train_mask=dataset.test_mask, test_mask=dataset.train_mask),
                       shared_path / "other")
    assert_refused(capsys, shared_path, f"the run of {out / 'checkpoint.h5'} was made on other data of the name "
                   "synthetic than these shards hold: its split differs; name the shards that it was made on, or pass "
                   "--other-graph if other ones are meant", other, "--out", out, "--resume", "--epochs", 14)
    statuses, complaints = train(capsys, other, "--out", out, "--resume", "--epochs", 14, "--other-graph")
    assert set(statuses) == {0} and set(complaints) == {""}
    # What goes on with other data is a run of these: the first ones are the others now.
    assert set(train(capsys, other, "--out", out, "--resume", "--epochs", 16)[0]) == {0}
    assert set(train(capsys, shards, "--out", out, "--resume", "--epochs", 18)[0]) == {1}


@pytest.mark.parallel([1, 2])
def test_other_graph_without_resume(capsys, shared_path, shards):
    assert_refused(capsys, shared_path, "--other-graph has no effect without --resume", shards, "--other-graph",
                   "--out", shared_path / "run", status=2)


def read_epochs(out):
    return [record["epoch"] for record in RunFolder(out).read_metrics()]


@pytest.mark.parallel([1, 2])
def test_metrics_that_are_gone_don_t_cost_the_weights(capsys, shared_path, shards, out):
    on_rank_zero(COMM, lambda: (out / "metrics.jsonl").unlink())
    statuses, complaints = train(capsys, shards, "--out", out, "--resume")
    assert set(statuses) == {0}
    assert complaints[0] == (f"hpcgnn: {out / 'metrics.jsonl'} lacks the lines of 12 of the 12 epochs that its "
                             "checkpoint counts; the run goes on, and its statistics leave those epochs out\n")
    assert set(train(capsys, shards, "--out", out, "--resume", "--epochs", 14)[0]) == {0}
    assert on_rank_zero(COMM, lambda: read_epochs(out)) == [13, 14]


@pytest.mark.parallel([1, 2])
@pytest.mark.parametrize("damage, complaint", [
    (None, "is missing"), (lambda content: content[:-7], "is truncated: it has …"),
    (flip_a_bit, "is damaged: its checksum …"),
], ids=["missing", "truncated", "bit flipped"])
def test_a_bad_checkpoint_with_a_good_one_before_it(capsys, shared_path, shards, out, damage, complaint):

    def spoil():
        whole = snapshot(out)
        (out / "checkpoint.h5").unlink()
        if damage is not None:
            (out / "checkpoint.h5").write_bytes(damage(whole[str(out / "checkpoint.h5")]))
        return whole

    whole = on_rank_zero(COMM, spoil)
    statuses, complaints = train(capsys, shards, "--out", out, "--resume")
    assert set(statuses) == {0}
    pattern = ".*".join(map(re.escape, (f"hpcgnn: {out / 'checkpoint.h5'} {complaint}; the run goes on from "
                                        "checkpoint-previous.h5, after epoch 10\n").split("…")))
    assert re.fullmatch(pattern, complaints[0]), complaints[0]
    assert on_rank_zero(COMM, lambda: read_epochs(out)) == list(range(1, 13))
    if damage is not None:
        assert on_rank_zero(COMM, lambda: (out / "checkpoint-damaged.h5").read_bytes()) == damage(
            whole[str(out / "checkpoint.h5")])


@pytest.mark.parallel([1, 2, 3])
def test_a_loss_that_is_not_finite(capsys, shared_path, shards):
    out = shared_path / "run"
    before = on_rank_zero(COMM, lambda: snapshot(shards))
    statuses, complaints = train(capsys, shards, "--out", out, *FLAGS, "--lr", 1e30, "--norm", "none", "--dropout", 0)
    assert set(statuses) == {1} and set(complaints[1:]) <= {""}
    assert re.fullmatch(r"hpcgnn: the loss of epoch [2-4] is (nan|inf); lower --lr, or look for extreme values in the "
                        r"features: the largest is \d\.\d+\n", complaints[0])
    assert on_rank_zero(COMM, lambda: snapshot(shards)) == before


@pytest.mark.parallel([1, 2, 3])
def test_weights_that_are_not_finite_never_replace_a_good_checkpoint(capsys, shared_path, shards, out):
    """Neither in the last epoch, whose loss is that of the weights before, nor with a checkpoint an epoch."""
    good = on_rank_zero(COMM, lambda: (out / "checkpoint.h5").read_bytes())
    for resume in (False, True):
        flags = ["--resume", "--out", out] if resume else ["--out", shared_path / "fresh", *FLAGS]
        statuses, complaints = train(capsys, shards, *flags, "--lr", 1e38, "--epochs", 13 if resume else 1,
                                     "--checkpoint-every", 1)
        assert set(statuses) == {1}
        # A later step of the same rate may stay below the largest number, and then no answer does.
        assert re.match("hpcgnn: the model's outputs for 240 nodes are not finite; " if resume else
                        "hpcgnn: the weights or Adam's moments are not finite after epoch 1, with a largest "
                        "gradient of ", complaints[0])
    assert on_rank_zero(COMM, lambda: (out / "checkpoint.h5").read_bytes()) == good
    assert on_rank_zero(COMM, lambda: not (shared_path / "fresh/checkpoint.h5").exists())
    assert set(train(capsys, shards, "--out", out, "--resume", "--lr", 0.01, "--epochs", 14)[0]) == {0}


@pytest.mark.parallel([1, 2])
def test_features_so_large_that_moments_overflow(capsys, shared_path):
    """Weights stand still then, with an infinite moment below them, and the loss is finite."""
    dataset = easy_graph()
    shards = write_once(COMM, replace(dataset, features=dataset.features * np.float32(1e30)), shared_path / "shards")
    statuses, complaints = train(capsys, shards, "--out", shared_path / "run", *FLAGS, "--norm", "none")
    assert set(statuses) == {1}
    assert re.search(r"moments are not finite.*look for extreme values in the features: the largest "
                     r"is \d\.\d+e\+30\n$", complaints[0]), complaints[0]


@pytest.mark.parallel([2, 3])
@pytest.mark.parametrize("flags", [[], ["--precision", "bf16"]], ids=["fp32", "bf16"])
def test_a_rank_whose_weights_differ(capsys, shared_path, shards, monkeypatch, flags):
    """One bit of one weight of the last rank, in epoch 6; the checkpoint of epoch 5 stays the last."""
    take_step, steps = FlatAdam.step, []

    def step_with_an_accident(optimizer):
        steps.append(None)
        if len(steps) == 6 and COMM.rank == COMM.size - 1:
            optimizer._weights.view(torch.int32)[3] ^= 1
        return take_step(optimizer)

    monkeypatch.setattr(FlatAdam, "step", step_with_an_accident)
    out = shared_path / "run"
    statuses, complaints = train(capsys, shards, "--out", out, *FLAGS, *flags, "--checkpoint-every", 1)
    assert set(statuses) == {1}
    if COMM.size == 3:
        assert complaints[0].startswith("hpcgnn: after epoch 6 rank 2 has other weights than most ranks, though all ")
    else:
        assert re.match("hpcgnn: after epoch 6 rank [01] has other weights than most ranks, ", complaints[0])
    progress = on_rank_zero(COMM, lambda: read_checkpoint(out / "checkpoint.h5")).progress
    assert progress.epoch == 5


@pytest.mark.parametrize("settings, sentence", [
    ({"lr": float("inf")}, "lr must be a finite number, found inf"),
    ({"lr": 1e300}, "lr must be at most 1e+38, found 1e+300"),
    ({"link_mbps": 1e-300}, "link_mbps must be 0 or at least 0.001, found 1e-300; an epoch would take years"),
    ({"hidden": 10 ** 12}, "hidden must be at most 1048576, found 1000000000000"),
    ({"epochs": 10 ** 30}, f"epochs must be at most 2147483647, found {10 ** 30}"),
    ({"method": "adaqp", "widths": "2,3"}, "widths is '2,3'; expected some of 1, 2, 4, 8 in ascending order"),
    ({"method": "sylvie", "widths": "8,4"}, "widths is '8,4'; expected some of 1, 2, 4, 8 in ascending order"),
    ({"method": "sylvie", "percentiles": "90,80,99"},
     "percentiles is '90,80,99'; expected numbers between 0 and 100 in ascending order, as in 80,92.5,98"),
    ({"method": "sylvie", "percentiles": "many"}, "percentiles is 'many'; expected numbers"),
    ({"method": "sylvie", "widths": "2,4"},
     "percentiles is '85,95,99', 3 of them; 2 widths need 1, so change percentiles or widths"),
    ({"method": "adaqp", "staleness": 2},
     "staleness = 2 has no effect on method adaqp, only on sancus; leave it out or change --method"),
    ({"lam": 0.25}, "lam = 0.25 has no effect on method vanilla, only on adaqp; leave it out or change --method"),
    ({"method": "sylvie", "rematerialize": True}, "method sylvie can't be used with rematerialize: "),
    ({"method": "joint", "solver": "highs"},
     "method joint spends a budget of bits, which solver highs can't; use bisection or greedy"),
    ({"method": "bns", "predict": "previous"}, "method bns can't be used with predict previous: "),
])
def test_settings_at_extremes_or_of_no_use_to_a_method(settings, sentence):
    with pytest.raises(ConfigError) as refused:
        TrainConfig.of(**settings)
    assert str(refused.value).startswith(sentence)
