"""The numbers of summary.json, over the seeds and epochs of a run, and of each rank; docs/run-folder.md explains them.

Rank 0 gathers seconds, bytes, rows and memory of each rank, so that a report shows for which rank the others wait.
"""

from __future__ import annotations

import os
import re
import socket
import statistics
import time
from collections import Counter, defaultdict
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from mpi4py import MPI

from hpcgnn.methods import name_of
from hpcgnn.partition.partition import PartitionStatistics
from hpcgnn.run.process import peak_bytes, usable_cores
from hpcgnn.training.environment import software_versions, utc_now
from hpcgnn.training.learner import Learner
from hpcgnn.training.model_hooks import hooks_of
from hpcgnn.training.precision import storage_bits
from hpcgnn.training.session import Session

MAX_PAIRED_RANKS, MAX_LISTED_RANKS = 64, 1024      # more would make the matrix, or lists, in a line of metrics too long
MEANS = ("sent_bytes_payload", "sent_bytes_parameters", "sent_bytes_sums", "sent_bytes_control",
         "sent_bytes_between_nodes", "shared_bytes")      # bytes of an epoch, of all ranks
STATM, STAT = Path("/proc/self/statm"), Path("/proc/stat")
LEAST_SECONDS = 1.0      # the system counts in ticks of 10 ms, too coarse for less


def summarize(session: Session, learner: Learner, results: list[dict[str, Any]],
              metrics: list[dict[str, Any]] | None, state_bytes: int) -> dict[str, Any]:
    """Collective: the content of summary.json, from the last seed's learner and all seeds' results; complete on rank 0.

    `metrics` are the recorded epochs, on rank 0 only; `state_bytes` is the memory that the method kept on this rank
    between epochs.
    """
    comm, config = session.comm, session.config
    peak_rss_bytes = comm.allreduce(peak_bytes(), MPI.MAX)
    state_bytes = comm.allreduce(state_bytes, MPI.MAX)
    setup_bytes = comm.allreduce(session.exchange.setup.payload_bytes)
    test_score, test_std = score_statistics([result["test_score"] for result in results])
    val_score, _ = score_statistics([result["val_score"] for result in results])
    by_chance = session.objective.score_by_chance(session.score)
    return {
        "dataset": session.info.name, "fingerprint": asdict(session.info.fingerprint),
        "model": config.model, "method": name_of(config.method),
        "bits": config.method.fixed_bits(storage_bits(config.precision)), "sum_bits": config.bits_of_sums,
        "ranks": comm.size, "nodes": comm.allreduce(int(session.mates[0] == comm.rank)),
        "shares_rows": session.shares_rows, "seeds": [result["seed"] for result in results],
        "score_name": session.score.name, "score_is_share": session.score.is_share,
        "score_prefers_low": session.score.prefers_low,
        "val_score": val_score, "test_score": test_score,
        "test_score_std": test_std, "results": results,
        **({} if by_chance is None else {"test_score_by_chance": by_chance}),
        **({} if metrics is None else {**epoch_statistics(metrics), "num_epochs_recorded": len(metrics)}),
        "device": config.device, "transport": session.transport.name,
        "setup_bytes": setup_bytes, "peak_rss_bytes": peak_rss_bytes, "precision": config.precision,
        "predict": config.predict, "send_share": config.send_share, "method_state_bytes": state_bytes,
        "rows_within": session.rows_within, "epochs": config.epochs,
        **(hooks_of(learner.with_best_weights()).summary(results) if "feature_kb" in results[-1] else {}),
        "versions": software_versions(), "ended": utc_now(), **parts_by_rank(comm, session.info.statistics[comm.rank]),
    }


def bytes_by_pair(session: Session) -> dict[str, list[list[int]]]:
    """Collective: bytes from each rank to each in the last epoch, on rank 0; empty for too many ranks."""
    comm, sent = session.comm, np.zeros(session.comm.size, np.int64)
    if comm.size > MAX_PAIRED_RANKS:
        return {}
    for peer, num_bytes in session.exchange.last_sent.items():
        sent[peer] = num_bytes
    everyone = comm.gather(sent.tolist())
    return {"sent_bytes_by_pair": everyone} if comm.rank == 0 else {}


def score_statistics(scores: list[float]) -> tuple[float, float]:
    """Mean and sample standard deviation (0 for one score)."""
    return statistics.fmean(scores), statistics.stdev(scores) if len(scores) > 1 else 0.0


def epoch_statistics(metrics: list[dict[str, Any]]) -> dict[str, Any]:
    """Median seconds, mean bytes, widths and modes over the recorded epochs; None without any."""
    if not metrics:
        return dict.fromkeys(("mean_bits", "width_histogram", "synchronous_share", "assign_seconds",
                              "median_epoch_seconds", "sent_bytes_per_epoch", "sent_bytes_messages_per_epoch",
                              *(f"{name}_per_epoch" for name in MEANS), "median_hidden_seconds"))

    def mean(name: str) -> float:      # lines of an earlier version lack some of the names
        return statistics.fmean(record.get(name, 0) for record in metrics)

    rows: Counter = Counter()
    for record in metrics:
        rows.update(record["width_histogram"])
    sent = 8 * sum(record["sent_bytes_payload"] for record in metrics)
    values = sum(8 * record["sent_bytes_payload"] / record["mean_bits"] for record in metrics if record["mean_bits"])
    messages = mean("sent_bytes_payload") + mean("sent_bytes_parameters")
    return {
        "mean_bits": sent / values if values else None,
        "width_histogram": dict(rows),
        "synchronous_share": statistics.fmean(record["mode"] == "sync" for record in metrics),
        "assign_seconds": sum(record["assign_seconds"] for record in metrics),
        "median_epoch_seconds": statistics.median(record["epoch_seconds"] for record in metrics),
        "sent_bytes_per_epoch": messages + mean("sent_bytes_sums") + mean("sent_bytes_control"),
        "sent_bytes_messages_per_epoch": messages,
        **{f"{name}_per_epoch": mean(name) for name in MEANS},
        "median_hidden_seconds": statistics.median(record.get("hidden_seconds", 0.0) for record in metrics),
        **{f"{name}_per_epoch": mean(name) for name in metrics[-1] if name.startswith("disk_bytes")},
    }


def costs_by_rank(comm: MPI.Comm, costs: dict[str, float]) -> dict[str, dict[str, list[float]]]:
    """Collective: per cost of the last epoch, and for memory, a list over ranks, on rank 0; {} for too many ranks."""
    if not 1 < comm.size <= MAX_LISTED_RANKS:
        return {}
    everyone = comm.gather({**costs, "rss_bytes": resident_bytes()})
    return {"by_rank": _as_lists(everyone)} if comm.rank == 0 else {}


def parts_by_rank(comm: MPI.Comm, part: PartitionStatistics) -> dict[str, dict[str, list[Any]]]:
    """Collective: host, rows, edges and peak memory of each rank, on rank 0; empty if there are too many ranks."""
    if comm.size > MAX_LISTED_RANKS:
        return {}
    everyone = comm.gather({
        "host": socket.gethostname(), "inner_rows": part.num_inner, "halo_rows": part.num_halo,
        "edges": part.num_edges, "peak_rss_bytes": peak_bytes()})
    return {"parts_by_rank": _as_lists(everyone)} if comm.rank == 0 else {}


class OtherPrograms:
    """How many cores other programs keep busy, of the cores that the ranks may use, since this object was made."""

    def __init__(self) -> None:
        self._started, self._busy, self._own = time.monotonic(), busy_seconds(), time.process_time()

    def num_cores(self, comm: MPI.Comm) -> float | None:
        """Collective: the mean number on the most disturbed host, on rank 0; else None.

        Also None without /proc/stat, and for less than LEAST_SECONDS.
        """
        now, seconds = busy_seconds(), time.monotonic() - self._started
        busy = {core: now[core] - before for core, before in self._busy.items() if core in now}
        everyone = comm.gather((socket.gethostname(), busy, time.process_time() - self._own))
        if comm.rank or not busy or seconds < LEAST_SECONDS:
            return None
        # Ranks of a host may share cores: each core counts once.
        cores: dict[str, dict[int, float]] = defaultdict(dict)
        own: Counter[str] = Counter()
        for host, of_rank, own_seconds in everyone:
            cores[host].update(of_rank)
            own[host] += own_seconds
        return max(0.0, *((sum(cores[host].values()) - own[host]) / seconds for host in cores))


def busy_seconds() -> dict[int, float]:
    """Seconds since the machine started that each core of this process was busy; {} without /proc/stat."""
    if not STAT.exists():
        return {}
    lines = [line.split() for line in STAT.read_text().splitlines() if re.match(r"cpu\d", line)]
    # user, nice, system, idle, iowait, irq, softirq, steal: all but idle and iowait.
    ticks = {int(words[0][3:]): sum(map(int, (*words[1:4], *words[6:9]))) for words in lines}
    return {core: ticks[core] / os.sysconf("SC_CLK_TCK") for core in usable_cores() if core in ticks}


def resident_bytes() -> int:
    """Resident memory of this process; its peak if the system does not report the present value."""
    if STATM.exists():
        return int(STATM.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return peak_bytes()


def _as_lists(everyone: list[dict[str, Any]]) -> dict[str, list[Any]]:
    return {key: [one[key] for one in everyone] for key in everyone[0]}
