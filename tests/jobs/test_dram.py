"""jobs/measurements/dram.py: schemes and orders rank as they must; the command leaves a table, JSON and a picture."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse
from small_benchmarks import make_small

from hpcgnn.accelerators.condense_traffic import Buffer
from hpcgnn.bench.graphs import Topology
from hpcgnn.bench.place import Place
from hpcgnn.bench.timing import Effort
from hpcgnn.errors import ConfigError
from hpcgnn.partition.choices import REORDERS
from hpcgnn.partition.order import order_rows

sys.path.insert(0, str(Path(__file__).parents[2] / "jobs"))

from measurements import dram
from measurements.dram import BY_SOURCE, CONDENSED, ORDERS, PRUNED_SHARE, SCHEMES, DramBenchmark, arcs_of, shuffled

SIDE = 60
NAMES = ["naive", "metis", "metis, no reuse across", BY_SOURCE, "gcod", CONDENSED, f"{CONDENSED}, no metis"]


@pytest.fixture
def grid():
    return grid_of(SIDE)


def grid_of(side):
    """A grid of side x side nodes."""
    path = scipy.sparse.diags([1.0, 1.0], [-1, 1], shape=(side, side))
    arcs = scipy.sparse.kronsum(path, path).tocsr()
    arcs.sort_indices()
    return Topology("grid", arcs.indptr.astype(np.int64), arcs.indices.astype(np.int32))


def benchmark_of(graph, row_bytes=8, num_bytes=4096, line_bytes=32):
    return DramBenchmark(Place(Effort(1)), graph, Buffer(num_bytes, line_bytes), 0.02, (), row_bytes)


def test_a_shuffled_graph_is_the_same_graph(grid):
    moved = shuffled(grid, 3)
    order = np.random.default_rng(3).permutation(grid.num_nodes)
    assert (arcs_of(grid)[order][:, order] != arcs_of(moved)).nnz == 0
    assert not np.array_equal(moved.indices, grid.indices)
    assert all((np.diff(moved.indices[a:b]) > 0).all() for a, b in zip(moved.indptr, moved.indptr[1:], strict=False))


def test_schemes_rank_as_in_the_paper_on_a_shuffled_grid(grid):
    counts = list(benchmark_of(shuffled(grid, 1)).count())
    assert [(group, name) for group, name, _ in counts] == \
        [(SCHEMES, name) for name in NAMES] + [(ORDERS, reorder) for reorder in REORDERS]
    total = {name: traffic.total_bytes for group, name, traffic in counts if group == SCHEMES}
    assert total[CONDENSED] < total["metis, no reuse across"] < total["naive"]
    assert total[BY_SOURCE] < total["metis, no reuse across"]
    assert total["gcod"] < total["metis"] < total["naive"] and total[CONDENSED] < total[f"{CONDENSED}, no metis"]
    dropped = [traffic.dropped_arcs for _, name, traffic in counts if name == "gcod"]
    assert dropped == [round(0.02 * grid.num_edges)]


def test_orders_start_from_the_naive_scheme_and_clusters_lie_below_it(grid):
    counts = list(benchmark_of(shuffled(grid, 1)).count())
    order = {name: traffic.total_bytes for group, name, traffic in counts if group == ORDERS}
    assert order["none"] == counts[0][2].total_bytes
    assert order[CONDENSED] < 0.5 * order["none"] and order["metis"] < order["none"]


def test_orders_are_those_of_preprocess(grid):
    graph = shuffled(grid, 1)
    for reorder, order in benchmark_of(graph).orders.items():
        np.testing.assert_array_equal(order, order_rows(graph, np.arange(graph.num_nodes), reorder))


def test_every_scheme_reads_a_graph_without_arcs_for_nothing():
    lonely = Topology("lonely", np.zeros(41, np.int64), np.empty(0, np.int32))
    assert {traffic.total_bytes for *_, traffic in benchmark_of(lonely).count()} == {0}


def test_a_buffer_without_room_for_a_row_is_refused(grid):
    with pytest.raises(ConfigError, match="a buffer of 4096 bytes holds no row of 4000 bytes; choose a larger buffer"):
        list(benchmark_of(grid, row_bytes=4000).count())


def test_the_command_leaves_a_table_a_picture_and_its_numbers(tmp_path, monkeypatch, capsys):
    make_small(monkeypatch.setattr)
    grid = grid_of(20)
    np.savez(tmp_path / "grid.npz", indptr=grid.indptr, indices=grid.indices)
    with pytest.raises(SystemExit) as stop:
        dram.main([str(tmp_path / "grid.npz"), "--shuffle", "--buffer-kb", "4", "--widths", "5", "--repeat", "1",
                   "--threads", "1", "--out", str(tmp_path / "out")])
    printed = capsys.readouterr()
    assert not stop.value.code, printed.err
    assert "grid, shuffled: 128 x 4 bit, lru buffer of 4 KiB, lines of 128 bytes" in printed.out
    content = json.loads((tmp_path / "out/dram.json").read_text())
    expected = [(group, name, traffic.total_bytes) for group, name, traffic in
                DramBenchmark(Place(Effort(1)), shuffled(grid, 0), Buffer(4096, 128), PRUNED_SHARE, (),
                              64).count()]
    assert [(row["group"], row["scheme"], row["total_bytes"]) for row in content["traffic"]] == expected
    assert content["settings"]["pruned"] == PRUNED_SHARE and "processor" in content["machine"]
    assert (tmp_path / "out/dram.png").read_bytes().startswith(b"\x89PNG")
    timed, = json.loads((tmp_path / "out/bench.json").read_text())["measurements"]
    assert set(timed["seconds"]) == {"ceiling", "hpcgnn", "none", "nested", "metis", "degree", "rcm", "copied",
                                     "copies free"}


@pytest.mark.parametrize("arguments, status, complaint", [
    (["--widths", "64,x"], 2, "--widths is '64,x'; expected positive numbers with commas between them"),
    (["--buffer-kb", "0"], 2, "0.0 is not in the range x>0"),
])
def test_what_can_not_be_counted_is_refused_before_anything_is(arguments, status, complaint, tmp_path, capsys):
    with pytest.raises(SystemExit) as stop:
        dram.main([str(tmp_path / "none.npz"), *arguments])
    assert stop.value.code == status
    assert complaint in capsys.readouterr().err
