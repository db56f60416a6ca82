"""Transports: where the buffers of messages are, and how messages and sums over ranks reach MPI.

On the host MPI takes the buffers themselves. A GPU's buffers go to MPI by their pointers (cuda-aware) or through pinned
host memory (staged). `choose_transport` asks the MPI library whether it takes device pointers, and then tries a small
exchange between neighbors; every rank gets the same answer.
"""

from __future__ import annotations

import ctypes
import logging
import os
import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from mpi4py import MPI

from hpcgnn.errors import CollectiveError
from hpcgnn.exchange.device_delivery import DirectDelivery, RowChecks, StagedDelivery, Staging, device_memory
from hpcgnn.exchange.transfer import Delivery, HostDelivery
from hpcgnn.ops.quantization import Buffer
from hpcgnn.ops.streams import HOST_STREAMS, Streams, streams_of
from hpcgnn.run.launch import has_mpi

CUDA = 0                                     # MPIX_GPU_SUPPORT_CUDA of MPICH's mpi.h
# Variables that switch device pointers on, for libraries that can't be asked: Cray MPICH, MPICH, MVAPICH2, MVAPICH.
SWITCHES = ("MPICH_GPU_SUPPORT_ENABLED", "MPIR_CVAR_ENABLE_GPU", "MV2_USE_CUDA", "MVP_USE_CUDA", "MVP_ENABLE_GPU")
PROOF_BYTES = (64, 1 << 20)                  # one below the eager limit of every MPI, one above it
PROOF_TAG, PROOF_SECONDS = 32002, 30.0
_unfinished: list[tuple] = []                # buffers of messages that never came: MPI may still write to them
logger = logging.getLogger(__name__)


class Transport(Protocol):
    """Carry one rank's bytes to the others.

    name : {"host", "cuda-aware", "staged"}
    """

    @property
    def name(self) -> str: ...

    @property
    def streams(self) -> Streams: ...

    def empty(self, num_bytes: int) -> Buffer:
        """Return (num_bytes,) uint8, uninitialized, on the rows' device."""

    def new_staging(self) -> Staging | None:
        """Return memory through which an arena's messages pass, if any."""

    def deliver(self, comm: MPI.Comm, peers: Sequence[int], send: list[Buffer], receive: list[Buffer], tag: int,
                staging: Staging | None, checks: RowChecks | None = None, is_open: bool = False) -> Delivery:
        """Return the delivery of one exchange. It sends after the encoding kernels queued on the message stream.

        send, receive : list of uint8 buffers of an arena, one per peer, not to be touched before arrival
        tag : int                  equal on all ranks for one exchange
        checks : RowChecks         checks of the sent rows
        is_open : bool             whether nobody polls, so that it must be posted at once
        """

    def sum_over_ranks(self, comm: MPI.Comm, values: torch.Tensor) -> None:
        """Collective: replace contiguous float32 values by their sums."""


class HostTransport:
    """MPI takes the host's buffers."""

    name, streams = "host", HOST_STREAMS

    def empty(self, num_bytes: int) -> np.ndarray:
        return np.empty(num_bytes, np.uint8)

    def new_staging(self) -> None:
        pass

    def deliver(self, comm: MPI.Comm, peers: Sequence[int], send: list[Any], receive: list[Any], tag: int,
                staging: Staging | None, checks: RowChecks | None = None, is_open: bool = False) -> HostDelivery:
        return HostDelivery(comm, peers, send, receive, tag)

    def sum_over_ranks(self, comm: MPI.Comm, values: torch.Tensor) -> None:
        comm.Allreduce(MPI.IN_PLACE, values.numpy(), MPI.SUM)


HOST = HostTransport()


class _DeviceTransport:
    def __init__(self, device: torch.device):
        self.device, self.streams = device, streams_of(device)

    def empty(self, num_bytes: int) -> torch.Tensor:
        return torch.empty(num_bytes, dtype=torch.uint8, device=self.device)


class CudaAwareTransport(_DeviceTransport):
    """MPI takes device pointers."""

    name = "cuda-aware"

    def new_staging(self) -> None:
        pass

    def deliver(self, comm: MPI.Comm, peers: Sequence[int], send: list[Any], receive: list[Any], tag: int,
                staging: Staging | None, checks: RowChecks | None = None, is_open: bool = False) -> DirectDelivery:
        return DirectDelivery(comm, peers, send, receive, tag, self.streams.message.mark(), checks, is_open)

    def sum_over_ranks(self, comm: MPI.Comm, values: torch.Tensor) -> None:
        with self.streams.message.after_computing():
            self.streams.message.mark().synchronize()     # MPI reads and writes what the device computed
        comm.Allreduce(MPI.IN_PLACE, [device_memory(values.view(-1).view(torch.uint8)), MPI.FLOAT], MPI.SUM)


class StagedTransport(_DeviceTransport):
    """MPI takes pinned host memory; copies run on the message stream."""

    name = "staged"

    def __init__(self, device: torch.device):
        super().__init__(device)
        self._sums: torch.Tensor | None = None

    def new_staging(self) -> Staging:
        return Staging(self.streams)

    def deliver(self, comm: MPI.Comm, peers: Sequence[int], send: list[Any], receive: list[Any],
                tag: int, staging: Any, checks: RowChecks | None = None, is_open: bool = False) -> StagedDelivery:
        return StagedDelivery(comm, peers, send, receive, tag, staging, checks, is_open)

    def sum_over_ranks(self, comm: MPI.Comm, values: torch.Tensor) -> None:
        stream, values = self.streams.message, values.view(-1).view(torch.uint8)
        if self._sums is None or len(self._sums) < len(values):
            self._sums = self.streams.pinned(len(values))
        pinned = self._sums[:len(values)]
        with stream.after_computing():
            stream.copy(pinned, values)
        stream.mark().synchronize()     # MPI reads and writes what was copied
        comm.Allreduce(MPI.IN_PLACE, pinned.numpy().view(np.float32), MPI.SUM)
        stream.copy(values, pinned)
        stream.join()


def choose_transport(comm: MPI.Comm, name: str, device: torch.device) -> Transport:
    """Collective: return the transport of rows on a GPU, the same on all ranks.

    "auto" is cuda-aware if MPI says that it takes device pointers and a small exchange succeeds; otherwise staged,
    and rank 0 logs the reason. Raises CollectiveError if "cuda-aware" was demanded and does not work.
    """
    if name == "staged":
        return StagedTransport(device)
    reason = _why_not(comm, name == "cuda-aware", device)
    if not reason:
        return CudaAwareTransport(device)
    if name == "cuda-aware":
        raise CollectiveError(f"transport cuda-aware can't be used: {reason}; use --set transport=staged")
    if comm.rank == 0:
        logger.warning("messages travel through pinned memory of the host: %s", reason)
    return StagedTransport(device)


def _why_not(comm: MPI.Comm, is_demanded: bool, device: torch.device) -> str:
    # A library that can't be asked is tried only on demand: without support it would read a device pointer as host
    # memory and crash.
    own = answer_of_mpi()
    if comm.allreduce(int(own.takes_pointers is not True), MPI.MAX):
        answers = comm.allgather(own)
        refusals = [answer.reason for answer in answers if answer.takes_pointers is False]
        silences = [answer.reason for answer in answers if answer.takes_pointers is None]
        if refusals or (silences and not is_demanded):
            return [*refusals, *silences][0]
    return why_pointers_fail(comm, device)


class Answer(NamedTuple):
    """Whether MPI takes device pointers (None: it does not say), and the reason."""

    takes_pointers: bool | None
    reason: str


def answer_of_mpi(library: ctypes.CDLL | None = None, variables: Mapping[str, str] | None = None) -> Answer:
    """Ask the MPI library, by default mpi4py's, or else the environment variables that switch device pointers on."""
    if library is None and not has_mpi():
        return Answer(False, "there is no MPI library")
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
    is_supported = ctypes.c_int(0)
    return query(ctypes.c_int(CUDA), ctypes.byref(is_supported)) == MPI.SUCCESS and bool(is_supported.value)


def _open_mpi(query) -> bool:
    return query() == 1


def why_pointers_fail(comm: MPI.Comm, device: torch.device) -> str:
    """Collective: exchange known bytes with both ring neighbors and sum known numbers, in device memory.

    Returns what failed on the first failing rank, the same on all ranks; empty if all worked.
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
            return f"the trial exchange failed on rank {failed[0]}: {failures[failed[0]]}"
    return ""


def _why_ring_fails(comm: MPI.Comm, device: torch.device, num_bytes: int) -> str:
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
