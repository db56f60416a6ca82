"""Sums by relation against loops over the entries in float64, and their gradients against finite differences."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.linalg
import torch

from hpcgnn.errors import KernelError
from hpcgnn.graph.reductions import build_adjacency
from hpcgnn.ops import relations as ops
from hpcgnn.ops.relations import Relations, block_diagonal_sum, relational_sum, sum_of_mapped

NUM_ROWS, NUM_COLUMNS, NUM_RELATIONS, NUM_BASES = 9, 14, 5, 3
BOUND = {torch.float32: 1e-5, torch.bfloat16: 3e-2, torch.float16: 4e-3}


@pytest.fixture(autouse=True)
def few_rows_in_a_block(monkeypatch):
    monkeypatch.setattr(ops, "BLOCK_VALUES", 1)
    monkeypatch.setattr(ops, "LEAST_ROWS", 4)
    monkeypatch.setattr(ops, "COUNTS_AT_ONCE", 8)


def drawn(seed=0, num_entries=60):
    """Targets, sources and relations of entries; row 3 has none, row 5 many, and some come twice by other relations."""
    rng = np.random.default_rng(seed)
    target = np.sort(np.where(rng.random(num_entries) < 0.3, 5, rng.integers(0, NUM_ROWS, num_entries)))
    target[target == 3] = 4
    source = rng.integers(0, NUM_COLUMNS, num_entries)
    source[1::7] = source[::7][:len(source[1::7])]
    return target, source, rng.integers(0, NUM_RELATIONS, num_entries)


def relations_of(target, source, relation):
    indptr = np.searchsorted(target, np.arange(NUM_ROWS + 1)).astype(np.int64)
    return Relations.of(build_adjacency(indptr, source.astype(np.int32), NUM_COLUMNS, with_self=False),
                        relation.astype(np.int32))


def by_loops(entries, x, basis, coefficient):
    """The sums, entry by entry, from the definition."""
    target, source, relation = entries
    out = np.zeros((NUM_ROWS, basis.shape[1]))
    for v, u, r in zip(target, source, relation, strict=True):
        count = ((target == v) & (relation == r)).sum()
        out[v] += sum(coefficient[r, b] * basis[b] for b in range(len(basis))) @ x[u] / count
    return out


def slopes(function, at, step=1e-4):
    """Central differences of a function of one array, in float64."""
    found = np.zeros_like(at)
    for place in np.ndindex(at.shape):
        ends = []
        for sign in (1, -1):
            moved = at.copy()
            moved[place] += sign * step
            ends.append(function(moved))
        found[place] = (ends[0] - ends[1]) / (2 * step)
    return found


def inputs(in_dim, out_dim, dtype=torch.float32):
    rng = np.random.default_rng(1)
    shapes = (NUM_COLUMNS, in_dim), (NUM_BASES, out_dim, in_dim), (NUM_RELATIONS, NUM_BASES)
    x, basis, coefficient = (torch.from_numpy(rng.normal(size=shape)).float() for shape in shapes)
    return [one.requires_grad_() for one in (x.to(dtype), basis.to(dtype).float(), coefficient)]


def as_written(x, basis, coefficient, relations):
    return relational_sum(x, basis, coefficient, relations)


def mapped_first(x, basis, coefficient, relations):
    return sum_of_mapped(x @ basis.to(x.dtype).flatten(0, 1).t(), coefficient, relations)


def block_diagonal(x, blocks, relations):
    return block_diagonal_sum(x, blocks, relations)


WAYS = [as_written, mapped_first, block_diagonal]


def given_to(way, in_dim, out_dim, dtype=torch.float32):
    given = inputs(in_dim, out_dim, dtype)
    if way is not block_diagonal:
        return given
    shape = NUM_RELATIONS, 3, out_dim // 3, in_dim // 3
    return [given[0], torch.from_numpy(np.random.default_rng(3).normal(size=shape)).float().requires_grad_()]


def loops_of(way, entries, *given):
    if way is not block_diagonal:
        return by_loops(entries, *given)
    x, blocks = given
    basis = np.stack([scipy.linalg.block_diag(*of_one) for of_one in blocks])
    return by_loops(entries, x, basis, np.eye(NUM_RELATIONS))


def assert_near(found, expected, bound):
    assert np.abs(found.detach().double().numpy() - expected).max() <= bound * np.abs(expected).max()


@pytest.mark.parametrize("way, in_dim, out_dim", [
    *((way, *dims) for way in WAYS[:2] for dims in ((1, 1), (2, 3), (33, 18))), (block_diagonal, 3, 3),
    (block_diagonal, 33, 18)])
def test_sums_and_gradients_are_those_of_loops_and_finite_differences(simd, way, in_dim, out_dim):
    entries, given = drawn(num_entries=30), given_to(way, in_dim, out_dim)
    out = way(*given, relations_of(*entries))
    exact = [one.detach().double().numpy() for one in given]
    assert_near(out, loops_of(way, entries, *exact), 1e-5)
    gradient = np.random.default_rng(2).normal(size=out.shape)
    out.backward(torch.from_numpy(gradient).float())
    for place, own in enumerate(given):
        if own.numel() > 100 and in_dim > 5:      # each value of a large array costs two passes of loops
            continue

        def total(moved, place=place):
            return (gradient * loops_of(way, entries, *exact[:place], moved, *exact[place + 1:])).sum()

        assert_near(own.grad, slopes(total, exact[place]), 1e-5)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("dtype", BOUND)
def test_rows_of_16_bits_are_summed_in_float32(way, dtype):
    entries, found = drawn(num_entries=200), []
    for kind in (torch.float32, dtype):
        given = given_to(way, 12, 6, dtype)
        given[0] = given[0].detach().to(kind).requires_grad_()
        out = way(*given, relations_of(*entries))
        assert out.dtype == kind
        out.backward(torch.ones_like(out))
        found.append((out, *(one.grad for one in given)))
    for exact, rounded in zip(*found, strict=True):
        assert_near(rounded, exact.detach().double().numpy(), BOUND[dtype])


@pytest.mark.parametrize("way", [as_written, block_diagonal])
def test_only_the_first_rows_get_a_gradient(way):
    (x, *others), relations = given_to(way, 6, 3), relations_of(*drawn())
    {as_written: relational_sum, block_diagonal: block_diagonal_sum}[way](
        x, *others, relations, num_back=NUM_ROWS).square().sum().backward()
    again, of_others = x.detach().clone().requires_grad_(), [one.grad.clone() for one in others]
    for one in others:
        one.grad = None
    way(again, *others, relations).square().sum().backward()
    assert torch.equal(x.grad[:NUM_ROWS], again.grad[:NUM_ROWS]) and not x.grad[NUM_ROWS:].any()
    assert again.grad[NUM_ROWS:].any()
    assert all(torch.equal(one.grad, before) for one, before in zip(others, of_others, strict=True))


@pytest.mark.parametrize("way", WAYS)
def test_rows_without_entries_are_zero(way):
    given, none = given_to(way, 6, 3), np.zeros(0, np.int64)
    out = way(*given, relations_of(none, none, none))
    out.sum().backward()
    assert out.shape == (NUM_ROWS, 3) and not out.any() and not any(one.grad.any() for one in given)


def test_what_does_not_fit_is_refused():
    x, basis, coefficient = inputs(6, 4)
    target, source, relation = drawn()
    with pytest.raises(KernelError, match="60 entries was given 59 relations"):
        relations_of(target, source, relation[1:])
    relations = relations_of(target, source, relation)
    for rows, weights in ((x[1:], coefficient), (x[:, 1:], coefficient), (x, coefficient[:, 1:])):
        with pytest.raises(KernelError, match="sums by relation need 14 rows of 6 columns and coefficients of 3 bases"):
            relational_sum(rows, basis, weights, relations)
