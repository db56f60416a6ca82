"""What jobs/measurements/message_error.py says of rows that were sent, against what mathematics says."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from fork_server import served
from parallel_run import clean_environment

JOBS = Path(__file__).parents[2] / "jobs"
sys.path.insert(0, str(JOBS))

from measurements.message_error import squared_errors  # noqa: E402

from hpcgnn.widths import ROTATED_ERROR  # noqa: E402


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


def test_the_table_of_drawn_rows_has_a_line_for_each_code_and_width():
    shown = subprocess.run(served([JOBS / "measurements/message_error.py"]), capture_output=True, text=True,
                           env=clean_environment(), check=True).stdout.splitlines()
    assert shown[0] == "| code, bits | normal | heavy-tailed | rectified |"
    assert [line.split("|")[1].strip() for line in shown[2:]] == [
        f"{code}, {bits}" for code in ("affine", "rotated") for bits in (1, 2, 4)]
    assert f"{squared_errors(256, 1, 'rotated')['normal']:.2g}" in shown[5]
