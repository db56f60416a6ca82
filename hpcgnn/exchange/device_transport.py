"""A GPU's messages to MPI: by device pointers (cuda-aware), or piece by piece through pinned host memory (staged).

Staged: while one piece travels, the next is copied. To send: copy piece to the host, wait for the copy, Isend. To
receive: Irecv, wait for it, copy piece to the device. Each direction has two slots of pinned memory, so that memory
does not grow with messages. Kernels never wait for the host.

`choose_transport` asks the MPI library whether it takes device pointers, and then tries a small exchange between
neighbors; every rank gets the same answer.
"""

from __future__ import annotations

import ctypes
import itertools
import logging
import os
import time
from collections import deque
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from mpi4py import MPI

from hpcgnn.errors import CollectiveError
from hpcgnn.exchange.plan import RowList
from hpcgnn.exchange.transfer import Block, Checks, HostDelivery, Transport, all_to_all, placed
from hpcgnn.ops.counter import CounterKey
from hpcgnn.ops.quantization import refuse_bad_row
from hpcgnn.ops.streams import Mark, Streams, streams_of
from hpcgnn.run.launch import has_mpi

PIECE_BYTES = 1 << 22    # long enough for full bandwidth of PCIe and network, short compared with a message
DOUBLE = 2               # pieces of a lane in pinned memory, if somebody polls
CUDA = 0                                     # MPIX_GPU_SUPPORT_CUDA of MPICH's mpi.h
# Variables that switch device pointers on, for libraries that can't be asked: Cray MPICH, MPICH, MVAPICH2, MVAPICH.
SWITCHES = ("MPICH_GPU_SUPPORT_ENABLED", "MPIR_CVAR_ENABLE_GPU", "MV2_USE_CUDA", "MVP_USE_CUDA", "MVP_ENABLE_GPU")
PROOF_BYTES = (64, 1 << 20)                  # one below the eager limit of every MPI, one above it
PROOF_TAG, PROOF_SECONDS = 32002, 30.0
_unfinished: list[tuple] = []                # buffers of messages that never came: MPI may still write to them
logger = logging.getLogger(__name__)


class RowChecks:
    """Brings to the host which rows a device could not quantize, by a copy on the message stream behind the kernels.

    `found`, (num_messages,) int32 on the device, is written by `start_quantizing`.
    """

    def __init__(self, found: torch.Tensor, rows: tuple[RowList, ...], key: CounterKey, streams: Streams):
        self._rows, self._key = rows, key
        self._notes: torch.Tensor | None = streams.pinned(found.nbytes)
        streams.message.copy(self._notes, found.view(torch.uint8))

    def read(self) -> None:
        """Check the rows, once, after the message stream was waited for; KernelError if a row can't be quantized."""
        notes, self._notes = self._notes, None
        if notes is not None:
            for found, rows in zip(notes.view(torch.int32).tolist(), self._rows, strict=True):
                refuse_bad_row(found, rows.node_id, self._key)


class DirectDelivery:
    """Messages in device memory, given to MPI as pointers.

    Nothing is posted before the device has passed `ready`: then it has written what is sent and read what the receive
    buffers held. Kernels queued meanwhile run on. With `is_open` nobody polls, so the host waits for `ready` at once.
    """

    is_read_later = True

    def __init__(self, comm: MPI.Comm, peers: Sequence[int], send: list[torch.Tensor], receive: list[torch.Tensor],
                 tag: int, ready: Mark, checks: Checks | None, is_open: bool):
        self._tensors, self._ready, self._checks, self._is_open = (send, receive), ready, checks, is_open
        self.comm, self.peers, self.tag = comm, peers, tag
        self.sent_bytes, self.received_bytes = sum(map(len, send)), sum(map(len, receive))
        self._delivery: HostDelivery | None = None
        self._unposted: deque[tuple[int, int]] = deque()

    def post(self, destination: int, source: int) -> None:
        self._unposted.append((destination, source))
        if self._is_open or self._ready.query():
            self._hand_over()

    def post_all(self) -> None:
        self._begin()
        all_to_all(self.comm, self.peers, *map(_device_block, self._tensors))

    def poll(self) -> bool:
        if self._unposted:
            if not self._ready.query():
                return False
            self._hand_over()
        return self._delivery is None or self._delivery.poll()

    def wait(self) -> None:
        if self._unposted:
            self._hand_over()
        if self._delivery is not None:
            self._delivery.wait()

    def _hand_over(self) -> None:
        self._begin()
        while self._unposted:
            self._delivery.post(*self._unposted.popleft())

    def _begin(self) -> None:
        if self._delivery is None:
            self._ready.synchronize()     # MPI touches these buffers from here on
            if self._checks is not None:
                self._checks.read()
            send, receive = ([device_memory(message) for message in messages] for messages in self._tensors)
            self._delivery = HostDelivery(self.comm, self.peers, send, receive, self.tag)


def device_memory(tensor: torch.Tensor) -> MPI.buffer:
    """Wrap contiguous device bytes for MPI by their address."""
    return MPI.buffer.fromaddress(tensor.data_ptr(), len(tensor))


def _device_block(messages: list[torch.Tensor]) -> Block:
    first = [message.storage_offset() for message in messages]     # views of an arena's buffer
    present = [(message.data_ptr() - start, start + len(message))
               for message, start in zip(messages, first, strict=True) if len(message)]
    address, extent = max(present, default=(0, 0))
    return placed(MPI.buffer.fromaddress(address, extent), messages, first)


class Slot:
    """Pinned memory of one piece, and its current user: a copy, or MPI."""

    def __init__(self) -> None:
        self._memory: torch.Tensor | None = None
        self.copied: Mark | None = None
        self.request = MPI.REQUEST_NULL

    def memory(self, streams: Streams, num_bytes: int) -> torch.Tensor:
        if self._memory is None or len(self._memory) < num_bytes:
            self._memory = streams.pinned(num_bytes)
        return self._memory[:num_bytes]

    @property
    def num_bytes(self) -> int:
        return 0 if self._memory is None else len(self._memory)

    def is_copied(self) -> bool:
        return self.copied is None or self.copied.query()

    def has_travelled(self) -> bool:
        """Let MPI make progress; return whether MPI is done with the slot."""
        return self.request.Test()


class Staging:
    """The pinned memory of one arena, kept between exchanges."""

    def __init__(self, streams: Streams):
        self.streams = streams
        self._slots: tuple[list[Slot], list[Slot]] = [], []
        self._mirrors = Slot(), Slot()

    def slots(self, is_received: bool, first: int, number: int) -> list[Slot]:
        slots = self._slots[is_received]
        slots += [Slot() for _ in range(first + number - len(slots))]
        return slots[first:first + number]

    def mirror(self, is_received: bool) -> Slot:
        return self._mirrors[is_received]

    @property
    def num_bytes(self) -> int:
        return sum(slot.num_bytes for slot in [*self._slots[0], *self._slots[1], *self._mirrors])


class _Lane:
    def __init__(self, comm: MPI.Comm, message: torch.Tensor, peer: int, tag: int, streams: Streams, slots: list[Slot]):
        self._comm, self._peer, self._tag, self._streams, self._slots = comm, peer, tag, streams, slots
        self._pieces = message.split(PIECE_BYTES) if len(message) else ()
        self._num_copied = self._num_posted = 0

    @property
    def requests(self) -> list[MPI.Request]:
        return [slot.request for slot in self._slots if slot.request != MPI.REQUEST_NULL]

    def _slot(self, number: int) -> Slot:
        return self._slots[number % len(self._slots)]

    def _memory(self, number: int) -> torch.Tensor:
        return self._slot(number).memory(self._streams, len(self._pieces[number]))

    def _buffer(self, number: int) -> list:
        return [self._memory(number).numpy(), MPI.BYTE]

    def _note_copy(self) -> None:
        self._slot(self._num_copied).copied = self._streams.message.mark()
        self._num_copied += 1


class _Outgoing(_Lane):
    def advance(self) -> bool:
        while self._can_copy():
            self._streams.message.copy(self._memory(self._num_copied), self._pieces[self._num_copied])
            self._note_copy()
        while self._num_posted < self._num_copied and self._slot(self._num_posted).is_copied():
            request = self._comm.Isend(self._buffer(self._num_posted), self._peer, self._tag)
            self._slot(self._num_posted).request = request
            self._num_posted += 1
        return self._num_posted == len(self._pieces) and all([slot.has_travelled() for slot in self._slots])

    def _can_copy(self) -> bool:
        return (self._num_copied < min(len(self._pieces), self._num_posted + len(self._slots))
                and self._slot(self._num_copied).has_travelled())

    @property
    def blocking_copy(self) -> Mark | None:
        return self._slot(self._num_posted).copied if self._num_posted < self._num_copied else None


class _Incoming(_Lane):
    def advance(self) -> bool:
        while self._can_post():
            request = self._comm.Irecv(self._buffer(self._num_posted), self._peer, self._tag)
            self._slot(self._num_posted).request = request
            self._num_posted += 1
        while self._num_copied < self._num_posted and self._slot(self._num_copied).has_travelled():
            self._streams.message.copy(self._pieces[self._num_copied], self._memory(self._num_copied))
            self._note_copy()
        return self._num_copied == len(self._pieces)

    def _has_slot(self) -> bool:
        return self._num_posted < min(len(self._pieces), self._num_copied + len(self._slots))

    def _can_post(self) -> bool:
        return self._has_slot() and self._slot(self._num_posted).is_copied()

    @property
    def blocking_copy(self) -> Mark | None:
        return self._slot(self._num_posted).copied if self._has_slot() else None


class StagedDelivery:
    """Device messages through pinned memory.

    A message has two slots, or, in an exchange that nobody polls (`is_open`), one per piece, so that all are posted at
    once. `send` and `receive` are uint8 tensors on the device, one per peer; `checks` belong to the sent rows.
    """

    is_read_later = True

    def __init__(self, comm: MPI.Comm, peers: Sequence[int], send: list[torch.Tensor], receive: list[torch.Tensor],
                 tag: int, staging: Staging, checks: Checks | None, is_open: bool):
        self.comm, self.peers, self.tag = comm, peers, tag
        self._send, self._receive, self._staging = send, receive, staging
        self.sent_bytes, self.received_bytes = sum(map(len, send)), sum(map(len, receive))
        self._lanes: list[_Outgoing | _Incoming] = []
        self._num_slots = [0, 0]
        self._is_open, self._checks, self._encoded = is_open, checks, staging.streams.message.mark()

    def post(self, destination: int, source: int) -> None:
        incoming = _Incoming(*self._lane(self._receive, source, True))
        outgoing = _Outgoing(*self._lane(self._send, destination, False))
        if not self._is_open:
            self._lanes.clear()     # the round before has arrived, so its lanes are done
        self._lanes += [incoming, outgoing]
        for lane in (incoming, outgoing):
            lane.advance()
            while self._is_open and lane.blocking_copy is not None:
                lane.blocking_copy.synchronize()
                lane.advance()
        self._look_at_checks()

    def _lane(self, messages: list[torch.Tensor], peer: int, is_received: bool) -> tuple:
        message = messages[peer]
        first, number = 0, DOUBLE
        if self._is_open:
            first, number = self._num_slots[is_received], -(-len(message) // PIECE_BYTES)
            self._num_slots[is_received] += number
        return (self.comm, message, self.peers[peer], self.tag, self._staging.streams,
                self._staging.slots(is_received, first, number))

    def post_all(self) -> None:
        # One Alltoallv: copy everything, send it, copy everything back.
        message_stream, slot = self._staging.streams.message, self._staging.mirror(is_received=True)
        sent, block = self._mirror(self._send, is_received=False)
        received, received_block = self._mirror(self._receive, is_received=True)
        for pinned, message in zip(sent, self._send, strict=True):
            message_stream.copy(pinned, message)
        message_stream.mark().synchronize()     # MPI reads what was copied
        self._read_checks()
        all_to_all(self.comm, self.peers, block, received_block)
        for pinned, message in zip(received, self._receive, strict=True):
            message_stream.copy(message, pinned)
        slot.copied = message_stream.mark()

    def _mirror(self, messages: list[torch.Tensor], is_received: bool) -> tuple[list[torch.Tensor], Block]:
        slot, sizes = self._staging.mirror(is_received), [len(message) for message in messages]
        if slot.copied is not None:
            slot.copied.synchronize()           # MPI touches this memory
        memory = slot.memory(self._staging.streams, sum(sizes))
        return list(memory.split(sizes)), placed(memory.numpy(), messages, [0, *itertools.accumulate(sizes[:-1])])

    def poll(self) -> bool:
        has_arrived = all([lane.advance() for lane in self._lanes])
        self._look_at_checks()
        return has_arrived

    def wait(self) -> None:
        while not self.poll():
            copies = [copy for lane in self._lanes if (copy := lane.blocking_copy) is not None]
            requests = [request for lane in self._lanes for request in lane.requests]
            if copies:
                copies[0].synchronize()     # MPI touches the copied memory next, and other ranks may wait for that
            elif requests:
                MPI.Request.Waitany(requests)

    def _look_at_checks(self) -> None:
        # Messages are copied after the kernels that wrote the checks, so all checks are read before the last piece
        # leaves.
        if self._checks is not None and self._encoded.query():
            self._read_checks()

    def _read_checks(self) -> None:
        checks, self._checks = self._checks, None
        if checks is not None:
            checks.read()


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
                staging: Staging | None, checks: Checks | None = None, is_open: bool = False) -> DirectDelivery:
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
                tag: int, staging: Any, checks: Checks | None = None, is_open: bool = False) -> StagedDelivery:
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
