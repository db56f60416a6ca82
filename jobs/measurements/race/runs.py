"""Trainings of a race, each in its own processes: ours by `hpcgnn train`, a peer by its driver.

Imports neither NumPy nor torch.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from time import sleep
from typing import IO, Any

from measurements.race.contestants import (
    FULL_GRAPH,
    OWN_ARGUMENTS,
    OWN_CLASS,
    OWN_MODEL,
    PEERS_MODEL,
    Contestant,
    Ours,
    Peer,
    PeerSettings,
    RaceSettings,
)
from measurements.race.curve import Point, Settings, Training

from hpcgnn.bench.environment import allocator_name, thread_environment, with_tcmalloc
from hpcgnn.bench.epoch import complaint, find_mpirun, hpcgnn_command
from hpcgnn.errors import TrainingError

LOOK_EVERY = 0.05                              # seconds between looks at which processes have ended
LOOPBACK = {"GLOO_SOCKET_IFNAME": "lo"}        # the machine's name may not resolve to its own address
JOBS = Path(__file__).resolve().parents[2]     # where a driver finds its own modules


def train_peer(peer: Peer, race: RaceSettings, settings: Settings, seed: int, threads: int, arrays: Path,
               folder: Path) -> Training:
    """Run a peer's driver in all its processes, which share the threads, under tcmalloc where that is installed.

    `arrays` is the graph as an .npz archive; `folder` gets the processes' files.
    """
    store = folder / "store"
    with suppress(FileNotFoundError):
        store.unlink()
    asked = PeerSettings(**{**asdict(race), "model": PEERS_MODEL[race.model]}, lr=settings.lr, dropout=settings.dropout,
                         input_dropout=settings.input_dropout, kind=peer.kind, batch=settings.own_batch,
                         fanout=settings.fanout, seed=seed, processes=settings.processes, store=str(store))
    path = os.pathsep.join(filter(None, [str(JOBS), os.environ.get("PYTHONPATH")]))
    environment = with_tcmalloc(thread_environment(max(1, threads // settings.processes),
                                                   {**os.environ, **LOOPBACK, "PYTHONPATH": path}))
    commands = [[sys.executable, "-m", peer.driver, str(arrays), json.dumps(asdict(replace(asked, rank=rank)))]
                for rank in range(settings.processes)]
    result = json.loads(run_beside(commands, environment, folder).splitlines()[-1])
    return Training([Point(**point) for point in result["points"]], result["peak_bytes"], allocator_name(environment))


def run_beside(commands: list[list[str]], environment: Mapping[str, str], folder: Path) -> str:
    """Run commands at the same time until all have ended; return what the first one printed.

    If one fails, ends the others and raises TrainingError with its sentence.
    """
    processes: list[subprocess.Popen] = []
    try:
        for rank, command in enumerate(commands):
            with (folder / f"said-{rank}.txt").open("w") as said, (folder / f"errors-{rank}.txt").open("w") as errors:
                processes.append(subprocess.Popen(command, env=dict(environment), stdout=said, stderr=errors))
        failed = _wait(processes)
    finally:
        for process in processes:
            process.terminate()      # has no effect if the process has ended
            process.wait()
    if failed is not None:
        raise TrainingError(f"{' '.join(commands[failed][:3])} … failed with status {processes[failed].returncode}: "
                            f"{complaint((folder / f'errors-{failed}.txt').read_text())}")
    return (folder / "said-0.txt").read_text()


def _wait(processes: list[subprocess.Popen]) -> int | None:
    while True:
        ends = [process.poll() for process in processes]
        failed = next((rank for rank, status in enumerate(ends) if status), None)
        if failed is not None or None not in ends:
            return failed
        sleep(LOOK_EVERY)


LOOK_AT_PEERS_EVERY = 0.2      # seconds between looks at what a run has recorded
STOPPED = 75          # exit status of a run that a signal ended
METRICS = "metrics.jsonl"
SENT = ("sent_bytes_payload", "sent_bytes_parameters", "sent_bytes_sums", "sent_bytes_control")


@dataclass(frozen=True)
class Course:
    """What all contestants train on.

    Shards of `ranks` parts, the same graph as one .npz archive, threads, a folder for runs, and our device.
    """

    shards: Path
    arrays: Path
    ranks: int
    threads: int
    folder: Path
    device: str = "cpu"


def train(contestant: Contestant, race: RaceSettings, settings: Settings, seed: int, course: Course) -> Training:
    """Train a contestant once. Raises TrainingError if its process failed or ended before an evaluation."""
    if isinstance(contestant, Ours):
        return train_ours(contestant, race, settings, seed, course)
    return train_peer(contestant, race, settings, seed, course.threads, course.arrays, course.folder)


def train_ours(ours: Ours, race: RaceSettings, settings: Settings, seed: int, course: Course) -> Training:
    """Run `hpcgnn train`, and end it by a signal once it has trained longer than the limit."""
    out = course.folder / "run"
    shutil.rmtree(out, ignore_errors=True)
    is_own = race.model == OWN_MODEL
    flags = {**({"model": OWN_CLASS} if is_own else {"model": race.model, "norm": "layer"}), "layers": race.layers,
             "hidden": race.hidden, "dropout": settings.dropout, "weight-decay": 0, "lr": settings.lr,
             "epochs": race.epochs, "seed": seed, "eval-every": 1, "early-stop": 0, "repeat": 1, "checkpoint-every": 0,
             **({} if course.device == "cpu" else {"device": course.device}), **ours.flags()}
    more = ["--set", f"model_args={OWN_ARGUMENTS}" if is_own else f"input_dropout={settings.input_dropout}"]
    command = hpcgnn_command("train", course.shards, "--out", out, *(f"--{name}={flags[name]}" for name in flags),
                             *more)
    if course.ranks > 1:
        command = [find_mpirun(), "-n", str(course.ranks), *command]
    environment = thread_environment(course.threads if course.ranks == 1 else 1)
    peak_bytes = run_within(command, environment, out / METRICS, race)
    points = list(points_of(read_records(out / METRICS), ours.steps))
    if not points:
        raise TrainingError(f"{ours.name} ended before its first evaluation; allow more seconds")
    return Training(points, peak_bytes, allocator_name(environment))


def run_within(command: list[str], environment: dict[str, str], metrics: Path, race: RaceSettings) -> int:
    """Run a training until it ends or its metrics show the limit of seconds or a sufficient score.

    Returns its peak bytes. Raises TrainingError, with its sentence, if it failed.
    """
    errors = metrics.parent.with_name("errors.txt")
    with errors.open("w") as stream:
        process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=stream)
        try:
            peak_bytes, is_stopped = _watch(process, metrics, race)
        finally:
            if process.returncode is None:
                process.terminate()
                process.wait()
    if process.returncode != 0 and not (is_stopped and process.returncode == STOPPED):
        raise TrainingError(f"{' '.join(command[:6])} … failed with status {process.returncode}: "
                            f"{complaint(errors.read_text())}")
    return peak_bytes


def _watch(process: subprocess.Popen, metrics: Path, race: RaceSettings) -> tuple[int, bool]:
    # Peak bytes belong to the largest of the process and its children.
    seconds, best, is_stopped, stream = 0.0, 0.0, False, None
    while True:
        pid, status, usage = os.wait4(process.pid, os.WNOHANG)
        if pid:
            process.returncode = os.waitstatus_to_exitcode(status)
            return usage.ru_maxrss * 1024, is_stopped
        if stream is None and metrics.exists():
            stream = metrics.open()
        for record in _new_records(stream):
            seconds += training_seconds(record)
            best = max(best, record.get("val_score") or 0.0)
        if (seconds > race.seconds or best >= race.enough) and not is_stopped:
            process.send_signal(signal.SIGUSR1)    # every MPI's launcher hands this signal on
            is_stopped = True
        sleep(LOOK_AT_PEERS_EVERY)


def _new_records(stream: IO[str] | None) -> Iterator[dict[str, Any]]:
    while stream is not None:
        place = stream.tell()
        line = stream.readline()
        if not line.endswith("\n"):
            stream.seek(place)
            return
        yield json.loads(line)


def read_records(metrics: Path) -> list[dict[str, Any]]:
    """Lines of metrics.jsonl; none if there is no such file."""
    return [json.loads(line) for line in metrics.read_text().splitlines()] if metrics.exists() else []


def training_seconds(record: dict[str, Any]) -> float:
    """Seconds of an epoch and of the decisions after it."""
    return record["epoch_seconds"] + (record.get("assign_seconds") or 0.0)


def points_of(records: Iterable[dict[str, Any]], steps: str = FULL_GRAPH) -> Iterator[Point]:
    """Yield the evaluations of a run from its metrics.

    `steps` is the run's setting; an epoch that records its own number of steps counts with that number.
    """
    asked, updates, seconds, sent = int(steps) if steps.isdecimal() else 1, 0, 0.0, 0
    for record in records:
        updates += record.get("num_steps") or asked
        seconds += training_seconds(record)
        sent += sum(record.get(name) or 0 for name in SENT)
        if record.get("val_score") is not None:
            yield Point(record["epoch"], updates, seconds, sent, record["val_score"], record["test_score"])
