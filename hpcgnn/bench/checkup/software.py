"""torch, the GPU, the optional packages, and the disk that run folders lie on."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path

from hpcgnn.bench.checkup.finding import Finding

DRIVER = Path("/proc/driver/nvidia/version")
NOT_FOR_USERS = {"docs", "test", "mpi", "mpich", "cuda12", "cuda13"}
LITTLE_SPACE = 1 << 30      # bytes, of which a run of a large graph writes several


def gpu_findings() -> Iterator[Finding]:
    """Tell torch and the GPUs that it sees, the driver, and cupy, which compiles the kernels. Imports torch."""
    import torch

    built = f"for CUDA {torch.version.cuda}" if torch.version.cuda else "without CUDA"
    yield Finding("torch", f"{torch.__version__}, built {built}")
    number = torch.cuda.device_count() if torch.backends.cuda.is_built() else 0
    driver = re.search(r"Kernel Module\D*([\d.]+)", DRIVER.read_text()) if DRIVER.exists() else None
    names = ", ".join(torch.cuda.get_device_name(index) for index in range(number))
    cupy = f"cupy {version_of('cupy-cuda13x') or version_of('cupy-cuda12x') or version_of('cupy')}" if \
        importlib.util.find_spec("cupy") else "no cupy"
    seen = f"{names or 'none'}; driver {driver[1] if driver else 'none'}; {cupy}"
    yield Finding("GPU", seen, gpu_remedy(driver is not None, torch.version.cuda, number, cupy != "no cupy"))


def gpu_remedy(has_driver: bool, cuda: str | None, number: int, has_cupy: bool) -> str:
    """Return what is missing before --device cuda works, "" where nothing is, or where there is no GPU to use."""
    if not has_driver and number == 0:
        return ""
    if cuda is None:
        return "a driver is there, but this torch has no CUDA: install torch with CUDA (HPCGNN_TORCH), or stay on cpu"
    if number == 0:
        return "a driver is there, but torch sees no GPU: look at CUDA_VISIBLE_DEVICES and at the job's request"
    return "" if has_cupy else f"for --device cuda run pip install 'hpcgnn[cuda{cuda.partition('.')[0]}]'"


def version_of(package: str) -> str | None:
    """Return the version of an installed package, None where it is not there."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def extra_findings() -> Iterator[Finding]:
    """Tell which optional packages are there, and how the others are installed."""
    wanted: dict[str, list[str]] = {}
    for line in requires("hpcgnn") or []:
        found = re.match(r"([\w.-]+).*extra == [\"']([\w-]+)[\"']", line)
        if found and found[2] not in NOT_FOR_USERS:
            wanted.setdefault(found[2], []).append(found[1])
    missing = [extra for extra, packages in wanted.items() if any(version_of(one) is None for one in packages)]
    present = ", ".join(extra for extra in wanted if extra not in missing) or "none"
    hint = f"; for the others run pip install 'hpcgnn[{','.join(missing)}]'" if missing else ""
    yield Finding("extras", f"{present}{hint}")


def disk_findings(folder: Path) -> Iterator[Finding]:
    """Tell the file system of the folder that runs lie in, its free space, and whether runs can be locked in it.

    Parameters
    ----------
    folder : Path      the run folders' own; the nearest that exists is looked at
    """
    while not folder.is_dir():
        folder = folder.parent
    kind, free = file_system_of(folder.resolve()), shutil.disk_usage(folder).free
    seen = f"{folder.resolve()}: {kind}, {free / 1e9:.1f} GB free"
    if not os.access(folder, os.W_OK):
        yield Finding("disk", seen, "this folder can't be written; give a folder of yours by --out")
    elif free < LITTLE_SPACE:
        yield Finding("disk", seen, "it is nearly full; give --out another place")
    elif not has_links(folder):
        yield Finding("disk", f"{seen}, no hard links", "a run folder's lock then rests on a weaker rule: start no "
                                                        "two runs in one folder, or give --out on another file system")
    else:
        yield Finding("disk", f"{seen}, runs can be locked")


def has_links(folder: Path) -> bool:
    """Tell whether files in a folder that can be written may have a second name, which a run's lock is made by."""
    with tempfile.TemporaryDirectory(dir=folder, prefix=".hpcgnn-doctor-") as here:
        Path(here, "one").touch()
        try:
            os.link(Path(here, "one"), Path(here, "two"))
        except OSError:
            return False
    return True


def file_system_of(folder: Path) -> str:
    """Return the kind of the file system that a folder lies on, as the system calls it, such as ext4 or lustre."""
    table = Path("/proc/mounts")
    lines = [line.split() for line in table.read_text().splitlines()] if table.exists() else []
    points = {words[1]: words[2] for words in lines if folder.is_relative_to(words[1])}
    return points[max(points, key=len)] if points else "unknown"
