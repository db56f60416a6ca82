"""jobs/measurements/bits.py: contestants compute the same, batches keep edges inside clusters, the table is whole."""

from __future__ import annotations

import json
import sys
from functools import partial
from pathlib import Path

import numpy as np
import scipy.sparse

from hpcgnn.bench.graphs import Topology
from hpcgnn.bench.place import Place
from hpcgnn.bench.timing import Effort, Measurement
from hpcgnn.command_line import run

sys.path.insert(0, str(Path(__file__).parents[2] / "jobs"))

from measurements import bits
from measurements.bits import BitsBenchmark


def two_communities(size=40, seed=0):
    """A symmetric graph of two dense halves and a few arcs between them."""
    rng = np.random.default_rng(seed)
    inside = np.kron(np.eye(2), np.ones((size, size)))
    chosen = rng.random((2 * size, 2 * size)) < np.where(inside, 0.4, 0.005)
    matrix = scipy.sparse.csr_matrix(np.triu(chosen, 1) | np.triu(chosen, 1).T)
    return matrix, Topology("halves", matrix.indptr.astype(np.int64), matrix.indices.astype(np.int32))


def test_batches_are_block_diagonal_and_keep_every_arc_inside_a_cluster():
    matrix, graph = two_communities()
    whole = bits.clustered_batches(graph, 1, 1)
    assert len(whole) == 1 and (whole[0] != matrix).nnz == 0
    halves, joined = bits.clustered_batches(graph, 2, 1), bits.clustered_batches(graph, 2, 2)
    assert [half.shape for half in halves] == [(40, 40), (40, 40)] and [one.shape for one in joined] == [(80, 80)]
    kept = matrix[:40, :40].nnz + matrix[40:, 40:].nnz
    assert sum(half.nnz for half in halves) == joined[0].nnz == kept < matrix.nnz
    assert joined[0][:40, 40:].nnz == joined[0][40:, :40].nnz == 0


class AnsweringPlace(Place):
    """Takes what each contestant returns in place of its seconds."""

    def measure(self, group, case, amount, unit, contestants, remarks=None, is_hot=False):
        return Measurement(group, case, amount, unit, {name: work() for name, work in contestants.items()})


def test_contestants_of_a_product_give_the_same_numbers():
    *products, _ = bits.measure_products(AnsweringPlace(Effort(1)), 24, 8, (1, 4))
    assert len(products) == 2
    for results in (row.seconds for row in products):
        ours, _ = results.pop("hpcgnn"), results.pop("ceiling")
        assert set(results) == {"torch int8", "torch fp32"}
        assert all(np.array_equal(np.asarray(other), ours.numpy()) for other in results.values())


def test_contestants_of_batches_give_the_same_numbers():
    _, graph = two_communities()
    batches = bits.clustered_batches(graph, 2, 1)
    row, = bits.measure_batches(AnsweringPlace(Effort(1)), "halves", batches, (8,), (3,))
    ours, _, _ = (row.seconds.pop(name) for name in ("hpcgnn", "ceiling", bits.GATHER))
    assert [part.shape for part in ours] == [(40, 8), (40, 8)] and all(part.any() for part in ours)
    assert set(row.seconds) == {bits.ONCE_A_PLANE, bits.JUMPED, bits.ALL_TILES}
    for others in row.seconds.values():
        assert all(np.array_equal(other, part) for other, part in zip(others, ours, strict=True))


def test_the_command_measures_products_batches_and_reuse(tmp_path, capsys, monkeypatch):
    _, graph = two_communities()
    np.savez(tmp_path / "halves.npz", indptr=graph.indptr, indices=graph.indices)
    monkeypatch.setattr("hpcgnn.bench.environment.run_in", lambda *wanted: None)    # this process is small enough
    monkeypatch.setattr(bits, "BitsBenchmark", partial(BitsBenchmark, sizes=(24, 40), dims=(8,), widths=(1, 3)))
    status = run([str(tmp_path / "halves.npz"), "--clusters", "34", "--repeat", "3", "--out", str(tmp_path / "out")],
                 bits.command)
    printed = capsys.readouterr()
    assert status == 0, printed.err
    rows = json.loads((tmp_path / "out/bench.json").read_text())["measurements"]
    groups = [row["group"] for row in rows]
    assert {group: groups.count(group) for group in groups} == {
        "product": 4, "quantize + pack": 2, "batches": 6, "reuse": len(bits.REUSE_WIDTHS)}
    batches = [row for row in rows if row["group"] == "batches"]
    assert all(set(row["seconds"]) == {"ceiling", "hpcgnn", "once per plane", "jumped in all tiles", "all tiles",
                                       "gather fp32"} for row in batches)
    assert batches[-1]["case"].startswith("halves, 3 batches of ")      # 34 clusters, 16 a batch
    assert all("ceiling" in row["seconds"] for row in rows)
    assert "% of" in printed.out and "tiles are zero and jumped" in printed.out


def test_a_graph_that_is_missing_is_told_when_the_others_are_measured(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("hpcgnn.bench.environment.run_in", lambda *wanted: None)
    monkeypatch.setattr(bits, "BitsBenchmark", partial(BitsBenchmark, sizes=(8,), dims=(8,), widths=(1,)))
    status = run(["--repeat", "1", str(tmp_path / "none.npz"), "drawn:2e4", "--clusters", "2"], bits.command)
    printed = capsys.readouterr()
    assert status == 1 and "synthetic-0.02M" in printed.out
    assert "hpcgnn: bench bits could not measure " in printed.err and "none.npz: DatasetError" in printed.err
