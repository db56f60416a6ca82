"""Hostile sources of text, folders and settings, and hostile arguments of preprocess; where no result is right, or any.

A source here that is accepted is held to ANY: it must train an epoch.
"""

from __future__ import annotations

import gzip
import json
import os
import pickle
import zlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import scipy.sparse
from campaigns.hostile_archives import NODES, Hostile, base_arrays

EDGES = "".join(f"{a},{(a * 7 + 1) % NODES}\n" for a in range(NODES))
LABELS = "".join(f"{node % 3}\n" for node in range(NODES))
FEATURES = "".join(f"{node},{node % 5}\n" for node in range(NODES))


class Unknown:
    """Stands for a truth: an accepted source must train, and nothing else is known of it."""


ANY = Unknown()


def made_by_hand() -> Iterator[Hostile]:
    """All of them."""
    yield from _edges()
    yield from _tables()
    yield from _paths()
    yield from _synthetic()
    yield from _graphsaint()
    yield from _planetoid()
    yield from _arguments()


def _edge_source(
    name: str,
    edges: bytes | str = EDGES,
    labels: bytes | str = LABELS,
    features: bytes | str | None = None,
    truth=None,
    suffix: str = ".csv",
) -> Hostile:
    def write(folder: Path) -> list[str]:
        contents = {"edges.csv": edges, "labels.csv": labels, f"features{suffix}": features}
        for file, content in contents.items():
            if content is not None:
                (folder / file).write_bytes(content.encode() if isinstance(content, str) else content)
        more = f",features={folder}/features{suffix}" if features is not None else ""
        return [f"edges:{folder}/edges.csv,labels={folder}/labels.csv{more}"]

    return Hostile(f"edges, {name}", write, truth)


def _edges() -> Iterator[Hostile]:
    yield _edge_source("base", truth=ANY)
    for name, text in {
        "with a byte order mark": "\ufeff" + EDGES,
        "CRLF": EDGES.replace("\n", "\r\n"),
        "CR only": EDGES.replace("\n", "\r"),
        "tabs": EDGES.replace(",", "\t"),
        "semicolons": EDGES.replace(",", ";"),
        "quotes": '"0","1"\n' * 5,
        "header": "a,b\n" + EDGES,
        "no last newline": EDGES[:-1],
        "comments": "# x\n" + EDGES,
        "blank lines": EDGES.replace("\n", "\n\n"),
        "blanks": EDGES.replace(",", " , "),
        "trailing comma": EDGES.replace("\n", ",\n"),
        "one column": LABELS,
        "three columns": EDGES.replace("\n", ",1\n"),
        "ragged": EDGES + "1\n",
        "negative": EDGES + "-1,0\n",
        "too large": EDGES + f"{NODES},0\n",
        "2**63": EDGES + f"{2**63},0\n",
        "10**30": EDGES + f"{10**30},0\n",
        "floats": EDGES + "1.0,2.0\n",
        "halves": EDGES + "1.5,2\n",
        "exponents": EDGES + "1e0,2e0\n",
        "nan": EDGES + "nan,0\n",
        "words": EDGES + "a,b\n",
        "hexadecimal": EDGES + "0x1,0x2\n",
        "underscores": EDGES + "1_0,2\n",
        "Arabic digits": EDGES + "١,٢\n",
        "NUL": EDGES + "\0\0\n",
        "empty": "",
        "comments only": "# nothing\n",
        "header only": "a,b\n",
        "two headers": "a,b\nc,d\n" + EDGES,
        "HTML": "<html><body>404</body></html>\n",
    }.items():
        yield _edge_source(name, text, truth=ANY)
    yield _edge_source("UTF-16", EDGES.encode("utf-16"), truth=ANY)
    yield _edge_source("UTF-16 without a mark", EDGES.encode("utf-16-le"))
    yield _edge_source("latin-1", b"\xff\xfe\xfd\n")
    packed = gzip.compress(EDGES.encode())
    yield _edge_source("gzip", packed, truth=ANY)
    yield _edge_source("half a gzip", packed[: len(packed) // 2])
    yield _edge_source("gzip with a tail", packed + b"tail")
    yield _edge_source("gzip of gzip", gzip.compress(packed))
    yield _edge_source("gzip magic only", b"\x1f\x8b")
    yield _edge_source("one line of 1 GiB in a gzip", _repeated_gzip(b"1" * (1 << 24), 64))
    yield _edge_source("1 GiB of newlines in a gzip", _repeated_gzip(b"\n" * (1 << 24), 64), truth=ANY)


def _repeated_gzip(block: bytes, times: int) -> bytes:
    """A gzip of a block many times over: members may follow each other."""
    compressor = zlib.compressobj(1, zlib.DEFLATED, 31)
    return (compressor.compress(block) + compressor.flush()) * times


def _tables() -> Iterator[Hostile]:
    for name, labels in {
        "short": LABELS[:-2],
        "2**64": f"{2**64}\n" * NODES,
        "1e300": "1e300\n" * NODES,
        "negative": "-5\n" * NODES,
        "inf": "inf\n" * NODES,
        "empty": "",
        "columns of 2": "2,2\n" * NODES,
    }.items():
        yield _edge_source(f"labels {name}", labels=labels)
    yield _edge_source("labels words", labels="a\n" * NODES, truth=ANY)
    yield _edge_source("labels 10**12", labels=LABELS[:-2] + "1000000000000\n", truth=ANY)
    yield _edge_source("labels long", labels=LABELS + "0\n", truth=ANY)
    yield _edge_source("labels nan", labels="nan\n" * NODES, truth=ANY)      # nodes without labels
    yield _edge_source("some labels nan", labels=LABELS[:-2] + "nan\n", truth=ANY)
    yield _edge_source("indicator labels", labels="0,1\n" * NODES, truth=ANY)
    for name, features in {
        "short": FEATURES[:-5],
        "ragged": FEATURES + "1\n",
        "nan": "nan,1\n" * NODES,
        "1e300": "1e300,0\n" * NODES,
        "words": "a,b\n" * NODES,
        "empty": "",
    }.items():
        yield _edge_source(f"features {name}", features=features)
    arrays = {
        "object": np.array([[{}]] * NODES, object),
        "complex": np.ones((NODES, 2), complex),
        "text": np.full((NODES, 2), "x"),
        "(n, 0)": np.ones((NODES, 0), np.float32),
        "scalar": np.array(1.0),
        "cube": np.ones((NODES, 2, 2)),
        "structured": np.zeros(NODES, "i4,f4"),
        "void": np.zeros(NODES, "V8"),
    }
    for name, array in arrays.items():
        yield _edge_source(f"features .npy {name}", features=_npy(array), suffix=".npy")
    for name, array in {
        "Fortran": np.asfortranarray(np.eye(NODES)),
        "big-endian": np.eye(NODES).astype(">f4"),
        "bool": np.eye(NODES) > 0,
        "int8": np.eye(NODES, dtype=np.int8),
    }.items():
        yield _edge_source(f"features .npy {name}", features=_npy(array), suffix=".npy", truth=ANY)
    yield _edge_source("features .npy torn", features=_npy(np.eye(NODES))[:-9], suffix=".npy")
    yield _edge_source(
        "features .npy of 10**15 rows",
        suffix=".npy",
        features=b"\x93NUMPY\x01\x00\x76\x00"
        + (b"{'descr': '<f4', 'fortran_order': False, 'shape': (1000000000000000, 4), }").ljust(117)
        + b"\n",
    )


def _npy(array: np.ndarray) -> bytes:
    import io

    content = io.BytesIO()
    np.save(content, array, allow_pickle=True)
    return content.getvalue()


def _paths() -> Iterator[Hostile]:
    def path(name: str, make, kind: str = "npz", truth=None) -> Hostile:
        def write(folder: Path) -> list[str]:
            return [f"{kind}:{make(folder)}"]

        return Hostile(f"{kind} {name}", write, truth)

    def fifo(folder: Path) -> Path:
        os.mkfifo(folder / "pipe")
        return folder / "pipe"

    def loop(folder: Path) -> Path:
        (folder / "loop").symlink_to(folder / "loop")
        return folder / "loop"

    def named(stem: str):
        def make(folder: Path) -> Path:
            np.savez(folder / f"{stem}.npz", **base_arrays())
            return folder / f"{stem}.npz"

        return make

    for kind in ("npz", "edges", "planetoid", "graphsaint", "ogb"):
        for name, make in {
            "a FIFO": fifo,
            "a link to itself": loop,
            "a folder": lambda folder: folder,
            "nothing": lambda folder: folder / "none",
            "300 letters": lambda folder: folder / ("x" * 300),
            "empty": lambda folder: "",
            "/dev/null": lambda folder: "/dev/null",
            "/proc/self/mem": lambda folder: "/proc/self/mem",
        }.items():
            yield path(name, make, kind)
    for stem in (
        "a b",
        "..",
        ".",
        "-x",
        "line\nbreak",
        "tab\t",
        "x" * 240,
        "ä",
        "\udcff",
        "con:x",
        "$HOME",
        "*",
        "a,b",
        "[red]x",
        "'",
        '"',
        "\x1b[2J",
    ):
        yield path(f"called {stem[:20]!r}", named(stem), truth=ANY)
    yield Hostile("no kind", lambda folder: ["nothing"])
    yield Hostile("empty", lambda folder: [""])
    yield Hostile("unknown kind", lambda folder: ["ftp:x"])


def _synthetic() -> Iterator[Hostile]:
    for settings in (
        "nodes=0",
        "nodes=-5",
        "nodes=1e18",
        "nodes=nan",
        "nodes=inf",
        "nodes=x",
        "nodes=1.5",
        "nodes=1,classes=1",
        "nodes=20,classes=0",
        "nodes=20,classes=-1",
        "nodes=20,classes=1e12",
        "nodes=20,classes=21",
        "nodes=20,mean_degree=-1",
        "nodes=20,mean_degree=nan",
        "nodes=20,mean_degree=inf",
        "nodes=20,mean_degree=1e9",
        "nodes=20,mean_degree=0",
        "nodes=20,features=0",
        "nodes=20,features=-1",
        "nodes=20,features=1e15",
        "nodes=20,signal=nan",
        "nodes=20,signal=inf",
        "nodes=20,signal=1e300",
        "nodes=20,homophily=2",
        "nodes=20,homophily=nan",
        "nodes=20,nodes=30",
        "nodes",
        "=5",
        ",,,",
        "nodes=20,colour=red",
        "nodes=2",
        "nodes=20,multi_label=maybe",
        "nodes=20,seed=-1",
        "nodes=20,seed=1e400",
        "nodes=20,exponent=nan",
        "nodes=20,exponent=-5",
    ):
        yield Hostile(f"synthetic {settings}", lambda folder, settings=settings: [f"synthetic:{settings}"], ANY)


def _graphsaint() -> Iterator[Hostile]:
    base = base_arrays()

    def source(name: str, truth=None, **changes) -> Hostile:
        def write(folder: Path) -> list[str]:
            place = folder / "saint"
            place.mkdir()
            matrix = {
                "data": np.ones(len(base["indices"])),
                "indices": base["indices"],
                "indptr": base["indptr"],
                "shape": np.array([NODES, NODES]),
                "format": np.array(b"csr"),
                **changes.get("matrix", {}),
            }
            np.savez(place / "adj_full.npz", **matrix)
            np.save(place / "feats.npy", changes.get("features", base["features"]), allow_pickle=True)
            (place / "class_map.json").write_text(
                changes.get("labels", json.dumps({str(node): node % 3 for node in range(NODES)}))
            )
            (place / "role.json").write_text(
                changes.get(
                    "roles",
                    json.dumps({"tr": list(range(12)), "va": list(range(12, 18)), "te": list(range(18, NODES))}),
                )
            )
            return [f"graphsaint:{place}"]

        return Hostile(f"graphsaint {name}", write, truth)

    yield source("base", truth=ANY)
    yield source("of format csc", matrix={"format": np.array(b"csc")})
    yield source("of format object", matrix={"format": np.array({}, object)})
    yield source("of two formats", matrix={"format": np.array(["csr", "csr"])})
    yield source("with negative indices", matrix={"indices": -base["indices"] - 1})
    yield source("uint64", matrix={"indptr": base["indptr"].astype(np.uint64)}, truth=ANY)
    for name, text in {
        "nothing": "",
        "null": "null",
        "a list": "[]",
        "deep": "[" * 100000,
        "torn": '{"0": 1',
        "words": json.dumps({str(node): "a" for node in range(NODES)}),
        "NaN": '{"0": NaN}',
        "huge": '{"0": ' + "9" * 5000 + "}",
        "1e400": json.dumps({str(node): 1 for node in range(NODES - 1)})[:-1] + ', "23": 1e400}',
        "key x": '{"x": 1}',
        "ragged": json.dumps({str(node): [0] * (1 + node % 2) for node in range(NODES)}),
        "key 1_0": '{"1_0": 1}',
        "null label": json.dumps({str(node): None for node in range(NODES)}),
        "2**64": json.dumps({str(node): 2**64 for node in range(NODES)}),
        "2**63": json.dumps({str(node): 2**63 for node in range(NODES)}),
        "deep label": json.dumps({str(node): [[0]] for node in range(NODES)}),
        "empty lists": json.dumps({str(node): [] for node in range(NODES)}),
        "bytes": "\\xff",
    }.items():
        yield source(f"labels {name}", labels=text)
        yield source(f"roles {name}", roles=text)
    for name, roles in {
        "overlap": {"tr": [0, 1], "va": [1], "te": [2]},
        "negative": {"tr": [-1], "va": [], "te": []},
        "too large": {"tr": [NODES], "va": [], "te": []},
        "2**70": {"tr": [2**70], "va": [], "te": []},
        "halves": {"tr": [0.5], "va": [], "te": []},
        "words": {"tr": ["0"], "va": [], "te": []},
        "true": {"tr": [True], "va": [], "te": []},
        "nested": {"tr": [[0, 1]], "va": [], "te": []},
        "none": {"tr": [], "va": [], "te": []},
    }.items():
        yield source(f"roles {name}", roles=json.dumps(roles))
    yield source("object features", features=np.array([{}] * NODES, object))


class Runs:
    """Pickles as a call."""

    def __reduce__(self):
        return os.system, ("touch hostile",)


def _planetoid() -> Iterator[Hostile]:
    rng = np.random.default_rng(0)
    sparse = scipy.sparse.csr_matrix(rng.random((20, 5)).astype(np.float32))
    one_hot = np.eye(3, dtype=np.int32)
    parts = {
        "x": sparse[:6],
        "allx": sparse[:16],
        "tx": sparse[16:],
        "y": one_hot[np.arange(6) % 3],
        "ally": one_hot[np.arange(16) % 3],
        "ty": one_hot[np.arange(4) % 3],
        "graph": {node: [(node + 1) % 20] for node in range(20)},
    }

    def source(name: str, test_index: str = "16\n17\n18\n19\n", truth=None, **changes) -> Hostile:
        def write(folder: Path) -> list[str]:
            for part, value in {**parts, **changes}.items():
                content = value if isinstance(value, bytes) else pickle.dumps(value, 2)
                (folder / f"ind.tiny.{part}").write_bytes(content)
            (folder / "ind.tiny.test.index").write_text(test_index)
            return [f"planetoid:{folder}/tiny"]

        return Hostile(f"planetoid {name}", write, truth)

    yield source("base", truth=ANY)
    for part in ("graph", "allx", "ally"):
        yield source(f"{part} that calls", **{part: Runs()})
        yield source(f"{part} empty", **{part: b""})
        yield source(f"{part} torn", **{part: pickle.dumps(parts[part], 2)[:-20]})
        yield source(f"{part} a number", **{part: 5})
        yield source(f"{part} none", **{part: None})
        yield source(f"{part} deep", **{part: b"(" * 100000 + b"."})
        yield source(
            f"{part} of 2**62 zeros announced", **{part: b"\x80\x04\x8e" + (2**62).to_bytes(8, "little") + b"."}
        )
    for name, graph in {
        "negative": {0: [-1]},
        "words": {"a": ["b"]},
        "huge": {0: [2**70]},
        "halves": {0: [0.5]},
        "nested": {0: [[1]]},
        "no lists": {0: 1},
        "empty": {},
    }.items():
        yield source(f"graph {name}", graph=graph, truth=ANY if name == "empty" else None)
    for name, text in {
        "negative": "-1\n",
        "huge": "10000000000000\n",
        "words": "a\n",
        "empty": "",
        "twice": "16\n16\n17\n18\n",
        "in training": "0\n1\n2\n3\n",
        "short": "16\n",
    }.items():
        yield source(f"test.index {name}", test_index=text)
    yield source("labels of other rows", ally=one_hot[:2])
    yield source("features of other columns", tx=scipy.sparse.csr_matrix(np.ones((4, 9), np.float32)))


def _arguments() -> Iterator[Hostile]:
    graph = "synthetic:nodes=24,mean_degree=4,classes=3,features=5"

    def flags(*words: str, truth=ANY) -> Hostile:
        return Hostile(f"arguments {' '.join(words)[:60]!r}", lambda folder: [graph, *words], truth)

    for parts in ("0", "-1", "25", "1000000", "x", "1e3", ""):
        yield flags("--parts", parts, truth=None)
    for split in (("2", "0"), ("nan", "0.2"), ("-0.5", "0.2"), ("0", "0"), ("inf", "0"), ("0.9", "0.9"), ("1", "0")):
        yield flags("--split", *split)
    for out in ("x" * 300, "/dev/full", "/dev/null/x", "/proc/nothing", "graph\nline", "~", "-x/y", ""):
        yield flags("--out", out, truth=ANY if out in ("graph\nline", "~", "-x/y", "") else None)
    yield flags("--seed", str(2**64))
    yield flags("--make-labels", "3")
    for rows in ("1", "5", str(2**62)):
        yield flags("--cluster-rows", rows)
    yield flags("--cluster-rows", "-1", truth=None)
    yield flags("--feature-format", "package", "--feature-bits", "1")
    yield flags("--normalize-features", "standard")
