"""Shards whose features are packages: float32 comes back, exactly where few bits hold it, and damage is refused."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import scipy.sparse
from reference_partition import random_dataset
from resealing import put, reseal

from hpcgnn.__main__ import main
from hpcgnn.errors import ConfigError, ShardError
from hpcgnn.lowbit.package_shards import read_packages
from hpcgnn.shards import features, schema
from hpcgnn.shards.reader import read_graph_info, read_partition, verify_shards
from hpcgnn.shards.schema import Provenance
from hpcgnn.shards.writer import Making, write_shards

ORIGIN = Provenance("edges:a.csv", "random", 5)


def write(folder, dataset, form="package", **how):
    owner = (np.arange(dataset.num_nodes) % 3 % 2).astype(np.int32)
    return write_shards(dataset, owner, folder, Making(2, feature_format=form, reorder="none", **how), ORIGIN)


def binary_dataset(sparse=True):
    dataset = random_dataset(60, 200, seed=1, num_features=40)
    rows = (np.random.default_rng(0).random((60, 40)) < 0.1).astype(np.float32)
    return replace(dataset, features=scipy.sparse.csr_matrix(rows) if sparse else rows)


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("bits", [1, 2, 8])
def test_binary_features_come_back_exactly(tmp_path, sparse, bits):
    dataset = binary_dataset(sparse)
    write(tmp_path / "p", dataset, feature_bits=bits)
    write(tmp_path / "f", dataset, "float32")
    for part in range(2):
        found, expected = (read_partition(tmp_path / name, part, 2) for name in "pf")
        np.testing.assert_array_equal(found.features, expected.features)
        assert found.features.dtype == np.float32
        np.testing.assert_array_equal(found.inner_id, expected.inner_id)


@pytest.mark.parametrize("form, width", [("package", 0), ("float32", 40)])
def test_a_part_is_read_without_making_floats_of_its_packages(tmp_path, form, width):
    write(tmp_path, binary_dataset(), form)
    whole, found = read_partition(tmp_path, 1, 2), read_partition(tmp_path, 1, 2, expands_packages=False)
    assert found.features.shape == (len(found.inner_id), width)
    np.testing.assert_array_equal(found.features, whole.features[:, :width])
    np.testing.assert_array_equal(found.indices, whole.indices)


@pytest.mark.parametrize("bits, bound", [(2, 0.5), (4, 1 / 14), (8, 1 / 254)])
def test_other_features_are_rounded_to_the_bits_asked_for(tmp_path, bits, bound):
    dataset = random_dataset(60, 200, seed=1, num_features=40)
    write(tmp_path, dataset, feature_bits=bits)
    part = read_partition(tmp_path, 1, 2)
    exact = dataset.features[part.inner_id]
    error = np.abs(part.features - exact).max(axis=1) / np.abs(exact).max(axis=1)
    assert 0 < error.max() <= 1.001 * bound


def test_rows_do_not_depend_on_blocks(tmp_path, monkeypatch):
    dataset = random_dataset(60, 200, seed=1, num_features=40)
    write(tmp_path / "a", dataset)
    monkeypatch.setattr(features, "CHUNK_BYTES", 1 << 8)
    monkeypatch.setattr(features, "CHUNKS_PER_BLOCK", 2)
    write(tmp_path / "b", dataset)
    (first, scale), (second, _) = (read_packages(tmp_path / name, 0, read_graph_info(tmp_path / name)) for name in "ab")
    np.testing.assert_array_equal(first.stream, second.stream)
    np.testing.assert_array_equal(first.values(scale), read_partition(tmp_path / "b", 0, 2).features)


def test_part_files_name_their_format_and_the_graph_file_keeps_its_own(tmp_path):
    info = write(tmp_path, binary_dataset())
    assert info.feature_dtype == "package" and verify_shards(tmp_path) == info
    assert (tmp_path / "part-0000.h5").read_bytes().startswith(b"hpcgnn part\nformat 4\n")
    assert (tmp_path / "graph.h5").read_bytes().startswith(f"hpcgnn graph\nformat {schema.GRAPH_VERSION}\n".encode())


def test_graph_without_features_and_empty_part_come_back(tmp_path):
    dataset = replace(binary_dataset(), features=np.empty((60, 0), np.float32))
    write(tmp_path / "none", dataset)
    assert read_partition(tmp_path / "none", 0, 2).features.shape[1] == 0
    write_shards(binary_dataset(), np.zeros(60, np.int32), tmp_path / "empty",
                 Making(2, feature_format="package", reorder="none"), ORIGIN)
    assert read_partition(tmp_path / "empty", 1, 2).features.shape == (0, 40)


def test_negative_features_need_two_bits(tmp_path):
    with pytest.raises(ConfigError, match="negative features need one bit for the sign"):
        write(tmp_path, random_dataset(60, 200, seed=1, num_features=40), feature_bits=1)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("change, message", [
    (put("packages/stream", lambda a: np.append(a[:1] | 3, a[1:])), "packages can't be read at row 0 of .*mode 3"),
    (put("packages/positions", lambda a: np.append(a[:1] | 31, a[1:])), "packages can't be read at row 0 of .*: its"),
    (put("packages/scale", lambda a: a[1:]), "packages/scale of float32"),
    (lambda file: file["packages"].pop("scale"), "has no packages/scale"),
    (lambda file: file["packages"].pop("positions"), "has no packages/positions"),
    (lambda file: file["packages"].attrs.pop("num_bits"), "has no packages/num_bits"),
    (lambda file: file["packages"].attrs.update(num_bits=10**9), "packages/stream of uint8"),
    (lambda file: file["packages"].attrs.update(num_rows=10**9), r"packages/index_bit of int64 and shape \(1,\)"),
    (lambda file: file["packages"].attrs.update(lengths=[64, 32, 1]), "package lengths are 64, 32, 1")])
def test_forged_packages_are_refused_by_name(tmp_path, change, message):
    write(tmp_path, binary_dataset())
    reseal(tmp_path / "part-0001.h5", change)
    with pytest.raises(ShardError, match=f"part-0001.h5.*{message}.*run hpcgnn preprocess again"):
        read_partition(tmp_path, 1, 2)


@pytest.mark.parametrize("read", [lambda folder: read_partition(folder, 1, 2), verify_shards,
                                  lambda folder: read_packages(folder, 1, read_graph_info(folder))])
def test_packages_of_an_older_format_are_refused_and_say_what_to_do(tmp_path, monkeypatch, read):
    monkeypatch.setattr(schema, "PACKAGE_PART_VERSION", 3)
    write(tmp_path, binary_dataset())
    monkeypatch.undo()
    with pytest.raises(ShardError) as refused:
        read(tmp_path)
    assert str(refused.value).endswith("has format 3, this version reads 4; run hpcgnn preprocess again")


def test_shards_of_floats_have_no_packages(tmp_path):
    info = write(tmp_path, binary_dataset(), "float32")
    with pytest.raises(ShardError, match=r"stores float32 features.*--feature-format package"):
        read_packages(tmp_path, 0, info)


def run(capsys, *arguments):
    with pytest.raises(SystemExit) as stop:
        main([str(argument) for argument in arguments])
    printed = capsys.readouterr()
    return stop.value.code or 0, printed.out, printed.err


def test_inspect_prints_bits_by_format(tmp_path, capsys):
    dataset = binary_dataset()
    write(tmp_path, dataset)
    code, out, err = run(capsys, "inspect", tmp_path, "--packages")
    assert (code, err) == (0, "")
    held = np.count_nonzero(dataset.features.toarray().any(axis=1)) / 60
    assert f"packages: {held:.3f} bits per node on average" in out
    table = [line.split() for line in out[out.index("features by format"):].splitlines() if line.strip()]
    rows = {cells[0]: cells[1:] for cells in table}      # values, their unit, positions, their unit, all, its unit
    assert {"ideal", "adaptive-package", "dense", "bitmap", "csr", "coo"} <= rows.keys()
    assert rows["ideal"][:2] == [f"{dataset.features.nnz / 8:.0f}", "B"]
    assert rows["dense"][4:6] == [f"{60 * 40 / 8:.0f}", "B"]


def test_inspect_refuses_packages_of_shards_of_floats(tmp_path, capsys):
    write(tmp_path, binary_dataset(), "float16")
    code, _, err = run(capsys, "inspect", tmp_path, "--packages")
    assert code == 1 and "stores float16 features, expected packages" in err


def test_preprocess_writes_packages_on_request(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("HPCGNN_PROGRESS", "0")      # no lines of progress among the complaints
    code, out, err = run(capsys, "preprocess", "synthetic:nodes=300,mean_degree=8,features=12", "--out", tmp_path / "g",
                         "--parts", 2, "--feature-format", "package", "--feature-bits", 4)
    assert (code, err) == (0, "") and "12 package features" in out
    info = read_graph_info(tmp_path / "g")
    assert (info.provenance.settings["feature_format"], info.provenance.settings["feature_bits"]) == ("package", 4)
    assert read_partition(tmp_path / "g", 0, 2).features.dtype == np.float32
