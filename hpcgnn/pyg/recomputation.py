"""Gradient checkpointing in a distributed model: functions that `torch.utils.checkpoint` runs again in backward.

The second run happens long after the forward has ended. It starts at the same place in the pass, so dropout draws the
same masks. Convolutions get the halo rows that came the first time, so nothing is sent twice, and running statistics
of batch normalization are not updated again.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
import torch.utils.checkpoint  # a module; `checkpoints` replaces two of its functions
from torch import nn

from hpcgnn.errors import ConfigError
from hpcgnn.graph.hop import ExchangeSite
from hpcgnn.graph.local_graph import LocalGraph
from hpcgnn.pyg.edges import SealedEdges

_OPEN: list[Region] = []      # the region in its first run
REENTRANT, GENERATOR = "CheckpointFunction", "_checkpoint_without_reentrant_generator"


class Region:
    """A checkpointed function: what it got in its first run, and how to run it again.

    Parameters
    ----------
    function : callable
    passing : ForwardPassing of the model's forward; None for a model on LocalGraph
    again : callable, () -> context     for the second run
    """

    def __init__(self, graph: LocalGraph, function: Callable, passing: Any = None, again: Callable | None = None):
        self._graph, self._function, self._passing, self._again = graph, function, passing, again
        self.entries: list[tuple[torch.Tensor, ExchangeSite | None]] = []
        self._constants: dict[int, torch.Tensor] = {}

    def begin(self, args: tuple = ()) -> None:
        """Note the place in the pass, and arguments with known halo rows."""
        if _OPEN:
            raise ConfigError("torch.utils.checkpoint within a function that is checkpointed itself can't be "
                              "distributed; leave the inner one out")
        _OPEN.append(self)
        self._position = self._graph.current_pass
        if self._passing is None:
            return
        self._passing.region, self._owned = self, dict(self._passing.own)
        found = ((number, self._passing.all_rows_of(one)) for number, one in enumerate(args)
                 if type(one) is torch.Tensor)
        self._constants = {number: rows for number, rows in found if rows is not None}

    def end(self) -> None:
        """End the first run; ConfigError if a model on LocalGraph has fetched halo rows in it."""
        if self not in _OPEN:      # the region could not begin
            return
        _OPEN.remove(self)
        if self._passing is not None:
            # Forget the rows that the region took: the second run must take them again.
            self._passing.region, self._passing.own = None, dict(self._owned)
        elif self._graph.current_pass.num_halo_calls != self._position.num_halo_calls:
            raise ConfigError("torch.utils.checkpoint can't run graph.halo again, since rows would be sent twice; call "
                              "it outside of the function that is checkpointed")

    def first(self, *args: Any) -> Any:
        """First run in the reentrant form. Edges come as Untouched, since torch copies arguments that are tensors."""
        args = self._with_edges(args)
        self.begin(args)
        try:
            return self._function(*args)
        finally:
            self.end()

    def again(self, *args: Any, **kwargs: Any) -> Any:
        """Run once more, in the backward pass."""
        graph, args = self._graph, self._with_edges(args)
        now = graph.current_pass
        graph.go_back(self._position)
        try:
            if self._passing is None:
                return self._function(*args, **kwargs)
            for number, all_rows in self._constants.items():
                self._passing.keep_constant(args[number], all_rows)
            self._passing.replay, self._passing.own = iter(self.entries), dict(self._owned)
            with self._again():
                return self._function(*args, **kwargs)
        finally:
            graph.go_back(now)
            if self._passing is not None:
                self._passing.replay = None

    def rows_of(self, args: tuple) -> tuple:
        """Replace tables of all nodes in the arguments by this rank's rows, since torch may copy the arguments."""
        return args if self._passing is None else tuple(map(self._passing.own_rows, args))

    def _with_edges(self, args: tuple) -> tuple:
        return tuple(one.edges if isinstance(one, Untouched) else one for one in args)


@dataclass(frozen=True)
class Untouched:
    """Edges on their way through a function of torch that would copy them."""

    edges: SealedEdges


class HaloAgain(torch.autograd.Function):
    """Append to inner rows the halo rows that the first run received; gradients go to their owners as usual."""

    @staticmethod
    def forward(ctx, rows: torch.Tensor, halo: torch.Tensor, graph: LocalGraph, site: ExchangeSite) -> torch.Tensor:
        ctx.graph, ctx.site = graph, site
        return torch.cat([rows, halo])

    @staticmethod
    def backward(ctx, gradient: torch.Tensor):
        gradient, num_inner = gradient.contiguous(), ctx.graph.num_inner
        total = gradient[:num_inner].clone()
        ctx.graph.exchange.start_take_home(gradient[num_inner:], ctx.site).finish(total)
        return total, None, None, None


@contextmanager
def replaced(owner: Any, **attributes: Any) -> Iterator[None]:
    """Within the block, a module of torch or of Python has these attributes."""
    own = vars(owner)
    before = {name: own[name] for name in attributes if name in own}
    own.update(attributes)
    try:
        yield
    finally:
        for name in attributes:
            own.pop(name, None)
        own.update(before)


def checkpoints_on(model: nn.Module, graph: LocalGraph) -> AbstractContextManager:
    """Return `checkpoints` for a user's model on LocalGraph; a null context for built-in and distributed models."""
    if type(model).__module__.startswith("hpcgnn."):
        return nullcontext()
    return checkpoints(lambda function: Region(graph, function))


@contextmanager
def checkpoints(make: Callable[[Callable], Region]) -> Iterator[None]:
    """Within the block, checkpointed functions become regions.

    make : from a function to its Region
    """
    module = sys.modules["torch.utils.checkpoint"]
    reentrant, generator = getattr(module, REENTRANT), getattr(module, GENERATOR)

    class Reentrant:
        @staticmethod
        def apply(function: Callable, preserve: bool, *args: Any):
            region = make(function)
            args = region.rows_of(args)
            runs = iter((region.first,))

            def run(*given: Any) -> Any:
                return next(runs, region.again)(*given)

            return reentrant.apply(run, preserve, *(Untouched(one) if isinstance(one, SealedEdges) else one
                                                    for one in args))

    def whole(function: Callable, *args: Any, **kwargs: Any) -> Iterator[None]:
        region = make(function)
        steps = generator(region.again, *args, **kwargs)
        next(steps)
        region.begin()
        with ExitStack() as ended:
            ended.callback(region.end)
            try:
                yield
            except BaseException as error:
                steps.throw(error)
                raise
        yield from steps

    with replaced(module, **{REENTRANT: Reentrant, GENERATOR: whole}):
        yield
