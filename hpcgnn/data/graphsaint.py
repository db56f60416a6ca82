"""`graphsaint:DIR`: adj_full.npz, feats.npy, class_map.json and role.json, as GraphSAINT publishes Reddit, Yelp and
AmazonProducts. Features stay memory-mapped.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from hpcgnn.data.arcs import RowsOfEntries
from hpcgnn.data.arrays import Archive, in_pieces, load_array
from hpcgnn.data.assemble import Masks, assemble_dataset, masks_from_ids
from hpcgnn.data.cleaning import CleanGraph, build_csr
from hpcgnn.data.dataset import GraphDataset
from hpcgnn.data.labels import Labels, class_ids, indicator_rows
from hpcgnn.data.options import SourceOptions, check_file
from hpcgnn.errors import DatasetError

ROLES = ("tr", "va", "te")


def load_graphsaint(rest: str, options: SourceOptions) -> GraphDataset:
    """Load the folder `rest`; the dataset is named after the folder, in lower case."""
    folder = Path(rest)
    if not folder.is_dir():
        raise DatasetError(f"{folder} is no folder; expected one that holds adj_full.npz, feats.npy, class_map.json "
                           "and role.json")
    name = folder.resolve().name.lower()
    graph = _graph(folder / "adj_full.npz", options, name)
    num_nodes = len(graph.indptr) - 1
    features_path = folder / "feats.npy"
    wants_features = options.feature_kind != "structural" and features_path.exists()
    features = in_pieces(load_array(features_path)) if wants_features else None
    labels = _labels(folder / "class_map.json", num_nodes)
    num_classes = labels.shape[1] if labels.ndim == 2 else int(labels.max(initial=0)) + 1
    masks = _masks(folder / "role.json", num_nodes, name)
    return assemble_dataset(name, graph, features, Labels(labels, num_classes), masks, options)


def _graph(path: Path, options: SourceOptions, name: str) -> CleanGraph:
    with Archive(path) as archive:
        layout = archive.read("format")
        if layout.size != 1 or layout.item() not in (b"csr", "csr"):
            raise DatasetError(f"{path} holds a sparse matrix of format {layout.tolist()!r:.40}; expected csr")
        indptr, indices = archive.integers("indptr"), archive.integer_rows("indices")
        has_weights = "data" in archive and bool((archive.read("data") != 1).any())
    graph = build_csr(RowsOfEntries(indptr, len(indices), name), indices, len(indptr) - 1, options.symmetrize, name,
                      options.progress, options.scratch)
    # GraphSAINT's own loaders don't read weights; npz:adj_full.npz,rows=sources does.
    remarks = ("values of adj_full.npz other than 1 were left out",) if has_weights else ()
    return graph.with_remarks(remarks)


def _labels(path: Path, num_nodes: int) -> np.ndarray:
    class_map = _read_json(path)
    try:
        nodes = np.fromiter((int(key) for key in class_map), dtype=np.int64, count=len(class_map))
        values = np.array(list(class_map.values()))
    except (ValueError, TypeError, OverflowError) as error:
        raise DatasetError(f"{path} can't be read as labels ({error}); "
                           "expected node ids that map to a class number or to a list of 0 and 1") from None
    if len(nodes) != num_nodes or not np.array_equal(np.sort(nodes), np.arange(num_nodes)):
        raise DatasetError(f"{path} labels {len(nodes)} nodes; expected each of the nodes 0 to {num_nodes - 1} once")
    if values.dtype.kind not in "iufb" or values.ndim > 2:
        raise DatasetError(f"{path} has labels that are not numbers; expected a class number or a list of 0 and 1")
    ordered = np.empty_like(values)
    ordered[nodes] = values
    return indicator_rows(ordered, str(path)) if ordered.ndim == 2 else class_ids(ordered, str(path))


def _masks(path: Path, num_nodes: int, name: str) -> Masks:
    roles = _read_json(path)
    missing = [role for role in ROLES if not isinstance(roles.get(role), list)]
    if missing:
        raise DatasetError(f"{path} has no list {missing[0]!r}; expected the node ids of {', '.join(ROLES)}")
    # NumPy would read 1.5, true and "1" as the node 1.
    if not all(type(node) is int for role in ROLES for node in roles[role]):
        raise DatasetError(f"{path} has a split that is no list of node ids; expected whole numbers")
    try:
        ids = tuple(np.array(roles[role], dtype=np.int64) for role in ROLES)
    except OverflowError as error:
        raise DatasetError(f"{path} has a split that is no list of node ids ({error})") from None
    return masks_from_ids(ids, num_nodes, name)


def _read_json(path: Path) -> dict:
    check_file(path)
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise DatasetError(f"{path} does not exist; GraphSAINT's folders hold one") from None
    except (ValueError, OSError, RecursionError) as error:
        raise DatasetError(f"{path} can't be read as JSON ({error}); it is truncated or damaged") from None
    if not isinstance(content, dict):
        raise DatasetError(f"{path} holds a {type(content).__name__}; expected a JSON object")
    return content
