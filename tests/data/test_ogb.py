import gzip
import shutil
import sys
import types
import zipfile

import numpy as np
import pytest

from hpcgnn.data.arrays import RowFile
from hpcgnn.data.options import SourceOptions
from hpcgnn.data.source import load_source
from hpcgnn.errors import DatasetError


def write_csv(path, table):
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [",".join(map(str, np.atleast_1d(row).tolist())) + "\n" for row in table]
    path.write_bytes(gzip.compress("".join(lines).encode()))


def write_split(folder, kind, split):
    for name, ids in zip(("train", "valid", "test"), split, strict=True):
        write_csv(folder / "split" / kind / f"{name}.csv.gz", ids)


def write_text_dataset(folder, graph, split_kind):
    raw = folder / "raw"
    write_csv(raw / "edge.csv.gz", np.column_stack([graph.source, graph.target]))
    write_csv(raw / "num-node-list.csv.gz", [30])
    write_csv(raw / "num-edge-list.csv.gz", [len(graph.source)])
    write_csv(raw / "node-feat.csv.gz", graph.features)
    write_csv(raw / "node-label.csv.gz", graph.labels)
    write_split(folder, split_kind, graph.split)


@pytest.fixture
def arxiv(small_graph, tmp_path):
    write_text_dataset(tmp_path / "ogbn_arxiv", small_graph, "time")
    return tmp_path / "ogbn_arxiv"


@pytest.fixture
def papers(small_graph, tmp_path):
    return write_papers(tmp_path / "ogbn_papers100M", small_graph, np.savez)


def write_papers(folder, graph, save):
    """Layout of papers100M; nodes outside the split have the label NaN."""
    (folder / "raw").mkdir(parents=True)
    save(folder / "raw" / "data.npz", edge_index=np.stack([graph.source, graph.target]), node_feat=graph.features,
         node_year=np.full((30, 1), 2019), num_nodes_list=np.array([30]), num_edges_list=np.array([len(graph.source)]))
    split = tuple(ids[:5] for ids in graph.split)
    labels = np.full((30, 1), np.nan, dtype=np.float32)
    for ids in split:
        labels[ids, 0] = graph.labels[ids]
    save(folder / "raw" / "node-label.npz", node_label=labels)
    write_split(folder, "time", split)
    return folder


def load(folder, name, **options):
    return load_source(f"ogb:{name}", SourceOptions(root=folder.parent, **options))


def test_arxiv_comes_back_whole_and_keeps_its_direction(arxiv, small_graph, arcs_of, split_of):
    dataset = load(arxiv, "ogbn-arxiv")
    assert dataset.name == "ogbn-arxiv"
    assert dataset.num_classes == 40
    assert arcs_of(dataset) == small_graph.arcs()
    assert not dataset.cleaning.is_symmetric
    np.testing.assert_array_equal(dataset.features, small_graph.features)
    np.testing.assert_array_equal(dataset.labels, small_graph.labels)
    assert split_of(dataset) == [sorted(ids) for ids in small_graph.split]


def test_products_lists_each_edge_once_and_always_gets_both_directions(small_graph, tmp_path, arcs_of):
    folder = tmp_path / "ogbn_products"
    write_text_dataset(folder, small_graph, "sales_ranking")
    dataset = load(folder, "ogbn-products")
    assert arcs_of(dataset) == small_graph.both_ways()
    assert dataset.cleaning.is_symmetric


@pytest.mark.parametrize("suffix", ["_pyg", "_dgl"])
def test_folders_that_other_loaders_left_are_found(arxiv, suffix):
    folder = arxiv.rename(arxiv.with_name(f"ogbn_arxiv{suffix}"))
    assert load(folder, "ogbn-arxiv").num_nodes == 30


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_papers100m_reads_its_binary_files_and_leaves_nan_labels_unknown(small_graph, tmp_path, arcs_of, save):
    dataset = load(write_papers(tmp_path / "ogbn_papers100M", small_graph, save), "ogbn-papers100M")
    assert dataset.num_classes == 172
    assert save is np.savez_compressed or isinstance(dataset.features.source, RowFile)      # these stay on disk
    assert arcs_of(dataset) == small_graph.arcs()
    np.testing.assert_array_equal(dataset.features, small_graph.features)
    used = dataset.train_mask | dataset.val_mask | dataset.test_mask
    assert used.sum() == 15
    np.testing.assert_array_equal(dataset.labels[used], small_graph.labels[used])
    assert (dataset.labels[~used] == -1).all()


def test_binary_data_without_a_node_count_takes_that_of_the_features(papers, small_graph):
    np.savez(papers / "raw" / "data.npz", edge_index=np.stack([small_graph.source, small_graph.target]),
             node_feat=small_graph.features)
    assert load(papers, "ogbn-papers100M").num_nodes == 30


@pytest.mark.parametrize(("name", "match"), [
    ("ogbn-proteins", "not supported: it has features on edges only"), ("ogbn-mag", "not supported"),
    ("ogbn-arxive", "not known; expected one of ogbn-arxiv, ogbn-products, ogbn-papers100M"), ("", "not known"),
])
def test_other_names_are_refused_with_the_supported_ones(name, match, tmp_path):
    with pytest.raises(DatasetError, match=match):
        load_source(f"ogb:{name}", SourceOptions(root=tmp_path))


@pytest.mark.parametrize("file", ["raw/num-node-list.csv.gz", "raw/node-label.csv.gz", "raw/num-edge-list.csv.gz",
                                  "split/time/train.csv.gz"])
def test_a_missing_or_truncated_file_is_named(arxiv, file):
    content = (arxiv / file).read_bytes()
    (arxiv / file).write_bytes(content[:-9])
    with pytest.raises(DatasetError, match=f"{file} can't be read"):
        load(arxiv, "ogbn-arxiv")
    (arxiv / file).unlink()
    with pytest.raises(DatasetError, match=f"{file} does not exist"):
        load(arxiv, "ogbn-arxiv")


@pytest.mark.parametrize(("file", "table", "match"), [
    ("raw/edge.csv.gz", [[0, 1]], "as num-edge-list.csv.gz says"),
    ("raw/num-node-list.csv.gz", [12], "which does not exist; node ids run from 0 to 11"),
    ("raw/num-node-list.csv.gz", [31], "30 labels for 31 nodes"),
    ("raw/node-label.csv.gz", [40] * 30, r"label 40; labels must lie in 0\.\.39"),
    ("raw/node-label.csv.gz", [[0, 1]] * 30, "2 columns; expected one number per node"),
    ("raw/node-feat.csv.gz", [[float("nan")] * 5] * 30, "NaN or infinite, first at node 0"),
    ("raw/node-feat.csv.gz", [[1.0] * 5] * 29, "29 feature rows for 30 nodes"),
    ("split/time/train.csv.gz", [30], "node 30 in its training split"),
    ("split/time/train.csv.gz", [], "no training node"),
])
def test_files_that_disagree_are_refused(arxiv, file, table, match):
    write_csv(arxiv / file, table)
    with pytest.raises(DatasetError, match=match):
        load(arxiv, "ogbn-arxiv")


def test_missing_data_without_the_package_says_where_it_looked(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ogb", None)
    with pytest.raises(DatasetError, match=r"ogbn_arxiv/raw/edge\.csv\.gz does not exist; .*--root.*pip install ogb"):
        load_source("ogb:ogbn-arxiv", SourceOptions(root=tmp_path))


@pytest.fixture
def fake_ogb(monkeypatch):
    """Stand in for ogb.utils.url; its download_url is set by the test."""
    url = types.ModuleType("ogb.utils.url")
    url.extract_zip = lambda path, folder: zipfile.ZipFile(path).extractall(folder)
    package, inner = types.ModuleType("ogb"), types.ModuleType("ogb.utils")
    package.utils, inner.url = inner, url
    for name, module in {"ogb": package, "ogb.utils": inner, "ogb.utils.url": url}.items():
        monkeypatch.setitem(sys.modules, name, module)
    return url


def test_missing_data_is_downloaded_and_put_in_place(small_graph, tmp_path, fake_ogb):
    write_text_dataset(tmp_path / "server" / "arxiv", small_graph, "time")
    archive = shutil.make_archive(str(tmp_path / "arxiv"), "zip", tmp_path / "server")
    fetched = []

    def download_url(url, folder):
        fetched.append(url)
        return shutil.copy(archive, f"{folder}/arxiv.zip")

    fake_ogb.download_url = download_url
    root = tmp_path / "new" / "dataset"
    for _ in range(2):
        assert load_source("ogb:ogbn-arxiv", SourceOptions(root=root)).num_nodes == 30
    assert fetched == ["http://snap.stanford.edu/ogb/data/nodeproppred/arxiv.zip"]
    assert [path.name for path in root.iterdir()] == ["ogbn_arxiv"]


def test_a_failed_download_is_one_sentence(tmp_path, fake_ogb):
    def download_url(url, folder):
        raise ConnectionError("no route to host")

    fake_ogb.download_url = download_url
    with pytest.raises(DatasetError, match=r"arxiv\.zip can't be downloaded .*no route to host"):
        load_source("ogb:ogbn-arxiv", SourceOptions(root=tmp_path))


def test_a_folder_without_its_raw_files_is_never_overwritten(arxiv, fake_ogb):
    (arxiv / "raw" / "edge.csv.gz").unlink()
    with pytest.raises(DatasetError, match="exists but lacks its raw files"):
        load(arxiv, "ogbn-arxiv")
    assert (arxiv / "raw" / "node-label.csv.gz").exists()
