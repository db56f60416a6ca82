"""`hpcgnn train --set clusters=N` and `infer --clusters N`: one graph, one score; and what says so elsewhere."""

from __future__ import annotations

import json
import re

import pytest
from mpi4py import MPI
from training_setup import SMALL, on_rank_zero, snapshot, without_seconds

from hpcgnn.errors import CheckpointError
from hpcgnn.lowbit.inference.model_file import KIND, VERSION, read_model
from hpcgnn.registry import read_toml
from hpcgnn.shards.sealed import open_sealed, write_sealed
from hpcgnn.training.batch_graph import ClusterCut
from hpcgnn.training.run_folder import RunFolder

SETS = {(): [], ("--clusters", 24): ["--set", "clusters=24"],
        ("--clusters", 24, "--set", "batch_size=3", "--set", "between_clusters=true"): [
            "--set", "clusters=24", "--set", "batch_size=3", "--set", "between_clusters=true"]}
CUT, JOINED = list(SETS)[1:]
BOTH = pytest.mark.parametrize("cut", [CUT, JOINED], ids=["clusters", "batches"])


def train(hpcgnn, shards, out, cut, **settings):
    """Collective: train in the clusters of these flags of infer."""
    flags = [f"--{name.replace('_', '-')}={value}" for name, value in {**SMALL, **settings}.items()]
    status, _, complaints = hpcgnn("train", shards, "--out", out, *flags, *SETS[cut])
    assert (status, complaints) == (0, "")
    return out


def reported(out):
    """The scores of the epoch that validation chose, as infer prints them."""
    (result,) = on_rank_zero(MPI.COMM_WORLD, lambda: json.loads((out / "summary.json").read_text()))["results"]
    return [f"{100 * result[f'{split}_score']:.2f}" for split in ("train", "val", "test")]


def answered(hpcgnn, model, shards, *flags):
    """Collective: the scores that infer prints, and all that it says."""
    status, printed, complaints = hpcgnn("infer", model, shards, "--repeat", 1, *flags)
    assert (status, complaints) == (0, "")
    (line,) = (line for line in printed.splitlines() if line.startswith("accuracy"))
    return re.findall(r"([\d.]+) %", line), printed


@pytest.mark.covering(1)
@pytest.mark.parallel([1, 2])
@pytest.mark.parametrize("model, scheme", [("gcn", "degree-steps"), ("sage", "uniform"), ("gin", "degree-aware"),
                                           ("gat", "degree-quant")])
@BOTH
def test_infer_has_the_scores_that_training_reported(hpcgnn, shards, shared_path, cut, model, scheme):
    run = train(hpcgnn, shards, shared_path / "run", cut, model=model, quantize=scheme, epochs=10)
    scores, printed = answered(hpcgnn, run, shards, *cut)
    assert scores == reported(run)
    assert "was trained in" not in printed
    whole, printed = answered(hpcgnn, run, shards)
    assert whole != scores        # other arcs, else this test could not fail
    assert printed.startswith(f"the model of {run} was trained in 24 clusters and predicts here from the whole graph; ")
    assert f"; with {' '.join(map(str, cut))} it predicts as it was trained\n" in printed


@pytest.mark.parallel([1, 2])
@BOTH
def test_quantize_keeps_the_scores_and_says_in_the_file_what_they_are_of(hpcgnn, shards, shared_path, cut):
    run, file = train(hpcgnn, shards, shared_path / "run", cut, quantize="degree-steps"), shared_path / "model.h5"
    status, printed, _ = hpcgnn("quantize", run, shards, "--out", file)
    what, _, before, after, *_ = printed.splitlines()
    assert status == 0 and what == f"trained in 24 clusters, and scored on their edges: {' '.join(map(str, cut))}"
    assert [re.findall(r"([\d.]+) %", line) for line in (before, after)] == 2 * [reported(run)]
    assert answered(hpcgnn, file, shards, *cut)[0] == reported(run)
    other = next(flags for flags in (CUT, JOINED) if flags != cut)
    _, printed = answered(hpcgnn, file, shards, *other)
    assert printed.startswith(f"{file} was trained in 24 clusters and predicts here from other edges ("
                              f"{' '.join(map(str, other))}); with {' '.join(map(str, cut))} it predicts as it was "
                              "trained\n")


@pytest.mark.parallel([1, 2])
def test_a_float_run_is_calibrated_on_the_arcs_that_it_was_trained_on(hpcgnn, shards, shared_path):
    run = train(hpcgnn, shards, shared_path / "run", CUT, epochs=20)
    status, printed, _ = hpcgnn("quantize", run, shards)
    before, after = (list(map(float, re.findall(r"([\d.]+) %", line))) for line in printed.splitlines()[2:4])
    assert status == 0 and [f"{score:.2f}" for score in before] == reported(run)
    assert max(abs(one - other) for one, other in zip(before, after, strict=True)) <= 3
    status, printed, _ = hpcgnn("predict", run, shards)
    assert status == 0 and re.findall(r"([\d.]+) %", printed.splitlines()[-1]) == reported(run)
    assert f"{run} was trained in 24 clusters, and predicts from the same edges as hpcgnn infer --clusters 24" in (
        printed)


@pytest.mark.parallel([1, 2])
def test_a_model_of_the_whole_graph_names_no_cut(hpcgnn, shards, shared_path):
    run = train(hpcgnn, shards, shared_path / "run", ())
    assert hpcgnn("quantize", run, shards)[0] == 0
    assert on_rank_zero(MPI.COMM_WORLD, lambda: read_model(run / "model.h5")[2]) is None
    for model, flags in ((run, CUT), (run, ()), (run / "model.h5", JOINED)):
        assert "trained in" not in answered(hpcgnn, model, shards, *flags)[1]


@pytest.mark.parallel([2])
@pytest.mark.parametrize("cut", [pytest.param(CUT, marks=pytest.mark.long), JOINED], ids=["clusters", "batches"])
def test_resume_goes_on_with_the_same_clusters_and_refuses_others(hpcgnn, shards, shared_path, cut):
    comm = MPI.COMM_WORLD
    whole = train(hpcgnn, shards, shared_path / "whole", cut, quantize="degree-steps")
    run = train(hpcgnn, shards, shared_path / "run", cut, quantize="degree-steps", epochs=2)
    settings = on_rank_zero(comm, lambda: read_toml(run / "config.toml"))
    assert (settings["clusters"], settings["between_clusters"]) == (24, cut == JOINED)
    before = on_rank_zero(comm, lambda: snapshot(run))
    moved = ["between_clusters=false"] if cut == JOINED else ["clusters=24", "between_clusters=true"]
    for sets, name in ((["clusters=25"], "clusters"), (["clusters=0"], "clusters"), (moved, "between_clusters")):
        flags = [word for one in sets for word in ("--set", one)]
        status, printed, complaints = hpcgnn("train", shards, "--out", run, "--resume", *flags)
        assert status != 0 and printed == "" and complaints.count("\n") == 1
        assert f"checkpoint.h5 was written with {name} = " in complaints and "and can't go on with " in complaints
    assert on_rank_zero(comm, lambda: snapshot(run)) == before
    assert hpcgnn("train", shards, "--out", run, "--resume", "--epochs", 4)[0] == 0
    lines = on_rank_zero(comm, lambda: [without_seconds(RunFolder(path).read_metrics()) for path in (whole, run)])
    assert [line["loss"] for line in lines[0]] == [line["loss"] for line in lines[1]]


@pytest.mark.parallel([1, 2])
@pytest.mark.parametrize("flags, words", [
    (["--set", "clusters=8", "--steps", 4], "clusters 8 can't be used with steps 4"),
    (["--set", "clusters=8", "--model", "gcnii"], "clusters 8 can't be used with model gcnii"),
    (["--set", "between_clusters=true"], "between_clusters has no effect on the whole graph")])
def test_clashes_end_in_one_sentence(hpcgnn, shards, shared_path, flags, words):
    status, printed, complaints = hpcgnn("train", shards, "--out", shared_path / "run", *flags)
    assert status != 0 and printed == "" and words in complaints and complaints.count("\n") == 1
    assert not on_rank_zero(MPI.COMM_WORLD, (shared_path / "run").exists)


def test_help_of_all_flags_lists_the_settings(hpcgnn):
    _, printed, _ = hpcgnn("train", "--help-all")
    assert all(re.search(rf"\b{name}\b", printed) for name in ("clusters", "batch_size", "between_clusters"))


@pytest.mark.parametrize("text", ["[]", "{}", "7", '{"clusters": 0}', '{"clusters": true}', "no json",
                                  '{"clusters": 3, "more": 1}', '{"clusters": 3, "between_clusters": 1}'])
def test_a_forged_cut_is_refused(tmp_path, text):
    write_sealed(tmp_path / "m.h5", KIND, VERSION, lambda file: file.attrs.update({"trained_cut": text}))
    with open_sealed(tmp_path / "m.h5", KIND, VERSION) as file:
        assert file.attrs["trained_cut"] == text
    with pytest.raises(CheckpointError, match=r"m\.h5 .*run hpcgnn quantize again"):
        read_model(tmp_path / "m.h5")


def test_flags_are_those_of_infer():
    assert ClusterCut(8).flags == ClusterCut(8, 4).flags == "--clusters 8"
    assert ClusterCut(8, 16, True).flags == "--clusters 8 --set between_clusters=true"
    assert ClusterCut(8, 4, True).flags == "--clusters 8 --set batch_size=4 --set between_clusters=true"
    assert ClusterCut(8, 4).remark("m", ClusterCut(8, 2)) is None
    assert ClusterCut(8, 4, True).remark("m", ClusterCut(8, 2, True)) is not None
