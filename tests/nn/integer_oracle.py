"""The arithmetic of `hpcgnn.quantized.integer_model` on a whole graph in NumPy, with every code kept."""

from __future__ import annotations

import numpy as np
from scipy.special import softmax

SLOPE = 0.2


def round_to_codes(values, step, max_code):
    """sign(x) min(floor(|x| / step + 0.5), max_code), in float32 as the model is."""
    values, step = np.float32(values), np.float32(step)
    return (np.sign(values) * np.minimum(np.floor(np.abs(values) / step + np.float32(0.5)), max_code)).astype(np.int64)


def row_codes(scale, rows, in_degree):
    entry = np.minimum(in_degree, len(scale.step) - 1)
    max_code = 2 ** (scale.bit_width.astype(np.int64) - scale.is_signed) - 1
    return round_to_codes(rows, scale.step[entry, None], max_code[entry, None]), scale.step[entry, None]


def column_codes(scale, rows):
    return round_to_codes(rows, scale.step, 2 ** (scale.bit_width - 1) - 1)


def mapped_by(weights, codes, step):
    """Rows times an integer map, as values."""
    return (codes @ weights.codes.astype(np.int64).T) * step * weights.scale.step


def attended(one, values, dataset):
    """GAT's weighted sums of (num_nodes, dim) values, each head its own columns."""
    num_nodes, heads = dataset.num_nodes, one.heads
    by_head = values.reshape(num_nodes, heads, -1)
    score = [np.einsum("nhd,hd->nh", by_head, vector.reshape(heads, -1)) for vector in one.attention]
    out = np.empty_like(by_head)
    for node in range(num_nodes):
        sources = np.append(dataset.indices[dataset.indptr[node]:dataset.indptr[node + 1]], node)
        raw = score[0][node] + score[1][sources]
        alpha = softmax(np.where(raw > 0, raw, SLOPE * raw), axis=0)
        out[node] = np.einsum("eh,ehd->hd", alpha, by_head[sources])
    return out.mean(axis=1) if one.averages_heads else out.reshape(num_nodes, -1)


def convolve(one, rows, dataset):
    """One integer convolution before normalization: z, and its codes of rows and mapped rows."""
    degree = np.diff(dataset.indptr)
    codes, step = row_codes(one.rows, rows, degree)
    scale = (degree[:, None] + 1) ** -0.5 if one.kind == "gcn" else 1.0
    mapped = column_codes(one.mapped, mapped_by(one.neighbor, codes, step) * scale)
    target = np.repeat(np.arange(dataset.num_nodes), degree)
    sums = np.zeros_like(mapped)
    np.add.at(sums, target, mapped[dataset.indices])
    found = {"rows": codes, "mapped": mapped}
    if one.kind == "gcn":
        z = (sums + mapped) * scale * one.mapped.step + one.bias
    elif one.kind == "sage":
        z = sums / np.maximum(degree, 1)[:, None] * one.mapped.step + mapped_by(one.own, codes, step) + one.bias
    elif one.kind == "gin":
        hidden = np.maximum((sums + (1 + one.epsilon) * mapped) * one.mapped.step + one.bias, 0)
        found["second"], second_step = row_codes(one.second_rows, hidden, degree)
        z = mapped_by(one.second, found["second"], second_step) + one.second_bias
    else:
        z = attended(one, mapped * one.mapped.step.astype(np.float64), dataset) + one.bias
    return z, found


def infer(model, dataset):
    """Logits of all nodes, and the codes of every convolution."""
    rows, codes = dataset.features, []
    for number, one in enumerate(model.convolutions):
        rows, found = convolve(one, rows, dataset)
        codes.append(found)
        if one.norm is not None:
            centered = rows - rows.mean(axis=1, keepdims=True)
            rows = centered / np.sqrt(rows.var(axis=1, keepdims=True) + one.norm.eps) * one.norm.weight + one.norm.bias
        if number + 1 < len(model.convolutions):
            rows = np.maximum(rows, 0)
    return rows, codes
