"""Passes of an inference on MEGA: of each product one that combines its rows, and one that aggregates the subgraphs
that were not aggregated meanwhile.

What blocks hold is known by hpcgnn.accelerators.mega.combining and aggregating.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import numpy as np

from hpcgnn.accelerators.design import Design
from hpcgnn.accelerators.mega.aggregating import aggregating_blocks
from hpcgnn.accelerators.mega.combining import combining_blocks
from hpcgnn.accelerators.mega.connections import Connections
from hpcgnn.accelerators.mega.layer import Layer, PlacedRows, places_of
from hpcgnn.accelerators.mega.layout import Layout, layout_of
from hpcgnn.accelerators.mega.rules import Rules, bytes_of
from hpcgnn.accelerators.mega.storage import StoredRows, stored_rows
from hpcgnn.accelerators.schedule import AddressSpace, Pass
from hpcgnn.accelerators.workload import FeatureCounts, Product, Workload


def passes(design: Design, workload: Workload) -> list[Pass]:
    """Return the passes of an inference.

    X of the first product comes from DRAM. Assumed: a further X stays in the Input Buffer where half of it holds all of
    X, and is written to DRAM and read again where not; the sums of the last product are written as they are.

    Raises
    ------
    ConfigError      the design lacks a number, its buffers hold no row, or values have more than 8 bits

    Reference: MEGA, section V, Table IV.
    """
    rules = Rules(design)
    workload = workload.at_width(design.bit_width) if design.bit_width else workload
    space, made = AddressSpace(), []
    for layer in _layers(rules, workload, space):
        places, name = places_of(layer, space), layer.product.name
        stages = ("combination", "aggregation", "encoder") if layer.product.aggregated_dim else (
            "combination", "encoder")
        made.append(Pass(f"{name} combination", stages, partial(combining_blocks, layer, places), 0))
        if layer.has_later:
            made.append(Pass(f"{name} aggregation", ("aggregation", "encoder"),
                             partial(aggregating_blocks, layer, places), 0))
    return made


def _layers(rules: Rules, workload: Workload, space: AddressSpace) -> Iterator[Layer]:
    layout, known = layout_of(workload, rules), {}
    products = [_ordered(product, layout.subgraphs.order) for product in workload.products]
    stored = [stored_rows(product.rows, rules) for product in products]
    placed = [_placed(rows, space) if i == 0 or rows.num_bytes > rules.half("input") else None
              for i, rows in enumerate(stored)]
    placed.append(_placed_sums(products[-1], rules, space))
    for i, product in enumerate(products):
        following = stored[i + 1] if i + 1 < len(products) else None
        yield Layer(rules, product, stored[i], _connections(layout, product, rules, known), placed[i], placed[i + 1],
                    following)


def _ordered(product: Product, order: np.ndarray) -> Product:
    rows = product.rows
    return replace(product, rows=FeatureCounts(rows.nonzeros[order], rows.bit_width[order], rows.dim))


def _connections(layout: Layout, product: Product, rules: Rules, known: dict[bytes, Connections]) -> Connections:
    """Return the arcs of a product; products with the same subgraphs share them."""
    rows = layout.rows(product.aggregated_dim, rules) if product.aggregated_dim else layout.subgraphs.rows
    num_fused = int(bool(rules["fuse_first_subgraph"]))
    return known.setdefault(rows.start.tobytes(), Connections(rows, num_fused))


def _placed(rows: StoredRows, space: AddressSpace) -> PlacedRows:
    return PlacedRows(rows.value_end, rows.position_end, space.reserve(rows.value_end[-1]),
                      space.reserve(rows.position_end[-1]))


def _placed_sums(product: Product, rules: Rules, space: AddressSpace) -> PlacedRows:
    dim, number = product.aggregated_dim or product.combined_dim, np.arange(product.rows.num_rows + 1)
    return PlacedRows(number * bytes_of(dim, rules["sum_bits"]), number * 0, space.reserve(
        product.rows.num_rows * bytes_of(dim, rules["sum_bits"])), 0)
