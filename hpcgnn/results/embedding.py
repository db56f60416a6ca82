"""Embeddings: the rows that a model's last layer reads, noted while a forward pass runs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
import torch
from torch import nn

from hpcgnn.errors import CollectiveError
from hpcgnn.graph.local_graph import LocalGraph
from hpcgnn.nn.deep.appnp import APPNP
from hpcgnn.nn.deep.dagnn import DAGNN
from hpcgnn.nn.deep.gcnii import GCNII
from hpcgnn.nn.deep.jknet import JKNet
from hpcgnn.nn.deep.sgc import SGC
from hpcgnn.nn.quantized.models import QuantizedStack
from hpcgnn.nn.stack import ConvolutionStack

# Which call of a LocalGraph returns the rows that the last linear map reads, in models that call none of their layers
# as a module.
LAST_CALLS: dict[type[nn.Module], str] = {GCNII: "activate", DAGNN: "activate", APPNP: "activate", JKNet: "dropout"}


class WatchedPass:
    """Note what the last layer reads in one forward pass.

    Attributes
    ----------
    graph : LocalGraph, or one that notes what is asked of it      to call the model with
    x : (num_inner, num_features)
    """

    def __init__(self, model: nn.Module, graph: LocalGraph, is_asked: bool):
        self.graph, self.x = graph, graph.x
        self._model, self._is_asked = model, is_asked
        self._num_inner, self._rows = graph.num_inner, None

    def note(self, rows: Any) -> None:
        """Remember the inner rows of a tensor or of a pair of tensors, if that is what it is."""
        for one in rows if isinstance(rows, tuple) else (rows,):
            if isinstance(one, torch.Tensor) and one.ndim == 2 and len(one) >= self._num_inner:
                self._rows = one[:self._num_inner].detach()
                return

    def note_input(self, layer: nn.Module, arguments: tuple, options: dict[str, Any]) -> None:
        """Note what a layer is called with: its first tensor, or pair of tensors."""
        for argument in (*arguments, *options.values()):
            if isinstance(argument, (torch.Tensor, tuple)):
                self.note(argument)
                return

    def rows(self) -> np.ndarray:
        """Return (num_inner, hidden) float32, hidden 0 where no embeddings were asked for.

        Raises
        ------
        CollectiveError      no layer was seen; the same on all ranks, since all run the same model
        """
        if not self._is_asked:
            return np.empty((self._num_inner, 0), np.float32)
        if self._rows is None:
            raise CollectiveError(f"{type(self._model).__name__} calls no layer of its own with rows of nodes, so it "
                                  "has no embeddings; leave them out, or call its last layer as a module")
        return self._rows.float().cpu().numpy()


class _NotingGraph:
    """A LocalGraph that notes what one of its calls returns."""

    def __init__(self, graph: LocalGraph, call: str, watched: WatchedPass):
        self._graph, self._call, self._watched = graph, call, watched

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._graph, name)
        if name != self._call:
            return found

        def noting(*arguments: Any, **options: Any) -> torch.Tensor:
            rows = found(*arguments, **options)
            self._watched.note(rows)
            return rows

        return noting


@contextmanager
def watch_last_layer(model: nn.Module, graph: LocalGraph, is_asked: bool = True) -> Iterator[WatchedPass]:
    """Note what the last layer of a model reads while a forward pass runs in the context.

    The last layer is the last convolution of a stack; the last linear map of a deep model; of any other model the last
    convolution, or module with a matrix of its own, that the pass calls.

    Raises
    ------
    CollectiveError      a model of one linear map, which has no hidden rows
    """
    watched = WatchedPass(model, graph, is_asked)
    if not is_asked:
        yield watched
        return
    if isinstance(model, SGC):
        raise CollectiveError("sgc is one linear map of propagated features and has no hidden rows, so it has no "
                              "embeddings; leave them out")
    if type(model) in LAST_CALLS:
        watched.graph = _NotingGraph(graph, LAST_CALLS[type(model)], watched)
        yield watched
        return
    with ExitStack() as hooks:
        for layer in layers_of(model):
            hooks.callback(layer.register_forward_pre_hook(watched.note_input, with_kwargs=True).remove)
        yield watched


def layers_of(model: nn.Module) -> list[nn.Module]:
    """Return the modules that count as layers: convolutions, and outside of these all that own a matrix."""
    if isinstance(model, (ConvolutionStack, QuantizedStack)):
        return [model.convolutions[-1]]
    if _is_convolution(model) or any(own.ndim >= 2 for own in model.parameters(recurse=False)):
        return [model]
    return [layer for child in model.children() for layer in layers_of(child)]


def _is_convolution(module: nn.Module) -> bool:
    """Tell convolutions of this package and of PyTorch Geometric, which need not be installed."""
    return hasattr(module, "takes_dropped") or any(kind.__name__ == "MessagePassing" for kind in type(module).__mro__)

