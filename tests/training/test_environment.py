"""What a run folder says of where it was made, and of what each rank did."""

import json
import os
import resource
import socket
import sys
from datetime import datetime, timezone
from types import SimpleNamespace

import pytest
from mpi4py import MPI
from training_setup import easy_graph, on_rank_zero, train, write_once

from hpcgnn.config import TrainConfig
from hpcgnn.exchange.traffic import Traffic
from hpcgnn.registry import read_toml
from hpcgnn.training import summary
from hpcgnn.training.environment import command_line, environment, launcher
from hpcgnn.training.epoch_trace import costs_of
from hpcgnn.training.job import Job, open_folder
from hpcgnn.training.run_folder import RunFolder
from hpcgnn.training.session import Session
from hpcgnn.training.summary import costs_by_rank, resident_bytes


def test_the_command_is_one_that_a_shell_takes(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["/opt/bin/hpcgnn", "train", "my shards", "--lr", "0.1"])
    assert command_line() == "hpcgnn train 'my shards' --lr 0.1"


def test_the_launcher_is_known_by_its_variables():
    assert launcher({"SLURM_STEP_ID": "0", "PMI_SIZE": "2"}) == "srun"
    assert launcher({"OMPI_COMM_WORLD_SIZE": "2"}) == "Open MPI's mpirun"
    assert launcher({"HOME": "/"}) == "none"


def test_only_variables_of_the_layout_are_written_down(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    monkeypatch.setenv("SECRET_TOKEN", "hunter2")
    found = environment()
    assert "OMP_NUM_THREADS=3" in found["variables"] and "hunter2" not in json.dumps(found)
    assert found["cores"] == len(os.sched_getaffinity(0))
    assert abs((datetime.now(timezone.utc) - datetime.fromisoformat(found["started"])).total_seconds()) < 60


def test_costs_of_an_epoch_add_up():
    traffic = Traffic(exchange_seconds=0.3, blocked_seconds=0.1, quantize_seconds=0.2, sent_by_peer={1: 10, 2: 5})
    costs = costs_of(1.0, traffic)
    assert costs["compute_seconds"] == pytest.approx(0.5)
    assert (costs["blocked_seconds"], costs["sent_bytes"]) == (0.1, 15)


def test_resident_memory_is_below_its_peak():
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    assert 1e7 < resident_bytes() <= 1.05 * peak


@pytest.mark.parallel([1, 2, 3])
def test_costs_are_gathered_in_the_order_of_the_ranks():
    comm = MPI.COMM_WORLD
    found = costs_by_rank(comm, {"sent_bytes": 100 + comm.rank})
    if comm.rank or comm.size == 1:
        assert found == {}
    else:
        assert found["by_rank"]["sent_bytes"] == [100 + rank for rank in range(comm.size)]
        assert len(found["by_rank"]["rss_bytes"]) == comm.size


@pytest.mark.parallel([1, 2])
def test_cores_of_other_programs_are_what_ranks_did_not_use(monkeypatch):
    """Ranks that share two cores count them once: 12 of 20 core seconds were busy, and the ranks used 4 of them."""
    comm, clock = MPI.COMM_WORLD, {"busy": 100.0, "now": 50.0, "own": 7.0}
    monkeypatch.setattr(summary, "busy_seconds", lambda: {0: clock["busy"], 1: clock["busy"] + 3.0})
    monkeypatch.setattr(summary, "time", SimpleNamespace(monotonic=lambda: clock["now"],
                                                         process_time=lambda: clock["own"]))
    others = summary.OtherPrograms()
    clock.update(busy=106.0, now=60.0, own=7.0 + 4.0 / comm.size)
    assert others.num_cores(comm) == (pytest.approx(0.8) if comm.rank == 0 else None)


def test_a_core_counts_as_busy_by_what_it_did_not_idle(monkeypatch, tmp_path):
    core, ticks = min(os.sched_getaffinity(0)), os.sysconf("SC_CLK_TCK")
    stat = tmp_path / "stat"
    stat.write_text(f"cpu  9 9 9 9 9 9 9 9 9 9\ncpu{core} {ticks} 0 {ticks} 700 800 {ticks} 0 {ticks} 0 0\nintr 5\n")
    monkeypatch.setattr(summary, "STAT", stat)
    assert summary.busy_seconds() == {core: 4.0}
    monkeypatch.setattr(summary, "STAT", tmp_path / "none")
    assert summary.busy_seconds() == {}


@pytest.mark.parallel([2])
def test_a_run_folder_says_what_its_ranks_hold_and_did(shared_path):
    comm, graph = MPI.COMM_WORLD, easy_graph()
    shards = write_once(comm, graph, shared_path / "shards")
    summary, metrics, _ = train(comm, shards, shared_path / "run", epochs=4, eval_every=2, method="uniform", bits=8)
    parts = summary["parts_by_rank"]
    assert sum(parts["inner_rows"]) == graph.num_nodes and parts["host"] == [socket.gethostname()] * 2
    assert max(parts["peak_rss_bytes"]) == pytest.approx(summary["peak_rss_bytes"], rel=0.02)
    for record in (metrics[1], metrics[3]):
        by_rank = record["by_rank"]
        assert by_rank["sent_bytes"] == [sum(row) for row in record["sent_bytes_by_pair"]]
        assert sum(by_rank["compute_seconds"]) / 2 == pytest.approx(record["compute_seconds"])
    assert "by_rank" not in metrics[0]


@pytest.mark.parallel([1, 2])
def test_a_run_folder_says_where_and_when_it_was_made(shared_path, shards):
    comm = MPI.COMM_WORLD
    session = Session.open(comm, shards, TrainConfig.of(epochs=1))

    def open_and_read():
        folder = RunFolder(shared_path / "run")
        open_folder(Job(shards, {}), folder, session, None, None)
        return read_toml(folder.path / "config.toml")["provenance"]

    known = on_rank_zero(comm, open_and_read)
    assert (known["ranks"], known["host"], known["shards"]) == (comm.size, socket.gethostname(), str(shards))
    assert set(environment()) <= set(known) and known["launcher"] != ""
