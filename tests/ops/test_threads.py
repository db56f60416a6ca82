"""The bits of every kernel's result do not depend on the number of OpenMP threads."""

from __future__ import annotations

import os
import subprocess
import sys

# Runs in a process of its own: OpenMP reads its thread count once, when the first kernel is called.
PROGRAM = """
import hashlib
import numpy as np
import torch
from hpcgnn._ext import pointwise, quantization
from hpcgnn.ops.aggregation import from_csr, multiply

rng = np.random.default_rng(0)
n, dim, degree = 3000, 130, 11
h = rng.normal(size=(n, dim)).astype(np.float32)
index, node_id = np.arange(n, dtype=np.int32), np.arange(n)
dropped = np.empty_like(h)
matrix = from_csr(np.arange(n + 1) * degree, rng.integers(0, n, n * degree).astype(np.int32), n, num_self=n,
                  column_scale=rng.random(n).astype(np.float32))
aggregated = multiply(matrix, torch.from_numpy(h)).numpy()
pointwise.dropout_rows(h, node_id, 1, 2, 3, 20000, 1.5, dropped)
whole = np.empty(4 * n + n * dim // 2, np.uint8)
arguments = index, node_id, np.full(n, 4, np.uint8), 4 * n + node_id * (dim // 2), 4 * node_id
quantization.quantize_rows(h, *arguments, 1, 2, 3, whole)
received = np.ones_like(h)
quantization.dequantize_rows(whole, *arguments, True, received)
for result in (aggregated, dropped, whole, received):
    print(hashlib.sha256(result).hexdigest())
"""


def digests(num_threads):
    environment = dict(os.environ, OMP_NUM_THREADS=str(num_threads))
    return subprocess.run([sys.executable, "-c", PROGRAM], env=environment, check=True, capture_output=True,
                          text=True).stdout.split()


def test_results_do_not_depend_on_the_number_of_threads():
    one = digests(1)
    assert len(set(one)) == 4
    assert digests(2) == digests(5) == one
