"""FlatGradients: all gradients of a model in one buffer, so that one Allreduce sums them over the ranks."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import nn

ALIGNMENT = 16     # floats: every parameter begins on a cache line


class FlatGradients:
    """Parameters' `.grad` are views of one float32 buffer beside them, which autograd accumulates into.

    Parameters
    ----------
    model : nn.Module          its parameters on one device; those that need no gradient are left out

    Attributes
    ----------
    flat : 1-D float32               the buffer, with zeros between parameters
    places : dict of slices of it, by parameter
    """

    def __init__(self, model: nn.Module):
        self.places, end = {}, 0
        for parameter in (one for one in model.parameters() if one.requires_grad):
            start = -(-end // ALIGNMENT) * ALIGNMENT
            end = start + parameter.numel()
            self.places[parameter] = slice(start, end)
        self.flat = torch.zeros(end, device=next(iter(self.places)).device)
        for parameter, place in self.places.items():
            parameter.grad = self.flat[place].view_as(parameter)

    def zero(self) -> None:
        """Forget the last step's gradients."""
        self.flat.zero_()

    def clip(self, largest: float) -> None:
        """Scale all gradients together so that their norm is no more than `largest`, unless they are not finite.

        The norm is summed in float64 by one thread, so that ranks with the same gradients scale them alike.
        """
        norm = float(np.sqrt(np.square(self.flat.cpu().numpy(), dtype=np.float64).sum()))
        if largest < norm < math.inf:
            self.flat *= largest / norm

    def unscale(self, scale: float) -> bool:
        """Divide by the loss scale; whether all gradients are finite."""
        self.flat /= scale
        return bool(torch.isfinite(self.flat).all())
