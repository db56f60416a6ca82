"""fit: `hpcgnn train` from Python, for a program's own model."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from hpcgnn.config import OWN
from hpcgnn.errors import ConfigError
from hpcgnn.library.graph import Graph
from hpcgnn.library.run import Run, plain_torch
from hpcgnn.pyg.convolutions import is_lazy
from hpcgnn.pyg.distribute import DistributedModel, distribute, is_pyg
from hpcgnn.run.launch import check_present, end_all_ranks, together
from hpcgnn.run.signals import STOP_REQUEST
from hpcgnn.run.watchdog import WATCHDOG
from hpcgnn.training.callbacks import Callback
from hpcgnn.training.job import Job, train
from hpcgnn.training.own_loss import OwnLoss
from hpcgnn.training.recipe import MakeOptimizer, Recipe
from hpcgnn.training.schedule import MakeSchedule
from hpcgnn.training.scores import own_score

# Settings that a finished model fixes.
OF_THE_MODEL = ("layers", "hidden", "heads", "alpha", "theta", "jump", "dropout", "input_dropout", "norm", "residual",
                "label_inputs", "num_bases", "num_blocks", "node_embedding", "model", "model_args")
Rows = Callable[[torch.Tensor, torch.Tensor], Any]


def fit(model: nn.Module | Callable[[], nn.Module] | str, graph: Graph, *, out: str | Path | None = None,
        resume: bool = False, overwrite: bool = False, other_graph: bool = False, preset: str | None = None,
        loss: Rows | str | None = None, score: Rows | str | None = None, prefers_low: bool = False,
        optimizer: MakeOptimizer | str | None = None, schedule: MakeSchedule | str | None = None,
        callbacks: Sequence[Callback] = (), **settings: Any) -> Run:
    """Collective: train a model on the whole graph, one part per rank, and return the finished run.

    This is `hpcgnn train` from Python, with its methods, precision, checkpoints, resume, early stop, metrics and
    signals. The given module itself is trained, and so are the weights of a loss that is a module. Afterwards they have
    their values at the best validation score; `on_end` sees the values of the last epoch.

    Parameters
    ----------
    model : nn.Module, function or str
        a module with `forward(graph, x)`; a PyTorch Geometric model, which is distributed, see `hpcgnn.distribute`; a
        function without arguments that makes either; or a name as `--model` takes it. All ranks begin with rank 0's
        weights
    out : path                       run folder; by default named after the run
    resume : bool                    continue from the run folder's checkpoint, if there is one
    overwrite, other_graph           as the flags of `hpcgnn train`
    preset : str                     a paper's settings for the dataset, from the registry, as `--preset`
    loss : function or str
        takes (outputs, labels) of n rows and gives one value per row, (n,), or a number, as torch's losses do; it is
        applied to the rows of all ranks, see `hpcgnn.training.own_loss`. Or the name of a loss.
        Labels are (n,) int64 class ids, or (n, num_outputs) float32
    score : function or str          takes (outputs, labels) of a split's rows on all ranks, in the order of the source,
                                     gives a number; or a name
    prefers_low : bool               a lower value of your own score is better
    optimizer : function or str      makes a torch optimizer from parameters, such as torch.optim.AdamW; or the name of
                                     a built-in one, by default adam, with `lr` and `weight_decay`
    schedule : function or str       makes a torch schedule of the learning rate from an optimizer; it steps after every
                                     epoch. Or the name of a schedule, see `--set schedule`
    callbacks : sequence of Callback
    settings                         by name, as `hpcgnn train --help-all` lists them: method, epochs, lr, bits, ..

    Raises
    ------
    CollectiveError      the request can't be fulfilled
    ConfigError          `graph` is not from `hpcgnn.open`
    Interrupted          a signal asked to stop; the same call with resume=True continues

    Examples
    --------
    >>> run = hpcgnn.fit(torch_geometric.nn.GraphSAGE(graph.num_features, 64, 2, graph.num_classes), graph,
    ...                  method="uniform", bits=4, epochs=100, out="runs/mine")
    >>> run.test_score
    0.871
    """
    with plain_torch(graph.comm.size if isinstance(graph, Graph) else 1):
        if not isinstance(graph, Graph):
            raise ConfigError(f"graph must be what hpcgnn.open(SHARDS) returns, found a {type(graph).__name__}")
        graph.check_ranks()
        check_present(graph.comm, "hpcgnn.fit")
        recipe, named = together(graph.comm, lambda: _recipe(
            model, loss, score, prefers_low, optimizer, schedule, callbacks, settings))
        together(graph.comm, lambda: _check_fits(model, graph))
        job = Job(graph.shards, named, {}, preset, None if out is None else Path(out), resume, overwrite, other_graph,
                  recipe)
        try:
            with STOP_REQUEST:
                finished = train(graph.comm, job)
        except (SystemExit, KeyboardInterrupt) as error:
            end_all_ranks(graph.comm, error, "hpcgnn.fit")
            raise
        finally:
            WATCHDOG.stop()
        return Run.finished(graph, finished)


def _recipe(model: Any, loss: Any, score: Any, prefers_low: bool, optimizer: Any, schedule: Any,
            callbacks: Any, settings: dict[str, Any]) -> tuple[Recipe, dict[str, Any]]:
    """The recipe that the call passes in, and the settings; ConfigError for arguments that contradict each other."""
    named = dict(settings)
    if isinstance(schedule, str):
        named["schedule"], schedule = schedule, None
    if isinstance(optimizer, str):
        named["optimizer"], optimizer = optimizer, None
    for name, given in (("optimizer", optimizer), ("schedule", schedule)):
        if given is not None and not callable(given):
            raise ConfigError(f"{name} must be a function that makes one, such as lambda it: ..; found a "
                              f"{type(given).__name__}")
    if optimizer is not None:
        _refuse("an optimizer is given", named, ("lr", "weight_decay", "weight_decay_layers", "quantize_lr"))
        if named.get("quantize", "none") != "none":
            raise ConfigError("quantize trains steps and widths at rates of their own, and a given optimizer "
                              "does not have them; leave one out")
    callbacks = tuple(callbacks) if isinstance(callbacks, Iterable) else (callbacks,)
    for callback in callbacks:
        if not isinstance(callback, Callback):
            raise ConfigError(f"callbacks must be hpcgnn.Callback's, found a {type(callback).__name__}")
    if prefers_low and not callable(score):
        raise ConfigError("prefers_low is for a score of your own; leave it out")
    for name, given in (("loss", loss), ("score", score)):
        if given is not None:
            named[name] = OWN if callable(given) else given
    if isinstance(model, str):
        named, brought = {"model": model, **named}, None
    elif callable(model):       # modules are, too
        _refuse("the model is given", named, OF_THE_MODEL)
        if isinstance(model, nn.Module) and named.get("repeat", 1) > 1:
            raise ConfigError("repeat trains models of several seeds, and one is given; give a function that makes it, "
                              "such as lambda: GraphSAGE(..)")
        named, brought = {**named, "model": _name_of(model)}, model
    else:
        raise ConfigError(f"model must be a torch.nn.Module, a function that makes one, or a name; found a "
                          f"{type(model).__name__}")
    return Recipe(brought, OwnLoss(loss) if callable(loss) else None,
                  own_score(score, prefers_low) if callable(score) else None, optimizer, schedule, callbacks), named


def _check_fits(model: Any, graph: Graph) -> None:
    """Refuse a PyTorch Geometric model that can't be distributed or was made for another graph, and any model made
    inside `torch.inference_mode`, since gradients can't reach its weights.
    """
    if isinstance(model, nn.Module) and any(
            weights.is_inference() for weights in model.parameters() if not is_lazy(weights)):
        raise ConfigError(f"the weights of {type(model).__name__} were made inside torch.inference_mode, so they can't "
                          "be trained; make the model outside of it")
    if isinstance(model, nn.Module) and any(weights.is_meta for weights in model.parameters()):
        raise ConfigError(f"the weights of {type(model).__name__} are on torch's device meta, without values; give "
                          "them values, as model.to_empty(device=\"cpu\") and reset_parameters() do")
    if isinstance(model, DistributedModel):
        model.check_fits(graph)
    elif isinstance(model, nn.Module) and is_pyg(model):
        distribute(model, graph)


def _refuse(reason: str, settings: dict[str, Any], names: tuple[str, ...]) -> None:
    found = [name for name in names if name in settings]
    if found:
        raise ConfigError(f"{found[0]} has no effect if {reason}; leave it out")


def _name_of(model: nn.Module | Callable[[], nn.Module]) -> str:
    inner = model.module if isinstance(model, DistributedModel) else model
    made_by = type(inner) if isinstance(inner, nn.Module) else inner
    return f"{getattr(made_by, '__module__', '__main__')}:{getattr(made_by, '__qualname__', type(made_by).__name__)}"
