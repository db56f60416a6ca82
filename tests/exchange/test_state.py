"""An exchange that goes on from another one's state reads what that one would have read, to the last bit."""

from __future__ import annotations

import copy
from functools import cached_property, partial

import numpy as np
import pytest
import torch
from exchange.epochs import ChangingBits, Epochs
from mpi4py import MPI

from hpcgnn.errors import KernelError
from hpcgnn.exchange.arrival import Arrival
from hpcgnn.exchange.bits import SolvedBits, UniformBits
from hpcgnn.exchange.codec import MessageArena
from hpcgnn.exchange.kinds import Fresh, Kept, Sampled, Skipped
from hpcgnn.exchange.kinds.kept_messages import KeptMessages
from hpcgnn.exchange.kinds.skipped import Broadcaster
from hpcgnn.exchange.state import Stateful, joined, split
from hpcgnn.exchange.trace import Trace
from hpcgnn.ops.counter import BACKWARD, FORWARD

COMM = MPI.COMM_WORLD
KINDS = {"pipelined": Kept, "smoothed": partial(Kept, smoothing=0.7), "predicted": Fresh().predicting,
         "pipelined and predicted": Kept().predicting, "pipelined and picked": partial(Kept().predicting, picks=True),
         "skipped": partial(Skipped, 0.3, 3), "thinned": Fresh().predicting, "pipelined and thinned": Kept().predicting}
SYNCHRONOUS = ("predicted", "skipped", "thinned", "fresh")
# What travels, is counted, or belongs to the whole exchange.
UNSAVED = (".transfer", ".rounds", "._turn", ".received", "._sender", ".traffic", ".streams")
IS_ASYNCHRONOUS = (False, True, True, False, False, True, True)


BOTH = frozenset({FORWARD, BACKWARD})
# Exchanges that send differences, by epoch, of a kind that picks them.
DIFFERING = [frozenset((0, purpose) for purpose in purposes) for purposes in (
    (), (FORWARD,), (FORWARD, BACKWARD), (BACKWARD,), (), (FORWARD, BACKWARD), (FORWARD,))]


@pytest.fixture(params=KINDS)
def kind(request):
    """The name of a kind, by which `KINDS` makes it."""
    return request.param


def epochs_of(kind, pieces, **named):
    """Collective: an exchange of a kind, driven epoch by epoch."""
    return Epochs(COMM, pieces, KINDS[kind], send_share=0.4 if "thinned" in kind else 1.0, **named)


def walk(epochs, first, last, kind, after=lambda epoch: None, fixed_bits=32):
    """Collective: the halo rows and gradients of some epochs, each with widths of its own."""
    read = []
    for epoch in range(first, last):
        is_fixed = kind == "skipped"      # a layout that changed would not fit what was skipped
        epochs.begin(epoch, UniformBits(fixed_bits) if is_fixed else ChangingBits(epoch),
                     kind not in SYNCHRONOUS and IS_ASYNCHRONOUS[epoch],
                     differing=DIFFERING[epoch])
        random = np.random.default_rng(100 + epoch // 2)     # every other epoch's rows have not moved
        rows = random.standard_normal((len(epochs.graph.node_id), 5)).astype(np.float32)
        read.append(epochs.there_and_back(torch.from_numpy(rows), torch.from_numpy(rows[::-1].copy())))
        after(epoch)
    return read


def assert_equal_bits(found, expected):
    assert len(found) == len(expected)
    for mine, other in zip(found, expected, strict=True):
        for one, another in zip(mine, other, strict=True):
            assert one.numpy().tobytes() == another.numpy().tobytes()


@pytest.mark.covering
@pytest.mark.parallel(2)
@pytest.mark.parametrize("shape", ["undirected", "downhill"])
@pytest.mark.parametrize("rotated, fixed_bits", [(frozenset(), 32), (BOTH, 2)], ids=["affine", "rotated"])
@pytest.mark.parametrize("epoch", [1, 2, 3, 5])
def test_an_exchange_goes_on_from_the_state_of_another(shape, cut, kind, rotated, fixed_bits, epoch):
    """What was on its way, or lies at a receiver, is read with the key of its own epoch and sender."""
    pieces = cut(shape, COMM.size)
    whole, stopped, resumed = (epochs_of(kind, pieces, rotated=rotated) for _ in range(3))
    expected = walk(whole, 0, len(IS_ASYNCHRONOUS), kind, fixed_bits=fixed_bits)
    whole.exchange.forget()
    walk(stopped, 0, epoch, kind, fixed_bits=fixed_bits)
    resumed.exchange.restore(copy.deepcopy(stopped.exchange.state()))
    stopped.exchange.forget()
    assert_equal_bits(walk(resumed, epoch, len(IS_ASYNCHRONOUS), kind, fixed_bits=fixed_bits), expected[epoch:])
    resumed.exchange.forget()


@pytest.mark.covering(1)
@pytest.mark.parallel([2, 3])
@pytest.mark.parametrize("shape", ["undirected", "downhill"])
def test_taking_the_state_after_every_epoch_changes_nothing(shape, cut, kind):
    pieces = cut(shape, COMM.size)
    whole, saved = epochs_of(kind, pieces), epochs_of(kind, pieces)
    expected = walk(whole, 0, len(IS_ASYNCHRONOUS), kind)
    whole.exchange.forget()
    found = walk(saved, 0, len(IS_ASYNCHRONOUS), kind, after=lambda epoch: saved.exchange.state())
    saved.exchange.forget()
    assert_equal_bits(found, expected)


def remembered(value, path=""):
    """All that an object of this room holds, by path; memory to be reused and what travels are no content."""
    if isinstance(value, MessageArena) or path.endswith(UNSAVED):
        return {}
    if isinstance(value, Arrival) and value.is_applied:
        value = copy.copy(value)
        value.receive = []      # a table holds them
    if isinstance(value, torch.Tensor):
        value = value.numpy()
    if isinstance(value, np.ndarray):
        return {path: (value.dtype, value.shape, value.tobytes())}
    if isinstance(value, (tuple, list)):
        value = dict(enumerate(value))
    if isinstance(value, dict):
        return {key: held for name, one in value.items() for key, held in remembered(one, f"{path}.{name}").items()}
    if type(value).__module__.startswith("hpcgnn."):
        # What was sent is over, and what is computed when it is asked for is no content.
        return remembered({name: one for name, one in vars(value).items() if not name.startswith("send_")
                           and not isinstance(getattr(type(value), name, None), cached_property)}, path)
    return {path: value}


@pytest.mark.parallel([2, 3])
@pytest.mark.parametrize("kind", [name for name in KINDS if "thinned" not in name])
def test_nothing_that_an_exchange_remembers_is_missing_after_a_restore(cut, kind):
    """The attributes of all kept objects are compared, so that a new one can't be forgotten; of thinned messages the
    layout changes once they have been read.
    """
    pieces = cut("undirected", COMM.size)
    epochs, restored = epochs_of(kind, pieces), epochs_of(kind, pieces)
    walk(epochs, 0, 3, kind)
    restored.exchange.restore(copy.deepcopy(epochs.exchange.state()))
    expected, found = (remembered(one.exchange._kind._kept) for one in (epochs, restored))
    assert len(expected) > 8
    assert found == expected and restored.exchange.keeps_state
    epochs.exchange.forget()


@pytest.mark.parallel([2])
def test_waiting_for_messages_to_save_them_is_no_part_of_an_epoch(cut):
    epochs = Epochs(COMM, cut("undirected", COMM.size), bytes_per_second=1e5)
    walk(epochs, 0, 2, "pipelined")
    epochs.exchange.training.take()
    epochs.exchange.state()
    assert epochs.exchange.training.exchange_seconds == epochs.exchange.training.blocked_seconds == 0
    epochs.exchange.forget()


@pytest.mark.parallel([1, 2])
@pytest.mark.parametrize("new_kind", [Fresh, partial(Sampled, 0.5)])
def test_an_exchange_that_reads_nothing_of_earlier_epochs_has_no_state(cut, new_kind):
    epochs = Epochs(COMM, cut("undirected", COMM.size), new_kind)
    walk(epochs, 0, 2, "fresh")
    assert not epochs.exchange.keeps_state and epochs.exchange.state() == {}


@pytest.mark.parallel([2])
def test_restored_rows_are_as_old_as_they_were(cut):
    pieces = cut("undirected", COMM.size)
    epochs, restored = Epochs(COMM, pieces), Epochs(COMM, pieces)
    walk(epochs, 0, 2, "pipelined")
    restored.exchange.restore(copy.deepcopy(epochs.exchange.state()))
    epochs.exchange.forget()
    with pytest.raises(KernelError, match=r"^halo rows are 2 epochs old, 1 are allowed$"):
        restored.begin(3, UniformBits(32), is_asynchronous=True)
        restored.there_and_back(restored.stamp(3), restored.stamp(3))
    restored.exchange.forget()


def test_every_kind_of_memory_must_say_how_it_is_saved():
    class Forgetful(Stateful):
        num_bytes = 0

    with pytest.raises(TypeError, match="abstract method"):
        Forgetful()
    assert issubclass(KeptMessages, Stateful) and issubclass(Broadcaster, Stateful)
    # What a kind keeps lies in `_kept`, and nowhere else.
    assert set(vars(Skipped(0.3, 3))) == {"_change", "_staleness", "_kept"}
    assert set(vars(Kept())) == {"_max_age", "_smoothing", "_predicts", "_picks", "_plan", "_kept"}


@pytest.mark.parametrize("lengths", [[], [0], [3], [2, 0, 4], [0, 0]])
def test_joined_arrays_are_split_again(lengths):
    arrays = [np.arange(length, dtype=np.int32) for length in lengths]
    found = split(joined(arrays))
    assert [one.tolist() for one in found] == [one.tolist() for one in arrays]


def test_solved_widths_and_traces_are_restored_as_they_were():
    solved = SolvedBits({(0, 0, 0, 1): np.array([1, 2], np.uint8), (2, 1, 1, 0): np.array([8], np.uint8)}, 4)
    again = SolvedBits.restored(solved.state())
    assert again.default == 4 and again.table.keys() == solved.table.keys()
    for place, width in solved.table.items():
        np.testing.assert_array_equal(again.table[place], width)
    trace = Trace(7, (np.array([0, 2], np.int32), np.empty(0, np.int32)),
                  (np.array([0.5, 1.5], np.float32), np.empty(0, np.float32)), "rotated")
    restored = Trace.restored(trace.state())
    assert restored.dim == 7 and restored.code == "rotated"
    for name in ("position", "row_range"):
        for mine, other in zip(getattr(restored, name), getattr(trace, name), strict=True):
            assert mine.dtype == other.dtype and mine.tolist() == other.tolist()
