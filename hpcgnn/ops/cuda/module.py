"""Kernels by file and name, what compiles them, and their launch with checked arguments.

Tensors are torch's, in its memory and on its current stream; cupy loads and launches; compiler.py has what compiles,
arguments.py what checks.
"""

from __future__ import annotations

import ctypes
import math
import operator
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from threading import Lock
from typing import Protocol

import torch

from hpcgnn.errors import KernelError
from hpcgnn.ops.cuda.arguments import ArgumentList, Unusual
from hpcgnn.ops.cuda.compiler import KERNELS, machine_code
from hpcgnn.ops.cuda.signatures import Parameter, signatures_of

MAX_BLOCK_THREADS = 1024
MAX_GRID = (2**31 - 1, 65535, 65535)
STATIC_SHARED_BYTES = 48 << 10    # more has to be asked for, kernel by kernel
LATER = object()      # stands for a tensor that a bound kernel gets at each launch


@dataclass(slots=True, eq=False)
class Launch:
    """One checked start of a kernel, never changed.

    Attributes
    ----------
    kernel : Kernel
    grid, block : three int each
    shared_bytes : dynamic shared memory of a block
    arguments : torch.Tensor, None or a number for each of the kernel's parameters
    packed : their bytes, at the offsets of `Kernel.arguments_on`
    device : of the tensors, None where there is none
    """

    kernel: Kernel
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared_bytes: int
    arguments: Sequence
    packed: bytes
    device: torch.device | None

    @property
    def source(self) -> Path:
        """Return the path of the .cu file."""
        return self.kernel.source

    @property
    def name(self) -> str:
        """Return the kernel's name."""
        return self.kernel.name

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        """Return the parameters of the kernel, beside `arguments`."""
        return self.kernel.parameters


class Backend(Protocol):
    """Compiles kernels and starts them."""

    device_type: str

    def launch(self, launch: Launch) -> None: ...

    def captured(self, actions: Sequence[Callable[[], object]]) -> Callable[[], object]: ...


class _Ready:
    """A kernel on one device, and the memory from which the driver reads its arguments."""

    def __init__(self, function, index: int, offset: tuple[int, ...], num_bytes: int) -> None:
        self.function, self.index, self.pointer = function, index, function.kernel.ptr
        self.bytes = bytearray(num_bytes)
        held = (ctypes.c_char * num_bytes).from_buffer(self.bytes)
        self._places = (ctypes.c_void_p * max(len(offset), 1))(*[ctypes.addressof(held) + one for one in offset])
        self.places = ctypes.addressof(self._places)


class CupyBackend:
    """Kernels on the GPU that torch's tensors live on, each file compiled once a device.

    cupy loads them, and its binding of the driver starts them: cupy's own start makes an object an argument.
    """

    device_type = "cuda"

    def __init__(self) -> None:
        self._modules: dict[tuple[Path, bool, int], object] = {}
        self._ready: dict[tuple[Kernel, torch.device], _Ready] = {}
        self._is_packing = Lock()      # the driver has read the arguments when it returns

    def launch(self, launch: Launch) -> None:
        """Start the kernel on torch's current stream of the tensors' device; returns at once."""
        import cupy

        device = launch.device
        if device is None or device.index is None:
            device = torch.device("cuda", torch.cuda.current_device())
        ready = self._ready.get((launch.kernel, device)) or self._made_ready(cupy, launch, device)
        if launch.shared_bytes > STATIC_SHARED_BYTES:
            with cupy.cuda.Device(ready.index):
                ready.function.max_dynamic_shared_size_bytes = launch.shared_bytes
        runtime, stream = cupy.cuda.runtime, current_stream(ready.index)
        before = runtime.getDevice()
        runtime.setDevice(ready.index)      # also where it was before: its context is this thread's then
        try:
            with self._is_packing:
                ready.bytes[:] = launch.packed
                cupy.cuda.driver.launchKernel(ready.pointer, *launch.grid, *launch.block, launch.shared_bytes, stream,
                                              ready.places, 0)
        finally:
            if before != ready.index:
                runtime.setDevice(before)

    def captured(self, actions: Sequence[Callable[[], object]]) -> Callable[[], object]:
        """Return the actions as one CUDA graph: launches and torch's operations on the device, on the same memory."""
        graph, computing, aside = torch.cuda.CUDAGraph(), torch.cuda.current_stream(), torch.cuda.Stream()
        aside.wait_stream(computing)
        with torch.cuda.stream(aside):
            graph.capture_begin(capture_error_mode="thread_local")
            try:
                for action in actions:
                    action()
            finally:
                graph.capture_end()
        computing.wait_stream(aside)
        return graph.replay

    def _made_ready(self, cupy, launch: Launch, device: torch.device) -> _Ready:
        kernel, offset = launch.kernel, launch.kernel.arguments_on(self.device_type).offset
        function = self._function(cupy, kernel, device.index)
        self._ready[kernel, device] = _Ready(function, device.index, offset, len(launch.packed))
        return self._ready[kernel, device]

    def _function(self, cupy, kernel: Kernel, device: int):
        key = (kernel.source, kernel.is_exact, device)
        with cupy.cuda.Device(device) as chip:
            if key not in self._modules:
                code = machine_code(kernel.source, kernel.is_exact, int(chip.compute_capability))
                self._modules[key] = cupy.RawModule(path=str(code))
            return self._modules[key].get_function(kernel.name)


def current_stream(device: int) -> int:
    """Return the pointer of torch's current stream of a device; a torch with CUDA tells it without an object."""
    raw = getattr(torch._C, "_cuda_getCurrentRawStream", None)
    return torch.cuda.current_stream(device).cuda_stream if raw is None else raw(device)


_backend: Backend = CupyBackend()


@contextmanager
def use_backend(backend: Backend) -> Iterator[Backend]:
    """Launch kernels by `backend` inside the block."""
    global _backend
    before, _backend = _backend, backend
    try:
        yield backend
    finally:
        _backend = before


class Tape:
    """Holds what a block launched, to do it again on the same tensors and without a check; see `recording`."""

    def __init__(self) -> None:
        self.actions: list[Callable[[], object]] = []
        self._all: Callable[[], object] | None = None

    def replay(self) -> None:
        """Do it again; a GPU has it as one graph from the first time on."""
        if self._all is None:
            self._all = _backend.captured(self.actions)
        self._all()


_tape: Tape | None = None


@contextmanager
def recording() -> Iterator[Tape]:
    """Keep what the block launches on the tape that it gets."""
    global _tape
    before, _tape = _tape, Tape()
    try:
        yield _tape
    finally:
        _tape = before


def act(action: Callable[[], object]) -> None:
    """Do something between launches, which is kept with them."""
    action()
    if _tape is not None:
        _tape.actions.append(action)


def _launch(launch: Launch) -> None:
    _backend.launch(launch)


def _start(launch: Launch) -> None:
    _backend.launch(launch)
    if _tape is not None:
        _tape.actions.append(partial(_launch, launch))


class Kernel:
    """A kernel of kernels/FILE.cu, called with its grid, its block and its arguments."""

    def __init__(self, source: Path, name: str, parameters: tuple[Parameter, ...], is_exact: bool) -> None:
        self.source, self.name, self.parameters, self.is_exact = source, name, parameters, is_exact
        self._arguments_on: dict[str, ArgumentList] = {}

    def __call__(self, grid: Sequence[int], block: Sequence[int], *arguments, shared_bytes: int = 0) -> None:
        """Start the kernel; a grid without blocks starts nothing.

        Parameters
        ----------
        grid, block : one to three int
        arguments : for a pointer a contiguous tensor of the pointee's type, or None; for a number an int or a float
        shared_bytes : dynamic shared memory of a block

        Raises
        ------
        KernelError      a wrong number of arguments; one that is not of its parameter's type, out of its range, not
                         contiguous or on another device; a grid or block that no device takes
        """
        packed, device = self.arguments_on(_backend.device_type).packed(arguments)
        grid, block = self._shape(grid, block)
        if 0 not in grid:
            _start(Launch(self, grid, block, operator.index(shared_bytes), arguments, packed, device))

    def bind(self, grid: Sequence[int], block: Sequence[int], *arguments, shared_bytes: int = 0) -> BoundKernel:
        """Return the kernel with all arguments but those that are LATER, which stand for pointers.

        Raises
        ------
        KernelError      as a call does
        """
        shape = *self._shape(grid, block), operator.index(shared_bytes)
        return BoundKernel(self, _backend.device_type, shape, arguments)

    def arguments_on(self, device_type: str) -> ArgumentList:
        """Return how arguments are checked whose tensors are on devices of one type."""
        if device_type not in self._arguments_on:
            self._arguments_on[device_type] = ArgumentList(self.name, self.parameters, device_type)
        return self._arguments_on[device_type]

    def _shape(self, grid: Sequence[int], block: Sequence[int]) -> tuple[tuple[int, int, int], tuple[int, int, int]]:
        grid, block = self._extent("grid", grid, MAX_GRID), self._extent("block", block, (MAX_BLOCK_THREADS,) * 3)
        if math.prod(block) > MAX_BLOCK_THREADS or 0 in block:
            raise KernelError(f"kernel {self.name} needs blocks of 1 to {MAX_BLOCK_THREADS} threads, found {block}")
        return grid, block

    def _extent(self, what: str, sizes: Sequence[int], limits: tuple[int, ...]) -> tuple[int, int, int]:
        if len(sizes) == 1 and type(sizes[0]) is int and 0 <= sizes[0] <= limits[0]:      # as nearly all are
            return sizes[0], 1, 1
        extent = tuple([operator.index(size) for size in sizes]) + (1,) * (3 - len(sizes))
        if len(extent) != 3 or any(not 0 <= size <= limit for size, limit in zip(extent, limits, strict=True)):
            raise KernelError(f"kernel {self.name} was given a {what} of {tuple(sizes)}, allowed is up to {limits}")
        return extent


class BoundKernel:
    """A kernel whose launches differ by some tensors only: everything else is checked once, and lives as long.

    Parameters
    ----------
    shape : tuple        of the grid, the block and its shared bytes
    """

    def __init__(self, kernel: Kernel, device_type: str, shape: tuple, arguments: Sequence) -> None:
        listed = kernel.arguments_on(device_type)
        later = [place for place, argument in enumerate(arguments) if argument is LATER]
        self._kernel, self._list, self._shape, self._is_empty = kernel, listed, shape, 0 in shape[0]
        self._arguments = [None if argument is LATER else argument for argument in arguments]
        self._values = listed.check(self._arguments)
        self._device = listed.point(self._values, listed.pointers, None)
        self._later = [both for both in listed.pointers if both[0] in later]

    def __call__(self, *tensors: torch.Tensor | None) -> None:
        """Start the kernel with tensors in the places that were left, in their order.

        Raises
        ------
        KernelError      as `Kernel`
        """
        if self._is_empty:
            return
        arguments, values = self._arguments.copy(), self._values.copy()
        for (place, _), tensor in zip(self._later, tensors, strict=True):
            arguments[place] = values[place] = tensor
        try:
            device = self._list.point(values, self._later, self._device)
        except (Unusual, AttributeError):
            self._list.check(arguments)
            raise
        _start(Launch(self._kernel, *self._shape, arguments, self._list.pack(*values), device))


@cache
def _signatures(source: Path) -> dict[str, tuple[Parameter, ...]]:
    return signatures_of(source.read_text())


@cache
def kernel(file: str | Path, name: str, is_exact: bool = False) -> Kernel:
    """Return the kernel `name` of kernels/`file`.cu, or of the path `file` where that is one.

    `is_exact` compiles the file so that no multiplication is fused with an addition, which would round once.

    Raises
    ------
    KernelError      no such file, or no such kernel in it
    """
    source = file if isinstance(file, Path) else KERNELS / f"{file}.cu"
    if not source.is_file():
        raise KernelError(f"there is no kernel file {source}")
    parameters = _signatures(source)
    if name not in parameters:
        raise KernelError(f"{source.name} has no kernel {name}; it has {', '.join(sorted(parameters))}")
    return Kernel(source, name, parameters[name], is_exact)
