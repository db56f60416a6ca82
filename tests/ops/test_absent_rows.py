"""Attention with absent columns against the float64 oracle on the graph without their entries."""

from __future__ import annotations

import numpy as np
import pytest
import reference_attention as reference
import torch
from ops.test_attention import HEADS, ROUNDING, SLOPE, STORAGES, Arcs, rows_of, wide

from hpcgnn.errors import KernelError
from hpcgnn.ops import attention


def without(arcs, is_present):
    """indptr and indices without the entries of absent columns."""
    is_kept = is_present[arcs.indices]
    before = np.append(0, np.cumsum(is_kept))
    return before[arcs.indptr], arcs.indices[is_kept]


def presence(num_columns, share=0.5, seed=5):
    return np.random.default_rng(seed).random(num_columns) < share


def everything(z, vectors, arcs, num_heads, gradient, is_present, slope=SLOPE):
    """Output, gradient of z and gradient of the vectors."""
    leaves = z.clone().requires_grad_(), vectors.clone().requires_grad_()
    out = attention.attend(*leaves, arcs.adjacency(), num_heads, slope, is_present)
    out.backward(gradient)
    return out, leaves[0].grad, leaves[1].grad


@pytest.mark.covering
@pytest.mark.parametrize("dtype", STORAGES)
@pytest.mark.parametrize("num_heads", HEADS)
@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 0.9])
def test_attention_is_that_of_the_graph_without_the_entries(simd, share, num_heads, dtype):
    arcs, is_present, dim = Arcs(), presence(37, share), num_heads * 5
    z, vectors, gradient = rows_of(37, dim, dtype=dtype), rows_of(2, dim, seed=2), rows_of(23, dim, 3, dtype)
    out, z_gradient, vectors_gradient = everything(z, vectors, arcs, num_heads, gradient, is_present)
    indptr, indices = without(arcs, is_present)
    expected = reference.attend(indptr, indices, wide(z), wide(vectors), num_heads, SLOPE)
    assert (abs(wide(out) - expected) <= 1e-5 + ROUNDING[dtype] * abs(expected)).all()
    assert not out[np.diff(indptr) == 0].any()
    is_unused = ~is_present
    is_unused[:23] &= np.diff(indptr) == 0    # as destinations absent rows still have a gradient
    assert not z_gradient[is_unused].any()
    assert z_gradient.isfinite().all() and vectors_gradient.isfinite().all()


@pytest.mark.parametrize("num_heads, head_dim", [(1, 7), (3, 2), (8, 2)])
def test_backward_meets_finite_differences_of_the_graph_without_the_entries(simd, num_heads, head_dim):
    arcs, is_present, dim = Arcs(7, 9, 0.5), presence(9), num_heads * head_dim
    z, vectors, gradient = rows_of(9, dim), rows_of(2, dim, 2), rows_of(7, dim, 3)
    _, z_gradient, vectors_gradient = everything(z, vectors, arcs, num_heads, gradient, is_present)
    indptr, indices = without(arcs, is_present)

    def loss(z, vectors):
        return (reference.attend(indptr, indices, z, vectors, num_heads, SLOPE) * wide(gradient)).sum()

    for found, expected in [
            (z_gradient, reference.central_differences(lambda x: loss(x, wide(vectors)), wide(z))),
            (vectors_gradient, reference.central_differences(lambda x: loss(wide(z), x), wide(vectors)))]:
        np.testing.assert_allclose(found, expected, atol=2e-5)


@pytest.mark.covering
@pytest.mark.parametrize("num_heads", HEADS)
@pytest.mark.parametrize("slope", [-0.5, 0.0, 0.2, 1.0])
def test_weights_of_absent_columns_and_their_gradients_are_exactly_zero(simd, slope, num_heads):
    arcs, is_present = Arcs(), presence(37)
    target, source = rows_of(23, num_heads), rows_of(37, num_heads, seed=2)
    source[~is_present] = -torch.inf
    alpha = attention.edge_softmax(arcs.matrix, target, source, slope)
    gradient = rows_of(len(arcs.indices), num_heads, seed=3)
    of_target = attention.edge_softmax_backward(arcs.matrix, target, source, slope, alpha, gradient)
    is_absent = ~is_present[arcs.indices]
    assert not alpha[is_absent].any() and not gradient[is_absent].any()
    assert (alpha[~is_absent] > 0).all() and of_target.isfinite().all()


@pytest.mark.parametrize("num_heads", HEADS)
def test_every_instruction_set_gives_the_same_bits(simd, monkeypatch, num_heads):
    arcs, dim = Arcs(60, 90), num_heads * 9
    arguments = rows_of(90, dim), rows_of(2, dim, 2), arcs, num_heads, rows_of(60, dim, 3), presence(90)
    found = everything(*arguments)
    monkeypatch.setenv("HPCGNN_SIMD", "portable")
    for one, other in zip(found, everything(*arguments), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("is_present", [np.ones(36, bool), np.ones(37, np.uint8), np.ones((37, 1), bool)])
def test_a_presence_that_does_not_fit_is_refused(is_present):
    arcs = Arcs()
    with pytest.raises(KernelError, match="bool is_present of 37 columns"):
        attention.attend(rows_of(37, 8), rows_of(2, 8), arcs.adjacency(), 2, SLOPE, is_present)
