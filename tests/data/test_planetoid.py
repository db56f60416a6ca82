import collections
import copyreg
import os
import pickle
import struct
from typing import ClassVar

import numpy as np
import pytest
import scipy.sparse

from hpcgnn.data.options import SourceOptions
from hpcgnn.data.source import load_source
from hpcgnn.errors import DatasetError

# 12 nodes: 0-8 in allx (0-2 train), test ids 9 and 11, and 10 left out of test.index as 15 of CiteSeer's are.
NEIGHBORS = {0: [1, 2, 2], 1: [0], 2: [0, 3], 3: [2, 3], 4: [5], 5: [4], 6: [], 7: [11], 8: [9], 9: [8], 10: [],
             11: [7]}
PYTHON_2_MODULES = {"builtins": "__builtin__", "copyreg": "copy_reg", "numpy._core.multiarray": "numpy.core.multiarray",
                    "scipy.sparse._csr": "scipy.sparse.csr"}
TEST_ORDER = [11, 9]


class Python2Pickler(pickle._Pickler):
    """Writes what Python 2's pickle wrote: byte strings for all text, and the module names of its time."""

    dispatch: ClassVar = dict(pickle._Pickler.dispatch)

    def save_text(self, content):
        data = content if isinstance(content, bytes) else content.encode("latin1")
        self.write(pickle.BINSTRING + struct.pack("<i", len(data)) + data)
        self.memoize(content)

    def save_global(self, content, name=None):
        module = PYTHON_2_MODULES.get(content.__module__, content.__module__)
        self.write(pickle.GLOBAL + f"{module}\n{name or content.__qualname__}\n".encode())
        self.memoize(content)

    dispatch[str] = dispatch[bytes] = save_text


def dump(path, content, protocol=2):
    with path.open("wb") as file:
        Python2Pickler(file, protocol).dump(content)


@pytest.fixture
def features():
    return scipy.sparse.random(12, 6, density=0.5, format="csr", dtype=np.float32, random_state=5)


@pytest.fixture
def folder(tmp_path, features):
    labels = np.eye(3, dtype=np.int32)[np.arange(12) % 3]
    graph = collections.defaultdict(list, {node: list(row) for node, row in NEIGHBORS.items()})
    for part, content in {"x": features[:3], "allx": features[:9], "tx": features[TEST_ORDER], "y": labels[:3],
                          "ally": labels[:9], "ty": labels[TEST_ORDER], "graph": graph}.items():
        dump(tmp_path / f"ind.tiny.{part}", content)
    (tmp_path / "ind.tiny.test.index").write_text("".join(f"{node}\n" for node in TEST_ORDER))
    return tmp_path


def load(folder, name="tiny", **options):
    return load_source(f"planetoid:{folder}/{name}", SourceOptions(**options))


def test_python_2_pickles_come_back_whole(folder, features, arcs_of, split_of):
    dataset = load(folder)
    assert dataset.name == "tiny"
    pairs = {(u, v) for u, row in NEIGHBORS.items() for v in row if u != v}
    assert arcs_of(dataset) == pairs | {(v, u) for u, v in pairs}
    expected = features.toarray()
    expected[10] = 0
    np.testing.assert_array_equal(dataset.features.toarray(), expected)
    assert dataset.labels.tolist() == [0, 1, 2, 0, 1, 2, 0, 1, 2, 0, -1, 2]
    assert split_of(dataset) == [[0, 1, 2], [3, 4, 5, 6, 7, 8], [9, 11]]


def test_duplicates_loops_and_gaps_are_reported(folder):
    report = load(folder).cleaning
    assert (report.duplicate_edges_removed, report.self_loops_removed, report.isolated_nodes) == (1, 1, 2)
    assert report.remarks == ("1 nodes have neither features nor a label at the source",
                              "1 nodes have features of zeros only")


@pytest.mark.parametrize("protocol", [0, 1, 2, 3, 4])
def test_arrays_pickled_by_python_3_are_read_too(folder, protocol):
    before = load(folder)
    labels = np.eye(3, dtype=np.int32)[np.arange(9) % 3]
    (folder / "ind.tiny.ally").write_bytes(pickle.dumps(labels, protocol=protocol))
    np.testing.assert_array_equal(load(folder).labels, before.labels)


def test_matrices_pickled_by_this_scipy_are_read_too(folder, features):
    before = load(folder)
    (folder / "ind.tiny.allx").write_bytes(pickle.dumps(features[:9], protocol=2))
    np.testing.assert_array_equal(load(folder).features.toarray(), before.features.toarray())


def test_a_folder_of_one_dataset_needs_no_name_and_a_name_may_carry_the_prefix_of_its_files(folder):
    assert load_source(f"planetoid:{folder}", SourceOptions()).name == load(folder, "ind.tiny").name == "tiny"


def test_a_folder_of_several_datasets_needs_a_name(folder):
    (folder / "ind.other.graph").touch()
    with pytest.raises(DatasetError, match="found files of other, tiny"):
        load_source(f"planetoid:{folder}", SourceOptions())


class Bomb:
    def __reduce__(self):
        return os.system, ("touch exploded",)


@pytest.mark.parametrize("bomb", [Bomb(), np.array([Bomb()], dtype=object), {0: Bomb()}])
def test_a_pickle_that_names_anything_else_is_refused_and_not_run(folder, bomb, monkeypatch):
    monkeypatch.chdir(folder)
    (folder / "ind.tiny.graph").write_bytes(pickle.dumps(bomb, protocol=2))
    with pytest.raises(DatasetError, match=r"ind\.tiny\.graph is no pickle of arrays .*(system|type O8)"):
        load(folder)
    assert not (folder / "exploded").exists()


@pytest.mark.parametrize("name", ["eval", "getattr", "__import__"])
def test_builtin_functions_are_refused(folder, name):
    (folder / "ind.tiny.graph").write_bytes(f"c__builtin__\n{name}\n(S'1'\ntR.".encode())
    with pytest.raises(DatasetError, match=f"__builtin__.{name}"):
        load(folder)


def test_a_matrix_whose_columns_point_outside_is_refused(folder, features):
    allx = features[:9].copy()
    allx.indices[0] = 10**6
    dump(folder / "ind.tiny.allx", allx)
    with pytest.raises(DatasetError, match=r"ind\.tiny\.allx can't be unpickled"):
        load(folder)


@pytest.mark.parametrize(("part", "content", "match"), [
    ("allx", np.zeros((9, 6)), "holds no CSR matrix"),
    ("ally", [1, 2, 3], "holds no number matrix"),
    ("graph", [1, 2, 3], "holds no dictionary"),
    ("graph", {0: 5}, "no map from nodes to lists of nodes"),
    ("graph", {0: [12]}, "edge to node 12, which does not exist"),
    ("ty", np.zeros((5, 3), dtype=np.int32), "disagree"),
    ("ally", np.zeros((9, 3), dtype=np.int32), "unknown label"),
    ("y", np.zeros((0, 3), dtype=np.int32), "no training node"),
])
def test_files_that_disagree_are_refused(folder, part, content, match):
    dump(folder / f"ind.tiny.{part}", content)
    with pytest.raises(DatasetError, match=match):
        load(folder)


@pytest.mark.parametrize("part", ["allx", "tx", "ally", "ty", "y", "graph", "test.index"])
def test_a_missing_file_is_named(folder, part):
    (folder / f"ind.tiny.{part}").unlink()
    with pytest.raises(DatasetError, match=rf"ind\.tiny\.{part} does not exist"):
        load(folder)


@pytest.mark.parametrize("part", ["allx", "ally", "graph"])
def test_a_truncated_file_is_named(folder, part):
    path = folder / f"ind.tiny.{part}"
    path.write_bytes(path.read_bytes()[:40])
    with pytest.raises(DatasetError, match=rf"ind\.tiny\.{part}"):
        load(folder)


def test_objects_of_protocol_0_are_rebuilt(folder, features):
    """Python 2's protocols 0 and 1 build a matrix through copy_reg._reconstructor."""
    before = load(folder).features.toarray()

    class Rebuilt:
        def __reduce__(self):
            return copyreg._reconstructor, (scipy.sparse.csr_matrix, object, None), {
                key: vars(features[:9])[key] for key in ("_shape", "data", "indices", "indptr")}

    dump(folder / "ind.tiny.allx", Rebuilt(), protocol=2)
    np.testing.assert_array_equal(load(folder).features.toarray(), before)
