"""The bits of every kernel's result do not depend on the number of threads, which are those of torch."""

from __future__ import annotations

import numpy as np
import torch

from hpcgnn.ops.aggregation import from_csr, multiply
from hpcgnn.ops.counter import DROPOUT, CounterKey
from hpcgnn.ops.dense import column_sums
from hpcgnn.ops.fake_quantization import quantize_values_backward
from hpcgnn.ops.pointwise import activate, dropout
from hpcgnn.ops.quantization import MessageLayout, dequantize_rows, quantize_rows


def results():
    rng = np.random.default_rng(0)
    n, dim, degree = 3000, 130, 11
    h = torch.from_numpy(rng.normal(size=(n, dim)).astype(np.float32))
    index, node_id, key = np.arange(n, dtype=np.int32), np.arange(n), CounterKey(1, 2, 0, 3)
    matrix = from_csr(np.arange(n + 1) * degree, rng.integers(0, n, n * degree).astype(np.int32), n, num_self=n,
                      column_scale=rng.random(n).astype(np.float32))
    layout = MessageLayout.build(np.full(n, 4), dim)
    message, received = np.empty(layout.num_bytes, np.uint8), torch.ones(n, dim)
    quantize_rows(h, index, node_id, layout, key, message)
    dequantize_rows(message, index, node_id, layout, received, accumulate=True)
    limit = torch.full((1, 1), 7.0)
    by_row, by_column = (quantize_values_backward(h, torch.full(shape, 0.1), limit, received).of_step
                         for shape in ((n, 1), (1, dim)))
    rows, weight, bias = (torch.from_numpy(rng.normal(size=shape).astype(np.float32)).requires_grad_()
                          for shape in ((n + 1, dim), (dim,), (dim,)))
    activated = activate(rows, 0.5, np.arange(n + 1), CounterKey(1, 2, DROPOUT, 3), weight, bias)
    activated.backward(torch.from_numpy(rng.normal(size=(n + 1, dim)).astype(np.float32)))
    return [torch.from_numpy(message), received, multiply(matrix, h), dropout(h, 0.3, node_id, key), column_sums(h),
            by_row, by_column, activated, rows.grad, weight.grad, bias.grad]


def test_results_do_not_depend_on_the_number_of_threads(threads):
    threads(1)
    of_one = results()
    threads(5)
    assert all(torch.equal(one, other) for one, other in zip(of_one, results(), strict=True))
