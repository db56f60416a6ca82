"""The arena: tensors don't overlap, memory returns with the last reference, and the next request takes it again."""

import gc
import itertools

import numpy as np
import pytest
import torch

from hpcgnn.ops.arena import Arena, empty
from hpcgnn.ops.pieces import ALIGNMENT, MIN_BYTES


@pytest.fixture
def arena():
    return Arena(1 << 24)


def address_range(tensor):
    return tensor.data_ptr(), tensor.data_ptr() + tensor.numel() * tensor.itemsize


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_tensor_has_the_shape_and_type_asked_for_and_can_be_written(arena, dtype):
    tensor = arena.empty((300, 41), dtype)
    assert (tensor.shape, tensor.dtype, tensor.is_contiguous()) == ((300, 41), dtype, True)
    tensor.fill_(3.0)
    assert (tensor == 3.0).all() and tensor.data_ptr() % ALIGNMENT == 0


def test_live_tensors_never_overlap(arena):
    rng = np.random.default_rng(0)
    live = []
    for step in range(400):
        if live and rng.random() < 0.45:
            tensor, value = live.pop(rng.integers(len(live)))
            assert (tensor == value).all()
            del tensor
        else:
            tensor = arena.empty((int(rng.integers(1, 60_000)),), torch.float32).fill_(step)
            live.append((tensor, step))
        ranges = sorted(address_range(tensor) for tensor, _ in live)
        assert all(end <= start for (_, end), (start, _) in itertools.pairwise(ranges))
    assert all((tensor == value).all() for tensor, value in live)


def test_memory_returns_when_the_last_view_goes(arena):
    tensor = arena.empty((1000, 64), torch.float32)
    start, view = tensor.data_ptr(), tensor[10:20].t()
    del tensor
    assert arena.empty((1000, 64), torch.float32).data_ptr() != start
    del view
    gc.collect()
    assert arena.empty((1000, 64), torch.float32).data_ptr() == start


def test_freed_neighbors_join_to_one_piece(arena):
    pieces = [arena.empty((1 << 20,), torch.float32) for _ in range(4)]    # all 16 MiB
    start = pieces[0].data_ptr()
    for i in (2, 0, 3, 1):
        pieces[i] = None
    assert arena.empty((4 << 20,), torch.float32).data_ptr() == start


def test_a_full_arena_says_so(arena):
    kept = arena.empty((3 << 20,), torch.float32)
    with pytest.raises(MemoryError, match="no room for 8388608 bytes"):
        arena.empty((2 << 20,), torch.float32)
    assert kept.numel() == 3 << 20


def test_an_epoch_of_equal_requests_reuses_the_same_memory():
    addresses = []
    for _ in range(3):
        tensors = [empty((MIN_BYTES, columns)) for columns in (1, 3, 2)]
        addresses.append([tensor.data_ptr() for tensor in tensors])
        del tensors
    assert addresses[0] == addresses[1] == addresses[2]


def test_gradients_may_live_in_the_arena():
    leaf = torch.ones(MIN_BYTES, requires_grad=True)
    (leaf * empty((MIN_BYTES,)).fill_(2.0)).sum().backward()
    assert (leaf.grad == 2.0).all()
