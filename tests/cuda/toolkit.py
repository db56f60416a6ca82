"""NVIDIA's compilers without a GPU: NVRTC, by which the program compiles its kernels too, and ptxas, which says what
they need. Both come from wheels of the extra `toolkit`.
"""

from __future__ import annotations

import ctypes
import hashlib
import importlib.util
import json
import re
import subprocess
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path

from cuda.emulation import CACHE

from hpcgnn.ops.cuda.module import KERNELS

# Of a multiprocessor: registers, bytes of shared memory for blocks and what each of these costs more, threads, blocks.
LIMITS = {80: (65536, 164 << 10, 1 << 10, 2048, 32), 90: (65536, 228 << 10, 1 << 10, 2048, 32),
          100: (65536, 228 << 10, 1 << 10, 2048, 32)}
REGISTERS_A_WARP = 256      # registers are given to a warp in multiples of it
WARP = 32


@dataclass(frozen=True)
class Needs:
    """What a kernel needs on a device: registers a thread, bytes that are spilled, bytes of static shared memory."""

    registers: int
    spilled: int
    shared_bytes: int

    def occupancy(self, architecture: int, threads: int, dynamic_bytes: int = 0) -> float:
        """Return warps that a multiprocessor can hold of blocks of so many threads, by the most that it can hold."""
        registers, shared, more, most_threads, most_blocks = LIMITS[architecture]
        warps = -(-threads // WARP)
        of_warp = -(-self.registers * WARP // REGISTERS_A_WARP) * REGISTERS_A_WARP
        blocks = min(registers // of_warp // warps, shared // (self.shared_bytes + dynamic_bytes + more),
                     most_threads // threads, most_blocks)
        return blocks * warps / (most_threads // WARP)


def _part(package: str, pattern: str) -> Path | None:
    found = importlib.util.find_spec("nvidia")
    places = [] if found is None else [Path(place) / package for place in found.submodule_search_locations or []]
    return next((path for place in places for path in sorted(place.glob(pattern))), None)


@cache
def parts() -> tuple[Path, Path, Path] | None:
    """(NVRTC, ptxas, folder of headers), or None where one of them is not installed."""
    found = (_part("cuda_nvrtc", "lib/libnvrtc.so.*"), _part("cuda_nvcc", "bin/ptxas"),
             _part("cuda_runtime", "include/cuda_fp16.h"))
    return None if None in found else (found[0], found[1], found[2].parent)


def needs_of(source: Path, architecture: int) -> dict[str, Needs]:
    """Compile a .cu file as the program does, optimized: what each kernel needs, by its name.

    Raises
    ------
    RuntimeError      the compiler refused it, or warned
    """
    nvrtc, ptxas, headers = parts()
    seen = hashlib.sha256(repr((nvrtc.name, architecture, nvrtc.stat().st_size)).encode())
    for read in [source, *sorted(KERNELS.glob("*.cuh")), Path(__file__)]:
        seen.update(read.read_bytes())
    kept = CACHE / f"{seen.hexdigest()[:24]}-{source.stem}-{architecture}.json"    # of an earlier run
    if not kept.exists():
        CACHE.mkdir(exist_ok=True)
        text = _assembled(ptxas, _compiled(nvrtc, headers, source, architecture), architecture)
        unfinished = kept.with_suffix(f".{id(text)}")
        unfinished.write_text(json.dumps({name: asdict(needs) for name, needs in _parsed(text).items()}))
        unfinished.rename(kept)
    return {name: Needs(**needs) for name, needs in json.loads(kept.read_text()).items()}


def _compiled(nvrtc: Path, headers: Path, source: Path, architecture: int) -> bytes:
    library, program = ctypes.CDLL(str(nvrtc)), ctypes.c_void_p()
    library.nvrtcCreateProgram(ctypes.byref(program), source.read_bytes(), source.name.encode(), 0, None, None)
    options = [f"--gpu-architecture=compute_{architecture}", "-std=c++17", "--fmad=false", f"-I{KERNELS}",
               f"-I{headers}"]
    status = library.nvrtcCompileProgram(program, len(options),
                                         (ctypes.c_char_p * len(options))(*(one.encode() for one in options)))
    log = _text(library.nvrtcGetProgramLogSize, library.nvrtcGetProgramLog, program)
    if status or log.strip(b"\0\n "):
        raise RuntimeError(f"NVRTC has a word on {source.name} for sm_{architecture}:\n{log.decode()}")
    return _text(library.nvrtcGetPTXSize, library.nvrtcGetPTX, program)


def _text(size_of, get, program: ctypes.c_void_p) -> bytes:
    size = ctypes.c_size_t()
    size_of(program, ctypes.byref(size))
    text = ctypes.create_string_buffer(size.value)
    get(program, text)
    return text.value


def _assembled(ptxas: Path, ptx: bytes, architecture: int) -> str:
    # Wheels lose the mode of what they bring; the loader runs it all the same.
    command = [str(ptxas)] if ptxas.stat().st_mode & 0o100 else ["/lib64/ld-linux-x86-64.so.2", str(ptxas)]
    done = subprocess.run([*command, "-v", f"-arch=sm_{architecture}", "-", "-o", "/dev/null"], input=ptx,
                          capture_output=True)
    if done.returncode:
        raise RuntimeError(f"ptxas refused it for sm_{architecture}:\n{done.stderr.decode()}")
    return done.stderr.decode()


def _parsed(text: str) -> dict[str, Needs]:
    found = {}
    for part in text.split("Compiling entry function '")[1:]:
        spilled, = re.findall(r"(\d+) bytes spill stores", part)[:1] or ["0"]
        shared = re.findall(r"(\d+) bytes smem", part)
        registers, = re.findall(r"Used (\d+) registers", part)[:1]
        found[part.split("'")[0]] = Needs(int(registers), int(spilled), int(shared[0]) if shared else 0)
    return found
