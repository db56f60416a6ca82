"""`Chip` describes the GPU of `hpcgnn bench --device cuda`; `check_device` says whether there is one."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch

from hpcgnn.errors import ConfigError

CUPY_PROJECTS = ("cupy-cuda13x", "cupy-cuda12x", "cupy-cuda11x", "cupy")    # one package, one name per CUDA release


@dataclass(frozen=True)
class Chip:
    name: str
    capability: tuple[int, int]    # (int, int), compute capability
    num_processors: int            # streaming multiprocessors
    memory_bytes: int
    l2_bytes: int

    @classmethod
    def current(cls) -> Chip:
        found = torch.cuda.get_device_properties(torch.cuda.current_device())
        return cls(found.name, (found.major, found.minor), found.multi_processor_count, found.total_memory,
                   getattr(found, "L2_cache_size", 0))

    def describe(self) -> dict[str, Any]:
        return {"chip": {**asdict(self), "driver": driver_version()},
                "cuda": {"torch": torch.version.cuda, "cupy": cupy_version()}}


def check_device() -> None:
    """Raise ConfigError, with what is missing, where kernels can't run on a device."""
    if not torch.cuda.is_available():
        raise ConfigError(f"--device cuda needs a GPU with CUDA, and torch {torch.__version__} finds none; "
                          "run it on a machine that has one, or leave --device out")
    if importlib.util.find_spec("cupy") is None:
        raise ConfigError("--device cuda needs cupy, which compiles the kernels; run pip install 'hpcgnn[cuda13]'")


def driver_version() -> str | None:
    if shutil.which("nvidia-smi") is None:
        return None
    found = subprocess.run(["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"], capture_output=True,
                           text=True)
    return found.stdout.splitlines()[0].strip() if found.returncode == 0 and found.stdout.strip() else None


def cupy_version() -> str | None:
    return next(filter(None, map(_version_of, CUPY_PROJECTS)), None)


def _version_of(project: str) -> str | None:
    try:
        return version(project)
    except PackageNotFoundError:
        return None
