"""What a launch sends to cupy, recorded by a stand-in for it: source, options, stream, grid, block and arguments."""

from __future__ import annotations

import ctypes
import subprocess
import sys
import types
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from cuda.conftest import HAS_GPU
from fork_server import served
from parallel_run import clean_environment
from torch._subclasses import FakeTensor, FakeTensorMode

import hpcgnn.ops.cuda.quantization as device_side
from hpcgnn.errors import KernelError
from hpcgnn.ops.counter import FORWARD, CounterKey
from hpcgnn.ops.cuda import module
from hpcgnn.ops.cuda.module import KERNELS, LATER, SCALAR_TYPES, CupyBackend, kernel, signatures_of, use_backend
from hpcgnn.ops.quantization import MessageLayout

STREAM, DEVICE, ELSEWHERE = 0xabc0, 3, 1
PRIMITIVES = Path(__file__).parent / "primitives.cu"


class CpuMemory(CupyBackend):
    """The backend that is tested, given tensors that every machine can make."""

    device_type = "cpu"


class Entered:
    """A device of cupy's, which is entered again and again."""

    compute_capability = "90"

    def __init__(self, inside, what):
        self.inside, self.what = inside, what

    def __enter__(self):
        self.inside.append(self.what)
        return self

    def __exit__(self, *_):
        self.inside.remove(self.what)


class StandIn(types.ModuleType):
    """The part of cupy that the backend uses; keeps what it was told."""

    def __init__(self):
        super().__init__("cupy")
        self.modules, self.functions, self.calls, self.inside, self.current = [], [], [], [], ELSEWHERE
        self.cuda = types.SimpleNamespace(
            Device=lambda index: Entered(self.inside, ("device", index)),
            runtime=types.SimpleNamespace(getDevice=lambda: self.current, setDevice=self._set_device),
            driver=types.SimpleNamespace(launchKernel=self._launch))

    def _set_device(self, index):
        self.current = index

    def RawModule(self, path):
        assert ("device", DEVICE) in self.inside
        self.modules.append(path)
        return types.SimpleNamespace(get_function=self._function)

    def _function(self, name):
        self.functions.append(Function(name, len(self.functions) + 1))
        return self.functions[-1]

    def _launch(self, function, *shape_and_stream):
        """As cuLaunchKernel: it has read the arguments, whose addresses it gets, when it returns."""
        x, y, z, threads_x, threads_y, threads_z, shared_mem, stream, places, extra = shape_and_stream
        started = self.functions[function - 1]
        assert extra == 0
        self.calls.append(types.SimpleNamespace(
            name=started.name, grid=(x, y, z), block=(threads_x, threads_y, threads_z), shared_mem=shared_mem,
            limit=started.max_dynamic_shared_size_bytes, device=self.current, stream=stream,
            arguments=read_arguments(places, all_parameters()[started.name])))


@cache
def all_parameters():
    return {name: one for source in (*KERNELS.glob("*.cu"), PRIMITIVES)
            for name, one in signatures_of(source.read_text()).items()}


def read_arguments(places, parameters):
    """The numbers at the addresses that lie at `places`, one a parameter."""
    addresses = (ctypes.c_void_p * len(parameters)).from_address(places)
    kinds = [np.uint64 if one.is_pointer else SCALAR_TYPES[one.type] for one in parameters]
    return [np.frombuffer(ctypes.string_at(place, np.dtype(kind).itemsize), kind)[0]
            for place, kind in zip(addresses, kinds, strict=True)]


class Function:
    """A compiled kernel, with the limit that may be set on it, and what the driver calls it."""

    max_dynamic_shared_size_bytes = None

    def __init__(self, name, pointer):
        self.name, self.kernel = name, types.SimpleNamespace(ptr=pointer)


@pytest.fixture
def cupy(monkeypatch):
    """The stand-in, in place of cupy, and a device 3 with a stream of its own."""
    stand_in = StandIn()
    monkeypatch.setitem(sys.modules, "cupy", stand_in)
    monkeypatch.setattr(module, "machine_code",
                        lambda source, is_exact, capability: Path(f"{source.stem} {is_exact} {capability}"))
    monkeypatch.setattr(torch.cuda, "current_device", lambda: DEVICE)
    monkeypatch.setattr(module, "current_stream", lambda device: STREAM if device == DEVICE else None)
    with use_backend(CpuMemory()):
        yield stand_in


def sent(call, source):
    """Arguments by the parameter's name."""
    parameters = signatures_of(source.read_text())[call.name]
    return {parameter.name: argument.item() for parameter, argument in zip(parameters, call.arguments, strict=True)}


def message_of(dtype, dim, num_rows):
    layout = MessageLayout.build(np.tile([1, 2, 4, 8, 16, 32], num_rows)[:num_rows], dim)
    rows, index = torch.zeros(9, dim, dtype=dtype), np.arange(num_rows, dtype=np.int32) % 9
    return layout, rows, index, np.arange(num_rows, dtype=np.int64), torch.zeros(layout.num_bytes, dtype=torch.uint8)


@pytest.mark.parametrize("dtype, suffix", [(torch.float32, "f32"), (torch.bfloat16, "bf16"), (torch.float16, "f16")])
@pytest.mark.parametrize("is_nearest, name, blocks, width", [(False, "quantize", 2, 8),
                                                             (True, "quantize_nearest", 3, 16)])
def test_quantizing_sends_rows_message_and_key(cupy, dtype, suffix, is_nearest, name, blocks, width):
    """40 rows of 41 columns: six groups share 8 lanes, so a block of 256 threads takes 32 rows; or 16 lanes and 16."""
    layout, rows, index, node_id, message = message_of(dtype, 41, 40)
    key = CounterKey(2**32 - 1, 7, FORWARD, 2)
    first_bad = torch.zeros(1, dtype=torch.int32)
    device_side.start_quantizing(rows, index, node_id, layout, key, message, is_nearest, first_bad)
    call, = cupy.calls
    assert (call.name, call.grid, call.block, call.shared_mem) == (f"{name}_{suffix}", (blocks, 1, 1), (256, 1, 1), 0)
    assert sent(call, KERNELS / "quantization.cu") == {
        "rows": rows.data_ptr(), "row_index": index.ctypes.data, "node_id": node_id.ctypes.data,
        "bit_width": layout.bit_width.ctypes.data, "payload_offset": layout.payload_offset.ctypes.data,
        "parameter_offset": layout.parameter_offset.ctypes.data, "num_rows": 40, "dim": 41, "width": width,
        "seed": 2**32 - 1, "epoch": 7, "stream": key.stream, "message": message.data_ptr(),
        "first_bad": first_bad.data_ptr()}


def test_launches_run_on_the_current_stream_of_the_device(cupy):
    layout, rows, index, node_id, message = message_of(torch.float32, 8, 6)
    device_side.dequantize_rows(message, index, node_id, layout, rows, False)
    assert (cupy.calls[0].device, cupy.calls[0].stream) == (DEVICE, STREAM)
    assert cupy.inside == [] and cupy.current == ELSEWHERE      # the caller's device is what it was


def test_a_file_is_compiled_once_and_where_it_asks_without_fused_products(cupy):
    layout, rows, index, node_id, message = message_of(torch.float32, 8, 6)
    for _ in range(2):
        device_side.dequantize_rows(message, index, node_id, layout, rows, False)
    ints = torch.zeros(64, dtype=torch.int32)
    kernel(PRIMITIVES, "transpose")((1,), (32,), ints, ints)
    assert cupy.modules == ["quantization True 90", "primitives False 90"]


def test_absent_tensors_are_null_and_much_shared_memory_is_asked_for(cupy):
    launch = kernel(PRIMITIVES, "reverse")
    launch((3,), (64,), None, torch.zeros(192, dtype=torch.int32), shared_bytes=48 << 10)
    launch((3,), (64,), None, torch.zeros(192, dtype=torch.int32), shared_bytes=(48 << 10) + 4)
    assert sent(cupy.calls[0], PRIMITIVES)["in"] == 0
    assert [(call.shared_mem, call.limit) for call in cupy.calls] == [(49152, None), (49156, 49156)]


@pytest.mark.skipif(HAS_GPU, reason="torch would look for the devices that are not there")
def test_tensors_of_two_devices_are_refused(cupy):
    mode, nothing = FakeTensorMode(), torch.empty(64, dtype=torch.int32, device="meta")
    # Tensors of devices that are not there.
    first, second, host = (FakeTensor(mode, nothing, torch.device(name)) for name in ("cuda:0", "cuda:1", "cpu"))
    with use_backend(CupyBackend()):
        launch = kernel(PRIMITIVES, "transpose")
        with pytest.raises(KernelError, match="kernel transpose was given tensors on cuda:0 and cuda:1"):
            launch((1,), (32,), first, second)
        with pytest.raises(KernelError, match=r"transpose needs int \*out, found a tensor on cpu"):
            launch((1,), (32,), first, host)
    assert cupy.calls == []


def test_a_bound_kernel_sends_what_a_call_sends_and_new_tensors_each_time(cupy):
    call = kernel(PRIMITIVES, "reverse")
    first, second, out = (torch.zeros(64, dtype=torch.int32) for _ in range(3))
    bound = call.bind((2,), (32,), LATER, out, shared_bytes=128)
    for numbers in (first, second, None):
        bound(numbers)
        call((2,), (32,), numbers, out, shared_bytes=128)
        assert sent(cupy.calls[-2], PRIMITIVES) == sent(cupy.calls[-1], PRIMITIVES)
        assert cupy.calls[-2].grid == cupy.calls[-1].grid and cupy.calls[-2].shared_mem == 128
    assert [sent(one, PRIMITIVES)["in"] for one in cupy.calls[::2]] == [first.data_ptr(), second.data_ptr(), 0]
    call.bind((0,), (32,), LATER, out)(first)      # no blocks: nothing is started
    assert len(cupy.calls) == 6


@pytest.mark.parametrize("wrong, says", [
    (torch.zeros(64), "a tensor of torch.float32"), (torch.zeros(8, 8, dtype=torch.int32).T, "not contiguous"),
    (torch.empty(64, dtype=torch.int32, device="meta"), "a tensor on meta"), (np.zeros(64, np.int32), "no tensor"),
    (3, "int, which is no tensor")])
def test_a_bound_kernel_refuses_the_tensors_that_a_call_refuses(cupy, wrong, says):
    right = torch.zeros(64, dtype=torch.int32)
    call = kernel(PRIMITIVES, "reverse")
    bound = call.bind((2,), (32,), LATER, right)
    for _ in range(2):      # a refusal is not remembered as a pass
        bound(right)
        call((2,), (32,), right, right)
        for start in (bound, lambda numbers: call((2,), (32,), numbers, right)):
            with pytest.raises(KernelError, match=f"kernel reverse needs const int .in, found .*{says}"):
                start(wrong)
    with pytest.raises(KernelError, match="takes 2 arguments, found 1"):
        call.bind((2,), (32,), LATER)
    with pytest.raises(KernelError, match=r"needs int .out, found a tensor of torch.float32"):
        call.bind((2,), (32,), LATER, torch.zeros(64))


def test_cupy_is_not_imported_before_the_first_launch():
    code = ("import sys, hpcgnn.ops.cuda.quantization as q; from hpcgnn.ops.cuda.module import kernel; "
            "kernel('quantization', 'dequantize_f32'); assert 'cupy' not in sys.modules")
    assert subprocess.run(served(["-c", code]), env=clean_environment()).returncode == 0


def test_what_was_recorded_is_launched_again_on_the_same_tensors(emulated):
    numbers, out = torch.arange(64, dtype=torch.int32), torch.zeros(64, dtype=torch.int32)
    with module.recording() as tape:
        kernel(PRIMITIVES, "reverse")((2,), (32,), numbers, out, shared_bytes=128)
        module.act(lambda: out.add_(1))
    kernel(PRIMITIVES, "reverse")((2,), (32,), numbers, out, shared_bytes=128)      # is no part of it
    assert len(tape.actions) == 2
    numbers += 100
    tape.replay()
    assert torch.equal(out, (torch.arange(100, 164, dtype=torch.int32).view(2, 32).flip(1) + 1).flatten())
    assert [name for name, *_ in emulated.launches] == ["reverse"] * 3
