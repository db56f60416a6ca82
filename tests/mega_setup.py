"""Small workloads and designs for the tests of MEGA's model, and what its passes ask for."""

from __future__ import annotations

from collections import Counter

import numpy as np

from hpcgnn.accelerators.design import read_design
from hpcgnn.accelerators.mega import passes
from hpcgnn.accelerators.schedule import KINDS
from hpcgnn.accelerators.workload import FeatureCounts, Product, Workload

# Buffers of so few KB that a graph of some hundred nodes has many subgraphs.
TINY = {"buffers.aggregation": 2, "buffers.combination": 1.5, "buffers.input": 0.5, "buffers.sparse": 0.5,
        "buffers.weight": 0.25, "rules.rows_a_block": 5}


def small_design(**changes):
    """MEGA with tiny buffers; `schedule="metis"` changes a rule, `buffers__input=2` a number of another section."""
    paths = {name.replace("__", ".") if "__" in name else f"rules.{name}": value for name, value in changes.items()}
    return read_design("mega").changed(TINY | paths)


def random_graph(num_nodes, num_arcs, seed=0, hub=False):
    """Arcs by destination, drawn near each other and anywhere; each node has one to itself where there are any."""
    rng = np.random.default_rng(seed)
    row = rng.integers(0, num_nodes, num_arcs)
    column = np.where(rng.random(num_arcs) < 0.7, (row + rng.integers(-4, 5, num_arcs)) % num_nodes,
                      rng.integers(0, num_nodes, num_arcs))
    pairs = [row * num_nodes + column]
    if num_arcs:
        pairs.append(np.arange(num_nodes) * (num_nodes + 1))
    if hub:
        pairs += [np.arange(num_nodes) * num_nodes, np.arange(num_nodes)]
    pairs = np.unique(np.concatenate(pairs))
    indptr = np.concatenate([[0], np.cumsum(np.bincount(pairs // num_nodes, minlength=num_nodes))])
    return indptr.astype(np.int64), (pairs % num_nodes).astype(np.int32)


def random_rows(num_rows, dim, seed=0, density=0.4, widths=(1, 2, 3, 4, 8)):
    """Counts of rows, some without values."""
    rng = np.random.default_rng(seed)
    slice_dim = -(-dim // 4)
    columns = np.clip(dim - np.arange(4) * slice_dim, 0, slice_dim)
    share = np.where(rng.random(num_rows) < 0.1, 0, density)
    return FeatureCounts(rng.binomial(columns, share[:, None], (num_rows, 4)).astype(np.int32),
                         rng.choice(widths, num_rows).astype(np.uint8), dim)


MODELS = {"gcn": ((20, 16, 16), (16, 3, 3)), "sage": ((20, 32, 16), (16, 6, 3)),
          "gin": ((20, 16, 16), (16, 16, 0), (16, 3, 3), (3, 3, 0)), "narrow": ((1, 1, 1),), "wide": ((20, 80, 40),)}
ROWS_A_SUBGRAPH = {"gcn": 32, "sage": 32, "gin": 32, "narrow": 512, "wide": 12}     # with TINY buffers


def small_workload(model="gcn", num_nodes=120, num_arcs=500, seed=0, hub=False, density=0.4):
    """A graph and products: (columns of X, columns of W, columns that are summed) each."""
    products = tuple(Product(f"product {i}", random_rows(num_nodes, dim, seed + i, density), combined, aggregated)
                     for i, (dim, combined, aggregated) in enumerate(MODELS[model]))
    return Workload("small", *random_graph(num_nodes, num_arcs, seed, hub), products)


def walked(design, workload):
    """All blocks of each pass: a list of (pass, list of Blocks)."""
    return [(one, list(one.blocks())) for one in passes(design, workload)]


def all_blocks(design, workload):
    return [run for _, blocks in walked(design, workload) for run in blocks]


def bytes_by_kind(blocks, side):
    """Bytes of the reads or writes of blocks, by the names of KINDS; 0 for what is not asked for."""
    total = Counter()
    for run in blocks:
        asked = getattr(run, side)
        for kind in np.unique(asked.kind):
            total[KINDS[kind]] += int(asked.num_bytes[asked.kind == kind].sum())
    return total


def total_events(blocks):
    """Events of all blocks."""
    total = Counter()
    for run in blocks:
        total.update(run.events)
    return total
