"""Small workloads and designs for tests of accelerators, and a walk over a pass that checks what each keeps to."""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import numpy as np

from hpcgnn.accelerators.design import Design
from hpcgnn.accelerators.schedule import KINDS
from hpcgnn.accelerators.workload import NUM_SLICES, FeatureCounts, Product, Workload

# Keywords of `random_workload`, for tests of A(XW).
SHAPES = [
    {"num_nodes": 20, "num_arcs": 60, "dims": (9, 5, 3)},
    {"num_nodes": 17, "num_arcs": 40, "dims": (12, 4, 2), "own": True},
    {"num_nodes": 15, "num_arcs": 50, "dims": (30, 8, 3), "last_is_plain": True, "density": 0.1},
    {"num_nodes": 12, "num_arcs": 0, "dims": (4, 2)},
    {"num_nodes": 1, "num_arcs": 1, "dims": (1, 1)},
    {"num_nodes": 14, "num_arcs": 20, "dims": (5, 3, 4), "has_hub": True},
    {"num_nodes": 10, "num_arcs": 20, "dims": (5, 3), "density": 0},
]


def made_design(kind, units, buffers, rules, bit_width=32):
    return Design("made", kind, bit_width, 1.0, "hbm1", units, buffers, rules)


def random_counts(rng, num_rows, dim, density):
    """Counts of values that are not zero, each with a probability."""
    slice_dim = -(-dim // NUM_SLICES)
    columns = np.clip(dim - np.arange(NUM_SLICES) * slice_dim, 0, slice_dim)
    return FeatureCounts(rng.binomial(columns, density, (num_rows, NUM_SLICES)).astype(np.int32),
                         np.full(num_rows, 32, np.uint8), dim)


def random_arcs(rng, num_nodes, num_arcs, has_hub=False):
    """Distinct arcs by destination, sources ascending; where there is a hub, node 0 is the source of all rows."""
    arcs = rng.random((num_nodes, num_nodes)) < num_arcs / max(1, num_nodes**2)
    if has_hub:
        arcs[:, 0] = True
    indptr = np.concatenate([[0], np.cumsum(arcs.sum(axis=1))]).astype(np.int64)
    return indptr, np.nonzero(arcs)[1].astype(np.int32)


def random_workload(seed, num_nodes, num_arcs, dims, density=0.4, own=False, last_is_plain=False, has_hub=False):
    """Products along `dims`: all columns are aggregated; or, where `own`, as many are added to the row itself; the last
    product is not aggregated where `last_is_plain`.
    """
    rng = np.random.default_rng(seed)
    indptr, indices = random_arcs(rng, num_nodes, num_arcs, has_hub)
    products = []
    for index, (dim, after) in enumerate(pairwise(dims)):
        is_plain = last_is_plain and index == len(dims) - 2
        rows = random_counts(rng, num_nodes, dim, density)
        products.append(Product(f"layer {index}", rows, after * (1 + (own and not is_plain)), 0 if is_plain else after))
    return Workload("made", indptr, indices, tuple(products))


def columns_left(product):
    """Columns of a product's result."""
    return product.aggregated_dim if product.aggregated_dim else product.combined_dim


def columns_added(product):
    """Combined columns that are added to the row that they came from."""
    return product.combined_dim - columns_left(product)


def sizes_of(block, *kinds):
    """Bytes that a walked block asks for, of some kinds."""
    return sum(size for kind, _, size in block if kind in kinds)


class Walked(NamedTuple):
    """A pass, block by block: lists of (kind, address, bytes) that a block reads and writes, and its cycles; and all
    events.
    """

    reads: list
    writes: list
    cycles: list
    events: dict

    def read_bytes(self, kind=None):
        return sum(size for block in self.reads for name, _, size in block if kind in (None, name))

    def written_bytes(self, kind=None):
        return sum(size for block in self.writes for name, _, size in block if kind in (None, name))


def walk(made, design):
    """Go through a pass, and check what every pass keeps to."""
    walked = Walked([], [], [], {})
    for blocks in made.blocks():
        num_blocks = len(blocks.cycles)
        assert blocks.cycles.shape == (num_blocks, len(made.stages))
        assert num_blocks > 0 and blocks.cycles.dtype == np.int64 and (blocks.cycles >= 0).all()
        for requests, lists in ((blocks.reads, walked.reads), (blocks.writes, walked.writes)):
            assert [array.dtype for array in requests] == [np.int32, np.int64, np.int64, np.uint8]
            assert (np.diff(requests.block) >= 0).all() and (requests.num_bytes > 0).all()
            assert ((requests.block >= 0) & (requests.block < num_blocks)).all() and (requests.address >= 0).all()
            new = [[] for _ in range(num_blocks)]
            for block, address, size, kind in zip(*(array.tolist() for array in requests), strict=True):
                new[block].append((KINDS[kind], address, size))
            lists.extend(new)
        walked.cycles.extend(map(tuple, blocks.cycles.tolist()))
        for name, count in blocks.events.items():
            place = name.partition(":")[2] or name
            assert isinstance(count, int) and count >= 0
            assert place in (design.buffers if ":" in name else design.units), name
            walked.events[name] = walked.events.get(name, 0) + count
    return walked


def covered(requests):
    """The distinct bytes of requests (kind, address, bytes), as a set."""
    return {byte for _, address, size in requests for byte in range(address, address + size)}
