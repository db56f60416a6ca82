"""CUDA kernels from Python: their parameters read from the .cu files, checked arguments, compilation and launch.

    kernel("column_sums", "sum_columns_f32")(grid, (256,), rows, num_rows, dim, rows_a_block, columns_a_block, sums)

`signatures_of` finds the parameters of every kernel in the text of its file, so that arguments are checked on any
machine. `ArgumentList` checks and packs arguments as bytes. A backend compiles and starts the kernel; tests use one
that emulates it. The real one compiles by NVRTC through cupy's bindings, because cupy's RawModule always adds -ftz=true
(cupy, issue 9576): subnormal numbers would become zeros, and a message's bytes would differ from the host's. Machine
code stays on disk.
"""

from __future__ import annotations

import ctypes
import hashlib
import math
import operator
import os
import re
import struct
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from threading import Lock
from typing import Any, Protocol

import numpy as np
import torch

from hpcgnn.errors import KernelError

# Arguments to which FOR_EACH_STORAGE of kernels/device.cuh applies a macro.
STORAGE_ARGUMENTS = (("float", "f32"), ("__nv_bfloat16", "bf16"), ("__half", "f16"))

_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_MACRO = re.compile(r"^[ \t]*#[ \t]*define[ \t]+(\w+)\(([^)]*)\)(.*)$", re.MULTILINE)
_FOR_EACH = re.compile(r"\bFOR_EACH_STORAGE\s*\(\s*(\w+)\s*\)")
_DIRECTIVE = re.compile(r"^[ \t]*#.*$", re.MULTILINE)
_KERNEL = re.compile(r'extern\s+"C"\s+__global__\s+void\s+(?:__launch_bounds__\s*\([^)]*\)\s*)?(\w+)\s*\(([^)]*)\)')
_PARAMETER = re.compile(r"^(const\s+)?(\w+)\s*(\*?)\s*(const\s+)?(?:__restrict__\s+)?(\w+)$")


@dataclass(frozen=True)
class Parameter:
    name: str
    type: str
    is_pointer: bool
    is_const: bool

    def __str__(self) -> str:
        return f"{'const ' if self.is_const else ''}{self.type} {'*' if self.is_pointer else ''}{self.name}"


def signatures_of(source: str) -> dict[str, tuple[Parameter, ...]]:
    """Parameters of every kernel in the text of a .cu file, by the kernel's name.

    A kernel is `extern "C" __global__ void name(...)`, or a macro of that form that is applied by name or by
    FOR_EACH_STORAGE of kernels/device.cuh.

    Raises KernelError for a parameter that is neither `type name` nor `[const] type *[__restrict__] name`.
    """
    text = re.sub(r"\\\n", " ", _COMMENT.sub(" ", source))
    return {name: _parameters_of(name, parameters) for name, parameters in _KERNEL.findall(_expand(text))}


def _expand(text: str) -> str:
    macros = {name: ([word.strip() for word in words.split(",")], body) for name, words, body in _MACRO.findall(text)}
    makers = {name for name, (_, body) in macros.items() if "__global__" in body}
    makers |= {name for name, (_, body) in macros.items() if any(re.search(rf"\b{made}\(", body) for made in makers)}
    code, before = _DIRECTIVE.sub("", text), None
    while code != before:
        before = code
        code = _FOR_EACH.sub(lambda match: " ".join(f"{match[1]}({', '.join(words)})" for words in STORAGE_ARGUMENTS),
                             code)
        for name in makers:
            code = re.sub(rf"\b{name}\s*\(([^()]*)\)", partial(_applied, *macros[name]), code)
    return code


def _applied(words: list[str], body: str, use: re.Match) -> str:
    for word, argument in zip(words, use[1].split(","), strict=True):
        body = re.sub(rf"\b{word}\b", argument.strip(), body)
    return re.sub(r"\s*##\s*", "", body)


def _parameters_of(kernel: str, text: str) -> tuple[Parameter, ...]:
    written = [" ".join(word.split()) for word in text.split(",") if word.strip()]
    matches = [_PARAMETER.match(word) for word in written]
    for word, match in zip(written, matches, strict=True):
        if match is None:
            raise KernelError(f"kernel {kernel} has a parameter {word!r}, which is neither a number nor a pointer")
    return tuple(Parameter(match[5], match[2], bool(match[3]), bool(match[1])) for match in matches)


# Element types of pointers. torch holds unsigned integers wider than a byte as signed ones with the same bits.
TENSOR_DTYPES = {
    "float": torch.float32, "double": torch.float64, "__nv_bfloat16": torch.bfloat16, "__half": torch.float16,
    "uint8_t": torch.uint8, "int8_t": torch.int8, "uint16_t": torch.int16, "int16_t": torch.int16,
    "uint32_t": torch.int32, "int32_t": torch.int32, "int": torch.int32, "uint64_t": torch.int64,
    "int64_t": torch.int64,
}
SCALAR_TYPES: dict[str, Any] = {
    "float": np.float32, "double": np.float64, "int": np.int32, "int32_t": np.int32, "int64_t": np.int64,
    "uint8_t": np.uint8, "uint16_t": np.uint16, "uint32_t": np.uint32, "uint64_t": np.uint64,
}
BYTE_ORDER = "<" if sys.byteorder == "little" else ">"
_CODES = {"float": "f", "double": "d", "int": "i", "int32_t": "i", "int64_t": "q", "uint8_t": "B", "uint16_t": "H",
          "uint32_t": "I", "uint64_t": "Q"}      # format letters of struct
# The least and the largest number of each type.
_LIMITS = {kind: (np.iinfo(kind).min, np.iinfo(kind).max) if issubclass(kind, np.integer) else
           (-float(np.finfo(kind).max), float(np.finfo(kind).max)) for kind in SCALAR_TYPES.values()}


def argument_of(parameter: Parameter, argument, device_type: str) -> torch.Tensor | np.generic | None:
    """The argument as it is launched: the tensor itself, None for a null pointer, a NumPy scalar of the C type.

    Raises KernelError that says what was found; the caller puts the parameter's name before it.
    """
    if not parameter.is_pointer:
        return _number(parameter, argument)
    if argument is not None:
        _check_tensor(parameter, argument, device_type)
    return argument


class ArgumentList:
    """Parameters of one kernel: checks the given arguments, and packs them.

    The Python types of arguments are checked once per combination; a tensor's element type, layout and device, and a
    number's range, every time. `offset` says where the bytes of each parameter begin, aligned as its C type.
    """

    def __init__(self, name: str, parameters: tuple[Parameter, ...], device_type: str) -> None:
        self.name, self.parameters, self.device_type = name, parameters, device_type
        codes = ["Q" if one.is_pointer else _CODES.get(one.type, "Q") for one in parameters]
        self.offset = tuple(struct.calcsize("@" + "".join(codes[:k]) + "0" + codes[k]) for k in range(len(codes)))
        end = [0, *[place + struct.calcsize(code) for place, code in zip(self.offset, codes, strict=True)]]
        gaps = [f"{place - before}x" for place, before in zip(self.offset, end, strict=False)]
        self.pointers = tuple((place, TENSOR_DTYPES.get(one.type)) for place, one in enumerate(parameters)
                              if one.is_pointer)
        # In struct's native form a float out of range would become infinite.
        self.pack = struct.Struct(BYTE_ORDER + "".join(map(str.__add__, gaps, codes))).pack
        self._known_types: set[tuple[type, ...]] = set()
        self._known_devices: set[torch.device] = set()

    def packed(self, arguments: Sequence) -> tuple[bytes, torch.device | None]:
        """Bytes of all parameters, and the device of the tensors, None without any.

        Raises KernelError for a wrong number of arguments, or one of another type, out of range, not contiguous or on
        another device.
        """
        types = tuple(map(type, arguments))
        if types not in self._known_types:
            self.check(arguments)
            self._known_types.add(types)
        values = list(arguments)
        # The fast path: struct checks the numbers' ranges while it packs them.
        try:
            device = self.point(values, self.pointers, None)
            return self.pack(*values), device
        except (Unusual, struct.error, OverflowError):
            return self._packed_with_care(arguments)

    def point(self, values: list, places: Sequence[tuple[int, torch.dtype]], device: torch.device | None
              ) -> torch.device | None:
        """Replace tensors at `places` by addresses; return their device. Raises Unusual for what `check` refuses."""
        for place, dtype in places:
            tensor = values[place]
            if tensor is None:
                values[place] = 0
                continue
            if tensor.dtype is not dtype or not tensor.is_contiguous():
                raise Unusual
            if tensor.device != device:
                if device is not None or not self._is_usable(tensor.device):
                    raise Unusual
                device = tensor.device
            values[place] = tensor.data_ptr()
        return device

    def check(self, arguments: Sequence) -> list:
        if len(arguments) != len(self.parameters):
            raise KernelError(f"kernel {self.name} takes {len(self.parameters)} arguments, found {len(arguments)}")
        checked = [self._checked(*both) for both in zip(self.parameters, arguments, strict=True)]
        devices = {argument.device for argument in checked if isinstance(argument, torch.Tensor)}
        if len(devices) > 1:
            raise KernelError(f"kernel {self.name} was given tensors on {' and '.join(sorted(map(str, devices)))}")
        return checked

    def _packed_with_care(self, arguments: Sequence) -> tuple[bytes, torch.device | None]:
        values = self.check(arguments)
        device = self.point(values, self.pointers, None)
        return self.pack(*values), device

    def _checked(self, parameter: Parameter, argument):
        try:
            return argument_of(parameter, argument, self.device_type)
        except KernelError as wrong:
            raise KernelError(f"kernel {self.name} needs {parameter}, found {wrong}") from None

    def _is_usable(self, device: torch.device) -> bool:
        if device not in self._known_devices and device.type == self.device_type:
            self._known_devices.add(device)
        return device in self._known_devices


class Unusual(Exception):
    pass


def _check_tensor(parameter: Parameter, argument, device_type: str) -> None:
    if not isinstance(argument, torch.Tensor):
        raise KernelError(f"{type(argument).__name__}, which is no tensor")
    if argument.dtype != TENSOR_DTYPES.get(parameter.type):
        raise KernelError(f"a tensor of {argument.dtype}")
    if not argument.is_contiguous():
        raise KernelError(f"a tensor of strides {argument.stride()}, which is not contiguous")
    if argument.device.type != device_type:
        raise KernelError(f"a tensor on {argument.device}, while kernels run on {device_type}")


def _number(parameter: Parameter, argument) -> np.generic:
    kind = SCALAR_TYPES.get(parameter.type)
    if kind is None or isinstance(argument, torch.Tensor | np.ndarray) or argument is None:
        raise KernelError(type(argument).__name__)
    return _float(kind, argument) if issubclass(kind, np.floating) else _integer(kind, argument)


def _integer(kind: type[np.integer], argument) -> np.integer:
    try:
        number = operator.index(argument)
    except TypeError:
        raise KernelError(f"{argument!r}, which is no integer") from None
    least, most = _LIMITS[kind]
    if not least <= number <= most:
        raise KernelError(f"{number}, out of its range")
    return kind(number)


def _float(kind: type[np.floating], argument) -> np.floating:
    if not isinstance(argument, int | float | np.integer | np.floating):
        raise KernelError(f"{argument!r}, which is no number")
    if math.isfinite(argument) and abs(float(argument)) > _LIMITS[kind][1]:
        raise KernelError(f"{argument!r}, out of its range")
    return kind(argument)


KERNELS = Path(__file__).parent / "kernels"
FOLDER_VARIABLE = "HPCGNN_KERNEL_CACHE"


def machine_code(source: Path, is_exact: bool, capability: int) -> Path:
    """File of a .cu file's machine code, .cubin or .ptx in `cache_folder()`, compiled now if there is none.

    is_exact fuses no multiplication with an addition. If NVRTC does not know a `capability`, such as 90 for 9.0, the
    file is PTX, which the driver compiles. Ranks that compile it at the same time leave one complete file.

    Raises KernelError if NVRTC refuses the source, CUDA's headers are missing, or the folder can't be written.
    """
    from cupy.cuda import nvrtc

    known = nvrtc.getSupportedArchs()
    is_known = capability in known
    target = f"sm_{capability}" if is_known else f"compute_{max(one for one in known if one < capability)}"
    options = compile_options(is_exact, target)
    text = source.read_text()
    made_of = repr((text, _digest_of_includes(), options, nvrtc.getVersion()))
    name = f"{source.stem}-{hashlib.sha256(made_of.encode()).hexdigest()[:24]}.{'cubin' if is_known else 'ptx'}"
    kept = cache_folder() / name
    if not kept.exists():
        _write(kept, _compiled(nvrtc, source.name, text, (*options, f"-I{_headers()}"), is_known))
    return kept


def compile_options(is_exact: bool, target: str) -> tuple[str, ...]:
    """NVRTC's options for a kernel file and a target, such as sm_90; CUDA's headers follow."""
    return "-std=c++17", f"--gpu-architecture={target}", f"-I{KERNELS}", *(("--fmad=false",) if is_exact else ())


def cache_folder() -> Path:
    asked = os.environ.get(FOLDER_VARIABLE)
    user_cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(asked) if asked else Path(user_cache) / "hpcgnn" / "kernels"


def _compiled(nvrtc, name: str, text: str, options: tuple[str, ...], is_machine_code: bool) -> bytes:
    program = nvrtc.createProgram(text, name, (), ())
    try:
        nvrtc.compileProgram(program, options)
        return nvrtc.getCUBIN(program) if is_machine_code else nvrtc.getPTX(program)
    except nvrtc.NVRTCError as error:
        raise KernelError(f"NVRTC does not compile {name} ({error}):\n{nvrtc.getProgramLog(program)}") from None
    finally:
        nvrtc.destroyProgram(program)


def _headers() -> Path:
    import cupy
    from cuda.pathfinder import find_nvidia_header_directory

    places = find_nvidia_header_directory("cudart"), Path(cupy.cuda.get_cuda_path() or "/usr/local/cuda") / "include"
    found = next((Path(place) for place in places if place and (Path(place) / "cuda_fp16.h").is_file()), None)
    if found is None:
        raise KernelError("CUDA's headers, which kernels include, are not installed; run pip install 'hpcgnn[cuda13]', "
                          "or set CUDA_PATH to a CUDA that has them")
    return found


def _write(kept: Path, code: bytes) -> None:
    try:
        kept.parent.mkdir(parents=True, exist_ok=True)
        # Written in a temporary folder, which is removed in any case.
        with tempfile.TemporaryDirectory(dir=kept.parent, prefix=kept.stem) as folder:
            unfinished = Path(folder) / kept.name
            unfinished.write_bytes(code)
            os.replace(unfinished, kept)
    except OSError as reason:
        raise KernelError(f"can't keep compiled kernels in {kept.parent} ({reason.strerror}); set {FOLDER_VARIABLE} to "
                          "a folder that can be written") from None


@cache
def _digest_of_includes() -> str:
    texts = (path.read_bytes() for path in sorted(KERNELS.glob("*.cuh")))
    return hashlib.sha256(b"\0".join(texts)).hexdigest()


MAX_BLOCK_THREADS = 1024
MAX_GRID = (2**31 - 1, 65535, 65535)
STATIC_SHARED_BYTES = 48 << 10    # more has to be requested for each kernel
LATER = object()      # placeholder for a tensor that a bound kernel gets at each launch


@dataclass(slots=True, eq=False)
class Launch:
    """One checked start of a kernel: `packed` are the bytes of `arguments`, `device` is None without tensors."""

    kernel: Kernel
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared_bytes: int
    arguments: Sequence
    packed: bytes
    device: torch.device | None

    @property
    def source(self) -> Path:
        return self.kernel.source

    @property
    def name(self) -> str:
        return self.kernel.name

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        return self.kernel.parameters


class Backend(Protocol):
    device_type: str

    def launch(self, launch: Launch) -> None: ...

    def captured(self, actions: Sequence[Callable[[], object]]) -> Callable[[], object]: ...


class _Ready:
    def __init__(self, function, index: int, offset: tuple[int, ...], num_bytes: int) -> None:
        self.function, self.index, self.pointer = function, index, function.kernel.ptr
        self.bytes = bytearray(num_bytes)
        held = (ctypes.c_char * num_bytes).from_buffer(self.bytes)
        self._places = (ctypes.c_void_p * max(len(offset), 1))(*[ctypes.addressof(held) + one for one in offset])
        self.places = ctypes.addressof(self._places)


class CupyBackend:
    """Kernels on the GPU of torch's tensors, each file compiled once per device.

    cupy loads the kernels. Its binding of the driver starts the kernels, because cupy's own launch creates one object
    per argument.
    """

    device_type = "cuda"

    def __init__(self) -> None:
        self._modules: dict[tuple[Path, bool, int], Any] = {}
        self._ready: dict[tuple[Kernel, torch.device], _Ready] = {}
        self._is_packing = Lock()      # locks the buffer until the driver has read the arguments

    def launch(self, launch: Launch) -> None:
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
        runtime.setDevice(ready.index)      # even if set before: this makes the device's context current in this thread
        try:
            with self._is_packing:
                ready.bytes[:] = launch.packed
                cupy.cuda.driver.launchKernel(ready.pointer, *launch.grid, *launch.block, launch.shared_bytes, stream,
                                              ready.places, 0)
        finally:
            if before != ready.index:
                runtime.setDevice(before)

    def captured(self, actions: Sequence[Callable[[], object]]) -> Callable[[], object]:
        graph, computing, aside = torch.cuda.CUDAGraph(), torch.cuda.current_stream(), torch.cuda.Stream()
        aside.wait_stream(computing)
        with torch.cuda.stream(aside):
            graph.capture_begin(capture_error_mode="thread_local")
            try:
                for action in actions:
                    action()
            except BaseException:
                with suppress(RuntimeError):      # it would say only that something failed before
                    graph.capture_end()
                raise
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
    raw = getattr(torch._C, "_cuda_getCurrentRawStream", None)
    return torch.cuda.current_stream(device).cuda_stream if raw is None else raw(device)


_backend: Backend = CupyBackend()


@contextmanager
def use_backend(backend: Backend) -> Iterator[Backend]:
    global _backend
    before, _backend = _backend, backend
    try:
        yield backend
    finally:
        _backend = before


def captured(actions: Sequence[Callable[[], object]]) -> Callable[[], object]:
    """Go through the actions once without their effects, and return what then does their work on the device again."""
    return _backend.captured(actions)


class Tape:
    """Launches of a block, to be repeated on the same tensors without checks; see `recording`."""

    def __init__(self) -> None:
        self.actions: list[Callable[[], object]] = []
        self._all: Callable[[], object] | None = None

    def replay(self) -> None:
        """Launch everything again; a GPU makes it one CUDA graph the first time."""
        if self._all is None:
            self._all = captured(self.actions)
        self._all()


_tape: Tape | None = None


@contextmanager
def recording() -> Iterator[Tape]:
    """Record the block's launches on the tape that it gets."""
    global _tape
    before, _tape = _tape, Tape()
    try:
        yield _tape
    finally:
        _tape = before


def act(action: Callable[[], object]) -> None:
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
        packed, device = self.arguments_on(_backend.device_type).packed(arguments)
        grid, block = self._shape(grid, block)
        if 0 not in grid:
            _start(Launch(self, grid, block, operator.index(shared_bytes), arguments, packed, device))

    def bind(self, grid: Sequence[int], block: Sequence[int], *arguments, shared_bytes: int = 0) -> BoundKernel:
        shape = *self._shape(grid, block), operator.index(shared_bytes)
        return BoundKernel(self, _backend.device_type, shape, arguments)

    def arguments_on(self, device_type: str) -> ArgumentList:
        if device_type not in self._arguments_on:
            self._arguments_on[device_type] = ArgumentList(self.name, self.parameters, device_type)
        return self._arguments_on[device_type]

    def _shape(self, grid: Sequence[int], block: Sequence[int]) -> tuple[tuple[int, int, int], tuple[int, int, int]]:
        grid, block = self._extent("grid", grid, MAX_GRID), self._extent("block", block, (MAX_BLOCK_THREADS,) * 3)
        if math.prod(block) > MAX_BLOCK_THREADS or 0 in block:
            raise KernelError(f"kernel {self.name} needs blocks of 1 to {MAX_BLOCK_THREADS} threads, found {block}")
        return grid, block

    def _extent(self, what: str, sizes: Sequence[int], limits: tuple[int, ...]) -> tuple[int, int, int]:
        if len(sizes) == 1 and type(sizes[0]) is int and 0 <= sizes[0] <= limits[0]:      # as in nearly all calls
            return sizes[0], 1, 1
        extent = tuple([operator.index(size) for size in sizes]) + (1,) * (3 - len(sizes))
        if len(extent) != 3 or any(not 0 <= size <= limit for size, limit in zip(extent, limits, strict=True)):
            raise KernelError(f"kernel {self.name} was given a {what} of {tuple(sizes)}; at most {limits} is allowed")
        return extent


class BoundKernel:
    """A kernel with launches that differ only in some tensors: everything else is checked once."""

    def __init__(self, kernel: Kernel, device_type: str, shape: tuple, arguments: Sequence) -> None:
        listed = kernel.arguments_on(device_type)
        later = [place for place, argument in enumerate(arguments) if argument is LATER]
        self._kernel, self._list, self._shape, self._is_empty = kernel, listed, shape, 0 in shape[0]
        self._arguments = [None if argument is LATER else argument for argument in arguments]
        self._values = listed.check(self._arguments)
        self._device = listed.point(self._values, listed.pointers, None)
        self._later = [both for both in listed.pointers if both[0] in later]

    def __call__(self, *tensors: torch.Tensor | None) -> None:
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
        grid, block, shared_bytes = self._shape
        _start(Launch(self._kernel, grid, block, shared_bytes, arguments, self._list.pack(*values), device))


@cache
def _signatures(source: Path) -> dict[str, tuple[Parameter, ...]]:
    return signatures_of(source.read_text())


@cache
def kernel(file: str | Path, name: str, is_exact: bool = False) -> Kernel:
    """The kernel `name` of kernels/`file`.cu, or of the path `file`; KernelError if there is none.

    `is_exact` compiles the file without fusing multiplications with additions; a fused pair would round only once.
    """
    source = file if isinstance(file, Path) else KERNELS / f"{file}.cu"
    if not source.is_file():
        raise KernelError(f"there is no kernel file {source}")
    parameters = _signatures(source)
    if name not in parameters:
        raise KernelError(f"{source.name} has no kernel {name}; it has {', '.join(sorted(parameters))}")
    return Kernel(source, name, parameters[name], is_exact)
