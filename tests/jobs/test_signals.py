"""jobs/signals.sh with a real mpirun on a terminal: Ctrl-C and TERM reach ranks as USR1, and the status is theirs."""

import os
import pty
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from parallel_run import clean_environment

ROOT = Path(__file__).parents[2]
needs_mpirun = pytest.mark.skipif("MPIRUN" not in os.environ, reason="MPIRUN is not set; source jobs/env.sh")
# The environment is there already; only the functions are taken from jobs/.
PRELUDE = f"""
hpcgnn_fail() {{ echo "$*" >&2; return 1; }}
source {ROOT}/jobs/mpi.sh
source {ROOT}/jobs/signals.sh
MPI4PY_MPIABI=$(hpcgnn_mpi_abi "$MPIRUN")
"""
# A rank that answers USR1 with status 75 a moment later, and says so when it is ready.
RANK = """
import os, pathlib, signal, sys, time
asked = []
signal.signal(signal.SIGUSR1, lambda *_: asked.append(1))
signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGUSR1, signal.SIGTERM})
pathlib.Path(f"ready-{os.getpid()}").touch()
while not asked:
    time.sleep(0.02)
time.sleep(0.3)
pathlib.Path(f"done-{os.getpid()}").touch()
sys.exit(75)
"""


def start(folder, launch, **variables):
    """Two ranks of RANK on a terminal of their own, both ready. Returns the process and the terminal."""
    (folder / "rank.py").write_text(RANK)
    terminal, inside = pty.openpty()
    code = PRELUDE + launch.format(rank=f"{sys.executable} rank.py")
    process = subprocess.Popen(["setsid", "--ctty", "--wait", "bash", "-c", code], cwd=folder,
                               env={**clean_environment(), "HPCGNN_MPIRUN_SECONDS": "", **variables},
                               stdin=inside, stdout=subprocess.DEVNULL, stderr=inside)
    os.close(inside)
    limit = time.monotonic() + 60
    while len(list(folder.glob("ready-*"))) < 2:
        assert process.poll() is None and time.monotonic() < limit
        time.sleep(0.02)
    return process, terminal


@needs_mpirun
@pytest.mark.covering(1)
@pytest.mark.parametrize("seconds", ["", "600"], ids=["", "with a limit of time"])
@pytest.mark.parametrize("how", ["Ctrl-C", "TERM", "USR1"])
def test_a_stop_lets_ranks_end_in_order_under_every_mpi(tmp_path, how, seconds):
    process, terminal = start(tmp_path, "echo $$ >script; hpcgnn_catch_signals INT; hpcgnn_set_launch 2\n"
                                        'hpcgnn_hold "${{LAUNCH[@]}}" "${{HPCGNN_QUIET_START[@]}}" {rank}',
                              HPCGNN_MPIRUN_SECONDS=seconds)
    if how == "Ctrl-C":
        os.write(terminal, b"\x03")
    else:
        os.kill(int((tmp_path / "script").read_text()), signal.Signals[f"SIG{how}"])
    assert process.wait(timeout=60) == 75
    os.close(terminal)
    assert len(list(tmp_path.glob("done-*"))) == 2


@needs_mpirun
def test_ctrl_c_stops_hpcgnn_stoppable_in_order_and_a_second_one_at_once(tmp_path):
    for presses in (1, 2):
        folder = tmp_path / str(presses)
        folder.mkdir()
        process, terminal = start(folder, "hpcgnn_stoppable 2 {rank}")
        os.write(terminal, b"\x03")
        if presses == 2:
            output = b""
            while b"Ctrl-C again" not in output:
                output += os.read(terminal, 4096)
            os.write(terminal, b"\x03")
        assert (process.wait(timeout=60) == 75) == (presses == 1)
        os.close(terminal)
        assert presses == 2 or len(list(folder.glob("done-*"))) == 2
