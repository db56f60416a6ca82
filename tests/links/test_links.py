"""Links are held out, learned and ranked as plain NumPy and torch do it on the whole graph, on any number of ranks."""

from __future__ import annotations

from dataclasses import replace
from itertools import chain
from pathlib import Path
from runpy import run_path

import numpy as np
import pandas
import pytest
import scipy.sparse
import torch
from covering import long_but
from known_links import DRAWN, LINK_SETTINGS, classes_by, expected_loss, normal_rows, with_links
from mpi4py import MPI
from training_setup import losses, on_rank_zero, random_owner, train, train_as_one, write, write_once

import hpcgnn
from hpcgnn.config import LINKS as LINK_TASK
from hpcgnn.config import TrainConfig
from hpcgnn.data.cleaning import build_csr
from hpcgnn.data.edges import read_links
from hpcgnn.data.given import finish_dataset
from hpcgnn.data.hold_out import TEST, VALIDATION, doubts_about, hold_out, links_of
from hpcgnn.data.objects import given_graph
from hpcgnn.data.options import SourceOptions
from hpcgnn.data.source import load_source
from hpcgnn.data.tables import Choices
from hpcgnn.errors import CollectiveError, ConfigError, DatasetError
from hpcgnn.links.answers import best_links, best_of, write_pairs
from hpcgnn.links.objective import LinkObjective
from hpcgnn.links.questions import Question, questions_of
from hpcgnn.links.ranking import Ranks, _without_held_out, link_scores
from hpcgnn.links.task import LinkTask
from hpcgnn.ops.counter import NEGATIVES, CounterKey, words_of
from hpcgnn.partition.partition import Partition
from hpcgnn.results.float_run import FloatRun
from hpcgnn.shards.reader import read_graph_info, read_partition
from hpcgnn.training.checkpoint import read_checkpoint
from hpcgnn.training.scores import Score
from hpcgnn.training.session import Session

COMM = MPI.COMM_WORLD


def clean(pairs, num_nodes, symmetrize=False):
    source, target = np.array(pairs).T
    return build_csr(source, target, num_nodes, symmetrize, "toy")


def arcs_of(graph):
    target = np.repeat(np.arange(len(graph.indptr) - 1), np.diff(graph.indptr))
    return set(zip(graph.indices.tolist(), target.tolist(), strict=True))


# Holding links out

def test_drawn_links_leave_the_graph_in_both_directions_where_edges_hold_both_ways():
    graph = clean([(0, 1), (1, 2), (2, 3), (3, 4), (4, 0), (0, 2), (1, 3), (2, 4), (3, 0), (4, 1)], 5, symmetrize=True)
    left, held = hold_out(graph, None, (0.2, 0.3), 7, "toy")
    assert (held[:, 2] == VALIDATION).sum() == 2 and (held[:, 2] == TEST).sum() == 3
    gone = {(u, v) for u, v, _ in held.tolist()}
    assert len(gone) == 5 and all(u < v for u, v in gone)
    assert arcs_of(left) == arcs_of(graph) - gone - {(v, u) for u, v in gone}
    assert left.report.is_symmetric and "5 links are held out" in left.report.remarks[-1]


def test_drawn_links_of_a_directed_graph_leave_alone():
    graph = clean([(0, 1), (1, 0), (1, 2), (2, 3), (3, 0), (0, 2)], 4)
    left, held = hold_out(graph, None, (0.0, 0.34), 0, "toy")
    assert held[:, 2].tolist() == [TEST, TEST]
    assert arcs_of(left) == arcs_of(graph) - {(u, v) for u, v, _ in held.tolist()}


def test_edges_back_that_stay_in_the_graph_are_told():
    # All edges but one hold both ways, so the graph is directed, and only what is asked for leaves it.
    graph = clean([(0, 1), (1, 0), (1, 2), (2, 1), (3, 0)], 4)
    left, held = hold_out(graph, np.array([[0, 1, TEST], [3, 0, VALIDATION]]), (0.0, 0.0), 0, "toy")
    text, = doubts_about(left, held)
    assert text.startswith("1 of 2 held-out links have an edge back") and "--symmetrize" in text
    assert arcs_of(left) == {(1, 0), (1, 2), (2, 1)} and doubts_about(left, held[held[:, 2] == VALIDATION]) == ()


def test_given_links_are_taken_out_with_their_weights():
    source, target = np.array([[0, 1, 2], [1, 2, 0]])
    graph = build_csr(source, target, 3, False, "toy", weight=np.array([0.5, 2.0, 4.0]))
    left, held = hold_out(graph, links_of((([1], [2]), None), 3, None, "toy"), (0.0, 0.0), 0, "toy")
    assert held.tolist() == [[1, 2, VALIDATION]] and arcs_of(left) == {(0, 1), (2, 0)}
    assert sorted(left.edge_weight.tolist()) == [0.5, 4.0]


@pytest.mark.parametrize("given, shares, sentence", [
    ([[0, 1, 1], [0, 1, 2]], (0.0, 0.0), "toy has the link from node 0 to 1 in both the validation and the test set"),
    ([[2, 2, 1]], (0.0, 0.0), "toy has a held-out link from node 2 to itself"),
    ([[0, 1, 1]], (0.1, 0.0), "toy has held-out links of its own; leave out --hold-out"),
    (None, (0.5, 0.49), "toy has 3 links, and --hold-out 0.5 0.49 leaves none to train on"),
    (None, (0.34, 0.01), "toy has 3 links, and --hold-out 0.34 0.01 draws none for a set"),
])
def test_links_that_can_t_be_held_out_are_refused(given, shares, sentence):
    given = None if given is None else np.array(given)
    with pytest.raises(DatasetError, match=sentence.replace(".", r"\.")):
        hold_out(clean([(0, 1), (1, 2), (2, 0)], 3), given, shares, 0, "toy")


def test_a_link_and_its_reverse_are_one_where_edges_hold_both_ways():
    graph = clean([(0, 1), (1, 2), (2, 3)], 4, symmetrize=True)
    with pytest.raises(DatasetError, match="link from node 0 to 1 in both the validation and the test set"):
        hold_out(graph, links_of((([0], [1]), ([1], [0])), 4, None, "toy"), (0.0, 0.0), 0, "toy")
    directed = clean([(0, 1), (1, 0), (2, 3)], 4)
    assert len(hold_out(directed, links_of((([0], [1]), ([1], [0])), 4, None, "toy"), (0.0, 0.0), 0, "toy")[1]) == 2


def test_given_links_are_taken_from_any_source(tmp_path):
    links = np.array([[0, 7], [3, 11], [4, 9]])
    options = SourceOptions(val_links=links, test_links=([5], [6]))
    made = load_source("synthetic:nodes=200,mean_degree=6,classes=4", options)
    assert made.held_out.tolist() == [[0, 7, 1], [3, 11, 1], [4, 9, 1], [5, 6, 2]]
    # An archive's own links are numbers of rows, as its edges are; those of an option are ids.
    archive = {"indptr": np.arange(7), "indices": np.array([1, 2, 3, 4, 5, 0]), "node_ids": np.arange(10, 16),
               "features": np.eye(6)}
    np.savez(tmp_path / "own.npz", **archive, val_links=np.array([[2, 1], [4, 3]]))
    assert load_source(f"npz:{tmp_path}/own.npz", SourceOptions()).held_out.tolist() == [[2, 1, 1], [4, 3, 1]]
    np.savez(tmp_path / "bare.npz", **archive)
    asked = SourceOptions(val_links=(np.array([12, 14]), np.array([11, 13])))
    assert load_source(f"npz:{tmp_path}/bare.npz", asked).held_out.tolist() == [[2, 1, 1], [4, 3, 1]]
    with pytest.raises(DatasetError, match="has a validation link to node 2, which does not exist"):
        load_source(f"npz:{tmp_path}/bare.npz", SourceOptions(val_links=(np.array([2]), np.array([11]))))


def test_a_third_column_of_links_that_holds_no_weights_is_refused(tmp_path):
    """It may mark links that do not hold, or be the target of a relation."""
    links = np.array([[0, 7, 1], [3, 11, 0], [4, 9, 1]])
    np.savetxt(tmp_path / "v.txt", links, "%d")
    for given in (links, read_links(tmp_path / "v.txt", SourceOptions())):
        with pytest.raises(DatasetError, match="links hold 0 in their third column, which is no weight; leave"):
            load_source("synthetic:nodes=200,mean_degree=6,classes=4", SourceOptions(val_links=given))


@pytest.mark.parametrize("shares", [0.1, (0.1,), (0.1, 0.1, 0.1), ("few", 0.1)])
def test_shares_that_are_no_two_numbers_are_one_sentence(shares):
    with pytest.raises(DatasetError, match=r"^hold_out is .*; expected two numbers, as in hold_out=\(0.05, 0.1\)"):
        SourceOptions(hold_out=shares)


def made(data, shares, symmetrize=False, hold_out_relation="", **choices):
    return finish_dataset(given_graph(data, Choices(**choices)), SourceOptions(
        hold_out=shares, hold_out_relation=hold_out_relation, symmetrize=symmetrize, feature_kind="structural"))


def expected_last(edges, time, shares, is_one_way):
    """By loops: the links of validation and of test, as sets of (source, target), from the first time of each link."""
    first = {}
    for (source, target), when in zip(edges, time, strict=True):
        link = (source, target) if is_one_way else (min(source, target), max(source, target))
        if source != target and when < first.get(link, np.inf):
            first[link] = when
    remaining, found = sorted(set(first.values())), []
    for share in shares[::-1]:
        held = []
        while remaining:      # one whole time more, while no more than the share are held
            more = [link for link, when in first.items() if when == remaining[-1]]
            if len(held) + len(more) > round(share * len(first)):
                break
            held += more
            remaining.pop()
        found.append(set(held))
    return found[::-1]


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("symmetrize", [False, True])
def test_links_are_held_out_by_time_as_loops_over_them_hold_them_out(seed, symmetrize):
    """Of 30 nodes with loops, repeated edges and ties; times near 2**60, which float64 would not tell apart."""
    rng = np.random.default_rng(seed)
    edges, time = rng.integers(0, 30, (400, 2)), (1 << 60) + rng.integers(0, 40, 400)
    dataset = made(edges, (0.1, 0.2), symmetrize, edge_time=time)
    val, test = expected_last(edges.tolist(), time.tolist(), (0.1, 0.2), not symmetrize)
    found = [{(u, v) for u, v, of in dataset.held_out.tolist() if of == split} for split in (VALIDATION, TEST)]
    assert found == [val, test] and all(found)
    every = {(u, v) for u, v in edges.tolist() if u != v}
    gone = val | test
    if symmetrize:
        every, gone = (links | {(v, u) for u, v in links} for links in (every, gone))
    assert arcs_of(dataset) == every - gone      # also their later copies
    assert "test begins at time 11529215046068470" in " ".join(dataset.cleaning.remarks)


def test_relations_and_their_reverses_are_held_out_by_time():
    """(4, 2, 0) is the reverse of (0, 0, 4), and comes first: the link has its time."""
    triples = [(0, 0, 3), (1, 0, 4), (0, 0, 4), (0, 1, 4), (1, 1, 2)]
    edges = np.array([*triples, (3, 2, 0), (4, 2, 1), (4, 2, 0)])
    dataset = made(edges[:, [0, 2]], (0.2, 0.2), relation=edges[:, 1],
                   edge_time=[5.0, 6.0, 9.0, 7.0, 8.0, 5.0, 6.0, 1.0])
    assert dataset.held_out.tolist() == [[0, 4, VALIDATION, 1], [1, 2, TEST, 1]]
    with_reverses = made(edges[:5, [0, 2]], (0.2, 0.2), True, relation=edges[:5, 1], edge_time=[0, 1, 2, 3, 4])
    assert with_reverses.held_out.tolist() == [[0, 4, VALIDATION, 1], [1, 2, TEST, 1]]
    assert len(with_reverses.indices) == 6


def test_times_come_from_tables_files_and_data(tmp_path):
    """The last of ten links are held out, whether times are numbers, dates, or floats that float32 would round."""
    days = pandas.date_range("2020-01-01", periods=10)
    table = pandas.DataFrame({"source": range(10), "target": range(1, 11), "when": days.strftime("%Y-%m-%d"),
                              "day": days, "local": days.tz_localize("Europe/Berlin"),
                              "number": (1 << 55) + np.arange(10), "real": 1e9 + np.arange(10) / 1024})
    order = np.random.default_rng(0).permutation(10)
    table = table.iloc[order].reset_index(drop=True)
    table.to_csv(tmp_path / "e.csv", index=False)
    table.to_parquet(tmp_path / "e.parquet")
    options = SourceOptions(hold_out=(0.2, 0.1), feature_kind="structural")
    expected = [[7, 8, 1], [8, 9, 1], [9, 10, 2]]
    for column in ("when", "day", "number", "real"):
        found = load_source(f"csv:{tmp_path}/e.csv,time={column}", options)
        assert found.held_out.tolist() == expected and found.edge_attr is None and found.edge_weight is None
    for column in ("day", "local", "number", "real"):
        assert load_source(f"parquet:{tmp_path}/e.parquet,time={column}", options).held_out.tolist() == expected
        assert made(table, (0.2, 0.1), edge_time=column).held_out.tolist() == expected
    hours = made(table[["source", "target"]], (0.2, 0.1), edge_time=table.day.to_numpy().astype("datetime64[h]"))
    assert hours.held_out.tolist() == expected
    both = made(table, (0.2, 0.1), edge_time="real", edge_attr="real")
    assert both.held_out.tolist() == expected and both.edge_attr.shape == (7, 1)
    data = {"edge_index": torch.from_numpy(table[["source", "target"]].to_numpy().T.copy()),
            "time": torch.from_numpy(table.number.to_numpy().copy())}
    torch.save(data, tmp_path / "data.pt")
    assert made(data, (0.2, 0.1), edge_time="time").held_out.tolist() == expected
    assert load_source(f"pyg:{tmp_path}/data.pt,time=time", options).held_out.tolist() == expected


@pytest.mark.parametrize("time, shares, given, sentence", [
    ([1, 2, 3, 4], (0.0, 0.0), None, "has times of edges, which have no effect without --hold-out"),
    ([1, 2, 3], (0.0, 0.3), None, "has times of edges of shape .3,.; expected one for each of 4 edges"),
    ([1, 2, 3, np.nan], (0.0, 0.3), None, "the times of edges are unknown at place 3"),
    (["a", "b", "c", "d"], (0.0, 0.3), None, "the times of edges hold texts such as"),
    ([1, 2, 3, 3], (0.0, 0.25), None, "4 links, of which 0.25 for test is less than the 2 links of one time"),
    ([1, 2, 2, 3], (0.25, 0.25), None, "of which 0.25 for validation is less than the 2 links of one time"),
    ([1, 2, 3, 4], (0.5, 0.49), None, "--hold-out 0.5 0.49 leaves none to train on"),
    ([1, 2, 3, 4], (0.0, 0.0), ([0], [1]), "has held-out links of its own; leave out the times of edges")])
def test_times_that_hold_nothing_out_are_refused(time, shares, given, sentence):
    edges = np.array([[0, 1], [1, 2], [2, 3], [3, 4]])
    with pytest.raises(DatasetError, match=sentence):
        finish_dataset(given_graph(edges, Choices(edge_time=time)), SourceOptions(hold_out=shares, test_links=given))


def test_times_of_a_graph_that_is_read_without_them_are_refused():
    matrix = scipy.sparse.coo_matrix((np.ones(2), ([0, 1], [1, 2])), (3, 3))
    with pytest.raises(DatasetError, match="edge_time= has no effect on a matrix"):
        given_graph(matrix, Choices(edge_time=[1, 2]))


def typed_with_times(rng) -> dict:
    """Users rate items at times, and items have reverses; follows have other times; likes have none."""
    ends = {"rates": rng.integers(0, (6, 5), (40, 2)).T, "follows": rng.integers(0, 6, (2, 30)),
            "likes": rng.integers(0, (6, 5), (10, 2)).T}
    to = {"rates": "item", "follows": "user", "likes": "item"}
    edges = {("user", name, to[name]): {"edge_index": pairs} for name, pairs in ends.items()}
    for name in ("rates", "follows"):
        edges["user", name, to[name]]["when"] = rng.integers(0, 50, ends[name].shape[1])
    return {"user": {"x": np.eye(6)}, "item": {"x": np.eye(5)}} | edges | {
        ("item", "rated_by", "user"): {"edge_index": ends["rates"][::-1]}}


@pytest.mark.parametrize("seed", range(4))
def test_a_graph_with_types_holds_out_the_last_links_of_kinds_that_have_times(seed, tmp_path):
    """As a loop over them does; reverses leave, too; the same from an archive."""
    data = typed_with_times(np.random.default_rng(seed))
    kinds = [key for key in data if isinstance(key, tuple)]
    first, every = {}, {number: set() for number in range(4)}
    for number, key in enumerate(kinds):
        start, end = (6 * (kind == "item") for kind in key[::2])
        pairs = [(int(u) + start, int(v) + end) for u, v in data[key]["edge_index"].T]
        every[number] |= {(u, v) for u, v in pairs if u != v}
        for (u, v), time in zip(pairs, data[key].get("when", ()), strict="when" in data[key]):
            if u != v:
                first[u, number, v] = min(first.get((u, number, v), 99), int(time))
    shares, held, rest = (0.1, 0.2), [], sorted(first.values())
    for share, split in zip(shares[::-1], (TEST, VALIDATION), strict=True):
        count = round(share * len(first))
        begin = next(time for time in rest[::-1] if sum(other >= time for other in rest) <= count and not any(
            sum(other >= earlier for other in rest) <= count for earlier in rest if earlier < time))
        held += [[u, v, split, number] for (u, number, v), time in first.items() if begin <= time <= rest[-1]]
        rest = [time for time in rest if time < begin]
    gone = {(u, number, v) for u, v, _, number in held} | {(v, 3, u) for u, v, _, number in held if number == 0}
    dataset = made(data, shares, edge_time="when")
    assert dataset.held_out.tolist() == sorted(held)
    target = np.repeat(np.arange(11), np.diff(dataset.indptr))
    assert set(zip(dataset.indices.tolist(), dataset.edge_type.tolist(), target.tolist(), strict=True)) == {
        (u, number, v) for number, pairs in every.items() for u, v in pairs} - gone
    arrays = {"num_user": 6, "num_item": 5} | {f"edge_{'__'.join(key)}": data[key]["edge_index"] for key in kinds}
    arrays |= {f"edge_time_{'__'.join(key)}": data[key]["when"] for key in kinds if "when" in data[key]}
    np.savez(tmp_path / "g.npz", **arrays)
    options = SourceOptions(hold_out=shares, feature_kind="structural")
    assert load_source(f"npz:{tmp_path}/g.npz,time=edge_time", options).held_out.tolist() == sorted(held)


def test_the_last_links_of_one_kind_are_held_out():
    """The same as with times for this kind alone; the last links of the other kind with times stay."""
    data = typed_with_times(np.random.default_rng(0))
    alone = {key: {name: value for name, value in store.items() if name != "when" or "rates" in key}
             for key, store in data.items()}
    expected = made(alone, (0.1, 0.2), edge_time="when")
    found = made(data, (0.1, 0.2), edge_time="when", hold_out_relation="user__rates__item")
    assert found.held_out.tolist() == expected.held_out.tolist() and set(found.held_out[:, 3]) == {0}
    assert found.indices.tolist() == expected.indices.tolist()
    with pytest.raises(DatasetError, match="graph has no times of edges of user__likes__item, whose last links"):
        made(data, (0.1, 0.2), edge_time="when", hold_out_relation="user__likes__item")


@pytest.mark.parametrize("when, sentence", [
    ({"rates": [1, 2, 3]}, r"times of shape \(3,\) for 40 edges user__rates__item; expected one each"),
    ({"rates": np.arange(40), "follows": np.arange(30) / 2}, "times of user__rates__item as int64 and of user__"),
    ({}, "no kind of edge with 'when' to take times from")])
def test_times_of_kinds_that_can_t_be_compared_are_refused(when, sentence):
    data = typed_with_times(np.random.default_rng(0))
    for key, store in data.items():
        store.pop("when", None)
        store.update({"when": when[key[1]]} if key[1] in when else {})
    with pytest.raises(DatasetError, match=sentence):
        given_graph(data, Choices(edge_time="when"))


def test_a_table_of_links_names_its_columns(tmp_path):
    edges = {"source": ["a", "b", "c", "d"], "target": ["b", "c", "d", "a"]}
    links = {"target": ["c", "d"], "source": ["b", "c"]}      # two links, which an array could not hold
    hpcgnn.preprocess(edges, val_links=links, out=tmp_path / "o", comm=MPI.COMM_SELF)
    part = read_partition(tmp_path / "o", 0, 1, read_graph_info(tmp_path / "o"))
    assert part.held_out.tolist() == [[1, 2, VALIDATION], [2, 3, VALIDATION]] and len(part.indices) == 2


def test_shards_hold_a_link_with_each_of_its_ends(tmp_path):
    dataset = with_links()
    owner = random_owner(dataset, 3)
    write(dataset, owner, 3, tmp_path / "shards")
    info = read_graph_info(tmp_path / "shards")
    expected = {tuple(row) for row in dataset.held_out.tolist()}
    for part in range(3):
        held = read_partition(tmp_path / "shards", part, 3, info).held_out
        mine = {row for row in expected if part in (owner[row[0]], owner[row[1]])}
        assert {tuple(row) for row in held.tolist()} == mine and len(held) == len(mine)
    assert (info.num_val_links, info.num_test_links) == tuple((dataset.held_out[:, 2] == one).sum() for one in (1, 2))
    same = write(replace(dataset, held_out=None), owner, 3, tmp_path / "without")
    assert info.fingerprint.differences(read_graph_info(same).fingerprint) == ("split",)


# Ranks and scores, beside all products of the whole graph

def expected_scores(dataset, rows, classes, asked, name, by_chance=False):
    """Validation and test score by the definition, from all products at once; or their means over all orders."""
    products = (rows.astype(np.float64) @ rows.astype(np.float64).T).astype(np.float32)
    target = np.repeat(np.arange(dataset.num_nodes), np.diff(dataset.indptr))
    is_edge = np.zeros((dataset.num_nodes,) * 2, bool)
    is_edge[dataset.indices, target] = True      # [source, target]
    # By way and anchor: the answers with their splits. Where edges hold both ways, a node's links have one way.
    linked, questions = {}, {}
    for source, end, split in dataset.held_out.tolist():
        for way, anchor, answer in (("targets", source, end), ("sources", end, source)):
            name_of_way = "both" if dataset.cleaning.is_symmetric else way
            linked.setdefault((name_of_way, anchor), {})[answer] = split
            if asked in (way, "both"):
                questions.setdefault((name_of_way, anchor), []).append((answer, split))
    kind, _, most = name.partition("@")
    most, found = int(most or 0), []

    def gain(rank, number):
        if kind == "auc":      # the share of an answer's rivals that it beats
            return 1 - (rank - 1) / (number - 1) if number > 1 else 0.5
        return 1 / rank if kind == "mrr" else (rank <= most) / (np.log2(rank + 1) if kind == "ndcg" else 1)

    def mean(rank, number):
        return np.mean([gain(one, number) for one in range(1, number + 1)]) if by_chance else gain(rank, number)

    for split in (VALIDATION, TEST):
        by_anchor = []
        for (way, anchor), asked_here in questions.items():
            edges = is_edge.T[anchor] if way == "sources" else is_edge[anchor]
            ranks = [ranks_of(products[anchor], answer, edges, anchor, linked[way, anchor], split, classes)
                     for answer, of in asked_here if of == split]
            by_anchor += [ranks] if ranks else []
        links = [rank for ranks in by_anchor for rank in ranks]
        if kind in ("mrr", "auc", "hits"):
            found.append(np.mean([mean(*filtered) for filtered, _ in links]))
        elif kind == "recall":
            found.append(np.mean([np.mean([mean(*unseen) for _, unseen in ranks]) for ranks in by_anchor]))
        else:
            found.append(np.mean([sum(mean(*unseen) for _, unseen in ranks)
                                  / sum(gain(place, len(ranks)) for place in range(1, len(ranks) + 1))
                                  for ranks in by_anchor]))
    return found


def ranks_of(products, answer, is_linked, anchor, others, split, classes):
    """The filtered and the unseen rank of an answer, each with the number of candidates; `others` are the anchor's
    held-out ends with their splits.
    """
    allowed = ~is_linked & (np.arange(len(products)) != anchor) & (classes == classes[answer])
    allowed[answer] = False
    ranks = []
    for hidden in (set(others), {end for end, of in others.items() if split == TEST and of == VALIDATION}):
        rivals = allowed.copy()
        rivals[list(hidden - {answer})] = False
        rank = 1 + (products[rivals] > products[answer]).sum() + (products[rivals] == products[answer]).sum() / 2
        ranks.append((rank, 1 + rivals.sum()))
    return ranks


@pytest.mark.parallel([1, 2, 3])
@pytest.mark.parametrize("is_directed, asked, candidates, name", [
    (False, "both", "all", "mrr"), (True, "both", "label", "hits@3"), (True, "targets", "all", "recall@10"),
    (True, "sources", "all", "hits@10"), (True, "targets", "label", "ndcg@10"), (False, "both", "all", "ndcg@3"),
    (True, "both", "type", "mrr"), (False, "targets", "type", "recall@3"), (True, "both", "all", "auc"),
    (False, "both", "type", "auc")])
def test_scores_are_those_of_all_products(shared_path, is_directed, asked, candidates, name):
    dataset = with_links(is_directed=is_directed, has_types=candidates == "type")
    shards = write_once(COMM, dataset, shared_path / "shards")
    info = read_graph_info(shards)
    part = read_partition(shards, COMM.rank, COMM.size, info)
    config = TrainConfig.of(task="links", ask=asked, candidates=candidates)
    objective = LinkTask(config, info).objective(COMM, part, torch.device("cpu"))
    # Few different rows, so that many products tie.
    rows = np.random.default_rng(0).integers(-2, 3, (dataset.num_nodes, 3)).astype(np.float32)
    rows[::2] += 0.1
    mine = torch.from_numpy(rows[part.inner_id])
    found = objective.scores(COMM, mine, Score(name, None, LINK_TASK))
    classes = classes_by(dataset, candidates)
    assert np.isnan(found[0])
    np.testing.assert_allclose(found[1:], expected_scores(dataset, rows, classes, asked, name), rtol=1e-12)
    # What random rows score on average, and the same from the numbers of candidates.
    assert objective.score_by_chance(Score(name, None, LINK_TASK)) == pytest.approx(
        expected_scores(dataset, rows, classes, asked, name, by_chance=True)[1], rel=1e-12)


def test_all_links_of_a_node_are_one_question_where_edges_hold_both_ways():
    """Links 1 - 3 and 3 - 5, each listed from its lower end: to node 3, node 1 is no rival of node 5."""
    held = np.array([[1, 3, TEST], [3, 5, TEST]])
    part = Partition(**{name: None for name in Partition.__dataclass_fields__} | {
        "part": 0, "num_parts": 1, "inner_id": np.arange(6), "halo_id": np.empty(0, np.int64), "held_out": held,
        "indptr": np.zeros(7, np.int64), "indices": np.empty(0, np.int32), "halo_offset": np.zeros(2, np.int64)})
    rows = torch.tensor([[0.0, 0.0], [3.0, 0.0], [0.0, 0.0], [1.0, 1.0], [0.0, 0.0], [0.0, 2.0]])
    questions = questions_of(MPI.COMM_SELF, part, True, "both")
    nodes, none = torch.arange(6), torch.zeros(6, dtype=torch.int64)
    assert link_scores(MPI.COMM_SELF, rows, nodes, none, questions, "hits@1")[1] == 1
    # Three nodes are asked about; the first place of node 3 is node 1.
    assert link_scores(MPI.COMM_SELF, rows, nodes, none, questions, "recall@1")[1] == pytest.approx((1 + 0.5 + 1) / 3)


@pytest.mark.parallel(2)
@pytest.mark.parametrize("num_links", [0, 1, 400])
def test_other_held_out_answers_are_left_out_as_a_loop_over_pairs_leaves_them_out(num_links):
    """Some of 40 questions have one link, others many, in two classes of answers; products tie often."""
    rng, none = np.random.default_rng(num_links), np.zeros(0, np.int64)
    place = np.sort(np.minimum(rng.geometric(0.1, num_links), 40) - 1)
    split, of_answer = rng.choice([VALIDATION, TEST], num_links), rng.integers(0, 2, num_links)
    own, (better, equal) = rng.integers(0, 5, num_links).astype(np.float32), rng.integers(50, 99, (2, num_links))
    question = Question(none, none, False, place, none, split, none, none, none)
    expected = Ranks(*(1 + better + equal / 2 for _ in range(2)))
    for one in range(num_links):
        for other in range(num_links):
            if one != other and (place[one], of_answer[one]) == (place[other], of_answer[other]):
                rivals = (own[other] > own[one]) + (own[other] == own[one]) / 2
                expected.filtered[one] -= rivals
                expected.unseen[one] -= rivals * (split[one] == TEST and split[other] == VALIDATION)
    found = _without_held_out(question, own, of_answer, better, equal)
    assert found.filtered.tolist() == expected.filtered.tolist()
    assert found.unseen.tolist() == expected.unseen.tolist()


@pytest.mark.parametrize("order", [[0, 1, 2], [2, 0, 1]], ids=["in order", "of another rank first"])
def test_links_of_equal_score_are_listed_by_id_whatever_block_comes_first(order):
    products = np.random.default_rng(3).integers(0, 3, (5, 12)).astype(np.float32)
    products[4, 2:] = -np.inf      # fewer candidates than asked for
    expected = [sorted(range(12), key=lambda node: (-row[node], node))[:4] for row in products.tolist()]
    ids, scores = np.full((5, 4), -1), np.full((5, 4), -np.inf, np.float32)
    for block in np.arange(12).reshape(3, 4)[order]:
        together = np.concatenate([ids, np.broadcast_to(block, (5, 4))], axis=1)
        scores, ids = best_of(np.concatenate([scores, products[:, block]], axis=1), together, 4)
    assert ids[:4].tolist() == expected[:4] and ids[4, :2].tolist() == expected[4][:2]
    assert scores[:4].tolist() == np.take_along_axis(products, np.array(expected), 1)[:4].tolist()


def test_a_split_without_links_has_no_score(shared_path):
    dataset = with_links(shares=(0.0, 0.2))
    shards = write_once(COMM, dataset, shared_path / "shards")
    info = read_graph_info(shards)
    part = read_partition(shards, COMM.rank, COMM.size, info)
    objective = LinkTask(TrainConfig.of(task="links"), info).objective(COMM, part, torch.device("cpu"))
    found = link_scores(COMM, torch.rand(part.num_inner, 4), objective.node_id, objective.labels, objective.questions,
                        "mrr")
    assert np.isnan(found[0]) and 0 < found[1] < 1


# The loss, beside the whole graph in plain torch

@pytest.mark.covering
@pytest.mark.parallel([1, 2, 3])
@pytest.mark.parametrize("way", ["both ways", "directed", "one label is asked"])
@pytest.mark.parametrize("kind, temperature", [("softmax", 0.0), ("bce", 0.0), ("bpr", 0.0), ("bce", 1.5)])
@pytest.mark.parametrize("candidates", ["all", "label", "type"])
def test_loss_and_gradients_are_those_of_the_whole_graph(shared_path, monkeypatch, way, kind, temperature, candidates):
    monkeypatch.setattr("hpcgnn.links.objective.MOST_PRODUCTS", 5 * DRAWN)      # several blocks
    is_directed, label = way == "directed", 2 if way == "one label is asked" else -1
    dataset = with_links(is_directed=is_directed, has_types=candidates == "type", mean_degree=3)
    session = Session.open(COMM, write_once(COMM, dataset, shared_path / "shards"), TrainConfig.of(
        **LINK_SETTINGS, model="sage", link_loss=kind, candidates=candidates, epoch_rows="all",
        adversarial_temperature=temperature, asked_label=label))
    graph, objective = session.graph, session.objective
    assert isinstance(objective, LinkObjective) and objective.links.about == (True, is_directed)
    rows, is_asked = normal_rows(dataset), (dataset.labels == label) | (label < 0)
    mine = rows[graph.node_id[:graph.num_inner]].clone().requires_grad_()
    graph.begin_forward(3, 2, is_training=True)
    loss = objective.loss_sum(mine, "train", graph)
    loss.backward()

    def of_all():
        whole = rows.clone().requires_grad_()
        expected = expected_loss(dataset, whole, kind, classes_by(dataset, candidates), objective.links.about, 3, 2,
                                 is_asked, temperature=temperature)
        expected.backward()
        return expected.item(), whole.grad.numpy()

    expected, gradient = on_rank_zero(COMM, of_all)
    assert COMM.allreduce(loss.item()) == pytest.approx(expected, rel=1e-5)
    np.testing.assert_allclose(mine.grad.numpy(), gradient[graph.node_id[:graph.num_inner]], rtol=1e-4, atol=1e-4)
    assert objective.mean_rows["train"] == dataset.in_degree()[is_asked].sum() * (1 + is_directed)


def test_weights_of_hard_negatives_are_constants_in_the_gradient():
    """Beside central differences of sum p softplus(s), with p = softmax(a s) from NumPy and held fixed."""
    score, step = np.random.default_rng(0).standard_normal((3, 7)), 1e-6
    weight = np.exp(2 * score) / np.exp(2 * score).sum(axis=1, keepdims=True)
    objective = LinkObjective(None, {}, {}, LINK_TASK, None, MPI.COMM_SELF, None, {}, {}, kind="bce",
                              adversarial_temperature=2.0)
    others = torch.from_numpy(score).requires_grad_()
    found = objective._of_class(others, 50)
    np.testing.assert_allclose(found.detach(), (weight * np.logaddexp(0, score)).sum(axis=1), rtol=1e-12)
    found.sum().backward()
    slope = weight * (np.logaddexp(0, score + step) - np.logaddexp(0, score - step)) / (2 * step)
    np.testing.assert_allclose(others.grad, slope, rtol=1e-7)
    hardest = replace(objective, adversarial_temperature=1e4)._of_class(others, 50)
    np.testing.assert_allclose(hardest.detach(), np.logaddexp(0, score.max(axis=1)), rtol=1e-12)


@pytest.mark.parallel([1, 2, 3])
@pytest.mark.parametrize("is_directed", [False, True], ids=["both ways", "directed"])
def test_an_epoch_learns_the_questions_that_it_draws(shared_path, is_directed):
    """On P ranks those of one; on average over epochs, the loss of all of them."""
    dataset = with_links(is_directed=is_directed)
    session = Session.open(COMM, write_once(COMM, dataset, shared_path / "shards"),
                           TrainConfig.of(**LINK_SETTINGS, model="sage", link_share=0.5, epoch_rows="all"))
    graph, objective = session.graph, session.objective
    mine = normal_rows(dataset)[graph.node_id[:graph.num_inner]]

    def asked(epoch):
        graph.begin_forward(3, epoch, is_training=True)
        drawn = [(int(place), int(graph.node_id[anchor]), int(graph.node_id[answer]))
                 for place, one in enumerate(objective._ends(graph, mine).asked)
                 for question, anchor in enumerate(one.anchor)
                 for answer in one.adjacency.matrix.indices[
                     one.adjacency.matrix.begin[question]:one.adjacency.matrix.end[question]]]
        return sorted(chain(*COMM.allgather(drawn))), COMM.allreduce(objective.loss_sum(mine, "train", graph).item())

    whole = replace(objective, share=1.0)
    num_links = dataset.num_edges * (1 + is_directed)
    found, losses, expected = [], [], []
    for epoch in range(12):
        drawn, loss = asked(epoch)
        words = [words_of(np.arange(dataset.num_nodes), 1, CounterKey(3, epoch, NEGATIVES, 1 + place))[:, 0]
                 for place in range(1 + is_directed)]
        # A question is drawn with all its answers.
        target, source = np.repeat(np.arange(dataset.num_nodes), dataset.in_degree()), dataset.indices
        every = [(0, int(v), int(u)) for u, v in zip(source, target, strict=True)]
        every += [(1, int(u), int(v)) for u, v in zip(source, target, strict=True)] if is_directed else []
        assert drawn == sorted(link for link in every if words[link[0]][link[1]] < 1 << 31)
        found.append(len(drawn) / num_links)
        losses.append(loss)
        graph.begin_forward(3, epoch, is_training=True)
        expected.append(COMM.allreduce(whole.loss_sum(mine, "train", graph).item()))
    assert len(set(found)) > 6 and np.mean(found) == pytest.approx(0.5, abs=0.1)
    assert np.mean(losses) == pytest.approx(np.mean(expected), rel=0.2)


@pytest.mark.parallel([1, 2])
def test_edges_that_dropout_leaves_out_are_learned_too(shared_path):
    dataset = with_links()
    session = Session.open(COMM, write_once(COMM, dataset, shared_path / "shards"),
                           TrainConfig.of(**LINK_SETTINGS, model="sage", edge_dropout=0.5, epoch_rows="all"))
    graph = session.graph_of(3, 2)
    assert len(graph.arcs[1]) < len(session.graph.arcs[1])
    rows = normal_rows(dataset)
    graph.begin_forward(3, 2, is_training=True)
    found = session.objective.loss_sum(rows[graph.node_id[:graph.num_inner]], "train", graph)
    nodes = np.zeros(dataset.num_nodes, int)
    expected = expected_loss(dataset, rows, "softmax", nodes, (True, False), 3, 2)
    assert COMM.allreduce(found.item()) == pytest.approx(expected.item(), rel=1e-5)


# Trainings

@pytest.mark.parallel([2, 3])
@pytest.mark.parametrize("settings", long_but((1, 2, 3, 4), [
    {"model": "gcn"}, {"model": "gat", "link_loss": "bce"}, {"model": "sage", "norm": "batch", "edge_dropout": 0.3},
    {"model": "sage", "is_directed": True}, {"model": "appnp", "link_loss": "bpr", "nodes_aware": "on"},
    {"model": "gat", "rematerialize": True}, {"model": "gcn", "link_loss": "bce", "adversarial_temperature": 1.0}]),
    ids=["gcn", "gat", "edge dropout", "directed", "shared rows", "rematerialize", "hard negatives"])
def test_ranks_train_as_one(shared_path, settings):
    settings = {**LINK_SETTINGS, "dropout": 0.3, "epochs": 3, **settings}
    dataset = with_links(is_directed=settings.pop("is_directed", False))
    found, metrics, expected, of_one = train_as_one(COMM, dataset, shared_path, **settings)
    np.testing.assert_allclose(losses(metrics), losses(of_one), rtol=1e-4)
    assert found["score_name"] == "mrr"
    assert found["test_score"] == pytest.approx(expected["test_score"], abs=0.01)


@pytest.mark.parallel(2)
@pytest.mark.parametrize("method", long_but((1, 5, 8), [
    {"method": "uniform", "bits": 4}, {"method": "sylvie"}, {"method": "joint"}, {"method": "pipegcn"},
    {"method": "adaqp"}, {"method": "sancus"}, {"precision": "bf16"}, {"precision": "fp16", "method": "uniform"},
    {"predict": "previous", "method": "uniform"}]),
    ids=["uniform", "sylvie", "joint", "pipegcn", "adaqp", "sancus", "bf16", "fp16", "differences"])
def test_methods_learn_links(shared_path, method):
    """Rows of ends travel as all rows do: in few bits, late, or only if they have moved."""
    shards = write_once(COMM, with_links(), shared_path / "shards")
    found, metrics, run = train(COMM, shards, shared_path / "run", **LINK_SETTINGS, epochs=20, hidden=16, lr=0.05,
                                dropout=0.0, **method)
    assert losses(metrics)[-3:].mean() < losses(metrics)[0] - 0.2
    assert found["test_score"] > 0.05      # 240 nodes in any order have 0.025
    # Two layers and the loss exchange rows, and rows of the loss are as wide as those of the layers.
    assert run.session.traits.num_layers == 3


@pytest.mark.parallel([1, 2])
def test_a_network_scores_links_without_relations(shared_path):
    """Trained, saved, opened again, ranked and asked for: its score of every pair, from its weights by NumPy."""
    dataset = with_links()
    shards = write_once(COMM, dataset, shared_path / "shards")
    found, metrics, run = train(COMM, shards, shared_path / "run", **LINK_SETTINGS, decoder="mlp", epochs=15, hidden=8,
                                lr=0.06)
    assert losses(metrics)[-1] < losses(metrics)[0] - 0.2 and found["test_score"] > 0.05
    decoder = read_checkpoint(run.folder.checkpoint).model if COMM.rank == 0 else {}
    names = {name for name in decoder if "link_decoder" in name}
    assert COMM.rank or names == {"link_decoder.relations", *(f"link_decoder.network.{layer}.{what}" for layer in (0, 2)
                                                              for what in ("weight", "bias"))}
    predicted = FloatRun.open(COMM, run.folder.path, shards, read_graph_info(shards))
    answers = predicted.answer()
    ids, scores = best_links(predicted, answers, 5)
    rows = np.concatenate(COMM.allgather(answers.logits)).astype(float)
    order = np.concatenate(COMM.allgather(predicted.part.inner_id))
    first, last = (predicted.model.link_decoder.network[layer] for layer in (0, 2))
    hidden = (rows[:, None] * rows) @ first.weight.detach().numpy().astype(float).T + first.bias.detach().numpy()
    of_all = np.empty((dataset.num_nodes,) * 2)
    of_all[np.ix_(order, order)] = np.maximum(hidden, 0) @ last.weight.detach().numpy()[0] + last.bias.item()
    np.testing.assert_allclose(of_all[predicted.part.inner_id[:, None], ids], scores, rtol=1e-4, atol=1e-5)
    on_rank_zero(COMM, lambda: (shared_path / "pairs.csv").write_text("3,100\n100,3\n7,0\n"))
    write_pairs(predicted, answers, shared_path / "pairs.csv", shared_path / "scores.csv")
    if COMM.rank == 0:
        table = np.loadtxt(shared_path / "scores.csv", delimiter=",", skiprows=1)
        np.testing.assert_allclose(table[:, 2], of_all[[3, 100, 7], [100, 3, 0]], rtol=1e-4, atol=1e-5)
    target = np.repeat(np.arange(dataset.num_nodes), dataset.in_degree())
    of_all[dataset.indices, target] = -np.inf
    np.fill_diagonal(of_all, -np.inf)
    np.testing.assert_allclose(scores, -np.sort(-of_all[predicted.part.inner_id])[:, :5], rtol=1e-4, atol=1e-5)


def write_visits(path):
    """60 users visit 40 items, those of their own group of four most of all."""
    rng, is_own = np.random.default_rng(0), np.arange(60)[:, None] % 4 == np.arange(40) % 4
    pairs = np.argwhere(rng.random((60, 40)) < np.where(is_own, 0.6, 0.02))
    is_test = rng.random(len(pairs)) < 0.2
    np.savez(path, train=pairs[~is_test], test=pairs[is_test])


@pytest.mark.parallel([2, 3])
def test_a_recommender_trains_on_ranks_as_on_one(shared_path):
    """The example's model: a table, propagated, with cosines by a temperature for scores."""
    example = run_path(str(Path(__file__).parents[2] / "examples/recommend.py"))
    on_rank_zero(COMM, lambda: write_visits(shared_path / "visits.npz"))
    for parts in (1, COMM.size):
        example["prepare"](shared_path / "visits.npz", shared_path / f"p{parts}", parts)

    def trained(comm):
        graph = hpcgnn.open(shared_path / f"p{comm.size}", comm=comm)
        return hpcgnn.fit(example["LightGCN"](graph, 8, 2, 0.2, 0.2, seed=0), graph, task="links", candidates="label",
                          ask="targets", score="recall@3", negatives=DRAWN, link_share=0.5, epochs=10, eval_every=10,
                          lr=0.15, out=shared_path / f"run{comm.size}")

    run = trained(COMM)
    expected = on_rank_zero(COMM, lambda: losses(trained(MPI.COMM_SELF).metrics).tolist())
    np.testing.assert_allclose(losses(run.metrics), expected, rtol=1e-3)
    assert run.test_score > 0.3      # of some 34 items that a user has not visited, 3 in any order have 0.09


def test_a_validation_part_leaves_test_out(tmp_path):
    """Every fifth pair of some users is held out of train; the graph has the others, both ways."""
    example = run_path(str(Path(__file__).parents[2] / "examples/recommend.py"))
    write_visits(tmp_path / "visits.npz")
    example["prepare"](tmp_path / "visits.npz", tmp_path / "shards", 1, 0.5)
    info, pairs = read_graph_info(tmp_path / "shards"), np.load(tmp_path / "visits.npz")["train"] + [0, 60]
    held = read_partition(tmp_path / "shards", 0, 1, info).held_out
    assert {(user, item) for user, item, _ in held.tolist()} < {tuple(pair) for pair in pairs.tolist()}
    assert (info.num_val_links, info.num_test_links, info.num_edges) == (len(held), 0, 2 * (len(pairs) - len(held)))
    assert len(set(held[:, 0])) < 40 and 0.04 < len(held) / len(pairs) < 0.16


# What is refused

@pytest.mark.parametrize("settings, sentence", [
    ({"quantize": "uniform"}, "task links can't be used with quantize uniform"),
    ({"label_inputs": 0.5}, "task links can't be used with label_inputs 0.5"),
    ({"pre_aggregation": "on"}, "can't be used with pre_aggregation on: the loss reads rows of other ranks one by one"),
    ({"method": "bns"}, "method bns can't be used with task links: rows that it leaves out are ends of links"),
    ({"loss": "mse"}, "task links can't be used with loss mse: link_loss is its loss"),
    ({"adversarial_temperature": 1.0}, "has no effect with link_loss softmax, which already weighs drawn nodes"),
    ({"adversarial_temperature": 1.0, "link_loss": "bpr"}, "has no effect with link_loss bpr, .* use link_loss=bce"),
    ({"task": "nodes", "score": "mrr"}, "score mrr is for links; add --task links"),
    ({"task": "nodes", "negatives": 5}, "negatives = 5 has no effect on task nodes, only on links"),
    ({"task": "nodes", "candidates": "label"}, "candidates = label has no effect on task nodes, only on links"),
    ({"task": "nodes", "decoder": "complex"}, "decoder = complex has no effect on task nodes, only on links"),
])
def test_settings_that_a_task_can_t_use_are_refused(settings, sentence):
    with pytest.raises(ConfigError, match=sentence):
        TrainConfig.of(**{"task": "links", **settings})
    assert TrainConfig.of(candidates="all").task == "nodes"      # as folders of earlier runs say it


def test_links_have_no_dropout_unless_it_is_given():
    assert TrainConfig.of(task="links").dropout == 0.0 and TrainConfig.of().dropout == 0.5
    assert TrainConfig.of(task="links", dropout=0.5).dropout == 0.5


def test_a_network_draws_fewer_nodes_unless_a_number_is_given():
    drawn = [TrainConfig.of(task="links", **settings).num_drawn
             for settings in ({}, {"decoder": "mlp"}, {"decoder": "mlp", "negatives": 5}, {"negatives": 7})]
    assert drawn == [1024, 32, 5, 7]


@pytest.mark.parallel(2)
def test_candidates_are_of_one_type_where_nodes_have_types(shared_path):
    def sizes(has_types, **settings):
        shards = write_once(COMM, with_links(has_types=has_types), shared_path / f"shards-{has_types}")
        return Session.open(COMM, shards, TrainConfig.of(**LINK_SETTINGS, **settings)).objective.num_of_class

    assert sizes(False) == (240,) == sizes(True, candidates="all")
    assert sizes(True) == (50, 0, 90, 60, 7, 33)
    with pytest.raises(CollectiveError, match="candidates type needs types of nodes, and"):
        sizes(False, candidates="type")


@pytest.mark.parallel(2)
def test_a_score_of_nodes_and_candidates_without_labels_are_refused_on_all_ranks(shared_path):
    dataset = with_links()
    shards = write_once(COMM, dataset, shared_path / "shards")
    with pytest.raises(CollectiveError, match="score accuracy does not fit links; use mrr, auc, hits@K"):
        Session.open(COMM, shards, TrainConfig.of(**LINK_SETTINGS, score="accuracy"))
    labels = np.where(np.arange(dataset.num_nodes) == 7, -1, dataset.labels)
    bare = replace(dataset, labels=labels, train_mask=dataset.train_mask & (labels >= 0),
                   val_mask=dataset.val_mask & (labels >= 0), test_mask=dataset.test_mask & (labels >= 0))
    shards = write_once(COMM, bare, shared_path / "bare")
    with pytest.raises(CollectiveError, match="candidates label needs a label for every node"):
        Session.open(COMM, shards, TrainConfig.of(**LINK_SETTINGS, candidates="label"))


@pytest.mark.parallel(2)
@pytest.mark.parametrize("settings, is_directed, sentence", [
    ({"asked_label": 1}, True, "asked_label needs a graph whose edges all hold both ways, and .* is directed"),
    ({"asked_label": 9}, False, "asked_label is 9, and no node of .* with this label has a link"),
    ({"steps": "4", "asked_label": 1}, False, "asked_label 1 can't be used with steps 4 on .*: a step learns the rows"),
    ({"steps": "4", "ask": "targets"}, True, "ask targets can't be used with steps 4 on .* use ask=both, or steps=1")])
def test_questions_that_a_graph_can_t_answer_are_refused(shared_path, settings, is_directed, sentence):
    shards = write_once(COMM, with_links(is_directed=is_directed), shared_path / "shards")
    with pytest.raises(CollectiveError, match=sentence):
        Session.open(COMM, shards, TrainConfig.of(**LINK_SETTINGS, **settings))


@pytest.mark.parallel(2)
def test_asked_label_needs_labels(shared_path):
    dataset = with_links()
    shares = np.eye(dataset.num_classes, dtype=np.float32)[dataset.labels]
    shards = write_once(COMM, replace(dataset, labels=shares), shared_path / "shards")
    with pytest.raises(CollectiveError, match=r"asked_label 1 needs one label per node.* use asked_label=-1"):
        Session.open(COMM, shards, TrainConfig.of(**LINK_SETTINGS, asked_label=1))
