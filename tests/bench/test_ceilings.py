"""The ceilings do the work that they are said to do: every byte is read, written or copied, every row is gathered."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from hpcgnn._ext import ceilings as kernels
from hpcgnn.bench import place
from hpcgnn.bench.place import Place, zeros
from hpcgnn.bench.timing import Effort
from hpcgnn.ops.dispatch import STORAGE_NUMBER, as_bytes

PLACE = Place(Effort(3), stream_bytes=1 << 16)
DTYPES = (torch.float32, torch.bfloat16, torch.float16)


@pytest.mark.parametrize("num_values", [0, 1, 5, 1024, 100_003])
def test_a_read_sums_every_value(simd, num_values):
    values = np.random.default_rng(0).integers(-8, 8, num_values).astype(np.float32)
    assert kernels.stream_read(values.view(np.uint8)) == values.sum()


@pytest.mark.parametrize("num_bytes", [0, 1, 4095, 4097, 100_003])
def test_a_write_and_a_copy_reach_every_byte(num_bytes):
    source, target = np.full(num_bytes, 9, np.uint8), np.zeros(num_bytes + 1, np.uint8)
    kernels.stream_copy(target, source)
    assert (target[:num_bytes] == 9).all() and target[num_bytes] == 0
    kernels.stream_write(target[:num_bytes], 5)
    assert (target[:num_bytes] == 5).all() and target[num_bytes] == 0


def test_a_copy_that_does_not_fit_is_refused():
    with pytest.raises(ValueError, match="8 bytes don't fit into a target of 4"):
        kernels.stream_copy(np.zeros(4, np.uint8), np.zeros(8, np.uint8))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("dim", [1, 3, 16, 17, 41, 64, 100, 128, 256, 300])
def test_a_gather_adds_every_row_that_is_listed(simd, dim, dtype):
    rng = np.random.default_rng(dim)
    table = torch.from_numpy(rng.integers(-2, 3, (37, dim)).astype(np.float32)).to(dtype)
    indices = rng.integers(0, 37, 5000).astype(np.int32)
    indices[-1] = 36    # the table's last row, behind which nothing may be read
    found = kernels.gather_sum(as_bytes(table), dim, STORAGE_NUMBER[dtype], indices, 16)
    assert found == table.float().numpy()[indices].sum(dtype=np.float64)


def test_a_gather_of_nothing_is_zero():
    assert kernels.gather_sum(as_bytes(torch.ones(2, 4)), 4, 0, np.empty(0, np.int32), 16) == 0


def test_the_gather_ceiling_reads_the_graphs_own_rows():
    rows, indices = PLACE.random_rows(50, 24), np.arange(50, dtype=np.int32)
    work = PLACE.gathering(rows, indices)
    assert work() == pytest.approx(rows.sum().item(), abs=1e-3)


@pytest.mark.parametrize("number", [0, 1, 5_000, 1_000_003])
@pytest.mark.parametrize("is_refused", [False, True])
def test_a_peak_does_as_many_products_of_bits_as_it_is_asked_for(simd, monkeypatch, number, is_refused):
    if is_refused:
        monkeypatch.setenv("HPCGNN_VPOPCNT", "0")
    check_number(PLACE.multiplying_bits(number)(), number, 12 * 16 * 32)


@pytest.mark.parametrize("number", [0, 1, 5_000, 1_000_003])
def test_a_peak_does_as_many_products_of_bytes_as_it_is_asked_for(byte_level, number):
    check_number(PLACE.multiplying_bytes(number)(), number, 4 * 16 * 16 * 64 if byte_level == "amx" else 12 * 16 * 4)


def check_number(done, number, a_round):
    """Each product adds one, so that none can be left out; the last round of each thread is whole."""
    assert number <= done <= number + torch.get_num_threads() * (a_round + 1)
    assert (done == 0) == (number == 0)


def test_streams_and_products_have_rates(monkeypatch):
    monkeypatch.setattr(place, "NUM_PRODUCTS", 1e6)
    read, write, copy, *products = PLACE.ceilings()
    assert [row.case for row in (read, write, copy)] == ["stream read", "stream write", "stream copy"]
    assert copy.amount == 2 * read.amount == 2 * write.amount == 2 * (1 << 16) / 1e9
    # Two operations a product.
    assert [(row.case, row.amount, row.unit) for row in products] == [
        ("multiply-add fp32", 2e-3, "GFLOP/s"), ("multiply-add bf16", 2e-3, "GFLOP/s")]


@pytest.mark.parametrize("num_read, num_written, moves", [
    (3, 0, [("read", 3)]), (0, 4, [("write", 4)]), (5, 5, [("copy", 5)]), (7, 5, [("copy", 5), ("read", 2)]),
    (5, 9, [("copy", 5), ("write", 4)]), (0, 0, [])])
def test_so_many_bytes_are_moved(monkeypatch, num_read, num_written, moves):
    found = []
    for name, of in (("read", 0), ("write", 0), ("copy", 1)):
        monkeypatch.setattr(place.kernels, f"stream_{name}",
                            lambda *arrays, name=name, of=of: found.append((name, len(arrays[of]))))
    PLACE.moving(num_read, num_written)()
    assert found == moves


@pytest.mark.parametrize("is_held", [False, True])
@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
@pytest.mark.parametrize("number", [0, 1, 5_000, 1_000_003])
def test_a_peak_of_floats_does_as_many_products_as_it_is_asked_for(simd, monkeypatch, precision, number, is_held):
    """Each adds one; four tiles of AMX are the longest round."""
    if is_held:
        monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "AVX2")
    done = PLACE.multiplying(precision, number)()
    assert number <= done <= number + torch.get_num_threads() * (4 * 16 * 16 * 32 + 1)
    assert (done == 0) == (number == 0)


def test_a_peak_counts_on_beyond_what_float32_can():
    number = 12 * 16 * (2**24 + 5) * torch.get_num_threads()
    assert number <= PLACE.multiplying("fp32", number)() <= number + torch.get_num_threads() * 12 * 16 + 1


def test_memory_is_zero_writable_and_of_the_shape_asked_for():
    array = zeros((3, 5))
    assert array.shape == (3, 5) and array.dtype == np.float32 and not array.any()
    array[:] = 1
    assert PLACE.empty_bytes(60).shape == (60,)
    assert zeros((0, 4)).shape == (0, 4)
