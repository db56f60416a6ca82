"""Closed forms of layouts: what a rank receives in an epoch if edges and rows are dealt in 1, 2 or 3 dimensions.

hpcgnn is 1D: a rank owns whole rows and reads the halo rows of its cut. The other layouts cut the adjacency matrix
(n x n) and the rows (n x d) into blocks for a grid of P ranks, which receive blocks whole, whatever the cut.

Example, four ranks in 2D: a rank has a quarter of the matrix, n / 2 x n / 2. It gathers n / 2 rows, of which it lacks
n / 4, and of the sums for n / 2 rows it receives n / 4: 2 (sqrt(P) - 1) times its own n / P rows. So 2D receives less
than 1D where a part has more halo rows per row.

All forms are derived here, as lower bounds: nobody waits, packing and copies are free, GraphSAGE's product with a
node's own row sends nothing. The sum of the weights' gradients counts.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from operator import attrgetter
from typing import NamedTuple

from hpcgnn.planning.cluster import Network

FLOAT, EDGE_BYTES, MOST_PACKED, PARAMETER_BYTES = 4, 8, 8, 4      # an edge is an id and a value


@dataclass(frozen=True)
class Training:
    """An epoch of a GCN or GraphSAGE, and how its rows are sent."""

    nodes: float
    edges: float                    # entries of the adjacency matrix
    columns: tuple[int, ...]        # of the input, and of each layer's output
    ranks: int
    bits: int = 32                  # of a value of a row
    keeps_input: bool = True        # the input has no gradient, and its sums over neighbors are computed once
    sent: tuple[int, ...] = ()      # columns that travel for each layer, if not those that it reads

    def row_bytes(self, columns: float) -> float:
        """Bytes of a row or a piece of it that travels alone; up to 8 bits have parameters."""
        return columns * self.bits / 8 + PARAMETER_BYTES * (self.bits <= MOST_PACKED)

    def layers(self) -> Iterator[tuple[int, int, int, int]]:
        """Of each layer its number, and columns: in, out, and those that travel."""
        columns = zip(self.columns, self.columns[1:], self.sent or self.columns, strict=False)
        for number, (wide, out, sent) in enumerate(columns):
            yield number, wide, out, 0 if number == 0 and self.keeps_input else sent

    @property
    def sum_of_weights(self) -> list[Step]:
        return add_up(self.ranks, 1, FLOAT * sum(wide * out for _, wide, out, _ in self.layers()))

    @property
    def own_bytes(self) -> float:
        """A P-th of the edges, and of all rows and their gradients in float32."""
        return (EDGE_BYTES * self.edges + 2 * FLOAT * self.nodes * sum(self.columns)) / self.ranks


class Step(NamedTuple):
    """What a rank receives in one collective."""

    span: int          # ranks from the first of the group to its last
    sharing: int       # groups that cross a node's interface at once, if the node has as many ranks
    received: float    # bytes
    messages: float


class Layout(NamedTuple):
    """A rank's epoch; `cost` is its seconds, or its bytes where they are not known."""

    name: str
    grid: tuple[int, ...]
    received_bytes: float
    messages: float
    seconds: float           # of messages; nan if the network is not known
    memory_bytes: float      # of edges, rows with gradients, and the largest buffers

    @property
    def cost(self) -> float:
        return self.received_bytes if math.isnan(self.seconds) else self.seconds


def gather(group: int, stride: int, num_bytes: float, messages: float | None = None) -> Step:
    """Each of `group` ranks ends with `num_bytes`, a share of which was its own; a reduce-scatter costs the same."""
    received, fewest = num_bytes * (group - 1) / group, math.ceil(math.log2(group))
    return Step(stride * (group - 1) + 1, stride, received, messages or fewest)


def add_up(group: int, stride: int, num_bytes: float) -> list[Step]:
    """An Allreduce: each rank adds up its share, then all shares are gathered."""
    return [gather(group, stride, num_bytes)] * 2


def step_seconds(step: Step, network: Network) -> float:
    """Latencies, and bytes by rate. A ring enters a node once; rings that interleave there share its interface."""
    latency, rate = network.within_latency, network.within_rate
    if step.span > network.ranks_per_node:
        shared = (network.nic_rate or math.nan) / min(step.sharing, network.ranks_per_node)
        latency, rate = network.between_latency, min(network.between_rate or math.nan, shared)
    return step.messages * (latency or math.nan) + step.received / (rate or math.nan)


def layout(name: str, grid: tuple[int, ...], steps: list[Step], memory: float, network: Network | None) -> Layout:
    steps = [step for step in steps if step.received]
    seconds = math.nan if network is None else sum(step_seconds(step, network) for step in steps)
    received, messages = (sum(step[place] for step in steps) for place in (2, 3))
    return Layout(name, grid, received, messages, seconds, memory)


def replicated(training: Training, copies: int, halo_rows: float, neighbors: float,
               network: Network | None = None) -> Layout:
    """1D (`copies` 1), and 1.5D: P / c parts of n c / P rows, each on c ranks.

    A rank reads a c-th of its part's `halo_rows` h, from `neighbors` ranks, and c ranks add up their sums: h / c +
    2 (c - 1) n / P rows, forward and again backward. CAGNET's code broadcasts all rows: h = n - n c / P.
    """
    ranks, rows, steps = training.ranks, training.nodes * copies / training.ranks, training.sum_of_weights
    for *_, sent in training.layers():
        one, times = training.row_bytes(sent), 2 * bool(sent)
        steps += times * [Step(ranks, ranks, halo_rows / copies * one, neighbors), *add_up(copies, 1, rows * one)]
    memory = (training.own_bytes + FLOAT * max(training.columns) * halo_rows / copies
              + 2 * FLOAT * (rows - training.nodes / ranks) * sum(training.columns))
    return layout("1D" if copies == 1 else "1.5D", (ranks // copies, copies)[:copies], steps, memory, network)


def edges_stay(training: Training, high: int, wide: int, network: Network | None = None) -> Layout:
    """2D where edges never travel: rank (i, j) of a grid of `high` x `wide` keeps block (i, j) of the matrix.

    It gathers n / wide rows down its column; sums for n / high rows are added up and dealt along its row: in all
    (high + wide - 2) n / P rows, both ways. Block column j has the j-th piece of every block row, as the sums do.
    """
    nodes, steps = training.nodes, training.sum_of_weights
    for *_, sent in training.layers():
        one = training.row_bytes(sent)
        steps += 2 * bool(sent) * [gather(high, wide, nodes / wide * one), gather(wide, 1, nodes / high * one)]
    memory = training.own_bytes + FLOAT * max(training.columns) * nodes * (1 / wide + 1 / high)
    return layout("2D", (high, wide), steps, memory, network)


def summa(training: Training, side: int, depth: int, network: Network | None = None) -> Layout:
    """CAGNET's 2D (`depth` 1) and 3D on q x q x c ranks, as its public code multiplies (Tripathy et al., SC 2020).

    Blocks of the matrix are n / q x n / (q c), of the rows n / (q c) x d / q. An aggregation broadcasts q blocks of
    edges along rows of the grid and q blocks of rows down its columns, and c layers add up and deal their sums; the
    product with W gathers whole rows. That is (2 (q - 1) + c - 1) n d / P values and (q - 1) / P of the edges; backward
    the same with the output's columns. The code sends more: it transposes, and all layers get the sums.
    """
    nodes, steps = training.nodes, training.sum_of_weights
    for _, wide, out, sent in training.layers():
        for one, whole in [[training.row_bytes(columns / side) for columns in pair]
                           for pair in ((sent, wide), (out, out)) * bool(sent)]:
            steps += [gather(side, depth, EDGE_BYTES * training.edges * side / training.ranks, side - 1),
                      gather(side, side * depth, nodes / depth * one, side - 1),
                      gather(depth, 1, nodes / side * one), gather(side, depth, nodes / depth * whole)]
    rows = nodes / side * (1 / depth + 1 / side)
    buffers = FLOAT * max(training.columns) * rows + EDGE_BYTES * training.edges / training.ranks
    grid = (side, side, depth)[:2 + (depth > 1)]
    return layout(f"{len(grid)}D SUMMA", grid, steps, training.own_bytes + buffers, network)


def tensor(training: Training, sizes: tuple[int, int, int], network: Network | None = None) -> Layout:
    """3D as in Plexus (Ranjan et al., SC 2025), on x x y x z ranks: those along y are neighbors, then x, then z.

    The axes have roles a, o, s. Edges are n / s x n / a, the input H n / a x d / o, A H n / s x d / o, W d / o x d' / a
    in s shares, the output n / s x d' / a, so the roles turn for the next layer. Forward, A H is added up over a, A H W
    over o; backward, gradients of A H over a, of H over s. W is gathered twice, its gradient dealt. A learned input is
    gathered over s, its gradient dealt: then bytes are those of the public code's performance/comm_model.py.
    """
    nodes, strides, memory, cuts = training.nodes, (sizes[1], 1, sizes[0] * sizes[1]), 0.0, set()
    steps: list[Step] = []
    for number, wide, out, sent in training.layers():
        role = ((0, 1, 2), (2, 0, 1), (1, 2, 0))[number % 3]
        (a, o, s), (along_a, along_o, along_s) = ([own[axis] for axis in role] for own in (sizes, strides))
        one = training.row_bytes(wide / o)
        steps += [gather(s, along_s, FLOAT * wide * out / (a * o))] * 3
        steps += add_up(o, along_o, nodes / s * training.row_bytes(out / a))
        steps += bool(sent) * [*2 * add_up(a, along_a, nodes / s * one), *add_up(s, along_s, nodes / a * one)]
        cuts.add((role[0], role[2], a * s))
        memory += 2 * FLOAT * nodes * (wide / o / a + wide / o / s)
    memory += 2 * FLOAT * nodes * out / s / a + EDGE_BYTES * training.edges * sum(1 / part for _, _, part in cuts)
    return layout("3D Plexus", sizes, steps, memory, network)


def best_layouts(training: Training, halo_ratio: dict[int, float], neighbors: float,
                 network: Network | None = None) -> list[Layout]:
    """1D, then the cheapest grid of each other; `halo_ratio` has halo rows per row by parts, 1.5D needs P / c."""
    ranks, rows = training.ranks, training.nodes / training.ranks
    sides = [side for side in range(1, ranks + 1) if ranks % side == 0]
    copied = [replicated(training, copies, copies * rows * halo_ratio[ranks // copies], neighbors / copies, network)
              for copies in sides if copies**2 <= ranks and ranks // copies in halo_ratio]
    summas = [summa(training, side, ranks // side**2, network) for side in sides[1:] if ranks % side**2 == 0]
    tensors = [tensor(training, (x, y, ranks // x // y), network) for x in sides for y in sides if ranks // x % y == 0]
    families = [copied[:1], copied[1:], [edges_stay(training, side, ranks // side, network) for side in sides[1:-1]],
                [one for one in summas if len(one.grid) == 2], [one for one in summas if len(one.grid) == 3], tensors]
    return [min(family, key=attrgetter("cost")) for family in families if family]
