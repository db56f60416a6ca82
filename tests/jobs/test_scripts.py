"""The job scripts: they parse, are found from anywhere, and ask Slurm for what they rely on."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPTS = sorted([*ROOT.glob("jobs/*.sh"), *ROOT.glob("jobs/*.sbatch"), ROOT / ".ci/run"])
BATCH_SCRIPTS = [script for script in SCRIPTS if script.suffix == ".sbatch"]
RUN_DIRECTLY = ("gpu_check.sh", "quickstart.sh", "test.sh", "workstation.sh", "run")

# Options of sbatch(1) that the scripts use, with the form of their values; None takes no value.
SBATCH_OPTIONS = {
    "job-name": r"[\w-]+", "nodes": r"\d+", "ntasks": r"\d+", "ntasks-per-node": r"\d+", "cpus-per-task": r"\d+",
    "gpus-per-node": r"\d+", "mem": r"\d+[KMGT]?", "time": r"(\d+-)?\d\d:\d\d:\d\d", "partition": r"\w+",
    "account": r"\w+", "output": r"[\w%.-]+", "requeue": None, "open-mode": r"append|truncate",
    "signal": r"(B:)?USR1@\d+",
}


def directives(script):
    """The sbatch options of a script as (name, value), also those that are commented out with ##SBATCH."""
    lines = re.findall(r"^##?SBATCH --(\S+)", script.read_text(), flags=re.MULTILINE)
    return [tuple(line.split("=", 1)) if "=" in line else (line, None) for line in lines]


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.name)
def test_the_script_is_valid_bash(script):
    check = subprocess.run(["bash", "-n", script], capture_output=True, text=True)
    assert (check.returncode, check.stderr) == (0, "")


@pytest.mark.skipif(shutil.which("shellcheck") is None, reason="shellcheck is not installed")
def test_shellcheck_finds_nothing():
    check = subprocess.run(["shellcheck", "-x", *SCRIPTS], cwd=ROOT, capture_output=True, text=True)
    assert check.stdout == ""


@pytest.mark.parametrize("script", sorted(ROOT.glob("jobs/benchmark_*.sh")), ids=lambda script: script.name)
def test_a_benchmark_without_its_graphs_ends_with_one_sentence(script):
    done = subprocess.run(["bash", script], capture_output=True, text=True,
                          env={"PATH": os.environ["PATH"], "HPCGNN_DATASETS": "/nowhere"})
    assert done.returncode == 1
    assert done.stderr == ("hpcgnn: HPCGNN_DATASETS is '/nowhere'; set it to the folder that holds the graphs' .npz "
                           "files\n")


@pytest.mark.parametrize("name", RUN_DIRECTLY)
def test_what_is_run_directly_is_executable(name):
    (script,) = [script for script in SCRIPTS if script.name == name]
    assert os.access(script, os.X_OK)
    assert script.read_text().startswith("#!/usr/bin/env bash\n")


@pytest.mark.parametrize("script", BATCH_SCRIPTS, ids=lambda script: script.name)
def test_sbatch_directives_are_known_and_stand_before_the_first_command(script):
    for name, value in directives(script):
        form = SBATCH_OPTIONS[name]
        assert value is None if form is None else re.fullmatch(form, value), f"--{name}={value}"
    lines = script.read_text().splitlines()
    first_command = next(number for number, line in enumerate(lines) if line and not line.startswith("#"))
    assert not any(line.lstrip("#").startswith("SBATCH") for line in lines[first_command:])


def test_training_survives_its_time_limit():
    options = dict(directives(ROOT / "jobs/train.sbatch"))
    assert "requeue" in options
    assert options["open-mode"] == "append"
    assert options["signal"].startswith("B:USR1@")


def write_program(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("#!/usr/bin/env bash\n" + text)
    path.chmod(0o755)


def submit(tmp_path, train, **environment):
    """Run train.sbatch with stand-ins for Slurm, env.sh and hpcgnn; `train` is what hpcgnn does. Returns its log."""
    log = tmp_path / "log"
    (tmp_path / "jobs").mkdir(exist_ok=True)
    (tmp_path / "jobs/env.sh").write_text("MPI4PY_MPIABI=openmpi\n")
    script = (ROOT / "jobs/train.sbatch").read_text().replace("sleep 60", "sleep 0.1")
    (tmp_path / "spooled_script").write_text(script)
    # Slurm's srun hands signals on; exec makes the stand-in's process the training itself.
    write_program(tmp_path / "bin/srun", 'while [[ $1 == -* ]]; do shift; done\nexec "$@"\n')
    write_program(tmp_path / "bin/scontrol", f'echo "scontrol $*" >>"{log}"\n')
    write_program(tmp_path / "bin/hpcgnn", f'echo "hpcgnn $*" >>"{log}"\n{train}\n')
    done = subprocess.run(["bash", tmp_path / "spooled_script", "--epochs", "7"], capture_output=True, text=True,
                          timeout=60, cwd="/", env={
                              "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}", "SLURM_SUBMIT_DIR": str(tmp_path),
                              "SLURM_NTASKS": "8", "SLURM_CPUS_PER_TASK": "4", "SLURM_JOB_ID": "123", **environment})
    return done.returncode, log.read_text().splitlines()


def test_a_first_start_trains_and_is_not_queued_again(tmp_path):
    status, log = submit(tmp_path, "exit 0")
    assert status == 0
    assert len(log) == 1
    assert log[0].startswith("hpcgnn train data/shards/")
    assert log[0].endswith("--checkpoint-every 10 --epochs 7")


def test_usr1_reaches_the_training_and_a_checkpoint_queues_the_job_again(tmp_path):
    # $PPID of the stand-in is the batch script, to which Slurm sends the signal.
    status, log = submit(tmp_path, 'trap "sleep 0.2; exit 75" USR1\nsleep 0.5\nkill -USR1 $PPID\n'
                                   "for _ in {1..200}; do sleep 0.05; done")
    assert status == 75
    assert log[1:] == ["scontrol requeue 123"]


def test_a_failed_training_is_not_queued_again(tmp_path):
    status, log = submit(tmp_path, "exit 1")
    assert status == 1
    assert len(log) == 1


def test_a_job_with_a_checkpoint_resumes(tmp_path):
    run = re.search(r"^run=(\S+)", (ROOT / "jobs/train.sbatch").read_text(), flags=re.MULTILINE)[1]
    (tmp_path / run).mkdir(parents=True)
    (tmp_path / run / "checkpoint.h5").touch()
    assert " --resume " in submit(tmp_path, "exit 0")[1][0]


def test_a_job_queued_again_before_its_first_checkpoint_starts_over(tmp_path):
    command = submit(tmp_path, "exit 0", SLURM_RESTART_COUNT="1")[1][0]
    assert " --resume " in command and " --overwrite " not in command    # --resume starts anew where there is none
