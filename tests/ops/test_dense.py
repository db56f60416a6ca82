"""Products of rows and weights against float64, in every storage, and sums over rows that no thread count changes."""

import numpy as np
import pytest
import torch

from hpcgnn.errors import KernelError
from hpcgnn.ops.dense import column_magnitudes, column_sums, combine, map_back, map_rows, weight_gradient

# Relative to the sum of magnitudes: float32 sums, and the result's own rounding.
BOUND = {torch.float32: 1e-6, torch.bfloat16: 2.0 ** -8, torch.float16: 2.0 ** -10}
# Parts of a tile, a panel, a block of rows and a chunk; more terms than a block has; sides that are empty.
SHAPES = [(1, 1, 1), (5, 7, 3), (70, 41, 256), (9000, 16, 8), (97, 1000, 33), (1153, 13, 385), (0, 4, 3), (4, 0, 3),
          (4, 3, 0)]


def matrices(storage, *shapes):
    rng = np.random.default_rng(0)
    return [torch.from_numpy(rng.normal(size=shape)).to(storage) for shape in shapes]


def assert_near(found, left, right, storage, start=None):
    left, right = left.double(), right.double()
    exact, scale = left @ right, left.abs() @ right.abs()
    if start is not None:
        exact, scale = exact + start.double(), scale + start.double().abs()
    assert ((found.double() - exact).abs() <= 2 * BOUND[storage] * scale + 1e-30).all()


@pytest.fixture(params=["AVX2", "ALL"])
def onednn(request, monkeypatch):
    """With and without torch's products of bfloat16, where this processor has any."""
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", request.param)


@pytest.mark.covering
@pytest.mark.parametrize("storage", list(BOUND))
@pytest.mark.parametrize("shape", SHAPES)
def test_products_equal_those_of_float64_at_every_level(simd, onednn, storage, shape):
    n, in_dim, out_dim = shape
    rows, gradient, weight = matrices(storage, (n, in_dim), (n, out_dim), (out_dim, in_dim))
    mapped, back = map_rows(rows, weight), map_back(gradient, weight)
    assert mapped.dtype == back.dtype == storage
    assert_near(mapped, rows, weight.t(), storage)
    assert_near(back, gradient, weight, storage)
    total = weight_gradient(gradient, rows)
    assert total.dtype == torch.float32 and total.shape == (out_dim, in_dim)
    assert_near(total, gradient.t(), rows, storage)


@pytest.mark.covering
@pytest.mark.parametrize("storage", list(BOUND))
@pytest.mark.parametrize("in_dim", [5, 500])
def test_a_product_is_added_in_place_at_every_level(simd, onednn, storage, in_dim):
    rows, gradient, weight, out, back = matrices(storage, (1200, in_dim), (1200, 3), (3, in_dim), (1200, 3),
                                                 (1200, in_dim))
    for product, left, right, start in ((map_rows, rows, weight.t(), out), (map_back, gradient, weight, back)):
        target = start.clone()
        assert product(left, weight, target) is target
        assert_near(target, left, right, storage, start)


@pytest.mark.covering
@pytest.mark.parametrize("storage", list(BOUND))
@pytest.mark.parametrize("own_dim", [None, 7, 300])
@pytest.mark.parametrize("n, in_dim, out_dim", [(1, 1, 1), (997, 600, 70), (193, 33, 33), (0, 4, 3), (4, 3, 5)])
def test_both_sides_of_a_convolution_and_the_bias_are_summed_at_every_level(simd, onednn, storage, own_dim, n, in_dim,
                                                                          out_dim):
    rows, weight = matrices(storage, (n, in_dim), (out_dim, in_dim))
    bias, = matrices(torch.float32, (out_dim,))
    left, right, own, own_weight = rows, weight, None, None
    if own_dim is not None:
        own, own_weight = matrices(storage, (n, own_dim), (out_dim, own_dim))
        left, right = torch.cat([rows, own], 1), torch.cat([weight, own_weight], 1)
    found = combine(rows, weight, own, own_weight, bias)
    assert found.dtype == storage and found.shape == (n, out_dim)
    assert_near(found, left, right.t(), storage, bias.expand(n, out_dim))
    if in_dim == out_dim:      # where they were, and as they were
        again = rows.clone()
        assert combine(again, weight, own, own_weight, bias, out=again) is again and torch.equal(again, found)


@pytest.mark.parametrize("own, own_weight, bias", [((8, 5), (3, 5), 3), ((9, 5), (3, 4), 3), ((9, 5), (3, 5), 2)])
def test_sides_that_do_not_fit_are_refused(own, own_weight, bias):
    rows, weight, *others = matrices(torch.float32, (9, 5), (3, 5), own, own_weight, (bias,))
    with pytest.raises(KernelError, match="do not fit"):
        combine(rows, weight, *others)


@pytest.mark.parametrize("storage", list(BOUND))
def test_no_bit_depends_on_threads_on_other_rows_or_on_avx512(simd, monkeypatch, threads, storage):
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "AVX2")
    rows, gradient, weight = matrices(storage, (1100, 300), (1100, 70), (70, 300))
    bias, = matrices(torch.float32, (70,))

    def products():
        return (map_rows(rows, weight), map_back(gradient, weight), weight_gradient(gradient, rows),
                combine(rows, weight, rows, weight, bias))

    found = products()
    threads(3)
    assert all(torch.equal(again, before) for again, before in zip(products(), found, strict=True))
    assert torch.equal(map_rows(rows[1001:1020], weight), found[0][1001:1020])
    some = rows[1001:1020]
    assert torch.equal(combine(some, weight, some, weight, bias), found[3][1001:1020])
    if simd == "avx512":
        monkeypatch.setenv("HPCGNN_SIMD", "avx2")
        assert torch.equal(map_rows(rows, weight), found[0])
        assert torch.equal(weight_gradient(gradient, rows), found[2])


def test_rows_that_do_not_lie_together_are_multiplied():
    rows, weight = matrices(torch.float32, (12, 30), (4, 6))
    apart = rows[:, ::5]
    assert torch.equal(map_rows(apart, weight), map_rows(apart.contiguous(), weight))


def test_float16_rows_are_summed_in_float32():
    """A float16 sum of 4,096 ones sticks at 2,048."""
    ones, weight = torch.ones(2, 4096, dtype=torch.float16), torch.ones(1, 4096, dtype=torch.float16)
    assert (map_rows(ones, weight) == 4096).all()
    assert (weight_gradient(torch.ones(4096, 1, dtype=torch.float16), ones.new_ones(4096, 2)) == 4096).all()


@pytest.mark.covering
@pytest.mark.parametrize("storage", list(BOUND))
@pytest.mark.parametrize("shape", [(1, 1), (513, 41), (2000, 256), (0, 5)])
def test_column_sums_equal_those_of_float64_at_every_level(simd, storage, shape):
    rows, = matrices(storage, shape)
    found = column_sums(rows)
    assert found.dtype == torch.float32
    assert ((found.double() - rows.double().sum(0)).abs() <= 1e-5 * rows.double().abs().sum(0)).all()


@pytest.mark.parametrize("shape", [(1, 1), (512, 3), (513, 41), (2000, 256), (0, 5), (5, 0)])
def test_column_magnitudes_are_float64_sums_at_every_level(simd, shape):
    rows, = matrices(torch.float32, shape)
    found = column_magnitudes(rows)
    assert found.dtype == torch.float64 and found.shape == shape[1:]
    expected = rows.double().abs().sum(0)
    assert ((found - expected).abs() <= 1e-13 * expected).all()


def test_column_magnitudes_of_other_types_are_refused():
    with pytest.raises(KernelError, match="column magnitudes"):
        column_magnitudes(torch.ones(2, 3, dtype=torch.float16))
