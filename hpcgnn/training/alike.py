"""Check that all ranks compute alike: each holds all weights, which stay equal only where every rank rounds alike."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from mpi4py import MPI

import hpcgnn
from hpcgnn.errors import CollectiveError
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


def _require_one(name: str, values: list[str], remedy: str) -> None:
    if len(set(values)) > 1:
        raise CollectiveError(f"{name} differs between the ranks, {listed(values)}, and their copies of the weights "
                              f"would drift apart; {remedy}")


def _rank_in(levels: Iterable[str]):
    """Return the key that sorts levels as they are listed, unknown ones first."""
    order = {level: number for number, level in enumerate(levels)}
    return lambda level: order.get(level, -1)
