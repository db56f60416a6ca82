"""MEGA's engines cycle by cycle, as loops: nothing of hpcgnn is called."""

from __future__ import annotations

import numpy as np


def packages_by_loop(counts, widths, lengths):
    """Bits of the packages that each row opens; value after value (MEGA, §V-B)."""
    bits, packages = [0] * len(counts), []
    for row, (count, width) in enumerate(zip(counts, widths, strict=True)):
        for _ in range(count):
            is_open = packages and packages[-1][1] == width and (packages[-1][2] + 1) * width <= lengths[2]
            if not is_open:
                packages.append([row, width, 0])
            packages[-1][2] += 1
    for row, width, held in packages:
        bits[row] += 5 + next(length for length in lengths if length >= held * width)
    return bits


def combine(codes, widths, weights, num_bse, num_pes):
    """Run the Combination Engine; return X W and the cycles.

    Each tile has a quarter of the columns. A cycle brings one bit each of up to `num_bse` values to the left C-PEs of a
    tile; the right ones get them a cycle later. A group of C-PEs ANDs a cycle after its load, and sums after that. The
    crossbar brings weights to one group of a tile a cycle; values of one bit get a zero above it.
    """
    num_rows, dim = codes.shape
    slice_dim, half = -(-dim // 4), num_pes // 2
    sums, cycle, last = np.zeros((num_rows, weights.shape[1]), int), 0, 0
    loads = set()
    for first in range(0, weights.shape[1], num_pes):
        groups = [slice(first, first + half), slice(first + half, first + num_pes)]
        for row in range(num_rows):
            queues = []
            for tile in range(4):
                columns = np.arange(tile * slice_dim, min((tile + 1) * slice_dim, dim))
                columns = columns[codes[row, columns] != 0]
                queues.append([(columns[i:i + num_bse], bit) for i in range(0, len(columns), num_bse)
                               for bit in range(max(widths[row], 2))])
            while True:
                cycle += 1
                for tile, queue in enumerate(queues):
                    if not queue:
                        continue
                    columns, bit = queue.pop(0)
                    for group, columns_of_w in enumerate(groups):
                        load = (tile, cycle + group)
                        assert bit or load not in loads, "two groups ask the crossbar at once"
                        if bit == 0:
                            loads.add(load)
                        bits = (codes[row, columns] >> bit) & 1
                        sums[row, columns_of_w] += (bits @ weights[columns, columns_of_w]) << bit
                last = cycle + 2 + 1    # AND and sum of the right group, which is a cycle late
                if not any(queues):
                    break
    return sums, last


def aggregate(columns, rows, num_units):
    """Run the Aggregation Engine; return the sums and the cycles.

    columns : list of (source, list of (destination, weight)), as CSC holds them
    """
    num_rows, dim = rows.shape
    sums, cycle = np.zeros((num_rows, dim), int), 0
    for source, arcs in columns:
        work = [(destination, weight, column) for destination, weight in arcs for column in range(dim)]
        while work:
            cycle += 1
            whole = num_units // dim * dim
            taken = work[:whole] if whole else work[:min(num_units, dim - work[0][2])]
            work = work[len(taken):]
            for destination, weight, column in taken:
                sums[destination, column] += weight * rows[source, column]
    return sums, cycle + 2 if cycle else 0


def condense(lists, num_rows, num_fifos, row_bytes, port_bytes, share_bytes, line_bytes):
    """Run Algorithm 1; return the cycles of each row, what is written as (row, subgraph, lines) and copied rows."""
    fifos = [list(ids) for ids in lists]
    held, copied = [0] * len(lists), [[] for _ in lists]    # bytes in each region of the Sparse Buffer, or rows
    by_bytes = share_bytes >= line_bytes
    full = share_bytes // line_bytes * line_bytes if by_bytes else max(share_bytes // row_bytes, 1)
    cycles, writes = [0] * num_rows, []
    for node in range(num_rows):
        for first in range(0, len(fifos), num_fifos):
            stores = 0
            for subgraph in range(first, min(first + num_fifos, len(fifos))):
                if not fifos[subgraph] or fifos[subgraph][0] != node:
                    continue
                fifos[subgraph].pop(0)
                copied[subgraph].append(node)
                stores += -(-row_bytes // port_bytes)
                held[subgraph] += row_bytes if by_bytes else 1
                while held[subgraph] >= full or (held[subgraph] and not fifos[subgraph]):
                    taken = min(held[subgraph], full)
                    num_bytes = taken if by_bytes else full * row_bytes
                    writes.append((node, subgraph, -(-num_bytes // line_bytes)))
                    held[subgraph] -= taken
            cycles[node] += max(stores, 1)
    return cycles, writes, copied
