"""Files of what ranks remember, one a rank and generation. A run without them goes on from its checkpoint, and says so.
"""

from __future__ import annotations

import logging
import shutil
from pathlib import Path

import h5py
import numpy as np
import pytest
from mpi4py import MPI
from training_setup import easy_graph, losses, on_rank_zero, random_owner, train, write, write_once

from hpcgnn.errors import CheckpointError, CollectiveError
from hpcgnn.shards.sealed import open_sealed, write_sealed
from hpcgnn.training.checkpoint import read_checkpoint
from hpcgnn.training.rank_state import KIND, VERSION
from hpcgnn.training.run_folder import RankFiles

COMM = MPI.COMM_WORLD
SETTINGS = {"model": "sage", "dropout": 0.5, "epochs": 4, "eval_every": 4, "checkpoint_every": 2, "method": "pipegcn"}
NOT_THE_SAME = "from here on the run is not bit for bit the one that was stopped: "


def graph():
    return easy_graph(spec="synthetic:nodes=90,mean_degree=6,classes=3,features=6,signal=2")


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Collective: trained(out, **settings) makes `out` a copy of a run of four epochs, and returns its shards."""
    folder = on_rank_zero(COMM, lambda: tmp_path_factory.mktemp("trained"))
    shards, made = write_once(COMM, graph(), folder / "shards"), {}

    def begin(out, **settings):
        name = repr(settings)
        if name not in made:
            made[name] = folder / str(len(made))
            train(COMM, shards, made[name], **{**SETTINGS, **settings})
        on_rank_zero(COMM, lambda: shutil.copytree(made[name], out))
        return shards

    return begin


@pytest.fixture
def run(trained, shared_path):
    """Collective: shards, and the folder of a run of four epochs on them."""
    return trained(shared_path / "run"), shared_path / "run"


def go_on(shards, out, caplog, **settings):
    """Collective: resume for two epochs more; the metrics, and what rank 0 warned of."""
    resumed = on_rank_zero(COMM, lambda: read_checkpoint(out / "checkpoint.h5"))
    with caplog.at_level(logging.WARNING):
        metrics = train(COMM, shards, out, resumed=resumed, **{**SETTINGS, "epochs": 6, **settings})[1]
    said = [record.getMessage() for record in caplog.records if record.name == "hpcgnn.training.rank_state"]
    return metrics, COMM.bcast(said)


def files_of(out):
    """Collective: the rank files by token."""
    return on_rank_zero(COMM, lambda: sorted(path.name for path in out.glob("rank-*")))


def tokens_of(out):
    return on_rank_zero(COMM, lambda: [read_checkpoint(out / name).token for name in ("checkpoint-previous.h5",
                                                                                     "checkpoint.h5")])


def remove(files, token):
    files.path(COMM.size - 1, token).unlink()


def flip_a_byte(files, token):
    path = files.path(COMM.size - 1, token)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def cut_off(files, token):
    path = files.path(0, token)
    path.write_bytes(path.read_bytes()[:1000])


def take_another_token(files, token):
    rewrite(files.path(0, token), lambda file: file.attrs.__setitem__("token", "0" * 32))


def name_rows_that_are_none(files, token):
    def spoil(file):
        first = next(iter(file["exchange"].values()))["flight"]["position"]["values"]
        first[0] = -1

    rewrite(files.path(0, token), spoil)


def drop_the_controller(files, token):
    rewrite(files.path(0, token), lambda file: file.__delitem__("controller"))


def rewrite(path, change):
    """A sealed file with other content, as a faulty writer would leave it."""
    def fill(file):
        with open_sealed(path, KIND, VERSION) as old:
            for name, value in old.attrs.items():
                file.attrs[name] = value
            for name in old:
                old.copy(name, file)
        change(file)

    write_sealed(path, KIND, VERSION, fill)


FAULTS = {remove: "holds the files of 1 rank, and this run has 2", flip_a_byte: "is damaged: ",
          cut_off: "is truncated: ",
          take_another_token: "belongs to another checkpoint",
          name_rows_that_are_none: "is not as this version writes it ",
          drop_the_controller: "is not as this version writes it "}


@pytest.mark.parallel([2])
@pytest.mark.parametrize("fault", FAULTS)
def test_a_run_that_lacks_a_rank_file_goes_on_synchronously_and_says_so_once(run, caplog, fault):
    shards, out = run
    on_rank_zero(COMM, lambda: fault(RankFiles(out), read_checkpoint(out / "checkpoint.h5").token))
    metrics, (said,) = go_on(shards, out, caplog)
    assert said.startswith(NOT_THE_SAME) and FAULTS[fault] in said
    assert said.endswith("; its next epoch is synchronous, and exchanges and widths begin anew")
    assert [record["mode"] for record in metrics] == ["sync", "async", "async", "async", "sync", "async"]
    assert losses(metrics)[4:].mean() < losses(metrics)[:4].mean()
    assert COMM.rank == 0 or not caplog.records


@pytest.mark.parallel([2])
def test_what_one_rank_lost_is_kept_by_none(trained, shared_path, caplog):
    """Both sides of a predictive message begin anew, so the run is the one of which no rank remembers anything."""
    settings, found = {"method": "uniform", "bits": 2, "predict": "previous"}, []
    for lost in ([1], [0, 1]):
        out = shared_path / f"lost-{len(lost)}"
        shards = trained(out, **settings)

        def damage(out=out, lost=lost):
            for rank in lost:
                path = RankFiles(out).path(rank, read_checkpoint(out / "checkpoint.h5").token)
                path.write_bytes(path.read_bytes()[:-1])

        on_rank_zero(COMM, damage)
        metrics, (said,) = go_on(shards, out, caplog, **settings)
        caplog.clear()
        assert "is truncated: " in said
        found.append(losses(metrics[4:]))
    np.testing.assert_array_equal(*found)


def widen_a_row(file):
    """Widths of one rank alone, which its peers know nothing of."""
    width = file["controller/policy/solved/width/values"]
    width[...] = np.where(width[()] == 8, 4, 8)


def say_that_there_are_no_rows(file):
    file["controller"].attrs["has_rows"] = False


def name_ranges_of_no_row(file):
    next(iter(file["controller/policy/traces"].values()))["position/values"][0] = 10_000


def make_links_cost_nothing_known(file):
    file["controller/policy/solver/theta"][0] = np.nan


@pytest.mark.parallel([2])
@pytest.mark.parametrize("change, complaint", [
    (widen_a_row, "do not match each other"), (say_that_there_are_no_rows, "do not match each other"),
    (name_ranges_of_no_row, "ranges of layer "), (make_links_cost_nothing_known, "costs of links have shape (2,)"),
])
def test_memory_of_one_rank_that_fits_no_other_is_begun_anew(trained, shared_path, caplog, change, complaint):
    """Sides that disagree on the widths of a message would hang, or end in an error of MPI."""
    settings = {"method": "joint", "period": 2, "group_size": 20, "descent_window": 1}
    out = shared_path / "run"
    shards = trained(out, **settings)
    on_rank_zero(COMM, lambda: rewrite(RankFiles(out).path(0, read_checkpoint(out / "checkpoint.h5").token), change))
    metrics, (said,) = go_on(shards, out, caplog, **settings)
    assert complaint in said and metrics[4]["mode"] == "sync"


@pytest.mark.parallel([1, 2, 3])
def test_a_run_that_has_them_says_nothing_and_stays_asynchronous(run, caplog):
    metrics, said = go_on(*run, caplog)
    assert said == []
    assert [record["mode"] for record in metrics] == ["sync", *5 * ["async"]]


@pytest.mark.parallel([2])
@pytest.mark.parametrize("change, complaint", [
    ({"smoothing": 0.5}, "the stopped run had smoothing = 0.0, and this run has 0.5"),
    ({"method": "sancus"}, "the stopped run had method = 'pipegcn', and this run has 'sancus'"),
    ({"epoch_rows": "all"}, "the stopped run had epoch_rows = 'reachable', and this run has 'all'"),
])
def test_a_changed_setting_begins_the_memory_anew(run, caplog, change, complaint):
    metrics, (said,) = go_on(*run, caplog, **change)
    assert said.startswith(NOT_THE_SAME + complaint)
    assert metrics[4]["staleness"] == 0
    assert losses(metrics)[4:].mean() < losses(metrics)[:4].mean()


@pytest.mark.parallel([2])
@pytest.mark.parametrize("change", [{"lr": 0.02}, {"eval_every": 3}, {"overlap": False}, {"method": "vanilla"}])
def test_a_setting_that_nothing_remembered_follows_may_change(run, caplog, change):
    assert go_on(*run, caplog, **change)[1] == []


@pytest.mark.parallel([2])
def test_another_partition_of_the_same_graph_begins_the_memory_anew(run, shared_path, caplog):
    _, out = run
    other = on_rank_zero(COMM, lambda: write(graph(), random_owner(graph(), COMM.size, seed=9), COMM.size,
                                             shared_path / "other"))
    metrics, (said,) = go_on(other, out, caplog)
    assert "was written for another partition of the graph" in said and metrics[4]["mode"] == "sync"


@pytest.mark.parallel([3])
def test_another_number_of_ranks_begins_the_memory_anew(shared_path, caplog):
    few = on_rank_zero(COMM, lambda: write(graph(), random_owner(graph(), 2), 2, shared_path / "few"))
    part = COMM.Split(0 if COMM.rank < 2 else MPI.UNDEFINED)
    if part != MPI.COMM_NULL:
        train(part, few, shared_path / "run", **SETTINGS)
    COMM.barrier()
    many = write_once(COMM, graph(), shared_path / "many")
    metrics, (said,) = go_on(many, shared_path / "run", caplog)
    assert "holds the files of 2 ranks, and this run has 3" in said and metrics[4]["mode"] == "sync"


@pytest.mark.parallel([1, 2])
def test_there_is_a_file_for_each_rank_and_generation_and_no_other(run, caplog):
    shards, out = run
    expected = sorted(f"rank-{rank:04d}-{token}.h5" for token in tokens_of(out) for rank in range(COMM.size))
    assert files_of(out) == expected
    on_rank_zero(COMM, lambda: (out / "rank-0000-torn.h5.tmp-77").write_bytes(b"half"))
    go_on(shards, out, caplog)
    again = sorted(f"rank-{rank:04d}-{token}.h5" for token in tokens_of(out) for rank in range(COMM.size))
    assert files_of(out) == again and set(again).isdisjoint(expected)


@pytest.mark.parallel([2])
def test_the_checkpoint_before_has_its_files_too(run, caplog):
    """A damaged checkpoint costs epochs, but no bit."""
    shards, out = run
    whole = go_on(shards, out, caplog)[0]
    copy = out.parent / "copy"

    def lose_the_last():
        shutil.copytree(out, copy)
        (copy / "checkpoint-previous.h5").replace(copy / "checkpoint.h5")

    on_rank_zero(COMM, lose_the_last)
    metrics, said = go_on(shards, copy, caplog)
    assert said == [] and losses(metrics).tolist() == losses(whole).tolist()


@pytest.mark.parallel([2])
@pytest.mark.parametrize("method", ["vanilla", "uniform", "random", "bns"])
def test_a_method_that_remembers_nothing_writes_no_file(shared_path, method):
    shards = write_once(COMM, graph(), shared_path / "shards")
    train(COMM, shards, shared_path / "run", **{**SETTINGS, "method": method})
    assert files_of(shared_path / "run") == []


@pytest.mark.parallel([2])
def test_a_rank_file_that_can_not_be_written_fails_all_ranks_and_leaves_the_checkpoint(run, monkeypatch):
    shards, out = run
    before = tokens_of(out)

    def refuse(path, *arguments, **named):
        if COMM.rank == 1:
            raise CheckpointError(f"{path} can't be written: No space left on device")

    monkeypatch.setattr("hpcgnn.training.rank_state.write_sealed", refuse)
    resumed = on_rank_zero(COMM, lambda: read_checkpoint(out / "checkpoint.h5"))
    with pytest.raises(CollectiveError, match="No space left on device"):
        train(COMM, shards, out, resumed=resumed, **{**SETTINGS, "epochs": 8})
    assert tokens_of(out) == before


@pytest.mark.parallel([2])
def test_a_folder_that_a_rank_does_not_see_costs_the_memory_and_not_the_run(shared_path, monkeypatch, caplog):
    shards = write_once(COMM, graph(), shared_path / "shards")
    sees = Path.is_dir
    monkeypatch.setattr(Path, "is_dir", lambda path: sees(path) and not (COMM.rank == 1 and path.name == "run"))
    with caplog.at_level(logging.WARNING):
        train(COMM, shards, shared_path / "run", **SETTINGS)
    said = [record.getMessage() for record in caplog.records if record.name == "hpcgnn.training.rank_state"]
    assert len(said) == (COMM.rank == 0) and all(one.startswith("rank 1 does not see the run folder ") for one in said)
    assert files_of(shared_path / "run") == []


@pytest.mark.parallel([1])
def test_overwriting_a_run_removes_what_its_ranks_remember(run):
    from hpcgnn.training.run_folder import RunFolder

    _, out = run
    assert files_of(out)
    RunFolder(out).create(overwrite=True)
    assert files_of(out) == []


@pytest.mark.parallel([1])
def test_a_rank_file_opens_as_hdf5_with_its_token(run):
    _, out = run
    path = RankFiles(out).path(0, tokens_of(out)[1])
    with h5py.File(path, "r") as file:
        assert file.attrs["token"] == tokens_of(out)[1] and set(file) == {"exchange", "controller"}
