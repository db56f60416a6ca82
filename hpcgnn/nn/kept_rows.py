"""keep and kept save rows between a layer's forward and backward pass as its graph stores them: as they are, or codes.

How codes are made is not known here.
"""

from __future__ import annotations

import torch

from hpcgnn.graph.local_graph import LocalGraph


def keep(ctx, graph: LocalGraph | None, *rows: torch.Tensor | None) -> None:
    """Save rows for the backward pass of a torch.autograd.Function.

    Parameters
    ----------
    ctx : of the function
    graph : LocalGraph or None      which says how rows are stored; None keeps them as they are
    rows : (n, dim) each, of the first n inner nodes, or None
    """
    ctx.stores = [None if graph is None or values is None else graph.next_store(values) for values in rows]
    ctx.save_for_backward(*(values if store is None else store.encode(values)
                            for values, store in zip(rows, ctx.stores, strict=True)))


def kept(ctx, place: int) -> torch.Tensor | None:
    """Return the rows that `keep` was given at a place; codes are decoded at every call, so that one layer's are in
    memory at a time.
    """
    values, store = ctx.saved_tensors[place], ctx.stores[place]
    return values if store is None else store.decode(values)
