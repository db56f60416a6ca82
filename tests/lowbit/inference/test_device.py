"""Passes on a device, by its own kernels, emulated where there is none: the host's integers and its logits' bits."""

from __future__ import annotations

import shutil
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pytest
import torch
from cuda.conftest import HAS_GPU
from cuda.emulation import COMPILER, EmulatedBackend
from integer_models import some_model
from mpi4py import MPI
from stand_in_device import StandInDevice, WatchedComm
from training_setup import easy_graph, random_owner

from hpcgnn.errors import ConfigError, KernelError
from hpcgnn.exchange.plan import ExchangePlan
from hpcgnn.lowbit.inference.batches import PackedBatches, cut_batches, runs_of_batches
from hpcgnn.lowbit.inference.code_exchange import CodeExchange
from hpcgnn.lowbit.inference.coded_rows import code_rows
from hpcgnn.lowbit.inference.device_pass import CopiedBatches, DevicePass, tiles_are_faster
from hpcgnn.lowbit.inference.host_pass import HostPass, RankNeighborhood, forward_codes, pack_features
from hpcgnn.ops import device_layers
from hpcgnn.ops.cuda import device_layers as device_kernels
from hpcgnn.ops.cuda.bit_gemm import FORM_ROWS
from hpcgnn.ops.cuda.module import use_backend
from hpcgnn.ops.dispatch import device_kernels_on_cpu
from hpcgnn.ops.streams import use_streams
from hpcgnn.partition.build import build_partition

SUMMED = ("gcn", "sage", "gin")
KINDS = (*SUMMED, "gat")
NUM_NODES = 40
SMALL = f"synthetic:nodes={NUM_NODES},mean_degree=6,classes=4,features=40,signal=2"
pytestmark = pytest.mark.skipif(not HAS_GPU and shutil.which(COMPILER) is None,
                                reason=f"there is no {COMPILER} to compile the kernels with")


@contextmanager
def some_device(order=0):
    """(torch device, streams that watch): a GPU, or the emulation on a stand-in's memory, in an order of blocks."""
    if HAS_GPU:
        yield torch.device("cuda"), None
        return
    streams = StandInDevice()
    with use_backend(EmulatedBackend(order)), device_kernels_on_cpu(), use_streams(streams):
        yield torch.device("cpu"), streams


def assert_same(found, expected):
    for one, other in zip(found, expected, strict=True):
        assert (one.shape, one.dtype) == (other.shape, other.dtype)
        np.testing.assert_array_equal(one, other)
        assert one.tobytes() == other.tobytes()


def passes_of(model, dataset, owner, comm=MPI.COMM_SELF, order=0, num_passes=1):
    """Collective: this rank's part, what the host answers and what the device does, and the device's exchange."""
    part = build_partition(dataset, owner, comm.rank, comm.size)
    degree = part.in_degree[:part.num_inner]
    coded = code_rows(model.convolutions[0].rows, part.features.astype(np.float32), degree)
    expected = forward_codes(model, coded, RankNeighborhood(part, CodeExchange(comm, ExchangePlan.build(part))))
    with some_device(order) as (device, streams):
        watched = comm if streams is None else WatchedComm(comm, streams)
        exchange = CodeExchange(watched, ExchangePlan.build(part))
        graph_pass = DevicePass.over_graph(model, part, exchange, coded, device)
        found = graph_pass.forward()
        for _ in range(1, num_passes):
            assert_same(graph_pass.forward(), found)      # nothing of a pass is left for the next
    return part, expected, found, exchange


@pytest.mark.parallel([1, 2])
@pytest.mark.parametrize("kind, hidden, mapped_bits, bits, has_norm", [
    ("gcn", 10, 6, None, True), ("gin", 34, 4, 3, False), ("sage", 16, 2, 2, True), ("gat", 33, 8, None, True),
    ("sage", 33, 8, None, True), ("gat", 34, 4, 3, False)])
def test_the_hosts_bits_come_from_the_device(kind, hidden, mapped_bits, bits, has_norm):
    comm, dataset = MPI.COMM_WORLD, easy_graph(spec=SMALL)
    model = some_model(kind, num_features=40, hidden=hidden, num_layers=3, has_norm=has_norm, mapped_bits=mapped_bits,
                       bits=bits, heads=3 if hidden == 33 else 2)
    _, expected, found, exchange = passes_of(model, dataset, random_owner(dataset, comm.size), comm, num_passes=2)
    assert_same(found, expected)
    assert len(np.unique(expected[1])) > 10 and len(np.unique(expected[0])) > 10
    # Boundary rows cross in the words that kernels sum, twice here: no byte of padding but that of a row's last word.
    field_bits = device_layers.field_bits_of(mapped_bits)
    words = [-(-len(one.neighbor.codes) * field_bits // 32) for one in model.convolutions]
    assert exchange.sent_bytes == 2 * 4 * sum(words) * sum(map(len, exchange.boundary))
    assert comm.size == 1 or exchange.sent_bytes > 0


@pytest.mark.parametrize("kind", ["gcn", "gat"])
def test_one_layer_has_logits_and_no_embeddings(kind):
    dataset = easy_graph(spec=SMALL)
    model = some_model(kind, num_features=40, num_layers=1)
    _, expected, found, _ = passes_of(model, dataset, np.zeros(dataset.num_nodes, np.int32))
    assert_same(found, expected)
    assert found[1].shape == (NUM_NODES, 0)


def star_of(dataset):
    """The same nodes, of which the first is a neighbor of every other one."""
    others = np.arange(1, dataset.num_nodes, dtype=np.int32)
    indptr = np.concatenate([[0], len(others) + np.arange(dataset.num_nodes)]).astype(np.int64)
    return replace(dataset, indptr=indptr, indices=np.concatenate([others, np.zeros_like(others)]))


@pytest.mark.covering
@pytest.mark.parallel([1, 2])
@pytest.mark.parametrize("longest", [55, 10**6])
@pytest.mark.parametrize("mapped_bits", [2, 4, 8])
def test_rows_of_many_entries_are_summed_to_the_same_bits(monkeypatch, mapped_bits, longest):
    # Of 529 entries each group of lanes has more than a byte or half a word can hold; or they are summed in chunks.
    dataset = star_of(easy_graph(spec="synthetic:nodes=530,mean_degree=6,classes=4,features=8,signal=2"))
    model = some_model("gcn", num_features=8, hidden=66, num_layers=2, mapped_bits=mapped_bits)
    monkeypatch.setattr(device_layers, "HUB_ENTRIES", longest)
    comm, num_passes = MPI.COMM_WORLD, 2 if longest == 55 else 1      # sums of chunks begin with nothing
    _, expected, found, _ = passes_of(model, dataset, random_owner(dataset, comm.size), comm, num_passes=num_passes)
    assert_same(found, expected)


@pytest.mark.covering(1)
@pytest.mark.parametrize("order", [1, 2])
@pytest.mark.parametrize("form", list(FORM_ROWS))
def test_every_form_and_order_of_blocks_gives_the_same_bits(monkeypatch, form, order):
    dataset = easy_graph(spec=SMALL)
    packed = {}
    for kind in SUMMED:
        model = some_model(kind, num_features=40, hidden=24, num_layers=2, has_norm=True, mapped_bits=5, bits=3)
        packed[kind] = model, packed_graph(model, dataset, 4, 2)
    monkeypatch.setattr(device_kernels, "checked_form", lambda asked, device, is_small: form)
    for model, batches in packed.values():
        expected = HostPass.over_batches(model, batches, "gather").forward()
        with some_device(order) as (device, _):
            assert_same(CopiedBatches(model, batches, device, "tiles").forward(), expected)
    model = packed["gin"][0]
    _, expected, found, _ = passes_of(model, dataset, np.zeros(NUM_NODES, np.int32), order=order)
    assert_same(found, expected)


@pytest.mark.covering(1)
@pytest.mark.parametrize("num_shares", [1, 2, 4])
@pytest.mark.parametrize("form", list(FORM_ROWS))
@pytest.mark.parametrize("num_features, hidden", [(1100, 40), (20, 600)])     # three chunks; two, not on 16 bytes
@pytest.mark.parametrize("bits", [2, 5])
def test_maps_whose_steps_warps_divide_give_the_same_bits(monkeypatch, form, num_shares, num_features, hidden, bits):
    dataset = easy_graph(spec=f"synthetic:nodes=24,mean_degree=3,classes=4,features={num_features},signal=2")
    model = some_model("sage", num_features=num_features, hidden=hidden, num_layers=2, mapped_bits=5, bits=bits)
    packed = packed_graph(model, dataset, 4, 2)
    answered = HostPass.over_batches(model, packed, "gather").forward()
    divided = []

    def shares(num_rows, num_groups, num_steps, form, num_processors, least_rows=1):
        divided.append(min(num_shares, 4 * FORM_ROWS[form] // least_rows))
        return divided[-1]

    monkeypatch.setattr(device_kernels, "checked_form", lambda asked, device, is_small: form)
    monkeypatch.setattr(device_kernels, "shares_of", shares)
    _, expected, found, _ = passes_of(model, dataset, np.zeros(24, np.int32))
    assert_same(found, expected)
    assert max(divided) == num_shares
    with some_device() as (device, _):
        assert_same(CopiedBatches(model, packed, device, "tiles").forward(), answered)


def test_chunks_cover_the_entries_of_long_rows_once():
    indptr = np.cumsum([0, 3, 512, 513, 0, 1300])
    bounds, hubs = device_layers.hub_chunks(indptr)
    np.testing.assert_array_equal(hubs, [2, 4])
    np.testing.assert_array_equal(bounds, [[515, 1027], [1027, 1028], [1028, 1540], [1540, 2052], [2052, 2328]])


def packed_graph(model, dataset, num_clusters, batch_size, keeps_all=True):
    batches = cut_batches(dataset.indptr, dataset.indices, num_clusters, batch_size, keeps_all=keeps_all)
    degree = dataset.in_degree()[batches.node_id]
    return pack_features(model, batches, dataset.features[batches.node_id].astype(np.float32), degree)


@pytest.mark.covering(1)
@pytest.mark.parametrize("aggregation, kinds", [("tiles", SUMMED), ("gather", ("gcn", "gat")), ("auto", ("gat",))])
@pytest.mark.parametrize("hidden, mapped_bits", [(10, 6), (40, 4), (70, 3)])
def test_batches_have_the_hosts_bits_by_tiles_and_by_gathering(aggregation, kinds, hidden, mapped_bits):
    for kind in kinds:
        model = some_model(kind, num_features=40, hidden=hidden, num_layers=3, has_norm=True, mapped_bits=mapped_bits)
        packed = packed_graph(model, easy_graph(spec=SMALL), 6, 2)
        expected = HostPass.over_batches(model, packed, "gather").forward()
        with some_device() as (device, streams):
            run = CopiedBatches(model, packed, device, aggregation, group_rows=20)
            assert_same(run.forward(), expected)
            assert_same(run.forward(), expected)
        is_worth_it = tiles_are_faster(len(packed.batches.indices), len(packed.tiles.column), mapped_bits)
        takes_tiles = aggregation == "tiles" or (aggregation == "auto" and kind != "gat" and is_worth_it)
        counts = run.counts
        assert (counts.by_tiles, counts.by_gather) == ((2 * 3 * 3, 0) if takes_tiles else (0, 2 * 3 * 3))
        # One copy a group of batches, and nothing else, in the form that is packed.
        assert len(run.group_bytes) == 3 and run.copies == 2 * 3 and run.copied_bytes == 2 * sum(run.group_bytes)
        if streams is not None:
            copied = [num_bytes for event, num_bytes in streams.log if event == "copy"]
            assert copied == [*run.group_bytes] * 2


def test_tiles_are_taken_where_they_have_three_arcs_a_plane():
    assert tiles_are_faster(24, 2, 4) and not tiles_are_faster(23, 2, 4) and not tiles_are_faster(24, 2, 5)


@pytest.mark.parametrize("mapped_bits, takes_tiles", [(2, True), (8, False)])
def test_auto_takes_what_is_said_to_be_faster(mapped_bits, takes_tiles):
    model = some_model("gcn", num_features=40, num_layers=2, mapped_bits=mapped_bits)
    packed = packed_graph(model, easy_graph(spec=SMALL), 10, 1)
    assert 2 * 3 <= len(packed.batches.indices) / len(packed.tiles.column) < 8 * 3
    with some_device() as (device, _):
        run = CopiedBatches(model, packed, device, "auto")
        run.forward()
    assert (run.counts.by_tiles > 0, run.counts.by_gather > 0) == (takes_tiles, not takes_tiles)


@pytest.mark.parametrize("kind, aggregation", [("gcn", "tiles"), ("sage", "gather"), ("gin", "auto")])
def test_resident_batches_have_the_hosts_bits_and_nothing_crosses(kind, aggregation):
    model = some_model(kind, num_features=40, hidden=10, num_layers=3, has_norm=True)
    packed = packed_graph(model, easy_graph(spec=SMALL), 6, 2)
    expected = HostPass.over_batches(model, packed, "gather").forward()
    with some_device() as (device, streams):
        run = CopiedBatches(model, packed, device, aggregation, group_rows=20)
        resident = run.resident()
        row_bytes = []
        for _ in range(2):
            resident.queue()
            row_bytes.append(resident.row_bytes)
        groups = resident.result()
        assert len(groups) == len(run.group_bytes) == 3
        assert_same([np.concatenate([rows.cpu().numpy() for rows in one]) for one in zip(*groups, strict=True)],
                    expected)
    assert run.copies == 0 and (streams is None or not streams.log)
    # Features, fields, planes, logits and embeddings; a pass makes none of them twice.
    floats = sum(rows.nbytes for rows in expected)
    assert row_bytes[0] == row_bytes[1] > packed.features.words.nbytes + floats


def test_what_crosses_is_little_more_than_bits_of_features_and_tiles():
    model = some_model("gcn", num_features=400, hidden=10, num_layers=2, bits=2)
    dataset = easy_graph(spec="synthetic:nodes=300,mean_degree=6,classes=4,features=400,signal=2")
    packed = packed_graph(model, dataset, 12, 4, keeps_all=False)
    with some_device() as (device, _):
        run = CopiedBatches(model, packed, device, "tiles")
        assert len(run.group_bytes) == 1
        bits = 2 * 512 * 300 // 8                       # lines of 400 codes are padded to 512
        tiles = 132 * len(packed.tiles.column)          # 128 bytes of bits and a column
        nodes = 300 * (4 + 4 + 4)                       # two degrees and a factor
        slots = 4 * 3 * 128 + 8 * (3 * 16 + 1)          # rows of slots, bounds of rows of tiles
        assert bits + tiles + nodes + slots <= run.group_bytes[0] <= bits + tiles + nodes + slots + 7 * 64


def test_groups_are_batches_in_order_and_none_is_split():
    assert list(runs_of_batches(np.array([0, 10, 20, 90, 95, 100]), 25)) == [(0, 2), (2, 3), (3, 5)]
    assert list(runs_of_batches(np.array([0]), 25)) == []


def test_batches_without_a_row_answer_nothing():
    model = some_model("gcn", num_features=40)
    batches = cut_batches(*(lambda graph: (graph.indptr, graph.indices))(easy_graph(spec=SMALL)), 4, 2).chosen(
        np.empty(0, int))
    packed = PackedBatches.pack(batches, np.empty((0, 40), np.int8), np.empty(0, np.int64), 8)
    with some_device() as (device, _):
        logits, hidden = CopiedBatches(model, packed, device).forward()
    assert logits.shape == (0, 4) and hidden.shape == (0, 10)


def test_tiles_are_refused_for_attention():
    model = some_model("gat", num_features=40)
    with some_device() as (device, _), pytest.raises(ConfigError, match="attention weighs neighbors one by one"):
        CopiedBatches(model, packed_graph(model, easy_graph(spec=SMALL), 6, 2), device, "tiles")


def pass_over_small_graph(model, device):
    dataset = easy_graph(spec=SMALL)
    part = build_partition(dataset, np.zeros(NUM_NODES, np.int32), 0, 1)
    coded = code_rows(model.convolutions[0].rows, part.features.astype(np.float32), part.in_degree)
    return DevicePass.over_graph(model, part, CodeExchange(MPI.COMM_SELF, ExchangePlan.build(part)), coded, device)


def test_a_value_that_is_nan_and_layers_wider_than_a_blocks_memory_are_refused():
    model = some_model("gcn", num_features=40)
    model.convolutions[0].bias[0] = np.nan
    with some_device() as (device, _):
        with pytest.raises(KernelError, match="rows hold NaN"):
            pass_over_small_graph(model, device).forward()
        with pytest.raises(KernelError, match="at most 4096 columns"):
            pass_over_small_graph(some_model("gcn", num_features=40, hidden=5000), device)
