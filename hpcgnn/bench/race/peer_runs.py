"""This module trains a peer in one process or several beside each other on this machine, by its driver.

Nothing here imports NumPy or torch.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from time import sleep

from hpcgnn.bench.environment import allocator_name, thread_environment, with_tcmalloc
from hpcgnn.bench.epoch_runs import complaint
from hpcgnn.bench.race.contestants import Peer
from hpcgnn.bench.race.curve import Point, Settings, Training
from hpcgnn.bench.race.settings import PeerSettings, RaceSettings
from hpcgnn.errors import TrainingError

LOOK_EVERY = 0.05                              # seconds between looks at which processes have ended
LOOPBACK = {"GLOO_SOCKET_IFNAME": "lo"}        # the name of a machine need not lead to an address of its own


def train_peer(peer: Peer, race: RaceSettings, settings: Settings, seed: int, threads: int, arrays: Path,
               folder: Path) -> Training:
    """Run a peer's driver in all its processes, which share the threads, under tcmalloc where that is installed.

    Parameters
    ----------
    arrays : the graph as an .npz archive
    folder : for what the processes leave
    """
    store = folder / "store"
    with suppress(FileNotFoundError):
        store.unlink()
    asked = PeerSettings(**asdict(race), lr=settings.lr, batch=settings.own_batch, fanout=peer.fanout, seed=seed,
                         processes=settings.processes, store=str(store))
    environment = with_tcmalloc(thread_environment(max(1, threads // settings.processes), {**os.environ, **LOOPBACK}))
    commands = [[sys.executable, "-m", peer.driver, str(arrays), json.dumps(asdict(replace(asked, rank=rank)))]
                for rank in range(settings.processes)]
    result = json.loads(run_beside(commands, environment, folder).splitlines()[-1])
    return Training([Point(**point) for point in result["points"]], result["peak_bytes"], allocator_name(environment))


def run_beside(commands: list[list[str]], environment: Mapping[str, str], folder: Path) -> str:
    """Run commands beside each other until all have ended, and return what the first one printed.

    Raises
    ------
    TrainingError      one failed, with its sentence; the others are ended
    """
    processes: list[subprocess.Popen] = []
    try:
        for rank, command in enumerate(commands):
            with (folder / f"said-{rank}.txt").open("w") as said, (folder / f"errors-{rank}.txt").open("w") as errors:
                processes.append(subprocess.Popen(command, env=dict(environment), stdout=said, stderr=errors))
        failed = _wait(processes)
    finally:
        for process in processes:
            process.terminate()      # nothing, where it has ended
            process.wait()
    if failed is not None:
        raise TrainingError(f"{' '.join(commands[failed][:3])} … failed with status {processes[failed].returncode}: "
                            f"{complaint((folder / f'errors-{failed}.txt').read_text())}")
    return (folder / "said-0.txt").read_text()


def _wait(processes: list[subprocess.Popen]) -> int | None:
    """Wait until all have ended well or one has failed; return which."""
    while True:
        ends = [process.poll() for process in processes]
        failed = next((rank for rank, status in enumerate(ends) if status), None)
        if failed is not None or None not in ends:
            return failed
        sleep(LOOK_EVERY)
