"""`hpcgnn bench packages`: rows of the widths and densities asked for, and measurements that decode to them."""

from __future__ import annotations

import numpy as np
import pytest

from hpcgnn.bench.host import HostPlace
from hpcgnn.bench.packages import PackageBenchmark, random_codes
from hpcgnn.bench.timing import Effort


@pytest.mark.parametrize("width", [0, 1, 4, 8])
@pytest.mark.parametrize("density", [0.05, 1.0])
def test_rows_have_the_widths_and_the_density_asked_for(width, density):
    codes, bit_width = random_codes(300, 100, width, density)
    assert (codes < 2 ** bit_width.astype(int)[:, None]).all()
    assert set(bit_width) == ({width} if width else set(range(1, 9)))
    assert abs(np.count_nonzero(codes) / codes.size - density) < 0.01


def test_each_width_and_density_is_encoded_and_decoded_against_ceiling_and_formats():
    rows = list(PackageBenchmark(HostPlace(Effort(3)), 200, 40, (2, 0), (0.5,)).measure())
    assert [row.group for row in rows] == 2 * ["package encode", "package decode", "package decode"]
    assert all({"hpcgnn", "ceiling"} <= row.seconds.keys() for row in rows)
    assert rows[1].peers == ["scipy CSR", "numpy bitmap"]
    assert [row.amount for row in rows[:3]] == [8e-6, 8e-6, 3.2e-5]
    record = rows[0].as_record()
    assert (record["bits"], record["density"], rows[3].details["bits"]) == (2, 0.5, "1-8")
    assert record["stored_bits"]["dense"] == [200 * 40 * 2, 0] and record["stored_bits"]["ideal"][1] == 0
    assert "values of packages over the ideal 1.0" in rows[0].remarks[0]
