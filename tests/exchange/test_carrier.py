"""The carrier: pieces arrive whole and in order, give way to what all ranks do together, and change no bit."""

from __future__ import annotations

import copy
import logging
import threading
import time
from functools import partial

import numpy as np
import pytest
import torch
from exchange.epochs import ChangingBits, Epochs
from mpi4py import MPI

from hpcgnn.exchange import carrier as module
from hpcgnn.exchange.carrier import LEAST_SENT, MOST_SENT, PIECE_BYTES, PIPELINES, Carrier, next_most, num_pieces
from hpcgnn.exchange.codec import MessageArena
from hpcgnn.exchange.kinds import Fresh, Kept
from hpcgnn.exchange.plan import ring_rounds
from hpcgnn.exchange.traffic import Traffic
from hpcgnn.exchange.transfer import HostDelivery, Link
from hpcgnn.run.watchdog import HelperThread

COMM = MPI.COMM_WORLD
CARRIED = ("thread", "polling")
KINDS = {"kept": Kept, "smoothed": partial(Kept, smoothing=0.75), "predicted": Kept().predicting}
SIZES = (0, 1, PIECE_BYTES - 1, PIECE_BYTES, PIECE_BYTES + 1, 9 * PIECE_BYTES + 5)
LIMIT = 20.0      # seconds in which what must happen has happened


@pytest.fixture(params=CARRIED)
def carrier(request):
    """Collective: a carrier of each kind, closed after the test."""
    opened = Carrier(COMM, request.param)
    yield opened
    opened.close()


@pytest.fixture
def threads(monkeypatch):
    """Those that carriers have made."""
    made = []
    monkeypatch.setattr(module, "HelperThread", lambda *arguments: made.append(HelperThread(*arguments)) or made[-1])
    return made


def content(source, destination, number, size):
    return np.random.default_rng((source, destination, number)).integers(0, 256, size).astype(np.uint8)


def size_of(source, destination, number):
    """Bytes of a message; every size occurs between every two ranks in some flight, and none to oneself."""
    return 0 if source == destination else SIZES[(source + 2 * destination + number) % len(SIZES)]


def all_of(size):
    """Sizes of messages that are equal, but for those to oneself."""
    return lambda source, destination, number: size if source != destination else 0


def launch(carrier, number, traffic=None, size_of=size_of):
    """Collective: (flight, what it will bring, expected), each message in an arena of its own."""
    ranks = range(COMM.size)
    send, receive = MessageArena().slices([size_of(COMM.rank, peer, number) for peer in ranks],
                                          [size_of(peer, COMM.rank, number) for peer in ranks])
    for peer in ranks:
        send[peer][:] = content(COMM.rank, peer, number, len(send[peer]))
    delivery = HostDelivery(COMM, ranks, send, receive, number)
    flight = carrier.take(delivery, ring_rounds(COMM.rank, COMM.size, ranks), Link(), traffic or Traffic())
    return flight, receive, [content(peer, COMM.rank, number, len(receive[peer])) for peer in ranks]


def assert_arrived(receive, expected):
    for found, wanted in zip(receive, expected, strict=True):
        np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("size, expected", [(0, 0), (1, 1), (PIECE_BYTES, 1), (PIECE_BYTES + 1, 2)])
def test_a_message_is_cut_by_its_length_alone(size, expected):
    assert num_pieces(np.empty(size, np.uint8)) == expected


@pytest.mark.parametrize("most, seconds, expected", [
    (LEAST_SENT, 0.001, LEAST_SENT + 1), (MOST_SENT, 0.001, MOST_SENT), (MOST_SENT, 0.012, MOST_SENT),
    (MOST_SENT, 0.03, MOST_SENT - 1), (LEAST_SENT, 0.03, LEAST_SENT)])
def test_more_may_be_on_their_way_where_answers_come_soon_and_fewer_where_they_are_slow(most, seconds, expected):
    assert next_most(most, seconds) == expected


@pytest.mark.parallel([1, 2, 3, 4])
def test_messages_of_every_size_arrive_whole_from_flights_beside_each_other(carrier):
    flights = [launch(carrier, number) for number in range(len(SIZES))]
    for flight, receive, expected in flights:
        flight.wait()
        assert flight.poll()
        assert_arrived(receive, expected)


@pytest.mark.parallel([2, 4])
def test_flights_may_be_waited_for_in_any_order(carrier):
    flights = [launch(carrier, number) for number in range(4)]
    for flight, receive, expected in reversed(flights):
        flight.wait()
        assert_arrived(receive, expected)


@pytest.mark.parallel([2])
def test_a_thread_brings_messages_while_nobody_calls(threads):
    carrier = Carrier(COMM, "thread")
    assert carrier.has_thread
    flight, receive, expected = launch(carrier, 1, size_of=all_of(40 * PIECE_BYTES + 3))
    stop = time.monotonic() + LIMIT
    while flight.num_left and time.monotonic() < stop:
        time.sleep(0.01)
    assert flight.num_left == 0
    assert_arrived(receive, expected)
    COMM.Barrier()
    assert [thread.is_running for thread in threads] == [True]
    carrier.close()
    assert [thread.is_running for thread in threads] == [False]


@pytest.mark.parallel([2])
def test_polling_another_flight_moves_this_one():
    """Between blocks of rows only the flight that is read is asked, which has long arrived."""
    carrier = Carrier(COMM, "polling")
    assert not carrier.has_thread
    arrived, *_ = launch(carrier, 0, size_of=all_of(0))
    flight, receive, expected = launch(carrier, 1, size_of=all_of(5 * PIECE_BYTES))
    stop = time.monotonic() + LIMIT
    while flight.num_left and time.monotonic() < stop:
        assert arrived.poll()
    assert flight.num_left == 0
    assert_arrived(receive, expected)
    COMM.Barrier()
    carrier.close()


class RecordingComm:
    """Hands every call on to a communicator, and lists the events."""

    def __init__(self, comm, events):
        self._comm, self._events = comm, events

    def __getattr__(self, name):
        return getattr(self._comm, name)

    def Dup(self):
        return RecordingComm(self._comm.Dup(), self._events)

    def Isend(self, message, destination, tag):
        if len(message[0]):      # an answer is empty
            self._events.append("piece")
        return self._comm.Isend(message, destination, tag)


@pytest.mark.parallel([2, 3])
@pytest.mark.parametrize("pipeline", CARRIED)
@pytest.mark.parametrize("meets", [True, False])
def test_what_all_ranks_do_together_overtakes_the_pieces_that_are_not_on_their_way(monkeypatch, pipeline, meets):
    monkeypatch.setattr(module, "PIECE_BYTES", 64)
    events = []
    carrier = Carrier(RecordingComm(COMM, events), pipeline)
    flight, receive, expected = launch(carrier, 1, size_of=all_of(64 * 5_000))
    with carrier.giving_way(meets):
        events.append("sum begins")
        total = COMM.allreduce(COMM.rank)
        flight.poll()
        time.sleep(0.02)
        events.append("sum ends")
    flight.wait()
    assert total == COMM.size * (COMM.size - 1) // 2
    begin = events.index("sum begins")
    assert events[begin + 1] == "sum ends"
    assert "piece" in events[:begin] and "piece" in events[begin + 2:]
    assert_arrived(receive, expected)
    carrier.close()


@pytest.mark.covering(1)
@pytest.mark.parallel([2, 3, 4])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("piece_bytes", [16, PIECE_BYTES])
def test_results_have_the_same_bits_however_messages_travel(monkeypatch, cut, shape, kind, piece_bytes):
    monkeypatch.setattr(module, "PIECE_BYTES", piece_bytes)
    pieces, seen = cut(shape, COMM.size), {}
    for pipeline in PIPELINES:
        epochs = Epochs(COMM, pieces, KINDS[kind], pipeline=pipeline)
        seen[pipeline] = walk(epochs, 0, 6)
        epochs.exchange.forget()
    assert seen["thread"] == seen["polling"] == seen["whole"]


@pytest.mark.parallel([2])
def test_a_thread_that_is_about_to_sleep_hears_that_it_shall_end():
    """The carrier is stopped in the moment in which its thread has found nothing to do."""
    carrier = Carrier(COMM, "thread")
    stopper = threading.Thread(target=carrier._stop, daemon=True)

    class Late(threading.Event):
        def clear(self):
            if stopper.ident is None:
                stopper.start()
                time.sleep(0.1)
            super().clear()

    awaited, carrier._has_work = carrier._has_work, Late()
    carrier._has_work.set()
    awaited.set()      # the thread looks again
    until = time.perf_counter() + LIMIT
    while stopper.ident is None and time.perf_counter() < until:
        time.sleep(0.01)
    stopper.join(LIMIT)
    assert all(COMM.allgather(not stopper.is_alive()))
    carrier._comm.Free()


def walk(epochs, first, last):
    """Collective: bytes of the halo rows and gradients of some epochs; all but 0 and 4 are asynchronous."""
    read = []
    for epoch in range(first, last):
        epochs.begin(epoch, ChangingBits(epoch), epoch not in (0, 4))
        for dim in (5, 9):
            rows = np.random.default_rng(epoch).standard_normal((len(epochs.graph.node_id), dim)).astype(np.float32)
            found = epochs.there_and_back(torch.from_numpy(rows), torch.from_numpy(rows[::-1].copy()))
            read.append(tuple(one.numpy().tobytes() for one in found))
    return read


@pytest.mark.parallel([2, 3])
@pytest.mark.parametrize("pipeline", PIPELINES)
def test_a_run_goes_on_from_flights_that_were_under_way(monkeypatch, cut, pipeline):
    monkeypatch.setattr(module, "PIECE_BYTES", 16)
    pieces = cut("undirected", COMM.size)
    whole = Epochs(COMM, pieces, pipeline=pipeline)
    expected = walk(whole, 0, 6)
    whole.exchange.forget()
    stopped = Epochs(COMM, pieces, pipeline=pipeline)
    walk(stopped, 0, 3)
    state = copy.deepcopy(stopped.exchange.state())
    stopped.exchange.forget()
    resumed = Epochs(COMM, pieces, pipeline=pipeline)
    resumed.exchange.restore(state)
    assert walk(resumed, 3, 6) == expected[2 * 3:]
    resumed.exchange.forget()


@pytest.mark.parallel([2])
@pytest.mark.parametrize("new_kind, is_asynchronous, expected", [(Kept, True, True), (Kept, False, False),
                                                                 (Fresh, False, False)])
def test_only_asynchronous_epochs_open_a_carrier_and_its_thread_ends_with_the_training(cut, new_kind, is_asynchronous,
                                                                                       expected, threads):
    epochs = Epochs(COMM, cut("undirected", COMM.size), new_kind)
    for epoch in range(2):
        epochs.begin(epoch, ChangingBits(epoch), is_asynchronous and epoch > 0)
        epochs.there_and_back(epochs.stamp(epoch), epochs.stamp(epoch))
    assert any(thread.is_running for thread in threads) == expected
    epochs.exchange.forget()
    assert not any(thread.is_running for thread in threads)


@pytest.mark.parallel([2])
def test_where_mpi_takes_no_threads_pieces_are_polled_and_rank_0_says_so_once(monkeypatch, caplog):
    monkeypatch.setattr(MPI, "Query_thread", lambda: MPI.THREAD_SERIALIZED)
    monkeypatch.setattr(module, "_SAID", [])
    with caplog.at_level(logging.INFO, module.logger.name):
        for number in range(2):
            carrier = Carrier(COMM, "thread")
            assert not carrier.has_thread
            flight, receive, expected = launch(carrier, number)
            flight.wait()
            assert_arrived(receive, expected)
            carrier.close()
    assert len(caplog.records) == (COMM.rank == 0)


@pytest.mark.parallel([2, 3])
def test_a_flight_travels_from_its_start_to_its_last_piece_and_counts_what_it_sent(carrier):
    traffic = Traffic()
    flight, *_ = launch(carrier, 1, traffic)
    flight.wait()
    num_bytes = sum(size_of(COMM.rank, peer, 1) for peer in range(COMM.size))
    assert flight.sent_bytes == num_bytes
    assert (traffic.travel_seconds > 0) == any(size_of(*pair, 1) for peer in range(COMM.size)
                                               for pair in ((peer, COMM.rank), (COMM.rank, peer)))
    assert traffic.blocked_seconds <= traffic.exchange_seconds
    before = traffic.travel_seconds
    assert traffic.take().travel_seconds == before
