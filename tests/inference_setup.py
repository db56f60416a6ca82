"""Small work of `hpcgnn bench inference`: a graph, a drawn network on its batches, its oracle, and files of both."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import scipy.sparse

from hpcgnn.bench.float_networks import FloatBatches, integer_model, random_stack
from hpcgnn.lowbit.inference.batches import cut_batches
from hpcgnn.lowbit.inference.model_file import write_model
from hpcgnn.shards.schema import Fingerprint


def some_graph(num_nodes=120, seed=0):
    """A symmetric graph, and features from 0 to 1."""
    rng = np.random.default_rng(seed)
    chosen = np.triu(rng.random((num_nodes, num_nodes)) < 0.1, 1)
    matrix = scipy.sparse.csr_matrix(chosen | chosen.T)
    features = rng.uniform(0, 1, (num_nodes, 20)).astype(np.float32)
    return matrix.indptr.astype(np.int64), matrix.indices.astype(np.int32), features


def some_work(kind, num_clusters=8, batch_size=2, has_norm=True):
    indptr, indices, features = some_graph()
    batches = cut_batches(indptr, indices, num_clusters, batch_size)
    in_degree = np.diff(indptr)[batches.node_id]
    return random_stack(kind, [20, 8, 8, 3], 8, has_norm), batches, features[batches.node_id], in_degree


def float_oracle(stack, batches, h):
    """Dense, in float64."""
    shape = batches.num_rows, batches.num_rows
    matrix = scipy.sparse.csr_matrix((np.ones(len(batches.indices)), batches.indices, batches.indptr), shape).toarray()
    if stack[0].kind == "gcn":
        matrix += np.eye(len(matrix))
        factor = 1 / np.sqrt(matrix.sum(axis=1))
        matrix *= factor[:, None] * factor
    for number, layer in enumerate(stack):
        mapped = h @ layer.weight.double().numpy().T
        if layer.kind == "gcn":
            z = matrix @ mapped
        elif layer.kind == "sage":
            mean = matrix / np.maximum(matrix.sum(axis=1, keepdims=True), 1)
            z = mean @ mapped + h @ layer.own.double().numpy().T
        else:
            z = np.maximum(matrix @ mapped + (1 + layer.epsilon) * mapped, 0) @ layer.second.double().numpy().T
        if layer.norm_weight is not None:
            centered = z - z.mean(axis=1, keepdims=True)
            z = centered / np.sqrt((centered**2).mean(axis=1, keepdims=True) + layer.norm_eps)
            z = z * layer.norm_weight.double().numpy() + layer.norm_bias.double().numpy()
        h = z if number + 1 == len(stack) else np.maximum(z, 0)
    return h


def write_archive(path):
    """The graph as an archive that the command reads."""
    indptr, indices, features = some_graph()
    np.savez(path, indptr=indptr, indices=indices, features=features, labels=np.arange(len(features)) % 4)
    return path


def archive_of(path, dataset):
    """A whole dataset as an archive, with its splits."""
    np.savez(path, indptr=dataset.indptr, indices=dataset.indices, features=dataset.features, labels=dataset.labels,
             num_classes=np.int64(dataset.num_classes), train_mask=dataset.train_mask, val_mask=dataset.val_mask,
             test_mask=dataset.test_mask)
    return path


def trained_file(path, kind, num_nodes=120, name="made"):
    """A model file of the archive's graph, as hpcgnn quantize writes it."""
    stack, batches, rows, _ = some_work(kind)
    seen = []
    FloatBatches(stack, batches, rows).forward(seen)
    model = replace(integer_model(stack, 4, seen, name), num_nodes=num_nodes)
    write_model(path, model, Fingerprint("0" * 32, "1" * 32, "2" * 32))
    return path
