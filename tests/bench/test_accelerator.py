"""bench accelerator: sweeps, what MEGA gains, and the command from a graph to its tables, JSON and picture."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest
from inference_setup import archive_of
from training_setup import easy_graph

from hpcgnn.accelerators.energy import Energy
from hpcgnn.accelerators.simulate import Outcome
from hpcgnn.bench.accelerator import gains, reported
from hpcgnn.bench.accelerator_workload import MOST_POINTS, Sweep
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


@pytest.fixture
def graph(tmp_path):
    return archive_of(tmp_path / "drawn.npz", easy_graph(spec="synthetic:nodes=50,mean_degree=5,classes=3,features=12"))


def test_the_command_leaves_tables_numbers_and_a_picture(bench, graph, tmp_path):
    status, printed, complaints = bench("accelerator", f"{graph}:gcn", "--designs", "mega,grow",
                                        "--out", tmp_path / "out", draws=True)
    assert not status, complaints
    content = json.loads((tmp_path / "out/accelerator.json").read_text())
    mega, grow = content["outcomes"]
    assert (mega["design"], grow["design"], mega["workload"]) == ("mega", "grow", "drawn gcn")
    for outcome in (mega, grow):
        passes = outcome["timing"]["passes"]
        assert outcome["cycles"] == sum(each["cycles"] for each in passes) > 0
        for each in passes:
            assert all(stage["busy_cycles"] + sum(stage["stalls"].values()) == each["cycles"]
                       for stage in each["stages"])
        parts = outcome["energy_joules"]
        assert parts["total"] == pytest.approx(parts["dram"] + parts["sram"] + parts["processing"] + parts["leakage"])
    gain = grow["cycles"] / mega["cycles"]
    assert "1,024 bse" in printed and "combination 96" in printed
    assert "what mega gains" in printed and f"{gain:.2f}" in printed
    lines = [line for line in printed.splitlines() if not line.startswith("results: ")]      # a path has any length
    assert max(map(len, lines)) <= 80 and "MB of" in printed      # no terminal
    assert (tmp_path / "out/accelerator.png").read_bytes().startswith(b"\x89PNG")


def test_a_sweep_runs_the_first_design_at_every_value(bench, graph, tmp_path):
    status, printed, complaints = bench("accelerator", f"{graph}:gcn", "--designs", "mega", "--sweep",
                                        "workload.bit_width=1,2,4", "--out", tmp_path / "out")
    assert not status, complaints
    outcomes = json.loads((tmp_path / "out/accelerator.json").read_text())["outcomes"]
    assert [one["changes"] for one in outcomes] == [{"workload.bit_width": bits} for bits in (1, 2, 4)]
    cycles = [one["cycles"] for one in outcomes]
    assert cycles == sorted(cycles) and cycles[0] < cycles[-1]
    assert "what mega gains" not in printed


@pytest.mark.parametrize("arguments, complaint", [
    (["--designs", "mega,other"], "there is no design other; choose a file, or one of"),
    (["--sweep", "buffers.input"], "--sweep 'buffers.input' can't be read"),
    (["--repeat", "3"], "--repeat is not for this benchmark: a model has the same cycles every time"),
    (["--threads", "2"], "--threads is not for this benchmark: the model runs on one"),
])
def test_what_can_not_be_modeled_is_refused_before_a_graph_is_read(bench, arguments, complaint):
    status, _, said = bench("accelerator", "none.npz", *arguments)
    assert status and complaint in said.replace("\n", " ")


@pytest.mark.parametrize("sweep, complaint", [
    ("buffers.inputs=1", "mega has no buffers.inputs; it has"),
    ("workload.bit_width=wide", "workload.bit_width is 'wide'; expected 1 to 32"),
])
def test_a_value_that_can_not_be_ends_a_sweep_with_a_sentence(bench, graph, sweep, complaint):
    status, _, said = bench("accelerator", f"{graph}:gcn", "--sweep", sweep)
    assert status and complaint in said.replace("\n", " ") and "Traceback" not in said


def test_gains_are_by_workload_and_of_designs_as_they_are():
    def outcome(workload, design, cycles, num_bytes, joules, changes=()):
        timing = SimpleNamespace(cycles=cycles, dram_bytes=num_bytes)
        return Outcome(workload, design, dict(changes), timing, Energy(joules, 0.0, 0.0, 0.0))

    outcomes = [outcome("a", "mega", 10, 100, 1.0), outcome("a", "grow", 40, 300, 5.0),
                outcome("b", "mega", 10, 100, 1.0), outcome("b", "grow", 20, 100, 2.0),
                outcome("b", "sgcn", 30, 1, 1.0),
                outcome("a", "mega", 1, 1, 1.0, {"buffers.input": 1}.items()), outcome("c", "grow", 1, 1, 1.0)]
    assert list(gains(outcomes)) == [
        ("speedup", "grow", {"a": 4.0, "b": 2.0}), ("speedup", "sgcn", {"b": 3.0}),
        ("dram", "grow", {"a": 3.0, "b": 1.0}), ("dram", "sgcn", {"b": 0.01}),
        ("energy", "grow", {"a": 5.0, "b": 2.0}), ("energy", "sgcn", {"b": 1.0})]
    assert reported()["speedup"] == {"hygcn": 38.3, "gcnax": 7.1, "grow": 4.0, "sgcn": 3.6, "gcnax-8bit": 2.8}
