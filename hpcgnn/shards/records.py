"""GraphInfo to and from the attributes and tables of an open HDF5 file. No file is opened here."""

from __future__ import annotations

import json
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from hpcgnn.datasets.dataset import CleaningReport
from hpcgnn.datasets.what_was_read import WhatWasRead
from hpcgnn.errors import ShardError
from hpcgnn.partition.statistics import PartitionStatistics
from hpcgnn.shards.fingerprint import Fingerprint
from hpcgnn.shards.layout import holds, integer_of
from hpcgnn.shards.schema import CLASS_NAMES, WHAT_WAS_READ, GraphInfo, Provenance
from hpcgnn.shards.sealed import AGAIN
from hpcgnn.shards.texts import load_texts, store_texts

JSON = ("provenance", "cleaning", "fingerprint")
MORE = ("task", "has_edge_weights", "node_names")    # written together, and only where one of them, or names, is needed
CLUSTERS = ("num_clusters", "cluster_digest")          # likewise, where there are clusters
SCALARS = tuple(item.name for item in fields(GraphInfo)
                if item.name not in (*JSON, *MORE, *CLUSTERS, CLASS_NAMES, "statistics", "boundary_degree"))
COLUMNS = tuple(item.name for item in fields(PartitionStatistics))
ATTRIBUTES = (*SCALARS, *JSON)
COUNTS = tuple(name for name in SCALARS if name.startswith("num_"))


def store_info(file: h5py.File, info: GraphInfo) -> None:
    """Write scalars as attributes, nested records as JSON, statistics as one column a count."""
    for name in SCALARS:
        file.attrs[name] = getattr(info, name)
    for name in JSON:
        record = asdict(getattr(info, name))
        if name == "cleaning":      # apart, where earlier versions don't look
            read = record.pop("read")["lines"]
            if read:
                file.attrs[WHAT_WAS_READ] = json.dumps(read)
        file.attrs[name] = json.dumps(record)
    for name in (*(MORE if info.says_more else ()), *(CLUSTERS if info.num_clusters else ())):
        file.attrs[name] = getattr(info, name)
    if info.class_names:
        store_texts(file, CLASS_NAMES, info.class_names)
    file["boundary_degree"] = np.array(info.boundary_degree, np.int64)
    for name in COLUMNS:
        file[f"statistics/{name}"] = np.array([getattr(row, name) for row in info.statistics])


def load_info(file: h5py.File, path: Path) -> GraphInfo:
    """Read what store_info wrote; arrays must have the layout that the file's own counts give them.

    Raises
    ------
    ShardError                names of classes that are no texts, or of another number; an attribute without those that
                              are written with it
    """
    more = _load_together(file, path, MORE) | _load_together(file, path, CLUSTERS)
    if "num_clusters" in more:
        more["num_clusters"] = integer_of(file, path, "num_clusters")
    if holds(file, CLASS_NAMES):
        names = load_texts(file, path, CLASS_NAMES, integer_of(file, path, "num_classes"))
        more[CLASS_NAMES] = tuple(names.tolist())
    scalars = {name: _plain(file.attrs[name]) for name in SCALARS}
    cleaning = json.loads(file.attrs["cleaning"])
    cleaning["remarks"] = tuple(cleaning["remarks"])
    cleaning["read"] = WhatWasRead(tuple(map(tuple, json.loads(file.attrs.get(WHAT_WAS_READ, "[]")))))
    columns = [_plain(file[f"statistics/{name}"][()]) for name in COLUMNS]
    return GraphInfo(
        **scalars,
        provenance=Provenance(**json.loads(file.attrs["provenance"])),
        cleaning=CleaningReport(**cleaning),
        fingerprint=Fingerprint(**json.loads(file.attrs["fingerprint"])),
        statistics=tuple(PartitionStatistics(*row) for row in zip(*columns, strict=True)),
        boundary_degree=_plain(file["boundary_degree"][()]),
        **more,
    )


def _load_together(file: h5py.File, path: Path, names: tuple[str, ...]) -> dict[str, Any]:
    """Read attributes of which a file has all or none."""
    found = {name: _plain(file.attrs[name]) for name in names if name in file.attrs}
    if found and len(found) < len(names):
        raise ShardError(f"{path} has no {next(name for name in names if name not in found)}; {AGAIN}")
    return found


def _plain(value):
    """Turn NumPy scalars into Python's own, and arrays into tuples of them."""
    if isinstance(value, np.ndarray):
        return tuple(tuple(row) if isinstance(row, list) else row for row in value.tolist())
    return value.item() if isinstance(value, np.generic) else value
