"""A command that the server forks is as one that starts by itself: streams, arguments, environment, signals, status."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from fork_server import FOLDER, forked_for, served
from parallel_run import clean_environment, is_running

SEEN = ("import sys, os, resource\n"
        "print(sys.argv, input(), os.getcwd(), os.environ['OF_A_TEST'], os.umask(0), resource.getrlimit(7), __name__)\n"
        "print(sorted(os.sched_getaffinity(0)), [os.path.isdir(p) for p in sys.path[:1]], file=sys.stderr)\n"
        "sys.exit(int(sys.argv[1]))")
HAS_TORCH = "import sys; print('torch' in sys.modules, 'hpcgnn' in sys.modules, 'mpi4py' in sys.modules)"


def run(command, **others):
    environment = {**clean_environment(), "OF_A_TEST": "x"}
    return subprocess.run(command, capture_output=True, text=True, env=environment, **others)


def test_a_forked_process_sees_what_one_of_its_own_sees(tmp_path):
    (tmp_path / "seen.py").write_text(SEEN)
    for words in (["-c", SEEN, "3"], [str(tmp_path / "seen.py"), "4"], ["-m", "seen", "5"]):
        ended = [run([*start, *words], input="ä\n", cwd=tmp_path, umask=0o27)
                 for start in (served([]), [sys.executable])]
        assert ended[0].stdout == ended[1].stdout and ended[0].stderr == ended[1].stderr
        assert ended[0].returncode == ended[1].returncode == int(words[-1])


def test_torch_is_loaded_before_the_fork_and_hpcgnn_and_mpi_are_not():
    assert run(served(["-c", HAS_TORCH])).stdout == "True False False\n"


@pytest.mark.long
def test_what_tests_import_is_loaded_before_the_fork_of_pytest_and_of_nothing_else(tmp_path):
    pytest.importorskip("torch_geometric", reason="torch-geometric is not installed")
    (tmp_path / "test_one.py").write_text("import sys\ndef test_one():\n    assert 'torch_geometric' in sys.modules\n"
                                          "    assert 'hpcgnn' not in sys.modules\n")
    pytest_of_file = served(["-m", "pytest", "-q", "-p", "no:cacheprovider", "test_one.py"])
    assert subprocess.run(pytest_of_file, cwd=tmp_path).returncode == 0     # by the server that these tests come from
    assert run(served(["-c", "import sys; print('torch_geometric' in sys.modules)"])).stdout == "False\n"


@pytest.mark.long
def test_an_environment_that_libraries_read_while_they_load_has_its_own_server():
    program = "import torch; print(torch.get_num_threads(), torch.backends.cpu.get_cpu_capability())"
    held = {**clean_environment(), "OMP_NUM_THREADS": "2", "ATEN_CPU_CAPABILITY": "default"}
    for environment in (clean_environment(), held):
        found = [subprocess.run([*start, "-c", program], capture_output=True, text=True, env=environment).stdout
                 for start in (served([]), [sys.executable])]
        assert found[0] == found[1] != ""


def test_without_a_server_the_command_is_a_process_of_its_own():
    environment = {name: value for name, value in os.environ.items() if name != FOLDER}
    ended = subprocess.run(served(["-c", HAS_TORCH]), capture_output=True, text=True, env=environment)
    assert ended.stdout == "False False False\n"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1])
def test_a_signal_reaches_the_forked_process_and_its_end_is_that_of_the_command(number):
    program = ("import os, signal, time; print(os.getpid(), flush=True)\n"
               "signal.signal(signal.SIGUSR1, lambda *_: exit(75))\ntime.sleep(100)")
    with subprocess.Popen(served(["-c", program]), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                          env=clean_environment()) as process:
        forked = int(process.stdout.readline())
        assert forked_for(process.pid) == forked
        time.sleep(0.1)
        process.send_signal(number)
        expected = {signal.SIGTERM: -signal.SIGTERM, signal.SIGINT: -signal.SIGINT, signal.SIGUSR1: 75}[number]
        assert process.wait(60) == expected
        assert not is_running(forked)


def test_a_command_that_is_killed_takes_the_forked_process_along():
    program = ("import subprocess, time; one = subprocess.Popen(['sleep', '100'])\n"
               "print(one.pid, flush=True); time.sleep(100)")
    with subprocess.Popen(served(["-c", program]), stdout=subprocess.PIPE, env=clean_environment()) as process:
        started = int(process.stdout.readline())
        process.kill()
    limit = time.monotonic() + 30
    while is_running(started) and time.monotonic() < limit:
        time.sleep(0.01)
    assert not is_running(started)


def test_a_forked_process_that_is_killed_is_told_as_it_is():
    ended = run(served(["-c", "import os; os.kill(os.getpid(), 9)"]))
    assert ended.returncode == -signal.SIGKILL


@pytest.mark.long
def test_servers_end_with_the_tests(tmp_path):
    (tmp_path / "test_one.py").write_text(
        "import subprocess\nfrom fork_server import served\ndef test_one(tmp_path):\n"
        "    words = served(['-c', 'import os; print(os.getppid())'])\n"
        f"    open({str(tmp_path / 'pid')!r}, 'w').write(subprocess.check_output(words, text=True))\n")
    environment = {**{name: value for name, value in clean_environment().items() if name != FOLDER},
                   "PYTHONPATH": str(Path(__file__).parent)}
    assert subprocess.run([sys.executable, "-m", "pytest", "-q", "-p", "fork_server", "-p", "no:cacheprovider",
                           tmp_path / "test_one.py"], env=environment, cwd=tmp_path).returncode == 0
    limit, server = time.monotonic() + 30, int((tmp_path / "pid").read_text())
    while is_running(server) and time.monotonic() < limit:
        time.sleep(0.1)
    assert not is_running(server)
