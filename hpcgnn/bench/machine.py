"""Describes the machine on which a benchmark ran: processor, cores, load, versions, commit."""

from __future__ import annotations

import os
import platform
import sys
from datetime import datetime, timezone
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import hpcgnn
from hpcgnn.bench.environment import allocator_name, available_cores, find_tcmalloc
from hpcgnn.ops.simd import simd_level
from hpcgnn.training.environment import commit, processor_name

PACKAGES = ("numpy", "torch", "scipy", "dgl", "torch-geometric", "mpi4py", "pymetis")
HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")


def describe_machine(num_threads: int) -> dict[str, Any]:
    return {
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"), "command": ["hpcgnn", *sys.argv[1:]],
        "processor": processor_name(), "cores": available_cores(), "threads": num_threads, "simd": simd_level(),
        "load_average": list(os.getloadavg()), "system": platform.platform(), "python": platform.python_version(),
        "huge_pages": HUGE_PAGES.read_text().strip() if HUGE_PAGES.exists() else "none",
        "allocator": allocator_name(), "has_tcmalloc": find_tcmalloc() is not None,
        "commit": commit(),
        "versions": {"hpcgnn": hpcgnn.__version__, **{name: found for name in PACKAGES if (found := version_of(name))}},
    }


def version_of(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
