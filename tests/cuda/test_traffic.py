"""What kernels' accesses would cost on a device, counted under the emulation: known costs, and bounds on others."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from cuda.conftest import need_compiler
from cuda.emulation import EmulatedBackend
from cuda.traffic_cases import CASES, costs_of

from hpcgnn.ops.cuda.module import kernel, use_backend

KNOWN = Path(__file__).parent / "traffic.cu"
MOST_MOVED = 1.2      # bytes of the sectors that a launch touches, by the bytes of them that it touches

# By kernel: bytes of sectors by bytes that requests ask for, and turns at the banks by the least; five percent above
# what was found, since addresses differ from run to run. Where the first is above 2, lanes have neighboring groups of
# eight columns in two loads of 16 bytes, whose sectors the first-level cache has; what blocks share of rows of 41
# halves is stored one by one; scores of 8 bytes are gathered by themselves; packing reads bytes. A block folds pairs
# for a softmax, whose halves the host's compiler loads one by one.
MOST = {
    "aggregate_wide_f32": (1.18, 1.00), "aggregate_spilled_f32": (1.16, 1.00), "aggregate_f16": (1.43, 1.00),
    "aggregate_wide_f16": (1.09, 1.01), "aggregate_ragged_f16": (1.44, 1.01), "aggregate_spilled_f16": (2.77, 1.00),
    "aggregate_wide_heads_f16": (1.20, 1.01),
    "edge_softmax_lanes_f32": (1.89, 1.00), "edge_softmax_warp_f32": (1.57, 1.00),
    "edge_softmax_block_f32": (1.57, 1.83), "edge_softmax_backward_lanes_f32": (1.81, 1.00),
    "edge_softmax_backward_warp_f32": (1.47, 1.00), "edge_softmax_backward_block_f32": (1.49, 1.00),
    "edge_softmax_lanes_f16": (2.18, 1.00), "edge_softmax_warp_f16": (2.10, 1.00),
    "edge_softmax_block_f16": (2.10, 1.83), "edge_softmax_backward_lanes_f16": (2.12, 1.00),
    "edge_softmax_backward_warp_f16": (1.67, 1.00), "edge_softmax_backward_block_f16": (1.80, 1.00),
    "take_entries_f16": (1.26, 1.00), "sampled_products_f16": (1.08, 1.00), "quantize_f32": (2.30, 1.00),
    "dequantize_f32": (2.40, 1.00), "quantize_rotated_f32": (2.44, 1.54), "dequantize_rotated_f32": (2.44, 1.54),
    "normalize_rows_f32": (2.09, 1.00), "normalize_backward_f32": (2.09, 1.00), "sum_columns_f32": (1.05, 1.00),
    "maximum_f32": (1.24, 1.00), "maximum_spilled_f32": (1.63, 1.00), "pack_codes_of_rows": (4.21, 1.00),
    "pack_codes_of_columns": (4.24, 1.00), "multiply_mma16": (1.87, 1.54), "map_mma16": (1.83, 1.00),
    "finish_neighbors_4": (1.93, 1.25), "finish_sums": (1.49, 1.00), "score_rows": (1.24, 1.00),
    "attend_rows": (3.23, 1.00), "finish_rows": (1.34, 1.00), "finish_mma8": (2.16, 1.21),
}
# Launches of a pass of three layers: a map and an end a layer, and one or two more where a layer has another map.
LAUNCHES = {"gcn, whole graph": 6, "gin, whole graph": 12, "sage, whole graph": 9, "gat, whole graph": 12,
            "gcn, batches": 6, "gin, batches": 12, "sage, batches": 9}


def traffic_of(name, *arguments, threads=32):
    need_compiler()
    with use_backend(EmulatedBackend(counts=True)) as backend:
        kernel(KNOWN, name)((1,), (threads,), *arguments)
    return backend.traffic[0][1]


@pytest.mark.parametrize("name, words, sectors", [("copy_words", 32, 4), ("copy_quads", 128, 16)])
def test_neighboring_loads_of_a_warp_are_one_request_of_whole_sectors(name, words, sectors):
    # torch's memory begins at a multiple of 64 bytes.
    found = traffic_of(name, torch.arange(float(words)), torch.empty(words))
    for side in (found.load, found.store):
        assert (side.requests, side.sectors, side.bytes) == (1, sectors, 4 * words)
    assert (found.touched_sectors, found.touched_bytes) == (2 * sectors, 8 * words)


@pytest.mark.parametrize("stride, sectors", [(1, 4), (2, 8), (8, 32), (100, 32)])
def test_words_far_apart_take_a_sector_each(stride, sectors):
    found = traffic_of("gather_words", torch.zeros(32 * stride), stride, torch.empty(32))
    assert (found.load.requests, found.load.sectors, found.load.bytes) == (1, sectors, 128)
    assert found.touched_sectors == sectors + 4 and found.touched_bytes == 256


def test_a_word_that_all_lanes_read_is_one_sector():
    found = traffic_of("read_one_word", torch.zeros(8), torch.empty(64), threads=64)
    assert (found.load.requests, found.load.sectors, found.load.bytes) == (2, 2, 8)
    assert found.touched_sectors == 1 + 8


@pytest.mark.parametrize("stride, turns", [(1, 1), (2, 2), (3, 1), (8, 8), (32, 32), (0, 1)])
def test_lanes_of_one_bank_take_turns(stride, turns):
    found = traffic_of("take_turns", stride, torch.empty(32))
    # 32 stores of a row of words before, each without a conflict.
    assert found.shared.requests == 33 and found.shared.least_turns == 33
    assert found.shared.turns == 32 + turns


@pytest.mark.parametrize("case", [
    pytest.param(case, marks=pytest.mark.long) if case.startswith(("gin, ", "sage, ")) or "x 2048 x" in case else case
    for case in CASES])
def test_a_kernels_accesses_cost_no_more_than_they_did(case):
    need_compiler()
    costs = costs_of(case)
    assert set(costs) <= set(MOST)
    for name, cost in costs.items():
        asked, turns = MOST[name]
        assert 1.0 <= cost.asked <= asked, name
        assert 1.0 <= cost.moved <= MOST_MOVED, name
        assert 1.0 <= cost.turns <= turns, name
    if case in LAUNCHES:
        assert sum(cost.launches for cost in costs.values()) == LAUNCHES[case]


@pytest.mark.long      # all cases
def test_every_bound_is_of_a_kernel_that_some_case_starts():
    need_compiler()
    assert {name for case in CASES for name in costs_of(case)} == set(MOST)
