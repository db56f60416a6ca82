"""A folder of shards: what is written comes back, and folders that are torn, mixed or taken are refused."""

from __future__ import annotations

import re
import shutil
import uuid
from dataclasses import fields, replace
from pathlib import Path

import h5py
import numpy as np
import pytest
import scipy.sparse
from reference_partition import random_dataset

from hpcgnn.data.arrays import RowFile, keep_rows
from hpcgnn.data.features import FeatureRows
from hpcgnn.errors import ConfigError, ShardError
from hpcgnn.partition.build import build_partition
from hpcgnn.partition.choices import REORDERS
from hpcgnn.partition.clusters import cluster_nodes
from hpcgnn.partition.partition import Partition, measure_partition
from hpcgnn.shards import features, schema, writer
from hpcgnn.shards.folder import check_folder
from hpcgnn.shards.reader import read_graph_info, read_partition, verify_shards
from hpcgnn.shards.schema import Provenance
from hpcgnn.shards.writer import Making, make_shards, write_shards

ORIGIN = Provenance("edges:a.csv", "random", 5, {"parts": 2, "root": None, "balance_slack": 1.05})
TESTS = Path(__file__).parents[1]


def owner_of(dataset, num_parts, seed=0):
    return np.random.default_rng(seed).integers(0, num_parts, dataset.num_nodes).astype(np.int32)


def write(folder, dataset, num_parts=2, dtype="float32", cluster=None, **how):
    making = Making(num_parts, feature_format=dtype, **{"reorder": "none", **how})
    return write_shards(dataset, owner_of(dataset, num_parts), folder, making, ORIGIN, cluster)


@pytest.fixture
def dataset():
    return random_dataset(60, 200, seed=1, directed=True, num_features=40)


@pytest.fixture
def shards(tmp_path, dataset):
    write(tmp_path / "g", dataset)
    return tmp_path / "g"


@pytest.mark.parametrize("num_parts", [1, 2, 4])
@pytest.mark.parametrize("multi_label", [False, True])
@pytest.mark.parametrize("sparse", [False, True])
def test_every_part_comes_back_equal(tmp_path, num_parts, multi_label, sparse):
    dataset = random_dataset(60, 200, seed=2, directed=True, num_features=30, multi_label=multi_label, sparse=sparse)
    write(tmp_path, dataset, num_parts)
    for part in range(num_parts):
        expected = build_partition(dataset, owner_of(dataset, num_parts), part, num_parts)
        found = read_partition(tmp_path, part, num_parts)
        for item in fields(Partition):
            value, wanted = getattr(found, item.name), getattr(expected, item.name)
            np.testing.assert_array_equal(value, wanted, err_msg=item.name)
            assert np.asarray(value).dtype == np.asarray(wanted).dtype, item.name


@pytest.mark.parametrize("dtype", ["float32", "float16", "package"])
@pytest.mark.parametrize("reads", ["a scan, and one window", "a scan, and windows of 7 rows", "single rows"])
def test_features_in_a_file_are_stored_in_the_order_of_the_rows(tmp_path, monkeypatch, dtype, reads):
    dataset = random_dataset(60, 200, seed=3, directed=True, num_features=40)
    monkeypatch.setattr(features, "CHUNK_BYTES", 40)      # so a block is of 32 rows
    if "7" in reads:
        monkeypatch.setattr(features, "WINDOW_BYTES", 7 * 160)
    if reads == "single rows":
        monkeypatch.setattr(features.mmap, "PAGESIZE", 160)
    gathered, gather = [], RowFile._gather
    monkeypatch.setattr(RowFile, "_gather", lambda self, rows: gathered.append(len(rows)) or gather(self, rows))
    filed = FeatureRows(keep_rows([dataset.features], tmp_path, "x")).treated(
        lambda values, rows: 2 * values)
    folders, open_file = [], features.tempfile.TemporaryFile
    monkeypatch.setattr(features.tempfile, "TemporaryFile", lambda dir: folders.append(dir) or open_file(dir=dir))
    write(tmp_path / "found", replace(dataset, features=filed), dtype=dtype, reorder="degree")
    assert sum(count for count in gathered if count < 60) == (60 if reads == "single rows" else 0)
    assert len(folders) == (0 if reads == "single rows" else 2)
    assert all(folder.parent == tmp_path / "found" for folder in folders)      # on the disk of the shards
    write(tmp_path / "wanted", replace(dataset, features=2 * dataset.features), dtype=dtype, reorder="degree")
    for part in range(2):
        found, wanted = (read_partition(tmp_path / name, part, 2) for name in ("found", "wanted"))
        np.testing.assert_array_equal(found.features, wanted.features)
        assert not np.array_equal(found.inner_id, np.sort(found.inner_id)) and found.features.any()


def with_more(dataset, ids, task):
    """The dataset with weights, ids and names or targets."""
    rng = np.random.default_rng(8)
    ids = np.array([f"n{'x' * node}" for node in range(60)]) if ids == "texts" else rng.permutation(60) * 10**9 - 5
    more = {"labels": rng.normal(size=(60, 4)).astype(np.float32)} if task == "regression" else {
        "class_names": ("", "é", "c", "d")}
    return replace(dataset, edge_weight=rng.random(dataset.num_edges).astype(np.float32) + 1, node_name=ids, **more)


@pytest.mark.parametrize("ids", ["texts", "integers"])
@pytest.mark.parametrize("task", ["classes", "regression"])
@pytest.mark.parametrize("num_parts", [1, 3])
def test_weights_ids_names_and_targets_come_back_equal(tmp_path, dataset, ids, task, num_parts):
    dataset = with_more(dataset, ids, task).check()
    info = write(tmp_path, dataset, num_parts)
    assert verify_shards(tmp_path) == info
    assert (info.task, info.has_edge_weights, info.node_names) == (task, True, ids)
    assert info.class_names == dataset.class_names
    weights = scipy.sparse.csr_matrix((dataset.edge_weight, dataset.indices, dataset.indptr), shape=(60, 60)).toarray()
    for number in range(num_parts):
        part = read_partition(tmp_path, number, num_parts)
        np.testing.assert_array_equal(part.inner_name, dataset.node_name[part.inner_id])
        np.testing.assert_array_equal(part.labels, dataset.labels[part.inner_id])
        source = part.node_id[part.indices]
        target = np.repeat(part.inner_id, np.diff(part.indptr))
        np.testing.assert_array_equal(part.edge_weight, weights[target, source])
        assert part.edge_weight.dtype == np.float32


def test_shards_without_more_are_of_the_format_of_before(shards, dataset):
    """Programs of before read them, and the reverse."""
    assert (shards / "graph.h5").read_bytes().startswith(b"hpcgnn graph\nformat 3\n")
    assert (shards / "part-0000.h5").read_bytes().startswith(b"hpcgnn part\nformat 2\n")
    with h5py.File(shards / "graph.h5") as file:
        assert not {"task", "has_edge_weights", "node_names", "class_names"} & {*file, *file.attrs}
    with h5py.File(shards / "part-0000.h5") as file:
        assert set(file) == {*schema.PART_ARRAYS, "features"}
    assert read_graph_info(shards).task == "classes" and read_partition(shards, 0, 2).edge_weight is None
    write(shards, with_more(dataset, "texts", "classes"), overwrite=True)
    assert (shards / "graph.h5").read_bytes().startswith(b"hpcgnn graph\nformat 4\n")


@pytest.mark.parametrize("num_parts", [1, 2, 4])
@pytest.mark.parametrize("dtype", ["float32", "package"])
def test_clusters_come_back_equal_for_any_number_of_parts(tmp_path, dataset, num_parts, dtype):
    cluster = np.arange(60, dtype=np.int32) % 9
    info = write(tmp_path, dataset, num_parts, dtype, cluster=cluster)
    assert info.num_clusters == 9 and verify_shards(tmp_path) == info
    for number in range(num_parts):
        part = read_partition(tmp_path, number, num_parts)
        np.testing.assert_array_equal(part.cluster, cluster[part.inner_id])
        assert part.cluster.dtype == np.int32
    assert (tmp_path / "graph.h5").read_bytes().startswith(b"hpcgnn graph\nformat 4\n")


def test_clusters_are_of_the_whole_graph_whatever_the_parts_and_the_order(tmp_path, dataset):
    found = []
    for number, (parts, reorder) in enumerate([(1, "none"), (2, "metis"), (4, "rcm")]):
        how = Making(parts=parts, reorder=reorder, cluster_rows=7)
        info = make_shards(dataset, tmp_path / str(number), how, "a:b", {})
        of_node = np.full(60, -1)
        for one in (read_partition(tmp_path / str(number), part, parts) for part in range(parts)):
            of_node[one.inner_id] = one.cluster
        found.append((info.num_clusters, info.cluster_digest, of_node.tolist()))
    assert found == found[:1] * 3 and found[0][2] == cluster_nodes(dataset, 7).tolist()


def test_shards_without_clusters_are_those_of_before_to_the_byte(tmp_path, dataset, monkeypatch):
    """Of the settings too: those of before name no clusters."""
    monkeypatch.setattr(writer.uuid, "uuid4", lambda: uuid.UUID(int=7))
    how = {"parts": 2, "reorder": "metis"}
    for name, settings in (("before", how), ("now", {**how, "cluster_rows": 0})):
        make_shards(dataset, tmp_path / name, Making(parts=2, cluster_rows=0), "a:b", settings)
    for path in (tmp_path / "before").iterdir():
        assert path.read_bytes() == (tmp_path / "now" / path.name).read_bytes()
        with h5py.File(path) as file:
            assert not {"cluster", "num_clusters", "cluster_digest"} & {*file, *file.attrs}
    assert read_partition(tmp_path / "now", 0, 2).cluster is None


def test_a_graph_that_cannot_be_clustered_is_stored_without_clusters_unless_they_were_asked_for(tmp_path, dataset,
                                                                                                monkeypatch, capfd):
    def give_up(*arguments):
        raise ConfigError("KaMinPar gave up")

    monkeypatch.setattr(writer, "cluster_nodes", give_up)
    info = make_shards(dataset, tmp_path / "default", Making(parts=2), "a:b", {"cluster_rows": None})
    assert info.num_clusters == 0 and "cluster_rows" not in info.provenance.settings
    assert ("hpcgnn: no clusters are stored, so each rank of a training in steps cuts its own: KaMinPar gave up"
            in capfd.readouterr().err)
    with pytest.raises(ConfigError, match="KaMinPar gave up"):
        make_shards(dataset, tmp_path / "asked", Making(parts=2, cluster_rows=106), "a:b", {})


def test_an_empty_part_has_no_ids(tmp_path, dataset):
    write_shards(with_more(dataset, "texts", "classes"), np.zeros(60, np.int32), tmp_path,
                 Making(2, reorder="none"), ORIGIN)
    empty = read_partition(tmp_path, 1, 2)
    assert verify_shards(tmp_path).num_parts == 2 and empty.num_inner == 0
    assert empty.inner_name.shape == (0,) and empty.features.shape == (0, 40)


def test_graph_info_comes_back_equal(tmp_path, dataset):
    info = write(tmp_path, dataset, 3)
    assert read_graph_info(tmp_path) == info
    assert (info.num_nodes, info.num_edges, info.num_features, info.num_classes) == (60, dataset.num_edges, 40, 4)
    assert (info.num_train, info.num_val) == (dataset.train_mask.sum(), dataset.val_mask.sum())
    assert info.provenance == ORIGIN and info.cleaning == dataset.cleaning
    owner = owner_of(dataset, 3)
    assert info.statistics == tuple(measure_partition(build_partition(dataset, owner, p, 3)) for p in range(3))
    with h5py.File(tmp_path / "graph.h5") as file:
        np.testing.assert_array_equal(file["owner"][()], owner)


def test_info_that_was_read_before_saves_a_second_look_at_the_whole_graph(shards):
    info = read_graph_info(shards)
    (shards / "graph.h5").unlink()
    assert read_partition(shards, 1, 2, info).part == 1
    with pytest.raises(ShardError, match="partitioned into 2 parts but 3 ranks were started"):
        read_partition(shards, 1, 3, info)
    with pytest.raises(ShardError, match="is missing"):
        read_partition(shards, 1, 2)


@pytest.mark.parametrize("reorder", REORDERS)
def test_written_parts_have_the_rows_in_the_order_asked_for(tmp_path, dataset, reorder):
    write(tmp_path, dataset, reorder=reorder)
    for part in range(2):
        expected = build_partition(dataset, owner_of(dataset, 2), part, 2, reorder=reorder, seed=ORIGIN.seed)
        found = read_partition(tmp_path, part, 2)
        for name in ("inner_id", "indptr", "indices", "boundary_index", "features", "labels"):
            np.testing.assert_array_equal(getattr(found, name), getattr(expected, name), err_msg=name)


def test_graph_without_features_comes_back_with_none(tmp_path, dataset):
    write(tmp_path, replace(dataset, features=np.empty((60, 0), np.float32)))
    part = read_partition(tmp_path, 0, 2)
    assert part.features.shape == (part.num_inner, 0)


@pytest.mark.parametrize("sparse", [False, True])
def test_small_blocks_write_the_same_features(tmp_path, monkeypatch, sparse):
    dataset = random_dataset(60, 200, num_features=30, sparse=sparse)
    monkeypatch.setattr(features, "CHUNK_BYTES", 4 * 30 * 3)
    monkeypatch.setattr(features, "CHUNKS_PER_BLOCK", 2)
    write(tmp_path, dataset, dtype="float16")
    expected = build_partition(dataset, owner_of(dataset, 2), 1, 2).features.astype(np.float16)
    np.testing.assert_array_equal(read_partition(tmp_path, 1, 2).features, expected)


@pytest.mark.parametrize("density, compression", [(0.1, "lzf"), (0.9, None)])
@pytest.mark.parametrize("form", [np.asarray, scipy.sparse.csr_matrix])
def test_features_are_compressed_only_when_most_are_zero(tmp_path, dataset, density, compression, form):
    dense = (np.random.default_rng(0).random((60, 40)) < density).astype(np.float32)
    write(tmp_path, replace(dataset, features=form(dense)))
    with h5py.File(tmp_path / "part-0000.h5") as file:
        assert file["features"].compression == compression


def test_float16_features_lie_in_half_the_space(tmp_path, dataset):
    write(tmp_path, dataset, dtype="float16")
    part = read_partition(tmp_path, 0, 2)
    assert part.features.dtype == np.float16
    np.testing.assert_allclose(part.features, dataset.features[part.inner_id], rtol=2**-11, atol=1e-7)


@pytest.mark.parametrize("value", [65520.0, -1e5])
def test_value_beyond_float16_is_refused_before_anything_is_touched(shards, dataset, value):
    before = (shards / "graph.h5").read_bytes()
    dataset.features[7, 3] = value
    with pytest.raises(ConfigError, match=r"feature of magnitude \S+ among nodes 0 to 59, and float16 ends at 65504"):
        write(shards, dataset, dtype="float16", overwrite=True)
    assert (shards / "graph.h5").read_bytes() == before


def test_largest_float16_is_accepted(tmp_path, dataset):
    dataset.features[7, 3] = 65519.0
    write(tmp_path, dataset, 1, dtype="float16")
    assert read_partition(tmp_path, 0, 1).features.max() == 65504.0


def test_unknown_feature_format_is_refused(tmp_path, dataset):
    with pytest.raises(ConfigError, match="feature format is 'int8'"):
        write(tmp_path, dataset, dtype="int8")


@pytest.mark.parametrize("num_ranks, started", [(1, "1 rank was"), (3, "3 ranks were")])
def test_other_number_of_ranks_is_refused_with_both_remedies(shards, num_ranks, started):
    with pytest.raises(ShardError, match=f"random was partitioned into 2 parts but {started} started; use mpirun -n 2 "
                                         f"or run hpcgnn preprocess --parts {num_ranks}"):
        read_partition(shards, 0, num_ranks)


@pytest.mark.parametrize("name", ["graph.h5", "part-0001.h5"])
@pytest.mark.parametrize("fault, complaint", [
    (lambda path: path.unlink(), "is missing; run hpcgnn preprocess again"),
    (lambda path: path.write_bytes(path.read_bytes()[:-7]), "is truncated"),
    (lambda path: path.write_bytes(path.read_bytes()[:-7] + b"damaged"), "is damaged"),
])
def test_faulty_file_is_named(shards, name, fault, complaint):
    fault(shards / name)
    with pytest.raises(ShardError, match=re.escape(str(shards / name)) + " " + complaint):
        read_partition(shards, 1, 2)
    with pytest.raises(ShardError, match=complaint):
        verify_shards(shards)


def test_shards_of_an_older_format_are_refused(tmp_path, dataset, monkeypatch):
    monkeypatch.setattr(schema, "GRAPH_VERSION", 2)
    write(tmp_path, dataset)
    with pytest.raises(ShardError, match=r"graph.h5 has format 2, this version reads 3, 4 and 5; run"):
        read_partition(tmp_path, 0, 2)


def test_part_of_another_run_is_refused(shards, tmp_path, dataset):
    write(tmp_path / "other", dataset)
    shutil.copy(tmp_path / "other" / "part-0001.h5", shards / "part-0001.h5")
    with pytest.raises(ShardError, match=r"part-0001.h5 is from another run of hpcgnn preprocess"):
        read_partition(shards, 1, 2)
    assert read_partition(shards, 0, 2).part == 0


def test_part_under_another_parts_name_is_refused(shards):
    shutil.copy(shards / "part-0000.h5", shards / "part-0001.h5")
    with pytest.raises(ShardError, match="holds part 0, expected part 1"):
        read_partition(shards, 1, 2)


def test_taken_folder_is_refused_and_left_as_it_was(shards, dataset):
    before = {path: path.read_bytes() for path in shards.iterdir()}
    with pytest.raises(ShardError, match=r"already holds shards, graph.h5 among 3 files; pass --overwrite"):
        write(shards, dataset)
    assert {path: path.read_bytes() for path in shards.iterdir()} == before


def test_failed_overwrite_leaves_the_old_shards(tmp_path, dataset, monkeypatch):
    write(tmp_path, dataset, 2)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}

    def fill_the_disk(path, *arguments, **settings):
        raise ShardError(f"{path} can't be written: No space left on device")

    monkeypatch.setattr("hpcgnn.shards.writer.write_sealed", fill_the_disk)
    with pytest.raises(ShardError, match="No space left"):
        write(tmp_path, dataset, 3, overwrite=True)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_folder_below_a_file_is_refused(tmp_path, dataset):
    (tmp_path / "file").touch()
    with pytest.raises(ShardError, match=r"file is not a folder; choose another --out"):
        write(tmp_path / "file" / "out", dataset)


def test_folder_without_permission_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("os.access", lambda path, mode: False)
    with pytest.raises(ShardError, match="no permission to write"):
        check_folder(tmp_path / "a" / "b", overwrite=False)
    assert list(tmp_path.iterdir()) == []


def test_documentation_names_every_array_and_attribute_of_both_files(shards):
    text = (TESTS.parent / "docs" / "shards.md").read_text()
    assert f"`graph.h5` of format {schema.GRAPH_VERSION}, part files of format {schema.PART_VERSION}" in text
    for name in ("graph.h5", "part-0000.h5"):
        with h5py.File(shards / name) as file:
            names = [*file.attrs, *(key for key in file if key != "statistics"), *file.get("statistics", ())]
        assert [item for item in names if f"`{item}`" not in text] == []
