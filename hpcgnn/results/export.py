"""Export: the best weights of a run folder as a safetensors file, with everything needed to use them elsewhere."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path

import torch
from torch import nn

import hpcgnn
from hpcgnn.config import LINK_DECODER, TrainConfig
from hpcgnn.errors import CheckpointError, ConfigError, HpcgnnError
from hpcgnn.nn.models import MODELS, ModelShape, build_model, settings_of
from hpcgnn.nn.names import RELATIONAL
from hpcgnn.registry import read_toml
from hpcgnn.results.answer_file import replacing
from hpcgnn.results.float_run import check_evaluated, float_config
from hpcgnn.results.plain import BUILT_IN, NEEDS_SAFETENSORS, OWN_MODEL, PYG_MODEL, ModelRecord
from hpcgnn.results.pyg_weights import WEIGH_ALIKE, pyg_weights
from hpcgnn.shards.reader import read_graph_info
from hpcgnn.shards.schema import GraphInfo
from hpcgnn.training.checkpoint import Checkpoint
from hpcgnn.training.evaluate import classes_of
from hpcgnn.training.scores import default_score
from hpcgnn.training.trained_run import read_best

Weights = dict[str, torch.Tensor]
TRIED = 8                 # trial size, a multiple of the usual numbers of heads


def exported(folder: Path, as_pyg: bool = False) -> tuple[ModelRecord, Weights]:
    """The best weights of a run folder and their record; `as_pyg` turns a built-in model into PyTorch Geometric's.

    Raises CheckpointError: no whole checkpoint, or no evaluation; a model trained as integers; with `as_pyg`, a model
    that PyTorch Geometric does not have.
    """
    checkpoint = read_best(folder)
    check_evaluated(folder, checkpoint)
    config = float_config(checkpoint.settings, folder)
    if config.quantize != "none":
        raise CheckpointError(f"{folder} was trained with --quantize {config.quantize}; write its integers with hpcgnn "
                              "quantize")
    if config.model in MODELS and any(name.startswith(f"{LINK_DECODER}.") for name in checkpoint.best_model):
        raise CheckpointError(f"{folder} holds a model with a decoder of links, and an exported model has none; write "
                              "the rows of nodes or the scores of links with hpcgnn predict")
    record, weights = _of_model(config, checkpoint.best_model), checkpoint.best_model
    if as_pyg:
        if record.kind == OWN_MODEL:
            raise CheckpointError(f"{folder} holds {record.model}, a model of your own, which names its weights "
                                  "itself; leave --format pyg out")
        info = graph_info_of(folder, checkpoint)
        if info is not None and info.has_edge_weights and record.model not in WEIGH_ALIKE:
            raise CheckpointError(f"{folder} was trained on a graph with edge weights, and the {record.model} of "
                                  "PyTorch Geometric does not take them; leave --format pyg out")
        name, arguments, weights = pyg_weights(record.model, record.arguments, weights)
        record = replace(record, kind=PYG_MODEL, model=name, arguments=arguments)
    return _with_origin(record, folder, checkpoint), weights


def write_exported(path: Path, record: ModelRecord, weights: Weights) -> None:
    """Replace the file at `path`; on failure the old one stays.

    Raises ConfigError if safetensors is not installed, CheckpointError if the file can't be written.
    """
    try:
        from safetensors import SafetensorError
        from safetensors.torch import save_file
    except ImportError as error:
        raise ConfigError(NEEDS_SAFETENSORS) from error
    with replacing(path, advice="") as temporary:
        try:
            save_file({name: tensor.contiguous() for name, tensor in weights.items()}, temporary, record.metadata())
        except SafetensorError as error:
            raise CheckpointError(f"{path} can't be written: {error}; check the folder and the space on its "
                                  "disk") from error


def _of_model(config: TrainConfig, weights: Weights) -> ModelRecord:
    """Record of a model; for a user's own only the class, since the program may have made it unlike the settings."""
    if config.model not in MODELS:
        return ModelRecord(OWN_MODEL, config.model, None, "", {})

    beside = ("the relations of edges" if config.model in RELATIONAL else
              "a learned row of each node" if config.node_embedding else "")
    if beside:
        raise CheckpointError(f"an exported model reads x and edge_index alone, and this {config.model} reads {beside} "
                              "too; use hpcgnn predict, which reads the checkpoint")

    def shape(in_dim: int, out_dim: int) -> ModelShape:
        return ModelShape(config.model, in_dim, config.hidden, out_dim, config.layers, config.dropout, config.norm,
                          config.heads, config.precision == "fp32", config.alpha, config.theta, config.jump,
                          config.residual, config.input_dropout)

    sizes = find_sizes(lambda *sizes: build_model(shape(*sizes)), weights)
    if sizes is None:
        raise CheckpointError(f"the checkpoint does not hold the weights of a {config.model}; another version of "
                              "hpcgnn wrote it, train the model anew")
    made_with = shape(*sizes)
    return ModelRecord(BUILT_IN, config.model, {name: getattr(made_with, name)
                                                for name in settings_of(MODELS[config.model])}, "", {})


def find_sizes(make: Callable[[int, int], nn.Module], weights: Weights) -> tuple[int, int] | None:
    """Input and output columns of a model, found by how the shapes of weights change with these columns.

    `make` takes both numbers. Returns None if such a model can't be made or has other weights.
    """
    try:
        shapes = [{name: tuple(tensor.shape) for name, tensor in make(*sizes).state_dict().items()}
                  for sizes in ((TRIED, TRIED), (TRIED + 1, TRIED), (TRIED, TRIED + 1))]
        in_dim, out_dim = (_size_that_moves(shapes[0], moved, weights) for moved in shapes[1:])
        made = {name: tuple(tensor.shape) for name, tensor in make(in_dim, out_dim).state_dict().items()}
    except (HpcgnnError, LookupError, TypeError, ValueError):
        return None
    return (in_dim, out_dim) if made == {name: tuple(tensor.shape) for name, tensor in weights.items()} else None


def _size_that_moves(before: dict[str, tuple], after: dict[str, tuple], weights: Weights) -> int:
    """The size in `weights` at the place where the size grew by one; LookupError if none grew."""
    for name, shape in before.items():
        for axis, size in enumerate(shape):
            if after[name][axis] == size + 1:
                return weights[name].shape[axis]
    raise LookupError("no weight depends on the size")


def _with_origin(record: ModelRecord, folder: Path, checkpoint: Checkpoint) -> ModelRecord:
    progress, info = checkpoint.progress, graph_info_of(folder, checkpoint)
    classes = checkpoint.answers_with or (None if info is None else classes_of(info))
    task, class_names = ("", ()) if classes is None else (classes["task"], classes["class_names"])
    named = checkpoint.settings.get("score", "auto")
    usual = default_score(task, checkpoint.settings.get("loss", "auto")) if task else named
    score = {"name": usual if named == "auto" else named,
             **{name: _known(getattr(progress.best, name)) for name in ("train_score", "val_score", "test_score")}}
    return replace(
        record, dataset=checkpoint.dataset, fingerprint=asdict(checkpoint.fingerprint),
        task=task, class_names=list(class_names), score=score,
        seed=checkpoint.settings["seed"] + progress.seed_index, epoch=progress.best_epoch,
        settings=checkpoint.settings, hpcgnn_version=hpcgnn.__version__)


def _known(score: float) -> float | None:
    return None if math.isnan(score) else score


def graph_info_of(folder: Path, checkpoint: Checkpoint) -> GraphInfo | None:
    """Facts of the graph that a run was trained on; None if its shards are no longer in their place."""
    try:
        shards = read_toml(folder / "config.toml").get("provenance", {}).get("shards", "")
        info = read_graph_info(Path(shards))
    except HpcgnnError:
        return None
    return info if info.fingerprint == checkpoint.fingerprint else None
