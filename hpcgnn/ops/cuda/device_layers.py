"""Integer layers on a device: launches of kernels/integer_map.cu, _rows.cu, _tiles.cu and _attention.cu."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch

from hpcgnn.ops.bit_gemm import BitLines, words_of
from hpcgnn.ops.cuda.bit_gemm import (
    END_COLUMNS,
    FORM_ROWS,
    PRODUCT_WARPS,
    WARP,
    blocks_of,
    checked_form,
    processors_of,
    product_blocks,
    right_arguments,
    shares_of,
)
from hpcgnn.ops.cuda.module import Kernel, act, kernel, recording
from hpcgnn.ops.device_layers import (
    DeviceLayer,
    DeviceNodes,
    DeviceScales,
    Entries,
    RowPlanes,
    SlotTiles,
    WeightPlanes,
    padded_outputs,
)
from hpcgnn.ops.integer_rows import WEIGHT_TABLES
from hpcgnn.ops.resident import on_device, resident
from hpcgnn.ops.tiles import TILE_ROWS

BLOCK_ROWS = 8        # rows per block of kernels that finish rows
ROW_LANES = 16        # lanes per row there
BLOCK_THREADS = BLOCK_ROWS * ROW_LANES

__all__ = ["RowEnd", "act", "empty_columns", "finish_attended", "finish_neighbors", "finish_second", "finish_tiles",
           "map_codes", "map_sums", "recording"]

_exactly = partial(kernel, is_exact=True)
_tables = [resident(np.ascontiguousarray(table)) for table in WEIGHT_TABLES]


@dataclass(frozen=True)
class RowEnd:
    """How a layer's sums are finished.

    factor : (num_rows,) float32 or None      factors of the layer's reduction
    fields : (n, field_words) int32           mapped codes, the rows' own first
    own : (num_rows, dim) int32 or None       sums of the map of the row itself
    values : (num_rows, columns) float32 or None, target : RowPlanes or None      outputs
    scales : DeviceScales or None             scales of the target's codes
    rectifies, norms : bool                   max(0, x); the layer's LayerNorm before it
    """

    layer: DeviceLayer
    nodes: DeviceNodes
    factor: torch.Tensor | None
    fields: torch.Tensor
    own: torch.Tensor | None
    values: torch.Tensor | None
    target: RowPlanes | None
    scales: DeviceScales | None
    rectifies: bool
    norms: bool
    faults: torch.Tensor

    def arguments(self) -> dict[str, Any]:
        layer, settings = self.layer, self.layer.settings
        more: dict[str, Any] = {}
        if settings.adds_near:
            more |= {"near": self.fields, "epsilon": settings.epsilon}
        if self.own is not None:
            more |= {"own": self.own, "own_step": layer.rows.step, "num_own_steps": len(layer.rows.step),
                     "own_scale": layer.own_scale}
        return {"dim": layer.dim, "row_factor": self.factor, "column_scale": layer.mapped_step, "bias": layer.bias,
                "field_bits": layer.field_bits, "field_words": layer.field_words, **more, **self.written()}

    def written(self) -> dict[str, Any]:
        layer = self.layer
        found: dict[str, Any] = {
            "degree": self.nodes.degree, "count": self.nodes.count, "num_rows": len(self.nodes.degree),
            "values": self.values, "rectifies": self.rectifies, "faults": self.faults}
        if self.norms and layer.norm_weight is not None:
            found |= {"norm_weight": layer.norm_weight, "norm_bias": layer.norm_bias,
                      "norm_eps": layer.settings.norm_eps}
        if self.target is not None:
            found |= {"planes": self.target.words, "bit_width": self.target.bit_width,
                      "is_signed": self.target.is_signed, "line_words": self.target.words.shape[2],
                      "step": self.scales.step, "limit": self.scales.limit, "num_steps": len(self.scales.step)}
        return found


def empty_columns(layer: DeviceLayer, tiles: SlotTiles) -> BitLines:
    shape = layer.settings.mapped_bits, padded_outputs(layer.dim), words_of(tiles.num_slots)
    return BitLines(torch.empty(shape, dtype=torch.int32, device=tiles.slot_row.device), layer.dim, tiles.num_slots)


def map_codes(layer: DeviceLayer, rows: RowPlanes, degree: torch.Tensor, factor: torch.Tensor | None,
              fields: torch.Tensor | None, tiles: SlotTiles | None, columns: BitLines | None,
              faults: torch.Tensor) -> None:
    found: dict[str, Any] = {
        "degree": degree, "step": layer.rows.step, "num_entries": len(layer.rows.step), "row_factor": factor,
        "ratio": layer.ratio, "limit": layer.settings.mapped_limit, "fields": fields, "field_bits": layer.field_bits,
        "field_words": layer.field_words, "faults": faults}
    if tiles is not None:
        bit_width, num_padded, slot_words = columns.words.shape
        found |= {"slot_row": tiles.slot_row, "num_slots": tiles.num_slots, "planes": columns.words,
                  "bit_width": bit_width, "num_padded": num_padded, "slot_words": slot_words}
    _map(rows, layer.map, found)


def map_sums(rows: RowPlanes, weights: WeightPlanes, first: int = 0, stop: int | None = None) -> torch.Tensor:
    stop = rows.num_rows if stop is None else stop
    sums = torch.empty(rows.num_rows, weights.num_outputs, dtype=torch.int32, device=rows.words.device)
    some = RowPlanes(rows.words.flatten()[first * rows.row_stride:] if first else rows.words, stop - first, rows.length,
                     rows.bit_width, rows.plane_stride, rows.row_stride, rows.is_signed)
    _map(some, weights, {"sums": sums[first:stop]})
    return sums


def finish_neighbors(end: RowEnd, entries: Entries, first: int, stop: int) -> None:
    layer = end.layer
    hub_sums = None
    if entries.num_hubs:
        hub_sums = torch.empty(entries.num_hubs, layer.dim, dtype=torch.int32, device=end.fields.device)
        act(hub_sums.zero_)
        chunks = entries.chunks(first, stop)
        num_chunks = chunks.stop - chunks.start
        _start(_exactly("integer_rows", f"sum_chunks_{layer.field_bits}"), blocks_of(num_chunks, PRODUCT_WARPS), 0,
               {"chunk_hub": entries.chunk_hub[chunks], "chunk_begin": entries.chunk_bounds[chunks],
                "num_chunks": num_chunks, "indices": entries.indices, "fields": end.fields,
                "field_words": layer.field_words, "dim": layer.dim, "hub_sums": hub_sums})
    _finish(f"finish_neighbors_{layer.field_bits}", first, stop, {
        **end.arguments(), "indptr": entries.indptr, "indices": entries.indices, "fields": end.fields,
        "hub": entries.hub, "hub_sums": hub_sums, "shift": 1 << (layer.field_bits - 1)})


def finish_tiles(end: RowEnd, tiles: SlotTiles, columns: BitLines) -> None:
    found = end.arguments()
    is_small = len(tiles.column) < 2 * (len(tiles.begin) - 1)
    form = checked_form(None, tiles.words.device, is_small)
    found |= dict(zip(("right", "num_right", "right_width", "num_right_steps"), right_arguments(columns), strict=True))
    found |= {"slot_row": tiles.slot_row, "begin": tiles.begin, "column": tiles.column, "words": tiles.words,
              "shift": 1 << (columns.bit_width - 1)}
    _start(_exactly("integer_tiles", f"finish_{form}"), tiles.num_slots // TILE_ROWS, *_shared(found))


def finish_attended(end: RowEnd, entries: Entries, first: int, stop: int) -> None:
    layer, heads, device = end.layer, end.layer.settings.attention, end.fields.device
    # Rows of other ranks have arrived when the last rows are attended to; earlier rows have no such neighbors.
    num_codes = len(end.fields) if stop == len(end.nodes.degree) else len(end.nodes.degree)
    scores = [torch.empty(num_codes, heads.heads, dtype=torch.int64, device=device) for _ in range(2)]
    fields = {"fields": end.fields, "bits": layer.field_bits, "field_words": layer.field_words, "dim": layer.dim,
              "num_heads": heads.heads, "target": scores[0], "source": scores[1]}
    _start(_exactly("integer_attention", "score_rows"), blocks_of(num_codes, PRODUCT_WARPS), 0,
           {**fields, "num_rows": num_codes, "vectors": layer.vectors})
    attended = torch.empty(len(end.nodes.degree), layer.dim, device=device)
    coarse, fine = (on_device(table, attended) for table in _tables)
    _start(_exactly("integer_attention", "attend_rows"), blocks_of((stop - first) * heads.heads, PRODUCT_WARPS), 0,
           {**fields, "first_row": first, "num_rows": stop, "indptr": entries.indptr, "indices": entries.indices,
            "coarse": coarse, "fine": fine, "out": attended})
    found = end.written() | {"dim": layer.out_dim, "bias": layer.bias, "rows": attended,
                             "column_scale": layer.mapped_step}
    if heads.averages_heads:
        means = torch.empty(len(attended), layer.out_dim, device=device)
        act(partial(_average_heads, attended, layer.mapped_step, heads.heads, means))
        found |= {"rows": means, "column_scale": None}
    _finish("finish_rows", first, stop, found)


def finish_second(end: RowEnd, first: int, stop: int) -> None:
    layer = end.layer
    _finish("finish_sums", first, stop, {
        **end.written(), "dim": layer.out_dim, "sums": end.fields, "row_step": layer.second_rows.step,
        "num_row_steps": len(layer.second_rows.step), "column_scale": layer.second_scale, "bias": layer.second_bias})


def _map(rows: RowPlanes, weights: WeightPlanes, found: dict[str, Any]) -> None:
    num_slots, device = found.get("num_slots", rows.num_rows), rows.words.device
    form = checked_form(None, device, is_small=num_slots <= PRODUCT_WARPS * FORM_ROWS["mma8"])
    num_groups = blocks_of(weights.num_outputs, END_COLUMNS)
    words, num_padded, num_planes, num_steps = right_arguments(weights.lines)
    # A warp makes one word from a column of 32 slots.
    num_shares = shares_of(num_slots, num_groups, num_steps, form, processors_of(device),
                           least_rows=WARP if "planes" in found else 1)
    num_blocks = product_blocks(num_slots, num_groups, form, num_shares)
    _start(_exactly("integer_map", f"map_{form}"), num_blocks, 0, {
        "rows": rows.words, "plane_stride": rows.plane_stride, "row_stride": rows.row_stride,
        "row_words": -(-rows.length // 32), "num_row_planes": rows.bit_width, "num_slots": num_slots, "weights": words,
        "num_weights": num_padded, "num_weight_planes": num_planes, "num_steps": num_steps, "num_shares": num_shares,
        "num_column_groups": num_groups, "num_outputs": weights.num_outputs,
        "correction": weights.correction(rows.offset), **found})


def _finish(name: str, first: int, stop: int, found: dict[str, Any]) -> None:
    _start(_exactly("integer_rows", name), blocks_of(stop - first, BLOCK_ROWS),
           *_shared({**found, "first": first, "num_rows": stop}))


def _shared(found: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    cells = found["dim"] + (ROW_LANES - found["dim"]) % (2 * ROW_LANES)
    num_words = found.get("bit_width", 0) * found.get("line_words", 0)
    return 4 * BLOCK_ROWS * (cells + num_words), found | {"cells": cells}


def _start(which: Kernel, num_blocks: int, shared_bytes: int, found: dict[str, Any]) -> None:
    unknown = found.keys() - {one.name for one in which.parameters}
    assert not unknown, f"{which.name} has no parameter {unknown}"
    which((num_blocks,), (BLOCK_THREADS,), *(found.get(one.name, None if one.is_pointer else 0)
                                             for one in which.parameters), shared_bytes=shared_bytes)


def _average_heads(rows: torch.Tensor, step: torch.Tensor, num_heads: int, means: torch.Tensor) -> None:
    by_head = (rows * step).view(len(rows), num_heads, -1)
    means.copy_(by_head[:, 0])
    for head in range(1, num_heads):
        means += by_head[:, head]
    # Divide by a tensor on the device: by a host number, torch multiplies with the inverse, which rounds twice.
    means /= torch.full((1, 1), float(num_heads), device=means.device)
