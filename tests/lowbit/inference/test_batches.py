"""Batches keep the arcs of their clusters, pack into one object, and give the same integers however they are summed."""

from __future__ import annotations

import numpy as np
import pytest
import reference_integer as reference
import scipy.sparse
from integer_models import some_model
from mpi4py import MPI
from training_setup import easy_graph, random_owner

from hpcgnn.errors import CollectiveError, ConfigError, KernelError
from hpcgnn.lowbit.inference import host_pass
from hpcgnn.lowbit.inference.batches import ALIGNMENT, HEADER, PackedBatches, cut_batches
from hpcgnn.lowbit.inference.coded_rows import code_rows
from hpcgnn.lowbit.inference.dealt import DealtBatches, DealtRun
from hpcgnn.lowbit.inference.host_pass import BatchNeighborhood, HostPass, pack_features
from hpcgnn.lowbit.inference.tile_costs import AggregationCosts
from hpcgnn.partition.build import build_partition

KINDS = ("gcn", "sage", "gin")
# Tiles where a batch has more than 60 entries, whatever else it has.
BY_SIZE = AggregationCosts(np.array([0, 0, 1.0, 0]), np.array([60.0, 0, 0, 0]))


def matrix_of(batches):
    """(num_rows, num_rows) of bool, in the order of the batches."""
    shape = batches.num_rows, batches.num_rows
    return scipy.sparse.csr_matrix((np.ones(len(batches.indices), bool), batches.indices, batches.indptr), shape)


def packed_graph(model, num_clusters=16, batch_size=3, **cutting):
    dataset = easy_graph()
    batches = cut_batches(dataset.indptr, dataset.indices, num_clusters, batch_size, **cutting)
    degree = dataset.in_degree()[batches.node_id]
    return dataset, pack_features(model, batches, dataset.features[batches.node_id].astype(np.float32), degree)


@pytest.mark.parametrize("keeps_all", [False, True])
@pytest.mark.parametrize("num_clusters, batch_size", [(1, 1), (7, 1), (16, 3), (16, 16), (5000, 4)])
def test_every_node_is_in_one_batch_and_arcs_stay_inside(num_clusters, batch_size, keeps_all):
    dataset = easy_graph()
    batches = cut_batches(dataset.indptr, dataset.indices, num_clusters, batch_size, keeps_all=keeps_all)
    np.testing.assert_array_equal(np.sort(batches.node_id), np.arange(dataset.num_nodes))
    whole = scipy.sparse.csr_matrix((np.ones(dataset.num_edges, bool), dataset.indices, dataset.indptr))
    whole = whole[batches.node_id][:, batches.node_id].tocoo()
    batch = np.repeat(np.arange(batches.num_batches), np.diff(batches.row_begin))
    inside = batch[whole.row] == batch[whole.col]
    kept = matrix_of(batches).tocoo()
    assert (batch[kept.row] == batch[kept.col]).all()
    places = whole.row[inside], whole.col[inside]
    expected = scipy.sparse.csr_matrix((np.ones(inside.sum(), bool), places), whole.shape)
    assert (kept > expected).nnz == 0
    if keeps_all or batch_size == 1 or num_clusters == 1:
        assert (kept != expected).nnz == 0


def test_arcs_between_clusters_of_a_batch_are_left_out_and_kept_on_demand():
    dataset = easy_graph()
    apart = cut_batches(dataset.indptr, dataset.indices, 16, 4)
    joined = cut_batches(dataset.indptr, dataset.indices, 16, 4, keeps_all=True)
    single = cut_batches(dataset.indptr, dataset.indices, 16, 1)
    np.testing.assert_array_equal(apart.node_id, joined.node_id)
    assert (matrix_of(apart) != matrix_of(single)).nnz == 0
    assert (matrix_of(apart) > matrix_of(joined)).nnz == 0 and len(joined.indices) > len(apart.indices)


def test_chosen_batches_are_those_batches():
    dataset = easy_graph()
    batches = cut_batches(dataset.indptr, dataset.indices, 16, 3)
    order = np.array([4, 0, 2])
    chosen = batches.chosen(order)
    assert chosen.num_batches == 3
    for place, b in enumerate(order):
        for found, needed in zip(chosen.adjacency(place), batches.adjacency(b), strict=True):
            np.testing.assert_array_equal(found, needed)
        rows = slice(*chosen.row_begin[place:place + 2])
        np.testing.assert_array_equal(chosen.node_id[rows], batches.node_id[slice(*batches.row_begin[b:b + 2])])
    assert batches.chosen(np.empty(0, int)).num_rows == 0


@pytest.mark.parametrize("num_clusters, batch_size", [(0, 1), (4, 0)])
def test_no_clusters_and_no_batches_are_refused(num_clusters, batch_size):
    dataset = easy_graph()
    with pytest.raises(ConfigError, match="1 or more"):
        cut_batches(dataset.indptr, dataset.indices, num_clusters, batch_size)


@pytest.mark.covering
@pytest.mark.parametrize("is_by_batch", [True, False])
@pytest.mark.parametrize("num_layers, has_norm", [(1, False), (3, False), (3, True)])
@pytest.mark.parametrize("kind", KINDS)
def test_tiles_gathering_and_both_give_the_integers_of_the_contract(kind, num_layers, has_norm, is_by_batch, byte_level,
                                                                    monkeypatch):
    """The oracle computes the block-diagonal graph, with its own in-degrees in the reductions."""
    monkeypatch.setattr(host_pass, "LEAST_BATCHES", 1 if is_by_batch else 1000)
    model = some_model(kind, num_layers=num_layers, has_norm=has_norm)
    dataset, packed = packed_graph(model)
    found = {way: HostPass.over_batches(model, packed, way, BY_SIZE) for way in ("tiles", "gather", "auto")}
    logits = {way: run.forward() for way, run in found.items()}
    batches = packed.batches
    expected = oracle(model, dataset.features[batches.node_id].astype(np.float32), batches, packed.in_degree)
    for way in found:
        np.testing.assert_array_equal(logits[way][0], expected, err_msg=way)
        assert logits[way][1].tobytes() == logits["gather"][1].tobytes()
    counts = found["auto"].counts
    assert counts.by_tiles and counts.by_gather
    assert counts.by_tiles + counts.by_gather == num_layers * batches.num_batches
    assert found["gather"].counts.num_places == 0 < found["tiles"].counts.num_places


@pytest.mark.covering
@pytest.mark.parametrize("num_features, hidden, num_classes, has_norm", [
    (1, 1, 1, False), (45, 33, 2, True), (130, 64, 41, False), (7, 100, 65, True)])
@pytest.mark.parametrize("kind", KINDS)
def test_batch_by_batch_gives_the_bits_of_layer_by_layer(kind, num_features, hidden, num_classes, has_norm, byte_level,
                                                         monkeypatch):
    model = some_model(kind, num_features, hidden, num_classes, num_layers=3, has_norm=has_norm)
    rows = np.random.default_rng(4).normal(size=(240, num_features)).astype(np.float32)
    dataset = easy_graph()
    batches = cut_batches(dataset.indptr, dataset.indices, 20, 1)
    packed = pack_features(model, batches, rows, dataset.in_degree()[batches.node_id])
    found = []
    for least in (1, 1000):
        monkeypatch.setattr(host_pass, "LEAST_BATCHES", least)
        found += [HostPass.over_batches(model, packed, way, BY_SIZE).forward() for way in ("gather", "tiles", "auto")]
    for logits, embeddings in found:
        assert logits.tobytes() == found[0][0].tobytes() and embeddings.tobytes() == found[0][1].tobytes()
    assert logits.shape == (240, num_classes) and (hidden == 1 or len(np.unique(logits)) > 10)


def test_a_pass_over_batches_shows_the_codes_that_each_convolution_reads(monkeypatch):
    monkeypatch.setattr(host_pass, "LEAST_BATCHES", 1)
    model = some_model("gcn", num_layers=3)
    _, packed = packed_graph(model)
    neighborhood, shown = BatchNeighborhood(packed), []
    logits, _ = HostPass(model, neighborhood, keeps_codes=True).forward(shown.append)
    assert [one.codes.shape[1] for one in shown] == [one.neighbor.codes.shape[1] for one in model.convolutions]
    compiled = HostPass(model, neighborhood)
    assert compiled.is_compiled and compiled.forward()[0].tobytes() == logits.tobytes()
    with pytest.raises(KernelError, match="keeps_codes=True"):
        compiled.forward(shown.append)


def test_jumped_tiles_are_those_without_an_entry():
    model = some_model("gcn", num_layers=2)
    _, packed = packed_graph(model, 16, 16)
    run = HostPass.over_batches(model, packed, "tiles")
    run.forward()
    matrix = matrix_of(packed.batches).toarray()
    matrix = np.pad(matrix, [(0, -len(matrix) % 8), (0, -len(matrix) % 128)])
    is_zero = ~matrix.reshape(len(matrix) // 8, 8, -1, 128).any(axis=(1, 3))
    assert run.counts.num_places == 2 * is_zero.size and run.counts.num_jumped == 2 * is_zero.sum() > 0


def oracle(model, rows, batches, in_degree):
    """The contract's forward: factors by in-degrees in the batch, codes by in-degrees in the graph."""
    h = rows
    for number, convolution in enumerate(model.convolutions):
        codes, step = reference.row_codes(convolution.rows, h, in_degree)
        degree = in_degree if convolution.kind == "gin" else batches.in_degree      # gin has no factors
        h, _ = reference.convolve(convolution, codes, step, batches.indptr, batches.indices, degree)
        if number < len(model.convolutions) - 1:
            h = np.maximum(h if convolution.norm is None else reference.layer_norm(h, convolution.norm), 0)
    return h


def test_a_batch_alone_gives_what_it_gives_among_others():
    model = some_model("gcn", num_layers=3)
    _, packed = packed_graph(model)
    logits, _ = HostPass.over_batches(model, packed, "auto", BY_SIZE).forward()
    order = np.random.default_rng(0).permutation(packed.batches.num_batches)
    rows = packed.batches.row_begin
    for places in (order, order[:1]):
        some = packed.batches.chosen(places)
        where = np.concatenate([np.arange(rows[b], rows[b + 1]) for b in places])
        again = PackedBatches.pack(some, packed.codes()[where], packed.in_degree[where], packed.features.bit_width)
        assert HostPass.over_batches(model, again, "auto", BY_SIZE).forward()[0].tobytes() == logits[where].tobytes()


def test_attention_runs_in_batches_too():
    model = some_model("gat", num_layers=2)
    _, packed = packed_graph(model)
    found = [HostPass.over_batches(model, packed, way).forward()[0] for way in ("tiles", "gather")]
    assert found[0].tobytes() == found[1].tobytes() and np.isfinite(found[0]).all()


@pytest.mark.parametrize("bits, is_signed", [(1, False), (4, False), (8, False), (2, True), (5, True), (8, True)])
def test_an_object_returns_what_was_packed_without_copies(bits, is_signed):
    dataset = easy_graph()
    batches = cut_batches(dataset.indptr, dataset.indices, 16, 3)
    low, high = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if is_signed else (0, 2**bits - 1)
    codes = np.random.default_rng(0).integers(low, high, (batches.num_rows, 45), endpoint=True)
    codes = codes.astype(np.int8 if is_signed else np.uint8)
    packed = PackedBatches.pack(batches, codes, dataset.in_degree()[batches.node_id], bits)
    loaded = PackedBatches.load(packed.buffer)
    np.testing.assert_array_equal(loaded.codes(), codes)
    assert loaded.codes().dtype == codes.dtype
    for name in ("node_id", "row_begin", "indptr", "indices"):
        np.testing.assert_array_equal(getattr(loaded.batches, name), getattr(batches, name))
        assert np.shares_memory(getattr(loaded.batches, name), packed.buffer)
    assert np.shares_memory(loaded.tiles.words, packed.buffer)
    assert np.shares_memory(loaded.features.words.numpy(), packed.buffer)
    assert packed.nbytes % ALIGNMENT == 0
    dense_bytes = 4 * (codes.size + sum(int(n) ** 2 for n in np.diff(batches.row_begin)))
    assert bits == 8 or packed.nbytes < dense_bytes


def some_object():
    dataset = easy_graph()
    batches = cut_batches(dataset.indptr, dataset.indices, 16, 3)
    codes = np.ones((batches.num_rows, 5), np.uint8)
    return PackedBatches.pack(batches, codes, dataset.in_degree()[batches.node_id], 3)


@pytest.mark.parametrize("change, words", [
    (lambda packed: packed.buffer[:100], "cut short"),
    (lambda packed: packed.buffer[:-64], "cut short"),
    (lambda packed: np.concatenate([packed.buffer, np.zeros(64, np.uint8)]), "too long"),
    (lambda packed: with_header(packed, "magic", 1), "no packed batches"),
    (lambda packed: with_header(packed, "version", 2), "version 1"),
    (lambda packed: with_header(packed, "bit_width", 9), "contradicts itself"),
    (lambda packed: with_header(packed, "num_rows", -1), "contradicts itself"),
    (lambda packed: with_header(packed, "num_entries", 2**40), "contradicts itself"),
    (lambda packed: with_array(packed, packed.batches.indptr, 1, 10**6), "indptr"),
    (lambda packed: with_array(packed, packed.batches.row_begin, 0, 1), "row_begin"),
    (lambda packed: with_array(packed, packed.tiles.begin, -1, 3), "tile_begin"),
    (lambda packed: with_array(packed, packed.batches.indices, 0, packed.batches.num_rows - 1), "outside its batch"),
    (lambda packed: with_array(packed, packed.tiles.column, 0, 9), "outside its batch"),
    (lambda packed: with_array(packed, packed.in_degree, 0, -4), "negative in-degree"),
    (lambda packed: packed.buffer.view(np.int64), "buffer of bytes"),
])
def test_what_is_no_such_object_is_refused(change, words):
    with pytest.raises(KernelError, match=words):
        PackedBatches.load(change(some_object()))


def with_header(packed, name, value):
    packed.buffer[:8 * len(HEADER)].view(np.int64)[HEADER.index(name)] = value
    return packed.buffer


def with_array(packed, array, place, value):
    array[place] = value
    return packed.buffer


def test_flipped_bytes_are_refused_or_stay_within_the_object():
    """Whatever loads must also be summed without a read past its end."""
    rng, original = np.random.default_rng(3), some_object().buffer
    num_refused = 0
    for _ in range(300):
        buffer = original.copy()
        buffer[rng.integers(0, len(buffer), 3)] ^= rng.integers(1, 256, 3).astype(np.uint8)
        try:
            packed = PackedBatches.load(buffer)
            codes = np.ones((packed.batches.num_rows, 4), np.int8)
            for way in ("tiles", "gather"):
                list(BatchNeighborhood(packed, way).sums(codes, 2))
        except KernelError:
            num_refused += 1
    assert num_refused > 50


def test_codes_that_do_not_fit_are_refused():
    dataset = easy_graph()
    batches = cut_batches(dataset.indptr, dataset.indices, 16, 3)
    degree = dataset.in_degree()[batches.node_id]
    with pytest.raises(KernelError, match="2 bits"):
        PackedBatches.pack(batches, np.full((batches.num_rows, 3), 4, np.uint8), degree, 2)
    with pytest.raises(KernelError, match="one row of codes and one in-degree per row"):
        PackedBatches.pack(batches, np.ones((3, 3), np.uint8), degree, 2)


@pytest.mark.parallel([1, 2, 3, 4])
@pytest.mark.parametrize("kind", ["gcn", "gin"])
def test_any_number_of_ranks_and_any_partition_give_the_same_bits(kind):
    comm, dataset = MPI.COMM_WORLD, easy_graph()
    model = some_model(kind, num_layers=3, has_norm=True)
    _, packed = packed_graph(model)
    logits, embeddings = HostPass.over_batches(model, packed, "gather").forward()
    row_of = np.argsort(packed.batches.node_id)
    part = build_partition(dataset, random_owner(dataset, comm.size), comm.rank, comm.size)
    run = dealt_run(comm, part, model, 16, 3)
    found = run.forward()
    assert found[0].tobytes() == logits[row_of[part.inner_id]].tobytes()
    assert found[1].tobytes() == embeddings[row_of[part.inner_id]].tobytes()
    counts = run.counts()
    assert counts.by_tiles + counts.by_gather == 3 * packed.batches.num_batches
    totals = run.totals()
    assert totals.num_batches == packed.batches.num_batches and totals.num_entries == len(packed.batches.indices)
    assert totals.num_arcs == dataset.num_edges and totals.packed_bytes >= packed.nbytes


def dealt_run(comm, part, model, num_clusters, batch_size, aggregation="auto"):
    """Collective."""
    degree = part.in_degree[:part.num_inner]
    coded = code_rows(model.convolutions[0].rows, part.features.astype(np.float32), degree)
    return DealtRun(DealtBatches.deal(comm, part, num_clusters, batch_size), model, coded.codes, degree, aggregation)


@pytest.mark.parallel([2, 4])
@pytest.mark.parametrize("kind", ["gcn", "sage"])
def test_ranks_without_a_batch_answer_for_their_rows(kind):
    """One batch for all ranks, and a rank that owns no node."""
    comm, dataset = MPI.COMM_WORLD, easy_graph()
    model = some_model(kind)
    part = build_partition(dataset, np.zeros(dataset.num_nodes, np.int32), comm.rank, comm.size)
    assert DealtBatches.deal(comm, part, 1, 1).batches.num_batches == (comm.rank == 0)
    logits, _ = dealt_run(comm, part, model, 1, 1, "gather").forward()
    alone = build_partition(dataset, np.zeros(dataset.num_nodes, np.int32), 0, 1)
    expected, _ = dealt_run(MPI.COMM_SELF, alone, model, 1, 1, "gather").forward()
    assert logits.tobytes() == (expected if comm.rank == 0 else expected[:0]).tobytes()
    assert logits.shape == (part.num_inner, model.num_classes) and len(np.unique(expected)) > len(expected)


@pytest.mark.parallel([2])
def test_another_word_for_aggregation_fails_on_all_ranks():
    comm, dataset = MPI.COMM_WORLD, easy_graph()
    part = build_partition(dataset, random_owner(dataset, comm.size), comm.rank, comm.size)
    with pytest.raises(CollectiveError, match="expected one of auto, tiles, gather"):
        dealt_run(comm, part, some_model("gcn"), 16, 3, "dense")


@pytest.mark.parametrize("least", [1, 1000])
def test_values_that_are_no_number_are_refused(least, monkeypatch):
    monkeypatch.setattr(host_pass, "LEAST_BATCHES", least)
    model = some_model("gcn")
    model.convolutions[0].bias[3] = np.nan
    _, packed = packed_graph(model)
    with pytest.raises(KernelError, match="NaN"):
        HostPass.over_batches(model, packed, "gather").forward()


@pytest.mark.parallel([2])
def test_a_cut_that_rank_zero_can_not_make_fails_on_all_ranks():
    comm, dataset = MPI.COMM_WORLD, easy_graph()
    part = build_partition(dataset, random_owner(dataset, comm.size), comm.rank, comm.size)
    with pytest.raises(CollectiveError, match="1 or more"):
        DealtBatches.deal(comm, part, 0, 1)
