"""`hpcgnn bench inference` on a device, emulated where there is none: every side is there, with the host's integers."""

from __future__ import annotations

import shutil

import numpy as np
import pytest
import torch
from covering import long_but
from cuda.conftest import HAS_GPU
from cuda.emulation import COMPILER, EmulatedBackend
from inference_setup import float_oracle, some_work, trained_file, write_archive

from hpcgnn.bench import inference, inference_device, inference_work
from hpcgnn.bench.device import Chip, DevicePlace
from hpcgnn.bench.float_networks import FloatBatches
from hpcgnn.bench.inference import InferenceBenchmark
from hpcgnn.bench.inference_device import FLOATS, FP16_COPIED, NO_INT8, OURS_COPIED, CopiedFloats
from hpcgnn.bench.peers.torch_batches import TorchBatches
from hpcgnn.bench.timing import OURS, Effort
from hpcgnn.lowbit.inference import host_pass
from hpcgnn.lowbit.inference.device_pass import CopiedBatches, DevicePass
from hpcgnn.ops.cuda.module import use_backend
from hpcgnn.ops.dispatch import device_kernels_on_cpu

KINDS = ("gcn", "gin", "sage")
RESIDENT = {OURS, *FLOATS, "torch fp32", "torch fp16"}
BATCHED = RESIDENT | {"tiles", "gather", OURS_COPIED, FP16_COPIED}


class StandInPlace(DevicePlace):
    """Calls each contestant once."""

    def interleave(self, contestants, is_hot=False):
        for work in contestants.values():
            work()
        return {name: [1.0 if name == OURS else 2.0] for name in contestants}


@pytest.fixture
def place(monkeypatch):
    """A DevicePlace on a GPU, or one whose kernels are emulated, one pass at a time."""
    # Few batches go layer by layer on the host, through torch, whose tensors of the CPU are taken for a device's here.
    monkeypatch.setattr(host_pass, "LEAST_BATCHES", 1)
    monkeypatch.setattr(inference_work, "PASSES", 1)
    monkeypatch.setattr(inference, "HIDDEN", dict.fromkeys(KINDS, 8))
    if HAS_GPU:
        yield DevicePlace(Effort(1, 0.01))
        return
    if shutil.which(COMPILER) is None:
        pytest.skip(f"{COMPILER} is not installed: kernels can't be emulated")
    with use_backend(EmulatedBackend(0)), device_kernels_on_cpu():
        yield StandInPlace(Effort(1), "cpu", chip=Chip("Stand-in 9000", (9, 0), 1, 1 << 30, 1 << 20))


@pytest.fixture
def archive(tmp_path):
    return write_archive(tmp_path / "made.npz")


def benchmark(place, archive, **settings):
    """What the command measures, small."""
    return InferenceBenchmark(place, (archive,), **{"trained": (), "models": KINDS, "bits": (4,), "num_clusters": 4,
                                                    "peers": ("torch",), "batch_size": 2, **settings})


def refused(row):
    """Sides that torch can't do here, each with a remark."""
    return {name for name in ("torch fp32", "torch fp16") if any(remark.startswith(f"{name} refuses")
                                                                 for remark in row.remarks)}


@pytest.mark.long      # a whole graph is measured as batches are, and ways that are wrong are found in batches
def test_batches_are_measured_on_the_device_and_with_copies(place, archive):
    rows = list(benchmark(place, archive, models=("sage",), bits=(8,)).measure())
    assert [row.case.split()[1] for row in rows] == ["sage"]
    for row in rows:
        assert set(row.seconds) == BATCHED - refused(row) and NO_INT8 in row.remarks
        assert any("between CUDA events" in remark for remark in row.remarks)
        assert set(row.details["queue_seconds"]) == set(row.seconds) - {OURS_COPIED, FP16_COPIED}
        assert row.details["tile_choice_share"] == 1 and 0 <= row.details["zero_tile_share"] < 1
        assert row.amount == 120 / 1e6 and row.details["float_bytes"] == 4 * 120 * 20
        # Features and logits of four classes, in float16; ours are planes and tiles.
        assert row.details["fp16_copied_bytes"] == 2 * 120 * (20 + 4)
        assert row.details["copied_bytes"] > 120 * 20
        assert row.details["row_bytes"] > 0 < row.details["packed_bytes"]
        assert row.details["same_class_as_fp32"] > 0.8


def test_a_whole_graph_and_a_trained_model_are_measured_on_the_device(place, archive, tmp_path):
    drawn = list(benchmark(place, archive, models=("gcn",), num_clusters=0, peers=()).measure())
    trained = list(benchmark(place, archive, trained=(trained_file(tmp_path / "m-4.h5", "gin"),),
                             num_clusters=0).measure())
    assert [row.case for row in drawn + trained] == ["made, gcn 3 x 8, whole, 4 bits", "made, gin 3 x 8, whole, m-4"]
    for row in drawn:
        assert set(row.seconds) == {OURS, *FLOATS} and NO_INT8 not in row.remarks
    for row in trained:
        assert set(row.seconds) == RESIDENT - refused(row) and row.details["same_class_as_fp32"] > 0.5


def changed(logits, hidden):
    """The same answers but for one bit of one logit."""
    logits = logits.copy() if isinstance(logits, np.ndarray) else logits.clone()
    logits.reshape(-1)[0] = -logits.reshape(-1)[0]
    return logits, hidden


def way_that_is_wrong(monkeypatch, way, name):
    """Have the passes of one way, resident or with copies, change a bit."""
    made = {True: [], False: []}

    class Run(CopiedBatches):
        def __init__(self, model, packed, device, aggregation):
            super().__init__(model, packed, device, aggregation)
            made[aggregation == way].append(self)

        def resident(self):
            resident = super().resident()
            made[self in made[True]].append(resident)
            return resident

    owner = {"forward": Run, "result": DevicePass}[name]
    correct = getattr(owner, name)

    def answer(self):
        found = correct(self)
        if self not in made[True]:
            return found
        return changed(*found) if name == "forward" else [changed(*found[0]), *found[1:]]

    monkeypatch.setattr(owner, name, answer)
    monkeypatch.setattr(inference_device, "CopiedBatches", Run)


@pytest.mark.parametrize("way, name, words", long_but((2, 3), [
    ("auto", "result", "auto and the host disagree"), ("tiles", "result", "tiles and the host disagree"),
    ("gather", "result", "gather and the host disagree"),
    ("tiles", "forward", "tiles, with copies and the host disagree")]))
def test_a_way_that_has_other_bits_is_an_error(place, archive, monkeypatch, way, name, words):
    way_that_is_wrong(monkeypatch, way, name)
    with pytest.raises(AssertionError, match=f"made, gcn .*, 4 bits: {words}"):
        next(benchmark(place, archive, peers=()).measure())


def test_a_whole_graph_that_has_other_bits_is_an_error(place, archive, monkeypatch):
    correct = DevicePass.result
    monkeypatch.setattr(DevicePass, "result", lambda one: [changed(*found) for found in correct(one)])
    with pytest.raises(AssertionError, match="whole, 4 bits: hpcgnn and the host disagree"):
        next(benchmark(place, archive, num_clusters=0, peers=()).measure())


@pytest.mark.parametrize("kind", KINDS)
def test_the_float_sides_compute_the_network_on_the_device(place, kind):
    stack, batches, rows, _ = some_work(kind)
    exact = float_oracle(stack, batches, rows)
    for storage, tolerance in ((torch.float32, 1e-4), (torch.float16, 2**-7), (torch.bfloat16, 2**-4)):
        found = FloatBatches(stack, batches, rows, storage, place.name).compute()
        assert (found.dtype, found.device.type) == (storage, place.name)
        assert np.abs(found.float().cpu().numpy() - exact).max() < tolerance * np.abs(exact).max()
    peer = TorchBatches(stack, batches, rows, device=place.name).compute()
    assert peer.device.type == place.name
    np.testing.assert_allclose(peer.cpu().numpy(), exact, rtol=1e-4, atol=1e-4)


def test_features_of_the_side_with_copies_cross_in_every_pass(place):
    stack, batches, rows, _ = some_work("gcn")
    side = FloatBatches(stack, batches, rows, torch.float16, place.name)
    expected = side.forward()
    copied = CopiedFloats(side)
    side.features.zero_()
    found = copied.compute()
    if HAS_GPU:
        torch.cuda.synchronize()
    assert found.device.type == "cpu" and found.float().numpy().tobytes() == expected.tobytes()
    assert copied.copied_bytes == 2 * len(rows) * (20 + 3)
