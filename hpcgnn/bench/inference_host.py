"""Contestants of `hpcgnn bench inference` on the host: integers in one call for all batches, floats, and peers."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from hpcgnn.bench.float_networks import FloatBatches, FloatConvolution
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
from hpcgnn.bench.peers.dgl_batches import DglBatches
from hpcgnn.bench.peers.torch_batches import TorchBatches
from hpcgnn.bench.place import Place
from hpcgnn.bench.timing import OURS, Measurement, wall_seconds
from hpcgnn.lowbit.inference.batches import PackedBatches
from hpcgnn.lowbit.inference.coded_rows import BitRows, code_rows
from hpcgnn.lowbit.inference.host_pass import HostPass, RankNeighborhood, pack_features
from hpcgnn.lowbit.integer_model import IntegerModel

FLOATS = {FP32: torch.float32, BF16: torch.bfloat16}
ONCE = "dgl, one batch"
ROW_REMARK = f"each time is of {PASSES} passes in a row"
REMARK = (f"{ROW_REMARK}; {ONCE}: all clusters in one block-diagonal graph, where dgl goes "
          "batch after batch; hpcgnn takes all batches in one call, one thread per batch; floats of hpcgnn and torch "
          "take all clusters as one graph")


def float_sides(work: BatchedGraph, stack: list[FloatConvolution], peers: tuple[str, ...],
                place: Place) -> dict[str, Any]:
    """The float contestants by name, including torch's int8."""
    batches, features = work.batches, work.features
    sides: dict[str, Any] = {name: FloatBatches(stack, batches, features, storage) for name, storage in FLOATS.items()}
    if "torch" in peers:
        sides |= {"torch fp32": TorchBatches(stack, batches, features),
                  "torch int8": TorchBatches(stack, batches, features, is_int8=True)}
    if "dgl" in peers:
        sides["dgl"] = DglBatches(stack, batches, features)
    if "dgl" in peers and work.part is None:
        sides[ONCE] = DglBatches(stack, batches.joined(), features)
    return sides


def measure_whole(case: str, work: BatchedGraph, model: IntegerModel, others: dict[str, Any],
                  place: Place) -> Measurement:
    rows = bit_rows(work, model)
    run = HostPass(model, RankNeighborhood(work.part, work.alone), rows)
    contestants = {name: in_a_row(side.forward) for name, side in {OURS: run, **others}.items()}
    measured = place.measure("inference", case, work.amount, "s", contestants, [ROW_REMARK])
    return compared(case, measured, {name: others[name] for name in FLOATS}, run.forward()[0],
                    rows.bits.nbytes + run.row_bytes)


def measure_batches(case: str, work: BatchedGraph, model: IntegerModel, others: dict[str, Any],
                    place: Place) -> Measurement:
    """Time passes over all batches in each of WAYS, and `others`. Raises AssertionError if logits differ."""
    packed = pack_features(model, work.batches, work.features, work.in_degree)
    load_seconds = wall_seconds(partial(PackedBatches.load, packed.buffer))
    runs = {way: HostPass.over_batches(model, packed, way) for way in WAYS}
    # Contestants that read the same rows don't follow each other: the second would find them in the caches.
    sides = {OURS: runs["auto"], FP32: others[FP32], "tiles": runs["tiles"], BF16: others[BF16],
             "gather": runs["gather"], **others}
    answers = {way: run.forward()[0] for way, run in runs.items()}
    check_same(case, answers)
    measured = place.measure("inference", case, work.amount, "s",
                             {name: in_a_row(side.forward) for name, side in sides.items()}, [REMARK])
    return compared(case, measured, {name: others[name] for name in FLOATS}, answers["auto"], runs["auto"].row_bytes,
                    packed, runs, load_seconds=load_seconds)


def bit_rows(work: BatchedGraph, model: IntegerModel) -> BitRows:
    """The codes that the first convolution reads, as the host stores them."""
    scale = model.convolutions[0].rows
    return BitRows.of(code_rows(scale, work.features, work.in_degree), scale, work.in_degree)
