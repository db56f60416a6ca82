"""Small clusters and loads for the tests of planning."""

from __future__ import annotations

import numpy as np

from hpcgnn.config import TrainConfig
from hpcgnn.planning.cluster import CODES, Cluster, Network, Rates
from hpcgnn.planning.graphs import PlannedGraph, graph_of_shards
from hpcgnn.planning.loads import Pairs, PartLoads, count_loads
from hpcgnn.planning.messages import Messages, messages_of, read_method
from hpcgnn.planning.model import ModelSize
from hpcgnn.planning.planner import Choices, make_plan
from hpcgnn.planning.predictions import Prediction

NETWORK = Network(4, 1e-6, 10e9, 5e-6, 4e9, 8e9)
# A cluster file in which everything is there.
TABLES = {
    "node": {"ranks": 4, "process_bytes": 3e8, "step_seconds": 1e-3, "memory_bytes": 64e9, "processor": "A 1000"},
    "rates.fp32": {"map_flops": 1e11, "gradient_flops": 8e10, "drop_values": 2e9, "norm_values": 1e9,
                   "norm_back_values": 5e8, "sum_bytes": [[64, 1e6, 2e10], [64, 1e8, 5e9], [256, 1e6, 3e10],
                                                          [256, 1e8, 6e9]]},
    "pack": dict.fromkeys(CODES, 1e9), "unpack": dict.fromkeys(CODES, 2e9),
    "network": {"within_latency_seconds": 1e-6, "within_bytes_per_second": 1e10, "between_latency_seconds": 5e-6,
                "between_bytes_per_second": 4e9, "nic_bytes_per_second": 8e9}}


def small_cluster(**changes) -> Cluster:
    """The cluster of TABLES, changed."""
    own = TABLES["rates.fp32"]
    rates = Rates(*(own[name] for name in own if name != "sum_bytes"), np.array(own["sum_bytes"]))
    settings = {"name": "c.toml", "network": NETWORK, "rates": {"fp32": rates, "bf16": rates},
                "pack": TABLES["pack"], "unpack": TABLES["unpack"], "process_bytes": 3e8, "step_seconds": 1e-3,
                "memory_bytes": 64e9}
    return Cluster(**{**settings, **changes})


def even_loads(num_parts: int, rows: int = 100, inner: int = 1000, degree: int = 10, num_hops: int = 3) -> PartLoads:
    """Equal parts, each of which sends `rows` rows to each of the others, whatever the hops to the loss."""
    part = np.arange(num_parts)
    source, destination = (ends.ravel() for ends in np.meshgrid(part, part, indexing="ij"))
    pairs = Pairs(source, destination, np.full((len(source), num_hops + 1), rows), np.full(len(source), rows))
    halo, arcs = np.full(num_parts, rows * (num_parts - 1)), np.full((num_parts, num_hops + 1), inner * degree)
    return PartLoads(num_parts, num_hops, np.full(num_parts, inner), halo, arcs[:, 0],
                     np.full_like(arcs, inner), arcs, arcs // 5, arcs // 2, pairs.where(source != destination))


def parse_method(text: str, size: ModelSize) -> Messages:
    """The messages of METHOD or METHOD:BITS."""
    return messages_of(text, TrainConfig.of(**read_method(text)), size)


def counted(shards, num_layers: int, computes_all: bool = False) -> tuple[PlannedGraph, PartLoads]:
    """The graph of a folder of shards, and the loads of its parts."""
    graph = graph_of_shards(shards)
    of_loss = np.ones(graph.dataset.num_nodes, bool) if computes_all else graph.dataset.train_mask
    return graph, count_loads(graph.dataset.indptr, graph.dataset.indices, of_loss, graph.owner, graph.own_parts,
                              num_layers)


def planned(shards, settings: dict, method: str = "vanilla") -> Prediction:
    """The prediction of a training with these settings on the parts of its shards."""
    by_name = {name: settings[name] for name in ("model", "layers", "hidden", "precision", "norm", "dropout")
               if name in settings}
    others = {name: value for name, value in settings.items() if name not in by_name}
    found, = make_plan(str(shards), None, Choices(None, (method,), settings=others, **by_name)).predictions
    return found
