"""Links with relations: held out, learned and ranked as plain torch and NumPy do it on a whole graph."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from runpy import run_path

import numpy as np
import pytest
import torch
from known_links import DRAWN, LINK_SETTINGS, loss_of_edge, words_drawn
from mpi4py import MPI
from torch import nn
from torch.nn import functional
from training_setup import (
    RELATIONS,
    assert_same_bits,
    losses,
    train,
    train_as_one,
    typed_csr,
    typed_graph,
    write_once,
)

import hpcgnn
from hpcgnn.config import LINKS, TrainConfig
from hpcgnn.data.cleaning import TypedEdges, build_typed_csr
from hpcgnn.data.edges import read_links
from hpcgnn.data.hold_out import TEST, VALIDATION, doubts_about, hold_out, links_of, relations_of
from hpcgnn.data.ids import NodeRows
from hpcgnn.data.options import SourceOptions
from hpcgnn.data.source import load_source
from hpcgnn.errors import CollectiveError, ConfigError, DatasetError
from hpcgnn.links.decoders import DECODERS
from hpcgnn.links.task import LinkTask
from hpcgnn.shards.reader import read_graph_info, read_partition
from hpcgnn.training.checkpoint import read_checkpoint
from hpcgnn.training.scores import Score
from hpcgnn.training.session import Session

COMM = MPI.COMM_WORLD
DIM = 6


def triples_of(graph):
    target = np.repeat(np.arange(len(graph.indptr) - 1), np.diff(graph.indptr))
    return sorted(zip(graph.indices.tolist(), graph.edge_type.tolist(), target.tolist(), strict=True))


# Holding links out

def test_drawn_links_leave_with_their_relation_and_their_reverses():
    triples = [(0, 0, 1), (0, 1, 1), (1, 2, 2), (2, 0, 3), (3, 1, 0), (0, 2, 2), (1, 1, 3), (2, 2, 0), (3, 0, 1),
               (1, 0, 0)]
    graph = typed_csr(triples, 4, symmetrize=True)
    left, held = hold_out(graph, None, (0.2, 0.3), 7, "toy")
    gone = {(source, relation, target) for source, target, _, relation in held.tolist()}
    assert (held[:, 2] == VALIDATION).sum() == 2 and (held[:, 2] == TEST).sum() == 3
    assert len(gone) == 5 and gone <= set(triples)      # drawn among the relations that are no reverses
    reverses = {(target, relation + 3, source) for source, relation, target in gone}
    assert triples_of(left) == sorted(set(triples_of(graph)) - gone - reverses)
    assert left.relation_names == graph.relation_names


@pytest.mark.parametrize("name", ["likes", "owns"])
def test_links_of_one_relation_are_drawn(name):
    """By its own name or its reverse's; "owns" reverses "likes" here, and "knows" keeps all edges."""
    likes, knows = [(0, 0, 3), (1, 0, 4), (2, 0, 3), (2, 0, 4), (0, 0, 5)], [(0, 1, 1), (1, 1, 2), (3, 1, 4)]
    back = [(target, 2, source) for source, _, target in likes]
    left, held = hold_out(typed_csr(likes + knows + back, 6), None, (0.2, 0.4), 3, "toy", name)
    assert held[:, 2].tolist().count(VALIDATION) == 1 and held[:, 2].tolist().count(TEST) == 2
    gone = {(source, relation, target) for source, target, _, relation in held.tolist()}
    assert len(gone) == 3 and gone <= set(likes)
    assert triples_of(left) == sorted(set(likes + knows + back) - gone - {(v, 2, u) for u, _, v in gone})


def test_links_of_one_relation_are_drawn_where_reverses_were_added():
    triples = [(0, 0, 1), (1, 0, 2), (2, 0, 3), (3, 0, 0), (0, 1, 2), (1, 1, 3)]
    graph = typed_csr(triples, 4, symmetrize=True)
    for name, number in (("likes", 0), ("knows", 1), ("knows reverse", 1)):
        left, held = hold_out(graph, None, (0.0, 0.5), 7, "toy", name)
        assert held[:, 3].tolist() == [number] * (2 - number) and len(left.indices) == 12 - 2 * len(held)


@pytest.mark.parametrize("relation, sentence", [
    ("hates", r"the relation to hold out is 'hates', and toy has likes, knows, owns$"),
    ("owns", "has 0 links, and --hold-out 0.5 0.0 draws none")])
def test_an_unknown_relation_or_one_without_links_is_refused(relation, sentence):
    with pytest.raises(DatasetError, match=sentence):
        hold_out(typed_csr([(0, 0, 1), (1, 1, 2)], 3), None, (0.5, 0.0), 0, "toy", relation)


def test_a_relation_to_hold_out_needs_shares_and_relations(tmp_path):
    with pytest.raises(DatasetError, match="'likes', which has no effect without shares; add --hold-out"):
        SourceOptions(hold_out_relation="likes")
    with pytest.raises(DatasetError, match="and given has no relations of edges"):
        hpcgnn.preprocess(([0, 1], [1, 2]), hold_out=(0.0, 0.5), hold_out_relation="likes", name="given",
                          out=tmp_path / "o", comm=MPI.COMM_SELF)


def test_a_link_of_another_relation_stays():
    graph = typed_csr([(0, 0, 1), (0, 1, 1), (1, 2, 2)], 3)
    given = links_of((([0], ["knows"], [1]), None), 3, None, "toy", RELATIONS)
    left, held = hold_out(graph, given, (0.0, 0.0), 0, "toy")
    assert held.tolist() == [[0, 1, VALIDATION, 1]] and triples_of(left) == [(0, 0, 1), (1, 2, 2)]


def test_a_given_reverse_stands_for_its_link():
    graph = typed_csr([(0, 0, 1), (1, 2, 2)], 3, symmetrize=True)
    given = links_of((None, ([2], ["owns reverse"], [1])), 3, None, "toy", graph.relation_names)
    left, held = hold_out(graph, given, (0.0, 0.0), 0, "toy")
    assert held.tolist() == [[1, 2, TEST, 2]] and triples_of(left) == [(0, 0, 1), (1, 3, 0)]
    both = links_of((([1], [2], [2]), ([2], [5], [1])), 3, None, "toy", graph.relation_names)
    with pytest.raises(DatasetError, match="link from node 1 to 2 in both the validation and the test set"):
        hold_out(graph, both, (0.0, 0.0), 0, "toy")


def test_links_leave_with_their_reverses_whose_relation_has_another_name():
    # "owns" reverses all edges of "likes", as a transform that adds rev_likes does, and "knows" reverses itself.
    likes, knows = [(0, 0, 3), (1, 0, 4), (2, 0, 3), (2, 0, 4), (0, 0, 5)], [(0, 1, 1), (1, 1, 2), (3, 1, 4)]
    both_ways = [(target, {0: 2, 1: 1}[relation], source) for source, relation, target in likes + knows]
    graph = typed_csr(likes + knows + both_ways, 6, attr=np.arange(16, dtype=np.float32)[:, None])
    assert not graph.report.is_symmetric
    left, held = hold_out(graph, None, (0.25, 0.25), 3, "toy")
    gone = {(source, relation, target) for source, target, _, relation in held.tolist()}
    assert len(gone) == 4 and gone <= set(likes + knows)
    back = {(target, {0: 2, 1: 1}[relation], source) for source, relation, target in gone}
    assert triples_of(left) == sorted(set(likes + knows + both_ways) - gone - back)
    assert doubts_about(left, held) == ()
    given = links_of((None, ([3], ["owns"], [2])), 6, None, "toy", RELATIONS)
    left, held = hold_out(graph, given, (0.0, 0.0), 0, "toy")
    assert held.tolist() == [[3, 2, TEST, 2]] and len(left.indices) == 14 and (2, 0, 3) not in triples_of(left)


def test_relations_of_equal_pairs_have_reverses_of_their_own():
    pairs = [(0, 3), (1, 4), (2, 3), (2, 5)]
    triples = [(u, relation, v) for relation in (0, 1) for u, v in pairs]
    triples += [(v, relation, u) for relation in (2, 3) for u, v in pairs]
    source, relation, target = np.array(triples).T
    graph = build_typed_csr(TypedEdges(source, target, None, relation.astype(np.int32)), 6, False, False, "toy",
                            ("rates", "likes", "rev_rates", "rev_likes"))
    given = links_of((([1], ["likes"], [4]), None), 6, None, "toy", graph.relation_names)
    left, held = hold_out(graph, given, (0.0, 0.0), 0, "toy")
    assert triples_of(left) == sorted(set(triples) - {(1, 1, 4), (4, 3, 1)})
    assert doubts_about(left, held)[0].startswith("1 of 1")      # rated, too


def test_a_relation_that_only_partly_reverses_another_one_stays_and_is_told():
    graph = typed_csr([(0, 0, 3), (1, 0, 4), (3, 2, 0), (4, 2, 0)], 5)
    given = links_of((None, ([0, 1], [0, 0], [3, 4])), 5, None, "toy", RELATIONS)
    left, held = hold_out(graph, given, (0.0, 0.0), 0, "toy")
    assert triples_of(left) == [(3, 2, 0), (4, 2, 0)]
    text, = doubts_about(left, held)
    assert text.startswith("1 of 2 held-out links have an edge back") and "relations that say the same" in text


def test_a_link_from_a_node_to_itself_can_be_held_out():
    given = links_of((None, ([0, 1], [0, 0], [0, 1])), 3, None, "toy", RELATIONS)
    graph, held = hold_out(typed_csr([(0, 0, 1), (1, 0, 2)], 3), given, (0.0, 0.0), 0, "toy")
    assert held.tolist() == [[0, 0, TEST, 0], [1, 1, TEST, 0]] and len(graph.indices) == 2


def test_parallel_edges_are_one_link_and_leave_with_their_attributes():
    attr = np.arange(5, dtype=np.float32)[:, None]
    graph = typed_csr([(0, 0, 1), (0, 0, 1), (0, 0, 1), (1, 0, 2), (2, 1, 0)], 3, attr=attr)
    left, held = hold_out(graph, None, (0.34, 0.0), 1, "toy")
    assert len(held) == 1
    left, _ = hold_out(graph, links_of((([0], [0], [1]), None), 3, None, "toy", RELATIONS), (0.0, 0.0), 0, "toy")
    assert triples_of(left) == [(1, 0, 2), (2, 1, 0)] and sorted(left.edge_attr[:, 0].tolist()) == [3.0, 4.0]


def test_two_triples_are_two_links_and_two_pairs_are_asked_for_as_columns():
    two = np.array([[0, 1, 2], [1, 0, 2]])
    assert links_of((None, two), 3, None, "toy", RELATIONS).tolist() == [[0, 2, 2, 1], [1, 2, 2, 0]]
    with pytest.raises(DatasetError, match="of two edges an array does not say which of the first two it is, so pass"):
        links_of((None, np.array([[0, 1], [1, 2]])), 3, None, "toy")


def test_relations_are_found_by_name_else_by_number():
    assert relations_of(["owns", "likes"], RELATIONS, "toy").tolist() == [2, 0]
    assert relations_of(np.array([2, 0]), RELATIONS, "toy").tolist() == [2, 0]
    assert relations_of(np.array([7, 30]), ("30", "7"), "toy").tolist() == [1, 0]      # numbers that are names
    for column in (["hates"], np.array([3]), np.array([-1])):
        with pytest.raises(DatasetError, match=r"toy have the relation .* which no edge has; relations are likes"):
            relations_of(column, RELATIONS, "toy")
    with pytest.raises(DatasetError, match="have the relation 8, which no edge has"):
        relations_of(np.array([7, 8]), ("30", "7"), "toy")


def test_links_without_a_relation_are_refused_and_a_third_column_without_relations_is_a_weight():
    with pytest.raises(DatasetError, match="have 2 columns, and edges have relations; expected three"):
        links_of((np.array([[0, 1], [1, 2], [2, 0]]), None), 3, None, "toy", RELATIONS)
    three = np.array([[0, 1, 2], [2, 0, 1], [1, 1, 0], [0, 0, 2]])
    assert links_of((three, None), 3, None, "toy", RELATIONS)[0].tolist() == [0, 2, VALIDATION, 1]
    weighed = np.array([0, 1]), np.array([2, 0]), np.array([0.5, 3.0])
    assert links_of((weighed, None), 3, None, "toy").tolist() == [[0, 2, VALIDATION], [1, 0, VALIDATION]]


def test_a_file_of_three_columns_holds_links_with_relations(tmp_path):
    (tmp_path / "links.tsv").write_text("ada\tknows\tbob\nbob\towns\tcar\n")
    (tmp_path / "numbers.csv").write_text("source,relation,target\n2,0,1\n1,2,0\n")
    rows = NodeRows(["ada", "bob", "car"], "toy")
    texts = read_links(tmp_path / "links.tsv", SourceOptions())
    assert links_of((texts, None), 3, rows, "toy", RELATIONS).tolist() == [[0, 1, VALIDATION, 1], [1, 2, VALIDATION, 2]]
    numbers = read_links(tmp_path / "numbers.csv", SourceOptions())
    assert links_of((None, numbers), 3, None, "toy", RELATIONS).tolist() == [[2, 1, TEST, 0], [1, 0, TEST, 2]]


def test_wordnet_becomes_two_tables(tmp_path):
    """A license, words with a place and in a second pair, a pointer between words that repeats one, and satellites."""
    license = "  1 This software and database is being provided to you\n"
    ten = " ".join(f"w{place} 0" for place in range(10))
    texts = {"noun": "00000010 05 n 02 dog 0 domestic_dog 0 002 @ 00000020 n 0000 + 00000005 v 0101 | a | barker\n"
                     "00000020 03 n 01 being 0 001 ~ 00000010 n 0000 | it lives\n",
             "verb": "00000005 29 v 01 dog 1 002 + 00000010 n 0101 + 00000010 n 0102 01 + 08 00 | follow\n",
             "adj": "00000007 00 a 01 alive(p) 0 001 & 00000009 a 0000 | living\n"
                    f"00000009 00 s 0a {ten} 001 & 00000007 s 0000 | x\n",
             "adv": "00000003 02 r 01 lively 0 001 \\ 00000007 a 0101 | so\n"}
    for name, text in texts.items():
        (tmp_path / f"data.{name}").write_text(license + text)
    run_path(str(Path(__file__).parents[2] / "jobs/wordnet.py"))["main"](tmp_path, tmp_path / "graph")
    assert (tmp_path / "graph/nodes.csv").read_text().split() == [
        "id,topic", "dog.n.00000010,5", "being.n.00000020,3", "dog.v.00000005,29", "alive.a.00000007,0",
        "w0.a.00000009,0", "lively.r.00000003,2"]
    edges = [("dog.n.00000010", "hypernym", "being.n.00000020"), ("dog.n.00000010", "derivation", "dog.v.00000005"),
             ("being.n.00000020", "hyponym", "dog.n.00000010"), ("dog.v.00000005", "derivation", "dog.n.00000010"),
             ("alive.a.00000007", "similar", "w0.a.00000009"), ("w0.a.00000009", "similar", "alive.a.00000007"),
             ("lively.r.00000003", "pertains to", "alive.a.00000007")]
    lines = (tmp_path / "graph/edges.csv").read_text().splitlines()
    assert lines == ["source,relation,target", *map(",".join, edges)]
    dataset = load_source(f"csv:{tmp_path}/graph/edges.csv,relation=relation,nodes={tmp_path}/graph/nodes.csv,"
                          "label=topic", SourceOptions(feature_kind="structural", test_links=(
                              [edges[0][0]], ["hypernym"], [edges[0][2]])))
    assert dataset.num_nodes == 6 and dataset.num_edges == 5      # the hyponym leaves with its hypernym


# Ranks and scores, beside all scores of the whole graph

# Weights of the two layers of mlp: small integers, so that many scores tie.
NETWORK = [np.random.default_rng(7).integers(-2, 3, shape).astype(np.float32)
           for shape in ((DIM, DIM), (DIM,), (1, DIM), (1,))]


def score_table(decoder, weight, rows, relation, reverse):
    """Scores [source, target] of a relation by the definition, in float64 and rounded once."""
    rows, of_relation = rows.astype(np.float64), weight.astype(np.float64)[relation]
    if decoder == "mlp":
        first, shift, last, bias = NETWORK
        hidden = np.maximum((rows * of_relation)[:, None] * rows @ first.T + shift, 0)
        return (hidden @ last[0] + bias).astype(np.float32)
    if decoder == "complex":
        half = rows.shape[1] // 2
        rows, of_relation = (values[..., :half] + 1j * values[..., half:] for values in (rows, of_relation))
    else:
        of_relation = of_relation if decoder == "distmult" else np.ones_like(of_relation)
    return np.real((rows * of_relation) @ rows.conj().T).astype(np.float32)


def expected_mrr(dataset, decoder, weight, rows, asked):
    """Filtered MRR of validation and test. With reverses, (u, r, v) asks v for its target by the reverse of r."""
    num_relations = len(dataset.relation_names)
    has_reverses = num_relations == 2 * len(RELATIONS)
    known = np.zeros((num_relations, dataset.num_nodes, dataset.num_nodes), bool)      # [relation, source, target]
    known[dataset.edge_type, dataset.indices, np.repeat(np.arange(dataset.num_nodes), np.diff(dataset.indptr))] = True
    for source, target, _, relation in dataset.held_out.tolist():
        known[relation, source, target] = True
        if has_reverses:
            known[relation + 3, target, source] = True
    tables = [score_table(decoder, weight, rows, relation, has_reverses) for relation in range(num_relations)]
    found = {VALIDATION: [], TEST: []}
    for source, target, split, relation in dataset.held_out.tolist():
        ways = []
        if asked in ("both", "targets"):
            ways.append((tables[relation][source], known[relation, source], target))
        if asked in ("both", "sources") and has_reverses:
            ways.append((tables[relation + 3][target], known[relation + 3, target], source))
        elif asked in ("both", "sources"):
            ways.append((tables[relation][:, target], known[relation, :, target], source))
        for scores, is_known, answer in ways:
            rivals = ~is_known
            ties = (scores[rivals] == scores[answer]).sum()
            found[split].append(1 / (1 + (scores[rivals] > scores[answer]).sum() + ties / 2))
    return [np.mean(found[VALIDATION]), np.mean(found[TEST])]


def decoder_of(name, num_relations, values):
    if name == "dot":
        return None
    made = DECODERS[name]([""] * num_relations, DIM)
    made.weight = nn.Parameter(torch.from_numpy(values))
    if name == "mlp":
        for weight, known in zip(made.network.parameters(), NETWORK, strict=True):
            weight.data = torch.from_numpy(known.copy())
    return made


@pytest.mark.parallel([1, 2, 3])
@pytest.mark.parametrize("symmetrize", [True, False], ids=["reverses", "directed"])
@pytest.mark.parametrize("decoder, asked", [("dot", "both"), ("distmult", "both"), ("distmult", "targets"),
                                            ("complex", "both"), ("complex", "sources"), ("mlp", "both")])
def test_filtered_ranks_are_those_of_all_scores(shared_path, symmetrize, decoder, asked):
    dataset = typed_graph(symmetrize)
    shards = write_once(COMM, dataset, shared_path / "shards")
    info = read_graph_info(shards)
    part = read_partition(shards, COMM.rank, COMM.size, info)
    config = TrainConfig.of(task="links", ask=asked, decoder=decoder)
    objective = LinkTask(config, info).objective(COMM, part, torch.device("cpu"))
    # Few different values, so that many scores tie.
    random = np.random.default_rng(0)
    rows = random.integers(-1, 2, (dataset.num_nodes, DIM)).astype(np.float32)
    weight = random.integers(-2, 3, (len(info.relation_names), DIM)).astype(np.float32)
    objective = replace(objective, decoder=decoder_of(decoder, len(info.relation_names), weight))
    found = objective.scores(COMM, torch.from_numpy(rows[part.inner_id]), Score("mrr", None, LINKS))
    np.testing.assert_allclose(found[1:], expected_mrr(dataset, decoder, weight, rows, asked), rtol=1e-12)


# The loss, beside the whole graph in plain torch

N3 = 0.02


def cube_sum(decoder, values):
    return (torch.complex(values[:DIM // 2], values[DIM // 2:]) if decoder == "complex" else values).abs().pow(3).sum()


def expected_loss(dataset, rows, weight, network, decoder, kind, has_reverses, seed, epoch):
    words = words_drawn(DRAWN, seed, epoch)
    node = [word * dataset.num_nodes >> 32 for word in words[:-1]]
    target = np.repeat(np.arange(dataset.num_nodes), np.diff(dataset.indptr)).tolist()

    def score(source, relation, end):
        if decoder == "dot":
            return (rows[source] * rows[end]).sum(-1)
        if decoder == "distmult":
            return (rows[source] * weight[relation] * rows[end]).sum(-1)
        if decoder == "mlp":
            first, shift, last, bias = network
            hidden = functional.linear(rows[source] * weight[relation] * rows[end], first, shift).relu()
            return functional.linear(hidden, last, bias)[..., 0]
        half = DIM // 2
        a, r, b = (torch.complex(one[..., :half], one[..., half:])
                   for one in (rows[source], weight[relation], rows[end]))
        return (a * r * b.conj()).sum(-1).real

    total = rows.new_zeros(())
    for source, end, relation in zip(dataset.indices.tolist(), target, dataset.edge_type.tolist(), strict=True):
        if has_reverses:
            reverse = (relation + 3) % 6
            asked = [(end, source, reverse, score(end, reverse, source), score([end] * DRAWN, reverse, node))]
        else:
            asked = [(end, source, relation, score(source, relation, end), score(node, relation, [end] * DRAWN)),
                     (source, end, relation, score(source, relation, end), score([source] * DRAWN, relation, node))]
        for anchor, answer, by, positive, others in asked:
            total = total + N3 * (cube_sum(decoder, rows[anchor]) + cube_sum(decoder, rows[answer]))
            if decoder != "dot":
                total = total + N3 * cube_sum(decoder, weight[by])
            number = (by * dataset.num_nodes + anchor) * dataset.num_nodes + answer + words[-1]
            total = total + loss_of_edge(kind, positive, others, dataset.num_nodes, number)
    return total


@pytest.mark.parallel([1, 2, 3])
@pytest.mark.parametrize("symmetrize", [True, False], ids=["reverses", "directed"])
@pytest.mark.parametrize("decoder, kind", [("dot", "softmax"), ("distmult", "softmax"), ("complex", "softmax"),
                                           ("complex", "bce"), ("distmult", "bpr"), ("mlp", "softmax"),
                                           ("mlp", "bpr")])
def test_loss_and_gradients_are_those_of_the_whole_graph(shared_path, monkeypatch, symmetrize, decoder, kind):
    monkeypatch.setattr("hpcgnn.links.objective.MOST_PRODUCTS", 5 * DRAWN)      # several blocks
    dataset = typed_graph(symmetrize, num_edges=150)
    shards = write_once(COMM, dataset, shared_path / "shards")
    session = Session.open(COMM, shards, TrainConfig.of(**LINK_SETTINGS, model="sage", link_loss=kind, decoder=decoder,
                                                        n3=N3, epoch_rows="all"))
    graph, random, num_relations = session.graph, np.random.default_rng(1), len(dataset.relation_names)
    rows = torch.from_numpy(random.standard_normal((dataset.num_nodes, DIM)).astype(np.float32) / 2)
    weight = random.standard_normal((num_relations, DIM)).astype(np.float32)
    mine = rows[graph.node_id[:graph.num_inner]].clone().requires_grad_()
    made = decoder_of(decoder, num_relations, weight)
    graph.begin_forward(3, 2, is_training=True)
    loss = replace(session.objective, decoder=made).loss_sum(mine, "train", graph)
    loss.backward()
    whole, of_relations = rows.clone().requires_grad_(), torch.from_numpy(weight.copy()).requires_grad_()
    network = [torch.from_numpy(known.copy()).requires_grad_() for known in NETWORK]
    expected = expected_loss(dataset, whole, of_relations, network, decoder, kind, symmetrize, 3, 2)
    expected.backward()
    assert COMM.allreduce(loss.item()) == pytest.approx(expected.item(), rel=1e-5)
    np.testing.assert_allclose(mine.grad.numpy(), whole.grad[graph.node_id[:graph.num_inner]].numpy(), rtol=1e-4,
                               atol=1e-4)
    if made is not None:
        for found, known in zip(made.parameters(), [of_relations, *network][:len(list(made.parameters()))],
                                strict=True):
            np.testing.assert_allclose(COMM.allreduce(found.grad.numpy()), known.grad.numpy(), rtol=1e-4, atol=1e-3)
    assert session.objective.mean_rows["train"] == dataset.num_edges * (1 if symmetrize else 2)


@pytest.mark.parallel([1, 2, 3])
@pytest.mark.parametrize("symmetrize", [True, False], ids=["reverses", "directed"])
def test_one_relation_is_learned_and_scored_while_all_carry_messages(shared_path, symmetrize):
    dataset = typed_graph(symmetrize)
    shards = write_once(COMM, dataset, shared_path / "shards")
    session = Session.open(COMM, shards, TrainConfig.of(**LINK_SETTINGS, model="sage", decoder="distmult",
                                                        asked_relation=RELATIONS[1], n3=N3, epoch_rows="all"))
    assert COMM.allreduce(len(session.graph.arcs[1])) == dataset.num_edges
    kept = np.isin(dataset.edge_type, (1, 4))
    of_one = replace(dataset, indptr=np.append(0, np.cumsum(kept))[dataset.indptr], indices=dataset.indices[kept],
                     edge_type=dataset.edge_type[kept])
    random, inner = np.random.default_rng(1), session.graph.node_id[:session.graph.num_inner]
    rows = torch.from_numpy(random.integers(-2, 3, (dataset.num_nodes, DIM)).astype(np.float32) / 2)
    weight = random.integers(-2, 3, (len(dataset.relation_names), DIM)).astype(np.float32)
    objective = replace(session.objective, decoder=decoder_of("distmult", len(weight), weight))
    session.graph.begin_forward(3, 2, is_training=True)
    loss = COMM.allreduce(objective.loss_sum(rows[inner], "train", session.graph).item())
    expected = expected_loss(of_one, rows, torch.from_numpy(weight), None, "distmult", "softmax", symmetrize, 3, 2)
    assert loss == pytest.approx(expected.item(), rel=1e-5)
    assert objective.mean_rows["train"] == kept.sum() * (1 if symmetrize else 2)
    found = objective.scores(COMM, rows[inner], Score("mrr", None, LINKS))
    held_out = dataset.held_out[dataset.held_out[:, 3] == 1]
    assert 0 < len(held_out) < len(dataset.held_out)
    assert [objective.num_global["val"], objective.num_global["test"]] == np.bincount(held_out[:, 2])[1:].tolist()
    known = replace(dataset, held_out=held_out)
    np.testing.assert_allclose(found[1:], expected_mrr(known, "distmult", weight, rows.numpy(), "both"), rtol=1e-12)


@pytest.mark.parallel([1, 2])
@pytest.mark.parametrize("asked, sentence", [
    ("unknown", f"has no such relation; it has {RELATIONS[0]}, "), (RELATIONS[2], "has no edge of it to learn; hold")])
def test_a_relation_without_links_can_t_be_asked_about(shared_path, asked, sentence):
    dataset = typed_graph(False)
    kept = dataset.edge_type < 2
    dataset = replace(dataset, indptr=np.append(0, np.cumsum(kept))[dataset.indptr], indices=dataset.indices[kept],
                      edge_type=dataset.edge_type[kept])
    shards = write_once(COMM, dataset, shared_path / "shards")
    with pytest.raises(CollectiveError, match=sentence):
        Session.open(COMM, shards, TrainConfig.of(**LINK_SETTINGS, asked_relation=asked))


# Trainings

@pytest.mark.parallel([2, 3])
@pytest.mark.parametrize("decoder, symmetrize", [("distmult", True), ("complex", False), ("mlp", True)])
def test_ranks_train_as_one(shared_path, decoder, symmetrize):
    settings = {**LINK_SETTINGS, "model": "sage", "decoder": decoder, "dropout": 0.3, "epochs": 5, "lr": 0.03}
    found, metrics, expected, of_one = train_as_one(COMM, typed_graph(symmetrize), shared_path, **settings)
    np.testing.assert_allclose(losses(metrics), losses(of_one), rtol=1e-5)
    assert found["test_score"] == pytest.approx(expected["test_score"], abs=0.01)
    assert losses(metrics)[-1] < losses(metrics)[0] - (0.02 if decoder == "mlp" else 0.05)


@pytest.mark.parallel(2)
def test_relations_are_trained_saved_and_gone_on_with_bit_for_bit(shared_path):
    shards = write_once(COMM, typed_graph(True), shared_path / "shards")
    settings = {**LINK_SETTINGS, "method": "sylvie", "epochs": 4, "checkpoint_every": 2}
    _, _, whole = train(COMM, shards, shared_path / "whole", **settings)
    train(COMM, shards, shared_path / "run", **settings | {"epochs": 2})
    resumed = read_checkpoint(shared_path / "run" / "checkpoint.h5")
    first = resumed.model["link_decoder.weight"]
    assert first.shape == (6, 8)
    _, _, run = train(COMM, shards, shared_path / "run", resumed=resumed, **settings)
    if COMM.rank == 0:
        assert_same_bits(run.folder.checkpoint, whole.folder.checkpoint)
        assert not torch.equal(first, read_checkpoint(run.folder.checkpoint).model["link_decoder.weight"])


class Shift(nn.Module):
    """A decoder of a program's own: a relation adds its row to a query."""

    def __init__(self, num_relations, dim):
        super().__init__()
        self.shift = nn.Embedding(num_relations, dim)

    def query(self, rows, relation):
        return rows + self.shift(relation)


class Rows(nn.Module):
    """A table of rows, and no layer."""

    def __init__(self, graph, dim, link_decoder=None):
        super().__init__()
        self.table = hpcgnn.NodeEmbedding(graph, dim, seed=3)
        if link_decoder is not None:
            self.link_decoder = link_decoder

    def forward(self, graph, x):
        return self.table(graph.node_index) / 3


@pytest.mark.parallel([1, 2])
def test_a_table_of_rows_is_trained_with_the_decoder_of_the_settings(shared_path):
    shards = write_once(COMM, typed_graph(True), shared_path / "shards")
    graph = hpcgnn.open(shards)
    model = Rows(graph, 10)
    run = hpcgnn.fit(model, graph, task="links", decoder="complex", negatives=DRAWN, epochs=10, lr=0.1, eval_every=5,
                     out=shared_path / "run")
    assert model.link_decoder.weight.shape == (6, 10)      # as wide as the model's rows
    assert run.val_score > 0.06      # 120 nodes in any order have 0.045
    opened = hpcgnn.open_run(shared_path / "run", shards, model=lambda: Rows(graph, 10))
    assert opened.model.link_decoder.weight.equal(model.link_decoder.weight)


@pytest.mark.parallel([1, 2])
def test_a_model_may_bring_its_own_decoder(shared_path):
    shards = write_once(COMM, typed_graph(True), shared_path / "shards")
    graph = hpcgnn.open(shards)
    torch.manual_seed(0)
    model = Rows(graph, 10, Shift(6, 10))
    before = model.link_decoder.shift.weight.detach().clone()
    hpcgnn.fit(model, graph, task="links", negatives=DRAWN, epochs=4, eval_every=2, out=shared_path / "run")
    assert isinstance(model.link_decoder, Shift) and not model.link_decoder.shift.weight.equal(before)
    with pytest.raises(CollectiveError, match="decoder distmult has no effect on Rows, which brings its own"):
        hpcgnn.fit(Rows(graph, 10, Shift(6, 10)), graph, task="links", decoder="distmult", out=shared_path / "named")
    with pytest.raises(CollectiveError, match=r"link_decoder is a Linear without query\(rows, relation\)"):
        hpcgnn.fit(Rows(graph, 10, nn.Linear(2, 2)), graph, task="links", out=shared_path / "linear")


@pytest.mark.parallel(2)
def test_an_own_decoder_that_can_t_ask_for_sources_needs_reverses(shared_path):
    graph = hpcgnn.open(write_once(COMM, typed_graph(False), shared_path / "shards"))
    settings = {"task": "links", "negatives": DRAWN, "epochs": 2, "eval_every": 2}
    with pytest.raises(CollectiveError, match="link_decoder is a Shift without source_query"):
        hpcgnn.fit(Rows(graph, 10, Shift(3, 10)), graph, out=shared_path / "both", **settings)
    run = hpcgnn.fit(Rows(graph, 10, Shift(3, 10)), graph, ask="targets", out=shared_path / "targets", **settings)
    assert 0 < run.test_score < 1


@pytest.mark.parallel(2)
def test_a_graph_with_other_relations_is_refused(shared_path):
    dataset = typed_graph(True)
    shards = write_once(COMM, dataset, shared_path / "shards")
    train(COMM, shards, shared_path / "run", **LINK_SETTINGS, epochs=2)
    renamed = replace(dataset, relation_names=("hates", *dataset.relation_names[1:]))
    other = write_once(COMM, renamed, shared_path / "other")
    with pytest.raises(ConfigError, match="the model was trained on other relations than this graph has"):
        hpcgnn.open_run(shared_path / "run", other, other_graph=True)


# What is refused

@pytest.mark.parallel(2)
def test_complex_needs_an_even_number_of_columns(shared_path):
    shards = write_once(COMM, typed_graph(True), shared_path / "shards")
    session = Session.open(COMM, shards, TrainConfig.of(**LINK_SETTINGS, decoder="complex", model="gcn", hidden=7))
    with pytest.raises(CollectiveError, match=r"decoder complex needs rows of an even number of columns.*found 7"):
        session.new_model(0)
