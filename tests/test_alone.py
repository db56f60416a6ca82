"""One rank needs no MPI library: what it computes without one equals, bit for bit, what it computes with one.

A program trains by several methods, resumes, predicts, infers, plans and fits, once with the tests' MPI
and once where mpi4py finds none.
"""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from pathlib import Path

import h5py
import numpy as np
import pytest
from fork_server import served
from mpi4py import MPI
from parallel_run import clean_environment
from training_setup import EASY, assert_same_bits, without_seconds

import hpcgnn
from hpcgnn.run import alone
from hpcgnn.run.process import RANK_VARIABLES, SIZE_VARIABLES, TORCHRUN, is_launched_with_others

SMALL = ["--epochs", "4", "--hidden", "8", "--layers", "2", "--eval-every", "2"]
# Methods whose ranks agree, of the others' rows or on widths, and what one rank may do besides.
TRAININGS = {
    "vanilla": [], "adaqp": ["--method", "adaqp", "--set", "deterministic=true"], "sancus": ["--method", "sancus"],
    "steps": ["--steps", "rows:2", "--set", "clip_norm=0.5"],
    "bf16": ["--precision", "bf16", "--norm", "batch", "--set", "label_inputs=0.5"],
    "alltoallv": ["--method", "uniform", "--bits", "2", "--set", "exchange=alltoallv"],
    "small": ["--model", "gin", "--quantize", "degree-aware"]}
PROGRAM = """
import contextlib, json, os, sys
from hpcgnn.command_line import run

trainings, small, source = json.loads(sys.argv[1])

def call(*words, to=os.devnull):
    with open(to, "w") as file, contextlib.redirect_stdout(file):
        assert run(list(words)) == 0, words

call("preprocess", source, "--parts", "1", "--out", "shards")
for name, words in trainings.items():
    call("train", "shards", "--out", name, *small, *words)
call("train", "shards", "--out", "resumed", *small, "--epochs", "2")
call("train", "shards", "--out", "resumed", *small, "--resume")
call("predict", "steps", "shards", "--out", "predicted.npz", "--embeddings", "--correct-and-smooth")
call("quantize", "vanilla", "shards", "--out", "quantized.h5")
call("infer", "quantized.h5", "shards", "--repeat", "1", "--out", "inferred.h5")
call("infer", "quantized.h5", "shards", "--repeat", "1", "--clusters", "4", "--set", "batch_size=2", "--out",
     "batched.h5")
call("plan", "shards", "--parts", "1,4", to="plan.txt")

import torch
import hpcgnn

graph = hpcgnn.open("shards")
torch.manual_seed(0)
fitted = hpcgnn.fit("sage", graph, out="fitted", layers=2, hidden=8, epochs=4,
                    loss=lambda outputs, labels: torch.nn.functional.cross_entropy(outputs, labels),
                    score=lambda outputs, labels: (outputs.argmax(dim=1) == labels).double().mean())
with open("fitted.json", "w") as file:
    json.dump([fitted.test_score, fitted.predict().logits.tolist(), graph.comm.size], file)
"""


def without_mpi(**more):
    """The environment of a process that finds no MPI library; MPI4PY_LIBMPI names the one that mpi4py loads."""
    kept = {name: value for name, value in clean_environment().items() if name != "MPI4PY_MPIABI"}
    return {**kept, "MPI4PY_LIBMPI": "/nowhere/libmpi.so", **more}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """What the program has left with the tests' MPI, and without one."""
    made = {"with": clean_environment(), "without": without_mpi()}
    for name, environment in made.items():
        made[name] = tmp_path_factory.mktemp(name)
        ended = subprocess.run(served(["-c", PROGRAM, json.dumps([TRAININGS, SMALL, EASY])]), cwd=made[name],
                               env=environment, capture_output=True, text=True, timeout=300)
        assert ended.returncode == 0, ended.stderr
    return made["with"], made["without"]


def records(folder):
    """A run's epochs, without seconds and the check values of lines that hold seconds."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return without_seconds([{key: value for key, value in line.items() if key != "crc32"} for line in lines])


@pytest.mark.parametrize("name", [*TRAININGS, "resumed", "fitted"])
def test_a_training_without_mpi_has_the_same_bits(folders, name):
    mine, expected = (folder / name for folder in reversed(folders))
    assert len(records(mine)) == 4 and records(mine) == records(expected)
    assert_same_bits(mine / "checkpoint.h5", expected / "checkpoint.h5")


def contents(file):
    """The arrays of an HDF5 file, by their names."""
    found = {}
    with h5py.File(file) as opened:
        opened.visititems(lambda name, entry: found.update({name: entry[()].tobytes()})
                          if isinstance(entry, h5py.Dataset) else None)
    return found


def test_answers_without_mpi_have_the_same_bits(folders):
    mine, expected = ({name: array.tobytes() for name, array in np.load(folder / "predicted.npz").items()}
                      for folder in folders)
    assert mine == expected and {"logits", "embeddings"} <= mine.keys()
    for name in ("quantized.h5", "inferred.h5", "batched.h5"):
        mine, expected = (contents(folder / name) for folder in folders)
        assert mine == expected and mine, name


def test_what_a_plan_counts_and_a_program_gets_is_the_same_without_mpi(folders):
    plans = [[line for line in (folder / "plan.txt").read_text().splitlines() if "took" not in line]
             for folder in folders]
    assert plans[0] == plans[1] and any("vanilla" in line for line in plans[1])
    fitted = [json.loads((folder / "fitted.json").read_text()) for folder in folders]
    assert fitted[0] == fitted[1] and fitted[1][-1] == 1


def test_a_run_says_that_there_was_no_mpi(folders):
    said = [json.loads((folder / "fitted/summary.json").read_text())["versions"]["mpi"] for folder in folders]
    assert said[1] == "no MPI, one rank" and "no MPI" not in said[0]


@pytest.mark.parametrize("abi", [{}, {"MPI4PY_MPIABI": "openmpi"}], ids=["no ABI", "an ABI"])
def test_a_process_that_finds_no_library_is_one_rank(abi):
    """With an ABI, mpi4py loads its build for it, which then finds no library."""
    environment = {name: value for name, value in without_mpi(**abi).items() if name != "LD_LIBRARY_PATH"}
    program = "import hpcgnn.run.launch; from mpi4py import MPI; print(MPI.Get_library_version(), MPI.COMM_WORLD.size)"
    ended = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True)
    assert ended.stdout == "no MPI, one rank 1\n", ended.stderr


@pytest.mark.parametrize("variables, is_one_of_many", [
    ({}, False), ({"PMI_SIZE": "1", "PMI_RANK": "0"}, False), ({"PMI_SIZE": "2", "PMI_RANK": "0"}, True),
    ({"OMPI_COMM_WORLD_SIZE": "2"}, True), ({"SLURM_STEP_NUM_TASKS": "4", "SLURM_PROCID": "0"}, True),
    ({"SLURM_PROCID": "0", "SLURM_NTASKS": "4"}, False), ({"PMIX_RANK": "1"}, True),
    ({"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "h", "MASTER_PORT": "9", "TORCHELASTIC_RUN_ID": "x"}, True)])
def test_a_launcher_of_several_ranks_is_known_by_its_variables(monkeypatch, variables, is_one_of_many):
    """A script of sbatch, which is no step, has the number of the job's tasks and is one process."""
    for name in (*RANK_VARIABLES, *SIZE_VARIABLES, *TORCHRUN):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert is_launched_with_others() == is_one_of_many


def both_answers(call):
    """What a call answers on the communicator of one rank, with MPI and without."""
    return call(MPI.COMM_SELF, MPI), call(alone.COMM_WORLD, alone)


@pytest.mark.parametrize("call", [
    lambda comm, mpi: (comm.rank, comm.size),
    lambda comm, mpi: [comm.bcast((1, "a")), comm.gather({2: 3}), comm.allgather(None), comm.alltoall([4.5])],
    lambda comm, mpi: [comm.scatter([[1, 2]]), comm.exscan(7), comm.Barrier(), comm.allreduce(True, mpi.LAND)],
    lambda comm, mpi: [comm.allreduce(3), comm.allreduce(-3, mpi.MAX), comm.allreduce(5, mpi.BOR)],
    lambda comm, mpi: [comm.allreduce(np.arange(3)).tolist(), comm.allreduce(2.5, mpi.MIN)],
    lambda comm, mpi: (comm.Split(3).size, comm.Split_type(mpi.COMM_TYPE_SHARED, 2).allgather(4)),
    lambda comm, mpi: (comm.Ibarrier().Test(), comm.Ibarrier().Wait(), mpi.Request.Waitall([comm.Ibarrier()])),
    lambda comm, mpi: (mpi.Is_initialized(), mpi.Is_finalized(), mpi.REQUEST_NULL.Test())])
def test_a_call_answers_as_mpi_does(call):
    mine, expected = both_answers(call)
    assert mine == expected


def test_an_answer_is_a_copy_as_with_mpi():
    value = [[1]]
    for answer in both_answers(lambda comm, mpi: [
            comm.bcast(value), comm.allgather(value)[0], comm.allreduce(value), comm.gather(value)[0],
            comm.scatter([value]), comm.alltoall([value])[0]]):
        assert all(one == value and one is not value and one[0] is not value[0] for one in answer)


BYTES = np.arange(24, dtype=np.uint8)


@pytest.mark.parametrize("call", [
    lambda comm, mpi, out: comm.Allreduce(mpi.IN_PLACE, out, mpi.MAX),
    lambda comm, mpi, out: comm.Allreduce(BYTES, out, mpi.SUM),
    lambda comm, mpi, out: comm.Reduce(mpi.IN_PLACE, out),
    lambda comm, mpi, out: comm.Reduce(BYTES, out),
    lambda comm, mpi, out: comm.Bcast(out),
    lambda comm, mpi, out: comm.Exscan(BYTES, out, mpi.SUM),
    lambda comm, mpi, out: comm.Allgatherv(BYTES, [out, [24]]),
    lambda comm, mpi, out: comm.Allgatherv(BYTES[:8].view(np.float32), [out[8:].view(np.float32), [2]]),
    lambda comm, mpi, out: comm.Allgatherv((BYTES[4:7], mpi.BYTE), (out, ([3], [2]), mpi.BYTE)),
    lambda comm, mpi, out: comm.Gatherv([BYTES[:5], mpi.BYTE], [out, [5], mpi.BYTE]),
    lambda comm, mpi, out: comm.Alltoallv((BYTES, ([3], [9]), mpi.BYTE), (out, ([3], [1]), mpi.BYTE)),
    lambda comm, mpi, out: comm.Alltoallv((BYTES[:0], ([0], [0]), mpi.BYTE), (out[:0], ([0], [0]), mpi.BYTE))])
def test_a_call_leaves_buffers_as_mpi_does(call):
    mine, expected = (np.full(24, 77, np.uint8) for _ in range(2))
    call(alone.COMM_WORLD, alone, mine)
    call(MPI.COMM_SELF, MPI, expected)
    assert mine.tolist() == expected.tolist()


@pytest.mark.parametrize("call", [
    lambda comm, mpi: comm.Allreduce(np.ones(2), np.ones(1), mpi.SUM),
    lambda comm, mpi: comm.Allgatherv(np.ones(3), [np.ones(3), [2]]),
    lambda comm, mpi: comm.scatter([1, 2]), lambda comm, mpi: comm.alltoall([1, 2]),
    lambda comm, mpi: comm.bcast(1, root=1), lambda comm, mpi: comm.Bcast(np.ones(1), root=1)])
def test_a_call_that_mpi_refuses_is_refused(call):
    with pytest.raises((ValueError, MPI.Exception)):
        call(MPI.COMM_SELF, MPI)
    with pytest.raises(ValueError):
        call(alone.COMM_WORLD, alone)


def test_what_is_not_there_is_refused_with_a_remedy():
    comm = alone.COMM_WORLD
    for ask in (lambda: alone.Win, lambda: comm.Scan, lambda: comm.Isend([BYTES, alone.BYTE], 0)):
        with pytest.raises((AttributeError, RuntimeError), match="without an MPI library; install one with pip"):
            ask()


# What hpcgnn asks of MPI where there are several ranks, a device that gives MPI its memory, or no MPI started yet.
OF_SEVERAL = {"Abort", "Dup", "Get_attr", "Set_attr", "Iprobe", "Recv", "Send", "Sendrecv"}
NAMES_OF_SEVERAL = {"ANY_SOURCE", "Exception", "FLOAT", "Finalize", "Init_thread", "Query_thread", "SUCCESS", "Status",
                    "THREAD_MULTIPLE", "buffer"}
COMMUNICATORS = {"comm", "_comm", "node", "_node", "machine", "world", "alone", "fitting_comm", "COMM_WORLD"}


def test_all_that_hpcgnn_asks_of_mpi_is_there_and_nothing_else():
    asked, named = set(), set()
    texts = [path.read_text() for path in Path(hpcgnn.__file__).parent.rglob("*.py")]
    for text in filter(re.compile(rf"\b(?:MPI|{'|'.join(COMMUNICATORS)})\.").search, texts):
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Attribute):
                owner = getattr(node.value, "attr", getattr(node.value, "id", ""))
                if owner in COMMUNICATORS and hasattr(MPI.Intracomm, node.attr) and node.attr != "name":
                    asked.add(node.attr)
                elif owner == "MPI" and not node.attr.startswith("__"):
                    named.add(node.attr)
    assert {name for name in dir(alone.Comm) if not name.startswith("_")} == asked - OF_SEVERAL
    missing = {name for name in named if not hasattr(alone, name)}
    assert missing == NAMES_OF_SEVERAL and asked >= OF_SEVERAL
