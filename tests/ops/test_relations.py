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


def assert_near(found, expected, bound):
    assert np.abs(found.detach().double().numpy() - expected).max() <= bound * np.abs(expected).max()


@pytest.mark.covering
@pytest.mark.parametrize("way", [as_written, mapped_first])
@pytest.mark.parametrize("in_dim, out_dim", [(1, 1), (3, 2), (33, 18)])
def test_sums_and_gradients_are_those_of_loops_and_finite_differences(simd, way, in_dim, out_dim):
    entries, given = drawn(), inputs(in_dim, out_dim)
    out = way(*given, relations_of(*entries))
    exact = [one.detach().double().numpy() for one in given]
    assert_near(out, by_loops(entries, *exact), 1e-5)
    gradient = np.random.default_rng(2).normal(size=out.shape)
    out.backward(torch.from_numpy(gradient).float())
    for place, own in enumerate(given):
        if own.numel() > 100 and in_dim > 5:      # each value of a large array costs two passes of loops
            continue

        def total(moved, place=place):
            return (gradient * by_loops(entries, *exact[:place], moved, *exact[place + 1:])).sum()

        assert_near(own.grad, slopes(total, exact[place]), 1e-5)


def blocks_of(out_dim, in_dim, num_blocks=3):
    shape = NUM_RELATIONS, num_blocks, out_dim // num_blocks, in_dim // num_blocks
    return torch.from_numpy(np.random.default_rng(3).normal(size=shape)).float().requires_grad_()


def by_loops_of_blocks(entries, x, blocks):
    return by_loops(entries, x, np.stack([scipy.linalg.block_diag(*of_one) for of_one in blocks]),
                    np.eye(NUM_RELATIONS))


@pytest.mark.parametrize("in_dim, out_dim", [(3, 3), (33, 18)])
def test_block_diagonal_sums_and_gradients_are_those_of_loops_and_finite_differences(simd, in_dim, out_dim):
    entries, x, blocks = drawn(), inputs(in_dim, out_dim)[0], blocks_of(out_dim, in_dim)
    out = block_diagonal_sum(x, blocks, relations_of(*entries))
    exact = x.detach().double().numpy(), blocks.detach().double().numpy()
    assert_near(out, by_loops_of_blocks(entries, *exact), 1e-5)
    gradient = np.random.default_rng(2).normal(size=out.shape)
    out.backward(torch.from_numpy(gradient).float())
    if in_dim > 6:
        return      # each value of a large array costs two passes of loops
    assert_near(x.grad, slopes(lambda at: (gradient * by_loops_of_blocks(entries, at, exact[1])).sum(), exact[0]), 1e-5)
    assert_near(blocks.grad, slopes(lambda at: (gradient * by_loops_of_blocks(entries, exact[0], at)).sum(), exact[1]),
                1e-5)


@pytest.mark.parametrize("way", [as_written, mapped_first])
@pytest.mark.parametrize("dtype", BOUND)
def test_rows_of_16_bits_are_summed_in_float32(way, dtype):
    entries, found = drawn(num_entries=200), []
    for kind in (torch.float32, dtype):
        given = inputs(12, 8, dtype)
        given[0] = given[0].detach().to(kind).requires_grad_()
        out = way(*given, relations_of(*entries))
        assert out.dtype == kind
        out.backward(torch.ones_like(out))
        found.append((out, *(one.grad for one in given)))
    for exact, rounded in zip(*found, strict=True):
        assert_near(rounded, exact.detach().double().numpy(), BOUND[dtype])


def test_only_the_first_rows_get_a_gradient():
    x, basis, coefficient = inputs(6, 4)
    relations = relations_of(*drawn())
    relational_sum(x, basis, coefficient, relations, num_back=NUM_ROWS).square().sum().backward()
    again, others = x.detach().clone().requires_grad_(), (basis.grad.clone(), coefficient.grad.clone())
    basis.grad = coefficient.grad = None
    relational_sum(again, basis, coefficient, relations).square().sum().backward()
    assert torch.equal(x.grad[:NUM_ROWS], again.grad[:NUM_ROWS]) and not x.grad[NUM_ROWS:].any()
    assert again.grad[NUM_ROWS:].any()
    assert torch.equal(basis.grad, others[0]) and torch.equal(coefficient.grad, others[1])


def test_rows_without_entries_are_zero():
    x, basis, coefficient = inputs(6, 4)
    none = np.zeros(0, np.int64)
    for way in (as_written, mapped_first):
        out = way(x, basis, coefficient, relations_of(none, none, none))
        out.sum().backward()
        assert out.shape == (NUM_ROWS, 4) and not out.any() and not coefficient.grad.any()


def test_what_does_not_fit_is_refused():
    x, basis, coefficient = inputs(6, 4)
    target, source, relation = drawn()
    with pytest.raises(KernelError, match="60 entries was given 59 relations"):
        relations_of(target, source, relation[1:])
    relations = relations_of(target, source, relation)
    for rows, weights in ((x[1:], coefficient), (x[:, 1:], coefficient), (x, coefficient[:, 1:])):
        with pytest.raises(KernelError, match="sums by relation need 14 rows of 6 columns and coefficients of 3 bases"):
            relational_sum(rows, basis, weights, relations)


@pytest.mark.parametrize("dtype", BOUND)
def test_block_diagonal_sums_are_float32_and_of_the_first_rows_if_asked(dtype):
    entries, found = relations_of(*drawn(num_entries=200)), []
    rounded = inputs(12, 6, dtype)[0].detach()
    for kind, num_back in ((torch.float32, None), (dtype, NUM_ROWS)):
        x, blocks = rounded.to(kind, copy=True).requires_grad_(), blocks_of(6, 12)
        out = block_diagonal_sum(x, blocks, entries, num_back)
        assert out.dtype == kind
        out.backward(torch.ones_like(out))
        found.append((out, blocks.grad, x.grad[:NUM_ROWS]))
    assert not x.grad[NUM_ROWS:].any()
    for exact, rounded in zip(*found, strict=True):
        assert_near(rounded, exact.detach().double().numpy(), BOUND[dtype])


def test_block_diagonal_sums_without_entries_are_zero():
    x, blocks, none = inputs(6, 3)[0], blocks_of(3, 6), np.zeros(0, np.int64)
    out = block_diagonal_sum(x, blocks, relations_of(none, none, none))
    out.sum().backward()
    assert out.shape == (NUM_ROWS, 3) and not out.any() and not x.grad.any() and not blocks.grad.any()
