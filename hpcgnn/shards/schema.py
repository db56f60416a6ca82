"""Names the files, versions and arrays of a folder of shards (see docs/shards.md), checks types and shapes, and keeps
GraphInfo as attributes and tables of graph.h5.

Texts of any length are two arrays: "a" and "bcd" are stored as bytes "abcd" and offset [0, 1, 4].
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import MISSING, asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from hpcgnn.data.dataset import REVERSE, CleaningReport, WhatWasRead
from hpcgnn.errors import CheckpointError, ConfigError, HpcgnnError, ShardError
from hpcgnn.partition.partition import PartitionStatistics
from hpcgnn.shards.feature_formats import PACKAGE
from hpcgnn.shards.sealed import AGAIN

LARGEST_COMPRESSION = 128    # lzf names at most 264 bytes in 3
Layout = dict[str, tuple[type | str, tuple[int, ...]]]


def check_attributes(file: h5py.Group, path: Path, names: Iterable[str], advice: str = AGAIN) -> None:
    """Raise ShardError unless the file has attributes of these names."""
    for name in names:
        if name not in file.attrs:
            raise ShardError(f"{path} has no {name}; {advice}")


def integer_of(file: h5py.Group, path: Path, name: str, advice: str = AGAIN) -> int:
    """An attribute that must be one integer; raises ShardError if it is not."""
    value = file.attrs[name]
    if not isinstance(value, np.integer):
        raise ShardError(f"{path} has {name} of type {type(value).__name__}, expected an integer; {advice}")
    return int(value)


def holds(file: h5py.Group, name: str) -> bool:
    """Whether a group itself holds something by this name; links, also to other files, are not followed."""
    first, _, rest = name.partition("/")
    if not isinstance(file.get(first, getlink=True), h5py.HardLink):
        return False
    return not rest or (isinstance(file[first], h5py.Group) and holds(file[first], rest))


def check_layout(file: h5py.Group, path: Path, layout: Layout, advice: str = AGAIN) -> None:
    """Check type and shape of datasets without reading them; `layout` maps names to (dtype, shape).

    Raises ShardError if one is missing, lies in another file, has another type or shape, or claims more bytes than the
    file holds.
    """
    for short, (dtype, shape) in layout.items():
        name = f"{file.name}/{short}".lstrip("/")
        if not holds(file, short):
            raise ShardError(f"{path} has no {name}; {advice}")
        held = file[short]
        if not isinstance(held, h5py.Dataset) or held.is_virtual or held.external:
            raise ShardError(f"{path} has {name}, which is no array in this file; {advice}")
        if held.dtype != np.dtype(dtype) or held.shape != shape:
            raise ShardError(f"{path} has {name} of {held.dtype} and shape {held.shape}, expected {np.dtype(dtype)} "
                             f"and shape {shape}; {advice}")
        most = held.id.get_storage_size() * (LARGEST_COMPRESSION if held.chunks else 1)
        if held.nbytes > most:
            raise ShardError(f"{path} has {name} of {held.nbytes} bytes, and it holds only "
                             f"{held.id.get_storage_size()}; {advice}")


GRAPH_VERSION = 3
GRAPH_VERSION_OF_MORE = 4  # for a graph.h5 with more: targets, names of classes, weights of edges, ids, clusters
# With relations or attributes of edges: a version that does not know them would train on the edges without them.
GRAPH_VERSION_OF_RELATIONS = 5
GRAPH_VERSIONS = (GRAPH_VERSION, GRAPH_VERSION_OF_MORE, GRAPH_VERSION_OF_RELATIONS)
PART_VERSION = 2
PACKAGE_PART_VERSION = 4   # format of a part file with features in packages; all else in it is as in format 2
GRAPH_KIND, PART_KIND = "graph", "part"
PACKAGES = "packages"       # the group of a part file that holds them, instead of array `features`
GRAPH_FILE = "graph.h5"
PART_PATTERN, INCOMING_PATTERN, ARRIVED = "part-*.h5", ".incoming-*", ".arrived"

# Scalars and arrays of a part file that carry the names of Partition's attributes; features come as well:
# array `features`, or group `packages`.
PART_SCALARS = ("part", "num_parts", "num_nodes_global", "num_central")
PART_ARRAYS = ("inner_id", "halo_id", "halo_offset", "boundary_index", "boundary_offset", "indptr", "indices",
               "in_degree", "importance", "labels", "train_mask", "val_mask", "test_mask")
# Parts of a part file that graph.h5 announces; INNER_NAME is an array or a group of texts.
EDGE_WEIGHT, EDGE_TYPE, EDGE_ATTR = "edge_weight", "edge_type", "edge_attr"
CLUSTER, HELD_OUT, INNER_NAME = "cluster", "held_out", "inner_name"
FEATURE_NAMES = "feature_names"
TASKS = ("classes", "multi-label", "regression")
NODE_NAMES = ("none", "integers", "texts")


def graph_file(folder: Path) -> Path:
    return Path(folder) / GRAPH_FILE


def part_file(folder: Path, part: int) -> Path:
    return Path(folder) / f"part-{part:04d}.h5"


def part_version(feature_format: str) -> int:
    return PACKAGE_PART_VERSION if feature_format == PACKAGE else PART_VERSION


DIGEST_BYTES = 16
DIGEST = re.compile(f"[0-9a-f]{{{2 * DIGEST_BYTES}}}")


@dataclass(frozen=True)
class Fingerprint:
    """Digests of the cleaned source graph, 32 hexadecimal digits each.

    The digests do not depend on parts, partitioner or the order of rows: all shards of one source have the same.

    graph : str               nodes, and edges with their weights, relations and attributes
    split : str               labels or targets, the number of classes, and the three masks
    features : str            values as they are stored, and their form
    """

    graph: str
    split: str
    features: str

    def differences(self, other: Fingerprint) -> tuple[str, ...]:
        """Names of the digests that differ."""
        return tuple(item.name for item in fields(self) if getattr(self, item.name) != getattr(other, item.name))

    @property
    def is_valid(self) -> bool:
        return all(isinstance(digest, str) and DIGEST.fullmatch(digest)
                   for digest in (self.graph, self.split, self.features))


@dataclass(frozen=True)
class Provenance:
    """The origin of shards.

    source : str             the source's specification, e.g. "ogb:ogbn-products"
    settings : dict          every setting of the command that made them: name -> str, number, bool or None
    """

    source: str
    partitioner: str
    seed: int
    settings: dict = field(default_factory=dict)


@dataclass(frozen=True, repr=False)
class GraphInfo:
    """The facts in graph.h5 about the whole graph.

    run_id : str             32 hexadecimal digits drawn once per run of preprocess; each part file repeats it
    name : str               name of the dataset
    num_edges, num_classes : int       edges are directed; num_classes of a regression is the number of its targets
    feature_dtype : {"float32", "float16", "package"}     how features are stored
    statistics : tuple of PartitionStatistics     one per part; a dict with the rank's own if ranks share
                                       what one has read
    boundary_degree : tuple of int     in-degree of boundary nodes at 0, 1, .. 100 percent, see degree_quantiles
    task : {"classes", "multi-label", "regression"}
    node_names : {"none", "integers", "texts"}   ids that the source gives its nodes, stored in parts as inner_name;
                                       "none" if they are 0 .. num_nodes - 1
    num_clusters : int                 clusters of the whole graph; 0 without
    cluster_digest : str               32 hexadecimal digits, or empty
    num_val_links, num_test_links : int       held-out links of the whole graph
    links_of_parts : tuple of int      held-out links that each part stores, or a dict as of statistics; empty without
    num_edge_features : int            columns of edge_attr; 0 without
    class_names, relation_names, node_types, type_columns, relation_columns, feature_names      as in `GraphDataset`
    """

    run_id: str
    hpcgnn_version: str
    name: str
    num_nodes: int
    num_edges: int
    num_features: int
    num_classes: int
    num_parts: int
    num_train: int
    num_val: int
    num_test: int
    is_multi_label: bool
    feature_dtype: str
    provenance: Provenance
    cleaning: CleaningReport
    fingerprint: Fingerprint
    statistics: tuple[PartitionStatistics, ...]
    boundary_degree: tuple[int, ...]
    task: str = "classes"
    class_names: tuple[str, ...] = ()
    has_edge_weights: bool = False
    node_names: str = "none"
    num_clusters: int = 0
    cluster_digest: str = ""
    num_val_links: int = 0
    num_test_links: int = 0
    links_of_parts: tuple[int, ...] = ()
    relation_names: tuple[str, ...] = ()
    num_edge_features: int = 0
    node_types: tuple[tuple[str, int], ...] = ()
    type_columns: tuple[int, ...] = ()
    relation_columns: tuple[int, ...] = ()
    feature_names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.is_multi_label and self.task == "classes":
            object.__setattr__(self, "task", "multi-label")

    def __repr__(self) -> str:
        answers = {"classes": "classes", "multi-label": "labels", "regression": "targets"}[self.task]
        return (f"GraphInfo({self.name}: {self.num_nodes:,} nodes, {self.num_edges:,} edges, {self.num_features:,} "
                f"features, {self.num_classes:,} {answers}; {self.num_train:,} train, {self.num_val:,} val, "
                f"{self.num_test:,} test; {self.num_parts} part{'s' * (self.num_parts != 1)})")

    @property
    def what_was_read(self) -> WhatWasRead:
        """How the columns of the source were understood, as `hpcgnn preprocess` prints it."""
        return self.cleaning.read

    @property
    def says_more(self) -> bool:
        """Whether graph.h5 needs a newer format, which shards before version 0.2 did not have."""
        return bool(self.task == "regression" or self.class_names or self.has_edge_weights or self.node_names != "none"
                    or self.num_clusters or self.links_of_parts or self.has_typed_edges)

    def type_of(self, node_id: np.ndarray) -> np.ndarray:
        """Number of the type of each node, in the order of `node_types`, (n,) int64, from global ids, (n,) integer."""
        last = np.cumsum([count for _, count in self.node_types])
        return np.searchsorted(last, node_id, side="right")

    @property
    def edge_kinds(self) -> tuple[tuple[str, str, str], ...]:
        """The kind of each relation, (type of the source, name, type of the target); empty without types or relations.

        The reverse of kind (A, name, B) is called (B, rev_name, A), as PyTorch Geometric's ToUndirected does.

        Raises
        ------
        ConfigError      a relation whose name does not tell its types, or two relations of one kind
        """
        types, found = [known for known, _ in self.node_types], dict[tuple[str, str, str], str]()
        for name in self.relation_names if types else ():
            kind = _kind_of(name, types)
            if kind in found:
                raise ConfigError(f"relations {found[kind]!r} and {name!r} are both edges {kind}; if the graph has the "
                                  "reverses already, preprocess it without symmetrize, else rename one")
            found[kind] = name
        return tuple(found)

    @property
    def metadata(self) -> tuple[list[str], list[tuple[str, str, str]]]:
        """Types of nodes and kinds of edges, in the form of HeteroData's `metadata()`; errors as in `edge_kinds`."""
        return [known for known, _ in self.node_types], list(self.edge_kinds)

    @property
    def has_typed_edges(self) -> bool:
        """Whether edges have relations or attributes."""
        return bool(self.relation_names or self.num_edge_features)

    @property
    def graph_version(self) -> int:
        """Format of graph.h5."""
        if self.has_typed_edges:
            return GRAPH_VERSION_OF_RELATIONS
        return GRAPH_VERSION_OF_MORE if self.says_more else GRAPH_VERSION


def _kind_of(relation: str, types: list[str]) -> tuple[str, str, str]:
    name = relation.removesuffix(REVERSE)
    found = [(source, name[len(source) + 2:-len(target) - 2], target) for source in types for target in types
             if name.startswith(f"{source}__") and name.endswith(f"__{target}")
             and len(name) >= len(source) + len(target) + 4]
    if len(found) != 1:
        raise ConfigError(f"relation {relation!r} does not tell between which of the types {', '.join(types)} its "
                          "edges are; call it TYPE__NAME__TYPE")
    source, name, target = found[0]
    return (source, name, target) if relation == f"{source}__{name}__{target}" else (target, f"rev_{name}", source)


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
# Attributes that are written together, if `GraphInfo.says_more`, there are clusters, or links are held out.
MORE, CLUSTERS = ("task", "has_edge_weights", "node_names"), ("num_clusters", "cluster_digest")
LINKS = ("num_val_links", "num_test_links")
OF_EDGES = ("num_relations", "num_edge_features")      # written together, if edges have relations or attributes
LISTS = ("node_types", "type_columns", "relation_columns")      # as JSON, where they are not empty
SCALARS = tuple(item.name for item in fields(GraphInfo)
                if item.default is MISSING and item.name not in (*JSON, "statistics", "boundary_degree"))
COLUMNS = tuple(item.name for item in fields(PartitionStatistics))
ATTRIBUTES = (*SCALARS, *JSON)
COUNTS = tuple(name for name in SCALARS if name.startswith("num_"))


def store_info(file: h5py.File, info: GraphInfo) -> None:
    """Write scalars as attributes, nested records as JSON, and one column per count of the statistics."""
    # In this order since ever, so that equal shards have equal bytes.
    for name in SCALARS:
        file.attrs[name] = getattr(info, name)
    for name in JSON:
        record = asdict(getattr(info, name))
        if name == "cleaning" and (read := record.pop("read")["lines"]):      # apart, where earlier versions don't look
            file.attrs["what_was_read"] = json.dumps(read)
        file.attrs[name] = json.dumps(record)
    for name in (*(MORE if info.says_more else ()), *(CLUSTERS if info.num_clusters else ()),
                 *(LINKS if info.links_of_parts else ())):
        file.attrs[name] = getattr(info, name)
    if info.has_typed_edges:
        file.attrs["num_relations"], file.attrs["num_edge_features"] = len(info.relation_names), info.num_edge_features
    for name in LISTS:
        if getattr(info, name):
            file.attrs[name] = json.dumps(getattr(info, name))
    if info.relation_names:
        store_texts(file, "relation_names", info.relation_names)
    if info.feature_names:
        file.attrs["num_feature_names"] = len(info.feature_names)
        store_texts(file, FEATURE_NAMES, info.feature_names)
    if info.class_names:
        store_texts(file, "class_names", info.class_names)
    file["boundary_degree"] = np.array(info.boundary_degree, np.int64)
    if info.links_of_parts:
        file["links_of_parts"] = np.array(info.links_of_parts, np.int64)
    for name in COLUMNS:
        file[f"statistics/{name}"] = np.array([getattr(row, name) for row in info.statistics])


def load_info(file: h5py.File, path: Path) -> GraphInfo:
    """Read what `store_info` wrote; the shapes of arrays must match the counts in the file.

    Raises ShardError for names of classes or relations that are not texts or of another number, or if some of the
    attributes that are written together are missing.
    """
    def count(name: str) -> int:
        return integer_of(file, path, name)

    def texts(name: str, number: int) -> tuple[str, ...]:
        return tuple(load_texts(file, path, name, number).tolist())

    more = {**_load_together(file, path, MORE), **_load_together(file, path, CLUSTERS),
            **_load_together(file, path, LINKS)}
    if "num_clusters" in more:
        more["num_clusters"] = count("num_clusters")
    if "num_val_links" in more:
        check_layout(file, path, {"links_of_parts": (np.int64, (count("num_parts"),))})
        more["links_of_parts"] = _plain(file["links_of_parts"][()])
    if _load_together(file, path, OF_EDGES):
        num_relations, more["num_edge_features"] = map(count, OF_EDGES)
        more["relation_names"] = texts("relation_names", num_relations) if num_relations else ()
    for name in LISTS:
        more[name] = tuple(json.loads(file.attrs.get(name, "[]")))
    more["node_types"] = tuple(map(tuple, more["node_types"]))
    if "num_feature_names" in file.attrs:
        more[FEATURE_NAMES] = texts(FEATURE_NAMES, count("num_feature_names"))
    if holds(file, "class_names"):
        more["class_names"] = texts("class_names", count("num_classes"))
    scalars = {name: _plain(file.attrs[name]) for name in SCALARS}
    cleaning = json.loads(file.attrs["cleaning"])
    cleaning["remarks"] = tuple(cleaning["remarks"])
    cleaning["read"] = WhatWasRead(tuple(map(tuple, json.loads(file.attrs.get("what_was_read", "[]")))))
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


def check_fingerprint(source: str, written: Fingerprint, info: GraphInfo, other_graph: bool,
                      error: type[HpcgnnError] = CheckpointError) -> None:
    """Check that something was made on the graph, the split and the features of these shards.

    `source` names it in messages; with `other_graph` anything is accepted. Raises `error`, which names what differs.
    """
    found = written.differences(info.fingerprint)
    if found and not other_graph:
        raise error(f"{source} was made on other data of the name {info.name} than these shards hold: its "
                    f"{_joined(found)} {'differ' if len(found) > 1 or found[0] == 'features' else 'differs'}; name the "
                    "shards that it was made on, or pass --other-graph if other ones are meant")


def _joined(names: tuple[str, ...]) -> str:
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))
