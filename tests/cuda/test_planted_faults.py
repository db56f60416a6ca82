"""Faults planted in kernels and launches: each is caught, with the kernel, the thread and the line that commits it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from cuda.emulation import EmulationFault

from hpcgnn.errors import KernelError
from hpcgnn.ops.cuda.module import kernel

PLANTED = Path(__file__).parent / "planted"


def ints(num):
    return torch.arange(num, dtype=torch.int32)


def places_of(file, name):
    """The lines that are marked as the fault of a kernel: of a race either side, since either may come second."""
    lines = (PLANTED / file).read_text().splitlines()
    return [f"{file}:{number}" for number, line in enumerate(lines, 1) if f"FAULT {name} " in line]


def assert_caught(file, name, says, arguments, grid=(1,), block=(64,), shared_bytes=0):
    with pytest.raises(EmulationFault, match=says) as caught:
        kernel(PLANTED / file, name)(grid, block, *arguments, shared_bytes=shared_bytes)
    text = str(caught.value)
    assert re.match(rf"kernel {name}, block \(\d+, 0, 0\), thread \(\d+, 0, 0\): ", text)
    assert any(place in text for place in places_of(file, name))


@pytest.mark.parametrize("name, arguments, block", [
    ("race_in_shared_memory", (ints(64), ints(64)), (64,)),
    ("race_in_a_warp", (ints(32), ints(32)), (32,)),
    ("race_with_the_next_round", (ints(64), ints(64)), (64,)),
    ("sum_without_atomics", (ints(64), ints(1)), (64,)),
])
def test_a_race_in_a_block_is_caught(emulated, name, arguments, block):
    says = r"race: it (reads|writes) byte \d+ of (shared kept|argument out), .* with no barrier between"
    assert_caught("memory.cu", name, says, arguments, block=block)


def test_a_race_between_blocks_is_caught(emulated):
    says = r"race: it writes byte \d+ of argument out, which thread \d+ of block \d wrote"
    assert_caught("memory.cu", "race_between_blocks", says, (ints(64),), grid=(2,))


def test_a_grid_of_one_block_too_many_is_caught(emulated):
    floats = torch.zeros(128), torch.zeros(128)
    kernel(PLANTED / "memory.cu", "copy_unguarded")((2,), (64,), *floats)
    assert_caught("memory.cu", "copy_unguarded", r"4 bytes from byte \d+ on of argument (in|out) of 512 bytes", floats,
                  grid=(3,))


def test_an_index_that_is_off_by_one_is_caught(emulated):
    assert_caught("memory.cu", "copy_shifted", "writes 4 bytes from byte 240 on of argument out of 240 bytes",
                  (torch.zeros(60), torch.zeros(60), 60))
    assert_caught("memory.cu", "read_before_the_first", "reads 2 bytes (before every argument|from byte)",
                  (torch.zeros(64, dtype=torch.bfloat16), torch.zeros(64)))


def test_a_write_through_a_pointer_to_const_is_caught(emulated):
    assert_caught("memory.cu", "write_a_constant", "pointer to const", (torch.zeros(64),))


def test_shared_memory_ends_where_its_array_ends(emulated):
    for start in (1, 31):
        offsets = torch.full((32,), start, dtype=torch.int32)
        assert_caught("memory.cu", "leave_a_shared_array", "from byte 128 on of shared kept of 128 bytes",
                      (offsets, ints(32)), block=(32,))
    assert_caught("memory.cu", "leave_dynamic_memory", "from byte 128 on of shared DYNAMIC_SHARED of 128 bytes",
                  (ints(64), ints(64)), shared_bytes=128)


def test_shared_memory_that_nobody_wrote_is_not_read(emulated):
    assert_caught("memory.cu", "read_what_no_thread_wrote", "which its block has not written", (ints(64),))


def test_a_misaligned_vector_is_caught(emulated):
    assert_caught("memory.cu", "load_four_misaligned", "not aligned", (torch.zeros(64), torch.zeros(64)))


@pytest.mark.parametrize("name, says, arguments", [
    ("barrier_in_a_branch", r"divergent: thread \(40, 0, 0\) has exited", (ints(64),)),
    ("barrier_on_two_lines", r"divergent: thread \(32, 0, 0\) waits at __syncthreads in line", (ints(64),)),
    ("barrier_after_a_return", r"divergent: thread \(50, 0, 0\) has exited", (ints(64), 50)),
])
def test_a_divergent_barrier_is_caught(emulated, name, says, arguments):
    assert_caught("order.cu", name, says, arguments)


@pytest.mark.parametrize("name, says, arguments, block", [
    ("shuffle_after_a_return", "waits for lane 18, which has exited", (ints(64), 50), (64,)),
    ("shuffle_against_a_vote", "waits for lane 16, which waits at __any_sync in line", (ints(64),), (64,)),
    ("shuffle_against_a_barrier", "waits for lane 7, which waits at __syncthreads", (ints(64),), (64,)),
    ("shuffle_of_two_masks", "waits for lane 16, which waits at a shuffle .* with mask 0xffff8000", (ints(64),), (64,)),
    ("shuffle_outside_of_its_mask", "from lane 20, which is not of the mask 0x0000ffff", (ints(64),), (64,)),
    ("shuffle_without_itself", "its mask 0x0000ffff for a shuffle leaves itself out", (ints(64),), (64,)),
    ("shuffle_with_half_a_warp", "waits for lane 16, which is not of the block", (ints(16),), (16,)),
])
def test_a_lane_that_never_comes_is_caught(emulated, name, says, arguments, block):
    assert_caught("order.cu", name, says, arguments, block=block)


def test_the_emulation_goes_on_after_a_fault(emulated):
    assert_caught("order.cu", "barrier_in_a_branch", "divergent", (ints(64),))
    floats = torch.arange(128.0), torch.zeros(128)
    kernel(PLANTED / "memory.cu", "copy_unguarded")((2,), (64,), *floats)
    assert torch.equal(*floats)


@pytest.mark.parametrize("grid, block, says", [
    ((1,), (1025,), "block of"), ((1,), (32, 33), "1 to 1024 threads"), ((1,), (0,), "1 to 1024 threads"),
    ((-1,), (32,), "grid of"), ((1, 65536), (32,), "grid of"), ((1, 1, 1, 1), (32,), "grid of"),
])
def test_a_grid_or_block_that_no_device_takes_is_refused(emulated, grid, block, says):
    with pytest.raises(KernelError, match=f"kernel write_a_constant .*{says}"):
        kernel(PLANTED / "memory.cu", "write_a_constant")(grid, block, torch.zeros(64))


def test_a_kernel_or_file_that_is_not_there_is_refused():
    with pytest.raises(KernelError, match=r"memory\.cu has no kernel nothing; it has copy_shifted"):
        kernel(PLANTED / "memory.cu", "nothing")
    with pytest.raises(KernelError, match=r"no kernel file .*nothing\.cu"):
        kernel("nothing", "nothing")
