"""Check that all ranks compute alike: each holds all weights, which stay equal only where every rank rounds alike."""

from __future__ import annotations

import os
import platform
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import torch
from mpi4py import MPI

import hpcgnn
from hpcgnn.errors import CollectiveError
from hpcgnn.launch import words_of_all
from hpcgnn.ops.host.simd import LEVELS, simd_level
from hpcgnn.output import tell
from hpcgnn.training.same_settings import listed

# torch's levels, the least first, with the names by which its variable and oneDNN's know them.
CAPABILITIES = {"DEFAULT": ("default", "SSE41"), "AVX2": ("avx2", "AVX2"), "AVX512": ("avx512", "AVX512_CORE")}


@dataclass(frozen=True)
class Traits:
    """Hold what decides how a rank rounds, and how many threads it has.

    Attributes
    ----------
    version, torch_version : str
    simd : str                 level of hpcgnn's kernels
    capability : str           level of torch's
    num_threads : int          of torch's pool
    products : str             precision of torch's products of float32
    """

    version: str
    torch_version: str
    simd: str
    capability: str
    num_threads: int
    products: str = "highest"

    @classmethod
    def of_this_rank(cls) -> Traits:
        """Read this rank's traits; raise KernelError where HPCGNN_SIMD names an unknown level."""
        return cls(hpcgnn.__version__, torch.__version__, simd_level(), torch.backends.cpu.get_cpu_capability(),
                   torch.get_num_threads(), torch.get_float32_matmul_precision())


def check_alike(comm: MPI.Comm, traits: Traits) -> None:
    """Collective: refuse ranks whose copies of the weights would drift apart, and say once where threads differ.

    Raises
    ------
    CollectiveError      versions or instruction sets differ, with the ranks, the values and the remedy
    """
    if not comm.allreduce(int(comm.bcast(traits) != traits), MPI.MAX):
        return
    everyone = comm.allgather(traits)
    _require_one("hpcgnn's version", [one.version for one in everyone], "install the same one for all ranks")
    _require_one("torch's version", [one.torch_version for one in everyone], "install the same one for all ranks")
    levels = [one.simd for one in everyone]
    _require_one("the kernels' instruction set", levels,
                 f"set HPCGNN_SIMD={min(levels, key=_rank_in(LEVELS))} for all ranks")
    capabilities = [one.capability for one in everyone]
    torch_name, onednn_name = CAPABILITIES.get(min(capabilities, key=_rank_in(CAPABILITIES)), ("default", "SSE41"))
    _require_one("torch's instruction set", capabilities, f"set ATEN_CPU_CAPABILITY={torch_name} and "
                 f"ONEDNN_MAX_CPU_ISA={onednn_name} for all ranks")
    _require_one("torch's precision of float32 products", [one.products for one in everyone],
                 "call torch.set_float32_matmul_precision alike on all ranks")
    threads = [one.num_threads for one in everyone]
    if len(set(threads)) > 1 and comm.rank == 0:
        tell(f"hpcgnn: ranks have different numbers of threads, {listed(threads)}; results are the same, but the "
              "slowest sets the pace (OMP_NUM_THREADS sets it)")


def say_if_bound(comm: MPI.Comm) -> None:
    """Collective: say where the ranks of a node are bound to one core each, and most of its cores stay idle, as Open
    MPI's mpirun binds one or two ranks.
    """
    own = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set()
    # By name: under srun, an MPI may take each rank of a node for a node of its own.
    node = comm.Split(zlib.crc32(platform.node().encode()) >> 1)
    used, num_ranks = set().union(*node.allgather(own)), node.size
    node.Free()
    there = cores_of_this_job()
    is_bound = len(own) == 1 and 2 * len(used) <= there
    word = (f"all ranks of {platform.node()} ({num_ranks}) compute on {len(used)} of its {there} cores, bound to one "
            "each, which is slow; mpirun --bind-to none or srun --cpus-per-task gives them more") if is_bound else None
    words = words_of_all(comm, word)
    if comm.rank == 0 and words:
        tell(f"hpcgnn: {next(filter(None, words))}")


def cores_of_this_job() -> int:
    """Return the cores of this machine that the job may use: Slurm's word, that of a container, or all."""
    text = os.environ.get("SLURM_CPUS_ON_NODE", "")
    if text.isdecimal():
        return int(text)
    try:
        ranges = Path("/sys/fs/cgroup/cpuset.cpus.effective").read_text(encoding="utf-8").strip().split(",")
        ends = [(part.split("-") * 2)[:2] for part in ranges]
        return sum(int(last) - int(first) + 1 for first, last in ends)
    except (OSError, ValueError):
        return os.cpu_count() or 1


def _require_one(name: str, values: list[str], remedy: str) -> None:
    if len(set(values)) > 1:
        raise CollectiveError(f"{name} differs between the ranks, {listed(values)}, and their copies of the weights "
                              f"would drift apart; {remedy}")


def _rank_in(levels: Iterable[str]):
    """Return the key that sorts levels as they are listed, unknown ones first."""
    order = {level: number for number, level in enumerate(levels)}
    return lambda level: order.get(level, -1)
