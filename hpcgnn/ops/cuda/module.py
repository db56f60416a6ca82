"""Kernels by file and name, what compiles them, and their launch with checked arguments.

Tensors are torch's, in its memory and on its current stream; cupy launches; compiler.py has what compiles.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Protocol

import numpy as np
import torch

from hpcgnn.errors import KernelError
from hpcgnn.ops.cuda.arguments import argument_of, checker_of
from hpcgnn.ops.cuda.compiler import KERNELS, machine_code
from hpcgnn.ops.cuda.signatures import Parameter, signatures_of

MAX_BLOCK_THREADS = 1024
MAX_GRID = (2**31 - 1, 65535, 65535)
STATIC_SHARED_BYTES = 48 << 10    # more has to be asked for, kernel by kernel


@dataclass(frozen=True)
class Launch:
    """One checked start of a kernel.

    Attributes
    ----------
    source : path of the .cu file
    is_exact : no multiplication is fused with an addition
    grid, block : three int each
    shared_bytes : dynamic shared memory of a block
    arguments : torch.Tensor, None or NumPy scalar of the parameter's type, in the order of `parameters`
    ready : what a backend has made of it, for the next time
    """

    source: Path
    name: str
    is_exact: bool
    parameters: tuple[Parameter, ...]
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared_bytes: int
    arguments: tuple
    ready: dict = field(default_factory=dict, compare=False, repr=False)


class Backend(Protocol):
    """Compiles kernels and starts them."""

    device_type: str

    def launch(self, launch: Launch) -> None: ...

    def captured(self, actions: Sequence[Callable[[], object]]) -> Callable[[], object]: ...


@dataclass(frozen=True)
class _Stream:
    """Names a stream as CUDA's protocol for other libraries does: its version and the pointer."""

    pointer: int

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self.pointer


class CupyBackend:
    """Kernels on the GPU that torch's tensors live on, each file compiled once a device."""

    device_type = "cuda"

    def __init__(self) -> None:
        self._modules: dict[tuple[Path, bool, int], object] = {}
        self._streams: dict[int, object] = {}

    def launch(self, launch: Launch) -> None:
        """Start the kernel on torch's current stream of the tensors' device; returns at once."""
        import cupy

        if self not in launch.ready:
            device = next((a.device.index for a in launch.arguments if isinstance(a, torch.Tensor)), None)
            device = torch.cuda.current_device() if device is None else device
            launch.ready[self] = device, self._function(cupy, launch, device), tuple(map(_as_scalar, launch.arguments))
        device, function, arguments = launch.ready[self]
        with cupy.cuda.Device(device), self._stream(cupy, torch.cuda.current_stream(device).cuda_stream):
            if launch.shared_bytes > STATIC_SHARED_BYTES:
                function.max_dynamic_shared_size_bytes = launch.shared_bytes
            function(launch.grid, launch.block, arguments, shared_mem=launch.shared_bytes)

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

    def _stream(self, cupy, pointer: int):
        """cupy's name for a stream of torch's, which are a few that never end."""
        if pointer not in self._streams:
            # cupy 14.2 calls ExternalStream deprecated, and 14.0 has nothing else.
            named = getattr(cupy.cuda.Stream, "from_external", None)
            self._streams[pointer] = named(_Stream(pointer)) if named else cupy.cuda.ExternalStream(pointer)
        return self._streams[pointer]

    def _function(self, cupy, launch: Launch, device: int):
        key = (launch.source, launch.is_exact, device)
        with cupy.cuda.Device(device) as chip:
            if key not in self._modules:
                code = machine_code(launch.source, launch.is_exact, int(chip.compute_capability))
                self._modules[key] = cupy.RawModule(path=str(code))
            return self._modules[key].get_function(launch.name)


def _as_scalar(argument):
    """A pointer as a number of its size: a kernel's arguments are passed by value."""
    if argument is None:
        return np.uint64(0)
    return np.uint64(argument.data_ptr()) if isinstance(argument, torch.Tensor) else argument


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


class Kernel:
    """A kernel of kernels/FILE.cu, called with its grid, its block and its arguments."""

    def __init__(self, source: Path, name: str, parameters: tuple[Parameter, ...], is_exact: bool) -> None:
        self.source, self.name, self.parameters, self.is_exact = source, name, parameters, is_exact
        self._checkers_of: dict[str, list[Callable]] = {}

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
        if len(arguments) != len(self.parameters):
            raise KernelError(f"kernel {self.name} takes {len(self.parameters)} arguments, found {len(arguments)}")
        try:
            checked = tuple([check(argument) for check, argument in
                             zip(self._checkers(_backend.device_type), arguments, strict=True)])
        except KernelError:
            checked = tuple(self._checked(parameter, argument)
                            for parameter, argument in zip(self.parameters, arguments, strict=True))
        self._check_devices(checked)
        grid, block = self._extent("grid", grid, MAX_GRID), self._extent("block", block, (MAX_BLOCK_THREADS,) * 3)
        if math.prod(block) > MAX_BLOCK_THREADS or 0 in block:
            raise KernelError(f"kernel {self.name} needs blocks of 1 to {MAX_BLOCK_THREADS} threads, found {block}")
        if 0 not in grid:
            act(partial(_launch, Launch(self.source, self.name, self.is_exact, self.parameters, grid, block,
                                        operator.index(shared_bytes), checked)))

    def _checkers(self, device_type: str) -> list[Callable]:
        if device_type not in self._checkers_of:
            self._checkers_of[device_type] = [checker_of(one, device_type) for one in self.parameters]
        return self._checkers_of[device_type]

    def _extent(self, what: str, sizes: Sequence[int], limits: tuple[int, ...]) -> tuple[int, int, int]:
        if len(sizes) == 1 and type(sizes[0]) is int and 0 <= sizes[0] <= limits[0]:      # as nearly all are
            return sizes[0], 1, 1
        extent = tuple([operator.index(size) for size in sizes]) + (1,) * (3 - len(sizes))
        if len(extent) != 3 or any(not 0 <= size <= limit for size, limit in zip(extent, limits, strict=True)):
            raise KernelError(f"kernel {self.name} was given a {what} of {tuple(sizes)}, allowed is up to {limits}")
        return extent

    def _checked(self, parameter: Parameter, argument):
        try:
            return argument_of(parameter, argument, _backend.device_type)
        except KernelError as wrong:
            raise KernelError(f"kernel {self.name} needs {parameter}, found {wrong}") from None

    def _check_devices(self, arguments: tuple) -> None:
        tensors = [argument for argument in arguments if isinstance(argument, torch.Tensor)]
        if len({argument.get_device() for argument in tensors}) > 1:      # numbers, since all are of one type
            devices = {argument.device for argument in tensors}
            raise KernelError(f"kernel {self.name} was given tensors on {' and '.join(sorted(map(str, devices)))}")


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
