"""keep saves rows for a layer's backward pass as its graph stores them, as they are or as codes; weight_gradient_of
reads them.

How codes are made is not known here.
"""

from __future__ import annotations

import torch

from hpcgnn.graph.local_graph import LocalGraph
from hpcgnn.ops.dense import weight_gradient


def keep(ctx, graph: LocalGraph | None, *rows: torch.Tensor | None,
         before: tuple[torch.Tensor | None, ...] = ()) -> None:
    """Save rows for the backward pass of a torch.autograd.Function.

    Parameters
    ----------
    ctx : of the function
    graph : LocalGraph or None      which says how rows are stored; None keeps them as they are
    rows : (n, dim) each, of the first n inner nodes, or None
    before : tensors or None each   that an activation keeps, as they are
    """
    ctx.stores = [None if graph is None or values is None else graph.next_store(values) for values in rows]
    ctx.save_for_backward(*(values if store is None else store.encode(values)
                            for values, store in zip(rows, ctx.stores, strict=True)), *before)


def kept_before(ctx) -> tuple[torch.Tensor | None, ...]:
    """Return what `keep` was given as `before`."""
    return ctx.saved_tensors[len(ctx.stores):]


def let_go(ctx) -> None:
    """Give back what was kept, before backward ends: nothing of it can be read any more."""
    ctx.maybe_clear_saved_tensors()


def weight_gradient_of(ctx, place: int, gradient: torch.Tensor) -> torch.Tensor:
    """Return gradient.T @ rows, (out_dim, dim) float32, of the rows that `keep` was given at a place.

    Codes are decoded block by block, so that the rows are never there as a whole.

    Parameters
    ----------
    gradient : (n, out_dim)      of the first n of the rows
    """
    values, store = ctx.saved_tensors[place], ctx.stores[place]
    if store is None:
        return weight_gradient(gradient, values[:len(gradient)])
    total = torch.zeros(gradient.shape[1], store.dim, device=gradient.device)
    for span, rows in store.decode(values):
        part = gradient[span]
        total += weight_gradient(part, rows[:len(part)])
    return total
