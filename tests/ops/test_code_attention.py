"""Attention over codes is the softmax within its bound, exact in its sums, and the same bits at every level."""

from __future__ import annotations

import numpy as np
import pytest

from hpcgnn.errors import KernelError
from hpcgnn.ops.integer_rows import attend_codes, score_codes

NUM_ROWS, NUM_CODES = 40, 70


def some_graph(rng, hub=0):
    """CSR of NUM_ROWS rows over NUM_CODES codes; row 0 has `hub` entries, row 1 none."""
    counts = rng.integers(0, 9, NUM_ROWS)
    counts[0], counts[1] = hub, 0
    indptr = np.concatenate([[0], np.cumsum(counts)])
    return indptr.astype(np.int64), rng.integers(0, NUM_CODES, indptr[-1]).astype(np.int32)


def some_codes(rng, dim):
    return rng.integers(-127, 128, (NUM_CODES, dim)).astype(np.int8)


def softmax_sums(indptr, indices, codes, vectors, num_heads, first=0):
    """The same in float64, and the largest magnitude of a code."""
    by_head = codes.astype(np.float64).reshape(len(codes), num_heads, -1)
    target, source = ((by_head * vector.reshape(num_heads, -1)).sum(axis=2) for vector in vectors)
    out = np.empty((len(indptr) - 1, *by_head.shape[1:]))
    for v in range(len(out)):
        near = np.append(indices[indptr[v]:indptr[v + 1]], first + v)
        score = target[first + v] + source[near]
        score = np.where(score > 0, score, 0.2 * score)
        weight = np.exp(score - score.max(axis=0))
        out[v] = np.einsum("eh,ehj->hj", weight, by_head[near]) / weight.sum(axis=0)[:, None]
    return out.reshape(len(out), -1)


@pytest.mark.parametrize("num_heads, dim", [(1, 1), (1, 7), (2, 16), (3, 51), (4, 256), (1, 130)])
def test_sums_are_those_of_the_softmax(simd, num_heads, dim):
    rng = np.random.default_rng(dim)
    codes, vectors = some_codes(rng, dim), rng.normal(0, 2 / (100 * (dim / num_heads) ** 0.5), (2, dim))
    indptr, indices = some_graph(rng, hub=3000)
    scores = score_codes(codes, vectors, num_heads)
    found = attend_codes(indptr, indices, codes, scores, first=20)
    expected = softmax_sums(indptr, indices, codes, vectors, num_heads, first=20)
    # Weights within 2^-18 of themselves and 2^-24 of the largest, and scores of dim / num_heads roundings.
    bound = 127 * (2 * 2**-18 + 2 * 3001 * 2**-24)
    assert np.abs(found[1:] - expected[1:]).max() < 127 * 2 * 2**-17
    assert np.abs(found - expected).max() < bound + 1e-5
    np.testing.assert_array_equal(found[1], codes[21])


def test_every_level_has_the_same_bits(monkeypatch):
    rng = np.random.default_rng(0)
    codes, vectors, found = some_codes(rng, 44), rng.normal(0, 0.02, (2, 44)), []
    indptr, indices = some_graph(rng, hub=2500)
    for level in ("portable", "best"):
        if level == "portable":
            monkeypatch.setenv("HPCGNN_SIMD", level)
        else:
            monkeypatch.delenv("HPCGNN_SIMD")
        scores = score_codes(codes, vectors, 4)
        found.append((scores.target, scores.source, attend_codes(indptr, indices, codes, scores)))
    for one, other in zip(*found, strict=True):
        assert one.tobytes() == other.tobytes()


def test_the_order_of_neighbors_changes_no_bit():
    rng = np.random.default_rng(1)
    codes = some_codes(rng, 12)
    scores = score_codes(codes, rng.normal(0, 0.02, (2, 12)), 3)
    indices = rng.integers(0, NUM_CODES, 2500).astype(np.int32)
    indptr = np.array([0, 2500], np.int64)
    once = attend_codes(indptr, indices, codes, scores)
    assert attend_codes(indptr, np.sort(indices), codes, scores).tobytes() == once.tobytes()


def test_scores_are_exact():
    rng = np.random.default_rng(2)
    codes, vectors = some_codes(rng, 30), rng.normal(0, 0.1, (2, 30))
    fixed = np.rint(vectors * 2**36).astype(np.int64)
    scores = score_codes(codes, vectors, 2)
    for found, vector in zip((scores.target, scores.source), fixed, strict=True):
        expected = (codes.astype(np.int64) * vector).reshape(NUM_CODES, 2, 15).sum(axis=2)
        np.testing.assert_array_equal(found, expected)


def test_far_scores_weigh_nothing_and_equal_ones_the_same():
    codes = np.array([[100], [-100], [50]], np.int8)
    scores = score_codes(codes, np.array([[0.0], [1.0]]), 1)
    indptr, indices = np.array([0, 2], np.int64), np.array([1, 2], np.int32)
    assert attend_codes(indptr, indices, codes, scores)[0, 0] == 100
    level = score_codes(codes, np.zeros((2, 1)), 1)
    assert attend_codes(indptr, indices, codes, level)[0, 0] == np.float32(50 / 3)


def test_no_rows_give_no_rows():
    codes = np.zeros((0, 4), np.int8)
    scores = score_codes(codes, np.zeros((2, 4)), 2)
    assert attend_codes(np.zeros(1, np.int64), np.zeros(0, np.int32), codes, scores).shape == (0, 4)


CODES = np.ones((3, 4), np.int8)
SCORES = score_codes(CODES, np.zeros((2, 4)), 2)
INDPTR, INDICES = np.array([0, 1, 2], np.int64), np.array([0, 2], np.int32)


@pytest.mark.parametrize("arguments, words", [
    ((INDPTR, np.array([0, 3], np.int32), CODES, SCORES), "entries must name rows of codes"),
    ((INDPTR, np.array([0, -1], np.int32), CODES, SCORES), "entries must name rows of codes"),
    ((np.array([0, 2, 1], np.int64), INDICES, CODES, SCORES), "indptr must rise"),
    ((np.array([0, 1, 9], np.int64), INDICES, CODES, SCORES), "indptr must rise"),
    ((INDPTR.astype(np.int32), INDICES, CODES, SCORES), "indptr of attention is int32"),
    ((INDPTR, INDICES, CODES.astype(np.uint8), SCORES), "codes of attention is uint8"),
    ((INDPTR, INDICES, CODES[:2], SCORES), "was given scores of shapes"),
    ((INDPTR, INDICES, CODES, SCORES, 2), "needs codes of all these rows"),
    ((INDPTR, INDICES, CODES, SCORES, -1), "needs codes of all these rows"),
])
def test_what_does_not_fit_is_refused(arguments, words):
    with pytest.raises(KernelError, match=words):
        attend_codes(*arguments)


@pytest.mark.parametrize("vectors, num_heads, words", [
    (np.zeros((2, 5)), 2, "share evenly"), (np.zeros((2, 4)), 3, "share evenly"), (np.zeros((2, 4)), 0, "share evenly"),
    (np.full((2, 4), 1e5), 2, "scores could pass 65536"), (np.full((2, 4), np.nan), 2, "scores could pass 65536"),
])
def test_vectors_that_do_not_fit_are_refused(vectors, num_heads, words):
    with pytest.raises(KernelError, match=words):
        score_codes(CODES, vectors, num_heads)
