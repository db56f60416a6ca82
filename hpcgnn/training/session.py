"""Session: all parts of a run that are built once, before the first epoch, and that training does not change.

`Session.open` follows a row: read the shard, remove edges that batches cut, number rows by their distance to the loss,
build the exchange of halo rows, bring the input rows over, and count labels. `Exchanges` decides what moves rows: ranks
of a node may share them, and rows with one reader may be summed before they are sent.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import torch
from mpi4py import MPI
from torch import nn

from hpcgnn.config import AUTO, LEAST_ROTATED, LINKS, NODES, OWN, ROTATED, TrainConfig
from hpcgnn.errors import CollectiveError, ConfigError, HpcgnnError, TrainingError
from hpcgnn.exchange.bits import UniformBits
from hpcgnn.exchange.codec import Coding
from hpcgnn.exchange.halo import Around, HaloExchange, Unscaled, Waiting, weighted_degree_of
from hpcgnn.exchange.plan import ExchangePlan, check_peers
from hpcgnn.exchange.reach import Reach, nearest_first
from hpcgnn.exchange.sender import Wire
from hpcgnn.exchange.traffic import ControlTraffic
from hpcgnn.exchange.transfer import HOST, Link, Transport, are_worth_it, split_nodes
from hpcgnn.graph.hop import ExchangeSite
from hpcgnn.graph.local_graph import LocalGraph
from hpcgnn.graph.reductions import weighted_degree
from hpcgnn.graph.rows import FarArcs, LocalRows, Prefixes
from hpcgnn.methods.method import MethodContext
from hpcgnn.nn.heads import scored
from hpcgnn.nn.models import Distributed, ModelTraits, check_edge_weights, is_of_hpcgnn, plain, traits_of
from hpcgnn.nn.node_embedding import own_tables
from hpcgnn.ops.arena import empty_table, is_limited, make_room
from hpcgnn.ops.counter import BACKWARD, FORWARD
from hpcgnn.ops.spans import short_blocks
from hpcgnn.partition.partition import Partition
from hpcgnn.run.launch import choose_device, together
from hpcgnn.run.watchdog import HERE
from hpcgnn.settings import import_named
from hpcgnn.shards.reader import GraphInfo, check_num_parts, read_graph_info, read_partition
from hpcgnn.training.alike import Traits, check_alike, check_same, description_of, say_if_bound
from hpcgnn.training.evaluate import as_trained, with_classes
from hpcgnn.training.model_hooks import ModelHooks, quantized
from hpcgnn.training.objective import SPLITS, Objective
from hpcgnn.training.own_loss import write_into
from hpcgnn.training.precision import STORAGE, storage_bits, with_fastest_precision
from hpcgnn.training.reading import Reading, reading_of
from hpcgnn.training.recipe import Recipe, check_statistics
from hpcgnn.training.scores import REGRESSION, Score, choose_score

if TYPE_CHECKING:
    from hpcgnn.exchange.compute_node import ComputeNode
    from hpcgnn.exchange.pre_aggregation import PreAggregation
    from hpcgnn.methods.step_count import StepRule
    from hpcgnn.steps.step_graphs import StepGraphs
    from hpcgnn.training.batch_graph import Degrees
    from hpcgnn.training.edge_dropout import EdgeDropout
    from hpcgnn.training.label_inputs import LabelInputs
    from hpcgnn.training.trial import Tried

Own = TypeVar("Own")
NOTHING = Recipe()
OWN_CLUSTERS = ("these shards hold no clusters, so each rank cuts its own, and other numbers of ranks have other "
                "losses; hpcgnn preprocess stores clusters for any number of ranks by its default, --cluster-rows 106")
LINK_TASK = "hpcgnn.links.task:LinkTask"      # a wing, which the core does not import
SUMS_BY_HAND = ("sage", "gcn", "gcnii", "jknet")      # models whose layers sum by ranges of columns, if they must
BYTES_OF_A_MOVED_EDGE = 8      # its ends while they are put into another order
CLUSTER_SEED = 0     # KaMinPar's seed: runs of all seeds share the clusters


@dataclass(frozen=True)
class Session:
    """A rank's graph, exchange and objective under one configuration.

    Attributes
    ----------
    comm : MPI communicator          one rank per part
    config : TrainConfig             with `auto` precision resolved
    importance : (num_inner + plan.num_halo,) float32
    mates : tuple of int             ranks of this rank's node
    shares_rows : bool               whether it shares rows with its mates
    score : Score                    with `auto` resolved
    recipe : Recipe                  objects that a user's program passes in
    traits : ModelTraits             how the model sums its neighbors' rows
    rows_within : list of int        nodes of all ranks within 0, 1, .. hops of the loss; empty if all rows are computed
    steps : StepGraphs               for epochs of several steps; None if all epochs have one
    remarks : tuple of str           sentences for the user about how the model is trained
    tried : Tried or None            result of a trial of the model on a few rows; None for a built-in model
    reading : Reading                meaning of the columns of the model's outputs
    labels : LabelInputs or None     training labels among the input columns, if the settings say so
    edges : EdgeDropout or None      leaves out edges in each epoch, if the settings say so
    part : Partition or None         this rank's part, without features; kept if a trained model is to predict
    finish_model : function or None  gives a model (collectively) what its task adds, such as the decoder of links
    """

    comm: MPI.Comm
    config: TrainConfig
    info: GraphInfo
    graph: LocalGraph
    exchange: HaloExchange | Around
    transport: Transport
    plan: ExchangePlan
    importance: np.ndarray
    mates: tuple[int, ...]
    shares_rows: bool
    objective: Objective
    score: Score
    recipe: Recipe
    traits: ModelTraits
    rows_within: list[int]
    steps: StepGraphs | None = None
    remarks: tuple[str, ...] = ()
    tried: Tried | None = None
    reading: Reading = Reading.LOGITS
    labels: LabelInputs | None = None
    edges: EdgeDropout | None = None
    part: Partition | None = None
    finish_model: Callable[[MPI.Comm, nn.Module, LocalGraph], None] | None = None

    @classmethod
    def open(cls, comm: MPI.Comm, shards: Path, config: TrainConfig, info: GraphInfo | None = None,
             recipe: Recipe = NOTHING, answers_with: dict[str, Any] | None = None, part: Partition | None = None,
             precision: str | None = None) -> Session:
        """Collective: read this rank's shard (and `info` if not given), exchange the input rows, count the splits.

        Parameters
        ----------
        answers_with : dict or None      task and classes of a trained model that predicts for this graph; labels are
                                         numbered as the model's
        part : Partition or None         of this rank, from `read_part`; None reads it
        precision : str or None          of the rows; None takes the settings'

        Raises
        ------
        CollectiveError      a shard that is missing, damaged or for another number of ranks; no training node; clusters
                             asked for a graph with edge weights, or for one that METIS can't cut; ranks that round
                             differently; a requested instruction set, GPU or transport that is not available
        """
        info = info or read_shared_info(comm, shards)
        device = choose_device(comm, config.device)
        check_alike(comm, together(comm, Traits.of_this_rank))
        say_if_bound(comm)
        part = read_part(comm, shards, info) if part is None else part
        links = None if config.task == NODES else import_named(LINK_TASK, "task")(config, info)
        if links is not None:
            part, info = links.part(part), links.info()
        # Remove the edges that are not trained on before anything counts them.
        part, whole = _in_batches(comm, part, config)
        make_room(BYTES_OF_A_MOVED_EDGE * len(part.indices))
        part, reach = _within_reach(comm, part, config)
        if answers_with is not None and links is None:
            known = together(comm, lambda: as_trained(part.labels, info, answers_with))
            part, info = replace(part, labels=known), with_classes(info, answers_with)
        objective, score = _objective_and_score(comm, config, recipe, info, part, links, device)
        _check_counts(shards, config, info, objective, answers_with is None)
        if config.label_inputs:
            from hpcgnn.training.label_inputs import LabelInputs, with_label_columns

            num_classes, labeled = info.num_classes, objective
            part = together(comm, lambda: with_label_columns(part, num_classes, labeled))
        node_index = torch.from_numpy(part.inner_id.astype(np.int64))
        # How rows are stored decides how messages are packed, so it comes before the exchange.
        if precision is None:
            with recipe.kept_as_it_is(config.precision == "auto"):
                config = with_fastest_precision(comm, config, part, device,
                                                lambda tried: recipe.build(tried, info, node_index))
            precision = config.precision
        full_bits = storage_bits(precision)
        transport = _transport_of(comm, config, device)
        messages = Exchanges.open(comm, config, part, reach, transport, full_bits)
        exchange = messages.exchange
        # Halo input rows are fetched once, here; later exchanges carry hidden rows.
        stored = _stored(part.features, STORAGE[precision])
        if is_limited():
            part = replace(part, features=np.empty((part.num_inner, 0), np.float32))
        features = exchange.input_rows(stored.to(device))
        del stored
        make_room(BYTES_OF_A_MOVED_EDGE * len(part.indices))
        graph = LocalGraph(_local_rows(part, whole, info, features, weighted_degree_of(exchange, part, device)),
                           exchange, None if reach is None else Prefixes(reach.num_within), messages.arcs,
                           config.sums == "half", config.stored_bits)
        rows_within = comm.allreduce(np.array(reach.num_within)).tolist() if reach else []
        # A first model, only to check what it computes; each seed gets a new one.
        model = _checked_model(comm, config, recipe, info, graph)
        tried = None
        if not is_of_hpcgnn(model):
            from hpcgnn.training.trial import try_model

            first_rows = objective.rows["train"].cpu().numpy()
            tried = together(comm, lambda: try_model(model, graph, first_rows, comm.size))
        reading = Reading.LOGITS if tried is None or links is not None else reading_of(
            tried, objective.task, info.num_classes, config.score == OWN or not score.task)
        traits = traits_of(model, config.layers)
        labels = LabelInputs(graph, info.num_classes, config.label_inputs) if config.label_inputs else None
        edges = None
        if config.edge_dropout:
            from hpcgnn.training.edge_dropout import EdgeDropout

            edges = EdgeDropout(graph, config.edge_dropout, getattr(model, "reduction", "") == "gcn")
        steps = None if config.steps == "1" else _make_steps(comm, config, info, part.cluster, graph, exchange)
        return cls(comm, config, info, graph, exchange, transport, messages.plan, messages.importance(part),
                   messages.mates, messages.node is not None, objective,
                   reading.of_score(score, objective.task, info.num_classes), recipe,
                   replace(traits, num_layers=traits.num_layers + (links is not None)),
                   rows_within, steps, _remarks(config, info, model, tried), tried, reading, labels, edges,
                   None if answers_with is None else replace(part, features=np.empty((part.num_inner, 0), np.float32)),
                   None if links is None else links.finish_model)

    def method_context(self) -> MethodContext:
        """Facts about this rank that the method needs."""
        config, traits = self.config, self.traits
        def halo_squares(reduction: str) -> np.ndarray:
            return self.exchange.sent_home(self.graph.halo_squares(reduction))

        return MethodContext(self.comm, self.plan, self.graph, halo_squares, self.importance,
                             storage_bits(config.precision), traits.num_layers, traits.reduction, traits.attends,
                             FORWARD in rotated_rows(config)[0], 1e6 * config.link_mbps, ControlTraffic(),
                             self._step_rule(), config.epochs, config.predict == "auto")

    def begin_labels(self, seed: int, epoch: int) -> Objective:
        """Collective: the objective of an epoch; if labels are inputs, its own are hidden until `end_labels`."""
        return self.objective if self.labels is None else self.labels.hide(seed, epoch, self.objective)

    def graph_of(self, seed: int, epoch: int) -> LocalGraph:
        """Collective: the graph that an epoch is trained on, with the edges that its draws leave."""
        return self.graph if self.edges is None else self.edges.thinned(seed, epoch)

    def end_labels(self) -> None:
        if self.labels is not None:
            self.labels.give_all()

    @property
    def state_bytes(self) -> int:
        """Bytes kept between epochs: by the method, and for rows that steps read."""
        return self.exchange.state_bytes + (0 if self.steps is None else self.steps.num_bytes)

    @property
    def keeps_state(self) -> bool:
        """Whether training reads data of earlier epochs that no checkpoint holds."""
        return self.exchange.keeps_state or self.steps is not None

    def forget(self) -> None:
        """Collective: discard the state of earlier epochs, before another training or the end."""
        self.exchange.forget()
        if self.steps is not None:
            self.steps.forget()

    def _step_rule(self) -> StepRule:
        from hpcgnn.methods.step_count import StepRule  # only a training needs it

        number, by_row = self.config.fixed_steps
        if number is not None:
            first, num_by_row = (1, number) if by_row else (number, 1)
            return StepRule(first, False, self.config.epochs, num_by_row)
        from hpcgnn.steps.clusters import first_steps, num_steps_of

        num_by_row = num_steps_of(self.info.num_train) if self.traits.weighs_self else 1
        first = first_steps(self.info.num_nodes, self.steps.num_clusters)
        return StepRule(first, True, self.config.epochs, num_by_row)

    def new_model(self, seed: int) -> nn.Module:
        """Collective: a model with the same first weights on all ranks, quantized if the settings say so.

        The weights depend on the seed only, or are rank 0's if a user's program passes the model in.

        Raises
        ------
        CollectiveError      input rows that can't be quantized
        """
        model = self.float_model(seed)
        return model if self.config.quantize == "none" else quantized(model, self.config, self.graph, self.comm)

    @property
    def row_counts(self) -> tuple[int, int, int]:
        """Numbers of inner and halo rows, and of rows that an exchange sends."""
        return self.graph.num_inner, self.graph.num_halo, sum(map(len, self.exchange.plan_within(None).boundary))

    @property
    def table_bytes(self) -> int:
        """Bytes of the inner and halo rows that a hidden layer must sum at once; 0 if no such layer is known, in steps,
        and where rows can be sent and summed by ranges of columns.
        """
        config = self.config
        if self.steps is not None or self.recipe.model is not None or ":" in config.model or config.layers == 1:
            return 0
        if config.model in ("sgc", "appnp", "dagnn"):      # these sum the input or the answers
            return 0
        site, dtype = ExchangeSite(0, config.seed, 1, is_training=True), STORAGE[config.precision]
        if config.model in SUMS_BY_HAND and self.exchange.takes_columns(site, dtype):
            return 0
        return self.graph.num_rows * self.config.hidden * storage_bits(self.config.precision) // 8

    def float_model(self, seed: int) -> nn.Module:
        """Collective: `new_model` before it is quantized."""
        torch.manual_seed(seed)
        model = self.recipe.build(self.config, self.info, self.graph.node_index)
        model.to(self.graph.x.device)     # made on the host, from the same draws on all machines
        if self.finish_model is not None:
            self.finish_model(self.comm, model, self.graph)
        if self.recipe.model is not None:
            take_from_rank_zero(self.comm, model)
        return model



def read_shared_info(comm: MPI.Comm, folder: Path) -> GraphInfo:
    """Collective: rank 0 reads and checks graph.h5; every rank gets the graph's facts and its own part's statistics.

    One rank reads because the file has data for every node of the graph. Each part's file names the run of preprocess
    that made it, so a rank with another folder notices when it reads its part. CollectiveError if shards are missing,
    damaged or for another number of ranks.
    """
    told: list[tuple[GraphInfo | None, str | None]] | None = None
    if comm.rank == 0:
        try:
            info = read_graph_info(folder)
            check_num_parts(info, comm.size)
            told = [(_told_to(part, info), None) for part in range(comm.size)]
        except HpcgnnError as error:
            told = [(None, str(error))] * comm.size
    HERE.note("waits for what graph.h5 says")
    info, sentence = comm.scatter(told)
    HERE.note("goes on")
    if sentence is not None:
        raise CollectiveError(sentence)
    return info


def _told_to(part: int, info: GraphInfo) -> GraphInfo:
    """The facts of a graph with one part's statistics and count of links, in dicts that are read by part as tuples."""
    row, links = info.statistics[part], info.links_of_parts
    own: dict[str, Any] = {"statistics": {part: row}, "links_of_parts": {part: links[part]} if links else ()}
    return replace(info, **own)


def read_part(comm: MPI.Comm, shards: Path, info: GraphInfo) -> Partition:
    """Collective: read this rank's part; CollectiveError as `read_partition`, or if parts were mixed."""
    part = together(comm, lambda: read_partition(shards, comm.rank, comm.size, info))
    check_peers(comm, part, info.run_id)
    return part


@dataclass(frozen=True)
class Exchanges:
    """The objects that move the rows of a run."""

    exchange: HaloExchange | Around
    plan: ExchangePlan      # plan of the messages
    mates: tuple[int, ...]      # ranks of this rank's node
    node: ComputeNode | None      # rows that the ranks of a node share
    sums: PreAggregation | None      # rows that are summed before they are sent

    @classmethod
    def open(cls, comm: MPI.Comm, config: TrainConfig, part: Partition, reach: Reach | None, transport: Transport,
             full_bits: int) -> Exchanges:
        """Collective: build what the settings ask for. `full_bits` is the width of stored rows, 32 or 16."""
        plan = ExchangePlan.build(part)
        link = Link(1e6 * config.link_mbps) if config.link_mbps else None
        wire = Wire(config.exchange, transport, link, config.pipeline, config.rematerialize)
        coding = Coding(full_bits, config.bits_of_sums, *rotated_rows(config), config.send_share)
        mates, ranks_of_node = _mates_of(comm, config)

        def node_of(plan: ExchangePlan) -> ComputeNode | None:
            if ranks_of_node is None:
                return None
            from hpcgnn.exchange.compute_node import ComputeNode

            return ComputeNode.build(comm, ranks_of_node, plan)

        def shared(exchange: HaloExchange | Around, node: ComputeNode | None) -> HaloExchange | Around:
            if node is None:
                return exchange
            from hpcgnn.exchange.compute_node import SharedExchange

            return SharedExchange(exchange, node)

        # The plain exchange, then the wrappers that the settings ask for, the innermost first.
        outgoing = inputs = sums = None
        if config.pre_aggregation == "on" and comm.size > 1:
            from hpcgnn.exchange.pre_aggregation import OutgoingRows, PreAggregation, SummedExchange

            node = node_of(plan)
            inputs = shared(HaloExchange(comm, plan if node is None else node.plan, UniformBits(full_bits), wire,
                                         coding), node)
            sums = PreAggregation.build(comm, part, plan, reach)
            outgoing, plan, reach = OutgoingRows(sums, _inner_degree(part)), sums.plan, sums.reach
        node = node_of(plan)
        if node is not None:
            plan, reach = node.plan, reach and node.reach(comm, reach)
        kind = config.method.exchange()
        kind = kind if config.predict == "none" else kind.predicting(picks=config.predict == "auto")
        plain: HaloExchange | Around = HaloExchange(comm, plan, UniformBits(full_bits), wire, coding, reach, kind)
        if config.precision == "fp16" and kind.keeps_state:
            plain = Unscaled(plain)
        exchange = shared(plain, node)
        if sums is not None:
            exchange = SummedExchange(exchange, outgoing, inputs)
        if not config.overlap:
            exchange = Waiting(exchange)
        return cls(exchange, plan, mates, node, sums)

    @property
    def arcs(self) -> FarArcs | None:
        return None if self.sums is None else self.sums.arcs

    def importance(self, part: Partition) -> np.ndarray:
        """Collective: importance of the rows in messages, (plan.num_inner + plan.num_halo,) float32."""
        known = part.importance if self.sums is None else self.sums.importance
        return known if self.node is None else self.exchange.received_values(known[:self.plan.num_inner])


def rotated_rows(config: TrainConfig) -> tuple[frozenset[int], int]:
    """Purposes with rotated messages, and the least number of columns of a rotated row."""
    is_own = config.code == "auto"
    directions = ROTATED[config.method.own_code() if is_own else config.code]
    purpose = {"forward": FORWARD, "backward": BACKWARD}
    return frozenset(purpose[direction] for direction in directions), LEAST_ROTATED if is_own else 1


def _transport_of(comm: MPI.Comm, config: TrainConfig, device: torch.device) -> Transport:
    if config.device == "cpu":
        return HOST
    from hpcgnn.exchange.device_transport import choose_transport

    return choose_transport(comm, config.transport, device)


def _mates_of(comm: MPI.Comm, config: TrainConfig) -> tuple[tuple[int, ...], MPI.Comm | None]:
    """Collective: ranks of this rank's node, and their communicator if they share rows."""
    node = split_nodes(comm, config.ranks_per_node)
    mates = tuple(node.allgather(comm.rank))
    if config.may_share_rows and (config.nodes_aware == "on" or are_worth_it(comm, node)):
        return mates, node
    node.Free()
    return mates, None


def _inner_degree(part: Partition) -> np.ndarray:
    """In-degrees in the whole graph, or sums of edge weights, (num_inner,): inner rows have all their edges here."""
    if part.edge_weight is not None:
        return weighted_degree(part.indptr, part.edge_weight)
    return part.in_degree[:part.num_inner]


def _objective_and_score(comm: MPI.Comm, config: TrainConfig, recipe: Recipe, info: GraphInfo, part: Partition,
                         links: Any, device: torch.device) -> tuple[Objective, Score]:
    """Collective: the loss over the labels, or over the LinkTask `links`, and the score."""
    if links is None:
        masks = {"train": part.train_mask, "val": part.val_mask, "test": part.test_mask}
        loss = together(comm, lambda: own_or_named("loss", config.loss, recipe.loss))
        objective = together(comm, lambda: Objective.build(comm, part.labels, masks, device, loss, part.inner_id))
        score = together(comm, lambda: _score_of(config, recipe, objective.task, info))
    else:
        objective, score = links.objective(comm, part, device), together(comm, links.score)
    if config.quantize != "none" or config.clusters:
        advice = "use float rows on the whole graph" if config.clusters else "use float rows"
        together(comm, lambda: check_task(info.name, objective.task, advice))
    return objective, score


def _stored(features: np.ndarray, dtype: torch.dtype) -> torch.Tensor:
    if not is_limited():
        return torch.from_numpy(features.astype(np.float32, copy=False)).to(dtype)
    rows = empty_table(features.shape, dtype)
    for start, stop in short_blocks(len(rows)):
        rows[start:stop] = torch.from_numpy(features[start:stop].astype(np.float32, copy=False))
    return rows


def _check_counts(shards: Path, config: TrainConfig, info: GraphInfo, objective: Objective, trains: bool) -> None:
    """Raise CollectiveError, on all ranks, for shards without features or training nodes, or with a wrong count."""
    counted = {split: getattr(info, f"num_{split}") for split in SPLITS}
    if config.task == NODES and objective.num_global != counted:
        raise CollectiveError(f"{shards} has {objective.num_global} nodes in the splits of its parts, and graph.h5 "
                              f"says {counted}; run hpcgnn preprocess again")
    if info.num_features == 0 and not config.node_embedding:
        raise CollectiveError(f"{shards} has no features to train on; run hpcgnn preprocess --features structural, or "
                              "let the model learn rows, --set node_embedding=64")
    if objective.num_global["train"] == 0 and config.epochs and trains:
        raise CollectiveError(f"{shards} has no training node in the whole graph; at least one is needed "
                              "to train; a trained model predicts for it by hpcgnn predict")


def _local_rows(part: Partition, whole: Degrees | None, info: GraphInfo, features: torch.Tensor,
                weighted: np.ndarray | None) -> LocalRows:
    """Degrees are those of the whole graph; without the edges that batches cut, a row also has its degree here."""
    return LocalRows(part.indptr, part.indices, part.node_id,
                     part.in_degree if whole is None else whole.of(part.node_id), features, info.num_nodes,
                     part.edge_weight, weighted, None if whole is None else part.in_degree, part.edge_type,
                     part.edge_attr)


def _checked_model(comm: MPI.Comm, config: TrainConfig, recipe: Recipe, info: GraphInfo,
                   graph: LocalGraph) -> nn.Module:
    """Collective: a model as each seed gets one, after all checks that need no pass."""
    model = together(comm, lambda: recipe.build(config, info, graph.node_index))
    if recipe.model is not None:
        check_same(comm, {"model": description_of(model)}, "the program's ")
        together(comm, lambda: _check_state(model))

    def check() -> None:
        _check_tables(model, graph, info)
        check_statistics(model, comm.size)
        if config.pre_aggregation == "on" and getattr(model, "num_hops", None) is None:
            raise ConfigError(f"pre_aggregation on can't be used with model {config.model}: its layers read rows of "
                              "other ranks one by one; use pre_aggregation=off")
        check_edge_weights(model, config.model, graph.edge_weight is not None, config.quantize != "none")
        if config.quantize != "none" and info.has_typed_edges:
            from hpcgnn.training.batch_graph import INTEGERS_REFUSE_TYPES

            raise ConfigError(INTEGERS_REFUSE_TYPES)

    together(comm, check)
    return model


def _check_state(model: nn.Module) -> None:
    """Raise ConfigError for a user's model whose weights can't be kept and loaded, as the best ones are at the end."""
    try:
        model.load_state_dict(model.state_dict())
    except RuntimeError as error:
        raise ConfigError(f"{type(plain(model)).__name__} can't load its own state_dict ("
                          f"{' '.join(str(error).split())[:160]}), so its best weights could not be kept; leave out "
                          "what changes the names of its weights, such as a parametrization of PyTorch Geometric's "
                          "Linear") from error


def _make_steps(comm: MPI.Comm, config: TrainConfig, info: GraphInfo, cluster: np.ndarray | None, graph: LocalGraph,
                exchange: HaloExchange | Around) -> StepGraphs:
    """Collective: the StepGraphs that cut epochs into steps. Raises CollectiveError for fewer clusters than steps."""
    from hpcgnn.steps.clusters import Clusters, expected_clusters
    from hpcgnn.steps.step_graphs import StepGraphs

    number, by_row = config.fixed_steps
    num_clusters = info.num_clusters or comm.allreduce(expected_clusters(graph.num_inner))
    steps = StepGraphs(graph, exchange, lambda: Clusters.cut(comm, graph, cluster, exchange, CLUSTER_SEED),
                       num_clusters, comm.size, config.history,
                       leaves_out=config.steps == AUTO and config.method.may_leave_out and config.norm != "batch"
                       and config.task == NODES, shared=scored if config.task != NODES else None)
    if number is not None and not by_row:
        clusters = steps.clusters
        together(comm, lambda: clusters.check(number))
    return steps


def _remarks(config: TrainConfig, info: GraphInfo, model: nn.Module, tried: Tried | None) -> tuple[str, ...]:
    of_edges = model.remarks(info) if isinstance(model, Distributed) else _unused_of_edges(config, info, model)
    of_steps = [OWN_CLUSTERS] if config.in_clusters and not info.num_clusters else []
    return (*of_edges, *of_steps, *([tried.remark] if tried is not None and tried.remark else ()))


def _unused_of_edges(config: TrainConfig, info: GraphInfo, model: nn.Module) -> list[str]:
    # A model of PyTorch Geometric or of the user's own says itself what it does not take.
    if not is_of_hpcgnn(model):
        return []
    has_decoder = config.task == LINKS and config.decoder != "dot"      # of links, which reads relations
    unused = [(f"{number:,} {what}{'s' * (number > 1)}", taker) for number, what, is_taken, taker in (
        (len(info.relation_names), "relation", has_decoder or getattr(model, "takes_relations", False),
         "--model rgcn takes relations"),
        (info.num_edge_features, "attribute", getattr(model, "takes_edge_attributes", False),
         "models of your own take attributes, as edge_attr")) if number and not is_taken]
    if not unused:
        return []
    names, takers = zip(*unused, strict=True)
    return [f"the graph's edges have {' and '.join(names)}, and {config.model} does not take them: it trains without; "
            + ", ".join(takers)]


def _check_tables(model: nn.Module, graph: LocalGraph, info: GraphInfo) -> None:
    """Raise ConfigError for a NodeEmbedding unless its rows are for exactly this rank's nodes."""
    for name, table in own_tables(model).items():
        own = graph.node_index.cpu().sort().values
        if table.num_embeddings != info.num_nodes or not torch.equal(table.node_index.cpu(), own):
            raise ConfigError(f"{name.removesuffix('.weight').removeprefix('module.')} is a NodeEmbedding of "
                              f"{table.num_embeddings} nodes, made for another graph than {info.name} or for other "
                              f"parts; this graph has {info.num_nodes} nodes; make the model with this graph, or give "
                              "a trained table that has rows for the nodes of this graph")


def _in_batches(comm: MPI.Comm, part: Partition, config: TrainConfig) -> tuple[Partition, Degrees | None]:
    """Collective: remove the edges that batches cut, if the settings say so, and keep the earlier in-degrees.

    Integer models choose steps and widths by a row's in-degree in the whole graph, also in batches.
    """
    if not config.clusters:
        return part, None
    from hpcgnn.training.batch_graph import Degrees, within_batches

    return (within_batches(comm, part, config.clusters, config.batch_size, config.between_clusters),
            Degrees.of_part(part))


def _within_reach(comm: MPI.Comm, part: Partition, config: TrainConfig) -> tuple[Partition, Reach | None]:
    """Collective: number the rows by their hops to the loss, if epochs compute only rows within reach."""
    if config.epoch_rows == "all":
        return part, None
    return nearest_first(part, Reach.measure(comm, part, ExchangePlan.build(part), config.layers))


def own_or_named(what: str, name: str, given: Own | None) -> Own | str:
    """The user's own loss or score, else the settings' name.

    Raises TrainingError: the run was begun with the user's own, and now none is given.
    """
    if given is None and name == OWN:
        raise TrainingError(f"this run's {what} came from a program, and only that program has it; go on with "
                            f"hpcgnn.fit({what}=..), or choose another {what}")
    return name if given is None else given


def _score_of(config: TrainConfig, recipe: Recipe, task: str, info: GraphInfo) -> Score:
    score = own_or_named("score", config.score, recipe.score)
    return choose_score(score, task, info.num_classes, info.name, config.loss) if isinstance(score, str) else score


def check_task(dataset: str, task: str, advice: str = "use float rows") -> None:
    """Raise TrainingError, with advice, for integers in a regression."""
    if task == REGRESSION:
        raise TrainingError(f"{dataset} is a regression, and models of integers predict classes; {advice}")


def take_from_rank_zero(comm: MPI.Comm, model: nn.Module) -> None:
    """Collective: take all weights and buffers from rank 0; CollectiveError if their names or shapes differ."""
    tables = own_tables(plain(model))      # not sent: a rank holds only the rows of its own nodes
    state = model.state_dict()
    tensors = {name: tensor for name, tensor in state.items() if name not in tables}
    first = comm.bcast({name: tensor.cpu() for name, tensor in tensors.items()} if comm.rank == 0 else None)
    together(comm, lambda: _check_same_names(first, tensors))
    model.load_state_dict({**state, **first})


def share_from_rank_zero(comm: MPI.Comm, tensors: dict[str, torch.Tensor]) -> None:
    """Collective: as `take_from_rank_zero`, for the weights and buffers of a loss."""
    first = comm.bcast({name: tensor.detach().cpu() for name, tensor in tensors.items()} if comm.rank == 0 else None)
    together(comm, lambda: _check_same_names(first, tensors))
    write_into(tensors, first)


def is_built_in(model: nn.Module) -> bool:
    """Whether a model is hpcgnn's own; then every pass uses all its weights."""
    return is_of_hpcgnn(model) or isinstance(model, ModelHooks)


def _check_same_names(first: dict[str, torch.Tensor], mine: dict[str, torch.Tensor]) -> None:
    shapes = [{name: tuple(tensor.shape) for name, tensor in tensors.items()} for tensors in (first, mine)]
    if shapes[0] != shapes[1]:
        name = min(name for name in shapes[0].keys() | shapes[1].keys() if shapes[0].get(name) != shapes[1].get(name))
        raise TrainingError(f"the model's {name} has shape {shapes[1].get(name)} here and {shapes[0].get(name)} on "
                            "rank 0; give all ranks the same model")
