"""Each form of a file of answers holds the values that went in, in the order of the source, whatever its pieces."""

from __future__ import annotations

import csv

import numpy as np
import pytest
import scipy.special
from mpi4py import MPI
from training_setup import on_rank_zero

from hpcgnn.errors import CheckpointError, CollectiveError, ConfigError
from hpcgnn.results import answer_file
from hpcgnn.results import answers as answers_module
from hpcgnn.results.answer_file import check_answer_file, read_answer_arrays, write_answers
from hpcgnn.results.answers import Answers
from hpcgnn.training.scores import CLASSES, MULTI_LABEL, REGRESSION

NUM_NODES, NAMED = 50, ("a, b", "\"c\"", "d")
RNG = np.random.default_rng(0)
LOGITS = RNG.normal(size=(NUM_NODES, 3)).astype(np.float32)
EMBEDDINGS = RNG.normal(size=(NUM_NODES, 2)).astype(np.float32)
NAMES = np.array([f"né {'x' * (number % 5)}{number}" for number in range(NUM_NODES)])


@pytest.fixture(params=[1, 300, 1 << 20])
def piece_bytes(request, monkeypatch):
    monkeypatch.setattr(answers_module, "PIECE_BYTES", request.param)


def write_all(path, task=CLASSES, class_names=(), name=None):
    """Collective: every rank but the last of several has some of the rows, in no order."""
    comm = MPI.COMM_WORLD
    owner = np.random.default_rng(1).integers(0, max(1, comm.size - 1), NUM_NODES)
    node_id = np.random.default_rng(2).permutation(NUM_NODES)[owner == comm.rank]
    name = (np.arange(NUM_NODES) if name is None else name)[node_id]
    write_answers(comm, path, "made", Answers(task, NUM_NODES, node_id, name, LOGITS[node_id], EMBEDDINGS[node_id],
                                              class_names))


def rows_of(path):
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def table_of(path):
    """Columns of a table by name, of either format; numbers of a CSV as float64."""
    if path.suffix == ".parquet":
        table = pytest.importorskip("pyarrow.parquet").read_table(path)
        found = {name: table[name].to_pylist() for name in table.column_names if name != "embedding"}
        if "embedding" in table.column_names:
            rows = table["embedding"].to_pylist()
            found |= {f"embedding_{number}": [row[number] for row in rows] for number in (0, 1)}
        return found
    rows = rows_of(path)
    text = ("node", "class_name")
    return {name: [row[name] if name in text else float(row[name]) for row in rows] for name in rows[0]}


def test_one_long_text_makes_no_large_file(tmp_path, monkeypatch):
    monkeypatch.setattr(answer_file, "FEW_BYTES", 0)
    names = np.array([f"né{number}" for number in range(NUM_NODES)], dtype=object)
    names[3] += "x" * 20_000
    write_all(tmp_path / "answers.npz", name=names)
    assert (tmp_path / "answers.npz").stat().st_size < 100_000
    assert read_answer_arrays(tmp_path / "answers.npz")["node"].tolist() == names.tolist()


@pytest.mark.parallel([1, 3])
@pytest.mark.parametrize("suffix", [".npz", ".h5"])
@pytest.mark.parametrize("name", [None, NAMES], ids=["numbers", "strings"])
def test_arrays_are_those_that_went_in(shared_path, piece_bytes, suffix, name):
    path = shared_path / f"answers{suffix}"
    write_all(path, class_names=NAMED, name=name)
    found = on_rank_zero(MPI.COMM_WORLD, lambda: read_answer_arrays(path))
    found.pop("dataset", None)
    assert found.keys() == {"node", "prediction", "probability", "logits", "embeddings", "class_names"}
    assert found["node"].tolist() == (list(range(NUM_NODES)) if name is None else NAMES.tolist())
    assert found["class_names"].tolist() == list(NAMED)
    np.testing.assert_array_equal(found["logits"], LOGITS)
    np.testing.assert_array_equal(found["embeddings"], EMBEDDINGS)
    np.testing.assert_array_equal(found["prediction"], LOGITS.argmax(axis=1))
    np.testing.assert_allclose(found["probability"], scipy.special.softmax(LOGITS, axis=1).max(axis=1), rtol=1e-6)


@pytest.mark.parallel([1, 3])
@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_tables_are_those_that_went_in(shared_path, piece_bytes, suffix):
    path = shared_path / f"answers{suffix}"
    write_all(path, class_names=NAMED, name=NAMES)
    found = on_rank_zero(MPI.COMM_WORLD, lambda: table_of(path))
    best = LOGITS.argmax(axis=1)
    assert list(found) == ["node", "class", "class_name", "probability", "embedding_0", "embedding_1"]
    assert (list(found["node"]), list(found["class"])) == (NAMES.tolist(), best.tolist())
    assert list(found["class_name"]) == [NAMED[number] for number in best]
    shares = scipy.special.softmax(LOGITS, axis=1).max(axis=1)
    np.testing.assert_allclose(found["probability"], shares, rtol=1e-6)
    for number in range(2):
        np.testing.assert_array_equal(np.float32(found[f"embedding_{number}"]), EMBEDDINGS[:, number])


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_tables_of_several_labels_and_of_values(tmp_path, suffix):
    path = tmp_path / f"answers{suffix}"
    write_all(path, MULTI_LABEL, ("red", "green", "blue"))
    found = table_of(path)
    for number, name in enumerate(("red", "green", "blue")):
        np.testing.assert_array_equal(found[f"label_{name}"], LOGITS[:, number] > 0)
        np.testing.assert_allclose(found[f"probability_{name}"], scipy.special.expit(LOGITS[:, number]), rtol=1e-6)
    write_all(path, REGRESSION)
    found = table_of(path)
    assert "probability" not in found
    np.testing.assert_array_equal(np.float32(found["value_1"]), LOGITS[:, 1])


@pytest.mark.parametrize("suffix", answer_file.WRITERS)
def test_a_failure_leaves_what_was_there(tmp_path, suffix, monkeypatch):
    path = tmp_path / f"answers{suffix}"
    path.write_text("before")

    def fail(*arguments):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.replace", fail)
    with pytest.raises(CollectiveError, match="can't be written: No space left on device"):
        write_all(path)
    assert [(file.name, file.read_text()) for file in tmp_path.iterdir()] == [(path.name, "before")]


def test_a_file_that_can_not_be_written_is_refused_before_work_is_done(tmp_path):
    with pytest.raises(ConfigError, match=r"names no format of predictions; end it with one of \.parquet, \.h5, "):
        check_answer_file(tmp_path / "answers.xlsx")
    with pytest.raises(CheckpointError, match="its folder does not exist"):
        check_answer_file(tmp_path / "none" / "answers.npz")


@pytest.mark.parametrize("suffix", [".h5", ".npz"])
def test_a_damaged_file_is_refused(tmp_path, suffix):
    path = tmp_path / f"answers{suffix}"
    write_all(path)
    content = bytearray(path.read_bytes())
    content[len(content) // 2:] = b""
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match="run hpcgnn predict again"):
        read_answer_arrays(path)
