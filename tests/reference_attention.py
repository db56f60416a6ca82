"""NumPy oracles of attention and maximum in float64, one row after the other. Nothing of hpcgnn is called."""

from __future__ import annotations

import numpy as np


def edge_softmax(indptr, indices, target, source, slope):
    """(num_entries, num_heads): softmax over each row's entries of LeakyReLU(target[v] + source[u])."""
    alpha = np.empty((len(indices), target.shape[1]))
    for v in range(len(indptr) - 1):
        score = target[v] + source[indices[indptr[v]:indptr[v + 1]]]
        score = np.where(score > 0, score, slope * score)
        power = np.exp(score - score.max(axis=0, initial=-np.inf))
        alpha[indptr[v]:indptr[v + 1]] = power / power.sum(axis=0)
    return alpha


def sampled_products(indptr, indices, left, right, num_heads):
    """(num_entries, num_heads): <left[v], right[u]> over each head's columns."""
    by_head = [rows.reshape(len(rows), num_heads, -1) for rows in (left, right)]
    target = np.repeat(np.arange(len(indptr) - 1), np.diff(indptr))
    return (by_head[0][target] * by_head[1][indices]).sum(axis=2)


def weighted_sum(indptr, indices, weight, h):
    """(num_rows, dim): sum over each row's entries of weight times the row of the entry, head by head."""
    num_heads = weight.shape[1]
    out = np.zeros((len(indptr) - 1, num_heads, h.shape[1] // num_heads))
    target = np.repeat(np.arange(len(indptr) - 1), np.diff(indptr))
    np.add.at(out, target, weight[:, :, None] * h.reshape(len(h), num_heads, -1)[indices])
    return out.reshape(len(out), -1)


def attend(indptr, indices, z, vectors, num_heads, slope):
    """(num_rows, dim): attention with the scores <z[v], vectors[0]> + <z[u], vectors[1]> of each head."""
    by_head = z.reshape(len(z), num_heads, -1)
    target, source = ((by_head * vector.reshape(num_heads, -1)).sum(axis=2) for vector in vectors)
    alpha = edge_softmax(indptr, indices, target[:len(indptr) - 1], source, slope)
    return weighted_sum(indptr, indices, alpha, z)


def maximum(indptr, indices, h):
    """(num_rows, dim) maxima over each row's entries, 0 without any, and the first row that has them, or -1."""
    num_rows, dim = len(indptr) - 1, h.shape[1]
    out, argmax = np.zeros((num_rows, dim)), np.full((num_rows, dim), -1, np.int32)
    for v in range(num_rows):
        entries = indices[indptr[v]:indptr[v + 1]]
        if len(entries):
            out[v], argmax[v] = h[entries].max(axis=0), entries[h[entries].argmax(axis=0)]
    return out, argmax


def central_differences(function, x, step=1e-5):
    """Gradient of a scalar float64 function at x, (function(x + step) - function(x - step)) / 2 step."""
    gradient = np.empty_like(x)
    for index in np.ndindex(x.shape):
        higher, lower = x.copy(), x.copy()
        higher[index] += step
        lower[index] -= step
        gradient[index] = (function(higher) - function(lower)) / (2 * step)
    return gradient
