"""Closed forms of layouts, beside simulations of every rank that count what it receives, and beside Plexus's model."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from hpcgnn.planning.cluster import Network
from hpcgnn.planning.layouts import (
    EDGE_BYTES,
    Training,
    best_layouts,
    edges_stay,
    gather,
    replicated,
    step_seconds,
    summa,
    tensor,
)

PAPERS = Training(111_059_956, 3_228_124_712, (128, 256, 256, 172), 1024, keeps_input=False)
GRIDS = [(2**x, 2**y, 2**(10 - x - y)) for x in range(11) for y in range(11 - x)]
NOTHING = 1e-30      # seconds; a network has positive latencies


def split(values, num):
    return np.split(np.asarray(values), num)


class Ranks:
    """Values that each rank receives; a group's sums and gathers are made of messages between its ranks."""

    def __init__(self):
        self.received = {}

    def receive(self, rank, values):
        self.received[rank] = self.received.get(rank, 0) + np.asarray(values).size
        return np.asarray(values)

    def gather(self, group, shares, axis=0):
        """What every rank of the group holds: all shares, of which it has its own."""
        return {rank: np.concatenate([shares[other] if other == rank else self.receive(rank, shares[other])
                                      for other in group], axis) for rank in group}

    def deal_sums(self, group, parts, pieces):
        """Rank number i of the group adds up piece i of everyone's part; pieces are lists of rows."""
        return {rank: sum(parts[other][piece] if other == rank else self.receive(rank, parts[other][piece])
                          for other in group) for rank, piece in zip(group, pieces, strict=True)}

    def add_up(self, group, parts):
        flat = {rank: parts[rank].ravel() for rank in group}
        shares = self.deal_sums(group, flat, split(np.arange(flat[group[0]].size), len(group)))
        return {rank: whole.reshape(parts[rank].shape) for rank, whole in self.gather(group, shares).items()}

    @property
    def mean(self):
        return np.mean(list(self.received.values()))


def weight_bytes(training):
    """Bytes of the weights' sum, which has a test of its own."""
    return replicated(training, 1, 0.0, 0.0).received_bytes


@pytest.mark.parametrize("high, wide", [(2, 2), (3, 3), (2, 3), (4, 1)])
def test_2d_receives_what_its_ranks_receive_in_two_aggregations(high, wide):
    nodes, columns = 36, 5
    matrix, rows = (np.random.default_rng(0).normal(size=(nodes, size)) for size in (nodes, columns))
    ranks, places = Ranks(), list(itertools.product(range(high), range(wide)))
    # Piece j of block row i; block column j is all pieces j.
    piece = {(i, j): split(split(np.arange(nodes), high)[i], wide)[j] for i, j in places}
    block_row = [np.concatenate([piece[i, j] for j in range(wide)]) for i in range(high)]
    block_column = [np.concatenate([piece[i, j] for i in range(high)]) for j in range(wide)]
    held = {place: rows[piece[place]] for place in places}
    for _ in range(2):
        gathered = {}
        for j in range(wide):
            gathered |= ranks.gather([(i, j) for i in range(high)], held)
        parts = {(i, j): matrix[np.ix_(block_row[i], block_column[j])] @ gathered[i, j] for i, j in places}
        held = {}
        for i in range(high):
            held |= ranks.deal_sums([(i, j) for j in range(wide)], parts, split(np.arange(nodes // high), wide))
    expected = matrix @ matrix @ rows
    assert all(np.allclose(held[place], expected[piece[place]]) for place in places)
    training = Training(nodes, nodes**2, (columns, columns), high * wide, keeps_input=False)
    assert edges_stay(training, high, wide).received_bytes - weight_bytes(training) == pytest.approx(4 * ranks.mean)


@pytest.mark.parametrize("side, depth", [(2, 1), (3, 1), (2, 2), (2, 3)])
def test_summa_receives_what_its_ranks_receive(side, depth):
    """P = 4 and 9 in 2D, 8 and 12 in 3D: Z = A H W by broadcasts of blocks, sums over layers, and gathered rows."""
    nodes, columns = 36, 6
    generator = np.random.default_rng(0)
    matrix, rows = (generator.normal(size=(nodes, size)) for size in (nodes, columns))
    weight = generator.normal(size=(columns, columns))
    ranks, edges = Ranks(), Ranks()
    block, of_columns = split(np.arange(nodes), side), split(np.arange(columns), side)
    places = list(itertools.product(range(side), range(side), range(depth)))
    piece = {(i, k): split(block[i], depth)[k] for i in range(side) for k in range(depth)}
    parts = {}
    for i, j, k in places:
        total = 0
        for t in range(side):
            own_edges, own_rows = matrix[np.ix_(block[i], piece[t, k])], rows[np.ix_(piece[t, k], of_columns[j])]
            if t != j:
                edges.receive((i, j, k), own_edges)
            if t != i:
                ranks.receive((i, j, k), own_rows)
            total = total + own_edges @ own_rows
        parts[i, j, k] = total
    z = {}
    for i, j in itertools.product(range(side), range(side)):
        z |= ranks.deal_sums([(i, j, k) for k in range(depth)], parts, split(np.arange(nodes // side), depth))
    out = {}
    for i, k in itertools.product(range(side), range(depth)):
        whole = ranks.gather([(i, j, k) for j in range(side)], z, axis=1)
        out |= {(i, j, k): whole[i, j, k] @ weight[:, of_columns[j]] for j in range(side)}
    expected = matrix @ rows @ weight
    assert all(np.allclose(out[i, j, k], expected[np.ix_(piece[i, k], of_columns[j])]) for i, j, k in places)
    # Backward it does the same with as many columns.
    training = Training(nodes, nodes**2, (columns, columns), side**2 * depth, keeps_input=False)
    assert summa(training, side, depth).received_bytes - weight_bytes(training) == pytest.approx(
        2 * (4 * ranks.mean + EDGE_BYTES * edges.mean))


@pytest.mark.parametrize("sizes", [(2, 2, 2), (1, 2, 3), (3, 1, 2), (2, 3, 1)])
def test_3d_receives_what_its_ranks_receive_forward_and_backward(sizes):
    """Three layers, in which the axes take each role once; outputs and all gradients are those of one rank."""
    nodes, dims = 36, (12, 36, 12, 24)
    generator = np.random.default_rng(0)
    matrix, rows, last = (generator.normal(size=(nodes, size)) for size in (nodes, dims[0], dims[-1]))
    weights = [generator.normal(size=pair) for pair in itertools.pairwise(dims)]
    ranks, places = Ranks(), list(itertools.product(*map(range, sizes)))

    def groups(axis):
        return [[(*place[:axis], at, *place[axis + 1:]) for at in range(sizes[axis])]
                for place in places if place[axis] == 0]

    def added(axis, parts):
        return {rank: one for group in groups(axis) for rank, one in ranks.add_up(group, parts).items()}

    def cut(values, place, first, second):
        return split(split(values, sizes[first])[place[first]].T, sizes[second])[place[second]].T

    roles = [(0, 1, 2), (2, 0, 1), (1, 2, 0)]
    held, kept = {place: cut(rows, place, 0, 1) for place in places}, []
    for group in groups(2):
        ranks.gather(group, {rank: split(held[rank].ravel(), sizes[2])[at] for at, rank in enumerate(group)})
    for weight, (a, o, s) in zip(weights, roles, strict=True):
        sums = added(a, {at: cut(matrix, at, s, a) @ held[at] for at in places})
        local = {at: cut(weight, at, o, a) for at in places}
        for group in groups(s) * 2:       # once forward and once backward
            ranks.gather(group, {rank: split(local[rank].ravel(), sizes[s])[at] for at, rank in enumerate(group)})
        kept.append((sums, local))
        held = added(o, {at: sums[at] @ local[at] for at in places})
    expected, gradient = rows, last
    for weight in weights:
        expected = matrix @ expected @ weight
    assert all(np.allclose(held[at], cut(expected, at, 0, 1)) for at in places)      # by s and a of the last layer
    back = {at: cut(last, at, 0, 1) for at in places}
    for (sums, local), weight, (a, _, s) in zip(reversed(kept), reversed(weights), reversed(roles), strict=True):
        parts = {at: (sums[at].T @ back[at]).ravel() for at in places}
        for group in groups(s):
            ranks.deal_sums(group, parts, split(np.arange(parts[group[0]].size), sizes[s]))
        of_sums = added(a, {at: back[at] @ local[at].T for at in places})
        back = added(s, {at: cut(matrix, at, s, a).T @ of_sums[at] for at in places})
        gradient = matrix.T @ (gradient @ weight.T)
    assert all(np.allclose(back[at], cut(gradient, at, 0, 1)) for at in places)
    # The input's gradient needs to be dealt, not given to all: the simulation gathered it for nothing.
    for group in groups(2):
        for rank in group:
            ranks.received[rank] -= back[rank].size * (sizes[2] - 1) // sizes[2]
    training = Training(nodes, nodes**2, dims, len(places), keeps_input=False)
    assert tensor(training, sizes).received_bytes == pytest.approx(4 * ranks.mean)


@pytest.mark.parametrize("copies", [1, 2])
def test_1d_and_15d_receive_what_their_ranks_receive(copies):
    nodes, columns, num_ranks = 64, 3, 8
    generator = np.random.default_rng(0)
    matrix, rows = generator.random((nodes, nodes)) < 0.03, generator.normal(size=(nodes, columns))
    ranks, num_parts = Ranks(), num_ranks // copies
    owner = np.arange(nodes) * num_parts // nodes
    halo, sums = 0, {}
    for part in range(num_parts):
        needed = np.flatnonzero(matrix[owner == part].any(axis=0))
        halo += np.count_nonzero(owner[needed] != part)
        group = [(part, copy) for copy in range(copies)]
        parts = {}
        for rank in group:       # each copy sums the rows of its share of the parts
            chosen = owner * copies // num_parts == rank[1]
            read = needed[chosen[needed]]
            ranks.receive(rank, rows[read[owner[read] != part]])
            parts[rank] = matrix[owner == part][:, chosen] @ rows[chosen]
        sums |= ranks.add_up(group, parts)
    expected = matrix @ rows
    assert all(np.allclose(one, expected[owner == part]) for (part, _), one in sums.items())
    training = Training(nodes, matrix.sum(), (columns, columns), num_ranks, keeps_input=False)
    found = replicated(training, copies, halo / num_parts, 3.0)
    assert found.received_bytes - weight_bytes(training) == pytest.approx(2 * 4 * ranks.mean)


def test_15d_without_a_cut_is_the_broadcasts_of_cagnet():
    """8 ranks, 2 copies, blocks of 16 of 64 rows: a rank needs 2 blocks, and half of the ranks have one."""
    training = Training(64, 100, (5, 5), 8, keeps_input=False)
    found = replicated(training, 2, 64 - 16, 1.0).received_bytes - weight_bytes(training)
    assert found == pytest.approx(2 * 4 * 5 * (1.5 * 16 + 2 * 8))      # and an Allreduce of 16 rows over 2 ranks


def test_bytes_and_seconds_of_papers100m_are_those_that_plexus_predicts():
    """Its model: 19.7 GiB a GPU and 21.7 TB in all on the grid with the fewest bytes, 723 ms on its fastest grid."""
    fewest = min((tensor(PAPERS, grid) for grid in GRIDS), key=lambda one: one.received_bytes)
    assert fewest.grid == (16, 8, 8)
    assert fewest.received_bytes / 2**30 == pytest.approx(19.694, rel=1e-4)
    assert fewest.received_bytes * 1024 / 1e12 == pytest.approx(21.65, rel=1e-3)
    perlmutter = Network(4, NOTHING, 225 * 2**30, NOTHING, 66.59 * 2**30, 66.59 * 2**30)      # bandwidths it measured
    fastest = min((tensor(PAPERS, grid, perlmutter) for grid in GRIDS), key=lambda one: one.seconds)
    assert fastest.grid == (8, 16, 8) and fastest.seconds == pytest.approx(0.7232, rel=1e-4)
    # Its model of memory has 14.49 GiB for the first grid, with 24 bytes per edge, which are 8 here.
    assert 0.8 < fewest.memory_bytes / 2**30 / 14.486 < 1.1


def test_2d_wins_where_a_part_has_more_than_6_halo_rows_per_row_on_16_ranks():
    training = Training(1e6, 1e7, (64, 64, 64), 16)
    for ratio, wins in ((5.9, False), (6.1, True)):
        ours, plane = best_layouts(training, {16: ratio}, 15.0)[:2]
        assert (ours.grid, plane.name, plane.grid) == ((16,), "2D", (4, 4))
        assert (plane.received_bytes < ours.received_bytes) == wins
    assert ours.received_bytes - weight_bytes(training) == pytest.approx(2 * 4 * 64 * 6.1 * 1e6 / 16)


def test_what_the_input_sends_is_left_out_if_its_sums_are_kept():
    learned, kept = (Training(800, 4000, (8, 16, 4), 4, keeps_input=kept) for kept in (False, True))
    # Two layers, of 8 and 16 columns, or the second alone: 200 own rows, twice as many received, forward and backward.
    for training, columns in ((learned, 24), (kept, 16)):
        assert edges_stay(training, 2, 2).received_bytes - weight_bytes(training) == 2 * 400 * columns * 4
    assert weight_bytes(learned) == 2 * 3 / 4 * 4 * (8 * 16 + 16 * 4)


def test_a_piece_of_a_packed_row_has_its_own_parameters():
    training = Training(1600, 1e-9, (64, 64), 16, bits=1, keeps_input=False)
    # Whole rows of 64 columns take 8 + 4 bytes; pieces of 16 columns 2 + 4, and a rank receives 300 of each kind.
    assert edges_stay(training, 4, 4).received_bytes - weight_bytes(training) == pytest.approx(2 * 600 * 12)
    assert summa(training, 4, 1).received_bytes - weight_bytes(training) == pytest.approx(2 * 2 * 1200 * 6)


def test_rings_that_interleave_on_a_node_share_its_interface():
    network = Network(4, 1e-6, 10e9, 5e-6, 8e9, 8e9)
    assert step_seconds(gather(4, 1, 4e6), network) == pytest.approx(2 * 1e-6 + 3e6 / 10e9)      # within a node
    assert step_seconds(gather(8, 1, 8e6), network) == pytest.approx(3 * 5e-6 + 7e6 / 8e9)       # one ring over two
    assert step_seconds(gather(4, 8, 4e6), network) == pytest.approx(2 * 5e-6 + 3e6 / 2e9)       # four rings at once
