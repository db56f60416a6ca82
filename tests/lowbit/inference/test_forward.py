"""An integer model computes what its contract says, integer for integer, on one rank and on several."""

from __future__ import annotations

import numpy as np
import pytest
import reference_integer as reference
from integer_models import integer_map, row_scale, some_model
from mpi4py import MPI
from training_setup import arcs_where, easy_graph, random_owner, two_islands

from hpcgnn.exchange.plan import ExchangePlan
from hpcgnn.lowbit.inference.code_exchange import CodeExchange
from hpcgnn.lowbit.inference.coded_rows import BitRows, code_rows
from hpcgnn.lowbit.inference.host_pass import HostPass, RankNeighborhood, forward_codes, is_summed
from hpcgnn.partition.build import build_partition

SUMMED = ("gcn", "sage", "gin")
KINDS = (*SUMMED, "gat")


def run_on_part(model, dataset, owner, comm=MPI.COMM_SELF):
    """Collective: this rank's part, logits, embeddings and the codes that each convolution reads. What goes layer by
    layer also goes a block of rows through all that lies between two exchanges, to the same bits and messages.
    """
    part = build_partition(dataset, owner, comm.rank, comm.size)
    exchange = CodeExchange(comm, ExchangePlan.build(part))
    degree = part.in_degree[:part.num_inner]
    seen = []
    coded = code_rows(model.convolutions[0].rows, part.features.astype(np.float32), degree)
    logits, embeddings = forward_codes(model, coded, RankNeighborhood(part, exchange),
                                       lambda rows: seen.append(rows.codes))
    if is_summed(model):
        bits = BitRows.of(coded, model.convolutions[0].rows, degree)
        again, its_exchange = [], CodeExchange(comm, ExchangePlan.build(part))
        graph_pass = HostPass(model, RankNeighborhood(part, its_exchange), bits, keeps_codes=True)
        answers = graph_pass.forward(lambda rows: again.append((rows.coded() if not again else rows).codes))
        for found, expected in zip((*answers, *again), (logits, embeddings, *seen), strict=True):
            assert (found.tobytes(), found.dtype, found.shape) == (expected.tobytes(), expected.dtype, expected.shape)
        fewer = HostPass(model, RankNeighborhood(part, its_exchange), bits)
        assert fewer.forward()[0].tobytes() == logits.tobytes() and fewer.row_bytes <= graph_pass.row_bytes
        assert its_exchange.sent_bytes == 2 * exchange.sent_bytes
    return part, logits, embeddings, seen, exchange


@pytest.mark.covering
@pytest.mark.parametrize("num_layers, hidden, mapped_bits, bits", [
    (1, 10, 6, None), (2, 70, 4, 3), (3, 33, 8, None), (3, 64, 2, 2), (3, 20, 3, 4), (3, 129, 5, 5)])
@pytest.mark.parametrize("kind", SUMMED)
def test_integers_equal_the_contracts(kind, num_layers, hidden, mapped_bits, bits, byte_level):
    dataset = easy_graph()
    model = some_model(kind, hidden=hidden, num_layers=num_layers, mapped_bits=mapped_bits, bits=bits)
    _, logits, embeddings, seen, _ = run_on_part(model, dataset, np.zeros(dataset.num_nodes, np.int32))
    degree = np.diff(dataset.indptr)
    expected, hidden, codes, _ = reference.forward(model, dataset.features, dataset.indptr, dataset.indices, degree)
    for found, needed in zip(seen, codes, strict=True):
        np.testing.assert_array_equal(found, needed)
        assert len(np.unique(found)) > (10 if bits is None else 2**bits - 2)
    np.testing.assert_array_equal(logits, expected)
    if num_layers > 1:
        np.testing.assert_array_equal(embeddings, hidden)


@pytest.mark.covering
@pytest.mark.parametrize("hidden", [10, 70, 129])
@pytest.mark.parametrize("kind", SUMMED)
def test_normalized_rows_have_the_bits_of_every_level(kind, hidden, byte_level, monkeypatch):
    """A LayerNorm's sums have an order of their own, so no oracle but another level has their last bits."""
    dataset = easy_graph()
    model = some_model(kind, hidden=hidden, num_layers=3, has_norm=True, mapped_bits=4)
    owner = np.zeros(dataset.num_nodes, np.int32)
    _, logits, embeddings, _, _ = run_on_part(model, dataset, owner)
    monkeypatch.setenv("HPCGNN_SIMD", "portable")
    _, expected, hidden_rows, _, _ = run_on_part(model, dataset, owner)
    assert logits.tobytes() == expected.tobytes() and embeddings.tobytes() == hidden_rows.tobytes()


@pytest.mark.parametrize("num_heads", [1, 2, 5])
def test_attention_is_within_its_error_of_the_float_softmax(num_heads, simd):
    dataset = easy_graph()
    model = some_model("gat", num_layers=2, heads=num_heads)
    _, _, embeddings, seen, _ = run_on_part(model, dataset, np.zeros(dataset.num_nodes, np.int32))
    degree = np.diff(dataset.indptr)
    _, hidden, codes, _ = reference.forward(model, dataset.features, dataset.indptr, dataset.indices, degree)
    np.testing.assert_array_equal(seen[0], codes[0])
    np.testing.assert_allclose(embeddings, hidden, atol=2e-5)
    assert (seen[1] != codes[1]).mean() < 1e-3


@pytest.mark.covering
@pytest.mark.parallel([1, 2, 3, 4])
@pytest.mark.parametrize("mapped_bits", [2, 4, 6])
@pytest.mark.parametrize("kind", KINDS)
def test_every_integer_and_every_bit_of_the_logits_is_that_of_one_rank(kind, mapped_bits):
    """Rows of 16 columns of 4 bits, and of 32 of 2, are sent as they are summed; others are packed on their way."""
    comm, dataset = MPI.COMM_WORLD, easy_graph()
    model = some_model(kind, hidden=64 // mapped_bits, num_layers=3, has_norm=True, mapped_bits=mapped_bits)
    _, logits, embeddings, codes, _ = run_on_part(model, dataset, np.zeros(dataset.num_nodes, np.int32))
    found = run_on_part(model, dataset, random_owner(dataset, comm.size), comm)
    rows = found[0].inner_id
    for mine, all_rows in zip(found[3], codes, strict=True):
        np.testing.assert_array_equal(mine, all_rows[rows])
    assert found[1].tobytes() == logits[rows].tobytes()
    assert found[2].tobytes() == embeddings[rows].tobytes()


@pytest.mark.parametrize("is_signed", [False, True])
def test_rows_of_bits_are_the_same_rows(is_signed):
    rng, num_rows = np.random.default_rng(3), 37
    scale = row_scale(rng, is_signed=is_signed)
    degree = rng.integers(0, 20, num_rows)
    coded = code_rows(scale, np.abs(rng.normal(size=(num_rows, 300))).astype(np.float32) * (1 - 2 * is_signed), degree)
    rows = BitRows.of(coded, scale, degree)
    for name in ("codes", "step", "limit"):
        np.testing.assert_array_equal(getattr(rows.coded(), name), getattr(coded, name))
    np.testing.assert_array_equal(rows.step, coded.step)
    weights = integer_map(rng, 5, 300)
    expected = coded.codes.astype(np.int64) @ weights.codes.T.astype(np.int64)
    for first, stop in ((0, 37), (3, 4), (9, 31), (16, 37)):
        np.testing.assert_array_equal(rows.product(first, stop, weights), expected[first:stop])
    assert rows.packages().codes(0, 37).tobytes() == coded.codes.tobytes()


def with_isolated_nodes(dataset):
    """The same graph, in which every third node has no arc."""
    return arcs_where(dataset, lambda source, target: (source % 3 > 0) & (target % 3 > 0))


@pytest.mark.parametrize("kind", SUMMED)
def test_isolated_nodes_answer_as_the_contract_says(kind):
    dataset = with_isolated_nodes(easy_graph())
    model, degree = some_model(kind, num_layers=2), np.diff(dataset.indptr)
    _, logits, _, seen, _ = run_on_part(model, dataset, np.zeros(dataset.num_nodes, np.int32))
    expected, _, codes, _ = reference.forward(model, dataset.features, dataset.indptr, dataset.indices, degree)
    assert (degree == 0).sum() >= 80
    np.testing.assert_array_equal(seen[1], codes[1])
    np.testing.assert_array_equal(logits, expected)


# Where nodes live: the last rank has none; ranks share no arc; all live on one rank.
PLACES = {
    "a rank without nodes": (easy_graph, lambda num_nodes, size: np.arange(num_nodes) % max(1, size - 1)),
    "ranks without a boundary": (two_islands, lambda num_nodes, size: np.arange(num_nodes) * 2 // num_nodes % size),
    "nodes without an arc": (lambda: with_isolated_nodes(easy_graph()),
                             lambda num_nodes, size: np.arange(num_nodes) % size),
}


@pytest.mark.parallel([2, 3])
@pytest.mark.parametrize("place", PLACES)
def test_odd_parts_answer_in_the_same_bits(place):
    comm, (graph_of, owner_of) = MPI.COMM_WORLD, PLACES[place]
    dataset = graph_of()
    owner = owner_of(dataset.num_nodes, comm.size).astype(np.int32)
    for kind in KINDS:
        model = some_model(kind, num_features=dataset.num_features, num_classes=3)
        _, logits, _, _, _ = run_on_part(model, dataset, np.zeros(dataset.num_nodes, np.int32))
        part, found, _, _, exchange = run_on_part(model, dataset, owner, comm)
        assert found.tobytes() == logits[part.inner_id].tobytes()
        assert found.shape == (part.num_inner, 3)
        if place == "ranks without a boundary" and comm.size < 3:
            assert exchange.sent_bytes == 0


@pytest.mark.parallel([2])
@pytest.mark.parametrize("mapped_bits", range(2, 9))
def test_messages_are_as_long_as_their_codes(mapped_bits):
    comm, dataset = MPI.COMM_WORLD, easy_graph()
    model = some_model("gcn", hidden=11, num_classes=5, mapped_bits=mapped_bits)
    part, _, _, _, exchange = run_on_part(model, dataset, random_owner(dataset, comm.size), comm)
    rows = np.diff(part.boundary_offset)
    assert exchange.sent_bytes == sum(-(-int(count) * dim * mapped_bits // 8) for count in rows for dim in (11, 5))
    assert exchange.float_bytes == 4 * (11 + 5) * rows.sum()
