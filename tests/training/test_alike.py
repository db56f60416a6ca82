"""Ranks that would round differently are refused before they train; other numbers of threads are said once."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from covering import long_but
from fork_server import served
from mpi4py import MPI
from parallel_run import run_parallel_command
from training_setup import easy_graph, random_owner, train, write

import hpcgnn as package
from hpcgnn.errors import CollectiveError
from hpcgnn.training.alike import Traits, check_alike, say_if_bound

SAME = Traits("0.1.0", "2.13.0", "avx512", "AVX512", 4)
REASON = ", and their copies of the weights would drift apart; "


@pytest.mark.parallel([1, 2, 3, 4])
def test_ranks_that_are_alike_pass_in_silence(capfd):
    check_alike(MPI.COMM_WORLD, SAME)
    assert capfd.readouterr().err == ""


@pytest.mark.parallel([2, 3])
@pytest.mark.parametrize("change, name, was, remedy", [
    ({"version": "0.0.9"}, "hpcgnn's version", "0.1.0", "install the same one for all ranks"),
    ({"torch_version": "2.9.1"}, "torch's version", "2.13.0", "install the same one for all ranks"),
    ({"simd": "portable"}, "the kernels' instruction set", "avx512", "set HPCGNN_SIMD=portable for all ranks"),
    ({"capability": "AVX2"}, "torch's instruction set", "AVX512",
     "set ATEN_CPU_CAPABILITY=avx2 and ONEDNN_MAX_CPU_ISA=AVX2 for all ranks"),
])
def test_a_rank_that_rounds_differently_is_refused_on_all(change, name, was, remedy):
    comm = MPI.COMM_WORLD
    (other,) = change.values()
    with pytest.raises(CollectiveError) as refused:
        check_alike(comm, replace(SAME, **change) if comm.rank == 1 else SAME)
    others = "rank 0" if comm.size == 2 else "ranks 0, 2"
    assert str(refused.value) == (f"{name} differs between the ranks, {was} on {others} and {other} on rank 1{REASON}"
                                  f"{remedy}")


@pytest.mark.parallel([2, 3])
def test_other_numbers_of_threads_are_said_once(capfd):
    comm = MPI.COMM_WORLD
    check_alike(comm, replace(SAME, num_threads=1) if comm.rank == comm.size - 1 else SAME)
    said = capfd.readouterr().err
    assert said.startswith("hpcgnn: ranks have different numbers of threads, 4 on rank") == (comm.rank == 0)
    assert said.count("\n") == (comm.rank == 0)


@pytest.mark.parallel([2, 3])
def test_a_session_compares_its_ranks(monkeypatch, shared_path, shards):
    comm = MPI.COMM_WORLD
    monkeypatch.setattr(package, "__version__", "0.0.9" if comm.rank == 1 else "0.1.0")
    with pytest.raises(CollectiveError, match="hpcgnn's version differs between the ranks"):
        train(comm, shards, shared_path / "run")


@pytest.mark.parametrize("variable, value, name", long_but((1,), [
    ("ATEN_CPU_CAPABILITY", "default", "torch's"), ("HPCGNN_SIMD", "portable", "the kernels'")]))
def test_a_variable_that_one_rank_has_ends_the_run_with_one_sentence(tmp_path, variable, value, name):
    if "AVX" not in torch.backends.cpu.get_cpu_capability():
        pytest.skip("this processor has no AVX2, so there is no other level to force")
    dataset = easy_graph()
    write(dataset, random_owner(dataset, 2), 2, tmp_path / "shards")
    script = f'[[ ${{OMPI_COMM_WORLD_RANK:-$PMI_RANK}} == 0 ]] || export {variable}={value}; exec "$@"'
    training = served(["-m", "hpcgnn", "train", "shards", "--epochs", 2])
    ended = run_parallel_command(2, ["bash", "-c", script, "rank", *training], tmp_path)
    assert ended.status == 1
    (sentence,) = ended.sentences
    assert sentence.startswith(f"hpcgnn: {name} instruction set differs between the ranks, ")
    assert f"{variable}={value}" in sentence


@pytest.mark.parametrize("cores, in_all, is_said", [({3}, "8", True), ({3}, "1", False), ({3, 4}, "8", False)])
def test_a_rank_that_is_bound_to_one_core_of_many_is_told(monkeypatch, capsys, cores, in_all, is_said):
    monkeypatch.setenv("SLURM_CPUS_ON_NODE", in_all)
    monkeypatch.setattr("os.sched_getaffinity", lambda process: cores)
    say_if_bound(MPI.COMM_SELF)
    assert ("compute on 1 of its 8 cores, bound to one each" in capsys.readouterr().err) == is_said


class EachAlone:
    """A communicator of an MPI that takes every rank for a node of its own."""

    def __init__(self, comm):
        self._comm = comm

    def Split_type(self, kind):
        return MPI.COMM_SELF.Dup()

    def __getattr__(self, name):
        return getattr(self._comm, name)


@pytest.mark.parallel([2])
def test_ranks_that_share_a_machine_are_counted_whatever_mpi_takes_for_a_node(monkeypatch, capsys):
    """As under srun: each rank has one of the two cores, so that none of them stays idle."""
    monkeypatch.setenv("SLURM_CPUS_ON_NODE", "2")
    monkeypatch.setattr("os.sched_getaffinity", lambda process: {MPI.COMM_WORLD.rank})
    say_if_bound(EachAlone(MPI.COMM_WORLD))
    assert capsys.readouterr().err == ""
