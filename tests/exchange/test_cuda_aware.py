"""Whether MPI takes a device's pointers: asked as each library wants to be, and believed only when it is proven."""

from __future__ import annotations

import ctypes
import logging

import pytest
import torch
from mpi4py import MPI
from stand_in_device import StandInDevice

from hpcgnn.errors import CollectiveError
from hpcgnn.exchange import device_transport as cuda_aware
from hpcgnn.exchange.device_transport import Answer, answer_of_mpi, choose_transport, why_pointers_fail
from hpcgnn.ops.streams import use_streams
from hpcgnn.run import alone, launch

CPU = torch.device("cpu")
YES, NO, SILENT = Answer(True, "it says yes"), Answer(False, "it says no"), Answer(None, "it can't be asked")


class Library:
    """What ctypes gives of an MPI library: a function a symbol."""

    def __init__(self, **functions):
        vars(self).update(functions)


def mpich_query(is_supported, status=0):
    """int MPIX_GPU_query_support(int gpu_type, int *is_supported), which knows CUDA as type 0."""
    def query(gpu_type, pointer):
        ctypes.cast(pointer, ctypes.POINTER(ctypes.c_int))[0] = is_supported if gpu_type.value == 0 else 0
        return status
    return query


@pytest.mark.parametrize("library, variables, expected, word", [
    (Library(MPIX_Query_cuda_support=lambda: 1), {}, True, "MPIX_Query_cuda_support"),
    (Library(MPIX_Query_cuda_support=lambda: 0), {}, False, "MPIX_Query_cuda_support"),
    (Library(MPIX_GPU_query_support=mpich_query(1)), {}, True, "MPIX_GPU_query_support"),
    (Library(MPIX_GPU_query_support=mpich_query(0)), {}, False, "MPIX_GPU_query_support"),
    (Library(MPIX_GPU_query_support=mpich_query(1, status=5)), {}, False, "MPIX_GPU_query_support"),
    (Library(MPIX_Query_cuda_support=lambda: 0), {"MPICH_GPU_SUPPORT_ENABLED": "1"}, False, "MPIX_Query_cuda_support"),
    (Library(), {"MPICH_GPU_SUPPORT_ENABLED": "1"}, True, "MPICH_GPU_SUPPORT_ENABLED is 1"),
    (Library(), {"MPICH_GPU_SUPPORT_ENABLED": "0"}, False, "MPICH_GPU_SUPPORT_ENABLED is 0"),
    (Library(), {"MV2_USE_CUDA": "1"}, True, "MV2_USE_CUDA is 1"),
    (Library(), {"MPIR_CVAR_ENABLE_GPU": "no"}, False, "MPIR_CVAR_ENABLE_GPU is no"),
    (Library(), {"MV2_USE_CUDA": " "}, None, "can't be asked"),
    (Library(), {}, None, "can't be asked"),
])
def test_each_library_is_asked_in_its_own_way(library, variables, expected, word):
    answer = answer_of_mpi(library, variables)
    assert answer.takes_pointers is expected and word in answer.reason


def test_the_library_that_runs_these_tests_can_be_asked():
    """Its own symbols are found through mpi4py; where it has none, the answer is open."""
    library = ctypes.CDLL(MPI.__file__)
    has_question = any(hasattr(library, name) for name in ("MPIX_Query_cuda_support", "MPIX_GPU_query_support"))
    assert (answer_of_mpi(variables={}).takes_pointers is not None) == has_question


def test_without_a_library_the_answer_is_no(monkeypatch):
    monkeypatch.setattr(launch, "MPI", alone)
    assert answer_of_mpi(variables={}) == Answer(False, "there is no MPI library")


class BrokenComm:
    """A communicator that is wrong on the last rank alone.

    fault : "bytes" loses what arrives, "sum" adds wrongly, "error" refuses the pointer, "silence" never delivers
    """

    def __init__(self, fault):
        # Of its own: messages that are never received stay behind.
        self._comm, self._fault = MPI.COMM_WORLD.Dup(), fault
        self.is_broken = self._comm.rank == self._comm.size - 1

    def __getattr__(self, name):
        return getattr(self._comm, name)

    def Irecv(self, message, source, tag):
        if self.is_broken and self._fault == "error":
            raise MPI.Exception(MPI.ERR_BUFFER)
        if self.is_broken and self._fault in ("bytes", "silence"):
            lost = bytearray(len(message[0]))
            # The real message is taken away; what is waited for is its copy that nobody reads, or one that never comes.
            tag = tag + 1 if self._fault == "silence" else tag
            self.lost = lost
            return self._comm.Irecv([lost, MPI.BYTE], source, tag)
        return self._comm.Irecv(message, source, tag)

    def Allreduce(self, send, receive, operation):
        self._comm.Allreduce(send, receive, operation)
        if self.is_broken and self._fault == "sum":
            receive[0][3] = 0x41     # the exponent of the first float


@pytest.fixture
def stand_in(monkeypatch):
    monkeypatch.setattr(cuda_aware, "PROOF_SECONDS", 1.0)
    device = StandInDevice()
    with use_streams(device):
        yield device


@pytest.mark.parallel([1, 2, 3])
def test_an_mpi_that_reads_and_writes_the_memory_is_proven(stand_in):
    assert why_pointers_fail(MPI.COMM_WORLD, CPU) == ""
    assert [event for event, _ in stand_in.log] == ["synchronize"] * 3


FAULTS = {"bytes": "64 bytes arrived from rank", "sum": "a sum over all ranks has other values",
          "error": f"MPI said {MPI.Exception(MPI.ERR_BUFFER)}",
          "silence": "64 bytes between neighbors had not arrived after 1 s"}


@pytest.mark.parallel([1, 2, 3])
@pytest.mark.parametrize("fault", list(FAULTS))
def test_all_ranks_learn_of_a_fault_that_one_meets(stand_in, fault):
    comm = BrokenComm(fault)
    reason = why_pointers_fail(comm, CPU)
    assert set(MPI.COMM_WORLD.allgather(reason)) == {reason}
    # A neighbor of the rank whose pointer was refused waits in vain, and has the lower rank.
    told = FAULTS["silence" if fault == "error" and comm.size > 1 else fault]
    assert reason.startswith("the trial exchange failed on rank ") and told in reason


def says(monkeypatch, of_last_rank, of_others):
    """The libraries of the ranks answer so."""
    comm = MPI.COMM_WORLD
    answer = of_last_rank if comm.rank == comm.size - 1 else of_others
    monkeypatch.setattr(cuda_aware, "answer_of_mpi", lambda: answer)


@pytest.mark.parallel([1, 2, 3])
@pytest.mark.parametrize("name, last, others, fault, expected", [
    ("auto", YES, YES, None, "cuda-aware"),
    ("auto", YES, YES, "bytes", "staged"),
    ("auto", NO, YES, None, "staged"),
    ("auto", SILENT, YES, None, "staged"),
    ("cuda-aware", YES, YES, None, "cuda-aware"),
    ("cuda-aware", SILENT, SILENT, None, "cuda-aware"),
    ("staged", YES, YES, None, "staged"),
])
def test_ranks_choose_alike_and_rank_zero_says_why_once(monkeypatch, caplog, stand_in, name, last, others, fault,
                                                        expected):
    says(monkeypatch, last, others)
    with caplog.at_level(logging.WARNING):
        chosen = choose_transport(BrokenComm(fault), name, CPU)
    assert MPI.COMM_WORLD.allgather(chosen.name) == [expected] * MPI.COMM_WORLD.size
    is_told = name == "auto" and expected == "staged" and MPI.COMM_WORLD.rank == 0
    assert len(caplog.messages) == is_told
    assert not is_told or caplog.messages[0].startswith("messages travel through pinned memory of the host: ")


@pytest.mark.parallel([1, 2, 3])
@pytest.mark.parametrize("last, fault, reason", [(NO, None, "it says no"), (YES, "bytes", "64 bytes arrived"),
                                                 (SILENT, "bytes", "64 bytes arrived")])
def test_what_is_demanded_and_fails_is_one_sentence_on_all_ranks(monkeypatch, stand_in, last, fault, reason):
    says(monkeypatch, last, YES)
    with pytest.raises(CollectiveError) as refused:
        choose_transport(BrokenComm(fault), "cuda-aware", CPU)
    assert set(MPI.COMM_WORLD.allgather(str(refused.value))) == {str(refused.value)}
    assert str(refused.value).startswith("transport cuda-aware can't be used: ") and reason in str(refused.value)
    assert str(refused.value).endswith("; use --set transport=staged")
