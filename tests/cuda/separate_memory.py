"""A device with a memory of its own, without a GPU: what torch and the launchers do there is checked as on one.

`SeparateTensor` says that it lies on cuda:0 and wraps a tensor of the host, which holds its values. An operation that
meets tensors of both memories fails as torch's do, and so does `.numpy()`; so does a kernel that gets a tensor of the
host. `separate_memory` makes torch's factories, `.to("cuda")`, streams and `hpcgnn.run.launch.choose_device` use it.

Kernels but those of messages compute nothing by default (NullBackend), so that a whole command takes a second: memory
begins as zeros, and what kernels should have written stays zero. With EmulatedBackend(device_type="cuda") values are
the device's.

For example rows.index_copy_(0, torch.tensor([1]), other), where rows and other lie on the device, raises RuntimeError:
the index lies on the host.
"""

from __future__ import annotations

import ctypes
import gc
import importlib.util
import sys
from collections import Counter
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from cuda.emulation import EmulatedBackend, build, compiled
from stand_in_device import StandInDevice
from torch.utils._python_dispatch import TorchDispatchMode

import hpcgnn
from hpcgnn.ops import streams
from hpcgnn.ops.cuda.module import use_backend

HOST, DEVICE = torch.device("cpu"), torch.device("cuda", 0)
ROOM = str(Path(hpcgnn.__file__).parent)
aten = torch.ops.aten
FIND_SPEC = importlib.util.find_spec
MESSAGES = ("quantization", "rotation")
GUARD = Path(__file__).with_name("separate_memory.cpp")
CROSSING = {aten.copy_.default, aten._to_copy.default}      # between memories
INDEXED = {aten.index.Tensor, aten.index_put_.default, aten.index_put.default, aten._index_put_impl_.default,
           aten._unsafe_index.Tensor}      # take indices of the host: torch copies them, while everything waits
# Operations that read a number from the device to know how large their result is.
COUNTING = {aten.nonzero.default, aten.masked_select.default, aten._unique2.default, aten.unique_dim.default,
            aten.unique_consecutive.default, aten.repeat_interleave.Tensor, aten.bincount.default}
PINNING = {aten._pin_memory.default, aten.is_pinned.default}
MAKING = {aten.empty.memory_format, aten.empty_strided.default, aten.new_empty.default, aten.empty_like.default,
          aten.new_empty_strided.default}
VIEWING = {aten._unsafe_view.default, aten.detach_.default, aten.resize_.default, aten.set_.source_Storage,
           aten.lift_fresh.default}
FILLING = {aten.full.default, aten.zeros.default, aten.ones.default}
# Sums of floats on CUDA whose order changes from run to run, where a place is added to twice. index_put_ sorts before.
UNORDERED = {aten.index_add_.default, aten.index_add.default, aten.scatter_add_.default, aten.scatter_add.default,
             aten.scatter_reduce_.two, aten.scatter_reduce.two, aten.index_reduce_.default, aten.bincount.default}
# What torch computes on CUDA alone.
INSTEAD = {aten.mm.dtype: lambda left, right, dtype: (left.float() @ right.float()).to(dtype)}


class SeparateTensor(torch.Tensor):
    """A tensor on cuda:0 whose values lie in `inner`, on the host."""

    @staticmethod
    def __new__(cls, inner):
        made = torch.Tensor._make_wrapper_subclass(
            cls, inner.shape, strides=inner.stride(), storage_offset=inner.storage_offset(), dtype=inner.dtype,
            device=DEVICE)
        made.inner = inner
        return made

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, function, types, arguments=(), options=None):
        return run(function, arguments, options or {})

    def data_ptr(self):
        return self.inner.data_ptr()

    @property
    def data(self):
        return self.detach()

    @data.setter
    def data(self, other):
        torch.Tensor.data.__set__(self, other)
        self.inner = other.inner

    def untyped_storage(self):
        return self.inner.untyped_storage()

    def numpy(self, *, force=False):
        if not force:
            raise TypeError("can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu() to copy the tensor to "
                            "host memory first.")
        return self.detach().cpu().numpy()

    def as_subclass(self, cls):
        return SeparateTensor.__new__(type(cls.__name__, (cls, SeparateTensor), {}), self.inner)

    def tolist(self):
        return self.cpu().tolist()

    def record_stream(self, stream):
        pass

    def __deepcopy__(self, memo):
        made = SeparateTensor(self.inner.clone()).requires_grad_(self.requires_grad)
        return torch.nn.Parameter(made, self.requires_grad) if isinstance(self, torch.nn.Parameter) else made

    def __repr__(self):
        return f"SeparateTensor({self.inner})"

    # By these torch knows that Module.to must swap the tensors that parameters hold.
    def __tensor_flatten__(self):
        return ["inner"], None

    @staticmethod
    def __tensor_unflatten__(parts, context, size, stride):
        return SeparateTensor(parts["inner"])


@dataclass
class Device:
    """What happened in a block of `separate_memory`.

    Attributes
    ----------
    waits : Counter of (file:line of hpcgnn/, operation)      that have the host wait for the device
    operations : Counter, likewise                            of torch that start a kernel or a copy on the device
    unordered : Counter, likewise                             sums of floats in an order that differs from run to run
    launches : list of str                                    names of kernels
    """

    waits: Counter = field(default_factory=Counter)
    operations: Counter = field(default_factory=Counter)
    unordered: Counter = field(default_factory=Counter)
    streams: StandInDevice = field(default_factory=StandInDevice)
    backend: object = None
    is_zeroed: bool = True
    graph: CapturedGraph | None = None      # that is being captured


_device = Device()


class _Mode(TorchDispatchMode):
    """Sees every operation, those that make tensors among them."""

    _mode_key = torch._C._TorchDispatchModeKey.FAKE      # so torch does not start CUDA before it makes a tensor there

    def __torch_dispatch__(self, function, types, arguments=(), options=None):
        options = options or {}
        if types or function in PINNING or options.keys() & {"device", "pin_memory"}:
            return run(function, arguments, options)
        return INSTEAD.get(function, function)(*arguments, **options)      # all on the host: most of a run's operations


def tensors_in(value):
    """The tensors of an operation's arguments."""
    if isinstance(value, torch.Tensor):
        return [value]
    inside = value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else ()
    return [tensor for one in inside for tensor in tensors_in(one)]


def with_tensors(change, value):
    """Arguments or a result with `change(tensor)` in the place of each tensor."""
    if isinstance(value, torch.Tensor):
        return change(value)
    if isinstance(value, dict):
        return {name: with_tensors(change, one) for name, one in value.items()}
    if isinstance(value, (list, tuple)):
        return (list if isinstance(value, list) else tuple)(with_tensors(change, one) for one in value)
    return value


def run(function, arguments, options):
    """Compute an operation of torch on the inner tensors, once their places are right."""
    tensors = tensors_in((arguments, options))
    here = [one for one in tensors if isinstance(one, SeparateTensor)]
    named = options.get("device")
    is_made_here = named is not None and torch.device(named).type == "cuda"
    check_places(function, arguments, tensors, here)
    if _device.graph is not None and function in CROSSING and len(here) < len(tensors):
        raise RuntimeError("operation not permitted when stream is capturing")
    note(function, arguments, options, here)
    if (here or is_made_here) and starts(function, arguments):
        _device.operations[_place(), function.name()] += 1
    inner = {**options, "device": HOST} if named is not None else dict(options)
    inner.pop("pin_memory", None)
    if function is aten._pin_memory.default:
        return arguments[0]
    if function is aten.is_pinned.default:
        return False
    result = INSTEAD.get(function, function)(*with_tensors(_inner, arguments), **with_tensors(_inner, inner))
    if _device.graph is not None:
        _device.graph.note(function, with_tensors(_inner, arguments), with_tensors(_inner, inner), result)
    if function is aten.copy_.default:
        return arguments[0]
    if not (is_made_here or (here and named is None)):
        return result
    if function in MAKING and _device.is_zeroed:
        result.zero_()
    known = {id(one.inner): one for one in here}
    return with_tensors(lambda one: known.get(id(one)) if id(one) in known else SeparateTensor(one), result)


def check_places(function, arguments, tensors, here):
    """Raise what torch raises where an operation is given tensors of both memories."""
    if not here or len(here) == len(tensors) or function in CROSSING:
        return
    is_elementwise = (torch.Tag.pointwise in function.tags or "_foreach_" in function.name()
                      or function in (aten.fill_.Tensor, aten.masked_fill.Tensor, aten.masked_fill_.Tensor))
    strangers = [one for one in tensors if not isinstance(one, SeparateTensor)]
    if function in INDEXED:
        values = [arguments[0], *arguments[2:3]]
        strangers = [one for one in values if isinstance(one, torch.Tensor) and not isinstance(one, SeparateTensor)]
        is_elementwise = True
    for one in strangers:
        if not (one.dim() == 0 and is_elementwise):
            raise RuntimeError(f"Expected all tensors to be on the same device, but found at least two devices, cuda:0 "
                               f"and cpu! ({function} of {[(tuple(one.shape), one.device) for one in tensors]})")


def note(function, arguments, options, here):
    """Count what has the host wait, and sums without an order."""
    if not here:
        return
    if function is aten.copy_.default:
        is_wait = not isinstance(arguments[0], SeparateTensor) and not (len(arguments) > 2 and arguments[2])
    elif function is aten._to_copy.default:
        named = options.get("device")
        is_wait = named is not None and torch.device(named).type == "cpu"
    elif function in INDEXED:
        indices = [one for one in arguments[1] if isinstance(one, torch.Tensor)]
        is_wait = any(one.dtype in (torch.bool, torch.uint8) or not isinstance(one, SeparateTensor) for one in indices)
    else:
        is_wait = function is aten._local_scalar_dense.default or function in COUNTING or function is aten.equal.default
    if is_wait and _device.graph is not None:
        raise RuntimeError("operation not permitted when stream is capturing")
    if is_wait:
        _device.waits[_place(), function.name()] += 1
    is_sum = function in UNORDERED and adds_twice(function, arguments)
    if is_sum and arguments[0].is_floating_point():
        _device.unordered[_place(), function.name()] += 1


def starts(function, arguments):
    """Whether an operation starts a kernel or a copy: views, new memory and work without values start none."""
    if function in MAKING or function.is_view or function in VIEWING:
        return False
    first = tensors_in(arguments[:1])
    size = tuple(arguments[0]) if function in FILLING else (max(map(torch.Tensor.numel, first)),) if first else (1,)
    return 0 not in size


def adds_twice(function, arguments):
    """Whether an operation of UNORDERED adds to some place more than once."""
    index = _inner(arguments[0 if function is aten.bincount.default else 2])
    return bool((torch.bincount(index.reshape(-1)) > 1).any()) if index.dim() == 1 else True


def _place():
    """The innermost line of hpcgnn/ that is running."""
    frame = sys._getframe(1)
    while frame is not None and not frame.f_code.co_filename.startswith(ROOM):
        frame = frame.f_back
    return "elsewhere" if frame is None else f"{frame.f_code.co_filename[len(ROOM) + 1:]}:{frame.f_lineno}"


def _inner(one):
    return one.inner if isinstance(one, SeparateTensor) else one


class NullBackend:
    """Starts nothing but the kernels of messages, by which ranks tell each other what they must agree on. What a kernel
    is given has been checked against its signature before.
    """

    device_type = "cuda"

    def __init__(self):
        self.launches = []
        self._messages = EmulatedBackend(device_type="cuda")

    def launch(self, launch):
        self.launches.append((launch.name, launch.grid, launch.block))
        if launch.source.stem in MESSAGES:
            self._messages.launch(launch)

    def captured(self, actions):
        def replay():
            for action in actions:
                action()
        return replay


class CapturedGraph:
    """What a step does on the device, in order, with the arguments that it had when it was captured."""

    def __init__(self):
        self._work = []

    def note(self, function, arguments, options, result):
        """An operation of torch; those that only name memory are in a graph by their addresses."""
        if function in MAKING or function in VIEWING or function.is_view:
            return

        def again():
            for there, value in zip(tensors_in(result), tensors_in(function(*arguments, **options)), strict=True):
                if there is not value:
                    there.copy_(value)

        self._work.append(again)

    def note_launch(self, start):
        self._work.append(start)

    def replay(self):
        for again in self._work:
            again()


class CapturingBackend(EmulatedBackend):
    """Captures as CUDA does: memory is afterwards as it was before, and a replay reads and writes the same addresses.

    What the host must not do meanwhile raises CUDA's errors: wait, copy between memories, join a stream that is not in
    the capture, or leave one unjoined.
    """

    def __init__(self):
        super().__init__(device_type="cuda")
        self.graphs = []

    def launch(self, launch):
        super().launch(launch)
        if _device.graph is not None:
            _device.graph.note_launch(lambda: super(CapturingBackend, self).launch(launch))

    def captured(self, actions):
        before = {one.untyped_storage().data_ptr(): one.untyped_storage() for one in gc.get_objects()
                  if issubclass(type(one), SeparateTensor)}
        kept = [(storage, storage.clone()) for storage in before.values()]
        _device.graph = _device.streams.capture = CapturedGraph()
        try:
            for action in actions:
                action()
            if any(one.capture is not None for one in (_device.streams.message, _device.streams.central)):
                raise RuntimeError("capturing stream has unjoined work")
            self.graphs.append(_device.graph)
        finally:
            _device.graph = _device.streams.capture = None
            for storage, values in kept:
                storage.copy_(values)
        return self.graphs[-1].replay


class _Event:
    def __init__(self, **options):
        pass

    def record(self, stream=None):
        pass

    def synchronize(self):
        pass

    def query(self):
        return True

    def elapsed_time(self, other):
        return 1.0


class _InferenceMode(torch._C._InferenceMode):
    """Torch's, but leaving it off does not give backward threads of its own: the engine has none for this device."""

    def __enter__(self):
        super().__enter__()
        torch._C._set_multithreading_enabled(False)


@cache
def _torch_without_cuda():
    """What lets the autograd of a torch without CUDA meet tensors on cuda."""
    root = Path(torch.__file__).parent
    made = compiled("separate_memory.o", f"// torch {torch.__version__}\n{GUARD.read_text()}",
                    ["-std=c++20", "-fPIC", f"-I{root}/include"], [])
    library = made.with_suffix(".so")
    if not library.exists():
        build(library, ["-shared", str(made), f"-L{root}/lib", "-lc10", "-ltorch_cpu"])
    return ctypes.CDLL(str(library))


@contextmanager
def separate_memory(backend=None):
    """Let torch have the device in the block; yields the Device that notes what happens."""
    global _device
    library = _torch_without_cuda()
    before, _device = _device, Device(backend=backend or NullBackend(), is_zeroed=backend is None)
    properties = SimpleNamespace(name="Stand-in 9000", major=9, minor=0, multi_processor_count=2,
                                 total_memory=1 << 30, L2_cache_size=1 << 20)
    with pytest.MonkeyPatch.context() as patch, ExitStack() as stack:
        for name, value in {"device_count": lambda: 1, "is_available": lambda: True, "current_device": lambda: 0,
                            "set_device": lambda device: None, "synchronize": lambda device=None: None,
                            "max_memory_allocated": lambda device=None: 1 << 20, "empty_cache": lambda: None,
                            "mem_get_info": lambda device=None: (1 << 28, 1 << 30), "Event": _Event,
                            "get_device_capability": lambda device=None: (9, 0),
                            "get_device_properties": lambda device=None: properties}.items():
            patch.setattr(torch.cuda, name, value)
        patch.setattr(torch._C, "_InferenceMode", _InferenceMode)
        patch.setattr(torch.nn.Module, "to", _module_to)
        patch.setattr(torch.backends.cuda, "is_built", lambda: True)
        patch.setattr("importlib.util.find_spec", _find_spec)
        patch.setattr(streams, "_of_device",
                      lambda device: streams.HOST_STREAMS if device.type == "cpu" else _device.streams)
        lifted = torch._C._only_lift_cpu_tensors()
        torch._C._set_only_lift_cpu_tensors(True)
        stack.callback(torch._C._set_only_lift_cpu_tensors, lifted)
        library.begin_device()
        stack.callback(library.end_device)
        # Without it `Module.cpu()` gives a parameter other data, which a wrapper can't have.
        stack.callback(torch.__future__.set_overwrite_module_params_on_conversion,
                       torch.__future__.get_overwrite_module_params_on_conversion())
        torch.__future__.set_overwrite_module_params_on_conversion(True)
        stack.enter_context(torch.autograd.set_multithreading_enabled(False))
        stack.enter_context(use_backend(_device.backend))
        stack.enter_context(_Mode())
        try:
            yield _device
        finally:
            _device = before


def _module_to(module, *arguments, to=torch.nn.Module.to, **options):
    """Torch's, which swaps no tensor that a graph of an earlier pass still names; a GPU's has nothing to swap."""
    gc.collect()
    return to(module, *arguments, **options)


def _find_spec(name, package=None):
    return FIND_SPEC("json" if name == "cupy" else name, package)
