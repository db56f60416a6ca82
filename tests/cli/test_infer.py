"""`hpcgnn infer` from a model and shards to predictions: the same on any number of ranks; a fault is one sentence."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from integer_models import some_model
from mpi4py import MPI
from training_setup import easy_graph, on_rank_zero, random_owner, train, write, write_once

from hpcgnn.lowbit.inference import coded_rows
from hpcgnn.lowbit.inference.model_file import read_model, write_model
from hpcgnn.lowbit.inference.predictions import read_predictions
from hpcgnn.lowbit.package_shards import read_activations
from hpcgnn.shards.features import FeatureStorage, fingerprint_of
from hpcgnn.shards.schema import Fingerprint, Provenance
from hpcgnn.shards.writer import Making, write_shards

KINDS = ("gcn", "sage", "gin", "gat")


def model_file(path, kind="gcn", made_on=None, **options):
    """Collective: a file of random weights that fits the easy graph."""
    made_on = made_on or fingerprint_of(easy_graph(), FeatureStorage("float32"))
    on_rank_zero(MPI.COMM_WORLD, lambda: write_model(path, some_model(kind, **options), made_on))
    return path


def answers(path):
    return on_rank_zero(MPI.COMM_WORLD, lambda: read_predictions(path))


def alone(path, folder):
    """The run of a model on one rank, opened by every rank for itself."""
    from hpcgnn.lowbit.inference.model_source import StoredPart
    from hpcgnn.lowbit.inference.run import IntegerRun
    from hpcgnn.shards.reader import read_graph_info

    dataset, comm = easy_graph(), MPI.COMM_WORLD
    shards = on_rank_zero(comm, lambda: write(dataset, random_owner(dataset, 1), 1, folder))
    model, info = read_model(path)[0], read_graph_info(shards)
    return IntegerRun.open(MPI.COMM_SELF, model, StoredPart.read(MPI.COMM_SELF, shards, info), info)


@pytest.mark.parallel([1, 2, 3, 4])
@pytest.mark.parametrize("kind", KINDS)
def test_answers_have_the_bits_of_one_rank(hpcgnn, shards, shared_path, kind):
    path, out = model_file(shared_path / "m.h5", kind), shared_path / "p.h5"
    status, printed, complaints = hpcgnn("infer", path, shards, "--repeat", 1, "--out", out)
    assert (status, complaints) == (0, "")
    run = alone(path, shared_path / "alone")
    node_id, (logits, embeddings) = run.part.inner_id, run.forward()
    found = answers(out)
    assert found.logits[node_id].tobytes() == logits.tobytes()
    assert found.embeddings[node_id].tobytes() == embeddings.tobytes()
    np.testing.assert_array_equal(found.prediction, found.logits.argmax(axis=1))
    lines = printed.splitlines()
    assert [line.split(":")[0] for line in lines[1:]] == ["accuracy", "time", "model", "features", "exchanged",
                                                          "peak memory", "predictions"]


@pytest.mark.parallel([1, 2])
def test_a_run_folder_is_quantized_on_the_fly_and_timed_in_floats(hpcgnn, shards, shared_path):
    train(MPI.COMM_WORLD, shards, shared_path / "run", epochs=20)
    files = on_rank_zero(MPI.COMM_WORLD, lambda: sorted((shared_path / "run").iterdir()))
    status, printed, complaints = hpcgnn("infer", shared_path / "run", shards, "--bits", 6, "--repeat", 2)
    assert (status, complaints) == (0, "")
    time = printed.splitlines()[2]
    assert "weights of 6 bits, rows of " in printed and "; in float32 " in time and "; in bfloat16 " in time
    assert on_rank_zero(MPI.COMM_WORLD, lambda: sorted((shared_path / "run").iterdir())) == files


@pytest.mark.parallel([1, 2])
def test_packages_are_read_as_they_are_and_answer_as_their_floats_do(hpcgnn, shared_path):
    from hpcgnn.lowbit.inference.model_source import FloatRows, StoredPart
    from hpcgnn.lowbit.inference.run import IntegerRun
    from hpcgnn.shards.reader import read_graph_info, read_partition

    comm, dataset, folder = MPI.COMM_WORLD, easy_graph(), shared_path / "shards"
    made_on = fingerprint_of(dataset, FeatureStorage("package"))
    path, out = model_file(shared_path / "m.h5", "sage", made_on), shared_path / "p.h5"
    on_rank_zero(comm, lambda: write_shards(
        dataset, random_owner(dataset, comm.size), folder, Making(comm.size, reorder="none", feature_format="package"),
        Provenance("test", "given", 0)))
    status, printed, complaints = hpcgnn("infer", path, folder, "--repeat", 1, "--out", out)
    assert (status, complaints) == (0, "") and "B as packages" in printed
    info = read_graph_info(folder)
    run = IntegerRun.open(comm, read_model(path)[0], StoredPart.read(comm, folder, info), info)
    assert run.stored_form == "packages"
    features = read_partition(folder, comm.rank, comm.size, info).features
    rows = FloatRows(features).coded(run.model.convolutions[0].rows, run.in_degree)
    logits, _ = replace(run, rows=rows).forward()
    assert answers(out).logits[run.part.inner_id].tobytes() == logits.tobytes()


@pytest.mark.parallel([1, 2, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_packed_features_give_the_same_bits_and_are_multiplied_from_in_every_pass(hpcgnn, shards, shared_path,
                                                                                  monkeypatch, kind):
    path, multiplied = model_file(shared_path / "m.h5", kind), []
    product = coded_rows.combine_packages
    monkeypatch.setattr(coded_rows, "combine_packages",
                        lambda *rows, **bits: multiplied.append(rows) or product(*rows, **bits))
    for out, flags in (("codes.h5", []), ("packed.h5", ["--set", "pack_features=true"])):
        assert not multiplied
        status, printed, complaints = hpcgnn("infer", path, shards, "--repeat", 2, "--out", shared_path / out, *flags)
        assert (status, complaints) == (0, "")
    assert "B as packed codes" in printed
    assert len(multiplied) >= 2
    found, expected = (answers(shared_path / out) for out in ("packed.h5", "codes.h5"))
    assert found.logits.tobytes() == expected.logits.tobytes()
    assert found.embeddings.tobytes() == expected.embeddings.tobytes()


def refusals(shared_path, shards):
    """Arguments, and words of the sentence that refuses them."""
    model = model_file(shared_path / "m.h5")
    return [
        ([shared_path / "none.h5", shards], "none.h5 is missing; run hpcgnn quantize again"),
        ([model, shared_path / "none"], "graph.h5 is missing"),
        ([model_file(shared_path / "a.h5", dataset="cora"), shards], "was made on cora, these shards hold synthetic"),
        ([model_file(shared_path / "b.h5", num_nodes=99), shards], "was made on 99 nodes, synthetic has 240"),
        ([model_file(shared_path / "c.h5", num_features=7), shards], "was made for 7 features, synthetic has 12"),
        ([model_file(shared_path / "d.h5", num_classes=9), shards], "was made for 9 classes, synthetic has 4"),
        ([model_file(shared_path / "e.h5", is_multi_label=True), shards], "was made for several labels per node"),
        ([model, shards, "--bits", 4], "is a model file and has widths of its own"),
        ([model, shards, "--out", shared_path / "none" / "p.h5"], "choose another --out"),
        ([shared_path, shards], "has no checkpoint.h5"),
        ([shards / "graph.h5", shards], "is a graph file, expected a integer-model file"),
    ]


@pytest.mark.parallel([1, 2, 3])
def test_every_fault_is_one_sentence_and_ends_all_ranks(hpcgnn, shards, shared_path):
    for arguments, words in refusals(shared_path, shards):
        status, printed, complaint = hpcgnn("infer", *arguments)
        assert (status, printed) == (1, ""), arguments
        assert complaint.startswith("hpcgnn: ") and complaint.count("\n") == 1 and words in complaint, complaint


@pytest.mark.parallel([1, 2])
def test_another_graph_is_answered_for_where_that_is_meant(hpcgnn, shards, shared_path):
    made_on = Fingerprint("0" * 32, "1" * 32, "2" * 32)
    path = model_file(shared_path / "m.h5", dataset="cora", num_nodes=99, made_on=made_on)
    status, printed, complaints = hpcgnn("infer", path, shards, "--repeat", 1, "--other-graph")
    assert (status, complaints) == (0, "")
    assert printed.startswith(f"{path} was made on other data than these shards hold, in graph, split, features; ")


@pytest.mark.parallel([1, 2])
def test_classes_are_compared_by_their_names_whatever_their_order(hpcgnn, shared_path):
    """The same nodes as were trained on, with other numbers for classes, or with no labels."""
    comm, names, dataset = MPI.COMM_WORLD, ("ant", "bee", "cat", "dog"), easy_graph()
    run, model, out = shared_path / "run", shared_path / "run" / "model.h5", shared_path / "p.h5"
    train(comm, write_once(comm, replace(dataset, class_names=names), shared_path / "shards"), run, epochs=20)
    others = ("dog", "eel", "bee", "ant", "cat")
    new = replace(dataset, class_names=others, num_classes=5,
                  labels=np.array([others.index(name) for name in names])[dataset.labels])
    new.labels[np.flatnonzero(dataset.test_mask)[:2]] = others.index("eel")
    shards = write_once(comm, new, shared_path / "new")
    status, said, complaints = hpcgnn("quantize", run, shards, "--other-graph")
    assert (status, complaints) == (0, "") and "does not know 1 of the classes of synthetic: eel" in said
    for made in (run, model):
        status, printed, complaints = hpcgnn("infer", made, shards, "--repeat", 1, "--other-graph", "--out", out)
        assert (status, complaints) == (0, "") and "does not know 1 of the classes of synthetic: eel" in printed
        found = answers(out)
        assert found.class_names == names and found.logits.shape[1] == 4
        right = np.array(names)[found.prediction] == np.array(others)[new.labels]
        shares = [100 * right[mask].mean() for mask in (new.train_mask, new.val_mask, new.test_mask)]
        line = "accuracy: " + ", ".join(f"{split} {share:.2f} %" for split, share in zip(
            ("train", "val", "test"), shares, strict=True))
        assert line in printed and shares[0] > 70
        assert made == run or line.replace("accuracy", "after  accuracy") in said
    nobody = np.zeros(dataset.num_nodes, bool)
    bare = replace(dataset, labels=np.full(dataset.num_nodes, -1), num_classes=1, train_mask=nobody, val_mask=nobody,
                   test_mask=nobody)
    shards = write_once(comm, bare, shared_path / "bare")
    assert hpcgnn("infer", model, shards, "--repeat", 1, "--other-graph", "--out", out)[0] == 0
    np.testing.assert_array_equal(answers(out).logits, found.logits)


@pytest.mark.parallel([1, 2])
@pytest.mark.parametrize("digest", ["graph", "split", "features"])
def test_another_graph_of_the_same_name_and_size_is_refused(hpcgnn, shards, shared_path, digest):
    made_on = replace(fingerprint_of(easy_graph(), FeatureStorage("float32")), **{digest: "0" * 32})
    status, printed, complaint = hpcgnn("infer", model_file(shared_path / "m.h5", made_on=made_on), shards)
    assert (status, printed) == (1, "") and complaint.count("\n") == 1
    assert f"its {digest} differ" in complaint and "--other-graph" in complaint


@pytest.mark.parallel([1, 2])
def test_features_that_the_first_codes_can_not_hold_are_refused_on_all_ranks(hpcgnn, shards, shared_path):
    model = some_model("gcn")
    first = model.convolutions[0]
    model.convolutions[0] = replace(first, rows=replace(first.rows, is_signed=False))
    path = shared_path / "m.h5"
    made_on = fingerprint_of(easy_graph(), FeatureStorage("float32"))
    on_rank_zero(MPI.COMM_WORLD, lambda: write_model(path, model, made_on))
    status, printed, complaint = hpcgnn("infer", path, shards)
    assert (status, printed) == (1, "") and "rows hold negative values, and their codes have no sign" in complaint


@pytest.mark.parallel([2])
def test_shards_for_another_number_of_ranks_are_refused(hpcgnn, shared_path):
    dataset = easy_graph()
    three = on_rank_zero(MPI.COMM_WORLD, lambda: write(dataset, random_owner(dataset, 3), 3, shared_path / "three"))
    status, _, complaint = hpcgnn("infer", model_file(shared_path / "m.h5"), three)
    assert status == 1 and "was partitioned into 3 parts but 2 ranks were started" in complaint


@pytest.mark.parallel([1, 2, 3])
def test_codes_that_layers_read_are_stored_as_packages(hpcgnn, shards, shared_path):
    path, folder = model_file(shared_path / "model.h5"), shared_path / "codes"
    status, printed, _ = hpcgnn("infer", path, shards, "--packages", folder, "--repeat", 1)
    assert status == 0 and "codes of all layers by format" in printed and f"packages: {folder}" in printed
    (model, *_), dataset = read_model(path), easy_graph()
    ids = []
    for part in range(MPI.COMM_WORLD.size):
        node_id, layers = read_activations(folder, part)
        ids.append(node_id)
        assert [packed.dim for packed, _ in layers] == [one.neighbor.codes.shape[1] for one in model.convolutions]
        packed, step = layers[0]
        scale = model.convolutions[0].rows
        entry = scale.entry(dataset.in_degree()[node_id])
        np.testing.assert_array_equal(step, scale.step[entry])
        exact = np.minimum(np.floor(np.abs(dataset.features[node_id]) / step[:, None] + np.float32(0.5)),
                           scale.max_code[entry][:, None])
        np.testing.assert_array_equal(packed.codes(), np.copysign(exact, dataset.features[node_id]))
    np.testing.assert_array_equal(np.sort(np.concatenate(ids)), np.arange(dataset.num_nodes))


@pytest.mark.parallel([1, 2, 4])
@pytest.mark.parametrize("kind", ["gcn", "sage"])
def test_batched_answers_are_the_same_on_any_number_of_ranks(hpcgnn, shards, shared_path, kind):
    model, found = model_file(shared_path / "m.h5", kind), []
    for way in ("tiles", "gather", "auto"):
        code, out, err = hpcgnn("infer", model, shards, "--clusters", 40, "--set", "batch_size=2", "--set",
                               f"aggregation={way}", "--repeat", 2, "--out", shared_path / f"{way}.h5")
        assert code == 0, err
        assert "batches: 20 with" in out and f"of {easy_graph().num_edges:,} edges" in out
        assert "as codes of " in out and "between layers" not in out      # what batches have there is not counted
        assert ("tiles took 40 of 40 sums" in out) == (way == "tiles")
        found.append(answers(shared_path / f"{way}.h5"))
    assert all(one.logits.tobytes() == found[0].logits.tobytes() for one in found)
    assert found[0].logits.tobytes() == alone_in_batches(model, shared_path / "alone").tobytes()


def alone_in_batches(path, folder):
    """Logits of one rank, computed by every rank for itself."""
    from hpcgnn.lowbit.inference.dealt import DealtBatches, DealtRun

    run = alone(path, folder)
    codes = run.rows.coded().codes
    dealt = DealtBatches.deal(MPI.COMM_SELF, run.part, 40, 2)
    logits, _ = DealtRun(dealt, run.model, codes, run.in_degree, "gather").forward()
    out = logits.copy()
    out[run.part.inner_id] = logits
    return out


@pytest.mark.parallel([1, 2])
@pytest.mark.parametrize("flags, words", [(["--clusters", 0], "0 is not in the range"),
                                          (["--clusters", 4, "--set", "aggregation=dense"], "'dense' is not one of"),
                                          (["--set", "batch_size=4"], "add --clusters"),
                                          (["--clusters", 4, "--packages", "p"], "leave --clusters out"),
                                          (["--clusters", 4, "--set", "pack_features=true"], "leave --clusters out"),
                                          (["--set", "aggregation=tiles"], "add --clusters")])
def test_batches_that_can_not_be_are_refused(hpcgnn, flags, words):
    code, _, err = hpcgnn("infer", "model.h5", "shards", *flags)
    assert code == 2 and words in err
