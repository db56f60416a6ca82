"""`preprocess --val-links`, `train --task links`, `predict --top` and `--pairs`: from a file of edges to tables."""

from __future__ import annotations

import re

import numpy as np
import pandas
import pytest
from mpi4py import MPI
from training_setup import easy_graph, on_rank_zero, typed_graph, write_once

from hpcgnn import preprocess
from hpcgnn.results.answer_file import read_answer_arrays
from hpcgnn.shards.reader import read_graph_info, read_partition
from hpcgnn.training.checkpoint import read_checkpoint

COMM = MPI.COMM_WORLD
TRAINING = ("--task", "links", "--model", "gcn", "--layers", "2", "--hidden", "8", "--epochs", "6", "--eval-every", "3")


@pytest.fixture
def edges(shared_path):
    """An edge list with text ids, the reverse of every edge listed too, and held-out links in files of their own."""
    def write():
        dataset = easy_graph()
        target = np.repeat(np.arange(dataset.num_nodes), np.diff(dataset.indptr))
        once = dataset.indices < target
        pairs = pandas.DataFrame({"source": dataset.indices[once], "target": target[once]}).map("n{:03}".format)
        pairs.iloc[20:].to_csv(shared_path / "edges.csv", index=False)
        pairs.iloc[:8].to_csv(shared_path / "val.csv", index=False)
        pairs.iloc[8:20].to_csv(shared_path / "test.csv", index=False)
        return pairs
    return on_rank_zero(COMM, write)


@pytest.fixture
def trained(hpcgnn, edges, shared_path):
    """Shards of one part a rank and a run of links on them."""
    shards, run = shared_path / "shards", shared_path / "run"
    words = ("preprocess", f"edges:{shared_path}/edges.csv", "--symmetrize", "--parts", COMM.size, "--out", shards,
             "--partitioner", "contiguous", "--val-links", shared_path / "val.csv", "--test-links",
             shared_path / "test.csv")
    assert hpcgnn(*words)[0] == 0
    status, printed, _ = hpcgnn("train", shards, *TRAINING, "--out", run, "--set", "score=hits@10")
    assert status == 0 and re.search(r"test hits@10 [0-9.]+ % \(by chance [0-9.]+ %\)", printed)
    return shards, run


@pytest.mark.parallel([1, 2])
def test_given_links_are_held_out(trained, edges):
    shards, _ = trained
    info = read_graph_info(shards)
    held = [read_partition(shards, part, COMM.size, info) for part in range(COMM.size)]
    names = {node: name for part in held for node, name in zip(part.inner_id.tolist(), part.inner_name, strict=True)}
    found = {(names[source], names[target], split) for part in held for source, target, split in part.held_out.tolist()}
    pairs = list(edges.itertuples(index=False, name=None))
    assert found == {(*pair, 1) for pair in pairs[:8]} | {(*pair, 2) for pair in pairs[8:20]}
    assert info.num_edges == 2 * (len(pairs) - 20)


@pytest.mark.parallel([1, 2, 3])
def test_the_best_links_are_those_of_all_products(hpcgnn, trained, edges, shared_path):
    shards, run = trained
    assert hpcgnn("predict", run, shards, "--out", shared_path / "rows.npz")[0] == 0
    status, printed, complaints = hpcgnn("predict", run, shards, "--top", 3, "--out", shared_path / "top.parquet")
    assert (status, complaints) == (0, "") and str(shared_path / "top.parquet") in printed
    if COMM.rank:
        return
    arrays = read_answer_arrays(shared_path / "rows.npz")
    names, rows = arrays["node"].tolist(), arrays["prediction"].astype(np.float64)
    products = (rows @ rows.T).astype(np.float32)
    known = {pair for source, target in edges.iloc[20:].itertuples(index=False) for pair in ((source, target),
                                                                                             (target, source))}
    table = pandas.read_parquet(shared_path / "top.parquet")
    assert table.columns.tolist() == ["node", "target", "score"] and len(table) == 3 * len(names)
    for number, (node, found) in enumerate(table.groupby("node", sort=False)):
        assert node == names[number]
        rivals = [(-products[number, other], other) for other, name in enumerate(names)
                  if other != number and (node, name) not in known]
        expected = sorted(rivals)[:3]
        np.testing.assert_allclose(found["score"], [-score for score, _ in expected], rtol=1e-6)
        assert all((node, target) not in known and node != target for target in found["target"])


@pytest.mark.parallel([1, 2])
def test_pairs_have_the_products_of_their_rows(hpcgnn, trained, shared_path):
    shards, run = trained
    pairs = "n003,n100\nn100,n003\nn239,n000\n"
    on_rank_zero(COMM, lambda: (shared_path / "pairs.csv").write_text(pairs))
    assert hpcgnn("predict", run, shards, "--out", shared_path / "rows.npz")[0] == 0
    status, _, complaints = hpcgnn("predict", run, shards, "--pairs", shared_path / "pairs.csv", "--out",
                                   shared_path / "scores.csv")
    assert (status, complaints) == (0, "")
    if COMM.rank:
        return
    arrays = read_answer_arrays(shared_path / "rows.npz")
    rows = dict(zip(arrays["node"].tolist(), arrays["prediction"], strict=True))
    table = pandas.read_csv(shared_path / "scores.csv")
    assert table[["source", "target"]].to_csv(index=False, header=False) == pairs
    expected = [rows[source] @ rows[target] for source, target in table[["source", "target"]].itertuples(index=False)]
    np.testing.assert_allclose(table["score"], expected, rtol=1e-5)


def scores_of(rows, weight):
    """Scores [relation, source, target] of ComplEx, from rows and relations whose halves are real and imaginary."""
    rows, weight = (values[:, :4].astype(np.float64) + 1j * values[:, 4:] for values in (rows, weight))
    return np.real(np.einsum("ud,rd,vd->ruv", rows, weight, rows.conj())).astype(np.float32)


@pytest.fixture
def trained_with_relations(hpcgnn, shared_path):
    """Shards of a graph with relations and their reverses, and a run of links on them."""
    shards, run = write_once(COMM, typed_graph(True), shared_path / "typed"), shared_path / "run"
    assert hpcgnn("train", shards, *TRAINING, "--out", run, "--set", "decoder=complex")[0] == 0
    return shards, run


@pytest.mark.parallel([1, 2])
def test_links_of_a_relation_are_those_of_all_scores(hpcgnn, trained_with_relations, shared_path):
    shards, run = trained_with_relations
    assert hpcgnn("predict", run, shards, "--out", shared_path / "rows.npz")[0] == 0
    out, relations = shared_path / "top.parquet", read_graph_info(shards).relation_names
    status, _, complaints = hpcgnn("predict", run, shards, "--top", 3, "--set", "relation=knows reverse", "--out", out)
    assert (status, complaints) == (0, "")
    on_rank_zero(COMM, lambda: (shared_path / "pairs.csv").write_text("3,knows,100\n100,owns,3\n7,likes reverse,0\n"))
    status, _, complaints = hpcgnn("predict", run, shards, "--pairs", shared_path / "pairs.csv", "--out",
                                   shared_path / "scores.csv")
    assert (status, complaints) == (0, "")
    if COMM.rank:
        return
    dataset, rows = typed_graph(True), read_answer_arrays(shared_path / "rows.npz")["prediction"]
    scores = scores_of(rows, read_checkpoint(run / "checkpoint.h5").best_model["link_decoder.weight"].numpy())
    target = np.repeat(np.arange(dataset.num_nodes), np.diff(dataset.indptr))
    of = scores[4].copy()
    of[dataset.indices[dataset.edge_type == 4], target[dataset.edge_type == 4]] = -np.inf
    np.fill_diagonal(of, -np.inf)
    table = pandas.read_parquet(out)
    assert table.columns.tolist() == ["node", "relation", "target", "score"]
    assert set(table.relation) == {"knows reverse"}
    np.testing.assert_allclose(table.score.to_numpy().reshape(-1, 3), -np.sort(-of, axis=1)[:, :3], rtol=1e-6)
    np.testing.assert_allclose(table.score, of[table.node, table.target], rtol=1e-6)
    pairs = pandas.read_csv(shared_path / "scores.csv")
    assert pairs.columns.tolist() == ["source", "relation", "target", "score"]
    np.testing.assert_allclose(pairs.score, [scores[relations.index(relation), source, end]
                                             for source, relation, end, _ in pairs.itertuples(index=False)], rtol=1e-5)


@pytest.mark.parallel([1, 2])
def test_the_best_links_of_a_kind_of_edge_join_its_types(hpcgnn, shared_path):
    """Users buy items, so a user is no answer to what a user buys."""
    draw, data = np.random.default_rng(5), {"user": {"num_nodes": 30}, "item": {"num_nodes": 20}}
    data["user", "buys", "item"] = {"edge_index": np.stack([draw.integers(0, 30, 90), draw.integers(0, 20, 90)])}
    data["item", "like", "item"] = {"edge_index": draw.integers(0, 20, (2, 60))}
    shards, run, out = shared_path / "typed", shared_path / "run", shared_path / "top.csv"
    preprocess(data, parts=COMM.size, out=shards, val_links=(["user:0"], [0], ["item:3"]))
    assert hpcgnn("train", shards, *TRAINING, "--out", run)[0] == 0
    for relation, most in (("user__buys__item", 4), ("item__like__item", 30)):
        assert hpcgnn("predict", run, shards, "--top", most, "--set", f"relation={relation}", "--out", out)[0] == 0
        if COMM.rank == 0:
            types, table = relation.split("__"), pandas.read_csv(out)
            assert table.node.str.startswith(f"{types[0]}:").all() and table.target.str.startswith(f"{types[2]}:").all()
            assert table.node.nunique() == data[types[0]]["num_nodes"]
            known = {(f"{types[0]}:{u}", f"{types[2]}:{v}") for u, v in data[tuple(types)]["edge_index"].T.tolist()}
            found = set(zip(table.node, table.target, strict=True))
            assert found & known <= {("user:0", "item:3")} and len(found) == len(table)
            assert most == 4 or len(found) == 20 * 19 - sum(u != v for u, v in known)
        COMM.barrier()
    pairs = shared_path / "pairs.csv"
    for line, status in (("user:3,user__buys__item,item:4", 0), ("item:4,user__buys__item,user:3", 1)):
        on_rank_zero(COMM, lambda line=line: pairs.write_text(f"source,relation,target\n{line}\n"))
        found, _, error = hpcgnn("predict", run, shards, "--pairs", pairs, "--out", out)
        assert found == status and (not status or "from item to user, and edges go from user to item" in error)


@pytest.mark.parallel(2)
def test_what_can_t_be_done_with_relations_is_one_sentence(hpcgnn, trained_with_relations, shared_path):
    shards, run = trained_with_relations
    out = shared_path / "top.csv"
    status, _, complaint = hpcgnn("predict", run, shards, "--top", 3, "--out", out)
    assert status == 1 and "has 6 relations, and --top answers for one; name it by --set relation=" in complaint
    status, _, complaint = hpcgnn("predict", run, shards, "--top", 3, "--set", "relation=hates", "--out", out)
    assert status == 1 and "has no relation 'hates'; its relations are likes, knows, owns, .." in complaint
    status, _, complaint = hpcgnn("predict", run, shards, "--set", "relation=likes", "--out", out)
    assert status == 2 and "--set relation has no effect without --top" in complaint
    status, _, complaint = hpcgnn("export", run)
    assert status == 1 and "holds a model with a decoder of links, and an exported model has none" in complaint
    on_rank_zero(COMM, lambda: (shared_path / "two.csv").write_text("3,100\n"))
    status, _, complaint = hpcgnn("predict", run, shards, "--pairs", shared_path / "two.csv", "--out", out)
    assert status == 1 and "has 2 columns, and" in complaint and "has relations; expected three" in complaint


@pytest.mark.parallel(2)
def test_what_predict_can_t_do_with_links_is_one_sentence(hpcgnn, trained, shared_path):
    shards, run = trained
    on_rank_zero(COMM, lambda: (shared_path / "pairs.csv").write_text("n003,nobody\n"))
    status, _, complaint = hpcgnn("predict", run, shards, "--pairs", shared_path / "pairs.csv", "--out",
                                  shared_path / "scores.csv")
    assert status == 1 and "has a pair to node 'nobody', which does not exist" in complaint
    status, _, complaint = hpcgnn("predict", run, shards, "--top", 3, "--out", shared_path / "scores.txt")
    assert status == 1 and "names no format of links; end it with .csv or .parquet" in complaint
    of_nodes, labeled = shared_path / "nodes", write_once(COMM, easy_graph(), shared_path / "labeled")
    assert hpcgnn("train", labeled, *TRAINING[2:], "--out", of_nodes)[0] == 0
    status, _, complaint = hpcgnn("predict", of_nodes, labeled, "--top", 3, "--out", shared_path / "scores.csv")
    assert status == 1 and "holds a model of nodes, and --top and --pairs are for links" in complaint
