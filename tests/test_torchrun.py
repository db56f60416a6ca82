"""Ranks that torchrun has started are joined by an MPI of MPICH's family, and refused in one sentence by another."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from fork_server import served

from hpcgnn.errors import TrainingError
from hpcgnn.run import torchrun

PROGRAM = ("import os\nfrom hpcgnn.run.launch import MPI, run_parallel\n"
           "def body(comm):\n"
           "    total = comm.allreduce(10 ** comm.rank)\n"
           "    os.write(1, f'joined {comm.rank} {comm.size} {total}\\n'.encode())\n"
           "try:\n    run_parallel(body)\nexcept Exception as error:\n    raise SystemExit(f'refused: {error}')\n")
MPICH = Path(os.environ.get("HPCGNN_VENV", sys.prefix), "mpi", "mpich", "lib")
needs_mpich = pytest.mark.skipif(not MPICH.is_dir(), reason="no mpich wheel: HPCGNN_MPI=mpich installs it")


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("", 0))
        return one.getsockname()[1]


def environment_of(rank: int, num_ranks: int, num_nodes: int, port: int, **more: str) -> dict[str, str]:
    """What torchrun gives a process."""
    return {**{name: value for name, value in os.environ.items() if not name.startswith(("OMPI", "PM"))},
            "RANK": str(rank), "WORLD_SIZE": str(num_ranks), "LOCAL_WORLD_SIZE": str(num_ranks // num_nodes),
            "GROUP_WORLD_SIZE": str(num_nodes), "MASTER_ADDR": "localhost", "MASTER_PORT": str(port),
            "TORCHELASTIC_RUN_ID": "none", "OMP_NUM_THREADS": "1", **more}


def run_ranks(num_ranks: int, num_nodes: int, **more: str) -> list[tuple[int, str, str]]:
    port = free_port()
    ranks = [subprocess.Popen(served(["-c", PROGRAM]), stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                              text=True, env=environment_of(rank, num_ranks, num_nodes, port, **more))
             for rank in range(num_ranks)]
    said = [one.communicate(timeout=200) for one in ranks]
    return [(one.returncode, *texts) for one, texts in zip(ranks, said, strict=True)]


@needs_mpich
@pytest.mark.parametrize("num_ranks, num_nodes", [(3, 1), (2, 2)])
def test_mpich_joins_the_ranks(num_ranks, num_nodes):
    for rank, (status, out, err) in enumerate(run_ranks(num_ranks, num_nodes, LD_LIBRARY_PATH=str(MPICH),
                                                        MPI4PY_MPIABI="mpich")):
        assert (status, out) == (0, f"joined {rank} {num_ranks} {(10 ** num_ranks - 1) // 9}\n"), err


@needs_mpich
@pytest.mark.long      # the ranks above have what torchrun gives a process
def test_torchrun_itself_starts_a_program(tmp_path):
    (tmp_path / "program.py").write_text(PROGRAM)
    done = subprocess.run([sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port",
                           str(free_port()), tmp_path / "program.py"], capture_output=True, text=True, timeout=300,
                          env={**os.environ, "LD_LIBRARY_PATH": str(MPICH), "MPI4PY_MPIABI": "mpich"})
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.split("\n")) == ["", "joined 0 2 11", "joined 1 2 11"]


@pytest.mark.skipif(os.environ.get("MPI4PY_MPIABI") != "openmpi", reason="of Open MPI, which is not chosen here")
def test_open_mpi_is_refused_on_every_rank_with_what_to_do():
    for status, out, err in run_ranks(2, 1):
        assert status == 1 and out == ""
        assert "2 ranks were started (WORLD_SIZE), but Open MPI" in err
        assert "under torchrun use MPICH (pip install mpich, MPI4PY_MPIABI=mpich)" in err


@pytest.fixture
def by_torchrun(monkeypatch):
    for name, value in environment_of(0, 2, 1, free_port()).items():
        monkeypatch.setenv(name, value)
    return monkeypatch


@pytest.fixture
def server():
    """A server of two ranks, on a thread, and its address."""
    with socket.socket() as listener:
        listener.bind(("localhost", 0))
        listener.listen()
        thread = threading.Thread(target=torchrun.Server(listener, "secret", 2, "(vector,(0,1,2))").serve, daemon=True)
        thread.start()
        yield listener.getsockname()
        thread.join(20)
        assert not thread.is_alive()


class Rank:
    """A rank that speaks the protocol by hand."""

    def __init__(self, address, greeting):
        self.socket = socket.create_connection(address, timeout=20)
        self.lines = self.socket.makefile("rw")
        self.welcome = self.ask(greeting)

    def ask(self, line):
        self.say(line)
        return self.lines.readline().strip()

    def say(self, line):
        self.lines.write(line + "\n")
        self.lines.flush()

    def close(self):
        self.lines.close()
        self.socket.close()


def test_what_one_rank_puts_another_gets_behind_the_barrier(server):
    ranks = [Rank(server, f"{torchrun.GREETING} secret {number}") for number in range(2)]
    assert [one.welcome for one in ranks] == ["hpcgnn-pmi welcome"] * 2
    assert ranks[0].ask("cmd=put kvsname=k key=address value=a=b c") == "cmd=put_result rc=0 msg=success"
    ranks[0].say("cmd=barrier_in")
    ranks[0].socket.settimeout(0.2)
    with pytest.raises(TimeoutError):
        ranks[0].socket.recv(1)
    ranks[0].socket.settimeout(20)
    assert ranks[1].ask("cmd=barrier_in") == "cmd=barrier_out rc=0"
    assert ranks[1].ask("cmd=get kvsname=k key=address") == "cmd=get_result rc=0 msg=success value=a=b c"
    assert ranks[1].ask("cmd=get kvsname=k key=other").startswith("cmd=get_result rc=-1")
    assert ranks[1].ask("cmd=get kvsname=k key=PMI_process_mapping").endswith("value=(vector,(0,1,2))")
    assert ranks[1].ask("cmd=spawn") == "cmd=spawn rc=-1 msg=not_supported"
    for one in ranks:
        one.close()


def test_a_stranger_learns_nothing_and_takes_no_place(server):
    stranger = Rank(server, f"{torchrun.GREETING} wrong 1")
    assert stranger.welcome == "hpcgnn-pmi refused"
    assert stranger.ask("cmd=get kvsname=k key=PMI_process_mapping") == "hpcgnn-pmi refused"
    ranks = [Rank(server, f"{torchrun.GREETING} secret {number}") for number in (0, 1)]
    assert [one.welcome for one in ranks] == ["hpcgnn-pmi welcome"] * 2
    assert Rank(server, f"{torchrun.GREETING} secret 1").welcome == "hpcgnn-pmi refused"
    for one in [*ranks, stranger]:
        one.close()


def test_two_starts_of_one_training_have_other_tokens(by_torchrun):
    first = torchrun.token()
    by_torchrun.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    assert torchrun.token() != first


def test_a_rank_that_finds_no_server_says_where_it_looked(by_torchrun):
    by_torchrun.setattr(torchrun, "PATIENCE_SECONDS", 0.2)
    with pytest.raises(TrainingError, match="rank 1 found no rank 0 at localhost, ports"):
        torchrun.connect("localhost", 1)


@pytest.mark.parametrize("of_node, nodes, mapping", [("2", "3", "(vector,(0,3,2))"), ("2", "2", "")])
def test_nodes_of_different_sizes_are_left_to_mpi(monkeypatch, of_node, nodes, mapping):
    monkeypatch.setenv("LOCAL_WORLD_SIZE", of_node)
    monkeypatch.setenv("GROUP_WORLD_SIZE", nodes)
    assert torchrun.process_mapping(6) == mapping
