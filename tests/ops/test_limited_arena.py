"""An arena within a limit: values and addresses stay, what is read last goes to the disk first, and nothing is left."""

import errno
import gc
import os
import signal
import tempfile
from pathlib import Path
from random import Random

import pytest
import torch
from training_setup import disk_path

from hpcgnn.errors import TrainingError
from hpcgnn.ops import limited_arena, pieces
from hpcgnn.ops.arena import empty, empty_table, in_memory, keep_long, keeping
from hpcgnn.ops.limited_arena import LimitedArena, process_bytes
from hpcgnn.ops.pieces import CHUNK

TABLE = 2 * CHUNK       # bytes
BASE = 1 << 30


@pytest.fixture
def folder():
    with tempfile.TemporaryDirectory(dir=disk_path()) as folder:
        yield Path(folder)


@pytest.fixture
def arena(folder, monkeypatch):
    """Has room for three tables beside what the process holds; made of chunks that move."""
    monkeypatch.setattr(pieces, "LEAST_MOVING", CHUNK)
    arena = LimitedArena(BASE + 3 * TABLE, folder, 1024 * CHUNK)
    monkeypatch.setattr(limited_arena, "process_bytes", lambda: BASE + arena.num_in_memory)
    with arena.in_use():
        yield arena


def table(value, num_bytes=TABLE):
    return empty((num_bytes,), torch.uint8).fill_(value)


def on_disk(arena):
    return arena.file.num_bytes


def test_tables_that_fit_never_touch_the_disk(arena):
    for _ in range(3):
        tables = [keep_long(table(value)) for value in range(3)]
        del tables
    assert (arena.take_use()[:2], arena.file.most_bytes) == ((0, 0), os.sysconf("SC_PAGE_SIZE"))


@pytest.mark.parametrize("number", [0, 1])
def test_a_block_that_can_t_be_sent_to_the_disk_is_an_error_at_its_start_and_at_its_end(arena, monkeypatch, number):
    place, calls = arena.file.take(64), []
    monkeypatch.setattr(limited_arena.LIBC, "sync_file_range", lambda *_: calls.append(1) or -(len(calls) > number))
    with pytest.raises(TrainingError, match="can't be written: the disk reports an error"):
        arena.file.write(memoryview(bytes(64)), place)
    assert len(calls) == number + 1


def test_a_table_keeps_its_address_and_values_on_the_disk_and_back(arena):
    first, kept = keep_long(table(1)), [table(2), table(3)]
    at, view = first.data_ptr(), first[100:200]
    more = table(4)
    assert on_disk(arena) == TABLE and arena.num_in_memory == 3 * TABLE
    assert first.data_ptr() == at and (first == 1).all() and (view == 1).all()
    view.fill_(9)
    assert (first[100:200] == 9).all() and (first[200:] == 1).all()
    assert all((other == value).all() for other, value in zip((*kept, more), (2, 3, 4), strict=True))
    del first, view
    arena._take_returned()
    assert on_disk(arena) == 0


def test_memory_leaves_with_a_table(arena):
    first = keep_long(table(1))
    others = [table(2), table(3)]
    before = process_bytes()
    keep_long(others[0])
    arena._makes_room(2 * TABLE)
    assert before - process_bytes() > 1.9 * TABLE and (first == 1).all() and (others[0] == 2).all()


def test_what_stays_goes_first_then_what_was_kept_first(arena):
    class Keep(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, *rows):
            ctx.save_for_backward(*rows)
            return x.clone()

        @staticmethod
        def backward(ctx, gradient):
            assert [int(rows[-1]) for rows in ctx.saved_tensors] == [1, 2]
            return gradient, None, None

    x, rows = torch.ones(1, requires_grad=True), [table(1), table(2)]
    with keeping():
        y = Keep.apply(x, *rows)
    lasting = keep_long(table(3))
    order = [lasting, *rows]
    starts = [arena._start_of(tensor) for tensor in order]
    for number in range(3):
        arena._makes_room((number + 1) * TABLE)
        assert list(arena._on_disk) == starts[:number + 1]
    del rows, order
    y.sum().backward()
    use = arena.take_use()
    assert (use.spilled, use.fetched) == (3 * TABLE, 2 * TABLE) and (lasting == 3).all()


def test_a_table_whose_rows_are_read_in_any_order_is_in_memory_meanwhile(arena):
    first, second = keep_long(table(1)), keep_long(table(2))
    work = [table(3), table(4)]
    assert list(arena._on_disk) == [arena._start_of(first)]
    with in_memory(first):
        assert list(arena._on_disk) == [arena._start_of(second)]
        work.append(table(5))      # made on the disk, since all others are in use
        assert arena._start_of(first) not in arena._on_disk and (first == 1).all()
    keep_long(work[0])
    work.append(table(6))
    assert arena._start_of(first) in arena._on_disk and (first == 1).all() and (second == 2).all()


def test_two_arenas_in_one_folder_do_not_disturb_each_other(folder):
    arenas = [LimitedArena(0, folder, 64 * CHUNK) for _ in range(2)]      # all tables are made on the disk
    tables = []
    for value in range(4):
        with arenas[value % 2].in_use():
            tables.append(table(value))
    assert [on_disk(arena) for arena in arenas] == [2 * TABLE] * 2 and not list(folder.iterdir())
    del tables[0]
    arenas[0]._take_returned()
    assert all((own == value).all() for value, own in enumerate(tables, 1)) and on_disk(arenas[1]) == 2 * TABLE


def test_slack_is_left_to_the_process(folder, monkeypatch):
    arena = LimitedArena(BASE + 3 * TABLE, folder, 1024 * CHUNK, slack=TABLE)
    monkeypatch.setattr(limited_arena, "process_bytes", lambda: BASE + arena.num_in_memory)
    with arena.in_use():
        tables = [table(value) for value in range(3)]
        assert on_disk(arena) == TABLE and all((own == value).all() for value, own in enumerate(tables))
        del tables


def test_small_and_large_tables_come_and_go_at_random_and_keep_their_values(arena):
    random, live = Random(1), []
    for step in range(120):
        if live and (random.random() < 0.5 or len(live) > 8):
            own, value = live.pop(random.randrange(len(live)))
            assert (own[::1024] == value).all() and own[-1] == value
        else:
            own = table(step % 251, random.randrange(1 << 18, TABLE))
            live.append((keep_long(own) if random.random() < 0.6 else own, step % 251))
        del own
        assert arena.num_in_memory <= 3 * TABLE
    assert all((own[::1024] == value).all() for own, value in live) and arena.take_use().spilled > 10 * TABLE


def test_tables_that_outlive_epochs_are_torchs_own_without_a_limit(arena):
    assert arena._start_of(empty_table((TABLE,), torch.uint8)) is not None
    with limited_arena.using(None):
        assert arena._start_of(empty_table((TABLE,), torch.uint8)) is None


def test_a_tensor_outlives_its_arena(folder):
    arena = LimitedArena(0, folder, 64 * CHUNK)
    with arena.in_use():
        left = table(7)
    assert on_disk(arena) == TABLE
    del arena
    gc.collect()
    assert (left == 7).all()


@pytest.mark.parametrize("fault", [errno.ENOSPC, errno.EFBIG])
def test_a_full_disk_is_one_sentence_and_loses_no_value(arena, monkeypatch, fault):
    first, rest = keep_long(table(1)), [table(2), table(3)]

    def refuse(*_):
        raise OSError(fault, os.strerror(fault))

    monkeypatch.setattr(os, "posix_fallocate", refuse)
    with pytest.raises(TrainingError, match=rf"can't take 4.19 MB more .*{os.strerror(fault)}; free space there"):
        table(4)
    assert (first == 1).all() and len(rest) == 2


@pytest.mark.parametrize("folder, text", [
    ("/dev/shm", r"lies in memory \(tmpfs\); name a folder"), ("/nowhere/at/all", "can't be written: No such file"),
    ("/proc", "can't be written: ")])
def test_a_folder_that_can_t_be_used_is_refused(folder, text):
    with pytest.raises(TrainingError, match=f"scratch {folder} {text}"):
        LimitedArena(0, folder, 64 * CHUNK)


def test_a_kill_leaves_nothing(folder):
    child = os.fork()
    if not child:
        try:
            with LimitedArena(0, folder, 64 * CHUNK).in_use():
                empty((TABLE,), torch.uint8).numpy().fill(1)
                os.kill(os.getpid(), signal.SIGKILL)
        finally:
            os._exit(1)      # the rest of the tests are the parent's
    assert os.waitpid(child, 0)[1] == signal.SIGKILL and not list(folder.iterdir())
