"""Side streams of a device, and the events that order them; on the host nothing has to wait.

The computing stream is torch's current one. A message kernel runs on `message`, after everything queued on the
computing stream so far; the computing stream joins before it reads arrived rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache

import torch


class Mark:
    """A place in a stream that was passed; on a device, a torch.cuda.Event."""

    def query(self) -> bool:
        return True

    def synchronize(self) -> None:
        """Block the host until the stream has passed it."""


class SideStream:
    """A side stream. The host's does nothing: it computes in order, so every call has ended when it returns."""

    def after_computing(self) -> AbstractContextManager[None]:
        """Queue the block's kernels and copies here, after everything queued on the computing stream."""
        return nullcontext()

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
        """Queue a copy of bytes between the device and pinned memory."""
        target.copy_(source)

    def keep(self, tensor: torch.Tensor) -> None:
        """Hold the tensor's memory until this stream has passed everything queued here now."""

    def mark(self) -> Mark:
        """An event after everything queued here."""
        return Mark()

    def join(self) -> None:
        """Make the computing stream wait for everything queued here; the host goes on."""


class Streams:
    """Side streams of a device: one for message kernels and copies, one for sums of central rows."""

    def __init__(self) -> None:
        self.message = self.central = SideStream()

    def pinned(self, num_bytes: int) -> torch.Tensor:
        """Uninitialized memory of the host, (num_bytes,) uint8, page-locked for copies by a device."""
        return torch.empty(num_bytes, dtype=torch.uint8)


class _CudaStream(SideStream):
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


class CudaStreams(Streams):
    def __init__(self, device: torch.device):
        self.message, self.central = _CudaStream(device), _CudaStream(device)

    def pinned(self, num_bytes: int) -> torch.Tensor:
        return torch.empty(num_bytes, dtype=torch.uint8, pin_memory=True)      # torch keeps it when it is freed


HOST_STREAMS = Streams()


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
