import numpy as np
import pytest
import scipy.sparse

from hpcgnn.data import features
from hpcgnn.data.arrays import keep_rows
from hpcgnn.data.assemble import assemble_dataset
from hpcgnn.data.cleaning import build_csr
from hpcgnn.data.features import (
    look_at_features,
    normalize_rows,
    prepare_features,
    standardize_columns,
    structural_features,
    zero_non_finite,
)
from hpcgnn.data.labels import Labels
from hpcgnn.data.options import SourceOptions
from hpcgnn.data.source import load_source
from hpcgnn.shards.reader import read_partition
from hpcgnn.shards.writer import Making, make_shards

INDPTR, INDICES = np.array([0, 2, 3, 4, 4]), np.array([1, 2, 0, 0], dtype=np.int32)


def structural_oracle(indptr, indices):
    num_nodes = len(indptr) - 1
    average = np.zeros((num_nodes, num_nodes))
    for row in range(num_nodes):
        for column in indices[indptr[row]:indptr[row + 1]]:
            average[row, column] = 1 / (indptr[row + 1] - indptr[row])
    hop = np.random.default_rng(0).choice([-1, 0, 1], size=(num_nodes, 128), p=[1 / 6, 2 / 3, 1 / 6])
    total = np.zeros((num_nodes, 128))
    for _ in range(3):
        hop = average @ hop
        length = np.linalg.norm(hop, axis=1, keepdims=True)
        total += np.divide(hop, length, where=length > 0, out=np.zeros_like(hop))
    deviation = total.std(axis=0)
    return (total - total.mean(axis=0)) / np.where(deviation > 1e-12, deviation, 1)


@pytest.mark.parametrize("block_values", [1 << 24, 128, 1])
def test_structural_features_equal_the_dense_formula_whatever_the_block_size(block_values, monkeypatch):
    monkeypatch.setattr(features, "BLOCK_VALUES", block_values)
    made = structural_features(INDPTR, INDICES)
    assert made.dtype == np.float32
    np.testing.assert_allclose(made, structural_oracle(INDPTR, INDICES), atol=2e-5)


@pytest.mark.parametrize("form", ["integers", "npy", "text", "csv"])
def test_times_are_standardized_with_all_their_digits(form, tmp_path):
    rng = np.random.default_rng(0)
    times = 1_600_000_000 + rng.integers(0, 1000, 60)      # float32 would round them to multiples of 128
    is_train = np.arange(60) < 40
    expected = (times - times[is_train].mean()) / times[is_train].std()
    if form == "integers":
        return np.testing.assert_allclose(standardize_columns(times[:, None], is_train)[:][:, 0], expected, atol=1e-5)
    (tmp_path / "e.csv").write_text("source,target\n0,1\n")
    (tmp_path / "s.csv").write_text("split\n" + "train\n" * 40 + "test\n" * 20)
    (tmp_path / "y.csv").write_text("label\n" + "0\n1\n" * 30)
    np.save(tmp_path / "x.npy", times[:, None])
    (tmp_path / "x.txt").write_text("".join(f"{time}\n" for time in times))
    (tmp_path / "n.csv").write_text("id,label,time,split\n" + "".join(
        f"{node},{node % 2},{time},{'train' if node < 40 else 'test'}\n" for node, time in enumerate(times)))
    files = f"labels={tmp_path}/y.csv,splits={tmp_path}/s.csv,features={tmp_path}/x.{'npy' if form == 'npy' else 'txt'}"
    spec = f"csv:{tmp_path}/e.csv,nodes={tmp_path}/n.csv" if form == "csv" else f"edges:{tmp_path}/e.csv,{files}"
    found = load_source(spec, SourceOptions(feature_kind="auto", normalize_features="standard"))
    np.testing.assert_allclose(found.features[:][:, 0], expected, atol=1e-5)


@pytest.mark.parametrize("convert", [np.array, scipy.sparse.csr_matrix])
def test_normalized_rows_have_unit_sum_and_zero_rows_stay_zero(convert):
    rows = np.array([[1, 3, 0], [0, 0, 0], [-1, 0, 1]], dtype=np.float32)
    normalized = normalize_rows(convert(rows))
    dense = normalized.toarray() if scipy.sparse.issparse(normalized) else np.asarray(normalized)
    np.testing.assert_allclose(dense, [[0.25, 0.75, 0], [0, 0, 0], [-0.5, 0, 0.5]])
    assert dense.dtype == np.float32


@pytest.mark.parametrize("convert", [np.array, scipy.sparse.csr_matrix])
def test_standardized_columns_have_zero_mean_and_unit_variance_over_the_fitted_rows(convert):
    rng = np.random.default_rng(3)
    rows = (5 + 2 * rng.standard_normal((40, 3))).astype(np.float32)
    rows[:, 2] = 7
    fit = np.arange(40) < 25
    result = np.asarray(standardize_columns(convert(rows), fit))
    np.testing.assert_allclose(result[fit].mean(axis=0), 0, atol=1e-6)
    np.testing.assert_allclose(result[fit][:, :2].std(axis=0), 1, atol=1e-6)
    assert (result[:, 2] == 0).all()
    np.testing.assert_allclose(result[~fit, 0], (rows[~fit, 0] - rows[fit, 0].mean()) / rows[fit, 0].std(), rtol=1e-4)


@pytest.mark.parametrize("convert", [np.array, scipy.sparse.csr_matrix])
def test_values_that_are_not_finite_become_zero_and_are_counted(convert):
    values = convert(np.array([[np.nan, 1], [np.inf, -np.inf], [2, 3]], dtype=np.float32))
    freed, count = zero_non_finite(values)
    assert count == 3
    dense = freed.toarray() if scipy.sparse.issparse(freed) else np.asarray(freed)
    assert dense.tolist() == [[0, 1], [0, 0], [2, 3]]


def test_every_step_of_preparation_leaves_a_remark():
    given = np.array([[np.nan, 2.0]] * 4)
    options = SourceOptions(non_finite="zero", normalize_features="row")
    prepared, remarks = prepare_features(given, INDPTR, INDICES, np.ones(4, bool), options, "g")
    assert np.asarray(prepared).tolist() == [[0, 1]] * 4
    assert "4 feature values" in remarks[0]
    assert "unit sum" in remarks[1]


def test_auto_takes_the_given_features_and_makes_them_where_there_are_none():
    options = SourceOptions(feature_kind="auto")
    given = np.ones((len(INDPTR) - 1, 3), dtype=np.float32)
    mask = np.ones(len(INDPTR) - 1, dtype=bool)
    kept, _ = prepare_features(given, INDPTR, INDICES, mask, options, "g")
    made, remarks = prepare_features(None, INDPTR, INDICES, mask, options, "g")
    assert kept.shape == (len(INDPTR) - 1, 3) and made.shape == (len(INDPTR) - 1, 128)
    assert any("structural" in remark for remark in remarks)


def test_auto_normalizes_rows_of_the_public_cora_and_leaves_a_file_of_that_name_alone():
    options = SourceOptions(normalize_features="auto", is_public=True)
    given = np.full((len(INDPTR) - 1, 4), 2.0, dtype=np.float32)
    mask = np.ones(len(INDPTR) - 1, dtype=bool)
    cora, remarks = prepare_features(given.copy(), INDPTR, INDICES, mask, options, "cora")
    unknown, _ = prepare_features(given.copy(), INDPTR, INDICES, mask, options, "a-public-graph")
    own, _ = prepare_features(given.copy(), INDPTR, INDICES, mask, SourceOptions(normalize_features="auto"), "cora")
    assert (np.asarray(cora) == 0.25).all() and (unknown == 2.0).all() and (own == 2.0).all()
    assert remarks == ("feature rows were scaled to unit sum of absolute values, as is usual for cora; "
                       "--normalize-features none leaves them as they are",)


TREATMENTS = {"zero": {"non_finite": "zero"}, "row": {"normalize_features": "row"},
              "standard": {"normalize_features": "standard"},
              "both": {"non_finite": "zero", "normalize_features": "standard"}}


def treated(values, options, mask):
    """What NumPy makes of all values at once, step by step in the types that the program states."""
    values = values.astype(np.float32)
    if options.non_finite == "zero":
        values = np.where(np.isfinite(values), values, np.float32(0))
    if options.normalize_features == "row":
        return (values / np.abs(values).sum(axis=1, dtype=np.float64, keepdims=True)).astype(np.float32)
    if options.normalize_features == "standard":
        fitted = values[mask].astype(np.float64)
        return ((values - fitted.mean(axis=0)) / fitted.std(axis=0)).astype(np.float32)
    return values


@pytest.mark.parametrize("chosen", TREATMENTS.values(), ids=TREATMENTS)
@pytest.mark.parametrize("form", ["float32", "float64", "fortran", "file", "file of float64"])
def test_rows_are_treated_the_same_in_any_piece_and_what_was_given_stays(form, chosen, tmp_path, monkeypatch):
    monkeypatch.setattr(features, "BLOCK_VALUES", 21)
    values = np.random.default_rng(1).standard_normal((40, 3)) + 2
    if chosen.get("non_finite"):
        values[[3, 9], [0, 2]] = np.nan, np.inf
    source = np.asfortranarray(values) if form == "fortran" else values.astype(
        np.float32 if form in ("float32", "file") else np.float64)
    before, mask = source.copy(), np.arange(40) % 3 > 0
    given = keep_rows([source[:7], source[7:]], tmp_path, "x") if form.startswith("file") else source
    indptr, options = np.zeros(41, np.int64), SourceOptions(**chosen)
    prepared, _ = prepare_features(given, indptr, np.empty(0, np.int32), mask, options, "g")
    whole = np.asarray(prepared)
    np.testing.assert_allclose(whole, treated(values, options, mask), rtol=2e-6, atol=1e-6)
    order = np.random.default_rng(2).permutation(40)
    np.testing.assert_array_equal(prepared[order], whole[order])
    np.testing.assert_array_equal(np.concatenate([prepared[row:row + 1] for row in range(40)]), whole)
    np.testing.assert_array_equal(source, before)


class Watched:
    """Features that count how many rows are asked for at a time."""

    def __init__(self, values):
        self.values, self.most = values, 0
        self.shape, self.dtype, self.ndim = values.shape, values.dtype, 2

    def __getitem__(self, rows):
        found = self.values[rows]
        self.most = max(self.most, len(found))
        return found


@pytest.mark.covering(1)
@pytest.mark.parametrize("form", ["float32", "float16", "package"])
@pytest.mark.parametrize("chosen", TREATMENTS.values(), ids=TREATMENTS)
def test_from_source_to_shards_no_more_than_a_block_of_features_is_asked_for(form, chosen, tmp_path, monkeypatch):
    for place in ("data.features.BLOCK_VALUES", "data.dataset.CHECKED_VALUES"):
        monkeypatch.setattr(f"hpcgnn.{place}", 32)
    monkeypatch.setattr("hpcgnn.shards.features.SAMPLED_ROWS", 4)
    monkeypatch.setattr("hpcgnn.shards.features.CHUNKS_PER_BLOCK", 2)
    monkeypatch.setattr("hpcgnn.shards.features.CHUNK_BYTES", 64)
    values = np.random.default_rng(1).random((60, 4)).astype(np.float32)
    watched = Watched(values)
    nodes = np.arange(60)
    graph = build_csr(nodes, (nodes + 1) % 60, 60, True, "g")
    masks = (nodes < 30, (nodes >= 30) & (nodes < 40), nodes >= 40)
    dataset = assemble_dataset("g", graph, watched, Labels(nodes % 3, 3), masks, SourceOptions(**chosen))
    make_shards(dataset, tmp_path, Making(parts=2, partitioner="random", feature_format=form), "test", {})
    assert watched.most == 8
    if form == "float32":
        parts = [read_partition(tmp_path, part, 2) for part in range(2)]
        for part in parts:
            np.testing.assert_array_equal(part.features, np.asarray(dataset.features)[part.inner_id])


@pytest.mark.parametrize("kind", [np.float32, np.float16, np.int64, np.float64])
def test_columns_that_tell_nothing_of_a_node_are_said(kind):
    rows = 1500      # more than the first look
    matrix = np.random.default_rng(0).integers(1, 9, (rows, 5)).astype(kind)
    matrix[:, 1], matrix[:, 3], matrix[7] = np.arange(rows), 4, 0
    matrix[7, 1], matrix[7, 3] = 7, 4
    matrix[:, 4] = np.where(np.arange(rows) < 1200, 2, 3)     # constant at first
    notes, dubious = look_at_features(matrix, tuple("abcde"), others=("b", "c"))
    assert notes == ("1 of 5 feature columns have one value for all nodes: d",)
    assert dubious == ("feature b counts the rows, which says nothing about a node; ignore=b leaves it out",)
    matrix[-1, 1] = 3
    matrix[3] = 0
    assert look_at_features(matrix, is_scaled=True) == (("1 nodes have features of zeros only",), ())


def test_columns_of_large_values_are_said_unless_they_will_be_normalized():
    """Such columns drown the others: a model of incomes and of shares learns the commonest class only."""
    matrix = np.random.default_rng(0).random((50, 4)).astype(np.float32)
    matrix[7, 1], matrix[8, 2], matrix[9, 3] = -60_000, 999, np.nan
    notes, (dubious,) = look_at_features(matrix, ("age", "debt", "height", "share"))
    assert notes == () and dubious.startswith("1 of 4 feature columns hold values up to 60,000")
    assert ": debt; --normalize-features standard" in dubious
    assert look_at_features(matrix, is_scaled=True) == ((), ())
    assert "column 3" in look_at_features(np.where(np.isnan(matrix), 1e5, matrix))[1][0]


@pytest.mark.parametrize(("normalization", "is_said"), [("none", True), ("auto", True), ("standard", False)])
def test_a_users_large_values_are_dubious_unless_they_are_normalized(tmp_path, normalization, is_said):
    np.savez(tmp_path / "g.npz", indptr=np.arange(5), indices=np.array([1, 2, 3, 0]), labels=np.array([0, 1, 0, 1]),
             features=np.array([[2015.0, 1], [2019, 0], [1990, 1], [2000, 0]]))
    read = load_source(f"npz:{tmp_path}/g.npz", SourceOptions(normalize_features=normalization)).cleaning.read
    assert any("values up to 2,019" in text for text in read.dubious) == is_said


def test_features_larger_than_a_look_are_looked_at_in_part(monkeypatch):
    monkeypatch.setattr(features, "SEEN_VALUES", 8)
    matrix = np.array([[0, 1]] * 4 + [[3, 3]] * 6, np.float32)
    assert look_at_features(matrix)[0] == ("2 of 2 feature columns have one value for all nodes among the first 4: "
                                           "column 0, column 1",)


def test_zero_rows_and_empty_columns_of_sparse_features_are_said():
    sparse = scipy.sparse.csr_matrix(np.array([[0, 0, 2.0], [0, 0, 0], [1, 0, 0]]))
    assert look_at_features(sparse) == (("1 nodes have features of zeros only",
                                         "1 of 3 feature columns have one value for all nodes: column 1"), ())
