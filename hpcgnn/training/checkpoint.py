"""Checkpoints: everything a run needs to continue, in one sealed HDF5 file that replaces the previous one atomically.

Attribute `state` (JSON) holds counters, results, the loss scale, the controller's memory, the data's fingerprint and
the token of this checkpoint. Groups `model` and `best_model` hold weights by name, `optimizer` Adam's moments by
parameter number, `average` the averaged weights, if any. That is format 5. Format 6 adds groups `loss` and `best_loss`,
the weights of a user's own loss, and `state` may list weights `frozen` during training; a run without these writes
format 5. Random state is not stored: all draws are functions of seed and epoch. Formats before 5 do not record their
data, so such runs start anew. See docs/run-folder.md.

A run folder keeps two checkpoints (`Generations`), so that one is complete at every instant. Only rank 0 writes.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Container
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import torch

from hpcgnn.errors import CheckpointError, CollectiveError
from hpcgnn.shards.schema import Fingerprint
from hpcgnn.shards.sealed import open_sealed, reason_of, sync_folder, write_sealed
from hpcgnn.training.average import Averaged
from hpcgnn.training.evaluate import Evaluation, evaluation_from
from hpcgnn.training.precision import LossScale

KIND, VERSION = "checkpoint", 5
VERSION_OF_MORE = 6         # for weights of a loss, or weights that the user's program froze during training
ADVICE = "start without --resume, or restore the file"
# Absent if a run has none, or was written by an earlier version.
BROUGHT = ("schedule", "own_optimizer", "answers_with", "by_node")
LOSS_GROUPS = ("loss", "best_loss")
TOKEN = re.compile("[0-9a-f]{32}")
# All exceptions of h5py, json and the constructors for unexpected content.
NOT_A_CHECKPOINT = (KeyError, TypeError, ValueError, AttributeError, OSError, RuntimeError, MemoryError)


@dataclass
class Progress:
    """Progress and results of a run, without tensors."""

    seed_index: int = 0      # completed trainings of --repeat
    epoch: int = 0      # completed epochs of the current training
    best: Evaluation | None = None      # by validation score
    best_epoch: int = 0
    evaluations_since_best: int = 0
    finished: list[dict[str, Any]] = field(default_factory=list)      # result of each completed training

    @property
    def num_epochs(self) -> int:
        return sum(result["epochs"] for result in self.finished) + self.epoch

    def note(self, evaluation: Evaluation, prefers_low: bool = False, has_validation: bool = True) -> bool:
        """Record an evaluation; return whether it is the best so far, as `Evaluation.is_better_than` decides."""
        if not evaluation.is_better_than(self.best, prefers_low, has_validation):
            self.evaluations_since_best += 1
            return False
        self.best, self.best_epoch, self.evaluations_since_best = evaluation, self.epoch, 0
        return True

    def result(self, seed: int) -> dict[str, Any]:
        """Result of the current training, at the epoch of the best validation score."""
        return {"seed": seed, "epochs": self.epoch, "best_epoch": self.best_epoch, **asdict(self.best)}

    def finish_seed(self, seed: int) -> None:
        self.finished.append(self.result(seed))
        self.seed_index += 1
        self.epoch, self.best, self.best_epoch, self.evaluations_since_best = 0, None, 0, 0


@dataclass(frozen=True)
class Checkpoint:
    """A run at the end of an epoch."""

    settings: dict[str, Any]
    dataset: str
    fingerprint: Fingerprint      # fingerprint of the last shards trained on
    token: str      # 32 hexadecimal digits, new for every checkpoint
    progress: Progress
    model: dict[str, torch.Tensor]
    best_model: dict[str, torch.Tensor]
    optimizer: dict[int, dict[str, torch.Tensor]]
    loss_scale: LossScale
    controller: dict[str, Any]
    schedule: dict[str, Any] | None = None      # state of the learning-rate schedule
    own_optimizer: dict[str, Any] | None = None      # name and groups of a user's optimizer
    average: Averaged | None = None
    loss: dict[str, torch.Tensor] = field(default_factory=dict)      # weights and buffers of a user's loss, by name
    best_loss: dict[str, torch.Tensor] = field(default_factory=dict)
    frozen: list[str] | None = None      # weights that require no gradient, if a program changed that during training
    # `task`, `num_classes`, `class_names` of the training graph; None in early versions
    answers_with: dict[str, Any] | None = None
    # Tables with one row per node: `weights` lists their names, `moments` their parameter numbers. The checkpoint holds
    # whole tables, in the source's order; each rank holds only the rows of its own nodes.
    by_node: dict[str, Any] | None = None


def write_checkpoint(path: Path, checkpoint: Checkpoint) -> None:
    """Replace the checkpoint at `path`; CheckpointError if that fails, and the old one stays."""
    state = {"settings": checkpoint.settings, "dataset": checkpoint.dataset, "token": checkpoint.token,
             "fingerprint": asdict(checkpoint.fingerprint), "progress": asdict(checkpoint.progress),
             "loss_scale": asdict(checkpoint.loss_scale), "controller": checkpoint.controller,
             **{name: getattr(checkpoint, name) for name in BROUGHT if getattr(checkpoint, name) is not None}}
    if checkpoint.frozen is not None:
        state["frozen"] = checkpoint.frozen

    def fill(file: h5py.File) -> None:
        file.attrs["state"] = json.dumps(state)
        for group in ("model", "best_model"):
            _write_tensors(file.create_group(group), getattr(checkpoint, group))
        moments = file.create_group("optimizer")
        for number, tensors in checkpoint.optimizer.items():
            _write_tensors(moments.create_group(str(number)), tensors)
        if checkpoint.average is not None:
            group = file.create_group("average")
            group.attrs["num_steps"] = checkpoint.average.num_steps
            _write_tensors(group, checkpoint.average.weights)
        for name in LOSS_GROUPS if checkpoint.loss else ():
            _write_tensors(file.create_group(name), getattr(checkpoint, name))

    has_more = bool(checkpoint.loss) or checkpoint.frozen is not None
    write_sealed(path, KIND, VERSION_OF_MORE if has_more else VERSION, fill, error=CheckpointError)


def read_checkpoint(path: Path) -> Checkpoint:
    """Read a checkpoint. Raises CheckpointError: missing, truncated, damaged or of another format."""
    with open_sealed(path, KIND, (VERSION, VERSION_OF_MORE), error=CheckpointError, advice=ADVICE) as file:
        try:
            return _read_content(file)
        except NOT_A_CHECKPOINT as reason:
            # The seal is right, so the file was written like this, or made by hand.
            raise CheckpointError(f"{path} is sealed but holds no whole run ({type(reason).__name__}: {reason}); "
                                  f"{ADVICE}") from reason


def _read_content(file: h5py.File) -> Checkpoint:
    state = json.loads(file.attrs["state"])
    by_node = state.get("by_node") or {"weights": (), "moments": ()}
    progress = Progress(**state["progress"])
    if progress.best is not None:
        progress.best = evaluation_from(state["progress"]["best"])
    checkpoint = Checkpoint(
        settings=state["settings"],
        dataset=state["dataset"],
        fingerprint=Fingerprint(**state["fingerprint"]),
        token=state["token"],
        progress=progress,
        model=_read_tensors(file["model"], by_node["weights"]),
        best_model=_read_tensors(file["best_model"], by_node["weights"]),
        optimizer={int(number): _read_tensors(group, group if int(number) in by_node["moments"] else ())
                   for number, group in file["optimizer"].items()},
        loss_scale=LossScale(**state["loss_scale"]),
        controller=state["controller"],
        average=Averaged(int(file["average"].attrs["num_steps"]), _read_tensors(file["average"]))
        if "average" in file else None,
        frozen=state.get("frozen"),
        **{name: _read_tensors(file[name]) if name in file else {} for name in LOSS_GROUPS},
        **{name: state.get(name) for name in BROUGHT},
    )
    _check_content(checkpoint)
    return checkpoint


def _check_content(checkpoint: Checkpoint) -> None:
    progress, averaged = checkpoint.progress, checkpoint.average
    counters = [progress.seed_index, progress.epoch, progress.best_epoch, progress.evaluations_since_best,
                *(result["epochs"] for result in progress.finished)]
    checks = [
        (isinstance(checkpoint.settings, dict) and type(checkpoint.settings["seed"]) is int, "settings"),
        (isinstance(checkpoint.dataset, str), "name of a graph"), (checkpoint.fingerprint.is_valid, "fingerprint"),
        (bool(TOKEN.fullmatch(checkpoint.token)), "token"), (isinstance(checkpoint.controller, dict), "controller"),
        (all(isinstance(getattr(checkpoint, name), (dict, type(None))) for name in BROUGHT), "schedule or classes"),
        (all(type(counter) is int and counter >= 0 for counter in counters), "counters"),
        (progress.seed_index == len(progress.finished), "results"),
        (math.isfinite(checkpoint.loss_scale.value), "loss scale"),
        (checkpoint.model.keys() == checkpoint.best_model.keys(), "best weights"),
        (averaged is None or averaged.num_steps > 0, "averaged weights"),
        (checkpoint.loss.keys() == checkpoint.best_loss.keys(), "best weights of the loss"),
        (checkpoint.frozen is None or all(isinstance(name, str) for name in checkpoint.frozen), "frozen weights"),
    ]
    for is_met, what in checks:
        if not is_met:
            raise ValueError(f"its {what} can't come from a run")
    averages = [] if averaged is None else [averaged.weights]
    for tensors in (checkpoint.model, checkpoint.best_model, checkpoint.loss, checkpoint.best_loss, *averages,
                    *checkpoint.optimizer.values()):
        for name, tensor in tensors.items():
            if not torch.isfinite(tensor).all():
                raise ValueError(f"{name} is not finite")


def check_shapes(checkpoint: Checkpoint, weights: dict[str, torch.Tensor]) -> None:
    """Check that a checkpoint's weights have the shapes of a model's weights; all ranks agree.

    Raises CollectiveError: another number of features or classes, or another version of hpcgnn.
    """
    missing = [name for name in weights if name not in checkpoint.model]
    if missing:
        raise CollectiveError(f"the checkpoint has no {missing[0]}, so another model, or another version of hpcgnn, "
                              "wrote it; name the model that was trained, or train anew")
    for name, tensor in weights.items():
        found, needed = tuple(checkpoint.model[name].shape), tuple(tensor.shape)
        if found != needed:
            raise CollectiveError(f"the checkpoint has {name} of shape {found}, this graph needs {needed}; "
                                  "it was trained on another graph, choose another --out")


def _write_tensors(group: h5py.Group, tensors: dict[str, torch.Tensor]) -> None:
    for name, tensor in tensors.items():
        group.create_dataset(name, data=tensor.detach().cpu().numpy())


def _read_tensors(group: h5py.Group, tables: Container[str] = ()) -> dict[str, torch.Tensor]:
    return {name: torch.from_numpy(_table(dataset) if name in tables and dataset.ndim else np.array(dataset[()]))
            for name, dataset in group.items()}


def _table(dataset: h5py.Dataset) -> np.ndarray:
    """A view of the values in the file, so that a rank reads only its own rows. The file is replaced, never changed."""
    offset = dataset.id.get_offset()
    if offset is None or not dataset.size:
        return np.array(dataset[()])
    return np.memmap(dataset.file.filename, dataset.dtype, "c", offset, dataset.shape)


CURRENT, PREVIOUS, INCOMING = "checkpoint.h5", "checkpoint-previous.h5", "checkpoint-incoming.h5"
DAMAGED = "checkpoint-damaged.h5"


class Generations:
    """The two latest checkpoints of a run folder, `current` and `previous`."""

    def __init__(self, folder: Path):
        self.current, self.previous = folder / CURRENT, folder / PREVIOUS
        self._incoming, self._damaged = folder / INCOMING, folder / DAMAGED

    @property
    def exist(self) -> bool:
        return any(os.path.lexists(path) for path in (self.current, self.previous))

    def write(self, checkpoint: Checkpoint) -> None:
        """Make this the current checkpoint and the current one the previous.

        Raises CheckpointError: the folder can't be written or the disk is full; both stay as they were.
        """
        # The new checkpoint is complete and on the disk before the old ones move.
        write_checkpoint(self._incoming, checkpoint)
        try:
            if self.current.exists():
                os.replace(self.current, self.previous)
            os.replace(self._incoming, self.current)
            sync_folder(self.current.parent)
        except OSError as reason:
            raise CheckpointError(f"{self.current} can't be replaced: {reason_of(reason)}; check the folder and the "
                                  "space on its disk, then go on with --resume") from reason

    def read(self) -> tuple[Checkpoint, str | None]:
        """The current checkpoint; if it is damaged, the previous one and a sentence that says so.

        Raises CheckpointError about the current one if both are damaged.
        """
        try:
            return read_checkpoint(self.current), None
        except CheckpointError as failure:
            try:
                checkpoint = read_checkpoint(self.previous)
            except CheckpointError:
                raise failure from None
            place = f"epoch {checkpoint.progress.epoch}"
            if checkpoint.progress.seed_index:
                place += f" of training {checkpoint.progress.seed_index + 1}"
            reason = str(failure).rpartition("; ")[0]
            return checkpoint, f"{reason}; the run goes on from {self.previous.name}, after {place}"

    def restore_previous(self) -> None:
        """Make the previous checkpoint the current one; rename a damaged current one. CheckpointError if that fails."""
        try:
            if os.path.lexists(self.current):
                os.replace(self.current, self._damaged)
            os.replace(self.previous, self.current)
            sync_folder(self.current.parent)
        except OSError as reason:
            raise CheckpointError(f"{self.previous} can't take the place of {self.current}: {reason_of(reason)}; check "
                                  "the folder") from reason

    def torn(self) -> list[Path]:
        """Unfinished files that a killed rank 0 has left."""
        folder = self.current.parent
        return [path for pattern in (INCOMING, f"{INCOMING}.tmp-*", f"{CURRENT}.tmp-*")
                for path in sorted(folder.glob(pattern))]

    @property
    def files(self) -> list[Path]:
        """Paths of complete or damaged files that may exist, without unfinished ones."""
        return [self.current, self.previous, self._damaged]
