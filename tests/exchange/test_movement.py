"""How far the rows that leave a rank moved since one and two epochs ago."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from hpcgnn.exchange.kinds.kept_messages import SAMPLED_ROWS, Movement
from hpcgnn.exchange.kinds.kind import NUM_SUMS

SENT = np.array([5, 0, 3], np.int32)


def rows_of(epoch, dtype=torch.float32):
    """(8, 4) rows, row i of i + 2 epoch**2."""
    return (torch.arange(8.0)[:, None] + 2 * epoch ** 2).expand(8, 4).contiguous().to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_sums_are_of_the_rows_sent_their_changes_over_one_and_two_epochs_and_the_variance(dtype):
    movement = Movement()
    for epoch in range(2):
        movement.note(rows_of(epoch, dtype), SENT)
        assert movement.sums.tolist() == [0.0] * NUM_SUMS
    movement.note(rows_of(2, dtype), SENT)
    squares = 4 * sum((i + 8) ** 2 for i in SENT.tolist())
    assert movement.sums.tolist() == [squares, 3 * 4 * 6 ** 2, 3 * 4 * 8 ** 2, 3 * (4 * 8 ** 2 - 4 * 6 ** 2) ** 2]


def test_other_rows_or_columns_begin_anew():
    movement = Movement()
    for epoch in range(3):
        movement.note(rows_of(epoch), SENT)
    movement.note(rows_of(3), SENT[:2])
    assert movement.sums.tolist() == [0.0] * NUM_SUMS
    movement.note(rows_of(4)[:, :3].contiguous(), SENT[:2])
    assert movement.sums.tolist() == [0.0] * NUM_SUMS


@pytest.mark.parametrize("num_sent", [0, 1, SAMPLED_ROWS - 1, SAMPLED_ROWS, 3 * SAMPLED_ROWS + 7])
def test_a_sample_is_spread_over_all_rows(num_sent):
    movement, table = Movement(), torch.arange(float(num_sent))[:, None]
    for epoch in range(3):
        movement.note(table * 0 + epoch, np.arange(num_sent, dtype=np.int32))
    assert movement.sums[1] == min(num_sent, SAMPLED_ROWS)
    places = movement.state()["index"]
    assert len(set(places.tolist())) == min(num_sent, SAMPLED_ROWS)
    if num_sent > SAMPLED_ROWS:
        assert places[0] == 0 and places[-1] >= num_sent - 4 and np.ptp(np.diff(places)) <= 1


def test_a_restored_one_goes_on_as_the_one_that_stopped():
    whole, first, second = Movement(), Movement(), Movement()
    for epoch in range(4):
        whole.note(rows_of(epoch), SENT)
        first.note(rows_of(epoch), SENT)
    second.restore(first.state(), torch.device("cpu"))
    assert second.num_bytes == first.num_bytes == 2 * 3 * 4 * 4
    for movement in (whole, second):
        movement.note(rows_of(4), SENT)
    assert second.sums.tolist() == whole.sums.tolist() != [0.0] * NUM_SUMS
    Movement().restore(Movement().state(), torch.device("cpu"))
