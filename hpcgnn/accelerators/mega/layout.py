"""How a workload lies in MEGA: the rules of its configuration, subgraphs, packages in DRAM, and edges by subgraph.

METIS (or blocks of ids) cuts the graph once, for the widest aggregation; layers of narrower rows join neighboring
subgraphs where the buffers hold them together, so rows keep one order in all layers. Rows of X are stored as
Adaptive-Packages, or in a bitmap format at one width; only counts of their nonzeros are needed for the sizes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from hpcgnn.accelerators.condense_traffic import POLICIES, Buffer, pruned_entries
from hpcgnn.accelerators.design import Design
from hpcgnn.accelerators.schedule import block_starts
from hpcgnn.accelerators.subgraphs import Subgraphs, blocks_of, subgraphs_of
from hpcgnn.accelerators.workload import NUM_SLICES, FeatureCounts, Workload, size_in_bytes, starts_of
from hpcgnn.errors import ConfigError
from hpcgnn.lowbit.package import HEADER_BITS, MAX_BIT_WIDTH, MAX_LENGTH, MIN_LENGTH
from hpcgnn.partition.condense import ClusteredRows, CondensedRegions, condensed_regions

# How subgraphs are made (METIS or blocks of ids), and how a subgraph reads the rows of other subgraphs.
SCHEDULES = {"condense": (True, "condense"), "condense-ids": (False, "condense"), "metis": (True, "source"),
             "metis-arcs": (True, "arc"), "gcod": (True, "gather"), "naive": (False, "gather")}
STORAGES = ("package", "bitmap")
UNITS = ("bse", "aggregation_unit", "crossbar", "condense_unit", "encoder", "decoder")
BUFFERS = ("aggregation", "combination", "input", "edge", "sparse", "weight")
COUNTS = ("bse_per_pe", "crossbar_columns", "weight_bits", "combined_bits", "sum_bits", "line_bytes", "edge_bytes",
          "column_bytes", "sparse_port_bytes", "rows_a_block")
FILLS = ("combination_fill", "aggregation_fill", "seed")
OTHERS = (*FILLS, "package_lengths", "storage", "schedule", "fuse_first_subgraph", "policy", "pruned_share")


@dataclass(frozen=True)
class Rules:
    """The rules of a MEGA design, and what follows from them; ConfigError for a missing or impossible number."""

    design: Design

    def __post_init__(self) -> None:
        rules, name = self.design.rules, self.design.name
        for section, names in (("units", UNITS), ("buffers", BUFFERS), ("rules", COUNTS + OTHERS)):
            missing = set(names) - set(getattr(self.design, section))
            if missing:
                raise ConfigError(f"[{section}] of {name} lacks {', '.join(sorted(missing))}")
        for rule in COUNTS:
            if not isinstance(rules[rule], int) or rules[rule] < 1:
                raise ConfigError(f"rules.{rule} of {name} is {rules[rule]!r}; expected a whole number of 1 or more")
        for rule, choices in (("schedule", SCHEDULES), ("storage", STORAGES), ("policy", POLICIES)):
            if rules[rule] not in choices:
                raise ConfigError(f"rules.{rule} of {name} is {rules[rule]!r}; choose one of {', '.join(choices)}")
        if rules["fuse_first_subgraph"] not in (True, False):
            raise ConfigError(f"rules.fuse_first_subgraph of {name} is {rules['fuse_first_subgraph']!r}; expected true "
                              "or false")
        lengths = rules["package_lengths"]
        is_three = isinstance(lengths, list) and len(lengths) == 3 and all(type(bits) is int for bits in lengths)
        if not is_three or [MIN_LENGTH, *lengths, MAX_LENGTH] != sorted([MIN_LENGTH, *lengths, MAX_LENGTH]):
            raise ConfigError(f"rules.package_lengths of {name} are {lengths}; expected three that do not descend, "
                              f"from {MIN_LENGTH} to {MAX_LENGTH}")
        for rule in FILLS:
            if not isinstance(rules[rule], int) or rules[rule] < 0:
                raise ConfigError(f"rules.{rule} of {name} is {rules[rule]!r}; expected a whole number of 0 or more")
        share = rules["pruned_share"]
        if not isinstance(share, (int, float)) or not 0 <= share <= 1:
            raise ConfigError(f"rules.pruned_share of {name} is {share!r}; expected 0 to 1")
        if self.pes_per_tile < 1:
            raise ConfigError(f"{name} has {self.design.units['bse']} bse, too few for a C-PE of "
                              f"{rules['bse_per_pe']} bse in each of {NUM_SLICES} tiles")

    def __getitem__(self, name: str):
        return self.design.rules[name]

    def units(self, name: str) -> int:
        return int(self.design.units[name])

    def half(self, buffer: str) -> int:
        return self.design.buffer_bytes(buffer) // 2

    @property
    def pes_per_tile(self) -> int:
        """m of §V-C: columns of W that are multiplied at once."""
        return self.units("bse") // (NUM_SLICES * self["bse_per_pe"])

    @property
    def has_metis(self) -> bool:
        return SCHEDULES[self["schedule"]][0]

    @property
    def sparse_reads(self) -> str:
        """How rows of other subgraphs are read: condense, source, arc or gather."""
        return SCHEDULES[self["schedule"]][1]

    @cached_property
    def row_buffer(self) -> Buffer:
        combination, sparse = self.half("combination"), self.half("sparse")
        return Buffer(combination + sparse, self["line_bytes"], self["policy"], sparse / (combination + sparse)).check()

    def least_width(self) -> int:
        """Fewest bits that a value is fed with.

        Assumed: narrower values are padded with zeros, since the crossbar brings weights to one group of C-PEs per
        cycle (§V-C: "each weight is reused at least twice").
        """
        return -(-self.pes_per_tile // self["crossbar_columns"])

    def column_passes(self, combined_dim: int) -> int:
        return -(-combined_dim // self.pes_per_tile)


def rows_a_subgraph(aggregated_dim: int, rules: Rules) -> int:
    """Number of rows that fit: sums into half of the Aggregation Buffer, XW into half of the Combination Buffer.

    Raises ConfigError if that is none.
    """
    sums = rules.half("aggregation") // size_in_bytes(aggregated_dim, rules["sum_bits"])
    combined = rules.row_buffer.dense().num_bytes // size_in_bytes(aggregated_dim, rules["combined_bits"])
    if min(sums, combined) < 1:
        raise ConfigError(f"the buffers of {rules.design.name} hold no row of {aggregated_dim} columns; choose larger "
                          "ones")
    return min(sums, combined)


@dataclass(frozen=True)
class Layout:
    subgraphs: Subgraphs    # without the edges that gcod prunes
    num_rows: int           # requested rows per subgraph

    def rows(self, aggregated_dim: int, rules: Rules) -> ClusteredRows:
        """The subgraphs of a layer.

        Assumed: neighboring subgraphs of METIS are joined if the buffers hold them together, so that rows keep their
        order from layer to layer.
        """
        most, rows = rows_a_subgraph(aggregated_dim, rules), self.subgraphs.rows
        if most <= self.num_rows:
            return rows
        if not rules.has_metis:
            return ClusteredRows(block_starts(rows.num_rows, most), rows.indptr, rows.indices)
        bounds = [0]
        while bounds[-1] < rows.num_clusters:
            end = int(np.searchsorted(rows.start, rows.start[bounds[-1]] + most, "right")) - 1
            bounds.append(max(end, bounds[-1] + 1))
        return ClusteredRows(rows.start[bounds], rows.indptr, rows.indices)


def layout_of(workload: Workload, rules: Rules) -> Layout:
    """Cut a workload's graph as the schedule says: METIS as in `jobs/measurements/dram.py`, or blocks of ids.

    Assumed: a subgraph that METIS made a few rows larger than asked for fits nevertheless. Raises ConfigError if the
    buffers hold no row, or METIS gave up.
    """
    num_rows = min((rows_a_subgraph(product.aggregated_dim, rules) for product in workload.products
                    if product.aggregated_dim), default=max(workload.num_nodes, 1))
    if rules.has_metis:
        subgraphs = subgraphs_of(workload.indptr, workload.indices, num_rows, rules["seed"])
    else:
        subgraphs = blocks_of(workload.indptr, workload.indices, num_rows)
    if rules["schedule"] == "gcod":
        rows = subgraphs.rows
        subgraphs = Subgraphs(subgraphs.order, rows.without(pruned_entries(rows, rules["pruned_share"])))
    return Layout(subgraphs, num_rows)


@dataclass(frozen=True)
class StoredRows:
    """Rows one after the other: values and, apart from the values, bitmaps of positions."""

    width: np.ndarray           # (num_rows,) int64, bits of a value of a row, as stored
    # (num_rows + 1,) int64, byte at which the values of all earlier rows end; a package that several rows share belongs
    # to the row that opened it
    value_end: np.ndarray
    position_end: np.ndarray    # (num_rows + 1,) int64, the same for positions, one bit per column

    @property
    def end(self) -> np.ndarray:
        """(num_rows + 1,) int64, bytes of values and positions of all earlier rows."""
        return self.value_end + self.position_end

    @property
    def num_bytes(self) -> int:
        return int(self.end[-1])


def stored_rows(rows: FeatureCounts, rules: Rules) -> StoredRows:
    """Store rows as the rule `storage` says. Raises ConfigError if nonzeros have 0 or more than 8 bits.

    Reference: MEGA, §V-B; Fig. 19 for the bitmap format, which stores all values at the largest width.
    """
    count, width = rows.row_nonzeros(), rows.bit_width.astype(np.int64)
    used = width[count > 0]
    if used.size and not 1 <= used.min() <= used.max() <= MAX_BIT_WIDTH:
        raise ConfigError(f"values have {used.min()} to {used.max()} bits; MEGA stores 1 to {MAX_BIT_WIDTH}")
    if rules["storage"] == "bitmap":
        width = np.full(len(width), used.max(initial=1))
        bits = count * width
    else:
        bits = package_bits(count, width, rules["package_lengths"])
    return StoredRows(width, *(-(-starts_of(ends) // 8) for ends in (bits, np.full(len(width), rows.dim, np.int64))))


def package_bits(count: np.ndarray, width: np.ndarray, lengths: Sequence[int]) -> np.ndarray:
    """Bits of the packages that each row opens, headers and padding included, (num_rows,) int64.

    A package takes the values of successive rows until it is full or the width changes. Its mode is the shortest one
    that holds them. A row without values changes nothing.

    Parameters
    ----------
    count, width : (num_rows,) int64       nonzeros of a row, and bits of each
    lengths : three int, not descending    bits of values of a short, medium and long package

    Reference: MEGA, §V-B and §V-D.
    """
    bits, row = np.zeros(len(count), np.int64), np.flatnonzero(count)
    if not row.size:
        return bits
    length, count, width = np.asarray(lengths, np.int64), count[row].astype(np.int64), width[row].astype(np.int64)
    begins = np.concatenate([[True], width[1:] != width[:-1]])     # a run of rows of one width
    end = np.cumsum(count)
    before = end - count
    first, run = before[begins], np.cumsum(begins) - 1
    capacity = length[2] // width
    num_packages = -(-(end - first[run]) // capacity) + -(before - first[run]) // capacity
    full_bits = length[np.searchsorted(length, capacity * width)]
    bits[row] = num_packages * (full_bits + HEADER_BITS)
    run_width, run_capacity = width[begins], capacity[begins]
    run_values = np.diff(first, append=end[-1])
    full_before = (run_values - 1) // run_capacity * run_capacity
    opener = np.searchsorted(before, first + full_before, "right") - 1
    rest = run_values - full_before
    bits[row[opener]] += length[np.searchsorted(length, rest * run_width)] - full_bits[opener]
    return bits


@dataclass(frozen=True)
class Connections:
    """Edges of clustered rows; those of the first subgraph are apart if it is aggregated during combination.

    `num_fused` (0 or 1) is the number of subgraphs that are aggregated while rows are combined.
    """

    rows: ClusteredRows
    num_fused: int

    @property
    def num_fused_rows(self) -> int:
        return int(self.rows.start[self.num_fused])

    @cached_property
    def later(self) -> ClusteredRows:
        """Rows without the edges into fused subgraphs, which no later pass aggregates."""
        first = int(self.rows.indptr[self.num_fused_rows])
        return ClusteredRows(self.rows.start, np.maximum(self.rows.indptr - first, 0), self.rows.indices[first:])

    @cached_property
    def later_own(self) -> ClusteredRows:
        """`later` with the edges within a subgraph only."""
        return self.later.without(self.later.is_sparse())

    @cached_property
    def regions(self) -> CondensedRegions:
        """Rows of other subgraphs that later subgraphs need, once each and in order."""
        return condensed_regions(self.later)

    @cached_property
    def fused_arcs(self) -> np.ndarray:
        first = int(self.rows.indptr[self.num_fused_rows])
        return np.bincount(self.rows.indices[:first], minlength=self.rows.num_rows)

    @cached_property
    def own_arcs(self) -> np.ndarray:
        return np.bincount(self.later_own.indices, minlength=self.rows.num_rows)

    @cached_property
    def copy_arcs(self) -> np.ndarray:
        place = self.regions.place
        return np.bincount(place[place >= 0], minlength=self.regions.num_copies)

    def sums_by_subgraph(self, of_own: np.ndarray, of_copies: np.ndarray) -> np.ndarray:
        return np.diff(starts_of(of_own)[self.rows.start]) + np.diff(starts_of(of_copies)[self.regions.start])
