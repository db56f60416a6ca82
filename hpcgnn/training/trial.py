"""A trial of a user's model on a few rows, before the first epoch: what its outputs are, and whether it mixes rows.

A rank has only some of the rows, so nothing but convolutions may carry values from row to row. The trial makes two
small graphs without an edge between them, of 11 and 14 of this rank's nodes, say. The model runs on both together,
as one graph of 25 nodes, then on each alone. If the outputs differ, it mixes rows (a mean of all nodes, attention),
reads a row's position (`torch.arange(len(x))`), or draws per row. The guilty function is found by comparing what each
function returns in the three passes.

Batch normalization of distributed models is known to be right, so it has fixed statistics during a trial.
"""

from __future__ import annotations

import copy
import re
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.parameter import UninitializedParameter
from torch.overrides import TorchFunctionMode

from hpcgnn.errors import ConfigError, HpcgnnError
from hpcgnn.graph.hop import AloneExchange
from hpcgnn.graph.local_graph import LocalGraph
from hpcgnn.graph.rows import LocalRows
from hpcgnn.nn.heads import TERM, Heads, Outputs, check_entries, entries_of, scored
from hpcgnn.nn.node_embedding import own_tables
from hpcgnn.pyg.convolutions import is_convolution
from hpcgnn.pyg.distribute import DistributedModel
from hpcgnn.training.alike import alike_draws
from hpcgnn.training.gradients import without_hooks

SMALLEST, LARGER = 11, 64           # nodes of a part, and where a model fails on so few; sizes equal no width of it
NUM_SIZES = 29
LATER = 1000                        # passes
NEIGHBORS = (1, 2, 5)               # a node's in-neighbors are the nodes at these distances before it; two if its
                                    # part has an even number of nodes, so that parts differ in their mean degree
TOLERANCE = 1e-4                    # share of the largest value: float32 products of other shapes differ by less
ROUGH = 0.1                         # the same for sums of gradients in a model that computes in 16 bits, as by autocast
MOST_NUDGED = 1 << 20               # most elements of a weight in which zeros are nudged
PYTHON_VALUES = ("item", "__bool__", "__float__", "__int__")
IN_BETWEEN = ("torch._tensor", "torch.overrides", "torch.functional", "torch.nn.functional")
TRANSPARENT = ("View", "UnsafeView", "Squeeze", "Unsqueeze", "Slice", "ToCopy", "Clone", "Alias", "Clamp", "Reshape",
               "_ToNodes")
ENDINGS = {"SigmoidBackward": "sigmoid", "SoftmaxBackward": "softmax", "LogSoftmaxBackward": "log_softmax"}


@dataclass(frozen=True)
class Tried:
    """Results of a trial."""

    name: str      # name of the model's class
    answers: Outputs      # in evaluation, without a gradient: (n, num_outputs) float32, or several heads
    rows: np.ndarray      # (n,) int64, inner rows of the outputs
    # Last function in training and in evaluation: "sigmoid", "softmax", "log_softmax" or "" for any other
    endings: tuple[str, str]
    remark: str = ""      # why rows were not compared; "" if compared

    @property
    def outputs(self) -> torch.Tensor:
        """What is scored, (n, num_outputs) float32."""
        return scored(self.answers)


def try_model(model: nn.Module, graph: LocalGraph, first_rows: np.ndarray, num_ranks: int,
              smallest: int = SMALLEST) -> Tried | None:
    """Try a model on rows of this rank, `first_rows` before others, and leave the model as it was.

    On one rank a model on LocalGraph may mix rows, but not read their positions. Returns None if the model fails on a
    few rows, or this rank has too few.

    Raises ConfigError: outputs that are not floats, or not one row per node; a function, which it names, mixes rows; on
    several ranks, a number as term of the loss that reads a NodeEmbedding.
    """
    name = _name_of(model)
    if any(isinstance(parameter, UninitializedParameter) for parameter in model.parameters()):
        return None
    sizes = _sizes(model, graph, smallest)
    rows = np.concatenate([first_rows, np.setdiff1d(np.arange(graph.num_inner), first_rows)])
    if isinstance(model, DistributedModel):
        rows = rows[model.order_of_trial(graph.node_id[rows])]
    rows = rows[:sum(sizes)]
    if len(rows) < 4:
        return None
    cut = sizes[0] if len(rows) == sum(sizes) else len(rows) // 2
    device = next(iter(model.parameters()), graph.x).device
    parts = [_part_of(graph, rows, (cut, len(rows) - cut), device), _part_of(graph, rows[:cut], (cut,), device),
             _part_of(graph, rows[cut:], (len(rows) - cut,), device)]
    splits = isinstance(model, DistributedModel) or num_ranks > 1
    if not splits:
        order = np.random.default_rng(0).permutation(len(rows))
        parts = [parts[0], _part_of(graph, rows, (cut, len(rows) - cut), device, order)]
    with _left_as_it_was(model) as held:
        try:
            answers = [_answer(model, parts[0], is_training, held) for is_training in (True, False)]
        except HpcgnnError:
            raise
        except IndexError as error:
            if f"dimension 0 with size {len(rows)}" in str(error):
                raise ConfigError(f"{name} reads or writes a row by its number ({error}), which a rank does not have, "
                                  "or has for another node; look up what belongs to a node by node_index") from error
            return None
        except Exception as error:      # of the user's code: if all rows have it too, the first epoch raises it again
            _check_counts(model, graph, parts, held, error)
            return None
        if graph.x.dtype != torch.float32 and not isinstance(model, DistributedModel):
            _check_stored(model, _part_of(graph, rows, (cut, len(rows) - cut), device, dtype=graph.x.dtype), name, held)
        for out in answers:
            check_entries(out, len(rows), name)
        if isinstance(model, DistributedModel):
            model.check_answered(graph.node_id[first_rows])
        trains = any(parameter.requires_grad for parameter in model.parameters())
        if trains and not any(entry.requires_grad for entry in entries_of(answers[0]).values()):
            raise ConfigError(f"{name}'s outputs depend on none of its weights that are trained, so nothing can be "
                              "learned; look for detach(), no_grad() or argmax in its forward")
        if num_ranks > 1:
            _check_term(model, entries_of(answers[0]), name)
        remark = ""
        if not getattr(model, "mixes_rows", False):
            try:
                remarks = [_check_rows(model, parts, is_training, held, name, None if splits else order)
                           for is_training in (True, False)]
                if splits:
                    remarks = [_check_kept(model, parts, held, name, num_ranks), *(num_ranks > 1) * remarks]
                remark = next(filter(None, remarks), "")
                if splits:
                    _check_later(model, parts, held, name)
            except HpcgnnError:
                raise
            except Exception as error:
                larger = min(LARGER, graph.num_inner // 2 - SMALLEST)
                if smallest == SMALLEST < larger:
                    held.give_back()
                    return try_model(model, graph, first_rows, num_ranks, larger)
                said = f"({type(error).__name__}: {' '.join(str(error).split())[:120]})"
                if num_ranks > 1:
                    raise ConfigError(f"{name} works on {len(rows)} nodes and not on {cut} of them {said}, so what it "
                                      "computes for a node depends on how many others its rank has; let rows meet in "
                                      "convolutions or BatchNorm1d") from error
                remark = f"{name} can't be tried on {cut} nodes {said}, so it was not checked whether it mixes rows"
    endings = _ending(scored(answers[0])), _ending(scored(answers[1]))
    everything, heads = Heads.joined(answers[1])
    everything = everything.detach().float()
    return Tried(name, everything if heads is None else heads.split(everything), rows, endings, remark)


def _check_term(model: nn.Module, entries: dict[Any, torch.Tensor], name: str) -> None:
    """Raise ConfigError if the loss has a number as term that reads a NodeEmbedding, which is other rows on each rank.
    """
    term = entries.get(TERM)
    tables = {key: table.weight for key, table in own_tables(model).items() if table.weight.requires_grad}
    if term is None or term.dim() or not term.requires_grad or not tables:
        return
    read = torch.autograd.grad(term, list(tables.values()), retain_graph=True, allow_unused=True)
    found = next((key for key, gradient in zip(tables, read, strict=True) if gradient is not None), None)
    if found is not None:
        raise ConfigError(f"{name} returns one number as its entry 'loss' that depends on the NodeEmbedding "
                          f"{found.removeprefix('module.').removesuffix('.weight')}, and each rank holds other rows of "
                          "it; return one value per node, computed from the node's own row, which is averaged over all "
                          "nodes")


def _check_stored(model: nn.Module, part: LocalGraph, name: str, held: _Held) -> None:
    """Raise ConfigError if a model can't compute on rows in the storage of this precision."""
    try:
        _answer(model, part, False, held)
    except RuntimeError as error:
        if "dtype" not in str(error):
            return
        raise ConfigError(f"{name} can't compute on rows of {str(part.x.dtype).removeprefix('torch.')}, as this "
                          f"precision stores them ({' '.join(str(error).split())[:120]}); train it with precision "
                          "fp32, or convert where rows meet weights, as x.float() does") from error


def _check_counts(model: nn.Module, graph: LocalGraph, parts: list[LocalGraph], held: _Held, error: Exception) -> None:
    """Raise ConfigError if a model fails on a few rows since it needs all of this rank's, or of the graph's."""
    whole = _part_of(graph, np.arange(graph.num_inner), (graph.num_inner,), parts[0].x.device)
    said, num_nodes = " ".join(str(error).split())[:120], str(graph.num_nodes)
    try:
        _answer(model, whole, True, held)
    except Exception:
        if num_nodes not in re.findall(r"\d+", said):
            return
        works = f"needs {num_nodes} rows, one per node of the whole graph, and was given"
    else:
        works = f"works on {graph.num_inner} rows and not on"
    if not getattr(model, "mixes_rows", False):
        raise ConfigError(f"{_name_of(model)}'s forward {works} {parts[0].num_inner} ({type(error).__name__}: {said}); "
                          "each rank has its own nodes, in its own order: take their number from x, and hold a table "
                          "of all nodes as a buffer or nn.Embedding of the model, or look it up by node_index"
                          ) from error


def _name_of(model: nn.Module) -> str:
    return type(model.module if isinstance(model, DistributedModel) else model).__name__


def _sizes(model: nn.Module, graph: LocalGraph, smallest: int) -> tuple[int, int]:
    """Node counts of the two parts; neither they nor their sum equal any layer width."""
    widths = {size for tensor in (*model.parameters(), *model.buffers()) for size in tensor.shape}
    widths |= {graph.num_nodes, graph.x.shape[1], *(size // 2 for size in widths)}
    for first in range(smallest, smallest + NUM_SIZES):
        sizes = first, first + 3
        arcs = [len(_neighbors(size)) * size for size in sizes]
        arcs += [sum(arcs)]
        if not {*sizes, sum(sizes), *arcs} & widths:
            return sizes
    return smallest, smallest + 3


def _neighbors(size: int) -> np.ndarray:
    return np.array(NEIGHBORS[:2 + size % 2])


def _part_of(graph: LocalGraph, rows: np.ndarray, sizes: tuple[int, ...], device: torch.device,
             order: np.ndarray | None = None, dtype: torch.dtype = torch.float32) -> LocalGraph:
    """A graph of some rows of a graph: in each part, every node has a few earlier nodes as in-neighbors.

    `order`, (n,) int64, is the node at each place; None keeps them as they come.
    """
    sources, start = [], 0
    for size in sizes:
        sources += [start + np.sort((place + _neighbors(size)) % size) for place in range(size)]
        start += size
    if order is not None:
        now = np.argsort(order)
        sources, rows = [np.sort(now[sources[place]]) for place in order], rows[order]
    degree = np.array([len(one) for one in sources], np.int32)
    indptr = np.concatenate([[0], np.cumsum(degree, dtype=np.int64)])
    source, target = np.concatenate(sources), np.repeat(np.arange(len(rows)), degree)
    features = graph.x[torch.from_numpy(rows).to(graph.x.device)].detach().to(dtype).to(device)
    of_edges: dict[str, Any] = {}
    # An edge takes its weight from its ends, and relation and attributes from an edge of the graph that its ends
    # choose, so all parts agree on them.
    place = rows[target] + rows[source]
    if graph.edge_weight is not None:
        # In no order, which a sort would keep; two parts have other means, which a threshold may be.
        weight = (0.5 + 37 * place % 101 / 101 + degree[target]).astype(np.float32)
        of_edges = {"edge_weight": weight, "weighted_degree": np.bincount(target, weight).astype(np.float32)}
    for name, values in (("edge_type", graph.rows.edge_type), ("edge_attr", graph.rows.edge_attr)):
        if values is not None:
            of_edges[name] = values[place % len(values)] if len(values) else np.zeros(
                (len(place), *values.shape[1:]), values.dtype)
    tried = LocalRows(indptr, source.astype(np.int32), graph.node_id[rows], degree, features,
                      graph.num_nodes, **of_edges)
    return LocalGraph(tried, AloneExchange(), is_trial=True)


def _answer(model: nn.Module, part: LocalGraph, is_training: bool, held: _Held | None) -> Any:
    """Outputs of a pass that starts from the state that the model had; None starts from where the last pass ended."""
    if held is not None:
        held.restore()
    model.train(is_training)
    part.begin_forward(seed=0, epoch=0, is_training=is_training)
    with alike_draws(model), torch.enable_grad():
        return model(part, part.x)


# Whether rows are mixed

def _check_rows(model: nn.Module, parts: list[LocalGraph], is_training: bool, held: _Held, name: str,
                order: np.ndarray | None) -> str:
    """Check that outputs for the parts equal outputs for the whole, also if the rows are in another order.

    Returns a remark if a value of all rows may decide what the forward does; "" if not.
    """
    logs = []
    for part in parts:
        with _Log(model, part.num_inner) as log:
            log.note("its answers", list(entries_of(_answer(model, part, is_training, held)).values()))
        logs.append(log.entries)
    whole, *others = (entries[-1].values for entries in logs)
    if order is not None:
        place = torch.from_numpy(order).to(whole[0].device)
        moved = [entry[place] if entry.dim() else entry for entry in whole]
        if all(map(_is_close, moved, others[0])):
            return ""
        raise ConfigError(f"{name}'s output for a node depends on its row's position in the graph, which is not its "
                          "position in the source; look up what belongs to a node by graph.node_index")
    culprit = _culprit(*logs)
    if all(map(_agree, whole, *others)):
        used = next((entry.what for entry in logs[0] if entry.what.split()[0] in PYTHON_VALUES), None)
        return "" if not (culprit and used) else (
            f"{name} computes a value of all rows of its rank, by {culprit}, and takes a number for Python, by {used}; "
            "if such a number decides what its forward does, ranks may do different things")
    where = "" if culprit is None else f", by {culprit}"
    advice = "" if isinstance(model, DistributedModel) else (
        "; if its forward itself sums over ranks, set mixes_rows = True in its class")
    raise ConfigError(f"{name}'s output for a node depends on other rows of its rank, or on its row's position{where}; "
                      "that would differ with the number of ranks; let rows meet in convolutions or BatchNorm1d, and "
                      f"look up what belongs to a node by node_index{advice}")


def _check_later(model: nn.Module, parts: list[LocalGraph], held: _Held, name: str) -> None:
    """Check outputs as after many passes, if the model counts them, as for a warm-up."""
    _answer(model, parts[0], True, held)
    with held.counted_on() as counts, suppress(ArithmeticError, LookupError, RuntimeError, ValueError):
        for is_training in (True, False) if counts else ():
            _check_rows(model, parts, is_training, held, name, None)


def _check_kept(model: nn.Module, parts: list[LocalGraph], held: _Held, name: str, num_ranks: int) -> str:
    """Check that a training pass leaves alike tensors in the model on all ranks, and gradients that add up.

    Returns a remark if outputs depend on attributes that no checkpoint holds; "" if they do not.
    """
    kept, gradients, tolerance = [], [], TOLERANCE
    for part in parts:
        with _Log(model, part.num_inner) as log:
            out = entries_of(_answer(model, part, True, held))
            log.note("its answers", list(out.values()))
        if any(value.element_size() < 4 for entry in log.entries for value in entry.values):
            tolerance = ROUGH
        kept.append({place: value.detach().clone() for place, value in held.changed()})
        is_attached = {place for place, value in held.changed() if value.requires_grad}
        factor = torch.from_numpy(np.cos(part.node_id)).to(part.x)
        loss = sum((entry.float() * factor.view(-1, *[1] * (entry.dim() - 1))).sum() for entry in out.values()
                   if entry.dim() and entry.requires_grad)
        if isinstance(loss, torch.Tensor):
            with without_hooks(model.parameters()):
                loss.backward()
        gradients.append(held.take_gradients())
    attributes = held.changed_attributes()
    whole, first, second = gradients
    largest = max([float(gradient.abs().max()) for gradient in whole.values() if gradient.numel()], default=0.0)
    for place in [place for place in whole if place in first and place in second]:
        if not bool(((whole[place] - first[place] - second[place]).abs() <= tolerance * largest).all()):
            raise ConfigError(f"the gradient of {name}'s {place} is not a sum over nodes, so it would differ with the "
                              "number of ranks; look for a hook or an autograd function that joins the gradients of "
                              "several rows, as a norm of them does")
    differing = [place for place in kept[0] if num_ranks > 1 and not (
        all(place in one for one in kept) and _agree(*(one[place] for one in kept)))]
    depends = bool(attributes) and _depends_on_passes(model, parts[0], held)
    for place in differing:
        if place in is_attached or place in held.buffers or depends:
            raise ConfigError(f"{name} keeps in {place} what it computes from the rows of one rank, so ranks would "
                              "hold different values; return a term of the loss as the entry 'loss', one value per "
                              "node, and leave statistics to BatchNorm1d")
    return "" if not depends else (
        f"{name}'s outputs depend on what earlier passes left in {', '.join(attributes)}, which checkpoints and saved "
        "weights do not hold, so a resumed run would go on from its first value; keep it in a buffer (register_buffer)")


def _depends_on_passes(model: nn.Module, part: LocalGraph, held: _Held) -> bool:
    """Whether a training pass changes the next pass's outputs, with the same weights, buffers and draws."""
    for is_training in (True, False):
        first = entries_of(_answer(model, part, is_training, held))
        _answer(model, part, True, held)
        held.restore_buffers()
        second = entries_of(_answer(model, part, is_training, None))
        if not all(map(_is_close, first.values(), second.values())):
            return True
    return False


@dataclass(frozen=True)
class _Entry:
    what: str
    values: list[torch.Tensor]


class _Log(TorchFunctionMode):
    """Notes the result of each function outside PyTorch Geometric's convolutions, and the module that called it."""

    def __init__(self, model: nn.Module, num_rows: int):
        super().__init__()
        self.entries: list[_Entry] = []
        self._num_rows = num_rows
        self._model = model.module if isinstance(model, DistributedModel) else model
        self._places: list[tuple[str, nn.Module]] = []
        self._hooks = ExitStack()

    def __enter__(self):
        for place, module in self._model.named_modules():
            self._hooks.callback(module.register_forward_pre_hook(
                lambda module, inputs, place=place: self._places.append((place, module))).remove)
            self._hooks.callback(module.register_forward_hook(
                lambda module, inputs, out: self._places.pop() and None, always_call=True).remove)
        return super().__enter__()

    def __exit__(self, *error):
        self._hooks.close()
        return super().__exit__(*error)

    def __torch_function__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        name = getattr(func, "__name__", "")
        if name in ("__getitem__", "__setitem__"):
            self._check_slice(*args[:2])
        frame = sys._getframe(1)
        # RowFunctions passes most functions on, and some functions of torch are written in Python.
        while frame.f_code.co_name == "__torch_function__" or frame.f_globals.get("__name__") in IN_BETWEEN:
            frame = frame.f_back
        is_known = frame.f_globals.get("__name__", "").startswith("hpcgnn.") or any(
            is_convolution(module) for _, module in self._places)
        # Memory that is not yet written has no values.
        if name != "__get__" and "empty" not in name and not is_known:
            if name in PYTHON_VALUES:
                self.entries.append(_Entry(name, []))
            self.note(name, out)
        return out

    def _check_slice(self, rows: torch.Tensor, index: Any) -> None:
        """Raise ConfigError for a slice of the nodes' rows that begins or ends at a number beyond the trial's rows."""
        first = index[0] if isinstance(index, tuple) and index else index
        if isinstance(first, slice) and rows.dim() and rows.shape[0] == self._num_rows and any(
                isinstance(end, int) and end > self._num_rows for end in (first.start, first.stop)):
            shown = ":".join("" if end is None else str(end) for end in (first.start, first.stop))
            raise ConfigError(f"the model takes rows [{shown}] by their numbers, which are other nodes on each rank; "
                              "look up what belongs to a node by node_index")

    def note(self, name: str, out: Any) -> None:
        values = [one.detach().clone() for one in (out if isinstance(out, (tuple, list)) else (out,))
                  if isinstance(one, torch.Tensor) and type(one) in (torch.Tensor, nn.Parameter)
                  and one.is_floating_point()]
        place = next((f"{type(module).__name__} at model.{place}" for place, module in reversed(self._places) if place),
                     "")
        self.entries.append(_Entry(f"{name.strip('_')}{' in ' if place else ''}{place}", values))


def _culprit(whole: list[_Entry], first: list[_Entry], second: list[_Entry]) -> str | None:
    """The first function with values for the parts that differ from its values for the whole."""
    for of_whole, of_first, of_second in zip(whole, first, second, strict=False):
        if not of_whole.what == of_first.what == of_second.what:
            return None
        if not all(map(_agree, of_whole.values, of_first.values, of_second.values)):
            return None if of_whole.what == "its answers" else of_whole.what
    return None


def _agree(whole: torch.Tensor, first: torch.Tensor, second: torch.Tensor) -> bool:
    """Whether values of two parts equal the values of the whole, or its slices along one dimension of nodes."""
    if not whole.dim() == first.dim() == second.dim():
        return False
    for dim, sizes in enumerate(zip(whole.shape, first.shape, second.shape, strict=True)):
        if len(set(sizes)) > 1:
            if sizes[0] != sizes[1] + sizes[2]:
                return False
            # First and last slices along every such dimension: for pairs of nodes, the pairs within a part.
            return _agree_from(whole, first, second, dim)
    return _is_close(whole, first) and _is_close(whole, second)


def _agree_from(whole: torch.Tensor, first: torch.Tensor, second: torch.Tensor, start: int) -> bool:
    head = tail = whole
    for dim in range(start, whole.dim()):
        if whole.shape[dim] == first.shape[dim] == second.shape[dim]:
            continue
        if whole.shape[dim] != first.shape[dim] + second.shape[dim]:
            return False
        head = head.narrow(dim, 0, first.shape[dim])
        tail = tail.narrow(dim, first.shape[dim], second.shape[dim])
    return _is_close(head, first) and _is_close(tail, second)


def _is_close(expected: torch.Tensor, found: torch.Tensor) -> bool:
    if expected.shape != found.shape:
        return False
    if expected.numel() == 0:
        return True
    expected, found = expected.detach().double(), found.detach().double()
    return torch.allclose(found, expected, rtol=0, atol=TOLERANCE * max(1e-30, float(expected.abs().nan_to_num(
        0, 0, 0).max())), equal_nan=True)


def _ending(out: torch.Tensor) -> str:
    """The last function that made the outputs, found by their autograd graph, else by their values."""
    node = out.grad_fn
    while node is not None and node.name().startswith(TRANSPARENT) and node.next_functions:
        node = node.next_functions[0][0]
    name = "" if node is None else node.name().rstrip("0123456789")
    if name in ENDINGS:
        return ENDINGS[name]
    values = out.detach().double()
    is_shares = values.shape[1] > 1 and bool((values >= 0).all()) and bool(((values.sum(1) - 1).abs() < 1e-4).all())
    return "softmax" if is_shares else ""


class _Held:
    """What a model's modules hold besides weights: attributes, lists, buffers and gradients, at one moment."""

    def __init__(self, model: nn.Module):
        self._parameters = dict(model.named_parameters())
        self._modules = [(place.removeprefix("module").removeprefix("."), vars(module), dict(vars(module)),
                          module._buffers, dict(module._buffers)) for place, module in model.named_modules()]
        self._lists = [(value, copy.copy(value)) for _, _, values, _, _ in self._modules
                       for name, value in values.items()
                       if type(value) in (list, dict, set) and not name.startswith("_")]
        tensors = [*model.buffers(), *(value for _, _, values, _, _ in self._modules for value in values.values()
                                       if type(value) is torch.Tensor and value.numel() <= MOST_NUDGED)]
        self._values = {id(one): (one, one.detach().clone()) for one in tensors}
        self._gradients = [(parameter, parameter.grad) for parameter in model.parameters()]
        self.buffers = {name.removeprefix("module.") for name, _ in model.named_buffers()}
        self.take_gradients()

    def restore(self) -> None:
        for _, now, before, _, _ in self._modules:
            now.clear()
            now.update(before)
        for value, before in self._lists:
            value.clear()
            value.extend(before) if isinstance(value, list) else value.update(before)
        self._write(list(self._values))
        self.restore_buffers()

    def restore_buffers(self) -> None:
        for *_, buffers, before in self._modules:
            buffers.clear()
            buffers.update(before)
            self._write([id(buffer) for buffer in before.values()])

    def _write(self, ids: list[int]) -> None:
        with torch.no_grad():
            for tensor, values in (self._values[one] for one in ids if one in self._values):
                if not torch.equal(tensor, values):
                    tensor.copy_(values)

    def changed(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Tensors of floats in attributes and buffers that a pass has changed or made, by their place."""
        for place, now, before, buffers, before_buffers in self._modules:
            for name, value in {**now, **buffers}.items():
                if type(value) is not torch.Tensor or not value.is_floating_point():
                    continue
                known = self._values.get(id(value))
                is_same = value is before.get(name, before_buffers.get(name))
                if not is_same or (known is not None and not torch.equal(value, known[1])):
                    yield f"{place}.{name}" if place else name, value

    def changed_attributes(self) -> list[str]:
        """Places of numbers and tensors, other than buffers, that a pass has changed."""
        numbers = [f"{place}.{name}" if place else name for place, now, before, _, _ in self._modules
                   for name, value in now.items() if type(value) in (int, float) and value != before.get(name)]
        return numbers + [place for place, _ in self.changed() if place not in self.buffers]

    @contextmanager
    def counted_on(self) -> Iterator[bool]:
        """Within the block, integers that the last pass changed begin `LATER` passes ahead; yields if there are any."""
        numbers = [(before, name, before[name]) for _, now, before, _, _ in self._modules for name, value in now.items()
                   if type(value) is type(before.get(name)) is int and value != before[name]]
        tensors = {key: (one, values) for key, (one, values) in self._values.items()
                   if one.dtype in (torch.int32, torch.int64) and not torch.equal(one, values)}
        for before, name, value in numbers:
            before[name] = value + LATER
        self._values |= {key: (one, values + LATER) for key, (one, values) in tensors.items()}
        try:
            yield bool(numbers or tensors)
        finally:
            for before, name, value in numbers:
                before[name] = value
            self._values |= tensors

    def take_gradients(self) -> dict[str, torch.Tensor]:
        """Gradients by weight, which then have none."""
        taken = {name.removeprefix("module."): one.grad.to_dense() if one.grad.is_sparse else one.grad
                 for name, one in self._parameters.items() if one.grad is not None}
        for one in self._parameters.values():
            one.grad = None
        return taken

    def give_back(self) -> None:
        self.restore()
        for parameter, gradient in self._gradients:
            parameter.grad = gradient


@contextmanager
def _left_as_it_was(model: nn.Module) -> Iterator[_Held]:
    """Within the block, zero weights are nudged to open gates that start closed; afterwards all is restored."""
    held = _Held(model)
    changed = [(weight, weight.detach().clone()) for weight in model.parameters()
               if weight.numel() <= MOST_NUDGED and bool((weight == 0).any())]
    with torch.no_grad():
        for weight in model.parameters():
            if weight.numel() <= MOST_NUDGED:
                weight += 0.1 * (weight == 0)
    try:
        yield held
    finally:
        held.give_back()
        with torch.no_grad():
            for tensor, values in changed:
                tensor.copy_(values)
