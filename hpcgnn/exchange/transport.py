"""Transports: where the buffers of messages live, and how they and sums over ranks reach the other ranks.

On the host MPI takes the buffers as they are. Those of a device go to MPI by their pointers (cuda-aware), or through
pinned memory of the host (staged). What the bytes mean is not known here.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Protocol

import numpy as np
import torch
from mpi4py import MPI

from hpcgnn.errors import CollectiveError
from hpcgnn.exchange.cuda_aware import answer_of_mpi, why_pointers_fail
from hpcgnn.exchange.delivery import Delivery, DirectDelivery, HostDelivery, RowChecks, device_memory
from hpcgnn.exchange.staging import StagedDelivery, Staging
from hpcgnn.ops.quantization import Buffer
from hpcgnn.ops.streams import HOST_STREAMS, Streams, streams_of

logger = logging.getLogger(__name__)


class Transport(Protocol):
    """Carry one rank's bytes to the others.

    Attributes
    ----------
    name : {"host", "cuda-aware", "staged"}
    streams : Streams
    """

    name: str
    streams: Streams

    def empty(self, num_bytes: int) -> Buffer:
        """Return (num_bytes,) uint8, uninitialized, beside the rows."""

    def new_staging(self) -> Staging | None:
        """Memory that an arena's messages pass through."""

    def deliver(self, comm: MPI.Comm, peers: Sequence[int], send: list[Buffer], receive: list[Buffer], tag: int,
                staging: Staging | None, checks: RowChecks | None = None, is_open: bool = False) -> Delivery:
        """Return the messages of one exchange, whose encoding kernels are queued on the message stream.

        Parameters
        ----------
        peers : ranks that the buffers are of
        send, receive : list of uint8 buffers, one a peer; cut from an arena's, left alone until they have arrived
        tag : int                  equal on all ranks for one exchange
        staging : of the arena
        checks : RowChecks         of the rows that are sent
        is_open : bool             nobody polls this exchange, so that it must be posted at once
        """

    def sum_over_ranks(self, comm: MPI.Comm, values: torch.Tensor) -> None:
        """Collective: replace contiguous float32 values by their sums."""


class HostTransport:
    """See `Transport`."""

    name, streams = "host", HOST_STREAMS

    def empty(self, num_bytes: int) -> np.ndarray:
        """See `Transport`."""
        return np.empty(num_bytes, np.uint8)

    def new_staging(self) -> None:
        """See `Transport`."""

    def deliver(self, comm: MPI.Comm, peers: Sequence[int], send: list[np.ndarray], receive: list[np.ndarray],
                tag: int, staging: None, checks: RowChecks | None = None, is_open: bool = False) -> HostDelivery:
        """See `Transport`."""
        return HostDelivery(comm, peers, send, receive, tag)

    def sum_over_ranks(self, comm: MPI.Comm, values: torch.Tensor) -> None:
        """Collective: see `Transport`."""
        comm.Allreduce(MPI.IN_PLACE, values.numpy(), MPI.SUM)


HOST = HostTransport()


class _DeviceTransport:
    """Buffers in the memory of a device."""

    def __init__(self, device: torch.device):
        self.device, self.streams = device, streams_of(device)

    def empty(self, num_bytes: int) -> torch.Tensor:
        """See `Transport`."""
        return torch.empty(num_bytes, dtype=torch.uint8, device=self.device)


class CudaAwareTransport(_DeviceTransport):
    """See `Transport`: MPI is given pointers of the device."""

    name = "cuda-aware"

    def new_staging(self) -> None:
        """See `Transport`."""

    def deliver(self, comm: MPI.Comm, peers: Sequence[int], send: list[torch.Tensor], receive: list[torch.Tensor],
                tag: int, staging: None, checks: RowChecks | None = None, is_open: bool = False) -> DirectDelivery:
        """See `Transport`."""
        return DirectDelivery(comm, peers, send, receive, tag, self.streams.message.mark(), checks, is_open)

    def sum_over_ranks(self, comm: MPI.Comm, values: torch.Tensor) -> None:
        """Collective: see `Transport`."""
        with self.streams.message.after_computing():
            self.streams.message.mark().synchronize()     # MPI reads and writes what the device computed
        comm.Allreduce(MPI.IN_PLACE, [device_memory(values.view(torch.uint8)), MPI.FLOAT], MPI.SUM)


class StagedTransport(_DeviceTransport):
    """See `Transport`: MPI is given pinned memory of the host."""

    name = "staged"

    def __init__(self, device: torch.device):
        super().__init__(device)
        self._sums: torch.Tensor | None = None

    def new_staging(self) -> Staging:
        """See `Transport`."""
        return Staging(self.streams)

    def deliver(self, comm: MPI.Comm, peers: Sequence[int], send: list[torch.Tensor], receive: list[torch.Tensor],
                tag: int, staging: Staging, checks: RowChecks | None = None, is_open: bool = False) -> StagedDelivery:
        """See `Transport`."""
        return StagedDelivery(comm, peers, send, receive, tag, staging, checks, is_open)

    def sum_over_ranks(self, comm: MPI.Comm, values: torch.Tensor) -> None:
        """Collective: see `Transport`."""
        stream, values = self.streams.message, values.view(torch.uint8)
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
    """Collective: the transport of rows on a GPU, the same on all ranks.

    `auto` is cuda-aware where MPI says that it takes device pointers and a small exchange between neighbors proves it;
    otherwise staged, whose reason rank 0 logs.

    Parameters
    ----------
    name : {"auto", "cuda-aware", "staged"}

    Raises
    ------
    CollectiveError      cuda-aware was demanded and does not work
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
    """Collective: why device pointers can't be given to MPI, the same on all ranks; empty where they can.

    A library that can't be asked is tried only where that was demanded: one that does not know device pointers reads
    them as its own and ends the process.
    """
    own = answer_of_mpi()
    if comm.allreduce(int(own.takes_pointers is not True), MPI.MAX):
        answers = comm.allgather(own)
        refusals = [answer.reason for answer in answers if answer.takes_pointers is False]
        silences = [answer.reason for answer in answers if answer.takes_pointers is None]
        if refusals or (silences and not is_demanded):
            return [*refusals, *silences][0]
    return why_pointers_fail(comm, device)
