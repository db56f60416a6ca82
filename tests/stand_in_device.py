"""A stand-in for a device: CPU tensors as its memory, streams that do nothing before they must, and an MPI that looks.

Copies run when their stream is waited for, or when kernels come behind them, and never earlier; so what is not ordered
by the program arrives wrong. MPI that is handed memory which the host has not waited for is a fault, and so is memory
that changes while MPI has it.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
import torch
from mpi4py import MPI

from hpcgnn.ops import aggregation, quantization

UNWRITTEN = 0xCD


class DeviceFault(Exception):
    """What would be silently wrong, or a crash, on a device."""


def range_of(buffer) -> tuple[int, int]:
    """First and last address, plus one, of contiguous memory."""
    if isinstance(buffer, torch.Tensor):
        return buffer.data_ptr(), buffer.data_ptr() + buffer.nbytes
    if isinstance(buffer, MPI.buffer):
        return buffer.address, buffer.address + buffer.nbytes
    first = buffer.__array_interface__["data"][0]
    return first, first + buffer.nbytes


def overlaps(one: tuple[int, int], other: tuple[int, int]) -> bool:
    return one[0] < other[1] and other[0] < one[1]


@dataclass
class Work:
    """Something queued: a copy, or kernels, which have run on the CPU already and may have written anything."""

    target: torch.Tensor | None = None
    source: torch.Tensor | None = None
    is_done: bool = False


@dataclass
class StandInStream:
    """See `hpcgnn.ops.streams.SideStream`."""

    device: StandInDevice
    queue: list[Work] = field(default_factory=list)
    num_passed: int = 0      # of the queue, that the host knows to have ended
    capture: object = None      # the one that this stream was forked into and has not been joined from

    @contextmanager
    def after_computing(self):
        self._run(len(self.queue))
        self.device.check_arrived()
        self.queue.append(Work(is_done=True))
        self.capture = self.device.capture
        yield

    def copy(self, target, source):
        self.device.log.append(("copy", target.nbytes))
        self.queue.append(Work(target, source))

    def keep(self, tensor):
        pass

    def mark(self):
        return StandInMark(self, len(self.queue))

    def join(self):
        if self.device.capture is not None and self.capture is not self.device.capture:
            raise RuntimeError("dependency created on uncaptured work in another stream")
        self.capture = None
        self._run(len(self.queue))
        self.device.check_arrived()

    def _run(self, end):
        for work in self.queue[self.num_passed:end]:
            if not work.is_done:
                self.device.check_copy(work)
                work.target.copy_(work.source)
                work.is_done = True

    def passed(self, end):
        self._run(end)
        self.num_passed = max(self.num_passed, end)

    @property
    def unpassed(self):
        return self.queue[self.num_passed:]


@dataclass
class StandInMark:
    """An event that the stream is slow to pass."""

    stream: StandInStream
    end: int
    patience: int = 2     # queries that find it not passed yet

    def query(self):
        self._check_capture()
        self.patience -= 1
        if self.patience < 0:
            self.stream.passed(self.end)
        return self.stream.num_passed >= self.end

    def synchronize(self):
        self._check_capture()
        self.stream.device.log.append(("synchronize", self.end))
        self.stream.passed(self.end)

    def _check_capture(self):
        if self.stream.device.capture is not None:
            raise RuntimeError("operation not permitted when stream is capturing")


class StandInDevice:
    """See `hpcgnn.ops.streams.Streams`.

    Attributes
    ----------
    log : list of (event, bytes or other number)
    in_flight : list of (request, range, bytes that are sent or None)
    """

    def __init__(self):
        self.log = []
        self.in_flight = []
        self.capture = None      # the graph that is being captured
        self.message, self.central = StandInStream(self), StandInStream(self)
        self.pinned_ranges = []

    def pinned(self, num_bytes):
        memory = torch.full((num_bytes,), UNWRITTEN, dtype=torch.uint8)
        self.pinned_ranges.append((memory, range_of(memory)))
        return memory

    def check_copy(self, work):
        """A copy must not touch what MPI is still reading, nor read what MPI is still writing."""
        self.check_arrived()
        for request, where, _ in self.in_flight:
            if request != MPI.REQUEST_NULL and (overlaps(where, range_of(work.target))
                                                or overlaps(where, range_of(work.source))):
                raise DeviceFault("a copy met a message that has not gone")

    def check_handed_over(self, buffer):
        """MPI reads and writes at once, so the host must have waited for the copies of this memory, and for all kernels
        where it is the device's own.
        """
        where, unpassed = range_of(buffer), self.message.unpassed
        is_pinned = bool(unpassed) and any(overlaps(where, pinned) for _, pinned in self.pinned_ranges)
        for work in unpassed:
            if work.target is None:
                if not is_pinned:
                    raise DeviceFault("MPI was given memory that kernels may still be using")
            elif overlaps(where, range_of(work.target)) or overlaps(where, range_of(work.source)):
                raise DeviceFault("MPI was given memory that a copy may still be using")

    def check_arrived(self):
        """What is sent must be what it was when MPI was given it."""
        for request, where, sent in self.in_flight:
            if request == MPI.REQUEST_NULL and sent is not None:
                now = np.frombuffer(MPI.buffer.fromaddress(where[0], where[1] - where[0]), np.uint8)
                if not np.array_equal(now, sent):
                    raise DeviceFault("a message changed before it had gone")
        self.in_flight = [entry for entry in self.in_flight if entry[0] != MPI.REQUEST_NULL]


class WatchedComm:
    """A communicator whose buffers are checked; everything else it hands on."""

    def __init__(self, comm, device):
        self._comm, self._device = comm, device

    def __getattr__(self, name):
        return getattr(self._comm, name)

    def Isend(self, message, destination, tag):
        if not self.is_of_device(message[0]):
            return self._comm.Isend(message, destination, tag)
        self._device.check_arrived()
        self._device.check_handed_over(message[0])
        self._device.log.append(("send", range_of(message[0])[1] - range_of(message[0])[0]))
        request = self._comm.Isend(message, destination, tag)
        self._device.in_flight.append((request, range_of(message[0]), bytes_of(message[0])))
        return request

    def Irecv(self, message, source, tag):
        if not self.is_of_device(message[0]):
            return self._comm.Irecv(message, source, tag)
        self._device.check_arrived()
        self._device.check_handed_over(message[0])
        request = self._comm.Irecv(message, source, tag)
        self._device.in_flight.append((request, range_of(message[0]), None))
        return request

    def Alltoallv(self, send, receive):
        for buffer in (send[0], receive[0]):
            if self.is_of_device(buffer):
                self._device.check_handed_over(buffer)
        self._comm.Alltoallv(send, receive)

    def Allreduce(self, send, receive, *operation):
        values = receive[0] if isinstance(receive, list) else receive
        if self.is_of_device(values):
            self._device.check_handed_over(values)
        self._comm.Allreduce(send, receive, *operation)

    def is_of_device(self, values):
        """Host arrays that were never the device's are no business of the streams."""
        return isinstance(values, MPI.buffer) or any(overlaps(range_of(values), pinned)
                                                     for _, pinned in self._device.pinned_ranges)


def bytes_of(buffer):
    first, end = range_of(buffer)
    return np.frombuffer(MPI.buffer.fromaddress(first, end - first), np.uint8).copy()


class _Quantization:
    """The host's kernels on messages that are tensors, as a device's are."""

    @staticmethod
    def quantize_rows(rows, row_index, node_id, layout, key, message, is_nearest):
        return quantization._quantize_rows.host(rows, _array(row_index), _array(node_id), layout, key, _array(message),
                                                is_nearest)

    @staticmethod
    def start_quantizing(rows, row_index, node_id, layout, key, message, is_nearest, first_bad):
        found = _Quantization.quantize_rows(rows, row_index, node_id, layout, key, message, is_nearest)
        if found >= 0:
            first_bad.fill_(found)

    @staticmethod
    def dequantize_rows(message, row_index, node_id, layout, rows, accumulate, key=None):
        quantization._dequantize_rows.host(_array(message), _array(row_index), _array(node_id), layout, rows,
                                           accumulate, key)


def _multiply(matrix, near, far, out, tasks, is_added):
    if isinstance(far, aggregation.PackedRows):
        far = aggregation.PackedRows(_array(far.message), far.bit_width, far.payload_offset, far.parameter_offset)
    aggregation._multiply.host(matrix, near, far, out, tasks, is_added)


def _array(message):
    return message.numpy() if isinstance(message, torch.Tensor) else message


def use_host_kernels(monkeypatch):
    """Have the host's kernels compute on the stand-in's memory."""
    monkeypatch.setattr(quantization, "device_kernels", lambda file, device: _Quantization)
    for operation, function in (
            (quantization._quantize_rows, _Quantization.quantize_rows),
            (quantization._dequantize_rows, _Quantization.dequantize_rows), (aggregation._multiply, _multiply),
            (aggregation._multiply_weighted, aggregation._multiply_weighted.host),
            (aggregation.entry_dtype, aggregation.entry_dtype.host)):
        monkeypatch.setattr(operation, "on", lambda device, function=function: function)
