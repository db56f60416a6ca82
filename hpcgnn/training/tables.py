"""Tables: rows of a NodeEmbedding on their way from the ranks that own them into one checkpoint, and back.

A checkpoint holds a whole table, in the order of the source, so any number of ranks can continue from it and a reader
finds an `nn.Embedding`. No rank has the whole table in memory: rank 0 collects it piece by piece in an unnamed file in
the run folder, and later sends each rank its rows from the checkpoint itself. The best weights, the optimizer's moments
and averaged weights travel in the same way.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Collection, Iterator
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from mpi4py import MPI
from torch import nn

from hpcgnn.errors import CollectiveError, TrainingError
from hpcgnn.nn.models import plain
from hpcgnn.nn.node_embedding import own_tables
from hpcgnn.run.launch import together, told_by_rank_zero
from hpcgnn.shards.sealed import reason_of
from hpcgnn.training.checkpoint import Checkpoint

PIECE_BYTES = 64 << 20
DISTRIBUTED = "module."      # prefix of a distributed model's weights, except in its state
ROOMS = ("model", "best_model", "optimizer", "average")
Change = Callable[[torch.Tensor], torch.Tensor]


class Tables:
    """A model's tables of own rows, and training's tables of the same shape, such as moments.

    `held` are the parameters in the order in which the optimizer numbers them.
    """

    def __init__(self, comm: MPI.Comm, model: nn.Module, held: Collection[nn.Parameter] = ()):
        self.comm = comm
        tables = own_tables(plain(model))
        weights = {id(table.weight) for table in tables.values()}
        self.names = frozenset(tables)
        self.moments = frozenset(number for number, one in enumerate(held) if id(one) in weights)
        self._first = next(iter(tables.values()), None)      # all tables have the same nodes

    def __bool__(self) -> bool:
        return bool(self.names)

    @cached_property
    def _index_of(self) -> list[np.ndarray]:
        """Collective: on rank 0, the nodes of each rank's rows; on other ranks, only their numbers."""
        index = self._first.node_index.cpu().numpy()
        return self.comm.gather(index) or [index]

    def record(self) -> dict[str, Any] | None:
        """A checkpoint's entry about the tables; None if there are none."""
        return {"weights": sorted(self.names), "moments": sorted(self.moments)} if self else None

    def whole(self, rooms: dict[str, Any], folder: Path) -> dict[str, Any]:
        """Collective: the entries `rooms` of a checkpoint with whole tables on rank 0; CollectiveError for a full disk.

        Rank 0 may make files in `folder`.
        """
        if not self or self.comm.size == 1:
            return rooms
        return _changed(rooms, self.names, self.moments, lambda rows: self._collected(rows, folder))

    def own(self, checkpoint: Checkpoint) -> Checkpoint:
        """Collective: rank 0's checkpoint with this rank's rows of the tables; CollectiveError if tables don't fit."""
        written = set((checkpoint.by_node or {}).get("weights", ()))
        if not written <= self.names:
            raise CollectiveError(f"the checkpoint's {min(written - self.names)} is a NodeEmbedding's, and this model "
                                  "has none there; give the same model again, or choose another out")
        if not self:
            return checkpoint
        for name in sorted(self.names & checkpoint.model.keys()):
            if len(checkpoint.model[name]) != self._first.num_embeddings:
                raise CollectiveError(other_nodes(name, len(checkpoint.model[name]), self._first.num_embeddings))
        rooms = {room: getattr(checkpoint, room) for room in ROOMS}
        change = torch.clone if self.comm.size == 1 else self._handed_out      # copied, since the file will be removed
        return replace(checkpoint, **_changed(rooms, self.names, self.moments, change))

    def check_moments(self, optimizer: dict[int, dict[str, torch.Tensor]], weights: list[nn.Parameter]) -> None:
        """Check that an optimizer keeps one value per element of a table, as in a checkpoint.

        Raises TrainingError: the optimizer keeps sums of rows or columns; these would cover one rank's rows only.
        """
        for number in self.moments & optimizer.keys() if self.comm.size > 1 else ():
            for name, moment in optimizer[number].items():
                if moment.dim() and moment.shape != weights[number].shape:
                    raise TrainingError(f"the optimizer keeps {name} of shape {tuple(moment.shape)} for a "
                                        "NodeEmbedding, so its steps would differ with the number of ranks; use an "
                                        "optimizer that moves each element on its own, such as Adam")

    def _collected(self, rows: torch.Tensor, folder: Path) -> torch.Tensor:
        """Collective: on rank 0, the rows of all ranks in the order of the source; on others, this rank's rows."""
        mine, comm = np.ascontiguousarray(rows.detach().cpu().numpy()), self.comm
        shape, index_of = (self._first.num_embeddings, *mine.shape[1:]), self._index_of
        table = together(comm, lambda: _room_for(shape, mine.dtype, folder) if comm.rank == 0 else None)
        if comm.rank:
            for piece in _pieces(mine):
                comm.Send(piece, 0)
            return rows
        table[index_of[0]] = mine
        for rank in range(1, comm.size):
            for index in _pieces(index_of[rank], table[:1].nbytes):
                piece = np.empty((len(index), *shape[1:]), mine.dtype)
                comm.Recv(piece, rank)
                table[index] = piece
        return torch.from_numpy(table)

    def _handed_out(self, table: torch.Tensor) -> torch.Tensor:
        """Collective: this rank's rows of a table that rank 0 has."""
        comm, index_of = self.comm, self._index_of
        if comm.rank == 0:
            for rank in range(1, comm.size):
                for index in _pieces(index_of[rank], table[:1].nbytes):
                    comm.Send(np.ascontiguousarray(table.numpy()[index]), rank)
            return table[torch.from_numpy(index_of[0])]
        mine = torch.empty((len(index_of[0]), *table.shape[1:]), dtype=table.dtype)
        for piece in _pieces(mine.numpy()):
            comm.Recv(piece, 0)
        return mine


def other_nodes(name: str, num_written: int, num_nodes: int) -> str:
    return (f"the checkpoint has a row of {name} for each of {num_written} nodes, and this graph has {num_nodes}; a "
            "row is of use to its own node only, so name the graph that was trained on, or train a model on features")


def with_own_rows(checkpoint: Checkpoint, model: nn.Module) -> Checkpoint:
    """A checkpoint that every rank has read, with this rank's rows of the tables of the best weights.

    Raises CollectiveError: the tables have another number of nodes.
    """
    best = dict(checkpoint.best_model)
    for name, table in own_tables(plain(model)).items():
        if name in best and len(best[name]) != table.num_embeddings:
            raise CollectiveError(other_nodes(name, len(best[name]), table.num_embeddings))
        if name in best:
            best[name] = best[name][table.node_index.cpu()]
    return replace(checkpoint, best_model=best)


def outlined(checkpoint: Checkpoint) -> Checkpoint:
    """Return a checkpoint with only the shapes of its tables, for ranks that get their rows later."""
    by_node = checkpoint.by_node
    if not by_node:
        return checkpoint
    rooms = {room: getattr(checkpoint, room) for room in ROOMS}
    return replace(checkpoint, **_changed(rooms, by_node["weights"], by_node["moments"],
                                          lambda table: torch.empty_like(table, device="meta")))


def found_by_rank_zero(comm: MPI.Comm, find: Callable[[], tuple[Checkpoint | None, str | None]]) -> \
        tuple[Checkpoint | None, str | None]:
    """Collective: rank 0's result of `find`, on all ranks; tables are on rank 0, other ranks know their shapes."""
    found = []

    def read() -> tuple[Checkpoint | None, str | None]:
        found.append(find())
        checkpoint, remark = found[0]
        return None if checkpoint is None else outlined(checkpoint), remark

    told = told_by_rank_zero(comm, read)
    return found[0] if found else told


def _changed(rooms: dict[str, Any], names: Collection[str], moments: Collection[int], change: Change) -> dict[str, Any]:
    """Return entries of a checkpoint with changed tables."""
    def by_name(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        return {name: change(tensor) if name in names or name.removeprefix(DISTRIBUTED) in names else tensor
                for name, tensor in tensors.items()}

    found = dict(rooms)      # in one order on all ranks
    for room in ("model", "best_model"):
        if room in rooms:
            found[room] = by_name(rooms[room])
    if rooms.get("average") is not None:
        found["average"] = rooms["average"]._replace(weights=by_name(rooms["average"].weights))
    for number in sorted(moments & rooms.get("optimizer", {}).keys()):
        kept = {name: change(moment) if moment.dim() else moment for name, moment in rooms["optimizer"][number].items()}
        found["optimizer"] = {**found["optimizer"], number: kept}
    return found


def _pieces(array: np.ndarray, row_bytes: int = 0) -> Iterator[np.ndarray]:
    """Views of consecutive rows, in pieces of moderate size."""
    step = max(1, PIECE_BYTES // max(1, row_bytes or array[:1].nbytes))
    for start in range(0, len(array), step):
        yield array[start:start + step]


def _room_for(shape: tuple[int, ...], dtype: np.dtype, folder: Path) -> np.ndarray:
    """An array in a file that disappears with the array; raises TrainingError if the disk has no room."""
    num_bytes = max(1, int(np.prod(shape)) * dtype.itemsize)
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            os.posix_fallocate(file.fileno(), 0, num_bytes)      # otherwise a full disk would raise a signal later
            return np.memmap(file, dtype, "r+", shape=shape)
    except OSError as error:
        raise TrainingError(f"{folder} has no room for a table of {num_bytes} bytes: {reason_of(error)}; check the "
                            "folder and the space on its disk") from error
