"""jobs/measurements/packages.py: rows of the widths and densities asked for, and measurements that decode to them."""

from __future__ import annotations

import json
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from hpcgnn.bench.place import Place
from hpcgnn.bench.timing import Effort

sys.path.insert(0, str(Path(__file__).parents[2] / "jobs"))

from measurements import packages
from measurements.packages import MIXED, PackageBenchmark, random_codes


@pytest.mark.parametrize("width", [0, 1, 4, 8])
@pytest.mark.parametrize("density", [0.05, 1.0])
def test_rows_have_the_widths_and_the_density_asked_for(width, density):
    codes, bit_width = random_codes(300, 100, width, density)
    assert (codes < 2 ** bit_width.astype(int)[:, None]).all()
    assert set(bit_width) == ({width} if width else set(range(1, 9)))
    assert abs(np.count_nonzero(codes) / codes.size - density) < 0.01


def test_each_width_and_density_is_encoded_and_decoded_against_ceiling_and_formats():
    rows = list(PackageBenchmark(Place(Effort(3)), 200, 40, (2, 0), (0.5,)).measure())
    assert [row.group for row in rows] == 2 * ["package encode", "package decode", "package decode"]
    assert all({"hpcgnn", "ceiling"} <= row.seconds.keys() for row in rows)
    assert rows[1].peers == ["scipy CSR", "numpy bitmap"]
    assert [row.amount for row in rows[:3]] == [8e-6, 8e-6, 3.2e-5]
    record = rows[0].as_record()
    assert (record["bits"], record["density"], rows[3].details["bits"]) == (2, 0.5, "1-8")
    assert record["stored_bits"]["dense"] == [200 * 40 * 2, 0] and record["stored_bits"]["ideal"][1] == 0
    assert "values of packages over the ideal 1.0" in rows[0].remarks[0]


def test_the_command_writes_the_sizes_of_every_format(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("hpcgnn.bench.environment.run_in", lambda *arguments: None)    # this process is small enough
    monkeypatch.setattr(packages, "PackageBenchmark",
                        partial(PackageBenchmark, num_rows=100, dim=20, widths=(4, MIXED), densities=(0.5,)))
    with pytest.raises(SystemExit) as stop:
        packages.main(["--repeat", "1", "--out", str(tmp_path / "out")])
    assert not stop.value.code, capsys.readouterr().err
    rows = json.loads((tmp_path / "out/bench.json").read_text())["measurements"]
    assert [row["group"] for row in rows] == 2 * ["package encode", "package decode", "package decode"]
    assert [row["bits"] for row in rows if "stored_bits" in row] == [4, "1-8"]
