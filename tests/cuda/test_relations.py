"""Sums by relation on a device against the host's, which tests/ops/test_relations.py holds against loops."""

from __future__ import annotations

from contextlib import nullcontext

import numpy as np
import pytest
import torch
from cuda.conftest import HAS_GPU, need_compiler
from cuda.emulation import EmulatedBackend
from cuda.separate_memory import separate_memory

from hpcgnn.graph.reductions import build_adjacency
from hpcgnn.ops import spans
from hpcgnn.ops.relations import Relations, block_diagonal_sum, relational_sum, sum_of_mapped

NUM_ROWS, NUM_COLUMNS, NUM_RELATIONS, NUM_BASES = 40, 60, 7, 3
BOUND = {torch.float32: 1e-5, torch.bfloat16: 3e-2, torch.float16: 4e-3}


@pytest.fixture
def device():
    need_compiler()
    with nullcontext() if HAS_GPU else separate_memory(EmulatedBackend(device_type="cuda")):
        yield "cuda"


def made(seed=0, num_entries=500):
    """Relations of entries; row 3 has none, row 5 many, and relation 2 no entry."""
    rng = np.random.default_rng(seed)
    target = np.sort(np.where(rng.random(num_entries) < 0.3, 5, rng.integers(0, NUM_ROWS, num_entries)))
    target[target == 3] = 4
    relation = rng.integers(0, NUM_RELATIONS, num_entries).astype(np.int32)
    relation[relation == 2] = 1
    indptr = np.searchsorted(target, np.arange(NUM_ROWS + 1)).astype(np.int64)
    source = rng.integers(0, NUM_COLUMNS, num_entries).astype(np.int32)
    return Relations.of(build_adjacency(indptr, source, NUM_COLUMNS, with_self=False), relation)


def as_written(relations, x, basis, coefficient):
    return relational_sum(x, basis, coefficient, relations, NUM_ROWS)


def mapped_first(relations, x, basis, coefficient):
    return sum_of_mapped(x @ basis.to(x.dtype).flatten(0, 1).t(), coefficient, relations)


def blocks_of_matrices(relations, x, basis, coefficient):
    blocks = (coefficient @ basis.flatten(1)[:, :8]).view(NUM_RELATIONS, 2, 2, 2)
    return block_diagonal_sum(x[:, :4].contiguous(), blocks, relations, NUM_ROWS)


def results(way, dtype, device):
    rng = np.random.default_rng(1)
    shapes = (NUM_COLUMNS, 12), (NUM_BASES, 8, 12), (NUM_RELATIONS, NUM_BASES)
    x, basis, coefficient = (torch.from_numpy(rng.normal(size=shape)).float() for shape in shapes)
    given = [one.to(device).requires_grad_() for one in (x.to(dtype), basis.to(dtype).float(), coefficient)]
    out = way(made(), *given)
    out.backward(torch.from_numpy(rng.normal(size=out.shape)).to(dtype).to(device))
    return [one.detach().cpu().double() for one in (out, *(one.grad for one in given))]


@pytest.mark.parametrize("way", [as_written, mapped_first, blocks_of_matrices])
@pytest.mark.parametrize("dtype", BOUND)
def test_sums_and_gradients_are_those_of_the_host(device, monkeypatch, way, dtype):
    monkeypatch.setattr(spans, "MIN_DEVICE_BLOCK", 16)      # several blocks, and pieces of a relation
    for found, expected in zip(results(way, dtype, device), results(way, dtype, "cpu"), strict=True):
        assert (found - expected).abs().max() <= BOUND[dtype] * expected.abs().max()


def test_a_device_keeps_the_matrices_of_its_blocks(device, monkeypatch):
    monkeypatch.setattr(spans, "MIN_DEVICE_BLOCK", 16)
    relations = made()
    first, second = ([id(block) for _, _, block in relations.by_target.blocks(8, None, "cuda")] for _ in range(2))
    assert len(first) == 3 and first == second
