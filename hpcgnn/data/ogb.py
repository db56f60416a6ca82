"""`ogb:NAME`: node-property datasets of the Open Graph Benchmark, from the raw folder that the `ogb` package leaves.

`raw` holds edge.csv.gz, node-feat.csv.gz, node-label.csv.gz, num-node-list.csv.gz and num-edge-list.csv.gz, or data.npz
and node-label.npz; `split/NAME` holds train.csv.gz, valid.csv.gz and test.csv.gz, one node per line. `ogb` is imported
only to download what is missing.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from hpcgnn.data.arrays import Archive, RowFile, columns
from hpcgnn.data.assemble import assemble_dataset, masks_from_ids
from hpcgnn.data.cleaning import CleanGraph, build_csr
from hpcgnn.data.dataset import GraphDataset
from hpcgnn.data.labels import Labels, class_ids
from hpcgnn.data.options import SourceOptions
from hpcgnn.data.text_table import TextTable, read_matrix
from hpcgnn.errors import DatasetError

DEFAULT_ROOT = Path("dataset")
DOWNLOADS = "http://snap.stanford.edu/ogb/data/nodeproppred"
SPLIT_FILES = ("train.csv.gz", "valid.csv.gz", "test.csv.gz")


@dataclass(frozen=True)
class OgbEntry:
    """What OGB's table states of a dataset; is_undirected: every edge is listed once and holds both ways."""

    split: str
    num_classes: int
    is_undirected: bool
    is_binary: bool
    archive: str


ENTRIES = {
    "ogbn-arxiv": OgbEntry("time", 40, False, False, "arxiv"),
    "ogbn-products": OgbEntry("sales_ranking", 47, True, False, "products"),
    "ogbn-papers100M": OgbEntry("time", 172, False, True, "papers100M-bin"),
}
REFUSED = {
    "ogbn-proteins": "it has features on edges only, none on nodes",
    "ogbn-mag": "its nodes and edges are of several types",
}


def load_ogb(rest: str, options: SourceOptions) -> GraphDataset:
    """Load the dataset named `rest` from options.root, downloading it if it is missing and `ogb` is installed.

    An edge u -> v (u cites v) carries messages from u to v unless options.symmetrize adds the reverse; ogbn-products is
    undirected and always gets both directions.
    """
    if rest in REFUSED:
        raise DatasetError(f"ogb:{rest} is not supported: {REFUSED[rest]}; supported are {', '.join(ENTRIES)}")
    if rest not in ENTRIES:
        raise DatasetError(f"ogb:{rest} is not known; expected one of {', '.join(ENTRIES)}")
    entry = ENTRIES[rest]
    folder = _find_folder(rest, entry, Path(options.root or DEFAULT_ROOT))
    read = _read_binary if entry.is_binary else _read_text
    graph, features, labels = read(rest, folder / "raw", entry, options)
    split = folder / "split" / entry.split
    ids = tuple(_one_column(read_matrix(TextTable(split / file), np.int64), split / file).reshape(-1)
                for file in SPLIT_FILES)
    masks = masks_from_ids(ids, len(graph.indptr) - 1, rest)
    return assemble_dataset(rest, graph, features, Labels(class_ids(labels, rest), entry.num_classes), masks, options)


Raw = tuple[CleanGraph, "np.ndarray | None", np.ndarray]


def _read_text(name: str, raw: Path, entry: OgbEntry, options: SourceOptions) -> Raw:
    num_nodes = int(read_matrix(TextTable(raw / "num-node-list.csv.gz"), np.int64).sum())
    num_edges = int(read_matrix(TextTable(raw / "num-edge-list.csv.gz"), np.int64).sum())
    edges = read_matrix(TextTable(raw / "edge.csv.gz", progress=options.progress), np.int64, options.scratch)
    if edges.shape != (num_edges, 2):
        raise DatasetError(f"{raw / 'edge.csv.gz'} holds a table of shape {edges.shape}; expected {(num_edges, 2)}, "
                           "as num-edge-list.csv.gz says")
    graph = build_csr(*columns(edges), num_nodes, options.symmetrize or entry.is_undirected, name, options.progress,
                      options.scratch)
    features = None
    if options.feature_kind != "structural" and (raw / "node-feat.csv.gz").exists():
        table = TextTable(raw / "node-feat.csv.gz", progress=options.progress)
        features = read_matrix(table, np.float32, options.scratch)
    labels = read_matrix(TextTable(raw / "node-label.csv.gz", progress=options.progress), np.float64)
    return graph, features, _one_column(labels, raw / "node-label.csv.gz")


def _read_binary(name: str, raw: Path, entry: OgbEntry, options: SourceOptions) -> Raw:
    with Archive(raw / "data.npz") as archive:
        num_nodes = _num_nodes(archive)
        edges = archive.rows("edge_index")
        if edges.ndim != 2 or edges.shape[0] != 2:
            raise DatasetError(f"{archive.path}: edge_index has shape {edges.shape}; expected (2, number of edges)")
        ends = [edges.row(0), edges.row(1)] if isinstance(edges, RowFile) else edges
        graph = build_csr(*ends, num_nodes, options.symmetrize or entry.is_undirected, name, options.progress,
                          options.scratch)
        del edges, ends
        wants_features = options.feature_kind != "structural" and "node_feat" in archive
        features = archive.rows("node_feat", options.scratch) if wants_features else None
    with Archive(raw / "node-label.npz") as archive:
        labels = _one_column(archive.read("node_label"), archive.path)
    return graph, features, labels


def _num_nodes(archive: Archive) -> int:
    if "num_nodes_list" in archive:
        return int(archive.integers("num_nodes_list").sum())
    features = archive.rows("node_feat")
    if features.ndim != 2:
        raise DatasetError(f"{archive.path}: node_feat has shape {features.shape}; expected one row per node")
    return len(features)


def _one_column(labels: np.ndarray, path: Path) -> np.ndarray:
    if labels.ndim == 2 and labels.shape[1] != 1 and labels.size:
        raise DatasetError(f"{path} has {labels.shape[1]} columns; expected one number per node")
    return labels


def _find_folder(name: str, entry: OgbEntry, root: Path) -> Path:
    # Folder of the dataset; PyTorch Geometric's and DGL's loaders may have added a suffix.
    plain = name.replace("-", "_")
    candidates = [root / plain, root / f"{plain}_pyg", root / f"{plain}_dgl"]
    marker = "data.npz" if entry.is_binary else "edge.csv.gz"
    for folder in candidates:
        if (folder / "raw" / marker).exists():
            return folder
    try:
        import ogb.utils.url as ogb_url
    except ImportError:
        raise DatasetError(f"{name} was not found: {candidates[0] / 'raw' / marker} does not exist; name the folder "
                           f"that holds {plain} with --root, or pip install ogb and run again to download it") from None
    return _download(ogb_url, f"{DOWNLOADS}/{entry.archive}.zip", entry.archive, candidates[0])


def _download(ogb_url, url: str, archive: str, folder: Path) -> Path:
    if folder.exists():
        raise DatasetError(f"{folder} exists but lacks its raw files; remove it and run again to download {url}")
    folder.parent.mkdir(parents=True, exist_ok=True)
    try:
        packed = Path(ogb_url.download_url(url, str(folder.parent)))
        ogb_url.extract_zip(str(packed), str(folder.parent))
        packed.unlink()
        shutil.move(folder.parent / archive, folder)
    except Exception as error:  # The package raises any error of the network, the archive or the disk.
        raise DatasetError(f"{url} can't be downloaded to {folder.parent} ({error}); "
                           "download and unpack it by hand") from None
    return folder
