"""Text tables as other programs write them: the same rows, or one sentence."""

from __future__ import annotations

import bz2
import gzip
import io
import itertools
import lzma
import tracemalloc
import zipfile

import numpy as np
import pandas
import pyarrow
import pyarrow.feather
import pyarrow.orc
import pytest
import scipy.io
import scipy.sparse

from hpcgnn.data import text_stream
from hpcgnn.data.given import finish_dataset
from hpcgnn.data.objects import given_graph
from hpcgnn.data.options import SourceOptions
from hpcgnn.data.source import load_source
from hpcgnn.data.tables import Choices
from hpcgnn.data.text_stream import with_single_blanks
from hpcgnn.data.text_table import INTEGER, TextTable, read_columns, read_matrix
from hpcgnn.errors import DatasetError

ARCS = [(0, 1), (1, 2), (2, 3), (3, 0), (4, 2)]
LINES = "".join(f"{u},{v}\n" for u, v in ARCS)


def write(path, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def numbers_in(path, dtype=np.int64):
    return read_matrix(TextTable(path), dtype).tolist()


def graph_of(source):
    """Arcs between ids, and the dataset, of a source with labels of its own or made ones."""
    is_made = "labels=" not in source and "nodes=" not in source
    dataset = load_source(source, SourceOptions(make_labels=2 if is_made else None, feature_kind="auto"))
    names = list(range(dataset.num_nodes)) if dataset.node_name is None else dataset.node_name.tolist()
    target = np.repeat(np.arange(dataset.num_nodes), np.diff(dataset.indptr))
    return sorted((names[u], names[v]) for u, v in zip(dataset.indices, target, strict=True)), dataset


def packed(codec):
    sink = pyarrow.BufferOutputStream()
    with pyarrow.CompressedOutputStream(sink, codec) as stream:
        stream.write(LINES.encode())
    return sink.getvalue().to_pybytes()


def zipped(*names):
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name in names:
            archive.writestr(name, LINES)
    return file.getvalue()


PACKED = {"gzip": lambda: gzip.compress(LINES.encode()), "bzip2": lambda: bz2.compress(LINES.encode()),
          "xz": lambda: lzma.compress(LINES.encode()), "zstd": lambda: packed("zstd"), "lz4": lambda: packed("lz4"),
          "zip": lambda: zipped("e.csv"), "zip of a Mac": lambda: zipped("e.csv", "__MACOSX/._e.csv"),
          "two members of gzip": lambda: gzip.compress(LINES[:8].encode()) + gzip.compress(LINES[8:].encode()),
          "UTF-8 with a mark": lambda: LINES.encode("utf-8-sig"), "UTF-16": lambda: LINES.encode("utf-16"),
          "UTF-16 of the other order": lambda: b"\xfe\xff" + LINES.encode("utf-16-be"),
          "CRLF": lambda: LINES.replace("\n", "\r\n").encode(), "CR": lambda: LINES.replace("\n", "\r").encode(),
          "no end": lambda: LINES[:-1].encode(), "plain": lambda: LINES.encode()}


@pytest.mark.parametrize("block_bytes", [1 << 24, 7, 1])
@pytest.mark.parametrize("form", PACKED)
def test_packings_and_encodings_are_told_by_content(form, block_bytes, tmp_path, monkeypatch):
    monkeypatch.setattr(text_stream, "BLOCK_BYTES", block_bytes)
    assert numbers_in(write(tmp_path / "renamed", PACKED[form]())) == [list(arc) for arc in ARCS]


@pytest.mark.parametrize("form", ["gzip", "bzip2", "xz", "zstd", "lz4", "zip"])
def test_a_truncated_file_is_refused(form, tmp_path):
    content = PACKED[form]()
    with pytest.raises(DatasetError, match=r"e\.csv can't be read .* truncated or damaged"):
        numbers_in(write(tmp_path / "e.csv", content[:len(content) * 2 // 3]))


def test_a_path_that_is_none_says_what_to_write():
    for source, complaint in {"edges:": "an edges: source names no file", "csv:": "a csv: source names no file",
                              "edges:e.csv,labels=": "gives labels no value", "edges:-": "standard input is not read",
                              "edges:https://example.org/e.csv": "download it, and name the file",
                              "parquet:~him/e.parquet": "write the path of the home folder for ~"}.items():
        with pytest.raises(DatasetError, match=complaint):
            load_source(source, SourceOptions())


SEPARATED = {"comma": "{},{}\n", "semicolon": "{};{}\n", "tab": "{}\t{}\n", "pipe": "{}|{}\n", "blank": "{} {}\n",
             "blanks": "  {}    {}  \n", "blanks and tabs": "{} \t {}\n", "comma and blank": "{}, {}\n",
             "trailing comma": "{},{},\n", "trailing tab": "{}\t{}\t\n", "quoted": '"{}","{}"\n'}


@pytest.mark.parametrize("form", SEPARATED)
@pytest.mark.parametrize("header", [None, ("source", "target")])
def test_separators_are_recognized(form, header, tmp_path):
    rows = ([header] if header else []) + ARCS
    path = write(tmp_path / "e.txt", "".join(SEPARATED[form].format(*row) for row in rows))
    assert numbers_in(path) == [list(arc) for arc in ARCS]
    assert TextTable(path).header == header


@pytest.mark.parametrize(("text", "skipped"), [
    ("# Directed graph\n# Nodes: 4\n# FromNodeId\tToNodeId\n0\t1\n1\t2\n", "3 lines"),
    ("#From\tTo\n0\t1\n1\t2\n", "1 line "), ("0 1\n# in between\n1 2\n#\n", "2 lines"),
    ("% one\n0 1\n1 2\n", "1 line "),
    ("0 1\n1 2\n# end", "1 line ")])
def test_comments_are_skipped_and_counted(text, skipped, tmp_path):
    arcs, dataset = graph_of(f"edges:{write(tmp_path / 'e.txt', text)}")
    assert arcs == [(0, 1), (1, 2)]
    assert skipped in dataset.cleaning.read.of("skipped")[0]


@pytest.mark.parametrize("separator", [",", "\t", " "])
@pytest.mark.parametrize("header", ["source{}target\n", ""])
def test_ids_that_begin_with_a_hash_are_ids(header, separator, tmp_path):
    expected = [("#ai", "u1"), ("#ml", "u2"), ("%x", "#ai"), ("u2", "#ml")]
    text = header.format(separator) + "".join(f"{u}{separator}{v}\n" for u, v in expected)
    arcs, dataset = graph_of(f"edges:{write(tmp_path / 'e.txt', text)}")
    assert arcs == expected and not dataset.cleaning.read.of("skipped")


def test_a_first_line_that_may_be_both_is_asked_about(tmp_path):
    with pytest.raises(DatasetError, match="begins with the line '#ai,u1', which may be a comment or a row"):
        graph_of(f"edges:{write(tmp_path / 'e.csv', '#ai,u1' + chr(10) + 'u2,u1' + chr(10))}")


@pytest.mark.parametrize("symmetry", ["general", "symmetric"])
@pytest.mark.parametrize("field", ["pattern", "real", "integer"])
def test_matrix_market_is_what_scipy_reads(symmetry, field, tmp_path):
    matrix = scipy.sparse.random(9, 9, 0.3, random_state=3, format="coo")
    matrix.data = np.ceil(matrix.data * 5)
    matrix = (scipy.sparse.tril(matrix, -1) + scipy.sparse.triu(matrix, 1) * (symmetry == "general")).tocoo()
    matrix = matrix + matrix.T if symmetry == "symmetric" else matrix
    scipy.io.mmwrite(tmp_path / "m.mtx", matrix, comment="made", field=field, symmetry=symmetry)
    arcs, dataset = graph_of(f"edges:{tmp_path}/m.mtx")
    read = scipy.sparse.coo_matrix(scipy.io.mmread(tmp_path / "m.mtx"))
    assert arcs == sorted((u + 1, v + 1) for u, v in zip(read.row.tolist(), read.col.tolist(), strict=True))
    assert dataset.num_nodes == 9
    found = 0 if field == "pattern" else dataset.edge_weight.sum()
    assert found == (0 if field == "pattern" else read.data.sum())


@pytest.mark.parametrize(("text", "complaint"), [
    ("%%MatrixMarket matrix array real general\n2 2\n1\n2\n3\n4\n", "kind 'matrix array real general'"),
    ("%%MatrixMarket matrix coordinate complex general\n2 2 1\n1 2 1 0\n", "kind 'matrix coordinate complex general'"),
    ("%%MatrixMarket matrix coordinate pattern general\n4 4 9\n1 2\n", "9 entries and has 1; it is truncated"),
    ("%%MatrixMarket matrix coordinate pattern general\n4 5 1\n1 2\n", "size 4 5 1; expected as many rows"),
    ("%%MatrixMarket matrix coordinate pattern general\n4 4 1\n0 2\n", "edge to node 0 .* numbers from 1 to 4"),
    ("% bip unweighted\n1 2\n", "bipartite network of KONECT"),
    ("% asym unweighted\n0 1\n", "edge to node 0; expected numbers from 1 on"),
    ("a: b\nb: c\n", "rows such as 'b:', 'c', as programs print pairs or lists of neighbors"),
    ("(0, 1)\n(1, 2)\n", r"rows such as '\(1', '2\)', as programs print pairs"),
    ("# networkx.write_multiline_adjlist\na 1\nb {}\nb 0\n", "as programs print pairs or lists of neighbors")])
def test_other_matrices_and_networks_are_refused(text, complaint, tmp_path):
    with pytest.raises(DatasetError, match=complaint):
        graph_of(f"edges:{write(tmp_path / 'm.mtx', text)}")


def test_konect_counts_from_1_and_says_what_is_symmetric(tmp_path):
    write(tmp_path / "out.ring", "% sym positive\n% 3 5 5\n1 2 2 1082040961\n2 3 1 1082040961\n4 3 1 1082040961\n")
    arcs, dataset = graph_of(f"edges:{tmp_path}/out.ring")
    assert arcs == [(1, 2), (2, 1), (2, 3), (3, 2), (3, 4), (4, 3)]
    assert (dataset.name, dataset.num_nodes) == ("ring-made-labels-2", 5) and dataset.edge_weight.max() == 2
    assert "fourth column" in " ".join(dataset.cleaning.read.of("skipped"))
    write(tmp_path / "out.ring", "% asym unweighted\n1 2\n2 3\n4 3\n")      # without a line of counts
    arcs, dataset = graph_of(f"edges:{tmp_path}/out.ring")
    assert (arcs, dataset.num_nodes, dataset.node_name.tolist()) == ([(1, 2), (2, 3), (4, 3)], 4, [1, 2, 3, 4])


IDS = {"letters late": (["10", "11", "a7"], ["10", "11", "a7"]), "zeros": (["007", "7", "11"], ["007", "7", "11"]),
       "an exponent": (["1e3", "1000", "12"], ["1e3", "1000", "12"]), "hexadecimal": (["0x10", "16"], ["0x10", "16"]),
       "a sign": (["+5", "5", "-0", "0"], ["+5", "5", "-0", "0"]), "fractions": (["1.0", "1"], ["1.0", "1"]),
       "19 digits": ([str(2**63 - 1), str(2**63 - 2)], [2**63 - 1, 2**63 - 2]),
       "22 digits": ([str(10**21 + 1), str(10**21), "5"], [str(10**21 + 1), str(10**21), "5"]),
       "blanks around": (["5", " 6"], [5, 6]), "words that name nothing": (["NA", "US", "null"], ["NA", "US", "null"])}


@pytest.mark.parametrize("weight", ["", ",0.5"])
@pytest.mark.parametrize("how", IDS)
def test_ids_are_exact_and_of_one_kind_in_all_rows(how, weight, tmp_path):
    written, ids = IDS[how]
    write(tmp_path / "e.csv", "".join(f"{u},{v}{weight}\n" for u, v in zip(written, written[1:] + written[:1],
                                                                           strict=True)))
    write(tmp_path / "l.csv", "id,label\n" + "".join(f"{name},{row % 2}\n" for row, name in enumerate(written)))
    arcs, dataset = graph_of(f"edges:{tmp_path}/e.csv,labels={tmp_path}/l.csv")
    assert dataset.node_name.tolist() == ids
    assert arcs == sorted(zip(ids, ids[1:] + ids[:1], strict=True))


@pytest.mark.parametrize("first", ["10", "0", "-7", "9223372036854775807"])
@pytest.mark.parametrize(("text", "is_whole"), [
    ("100", True), ("0", True), (" -3 ", True), ("-9223372036854775808", True), ("0.5", False), ("1e05", False),
    ("a-07", False), ("007", False), ("-07", False), ("0X1f", False), ("-0", False), ("+1", False), ("00", False),
    ("9223372036854775808", False), ("", False)])
def test_ids_are_numbers_only_if_each_is_written_as_python_writes_it(text, is_whole, first, tmp_path):
    (ids,) = read_columns(TextTable(write(tmp_path / "t.csv", f"{first},x\n{text},x\n")), [INTEGER, None])
    assert ids.tolist() == ([int(first), int(text)] if is_whole else [first, text.strip()])


def test_numbers_of_earlier_blocks_become_the_same_texts(tmp_path, monkeypatch):
    monkeypatch.setattr(text_stream, "BLOCK_BYTES", 50)
    written = [*map(str, range(-3000, 3000)), "007"]
    (ids,) = read_columns(TextTable(write(tmp_path / "t.csv", "".join(f"{cell}\n" for cell in written))), [INTEGER])
    assert ids.to_pylist() == written


def test_blanks_become_one_but_in_quotation_marks():
    assert with_single_blanks(b'  a \t b\n\n"c  d"   e \n') == b'a b\n\n"c  d" e\n'
    assert with_single_blanks(b"  a \t b\n \n c   e \n") == b"a b\n\nc e\n"


@pytest.mark.parametrize("name", ["", "Unnamed: 0"])
def test_the_index_of_a_table_is_no_feature(name, tmp_path):
    nodes = pandas.DataFrame({"id": [5, 6, 7, 8], "label": [0, 1, 0, 1], "x": [.5, 1.5, 2.5, 3.5]})
    nodes.to_csv(tmp_path / "n.csv", index_label=name)
    write(tmp_path / "e.csv", f"{name},source,target\n0,5,6\n1,6,7\n2,8,5\n")
    arcs, dataset = graph_of(f"csv:{tmp_path}/e.csv,nodes={tmp_path}/n.csv")
    assert arcs == [(5, 6), (6, 7), (8, 5)] and dataset.features.tolist() == [[.5], [1.5], [2.5], [3.5]]
    assert "which has no name and counts the rows" in " ".join(dataset.cleaning.read.of("skipped"))
    assert graph_of(f"edges:{tmp_path}/e.csv")[0] == arcs
    write(tmp_path / "f.csv", "source,target\n0,1\n3,2\n")      # the index is asked for as the ids
    for asked in (name or "0", "0"):
        assert graph_of(f"csv:{tmp_path}/f.csv,nodes={tmp_path}/n.csv,id={asked},features=x")[0] == [(0, 1), (3, 2)]


@pytest.mark.parametrize("name", ["", "Unnamed: 0", "unnamed: 0"])
@pytest.mark.parametrize("kind", ["parquet", "pandas", "arrow", "dict"])
def test_an_index_that_became_a_column_is_left_out_of_every_table(kind, name, tmp_path):
    """As pandas.read_csv makes one of the index that to_csv has written; it counts from 0, or some rows of a table."""
    nodes = pandas.DataFrame({name: [0, 1, 4, 9], "id": [5, 6, 7, 8], "label": [0, 1, 0, 1], "x": [.5, 1.5, 2.5, 3.5]})
    edges = pandas.DataFrame({name: [0, 1, 2], "a": [5, 6, 8], "b": [6, 7, 5]})     # ends without a usual name

    def read(nodes, **choices):
        if kind == "parquet":
            edges.to_parquet(tmp_path / "e.parquet")
            nodes.to_parquet(tmp_path / "n.parquet")
            given = "".join(f",{choice}={value}" for choice, value in choices.items())
            return load_source(f"parquet:{tmp_path}/e.parquet,nodes={tmp_path}/n.parquet{given}", SourceOptions())
        form = {"pandas": lambda table: table, "arrow": pyarrow.Table.from_pandas,
                "dict": lambda table: table.to_dict("list")}[kind]
        return finish_dataset(given_graph(form(edges), Choices(nodes=form(nodes), **choices)), SourceOptions())

    dataset = read(nodes)
    assert dataset.features.tolist() == [[.5], [1.5], [2.5], [3.5]] and dataset.node_name.tolist() == [5, 6, 7, 8]
    assert " ".join(dataset.cleaning.read.of("skipped")).count("which has no name and counts the rows") == 2
    assert not dataset.cleaning.read.of("unused")
    if name:     # asked for by its name, it is taken
        assert read(nodes, features=name).features.tolist() == [[0.], [1.], [4.], [9.]]
    shuffled = read(nodes.assign(**{name: [3, 1, 0, 2]}))
    assert shuffled.features.tolist() == [[3, .5], [1, 1.5], [0, 2.5], [2, 3.5]]


def test_an_unnamed_column_that_does_not_count_is_asked_about(tmp_path):
    write(tmp_path / "e.csv", ",source,target\n7,5,6\n3,6,7\n")
    with pytest.raises(DatasetError, match="first column without a name, which does not count the rows"):
        graph_of(f"edges:{tmp_path}/e.csv")


def test_weights_that_may_be_times_are_said(tmp_path):
    path = write(tmp_path / "e.csv", "sep=,\nsource,target,weight\n0,1,1082040961\n1,2,1082040962\n")     # as of Excel
    arcs, dataset = graph_of(f"edges:{path}")
    assert arcs == [(0, 1), (1, 2)] and "weight=none" in dataset.cleaning.read.dubious[0]


def test_a_first_row_that_may_be_names_is_said(tmp_path):
    write(tmp_path / "e.csv", LINES)
    write(tmp_path / "l.csv", "0\n1\n0\n1\n0\n")
    pandas.DataFrame(np.eye(4)).to_csv(tmp_path / "x.csv", index=False)
    source = f"edges:{tmp_path}/e.csv,labels={tmp_path}/l.csv,features={tmp_path}/x.csv"
    assert "remove it if it is a header" in graph_of(source)[1].cleaning.read.dubious[0]
    pandas.DataFrame(np.eye(5)).to_csv(tmp_path / "x.csv", index=False)
    asked = graph_of(f"edges:{tmp_path}/e.csv,features={tmp_path}/x.csv,header=true")[1].cleaning.read.dubious
    assert asked[0].startswith("the first line of e.csv, 0,1, was taken as its header, as asked")
    pandas.DataFrame([1, 0, 1, 0, 1]).to_csv(tmp_path / "l.csv", index=False)
    assert "a row more than the edges have nodes; remove that line if it is a header" in graph_of(
        f"edges:{tmp_path}/e.csv,labels={tmp_path}/l.csv")[1].cleaning.read.dubious[0]
    write(tmp_path / "w.csv", "0,1,2\n" + LINES.replace("\n", ",0.5\n"))
    assert "the first row of w.csv is 0,1,2" in graph_of(f"edges:{tmp_path}/w.csv")[1].cleaning.read.dubious[0]


def test_features_by_ids_that_only_the_labels_name_are_asked_about(tmp_path):
    write(tmp_path / "e.csv", "10,20\n20,35\n")
    write(tmp_path / "l.csv", "id,label\n10,0\n20,1\n35,0\n")
    write(tmp_path / "x.csv", "20,2.5\n35,3.5\n10,1.5\n")
    source = f"edges:{tmp_path}/e.csv,labels={tmp_path}/l.csv,features={tmp_path}/x.csv"
    with pytest.raises(DatasetError, match=r"x\.csv begins each row with an id of .*l\.csv; append ,ids=true"):
        graph_of(source)
    dataset = graph_of(f"{source},ids=true")[1]
    assert dict(zip(dataset.node_name.tolist(), np.asarray(dataset.features)[:, 0].tolist(), strict=True)) == {
        10: 1.5, 20: 2.5, 35: 3.5}
    np.save(tmp_path / "x.npy", [[1.0], [2.0], [3.0]])
    read = graph_of(source.replace("x.csv", "x.npy"))[1].cleaning.read
    assert "rows of x.npy are in the order of l.csv" in read.of("note") and "column id of l.csv" not in str(read)
    assert "ids are integers of column 0 of l.csv" in read.of("nodes")[0]


def test_features_after_numbers_of_rows_in_another_order_are_asked_about(tmp_path):
    write(tmp_path / "e.csv", LINES)
    write(tmp_path / "x.csv", "".join(f"{row},{row}.5,{row}.25\n" for row in (3, 1, 0, 4, 2)))
    with pytest.raises(DatasetError, match=r"x\.csv begins each row with another whole number, as ids are"):
        graph_of(f"edges:{tmp_path}/e.csv,features={tmp_path}/x.csv")
    dataset = graph_of(f"edges:{tmp_path}/e.csv,features={tmp_path}/x.csv,ids=true")[1]
    assert np.asarray(dataset.features[dataset.node_name.argsort()]).tolist() == [
        [row + 0.5, row + 0.25] for row in range(5)]
    assert graph_of(f"edges:{tmp_path}/e.csv,features={tmp_path}/x.csv,ids=false")[1].num_features == 3


@pytest.mark.parametrize("header", ["id,label,f,f,f", "id,label,label,f,g"])
def test_a_name_of_several_columns_is_refused(header, tmp_path):
    write(tmp_path / "e.csv", "source,target\n0,1\n1,2\n")
    write(tmp_path / "n.csv", header + "\n0,0,1,2,3\n1,1,4,5,6\n2,0,7,8,9\n")
    with pytest.raises(DatasetError, match=r"n\.csv names the column '(f|label)' twice"):
        graph_of(f"csv:{tmp_path}/e.csv,nodes={tmp_path}/n.csv")


@pytest.mark.parametrize("kind", ["csv", "edges", "parquet"])
def test_a_folder_and_a_pattern_stand_for_their_files(kind, tmp_path):
    table = pandas.DataFrame({"src": np.arange(36) % 7, "dst": np.arange(36) * 5 % 8})
    for part in range(12):
        path, rows = tmp_path / "e" / f"part-{part}.x", table[part * 3:part * 3 + 3]
        write(path, b"")
        rows.to_parquet(path, index=False) if kind == "parquet" else rows.to_csv(path, index=False, compression={
            "method": "gzip"} if part % 2 else None)
    write(tmp_path / "e" / "_SUCCESS", b"")
    write(tmp_path / "e" / ".part-0.x.crc", b"\0")
    expected = sorted({(u, v) for u, v in table.to_numpy().tolist() if u != v})
    for source in ("e", "e/part-*"):
        arcs, dataset = graph_of(f"{kind}:{tmp_path}/{source}")
        assert arcs == expected
        assert "stands for 12 files, part-0.x to part-11.x" in " ".join(dataset.cleaning.read.of("note"))
    assert dataset.name == "part-made-labels-2"


def test_rows_of_many_files_are_in_the_order_of_their_numbers(tmp_path):
    for part in range(12):
        write(tmp_path / "l" / f"{part}.csv", f"{part}\n")
    assert numbers_in(tmp_path / "l") == [[part] for part in range(12)]


def test_columns_in_the_names_of_folders_are_columns(tmp_path):
    write(tmp_path / "e.csv", "source,target\n0,1\n1,2\n2,3\n")
    write(tmp_path / "n" / "age=30" / "a.csv", "id,label\n0,u\n1,v\n")
    write(tmp_path / "n" / "age=40" / "a.csv", "id,label\n2,u\n3,v\n")
    (tmp_path / "above=1").symlink_to(tmp_path)
    for nodes in (f"{tmp_path}/n", f"{tmp_path}/above=1/n/*/a.csv"):
        _, dataset = graph_of(f"csv:{tmp_path}/e.csv,nodes={nodes}")
        assert dataset.features.tolist() == [[30], [30], [40], [40]]


def test_parquet_parts_may_differ_in_dictionaries_and_name_columns_by_folders(tmp_path):
    nodes = pandas.DataFrame({"id": ["a", "b", "c"], "label": ["u", "v", "u"]})
    for number, fold in enumerate(("train", "test", "__HIVE_DEFAULT_PARTITION__")):
        write(path := tmp_path / "n" / f"age={30 + 10 * number}" / f"fold={fold}" / "p.parquet", b"")
        part = nodes[number:number + 1]
        (part.astype("category") if number % 2 else part).to_parquet(path, index=False)
    pandas.DataFrame({"source": ["a", "b"], "target": ["b", "c"]}).to_parquet(tmp_path / "e")
    _, dataset = graph_of(f"parquet:{tmp_path}/e,nodes={tmp_path}/n,split=fold")
    assert dataset.node_name.tolist() == ["a", "b", "c"] and dataset.features.tolist() == [[30], [40], [50]]
    assert [mask.tolist() for mask in (dataset.train_mask, dataset.test_mask)] == [[1, 0, 0], [0, 1, 0]]


@pytest.mark.parametrize("second", ["target,source\n1,2\n", "source,target,w\n1,2,3\n", "1,2\n"])
def test_files_of_another_header_are_refused(second, tmp_path):
    write(tmp_path / "e" / "1.csv", "source,target\n0,1\n")
    write(tmp_path / "e" / "2.csv", second)
    with pytest.raises(DatasetError, match=r"2\.csv has .*, and 1\.csv before it has the header 'source,target'"):
        graph_of(f"csv:{tmp_path}/e")


def test_parts_without_rows_are_none(tmp_path):
    for name, text in (("1", ""), ("2", "source,target\n"), ("3", "source,target\n4,5\n"), ("4", "source,target\n")):
        write(tmp_path / "e" / name, text)
    assert graph_of(f"csv:{tmp_path}/e,nodes={write(tmp_path / 'n', 'id,label' + chr(10) + '4,0' + chr(10) + '5,1')}"
                    )[0] == [(4, 5)]


def test_a_first_line_of_counts_is_an_edge_where_that_is_said(tmp_path):
    path = write(tmp_path / "path.txt", "3 2\n2 1\n1 0\n")
    assert graph_of(f"edges:{path},header=false")[0] == [(1, 0), (2, 1), (3, 2)]
    assert graph_of(f"edges:{write(tmp_path / 'named.txt', 'source target' + chr(10) + '3 2' + chr(10) + '2 1')}")


def test_a_graph_of_metis_is_named(tmp_path):
    with pytest.raises(DatasetError, match="a graph of METIS by its name"):
        graph_of(f"edges:{write(tmp_path / 'ring.graph', '3 3' + chr(10) + '2 3' + chr(10) + '1 3' + chr(10) + '1 2')}")


def binary(form, path):
    table = pyarrow.table({"source": [0, 1], "target": [1, 0]})
    if form == "Parquet":
        table.to_pandas().to_parquet(path, index=False)
    elif form == "ORC":
        pyarrow.orc.write_table(table, path)
    else:
        pyarrow.feather.write_feather(table, path)


@pytest.mark.parametrize("form", ["Parquet", "ORC", "Arrow"])
@pytest.mark.parametrize("kind", ["csv", "edges", "parquet"])
def test_a_table_of_another_format_is_named(form, kind, tmp_path):
    binary(form, tmp_path / "e.csv")
    if (form, kind) == ("Parquet", "parquet"):
        assert graph_of(f"{kind}:{tmp_path}/e.csv")[0] == [(0, 1), (1, 0)]
        return
    with pytest.raises(DatasetError, match="can't be read as Parquet" if kind == "parquet" else f"but an? {form} file"):
        graph_of(f"{kind}:{tmp_path}/e.csv")


@pytest.mark.parametrize(("content", "complaint"), [
    ("source,target\nä,b\n".encode("latin-1"), "letters that are not in UTF-8"),
    (b"0,1\n" * 70000 + b"\xe4,b\n", "letters that are not in UTF-8"),
    (b"0,1\n1,\0\n", "holds zero bytes"), (LINES.encode("utf-16-le"), "holds zero bytes"),
    (zipped("a", "b"), "zip archive of 2 files"), (b'{"edges": [[0, 1]]}', "but JSON"), (b"<html>", "or a web page"),
    (b"version https://git-lfs.github.com/spec/v1\n", "pointer of Git LFS"), (b"0,1\n1\n", "1 columns in row 2 and 2"),
    (b"0,1\n1,2,3\n", "3 columns in row 2 and 2"), (b"", "holds nothing"), (b'a,b\n"b,c\nc,d\n', "columns in row"),
    (b"0,1\n,2\n", "'' where a node's id should be"), (b"0,1\n0,NA\n", "'NA' where a node's id should be"),
    (b"0,1,x\n0,2,1\n", "'x' in its third column"), (b"5 4\n0 1\n1 2\n2 3\n3 4\n", "seems to state 5 nodes and 4 ed"),
    (b"5 5 2\n5 1 1\n1 2 1\n", "seems to state 5 nodes and 2 edges"), (b"0 1 {}\n1 2 {}\n", "networkx.write_edgelist"),
    (b'Creator "x"\ngraph\n[\n directed 1\n', "GML, Pajek"), (b"*Vertices 2\n", "GML, Paj"), (b"graph G {\n", "GML"),
    (b"\x80\x04\x95\0\0", "but a pickle"), (zipped("a/data.pkl", "a/data/0"), "a file of torch.save; write it as .npy"),
    (zipped("[Content_Types].xml", "xl/a.xml"), "an Excel file; save it as CSV"),
    (zipped("a.npy", "b.npy"), "an archive of NumPy or SciPy; write one array as .npy"),
    (gzip.compress(PACKED["xz"]()), "packed twice, inside by xz"),
    (b"MATLAB 5.0 MAT-file, Platform: posix" + bytes(100), "a MATLAB file; read it by scipy.io.loadmat")])
def test_what_is_no_table_is_a_sentence(content, complaint, tmp_path):
    with pytest.raises(DatasetError, match=complaint):
        graph_of(f"edges:{write(tmp_path / 'e.csv', content)}")


@pytest.mark.parametrize(("text", "complaint"), [
    ("1,5;2,5\n" * 5, "'1,5' in column 0 of row 1; expected .* with a point before decimals"),
    ("a;b\n" + "1,5;2,5\n" * 5, "'1,5' in column 'a' of row 2; expected .* with a point before decimals"),
    ('a,b\n' + '"1,500",2\n' * 5, "'1,500' in column 'a' of row 2; expected .* nothing between thousands"),
    ("1,2\n" * 4 + "1,x\n", "'x' in column 1 of row 5; expected numbers"), ("1\n2\n\n4\n5\n6\n", "empty lines between"),
    ("", "holds no rows"), ("#ai\n#ml\n", "comments only, such as '#ai'"),
    ("id,f\n", "holds no rows"), ("1,\n1,2\n1,3\n1,4\n1,5\n", "NaN or infinite"),
    ("1,inf\n1,2\n1,3\n1,4\n1,5\n", "NaN or infinite")])
def test_features_that_are_no_numbers_are_refused(text, complaint, tmp_path):
    write(tmp_path / "e.csv", LINES)
    write(tmp_path / "l.csv", "0\n1\n0\n1\n0\n")
    write(tmp_path / "x.csv", text)
    with pytest.raises(DatasetError, match=complaint):
        graph_of(f"edges:{tmp_path}/e.csv,labels={tmp_path}/l.csv,features={tmp_path}/x.csv")


@pytest.mark.parametrize("text", ["1e3,+2\n1E3,2.\n", "a,b\n1000,2\n1000.0,2e0\n"])
def test_numbers_are_read_in_any_notation(text, tmp_path):
    assert numbers_in(write(tmp_path / "x.csv", text), np.float32) == [[1000, 2], [1000, 2]]
    assert numbers_in(write(tmp_path / "t.csv", "a,b\nTrue,no\nFalse,yes\n"), np.float32) == [[1, 0], [0, 1]]


@pytest.mark.parametrize("text", ["", "# nothing\n", "source,target\n"])
def test_a_file_without_rows_gives_an_empty_table(text, tmp_path):
    assert len(read_matrix(TextTable(write(tmp_path / "t.csv", text)), np.int64)) == 0


def test_cells_may_hold_line_ends(tmp_path):
    write(tmp_path / "e.csv", 'source,target,note\na,b,"x\n# y\n\nz"\nb,a,q\n')
    arcs, dataset = graph_of(f"csv:{tmp_path}/e.csv")
    assert arcs == [("a", "b"), ("b", "a")] and not dataset.cleaning.read.of("skipped")


def test_weights_are_left_out_and_labels_ignored_when_asked(tmp_path):
    write(tmp_path / "e.csv", "0,1,-2\n1,2,0\n")
    write(tmp_path / "l.csv", "0\n1\n255\n")
    source = f"edges:{tmp_path}/e.csv,labels={tmp_path}/l.csv,ignore=255"
    with pytest.raises(DatasetError, match=r"weight -2\.0 .* weight=none"):
        graph_of(source)
    arcs, dataset = graph_of(source + ",weight=none")
    assert arcs == [(0, 1), (1, 2)] and dataset.labels.tolist() == [0, 1, -1]


def test_one_long_id_takes_no_memory_for_the_others(tmp_path):
    ids = [f"n{number}" for number in range(2000)]
    ids[7] = "x" * 100_000
    path = write(tmp_path / "e.csv", "".join(f"{u},{v}\n" for u, v in itertools.pairwise(ids)))
    tracemalloc.start()
    _, dataset = graph_of(f"edges:{path}")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert dataset.node_name.tolist() == sorted(ids) and peak < 40e6      # 2,000 times the longest are 800 MB


def test_progress_adds_up_to_the_size_of_the_file(tmp_path, monkeypatch):
    monkeypatch.setattr(text_stream, "BLOCK_BYTES", 100)
    path = write(tmp_path / "t.csv.gz", gzip.compress("".join(f"{k},{k}\n" for k in range(500)).encode()))
    advanced = []

    class Task:
        def advance(self, amount):
            advanced.append(amount)

    def progress(description, total):
        assert total == path.stat().st_size
        return Task()

    read_matrix(TextTable(path, progress=progress), np.int64)
    assert sum(advanced) == path.stat().st_size
