"""OwnLoss: a user's loss function of (outputs, labels), summed over the rows of all ranks.

Each rank holds some rows. What a rank adds to the loss depends on the kind of function. The kind is found once, at the
start, by calling the function on some rows of all ranks, and on two parts of these rows.

    kind    the function gives                        a rank adds, of N rows in all
    rows    one value per row, independent of others  the sum of its values / N
    mean    the mean over rows                        its mean times its rows / N
    sum     the sum over rows                         its sum
    whole   anything else (masks, pairs, quantiles)   its share of the function of the outputs of all ranks

A weighted mean of torch (`cross_entropy` and `nll_loss` with class weights or ignored classes) is a sum over the rows
divided by the sum of the weights of all labels. Inside the function, each call of such a mean divides by the sum of the
weights on all ranks. With class weights (1, 3) and labels (0, 1 | 1, 1) on two ranks, both divide by 10.
"""

from __future__ import annotations

import functools
import inspect
import re
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from types import FunctionType
from typing import Any

import numpy as np
import torch
from mpi4py import MPI
from torch import nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from hpcgnn.errors import TrainingError
from hpcgnn.graph.local_graph import LocalGraph, draw_numbers
from hpcgnn.nn.heads import Heads, Outputs
from hpcgnn.run.output import tell

SAMPLE_ROWS = 4096      # rows of all ranks on which a loss is tried
SHARE = 3               # one part has a third of the rows, so that the two parts differ in size
TOLERANCE = 1e-5        # for means of float32 values in another order
FAR = 20.0              # an output of which the loss is near 0, or large
Function = Callable[..., torch.Tensor]      # of outputs and labels, and of a LossGraph if it takes `graph`


@dataclass(frozen=True)
class Population:
    """The rows of all ranks that a loss covers."""

    comm: MPI.Comm
    num_rows: int      # rows of all ranks
    class_counts: dict[int, int]      # nodes of all ranks by class id; empty if labels are not classes
    node_id: torch.Tensor      # (n,) int64, global ids of this rank's rows
    num_steps: int = 1      # steps among which these rows are divided
    heads: Heads | None = None      # the form of the outputs, if a model has several heads
    graph: LocalGraph | None = None      # made the outputs
    place: torch.Tensor | None = None      # (n,) int64, place of each row among those of all ranks, by node id


class _Misfit(TrainingError):
    """A loss expects another number of rows than it is given."""


class LossGraph:
    """What a user's loss gets as `graph`: rows of nodes of all ranks."""

    def __init__(self, graph: LocalGraph, place: torch.Tensor, num_rows: int):
        self._graph, self._place, self._num_rows = graph, place, num_rows
        self.drawn: list[torch.Tensor] = []

    def draw_rows(self, h: torch.Tensor, count: int) -> torch.Tensor:
        """Collective: rows of `count` drawn nodes of the loss, the same on all ranks, differentiable.

        h : (n, dim), one row for each row of the outputs. Returns (count, dim) float32. Draws are with replacement, and
        depend on seed, epoch and number of the call only. Every rank must call this equally often, also one without
        rows. Raises ConfigError in an epoch of several steps.
        """
        numbers = draw_numbers(count, max(1, self._num_rows), self._graph.next_draw())
        self.drawn.append(self._graph.rows_of(h, self._place, numbers))
        return self.drawn[-1]


class OwnLoss:
    """Computes a loss as a sum over rows: the sums of all ranks, divided by the number of all rows, give the loss.

    `function` takes (n, num_outputs) float32, or the heads of a model, and labels of n rows; it gives (n,) values or a
    number. `kind` is "rows", "mean", "sum" or "whole", and None before the first call. A function with a third argument
    `graph` gets a LossGraph, and gives (n,) values.
    """

    def __init__(self, function: Function):
        self.function = function
        self.kind: str | None = None
        self.takes_graph = "graph" in _parameters_of(function)
        self._heads: Heads | None = None
        self._first: dict[str, torch.Tensor] | None = None

    def tensors(self, model: nn.Module, device: torch.device) -> dict[str, torch.Tensor]:
        """Reset the loss's weights and buffers to their values before training; return them by name.

        Tensors of the model are left out.
        """
        modules = [module.to(device) for module in modules_of(self.function)]
        own = {id(tensor) for tensor in (*model.parameters(), *model.buffers())}
        found = {f"loss{number or ''}.{name}": tensor for number, module in enumerate(modules)
                 for name, tensor in (*module.named_parameters(), *module.named_buffers()) if id(tensor) not in own}
        if self._first is None:
            self._first = copies_of(found)
        write_into(found, self._first)
        return found

    def forgotten(self, weights: list[nn.Parameter]) -> list[nn.Parameter]:
        """Weights outside `weights` that the function may read and that got no gradient."""
        known = {id(parameter) for parameter in weights}
        return [parameter for parameter in closed_over(self.function)
                if parameter.requires_grad and parameter.grad is None and id(parameter) not in known]

    def sum(self, outputs: torch.Tensor, labels: torch.Tensor, population: Population) -> torch.Tensor:
        """Collective: what this rank's rows add to the loss, times the number of rows of all ranks.

        Raises TrainingError: the function gives neither one value per row nor a number.
        """
        self._heads = population.heads
        if self.takes_graph:
            return self._with_graph(outputs, labels, population)
        if self.kind is None:
            self.kind = self._find_kind(outputs, labels, population)
        if self.kind == "whole":
            return self._whole(outputs, labels, population)
        if len(labels) == 0:
            return outputs.float().sum()      # 0, but keeps the backward pass connected to the outputs
        with _OverAllRanks(labels, len(labels), population.num_rows, population.class_counts):
            values = self._checked(outputs.float(), labels)
        if values.ndim == 1:
            return values.sum()
        return values * (population.num_rows if self.kind == "sum" else len(labels))

    def _with_graph(self, outputs: torch.Tensor, labels: torch.Tensor, population: Population) -> torch.Tensor:
        """Collective: sum of the values of this rank's rows; all ranks call the function, since it draws rows."""
        graph = LossGraph(population.graph, population.place, population.num_rows)
        values = self._checked(outputs.float(), labels, graph)
        if not values.ndim:
            raise TrainingError("the loss takes graph and gives one number; it must give one value per row, and hpcgnn "
                                "takes their mean over all ranks")
        # Keeps the sum over ranks in every rank's backward pass, also where no value depends on it.
        return values.sum() + 0.0 * sum((rows.sum() for rows in graph.drawn), start=outputs.float().sum())

    def of(self, outputs: Outputs, labels: torch.Tensor, graph: Any = None) -> torch.Tensor:
        """What the function gives for outputs in the form in which the model returns them."""
        return self.function(outputs, labels, graph=graph) if self.takes_graph else self.function(outputs, labels)

    def _checked(self, outputs: torch.Tensor, labels: torch.Tensor, graph: LossGraph | None = None) -> torch.Tensor:
        try:
            values = self.of(outputs if self._heads is None else self._heads.split(outputs), labels, graph)
        except (IndexError, RuntimeError, ValueError) as error:
            if str(len(labels)) not in re.findall(r"\d+", str(error)):
                raise
            raise _Misfit(f"the loss fails on the outputs and labels of {len(labels)} nodes "
                          f"({' '.join(str(error).split())[:160]}); it gets the rows of a split's nodes, or of some of "
                          "them, so apply no mask, and take labels and weights of rows from its arguments") from error
        if not isinstance(values, torch.Tensor):
            raise TrainingError(f"the loss gives a {type(values).__name__}; it must give a tensor: one value per row, "
                                "or one number")
        if values.numel() == 1 and (len(labels) > 1 or self.kind in ("mean", "sum")):
            values = values.reshape(())      # as of a weight of shape (1,), from which torch goes back, too
        if values.ndim and values.shape != (len(labels),):
            raise TrainingError(f"the loss gives values of shape {tuple(values.shape)} for {len(labels)} rows; it must "
                                "give one per row, or their mean")
        return values

    def _whole(self, outputs: torch.Tensor, labels: torch.Tensor, population: Population) -> torch.Tensor:
        """Collective: every rank computes the loss of all rows, in the order of their nodes, and adds its share."""
        comm = population.comm
        node_id = _gathered(comm, population.node_id)
        if len(node_id) == 0:
            return outputs.float().sum()
        order = torch.argsort(node_id)
        everyone = _AllRows.apply(outputs.float(), comm)[order]
        values = self._checked(everyone, _gathered(comm, labels)[order])
        return values.mean() * (population.num_rows / population.num_steps / comm.size)

    def _find_kind(self, outputs: torch.Tensor, labels: torch.Tensor, population: Population) -> str | None:
        """Collective: try the function on a sample of all ranks' rows, the same on each rank; None without rows."""
        comm = population.comm
        chosen = _sample(labels, max(1, SAMPLE_ROWS // comm.size))
        outputs, labels = (_gathered(comm, rows[chosen]) for rows in (outputs.detach().float(), labels))
        if len(labels) == 0:
            return None
        # Parts with different classes, or different shares of known labels, reveal a weighted mean.
        order = torch.argsort(_sort_key(labels), stable=True)
        outputs, labels, cut = outputs[order], labels[order], -(-len(labels) // SHARE)
        with torch.no_grad(), left_as_it_was(self.function) as has_changed:
            found, value = self._kinds_on(outputs, labels, cut, population.num_rows)
            for first in _other_outputs(outputs, labels)[:, :cut]:
                with suppress(TrainingError):
                    fitting, other = self._kinds_on(torch.cat([first, outputs[cut:]]), labels, cut, 0)
                    found &= found if np.isnan(other) else fitting      # outside of what the function takes
            # What a loss keeps between calls, such as a running mean, must be of all rows.
            keeps_state = has_changed()
        values = torch.tensor(comm.allgather(value))
        if not _are_close(values, values[:1].expand_as(values)):
            raise TrainingError(f"the loss gives {', '.join(f'{one:.6g}' for one in values.tolist())} for the same "
                                "rows on different ranks: it reads what the model keeps of its rank's rows, or draws "
                                "by a generator of its own; return the rows that it needs beside the outputs, in a "
                                "tuple, or a term as the entry 'loss' of a dict")
        kinds = [kind for kind in ("rows", "mean", "sum") if kind in found] * (not keeps_state)
        if not kinds and comm.rank == 0:
            tell(f"hpcgnn: the loss {'keeps values between calls' if keeps_state else 'is no mean over rows'}, so each "
                 "step brings the outputs of all rows to every rank; if a row's value does not depend on other rows, "
                 "give one value per row (reduction=\"none\"), and hpcgnn takes the mean over all ranks")
        return kinds[0] if kinds else "whole"

    def _kinds_on(self, outputs: torch.Tensor, labels: torch.Tensor, cut: int,
                  num_global: int) -> tuple[set[str], float]:
        """Kinds that fit the values on all rows and on two parts of them, and the mean value, nan if it has failed."""
        num_rows, spans = len(labels), (slice(0, None), slice(0, cut), slice(cut, None))
        values = []
        try:
            for span in spans if cut < num_rows else spans[:1]:
                # All calls draw the same random numbers, on all ranks.
                with torch.random.fork_rng(devices=[]), _OverAllRanks(labels[span], len(labels[span]), num_rows,
                                                                      Counter(_classes(labels))):
                    torch.manual_seed(0)
                    values.append(self._checked(outputs[span], labels[span]).double())
        except Exception as error:      # a function that only takes all rows, such as one with one weight per row
            if (isinstance(error, TrainingError) and not isinstance(error, _Misfit)) or (
                    not values and num_rows == num_global):
                raise
            return set(), float(values[0].mean()) if values else float("nan")
        if torch.isnan(values[0]).any() and torch.isnan(labels).any() and torch.isfinite(outputs).all():
            raise TrainingError("the loss gives nan where a target is unknown (nan); leave unknown targets out, as "
                                "((outputs - targets) ** 2)[~targets.isnan()].mean() does")
        whole = float(values[0].mean())
        if values[0].ndim == 1:
            return {"rows"} if len(values) == 1 or _are_close(values[0], torch.cat(values[1:])) else set(), whole
        if len(values) == 1 or not np.isfinite(whole):
            return {"mean", "sum"}, whole
        left, right = (float(value.mean()) for value in values[1:])
        mean = (cut * left + (num_rows - cut) * right) / num_rows
        scale = max(abs(left), abs(right), abs(whole))
        return {kind for kind, parts in (("mean", mean), ("sum", left + right))
                if abs(whole - parts) <= TOLERANCE * scale}, whole


def _other_outputs(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Outputs that are halved, near the labels, surely right, and surely wrong, (4, n, num_outputs): they show
    a bound of a mean, or rows that a loss leaves out once they are right.
    """
    near = labels.float().reshape(len(labels), -1).nan_to_num()
    if _classes(labels) and int(labels.min()) >= 0 and int(labels.max()) < outputs.shape[1]:
        near = functional.one_hot(labels, outputs.shape[1]).float()
    if near.shape != outputs.shape:
        near = (outputs > 0).float()
    other = near.roll(1, 1) if near.shape[1] > 1 else 1 - near
    return torch.stack([0.5 * outputs, near, FAR * (2 * near - 1), FAR * (2 * other - 1)])


def _are_close(left: torch.Tensor, right: torch.Tensor) -> bool:
    scale = TOLERANCE * float(left[torch.isfinite(left)].abs().max()) if torch.isfinite(left).any() else 0.0
    return bool(torch.isclose(left, right, rtol=TOLERANCE, atol=scale, equal_nan=True).all())


def _sample(labels: torch.Tensor, most: int) -> torch.Tensor:
    """Up to `most` rows: some with an unknown label, if any, and others at equal distances."""
    if len(labels) <= most:
        return torch.arange(len(labels), device=labels.device)
    unknown = torch.nonzero(torch.isnan(labels.float().flatten(1).sum(1)) if labels.ndim > 1
                            else torch.isnan(labels.float())).flatten()[:most // 2]
    spread = torch.linspace(0, len(labels) - 1, most - len(unknown), device=labels.device).long()
    return torch.unique(torch.cat([unknown, spread]))


def _sort_key(labels: torch.Tensor) -> torch.Tensor:
    columns = labels.double().reshape(len(labels), -1)
    return columns.nan_to_num().sum(1) - 1e6 * columns.isnan().sum(1)


def _classes(labels: torch.Tensor) -> list[int]:
    return labels.tolist() if labels.dtype == torch.int64 and labels.ndim == 1 else []


class _OverAllRanks(TorchFunctionMode):
    """Lets torch's weighted means divide by the weights of all ranks' labels.

    The caller multiplies a mean by num_rows / num_global, so each mean is multiplied by the inverse here.
    """

    def __init__(self, labels: torch.Tensor, num_rows: int, num_global: int, class_counts: dict[int, int]):
        super().__init__()
        self._labels, self._num_rows, self._num_global, self._counts = labels, num_rows, num_global, class_counts

    def __torch_function__(self, function: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        kwargs = kwargs or {}
        if function in (torch.autograd.grad, torch.Tensor.backward):
            raise TrainingError("the loss computes gradients itself, which would be of one rank's rows; leave them to "
                                "hpcgnn, or weigh terms by their values")
        if function in (functional.cross_entropy, functional.nll_loss) and self._num_rows < self._num_global:
            given = dict(zip(("input", "target", "weight", "size_average", "ignore_index", "reduce", "reduction",
                              "label_smoothing"), args, strict=False)) | kwargs
            total = self._total_weight(given)
            if total is not None:
                summed = function(**{**given, "reduction": "sum"})
                return summed * (self._num_global / (self._num_rows * total))
        return function(*args, **kwargs)

    def _total_weight(self, given: dict[str, Any]) -> float | None:
        """Sum of the weights of all ranks' labels; None for a plain mean, or for other labels."""
        target, weight, ignored = given["target"], given.get("weight"), given.get("ignore_index", -100)
        is_mean = given.get("reduction", "mean") == "mean" and given.get("reduce") is None \
            and given.get("size_average") is None
        is_of_labels = target.data_ptr() == self._labels.data_ptr() and target.shape == self._labels.shape
        if not is_mean or not is_of_labels or not self._counts or (weight is None and ignored not in self._counts):
            return None
        counted = {label: count for label, count in self._counts.items() if label != ignored}
        if weight is None:
            return float(sum(counted.values()))
        weights = weight.detach().double().tolist()
        return sum(weights[label] * count for label, count in counted.items())


class _AllRows(torch.autograd.Function):
    """The rows of all ranks, one rank after another.

    Each rank takes a share of the whole loss, so backward multiplies the gradient by the number of ranks.
    """

    @staticmethod
    def forward(ctx, rows: torch.Tensor, comm: MPI.Comm) -> torch.Tensor:
        counts = comm.allgather(len(rows)) if comm.size > 1 else [len(rows)]
        ctx.own = slice(sum(counts[:comm.rank]), sum(counts[:comm.rank + 1]))
        ctx.num_ranks = comm.size
        return _gathered(comm, rows)

    @staticmethod
    def backward(ctx, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        return gradient[ctx.own] * ctx.num_ranks, None


def _gathered(comm: MPI.Comm, rows: torch.Tensor) -> torch.Tensor:
    if comm.size == 1:
        return rows.clone()
    mine = np.ascontiguousarray(rows.detach().cpu().numpy())
    counts = np.array(comm.allgather(mine.size))
    everyone = np.empty(counts.sum(), mine.dtype)
    comm.Allgatherv(mine.reshape(-1), [everyone, counts])
    return torch.from_numpy(everyone.reshape(-1, *mine.shape[1:])).to(rows.device)


def places_of(comm: MPI.Comm, node_id: torch.Tensor) -> torch.Tensor:
    """Collective: place of each node among the nodes of all ranks in the order of ids, (n,) int64."""
    return torch.searchsorted(_gathered(comm, node_id).sort().values, node_id)


def _parameters_of(function: Any) -> tuple[str, ...]:
    function = function.forward if isinstance(function, nn.Module) else function
    with suppress(TypeError, ValueError):      # functions written in C have no signature
        return tuple(inspect.signature(function).parameters)
    return ()


def class_counts_of(comm: MPI.Comm, labels: np.ndarray) -> dict[int, int]:
    """Collective: number of rows of all ranks with each class id; empty if labels are not classes."""
    if labels.ndim > 1:
        return {}
    mine = dict(zip(*(column.tolist() for column in np.unique(labels, return_counts=True)), strict=True))
    return dict(sum((Counter(counts) for counts in comm.allgather(mine)), Counter()))


@contextmanager
def left_as_it_was(function: Function) -> Iterator[Callable[[], bool]]:
    """After the block, what a loss keeps between calls has the same values as before: attributes and buffers.

    Yields a function: whether they have changed.
    """
    held = [(vars(one), dict(vars(one))) for one in owners_of(function)]
    held += [(one["_buffers"], dict(one["_buffers"])) for one, _ in held if "_buffers" in one]
    tensors = {id(value): value for _, before in held for value in before.values() if type(value) is torch.Tensor}
    kept = [(tensor, tensor.detach().clone()) for tensor in tensors.values()]

    def has_changed() -> bool:
        return any(now.keys() != before.keys() or any(now[name] is not value for name, value in before.items())
                   for now, before in held) or not all(torch.equal(tensor, values) for tensor, values in kept)

    try:
        yield has_changed
    finally:
        for now, before in held:
            now.clear()
            now.update(before)
        with torch.no_grad():
            for tensor, values in kept:
                if not torch.equal(tensor, values):      # a write would spoil a backward pass that needs the tensor
                    tensor.copy_(values)


@contextmanager
def evaluating(function: Function) -> Iterator[None]:
    """Within the block, modules of a loss are in evaluation; afterwards all that it keeps is as before."""
    modules = [one for one in owners_of(function) if isinstance(one, nn.Module)]
    with left_as_it_was(function):
        for module in modules:
            module.training = False
        yield


def owners_of(function: Any) -> list[Any]:
    """Objects in which a loss may keep values: it or the object of a method, arguments of a partial, their modules, and
    modules that a plain function reads.
    """
    if isinstance(function, nn.Module):
        return [*function.modules()]
    if isinstance(function, functools.partial):
        parts = [function.func, *function.args, *function.keywords.values()]
        return [owner for one in parts if callable(one) for owner in owners_of(one)]
    if inspect.ismethod(function):
        return owners_of(function.__self__)
    if inspect.isfunction(function):
        return [part for one in _read_by(function) if isinstance(one, nn.Module) for part in one.modules()]
    return [function] if hasattr(function, "__dict__") and not isinstance(function, type) else []


def modules_of(function: Any) -> list[nn.Module]:
    """Modules that a loss consists of: itself, the object of a method, the arguments of a partial."""
    if isinstance(function, nn.Module):
        return [function]
    if isinstance(function, functools.partial):
        given = [function.func, *function.args, *function.keywords.values()]
        return [module for one in given for module in modules_of(one)]
    owner = getattr(function, "__self__", None)
    return [owner] if isinstance(owner, nn.Module) else []


def closed_over(function: Any) -> list[nn.Parameter]:
    """Weights that a plain function reads through its closure, globals or defaults."""
    weights: list[nn.Parameter] = []
    for one in _read_by(function.func if isinstance(function, functools.partial) else function):
        weights += one.parameters() if isinstance(one, nn.Module) else [one] if isinstance(one, nn.Parameter) else []
    return weights


def _read_by(function: Any) -> list[Any]:
    return [] if getattr(function, "__code__", None) is None else [
        value for values in values_read_by(function) for value in values]


def values_read_by(function: FunctionType) -> tuple[list[Any], list[Any], list[Any]]:
    """Values in a plain function's closure, in the globals that it names, and in its defaults."""
    closed = []
    for cell in function.__closure__ or ():
        with suppress(ValueError):      # a variable without a value yet
            closed.append(cell.cell_contents)
    return (closed, [function.__globals__.get(name) for name in function.__code__.co_names],
            [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()])


def copies_of(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: tensor.detach().clone() for name, tensor in tensors.items()}


@torch.no_grad()
def write_into(tensors: dict[str, torch.Tensor], values: dict[str, torch.Tensor]) -> None:
    for name, tensor in tensors.items():
        tensor.copy_(values[name])
