"""bench accelerator: sweeps, what MEGA gains, and the command from a graph to its tables, JSON and picture."""

from __future__ import annotations

import pytest

from hpcgnn.bench.accelerator import MOST_POINTS, Sweep
from hpcgnn.errors import ConfigError


@pytest.mark.parametrize("text, path, values", [
    ("buffers.input=16:100", "buffers.input", (16, 32, 64)),
    ("buffers.input=0.5:2", "buffers.input", (0.5, 1, 2)),
    ("rules.schedule=condense,metis", "rules.schedule", ("condense", "metis")),
    ("rules.package_lengths=64/128/192,8/16/32", "rules.package_lengths", ([64, 128, 192], [8, 16, 32])),
    ("workload.bit_width=1,2,8", "workload.bit_width", (1, 2, 8)),
])
def test_a_sweep_is_a_path_and_its_values(text, path, values):
    assert Sweep.parse(text) == Sweep(path, values)


@pytest.mark.parametrize("text", ["buffers.input", "=1", "buffers.input=", "buffers.input=4:1", "buffers.input=0:4",
                                  "buffers.input=a:b", "rules.package_lengths=1/x", "buffers.input=1,,2"])
def test_a_sweep_that_can_not_be_read_is_refused(text):
    with pytest.raises(ConfigError, match="can't be read; expected PATH=A,B,C or PATH=FIRST:LAST"):
        Sweep.parse(text)


def test_a_sweep_of_too_many_runs_is_refused():
    with pytest.raises(ConfigError, match=f"asks for 65 runs; expected at most {MOST_POINTS}"):
        Sweep.parse("buffers.input=" + ",".join(map(str, range(1, 66))))
    with pytest.raises(ConfigError, match="asks for 65 runs"):
        Sweep.parse("buffers.input=1e-300:1e300")
