"""Same settings: ranks that were given different ones are refused before they exchange anything that depends on them.

Each rank lists what it was given as texts by name. Rank 0's checksum goes to all; only where one differs, all lists are
gathered, and the sentence names the settings, the values and the ranks. What a program brings, a model, a loss or an
optimizer, is listed by its class or name, its printed form and the floats that it holds, since these are what a program
draws. Whole numbers that are no part of a model's printed form are left out: a rank may keep its own number.
"""

from __future__ import annotations

import functools
import re
import types
import zlib
from collections.abc import Mapping
from typing import Any

from mpi4py import MPI

from hpcgnn.errors import CollectiveError

MAX_LISTED = 8
MAX_SETTINGS = 3          # that a sentence names
MAX_VALUE = 60            # characters of a value in a sentence
MAX_DEPTH = 6
MOST_NUMBERS = 4096       # of a tensor that is a setting, such as weights of classes, and no data


def check_same(comm: MPI.Comm, given: Mapping[str, Any], whose: str = "") -> None:
    """Collective: check that all ranks were given the same.

    Parameters
    ----------
    given : mapping of str      names to values, which are compared as texts
    whose : str                 what the names are of, before each in the sentence

    Raises
    ------
    CollectiveError             names what differs, with the values and their ranks
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
    raise CollectiveError(f"settings differ between the ranks: {found}{more}; give all ranks the same, and where a "
                          "program draws them, draw on rank 0 and hand them out with comm.bcast")


def listed(values: list) -> str:
    """Return every value with the ranks that have it."""
    ranks: dict = {}
    for rank, value in enumerate(values):
        ranks.setdefault(value, []).append(rank)
    return " and ".join(f"{value} on {_named(having)}" for value, having in ranks.items())


def _named(ranks: list[int]) -> str:
    listed = ", ".join(map(str, ranks[:MAX_LISTED]))
    more = f" and {len(ranks) - MAX_LISTED} more" if len(ranks) > MAX_LISTED else ""
    return f"rank{'s' if len(ranks) > 1 else ''} {listed}{more}"


def _shown(texts: list[str | None]) -> list[str]:
    """Return texts for a sentence: of long ones, such as two models, the place where they begin to differ."""
    whole = ["not given" if text is None else " ".join(text.split()) for text in texts]
    if max(map(len, whole)) <= MAX_VALUE:
        return whole
    alike = next((place for place, letters in enumerate(zip(*whole, strict=False)) if len(set(letters)) > 1),
                 min(map(len, whole)))
    begin = max(0, alike - MAX_VALUE // 2)
    return [("..." if begin else "") + text[begin:begin + MAX_VALUE] + ("..." if text[begin + MAX_VALUE:] else "")
            for text in whole]


def description_of(value: Any, depth: int = MAX_DEPTH) -> str:
    """Describe what a program brings, without anything that two ranks of one program may have differently."""
    if isinstance(value, float):
        return repr(value)
    if value is None or isinstance(value, (bool, int, str, bytes)) or depth == 0:
        return ""
    if hasattr(value, "named_modules") and not isinstance(value, type):
        # Weights and buffers of a model are rank 0's on all ranks; those of a loss without weights are its settings.
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
    if isinstance(value, type) or not hasattr(value, "__dict__"):
        return f"{getattr(value, '__qualname__', type(value).__qualname__)}"
    if type(value).__module__.startswith("hpcgnn.training."):      # a loss or a score, which holds what was given
        return description_of(vars(value), depth)
    # A callable's floats are settings; those of other objects, such as a graph or a clock, may be a rank's own.
    return f"{type(value).__qualname__} {_floats_in(value, depth) if callable(value) else ''}".rstrip()


def _whole(value: Any, depth: int) -> str:
    """Describe an argument that was bound by name, numbers and texts included."""
    return repr(value) if isinstance(value, (bool, int, float, str)) else description_of(value, depth - 1)


def _floats_in(owner: Any, depth: int) -> str:
    held = {name: item for name, item in vars(owner).items() if name not in ("_modules", "_parameters", "_buffers")}
    return description_of({name: item for name, item in held.items() if isinstance(item, (float, list, tuple))}, depth)


def _of_function(function: types.FunctionType, depth: int) -> str:
    """Describe a function by its name and the floats, functions and tensors that it closes over or reads."""
    code = function.__code__
    closed = dict(zip(code.co_freevars, (_content(cell) for cell in function.__closure__ or ()), strict=True))
    read = {name: function.__globals__.get(name) for name in code.co_names}
    read = {name: value for name, value in read.items() if isinstance(value, float)}
    defaults = [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]
    bound = [*closed.values(), *read.values(), *defaults]
    name = "" if function.__module__.startswith("hpcgnn.") else function.__qualname__
    return " ".join(filter(None, [name, description_of(bound, depth - 1)]))


def _content(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:      # not yet bound
        return None
