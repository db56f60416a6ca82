"""The arena: tensors don't overlap, memory returns with the last reference, and the next request takes it again; pages
of large tensors are moved together where no free piece is large enough.
"""

import gc
import itertools
import mmap

import numpy as np
import pytest
import torch

from hpcgnn.ops import arena as arena_module
from hpcgnn.ops.arena import Arena, empty
from hpcgnn.ops.pieces import ALIGNMENT, CHUNK, LEAST_MOVING, MIN_BYTES


@pytest.fixture
def arena():
    return Arena(1 << 24, can_move=False)


@pytest.fixture
def moving():
    if not arena_module.system_moves_pages():
        pytest.skip("this system moves no pages: Linux does since 5.7")
    return Arena(1024 * CHUNK)


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


def resident_bytes(arena):
    """Count the pages of the arena that have memory."""
    with open("/proc/self/pagemap", "rb") as pages:
        pages.seek(arena.address // mmap.PAGESIZE * 8)
        entries = np.frombuffer(pages.read(1024 * CHUNK // mmap.PAGESIZE * 8), np.uint64)
    return int((entries >> np.uint64(63)).sum()) * mmap.PAGESIZE


@pytest.mark.parametrize("most_at_once", [None, CHUNK, 0])
def test_pages_of_free_pieces_are_moved_together_and_no_live_value_changes(moving, monkeypatch, most_at_once):
    """Also where a system moves only what was moved together, and where it moves nothing."""
    move_pages = arena_module._moves_pages
    if most_at_once is not None:
        monkeypatch.setattr(arena_module, "_moves_pages", lambda source, target, num_bytes:
                            num_bytes <= most_at_once and move_pages(source, target, num_bytes))
    tensors = [moving.empty((LEAST_MOVING,), torch.uint8).fill_(value) for value in range(8)]
    before = resident_bytes(moving)
    for freed in (1, 3, 5, 6):
        tensors[freed] = None
    joined = moving.empty((4 * LEAST_MOVING - 5,), torch.uint8).fill_(9)
    others = [moving.empty((LEAST_MOVING,), torch.uint8).fill_(value) for value in (10, 11)]
    assert all((tensor == value).all() for value, tensor in enumerate(tensors) if tensor is not None)
    assert (joined == 9).all() and all((tensor == value).all() for tensor, value in zip(others, (10, 11), strict=True))
    assert before == 8 * LEAST_MOVING and resident_bytes(moving) == 10 * LEAST_MOVING


def test_large_tensors_come_and_go_at_random_and_keep_their_values(moving):
    rng, live, at_once = np.random.default_rng(1), [], 0
    for step in range(80):
        if live and (rng.random() < 0.5 or at_once > 120 * CHUNK):
            tensor, value = live.pop(rng.integers(len(live)))
            assert tensor[0] == tensor[-1] == value and (tensor[::4096] == value).all()
            at_once -= tensor.numel()
            del tensor
        else:
            num_bytes = int(rng.integers(LEAST_MOVING, 4 * LEAST_MOVING))
            live.append((moving.empty((num_bytes,), torch.uint8).fill_(step % 251), step % 251))
            at_once += num_bytes
    assert all((tensor[::4096] == value).all() for tensor, value in live)
