"""Kinds of nodes and networks for `hpcgnn plan --node NAME --network NAME`, where nothing was measured.

A preset has the figures of a data sheet. `preset_cluster` makes a `Cluster` of them, as a measured file would give one:
a kernel reaches a share of the node's arithmetic or memory bandwidth, and the ranks of the node share both equally.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import Any

import numpy as np

from hpcgnn.errors import ConfigError
from hpcgnn.planning.cluster import CODES, PRECISIONS, TYPICAL_PROCESS_BYTES, Cluster, Network, Rates


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
    pack, unpack = ({code: share * rate / _bytes_of_value(code) for code in CODES}
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


def _bytes_of_value(code: str) -> float:
    # Read as float32 and written in the code's bits, or the reverse; 16-bit rows are stored as such.
    bits = int(code.rpartition("_")[2])
    return 4.0 if code == "stored_16" else 4 + bits / 8


def _find(option: str, name: str, known: dict[str, Any]) -> Any:
    if name in known:
        return known[name]
    near = OTHER_NAMES.get(name.lower()) or next(iter(get_close_matches(name.lower(), known, 1)), None)
    hint = f"; did you mean {near}?" if near in known else ""
    raise ConfigError(f"{option} is {name!r}; expected one of {', '.join(known)}{hint}")
