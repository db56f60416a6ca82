"""Checkpoints: all that a run needs to go on, in one sealed HDF5 file that replaces its predecessor atomically.

Format 4: attribute `state` (JSON) holds counters, results, the loss scale and the controller's memory; groups `model`,
`best_model` hold weights by name, group `optimizer` Adam's moments by parameter number. No random state exists: draws
are functions of seed and epoch. Files of earlier formats know less of the controller; a run of theirs is started anew.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import torch

from hpcgnn.errors import CheckpointError, CollectiveError
from hpcgnn.shards.sealed import open_sealed, write_sealed
from hpcgnn.training.evaluate import Evaluation, evaluation_from
from hpcgnn.training.precision import LossScale

KIND, VERSION = "checkpoint", 4
ADVICE = "start without --resume, or restore the file"


@dataclass
class Progress:
    """Where a run stands. Everything but the tensors of a checkpoint.

    Attributes
    ----------
    seed_index : int                 trainings of --repeat that are complete
    epoch : int                      epochs complete in the current training
    best : Evaluation or None        by validation score
    best_epoch : int
    evaluations_since_best : int
    finished : list of dict          result of each complete training
    metrics_bytes : int              length of metrics.jsonl; what lies behind was not checkpointed
    """

    seed_index: int = 0
    epoch: int = 0
    best: Evaluation | None = None
    best_epoch: int = 0
    evaluations_since_best: int = 0
    finished: list[dict[str, Any]] = field(default_factory=list)
    metrics_bytes: int = 0

    def note(self, evaluation: Evaluation) -> bool:
        """Remember an evaluation made after `epoch` epochs; return whether it is the best so far."""
        if not evaluation.is_better_than(self.best):
            self.evaluations_since_best += 1
            return False
        self.best, self.best_epoch, self.evaluations_since_best = evaluation, self.epoch, 0
        return True

    def result(self, seed: int) -> dict[str, Any]:
        """What the current training has reached, at the epoch of the best validation score."""
        return {"seed": seed, "epochs": self.epoch, "best_epoch": self.best_epoch, **asdict(self.best)}

    def finish_seed(self, seed: int) -> None:
        """Keep the current training's result and begin the next."""
        self.finished.append(self.result(seed))
        self.seed_index += 1
        self.epoch, self.best, self.best_epoch, self.evaluations_since_best = 0, None, 0, 0


@dataclass(frozen=True)
class Checkpoint:
    """A run at the end of an epoch."""

    settings: dict[str, Any]
    dataset: str
    progress: Progress
    model: dict[str, torch.Tensor]
    best_model: dict[str, torch.Tensor]
    optimizer: dict[int, dict[str, torch.Tensor]]
    loss_scale: LossScale
    controller: dict[str, Any]


def write_checkpoint(path: Path, checkpoint: Checkpoint) -> None:
    """Replace the checkpoint at `path`; what was there stays if anything fails.

    Raises
    ------
    CheckpointError      the folder can't be written or the disk is full
    """
    state = {"settings": checkpoint.settings, "dataset": checkpoint.dataset, "progress": asdict(checkpoint.progress),
             "loss_scale": asdict(checkpoint.loss_scale), "controller": checkpoint.controller}

    def fill(file: h5py.File) -> None:
        file.attrs["state"] = json.dumps(state)
        for group in ("model", "best_model"):
            _write_tensors(file.create_group(group), getattr(checkpoint, group))
        moments = file.create_group("optimizer")
        for number, tensors in checkpoint.optimizer.items():
            _write_tensors(moments.create_group(str(number)), tensors)

    write_sealed(path, KIND, VERSION, fill, error=CheckpointError)


def read_checkpoint(path: Path) -> Checkpoint:
    """Read a checkpoint.

    Raises
    ------
    CheckpointError      missing, truncated, damaged or of another format
    """
    with open_sealed(path, KIND, VERSION, error=CheckpointError, advice=ADVICE) as file:
        state = json.loads(file.attrs["state"])
        progress = Progress(**state["progress"])
        if progress.best is not None:
            progress.best = evaluation_from(state["progress"]["best"])
        return Checkpoint(
            settings=state["settings"],
            dataset=state["dataset"],
            progress=progress,
            model=_read_tensors(file["model"]),
            best_model=_read_tensors(file["best_model"]),
            optimizer={int(number): _read_tensors(group) for number, group in file["optimizer"].items()},
            loss_scale=LossScale(**state["loss_scale"]),
            controller=state["controller"],
        )


def check_shapes(checkpoint: Checkpoint, weights: dict[str, torch.Tensor]) -> None:
    """Check that a checkpoint's weights have the shapes of a model's; all ranks see the same.

    Raises
    ------
    CollectiveError      the graph that was trained has another number of features or classes, or the model had other
                         weights in the version that trained it
    """
    missing = [name for name in weights if name not in checkpoint.model]
    if missing:
        raise CollectiveError(f"the checkpoint has no {missing[0]}; another version of hpcgnn wrote it, train the "
                              "model anew")
    for name, tensor in weights.items():
        found, needed = tuple(checkpoint.model[name].shape), tuple(tensor.shape)
        if found != needed:
            raise CollectiveError(f"the checkpoint has {name} of shape {found}, this graph needs {needed}; "
                                  "it was trained on another graph, choose another --out")


def _write_tensors(group: h5py.Group, tensors: dict[str, torch.Tensor]) -> None:
    for name, tensor in tensors.items():
        group.create_dataset(name, data=tensor.detach().cpu().numpy())


def _read_tensors(group: h5py.Group) -> dict[str, torch.Tensor]:
    return {name: torch.from_numpy(np.array(dataset[()])) for name, dataset in group.items()}
