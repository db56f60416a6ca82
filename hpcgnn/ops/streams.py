"""Side streams of a device, and the events that order them; on the host nothing has to wait.

The computing stream is torch's current one. A message kernel runs on `message`, after everything queued on the
computing stream so far; the computing stream joins before it reads arrived rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache
from typing import Protocol

import torch


class Mark(Protocol):
    def query(self) -> bool:
        ...

    def synchronize(self) -> None:
        """Block the host until the stream has passed it."""


class SideStream(Protocol):
    def after_computing(self) -> AbstractContextManager[None]:
        """Queue the block's kernels and copies here, after everything queued on the computing stream."""

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
        """Queue a copy of bytes between the device and pinned memory."""

    def keep(self, tensor: torch.Tensor) -> None:
        """Hold the tensor's memory until this stream has passed everything queued here now."""

    def mark(self) -> Mark:
        """An event after everything queued here."""

    def join(self) -> None:
        """Make the computing stream wait for everything queued here; the host goes on."""


class Streams(Protocol):
    """Side streams of a device: one for message kernels and copies, one for sums of central rows."""

    @property
    def message(self) -> SideStream: ...

    @property
    def central(self) -> SideStream: ...

    def pinned(self, num_bytes: int) -> torch.Tensor:
        """Uninitialized pinned uint8 memory of the host, for copies by the device."""


class _Passed:
    def query(self) -> bool:
        return True

    def synchronize(self) -> None:
        pass


class _HostStream:
    """Does nothing: the host computes in order, so every call has ended when it returns."""

    def after_computing(self) -> AbstractContextManager[None]:
        return nullcontext()

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
        target.copy_(source)

    def keep(self, tensor: torch.Tensor) -> None:
        pass

    def mark(self) -> Mark:
        return _Passed()

    def join(self) -> None:
        pass


class HostStreams:
    def __init__(self) -> None:
        self.message = self.central = _HostStream()

    def pinned(self, num_bytes: int) -> torch.Tensor:
        return torch.empty(num_bytes, dtype=torch.uint8)


class _CudaStream:
    def __init__(self, device: torch.device):
        self._device, self._stream = device, torch.cuda.Stream(device)

    @contextmanager
    def after_computing(self) -> Iterator[None]:
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._stream):
            yield

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
        with torch.cuda.stream(self._stream):
            target.copy_(source, non_blocking=True)

    def keep(self, tensor: torch.Tensor) -> None:
        tensor.record_stream(self._stream)

    def mark(self) -> Mark:
        event = torch.cuda.Event(blocking=True)     # ranks may share cores, so waiting must not spin
        event.record(self._stream)
        return event

    def join(self) -> None:
        torch.cuda.current_stream(self._device).wait_stream(self._stream)


class CudaStreams:
    def __init__(self, device: torch.device):
        self.message, self.central = _CudaStream(device), _CudaStream(device)

    def pinned(self, num_bytes: int) -> torch.Tensor:
        """Page-locked memory; torch keeps it when it is freed."""
        return torch.empty(num_bytes, dtype=torch.uint8, pin_memory=True)


HOST_STREAMS = HostStreams()


@cache
def _streams_of(device: torch.device) -> Streams:
    return HOST_STREAMS if device.type == "cpu" else CudaStreams(device)


_of_device: Callable[[torch.device], Streams] = _streams_of


def streams_of(device: torch.device) -> Streams:
    return _of_device(device)


@contextmanager
def use_streams(streams: Streams) -> Iterator[None]:
    """Use these streams for every device in the block; for tests that watch them."""
    global _of_device
    before, _of_device = _of_device, lambda device: streams
    try:
        yield
    finally:
        _of_device = before
