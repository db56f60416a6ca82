"""CUDA C++ to machine code by NVRTC; what was compiled once stays on disk.

cupy's RawModule compiles with -ftz=true, and puts it behind whatever its caller asks for (cupy, issue 9576): subnormal
numbers are zeros then, and the bytes of a message are not the host's. So NVRTC is called here, by cupy's bindings, and
subnormal numbers stay what they are.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from functools import cache
from pathlib import Path

from hpcgnn.errors import KernelError

KERNELS = Path(__file__).parent / "kernels"
FOLDER_VARIABLE = "HPCGNN_KERNEL_CACHE"


def machine_code(source: Path, is_exact: bool, capability: int) -> Path:
    """Return the file of a source's machine code, compiled now where there is none.

    Parameters
    ----------
    source : Path           of a .cu file; it includes files of KERNELS and of CUDA
    is_exact : bool         no multiplication is fused with an addition
    capability : int        of the chip, 90 for 9.0; one that NVRTC does not know gets PTX, which the driver compiles

    Returns
    -------
    Path      .cubin or .ptx in `cache_folder()`; ranks that compile it at once leave one whole file

    Raises
    ------
    KernelError      NVRTC refuses the source, CUDA's headers are missing, or the folder can't be written
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
    """Return options that NVRTC compiles a kernel file with for a target, such as sm_90; CUDA's headers come behind."""
    return "-std=c++17", f"--gpu-architecture={target}", f"-I{KERNELS}", *(("--fmad=false",) if is_exact else ())


def cache_folder() -> Path:
    """Return the folder that HPCGNN_KERNEL_CACHE names, or hpcgnn/kernels in the user's cache."""
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
    """Return the folder that has cuda_fp16.h: of NVIDIA's wheels, of conda, or of a CUDA that is installed."""
    import cupy
    from cuda.pathfinder import find_nvidia_header_directory

    places = find_nvidia_header_directory("cudart"), Path(cupy.cuda.get_cuda_path() or "/usr/local/cuda") / "include"
    found = next((Path(place) for place in places if place and (Path(place) / "cuda_fp16.h").is_file()), None)
    if found is None:
        raise KernelError("CUDA's headers are not installed, which kernels include; run pip install 'hpcgnn[cuda13]', "
                          "or set CUDA_PATH to a CUDA that has them")
    return found


def _write(kept: Path, code: bytes) -> None:
    try:
        kept.parent.mkdir(parents=True, exist_ok=True)
        # In a folder of its own, which goes whatever happens to what is written there.
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
