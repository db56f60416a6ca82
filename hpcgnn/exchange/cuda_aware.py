"""Find out whether MPI takes device pointers: ask the library, then prove it by a small exchange.

Nothing here is specific to one MPI but the names of its question and of its variables.
"""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Mapping
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from mpi4py import MPI

from hpcgnn.exchange.delivery import device_memory
from hpcgnn.ops.streams import streams_of

CUDA = 0                                     # MPIX_GPU_SUPPORT_CUDA of MPICH's mpi.h
# Variables that switch device pointers on where the library has no question: Cray MPICH, MPICH, MVAPICH2, MVAPICH.
SWITCHES = ("MPICH_GPU_SUPPORT_ENABLED", "MPIR_CVAR_ENABLE_GPU", "MV2_USE_CUDA", "MVP_USE_CUDA", "MVP_ENABLE_GPU")
PROOF_BYTES = (64, 1 << 20)                  # one below the eager limit of every MPI, one above it
PROOF_TAG, PROOF_SECONDS = 32002, 30.0

_unfinished: list[tuple] = []                # memory of messages that never came, which MPI may still write to


class Answer(NamedTuple):
    """Hold whether MPI takes device pointers, None where it does not say, and what it said."""

    takes_pointers: bool | None
    reason: str


def answer_of_mpi(library: ctypes.CDLL | None = None, variables: Mapping[str, str] | None = None) -> Answer:
    """Ask the MPI library, or the variables that switch it on where it has no question.

    Parameters
    ----------
    library : what mpi4py is linked with by default; has the symbols of MPI
    variables : the process's environment by default
    """
    library = ctypes.CDLL(MPI.__file__) if library is None else library
    variables = os.environ if variables is None else variables
    for name, ask in (("MPIX_GPU_query_support", _mpich), ("MPIX_Query_cuda_support", _open_mpi)):
        if hasattr(library, name):
            is_there = ask(getattr(library, name))
            return Answer(is_there, f"{name} of this MPI says {'yes' if is_there else 'no'}")
    for name in SWITCHES:
        if variables.get(name, "").strip():
            is_on = variables[name].strip().lower() not in ("0", "no", "off", "false")
            return Answer(is_on, f"{name} is {variables[name]}")
    return Answer(None, "this MPI can't be asked whether it takes pointers of a GPU")


def _mpich(query) -> bool:
    """MPICH since 4.0 and Cray MPICH: int MPIX_GPU_query_support(int gpu_type, int *is_supported)."""
    is_supported = ctypes.c_int(0)
    return query(ctypes.c_int(CUDA), ctypes.byref(is_supported)) == MPI.SUCCESS and bool(is_supported.value)


def _open_mpi(query) -> bool:
    """Open MPI since 2.0, MVAPICH2 since 2.3.4, Spectrum MPI: int MPIX_Query_cuda_support(void)."""
    return query() == 1


def why_pointers_fail(comm: MPI.Comm, device: torch.device) -> str:
    """Collective: exchange known bytes with both neighbors of the ring, and add known numbers, in a device's memory.

    Returns
    -------
    what went wrong on the first rank where something did, the same on all ranks; empty where nothing did
    """
    steps = [*(partial(_why_ring_fails, comm, device, num_bytes) for num_bytes in PROOF_BYTES),
             partial(_why_sum_fails, comm, device)]
    for step in steps:
        try:
            failure = step()
        except MPI.Exception as error:
            failure = f"MPI said {error.Get_error_string()}"
        if comm.allreduce(int(bool(failure)), MPI.MAX):
            failures = comm.allgather(failure)
            failed = [rank for rank, sentence in enumerate(failures) if sentence]
            return f"the exchange that proves it failed on rank {failed[0]}: {failures[failed[0]]}"
    return ""


def _why_ring_fails(comm: MPI.Comm, device: torch.device, num_bytes: int) -> str:
    """Collective: what arrives from the left neighbor must be what it has sent."""
    before, after = (comm.rank - 1) % comm.size, (comm.rank + 1) % comm.size
    sent, received = _pattern(comm.rank, num_bytes).to(device), torch.zeros(num_bytes, dtype=torch.uint8, device=device)
    _wait_for(device)
    _unfinished.append((sent, received))
    requests = [comm.Irecv([device_memory(received), MPI.BYTE], before, PROOF_TAG),
                comm.Isend([device_memory(sent), MPI.BYTE], after, PROOF_TAG)]
    deadline = time.monotonic() + PROOF_SECONDS
    while not MPI.Request.Testall(requests):
        if time.monotonic() > deadline:
            return f"{num_bytes} bytes between neighbors had not arrived after {PROOF_SECONDS:g} s"
    _unfinished.pop()
    is_right = torch.equal(received.cpu(), _pattern(before, num_bytes))
    return "" if is_right else f"{num_bytes} bytes arrived from rank {before} with other values"


def _why_sum_fails(comm: MPI.Comm, device: torch.device) -> str:
    """Collective: gradients are added in a device's memory too."""
    values = torch.arange(1000, dtype=torch.float32).to(device) + comm.rank
    _wait_for(device)
    comm.Allreduce(MPI.IN_PLACE, [device_memory(values.view(torch.uint8)), MPI.FLOAT], MPI.SUM)
    expected = comm.size * torch.arange(1000) + comm.size * (comm.size - 1) // 2
    return "" if torch.equal(values.cpu().long(), expected) else "a sum over all ranks has other values"


def _wait_for(device: torch.device) -> None:
    stream = streams_of(device).message
    with stream.after_computing():
        stream.mark().synchronize()     # MPI touches these buffers next


def _pattern(rank: int, num_bytes: int) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng((rank, num_bytes)).integers(0, 256, num_bytes, np.uint8))
