"""FlatGradients: all gradients of a model in one buffer, so that one Allreduce sums them over the ranks."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

import numpy as np
import torch
from mpi4py import MPI
from torch import nn

from hpcgnn.errors import CollectiveError, TrainingError
from hpcgnn.nn.node_embedding import own_tables

ALIGNMENT = 16     # floats: every parameter begins on a cache line
Hooked = list[tuple[nn.Parameter, list[Callable], list[Callable]]]


@contextmanager
def without_hooks(parameters: Iterable[nn.Parameter]) -> Iterator[Hooked]:
    """Within the block, weights call no hooks: a backward pass has one rank's share of their gradients. Yields them."""
    held = []
    for one in parameters:      # what register_hook and register_post_accumulate_grad_hook have put there
        before, after = one._backward_hooks, one._post_accumulate_grad_hooks
        if before or after:
            held.append((one, [before or {}, after or {}]))
    if not held:
        yield []
        return
    kept = [(one, [dict(hooks) for hooks in both]) for one, both in held]
    for _, both in held:
        for hooks in both:
            hooks.clear()
    try:
        yield [(one, [*both[0].values()], [*both[1].values()]) for one, both in kept]
    finally:
        for (_, both), (_, before) in zip(held, kept, strict=True):
            for hooks, values in zip(both, before, strict=True):
                hooks.update(values)


class FlatGradients:
    """One float32 buffer with the gradients of all weights that need one.

    Gradients are None before a pass. `collect` copies them into the buffer, all at once, and makes `.grad` views of it.
    A user's model may skip weights in a pass, or freeze them: a weight that no rank has used keeps None, as in plain
    PyTorch, so no optimizer moves or decays it.

    Parameters
    ----------
    model : nn.Module                on one device
    more : dict of nn.Parameter      weights of the loss, by name
    finds_unused : bool              the model is a user's own
    comm : MPI communicator          needed for a model with rows of own nodes

    Attributes
    ----------
    weights : dict of all weights by name, including frozen ones
    places : dict of slices of the buffer, by parameter that requires a gradient
    flat : 1-D float32               the buffer, with zeros between parameters
    num_shared : int                 the first elements belong to weights that all ranks hold, the others to rows that
                                     only this rank holds, see `hpcgnn.nn.node_embedding`
    used : list of parameters with a gradient after `collect`; None is all
    hooked : list of (parameter, functions that it calls with its gradient, functions that it then calls with itself)

    Raises
    ------
    TrainingError      a weight requires a gradient and is not float32
    """

    def __init__(self, model: nn.Module, more: dict[str, nn.Parameter] | None = None, finds_unused: bool = False,
                 comm: MPI.Comm | None = None):
        self.weights = dict(model.named_parameters())
        self._of_model = dict(self.weights)
        self.finds_unused, self._comm = finds_unused, comm
        self.hooked: Hooked = []
        self._own = {id(table.weight) for table in own_tables(model).values()}
        self.places: dict[nn.Parameter, slice] = {}
        self.add(more or {})

    def add(self, more: dict[str, nn.Parameter]) -> None:
        """Add weights that are not here already."""
        known = {id(parameter) for parameter in self.weights.values()}
        self.weights |= {name: parameter for name, parameter in more.items() if id(parameter) not in known}
        self._lay_out()

    def _lay_out(self) -> None:
        before, end, starts_of_own = self.places, 0, []
        self._required, self.places = self._requiring(), {}
        self.used: list[torch.nn.Parameter] | None = None
        # Rows of own nodes come last.
        for name, parameter in sorted(self.weights.items(), key=lambda one: id(one[1]) in self._own):
            if not parameter.requires_grad:
                continue
            if parameter.dtype != torch.float32:
                raise TrainingError(f"weight {_plain(name)} is {str(parameter.dtype).removeprefix('torch.')}, and "
                                    "hpcgnn trains float32 weights; call .float() on the model "
                                    "(precision=\"bf16\" stores and sends rows in 16 bits)")
            start = -(-end // ALIGNMENT) * ALIGNMENT
            end = start + parameter.numel()
            self.places[parameter] = slice(start, end)
            starts_of_own += [start] if id(parameter) in self._own else []
        self.num_shared, self._has_own = min([end, *starts_of_own]), bool(starts_of_own)
        self.flat = torch.zeros(end, device=next((one.device for one in self.weights.values()), None))
        self._views = {one: self.flat[place].view_as(one) for one, place in self.places.items()}
        for parameter in before.keys() | self.places.keys():
            parameter.grad = None

    def _requiring(self) -> list[bool]:
        return [parameter.requires_grad for parameter in self.weights.values()]

    def check_same(self, model: nn.Module) -> None:
        """Raise TrainingError if a model has other weights than at the start, which no optimizer would update."""
        now = dict(model.named_parameters())
        for name in {**self._of_model, **now}:
            if now.get(name) is not self._of_model.get(name):
                what = "gone" if name not in now else "another object" if name in self._of_model else "new"
                raise TrainingError(
                    f"weight {_plain(name)} of the model is {what} since the training began, and no "
                    "optimizer would update it; make all weights before fit, and change their values "
                    "in place, as parameter.copy_(..) does"
                )

    def frozen(self) -> frozenset[str]:
        return frozenset(name for name, parameter in self.weights.items() if not parameter.requires_grad)

    def zero(self) -> bool:
        """Clear the gradients; return whether the set of weights that require one, and so the layout, has changed."""
        if self._requiring() != self._required:
            self._lay_out()
            return True
        for parameter in self.places:
            parameter.grad = None
        return False

    @contextmanager
    def without_hooks(self) -> Iterator[None]:
        """`without_hooks` of all weights; `call_hooks` then calls them."""
        with without_hooks(self.places) as self.hooked:
            yield

    def call_hooks(self) -> None:
        """Call what the user's program hooked to weights, with the sums of all ranks' gradients."""
        for parameter, of_gradient, of_weight in self.hooked:
            if parameter.grad is None:
                continue
            for hook in of_gradient:
                changed = hook(parameter.grad)
                if changed is not None:
                    parameter.grad.copy_(changed)
            for hook in of_weight:
                hook(parameter)

    def collect(self, comm: MPI.Comm) -> None:
        """Collective for a user's model: bring the gradients of a pass into the buffer.

        Raises CollectiveError: no weight has a gradient, or ranks have frozen different weights.
        """
        is_used = self._used_anywhere(comm) if self.finds_unused else None
        found = {one: one.grad.to_dense() if one.grad.is_sparse else one.grad for one in self.places
                 if one.grad is not None}
        self.flat.zero_()      # between the parameters, too, where sums in few bits leave noise
        if found:
            torch._foreach_copy_([self._views[one] for one in found], list(found.values()))
        used = list(self.places) if is_used is None else [
            parameter for parameter, is_one in zip(self.weights.values(), is_used, strict=True) if is_one]
        self.used = None if len(used) == len(self.places) else used
        for parameter in self.places:
            parameter.grad = None
        for parameter in used:
            parameter.grad = self._views[parameter]

    def _used_anywhere(self, comm: MPI.Comm) -> np.ndarray:
        """Collective: per weight, whether any rank has a gradient."""
        required = np.array(self._required, np.uint8)
        found = np.array([parameter in self.places and parameter.grad is not None
                          for parameter in self.weights.values()], np.uint8)
        state = np.concatenate([required, 1 - required, found])
        if comm.size > 1:
            comm.Allreduce(MPI.IN_PLACE, state, MPI.MAX)
        required, frozen, found = state.reshape(3, -1)
        differing = np.flatnonzero(required & frozen)
        if len(differing):
            raise CollectiveError(f"weight {_plain(list(self.weights)[differing[0]])} requires a gradient on some "
                                  "ranks and none on others; call requires_grad_ on all ranks alike")
        if not found.any():
            raise CollectiveError("the loss depends on no weight that requires a gradient; unfreeze some "
                                  "(requires_grad_()), or give epochs=0, which scores and saves a model as it is")
        return found.astype(bool)

    @property
    def shared(self) -> torch.Tensor:
        return self.flat[:self.num_shared]

    @property
    def parts(self) -> list[slice]:
        """Slice of the gradients that all ranks share, and of this rank's own gradients, if there are any."""
        shared = slice(0, self.num_shared)
        return [shared, slice(self.num_shared, len(self.flat))] if self._has_own else [shared]

    def clip(self, largest: float) -> None:
        """Collective if ranks have rows of their own: scale all gradients so that their norm is at most `largest`, if
        they are finite.

        One thread sums the norm in float64, so ranks with equal gradients scale them equally.
        """
        flat = self.flat.cpu().numpy()
        squares = [float(np.square(flat[part], dtype=np.float64).sum()) for part in self.parts]
        if self._has_own:
            squares[1] = self._comm.allreduce(squares[1])
        norm = math.sqrt(sum(squares)) if all(map(math.isfinite, squares)) else math.inf
        if largest < norm < math.inf:
            self.flat *= largest / norm

    def unscale(self, scale: float) -> bool:
        """Collective if ranks have rows of their own: divide by the loss scale; return whether all are finite."""
        self.flat /= scale
        is_finite = bool(torch.isfinite(self.flat).all())
        return self._comm.allreduce(is_finite, MPI.LAND) if self._has_own else is_finite

    def release(self) -> None:
        """After training: discard all gradients and give each weight its own memory."""
        for parameter in self.weights.values():
            if parameter in self.places:
                parameter.data = parameter.data.clone()
            parameter.grad = None


def _plain(name: str) -> str:
    return name.removeprefix("module.")
