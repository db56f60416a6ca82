"""Codes of layers as packages: every code at its row's width, and sizes over all ranks."""

from __future__ import annotations

import numpy as np
import pytest
from mpi4py import MPI

from hpcgnn.lowbit.formats import IDEAL, PACKAGE, sizes
from hpcgnn.lowbit.inference.coded_rows import code_rows
from hpcgnn.lowbit.inference.run import format_sizes
from hpcgnn.lowbit.integer_model import RowScale

COMM = MPI.COMM_WORLD


def coded_rows(is_signed, seed=0):
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(200, 24)).astype(np.float32) * (rng.random((200, 24)) < 0.4)
    scale = RowScale(np.full(8, 0.1, np.float32), np.arange(1 + is_signed, 9 + is_signed).clip(max=8).astype(np.uint8),
                     is_signed)
    in_degree = np.arange(200) % 11
    return code_rows(scale, rows if is_signed else np.abs(rows), in_degree), scale, in_degree


@pytest.mark.parametrize("is_signed", [False, True])
def test_packages_hold_the_codes_at_the_widths_of_their_in_degrees(is_signed):
    coded, scale, in_degree = coded_rows(is_signed)
    packed = coded.packages().check()
    np.testing.assert_array_equal(packed.codes(), coded.codes)
    width = np.where(coded.codes.any(axis=1), scale.bit_width[np.minimum(in_degree, 7)], 0)
    np.testing.assert_array_equal(packed.bit_width(), width)


@pytest.mark.parallel([2])
def test_sizes_are_summed_over_layers_and_ranks():
    layers = [coded_rows(False, COMM.rank + 10 * layer)[0].packages() for layer in range(2)]
    found = format_sizes(COMM, layers)
    for name in (IDEAL, PACKAGE):
        mine = sum(sizes(packed)[name].bits for packed in layers)
        assert found[name].bits == sum(COMM.allgather(mine))
