"""Predictions of all nodes as one sealed HDF5 file, written by rank 0 in the order of global ids, piece by piece.

Format 1. Attributes: `dataset`, `scheme` (str), `num_nodes`, `num_classes` (int), `is_multi_label` (bool). Row v of
each array belongs to the node of global id v, as the shards number it:

    prediction     (num_nodes,) int32 class ids, or (num_nodes, num_classes) uint8 indicators for several labels
    logits         (num_nodes, num_classes) float32
    embeddings     (num_nodes, hidden) float32, what the last convolution reads; hidden is 0 if there is only one

Group `class_names` (`bytes`, `offset`, see `store_texts`) names the classes in the order of their ids, if they have
names.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from mpi4py import MPI

from hpcgnn.errors import CheckpointError, ShardError
from hpcgnn.lowbit.integer_model import IntegerModel
from hpcgnn.results.answer_file import store_rows, write_together
from hpcgnn.results.answers import Answers
from hpcgnn.shards.schema import Layout, check_layout, integer_of, load_texts, store_texts
from hpcgnn.shards.sealed import open_sealed, write_sealed
from hpcgnn.training.scores import CLASSES, MULTI_LABEL

KIND, VERSION = "predictions", 1
ADVICE = "run hpcgnn infer again"
ARRAYS, CLASS_NAMES = ("prediction", "logits", "embeddings"), "class_names"


@dataclass(frozen=True)
class Predictions:
    """A model's predictions for every node of a graph.

    Attributes
    ----------
    dataset : str              name of the graph
    scheme : str               quantization with which the model was trained
    prediction : (num_nodes,) int32 class ids; or (num_nodes, num_classes) uint8 with several labels per node
    logits : (num_nodes, num_classes) float32
    embeddings : (num_nodes, hidden) float32      input of the last layer; hidden is 0 if there is only one layer
    class_names : tuple of str                    by class id; empty if the source has numbers
    """

    dataset: str
    scheme: str
    is_multi_label: bool
    prediction: np.ndarray
    logits: np.ndarray
    embeddings: np.ndarray
    class_names: tuple[str, ...] = ()


def write_predictions(comm: MPI.Comm, path: Path, model: IntegerModel, num_nodes: int, node_id: np.ndarray,
                      logits: np.ndarray, embeddings: np.ndarray) -> None:
    """Collective: replace the file at `path` by the rows of all ranks; num_nodes counts all ranks' nodes.

    `logits`, (n, num_classes), and `embeddings`, (n, hidden), are float32 rows of the global ids `node_id`, (n,) int64.
    Raises CollectiveError if the folder can't be written or the disk is full.
    """
    answers = Answers(MULTI_LABEL if model.is_multi_label else CLASSES, num_nodes, node_id, node_id, logits, embeddings,
                      model.class_names, num_classes=model.num_classes).aligned(comm)

    def fill(file: h5py.File, pieces: Iterable[Answers]) -> None:
        for name in ("dataset", "scheme", "num_classes", "is_multi_label"):
            file.attrs[name] = getattr(model, name)
        file.attrs["num_nodes"] = num_nodes
        if model.class_names:
            store_texts(file, CLASS_NAMES, model.class_names)
        for piece in chain([answers[:0]], pieces):      # a graph without nodes has arrays, too
            store_rows(file, num_nodes, piece, {name: getattr(piece, name) for name in ARRAYS})

    write_together(comm, answers, lambda pieces: write_sealed(path, KIND, VERSION, lambda file: fill(file, pieces),
                                                              error=CheckpointError))


def read_predictions(path: Path) -> Predictions:
    """Read a file of `hpcgnn infer --out`.

    Parameters
    ----------
    path : Path

    Returns
    -------
    Predictions                rows in the order of global ids

    Raises
    ------
    CheckpointError            it is missing, truncated, damaged or of another format
    """
    with open_sealed(path, KIND, VERSION, error=CheckpointError, advice=ADVICE) as file:
        try:
            layout = _layout(file, path)
            check_layout(file, path, layout, ADVICE)
            names = load_texts(file, path, CLASS_NAMES, layout["logits"][1][1]) if CLASS_NAMES in file else ()
        except ShardError as reason:
            raise CheckpointError(str(reason)) from reason
        texts = [file.attrs[name] for name in ("dataset", "scheme")]
        if not all(isinstance(text, str) for text in texts):
            raise CheckpointError(f"{path} has an attribute `dataset` or `scheme` that is not text; {ADVICE}")
        arrays: dict[str, Any] = {name: file[name][()] for name in ARRAYS}
        return Predictions(texts[0], texts[1], bool(file.attrs["is_multi_label"]), **arrays, class_names=tuple(names))


def _layout(file: h5py.File, path: Path) -> Layout:
    num_nodes, num_classes = (integer_of(file, path, name, ADVICE) for name in ("num_nodes", "num_classes"))
    logits, hidden = (num_nodes, num_classes), file["embeddings"].shape[1]
    prediction = (np.uint8, logits) if file.attrs["is_multi_label"] else (np.int32, logits[:1])
    return {"prediction": prediction, "logits": (np.float32, logits), "embeddings": (np.float32, (num_nodes, hidden))}
