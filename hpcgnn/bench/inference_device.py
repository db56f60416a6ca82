"""Contestants of `hpcgnn bench inference` on a device: integers as in `hpcgnn infer --device cuda`, floats, and torch.

A resident pass reads its features on the device and leaves its logits there; a pass with copies moves both. The logits
of all integer passes must equal the host's to the bit; this is checked before anything is timed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

from hpcgnn.bench.device import BUSY_SECONDS
from hpcgnn.bench.float_networks import FloatBatches, FloatConvolution
from hpcgnn.bench.inference_host import bit_rows
from hpcgnn.bench.inference_work import (
    BF16,
    FP32,
    PASSES,
    WAYS,
    BatchedGraph,
    check_same,
    compared,
    in_a_row,
)
from hpcgnn.bench.peers.torch_batches import TorchBatches
from hpcgnn.bench.place import Place, admit
from hpcgnn.bench.timing import OURS, Measurement, wall_seconds
from hpcgnn.lowbit.inference.device_pass import CopiedBatches, DevicePass
from hpcgnn.lowbit.inference.host_pass import HostPass, RankNeighborhood, pack_features
from hpcgnn.lowbit.integer_model import IntegerModel
from hpcgnn.ops.streams import streams_of

FP16 = "hpcgnn fp16"
FLOATS = {FP32: torch.float32, FP16: torch.float16, BF16: torch.bfloat16}
PEERS = {"torch fp32": torch.float32, "torch fp16": torch.float16}
OURS_COPIED, FP16_COPIED = f"{OURS}, with copies", f"{FP16}, with copies"
HOST = "the host"
REMARK = (f"each time is of {PASSES} passes in a row between CUDA events, queued while the device is busy with other "
          f"work for {1e3 * BUSY_SECONDS:g} ms at least: Python is timed only where it takes longer; features lie on "
          "the device, and logits stay there")
COPY_REMARK = (f"{OURS_COPIED}: passes of hpcgnn infer, for which packed batches come from pinned memory, logits and "
               f"embeddings go back, and the host waits for each group of batches; {FP16_COPIED}: features come in "
               "float16 from pinned memory and logits go back there, while edges stay on the device")
NO_INT8 = "torch int8 is left out: torch quantizes its linear maps dynamically on the host alone"

Sides = Mapping[str, Callable[[], object]]


class CopiedFloats:
    """Passes of floats with features from pinned memory and logits back to that memory.

    `side` lies on the device; each pass overwrites `side.features`.
    """

    def __init__(self, side: FloatBatches):
        self._side = side
        pinned = streams_of(side.features.device).pinned
        self._features, self._logits = (pinned(rows.nbytes).view(rows.dtype).view(rows.shape)
                                        for rows in (side.features, side.compute()))
        self._features.copy_(side.features)

    @property
    def copied_bytes(self) -> int:
        return self._features.nbytes + self._logits.nbytes

    def compute(self) -> torch.Tensor:
        """Queue a pass; return its logits (num_rows, num_classes), complete once the device has run it."""
        self._side.features.copy_(self._features, non_blocking=True)
        return self._logits.copy_(self._side.compute(), non_blocking=True)


def float_sides(work: BatchedGraph, stack: list[FloatConvolution], peers: tuple[str, ...],
                place: Place) -> dict[str, Any]:
    """The float contestants by name; everything they read is on the device."""
    sides: dict[str, Any] = {name: FloatBatches(stack, work.batches, work.features, storage, place.name)
                             for name, storage in FLOATS.items()}
    if "torch" in peers:
        sides |= {name: TorchBatches(stack, work.batches, work.features, storage=storage, device=place.name)
                  for name, storage in PEERS.items()}
    return sides


def measure_whole(case: str, work: BatchedGraph, model: IntegerModel, others: dict[str, Any],
                  place: Place) -> Measurement:
    """Time resident passes over the whole graph, and `others` (from `float_sides`).

    Raises AssertionError where logits differ from the host's.
    """
    rows = bit_rows(work, model)
    run = DevicePass.over_graph(model, work.part, work.alone, rows.coded(), torch.device(place.name))
    logits = _logits_of(run)
    on_host = HostPass(model, RankNeighborhood(work.part, work.alone), rows).forward()[0]
    check_same(case, {HOST: on_host, OURS: logits})
    measured = _measure(case, work, place, {OURS: run.queue}, others, {}, [REMARK])
    return compared(case, measured, {name: others[name] for name in FLOATS}, logits, run.row_bytes)


def measure_batches(case: str, work: BatchedGraph, model: IntegerModel, others: dict[str, Any],
                    place: Place) -> Measurement:
    """Time passes over all batches, resident in each of WAYS and with copies, and `others` (from `float_sides`).

    Raises AssertionError where ways disagree or logits differ from the host's.
    """
    packed = pack_features(model, work.batches, work.features, work.in_degree)
    runs = {way: CopiedBatches(model, packed, torch.device(place.name), way) for way in WAYS}
    residents = {way: run.resident() for way, run in runs.items()}
    logits = HostPass.over_batches(model, packed, "gather").forward()[0]
    check_same(case, {HOST: logits, **{way: _logits_of(resident) for way, resident in residents.items()},
                      **{f"{way}, with copies": run.forward()[0] for way, run in runs.items()}})
    copied = CopiedFloats(others[FP16])
    ours = {OURS: residents["auto"].queue, "tiles": residents["tiles"].queue, "gather": residents["gather"].queue}
    measured = _measure(case, work, place, ours, others,
                        {OURS_COPIED: runs["auto"].forward, FP16_COPIED: copied.compute}, [REMARK, COPY_REMARK])
    return compared(case, measured, {name: others[name] for name in FLOATS}, logits, residents["auto"].row_bytes,
                    packed, runs, copied_bytes=sum(runs["auto"].group_bytes), fp16_copied_bytes=copied.copied_bytes)


def _logits_of(resident: DevicePass) -> np.ndarray:
    resident.queue()
    return np.concatenate([logits.cpu().numpy() for logits, _ in resident.result()])


def _measure(case: str, work: BatchedGraph, place: Place, ours: Sides, others: dict[str, Any], copied: Sides,
             remarks: list[str]) -> Measurement:
    # Peers that fail are left out; a remark says if the host takes longer to queue than the device to compute.
    peers, refusals = admit({name: others[name].compute for name in PEERS if name in others}, case)
    resident = {**ours, **{name: others[name].compute for name in FLOATS}, **peers}
    contestants = {name: in_a_row(side) for name, side in {**resident, **copied}.items()}
    remarks = [*remarks, *([NO_INT8] if peers or refusals else []), *refusals]
    measured = place.measure("inference", case, work.amount, "s", contestants, remarks)
    queued = {name: wall_seconds(contestants[name]) for name in resident}
    measured.details["queue_seconds"] = queued
    slow = [name for name in resident if queued[name] > max(BUSY_SECONDS, measured.median(name))]
    if slow:
        measured.remarks.append(f"{case}: Python takes longer to queue than the device to compute {', '.join(slow)}, "
                                "and may be what is timed")
    return measured
