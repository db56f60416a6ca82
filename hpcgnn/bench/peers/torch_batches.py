"""`TorchBatches` runs the benchmark's networks in torch alone: a sparse product, and linear maps in floats or int8."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

import numpy as np
import scipy.sparse
import torch
import torch.nn.functional as F
from torch import nn

from hpcgnn.bench.peers.spmm import csr_tensor
from hpcgnn.graph.reductions import degree_factor
from hpcgnn.lowbit.inference.batches import Batches

if TYPE_CHECKING:
    from hpcgnn.bench.float_networks import FloatConvolution


class TorchBatches:
    """Runs a stack over batches, all of them in one product of torch.sparse.

    Parameters
    ----------
    features : (num_rows, num_features) float32, in the order of the batches
    is_int8 : bool      maps are dynamically quantized: int8 weights, and rows rounded to 8 bits in each product; only
                        on the host, with float32 rows
    storage : torch.dtype of rows, weights and the sparse matrix
    """

    def __init__(self, stack: list[FloatConvolution], batches: Batches, features: np.ndarray, is_int8: bool = False,
                 storage: torch.dtype = torch.float32, device: str = "cpu"):
        self._stack = stack = [one.stored(storage, device, norm_storage=storage) for one in stack]
        self._features = torch.from_numpy(features).to(device, storage)
        self._matrix = _matrix_of(stack[0], batches, storage, device)
        self._maps = [[None if weight is None else _quantized(linear_map(weight, bias), is_int8)
                       for weight, bias in ((one.weight, None), (one.own, None), (one.second, one.second_bias))]
                      for one in stack]

    def forward(self) -> np.ndarray:
        """Logits (num_rows, num_classes) float32 on the host."""
        return self.compute().float().cpu().numpy()

    @torch.inference_mode()
    def compute(self) -> torch.Tensor:
        """Logits on the device and in the dtype of the features; does not wait for a device."""
        h = self._features
        for number, (layer, (first, own, second)) in enumerate(zip(self._stack, self._maps, strict=True)):
            z = self._matrix @ first(h) + layer.bias
            if own is not None:
                z = z + own(h)
            if second is not None:
                z = second(F.relu(z))
            if number + 1 < len(self._stack):
                z = F.relu(normalized(layer, z))
            h = z
        return h


def normalized(layer: FloatConvolution, rows: torch.Tensor) -> torch.Tensor:
    return rows if layer.norm_weight is None else F.layer_norm(
        rows, rows.shape[1:], layer.norm_weight, layer.norm_bias, layer.norm_eps)


def linear_map(weight: torch.Tensor, bias: torch.Tensor | None) -> nn.Linear:
    made = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None, device=weight.device, dtype=weight.dtype)
    made.weight.data.copy_(weight)
    if bias is not None:
        made.bias.data.copy_(bias)
    return made


def _quantized(made: nn.Linear, is_int8: bool) -> nn.Module:
    if not is_int8:
        return made
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")      # torch calls it deprecated, but has no replacement for linear maps
        return torch.ao.quantization.quantize_dynamic(nn.Sequential(made), {nn.Linear}, torch.qint8)


def _matrix_of(layer: FloatConvolution, batches: Batches, storage: torch.dtype, device: str) -> torch.Tensor:
    # Sums over neighbors, and the row itself if the kind adds it.
    size = batches.num_rows
    matrix = scipy.sparse.csr_matrix((np.ones(len(batches.indices), np.float32), batches.indices, batches.indptr),
                                     (size, size))
    if layer.kind == "gcn":
        factor = scipy.sparse.diags(degree_factor(batches.in_degree, "gcn"))
        matrix = factor @ (matrix + scipy.sparse.identity(size, np.float32)) @ factor
    elif layer.kind == "gin":
        matrix = matrix + scipy.sparse.identity(size, np.float32) * np.float32(1 + layer.epsilon)
    else:
        matrix = scipy.sparse.diags(degree_factor(batches.in_degree, "mean")) @ matrix
    matrix = matrix.tocsr().astype(np.float32)
    return csr_tensor(matrix.indptr, matrix.indices, torch.from_numpy(matrix.data).to(device, storage), device)
