"""What the benchmark says of rows that were sent, against what mathematics says."""

from __future__ import annotations

import pytest

from hpcgnn.bench.message_error import error_line, squared_errors
from hpcgnn.widths import ROTATED_ERROR


@pytest.mark.parametrize("bits", [1, 2, 4, 8])
def test_rotated_rows_of_every_kind_lose_the_share_that_their_width_leaves(bits):
    """Rotated columns of 256 are nearly normal; those of rows that few columns dominate lose less."""
    for kind, error in squared_errors(256, bits, "rotated").items():
        assert 0.85 * ROTATED_ERROR[bits] < error < 1.05 * ROTATED_ERROR[bits], kind


@pytest.mark.parametrize("bits", [1, 2, 4])
def test_affine_rows_lose_more_where_tails_are_heavy(bits):
    """Steps span the range, which a heavy tail makes long; of normal rows they leave less than of those."""
    errors = squared_errors(256, bits, "affine")
    assert errors["heavy-tailed"] > errors["normal"] > ROTATED_ERROR[bits]


def test_a_remark_names_bytes_and_shares():
    assert error_line(34, {"normal": 0.571, "rectified": 0.01234}, "rotated, 1 bit") == (
        "rotated, 1 bit: 34 bytes a row; squared error over squared norm of rows: normal 0.57, rectified 0.012")
