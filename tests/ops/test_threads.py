"""The bits of every kernel's result do not depend on the number of OpenMP threads."""

from __future__ import annotations

import os
import subprocess
import sys

from fork_server import served

# Runs in a process of its own: OpenMP reads its thread count once, when the first kernel is called.
PROGRAM = """
import hashlib
import numpy as np
import torch
from hpcgnn.ops.aggregation import from_csr, multiply
from hpcgnn.ops.counter import DROPOUT, CounterKey
from hpcgnn.ops.dense import column_sums
from hpcgnn.ops.fake_quantization import quantize_values_backward
from hpcgnn.ops.pointwise import activate, dropout
from hpcgnn.ops.quantization import MessageLayout, dequantize_rows, quantize_rows

rng = np.random.default_rng(0)
n, dim, degree = 3000, 130, 11
h = torch.from_numpy(rng.normal(size=(n, dim)).astype(np.float32))
index, node_id, key = np.arange(n, dtype=np.int32), np.arange(n), CounterKey(1, 2, 0, 3)
matrix = from_csr(np.arange(n + 1) * degree, rng.integers(0, n, n * degree).astype(np.int32), n, num_self=n,
                  column_scale=rng.random(n).astype(np.float32))
aggregated = multiply(matrix, h).numpy()
dropped = dropout(h, 0.3, node_id, key).numpy()
layout = MessageLayout.build(np.full(n, 4), dim)
whole = np.empty(layout.num_bytes, np.uint8)
quantize_rows(h, index, node_id, layout, key, whole)
received = torch.ones(n, dim)
dequantize_rows(whole, index, node_id, layout, received, accumulate=True)
received_rows, received, sums = received, received.numpy(), column_sums(h).numpy()
limit = torch.full((1, 1), 7.0)
by_row = quantize_values_backward(h, torch.full((n, 1), 0.1), limit, received_rows).of_step.numpy()
by_column = quantize_values_backward(h, torch.full((1, dim), 0.1), limit, received_rows).of_step.numpy()
rows, weight, bias = (torch.from_numpy(rng.normal(size=shape).astype(np.float32)).requires_grad_()
                      for shape in ((n + 1, dim), (dim,), (dim,)))
activated = activate(rows, 0.5, np.arange(n + 1), CounterKey(1, 2, DROPOUT, 3), weight, bias)
activated.backward(torch.from_numpy(rng.normal(size=(n + 1, dim)).astype(np.float32)))
of_activation = [one.detach().numpy() for one in (activated, rows.grad, weight.grad, bias.grad)]
for result in (aggregated, dropped, whole, received, sums, by_row, by_column, *of_activation):
    print(hashlib.sha256(result).hexdigest())
"""


def digests(command, num_threads):
    environment = dict(os.environ, OMP_NUM_THREADS=str(num_threads))
    return subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout.split()


def test_results_do_not_depend_on_the_number_of_threads():
    one = digests(served(["-c", PROGRAM]), 1)
    assert len(set(one)) == 11
    assert digests([sys.executable, "-c", PROGRAM], 5) == one
