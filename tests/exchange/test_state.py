"""An exchange that goes on from another one's state reads what that one would have read, to the last bit."""

from __future__ import annotations

import copy
from functools import cached_property

import numpy as np
import pytest
import torch
from exchange.epochs import PIPELINED, ChangingBits, Epochs
from mpi4py import MPI

from hpcgnn.errors import KernelError
from hpcgnn.exchange.arrival import Site
from hpcgnn.exchange.bits import SolvedBits, UniformBits
from hpcgnn.exchange.flight import Flight
from hpcgnn.exchange.kept import Kept, KeptTable, joined, split
from hpcgnn.exchange.memory import Memory
from hpcgnn.exchange.ring import MessageArena
from hpcgnn.exchange.schedule import Execution
from hpcgnn.exchange.trace import Trace

COMM = MPI.COMM_WORLD
EXECUTIONS = {
    "pipelined": PIPELINED,
    "smoothed": Execution(is_pipelined=True, staleness=1, smoothing=0.7),
    "predicted": Execution(predicts=True),
    "pipelined and predicted": Execution(is_pipelined=True, staleness=1, predicts=True),
    "skipped": Execution(skip_change=0.3, staleness=3),
}
IS_ASYNCHRONOUS = (False, True, True, False, False, True, True)


@pytest.fixture(params=EXECUTIONS)
def execution(request):
    return EXECUTIONS[request.param]


def walk(epochs, first, last, execution, after=lambda epoch: None):
    """Collective: the halo rows and gradients of some epochs, each with widths of its own."""
    read = []
    for epoch in range(first, last):
        is_fixed = execution.skip_change is not None      # a layout that changed would not fit what was skipped
        epochs.begin(epoch, UniformBits(32) if is_fixed else ChangingBits(epoch),
                     execution.is_pipelined and IS_ASYNCHRONOUS[epoch])
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


@pytest.mark.parallel([1, 2, 3])
@pytest.mark.parametrize("shape", ["undirected", "downhill"])
@pytest.mark.parametrize("epoch", [1, 2, 3, 5])
def test_an_exchange_goes_on_from_the_state_of_another(shape, cut, execution, epoch):
    pieces = cut(shape, COMM.size)
    whole = Epochs(COMM, pieces, execution)
    expected = walk(whole, 0, len(IS_ASYNCHRONOUS), execution)
    whole.exchange.forget()
    stopped = Epochs(COMM, pieces, execution)
    walk(stopped, 0, epoch, execution)
    state = copy.deepcopy(stopped.exchange.state())
    stopped.exchange.forget()
    resumed = Epochs(COMM, pieces, execution)
    resumed.exchange.restore(state)
    assert_equal_bits(walk(resumed, epoch, len(IS_ASYNCHRONOUS), execution), expected[epoch:])
    resumed.exchange.forget()


@pytest.mark.parallel([1, 2, 3])
@pytest.mark.parametrize("shape", ["undirected", "downhill"])
def test_taking_the_state_after_every_epoch_changes_nothing(shape, cut, execution):
    pieces = cut(shape, COMM.size)
    whole, saved = Epochs(COMM, pieces, execution), Epochs(COMM, pieces, execution)
    expected = walk(whole, 0, len(IS_ASYNCHRONOUS), execution)
    whole.exchange.forget()
    found = walk(saved, 0, len(IS_ASYNCHRONOUS), execution, after=lambda epoch: saved.exchange.state())
    saved.exchange.forget()
    assert_equal_bits(found, expected)


def remembered(value, path=""):
    """All that an object of this room holds, by path; memory to be reused and what travels are no content."""
    if isinstance(value, MessageArena) or path.endswith((".transfer", ".rounds", "._turn", ".received")):
        return {}
    if isinstance(value, Flight) and value.is_applied:
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
def test_nothing_that_an_exchange_remembers_is_missing_after_a_restore(cut, execution):
    """The attributes of all kept objects are compared, so that a new one can't be forgotten."""
    pieces = cut("undirected", COMM.size)
    epochs, restored = Epochs(COMM, pieces, execution), Epochs(COMM, pieces, execution)
    walk(epochs, 0, 3, execution)
    restored.exchange.restore(copy.deepcopy(epochs.exchange.state()))
    expected, found = (remembered(one.exchange._memory._kept) for one in (epochs, restored))
    assert len(expected) > 8
    assert found == expected and restored.exchange.keeps_state
    epochs.exchange.forget()


@pytest.mark.parallel([2])
def test_waiting_for_messages_to_save_them_is_no_part_of_an_epoch(cut):
    epochs = Epochs(COMM, cut("undirected", COMM.size), Execution(is_pipelined=True, staleness=1,
                                                                   link_bytes_per_second=1e5))
    walk(epochs, 0, 2, PIPELINED)
    epochs.exchange.training.take()
    epochs.exchange.state()
    assert epochs.exchange.training.exchange_seconds == epochs.exchange.training.blocked_seconds == 0
    epochs.exchange.forget()


@pytest.mark.parallel([1, 2])
@pytest.mark.parametrize("execution", [Execution(), Execution(share=0.5)])
def test_an_exchange_that_reads_nothing_of_earlier_epochs_has_no_state(cut, execution):
    epochs = Epochs(COMM, cut("undirected", COMM.size), execution)
    walk(epochs, 0, 2, execution)
    assert not epochs.exchange.keeps_state and epochs.exchange.state() == {}


@pytest.mark.parallel([2])
def test_restored_rows_are_as_old_as_they_were(cut):
    pieces = cut("undirected", COMM.size)
    epochs, restored = Epochs(COMM, pieces), Epochs(COMM, pieces)
    walk(epochs, 0, 2, PIPELINED)
    restored.exchange.restore(copy.deepcopy(epochs.exchange.state()))
    epochs.exchange.forget()
    with pytest.raises(KernelError, match=r"^halo rows are 2 epochs old, 1 are allowed$"):
        restored.begin(3, UniformBits(32), is_asynchronous=True)
        restored.there_and_back(restored.stamp(3), restored.stamp(3))
    restored.exchange.forget()


def test_every_kind_of_memory_must_say_how_it_is_saved():
    class Forgetful(Kept):
        num_bytes = 0

        def settle(self):
            pass

    with pytest.raises(TypeError, match="abstract method"):
        Forgetful()
    assert issubclass(Site, Kept) and issubclass(Kept, KeptTable)
    assert set(vars(Memory(None, Execution(), None))) == {"_plan", "_execution", "_transport", "_kept"}


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
                  (np.array([0.5, 1.5], np.float32), np.empty(0, np.float32)))
    restored = Trace.restored(trace.state())
    assert restored.dim == 7
    for name in ("position", "row_range"):
        for mine, other in zip(getattr(restored, name), getattr(trace, name), strict=True):
            assert mine.dtype == other.dtype and mine.tolist() == other.tolist()
