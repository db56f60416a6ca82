"""`Cluster`: a node's rates of work and the network between nodes, read from a TOML file and checked.

`hpcgnn plan --measure` writes such a file.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from hpcgnn.errors import ConfigError
from hpcgnn.registry import as_toml, read_toml

# Required and optional keys of each table; [rates.PRECISION] is one table per precision.
NODE = ("ranks", "process_bytes", "step_seconds")
DISK = ("disk_write_bytes_per_second", "disk_read_bytes_per_second")
NODE_MAY = ("memory_bytes", *DISK, "processor", "measured")
WITHIN = ("within_latency_seconds", "within_bytes_per_second")
BETWEEN = ("between_latency_seconds", "between_bytes_per_second", "nic_bytes_per_second")
RATES = ("map_flops", "gradient_flops", "drop_values", "norm_values", "norm_back_values", "sum_bytes")
CODES = tuple([f"{code}_{bits}" for code in ("affine", "rotated") for bits in (1, 2, 4, 8)]
              + ["stored_16", "stored_32"])
TEXTS = ("processor", "measured")
PRECISIONS = ("fp32", "bf16", "fp16")
TYPICAL_PROCESS_BYTES = 3e8      # of a rank with Python, torch and MPI, before it reads its part
AGAIN = "hpcgnn plan --measure FILE writes a file with all of them"


@dataclass(frozen=True)
class Rates:
    """A rank's rates in one precision, while all ranks of its node compute."""

    # map_flops, gradient_flops: of rows times weights, and of gradients of weights
    map_flops: float
    gradient_flops: float
    drop_values: float
    norm_values: float
    norm_back_values: float
    # (n, 3) float64, columns of a row, bytes of the table that rows are gathered from, and bytes gathered per second;
    # every number of columns with every size of a table
    sum_bytes: np.ndarray

    def gather_rate(self, columns: int, table_bytes: np.ndarray) -> np.ndarray:
        """Bytes gathered per second from tables (n,), interpolated between measured sizes by their logarithms."""
        widths = np.unique(self.sum_bytes[:, 0])
        by_width = []
        for width in widths:
            known = self.sum_bytes[self.sum_bytes[:, 0] == width]
            known = known[np.argsort(known[:, 1])]
            by_width.append(np.interp(np.log(np.maximum(table_bytes, 1)), np.log(known[:, 1]), np.log(known[:, 2])))
        place = np.interp(math.log(columns), np.log(widths), np.arange(len(widths)))
        low = int(place)
        high = min(low + 1, len(widths) - 1)
        return np.exp(by_width[low] + (place - low) * (by_width[high] - by_width[low]))


@dataclass(frozen=True)
class Network:
    """Seconds of messages; None if the file does not state it. Rank r is on node r // ranks_per_node."""

    ranks_per_node: int
    # within_latency, between_latency: seconds of a message within a node and between nodes, in addition to its bytes
    within_latency: float | None = None
    # within_rate, between_rate: bytes per second of one message
    within_rate: float | None = None
    between_latency: float | None = None
    between_rate: float | None = None
    nic_rate: float | None = None          # bytes per second that all ranks of a node together send, or receive


@dataclass(frozen=True)
class Cluster:
    """One kind of node, and the network."""

    name: str
    network: Network
    rates: dict[str, Rates]              # precision -> Rates
    # pack, unpack: one of CODES -> values per second
    pack: dict[str, float]
    unpack: dict[str, float]
    process_bytes: float                 # memory of a rank before it reads its part: Python, libraries, MPI
    step_seconds: float                  # seconds of a step outside its kernels
    memory_bytes: float | None = None    # memory of a node
    about: dict[str, str] = field(default_factory=dict)
    # "node", "network": the preset that its figures come from, with their source; empty if all were measured
    assumed: dict[str, str] = field(default_factory=dict)
    # Bytes per second of all ranks of a node together, on its local disk; None if not known
    disk_write_rate: float | None = None
    disk_read_rate: float | None = None

    @property
    def has_rates(self) -> bool:
        """Whether seconds can be planned."""
        return bool(self.rates)

    def rates_of(self, precision: str) -> Rates:
        """The rates in a precision. Raises ConfigError if the file has none."""
        if precision not in self.rates:
            raise ConfigError(f"{self.name} has no table [rates.{precision}]; {AGAIN}, with --precision {precision}")
        return self.rates[precision]

    def rate_of(self, code: str, action: str) -> float:
        """Values per second of a code for "pack" or "unpack". Raises ConfigError if the file has none."""
        if code not in getattr(self, action):
            raise ConfigError(f"{self.name} has no {action}.{code}; {AGAIN}")
        return getattr(self, action)[code]

    def can_time(self, num_parts: int) -> bool:
        """Whether the seconds of `num_parts` ranks can be planned."""
        return self.has_rates and self.lacks(num_parts) is None

    def lacks(self, num_parts: int) -> str | None:
        """What the file lacks about the network between the ranks of a run, as a sentence; None if nothing."""
        ranks, network = min(num_parts, self.network.ranks_per_node), self.network
        needed = {} if ranks == 1 else dict(zip(WITHIN, (network.within_latency, network.within_rate), strict=True))
        if num_parts > ranks:
            needed |= dict(zip(BETWEEN, (network.between_latency, network.between_rate, network.nic_rate), strict=True))
        for key, value in needed.items():
            if value is None:
                return (f"{self.name}: network.{key} is missing, which the seconds of {num_parts} ranks at "
                        f"{network.ranks_per_node} per node need; add it, or give --network NAME")
        return None


def unmeasured(ranks_per_node: int) -> Cluster:
    """A cluster with nothing known except the ranks per node: enough for memory and bytes."""
    return Cluster("no cluster file", Network(ranks_per_node), {}, {}, {}, TYPICAL_PROCESS_BYTES, math.nan)


def read_cluster(path: Path) -> Cluster:
    """Read a cluster file.

    Raises
    ------
    ConfigError      it can't be read; a key is missing, unknown or not a positive number
    """
    tables = read_toml(path)
    check = Checks(str(path))
    check.keys("", tables, ("node", "rates", "pack", "unpack", "network"), ())
    node = check.table("node", tables["node"], NODE, NODE_MAY)
    network = check.table("network", tables["network"], (), (*WITHIN, *BETWEEN))
    check.keys("rates", tables["rates"], (), PRECISIONS)
    rates = {precision: _read_rates(check, f"rates.{precision}", table)
             for precision, table in tables["rates"].items()}
    pack, unpack = (check.table(name, tables[name], (), CODES) for name in ("pack", "unpack"))
    if node["ranks"] != int(node["ranks"]):
        raise ConfigError(f"{path}: node.ranks is {node['ranks']}; expected a whole number")
    joined = Network(int(node["ranks"]), *(network.get(key) for key in (*WITHIN, *BETWEEN)))
    return Cluster(str(path), joined, rates, pack, unpack, node["process_bytes"], node["step_seconds"],
                   node.get("memory_bytes"), {key: node[key] for key in TEXTS if key in node}, {},
                   *(node.get(key) for key in DISK))


def cluster_text(tables: dict[str, dict[str, Any]], remarks: list[str]) -> str:
    """A cluster file, as `read_cluster` reads it, below sentences for its reader."""
    return "".join(f"# {line}\n" for line in remarks) + as_toml(tables)


@dataclass(frozen=True)
class Checks:
    """Checks of a cluster file; each raises a ConfigError that names the key."""

    file: str

    def keys(self, table: str, found: Any, must: tuple[str, ...], may: tuple[str, ...]) -> None:
        if not isinstance(found, dict):
            raise ConfigError(f"{self.file}: {table} is {found!r}; expected a table [{table}]")
        for key in found:
            if key not in (*must, *may):
                raise ConfigError(f"{self.file}: {_name(table, key)} is no key of a cluster file; expected one of "
                                  f"{', '.join((*must, *may))}")
        for key in must:
            if key not in found:
                raise ConfigError(f"{self.file}: {_name(table, key)} is missing; {AGAIN}")

    def table(self, table: str, found: Any, must: tuple[str, ...], may: tuple[str, ...]) -> dict[str, Any]:
        """Check a table of positive numbers; keys of TEXTS hold texts."""
        self.keys(table, found, must, may)
        return {key: self._text(table, key, value) if key in TEXTS else self.number(_name(table, key), value)
                for key, value in found.items()}

    def number(self, name: str, value: Any) -> float:
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not is_number or not 0 < value < math.inf:
            raise ConfigError(f"{self.file}: {name} is {value!r}; expected a positive number")
        return float(value)

    def _text(self, table: str, key: str, value: Any) -> str:
        if not isinstance(value, str):
            raise ConfigError(f"{self.file}: {_name(table, key)} is {value!r}; expected a text")
        return value


def _name(table: str, key: str) -> str:
    return f"{table}.{key}" if table else key


def _read_rates(check: Checks, name: str, table: Any) -> Rates:
    check.keys(name, table, RATES, ())
    rows = table["sum_bytes"]
    if not isinstance(rows, list) or not rows or not all(isinstance(row, list) and len(row) == 3 for row in rows):
        raise ConfigError(f"{check.file}: {name}.sum_bytes is {rows!r}; expected a list of [columns, bytes of a table, "
                          "bytes per second]")
    grid = np.array([[check.number(f"{name}.sum_bytes", value) for value in row] for row in rows])
    numbers = {key: check.number(f"{name}.{key}", table[key]) for key in RATES if key != "sum_bytes"}
    return Rates(**numbers, sum_bytes=grid)
