"""NumPy oracles of integer models: integers in int64, values in float64 where rounding may differ, plain loops."""

from __future__ import annotations

import numpy as np

SLOPE = 0.2


def codes_of(rows, step, limit):
    """sign(x) min(floor(|x| / step + 0.5), limit), int64."""
    return (np.sign(rows) * np.minimum(np.floor(np.abs(rows) / step + 0.5), limit)).astype(np.int64)


def row_codes(scale, rows, in_degree):
    """Codes by in-degree and the step of each row, (n, dim) int64 and (n, 1) float32."""
    entry = np.minimum(in_degree, len(scale.step) - 1)
    limit = (1 << (scale.bit_width[entry].astype(np.int64) - scale.is_signed)) - 1
    return codes_of(rows, scale.step[entry][:, None], limit[:, None]), scale.step[entry][:, None]


def factor_of(kind, in_degree):
    """c and r of a kind, (n, 1) float32 each."""
    degree = in_degree.astype(np.float64)[:, None]
    one = np.ones((len(degree), 1), np.float32)
    if kind == "gcn":
        return (2 * ((1 / np.sqrt(degree + 1)).astype(np.float32),))
    return one, (1 / np.maximum(degree, 1)).astype(np.float32) if kind == "sage" else one


def sum_neighbors(indptr, indices, codes):
    """S, (n, dim) int64."""
    return np.stack([codes[indices[indptr[v]:indptr[v + 1]]].sum(axis=0) for v in range(len(indptr) - 1)])


def attention_of(convolution, indptr, indices, mapped):
    """softmax over N(v) and v of the scores of B, times B: (n, mapped_dim) float64 without the mapped steps."""
    heads = convolution.heads
    by_head = mapped.reshape(len(mapped), heads, -1)
    vectors = (convolution.attention.astype(np.float64) * convolution.mapped.step).reshape(2, heads, -1)
    target, source = ((by_head * vector).sum(axis=2) for vector in vectors)
    out = np.empty(by_head.shape)
    for v in range(len(mapped)):
        near = np.append(indices[indptr[v]:indptr[v + 1]], v)
        score = target[v] + source[near]
        score = np.where(score > 0, score, SLOPE * score)
        weight = np.exp(score - score.max(axis=0))
        out[v] = (weight[:, :, None] * by_head[near]).sum(axis=0) / weight.sum(axis=0)[:, None]
    return out.reshape(len(mapped), -1)


def convolve(convolution, codes, step, indptr, indices, in_degree):
    """z of one convolution, float32 in the order that the contract's implementation states, and B."""
    c, r = factor_of(convolution.kind, in_degree)
    product = codes @ convolution.neighbor.codes.astype(np.int64).T
    scale = convolution.mapped
    ratio = convolution.neighbor.scale.step / scale.step
    mapped = codes_of(product.astype(np.float32) * (step * c) * ratio, np.float32(1), scale.max_code)
    if convolution.kind == "gat":
        return attend(convolution, indptr, indices, mapped), mapped
    sums = sum_neighbors(indptr, indices, mapped)
    if convolution.kind in ("gcn", "gin"):
        sums = sums + mapped
    z = sums.astype(np.float32)
    if convolution.kind == "gin":
        z = z + mapped.astype(np.float32) * np.float32(convolution.epsilon)
    z = z * r * scale.step if convolution.kind in ("gcn", "sage") else z * scale.step
    if convolution.own is not None:
        own = codes @ convolution.own.codes.astype(np.int64).T
        z = z + own.astype(np.float32) * step * convolution.own.scale.step
    z = z + convolution.bias
    if convolution.kind == "gin":
        z = second_map(convolution, np.maximum(z, 0), in_degree)
    return z, mapped


def attend(convolution, indptr, indices, mapped):
    z = (attention_of(convolution, indptr, indices, mapped) * convolution.mapped.step)
    if convolution.averages_heads:
        z = z.reshape(len(z), convolution.heads, -1).mean(axis=1)
    return (z + convolution.bias).astype(np.float32)


def second_map(convolution, rows, in_degree):
    codes, step = row_codes(convolution.second_rows, rows, in_degree)
    product = codes @ convolution.second.codes.astype(np.int64).T
    return product.astype(np.float32) * step * convolution.second.scale.step + convolution.second_bias


def layer_norm(rows, norm):
    rows = rows.astype(np.float64)
    centered = rows - rows.mean(axis=1, keepdims=True)
    scale = 1 / np.sqrt((centered ** 2).mean(axis=1, keepdims=True) + norm.eps)
    return (centered * scale * norm.weight + norm.bias).astype(np.float32)


def forward(model, rows, indptr, indices, in_degree):
    """Logits, embeddings, and the codes and mapped codes of every convolution."""
    h, all_codes, all_mapped = rows, [], []
    for number, convolution in enumerate(model.convolutions):
        codes, step = row_codes(convolution.rows, h, in_degree)
        z, mapped = convolve(convolution, codes, step, indptr, indices, in_degree)
        all_codes.append(codes)
        all_mapped.append(mapped)
        if number == len(model.convolutions) - 1:
            return z, h, all_codes, all_mapped
        z = z if convolution.norm is None else layer_norm(z, convolution.norm)
        h = np.maximum(z, 0)
    return None
