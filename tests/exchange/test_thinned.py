"""Thinned messages: rows that differ most arrive, as a simulation in NumPy says, and the others stay as they were."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from exchange.epochs import ChangingBits, Epochs
from mpi4py import MPI
from reference import bf16_value
from reference_quantization import encode_nearest, receive_nearest, to_bf16

from hpcgnn.errors import KernelError
from hpcgnn.exchange.bits import EpochPlan, UniformBits
from hpcgnn.exchange.kinds import Fresh, Kept
from hpcgnn.ops.counter import BACKWARD, FORWARD
from hpcgnn.widths import rows_sent

COMM = MPI.COMM_WORLD
SYNCHRONOUS, PIPELINED = Fresh().predicting, Kept().predicting
DIM = 13
IS_ASYNCHRONOUS = (False, True, True, False, False, True, True)


def rows_of(node_id, epoch, dim=DIM):
    """(n, dim) float32, a function of node and epoch; nodes 7 apart have equal rows."""
    kind, columns = node_id[:, None] % 7, np.arange(dim)
    return ((1 + kind) * np.sin(kind + columns + 1.0) + (kind % 3) * np.cos(epoch * columns)).astype(np.float32)


class SimulatedList:
    """What the receiver has of one list of rows."""

    def __init__(self, node_id, share):
        self.node_id, self.share, self.held = node_id, share, np.zeros((len(node_id), DIM), np.float32)

    def receive(self, rows, width):
        """One message: rows (n, dim) and their own widths (n,); returns the places of those that travel, in order."""
        difference = rows - self.held
        norm = np.sqrt((difference.astype(np.float64) ** 2).sum(axis=1))
        count = -(-len(rows) * round(1000 * self.share) // 1000)
        chosen = sorted(sorted(range(len(rows)), key=lambda place: (-norm[place], place))[:count],
                        key=lambda place: (width[place], place))
        widths = np.sort(width)[[(2 * slot + 1) * len(rows) // (2 * count) for slot in range(count)]]
        for place, bits in zip(chosen, widths, strict=True):
            self.held[place] += received(difference[place:place + 1], bits)[0]
        return chosen


def received(rows, bits):
    if bits == 32:
        return rows
    return bf16_value(to_bf16(rows)) if bits == 16 else receive_nearest(rows, int(bits))


class Simulation:
    """All that one rank receives in epochs: halo rows forward, gradients from the readers of its rows backward."""

    def __init__(self, epochs, share):
        self.epochs, plan = epochs, epochs.plan
        self.forward = [SimulatedList(rows.node_id, share) for rows in plan.halo]
        self.backward = [SimulatedList(rows.node_id, share) for rows in plan.boundary]

    def epoch(self, epoch, bit_plan):
        """(halo rows, gradients that came home) after the messages of an epoch."""
        plan = self.epochs.plan
        for peer, ahead, halo, back, boundary in zip(plan.peers, self.forward, plan.halo, self.backward, plan.boundary,
                                                     strict=True):
            if len(halo):
                ahead.receive(rows_of(ahead.node_id, epoch), bit_plan.widths(0, FORWARD, peer, plan.rank, halo))
            if len(boundary):
                back.receive(rows_of(back.node_id, epoch), bit_plan.widths(0, BACKWARD, peer, plan.rank, boundary))
        home = np.zeros((self.epochs.num_inner, DIM), np.float32)
        for back, boundary in zip(self.backward, plan.boundary, strict=True):
            home[boundary.index] += back.held
        return np.concatenate([one.held for one in self.forward]), home


def one_epoch(epochs, epoch, bit_plan, is_asynchronous=False):
    epochs.begin(epoch, bit_plan, is_asynchronous)
    rows = torch.from_numpy(rows_of(epochs.graph.node_id, epoch))
    return [found.numpy() for found in epochs.there_and_back(rows, rows)]


def assert_arrivals(cut, shape, choices, share, algorithm, is_pipelined):
    """Rows of some epochs are those of the simulation."""
    kind = PIPELINED if is_pipelined else SYNCHRONOUS
    epochs = Epochs(COMM, cut(shape, COMM.size), kind, algorithm, send_share=share)
    simulation, before = Simulation(epochs, share), None
    for epoch, is_late in enumerate(IS_ASYNCHRONOUS):
        now = [array.copy() for array in simulation.epoch(epoch, ChangingBits(epoch, choices))]
        found = one_epoch(epochs, epoch, ChangingBits(epoch, choices), is_late and is_pipelined)
        for mine, expected in zip(found, before if is_late and is_pipelined else now, strict=True):
            np.testing.assert_array_equal(mine, expected)
        before = now
    epochs.exchange.forget()


@pytest.mark.covering(1)
@pytest.mark.parallel([1, 2, 3])
@pytest.mark.parametrize("choices", [(1,), (2,), (4,), (8,), (16,), (32,), (1, 2, 4, 8, 16, 32)], ids=str)
@pytest.mark.parametrize("share", [0.25, 0.6])
@pytest.mark.parametrize("algorithm", ["ring", "alltoallv"])
@pytest.mark.parametrize("is_pipelined", [False, True])
def test_rows_that_differ_most_arrive_and_the_others_stay(cut, shape, choices, share, algorithm, is_pipelined):
    assert_arrivals(cut, shape, choices, share, algorithm, is_pipelined)


@pytest.mark.parallel([2])
@pytest.mark.parametrize("share", [0.25, 0.6])
def test_rows_that_travel_take_a_sample_of_mixed_widths(cut, shape, share):
    assert_arrivals(cut, shape, (1, 2, 4, 8, 16, 32), share, "ring", False)


class RecordingComm:
    """Hands every call on to COMM and keeps what is sent, by destination."""

    def __init__(self):
        self.sent = []

    def __getattr__(self, name):
        return getattr(COMM, name)

    def Isend(self, message, destination, tag):
        self.sent.append((destination, bytes(message[0])))
        return COMM.Isend(message, destination, tag)


@pytest.mark.parallel([2, 3])
@pytest.mark.parametrize("bits", [1, 4, 8, 16])
def test_a_message_is_codes_of_some_rows_and_a_bitmap_and_every_byte_is_counted(cut, bits):
    share, comm = 0.3, RecordingComm()
    epochs = Epochs(comm, cut("directed", COMM.size), SYNCHRONOUS, send_share=share)
    sent = [SimulatedList(rows.node_id, share) for rows in epochs.plan.boundary]
    for epoch in range(3):
        epochs.exchange.training.take()
        comm.sent.clear()
        one_epoch(epochs, epoch, UniformBits(bits))
        forward, by_hand = comm.sent[:len(comm.sent) // 2], [0, 0]
        for peer, one in zip(epochs.plan.peers, sent, strict=True):
            if not len(one.node_id):
                continue
            rows = rows_of(one.node_id, epoch)
            difference = rows - one.held
            chosen = one.receive(rows, np.full(len(rows), bits))
            bitmap = np.packbits(np.isin(np.arange(len(rows)), chosen), bitorder="little").tobytes()
            codes = encode_nearest(torch.from_numpy(difference[chosen]), bits)
            assert b"".join(message for destination, message in forward if destination == peer) == codes + bitmap
        for lists in (epochs.plan.boundary, epochs.plan.halo):      # of n rows 3 n / 10 travel, rounded up
            for num_rows in filter(None, map(len, lists)):
                count = -(-3 * num_rows // 10)
                by_hand[0] += count * -(-DIM * bits // 8)
                by_hand[1] += count * 4 * (bits <= 8) + -(-num_rows // 8)
        traffic = epochs.exchange.training.take()
        assert [traffic.payload_bytes, traffic.parameter_bytes] == by_hand
        assert sum(len(message) for _, message in comm.sent) == sum(by_hand) == sum(traffic.sent_by_peer.values())
        assert epochs.exchange.bytes_under(UniformBits(bits), epoch) == sum(by_hand)


@pytest.mark.parallel([2])
def test_of_rows_that_differ_equally_the_first_of_the_list_go(cut):
    epochs = Epochs(COMM, cut("undirected", COMM.size), SYNCHRONOUS, send_share=0.25)
    num_halo, ones = epochs.plan.num_halo, torch.ones(len(epochs.graph.node_id), DIM)
    count = -(-num_halo // 4)
    for epoch in range(4):
        epochs.begin(epoch, UniformBits(32))
        halo, _ = epochs.there_and_back(ones, ones)
        np.testing.assert_array_equal(halo[:, 0] > 0, np.arange(num_halo) < count * (epoch + 1))


@pytest.mark.parallel([2, 3])
@pytest.mark.parametrize("rotated", [frozenset(), frozenset({FORWARD, BACKWARD})], ids=["affine", "rotated"])
def test_a_share_that_is_all_rows_brings_what_whole_messages_bring(cut, rotated):
    pieces = cut("directed", COMM.size)
    whole, thinned = (Epochs(COMM, pieces, SYNCHRONOUS, rotated=rotated, send_share=share) for share in (1.0, 0.999))
    for epoch in range(4):
        found, expected = (one_epoch(epochs, epoch, UniformBits(2)) for epochs in (thinned, whole))
        for mine, other in zip(found, expected, strict=True):
            np.testing.assert_array_equal(mine, other)


@pytest.mark.parallel(2)
@pytest.mark.parametrize("bits", [1, 8])
@pytest.mark.parametrize("rotated", [frozenset(), frozenset({FORWARD, BACKWARD})], ids=["affine", "rotated"])
def test_the_error_of_rows_at_rest_fades(cut, bits, rotated):
    epochs = Epochs(COMM, cut("undirected", COMM.size), SYNCHRONOUS, rotated=rotated, send_share=0.25)
    rows = torch.from_numpy(rows_of(epochs.graph.node_id, 3))
    for epoch in range(160):
        epochs.begin(epoch, UniformBits(bits))
        halo, gradient = epochs.there_and_back(rows, rows)
    assert (halo - rows[epochs.num_inner:]).norm() < 1e-4 * rows.norm()
    assert (gradient - epochs.copies * rows[:epochs.num_inner]).norm() < 1e-4 * rows.norm()


@pytest.mark.parallel([2])
def test_a_row_that_is_not_finite_is_refused_and_named(cut):
    epochs = Epochs(COMM, cut("undirected", COMM.size), SYNCHRONOUS, send_share=0.1)
    rows = torch.ones(len(epochs.graph.node_id), DIM)
    wrong = epochs.plan.boundary[1 - COMM.rank].index[-1]
    rows[wrong] = float("nan")
    epochs.begin(0, UniformBits(8))
    with pytest.raises(KernelError, match=f"^message row of node {epochs.graph.node_id[wrong]} "):
        epochs.there_and_back(rows, rows)


def test_an_epoch_that_traces_all_rows_is_refused(cut):
    epochs = Epochs(MPI.COMM_SELF, cut("undirected", 1), SYNCHRONOUS, send_share=0.5)
    with pytest.raises(KernelError, match=r"^an epoch traces the ranges of all rows, .*"):
        epochs.exchange.begin_epoch(EpochPlan(UniformBits(8), is_traced=True))


@pytest.mark.parametrize("share", [0.001, 0.1, 0.25, 0.3, 0.5, 0.7, 0.999])
def test_a_share_of_rows_is_rounded_up(share):
    num_rows = np.array([0, 1, 2, 3, 7, 10, 30, 1000, 123_456_789])
    expected = -(-num_rows * round(1000 * share) // 1000)
    assert rows_sent(share, num_rows).tolist() == expected.tolist()
    assert [int(rows_sent(share, int(number))) for number in num_rows] == expected.tolist()
