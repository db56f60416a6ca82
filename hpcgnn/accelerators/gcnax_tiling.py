"""GCNAX's choice of tiles and of the order of its loops: the one that moves least between DRAM and its buffers. Which
tiles are empty is not known here.
"""

from __future__ import annotations

from itertools import permutations
from typing import NamedTuple

import numpy as np

from hpcgnn.accelerators.design import Design
from hpcgnn.accelerators.row_requests import size_in_bytes
from hpcgnn.errors import ConfigError

ORDERS = tuple("".join(order) for order in permutations("mkn"))


class Tiling(NamedTuple):
    """A product of a sparse (rows, depth) and a dense (depth, columns) matrix, cut into tiles.

    Attributes
    ----------
    order : str        the loops over tiles of rows (m), depth (k) and columns (n), from outside to inside
    rows, depth, columns : int      of a tile
    """

    order: str
    rows: int
    depth: int
    columns: int


class Shape(NamedTuple):
    """What is multiplied.

    Attributes
    ----------
    rows, depth : int
    parts : tuple of int      columns of the dense matrix; no tile has columns of two parts
    sparse_bytes : int        of the sparse matrix
    """

    rows: int
    depth: int
    parts: tuple[int, ...]
    sparse_bytes: int


def num_panels(shape: Shape, columns: int) -> int:
    """Return the number of tiles of so many columns, side by side."""
    return sum(-(-part // columns) for part in shape.parts)


def num_loads(order: str, trips: dict[str, int], loop: str) -> int:
    """Return how often each tile of a matrix that doesn't depend on a loop is loaded: anew in each turn of it, unless
    no loop inside of it goes on to another tile.
    """
    inside = order[order.index(loop) + 1:]
    return trips[loop] if any(trips[other] > 1 for other in inside) else 1


def traffic(design: Design, shape: Shape, tiling: Tiling) -> int:
    """Return the bytes that a tiling moves while no tile is skipped, without results, which are written once by any:
    the sparse and the dense matrix, and sums that leave before they are complete and come back (GCNAX, Li et al., HPCA
    2021, the model of DRAM accesses of its dataflow).
    """
    trips = {"m": -(-shape.rows // tiling.rows), "k": -(-shape.depth // tiling.depth),
             "n": num_panels(shape, tiling.columns)}
    columns = sum(shape.parts)
    sums = shape.rows * size_in_bytes(columns, design.rules["sum_bits"])
    return (shape.sparse_bytes * num_loads(tiling.order, trips, "n")
            + shape.depth * size_in_bytes(columns, design.bit_width) * num_loads(tiling.order, trips, "m")
            + 2 * sums * (num_loads(tiling.order, trips, "k") - 1))


def largest_tile(design: Design, shape: Shape, columns: int) -> tuple[int, int]:
    """Return the most rows and the greatest depth of tiles with so many columns; 0 where not one fits.

    Half of the Dense Buffer holds a tile of the dense matrix, half of the Output Buffer the sums. assumed: a sparse
    tile passes through its buffer in parts and bounds neither.
    """
    rows = design.buffer_bytes("output") // 2 // size_in_bytes(columns, design.rules["sum_bits"])
    depth = design.buffer_bytes("dense") // 2 // size_in_bytes(columns, design.bit_width)
    return min(rows, shape.rows), min(depth, shape.depth)


def best_tilings(design: Design, shapes: list[Shape]) -> list[Tiling]:
    """Return the tilings of a product's phases, with equal columns, that together move least.

    assumed: XW lies in DRAM by panels of a tile's columns, which both phases therefore share. Larger tiles never move
    more, so that only the largest for each number of columns are compared; of equal ones the first is taken, with the
    most columns.

    Raises
    ------
    ConfigError      not even one value fits into half of a buffer
    """
    best, least = [], np.inf
    for columns in range(max(part for shape in shapes for part in shape.parts), 0, -1):
        tilings = [_best_order(design, shape, columns) for shape in shapes]
        if not all(min(tiling[1:]) > 0 for tiling in tilings):
            continue
        num_bytes = sum(traffic(design, shape, tiling) for shape, tiling in zip(shapes, tilings, strict=True))
        if num_bytes < least:
            best, least = tilings, num_bytes
    if not best:
        raise ConfigError(f"half of a buffer of {design.name} can't hold one value; choose larger buffers")
    return best


def _best_order(design: Design, shape: Shape, columns: int) -> Tiling:
    rows, depth = largest_tile(design, shape, columns)
    if not rows or not depth:
        return Tiling(ORDERS[0], rows, depth, columns)
    return min((Tiling(order, rows, depth, columns) for order in ORDERS),
               key=lambda tiling: traffic(design, shape, tiling))
