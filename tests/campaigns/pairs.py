"""Two forked ranks that run one command each and end: with a status, by a signal, or not at all."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from campaigns.piped_comm import PEER_IS_GONE, become_rank


@dataclass(frozen=True)
class PairEnded:
    """How both ranks ended; a status below zero is a signal, None a rank that had to be killed."""

    statuses: list[int | None]
    said: str

    @property
    def is_hanging(self) -> bool:
        return None in self.statuses


def run_pair(body: Callable[[int], int], folder: Path, seconds: float) -> PairEnded:
    """Fork two ranks, each of which ends with status body(rank).

    Parameters
    ----------
    folder : Path            ranks work in it, and write standard error to stderr-R there
    seconds : float          after which both are killed
    """
    pipes = multiprocessing.Pipe()
    children = [_fork(rank, pipes, body, folder) for rank in range(2)]
    for pipe in pipes:
        pipe.close()
    statuses = _wait(children, time.monotonic() + seconds)
    said = "".join((folder / f"stderr-{rank}").read_text(errors="replace") for rank in range(2))
    return PairEnded([status for status in statuses if status != PEER_IS_GONE] or statuses, said)


def _fork(rank: int, pipes: tuple, body: Callable[[int], int], folder: Path) -> int:
    child = os.fork()
    if child:
        return child
    status, comm = 1, None
    try:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)
        pipes[1 - rank].close()
        os.chdir(folder)
        sys.stderr = open(f"stderr-{rank}", "w", buffering=1)  # noqa: SIM115 - until the end of the process
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115
        comm = become_rank(rank, pipes[rank])
        status = body(rank)
    except BaseException:
        traceback.print_exc()
    finally:
        if comm is not None:
            comm.finish()
        sys.stderr.flush()
        os._exit(status)


def _wait(children: list[int], limit: float) -> list[int | None]:
    statuses: dict[int, int | None] = {}
    pause = 0.002
    while len(statuses) < len(children):
        for child in children:
            if child not in statuses:
                done, status = os.waitpid(child, os.WNOHANG)
                if done:
                    statuses[child] = os.waitstatus_to_exitcode(status)
        if time.monotonic() > limit:
            for child in children:
                if child not in statuses:
                    os.kill(child, signal.SIGKILL)
                    os.waitpid(child, 0)
                    statuses[child] = None
        time.sleep(pause)
    return [statuses[child] for child in children]
