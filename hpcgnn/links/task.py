"""LinkTask: what a training of links changes in a session: rows of the loss, outputs, objective and score."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from mpi4py import MPI
from torch import nn

from hpcgnn.config import LINK_DECODER, LINK_SCORES, TrainConfig
from hpcgnn.errors import TrainingError
from hpcgnn.exchange.plan import ExchangePlan
from hpcgnn.exchange.reach import halo_values
from hpcgnn.graph.local_graph import LocalGraph
from hpcgnn.links.decoders import DECODERS, DISTMULT, DOT, own_decoder
from hpcgnn.links.learned import LearnedLinks
from hpcgnn.links.objective import LinkObjective
from hpcgnn.links.questions import SOURCES, TARGETS, Relations, questions_of
from hpcgnn.nn.heads import scored
from hpcgnn.nn.models import is_of_hpcgnn, plain
from hpcgnn.partition.partition import Partition
from hpcgnn.run.launch import together
from hpcgnn.shards.schema import GraphInfo
from hpcgnn.training.alike import alike_draws
from hpcgnn.training.objective import SPLITS
from hpcgnn.training.scores import CLASSES, KINDS, LINKS, Score

ALL, BY_TYPE, BY_LABEL = "all", "type", "label"
MOST_LABELS = 1024      # tables have a row and a column for each label


class LinkTask:
    """The task "links" of a session."""

    def __init__(self, config: TrainConfig, info: GraphInfo):
        self._config, self._info = config, info

    def info(self) -> GraphInfo:
        """The graph's facts with the model's outputs for classes: `hidden` columns, and all nodes in the loss."""
        return replace(self._info, task=LINKS, num_classes=self._config.hidden, class_names=(), is_multi_label=False,
                       num_train=self._info.num_nodes, num_val=0, num_test=0)

    def part(self, part: Partition) -> Partition:
        """The part with the same rows in the loss."""
        every, none = np.ones(part.num_inner, bool), np.zeros(part.num_inner, bool)
        return replace(part, train_mask=every, val_mask=none, test_mask=none)

    def objective(self, comm: MPI.Comm, part: Partition, device: torch.device) -> LinkObjective:
        """Collective: the loss and the held-out links.

        Raises CollectiveError for a graph without edges, or for candidates of a type or label where nodes lack one.
        """
        config, info = self._config, self._info
        labels = together(comm, lambda: self._classes(part))
        counts = comm.allreduce(np.bincount(labels, minlength=self._num_classes))
        of_rows = self._with_halo(comm, part, labels)
        # Where every edge holds both ways, each end of a link is a source once.
        relations, is_symmetric = self._relations, info.cleaning.is_symmetric
        holds_both_ways = relations.has_reverses if relations.number else is_symmetric
        about = holds_both_ways or config.ask != TARGETS, not holds_both_ways and config.ask != SOURCES
        rows = {split: torch.arange(part.num_inner if split == "train" else 0, device=device) for split in SPLITS}
        is_asked = together(comm, lambda: self._asked_rows(part, about))
        together(comm, lambda: self._check_steps(holds_both_ways or all(about)))
        learned = together(comm, lambda: self._learned(part))
        num_asked, num_val, num_test = comm.allreduce(_num_links(learned, is_asked)).tolist()
        together(comm, lambda: self._check_asked(num_asked))
        return LinkObjective(
            torch.from_numpy(labels).to(device), rows,
            {"train": info.num_edges, "val": num_val, "test": num_test}, LINKS, _no_loss, comm,
            torch.from_numpy(part.inner_id.astype(np.int64)).to(device), {},
            {"train": float(num_asked * sum(about)), "val": 1.0, "test": 1.0},
            questions=questions_of(comm, part, is_symmetric, config.ask, relations, learned.held_out),
            num_drawn=self._num_drawn(comm, learned, of_rows, about, is_asked),
            kind=config.link_loss, adversarial_temperature=config.adversarial_temperature, n3=config.n3,
            share=config.link_share, num_of_class=tuple(counts.tolist()),
            links=LearnedLinks(learned.indptr, learned.indices, learned.edge_type, relations,
                               part.node_id.astype(np.int64, copy=False), of_rows, about, is_asked))

    def finish_model(self, comm: MPI.Comm, model: nn.Module, graph: LocalGraph) -> None:
        """Collective: give a model its decoder, as `link_decoder`, unless it brings one.

        Raises CollectiveError: a decoder that does not fit the model's rows or the graph.
        """
        name = self._config.decoder
        if name == "auto":
            name = DISTMULT if self._relations.number else DOT
        owner = plain(model)
        own = together(comm, lambda: own_decoder(owner, self._config.decoder))
        if own is not None:
            together(comm, lambda: self._check_own(own))
            return
        if name == DOT:
            if hasattr(owner, LINK_DECODER):
                delattr(owner, LINK_DECODER)
            return
        dim = self._config.hidden if is_of_hpcgnn(model) else num_outputs(model, graph)
        decoder = together(comm, lambda: DECODERS[name](self._info.relation_names or ("",), dim).to(graph.x.device))
        held = getattr(owner, LINK_DECODER, None)
        # A model that a program trains again keeps its decoder, as it keeps its other weights.
        if type(held) is not type(decoder) or _shapes(held) != _shapes(decoder) \
                or not torch.equal(held.relations.cpu(), decoder.relations.cpu()):
            owner.add_module(LINK_DECODER, decoder)

    def score(self) -> Score:
        """The score of held-out links; TrainingError for a score of nodes."""
        name = "mrr" if self._config.score == "auto" else self._config.score
        if name not in LINK_SCORES:
            raise TrainingError(f"score {name} does not fit links; use mrr, auc, hits@K, recall@K or ndcg@K")
        return Score(name, _no_rows, LINKS)

    @property
    def _relations(self) -> Relations:
        return Relations.of(self._info.relation_names)

    def _check_own(self, own: nn.Module) -> None:
        needs_sources = not self._relations.has_reverses and self._config.ask != TARGETS
        if needs_sources and not hasattr(own, "source_query"):
            raise TrainingError(f"{LINK_DECODER} is a {type(own).__name__} without source_query(rows, relation), which "
                                f"asks for sources; add it, use ask=targets, or give {self._info.name} reverses by "
                                "--symmetrize")

    @property
    def _candidates(self) -> str:
        if self._config.candidates != "auto":
            return self._config.candidates
        return BY_TYPE if self._info.node_types else ALL

    @property
    def _num_classes(self) -> int:
        return {ALL: 1, BY_TYPE: len(self._info.node_types), BY_LABEL: self._info.num_classes}[self._candidates]

    def _classes(self, part: Partition) -> np.ndarray:
        if self._info.num_edges == 0:
            raise TrainingError(f"{self._info.name} has no edge, and edges are the links that a model learns")
        if self._candidates == BY_LABEL:
            return self._labels(part, "candidates label", "candidates=all")
        if self._candidates == BY_TYPE and not self._info.node_types:
            raise TrainingError(f"candidates type needs types of nodes, and {self._info.name} has none; use "
                                "candidates=all")
        return self._info.type_of(part.inner_id) if self._candidates == BY_TYPE else np.zeros(part.num_inner, np.int64)

    def _num_drawn(self, comm: MPI.Comm, part: Partition, of_rows: np.ndarray, about: tuple[bool, bool],
                   is_asked: np.ndarray | None) -> tuple[int, ...]:
        """Collective: how many nodes an epoch or step draws, of all or of each type; none of a type of no answer."""
        if self._candidates != BY_TYPE:
            return (self._config.num_drawn,)
        target = np.repeat(np.arange(part.num_inner), np.diff(part.indptr))
        kept = slice(None) if is_asked is None else is_asked[target]
        answers = [part.indices[kept]] * about[0] + [target] * about[1]
        counts = np.bincount(of_rows[np.concatenate(answers)], minlength=self._num_classes)
        is_answer = comm.allreduce(counts) > 0
        return tuple((-(-self._config.num_drawn // is_answer.sum()) * is_answer).tolist())

    def _asked_rows(self, part: Partition, about: tuple[bool, bool]) -> np.ndarray | None:
        """The rows of this rank that are asked, (num_inner,) bool; None asks all."""
        label = self._config.asked_label
        if label < 0:
            return None
        if about[1]:
            raise TrainingError(f"asked_label needs a graph whose edges all hold both ways, and {self._info.name} is "
                                "directed; use ask=targets, or give it reverses by --symmetrize")
        return self._labels(part, f"asked_label {label}", "asked_label=-1") == label

    def _learned(self, part: Partition) -> Partition:
        """The part with those edges and held-out links alone that are learned and scored."""
        asked, names = self._config.asked_relation, self._info.relation_names
        if not asked:
            return part
        if asked not in names or part.edge_type is None:
            raise TrainingError(f"asked_relation is {asked!r}, and {self._info.name} has " + (
                f"no such relation; it has {', '.join(names[:6])}{', ..' if len(names) > 6 else ''}" if names else
                "no relations; leave it out"))
        number = np.array([names.index(asked)])
        number = np.append(number, self._relations.reverse(number)) if self._relations.has_reverses else number
        kept = np.isin(part.edge_type, number)
        return replace(part, indptr=np.concatenate([[0], np.cumsum(kept)])[part.indptr], indices=part.indices[kept],
                       edge_type=part.edge_type[kept], edge_weight=None, edge_attr=None, held_out=None
                       if part.held_out is None else part.held_out[np.isin(part.held_out[:, 3], number)])

    def _with_halo(self, comm: MPI.Comm, part: Partition, labels: np.ndarray) -> np.ndarray:
        """Collective: the classes of inner and halo rows, (num_rows,) int64."""
        if self._candidates == BY_TYPE:
            return self._info.type_of(part.node_id)
        labels = labels.astype(np.int64)
        halo = np.zeros(part.num_halo, np.int64) if self._num_classes == 1 else halo_values(
            comm, ExchangePlan.build(part), labels)
        return np.concatenate([labels, halo])

    def _check_steps(self, asks_every_end: bool) -> None:
        config, name = self._config, self._info.name
        if config.steps == "1" or (asks_every_end and config.asked_label < 0):
            return
        setting, remedy = (f"ask {config.ask}", "ask=both") if config.asked_label < 0 else (
            f"asked_label {config.asked_label}", "asked_label=-1")
        raise TrainingError(f"{setting} can't be used with steps {config.steps} on {name}: a step learns the rows of "
                            f"nodes that are asked, and some ends of links never are; use {remedy}, or steps=1")

    def _check_asked(self, num_asked: int) -> None:
        config, name = self._config, self._info.name
        if not num_asked and config.asked_label >= 0:
            raise TrainingError(f"asked_label is {config.asked_label}, and no node of {name} with this label has a "
                                "link; choose another label")
        if not num_asked:
            raise TrainingError(f"asked_relation is {config.asked_relation}, and {name} has no edge of it to learn; "
                                "hold out fewer, or choose another relation")

    def _labels(self, part: Partition, setting: str, remedy: str) -> np.ndarray:
        if self._info.task != CLASSES or self._info.num_classes > MOST_LABELS:
            found = KINDS[self._info.task] if self._info.task != CLASSES else f"of {self._info.num_classes:,} labels"
            raise TrainingError(f"{setting} needs one label per node, of at most {MOST_LABELS:,}, and "
                                f"{self._info.name} is {found}; use {remedy}")
        if (part.labels < 0).any():
            raise TrainingError(f"{setting} needs a label for every node, and {self._info.name} lacks some; "
                                f"label all nodes, or use {remedy}")
        return part.labels


def _num_links(part: Partition, is_asked: np.ndarray | None) -> np.ndarray:
    """This rank's asked edges, and its nodes' held-out links for validation and for test, (3,)."""
    held = np.empty((0, 3), np.int64) if part.held_out is None else part.held_out
    degree = np.diff(part.indptr)
    num_held = np.bincount(held[np.isin(held[:, 0], part.inner_id), 2], minlength=3)
    return np.array([degree.sum() if is_asked is None else degree[is_asked].sum(), *num_held[1:]])


def _shapes(module: nn.Module) -> dict[str, torch.Size]:
    return {name: value.shape for name, value in module.state_dict().items()}


def _no_loss(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    raise TrainingError("links have no loss of rows and labels")


def _no_rows(comm: MPI.Comm, outputs: torch.Tensor, labels: torch.Tensor) -> float:
    raise TrainingError("links have no score of rows and labels")


@torch.no_grad()
def num_outputs(model: nn.Module, graph: LocalGraph) -> int:
    """Collective: columns of a model's outputs, found by one pass."""
    was_training = model.training
    model.eval()
    graph.begin_forward(seed=0, epoch=0, is_training=False)
    try:
        with alike_draws(model):
            return scored(model(graph, graph.x)).shape[1]
    finally:
        model.train(was_training)
