"""`hpcgnn doctor` measures every precision, and complains of what is wrong and of nothing else."""

from __future__ import annotations

import os
import subprocess
import sys

import click
import pytest
from click.testing import CliRunner
from fork_server import served
from mpi4py import MPI

from hpcgnn.bench import checkup
from hpcgnn.bench.timing import CEILING, OURS, Measurement
from hpcgnn.cli.doctor import command
from hpcgnn.ops.simd import best_level, simd_level

SMALL = ("from hpcgnn.cli import doctor\ndoctor.NUM_ROWS, doctor.SECONDS_A_PRODUCT = 64, 0.01\n"
         "from hpcgnn.__main__ import main\nmain()")


def test_every_precision_is_measured_and_a_held_machine_is_named():
    done = subprocess.run(served(["-c", SMALL, "doctor", "--threads", "1"]), capture_output=True, text=True,
                          env={**os.environ, "HPCGNN_SIMD": "portable", "ONEDNN_MAX_CPU_ISA": "AVX2"}, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "kernels portable" in done.stdout and "products of bfloat16 no" in done.stdout
    for precision in ("fp32", "bf16", "fp16"):
        assert f"rows @ weight x256 {precision}" in done.stdout and f"weight gradient x256 {precision}" in done.stdout
    assert "HPCGNN_SIMD holds the kernels at portable" in done.stdout


@pytest.fixture
def healthy(monkeypatch, tmp_path):
    monkeypatch.delenv("HPCGNN_SIMD", raising=False)
    monkeypatch.setattr(checkup, "multiplies_bfloat16", lambda: True)
    monkeypatch.setattr(os, "getloadavg", lambda: (0.0, 0.0, 0.0))
    pages = tmp_path / "enabled"
    pages.write_text("always [madvise] never\n")
    monkeypatch.setattr(checkup, "HUGE_PAGES", pages)
    return monkeypatch


def measured(share):
    return [Measurement("dense", "rows @ weight", 1.0, "GFLOP/s", {OURS: [1.0], CEILING: [share]})]


def test_a_healthy_machine_gives_no_complaint(healthy):
    assert checkup.complaints(measured(0.9)) == []
    assert simd_level() == best_level()


def test_each_fault_gives_one_complaint(healthy):
    healthy.setattr(checkup, "multiplies_bfloat16", lambda: False)
    healthy.setattr(os, "getloadavg", lambda: (500.0, 0.0, 0.0))
    checkup.HUGE_PAGES.write_text("always madvise [never]\n")
    found = checkup.complaints(measured(0.2))
    assert [words for words in ("widened to float32", "no huge pages", "the load is 500.0", "20 % of what")
            if not any(words in one for one in found)] == [] and len(found) == 4


def test_a_build_for_less_than_the_processor_has_is_a_complaint(healthy):
    healthy.setattr(checkup, "processor_level", lambda: "more")
    sentence, = checkup.complaints(measured(0.9))
    assert sentence.startswith(f"the kernels were built for {best_level()}, and this processor has more; build them")


def test_without_an_mpi_the_rest_is_told_and_the_status_is_one(monkeypatch):
    monkeypatch.setitem(sys.modules, "hpcgnn.run.launch", None)
    monkeypatch.setattr("hpcgnn.cli.doctor.show_rates", lambda threads: None)
    monkeypatch.setattr("hpcgnn.bench.environment.set_environment", lambda environment: None)
    result = CliRunner().invoke(command, ["--threads", "1"])
    assert result.exit_code == 1
    assert result.output.startswith("MPI        none\n           MUST CHANGE: ")
    for subject in ("cores", "threads", "torch", "disk", "extras"):
        assert f"\n{subject} " in result.output


@pytest.mark.parallel(2)
def test_under_a_launcher_rank_0_says_where_each_rank_is_bound(capsys, monkeypatch):
    monkeypatch.setattr("hpcgnn.bench.environment.set_environment", lambda environment: None)
    try:
        command.main([], standalone_mode=False)
    except click.exceptions.Exit as stop:
        assert stop.exit_code == 0
    printed, rank = capsys.readouterr().out, MPI.COMM_WORLD.rank
    assert ("rank 0" in printed and "rank 1" in printed) == (rank == 0)
    assert "GFLOP/s" not in printed and (printed == "") == (rank != 0)


def test_findings_fit_the_terminal(monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    said = "a sentence about this machine that is longer than the sixty columns of the terminal"
    lines = "\n".join(checkup.lines_of([checkup.Finding("MPI", said, "change it, and say so in as many words as here"),
                                        checkup.Finding("allocator", "short", "")])).splitlines()
    assert max(map(len, lines)) <= 60 and said in " ".join(" ".join(lines).split())
    # Below each other, so that the subjects stand out.
    assert [line.split()[0] for line in lines if not line.startswith(" ")] == ["MPI", "allocator"]
