"""This module checks whether a model may answer for a graph. It reads neither."""

from __future__ import annotations

from hpcgnn.errors import CheckpointError
from hpcgnn.quantized.integer_model import IntegerModel
from hpcgnn.shards.fingerprint import Fingerprint
from hpcgnn.shards.schema import GraphInfo, check_fingerprint

PERMISSION = "name that graph's shards, or pass --other-graph if it is meant to answer for another one"


def check_graph(source: str, model: IntegerModel, made_on: Fingerprint, info: GraphInfo, other_graph: bool) -> None:
    """Check that a model fits a graph; one that it was not made on is refused unless `other_graph`.

    Parameters
    ----------
    source : str              the model, as a sentence names it
    made_on : Fingerprint     of the shards that it was made on

    Raises
    ------
    CheckpointError           another graph, or one with other features; classes or a kind of labels that are others
                              unless `other_graph`
    """
    check_dataset(source, model.dataset, info, other_graph)
    for name, found, expected in (("features", model.num_features, info.num_features),
                                  ("classes", model.num_classes, info.num_classes)):
        if found != expected and not (name == "classes" and other_graph):      # they are compared by name
            raise CheckpointError(f"{source} was made for {found} {name}, {info.name} has {expected}; "
                                  "name the shards of the graph that it was made on")
    if model.is_multi_label != info.is_multi_label and not other_graph:
        labels = {True: "several labels a node", False: "one label a node"}
        raise CheckpointError(f"{source} was made for {labels[model.is_multi_label]}, {info.name} has "
                              f"{labels[info.is_multi_label]}; name the shards of the graph that it was made on")
    if model.num_nodes != info.num_nodes and not other_graph:
        raise CheckpointError(f"{source} was made on {model.num_nodes} nodes, {info.name} has {info.num_nodes}; "
                              f"{PERMISSION}")
    check_fingerprint(source, made_on, info, other_graph)


def check_dataset(source: str, dataset: str, info: GraphInfo, other_graph: bool) -> None:
    """Check a model's name of its graph; parameters and errors as of `check_graph`."""
    if dataset != info.name and not other_graph:
        raise CheckpointError(f"{source} was made on {dataset}, these shards hold {info.name}; {PERMISSION}")


def other_graph_line(source: str, made_on: Fingerprint, info: GraphInfo) -> str | None:
    """A sentence for a user who passed --other-graph: what differs, and that scores may be of trained nodes; None where
    nothing differs.
    """
    found = made_on.differences(info.fingerprint)
    if not found:
        return None
    return (f"{source} was made on other data than these shards hold, in {', '.join(found)}; scores may count nodes "
            "that it was trained on")
