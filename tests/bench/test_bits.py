"""`hpcgnn bench bits`: contestants compute the same, batches keep the arcs inside clusters, the table is whole."""

from __future__ import annotations

import json

import numpy as np
import pytest
import scipy.sparse

from hpcgnn.__main__ import main
from hpcgnn.bench import bits
from hpcgnn.bench.graphs import Topology
from hpcgnn.bench.timing import Effort


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


def test_contestants_of_a_product_give_the_same_numbers(monkeypatch):
    """Timing is replaced by taking what each contestant returns."""
    def results_of(group, case, amount, unit, contestants, effort, remarks=None):
        return {name: work() for name, work in contestants.items()}

    monkeypatch.setattr(bits, "measure", results_of)
    *products, _ = bits.measure_products(24, 8, (1, 4), Effort(1))
    for results in products:
        ours, _ = results.pop("hpcgnn"), results.pop("ceiling")
        assert set(results) == {"torch int8", "torch fp32", "numpy fp32"}
        assert all(np.array_equal(np.asarray(other), ours.numpy()) for other in results.values())


def test_the_command_measures_products_batches_and_reuse(tmp_path, capsys, monkeypatch):
    _, graph = two_communities()
    np.savez(tmp_path / "halves.npz", indptr=graph.indptr, indices=graph.indices)
    monkeypatch.setattr("hpcgnn.bench.environment.run_in", lambda environment: None)    # this process is small enough
    with pytest.raises(SystemExit) as stop:
        main(["bench", "bits", "--graph", str(tmp_path / "halves.npz"), "--sizes", "24,40", "--dims", "8", "--widths",
              "1,3", "--clusters", "4", "--batch", "2", "--repeat", "3", "--out", str(tmp_path / "out")])
    printed = capsys.readouterr()
    assert not stop.value.code, printed.err
    rows = json.loads((tmp_path / "out/bench.json").read_text())["measurements"]
    groups = [row["group"] for row in rows]
    assert {group: groups.count(group) for group in groups} == {
        "product": 4, "quantize + pack": 2, "batches": 2, "reuse": 2 * len(bits.REUSE_WIDTHS)}
    assert all(set(row["seconds"]) == {"ceiling", "hpcgnn", "once a plane", "jumped in all tiles", "all tiles",
                                       "gather fp32"} for row in rows if row["group"] == "batches")
    assert all("ceiling" in row["seconds"] for row in rows)
    assert "% of" in printed.out and "tiles are zero and jumped" in printed.out


def test_more_bits_than_there_are_is_refused(capsys):
    with pytest.raises(SystemExit) as stop:
        main(["bench", "bits", "--widths", "1,9"])
    assert stop.value.code == 2
    assert capsys.readouterr().err == "hpcgnn: --widths has 9; expected 1 to 8 bits\n"
