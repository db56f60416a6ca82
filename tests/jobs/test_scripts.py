"""The job scripts: they parse, are found from anywhere, and ask Slurm for what they rely on."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPTS = sorted([*ROOT.glob("jobs/*.sh"), *ROOT.glob("jobs/*.sbatch"), *ROOT.glob("jobs/train.???"), ROOT / ".ci/run"])
BATCH_SCRIPTS = [script for script in SCRIPTS if script.suffix == ".sbatch"]
RUN_DIRECTLY = ("gpu_check.sh", "quickstart.sh", "reproduce.sh", "test.sh", "workstation.sh", "run")

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


# These make their own graph.
MADE = ("benchmark_pipeline.sh", "benchmark_pipeline_agent.sh", "benchmark_nodes.sh", "benchmark_plan.sh",
        "benchmark_relations.sh", "benchmark_disk.sh")
OF_GRAPHS = sorted(script for script in ROOT.glob("jobs/benchmark_*.sh") if script.name not in MADE)


@pytest.mark.parametrize("script", OF_GRAPHS, ids=lambda script: script.name)
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
    path.write_text("#!/bin/bash\n" + text)
    path.chmod(0o755)


# What hpcgnn does in a test: Python, since a shell can't trap a signal that was ignored when it started.
PROGRAM = """#!{python}
import os, pathlib, signal, sys, time
run = pathlib.Path(sys.argv[sys.argv.index("--out") + 1])
log = pathlib.Path({log!r})

def write(line):
    with open(log, "a") as file:
        file.write(line + "\\n")

def finish():
    run.mkdir(parents=True, exist_ok=True)
    (run / "summary.json").write_text("{{}}")
    sys.exit(0)

def wait_for_usr1(answer):
    signal.signal(signal.SIGUSR1, lambda *_: answer())
    write("ready")
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {{signal.SIGUSR1}})
    time.sleep(20)

write("hpcgnn " + " ".join(sys.argv[1:]))
{body}
"""
WHEN_READY = '(until grep -q ready "$LOG"; do sleep 0.02; done; kill -USR1 "$script") >/dev/null 2>&1 &'


def submit(tmp_path, body, job="JobState=RUNNING Reason=None PreemptTime=None", env="", arguments=("--epochs", "7"),
           **environment):
    """Run train.sbatch with stand-ins for Slurm, env.sh and hpcgnn. Returns how it ended, and the log of the stand-ins.

    Parameters
    ----------
    body : Python code that stands for the training
    job : what Slurm says about the job
    env : shell code that runs in jobs/env.sh, where $script is the process id of the batch script and LOG the log
    """
    log = tmp_path / "log"
    log.touch()
    (tmp_path / "jobs").mkdir(exist_ok=True)
    (tmp_path / "jobs/env.sh").write_text(f"MPI4PY_MPIABI=openmpi script=$$\nhpcgnn_check_srun() {{ :; }}\n{env}\n")
    (tmp_path / "jobs/signals.sh").write_text((ROOT / "jobs/signals.sh").read_text().replace("sleep 60", "sleep 0.1"))
    (tmp_path / "spooled_script").write_text((ROOT / "jobs/train.sbatch").read_text())
    # Slurm's srun hands signals on; exec makes the stand-in's process the training itself.
    write_program(tmp_path / "bin/srun", 'while [[ $1 == -* ]]; do shift; done\nexec "$@"\n')
    # Slurm ends a job that it queues again at once: the script, and scontrol too.
    write_program(tmp_path / "bin/scontrol", f'[[ $* != *show* ]] || {{ echo "{job}"; exit; }}\n'
                                             f'echo "scontrol $*" >>"{log}"\nkill -TERM $PPID $$\n')
    write_program(tmp_path / "bin/hpcgnn", "")
    (tmp_path / "bin/hpcgnn").write_text(PROGRAM.format(python=sys.executable, log=str(log), body=body))
    done = subprocess.run(["bash", tmp_path / "spooled_script", *arguments], capture_output=True, text=True,
                          timeout=60, cwd="/", env={
                              "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}", "SLURM_SUBMIT_DIR": str(tmp_path),
                              "SLURM_NTASKS": "8", "SLURM_CPUS_PER_TASK": "4", "SLURM_JOB_ID": "123", "LOG": str(log),
                              **environment})
    return done, log.read_text().splitlines()


def run_folder(tmp_path):
    name = re.search(r"^run=(\S+)", (ROOT / "jobs/train.sbatch").read_text(), flags=re.MULTILINE)[1]
    (tmp_path / name).mkdir(parents=True)
    return tmp_path / name


def test_a_first_start_trains_and_is_not_queued_again(tmp_path):
    done, log = submit(tmp_path, "finish()")
    assert (done.returncode, done.stderr) == (0, "")
    assert len(log) == 1
    assert log[0].startswith("hpcgnn train data/shards/")
    assert log[0].endswith("--checkpoint-every 10 --epochs 7")


STOPPED = "wait_for_usr1(lambda: sys.exit(75))"
QUEUED = "scontrol requeue 123"
TAKES = "hpcgnn: stopped by {}; job 123 is queued again and goes on from its last checkpoint\n"


@pytest.mark.parametrize("body, options, status, log, said", [
    # A signal queues the job again whatever the status that it leaves, but for a training that has finished.
    *((f"wait_for_usr1({answer})", {"env": WHEN_READY}, 0, ["ready", QUEUED], TAKES.format("USR1"))
      for answer in ("lambda: sys.exit(75)", "lambda: sys.exit(0)", "lambda: sys.exit(1)",
                     "lambda: os.kill(os.getpid(), 9)")),
    ("wait_for_usr1(finish)", {"env": WHEN_READY}, 0, ["ready"], ""),
    # Other warnings are handed on as USR1.
    *((STOPPED, {"env": WHEN_READY.replace("USR1", name)}, 0, ["ready", QUEUED], TAKES.format(name))
      for name in ("TERM", "USR2", "XCPU")),
    # Before the training starts, and while the environment fails.
    *(("finish()", {"env": f"kill -{name} $$"}, 0, [QUEUED], TAKES.format(name)) for name in ("USR1", "TERM")),
    ("finish()", {"env": "kill -USR1 $$; false"}, 0, [QUEUED], ""),
    # Slurm signals the steps; an Open MPI mpirun that so loses its daemons ends with status 0.
    ("sys.exit(0)", {"job": "JobState=RUNNING Reason=None PreemptTime=2026-11-23T00:46:52"}, 0, [QUEUED],
     "hpcgnn: preempted; "),
    ("sys.exit(143)", {"job": "JobState=COMPLETING Reason=TimeLimit"}, 0, [QUEUED], ""),
    (STOPPED, {"env": WHEN_READY, "job": "JobState=COMPLETING Reason=None"}, 75, ["ready"],
     "is not queued again, because it was cancelled"),
    (STOPPED, {"env": WHEN_READY, "SLURM_RESTART_COUNT": "100"}, 1, ["ready"],
     "already queued again 100 times and ends without a result; submit it again to go on"),
    # The last task's SLURM_JOB_ID is the number of the whole array.
    *((STOPPED, {"env": WHEN_READY, "SLURM_ARRAY_JOB_ID": "123", "SLURM_ARRAY_TASK_ID": task}, 0,
       ["ready", f"{QUEUED}_{task}"], f"job 123_{task} is queued again") for task in "02"),
    # A failure and a launcher's status 0 without a result queue nothing; a dry run needs no result.
    ("sys.exit(1)", {}, 1, [], ""), ("sys.exit(2)", {}, 2, [], ""),
    ("sys.exit(0)", {}, 1, [], "hpcgnn: the launcher ended with status 0, but left no runs/"),
    ("sys.exit(0)", {"arguments": ("--dry-run",)}, 0, [], "")])
def test_a_job_is_queued_again_where_it_was_stopped(tmp_path, body, options, status, log, said):
    done, found = submit(tmp_path, body, **options)
    assert [line for line in found if not line.startswith("hpcgnn ")] == log
    assert said in (done.stderr if status else done.stdout)
    assert QUEUED in "".join(log) or done.returncode == status
    assert status or not done.stderr


@pytest.mark.parametrize("old_env", [False, True])
def test_ranks_that_start_outlive_the_signal_and_get_it_later(tmp_path, old_env):
    """The program has no handler in its first 0.3 seconds. An old `env` can't block signals."""
    if old_env:
        write_program(tmp_path / "bin/env", '[[ $1 == --* ]] && exit 125\nPATH=/usr/bin:/bin exec env "$@"\n')
    done, log = submit(tmp_path, "write('ready'); time.sleep(0.3); wait_for_usr1(lambda: sys.exit(75))", env=WHEN_READY)
    assert log[1:] == ["ready", "ready", "scontrol requeue 123"]
    assert done.stderr == ""


@pytest.mark.parametrize("status, has_checkpoint, expected", [(75, True, 0), (75, False, 1), (143, True, 1)])
def test_a_job_of_a_chain_is_complete_once_its_checkpoint_is_written(tmp_path, status, has_checkpoint, expected):
    """With most_restarts=0 another job goes on; without a checkpoint, or with ranks that were killed, it failed."""
    if has_checkpoint:
        (run_folder(tmp_path) / "checkpoint.h5").touch()
    done, log = submit(tmp_path, f"wait_for_usr1(lambda: sys.exit({status}))", env=f"most_restarts=0\n{WHEN_READY}")
    assert (done.returncode, log[1:]) == (expected, ["ready"])
    assert ("the next job on it goes on" in done.stdout) == (expected == 0)


def test_the_result_of_an_earlier_run_is_not_taken_for_that_of_this_one(tmp_path):
    (run_folder(tmp_path) / "summary.json").touch()
    assert submit(tmp_path, "finish()", env="kill -USR1 $$")[1] == ["scontrol requeue 123"]


def test_a_run_that_goes_on_and_is_stopped_has_no_result_and_is_queued_again(tmp_path):
    """It was complete and gets more epochs; going on from its checkpoint removes the summary."""
    (run_folder(tmp_path) / "summary.json").touch()
    body = "(run / 'summary.json').unlink(); wait_for_usr1(lambda: sys.exit(75))"
    assert submit(tmp_path, body, env=WHEN_READY)[1][1:] == ["ready", QUEUED]


@pytest.mark.parametrize("script, variables", [("train.pbs", {"PBS_O_WORKDIR": ".", "PBS_NODEFILE": "nodes"}), (
    "train.lsf", {"LS_SUBCWD": ".", "LSB_DJOB_HOSTFILE": "nodes"})])
@pytest.mark.parametrize("body, status", [("exit 1", 1), ("rm {}", 1), ("exit 0", 1), ("rm {}; touch {}; exit 1", 0)])
def test_only_a_result_of_this_job_ends_it_with_status_0(tmp_path, script, variables, body, status):
    text = (ROOT / "jobs" / script).read_text()
    run = re.search(r"^run=(\S+)", text, flags=re.MULTILINE)[1]
    (tmp_path / run).mkdir(parents=True)
    (tmp_path / run / "summary.json").touch()
    (tmp_path / "nodes").write_text("a\nb\n")
    (tmp_path / "jobs").mkdir()
    (tmp_path / "jobs/env.sh").write_text(f"MPI4PY_MPIABI=openmpi\n. {ROOT}/jobs/signals.sh\n"
                                          "hpcgnn_set_launch() { LAUNCH=(env); }\n")
    write_program(tmp_path / "bin/hpcgnn", body.replace("{}", f"{run}/summary.json"))
    done = subprocess.run(["bash", ROOT / "jobs" / script], cwd=tmp_path, capture_output=True, text=True, timeout=60,
                          env={"PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}", **variables})
    assert (done.returncode, done.stderr) == (status, "")


def test_a_job_with_a_checkpoint_resumes(tmp_path):
    (run_folder(tmp_path) / "checkpoint.h5").touch()
    assert " --resume " in submit(tmp_path, "finish()")[1][0]


def test_a_job_queued_again_before_its_first_checkpoint_starts_over(tmp_path):
    command = submit(tmp_path, "finish()", SLURM_RESTART_COUNT="1")[1][0]
    assert " --resume " in command and " --overwrite " not in command    # --resume starts anew where there is none


@pytest.mark.parametrize("replaces", [True, False], ids=["replaced", "stopped before"])
def test_overwrite_holds_until_the_old_run_is_replaced(tmp_path, replaces):
    checkpoint = run_folder(tmp_path) / "checkpoint.h5"
    checkpoint.write_text("old")
    os.utime(checkpoint, (0, 0))
    body = "finish()" if not replaces else "(run / 'checkpoint.h5').write_text('new'); sys.exit(75)"
    _, first = submit(tmp_path, body, env="" if replaces else "kill -USR1 $$", arguments=("--overwrite", "--lr", "1"))
    assert first[-1] == "scontrol requeue 123"
    assert not replaces or (first[0].endswith(" --overwrite --lr 1") and "--resume" not in first[0])
    _, log = submit(tmp_path, "finish()", arguments=("--overwrite", "--lr", "1"), SLURM_RESTART_COUNT="1")
    assert log[-1].endswith(" --resume --lr 1" if replaces else "--checkpoint-every 10 --overwrite --lr 1")
    assert sorted(path.name for path in checkpoint.parent.iterdir()) == ["checkpoint.h5", "summary.json"]


@pytest.mark.parametrize("words", [("--out", "{}"), ("--out={}",), ("--out", "elsewhere", "--out", "{}")])
def test_the_run_folder_behind_the_script_is_the_one_that_counts(tmp_path, words):
    folder = tmp_path / "a run of mine"
    folder.mkdir()
    (folder / "checkpoint.h5").touch()
    done, log = submit(tmp_path, "finish()", arguments=[word.format(folder) for word in words])
    assert (done.returncode, done.stderr) == (0, "")
    assert f"hpcgnn train data/shards/ogbn-products-p8 --out {folder} " in log[0] and " --resume " in log[0]
    assert (folder / "summary.json").exists()


def preprocess(tmp_path, *arguments, made=True, **environment):
    """Run preprocess.sbatch with stand-ins. Returns how it ended, and the commands of `hpcgnn`."""
    log = tmp_path / "log"
    (tmp_path / "jobs").mkdir(exist_ok=True)
    (tmp_path / "jobs/env.sh").touch()
    shutil.copy(ROOT / "jobs/signals.sh", tmp_path / "jobs")
    write_program(tmp_path / "bin/hpcgnn", f"""echo "$*" >>{log}
while (($# > 2)); do [[ $1 != --out ]] || out=$2; [[ $1 != --out=* ]] || out=${{1#--out=}}; shift; done
[[ -z ${{out:-}} ]] || {{ {"true" if made else "false"} && mkdir -p "$out" && echo new >"$out/graph.h5"; exit; }}
[[ -f $2/graph.h5 ]]
""")
    environment = {"PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}", "SLURM_SUBMIT_DIR": str(tmp_path),
                   "SLURM_JOB_ID": "5", **environment}
    done = subprocess.run(["bash", ROOT / "jobs/preprocess.sbatch", *arguments], capture_output=True, text=True,
                          cwd="/", env=environment)
    commands = log.read_text().splitlines()
    log.unlink()
    return done, [command for command in commands if command.startswith("preprocess")]


def test_a_preprocessing_queued_again_makes_the_shards_that_were_asked_for(tmp_path):
    """Shards of an earlier job lie in the script's own folder and in the folder behind the script."""
    own = re.search(r"^shards=(\S+)p\$parts", (ROOT / "jobs/preprocess.sbatch").read_text(), flags=re.MULTILINE)[1]
    for folder in (tmp_path / f"{own}p8", tmp_path / "x y"):
        folder.mkdir(parents=True)
        (folder / "graph.h5").write_text("old")
    for restarts in "01":      # the first start is ended before it has made anything
        done, commands = preprocess(tmp_path, "--overwrite", "--out", str(tmp_path / "x y"), made=restarts == "1",
                                    SLURM_RESTART_COUNT=restarts)
        assert (done.returncode == 0, len(commands)) == (restarts == "1", 1)
    assert (tmp_path / "x y/graph.h5").read_text() == "new\n"


def test_a_preprocessing_that_ended_is_not_done_again(tmp_path):
    (tmp_path / "build").mkdir()
    (tmp_path / "build/preprocess-5").write_text("none\n")
    (tmp_path / "x").mkdir()
    (tmp_path / "x/graph.h5").touch()
    done, commands = preprocess(tmp_path, f"--out={tmp_path / 'x'}", SLURM_RESTART_COUNT="1")
    assert (done.returncode, commands) == (0, [])
    assert not (tmp_path / "build/preprocess-5").exists()


def test_what_srun_starts_has_the_whole_environment():
    text = (ROOT / "jobs/train.sbatch").read_text()
    assert "LAUNCH=(srun --export=ALL " in text
    assert "unset SLURM_EXPORT_ENV SRUN_EXPORT_ENV" in (ROOT / "jobs/mpi.sh").read_text()


# As PBS Professional writes it: long lines go on after a tab.
QSTAT = """Job Id: 7.pbs
    Job_Name = mine
    resources_used.walltime = 00:12:01
    queue = big
    Account_Name = water
    Resource_List.ncpus = 32
    Resource_List.nodect = 8
    Resource_List.place = scatter
    Resource_List.select = 8:nc
\tpus=4
    Resource_List.walltime = 01:00:00
    Variable_List = PBS_O_HOME=/home/me,HPCGNN_RESTARTS=2,OF_MINE=a\\, b,
\tPBS_O_QUEUE=big
"""


@pytest.mark.parametrize("script, body, status, again", [
    ("train.pbs", "finish()", 0, []), ("train.pbs", "sys.exit(1)", 1, []),
    ("train.pbs", "sys.exit(75)", 0, ["qsub -N mine -q big -A water -l place=scatter -l select=8:ncpus=4 -l "
                                      "walltime=01:00:00 -v HPCGNN_RESTARTS=3,OF_MINE jobs/train.pbs"]),
    ("train.lsf", "finish()", 0, []), ("train.lsf", "sys.exit(1)", 1, []),
    ("train.lsf", "(os.kill(int(os.environ['SCRIPT']), signal.SIGUSR2), wait_for_usr1(lambda: sys.exit(1)))", 75, [])])
def test_other_batch_systems(tmp_path, script, body, status, again):
    """With stand-ins; LSF queues a job again that ends with 75, and PBS gets what the first qsub asked for."""
    log = tmp_path / "log"
    log.touch()
    (tmp_path / "jobs").mkdir()
    (tmp_path / "jobs/env.sh").write_text("MPI4PY_MPIABI=openmpi\nsource jobs/signals.sh\nexport SCRIPT=$$\n"
                                          "hpcgnn_set_launch() { LAUNCH=(env RANKS=$1); }\n")
    shutil.copy(ROOT / "jobs/signals.sh", tmp_path / "jobs")
    (tmp_path / "nodes").write_text("n1\nn1\nn2\nn2\n")
    write_program(tmp_path / "bin/qsub", f'echo "qsub $*" >>"{log}"\n')
    write_program(tmp_path / "bin/qstat", f"cat <<'E'\n{QSTAT}E\n")
    write_program(tmp_path / "bin/hpcgnn", "")
    (tmp_path / "bin/hpcgnn").write_text(PROGRAM.format(python=sys.executable, log=str(log), body=body))
    done = subprocess.run(["bash", ROOT / "jobs" / script], capture_output=True, text=True, timeout=60, cwd="/", env={
        "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}", "PBS_O_WORKDIR": str(tmp_path), "HPCGNN_RESTARTS": "2",
        "LS_SUBCWD": str(tmp_path), "PBS_NODEFILE": str(tmp_path / "nodes"),
        "LSB_DJOB_HOSTFILE": str(tmp_path / "nodes"), "OF_MINE": "a, b"})
    lines = log.read_text().splitlines()
    assert (done.returncode, [line for line in lines if line.startswith("qsub")]) == (status, again), done.stderr
    assert " --resume --model sage" in lines[0]
