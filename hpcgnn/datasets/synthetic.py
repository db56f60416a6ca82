"""`synthetic:SETTINGS`: a degree-corrected stochastic block model with power-law degrees, planted labels and features
that depend on the class. Edges are drawn in chunks, so tens of millions need little more memory than the graph.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from hpcgnn.datasets.assemble import assemble_dataset
from hpcgnn.datasets.block_model import BlockModel, parse_block_model
from hpcgnn.datasets.cleaning import BYTES_A_NODE, build_csr
from hpcgnn.datasets.dataset import GraphDataset
from hpcgnn.datasets.limits import check_memory
from hpcgnn.datasets.options import SourceOptions
from hpcgnn.datasets.row_files import RowFile, keep_rows
from hpcgnn.datasets.synthetic_edges import draw_edges

FEATURE_BLOCK_ROWS = 1 << 16
COMPANION_PROBABILITY, STRAY_PROBABILITY = 0.5, 0.02


def load_synthetic(rest: str, options: SourceOptions) -> GraphDataset:
    """Generate the graph that the settings `rest` describe: undirected, named "synthetic", split at random.

    Reference: Karrer and Newman, Phys. Rev. E 83, 016107 (2011), the degree-corrected block model. Deviation: the
    numbers of edges inside and between classes are fixed rather than Poisson, and no pair is drawn twice, so mean
    degree and homophily are met exactly.

    Raises
    ------
    DatasetError      settings that are unknown, out of range or too dense
    """
    model = parse_block_model(rest, options.seed)
    feature_bytes = 4 * model.features if options.scratch is None else 0
    check_memory("synthetic", f"{model.nodes:,} nodes and {model.num_undirected_edges:,} edges",
                 model.nodes * (feature_bytes + BYTES_A_NODE) + 8 * model.num_undirected_edges)
    class_rng, edge_rng, label_rng, feature_rng = map(np.random.default_rng,
                                                      np.random.SeedSequence(model.seed).spawn(4))
    block = class_rng.integers(model.classes, size=model.nodes)
    source, target = draw_edges(model, block, edge_rng, options.progress("drawing edges", model.num_undirected_edges))
    graph = build_csr(source, target, model.nodes, True, "synthetic", options.progress, options.scratch)
    del source, target
    labels = _multi_labels(block, model.classes, label_rng) if model.multi_label else block
    features = _draw_features(model, labels, feature_rng, options) if options.features != "structural" else None
    return assemble_dataset("synthetic", graph, features, labels, model.classes, None,
                            replace(options, seed=model.seed))


def _multi_labels(block: np.ndarray, num_classes: int, rng: np.random.Generator) -> np.ndarray:
    """Indicator rows: the block, the next class with COMPANION_PROBABILITY, any other with STRAY_PROBABILITY."""
    nodes = np.arange(len(block))
    labels = (rng.random((len(block), num_classes), dtype=np.float32) < STRAY_PROBABILITY).astype(np.uint8)
    has_companion = rng.random(len(block)) < COMPANION_PROBABILITY
    labels[nodes[has_companion], (block[has_companion] + 1) % num_classes] = 1
    labels[nodes, block] = 1
    return labels


def _draw_features(model: BlockModel, labels: np.ndarray, rng: np.random.Generator,
                   options: SourceOptions) -> np.ndarray | RowFile:
    """Standard normal noise around a random mean row a class; a node of several classes has the sum of their means."""
    means = rng.standard_normal((model.classes, model.features))
    means = (model.signal * means / np.linalg.norm(means, axis=1, keepdims=True)).astype(np.float32)
    task = options.progress("drawing features", model.nodes)

    def blocks() -> Iterator[np.ndarray]:
        for start in range(0, model.nodes, FEATURE_BLOCK_ROWS):
            label = labels[start:start + FEATURE_BLOCK_ROWS]
            features = rng.standard_normal((len(label), model.features), dtype=np.float32)
            features += label @ means if labels.ndim == 2 else means[label]
            task.advance(len(label))
            yield features

    return keep_rows(blocks(), options.scratch, "drawn features")
