"""The fingerprint names a source: each change of it changes one digest, and how it was cut changes none."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import scipy.sparse
from reference_partition import random_dataset

from hpcgnn.data.dataset import GraphDataset
from hpcgnn.errors import CheckpointError, ShardError
from hpcgnn.partition.choices import PARTITIONERS, REORDERS
from hpcgnn.partition.owner import assign_owners
from hpcgnn.shards import features
from hpcgnn.shards.feature_formats import FEATURE_FORMATS
from hpcgnn.shards.features import FeatureStorage, fingerprint_of, hash_clusters
from hpcgnn.shards.reader import read_graph_info
from hpcgnn.shards.schema import Fingerprint, Provenance, check_fingerprint
from hpcgnn.shards.writer import Making, write_shards

FLOAT32 = FeatureStorage("float32")


@pytest.fixture
def dataset():
    return random_dataset(60, 200, seed=1, directed=True, num_features=5)


def changed(array, place, value):
    array = array.copy()
    array[place] = value
    return array


def another_arc(dataset):
    """The first row with an arc gets another source."""
    row = int(np.flatnonzero(np.diff(dataset.indptr) == 1)[0])
    place = dataset.indptr[row]
    source = next(u for u in range(dataset.num_nodes) if u not in (row, dataset.indices[place]))
    return replace(dataset, indices=changed(dataset.indices, place, source))


CHANGES = {
    "an arc": ("graph", another_arc),
    "an arc less": ("graph", lambda one: replace(one, indices=one.indices[:-1],
                                                 indptr=np.minimum(one.indptr, one.num_edges - 1))),
    "a label": ("split", lambda one: replace(one, labels=changed(one.labels, 59, (one.labels[59] + 1) % 4))),
    "classes": ("split", lambda one: replace(one, num_classes=5)),
    "a train bit": ("split", lambda one: replace(one, train_mask=changed(one.train_mask, 7, ~one.train_mask[7]))),
    "a val bit": ("split", lambda one: replace(one, val_mask=changed(one.val_mask, 7, ~one.val_mask[7]))),
    "a test bit": ("split", lambda one: replace(one, test_mask=changed(one.test_mask, 7, ~one.test_mask[7]))),
    "val and test swapped": ("split", lambda one: replace(one, val_mask=one.test_mask, test_mask=one.val_mask)),
    "a feature": ("features", lambda one: replace(one, features=changed(
        one.features, (59, 4), np.nextafter(one.features[59, 4], np.float32(9))))),
    "a column less": ("features", lambda one: replace(one, features=one.features[:, :4])),
}


@pytest.mark.parametrize("what", CHANGES)
def test_one_change_changes_exactly_its_digest(dataset, what):
    name, change = CHANGES[what]
    assert fingerprint_of(dataset, FLOAT32).differences(fingerprint_of(change(dataset), FLOAT32)) == (name,)


def test_a_graph_without_weights_and_targets_has_the_fingerprint_of_before():
    """The digests were computed by the version that knew neither."""
    place = np.arange(5)
    ring = GraphDataset("ring", np.arange(6), (place + 4) % 5, (np.arange(10, dtype=np.float32) / 4).reshape(5, 2),
                        place % 3, 3, place < 2, place == 2, place > 2)
    assert fingerprint_of(ring, FLOAT32) == Fingerprint(
        "45cc2e913f7b9dc2b67118fded35d44a", "c7e41bb196fd173de304ada3303346fd", "5726962223ebba1d8d4df1a8fd72dca1")


def test_weights_are_part_of_the_graph_and_targets_of_the_split(dataset):
    weights = np.linspace(1, 2, dataset.num_edges, dtype=np.float32)
    weighted = replace(dataset, edge_weight=weights)
    assert fingerprint_of(dataset, FLOAT32).differences(fingerprint_of(weighted, FLOAT32)) == ("graph",)
    another = replace(dataset, edge_weight=changed(weights, 5, np.nextafter(weights[5], np.float32(9))))
    assert fingerprint_of(weighted, FLOAT32).differences(fingerprint_of(another, FLOAT32)) == ("graph",)
    targets = dataset.labels[:, None].astype(np.float32)
    regression = replace(dataset, labels=targets, num_classes=1)
    assert fingerprint_of(dataset, FLOAT32).differences(fingerprint_of(regression, FLOAT32)) == ("split",)
    another = replace(regression, labels=changed(targets, (59, 0), np.nan))
    assert fingerprint_of(regression, FLOAT32).differences(fingerprint_of(another, FLOAT32)) == ("split",)


def test_names_of_nodes_change_nothing(dataset):
    named = replace(dataset, node_name=np.arange(60) + 7, class_names=("a", "b", "c", "d"))
    assert fingerprint_of(named, FLOAT32) == fingerprint_of(dataset, FLOAT32)


def test_clusters_change_nothing_and_have_a_digest_of_their_own(tmp_path, dataset):
    cluster = np.arange(60, dtype=np.int32) // 7
    owner = np.arange(60, dtype=np.int32) % 2
    with_clusters, without = (write_shards(dataset, owner, tmp_path / str(given is None), Making(2, reorder="none"),
                                           Provenance("a:b", "random", 0), cluster=given) for given in (cluster, None))
    assert with_clusters.fingerprint == without.fingerprint
    assert with_clusters.cluster_digest == hash_clusters(cluster.astype(">i8"))
    assert with_clusters.cluster_digest != hash_clusters(changed(cluster, 3, 1))


def test_indicator_labels_differ_from_class_ids(dataset):
    indicators = replace(dataset, labels=np.eye(4, dtype=np.uint8)[dataset.labels])
    assert fingerprint_of(dataset, FLOAT32).differences(fingerprint_of(indicators, FLOAT32)) == ("split",)


@pytest.mark.parametrize("form", [FEATURE_FORMATS[0], *(pytest.param(form, marks=pytest.mark.long)
                                                        for form in FEATURE_FORMATS[1:])])
def test_parts_partitioner_and_order_of_rows_change_nothing(tmp_path, dataset, form):
    found = set()
    for number, (parts, partitioner, reorder) in enumerate(
            [(1, "metis", "none"), *((3, one, "none") for one in PARTITIONERS),
             *((2, "ldg", one) for one in REORDERS)]):
        folder = tmp_path / str(number)
        write_shards(dataset, assign_owners(dataset, parts, partitioner, number), folder,
                     Making(parts, reorder=reorder, feature_format=form), Provenance("a:b", partitioner, number))
        found.add(read_graph_info(folder).fingerprint)
    assert len(found) == 1 and found.pop().is_valid


def test_how_a_dataset_lies_in_memory_changes_nothing(dataset):
    same = replace(dataset, indices=dataset.indices.astype(np.int64), indptr=dataset.indptr.astype(">i8"),
                   features=scipy.sparse.csr_matrix(dataset.features))
    assert fingerprint_of(same, FLOAT32) == fingerprint_of(dataset, FLOAT32)


def test_blocks_change_nothing(dataset, monkeypatch):
    before = fingerprint_of(dataset, FLOAT32)
    monkeypatch.setattr(features, "BLOCK_ENTRIES", 7)
    assert fingerprint_of(dataset, FLOAT32) == before


def test_forms_of_features_differ(dataset):
    storages = [FLOAT32, FeatureStorage("float16"), *(FeatureStorage("package", bits=bits) for bits in (8, 4))]
    assert len({fingerprint_of(dataset, storage).features for storage in storages}) == 4


def test_features_that_are_stored_alike_are_alike(dataset):
    rounded = replace(dataset, features=dataset.features.astype(np.float16).astype(np.float32))
    storage = FeatureStorage("float16")
    assert fingerprint_of(dataset, storage) == fingerprint_of(rounded, storage)


@pytest.fixture
def info(tmp_path, dataset):
    return write_shards(dataset, np.zeros(60, np.int32), tmp_path, Making(reorder="none"),
                        Provenance("a:b", "random", 0))


@pytest.mark.parametrize("names, words", [
    (("graph",), "its graph differs"), (("features",), "its features differ"),
    (("graph", "split", "features"), "its graph, split and features differ"),
])
def test_what_differs_is_named_with_the_remedy(info, names, words):
    written = replace(info.fingerprint, **dict.fromkeys(names, "0" * 32))
    with pytest.raises(CheckpointError, match=f"^runs/a was made .* {words}; name .* pass --other-graph") as caught:
        check_fingerprint("runs/a", written, info, other_graph=False)
    assert "\n" not in str(caught.value)
    check_fingerprint("runs/a", written, info, other_graph=True)


def test_the_same_data_are_accepted(info):
    check_fingerprint("runs/a", replace(info.fingerprint), info, other_graph=False, error=ShardError)


@pytest.mark.parametrize("digest", ["", "0" * 31, "0" * 33, "g" * 32, "A" * 32, None])
def test_digests_of_another_form_are_none(digest):
    assert not Fingerprint("0" * 32, digest, "1" * 32).is_valid
