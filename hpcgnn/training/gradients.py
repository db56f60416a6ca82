"""FlatGradients: all gradients of a model in one buffer, so that one Allreduce sums them over the ranks."""

from __future__ import annotations

import torch
from mpi4py import MPI
from torch import nn

from hpcgnn.exchange.transport import HOST, Transport


class FlatGradients:
    """Parameters' `.grad` are views of one float32 buffer beside them, which autograd accumulates into.

    Parameters
    ----------
    model : nn.Module          its parameters on one device
    transport : Transport      how the buffer reaches the other ranks
    """

    def __init__(self, model: nn.Module, transport: Transport = HOST):
        parameters, self._transport = list(model.parameters()), transport
        self._flat = torch.zeros(sum(parameter.numel() for parameter in parameters), device=parameters[0].device)
        start = 0
        for parameter in parameters:
            parameter.grad = self._flat[start:start + parameter.numel()].view_as(parameter)
            start += parameter.numel()

    def zero(self) -> None:
        """Forget the last step's gradients."""
        self._flat.zero_()

    def sum_over_ranks(self, comm: MPI.Comm) -> None:
        """Collective: replace every gradient by its sum over the ranks."""
        self._transport.sum_over_ranks(comm, self._flat)

    def unscale(self, scale: float) -> bool:
        """Divide by the loss scale; whether all gradients are finite."""
        self._flat /= scale
        return bool(torch.isfinite(self._flat).all())
