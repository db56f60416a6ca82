"""Carrier: moves the messages of asynchronous epochs in small pieces while the rank computes.

Messages are cut into pieces of PIECE_BYTES. The receiver answers each piece with an empty message, and the sender keeps
only a few pieces unanswered (more while answers come fast), so that an urgent message finds the network nearly free. A
thread moves the pieces if MPI lets two threads call it; otherwise every `poll` does.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np
from mpi4py import MPI

from hpcgnn.errors import exit_code_of, explanation_of
from hpcgnn.exchange.plan import Rounds
from hpcgnn.exchange.traffic import Traffic
from hpcgnn.exchange.transfer import MAX_TAG, HostDelivery, Link, waiting
from hpcgnn.run.watchdog import HERE, HelperThread, say

logger = logging.getLogger(__name__)

PIECE_BYTES = 60 << 10                           # below the 64 KiB up to which MPI sends without asking the receiver
LEAST_SENT, MOST_SENT = 6, 64                    # pieces that may be on their way from this rank at once
MOST_AWAITED = 64                                # receives that are posted ahead of their pieces
BRISK_SECONDS, SLOW_SECONDS = 0.01, 0.02        # until an answer: faster answers allow more pieces
ANSWER_TAG = MAX_TAG                             # no exchange uses this tag
NOTHING = np.empty(0, np.uint8)
LEAST_PAUSE, MOST_PAUSE = 0.00025, 0.002         # seconds that the thread sleeps between two looks
WAITING_PAUSE = 0.00005                          # seconds that the waiting main thread sleeps
PIPELINES = ("thread", "polling", "whole")


class Message(NamedTuple):
    """One message of a flight: its round, counted from 0, the other rank, and its bytes."""

    flight: Flight
    number: int
    peer: int
    content: np.ndarray


class Flight:
    """Messages of one exchange on their way in pieces; used like a `hpcgnn.exchange.transfer.Transfer`."""

    def __init__(self, carrier: Carrier, delivery: HostDelivery, rounds: Rounds, link: Link | None, traffic: Traffic,
                 name_of: Callable[[int], str]):
        self.tag, self._carrier, self._traffic, self._name_of = delivery.tag, carrier, traffic, name_of
        self._rounds, self._peers, self.sent_bytes = rounds, delivery.peers, delivery.sent_bytes
        peers, send, receive = delivery.peers, delivery.send, delivery.receive
        self._due = 0.0 if link is None else link.reserve(max(self.sent_bytes, delivery.received_bytes))
        self.outgoing = [Message(self, number, peers[place], send[place]) for number, (place, _) in enumerate(rounds)
                         if len(send[place])]
        self.incoming = [Message(self, number, peers[place], receive[place])
                         for number, (_, place) in enumerate(rounds) if len(receive[place])]
        self._left = [num_pieces(send[destination]) + num_pieces(receive[source]) for destination, source in rounds]
        self._num_over = 0      # rounds from the first one on that have no piece left
        self.num_left = sum(self._left)
        if self.num_left:
            traffic.move(travelling=1)

    def land(self, number: int) -> None:
        """Note that one more piece of round `number`, counted from 0, was sent or received."""
        self._left[number] -= 1
        self.num_left -= 1
        if not self.num_left:
            self._traffic.move(travelling=-1)
            self.outgoing, self.incoming = [], []     # frees memory, and breaks a reference cycle

    def poll(self) -> bool:
        """Let pieces of all flights move, if no thread does it; return whether this flight has arrived."""
        started = time.perf_counter()
        self._carrier.poll()
        self._traffic.exchange_seconds += time.perf_counter() - started
        return not self.num_left and time.perf_counter() >= self._due

    def wait(self) -> None:
        """Return when all messages have arrived."""
        if not self.num_left and time.perf_counter() >= self._due:
            return
        started = time.perf_counter()
        with self._traffic.waiting():
            self._carrier.drive_until(lambda: not self.num_left, self._note_waiting)
            time.sleep(max(0.0, self._due - time.perf_counter()))
        self._traffic.exchange_seconds += time.perf_counter() - started
        HERE.note("computes")

    def _note_waiting(self) -> None:
        if not self._rounds:
            return
        while self._num_over < len(self._left) - 1 and not self._left[self._num_over]:
            self._num_over += 1
        HERE.note(waiting, self._name_of, self.tag, self._num_over + 1, len(self._rounds), self._carrier.rank,
                  *(self._peers[place] for place in self._rounds[self._num_over]))


class _Outgoing:
    def __init__(self, comm: MPI.Comm):
        self._comm, self._first, self._num_unanswered, self.most = comm, 0, 0, LEAST_SENT
        self._messages: deque[Message] = deque()      # the bytes of the first message before `_first` have left
        self._requests: list[MPI.Request] = []
        self._posted: list[tuple[Message | None, float]] = []     # one entry per request; None is an answer

    @property
    def is_empty(self) -> bool:
        return not self._messages and not self._requests

    def add(self, messages: list[Message]) -> None:
        self._messages.extend(messages)

    def fill(self) -> None:
        while self._messages and self._num_unanswered < self.most:
            message, now = self._messages[0], time.perf_counter()
            piece, is_last = next_piece(message, self._first)
            self._first += len(piece)
            if is_last:
                self._messages.popleft()
                self._first = 0
            self._requests += [self._comm.Irecv([NOTHING, MPI.BYTE], message.peer, ANSWER_TAG),
                               self._comm.Isend([piece, MPI.BYTE], message.peer, message.flight.tag)]
            self._posted += [(None, now), (message, now)]
            self._num_unanswered += 1

    def finish(self) -> int:
        now, done = time.perf_counter(), finished(self._requests)
        for index in done:
            del self._requests[index]
            message, posted = self._posted.pop(index)
            if message is None:
                self._num_unanswered -= 1
                self.most = next_most(self.most, now - posted)
            else:
                message.flight.land(message.number)
        return len(done)


class _Incoming:
    def __init__(self, comm: MPI.Comm):
        self._comm, self._first = comm, 0
        self._messages: deque[Message] = deque()
        self._requests: list[MPI.Request] = []
        self._posted: list[Message] = []
        self._answers: list[MPI.Request] = []

    @property
    def is_empty(self) -> bool:
        return not self._messages and not self._requests and not self._answers

    def add(self, messages: list[Message]) -> None:
        self._messages.extend(messages)

    def fill(self) -> None:
        while self._messages and len(self._requests) < MOST_AWAITED:
            message = self._messages[0]
            piece, is_last = next_piece(message, self._first)
            self._first += len(piece)
            if is_last:
                self._messages.popleft()
                self._first = 0
            self._requests.append(self._comm.Irecv([piece, MPI.BYTE], message.peer, message.flight.tag))
            self._posted.append(message)

    def finish(self) -> int:
        for index in finished(self._answers):
            del self._answers[index]
        done = finished(self._requests)
        for index in done:
            del self._requests[index]
            message = self._posted.pop(index)
            self._answers.append(self._comm.Isend([NOTHING, MPI.BYTE], message.peer, ANSWER_TAG))
            message.flight.land(message.number)
        return len(done)


class Carrier:
    """Moves the messages of one rank's asynchronous exchanges on its own communicator; making one is collective.

    While the main thread computes, a thread moves pieces if `pipeline` is "thread" and MPI allows it; with "polling"
    only `poll` does.
    """

    def __init__(self, comm: MPI.Comm, pipeline: str):
        self._comm, self.rank = comm.Dup(), comm.rank
        self._outgoing, self._incoming = _Outgoing(self._comm), _Incoming(self._comm)
        self._is_giving_way = self._is_closed = self._is_driven = False
        self._lock = threading.Lock()
        self._has_work = threading.Event()
        self.has_thread = pipeline == "thread" and comm.size > 1 and _takes_threads(comm)
        if self.has_thread:
            self._thread = HelperThread(self._run, "carrier")
            self._thread.start()
            atexit.register(self._stop)      # MPI ends after this

    def take(self, delivery: HostDelivery, rounds: Rounds, link: Link | None, traffic: Traffic,
             name_of: Callable[[int], str] = "exchange {}".format) -> Flight:
        """Begin to move the messages of one exchange; parameters as in `hpcgnn.exchange.transfer.Transfer`."""
        started = time.perf_counter()
        flight = Flight(self, delivery, rounds, link, traffic, name_of)
        with self._lock:
            self._outgoing.add(flight.outgoing)
            self._incoming.add(flight.incoming)
            self._advance()
        self._has_work.set()
        traffic.exchange_seconds += time.perf_counter() - started
        return flight

    def poll(self) -> None:
        if not self.has_thread:
            with self._lock:
                self._advance()

    def drive_until(self, is_over: Callable[[], bool], note: Callable[[], None]) -> None:
        """Move pieces in this thread until `is_over`; call `note` at first and whenever some have arrived."""
        note()
        self._is_driven = True
        try:
            while not is_over():
                with self._lock:
                    num_moved = self._advance()
                if num_moved:
                    note()
                else:
                    time.sleep(WAITING_PAUSE)
        finally:
            self._is_driven = False

    @contextmanager
    def giving_way(self, meets: bool = True) -> Iterator[None]:
        """Collective: post no piece during the block; with `meets`, first move pieces until all ranks are here."""
        if meets:
            request = self._comm.Ibarrier()
            self.drive_until(request.Test, lambda: None)
        with self._lock:      # a piece that is being posted is posted first
            self._is_giving_way = True
        try:
            yield
        finally:
            self._is_giving_way = False

    def close(self) -> None:
        """Collective: end the thread and free the communicator; all flights have arrived."""
        if not self._is_closed:
            self.drive_until(self._is_idle, lambda: None)     # the last answers
            self._stop()
            self._comm.Free()

    def _is_idle(self) -> bool:
        return self._outgoing.is_empty and self._incoming.is_empty

    def _stop(self) -> None:
        with self._lock:      # otherwise a thread about to sleep would clear the event after this, and sleep for ever
            self._is_closed = True
            self._has_work.set()
        if self.has_thread:
            self._thread.join()
            atexit.unregister(self._stop)

    def _advance(self) -> int:
        # Finish first: answers make room for more pieces.
        num_moved = self._outgoing.finish() + self._incoming.finish()
        self._incoming.fill()
        if not self._is_giving_way:
            self._outgoing.fill()
        return num_moved

    def _run(self) -> None:
        try:
            pause = LEAST_PAUSE
            while not self._is_closed:
                with self._lock:
                    num_moved = 0 if self._is_driven else self._advance()
                    if self._is_idle() and not self._is_closed:
                        self._has_work.clear()
                pause = max(LEAST_PAUSE, pause / 2) if num_moved else min(MOST_PAUSE, 2 * pause)
                if self._has_work.is_set():
                    time.sleep(pause)
                else:
                    self._has_work.wait()
        except BaseException as error:
            say(f"hpcgnn: rank {self._comm.rank}: messages can't be carried: {explanation_of(error)}\n")
            exit_code = exit_code_of(error)
            self._comm.Abort(exit_code)
            os._exit(exit_code)      # MPICH's Abort returns before the launcher ends this rank


def next_most(most: int, seconds: float) -> int:
    if seconds < BRISK_SECONDS:
        return min(most + 1, MOST_SENT)
    return max(most - 1, LEAST_SENT) if seconds > SLOW_SECONDS else most


def next_piece(message: Message, first: int) -> tuple[np.ndarray, bool]:
    piece = message.content[first:first + PIECE_BYTES]
    return piece, first + len(piece) == len(message.content)


def finished(requests: list[MPI.Request]) -> list[int]:
    """Return the indices of finished requests, the last one first, so that deleting them in order is safe."""
    return sorted(MPI.Request.Testsome(requests) or (), reverse=True) if requests else []


def num_pieces(message: np.ndarray) -> int:
    return -(-len(message) // PIECE_BYTES)


def _takes_threads(comm: MPI.Comm) -> bool:
    if MPI.Query_thread() == MPI.THREAD_MULTIPLE:
        return True
    if comm.rank == 0 and not _SAID:
        _SAID.append(True)
        logger.warning("MPI lets one thread at a time call it, so messages of asynchronous epochs move between blocks "
                       "of rows only")
    return False


_SAID: list[bool] = []
