"""A run of preprocess that was interrupted leaves its stages to the next one of the same graph and options alone."""

from __future__ import annotations

import uuid
from dataclasses import replace

import numpy as np
import pytest
from mpi4py import MPI
from reference_partition import random_dataset
from training_setup import shared_path  # noqa: F401

from hpcgnn.errors import CollectiveError, ShardError
from hpcgnn.library.preprocess import Ranks
from hpcgnn.shards import folder as stages
from hpcgnn.shards import writer
from hpcgnn.shards.writer import Making, make_shards

COMM = MPI.COMM_WORLD
CREW = Ranks(COMM)
HOW = Making(parts=4, partitioner="random")


@pytest.fixture(autouse=True)
def kept_and_of_one_id(monkeypatch):
    monkeypatch.setattr(stages, "LEAST_EDGES", 1)
    monkeypatch.setattr(writer.uuid, "uuid4", lambda: uuid.UUID(int=7))


@pytest.fixture
def calls(monkeypatch):
    """Count the stages that this rank computes."""
    counted = {"owner": 0, "order": 0}
    for function, name in (("choose_owners", "owner"), ("order_rows", "order")):
        monkeypatch.setattr(writer, function, counting(getattr(writer, function), counted, name))
    return counted


def counting(function, counted, name):
    def wrapped(*arguments):
        counted[name] += 1
        return function(*arguments)
    return wrapped


def graph(weight=1.5):
    dataset = random_dataset(120, 900, seed=3)
    return replace(dataset, edge_weight=np.full(dataset.num_edges, weight, np.float32))


def make(folder, how=HOW, weight=1.5, said=None):
    def progress(description, total):
        if said is not None:
            said.append(description)
        return stages.silent(description, total)

    make_shards(graph(weight) if COMM.rank == 0 else None, folder, how, "test", {}, progress, crew=CREW)
    COMM.Barrier()
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir()) if path.is_file()}


def interrupt(folder, monkeypatch, at, how=HOW, fault=KeyboardInterrupt):
    """Run until the function of the writer is called for the last time on this rank, and end there."""
    left = {"halos": 1, "order": 4 // COMM.size, "write": 4 // COMM.size}[at]
    name = {"halos": "find_halos", "order": "order_rows", "write": "write_sealed"}[at]
    plain = getattr(writer, name)

    def until(*arguments):
        nonlocal left
        left -= 1
        if left == 0:
            COMM.Barrier()      # no rank still writes where another, on its way out, removes the folder
            raise fault("stopped")
        return plain(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(writer, name, until)
        with pytest.raises(CollectiveError if issubclass(fault, ShardError) else fault):
            make(folder, how)
    COMM.Barrier()


@pytest.mark.parallel([1, 2])
@pytest.mark.parametrize("at", ["halos", "order", "write"])
def test_a_second_run_takes_what_the_first_had_finished(shared_path, monkeypatch, calls, at):  # noqa: F811
    num_orders = {"halos": 4, "order": COMM.size, "write": 0}
    expected = make(shared_path / "whole")
    interrupt(shared_path / "g", monkeypatch, at)
    calls.update(owner=0, order=0)
    assert make(shared_path / "g") == expected
    assert calls["owner"] == 0 and COMM.allreduce(calls["order"]) == num_orders[at]
    assert not (shared_path / "g" / ".unfinished").exists()


@pytest.mark.parallel([1])
@pytest.mark.parametrize("other", [{"how": replace(HOW, seed=1)}, {"how": replace(HOW, parts=3)},
                                   {"how": replace(HOW, reorder="degree")}, {"weight": 2.5}], ids=str)
def test_another_graph_or_another_option_takes_nothing(shared_path, monkeypatch, calls, other):  # noqa: F811
    expected = make(shared_path / "whole", **other)
    interrupt(shared_path / "g", monkeypatch, "write")
    calls.update(owner=0, order=0)
    said = []
    assert make(shared_path / "g", **other, said=said) == expected
    assert calls["owner"] == 1 and calls["order"] == len(expected) - 1
    assert "owner of an interrupted run is of another graph or other options, so it is made anew" in said


@pytest.mark.parallel([1])
def test_another_version_takes_nothing(shared_path, monkeypatch, calls):  # noqa: F811
    interrupt(shared_path / "g", monkeypatch, "write")
    monkeypatch.setattr(stages, "version", lambda package: "9.9")
    calls.update(owner=0, order=0)
    make(shared_path / "g")
    assert calls == {"owner": 1, "order": 4}


@pytest.mark.parallel([1])
def test_a_damaged_stage_is_made_anew_and_said(shared_path, monkeypatch, calls):  # noqa: F811
    expected = make(shared_path / "whole")
    interrupt(shared_path / "g", monkeypatch, "write")
    path = shared_path / "g" / ".unfinished" / "owner.h5"
    path.write_bytes(path.read_bytes()[:-9] + b"\x55" * 9)
    calls.update(owner=0, order=0)
    said = []
    assert make(shared_path / "g", said=said) == expected and calls == {"owner": 1, "order": 0}
    assert "owner of an interrupted run is damaged, so it is made anew" in said
    assert "taking order-0003 from an interrupted run" in said


@pytest.mark.parallel([1, 2])
@pytest.mark.parametrize("at", ["halos", "order", "write"])
def test_a_run_that_ends_with_a_sentence_leaves_nothing(shared_path, monkeypatch, at):  # noqa: F811
    interrupt(shared_path / "g", monkeypatch, at, fault=ShardError)
    assert not (shared_path / "g" / ".unfinished").exists()


@pytest.mark.parallel([1])
def test_a_small_graph_keeps_no_stage(shared_path, monkeypatch):  # noqa: F811
    monkeypatch.setattr(stages, "LEAST_EDGES", 1 << 20)
    interrupt(shared_path / "g", monkeypatch, "write")
    assert not (shared_path / "g" / ".unfinished").exists()
