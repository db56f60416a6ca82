"""Embeddings: the rows that a model's last layer reads, noted during a forward pass.

The last layer of a built-in stack is its last convolution, and of a built-in deep model its last linear map. In a
program's model, every product of rows with a weight and every called convolution is watched; the last one counts.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from hpcgnn.errors import CollectiveError
from hpcgnn.graph.local_graph import LocalGraph
from hpcgnn.nn.stack import ConvolutionStack
from hpcgnn.training.model_hooks import hooks_of


class WatchedPass:
    """Notes the rows that the last layer reads in one forward pass of a model with `graph` (or a stand-in) and `x`."""

    def __init__(self, model: nn.Module, graph: LocalGraph, is_asked: bool):
        self.graph: Any = graph
        self.x = graph.x
        self._model, self._is_asked = model, is_asked
        self._num_inner, self._rows = graph.num_inner, None

    def note(self, rows: Any) -> None:
        for one in rows if isinstance(rows, tuple) else (rows,):
            if isinstance(one, torch.Tensor) and one.ndim >= 2 and len(one) >= self._num_inner:
                self._rows = one[:self._num_inner].detach().flatten(1)
                return

    def note_input(self, layer: nn.Module, arguments: tuple, options: dict[str, Any]) -> None:
        for argument in (*arguments, *options.values()):
            if isinstance(argument, (torch.Tensor, tuple)):
                self.note(argument)
                return

    def rows(self) -> np.ndarray:
        """(num_inner, hidden) float32, hidden 0 unless embeddings are asked for; CollectiveError if none were seen."""
        if not self._is_asked:
            return np.empty((self._num_inner, 0), np.float32)
        if self._rows is None:
            raise CollectiveError(f"{type(self._model).__name__} calls none of its layers with rows of nodes, so it "
                                  "has no embeddings; leave them out, or call its last layer as a module")
        return self._rows.float().cpu().numpy()


class _NotingGraph:
    """A LocalGraph that notes the result of one of its calls."""

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
    """Within the block, note the rows that the last layer of a model reads in a forward pass.

    Raises CollectiveError: a model of one linear map, which has no hidden rows.
    """
    watched = WatchedPass(model, graph, is_asked)
    if not is_asked:
        yield watched
        return
    if getattr(model, "is_one_map", False):
        raise CollectiveError("sgc is one linear map of propagated features and has no hidden rows, so it has no "
                              "embeddings; leave them out")
    last_call = getattr(type(model), "last_call", None)
    if last_call is not None:
        watched.graph = _NotingGraph(graph, last_call, watched)
        yield watched
        return
    last = model.convolutions[-1] if isinstance(model, ConvolutionStack) else hooks_of(model).last_layer()
    if last is not None:
        hook = last.register_forward_pre_hook(watched.note_input, with_kwargs=True)
        try:
            yield watched
        finally:
            hook.remove()
        return
    with _LastProduct(model, watched, graph):
        yield watched


# Functions of torch that map rows by a weight; the rows are the first argument.
PRODUCTS = {"linear", "matmul", "__matmul__", "mm", "addmm", "bmm", "bilinear", "cdist", "conv1d", "conv2d", "lstm",
            "gru", "rnn_tanh", "rnn_relu", "multi_head_attention_forward"}
LOOKED_UP = {"embedding", "__getitem__", "index_select", "__get__"}


class _LastProduct(TorchFunctionMode):
    """Notes rows that are multiplied by a weight or joined with one, and rows that a convolution gets."""

    def __init__(self, model: nn.Module, watched: WatchedPass, graph: LocalGraph):
        super().__init__()
        self._model, self._watched, self._sizes = model, watched, (graph.num_inner, graph.num_rows)
        self._weights = {id(weight) for weight in model.parameters()
                         if weight.ndim >= 2 and min(weight.shape) > 1 and len(weight) != graph.num_nodes}
        self._depth, self._hooks = 0, ExitStack()

    def __enter__(self):
        def begin(layer: nn.Module, arguments: tuple, options: dict[str, Any]) -> None:
            if self._depth == 0:
                self._watched.note_input(layer, arguments, options)
            self._depth += 1

        def end(layer: nn.Module, arguments: tuple, out: Any) -> None:
            self._depth -= 1

        for layer in filter(_is_convolution, self._model.modules()):
            self._hooks.callback(layer.register_forward_pre_hook(begin, with_kwargs=True).remove)
            self._hooks.callback(layer.register_forward_hook(end, always_call=True).remove)
        return super().__enter__()

    def __exit__(self, *error):
        self._hooks.close()
        return super().__exit__(*error)

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if self._depth == 0 and args:
            name = getattr(func, "__name__", "")
            candidates = args[:1] if name in PRODUCTS else args[1:] if name == "einsum" else ()
            if not candidates and name not in LOOKED_UP and any(id(one) in self._weights for one in args):
                candidates = args
            rows = next((one for one in candidates if isinstance(one, torch.Tensor) and one.ndim >= 2
                         and len(one) in self._sizes and id(one) not in self._weights), None)
            if rows is not None:
                self._watched.note(rows)
        return func(*args, **(kwargs or {}))


def _is_convolution(module: nn.Module) -> bool:
    """Whether it is a convolution of hpcgnn or of PyTorch Geometric, which need not be installed."""
    return hasattr(module, "takes_dropped") or any(kind.__name__ == "MessagePassing" for kind in type(module).__mro__)

