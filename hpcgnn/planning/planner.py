"""`make_plan`: from a graph and a cluster to predictions for every number of parts and every method.

`plan_record` is the plan as plain data for plan.json, in bytes and seconds.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from hpcgnn.config import TrainConfig, parse_memory
from hpcgnn.data.options import ProgressTask, SourceOptions, silent
from hpcgnn.errors import ConfigError
from hpcgnn.partition.choices import DEFAULT_PARTITIONER
from hpcgnn.partition.owner import assign_owners
from hpcgnn.partition.work import TrainingWork, hops_to_loss
from hpcgnn.planning.cluster import DISK, Cluster, unmeasured
from hpcgnn.planning.graphs import PlannedGraph, open_graph, within_batches
from hpcgnn.planning.layouts import Layout, Training, best_layouts, replicated
from hpcgnn.planning.loads import PartLoads, count_loads, count_shared_pairs, count_summed_pairs
from hpcgnn.planning.messages import messages_of, read_method
from hpcgnn.planning.model import ModelSize
from hpcgnn.planning.predictions import Prediction, limited_record, predict, recommend
from hpcgnn.planning.recipe import check_settings, size_of
from hpcgnn.planning.sampling import (
    MOST_ARCS,
    GraphSizes,
    Region,
    drawn_training_nodes,
    least_share,
    loads_of_region,
    parse_sizes,
    sample_region,
    scaled_loads,
)
from hpcgnn.planning.stages import total
from hpcgnn.run.output import size_text, time_text

FORMAT = 1
MARGIN = 1.5      # seconds of plans are within 50 % of trainings, see data/benchmarks/plan.md
OF_LINKS = "seconds of links are those of the model alone, without the products of ends and drawn nodes"


def make_plan(source: str, cluster: Cluster | None, choices: Choices,
              progress: Callable[[str, float | None], ProgressTask] = silent) -> Plan:
    """Cut the graph into each number of parts, and predict. `source` is a folder of shards, or a source graph.

    Without a `cluster`, or where it does not describe the network, seconds are not predicted.

    Raises
    ------
    ConfigError         a model, method or setting that can't be planned, or more parts than nodes
    DatasetError, ShardError      the source can't be read
    """
    configs = {name: choices.config_of(name) for name in choices.methods}
    config = next(iter(configs.values()))
    if cluster is None:
        cluster = unmeasured(config.ranks_per_node or 1)
    elif config.ranks_per_node not in (0, cluster.network.ranks_per_node):
        raise ConfigError(f"ranks_per_node = {config.ranks_per_node} contradicts {cluster.name}, which has "
                          f"{cluster.network.ranks_per_node} ranks of a node; leave one of them out")
    larger = None if choices.larger is None else parse_sizes(choices.larger)
    options = SourceOptions(seed=choices.seed, symmetrize=choices.symmetrize, root=choices.root,
                            make_labels=choices.make_labels, feature_kind="auto", progress=progress)
    graph = open_graph(source, options)
    if larger is not None and larger.train:
        graph = replace(graph, dataset=replace(graph.dataset, train_mask=drawn_training_nodes(
            graph.dataset.num_nodes, larger, choices.seed)))
    dataset = graph.dataset
    parts = choices.parts or ([graph.own_parts] if graph.own_parts else list(DEFAULT_PARTS))
    sizes = larger or GraphSizes(dataset.num_nodes, dataset.num_edges, graph.num_features, graph.num_classes)
    # Methods sum gradients in their own bits.
    by_method = {name: size_of(own, sizes.features, sizes.classes, len(dataset.relation_names),
                               graph.num_edge_features) for name, own in configs.items()}
    size = by_method[choices.methods[0]]
    methods = [(by_method[name], messages_of(name, own, size)) for name, own in configs.items()]
    unknown = [reason for number in parts if cluster.has_rates and (reason := cluster.lacks(number)) is not None]
    # A pass that computes all rows does so as if the loss were on every node.
    has_all = size.computes_all or config.epoch_rows == "all"
    of_loss = np.ones(dataset.num_nodes, bool) if has_all else dataset.train_mask
    counted = within_batches(graph, config.clusters, config.batch_size, config.between_clusters) if config.clusters \
        else graph
    hops = hops_to_loss(counted.dataset.indptr, counted.dataset.indices, of_loss, choices.layers)
    cutter = Cutter(graph, choices, hops, cluster.network.ranks_per_node if config.may_share_rows else 1, counted,
                    config.pre_aggregation == "on")
    predictions, seconds = [], {}
    for number in parts:
        progress(f"cutting into {number} parts", None)
        started = time.perf_counter()
        loads, how = cutter.loads(number)
        if how == "cut":
            seconds[number] = time.perf_counter() - started
        if larger is not None:
            loads, how = scaled_loads(loads, larger, cutter.sizes), "scaled"
        progress(f"predicting {number} ranks", None)
        predictions += [predict(own, loads, method, cluster, how, parse_memory(config.memory), config.eval_every)
                        for own, method in methods]
    best, reasons = recommend(predictions)
    return Plan(dataset.name, sizes, size, cluster, choices, predictions, seconds, best, reasons,
                [*unknown, *_remarks(predictions, graph, larger, cutter.share, cluster),
                 *[OF_LINKS] * (size.num_drawn > 0 and cluster.has_rates)])


def plan_record(plan: Plan) -> dict[str, Any]:
    choices = {name: str(value) if name == "root" and value else value
               for name, value in asdict(plan.choices).items()}
    return {"format": FORMAT, "graph": plan.graph, "sizes": asdict(plan.sizes), "model": asdict(plan.size),
            "cluster": {"file": plan.cluster.name, **plan.cluster.about, "assumed": plan.cluster.assumed,
                        "network": asdict(plan.cluster.network)},
            "choices": choices,
            "recommended": {"ranks": plan.best and plan.best.num_parts,
                            "method": plan.best and plan.best.messages.name, "reasons": plan.reasons},
            "remarks": plan.remarks, "cut_seconds": {str(parts): took for parts, took in plan.cut_seconds.items()},
            "predictions": [{**_prediction_record(one), "layouts": [
                {name: value for name, value in layout._asdict().items() if name != "seconds" or not math.isnan(value)}
                for layout in layouts_of(plan, one)]} for one in plan.predictions]}


def layouts_of(plan: Plan, one: Prediction) -> list[Layout]:
    """1D with the bytes of the run, then the cheapest grid of each other layout; see `hpcgnn.planning.layouts`.

    1.5D is there if its number of parts is planned too. Empty where the forms don't hold: for models without the layers
    of GCN or GraphSAGE, several steps, links, or one rank.
    """
    size, ranks = plan.size, one.num_parts
    if not size.is_by_hand or size.num_steps > 1 or size.num_drawn or ranks == 1:
        return []
    training = Training(plan.sizes.nodes, plan.sizes.edges,
                        (size.columns, *[size.hidden_dim] * (size.num_layers - 1), size.out_dim), ranks,
                        one.messages.bits, size.linear_layers[0].is_input,
                        tuple(linear.sent_dim for linear in size.linear_layers))
    network = None if one.seconds is None else plan.cluster.network
    halo_ratio = {other.num_parts: other.loads.halo_ratio for other in plan.predictions}
    ours, *others = best_layouts(training, halo_ratio, len(one.loads.pairs.rows) / ranks, network)
    weights = replicated(training, 1, 0.0, 0.0, network)
    exchanges = math.nan if one.seconds is None else one.seconds.closed_form
    return [ours._replace(received_bytes=weights.received_bytes + one.sent.total / ranks,
                          seconds=weights.seconds + exchanges), *others]


def layout_remarks(plan: Plan) -> list[str]:
    """A sentence for each number of ranks where another layout costs less than 1 / MARGIN of 1D; else one for all."""
    compared, better = "", dict[int, str]()
    for one in plan.predictions:
        for ours, *others in filter(None, [layouts_of(plan, one)]):
            best = min(others, key=lambda layout: layout.cost)
            compared, seconds = "bytes", ""
            if one.seconds is not None:
                compared, seconds = "seconds of messages", f" in {time_text(best.seconds)}"
                seconds += f" instead of {time_text(ours.seconds)}"
            if best.cost * MARGIN < ours.cost:
                better.setdefault(one.num_parts, f"{one.num_parts} ranks with {one.messages.name} in another layout, "
                                  f"{best.name} on {' x '.join(map(str, best.grid))} ranks, would each receive at "
                                  f"least {size_text(best.received_bytes)} per epoch instead of "
                                  f"{size_text(ours.received_bytes)}{seconds}; hpcgnn trains 1D only")
    if compared and not better:
        return [f"no 1.5D, 2D or 3D layout would need {MARGIN} times fewer {compared} than hpcgnn's 1D in these runs"]
    return list(better.values())


def _prediction_record(one: Prediction) -> dict[str, Any]:
    near, far, seconds = one.sent.of(True), one.sent.of(False), one.seconds
    names = ("bytes", "mean_bytes_a_pair", "max_bytes_a_pair")
    return {
        "ranks": one.num_parts, "method": one.messages.name, "source": one.source, "fits": one.fits,
        **({} if seconds is None else {
            "epoch_seconds": seconds.epoch, "seconds_of_slowest_rank": seconds.of_slowest,
            "mean_seconds": {stage: float(np.mean(of_ranks)) for stage, of_ranks in seconds.by_stage.items()},
            "exchange_seconds_simulated": seconds.exchange, "exchange_seconds_closed_form": seconds.closed_form}),
        **({} if one.limited is None else {"within_limit": limited_record(one.limited)}),
        "sent_bytes_per_epoch": one.sent.total + one.sent.sums,
        "sent_bytes_messages_per_epoch": one.sent.total, "least_sent_bytes_messages_per_epoch": one.least_bytes,
        "widths": [one.messages.narrowest.bits, one.messages.bits], "sent_bytes_sums_per_epoch": one.sent.sums,
        "is_exact": one.messages.is_exact and one.source in ("cut", "shards"),
        "within_nodes": dict(zip(names, near, strict=True)), "between_nodes": dict(zip(names, far, strict=True)),
        "rows_a_pair": {"mean": float(one.sent.rows.mean()) if len(one.sent.rows) else 0.0,
                        "max": float(one.sent.rows.max(initial=0))},
        "pairs": len(one.loads.pairs.rows), "halo_rows": int(one.loads.num_halo.sum()),
        "evaluation_bytes": one.sent.evaluation, "setup_bytes": one.sent.setup,
        "peak_bytes": one.peak_bytes, "shard_bytes": one.on_disk[0], "checkpoint_bytes": one.on_disk[1],
        "memory_of_fullest_rank": {kind: float(amount[int(total(one.memory.values()).argmax())])
                                   for kind, amount in one.memory.items()}}


DEFAULT_PARTS = (4, 16, 64, 256, 1024)


@dataclass(frozen=True)
class Choices:
    """Choices for a plan; see `hpcgnn plan --help`."""

    parts: list[int] | None        # None: the parts of the shards, or DEFAULT_PARTS
    methods: tuple[str, ...]
    model: str = "sage"
    layers: int = 3
    hidden: int = 256
    precision: str = "fp32"
    norm: str = "layer"
    dropout: float | None = None      # None: the task's default
    settings: dict[str, Any] = field(default_factory=dict)      # of hpcgnn train, such as steps; see `recipe`
    partitioner: str = DEFAULT_PARTITIONER
    balance: str | None = None
    seed: int = 0
    symmetrize: bool = False
    root: Path | None = None
    make_labels: int | None = None
    sample: float | None = None    # share of the nodes that is cut; None: 1 for a graph of at most MOST_ARCS edges
    larger: str | None = None      # sizes of a larger graph, see `parse_sizes`

    def config_of(self, method: str) -> TrainConfig:
        """The training with a METHOD or METHOD:BITS. Raises ConfigError if it can't be planned."""
        of_dropout = {} if self.dropout is None else {"dropout": self.dropout}
        return check_settings({**{name: getattr(self, name) for name in ("model", "layers", "hidden", "precision",
                                                                         "norm")},
                               **of_dropout, **read_method(method), **self.settings})


@dataclass(frozen=True)
class Plan:
    graph: str
    sizes: GraphSizes                # sizes of the planned graph
    size: ModelSize
    cluster: Cluster
    choices: Choices
    predictions: list[Prediction]    # by parts, then by method
    cut_seconds: dict[int, float]    # parts -> seconds in which this machine cut the graph
    best: Prediction | None          # None without a cluster file
    reasons: list[str]
    remarks: list[str]               # how reliable the numbers are


class Cutter:
    """Cuts a graph, or a region of it, into parts and counts their work and messages.

    `share` of the nodes is cut; it is raised if a number of parts needs more. `counted` is the graph that is trained
    on, if that has fewer edges; with `sends_sums` sums of rows travel.
    """

    def __init__(self, graph: PlannedGraph, choices: Choices, hops: np.ndarray, ranks_per_node: int,
                 counted: PlannedGraph | None = None, sends_sums: bool = False):
        self._counted, self._sends_sums = counted or graph, sends_sums
        self._graph, self._choices, self._hops, self._ranks_per_node = graph, choices, hops, ranks_per_node
        self.share = choices.sample or min(1.0, MOST_ARCS / max(graph.dataset.num_edges, 1))
        self.sizes = GraphSizes(graph.dataset.num_nodes, graph.dataset.num_edges, graph.num_features, graph.num_classes)
        self._regions: dict[float, Region] = {}

    def loads(self, num_parts: int) -> tuple[PartLoads, str]:
        """The loads of `num_parts` parts, and how they were found: "shards", "cut" or "sample"."""
        graph, choices = self._graph, self._choices
        if num_parts == graph.own_parts:
            return self._count(graph.owner, num_parts), "shards"
        share = least_share(self.share, num_parts)
        if share < 1 and (self._sends_sums or self._counted is not graph):
            raise ConfigError("a sample of the graph doesn't say what clusters cut, or which rows pre_aggregation "
                              "sums; use --set sample=1, or leave these settings out")
        if share < 1:
            if share not in self._regions:
                self._regions[share] = sample_region(graph.dataset, share, choices.seed, choices.balance,
                                                     choices.partitioner)
            return loads_of_region(graph.dataset, self._regions[share], num_parts, self._hops, choices.layers,
                                   choices.seed, choices.balance, choices.partitioner), "sample"
        owner = assign_owners(graph.dataset, num_parts, choices.partitioner, choices.seed, choices.balance,
                              TrainingWork(choices.layers))
        return self._count(owner, num_parts), "cut"

    def _count(self, owner: np.ndarray, num_parts: int) -> PartLoads:
        graph = self._counted.dataset
        loads = count_loads(graph.indptr, graph.indices, graph.train_mask, owner, num_parts, self._choices.layers,
                            self._hops)
        if self._sends_sums:
            if 1 < self._ranks_per_node < num_parts:
                raise ConfigError("hpcgnn plan does not know which sums the ranks of a node share; plan "
                                  "pre_aggregation=on with --set nodes_aware=off, or run hpcgnn train --dry-run")
            return replace(loads, inputs=loads.pairs, pairs=count_summed_pairs(graph.indptr, graph.indices, self._hops,
                                                                               owner, loads))
        if not 1 < self._ranks_per_node < num_parts:
            return loads
        return replace(loads, shared=count_shared_pairs(graph.indptr, graph.indices, self._hops, owner,
                                                        self._ranks_per_node, loads))


def _remarks(predictions: list[Prediction], graph: PlannedGraph, larger: GraphSizes | None,
             share: float, cluster: Cluster) -> list[str]:
    ways = dict.fromkeys(one.source for one in predictions)
    texts = {
        "shards": "rows and bytes come from the shards, exact to the byte except for bns, which draws its rows, and "
                  "for methods that choose widths in training",
        "cut": "rows and bytes come from parts that were cut now; hpcgnn preprocess with the same partitioner, balance "
               "and seed makes the same parts",
        "sample": f"an estimate: {100 * share:.3g} % of the nodes (more if there are few parts) were cut into parts, "
                  "which stand for all parts; their halo rows are counted; from how many parts each of them receives "
                  "rows, and how many of these are on its own machine, is assumed; sharing of rows by the ranks of a "
                  "machine, which would save bytes, is not predicted",
        "scaled": f"a prediction for a larger graph: all parts are the mean part of {graph.dataset.name}, with rows in "
                  "proportion to the nodes and edges in proportion to the edges; its halo rows stay in proportion to "
                  "its own rows, as if the graph looked the same at every size; no graph was measured to confirm this; "
                  "with train=N, the training nodes are drawn at random; sharing of rows by the ranks of a machine, "
                  "which would save bytes, is not predicted"}
    chosen = {one.messages.name: one.messages for one in predictions if one.messages.least_bits is not None}
    widths = [f"{name} decides in training what it sends, "
              + (f"rows of {own.least_bits} to {own.bits} bits" if own.least_bits else
                 f"a rank's rows in {own.bits} bits or none") +
              ": the bytes of an epoch lie between the two in the column `in all`; everything else is of the most"
              for name, own in chosen.items()]
    rates = "data sheets, and not on measurements" if "node" in cluster.assumed else "the rates of the cluster file" \
        + (", and between nodes on a data sheet" if cluster.assumed else "")
    refused = [f"{one.num_parts} ranks with {one.messages.name}: {one.limited.reason}" for one in predictions
               if one.limited is not None and one.limited.reason is not None]
    if any(one.limited is not None and one.limited.seconds is None for one in predictions):
        refused.append("seconds of the disk are not known, so its bytes alone are shown; hpcgnn train --memory "
                       "--dry-run measures the rates, and --cluster FILE has places for them: node."
                       + " and node.".join(DISK))
    ends = [one.on_disk[0] for one in predictions]
    filed = dict.fromkeys(map(size_text, (min(ends), max(ends))))
    return [texts[way] for way in ways] + widths + refused + [
        f"seconds rest on {rates}, memory on sizes; evaluations, checkpoints and the first epoch are not included"
        if cluster.has_rates else
        f"memory rests on sizes, with {cluster.process_bytes / 1e6:.0f} MB for the process of a rank and "
        f"{cluster.network.ranks_per_node} of the ranks on a node; --set ranks_per_node=R changes that",
        f"on disk, the part files take about {' to '.join(filed)}, and a checkpoint "
        f"{size_text(predictions[0].on_disk[1])}",
        "time and memory of preprocess are not predicted: they depend on the source's format and on the disk"]
