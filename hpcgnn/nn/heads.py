"""Outputs of a model: one tensor, or several, called heads, of which the first is scored and predicted.

A model may return a tuple, a list or a dict of tensors with one row per node. In a dict or a NamedTuple, the head
"logits" is scored, or the first one without it. The entry "loss" of a dict is no head: it is a term that is added to
the training loss.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from hpcgnn.errors import ConfigError

SCORED, TERM = "logits", "loss"
Outputs = Any      # a tensor, or a tuple, list or dict of tensors


def entries_of(outputs: Outputs) -> dict[Any, torch.Tensor]:
    """All tensors by name or place, with the term of the loss."""
    if isinstance(outputs, torch.Tensor):
        return {SCORED: outputs}
    if isinstance(outputs, Mapping):
        return dict(outputs)
    names = getattr(outputs, "_fields", range(len(outputs)))      # of a NamedTuple
    return dict(zip(names, outputs, strict=True))


def scored(outputs: Outputs) -> torch.Tensor:
    """The head that is scored and predicted, (n, num_outputs)."""
    if isinstance(outputs, torch.Tensor):
        return outputs
    entries = entries_of(outputs)
    return entries[SCORED] if SCORED in entries else next(head for name, head in entries.items() if name != TERM)


def with_term(loss: torch.Tensor, outputs: Outputs, num_rows: float, num_ranks: int) -> torch.Tensor:
    """The loss with this rank's share of the term that a model adds to it, if it does.

    One value per row: the sum over this rank's rows, divided by `num_rows`, the rows of all ranks. One number, which
    all ranks have alike: an equal share for each rank.
    """
    term = outputs.get(TERM) if isinstance(outputs, Mapping) else None
    if term is None:
        return loss
    return loss + (term.float().sum() / num_rows if term.dim() else term.float() / num_ranks)


def check_entries(outputs: Outputs, num_rows: int, name: str) -> None:
    """Raise ConfigError if a model called `name` does not return floats with one row per node."""
    if isinstance(outputs, Mapping) and not outputs.keys() - {TERM}:
        raise ConfigError(f"{name} returns a dict without logits; its first entry must be what is scored")
    if not isinstance(outputs, torch.Tensor) and (not isinstance(outputs, (tuple, list, Mapping)) or not len(outputs)):
        raise ConfigError(f"{name} returns a {type(outputs).__name__}; its forward must return a tensor, (nodes, "
                          "outputs), or a tuple or dict of tensors, the first of which is scored")
    for key, entry in entries_of(outputs).items():
        what = "" if isinstance(outputs, torch.Tensor) else f" as its entry {key!r}"
        if not isinstance(entry, torch.Tensor):
            raise ConfigError(f"{name} returns a {type(entry).__name__}{what}; each must be a tensor with one row per "
                              "node, so leave others out")
        is_term = isinstance(outputs, Mapping) and key == TERM
        if is_term and entry.shape not in ((), (num_rows,)):
            raise ConfigError(f"{name} returns a tensor of shape {tuple(entry.shape)}{what}; a term of the loss is one "
                              f"value per row, ({num_rows},), or one number of weights alone")
        is_scored = entry is scored(outputs)
        if not is_term and (not entry.dim() or len(entry) != num_rows or (is_scored and entry.dim() != 2)):
            raise ConfigError(f"{name} returns a tensor of shape {tuple(entry.shape)}{what} for {num_rows} nodes; it "
                              f"must have one row per node, ({num_rows}, outputs)" + (
                                  ", also for one output: leave the squeeze out"
                                  if is_scored and entry.shape == (num_rows,) else ""))
        if not entry.is_floating_point():
            raise ConfigError(f"{name} returns numbers of type {str(entry.dtype).removeprefix('torch.')}{what}, and "
                              "no gradient passes through them; return logits")


@dataclass(frozen=True)
class Heads:
    """The form of several heads that are stored side by side in one matrix."""

    make: Callable[[dict[Any, torch.Tensor]], Outputs]      # from heads by name to what the model returns
    shapes: dict[Any, tuple[int, ...]]      # of one row of each head

    @classmethod
    def joined(cls, outputs: Outputs) -> tuple[torch.Tensor, Heads | None]:
        """All heads side by side, (n, columns) float32, and their form; a single tensor unchanged, and None."""
        if isinstance(outputs, torch.Tensor):
            return outputs, None
        heads = entries_of(outputs)
        if isinstance(outputs, Mapping):
            heads.pop(TERM, None)
            make: Callable = dict
        else:
            kind = type(outputs)
            build: Callable = getattr(kind, "_make", kind)      # a named tuple has _make

            def make(heads: dict[Any, torch.Tensor]) -> Outputs:
                return build(list(heads.values()))
        columns = [head.reshape(len(head), math.prod(head.shape[1:])).float() for head in heads.values()]
        return torch.cat(columns, dim=1), cls(make, {name: tuple(head.shape[1:]) for name, head in heads.items()})

    def split(self, rows: torch.Tensor) -> Outputs:
        parts = rows.split([math.prod(shape) for shape in self.shapes.values()], dim=1)
        return self.make({name: part.reshape(len(rows), *shape)
                          for (name, shape), part in zip(self.shapes.items(), parts, strict=True)})
