"""Of jobs/replay.sh: `python jobs/replay.py FOLDER "PLATFORM.."` replays FOLDER's traces with SimGrid, prints a table.

FOLDER has plan.json and traces/ of one `hpcgnn plan SOURCE --out FOLDER --trace FOLDER/traces`. The platforms have the
plan's ranks per node, rates and latencies: every link carries what a node's interfaces do together (`nic_rate`), each
way, and the longest path has the latency between nodes. Messages share links equally.

    switch      every node's links end in one switch that is never the bottleneck: what a plan assumes
    fat-tree    two levels; a leaf switch has half as many links up as nodes
    dragonfly   groups of two chassis of routers with 2 or 4 nodes each; a group has half as many links out as nodes
    torus       three dimensions, a link to each of the six neighbors
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

HEADINGS = ("ranks", "method", "platform", "MB an epoch", "epoch: plan, s", "replay, s",
            "messages and sums: closed form, ms", "event simulation, ms", "replay, ms", "replay / closed form",
            "replay / simulation")
XML = """<?xml version='1.0'?>
<!DOCTYPE platform SYSTEM "https://simgrid.org/simgrid.dtd">
<platform version="4.1">
  <cluster id="c" prefix="node-" suffix="" radical="0-{last}" speed="{speed}f" core="{cores}" bw="{rate}Bps"
           lat="{latency}s" loopback_bw="{near_rate}Bps" loopback_lat="{near_latency}s"{topology}/>
</platform>
"""
# Rates and latencies are the platform's alone, without SMPI's own corrections of them; messages above 4096 bytes wait
# for their receiver, as in a plan; sums take Open MPI's algorithms.
OPTIONS = ("smpi/bw-factor:0:1", "smpi/lat-factor:0:1", "network/TCP-gamma:0", "network/crosstraffic:0",
           "smpi/async-small-thresh:4096", "smpi/send-is-detached-thresh:4096", "smpi/coll-selector:ompi",
           "contexts/stack-size:256")
OPERATIONS, FREE = 1e9, 1e30      # per second of a processor: that of traces, and one that computes in no time


class Topology(NamedTuple):
    """Attributes of a cluster, its number of nodes, and links of the longest path."""

    text: str
    num_nodes: int
    num_links: int


def topology_of(kind: str, num_nodes: int, num_nics: int = 1) -> Topology:
    """The smallest topology of a kind with so many nodes or more; dimensions are powers of two."""
    if kind == "switch":
        return Topology("", num_nodes, 2)
    if kind not in ("fat-tree", "dragonfly", "torus"):
        sys.exit(f"hpcgnn: the platform {kind!r} is unknown; expected switch, fat-tree, dragonfly or torus")
    bits = max((num_nodes - 1).bit_length(), 4)
    num_nodes = 1 << bits
    if kind == "fat-tree":
        leaf = 1 << min(bits // 2, 4)
        text = f"FAT_TREE\" topo_parameters=\"2;{leaf},{num_nodes // leaf};1,{leaf // 2};{num_nics},1"
        links = 4
    elif kind == "dragonfly":
        nodes = 2 if num_nodes <= 64 else 4      # of a router
        routers = 1 << (bits - nodes.bit_length()) // 2
        groups = num_nodes // (2 * routers * nodes)
        out = max(routers * nodes // max(groups - 1, 1), 1)      # links to each other group
        text, links = f"DRAGONFLY\" topo_parameters=\"{groups},{out};2,1;{routers},1;{nodes}", 6
    else:
        sides = [1 << (bits + place) // 3 for place in (2, 1, 0)]
        text, links = f"TORUS\" topo_parameters=\"{','.join(map(str, sides))}", sum(side // 2 for side in sides)
    return Topology(f" topology=\"{text}\"", num_nodes, links)


def platform_text(kind: str, num_ranks: int, network: dict[str, float], num_nics: int = 1,
                  speed: float = OPERATIONS) -> str:
    """A platform file of SimGrid for the `network` of a plan.json, whose interfaces of a node share its rate."""
    num_nodes = -(-num_ranks // int(network["ranks_per_node"]))
    topology = topology_of(kind, num_nodes, num_nics)
    # Without numbers for several nodes all ranks are on one, and the links carry nothing.
    rate = network["nic_rate"] or 1.0
    latency = (network["between_latency"] or 0.0) / topology.num_links
    return XML.format(last=topology.num_nodes - 1, speed=speed, cores=int(network["ranks_per_node"]), latency=latency,
                      rate=rate / num_nics if kind == "fat-tree" else rate, near_rate=network["within_rate"],
                      near_latency=network["within_latency"], topology=topology.text)


def replay(traces: Path, platform: str, num_ranks: int, ranks_per_node: int) -> float:
    """Simulated seconds of the traces in a folder, on a platform file with this text."""
    (traces / "platform.xml").write_text(platform)
    (traces / "hosts.txt").write_text("".join(f"node-{rank // ranks_per_node}\n" for rank in range(num_ranks)))
    done = subprocess.run(["smpirun", "-np", str(num_ranks), "-platform", "platform.xml", "-hostfile", "hosts.txt",
                           "-replay", "ranks.txt", *(f"--cfg={option}" for option in OPTIONS),
                           "--log=root.thresh:warning", "--log=smpi_replay.thresh:info"],
                          cwd=traces, capture_output=True, text=True)
    said = done.stdout + done.stderr
    if done.returncode or "Simulation time" not in said:
        sys.exit(f"hpcgnn: SimGrid did not replay {traces}:\n{said[-2000:]}")
    return float(said.rpartition("Simulation time")[2].split()[0])


def cells_of(folder: Path, one: dict[str, Any], kind: str, network: dict[str, float], num_nics: int) -> list[str]:
    """The texts of a row: two replays of a run, of which one computes in no time."""
    ranks, method = one["ranks"], one["method"]
    traces = folder / "traces" / f"{ranks}-{method.replace(':', '-')}"
    epoch, alone = (replay(traces, platform_text(kind, ranks, network, num_nics, speed), ranks,
                           int(network["ranks_per_node"])) for speed in (OPERATIONS, FREE))
    sums = one.get("seconds_of_slowest_rank", {}).get("allreduce", math.nan)
    closed, simulated = (one.get(f"exchange_seconds_{name}", math.nan) + sums for name in ("closed_form", "simulated"))
    return [str(ranks), method, kind, f"{one['sent_bytes_messages_per_epoch'] / 1e6:,.1f}",
            f"{one.get('epoch_seconds', math.nan):.4f}", f"{epoch:.4f}",
            *(f"{1e3 * seconds:.3f}" for seconds in (closed, simulated, alone)),
            *(f"{alone / seconds:.2f}" if seconds else "-" for seconds in (closed, simulated))]


def main() -> None:
    """See the module."""
    folder, num_nics = Path(sys.argv[1]), int(os.environ.get("HPCGNN_REPLAY_NICS", "1"))
    plan = json.loads((folder / "plan.json").read_text())
    print("| " + " | ".join(HEADINGS) + " |\n|" + "---|" * len(HEADINGS))
    for one in plan["predictions"]:
        for kind in sys.argv[2].split():
            print("| " + " | ".join(cells_of(folder, one, kind, plan["cluster"]["network"], num_nics)) + " |",
                  flush=True)


if __name__ == "__main__":
    main()
