"""EmulatedBackend: kernels compiled by the host's C++ compiler over emulation/cuda_emulation.h, run on the CPU.

Launched by the same Python with the same grid as on a device; what a device would do silently wrong is a fault.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path

import torch

from hpcgnn.ops.cuda.module import KERNELS, Launch, signatures_of

ROOT = Path(__file__).parents[2]
EMULATION = Path(__file__).parent / "emulation"
CACHE = Path(tempfile.gettempdir()) / f"hpcgnn-emulation-{os.getuid()}"
COMPILER = os.environ.get("CXX", "g++")
# -ffp-contract=off: as kernels are compiled for the device where their rounding matters.
FLAGS = ["-std=c++17", "-g1", "-fPIC", "-ffp-contract=off", "-fno-strict-aliasing", "-U_FORTIFY_SOURCE", "-Wall",
         "-Werror", "-Wno-unknown-pragmas"]    # unroll is the device's
# Hooks of memory.cpp and undefined.cpp. Their runtimes are not linked: the emulation answers.
# A vector that is loaded at once is not loaded part by part.
CHECKS = ["-O1", "-fno-tree-sra", "-fsanitize=thread,alignment,bounds,shift,signed-integer-overflow,"
          "integer-divide-by-zero,float-cast-overflow,return,unreachable"]


class EmulationFault(Exception):
    """A kernel did what is undefined on a device; the text names the kernel, its thread and the line."""


class _Dim3(ctypes.Structure):
    _fields_ = [("x", ctypes.c_uint), ("y", ctypes.c_uint), ("z", ctypes.c_uint)]


class _Extent(ctypes.Structure):
    _fields_ = [("name", ctypes.c_char_p), ("first", ctypes.c_size_t), ("end", ctypes.c_size_t),
                ("is_written", ctypes.c_int32)]


class Requests(ctypes.Structure):
    """Requests of warps, sectors of 32 bytes that they touch, and bytes that they ask for."""

    _fields_ = [("requests", ctypes.c_int64), ("sectors", ctypes.c_int64), ("bytes", ctypes.c_int64)]


class Turns(ctypes.Structure):
    """Requests of warps to shared memory, turns that they take at its banks, and turns without conflicts."""

    _fields_ = [("requests", ctypes.c_int64), ("turns", ctypes.c_int64), ("least_turns", ctypes.c_int64)]


class Traffic(ctypes.Structure):
    """What a launch's accesses would cost on a device; see emulation/traffic.cpp."""

    _fields_ = [("load", Requests), ("store", Requests), ("shared", Turns), ("touched_sectors", ctypes.c_int64),
                ("touched_bytes", ctypes.c_int64)]


class _Launch(ctypes.Structure):
    _fields_ = [("kernel", ctypes.c_char_p), ("grid", _Dim3), ("block", _Dim3), ("shared_bytes", ctypes.c_size_t),
                ("seed", ctypes.c_uint64), ("extents", ctypes.POINTER(_Extent)), ("num_extents", ctypes.c_int32),
                ("counts", ctypes.POINTER(Traffic))]


class _Fault(ctypes.Structure):
    _fields_ = [("text", ctypes.c_char * 1024), ("place", ctypes.c_size_t)]


class EmulatedBackend:
    """Runs launches at once, on the calling thread.

    Parameters
    ----------
    seed : int          order of blocks, and of warps in a block; 0 is ascending
    counts : bool       count what accesses would cost
    device_type : str   of the tensors; "cuda" for those of `separate_memory`

    Attributes
    ----------
    launches : list of (kernel's name, grid, block)
    traffic : list of (Launch, Traffic), where they are counted
    """

    def __init__(self, seed: int = 0, counts: bool = False, device_type: str = "cpu") -> None:
        self.seed, self._counts, self.device_type = seed, counts, device_type
        self.launches: list[tuple[str, tuple, tuple]] = []
        self.traffic: list[tuple[Launch, Traffic]] = []

    def launch(self, launch: Launch) -> None:
        """Run a kernel over its grid.

        Raises
        ------
        EmulationFault      an access outside of every argument or shared array, through a pointer to const, or not
                            ordered with another thread's; a divergent barrier or warp primitive; undefined arithmetic
        """
        self.launches.append((launch.name, launch.grid, launch.block))
        path = library_of(launch.source)
        entry = getattr(_loaded(path), f"emulate_{launch.name}")
        extents = _extents_of(launch)
        described = _Launch(launch.name.encode(), _Dim3(*launch.grid), _Dim3(*launch.block), launch.shared_bytes,
                            self.seed, extents, len(extents))
        if self._counts:
            self.traffic.append((launch, Traffic()))
            described.counts = ctypes.pointer(self.traffic[-1][1])
        values = ctypes.create_string_buffer(launch.packed, max(len(launch.packed), 1))
        offset = launch.kernel.arguments_on(self.device_type).offset
        pointers = (ctypes.c_void_p * max(len(offset), 1))(*[ctypes.addressof(values) + one for one in offset])
        fault = _Fault()
        if entry(ctypes.byref(described), pointers, ctypes.byref(fault)):
            raise EmulationFault(fault.text.decode() + _place_of(path, entry, launch, fault.place))

    def captured(self, actions):
        """Return what does the actions one after the other."""
        def replay():
            for action in actions:
                action()
        return replay


def _extents_of(launch: Launch) -> ctypes.Array:
    extents = [_Extent(p.name.encode(), a.data_ptr(), a.data_ptr() + a.numel() * a.itemsize, not p.is_const)
               for p, a in zip(launch.parameters, launch.arguments, strict=True) if isinstance(a, torch.Tensor)]
    return (_Extent * len(extents))(*extents)


@cache
def library_of(source: Path) -> Path:
    """The shared library of a .cu file, compiled where no earlier run has done so."""
    kernels = signatures_of(source.read_text())
    text = f'#include "{source}"\n' + "".join(f"EMULATED_KERNEL({name})\n" for name in kernels)
    drivers = [_object_of(driver) for driver in sorted(EMULATION.glob("*.cpp"))]
    includes = [f"-I{source.parent}", f"-I{KERNELS}", f"-I{EMULATION}"]
    entries = compiled(f"{source.stem}.o", text, [*FLAGS, *CHECKS, "-DHPCGNN_EMULATED", *includes],
                        [source, *source.parent.glob("*.cuh")])
    library = entries.with_suffix(".so")
    if not library.exists():
        build(library, ["-shared", str(entries), *map(str, drivers)])
    return library


@cache
def _object_of(driver: Path) -> Path:
    return compiled(f"{driver.stem}.o", driver.read_text(), [*FLAGS, "-O2", f"-I{EMULATION}"], [])


def compiled(name: str, text: str, flags: list[str], read: list[Path]) -> Path:
    """The object file of a C++ text, named by all that it depends on; another checkout's with the same is taken."""
    headers = sorted({*EMULATION.glob("*.h"), *KERNELS.glob("*.cuh"), *read})
    seen = hashlib.sha256(repr((COMPILER, flags, text)).replace(str(ROOT), "").encode())
    for header in headers:
        seen.update(header.read_bytes())
    result = CACHE / f"{seen.hexdigest()[:24]}-{name}"
    if not result.exists():
        CACHE.mkdir(exist_ok=True)
        build(result, ["-c", "-x", "c++", "-", *flags], text)
    return result


def build(result: Path, arguments: list[str], text: str = "") -> None:
    """Compile to a name of this process, then rename: two processes may build the same file."""
    unfinished = result.with_suffix(f".{os.getpid()}{result.suffix}")
    done = subprocess.run([COMPILER, *arguments, "-o", str(unfinished)], input=text, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{COMPILER} refused {result.name}:\n{done.stderr}")
    unfinished.rename(result)


@cache
def _loaded(path: Path) -> ctypes.PyDLL:
    return ctypes.PyDLL(str(path))


def _place_of(library: Path, entry, launch: Launch, place: int) -> str:
    """The line in a .cu or .cuh file that an address of machine code comes from."""
    if not place or not shutil.which("addr2line"):
        return f" ({launch.source.name})"
    symbols = subprocess.run(["nm", "-D", str(library)], capture_output=True, text=True).stdout
    offset = next(int(line.split()[0], 16) for line in symbols.splitlines() if line.endswith(f" emulate_{launch.name}"))
    base = ctypes.cast(entry, ctypes.c_void_p).value - offset
    # The address is that of the return; the call before it is what the line belongs to.
    found = subprocess.run(["addr2line", "-i", "-e", str(library), hex(place - base - 1)], capture_output=True,
                           text=True).stdout.split()
    lines = [Path(line).name for line in found if ".cu" in line]
    return f" ({', from '.join(lines) or launch.source.name})"
