"""Ranks that compute alike: checks of versions and settings before training, and equal draws in every step.

Each rank holds a full copy of the weights. The copies stay equal only if every rank rounds alike, so ranks with other
versions or instruction sets are refused.

To compare settings cheaply, rank 0 broadcasts a checksum of its own. Only if some rank's checksum differs are all
settings gathered, and the error names the settings, the values and the ranks. A model, loss or optimizer from a user's
program is compared by its class or name, its printed form and the floats in it (initial weights are floats). Integers
outside the printed form are ignored, because a program may store its rank there.

In each step the random generators of torch, NumPy and Python have the same state on all ranks, too: a model that skips
a whole layer, or masks columns, draws from one. The state is a function of seed, epoch and step, like all other draws,
so a resumed run continues with the same draws. A user's own draws before and after a step are not disturbed.
"""

from __future__ import annotations

import functools
import hashlib
import os
import platform
import random
import re
import types
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from mpi4py import MPI
from torch import nn

import hpcgnn
from hpcgnn.errors import CollectiveError
from hpcgnn.ops.simd import LEVELS, simd_level
from hpcgnn.run.launch import words_of_all
from hpcgnn.run.output import ranks_text, tell
from hpcgnn.run.process import usable_cores
from hpcgnn.training.own_loss import values_read_by

# torch's levels, the lowest first, with their names in torch's and oneDNN's variables.
CAPABILITIES = {"DEFAULT": ("default", "SSE41"), "AVX2": ("avx2", "AVX2"), "AVX512": ("avx512", "AVX512_CORE")}


@dataclass(frozen=True)
class Traits:
    """A rank's versions and instruction sets, which decide how it rounds, and its number of threads."""

    version: str
    torch_version: str
    simd: str      # level of hpcgnn's kernels
    capability: str      # level of torch's kernels
    num_threads: int
    products: str = "highest"      # precision of torch's float32 products

    @classmethod
    def of_this_rank(cls) -> Traits:
        """Read this rank's traits; raises KernelError if HPCGNN_SIMD names an unknown level."""
        return cls(hpcgnn.__version__, torch.__version__, simd_level(), torch.backends.cpu.get_cpu_capability(),
                   torch.get_num_threads(), torch.get_float32_matmul_precision())


def check_alike(comm: MPI.Comm, traits: Traits) -> None:
    """Collective: refuse ranks with weights that would drift apart (CollectiveError); say if thread counts differ."""
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
    """Collective: say so if MPI binds each rank of a node to one core while most cores stay idle.

    Open MPI's mpirun does this with one or two ranks.
    """
    own = usable_cores()
    # Compared by name: under srun, an MPI may take each rank of a node for a separate node.
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
    """Number of cores that this job may use: from Slurm, else from the container, else all."""
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
    order = {level: number for number, level in enumerate(levels)}
    return lambda level: order.get(level, -1)


MAX_SETTINGS = 3          # settings that a sentence names
MAX_VALUE = 60            # characters of a value in a sentence
MAX_DEPTH = 6
MOST_NUMBERS = 4096       # a tensor of at most this size is a setting, such as class weights; a larger one is data


def check_same(comm: MPI.Comm, given: Mapping[str, Any], whose: str = "") -> None:
    """Collective: check that all ranks were given the same values, compared as text; CollectiveError lists differences.

    `whose` is a prefix of the names in the error, such as "the program's ".
    """
    texts = {name: f"{value}" for name, value in given.items()}
    checksum = zlib.crc32(repr(sorted(texts.items())).encode(errors="surrogatepass"))
    if not comm.allreduce(int(comm.bcast(checksum) != checksum), MPI.MAX):
        return
    everyone = comm.allgather(texts)
    names = [name for name in dict.fromkeys(name for each in everyone for name in each)
             if len({each.get(name) for each in everyone}) > 1]
    found = "; ".join(f"{whose}{name} is {listed(_shown([each.get(name) for each in everyone]))}"
                      for name in names[:MAX_SETTINGS])
    more = f"; and {len(names) - MAX_SETTINGS} more" if len(names) > MAX_SETTINGS else ""
    raise CollectiveError(f"settings differ between the ranks: {found}{more}; give all ranks the same; if a "
                          "program draws them, draw on rank 0 and hand them out with comm.bcast")


def listed(values: list) -> str:
    """Each distinct value with the ranks that have it."""
    ranks: dict = {}
    for rank, value in enumerate(values):
        ranks.setdefault(value, []).append(rank)
    return " and ".join(f"{value} on {ranks_text(having)}" for value, having in ranks.items())


def _shown(texts: list[str | None]) -> list[str]:
    """Texts for the error; of long texts, such as models, only the place where they start to differ."""
    whole = ["not given" if text is None else " ".join(text.split()) for text in texts]
    if max(map(len, whole)) <= MAX_VALUE:
        return whole
    alike = next((place for place, letters in enumerate(zip(*whole, strict=False)) if len(set(letters)) > 1),
                 min(map(len, whole)))
    begin = max(0, alike - MAX_VALUE // 2)
    return [("..." if begin else "") + text[begin:begin + MAX_VALUE] + ("..." if text[begin + MAX_VALUE:] else "")
            for text in whole]


def description_of(value: Any, depth: int = MAX_DEPTH) -> str:
    """Text that describes a value from a program, without the parts that may differ between ranks."""
    if isinstance(value, float):
        return repr(value)
    if value is None or isinstance(value, (bool, int, str, bytes)) or depth == 0:
        return ""
    if isinstance(value, type):
        return value.__qualname__
    if hasattr(value, "named_modules"):
        # All ranks take a model's weights and buffers from rank 0; buffers of a loss without weights are settings.
        buffers = [] if any(True for _ in value.parameters()) else [*value.buffers()]
        held = [_floats_in(module, depth) for _, module in value.named_modules()]
        printed = re.sub(r" at 0x[0-9a-f]+", "", repr(value))
        return " ".join(filter(None, [printed, *held, description_of(buffers, depth)]))
    if hasattr(value, "numel") and hasattr(value, "detach"):
        is_small = value.numel() <= MOST_NUMBERS and value.device.type != "meta"
        return f"tensor of {value.dtype}" + (f" {value.detach().cpu().flatten().tolist()}" if is_small else "")
    if isinstance(value, functools.partial):
        bound = ", ".join([*(_whole(item, depth) for item in value.args),
                           *(f"{name}={_whole(item, depth)}" for name, item in value.keywords.items())])
        return f"{description_of(value.func, depth - 1)}({bound})"
    if isinstance(value, (list, tuple)):
        return ", ".join(filter(None, (description_of(item, depth - 1) for item in value)))
    if isinstance(value, Mapping):
        return ", ".join(f"{name}={text}" for name, text in (
            (name, description_of(item, depth - 1)) for name, item in value.items()) if text)
    if isinstance(value, types.MethodType):
        return value.__qualname__
    if isinstance(value, types.FunctionType):
        return _of_function(value, depth)
    if not hasattr(value, "__dict__"):
        return f"{getattr(value, '__qualname__', type(value).__qualname__)}"
    if type(value).__module__.startswith("hpcgnn.training."):      # a loss or a score, which wraps the program's
        return description_of(vars(value), depth)
    # A callable's floats are settings; floats of other objects, such as a graph or a clock, may be a rank's own.
    return f"{type(value).__qualname__} {_floats_in(value, depth) if callable(value) else ''}".rstrip()


def _whole(value: Any, depth: int) -> str:
    return repr(value) if isinstance(value, (bool, int, float, str)) else description_of(value, depth - 1)


def _floats_in(owner: Any, depth: int) -> str:
    held = {name: item for name, item in vars(owner).items() if name not in ("_modules", "_parameters", "_buffers")}
    return description_of({name: item for name, item in held.items() if isinstance(item, (float, list, tuple))}, depth)


def _of_function(function: types.FunctionType, depth: int) -> str:
    """Name of a function, and the floats, functions and tensors that it reads, also from its closure."""
    closed, read, defaults = values_read_by(function)
    bound = [*closed, *(value for value in read if isinstance(value, float)), *defaults]
    name = "" if function.__module__.startswith("hpcgnn.") else function.__qualname__
    return " ".join(filter(None, [name, description_of(bound, depth - 1)]))


# Found once per model, in its first pass.
_HELD: WeakKeyDictionary[nn.Module, list] = WeakKeyDictionary()


@contextmanager
def alike_draws(model: nn.Module, *key: int) -> Iterator[None]:
    """Within the block, the global generators and those in the model's modules follow `key`: seed, epoch and step."""
    if type(model).__module__.startswith("hpcgnn.nn."):      # hpcgnn's models don't draw from generators
        yield
        return
    seed = int.from_bytes(hashlib.blake2b(repr(key).encode(), digest_size=4).digest(), "little")
    if model not in _HELD:
        _HELD[model] = _held_by(model)
    for generator in _HELD[model]:
        _set(generator, seed)
    python, numpy = random.getstate(), np.random.get_state()  # noqa: NPY002
    with ExitStack() as stack:
        stack.callback(random.setstate, python)
        stack.callback(np.random.set_state, numpy)
        for generator in _of_torch():
            stack.callback(generator.set_state, generator.get_state())
            generator.manual_seed(seed)
        random.seed(seed)
        np.random.seed(seed)  # noqa: NPY002
        yield


def _of_torch() -> list[torch.Generator]:
    return [torch.default_generator, *(torch.cuda.default_generators if torch.cuda.is_initialized() else ())]


def _held_by(model: nn.Module) -> list:
    kinds = torch.Generator, np.random.Generator, np.random.RandomState, random.Random
    return [value for module in model.modules() for value in vars(module).values() if isinstance(value, kinds)]


def _set(generator: torch.Generator | np.random.Generator | np.random.RandomState | random.Random, seed: int) -> None:
    if isinstance(generator, torch.Generator):
        generator.manual_seed(seed)
    elif isinstance(generator, np.random.Generator):
        generator.bit_generator.state = type(generator.bit_generator)(seed).state
    else:
        generator.seed(seed)
