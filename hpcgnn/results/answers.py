"""Answers: a trained model's predictions for this rank's nodes; rank 0 gathers them in the order of global ids."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from mpi4py import MPI
from torch import nn

from hpcgnn.errors import CollectiveError, TrainingError
from hpcgnn.graph.local_graph import LocalGraph
from hpcgnn.nn.heads import scored
from hpcgnn.partition.partition import Partition
from hpcgnn.results.embedding import watch_last_layer
from hpcgnn.shards.schema import GraphInfo
from hpcgnn.training.alike import alike_draws
from hpcgnn.training.reading import Reading
from hpcgnn.training.scores import CLASSES, LINKS, MULTI_LABEL, REGRESSION

PIECE_BYTES = 1 << 26      # bytes of rows that rank 0 holds at a time
ROWS = ("node_id", "name", "logits", "embeddings")      # arrays with a row for each node


@dataclass(frozen=True)
class Answers:
    """A model's predictions for some nodes.

    Attributes
    ----------
    task : {"classes", "multi-label", "regression"}
    num_nodes : int                          nodes of the whole graph
    node_id : (n,) int64                     global ids
    name : (n,) int64, or objects that are str    ids in the source if it has any, else global ids
    logits : (n, num_classes) float32        for a regression its values
    embeddings : (n, hidden) float32         rows that the last layer reads; hidden is 0 unless asked for
    class_names : tuple of str               empty if classes have no names
    reading : Reading                        meaning of the columns of `logits`: they may be probabilities
    num_classes : int or None                classes of the training graph; None: the number of columns, at least 2
    """

    task: str
    num_nodes: int
    node_id: np.ndarray
    name: np.ndarray
    logits: np.ndarray
    embeddings: np.ndarray
    class_names: tuple[str, ...] = ()
    reading: Reading = Reading.LOGITS
    num_classes: int | None = None

    def __len__(self) -> int:
        return len(self.node_id)

    def __getitem__(self, rows: slice | np.ndarray) -> Answers:
        return replace(self, **{name: getattr(self, name)[rows] for name in ROWS})

    @property
    def prediction(self) -> np.ndarray:
        """Class ids (n,) int32, the first of equal ones; (n, num_classes) uint8 indicators; or (n, num_classes) float32
        values of a regression.

        Raises
        ------
        TrainingError      only the program, with its own loss and score, knows what the columns mean
        """
        return self.logits if self.task in (REGRESSION, LINKS) else predicted(self._scored(), self.task == MULTI_LABEL)

    @property
    def probability(self) -> np.ndarray | None:
        """The predicted class's softmax, (n,) float32; with several labels, every label's sigmoid, (n, num_classes)
        float32; None for a regression. Answers that are already probabilities are returned unchanged.

        Raises
        ------
        TrainingError      as in `prediction`
        """
        if self.task in (REGRESSION, LINKS):
            return None
        if self.task == MULTI_LABEL and self.reading is Reading.PROBABILITIES:
            return self.logits
        if self.task == MULTI_LABEL:
            return torch.sigmoid(torch.from_numpy(np.ascontiguousarray(self._scored()))).numpy()
        shares = self.shares()
        return shares.max(axis=1) if shares.size else np.zeros(len(self), np.float32)

    def shares(self) -> np.ndarray:
        """Probability of every class, (n, num_classes) float32, for one label per node; raises as `prediction`."""
        logits = torch.from_numpy(np.ascontiguousarray(self._scored()))
        return (logits if self.reading is Reading.PROBABILITIES else torch.softmax(logits, dim=1)).numpy()

    def _scored(self) -> np.ndarray:
        if self.reading is Reading.UNKNOWN:
            raise TrainingError(f"the model returns {self.logits.shape[1]} columns, and only the program that "
                                "gave its loss and score knows what they mean; take them from answers.logits")
        num_classes = max(2, self.logits.shape[1]) if self.num_classes is None else self.num_classes
        return self.reading.scored(torch.from_numpy(self.logits), self.task, num_classes).numpy()

    @property
    def class_name(self) -> np.ndarray | None:
        """Name of each node's class, (n,) objects that are str; None if classes have no names or nodes have several
        labels.
        """
        if self.task != CLASSES or not self.class_names:
            return None
        more = range(len(self.class_names), self.logits.shape[1])      # columns for classes that no node has
        return np.array([*self.class_names, *map(str, more)], dtype=object)[self.prediction]

    def pieces(self, comm: MPI.Comm) -> Iterator[Answers]:
        """Collective: the answers of all ranks on rank 0, some rows at a time, in the order of global ids.

        Every rank must exhaust the iterator; other ranks get no rows.
        """
        shared = self.aligned(comm)
        arrays = [shared.name, shared.logits, shared.embeddings]
        for first, (name, logits, embeddings) in row_pieces(comm, self.num_nodes, self.node_id, arrays):
            node_id = np.arange(first, first + len(logits), dtype=np.int64)
            yield replace(shared, node_id=node_id, name=name, logits=logits, embeddings=embeddings)

    def gather(self, comm: MPI.Comm, everywhere: bool = False) -> Answers | None:
        """Collective: the answers of all nodes in the order of global ids, on rank 0, or on all ranks with
        `everywhere`; else None.
        """
        blocks = list(self.pieces(comm))
        whole = _joined(blocks) if comm.rank == 0 and blocks else self if comm.rank == 0 else None
        return comm.bcast(whole) if everywhere else whole

    def aligned(self, comm: MPI.Comm) -> Answers:
        """Collective: the same answers, with names of one type on all ranks, and empty ones as wide as the others."""
        most = np.array([self.logits.shape[1], self.embeddings.shape[1], self.name.dtype.kind not in "iu"])
        comm.Allreduce(MPI.IN_PLACE, most, MPI.MAX)
        columns, hidden, has_texts = most.tolist()
        name = self.name.astype(object if has_texts else np.int64)
        if len(self):
            return replace(self, name=name)
        return replace(self, name=name, logits=np.empty((0, columns), np.float32),
                       embeddings=np.empty((0, hidden), np.float32))


def _joined(blocks: list[Answers]) -> Answers:
    whole: dict[str, Any] = {name: np.concatenate([getattr(block, name) for block in blocks]) for name in ROWS}
    return replace(blocks[0], **whole)


def answer(comm: MPI.Comm, model: nn.Module, graph: LocalGraph, part: Partition, info: GraphInfo,
           embeddings: bool = False, reading: Reading = Reading.LOGITS) -> Answers:
    """Collective: one forward pass over all nodes, without dropout, with messages that are exact in the rows' type.

    `graph` has all inner rows of `part`, in any order. With `embeddings`, the rows that the last layer reads are also
    kept. The model's training or evaluation mode is kept. Returns the answers of this rank's nodes.

    Raises CollectiveError: an answer is not finite, or the last layer, for embeddings, can't be found.
    """
    was_training = model.training
    model.eval()
    graph.begin_forward(seed=0, epoch=0, is_training=False)
    try:
        with torch.no_grad(), alike_draws(model), watch_last_layer(model, graph, embeddings) as watched:
            logits = scored(model(watched.graph, watched.x)).float().cpu().numpy()
    finally:
        model.train(was_training)
    num_bad = comm.allreduce(int((~np.isfinite(logits)).any(axis=1).sum()))
    if num_bad:
        raise CollectiveError(f"the model's outputs for {num_bad} nodes are not finite; look for extreme values in the "
                              "features, or for a training that went astray")
    node_id = graph.node_id[:graph.num_inner].astype(np.int64)
    return Answers(info.task, info.num_nodes, node_id, _names(part, node_id), logits, watched.rows(),
                   info.class_names, reading, info.num_classes)


def _names(part: Partition, node_id: np.ndarray) -> np.ndarray:
    if part.inner_name is None:
        return node_id
    order = np.argsort(part.inner_id)
    return part.inner_name[order[np.searchsorted(part.inner_id, node_id, sorter=order)]]


def predicted(logits: np.ndarray, is_multi_label: bool) -> np.ndarray:
    """Class ids (n,) int32 of the largest logit, the first among equals; or (n, num_classes) uint8, 1 if positive."""
    return (logits > 0).astype(np.uint8) if is_multi_label else logits.argmax(axis=1).astype(np.int32)


def row_pieces(comm: MPI.Comm, num_nodes: int, node_id: np.ndarray,
               arrays: Sequence[np.ndarray]) -> Iterator[tuple[int, list[np.ndarray]]]:
    """Collective: the rows of some arrays on rank 0, PIECE_BYTES or one row at a time.

    Every rank must exhaust the iterator. `num_nodes` counts the nodes of all ranks; `node_id`, (n,) int64, are the
    global ids of this rank's rows; `arrays`, each (n, ...), have the same type and row shape on all ranks; texts are
    objects.

    Yields the global id of the piece's first row, and the piece's rows of each array; no rows on ranks other than 0.
    """
    order = np.argsort(node_id)
    sorted_id = node_id[order]
    step = max(1, PIECE_BYTES // max(1, sum(_row_bytes(array) for array in arrays)))
    for first in range(0, num_nodes, step):
        stop = min(first + step, num_nodes)
        mine = slice(*np.searchsorted(sorted_id, [first, stop]))
        ids = gathered(comm, sorted_id[mine])
        yield first, [_placed(ids - first, gathered(comm, array[order[mine]])) for array in arrays]


def gathered(comm: MPI.Comm, rows: np.ndarray) -> np.ndarray:
    """Collective: the rows of all ranks on rank 0, one rank after the other; no row on the others."""
    if rows.dtype == object:
        parts = comm.gather(rows)
        return np.concatenate(parts) if comm.rank == 0 else rows[:0]
    counts = comm.gather(len(rows))
    out = np.empty((sum(counts) if comm.rank == 0 else 0, *rows.shape[1:]), rows.dtype)
    num_bytes = [count * _row_bytes(rows) for count in counts] if comm.rank == 0 else None
    comm.Gatherv([_bytes_of(np.ascontiguousarray(rows)), MPI.BYTE], [_bytes_of(out), num_bytes, MPI.BYTE])
    return out


def _placed(places: np.ndarray, rows: np.ndarray) -> np.ndarray:
    out = np.empty_like(rows)
    out[places] = rows
    return out


def _row_bytes(array: np.ndarray) -> int:
    return array.dtype.itemsize * int(np.prod(array.shape[1:]))


def _bytes_of(array: np.ndarray) -> np.ndarray:
    return array.reshape(-1).view(np.uint8) if array.size and array.dtype.itemsize else np.empty(0, np.uint8)
