"""launch: runs a command of hpcgnn, or a Python file, on several ranks from a notebook or a script."""

from __future__ import annotations

import itertools
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from hpcgnn.errors import Interrupted, TrainingError
from hpcgnn.library.run_files import LaunchedRun
from hpcgnn.report.run_folder import read_run

SAYS = "hpcgnn: "


def launch(command: str | Sequence[str], ranks: int | None = None, *, hosts: str | None = None,
           launcher: str = "auto", threads: int | None = None) -> LaunchedRun | None:
    """Run a command on several ranks, as `hpcgnn launch` does, and print its output as it comes.

    It starts processes of its own, so that a notebook needs no MPI. Interrupting the cell lets a training write a
    checkpoint; interrupting it again ends the ranks at once.

    Parameters
    ----------
    command : str, or a list of words      "train shards/demo-p2 --out runs/demo", or "program.py --epochs 3"
    ranks : int or None                    None: the number of parts of the shards
    hosts : str or None                    "a:2,b:2"; None: this machine, or the nodes of the Slurm job
    launcher : {"auto", "mpirun", "srun"}
    threads : int or None                  OpenMP threads of each rank; None: an equal share of the cores

    Returns
    -------
    LaunchedRun for `train` with `--out`: `summary`, `records` of the epochs, `config`, and `plot`, `report`, `to_csv`
    and `to_pandas` as a run of `hpcgnn.fit` has. Else None

    Raises
    ------
    Interrupted        a training ended with a checkpoint, with status 75
    TrainingError      the command failed; it has the ranks' last sentence

    Examples
    --------
    >>> run = hpcgnn.launch("train shards/demo-p2 --out runs/demo", ranks=2)
    >>> run.test_score, run.plot()
    """
    words = shlex.split(command) if isinstance(command, str) else [str(word) for word in command]
    words = words[1:] if words[:1] == ["hpcgnn"] else words
    options = {"--ranks": ranks, "--hosts": hosts, "--launcher": launcher, "--threads": threads}
    given = [f"{name}={value}" for name, value in options.items() if value is not None]
    said = ""
    # os.environ lacks what an MPI in this process has set for itself. Ctrl-C is handed on below, once.
    with subprocess.Popen([sys.executable, "-m", "hpcgnn", "launch", *given, "--", *words], stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, text=True, errors="replace",
                          env=dict(os.environ), start_new_session=True) as process:
        while process.poll() is None or process.stdout.readable():
            try:
                for line in process.stdout:
                    print(line, end="", flush=True)
                    said = line.strip() if line.startswith(SAYS) or not said.startswith(SAYS) else said
                break
            except KeyboardInterrupt:
                process.send_signal(signal.SIGINT)
    status, sentence = process.returncode, said.removeprefix(SAYS)
    if status == Interrupted.exit_code:
        raise Interrupted(sentence)
    if status:
        raise TrainingError(sentence or f"{words[0]} ended with status {status}")
    folder = _folder_of(words)
    return None if folder is None else LaunchedRun(**vars(read_run(folder, folder.name)))


def _folder_of(words: list[str]) -> Path | None:
    """The run folder that a training writes, where its words name it."""
    if words[:1] != ["train"] or "--dry-run" in words:
        return None
    named = [after for word, after in itertools.pairwise(words) if word == "--out"]
    named += [word.partition("=")[2] for word in words if word.startswith("--out=")]
    return Path(named[-1]) if named else None
