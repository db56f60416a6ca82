"""Products of bits on the GPU: the shapes of QGTC's Table 3, and what jumping tiles of zeros and reusing tiles gain.

Rates count 2 * M * N * K operations whatever the widths, as the paper's do.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np
import torch

from hpcgnn.bench.device_timing import Device, admit
from hpcgnn.bench.timing import CEILING, OURS, Measurement
from hpcgnn.ops import bit_gemm, tiles
from hpcgnn.ops.bit_gemm import BitLines
from hpcgnn.ops.cuda import tiles as device_tiles
from hpcgnn.ops.tiles import TileList

TFLOPS = "TFLOP/s"
INT8, FP16 = "torch int8", "torch fp16"
ONCE_A_PLANE, ALL_TILES, JUMPED = "once a plane", "all tiles", "jumped in all tiles"
REUSE_DIM, REUSE_WIDTHS = 1024, (2, 4, 8)
BATCH_CLUSTERS, BATCH_DENSITY = 16, 0.1     # of the adjacency of a batch; arcs stay inside its clusters
# TFLOP/s on an RTX 3090 by (rows, dim): CUTLASS's 4 x 4 bits, then QGTC's 1 x 1 to 1 x 4 bits.
# Reference: QGTC, Table 3.
PUBLISHED = {(2048, 32): (10.36, 32.65, 19.99, 14.40, 11.30), (4096, 32): (12.28, 81.41, 46.23, 32.27, 24.75),
             (8192, 32): (12.67, 94.58, 50.82, 35.22, 26.31), (2048, 64): (21.40, 63.94, 39.41, 29.83, 22.15),
             (4096, 64): (24.66, 89.18, 51.21, 35.17, 25.38), (8192, 64): (24.70, 104.66, 55.16, 40.77, 31.07)}


def measure_bits(device: Device, sizes: tuple[int, ...], dims: tuple[int, ...], widths: tuple[int, ...],
                 peak: float | None) -> Iterator[Measurement]:
    """1-bit (size, size) times b-bit (size, dim), against the peak of 1-bit products where there is one.

    Parameters
    ----------
    peak : TFLOP/s of one plane; b planes take b times as long
    """
    for dim in dims:
        for size in sizes:
            ones = torch.randint(0, 2, (size, size), dtype=torch.int8)
            left = _on(device, bit_gemm.pack_codes(ones.view(torch.uint8), 1, False))
            for width in widths:
                yield measure_product(device, ones.to(device.place), left, dim, width, peak)


def measure_product(device: Device, ones: torch.Tensor, left: BitLines, dim: int, width: int,
                    peak: float | None) -> Measurement:
    """One row of the table; int8 and fp16 hold the same codes."""
    size = left.num_lines
    codes = torch.randint(0, min(1 << width, 128), (size, dim), dtype=torch.int8)
    right, codes = _on(device, bit_gemm.pack_codes(codes.view(torch.uint8), width, True)), codes.to(device.place)
    peers, remarks = admit({INT8: partial(torch._int_mm, ones, codes),
                            FP16: partial(torch.mm, ones.half(), codes.half())}, f"{size} x {size} x {dim}")
    row = device.measure("bits", f"{size} x {size} x {dim}, 1 x {width} bits", 2 * size**2 * dim / 1e12, TFLOPS,
                         {OURS: partial(bit_gemm.multiply_bits, left, right), **peers}, remarks, is_hot=True)
    if peak is not None:
        row.seconds[CEILING] = [row.amount * width / peak]
    _add_published(row, size, dim, width)
    return row


def _add_published(row: Measurement, size: int, dim: int, width: int) -> None:
    """The paper's figures are of another machine: they are told, and no ratio is made of them."""
    figures = PUBLISHED.get((size, dim))
    if figures is None or width >= len(figures):
        return
    row.details["published_tflops"] = {"QGTC": figures[width], "CUTLASS int4": figures[0], "chip": "RTX 3090"}
    ours = ", ".join(f"{figure:g}" for figure in figures[1:])
    row.remarks.append(f"published, RTX 3090, {size} x {size} x {dim}: QGTC {ours} TFLOP/s at 1 to {len(figures) - 1} "
                       f"bits, CUTLASS int4 {figures[0]:g}")


def measure_tiles(device: Device, sizes: tuple[int, ...], dims: tuple[int, ...],
                  widths: tuple[int, ...]) -> Iterator[Measurement]:
    """An adjacency of clusters by its list of tiles, against all tiles with and without jumping; then reuse."""
    for size in sizes:
        arcs = clustered_arcs(size)
        listed, dense = (_tiles_on(device, *arcs, size, is_dense) for is_dense in (False, True))
        remark = f"batch of {size}: {100 * (1 - listed.num_tiles / listed.num_places):.1f} % of the tiles are zero"
        for dim in dims:
            for width in widths:
                right = random_lines(device, size, dim, width)
                yield device.measure("batch", f"{size} x {size} x {dim}, {width} bits", 2 * size**2 * dim / 1e12,
                                     TFLOPS, {
                    OURS: partial(tiles.multiply_tiles, listed, right),
                    ONCE_A_PLANE: partial(tiles.multiply_tiles, listed, right, reuse=False),
                    JUMPED: partial(tiles.multiply_tiles, dense, right),
                    ALL_TILES: partial(tiles.multiply_tiles, dense, right, jump=False)}, [remark], is_hot=True)


def measure_reuse(device: Device, size: int, dim: int = REUSE_DIM) -> Iterator[Measurement]:
    """Tiles of ones only: a tile loaded once for all planes, and once a plane (QGTC, Fig. 10)."""
    full = np.tile(np.arange(size, dtype=np.int32), size)
    dense = _tiles_on(device, np.arange(size + 1) * size, full, size, True)
    for width in REUSE_WIDTHS:
        right = random_lines(device, size, dim, width)
        yield device.measure("reuse", f"{size} x {size} x {dim}, {width} bits", 2 * size**2 * dim / 1e12, TFLOPS, {
            OURS: partial(tiles.multiply_tiles, dense, right, jump=False),
            ONCE_A_PLANE: partial(tiles.multiply_tiles, dense, right, jump=False, reuse=False)}, is_hot=True)


def clustered_arcs(size: int) -> tuple[np.ndarray, np.ndarray]:
    """indptr (size + 1,) int64 and indices int32 of clusters of equal size, without arcs between them."""
    rng, cluster = np.random.default_rng(0), np.arange(size) * BATCH_CLUSTERS // size
    columns = [np.flatnonzero((cluster == own) & (rng.random(size) < BATCH_DENSITY)) for own in cluster]
    indptr = np.concatenate([[0], np.cumsum([len(found) for found in columns])]).astype(np.int64)
    return indptr, np.concatenate(columns).astype(np.int32)


def random_lines(device: Device, size: int, dim: int, width: int) -> BitLines:
    """Codes of (size, dim), packed by column."""
    codes = torch.randint(0, 1 << width, (size, dim), dtype=torch.uint8)
    return _on(device, bit_gemm.pack_codes(codes, width, True))


def _on(device: Device, lines: BitLines) -> BitLines:
    return BitLines(lines.words.to(device.place), lines.num_lines, lines.length)


def _tiles_on(device: Device, indptr: np.ndarray, indices: np.ndarray, size: int, is_dense: bool) -> TileList:
    return device_tiles.tiles_of_csr(indptr, indices, size, is_dense, device.place)
