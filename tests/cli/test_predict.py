"""`hpcgnn predict`: the best weights' answers, as one process of PyG gives them; a fault is one sentence."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import scipy.special
import torch
import torch_geometric.nn as pyg
from mpi4py import MPI
from reference_models import edge_index_of, peer_logits
from training_setup import arcs_where, easy_graph, on_rank_zero, snapshot, train, write_once

from hpcgnn.results.answer_file import read_answer_arrays
from hpcgnn.training.checkpoint import read_checkpoint, write_checkpoint
from hpcgnn.training.run_folder import RunFolder


def expected_logits(folder, edge_weight=None, **settings):
    """PyTorch Geometric's, in float64, with the best weights of a run."""
    from hpcgnn.nn.models import ModelShape, build_model

    dataset = easy_graph()
    shape = ModelShape(settings["model"], 12, 8, 4, 2, 0.5, norm="layer", has_wide_sums=True)
    model = build_model(shape)
    model.load_state_dict(read_checkpoint(folder / "checkpoint.h5").best_model)
    with torch.no_grad():
        return peer_logits(model.double(), shape, dataset, edge_weight=edge_weight).numpy()


@pytest.mark.parallel([1, 2])
@pytest.mark.parametrize("settings", [{"model": "gcn", "method": "sylvie"}, {"model": "jknet", "precision": "bf16"}],
                         ids=lambda settings: settings["model"])
def test_the_best_weights_answer_as_pyg_does(hpcgnn, shards, shared_path, settings):
    run, out = shared_path / "run", shared_path / "p.npz"
    summary, _, _ = train(MPI.COMM_WORLD, shards, run, **settings)
    before = on_rank_zero(MPI.COMM_WORLD, lambda: snapshot(run))
    status, printed, complaints = hpcgnn("predict", run, shards, "--out", out, "--embeddings")
    assert (status, complaints) == (0, "")
    found = on_rank_zero(MPI.COMM_WORLD, lambda: read_answer_arrays(out))
    expected = expected_logits(run, **settings)
    np.testing.assert_allclose(found["logits"], expected, atol=1e-5, rtol=1e-5)
    dataset = easy_graph()
    hits = (expected.argmax(axis=1) == dataset.labels)[dataset.test_mask]
    assert f"test {100 * hits.mean():.2f} %" in printed
    if "precision" not in settings:
        assert hits.mean() == pytest.approx(summary["test_score"])
    assert found["node"].tolist() == list(range(240))
    assert found["embeddings"].shape == (240, {"gcn": 8, "jknet": 16}[settings["model"]])
    assert on_rank_zero(MPI.COMM_WORLD, lambda: snapshot(run)) == before


@pytest.mark.parallel([1, 2, 3])
@pytest.mark.parametrize("flags, peer", [
    ([], pyg.CorrectAndSmooth(50, 1.0, 50, 0.8)),
    (["--set", "correction_layers=20", "--set", "correction_alpha=0.7", "--set", "smoothing_layers=10", "--set",
      "smoothing_alpha=0.9", "--set", "correction_scale=1.5"],
     pyg.CorrectAndSmooth(20, 0.7, 10, 0.9, autoscale=False, scale=1.5))],
    ids=["as in the example", "with a scale"])
def test_corrected_and_smoothed_predictions_are_those_of_pyg(hpcgnn, shared_path, flags, peer):
    dataset = arcs_where(easy_graph(seed=5), lambda source, target: (source < target) | (target % 3 > 0))
    shards = write_once(MPI.COMM_WORLD, dataset, shared_path / "shards")
    run = shared_path / "run"
    train(MPI.COMM_WORLD, shards, run, epochs=3)
    assert hpcgnn("predict", run, shards, "--out", shared_path / "plain.npz")[0] == 0
    status, printed, complaints = hpcgnn("predict", run, shards, "--out", shared_path / "p.npz", "--correct-and-smooth",
                                         *flags)
    assert (status, complaints) == (0, "") and "corrected and smoothed by the training labels" in printed
    plain, found = on_rank_zero(MPI.COMM_WORLD, lambda: [read_answer_arrays(shared_path / f"{name}.npz")
                                                         for name in ("plain", "p")])
    mask, edges = torch.from_numpy(dataset.train_mask), edge_index_of(dataset)
    labels = torch.from_numpy(dataset.labels.astype(np.int64))[mask]
    expected = peer(torch.from_numpy(plain["logits"]).softmax(dim=1), labels, mask, edges).numpy()
    np.testing.assert_allclose(found["logits"], expected, atol=1e-5, rtol=1e-5)
    np.testing.assert_allclose(found["probability"], expected.max(axis=1), atol=1e-5)
    assert np.abs(expected - scipy.special.softmax(plain["logits"], axis=1)).max() > 0.1
    hits = (found["logits"].argmax(axis=1) == dataset.labels)[dataset.test_mask]
    assert f"test {100 * hits.mean():.2f} %" in printed


def test_predictions_that_can_not_be_corrected_are_refused(hpcgnn, shards, shared_path):
    spec = "synthetic:nodes=120,mean_degree=6,classes=5,features=8,multi_label=true"
    several = write_once(MPI.COMM_SELF, easy_graph(spec=spec), shared_path / "several")
    train(MPI.COMM_SELF, several, shared_path / "run", epochs=1)
    _, _, complaint = hpcgnn("predict", shared_path / "run", several, "--correct-and-smooth")
    assert "needs predictions of one class per node, and this model's are multi-label; leave it out" in complaint
    train(MPI.COMM_SELF, shards, shared_path / "one", epochs=1)
    dataset = easy_graph()
    none = np.zeros(dataset.num_nodes, bool)
    bare = write_once(MPI.COMM_SELF, replace(dataset, train_mask=none), shared_path / "bare")
    _, _, complaint = hpcgnn("predict", shared_path / "one", bare, "--correct-and-smooth", "--other-graph")
    assert "needs the labels of training nodes, and this graph has none; give shards with" in complaint
    _, _, complaint = hpcgnn("predict", shared_path / "one", shards, "--set", "smoothing_layers=3")
    assert "--set smoothing_layers=3 has no effect without --correct-and-smooth; add it, or leave" in complaint
    for wrong, said in (("smoothing=3", "expected NAME=VALUE with one of correction_layers, correction_alpha,"),
                        ("smoothing_alpha=2", "--set smoothing_alpha: 2.0 is not in the range 0<=x<=1")):
        assert said in hpcgnn("predict", shared_path / "one", shards, "--correct-and-smooth", "--set", wrong)[2]


def test_a_run_with_labels_as_inputs_answers_with_all_training_labels(hpcgnn, shards, shared_path):
    summary, _, _ = train(MPI.COMM_SELF, shards, shared_path / "run", label_inputs=0.5, epochs=20)
    status, printed, complaints = hpcgnn("predict", shared_path / "run", shards)
    assert (status, complaints) == (0, "") and f"test {100 * summary['test_score']:.2f} %" in printed
    _, _, complaint = hpcgnn("infer", shared_path / "run", shards)
    assert "was trained with label_inputs, and integers read features only; train without them" in complaint


def test_a_run_of_fewer_bits_answers_as_it_was_trained_and_says_so(hpcgnn, shards, shared_path):
    summary, _, _ = train(MPI.COMM_SELF, shards, shared_path / "run", quantize="uniform")
    status, printed, _ = hpcgnn("predict", shared_path / "run", shards)
    assert status == 0 and "hpcgnn infer computes with its integers" in printed
    assert f"test {100 * summary['test_score']:.2f} %" in printed


def test_what_can_not_answer_is_refused_in_one_sentence(hpcgnn, shards, shared_path):
    run = shared_path / "run"
    train(MPI.COMM_SELF, shards, run)
    other = write_once(MPI.COMM_SELF, replace(easy_graph(1), name="other"), shared_path / "other")
    cases = [((run, shards, "--out", shared_path / "p.txt"), "names no format of predictions"),
             ((shards, shards), "has no checkpoint.h5, so there is no trained model"),
             ((run, other), "pass --other-graph if it is meant to predict for another one")]
    for arguments, words in cases:
        status, _, complaints = hpcgnn("predict", *arguments)
        assert status == 1 and words in complaints and len(complaints.splitlines()) == 1
    status, printed, _ = hpcgnn("predict", run, other, "--other-graph")
    assert status == 0 and "was made on other data" in printed
    path = RunFolder(run).checkpoint
    checkpoint = read_checkpoint(path)
    checkpoint.progress.best = None
    write_checkpoint(path, checkpoint)
    status, _, complaints = hpcgnn("predict", run, shards)
    assert status == 1 and "has no evaluation yet with a score that is a number" in complaints


def described(**more):
    """The easy graph with ids of its own, named classes, and weights of its arcs."""
    dataset, rng = easy_graph(), np.random.default_rng(4)
    weight = rng.uniform(0.5, 2, dataset.num_edges).astype(np.float32)
    return replace(dataset, node_name=np.array([f"n{number * 7 % 240}" for number in range(240)]), edge_weight=weight,
                   **more)


@pytest.mark.parallel([1, 2])
def test_ids_names_and_edge_weights_of_the_source_come_back(hpcgnn, shared_path):
    dataset = described(class_names=("a", "b", "c", "d"))
    shards, out = write_once(MPI.COMM_WORLD, dataset, shared_path / "named"), shared_path / "p.npz"
    train(MPI.COMM_WORLD, shards, shared_path / "run")
    status, printed, complaints = hpcgnn("predict", shared_path / "run", shards, "--out", out)
    assert (status, complaints) == (0, "") and "accuracy: " in printed
    found = on_rank_zero(MPI.COMM_WORLD, lambda: read_answer_arrays(out))
    assert found["node"].tolist() == dataset.node_name.tolist() and found["class_names"].tolist() == list("abcd")
    expected = expected_logits(shared_path / "run", edge_weight=dataset.edge_weight, model="gcn")
    np.testing.assert_allclose(found["logits"], expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parallel([1, 2])
def test_a_regression_answers_with_values(hpcgnn, shared_path):
    rng = np.random.default_rng(5)
    targets = rng.normal(size=(240, 4)).astype(np.float32)
    targets[~easy_graph().test_mask & (rng.random(240) < 0.2) & ~easy_graph().train_mask] = np.nan
    known = np.isfinite(targets).all(axis=1)
    dataset = described(labels=targets, val_mask=easy_graph().val_mask & known)
    shards, out = write_once(MPI.COMM_WORLD, dataset, shared_path / "values"), shared_path / "p.csv"
    summary, _, _ = train(MPI.COMM_WORLD, shards, shared_path / "run")
    status, printed, complaints = hpcgnn("predict", shared_path / "run", shards, "--out", out)
    assert (status, complaints) == (0, "")
    expected = expected_logits(shared_path / "run", edge_weight=dataset.edge_weight, model="gcn")
    columns = on_rank_zero(MPI.COMM_WORLD, lambda: np.genfromtxt(out, delimiter=",", names=True, dtype=None,
                                                                  encoding="utf-8"))
    assert columns["node"].tolist() == dataset.node_name.tolist()
    for number in range(4):
        np.testing.assert_allclose(columns[f"value_{number}"], expected[:, number], atol=1e-5, rtol=1e-4)
    assert f"r2: train {summary['results'][-1]['train_score']:.4g}, " in printed


@pytest.mark.parallel([1, 2])
def test_new_nodes_get_the_answers_of_a_training_that_knew_them_as_isolated_nodes(hpcgnn, shared_path):
    """And `--set nodes=FILE` writes theirs alone, in the order of the file."""
    comm, grown = MPI.COMM_WORLD, easy_graph()
    new, of_model = np.arange(200, 240), {"model": "sage", "dropout": 0.5}
    masks = {name: getattr(grown, name) & (np.arange(240) < 200) for name in ("train_mask", "val_mask")}
    grown = replace(grown, **masks, test_mask=~masks["train_mask"] & ~masks["val_mask"])
    isolated = arcs_where(grown, lambda source, target: (source < 200) & (target < 200))
    old = replace(isolated, indptr=isolated.indptr[:201], **{name: getattr(isolated, name)[:200] for name in (
        "features", "labels", "train_mask", "val_mask", "test_mask")}).check()
    whole = write_once(comm, grown, shared_path / "grown")
    ids, out = shared_path / "ids.txt", shared_path / "p.npz"
    on_rank_zero(comm, lambda: ids.write_text("".join(f"{node}\n" for node in new[::-1])))
    found = []
    for name, graph in (("old", old), ("isolated", isolated)):
        train(comm, write_once(comm, graph, shared_path / name), shared_path / f"run-{name}", **of_model)
        status, _, complaints = hpcgnn("predict", shared_path / f"run-{name}", whole, "--other-graph", "--out", out,
                                       "--set", f"nodes={ids}")
        assert (status, complaints) == (0, "")
        found.append(on_rank_zero(comm, lambda: read_answer_arrays(out)))
    assert found[0]["node"].tolist() == new[::-1].tolist()
    np.testing.assert_allclose(found[0]["logits"], found[1]["logits"], atol=1e-5, rtol=1e-5)
    status, _, _ = hpcgnn("predict", shared_path / "run-old", whole, "--other-graph", "--out", out)
    everything = on_rank_zero(comm, lambda: read_answer_arrays(out))
    np.testing.assert_array_equal(everything["logits"][new[::-1]], found[0]["logits"])
    on_rank_zero(comm, lambda: ids.write_text("3\n700\n"))
    status, _, complaints = hpcgnn("predict", shared_path / "run-old", whole, "--other-graph", "--out", out, "--set",
                                   f"nodes={ids}")
    assert status != 0 and "1 ids are of no node, such as 700" in complaints
