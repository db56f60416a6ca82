"""Answering: labels of a graph in the order of the classes that a model was trained with, by their names.

A model that knows bee, cat, dog answers for a graph with cat, dog, fox: label 0 (cat) becomes 1, 1 (dog) becomes 2, and
2 (fox) becomes -1, which no answer meets. Classes without names are the same where their numbers are. A graph without
labels has none afterwards, in the form of the model's task.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from hpcgnn.errors import TrainingError
from hpcgnn.quantized.integer_model import IntegerModel
from hpcgnn.shards.schema import GraphInfo
from hpcgnn.training.objective import UNKNOWN_LABEL
from hpcgnn.training.scores import CLASSES, KINDS, MULTI_LABEL, REGRESSION


def classes_of(info: GraphInfo) -> dict[str, Any]:
    """Return task and classes of a graph, as a checkpoint keeps them of the graph that was trained on."""
    return {"task": info.task, "num_classes": info.num_classes, "class_names": list(info.class_names)}


def classes_of_model(model: IntegerModel) -> dict[str, Any]:
    """Return task and classes of an integer model, as a checkpoint keeps them."""
    return {"task": MULTI_LABEL if model.is_multi_label else CLASSES, "num_classes": model.num_classes,
            "class_names": list(model.class_names)}


def with_classes(info: GraphInfo, classes: dict[str, Any]) -> GraphInfo:
    """Return what is known of a graph, with the task and the classes of a model."""
    return replace(info, task=classes["task"], num_classes=classes["num_classes"],
                   class_names=tuple(classes["class_names"]), is_multi_label=classes["task"] == MULTI_LABEL)


def as_trained(labels: np.ndarray, info: GraphInfo, classes: dict[str, Any]) -> np.ndarray:
    """Return labels in the order of a model's classes.

    Parameters
    ----------
    labels : (n,) ids, (n, info.num_classes) uint8, or (n, info.num_classes) float32      of a part of the graph
    classes : dict      `task`, `num_classes`, `class_names` of the model

    Returns
    -------
    (n,) int64, -1 where a node has no label or one that the model does not know; (n, num_classes) uint8, 255 where the
    graph does not tell; or (n, num_classes) float32, NaN where it does not

    Raises
    ------
    TrainingError      labels of another task, or another number of targets
    """
    task, num_classes = classes["task"], classes["num_classes"]
    if classes_of(info) == classes:
        return labels
    if not info.num_train + info.num_val + info.num_test:
        none = {CLASSES: ((), -1, np.int64), MULTI_LABEL: ((num_classes,), UNKNOWN_LABEL, np.uint8),
                REGRESSION: ((num_classes,), np.nan, np.float32)}[task]
        return np.full((len(labels), *none[0]), *none[1:])
    if info.task != task:
        raise TrainingError(f"the model answers with labels that are {KINDS[task]}, and those of {info.name} are "
                            f"{KINDS[info.task]}; give the graph without labels, or with such ones")
    if task == REGRESSION:
        if info.num_classes != num_classes:
            raise TrainingError(f"the model answers with {num_classes} targets, and {info.name} has "
                                f"{info.num_classes}; give the same ones, NaN where they are unknown")
        return labels
    place = places_of(info, classes)
    if task == CLASSES:
        return np.where(labels < 0, -1, place[labels])
    found = np.full((len(labels), num_classes), UNKNOWN_LABEL, np.uint8)
    found[:, place[place >= 0]] = labels[:, place >= 0]
    return found


def places_of(info: GraphInfo, classes: dict[str, Any]) -> np.ndarray:
    """Return the model's class of each class of a graph, (info.num_classes,) int64; -1 where it has none."""
    known = classes["class_names"]
    if info.class_names and known:
        number = {name: place for place, name in enumerate(known)}
        return np.array([number.get(name, -1) for name in info.class_names], np.int64)
    ids = np.arange(info.num_classes)
    return np.where(ids < classes["num_classes"], ids, -1)


def strange_classes(info: GraphInfo, classes: dict[str, Any]) -> list[str]:
    """Say which classes of a graph a model does not know; nothing where it knows them all."""
    if info.task != classes["task"] or info.task == REGRESSION or not info.num_train + info.num_val + info.num_test:
        return []
    strange = np.flatnonzero(places_of(info, classes) < 0).tolist()
    if not strange:
        return []
    names = [info.class_names[one] if info.class_names else str(one) for one in strange[:8]]
    return [f"the model does not know {len(strange)} of the classes of {info.name}: {', '.join(names)}"
            f"{', ...' if len(strange) > 8 else ''}; their nodes count as answered wrong"]
