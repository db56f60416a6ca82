"""keep saves rows for a layer's backward pass as its graph stores them, as they are or as codes; KeptRows reads them
there.

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


class KeptRows:
    """What `keep` saved, taken over by the backward pass, which gives back what it has read.

    Attributes
    ----------
    before : tensors or None each      as `keep` was given them
    """

    def __init__(self, ctx) -> None:
        saved, self._stores = ctx.saved_tensors, ctx.stores
        self._values = list(saved[:len(self._stores)])
        self.before = saved[len(self._stores):]
        ctx.maybe_clear_saved_tensors()

    def weight_gradient(self, place: int, gradient: torch.Tensor) -> torch.Tensor:
        """Return gradient.T @ rows, (out_dim, dim) float32, of the rows that `keep` was given at a place.

        Codes are decoded block by block, so that the rows are never there as a whole.

        Parameters
        ----------
        gradient : (n, out_dim)      of the first n of the rows
        """
        values, store = self._values[place], self._stores[place]
        if store is None:
            return weight_gradient(gradient, values[:len(gradient)])
        total = torch.zeros(gradient.shape[1], store.dim, device=gradient.device)
        for span, rows in store.decode(values):
            part = gradient[span]
            total += weight_gradient(part, rows[:len(part)])
        return total

    def give_back(self, place: int) -> None:
        """Let go of the rows at a place: their memory is free for what the pass makes next."""
        self._values[place] = None
