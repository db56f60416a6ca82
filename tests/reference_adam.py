"""A step of Adam number by number: buffers, the formula in float64, and the hash of weights."""

from __future__ import annotations

import numpy as np
import torch


def buffers(size, seed=0):
    """weights, gradient, lr, decay, mean, square."""
    random = torch.Generator().manual_seed(seed)
    weights, gradient, mean = (torch.randn(size, generator=random) for _ in range(3))
    lr, decay, square = (torch.rand(size, generator=random) for _ in range(3))
    return [weights, gradient, 0.1 * lr, decay, mean, square]


def formula(weights, gradient, lr, decay, mean, square, number):
    """Kingma and Ba's algorithm 1 with L2 decay, in float64."""
    weights, gradient, lr, decay, mean, square = (tensor.double().numpy() for tensor in (weights, gradient, lr, decay,
                                                                                         mean, square))
    slope = gradient + decay * weights
    mean, square = 0.9 * mean + 0.1 * slope, 0.999 * square + 0.001 * slope ** 2
    unbiased_mean, unbiased_square = mean / (1 - 0.9 ** number), square / (1 - 0.999 ** number)
    return weights - lr * unbiased_mean / (np.sqrt(unbiased_square) + 1e-8), mean, square


def hash_of(weights):
    """What ext/src/adam_body.h says, number by number."""
    low = high = 0
    for index, bits in enumerate(weights.numpy().view(np.uint32).tolist()):
        mixed = bits ^ (index * 0x9E3779B1 % 2 ** 32)
        mixed = (mixed ^ mixed >> 16) * 0x85EBCA6B % 2 ** 32
        mixed ^= mixed >> 13
        low += mixed
        mixed = mixed * 0xC2B2AE35 % 2 ** 32
        high += mixed ^ (mixed >> 16)
    return (high % 2 ** 32) << 32 | low % 2 ** 32
