"""`Cluster`: a node's rates of work and the network between nodes, read from a TOML file and checked, or a preset.

`hpcgnn plan --measure` writes such a file. Where nothing was measured (`--node NAME --network NAME`), a preset has the
figures of a data sheet: a kernel reaches a share of the node's arithmetic or memory bandwidth, and the ranks of the
node share both equally.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
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


@dataclass(frozen=True)
class NodeKind:
    """A node of CPUs; `source` says where its figures come from."""

    cores: int
    flops: float               # float32 operations per second of all cores, at their base clock
    bytes_per_second: float    # of memory, all channels
    memory_bytes: float
    source: str


@dataclass(frozen=True)
class NetworkKind:
    """A network interface per node; `source` says where its figures come from."""

    bytes_per_second: float    # each way
    latency_seconds: float     # of a message between two MPI ranks
    source: str


# float32 operations per clock and core: 32 with two units of 256 bits for multiply and add (AVX2), 64 with two of 512.
NODES = {
    "laptop": NodeKind(8, 8 * 2.0e9 * 32, 2 * 44.8e9, 16e9,
                       "assumed: 8 cores of 2.0 GHz with AVX2, 2 channels of DDR5-5600, 16 GB"),
    "epyc-2x64": NodeKind(128, 128 * 2.25e9 * 32, 2 * 204.8e9, 256e9,
                          "AMD's data sheet of 2 EPYC 7742: 64 cores of 2.25 GHz, 8 channels of DDR4-3200 each; memory "
                          "assumed"),
    "epyc-2x96": NodeKind(192, 192 * 2.4e9 * 32, 2 * 460.8e9, 768e9,
                          "AMD's data sheet of 2 EPYC 9654: 96 cores of 2.4 GHz, 12 channels of DDR5-4800 each; memory "
                          "assumed"),
    "xeon-2x56": NodeKind(112, 112 * 2.0e9 * 64, 2 * 307.2e9, 512e9,
                          "Intel's data sheet of 2 Xeon Platinum 8480+: 56 cores of 2.0 GHz, 8 channels of DDR5-4800 "
                          "each; memory assumed"),
}
# Ethernet: 94 % of the line rate is left by frames of 1,500 bytes and TCP. InfiniBand: the data rate of four lanes.
TCP_SHARE = 0.94
NETWORKS = {
    "ethernet-1g": NetworkKind(TCP_SHARE * 0.125e9, 50e-6, "IEEE 802.3ab, 1 Gbit/s; latency of TCP assumed"),
    "ethernet-10g": NetworkKind(TCP_SHARE * 1.25e9, 25e-6, "IEEE 802.3ae, 10 Gbit/s; latency of TCP assumed"),
    "ethernet-25g": NetworkKind(TCP_SHARE * 3.125e9, 20e-6, "IEEE 802.3by, 25 Gbit/s; latency of TCP assumed"),
    "ethernet-100g": NetworkKind(TCP_SHARE * 12.5e9, 20e-6, "IEEE 802.3ba, 100 Gbit/s; latency of TCP assumed"),
    "infiniband-hdr": NetworkKind(25e9, 2e-6, "InfiniBand HDR, 200 Gbit/s; latency of MPI assumed"),
    "infiniband-ndr": NetworkKind(50e9, 2e-6, "InfiniBand NDR, 400 Gbit/s; latency of MPI assumed"),
}
# What people also call them, for a hint.
OTHER_NAMES = {"1gbit": "ethernet-1g", "gigabit": "ethernet-1g", "10gbit": "ethernet-10g", "25gbit": "ethernet-25g",
               "100gbit": "ethernet-100g", "hdr": "infiniband-hdr", "hdr200": "infiniband-hdr", "ndr": "infiniband-ndr",
               "ndr400": "infiniband-ndr", "infiniband": "infiniband-hdr", "ethernet": "ethernet-10g"}

# Share of the peak, or of a copy's bandwidth, that kernels reach with AVX2: data/benchmarks/processors.md and host.md.
PRODUCTS_SHARE, GRADIENTS_SHARE = 0.83, 0.76
DROP_SHARE, NORM_SHARE, PACK_SHARE, UNPACK_SHARE, SUM_SHARE = 0.90, 0.73, 0.30, 0.62, 0.87
# Assumed: share of a data sheet's bandwidth that a copy reaches; what Python takes for a step; a message within a node,
# which a core copies.
COPY_SHARE, STEP_SECONDS = 0.8, 0.01
WITHIN_LATENCY, WITHIN_BYTES_PER_SECOND = 1e-6, 5e9
CORES_OF_A_RANK = 8
LARGE_TABLE, WIDE_ROW = 1e9, 256      # gathers are planned from memory, however small the table: caches only help


def preset_cluster(node: str, network: str | None, ranks_per_node: int | None = None) -> Cluster:
    """The cluster of a preset node and network; without a network, seconds of several nodes can't be planned.

    Without `ranks_per_node` each rank has CORES_OF_A_RANK cores.

    Raises
    ------
    ConfigError      an unknown name, with the known ones; more ranks than cores
    """
    kind = _find("--node", node, NODES)
    ranks = ranks_per_node or max(kind.cores // CORES_OF_A_RANK, 1)
    if ranks > kind.cores:
        raise ConfigError(f"ranks_per_node = {ranks} is more than the {kind.cores} cores of --node {node}; lower it")
    flops, rate = kind.flops / ranks, COPY_SHARE * kind.bytes_per_second / ranks
    gather = np.array([[WIDE_ROW, LARGE_TABLE, SUM_SHARE * rate]])
    # Bytes of a float32 value: read and written; backward also reads what forward has kept.
    rates = Rates(PRODUCTS_SHARE * flops, GRADIENTS_SHARE * flops, DROP_SHARE * rate / 8, NORM_SHARE * rate / 8,
                  NORM_SHARE * rate / 12, gather)
    # Read as float32 and written in the code's bits, or the reverse; 16-bit rows are stored as such.
    bytes_of_value = {code: 4.0 if code == "stored_16" else 4 + int(code.rpartition("_")[2]) / 8 for code in CODES}
    pack, unpack = ({code: share * rate / num_bytes for code, num_bytes in bytes_of_value.items()}
                    for share in (PACK_SHARE, UNPACK_SHARE))
    cores = kind.cores // ranks
    seen = (f"{node}, {kind.flops / 1e9:,.0f} GFLOP/s and {kind.bytes_per_second / 1e9:.0f} GB/s of memory, of which a "
            f"rank has {cores} {'core' if cores == 1 else 'cores'} of {kind.cores} ({kind.source})")
    made = Cluster(f"--node {node}", Network(ranks, WITHIN_LATENCY, WITHIN_BYTES_PER_SECOND),
                   dict.fromkeys(PRECISIONS, rates), pack, unpack, TYPICAL_PROCESS_BYTES, STEP_SECONDS,
                   kind.memory_bytes, assumed={"node": seen})
    return made if network is None else with_network(made, network)


def with_network(cluster: Cluster, network: str) -> Cluster:
    """The cluster with a preset's figures where it states none of its network between nodes.

    Raises
    ------
    ConfigError      an unknown name, with the known ones; the cluster states all of its network
    """
    kind, own = _find("--network", network, NETWORKS), cluster.network
    figures = {"between_latency": kind.latency_seconds, "between_rate": kind.bytes_per_second,
               "nic_rate": kind.bytes_per_second}
    lacking = {name: value for name, value in figures.items() if getattr(own, name) is None}
    if not lacking:
        raise ConfigError(f"{cluster.name} states its network between nodes; leave --network {network} out")
    joined = replace(own, **lacking)
    seen = (f"{network}, {kind.bytes_per_second / 1e9:.3g} GB/s each way and {1e6 * kind.latency_seconds:.3g} µs "
            f"({kind.source})")
    return replace(cluster, network=joined, assumed={**cluster.assumed, "network": seen})


def _find(option: str, name: str, known: dict[str, Any]) -> Any:
    if name in known:
        return known[name]
    near = OTHER_NAMES.get(name.lower()) or next(iter(get_close_matches(name.lower(), known, 1)), None)
    hint = f"; did you mean {near}?" if near in known else ""
    raise ConfigError(f"{option} is {name!r}; expected one of {', '.join(known)}{hint}")
