"""load_function: the graph that a user's function returns, named as MODULE:FUNCTION or FILE.py:FUNCTION.

The function takes no arguments. It returns what `hpcgnn.preprocess` takes, or that and a dict of arguments that say
where things lie, as in `return edges, {"nodes": nodes, "labels": "topic"}`; or a GivenGraph, as hpcgnn's own sources
make.
"""

from __future__ import annotations

import importlib.util
import sys
import traceback
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from types import ModuleType
from typing import Any

from hpcgnn.data.dataset import GraphDataset
from hpcgnn.data.given import GivenGraph, finish_dataset
from hpcgnn.data.objects import FORMS, given_graph, is_known
from hpcgnn.data.options import SourceOptions
from hpcgnn.data.tables import Choices
from hpcgnn.errors import ConfigError, DatasetError, HpcgnnError
from hpcgnn.settings import import_named


def load_function(spec: str, options: SourceOptions) -> GraphDataset:
    """Call the function that `spec` names, and clean and check the graph that it returns.

    Parameters
    ----------
    spec : str            "MODULE:FUNCTION", a module in the current folder or an installed one; or "FILE.py:FUNCTION"

    Raises
    ------
    DatasetError          there is no such module or function, the function raises an error or returns no graph, or the
                          graph is malformed
    """
    name = spec.partition(":")[0].removesuffix(".py").replace("/", ".").rpartition(".")[2]
    found = _returned(spec, _function_of(spec))
    if isinstance(found, GivenGraph):
        return finish_dataset(found, options)
    is_pair = isinstance(found, tuple) and len(found) == 2 and isinstance(found[1], dict)
    data, where = found if is_pair else (found, {})
    if not is_known(data):
        raise DatasetError(f"{spec} returned a {type(data).__name__}, which is no graph; return {FORMS}")
    unknown = sorted(set(where) - {one.name for one in fields(Choices)})
    if unknown:
        raise DatasetError(f"{spec} returned a graph with {unknown[0]!r}; what lies where is told by "
                           f"{', '.join(one.name for one in fields(Choices))}")
    return finish_dataset(given_graph(data, Choices(**{"name": name} | where)), options)


def _function_of(spec: str) -> Callable[[], Any]:
    is_file = spec.partition(":")[0].endswith(".py")
    try:
        found = import_named(spec, "source", _run_file if is_file else importlib.import_module)
    except ConfigError as reason:
        raise DatasetError(f"{reason}; a source is KIND:REST with a kind that hpcgnn preprocess --help names, "
                           "MODULE:FUNCTION or FILE.py:FUNCTION") from reason
    if not callable(found):
        raise DatasetError(f"source {spec} is a {type(found).__name__}; expected a function that returns a graph")
    return found


def _run_file(name: str) -> ModuleType:
    """The module in a file, which may import its neighbors."""
    file = Path(name).resolve()
    if str(file.parent) not in sys.path:
        sys.path.append(str(file.parent))
    found = importlib.util.spec_from_file_location(file.stem, file)
    module = importlib.util.module_from_spec(found)
    sys.modules.setdefault(file.stem, module)       # dataclasses look their module up
    found.loader.exec_module(module)
    return module


def _returned(spec: str, function: Callable[[], Any]) -> Any:
    try:
        return function()
    except (HpcgnnError, MemoryError):
        raise
    except Exception as error:      # a user's function may raise anything
        last = traceback.extract_tb(error.__traceback__)[-1]
        raise DatasetError(f"{spec} raised {type(error).__name__}: {' '.join(str(error).split())[:300]} (line "
                           f"{last.lineno} of {last.filename})") from error
