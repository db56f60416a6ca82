"""What MEGA's configuration says, checked, and in the units in which its parts compute.

No workload is known here.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from hpcgnn.accelerators.design import Design
from hpcgnn.accelerators.workload import NUM_SLICES
from hpcgnn.errors import ConfigError
from hpcgnn.partition.condense_traffic import POLICIES, Buffer
from hpcgnn.quantized.package import MAX_LENGTH, MIN_LENGTH

# Whether subgraphs are those of METIS, else blocks of ids; and how what they need of each other is read.
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
    """Reads a design of kind mega.

    Raises
    ------
    ConfigError      a unit, buffer or rule is missing or can't be
    """

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
            raise ConfigError(f"{self.design.units['bse']} bse of {name} make no C-PE of {rules['bse_per_pe']} in each "
                              f"of {NUM_SLICES} tiles")

    def __getitem__(self, name: str):
        """Return a rule by its name."""
        return self.design.rules[name]

    def units(self, name: str) -> int:
        return int(self.design.units[name])

    def half(self, buffer: str) -> int:
        """Return the bytes of one of the two halves of a buffer (§V-A: all buffers are ping-pong)."""
        return self.design.buffer_bytes(buffer) // 2

    @property
    def pes_per_tile(self) -> int:
        """Return m of §V-C, the columns of W that are multiplied at once."""
        return self.units("bse") // (NUM_SLICES * self["bse_per_pe"])

    @property
    def has_metis(self) -> bool:
        return SCHEDULES[self["schedule"]][0]

    @property
    def sparse_reads(self) -> str:
        """Return how rows of other subgraphs are read: condense, source, arc or gather."""
        return SCHEDULES[self["schedule"]][1]

    @cached_property
    def row_buffer(self) -> Buffer:
        """Return halves of the Combination and the Sparse Buffer as what stands in front of DRAM."""
        combination, sparse = self.half("combination"), self.half("sparse")
        return Buffer(combination + sparse, self["line_bytes"], self["policy"], sparse / (combination + sparse)).check()

    def least_width(self) -> int:
        """Return the fewest bits as which a value is fed; assumed: narrower ones get zeros above them, as the crossbar
        brings weights to one group of C-PEs a cycle (§V-C: "each weight is reused at least twice").
        """
        return -(-self.pes_per_tile // self["crossbar_columns"])

    def column_passes(self, combined_dim: int) -> int:
        """Return how often a row passes the C-PEs."""
        return -(-combined_dim // self.pes_per_tile)


def bytes_of(num_values: int, bits: int) -> int:
    """Return the whole bytes of a row of values."""
    return -(-num_values * bits // 8)
