import zipfile

import numpy as np
import pytest
import scipy.sparse

from hpcgnn.data.arrays import RowFile
from hpcgnn.data.features import FeatureRows
from hpcgnn.data.options import SourceOptions
from hpcgnn.data.source import load_source
from hpcgnn.errors import DatasetError


@pytest.fixture
def arrays(small_graph):
    """The archive's arrays with dense features, rows by destination."""
    matrix = scipy.sparse.coo_matrix((np.ones(len(small_graph.source)), (small_graph.target, small_graph.source)),
                                     shape=(30, 30)).tocsr()
    masks = {key: np.isin(np.arange(30), ids)
             for key, ids in zip(("train_mask", "val_mask", "test_mask"), small_graph.split, strict=True)}
    return {"indptr": matrix.indptr.astype(np.int64), "indices": matrix.indices, "num_features": np.int64(5),
            "features": small_graph.features, "labels": small_graph.labels, "num_classes": np.int64(4), **masks}


@pytest.fixture
def load(tmp_path):
    def save_and_load(arrays, options=None, compressed=True, settings=""):
        (np.savez_compressed if compressed else np.savez)(tmp_path / "tiny.npz", **arrays)
        return load_source(f"npz:{tmp_path}/tiny.npz{settings}", options or SourceOptions())
    return save_and_load


@pytest.mark.parametrize("compressed", [True, False])
def test_a_dense_archive_comes_back_whole(arrays, load, small_graph, arcs_of, split_of, compressed):
    dataset = load(arrays, compressed=compressed)
    assert dataset.name == "tiny"
    assert arcs_of(dataset) == small_graph.arcs()
    assert not dataset.cleaning.is_symmetric
    assert dataset.cleaning.isolated_nodes == 1
    np.testing.assert_array_equal(dataset.features, small_graph.features)
    assert isinstance(dataset.features, FeatureRows) == (not compressed)
    np.testing.assert_array_equal(dataset.labels, small_graph.labels)
    assert split_of(dataset) == [sorted(ids) for ids in small_graph.split]


@pytest.mark.parametrize("names", [("x", "y"), ("features", "labels")])
def test_an_archive_with_an_edge_index_is_the_same_graph(arrays, load, small_graph, arcs_of, split_of, names):
    features, labels = names
    masks = {key: array for key, array in arrays.items() if key.endswith("_mask")}
    dataset = load({"edge_index": np.stack([small_graph.source, small_graph.target]), features: small_graph.features,
                    labels: small_graph.labels, **masks})
    assert arcs_of(dataset) == small_graph.arcs()
    np.testing.assert_array_equal(dataset.features, small_graph.features)
    np.testing.assert_array_equal(dataset.labels, small_graph.labels)
    assert split_of(dataset) == [sorted(ids) for ids in small_graph.split]


def test_an_archive_with_an_edge_index_takes_the_labels_that_are_named(arrays, load, small_graph, tmp_path):
    edges = np.stack([small_graph.source, small_graph.target])
    np.savez(tmp_path / "other.npz", edge_index=edges, x=small_graph.features, y=np.zeros(30, int),
             kind=small_graph.labels)
    dataset = load_source(f"npz:{tmp_path}/other.npz,label=kind", SourceOptions())
    np.testing.assert_array_equal(dataset.labels, small_graph.labels)


def test_an_archive_with_an_edge_index_holds_links_out(load):
    edges = np.array([[0, 1, 2, 3], [1, 2, 3, 0]])
    dataset = load({"edge_index": edges, "x": np.eye(4), "val_links": edges[:, :1].T, "test_links": edges[:, 1:2].T})
    assert dataset.held_out.tolist() == [[0, 1, 1], [1, 2, 2]] and len(dataset.indices) == 2


def test_an_archive_without_a_graph_is_refused(load, small_graph):
    with pytest.raises(DatasetError, match=r"neither indptr with indices nor edge_index.* it has x, y"):
        load({"x": small_graph.features, "y": small_graph.labels})


@pytest.mark.parametrize("has_values", [True, False])
def test_sparse_features_stay_sparse_and_default_to_ones(arrays, load, has_values):
    features = scipy.sparse.random(30, 9, density=0.2, format="csr", dtype=np.float32, random_state=1)
    del arrays["features"]
    arrays |= {"feat_indptr": features.indptr.astype(np.int64), "feat_indices": features.indices,
               "num_features": np.int64(9)}
    if has_values:
        arrays["feat_data"] = features.data
    dataset = load(arrays)
    assert scipy.sparse.issparse(dataset.features)
    expected = features.toarray() if has_values else (features.toarray() != 0)
    np.testing.assert_array_equal(dataset.features.toarray(), expected)


def test_an_archive_without_masks_is_split_at_random(arrays, load):
    without = {key: array for key, array in arrays.items() if not key.endswith("mask")}
    dataset = load(without)
    assert dataset.train_mask.sum() == 18
    assert "drawn at random with seed 0, as the source has none: 18 train" in dataset.cleaning.read.of("splits")[0]


@pytest.mark.parametrize("form", ["lists of rows", "words", "words by name"])
def test_splits_that_are_no_masks_are_read(arrays, load, split_of, form):
    expected = split_of(load(arrays))
    masks = [arrays.pop(f"{word}_mask") for word in ("train", "val", "test")]
    if form == "lists of rows":
        arrays |= {f"{word}_idx": np.flatnonzero(mask)
                   for word, mask in zip(("train", "val", "test"), masks, strict=True)}
    else:
        arrays["fold" if form == "words by name" else "split"] = np.select(masks, ["train", "val", "test"], "")
    settings = ",split=fold" if form == "words by name" else ""
    dataset = load(arrays, settings=settings)
    assert split_of(dataset) == expected
    assert "given by" in dataset.cleaning.read.of("splits")[0]
    with pytest.raises(DatasetError, match="has no array 'role' to take the splits from; it holds indptr"):
        load(arrays, settings=",split=role")


@pytest.mark.parametrize("key", ["indptr", "indices", "val_mask"])
def test_a_missing_array_is_named(arrays, load, key):
    del arrays[key]
    with pytest.raises(DatasetError, match=key):
        load(arrays)


def change(key, index, value):
    def apply(arrays):
        arrays[key] = arrays[key].copy()
        arrays[key][index] = value
    return apply


def with_value(array, value):
    array[0] = value
    return array


def replace(key, value):
    return lambda arrays: arrays.__setitem__(key, value)


@pytest.mark.parametrize(("damage", "match"), [
    (change("indices", 3, 30), "edge to node 30, which does not exist"),
    (change("indices", 3, -2), "edge to node -2, which does not exist"),
    (change("indptr", 4, 10**6), "indptr does not rise"),
    (change("labels", 0, 4), r"label 4; labels must lie in 0\.\.3"),
    (change("features", (2, 1), np.nan), "NaN or infinite, first at node 2"),
    (change("features", (2, 1), -np.inf), "NaN or infinite"),
    (change("train_mask", slice(None), False), "no training node"),
    (change("val_mask", slice(None), True), "two of the train, validation and test splits"),
    (replace("labels", np.zeros(29, dtype=np.int64)), "29 labels for 30 nodes"),
    (replace("labels", np.full((30, 4), 2, dtype=np.uint8)), "expected 0 or 1"),
    (replace("labels", np.array(["a"] * 30)), "names 1 classes and says that there are 4"),
    (replace("features", np.zeros((29, 5), dtype=np.float32)), "29 feature rows for 30 nodes"),
    (replace("features", np.zeros(30, dtype=np.float32)), "expected a matrix of numbers"),
    (replace("indices", np.zeros((2, 2))), "expected a vector of integers"),
    (replace("num_classes", np.zeros(3)), "expected one integer"),
    (replace("test_mask", np.zeros(7, dtype=bool)), "test_mask has shape"),
    (replace("labels", np.array([None] * 30)), "labels holds objects of Python"),
    # Numbers that a cast would turn into others.
    (replace("labels", with_value(np.zeros(30, np.uint64), 2**64 - 1)), "label 18446744073709551615"),
    (replace("labels", with_value(np.zeros(30, np.uint64), 2**63)), "label 9223372036854775808"),
    (replace("labels", with_value(np.zeros(30), 1e300)), "label 1e[+]300 at node 0"),
    (replace("labels", with_value(np.zeros(30), np.inf)), "label inf at node 0"),
    (replace("labels", np.zeros((30, 0), np.uint8)), r"labels of shape \(30, 0\)"),
    (replace("labels", np.zeros((30, 1, 1), np.int64)), r"labels of shape \(30, 1, 1\)"),
    (replace("labels", np.int64(1)), "the labels are a single value, 1"),
    (replace("labels", np.zeros(30, complex)), "the labels are complex numbers .complex128."),
    (replace("labels", np.zeros(30, "M8[s]")), "the labels are times .datetime64"),
    (replace("train_mask", np.array(["False"] * 30)), "train_mask is <U5 and holds more than 0 and 1"),
    (replace("train_mask", np.full(30, np.nan)), "train_mask is float64 and holds more than 0 and 1"),
    (replace("train_mask", np.arange(30)), "train_mask is int64 and holds more than 0 and 1"),
    (replace("val_mask", np.full(30, -1)), "val_mask is int64"),
    (replace("indptr", with_value(np.arange(31, dtype=np.uint64), 5)), "indptr does not rise"),
    (replace("indptr", np.full(31, 2**64 - 1, np.uint64)), "past any id or offset"),
    (replace("indptr", np.array([0, 127, -128, *range(3, 31)], np.int8)), "indptr does not rise"),
    (replace("indptr", np.zeros(0, np.int64)), "indptr does not rise"),
    (replace("indices", np.full(12, 2**64 - 1, np.uint64)), "past any id or offset"),
    (replace("features", np.zeros((30, 0), np.float32)), "0 feature columns; expected 1 to"),
    (replace("features", np.zeros((30, 3), complex)), "expected a matrix of numbers"),
    (replace("features", np.full((30, 3), 1e300)), "NaN or infinite"),
    (replace("num_classes", np.int64(10**12)), "1000000000000 classes; expected 1 to 1048576"),
    (replace("num_classes", np.int64(0)), "0 classes; expected 1 to"),
    (replace("num_classes", np.uint64(2**64 - 1)), "18446744073709551615 classes"),
])
@pytest.mark.filterwarnings("ignore:overflow encountered")
def test_inconsistent_arrays_are_refused(arrays, load, damage, match):
    damage(arrays)
    with pytest.raises(DatasetError, match=match):
        load(arrays)


@pytest.mark.parametrize("content", [b"", b"not an archive", b"PK\x03\x04broken"])
def test_a_file_of_another_format_is_refused(content, tmp_path):
    (tmp_path / "bad.npz").write_bytes(content)
    with pytest.raises(DatasetError, match=r"bad\.npz can't be read as a \.npz archive"):
        load_source(f"npz:{tmp_path}/bad.npz", SourceOptions())


@pytest.mark.parametrize(("members", "match"), [
    ([("labels.npy", b"text"), ("indptr.npy", b"text")], "indptr is no array"),
    ([("labels.npy", b"one"), ("labels.npy", b"two")], "holds labels.npy twice"),
])
@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_an_archive_of_something_else_is_refused(members, match, tmp_path):
    with zipfile.ZipFile(tmp_path / "odd.npz", "w") as archive:
        for name, content in members:
            archive.writestr(name, content)
    with pytest.raises(DatasetError, match=match):
        load_source(f"npz:{tmp_path}/odd.npz", SourceOptions())


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
@pytest.mark.parametrize("normalization", ["none", "row", "standard"])
def test_a_scratch_folder_changes_nothing_but_where_features_are(arrays, tmp_path, order, save, normalization):
    arrays["features"] = np.asarray(arrays["features"], order=order)
    save(tmp_path / "g.npz", **arrays)
    (tmp_path / "scratch").mkdir()
    kept, filed = (load_source(f"npz:{tmp_path}/g.npz", SourceOptions(scratch=scratch, symmetrize=True,
                                                                      normalize_features=normalization))
                   for scratch in (None, tmp_path / "scratch"))
    np.testing.assert_array_equal(np.asarray(filed.features), np.asarray(kept.features))
    np.testing.assert_array_equal(filed.indices, kept.indices)
    assert filed.cleaning == kept.cleaning
    assert isinstance(getattr(filed.features, "source", None), RowFile) == (order == "C")
    assert list((tmp_path / "scratch").iterdir()) == []


@pytest.mark.parametrize(("key", "save"), [("indices", np.savez), ("indices", np.savez_compressed),
                                           ("features", np.savez_compressed)])
def test_a_damaged_array_that_is_read_in_pieces_is_refused(arrays, tmp_path, save, key):
    path = tmp_path / "tiny.npz"
    save(path, **arrays)
    with zipfile.ZipFile(path) as archive:
        place = archive.getinfo(f"{key}.npy")
    content = bytearray(path.read_bytes())
    content[place.header_offset + 60 + place.compress_size // 2] ^= 0x55
    path.write_bytes(content)
    with pytest.raises(DatasetError, match=rf"damaged array '{key}'"):
        load_source(f"npz:{path}", SourceOptions(scratch=tmp_path))
