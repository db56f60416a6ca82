"""FloatBatches runs the benchmark's networks in floats on hpcgnn's kernels. Nothing is timed here."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from hpcgnn.bench.float_networks import FloatConvolution, SeenRows
from hpcgnn.graph.normalization import degree_factor
from hpcgnn.inference.batches.cut import Batches
from hpcgnn.ops.aggregation import SparseRows, from_csr, multiply
from hpcgnn.ops.dense import map_rows
from hpcgnn.ops.pointwise import Activation


class FloatBatches:
    """Runs a stack over batches, all of them in one product.

    Parameters
    ----------
    features : (num_rows, num_features) float32, in the order of the batches
    storage : float32, bfloat16 or float16, of rows and weights; a LayerNorm is float32
    device : what torch calls the place of rows and weights

    Attributes
    ----------
    features : (num_rows, num_features) of `storage`, on the device
    """

    def __init__(self, stack: list[FloatConvolution], batches: Batches, features: np.ndarray,
                 storage: torch.dtype = torch.float32, device: str = "cpu"):
        self._stack = [layer.stored(storage, device) for layer in stack]
        self.features = torch.from_numpy(features).to(device, storage)
        self._matrix = _matrix_of(stack[0].kind, batches)

    @property
    def row_bytes(self) -> int:
        """Count the bytes of the features and of the rows that are in memory at once in the widest layer."""
        columns = [(0 if number == 0 else layer.weight.shape[1]) + 2 * len(layer.weight)
                   + (0 if layer.second is None else len(layer.second)) for number, layer in enumerate(self._stack)]
        return self.features.nbytes + len(self.features) * max(columns) * self.features.element_size()

    def forward(self, seen: list[SeenRows] | None = None) -> np.ndarray:
        """Return logits (num_rows, num_classes) float32 on the host; `seen` gets what each convolution sees there."""
        return self.compute(seen).float().cpu().numpy()

    def compute(self, seen: list[SeenRows] | None = None) -> torch.Tensor:
        """Return logits where the features lie and as they are stored; a device is not waited for."""
        h = self.features
        for number, layer in enumerate(self._stack):
            mapped = map_rows(h, layer.weight)
            z = multiply(self._matrix, mapped).add_(layer.bias)
            if layer.own is not None:
                map_rows(h, layer.own, z)
            if layer.second is not None:
                z.add_(mapped, alpha=1 + layer.epsilon)
                hidden = F.relu_(z)
                z = map_rows(hidden, layer.second).add_(layer.second_bias)
            if seen is not None:
                factor = self._matrix.column_scale
                scaled = mapped if factor is None else mapped * torch.from_numpy(factor)[:, None]
                seen.append((h, scaled) if layer.second is None else (h, scaled, hidden))
            h = z if number + 1 == len(self._stack) else _activated(layer, z)
        return h


def _activated(layer: FloatConvolution, rows: torch.Tensor) -> torch.Tensor:
    """LayerNorm where there is one, and ReLU, where the rows lie."""
    activation = Activation.of(rows, 0.0, None, None, layer.norm_weight, layer.norm_bias, layer.norm_eps)
    return activation.forward(rows, rows)[0]


def _matrix_of(kind: str, batches: Batches) -> SparseRows:
    scaling: dict[str, Any] = {}
    if kind == "sage":
        scaling = {"row_scale": degree_factor(batches.in_degree, "mean")}
    if kind == "gcn":
        factor = degree_factor(batches.in_degree, "gcn")
        scaling = {"num_self": batches.num_rows, "row_scale": factor, "column_scale": factor}
    return from_csr(batches.indptr, batches.indices, batches.num_rows, **scaling)
