"""Checkpoints: all that a run needs to go on, in one sealed HDF5 file that replaces its predecessor atomically.

Format 5: attribute `state` (JSON) holds counters, results, the loss scale, the controller's memory, the fingerprint of
the data and the token of this checkpoint; groups `model`, `best_model` hold weights by name, group `optimizer` the
moments of Adam by parameter number, group `average`, where there is one, the weights' average of the last steps.
Format 6 has groups `loss` and `best_loss` as well, the weights of a loss that a program gave, and `state` may name the
weights that it has `frozen` under way; a run without these writes format 5. No random state exists: draws are functions
of seed and epoch. Files of earlier formats do not tell which data they were made on; a run of theirs is started anew.
See docs/run-folder.md.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Container
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import torch

from hpcgnn.errors import CheckpointError, CollectiveError
from hpcgnn.shards.fingerprint import Fingerprint
from hpcgnn.shards.sealed import open_sealed, write_sealed
from hpcgnn.training.average import Averaged
from hpcgnn.training.evaluate import Evaluation, evaluation_from
from hpcgnn.training.precision import LossScale

KIND, VERSION = "checkpoint", 5
VERSION_OF_MORE = 6         # of one with weights of a loss, or weights that a program has frozen under way
ADVICE = "start without --resume, or restore the file"
# Absent where a run has none, or is of an earlier version.
BROUGHT = ("schedule", "own_optimizer", "answers_with", "by_node")
LOSS_GROUPS = ("loss", "best_loss")
TOKEN = re.compile("[0-9a-f]{32}")
# Everything that h5py, json and the constructors raise for content that is not what it should be.
NOT_A_CHECKPOINT = (KeyError, TypeError, ValueError, AttributeError, OSError, RuntimeError, MemoryError)


@dataclass
class Progress:
    """Record where a run stands: how far it has come and what it has found, without tensors.

    Attributes
    ----------
    seed_index : int                 trainings of --repeat that are complete
    epoch : int                      epochs complete in the current training
    best : Evaluation or None        by validation score
    best_epoch : int
    evaluations_since_best : int
    finished : list of dict          result of each complete training
    """

    seed_index: int = 0
    epoch: int = 0
    best: Evaluation | None = None
    best_epoch: int = 0
    evaluations_since_best: int = 0
    finished: list[dict[str, Any]] = field(default_factory=list)

    @property
    def num_epochs(self) -> int:
        """Epochs of all trainings so far."""
        return sum(result["epochs"] for result in self.finished) + self.epoch

    def note(self, evaluation: Evaluation, prefers_low: bool = False, has_validation: bool = True) -> bool:
        """Remember an evaluation made after `epoch` epochs; return whether it is the best so far, which is the lowest
        where a low score is better, and the last one where no node validates.
        """
        if not evaluation.is_better_than(self.best, prefers_low, has_validation):
            self.evaluations_since_best += 1
            return False
        self.best, self.best_epoch, self.evaluations_since_best = evaluation, self.epoch, 0
        return True

    def result(self, seed: int) -> dict[str, Any]:
        """Return what the current training has reached, at the epoch of the best validation score."""
        return {"seed": seed, "epochs": self.epoch, "best_epoch": self.best_epoch, **asdict(self.best)}

    def finish_seed(self, seed: int) -> None:
        """Keep the current training's result and begin the next."""
        self.finished.append(self.result(seed))
        self.seed_index += 1
        self.epoch, self.best, self.best_epoch, self.evaluations_since_best = 0, None, 0, 0


@dataclass(frozen=True)
class Checkpoint:
    """A run at the end of an epoch.

    Attributes
    ----------
    fingerprint : Fingerprint        of the shards that were trained on last
    token : str                      32 hexadecimal digits, drawn anew for every checkpoint
    schedule : dict or None          where the schedule of the learning rate stands, if there is one
    own_optimizer : dict or None     name and groups of an optimizer that a program gave
    average : Averaged or None       of the weights, where a run averages them
    loss, best_loss : dict           weights and buffers of a loss that a program gave, by name
    frozen : list of str or None     weights that require no gradient, where a program changed that under way
    answers_with : dict or None      `task`, `num_classes` and `class_names` of the graph that was trained on; None in
                                     checkpoints of earlier versions
    by_node : dict or None           `weights`, names, and `moments`, numbers, of tables with a row a node of which
                                     ranks hold those of their own nodes; here they are whole, in the source's order
    """

    settings: dict[str, Any]
    dataset: str
    fingerprint: Fingerprint
    token: str
    progress: Progress
    model: dict[str, torch.Tensor]
    best_model: dict[str, torch.Tensor]
    optimizer: dict[int, dict[str, torch.Tensor]]
    loss_scale: LossScale
    controller: dict[str, Any]
    schedule: dict[str, Any] | None = None
    own_optimizer: dict[str, Any] | None = None
    average: Averaged | None = None
    loss: dict[str, torch.Tensor] = field(default_factory=dict)
    best_loss: dict[str, torch.Tensor] = field(default_factory=dict)
    frozen: list[str] | None = None
    answers_with: dict[str, Any] | None = None
    by_node: dict[str, Any] | None = None


def write_checkpoint(path: Path, checkpoint: Checkpoint) -> None:
    """Replace the checkpoint at `path`; what was there stays if anything fails.

    Raises
    ------
    CheckpointError      the folder can't be written or the disk is full
    """
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
    """Read a checkpoint.

    Raises
    ------
    CheckpointError      missing, truncated, damaged or of another format
    """
    with open_sealed(path, KIND, (VERSION, VERSION_OF_MORE), error=CheckpointError, advice=ADVICE) as file:
        try:
            return _read_content(file)
        except NOT_A_CHECKPOINT as reason:
            # The seal is right, so it was written like this, or made by hand.
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
        average=_read_average(file),
        frozen=state.get("frozen"),
        **{name: _read_tensors(file[name]) if name in file else {} for name in LOSS_GROUPS},
        **{name: state.get(name) for name in BROUGHT},
    )
    _check_content(checkpoint)
    return checkpoint


def _read_average(file: h5py.File) -> Averaged | None:
    if "average" not in file:
        return None
    return Averaged(int(file["average"].attrs["num_steps"]), _read_tensors(file["average"]))


def _check_content(checkpoint: Checkpoint) -> None:
    """Check the values that types alone don't ensure; raise ValueError or TypeError."""
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
            raise ValueError(f"its {what} can't be those of a run")
    averages = [] if averaged is None else [averaged.weights]
    for tensors in (checkpoint.model, checkpoint.best_model, checkpoint.loss, checkpoint.best_loss, *averages,
                    *checkpoint.optimizer.values()):
        for name, tensor in tensors.items():
            if not torch.isfinite(tensor).all():
                raise ValueError(f"{name} is not finite")


def check_shapes(checkpoint: Checkpoint, weights: dict[str, torch.Tensor]) -> None:
    """Check that a checkpoint's weights have the shapes of a model's; all ranks see the same.

    Raises
    ------
    CollectiveError      the graph that was trained has another number of features or classes, or the model had other
                         weights in the version that trained it
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
    """Values where they lie in the file, of which a rank reads its own rows: the file is replaced, never changed."""
    offset = dataset.id.get_offset()
    if offset is None or not dataset.size:
        return np.array(dataset[()])
    return np.memmap(dataset.file.filename, dataset.dtype, "c", offset, dataset.shape)
