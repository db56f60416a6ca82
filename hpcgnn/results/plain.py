"""Exported models in plain PyTorch, on one process and without MPI: `forward(x, edge_index)` on a graph in memory.

An exported file is in the safetensors format. Its metadata has one key, `hpcgnn`, with a ModelRecord as JSON.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from hpcgnn.errors import CheckpointError, ConfigError
from hpcgnn.graph.hop import AloneExchange
from hpcgnn.graph.local_graph import LocalGraph
from hpcgnn.graph.reductions import weighted_degree
from hpcgnn.graph.rows import LocalRows
from hpcgnn.nn.models import MODELS, check_edge_weights
from hpcgnn.pyg.fitting import is_pyg

KEY, VERSION = "hpcgnn", 1
BUILT_IN, OWN_MODEL, PYG_MODEL = "hpcgnn", "own", "pyg"


@dataclass(frozen=True)
class ModelRecord:
    """The model that some weights belong to, and their origin.

    Attributes
    ----------
    kind : {"hpcgnn", "own", "pyg"}      a built-in model; a user's own; a built-in model as one of PyTorch Geometric
    model : str                          name of a built-in model, MODULE:CLASS of a user's own, or a class of
                                         torch_geometric.nn
    arguments : dict or None             arguments that make it, by name; None for a user's own
    fingerprint : dict                   fingerprint of the graph, its split and its features
    task : str                           classes, multi-label or regression; empty if unknown
    score : dict                         the score's name, and train_score, val_score and test_score at the best epoch
    seed, epoch : int                    seed and epoch of the weights
    settings : dict                      settings of the training
    version : int                        version of this record
    """

    kind: str
    model: str
    arguments: dict[str, Any] | None
    dataset: str
    fingerprint: dict[str, str]
    task: str = ""
    class_names: list[str] = field(default_factory=list)
    score: dict[str, Any] = field(default_factory=dict)
    seed: int = 0
    epoch: int = 0
    settings: dict[str, Any] = field(default_factory=dict)
    hpcgnn_version: str = ""
    version: int = VERSION

    def metadata(self) -> dict[str, str]:
        """The record as the metadata of a safetensors file."""
        return {"format": "pt", KEY: json.dumps(asdict(self))}


def record_of(metadata: dict[str, str] | None, path: str) -> ModelRecord:
    """The record in a file's metadata; CheckpointError if there is none, or it is damaged or of another version."""
    text = (metadata or {}).get(KEY)
    if text is None:
        raise CheckpointError(f"{path} is a safetensors file that hpcgnn export has not written; read it with "
                              "safetensors.torch.load_file")
    try:
        values = json.loads(text)
        if values["version"] != VERSION:
            raise CheckpointError(f"{path} has version {values['version']} of its record, this hpcgnn reads {VERSION}; "
                                  "export the run again")
        record = ModelRecord(**values)
    except (ValueError, TypeError, KeyError) as error:
        raise CheckpointError(f"{path} has a record that hpcgnn export has not written ({error}); export the run "
                              "again") from error
    _check_types(record, path)
    return record


def _check_types(record: ModelRecord, path: str) -> None:
    kinds = {"str": str, "int": int}
    for own in fields(record):
        value, kind = getattr(record, own.name), own.type.partition("[")[0]
        expected = {**kinds, "dict": dict, "list": list}[kind]
        if not isinstance(value, expected) and not (value is None and own.type.endswith("None")):
            raise CheckpointError(f"{path} has a record with a {own.name} that is no {kind}; export the run again")


NEEDS_SAFETENSORS = ("exported models are in the safetensors format, and safetensors is not installed; run pip install "
                     "'hpcgnn[export]'")
# Classes that an exported file may name: a file is data, and must not choose what is imported.
PYG_CLASSES = ("GCN", "GraphSAGE", "GAT", "GIN", "SGConv")


class PlainModel(nn.Module):
    """A model of hpcgnn that is called like PyTorch Geometric's models.

    Attributes
    ----------
    module : nn.Module             the model, with `forward(graph, x)` on a LocalGraph
    record : ModelRecord or None   where the weights come from
    """

    def __init__(self, module: nn.Module, record: ModelRecord | None = None):
        super().__init__()
        self.module, self.record = module, record
        self._num_passes = 0      # training passes so far; each draws another dropout

    def forward(self, x: torch.Tensor, edge_index: torch.Tensor, edge_weight: torch.Tensor | None = None,
                edge_attr: torch.Tensor | None = None, edge_type: torch.Tensor | None = None) -> torch.Tensor:
        """Answer for all nodes of a graph; without dropout in `eval` mode.

        Parameters
        ----------
        x : (num_nodes, num_features) float32         may require a gradient, but not for an sgc without dropout
        edge_index : (2, num_edges) integer           sources and destinations. As in preprocess, self-loops are left
                                                      out, and repeated edges become one, with the sum of their weights;
                                                      edges that differ in edge_type or edge_attr are not repeated
        edge_weight : (num_edges,) float32 or None    at least 0, for a model that was trained on a graph with weights
        edge_attr : (num_edges, num_edge_features) float32 or None
        edge_type : (num_edges,) integer or None      as graph.edge_attr and graph.edge_type of a model that reads them

        Returns
        -------
        (num_nodes, num_classes) float32 logits, or the values of a regression

        Raises
        ------
        ConfigError      shapes that do not fit each other, edges from or to nodes that do not exist, a model without
                         support for weights
        KernelError      weights that are negative or not finite
        """
        check_edge_weights(self.module, type(self.module).__name__, edge_weight is not None)
        graph = graph_of(x, edge_index, edge_weight, edge_attr, edge_type)
        self._num_passes += self.training
        graph.begin_forward(seed=0, epoch=self._num_passes, is_training=self.training)
        # The graph's own input is a constant, so no layer computes a gradient for it.
        return self.module(graph, x.float().contiguous() if x.requires_grad else graph.x)


def graph_of(x: torch.Tensor, edge_index: torch.Tensor, edge_weight: torch.Tensor | None = None,
             edge_attr: torch.Tensor | None = None, edge_type: torch.Tensor | None = None) -> LocalGraph:
    """A LocalGraph of one part; parameters and errors as in `PlainModel.forward`."""
    source, target = _ends(edge_index, len(x))
    _check_edges(edge_index.shape[1], edge_weight, edge_attr, edge_type)
    is_arc, num_nodes = source != target, max(1, len(x))
    key = (target * num_nodes + source)[is_arc]      # by destination, then source
    relation = None if edge_type is None else edge_type.cpu().numpy().astype(np.int32)[is_arc]
    values = None if edge_attr is None else edge_attr.detach().float().cpu().numpy()[is_arc]
    # Edges are one edge if they have the same ends, relation and attributes.
    for more in (relation, None if values is None else np.unique(values, axis=0, return_inverse=True)[1].reshape(-1)):
        if more is not None:
            key = np.unique(np.stack([key, more]), axis=1, return_inverse=True)[1].reshape(-1)
    arcs, first, place = np.unique(key, return_index=True, return_inverse=True)
    source, target = source[is_arc][first], target[is_arc][first]
    in_degree = np.bincount(target, minlength=len(x))
    indptr = np.concatenate([[0], np.cumsum(in_degree)]).astype(np.int64)
    weights: dict[str, Any] = {}
    if edge_weight is not None:
        weight = edge_weight.detach().double().cpu().numpy()[is_arc]
        weight = np.bincount(place, weight, minlength=len(arcs)).astype(np.float32)
        weights = {"edge_weight": weight, "weighted_degree": weighted_degree(indptr, weight)}
    rows = LocalRows(indptr, source.astype(np.int32), np.arange(len(x)), in_degree.astype(np.int32),
                     x.detach().float().contiguous(), **weights,
                     edge_type=None if relation is None else relation[first],
                     edge_attr=None if values is None else values[first])
    return LocalGraph(rows, AloneExchange())


def _check_edges(num_edges: int, weight: torch.Tensor | None, attr: torch.Tensor | None,
                 relation: torch.Tensor | None) -> None:
    for name, given, num_dims in (("edge_weight", weight, 1), ("edge_attr", attr, 2), ("edge_type", relation, 1)):
        if given is not None and (given.dim() != num_dims or len(given) != num_edges):
            raise ConfigError(f"{name} has shape {tuple(given.shape)}, expected ({num_edges},"
                              f"{' num_edge_features' * (num_dims > 1)})")
    if relation is not None and relation.is_floating_point():
        raise ConfigError(f"edge_type has type {relation.dtype}, expected integers")


def _ends(edge_index: torch.Tensor, num_nodes: int) -> tuple[np.ndarray, np.ndarray]:
    if edge_index.ndim != 2 or edge_index.shape[0] != 2 or edge_index.is_floating_point():
        raise ConfigError(f"edge_index has shape {tuple(edge_index.shape)} and type {edge_index.dtype}, expected "
                          "(2, num_edges) node numbers")
    ends = edge_index.cpu().numpy().astype(np.int64)
    if ends.size and not 0 <= ends.min() <= ends.max() < num_nodes:
        raise ConfigError(f"edge_index has nodes from {ends.min()} to {ends.max()}, and x has rows 0 to "
                          f"{num_nodes - 1}")
    return ends[0], ends[1]


def load_model(path: str | Path, model: nn.Module | None = None) -> nn.Module:
    """Read a model that `hpcgnn export` has written, in `eval` mode. It needs no MPI, and runs no code from the file.

    Parameters
    ----------
    path : path                     path of a .safetensors file
    model : nn.Module or None       your own model, made as for the training; built-in models are made from the file

    Returns
    -------
    model : nn.Module               with `forward(x, edge_index)`: a PlainModel; or a model of PyTorch Geometric itself

    Raises
    ------
    CheckpointError      a missing or damaged file, or not one of hpcgnn export; weights that do not fit `model`
    ConfigError          safetensors or PyTorch Geometric is not installed; your own model is not given

    Examples
    --------
    >>> model = hpcgnn.load_model("model.safetensors")
    >>> logits = model(data.x, data.edge_index)
    """
    weights, record = read_weights(Path(path))
    made = model if model is not None else _made(record, str(path))
    try:
        made.load_state_dict(weights)
    except RuntimeError as error:
        faults = " ".join(str(error).split())
        raise CheckpointError(f"{path} does not fit the {type(made).__name__}: {faults}") from error
    return (made if record.kind == PYG_MODEL or is_pyg(made) else PlainModel(made, record)).eval()


def read_weights(path: Path) -> tuple[dict[str, torch.Tensor], ModelRecord]:
    """Weights by name, and their record; errors as in `load_model`."""
    try:
        from safetensors import SafetensorError, safe_open
    except ImportError as error:
        raise ConfigError(NEEDS_SAFETENSORS) from error
    try:
        with safe_open(str(path), framework="pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}, record_of(file.metadata(), str(path))  # noqa: SIM118
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"{path} can't be read as a safetensors file: {error}") from error


def _made(record: ModelRecord, path: str) -> nn.Module:
    if record.kind == BUILT_IN and record.model in MODELS:
        return _built(MODELS[record.model], record.arguments, path)
    if record.kind == PYG_MODEL and record.model in PYG_CLASSES and record.arguments is not None:
        try:
            from torch_geometric import nn as pyg
        except ImportError as error:
            raise ConfigError(f"{path} holds a {record.model} of PyTorch Geometric, which is not installed; run pip "
                              "install torch_geometric") from error
        return _built(getattr(pyg, record.model), record.arguments, path)
    raise ConfigError(f"{path} holds the weights of {record.model}, a model of your own; make it and pass it, "
                      "load_model(path, model=..)")


def _built(kind: type[nn.Module], arguments: dict[str, Any] | None, path: str) -> nn.Module:
    try:
        return kind(**(arguments or {}))
    except (TypeError, ValueError, ConfigError) as error:
        raise CheckpointError(f"{path} says that a {kind.__name__} is made with {arguments}, and this fails: "
                              f"{error}") from error
