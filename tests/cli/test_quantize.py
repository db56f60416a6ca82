"""`hpcgnn quantize` from a run folder to a model file: what is written, what is printed, what is refused."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from mpi4py import MPI
from training_setup import easy_graph, on_rank_zero, snapshot, train, write_once

from hpcgnn.lowbit.inference.model_file import payload_bytes, read_model
from hpcgnn.run.output import size_text
from hpcgnn.shards.features import FeatureStorage, fingerprint_of


def trained(shards, shared_path, **settings):
    """Collective: a run folder."""
    train(MPI.COMM_WORLD, shards, shared_path / "run", **settings)
    return shared_path / "run"


def percent(line):
    """Numbers before a percent sign."""
    return [float(number) for number in re.findall(r"([\d.]+) %", line)]


@pytest.mark.parallel([1, 2, 3])
def test_a_float_run_is_calibrated_and_keeps_its_score(hpcgnn, shards, shared_path):
    run, comm = trained(shards, shared_path, epochs=30), MPI.COMM_WORLD
    status, printed, complaints = hpcgnn("quantize", run, shards, "--bits", "8,6")
    assert (status, complaints) == (0, "")
    model, made_on, _ = on_rank_zero(comm, lambda: read_model(run / "model.h5"))
    assert made_on == fingerprint_of(easy_graph(), FeatureStorage("float32"))
    assert (model.scheme, model.dataset, model.num_nodes) == ("calibrated", "synthetic", 240)
    assert {one.scale.bit_width for layer in model.convolutions for one in layer.maps} == {8}
    assert max(layer.rows.bit_width.max() for layer in model.convolutions) == 6
    what, before, after, size, features, file = printed.splitlines()
    assert what.startswith("synthetic gcn of 2 layers, calibrated: weights of 8 bits, rows of ")
    assert percent(before)[2] > 80
    assert max(abs(one - other) for one, other in zip(percent(before), percent(after), strict=True)) <= 3
    num_bytes = on_rank_zero(comm, lambda: (run / "model.h5").stat().st_size)
    assert f"{size_text(num_bytes)} in its file" in size and f"{size_text(payload_bytes(model))} are numbers" in size
    assert re.fullmatch(r"features: 11\.5 kB as float32 in the shards; in memory [\d.]+ kB as codes of [2-6] bits, "
                        r"and [\d.]+ kB of rows between layers", features)
    assert file == f"model file: {run / 'model.h5'}"


@pytest.mark.parallel([1, 2])
def test_a_run_that_was_trained_as_integers_is_exported_as_it_is(hpcgnn, shards, shared_path):
    run = trained(shards, shared_path, quantize="uniform", quantize_bits=4, epochs=20)
    status, printed, complaints = hpcgnn("quantize", run, shards, "--out", shared_path / "small.h5")
    assert (status, complaints) == (0, "")
    what, before, after = printed.splitlines()[:3]
    assert what == "synthetic gcn of 2 layers, uniform: weights of 4 bits, rows of 4"
    assert max(abs(one - other) for one, other in zip(percent(before), percent(after), strict=True)) <= 1
    refused = hpcgnn("quantize", run, shards, "--bits", 4)
    assert refused == (1, "", "hpcgnn: this run was trained with --quantize uniform and has widths of its own; "
                       "leave --bits out\n")


@pytest.mark.parallel([1, 2])
def test_another_split_of_the_same_graph_is_refused_unless_it_is_meant(hpcgnn, shards, shared_path):
    """Its test nodes may have been training nodes, so its scores would be worth nothing."""
    run, dataset = trained(shards, shared_path, epochs=2), easy_graph()
    swapped = replace(dataset, train_mask=dataset.test_mask, test_mask=dataset.train_mask)
    other = write_once(MPI.COMM_WORLD, swapped, shared_path / "other")
    for command in ("quantize", "infer"):
        status, printed, complaint = hpcgnn(command, run, other)
        assert (status, printed) == (1, "") and complaint.count("\n") == 1
        assert "run was made on other data of the name synthetic" in complaint and "its split differs" in complaint
        status, printed, complaint = hpcgnn(command, run, other, "--other-graph")
        assert (status, complaint) == (0, "") and "in split; scores may count nodes that it was trained on" in printed


@pytest.mark.parallel([1, 2])
def test_what_can_not_become_integers_is_refused_and_nothing_is_written(hpcgnn, shards, shared_path):
    comm = MPI.COMM_WORLD
    run = trained(shards, shared_path, model="sgc", epochs=2)
    held = on_rank_zero(comm, lambda: snapshot(shared_path))
    found = hpcgnn("quantize", run, shards)
    assert found[:2] == (1, "") and "run holds a sgc, and only gcn, sage, gin, gat become integers" in found[2]
    found = hpcgnn("quantize", shared_path, shards)
    assert found[:2] == (1, "") and "has no checkpoint.h5, so there is no trained model" in found[2]
    found = hpcgnn("quantize", run, shared_path / "none")
    assert found[:2] == (1, "") and "graph.h5 is missing" in found[2]
    found = hpcgnn("quantize", run, shards, "--out", shared_path / "none" / "m.h5")
    assert found[:2] == (1, "") and "choose another --out" in found[2]
    assert hpcgnn("quantize", run, shards, "--bits", 9)[0] == 2
    assert on_rank_zero(comm, lambda: snapshot(shared_path)) == held
