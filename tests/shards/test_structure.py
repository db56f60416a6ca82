"""A sealed file that a faulty program wrote is refused in one sentence before a number of it is used."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import replace
from pathlib import Path

import h5py
import numpy as np
import pytest
from reference_partition import random_dataset
from resealing import attribute, put, reseal

from hpcgnn.errors import ShardError
from hpcgnn.lowbit.package_shards import read_packages
from hpcgnn.shards.reader import read_graph_info, read_partition, verify_shards
from hpcgnn.shards.schema import Provenance
from hpcgnn.shards.structure import is_finite
from hpcgnn.shards.writer import Making, write_shards

ORIGIN = Provenance("a:b", "random", 0)
FORMS = ("float32", "float16", "package")


@pytest.fixture(scope="module")
def originals(tmp_path_factory):
    """Folder of shards by form of features and kind of labels."""
    made = {}
    for form in FORMS:
        for is_multi_label in (False, True):
            folder = tmp_path_factory.mktemp(form)
            dataset = random_dataset(60, 200, seed=1, directed=True, num_features=5, multi_label=is_multi_label)
            owner = np.random.default_rng(0).integers(0, 3, 60).astype(np.int32)
            write_shards(dataset, owner, folder, Making(3, feature_format=form, reorder="none"), ORIGIN)
            made[form, is_multi_label] = folder
    for more in ("texts", "regression"):
        made[more, False] = tmp_path_factory.mktemp(more)
        write_shards(dataset_of_more(more), owner, made[more, False], Making(3, reorder="none"), ORIGIN)
    made["clusters", False] = tmp_path_factory.mktemp("clusters")
    write_shards(random_dataset(60, 200, seed=1), owner, made["clusters", False], Making(3, reorder="none"), ORIGIN,
                 cluster=np.arange(60, dtype=np.int32) % 9)
    return made


def dataset_of_more(kind):
    """A graph with weights, and texts for ids and classes, or integers for ids and targets."""
    dataset = random_dataset(60, 200, seed=1, directed=True, num_features=5)
    weight = np.random.default_rng(1).random(dataset.num_edges).astype(np.float32) + 0.5
    if kind == "texts":
        return replace(dataset, edge_weight=weight, node_name=np.array([f"né{node:02}" for node in range(60)]),
                       class_names=("art", "bio", "law", "zoo")).check()
    labels = np.random.default_rng(2).normal(size=(60, 2)).astype(np.float32)
    labels[3, 1] = np.nan
    return replace(dataset, edge_weight=weight, node_name=np.arange(60) * 7 + 10**12, labels=labels,
                   num_classes=2).check()


@pytest.fixture(params=["texts", "regression"])
def more_shards(originals, tmp_path, request):
    return shutil.copytree(originals[request.param, False], tmp_path / "m")


@pytest.fixture
def shards(originals, tmp_path):
    return shutil.copytree(originals["float32", False], tmp_path / "g")


def changed(array, place, value):
    array[place] = value
    return array


def swapped(array):
    array[[0, 1]] = array[[1, 0]]
    return array


def overlap(file):
    file["val_mask"][...] = True
    file["train_mask"][...] = True


def mask_bits_beyond_one(file):
    place = file["train_mask"]
    place.id.write(h5py.h5s.ALL, h5py.h5s.ALL, np.full(place.shape, 7, np.int8), h5py.h5t.NATIVE_INT8)


PART_FAULTS = {
    "a boundary row of -1": (put("boundary_index", lambda a: changed(a, 0, -1)), "boundary_index from -1"),
    "a boundary row past the last": (put("boundary_index", lambda a: changed(a, 0, 10**6)), "to 1000000, expected 0"),
    "a source of -1": (put("indices", lambda a: changed(a, -1, -1)), "indices from -1"),
    "a source far below": (put("indices", lambda a: changed(a, 0, -(10**6))), "indices from -1000000"),
    "a source past the halo": (put("indices", lambda a: changed(a, 0, 60)), "indices from"),
    "halo_offset of zeros": (put("halo_offset", lambda a: a * 0), "halo_offset that does not rise from 0 to"),
    "halo_offset that falls": (put("halo_offset", lambda a: changed(a, 1, 2**62)), "halo_offset that does not rise"),
    "boundary_offset that starts late": (put("boundary_offset", lambda a: changed(a, 0, 1)), "boundary_offset that"),
    "boundary_offset of another pair": (put("boundary_offset", lambda a: changed(a, 2, a[2] - 1)), "boundary_offset"),
    "indptr that falls": (put("indptr", lambda a: changed(a, 3, -(2**63))), "indptr that does not rise"),
    "another in-degree": (put("in_degree", lambda a: changed(a, 0, a[0] + 1)), "in_degree that disagrees with indptr"),
    "an in-degree of -1": (put("in_degree", lambda a: changed(a, -1, -1)), "in_degree from -1"),
    "an id of another graph": (put("inner_id", lambda a: changed(a, 0, 60)), "inner_id from"),
    "a negative id": (put("halo_id", lambda a: changed(a, 0, -1)), "halo_id from -1"),
    "an id twice": (put("inner_id", lambda a: changed(a, 0, a[1])), "names a node twice"),
    "an id inside and outside": (lambda file: put("halo_id", lambda a: changed(a, 0, file["inner_id"][0]))(file),
                                 "names a node twice"),
    "a halo out of order": (put("halo_id", swapped), "halo_id that does not ascend"),
    "a boundary out of order": (put("boundary_index", swapped), "boundary_index with ids that do not ascend"),
    "importance that is NaN": (put("importance", lambda a: a * np.nan), "importance that is not between 0 and 1"),
    "importance above 1": (put("importance", lambda a: a + 1.5), "importance that is not between 0 and 1"),
    "a label of no class": (put("labels", lambda a: changed(a, 0, 4)), "labels from 0 to 4, expected -1 where unknown"),
    "a label below -1": (put("labels", lambda a: changed(a, 0, -2)), "labels from -2"),
    "labels of a split unknown": (put("labels", lambda a: a * 0 - 1), "in a split with an unknown label"),
    "splits that overlap": (overlap, "a node in two of train_mask, val_mask and test_mask"),
    "mask bits of 7": (mask_bits_beyond_one, "or values other than 0 and 1"),
    "a feature that is NaN": (put("features", lambda a: changed(a, (3, 2), np.nan)), "features that are NaN"),
    "a feature that is infinite": (put("features", lambda a: changed(a, (0, 0), -np.inf)), "NaN or infinite"),
    "more central rows": (attribute("num_central", lambda n: n + 1), "and graph.h5 says"),
    "fewer central rows": (attribute("num_central", np.int64(-1)), "has num_central = -1"),
    "a part that is a text": (attribute("part", "one"), "has part of type str, expected an integer"),
    "another graph's size": (attribute("num_nodes_global", np.int64(10**12)), "num_nodes_global 1000000000000"),
    "other parts": (attribute("num_parts", np.int64(2)), "holds num_parts 2, expected num_parts 3"),
    "float64 features": (put("features", lambda a: a.astype(float)), "features of float64"),
    "big-endian ids": (put("inner_id", lambda a: a.astype(">i8")), "inner_id of >i8"),
    "masks of integers": (put("train_mask", lambda a: a.astype(np.int8)), "train_mask of int8"),
    "a folder for an array": (lambda file: (file.pop("labels"), file.create_group("labels")), "is no array"),
    "a soft link that leads nowhere": (
        lambda file: (file.pop("labels"), file.__setitem__("labels", h5py.SoftLink("/nowhere"))), "has no labels"),
    "an array in another file": (
        lambda file: (file.pop("labels"), file.__setitem__("labels", h5py.ExternalLink("/x", "x"))), "has no labels"),
    "importance less": (put("importance", lambda a: a[1:]), "has importance of float32 and shape"),
    "no importance": (lambda file: file.pop("importance"), "has no importance"),
    "bytes that are not there": (
        lambda file: (file.pop("labels"), file.create_dataset("labels", (len(file["inner_id"]),), "i8", chunks=(1,))),
        "and it holds only 0"),
}


@pytest.mark.parametrize("how", PART_FAULTS)
def test_a_faulty_part_is_refused_by_name(shards, how):
    change, complaint = PART_FAULTS[how]
    path = shards / "part-0001.h5"
    reseal(path, change)
    for read in (lambda: read_partition(shards, 1, 3), lambda: verify_shards(shards)):
        with pytest.raises(ShardError) as refused:
            read()
        sentence = str(refused.value)
        assert sentence.startswith(str(path)) and complaint in sentence, sentence
        assert sentence.endswith("; run hpcgnn preprocess again") and "\n" not in sentence


MORE_FAULTS = {
    "a weight of 0": ("part-0001.h5", put("edge_weight", lambda a: changed(a, 0, 0)), "edge_weight that is not"),
    "a weight of NaN": ("part-0001.h5", put("edge_weight", lambda a: changed(a, 3, np.nan)), "edge_weight that is not"),
    "weights of float64": ("part-0001.h5", put("edge_weight", lambda a: a.astype(float)), "edge_weight of float64"),
    "a weight less": ("part-0001.h5", put("edge_weight", lambda a: a[1:]), "edge_weight of float32 and shape"),
    "no task": ("graph.h5", lambda file: file.attrs.pop("task"), "has no task"),
    "another task": ("graph.h5", attribute("task", "ranking"), "has task 'ranking', expected one of classes"),
    "names of nodes of a third kind": ("graph.h5", attribute("node_names", "dates"), "has node_names 'dates'"),
    "several labels that are none": ("graph.h5", attribute("task", "multi-label"), "which contradict each other"),
}


@pytest.mark.parametrize("how", MORE_FAULTS)
def test_weights_ids_and_tasks_are_checked(more_shards, how):
    name, change, complaint = MORE_FAULTS[how]
    reseal(more_shards / name, change)
    with pytest.raises(ShardError, match=complaint) as refused:
        read_partition(more_shards, 1, 3)
    assert str(refused.value).startswith(str(more_shards / name))


CLUSTER_FAULTS = {
    "a cluster past the last": ("part-0001.h5", put("cluster", lambda a: changed(a, 0, 9)), "to 9, expected 0 to 8"),
    "a cluster of -1": ("part-0001.h5", put("cluster", lambda a: changed(a, 0, -1)), "has cluster from -1"),
    "clusters of int64": ("part-0001.h5", put("cluster", lambda a: a.astype(np.int64)), "has cluster of int64"),
    "a cluster less": ("part-0001.h5", put("cluster", lambda a: a[1:]), "has cluster of int32 and shape"),
    "no clusters": ("part-0001.h5", lambda file: file.pop("cluster"), "has no cluster"),
    "10^12 clusters": ("graph.h5", attribute("num_clusters", np.int64(10**12)), "expected 1 to 60"),
    "-1 clusters": ("graph.h5", attribute("num_clusters", np.int64(-1)), "has num_clusters = -1"),
    "0 clusters": ("graph.h5", attribute("num_clusters", np.int64(0)), "has num_clusters = 0, expected 1 to 60"),
    "half a cluster": ("graph.h5", attribute("num_clusters", 0.5), "has num_clusters of type float64, expected an int"),
    "no number of clusters": ("graph.h5", lambda file: file.attrs.pop("num_clusters"), "has no num_clusters"),
    "no digest": ("graph.h5", lambda file: file.attrs.pop("cluster_digest"), "has no cluster_digest"),
    "a digest of words": ("graph.h5", attribute("cluster_digest", "abc"), "cluster_digest that is not of hexadecimal"),
    "a digest that is a number": ("graph.h5", attribute("cluster_digest", np.int64(3)), "cluster_digest that is not"),
    "an empty digest": ("graph.h5", attribute("cluster_digest", ""), "cluster_digest that is not of hexadecimal"),
}


@pytest.mark.parametrize("how", CLUSTER_FAULTS)
def test_faulty_clusters_are_refused_by_name(originals, tmp_path, how):
    folder = shutil.copytree(originals["clusters", False], tmp_path / "m")
    name, change, complaint = CLUSTER_FAULTS[how]
    reseal(folder / name, change)
    for read in (lambda: read_partition(folder, 1, 3), lambda: verify_shards(folder)):
        with pytest.raises(ShardError, match=complaint) as refused:
            read()
        assert str(refused.value).startswith(str(folder / name)) and str(refused.value).endswith("preprocess again")


def test_nodes_in_other_clusters_are_found_by_looking_at_all_parts(originals, tmp_path):
    folder = shutil.copytree(originals["clusters", False], tmp_path / "m")
    reseal(folder / "part-0001.h5", put("cluster", lambda a: changed(a, 0, (a[0] + 1) % 9)))
    assert read_partition(folder, 1, 3).cluster.max() < 9
    with pytest.raises(ShardError, match=r"has clusters that do not match the cluster_digest of graph\.h5"):
        verify_shards(folder)


TEXT_FAULTS = {
    "an id twice": (put("inner_name/bytes", lambda a: np.tile(a[:5], len(a) // 5)), "has an id twice in inner_name"),
    "an id that is no UTF-8": (put("inner_name/bytes", lambda a: a * 0 + 255), "inner_name that is no UTF-8"),
    "offsets that fall": (put("inner_name/offset", lambda a: a[::-1].copy()), "inner_name/offset that does not rise"),
    "bytes less": (put("inner_name/bytes", lambda a: a[:-1]), "inner_name/bytes of uint8 and shape"),
    "ids of another number": (put("inner_name/offset", lambda a: a[:-1]), "inner_name/offset of int64 and shape"),
}


@pytest.mark.parametrize("how", TEXT_FAULTS)
def test_faulty_texts_are_refused_by_name(originals, tmp_path, how):
    folder = shutil.copytree(originals["texts", False], tmp_path / "m")
    change, complaint = TEXT_FAULTS[how]
    reseal(folder / "part-0001.h5", change)
    with pytest.raises(ShardError, match=complaint):
        read_partition(folder, 1, 3)


@pytest.mark.parametrize("change, complaint", [
    (put("labels", lambda a: a * np.inf), "targets that are infinite"),
    (put("labels", lambda a: a * np.nan), "or none for a node in a split"),
    (put("labels", lambda a: a.astype(np.int64)), "labels of int64"),
    (put("inner_name", lambda a: a.astype(np.int32)), "inner_name of int32"),
    (put("inner_name", lambda a: a * 0), "has an id twice in inner_name"),
    (lambda file: file.pop("inner_name"), "has no inner_name"),
])
def test_faulty_targets_and_ids_are_refused(originals, tmp_path, change, complaint):
    folder = shutil.copytree(originals["regression", False], tmp_path / "m")
    reseal(folder / "part-0001.h5", change)
    with pytest.raises(ShardError, match=complaint):
        read_partition(folder, 1, 3)


@pytest.mark.parametrize("change", [put("class_names/bytes", lambda a: np.tile(a[:3], 4)),
                                    put("class_names/offset", lambda a: a[:-1])])
def test_class_names_are_one_for_each_class(originals, tmp_path, change):
    folder = shutil.copytree(originals["texts", False], tmp_path / "m")
    reseal(folder / "graph.h5", change)
    with pytest.raises(ShardError, match="class_names"):
        read_graph_info(folder)


def in_json(name, key, value):
    return attribute(name, lambda text: json.dumps({**json.loads(text), key: value}))


def in_column(name, value):
    return put(f"statistics/{name}", lambda a: changed(a, 0, value))


GRAPH_FAULTS = {
    "a name that is a path": (attribute("name", "../../x"), "names its graph '../../x', expected a short name"),
    "a name that is a folder": (attribute("name", ".."), "names its graph '..'"),
    "a name with a control character": (attribute("name", "a\x1b[2J"), "names its graph"),
    "a name of 200 characters": (attribute("name", "a" * 200), "names its graph"),
    "no name": (attribute("name", ""), "names its graph ''"),
    "a name that is a number": (attribute("name", np.int64(3)), "has name of type int, expected a text"),
    "10^12 classes": (attribute("num_classes", np.int64(10**12)), "num_classes = 1000000000000, expected 1 to"),
    "no class": (attribute("num_classes", np.int64(0)), "num_classes = 0"),
    "10^12 features": (attribute("num_features", np.int64(10**12)), "num_features = 1000000000000"),
    "10^12 nodes": (attribute("num_nodes", np.int64(10**12)), "owner of int32 and shape (60,), expected"),
    "negative nodes": (attribute("num_nodes", np.int64(-60)), "owner of int32"),
    "another number of edges": (attribute("num_edges", lambda n: n + 1), "a num_edges that does not sum to"),
    "10^12 parts": (attribute("num_parts", np.int64(10**12)), "expected int64 and shape (1000000000000,"),
    "counts that are floats": (attribute("num_train", 3.0), "has num_train of type float64, expected an integer"),
    "more training nodes than nodes": (attribute("num_train", np.int64(61)), "has num_train = 61"),
    "a bool that is a number": (attribute("is_multi_label", np.int64(1)), "has is_multi_label of type int"),
    "an unknown form": (attribute("feature_dtype", "int8"), "has feature_dtype 'int8'"),
    "another run": (attribute("run_id", "../../x"), "has run_id '../../x', expected 32"),
    "provenance that is no JSON": (attribute("provenance", "{"), "is not as hpcgnn writes graph files"),
    "provenance of more": (in_json("provenance", "x", 1), "is not as hpcgnn writes graph files"),
    "provenance of numbers": (in_json("provenance", "source", 1), "has a provenance in which source, "
                              "partitioner, seed or settings has the wrong type"),
    "cleaning that is a list": (attribute("cleaning", "[]"), "is not as hpcgnn writes graph files"),
    "cleaning of texts": (in_json("cleaning", "source_edges", "many"), "source_edges that is no int"),
    "remarks that are numbers": (in_json("cleaning", "remarks", [1]), "remarks that are no texts"),
    "a fingerprint of words": (in_json("fingerprint", "graph", "abc"), "fingerprint that is not of hexadecimal"),
    "a fingerprint less": (attribute("fingerprint", "{}"), "is not as hpcgnn writes graph files"),
    "a negative count": (in_column("num_halo", -1), "statistics of part 0 that can't be"),
    "imbalance that is NaN": (in_column("imbalance", np.nan), "statistics of part 0 that can't be"),
    "more rows sent": (in_column("num_sent", 10**6), "with a sent_to that does not sum to 1000000"),
    "other nodes": (in_column("num_inner", 50), "a num_inner that does not sum to 60"),
    "statistics of float32": (put("statistics/num_inner", lambda a: a.astype("f4")), "statistics/num_inner of float32"),
    "a column less": (lambda file: file["statistics"].pop("sent_to"), "has no statistics/sent_to"),
    "boundary_degree that falls": (put("boundary_degree", lambda a: a[::-1] + np.arange(101)[::-1]), "boundary_degree"),
    "boundary_degree of 3": (put("boundary_degree", lambda a: a[:3]), "boundary_degree of int64 and shape (3,)"),
    "types of nodes without numbers": (attribute("node_types", '[["paper"]]'), "a type of nodes that is not a name"),
    "types of nodes that are no list": (attribute("node_types", "3"), "is not as hpcgnn writes graph files"),
    "types of other nodes": (attribute("node_types", '[["paper", 61]]'), "has types of nodes that do not sum to 60"),
    "columns of relations without attributes": (attribute("relation_columns", "[1, 2]"),
                                                "has relation_columns that are not"),
    "columns of types without types": (attribute("type_columns", "[1, 2]"), "has type_columns that are not"),
    "no cleaning": (lambda file: file.attrs.pop("cleaning"), "has no cleaning"),
    "owners of int64": (put("owner", lambda a: a.astype("i8")), "owner of int64"),
}


@pytest.mark.parametrize("how", GRAPH_FAULTS)
def test_a_faulty_graph_file_is_refused_by_name(shards, how):
    change, complaint = GRAPH_FAULTS[how]
    reseal(shards / "graph.h5", change)
    with pytest.raises(ShardError) as refused:
        read_graph_info(shards)
    sentence = str(refused.value)
    assert sentence.startswith(f"{shards / 'graph.h5'} ") and complaint in sentence, sentence
    assert sentence.endswith("; run hpcgnn preprocess again") and "\n" not in sentence


FOLDER_FAULTS = {
    "an owner that is another": ("graph.h5", put("owner", lambda a: (a + 1) % 3), "gives to another part"),
    "splits that are counted wrong": ("graph.h5", attribute("num_val", lambda n: n - 1), "and graph.h5 says"),
    "importance that its user lacks": ("part-0001.h5", put("importance", lambda a: a * 0), "differ from the rows"),
    "sources out of order": ("part-0001.h5", None, "with sources that do not ascend"),
}


def swap_sources(file):
    """Two sources of one row, both inner or both halo, change places."""
    indptr, indices = file["indptr"][()], file["indices"][()]
    row = next(v for v in range(len(indptr) - 1) if indptr[v + 1] - indptr[v] > 1)
    indices[indptr[row]:indptr[row + 1]] = indices[indptr[row]:indptr[row + 1]][::-1]
    put("indices", indices)(file)


@pytest.mark.parametrize("how", FOLDER_FAULTS)
def test_what_one_part_can_not_see_is_found_by_verify(shards, how):
    name, change, complaint = FOLDER_FAULTS[how]
    reseal(shards / name, change or swap_sources)
    with pytest.raises(ShardError, match=complaint):
        verify_shards(shards)


# What may stand in place of any dataset.
REPLACEMENTS = {
    "nothing": None, "a number": np.int64(0), "a text": "x", "texts": np.array([b"a", b"b"]), "none": np.zeros(0),
    "an empty space": h5py.Empty("f4"), "floats": np.full(7, np.nan), "a pair": np.zeros(3, "i4,f8"),
}

# Attributes of which a replacement is one: any plain text, or a split without nodes, which verify_shards counts.
MAY_BE = {("name", str), ("hpcgnn_version", str), *((f"num_{split}", np.int64) for split in ("train", "val", "test"))}


def names_of(path):
    with h5py.File(path) as file:
        datasets = []
        file.visititems(lambda name, held: datasets.append(name) if isinstance(held, h5py.Dataset) else None)
        attributes = [("/", name) for name in file.attrs]
        attributes += [("packages", name) for name in file["packages"].attrs] if "packages" in file else []
    return datasets, attributes


def replaced(name, value):
    def change(file):
        del file[name]
        if value is not None:
            file[name] = value

    return change


@pytest.mark.parametrize("every", [13, pytest.param(1, marks=pytest.mark.long)])
@pytest.mark.parametrize("form, is_multi_label", [("texts", False), ("package", True)])
@pytest.mark.parametrize("file", ["graph.h5", "part-0001.h5"])
def test_any_dataset_or_attribute_of_another_kind_is_refused(originals, tmp_path, form, is_multi_label, file, every):
    """Each one in turn is taken away, or gives place to something else: to all things, or to every thirteenth one."""
    folder = shutil.copytree(originals[form, is_multi_label], tmp_path / "g")
    whole = (folder / file).read_bytes()
    datasets, attributes = names_of(folder / file)
    changes = [replaced(name, value) for name in datasets for value in REPLACEMENTS.values()]
    changes += [lambda content, place=place, name=name: content[place].attrs.pop(name) for place, name in attributes]
    changes += [lambda content, place=place, name=name, value=value: content[place].attrs.__setitem__(name, value)
                for place, name in attributes for value in REPLACEMENTS.values()
                if value is not None and (name, type(value)) not in MAY_BE]
    for change in changes[::every]:
        (folder / file).write_bytes(whole)
        reseal(folder / file, change)
        with pytest.raises(ShardError, match=r"^[^\n]+; run hpcgnn preprocess again$"):
            read_partition(folder, 1, 3)


def test_packages_are_checked_without_being_expanded(originals, tmp_path):
    folder = shutil.copytree(originals["package", False], tmp_path / "g")
    reseal(folder / "part-0001.h5", put("packages/scale", lambda a: changed(a, 0, np.inf)))
    with pytest.raises(ShardError, match="scales of packages that are negative, NaN or infinite"):
        read_packages(folder, 1, read_graph_info(folder))


@pytest.mark.parametrize("kind", ["pipe", "device", "folder"])
def test_what_is_no_file_is_refused_and_not_waited_for(shards, kind):
    path = shards / "part-0000.h5"
    path.unlink()
    {"pipe": os.mkfifo, "device": lambda place: place.symlink_to("/dev/zero"), "folder": Path.mkdir}[kind](path)
    with pytest.raises(ShardError, match=r"part-0000.h5 can't be read: .*; run hpcgnn preprocess again"):
        read_partition(shards, 0, 3)


def test_a_file_that_is_replaced_while_it_is_read_is_refused(shards, monkeypatch):
    other = shutil.copy(shards / "part-0000.h5", shards / "other.h5")
    honest = h5py.File.__init__

    def swap_and_open(self, name, *arguments, **options):
        os.replace(other, shards / "part-0000.h5")
        honest(self, name, *arguments, **options)

    info = read_graph_info(shards)
    monkeypatch.setattr(h5py.File, "__init__", swap_and_open)
    with pytest.raises(ShardError, match="was replaced while it was read; start again"):
        read_partition(shards, 0, 3, info)


def test_a_part_that_memory_can_not_hold_is_a_sentence(shards, monkeypatch):
    def fail(*_):
        raise MemoryError

    monkeypatch.setattr("hpcgnn.shards.reader._read_features", fail)
    with pytest.raises(ShardError, match=r"part-0000\.h5 needs more memory than this machine gives"):
        read_partition(shards, 0, 3)


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
@pytest.mark.parametrize("bad", [np.nan, -np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("place", [0, 6, 7, 20])
def test_one_value_that_is_not_finite_is_found_in_any_block(monkeypatch, dtype, bad, place):
    monkeypatch.setattr("hpcgnn.shards.structure.BLOCK_ENTRIES", 7)
    values = np.full((7, 3), np.finfo(dtype).max, dtype)
    values[1] = np.finfo(dtype).min
    assert is_finite(values) and is_finite(values[:0])
    values.reshape(-1)[place] = bad
    assert not is_finite(values)
