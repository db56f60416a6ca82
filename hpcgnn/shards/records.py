"""GraphInfo as attributes and tables of an HDF5 file, and texts of any length as two arrays.

Texts "a" and "bcd" are stored as bytes "abcd" and offset [0, 1, 4].
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import MISSING, asdict, fields
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from hpcgnn.data.dataset import CleaningReport, WhatWasRead
from hpcgnn.errors import ShardError
from hpcgnn.partition.partition import PartitionStatistics
from hpcgnn.shards.schema import (
    CLASS_NAMES,
    FEATURE_NAMES,
    NODE_TYPES,
    RELATION_COLUMNS,
    RELATION_NAMES,
    TYPE_COLUMNS,
    WHAT_WAS_READ,
    Fingerprint,
    GraphInfo,
    Provenance,
    check_layout,
    holds,
    integer_of,
)
from hpcgnn.shards.sealed import AGAIN


def store_texts(file: h5py.Group, name: str, texts: Sequence[str] | np.ndarray) -> None:
    """Write a group `name` with `bytes`, uint8, and `offset`, int64 (num_texts + 1)."""
    file[f"{name}/bytes"], file[f"{name}/offset"] = packed_texts(texts)


def load_texts(file: h5py.Group, path: Path, name: str, num_texts: int) -> np.ndarray:
    """Read what `store_texts` wrote as (num_texts,) str objects.

    An array of fixed width would make each text as wide as the longest.
    Raises ShardError for arrays of another type or size, offsets that do not rise, or bytes that are no UTF-8.
    """
    check_layout(file, path, {f"{name}/offset": (np.int64, (num_texts + 1,))})
    offset = file[f"{name}/offset"][()]
    if offset[0] != 0 or (offset[1:] < offset[:-1]).any():
        raise ShardError(f"{path} has {name}/offset that does not rise from 0; {AGAIN}")
    check_layout(file, path, {f"{name}/bytes": (np.uint8, (int(offset[-1]),))})
    try:
        return unpacked_texts(file[f"{name}/bytes"][()], offset)
    except UnicodeDecodeError:
        raise ShardError(f"{path} has {name} that is no UTF-8; {AGAIN}") from None


def packed_texts(texts: Sequence[str] | np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """UTF-8 bytes of all texts, uint8, and where each starts, int64 (num_texts + 1)."""
    encoded = [str(text).encode("utf-8") for text in texts]
    offset = np.zeros(len(encoded) + 1, np.int64)
    np.cumsum([len(text) for text in encoded], out=offset[1:])
    return np.frombuffer(b"".join(encoded), np.uint8), offset


def unpacked_texts(content: np.ndarray, offset: np.ndarray) -> np.ndarray:
    """Inverse of `packed_texts`, (num_texts,) str objects. Raises UnicodeDecodeError for other bytes."""
    memory = content.tobytes()
    texts = [memory[first:last].decode("utf-8")
             for first, last in zip(offset[:-1].tolist(), offset[1:].tolist(), strict=True)]
    return np.array(texts, dtype=object)


JSON = ("provenance", "cleaning", "fingerprint")
MORE = ("task", "has_edge_weights", "node_names")    # written together, and only if `GraphInfo.says_more`
CLUSTERS = ("num_clusters", "cluster_digest")          # written together, if there are clusters
LINKS = ("num_val_links", "num_test_links")      # written together, if links are held out, with links_of_parts
LINKS_OF_PARTS = "links_of_parts"
NUM_RELATIONS, NUM_EDGE_FEATURES = "num_relations", "num_edge_features"
NUM_FEATURE_NAMES = "num_feature_names"
OF_EDGES = (NUM_RELATIONS, NUM_EDGE_FEATURES)      # written together, if edges have relations or attributes
SCALARS = tuple(item.name for item in fields(GraphInfo)
                if item.default is MISSING and item.name not in (*JSON, "statistics", "boundary_degree"))
COLUMNS = tuple(item.name for item in fields(PartitionStatistics))
ATTRIBUTES = (*SCALARS, *JSON)
COUNTS = tuple(name for name in SCALARS if name.startswith("num_"))


def store_info(file: h5py.File, info: GraphInfo) -> None:
    """Write scalars as attributes, nested records as JSON, and one column per count of the statistics."""
    for name in SCALARS:
        file.attrs[name] = getattr(info, name)
    for name in JSON:
        record = asdict(getattr(info, name))
        if name == "cleaning":      # apart, where earlier versions don't look
            read = record.pop("read")["lines"]
            if read:
                file.attrs[WHAT_WAS_READ] = json.dumps(read)
        file.attrs[name] = json.dumps(record)
    for name in (*(MORE if info.says_more else ()), *(CLUSTERS if info.num_clusters else ()),
                 *(LINKS if info.links_of_parts else ())):
        file.attrs[name] = getattr(info, name)
    if info.has_typed_edges:
        file.attrs[NUM_RELATIONS], file.attrs[NUM_EDGE_FEATURES] = len(info.relation_names), info.num_edge_features
    for name in (NODE_TYPES, TYPE_COLUMNS, RELATION_COLUMNS):
        if getattr(info, name):
            file.attrs[name] = json.dumps(getattr(info, name))
    if info.relation_names:
        store_texts(file, RELATION_NAMES, info.relation_names)
    if info.feature_names:
        file.attrs[NUM_FEATURE_NAMES] = len(info.feature_names)
        store_texts(file, FEATURE_NAMES, info.feature_names)
    if info.class_names:
        store_texts(file, CLASS_NAMES, info.class_names)
    file["boundary_degree"] = np.array(info.boundary_degree, np.int64)
    if info.links_of_parts:
        file[LINKS_OF_PARTS] = np.array(info.links_of_parts, np.int64)
    for name in COLUMNS:
        file[f"statistics/{name}"] = np.array([getattr(row, name) for row in info.statistics])


def load_info(file: h5py.File, path: Path) -> GraphInfo:
    """Read what `store_info` wrote; the shapes of arrays must match the counts in the file.

    Raises ShardError for names of classes or relations that are not texts or of another number, or if some of the
    attributes that are written together are missing.
    """
    more = {**_load_together(file, path, MORE), **_load_together(file, path, CLUSTERS),
            **_load_together(file, path, LINKS)}
    if "num_clusters" in more:
        more["num_clusters"] = integer_of(file, path, "num_clusters")
    if "num_val_links" in more:
        check_layout(file, path, {LINKS_OF_PARTS: (np.int64, (integer_of(file, path, "num_parts"),))})
        more[LINKS_OF_PARTS] = _plain(file[LINKS_OF_PARTS][()])
    if _load_together(file, path, OF_EDGES):
        num_relations, more[NUM_EDGE_FEATURES] = (integer_of(file, path, name) for name in OF_EDGES)
        if num_relations:
            more[RELATION_NAMES] = tuple(load_texts(file, path, RELATION_NAMES, num_relations).tolist())
    more[NODE_TYPES] = tuple(map(tuple, json.loads(file.attrs.get(NODE_TYPES, "[]"))))
    for name in (TYPE_COLUMNS, RELATION_COLUMNS):
        more[name] = tuple(json.loads(file.attrs.get(name, "[]")))
    if NUM_FEATURE_NAMES in file.attrs:
        count = integer_of(file, path, NUM_FEATURE_NAMES)
        more[FEATURE_NAMES] = tuple(load_texts(file, path, FEATURE_NAMES, count).tolist())
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
    found = {name: _plain(file.attrs[name]) for name in names if name in file.attrs}
    if found and len(found) < len(names):
        raise ShardError(f"{path} has no {next(name for name in names if name not in found)}; {AGAIN}")
    return found


def _plain(value):
    if isinstance(value, np.ndarray):
        return tuple(tuple(row) if isinstance(row, list) else row for row in value.tolist())
    return value.item() if isinstance(value, np.generic) else value
