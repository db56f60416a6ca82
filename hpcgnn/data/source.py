"""load_source: from a `KIND:REST` or `MODULE:FUNCTION` specification to a GraphDataset.

A user's function, MODULE:FUNCTION or FILE.py:FUNCTION, takes no arguments. It returns what `hpcgnn.preprocess` takes,
or that and a dict of arguments that say where things lie, as in `return edges, {"nodes": nodes, "labels": "topic"}`; or
a GivenGraph, as hpcgnn's own sources make.
"""

from __future__ import annotations

import importlib.util
import os
import re
import sys
import traceback
from collections.abc import Callable
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

from hpcgnn.data.assemble import refuse_given_labels
from hpcgnn.data.dataset import GraphDataset
from hpcgnn.data.edges import load_edges
from hpcgnn.data.given import GivenGraph, finish_dataset
from hpcgnn.data.graphsaint import load_graphsaint
from hpcgnn.data.npz import load_npz
from hpcgnn.data.objects import FORMS, given_graph, is_known
from hpcgnn.data.ogb import ENTRIES, load_ogb
from hpcgnn.data.options import SourceOptions
from hpcgnn.data.planetoid import load_planetoid
from hpcgnn.data.pyg import load_pyg
from hpcgnn.data.synthetic import load_synthetic
from hpcgnn.data.table_files import load_tables
from hpcgnn.data.tables import Choices
from hpcgnn.errors import ConfigError, DatasetError, HpcgnnError
from hpcgnn.settings import hint_of, import_named


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


LOADERS = {
    "synthetic": load_synthetic,
    "npz": load_npz,
    "planetoid": load_planetoid,
    "ogb": load_ogb,
    "graphsaint": load_graphsaint,
    "edges": load_edges,
    "csv": partial(load_tables, "csv"),
    "parquet": partial(load_tables, "parquet"),
    "pyg": load_pyg,
}

# Users' own sources: labels may be missing or of any kind. For other sources the kind of labels is known.
OWN = ("npz", "edges", "csv", "parquet", "pyg")
# Public sources, identified by their name. A user's own file may have any name.
PUBLIC = ("planetoid", "ogb", "graphsaint")
# Public datasets that may be meant by a name without a kind.
FULL_NAMES = {**{name.lower(): f"pyg:Planetoid/{name}" for name in ("Cora", "CiteSeer", "PubMed")},
              **{f"planetoid/{name.lower()}": f"pyg:Planetoid/{name}" for name in ("Cora", "CiteSeer", "PubMed")},
              **{name.lower(): f"ogb:{name}" for name in ENTRIES}}


def kind_of(spec: str) -> str | None:
    """The kind that a source without KIND: probably has, by a file's ending or a public name; None if unknown."""
    suffixes = {".npz": "npz", ".csv": "csv", ".parquet": "parquet", ".pt": "pyg", ".txt": "edges", ".tsv": "edges"}
    if Path(spec).suffix in suffixes:
        return suffixes[Path(spec).suffix]
    return "ogb" if spec.startswith("ogbn-") else None


def load_source(spec: str, options: SourceOptions) -> GraphDataset:
    """Load, clean and check the graph that `spec` names.

    Parameters
    ----------
    spec : str            "KIND:REST", e.g. "ogb:ogbn-arxiv", "npz:cora.npz", "synthetic:nodes=1000"; or
                          "MODULE:FUNCTION" or "FILE.py:FUNCTION", a function that returns a graph; docs/own-data.md
    options : SourceOptions

    Raises
    ------
    DatasetError          an unknown kind, a missing or malformed source, or a graph that fails `check` or is too large
                          for this machine
    """
    kind, colon, rest = spec.partition(":")
    is_function = kind not in LOADERS and bool(kind) and rest.isidentifier()
    if not is_function and (not colon or kind not in LOADERS):
        meant = f"; write {kind_of(spec)}:{spec}" if kind_of(spec) and not colon else hint_of(kind, LOADERS)
        meant = f"; after {kind} come a colon and what to read: docs/own-data.md" if kind in LOADERS else meant
        meant = f"; write {FULL_NAMES[spec.lower()]}" if spec.lower() in FULL_NAMES else meant
        raise DatasetError(f"source {spec!r} has no known kind; expected KIND:REST with KIND one of "
                           f"{', '.join(LOADERS)}, or MODULE:FUNCTION{meant}")
    # A shell leaves the ~ of csv:~/edges.csv,nodes=~/nodes.csv, which means the home folder.
    rest = re.sub("(?<![^=])~(?=/)", lambda _: os.path.expanduser("~"), rest)
    options = replace(options, is_public=kind in PUBLIC)
    if kind not in OWN and not is_function:
        refuse_given_labels(spec, options)
        if options.task != "auto":
            raise DatasetError(f"{spec} itself defines what its labels are; leave out --task")
    try:
        return load_function(spec, options) if is_function else LOADERS[kind](rest, options)
    except OSError as reason:
        raise DatasetError(f"{spec[:200]} can't be read: {reason.strerror or reason}") from reason
    except MemoryError as reason:
        raise DatasetError(f"{spec} needs more memory than this machine gives; look for a wrong number in it, or use a "
                           "larger machine") from reason
