"""load_source: from a `KIND:REST` or `MODULE:FUNCTION` specification to a GraphDataset."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

from hpcgnn.data.assemble import refuse_given_labels
from hpcgnn.data.dataset import GraphDataset
from hpcgnn.data.edges import load_edges
from hpcgnn.data.function import load_function
from hpcgnn.data.graphsaint import load_graphsaint
from hpcgnn.data.npz import load_npz
from hpcgnn.data.ogb import ENTRIES, load_ogb
from hpcgnn.data.options import SourceOptions
from hpcgnn.data.planetoid import load_planetoid
from hpcgnn.data.pyg import load_pyg
from hpcgnn.data.synthetic import load_synthetic
from hpcgnn.data.table_files import load_tables
from hpcgnn.errors import DatasetError
from hpcgnn.settings import hint_of

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
        meant = f"; write {FULL_NAMES[spec.lower()]}" if spec.lower() in FULL_NAMES else meant
        raise DatasetError(f"source {spec!r} has no known kind; expected KIND:REST with KIND one of "
                           f"{', '.join(LOADERS)}, or MODULE:FUNCTION{meant}")
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
