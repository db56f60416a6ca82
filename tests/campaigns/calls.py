"""Calls of the hpcgnn command inside this process or outside, and the verdict on how they ended."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import subprocess
import traceback
from dataclasses import dataclass
from pathlib import Path

from fork_server import served

STOPPED = 75


@dataclass(frozen=True)
class Ended:
    """How a command ended."""

    status: int
    stdout: str
    stderr: str


def call(*arguments) -> Ended:
    """Run `hpcgnn ARGUMENTS` in this process; what no handler catches is printed as Python would."""
    from hpcgnn.__main__ import main

    out, complaints, status = io.StringIO(), io.StringIO(), 0
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(complaints):
        try:
            main([str(argument) for argument in arguments])
        except SystemExit as stop:
            status = stop.code if isinstance(stop.code, int) else 0 if stop.code is None else 1
        except BaseException:
            status = 1
            complaints.write(traceback.format_exc())
    return Ended(status, out.getvalue(), complaints.getvalue())


def must_run(*arguments) -> None:
    """A command that a campaign starts from and that has to succeed, on one rank."""
    must_run_all([arguments])


def must_run_all(commands: list) -> None:
    """Run commands one after another in a fork of a process that has torch loaded."""
    words = json.dumps([[str(word) for word in command] for command in commands])
    done = subprocess.run(served([Path(__file__).parents[1] / "several_commands.py", words]), capture_output=True,
                          text=True, stdin=subprocess.DEVNULL, env={**os.environ, "OMP_NUM_THREADS": "1"})
    if done.returncode != 0:
        raise RuntimeError(f"one of {words} ended with {done.returncode}: {done.stderr}")


def sentences(text: str) -> list[str]:
    """What hpcgnn itself said."""
    return [line for line in text.splitlines() if line.startswith("hpcgnn: ")]


def fault_in(status: int, stderr: str) -> str | None:
    """What is wrong with how a command ended that may fail or succeed: None for status 0, and for one sentence and
    another status.
    """
    if status < 0:
        return f"ended by signal {-status}"
    if "Traceback (most recent call last)" in stderr:
        return f"traceback: {last_of_traceback(stderr)}"
    if status == 0:
        return None
    said = sentences(stderr)
    if len(said) != 1:
        return f"status {status} with {len(said)} sentences: {shortened(stderr)}"
    return None


def last_of_traceback(text: str) -> str:
    """The line that names the exception, and the last place in hpcgnn that it passed."""
    lines = text.strip().splitlines()
    places = [f"{Path(found[1]).name}:{found[2]}" for found in
              (re.match(r'\s+File "([^"]*/hpcgnn/[^"]*)", line (\d+)', line) for line in lines) if found]
    named = next((line for line in reversed(lines) if re.match(r"[\w.]+(Error|Exception|Interrupt|Exit)\b", line)),
                 lines[-1])
    return shortened(f"{named} ({places[-1] if places else 'not in hpcgnn'})")


def shortened(text: str, length: int = 300) -> str:
    """Text on one line, cut where it is long."""
    line = " | ".join(text.strip().split("\n"))
    return line if len(line) <= length else line[:length] + "…"
