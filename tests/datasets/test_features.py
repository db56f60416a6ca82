import numpy as np
import pytest
import scipy.sparse

from hpcgnn.datasets import features
from hpcgnn.datasets.features import (
    normalize_rows,
    prepare_features,
    standardize_columns,
    structural_features,
    zero_non_finite,
)
from hpcgnn.datasets.options import SourceOptions
from hpcgnn.datasets.source import load_source
from hpcgnn.errors import DatasetError

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


@pytest.mark.parametrize("convert", [np.array, scipy.sparse.csr_matrix])
def test_normalized_rows_have_unit_sum_and_zero_rows_stay_zero(convert):
    rows = np.array([[1, 3, 0], [0, 0, 0], [-1, 0, 1]], dtype=np.float32)
    normalized = normalize_rows(convert(rows))
    dense = normalized.toarray() if scipy.sparse.issparse(normalized) else normalized
    np.testing.assert_allclose(dense, [[0.25, 0.75, 0], [0, 0, 0], [-0.5, 0, 0.5]])
    assert dense.dtype == np.float32


@pytest.mark.parametrize("convert", [np.array, scipy.sparse.csr_matrix])
def test_standardized_columns_have_zero_mean_and_unit_variance_over_the_fitted_rows(convert):
    rng = np.random.default_rng(3)
    rows = (5 + 2 * rng.standard_normal((40, 3))).astype(np.float32)
    rows[:, 2] = 7
    fit = np.arange(40) < 25
    result = standardize_columns(convert(rows), fit)
    np.testing.assert_allclose(result[fit].mean(axis=0), 0, atol=1e-6)
    np.testing.assert_allclose(result[fit][:, :2].std(axis=0), 1, atol=1e-6)
    assert (result[:, 2] == 0).all()
    np.testing.assert_allclose(result[~fit, 0], (rows[~fit, 0] - rows[fit, 0].mean()) / rows[fit, 0].std(), rtol=1e-4)


@pytest.mark.parametrize("convert", [np.array, scipy.sparse.csr_matrix])
def test_values_that_are_not_finite_become_zero_and_are_counted(convert):
    values = convert(np.array([[np.nan, 1], [np.inf, -np.inf], [2, 3]], dtype=np.float32))
    assert zero_non_finite(values) == 3
    dense = values.toarray() if scipy.sparse.issparse(values) else values
    assert dense.tolist() == [[0, 1], [0, 0], [2, 3]]


def test_every_step_of_preparation_leaves_a_remark():
    given = np.array([[np.nan, 2.0]] * 4)
    options = SourceOptions(non_finite="zero", normalize_features="row")
    prepared, remarks = prepare_features(given, INDPTR, INDICES, np.ones(4, bool), options, "g")
    assert prepared.tolist() == [[0, 1]] * 4
    assert "4 feature values" in remarks[0]
    assert "unit sum" in remarks[1]


def test_missing_features_are_refused_with_the_option_that_makes_them():
    with pytest.raises(DatasetError, match="g has no features; pass --features structural"):
        prepare_features(None, INDPTR, INDICES, np.ones(4, bool), SourceOptions(), "g")


def test_auto_takes_the_given_features_and_makes_them_where_there_are_none():
    options = SourceOptions(features="auto")
    given = np.ones((len(INDPTR) - 1, 3), dtype=np.float32)
    mask = np.ones(len(INDPTR) - 1, dtype=bool)
    kept, _ = prepare_features(given, INDPTR, INDICES, mask, options, "g")
    made, remarks = prepare_features(None, INDPTR, INDICES, mask, options, "g")
    assert kept.shape == (len(INDPTR) - 1, 3) and made.shape == (len(INDPTR) - 1, 128)
    assert any("structural" in remark for remark in remarks)


def test_auto_normalizes_rows_of_cora_and_leaves_an_unknown_graph_alone():
    options = SourceOptions(normalize_features="auto")
    given = np.full((len(INDPTR) - 1, 4), 2.0, dtype=np.float32)
    mask = np.ones(len(INDPTR) - 1, dtype=bool)
    cora, _ = prepare_features(given.copy(), INDPTR, INDICES, mask, options, "cora")
    unknown, _ = prepare_features(given.copy(), INDPTR, INDICES, mask, options, "a-graph-of-mine")
    assert (cora == 0.25).all() and (unknown == 2.0).all()


def test_auto_keeps_the_features_that_a_synthetic_graph_is_made_with():
    dataset = load_source("synthetic:nodes=2000,mean_degree=6,features=7", SourceOptions(features="auto"))
    assert dataset.num_features == 7 and not any("structural" in remark for remark in dataset.cleaning.remarks)
