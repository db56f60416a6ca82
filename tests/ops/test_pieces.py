"""Pieces of an arena: never taken twice, joined when they are free; memory moves instead of growing."""

import itertools

import numpy as np
import pytest

from hpcgnn.ops.pieces import ALIGNMENT, CHUNK, LEAST_MOVING, MovingPieces, Pieces, Places


def test_the_smallest_part_that_is_large_enough_is_cut():
    pieces = Pieces(100, 1000)
    starts = [pieces.take(size) for size in (50, 10, 30, 10)]
    assert starts == [100, 150, 160, 190] and pieces.top == 200
    pieces.give_back(100, 50)
    pieces.give_back(160, 30)
    assert pieces.take(30) == 160 and pieces.take(20) == 100 and pieces.take_smallest(1000) == (120, 30)
    assert pieces.take_or_none(900) == 200 and pieces.take_or_none(1) is None and pieces.take_smallest(1) is None
    with pytest.raises(MemoryError, match="no room for 1 bytes"):
        pieces.take(1)


def test_parts_too_small_are_moved_together_smallest_first():
    pieces = MovingPieces(0, 1 << 40)
    starts = [pieces.take(size)[0] for size in (3, 1, 2, 1, 5)]
    assert starts == [0, 3, 4, 6, 7] and pieces.num_filled == 12
    for start, size in ((0, 3), (4, 2), (7, 5)):
        pieces.give_back(start, size)
    start, moves = pieces.take(6)
    assert (start, moves) == (12, [(4, 12, 2), (0, 14, 3), (7, 17, 1)]) and pieces.num_filled == 12
    assert pieces.take(4) == (8, []) and pieces.take(1)[1] == [] and pieces.num_filled == 13


def test_memory_is_what_was_taken_at_once_and_goes_where_it_is_said_to():
    """A table of the owner of every address follows the moves: no live piece loses its memory."""
    rng, pieces = np.random.default_rng(0), MovingPieces(0, 4000)
    memory, live, at_once, most = {}, {}, 0, 0
    for step in range(3000):
        if live and rng.random() < 0.5:
            start = list(live)[rng.integers(len(live))]
            size = live.pop(start)
            pieces.give_back(start, size)
            at_once -= size
        else:
            size = int(rng.integers(1, 40))
            start, moves = pieces.take(size)
            for source, target, length in moves:
                for offset in range(length):
                    assert target + offset not in memory
                    memory[target + offset] = memory.pop(source + offset)
            for address in range(start, start + size):
                memory[address] = step
            live[start], at_once = size, at_once + size
            most = max(most, at_once)
            assert all(a + live[a] <= b for a, b in itertools.pairwise(sorted(live)))
        assert pieces.num_filled == len(memory) == most
    assert all(len({memory[address] for address in range(start, start + size)}) == 1 for start, size in live.items())


def test_small_tensors_lie_apart_from_large_ones_and_none_moves_where_none_can():
    places = Places(1 << 40)
    assert places.take(1) == (0, ALIGNMENT, []) and places.take(LEAST_MOVING + 1) == (1 << 38, LEAST_MOVING + CHUNK, [])
    assert places.num_filled == ALIGNMENT + LEAST_MOVING + CHUNK
    places.give_back(1 << 38, LEAST_MOVING + CHUNK)
    places.give_back(0, ALIGNMENT)
    assert places.take(LEAST_MOVING)[0] == 1 << 38 and places.take(5)[0] == 0
    still = Places(1 << 40, can_move=False)
    first = still.take(LEAST_MOVING)
    assert first == (0, LEAST_MOVING, []) and still.take(LEAST_MOVING)[0] == LEAST_MOVING
    still.give_back(*first[:2])
    assert still.take(2 * LEAST_MOVING) == (2 * LEAST_MOVING, 2 * LEAST_MOVING, [])
    assert still.num_filled == 4 * LEAST_MOVING
