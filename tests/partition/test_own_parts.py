"""Parts from elsewhere: every form of them gives each node the part that it names."""

from __future__ import annotations

import numpy as np
import pandas
import pytest
import torch

import hpcgnn
from hpcgnn.errors import ConfigError, DatasetError
from hpcgnn.partition.owner import own_parts
from hpcgnn.shards.reader import read_graph_info, read_owner

PARTS = np.array([1, 0, 2, 0, 1, 2, 2, 1])
NAMES = [f"n{number}" for number in range(8)]
RING = (np.arange(8), (np.arange(8) + 1) % 8)


def made(tmp_path, named=False, **options):
    more = {"node_ids": NAMES} if named else {}
    edges = tuple(np.array(NAMES)[end] for end in RING) if named else RING
    hpcgnn.preprocess(edges, parts=3, labels=np.arange(8) % 2, out=tmp_path / "g", **more, **options)
    return read_owner(tmp_path / "g", read_graph_info(tmp_path / "g")).tolist()


@pytest.mark.parametrize("form", ["array", "list", "tensor", "series", "float", "npy", "lines", "gz", "ids", "owner"])
def test_each_node_is_in_the_part_that_it_is_given(tmp_path, form):
    path, order = tmp_path / "graph.part.3", np.random.default_rng(0).permutation(8)
    if form == "npy":
        path = tmp_path / "parts.npy"
        np.save(path, PARTS)
    elif form == "gz":
        path = tmp_path / "parts.txt.gz"
    np.savetxt(path, PARTS, "%d") if form in ("lines", "gz") else None
    if form == "ids":
        path.write_text("node,part\n" + "".join(f"n{node},{PARTS[node]}\n" for node in order))
    given = {"array": PARTS, "list": PARTS.tolist(), "tensor": torch.from_numpy(PARTS), "series": pandas.Series(PARTS),
             "float": PARTS.astype(np.float32)}.get(form, str(path))
    options = {"owner": PARTS} if form == "owner" else {"partitioner": given}
    assert made(tmp_path, form == "ids", **options) == PARTS.tolist()
    is_file = isinstance(given, str) and form != "owner"
    assert read_graph_info(tmp_path / "g").provenance.partitioner == (given if is_file else "array")


@pytest.mark.parametrize("options, complaint", [
    ({"partitioner": PARTS[:5]}, r"shape \(5,\), and graph has 8 nodes"),
    ({"partitioner": PARTS + 1}, "node 2 into part 3; expected whole numbers from 0 to 2.* subtract 1"),
    ({"partitioner": PARTS - 0.5}, "node 0 into part 0.5"),
    ({"partitioner": np.minimum(PARTS, 1)}, "leave part 2 of 3"),
    ({"partitioner": "kaminpa"}, "unknown partitioner 'kaminpa'; choose one of .*, or give a file"),
    ({"partitioner": PARTS, "balance": "both"}, "parts come from array, so balance both has no effect"),
])
def test_parts_that_can_not_be_are_refused(tmp_path, options, complaint):
    with pytest.raises(ConfigError, match=complaint):
        made(tmp_path, **options)
    assert not (tmp_path / "g").exists()


def test_a_file_names_each_node_once(tmp_path):
    (tmp_path / "p.csv").write_text("id,part\n" + "".join(f"n{node},{node % 3}\n" for node in (0, 1, 2, 3, 4, 5, 6, 6)))
    with pytest.raises(DatasetError, match="has node 'n6' twice"):
        made(tmp_path, named=True, partitioner=tmp_path / "p.csv")


@pytest.mark.parametrize("order", [range(8), range(7, -1, -1)])
def test_two_columns_without_names_are_id_and_part(tmp_path, order):
    (tmp_path / "p.txt").write_text("".join(f"{node} {PARTS[node]}\n" for node in order))
    assert made(tmp_path, partitioner=tmp_path / "p.txt") == PARTS.tolist()


def test_a_partitioner_is_no_file(tmp_path):
    assert own_parts("metis") is None and own_parts("metis", PARTS) is PARTS
