"""HalfGNN's ablations on a GPU: SpMM and SDDMM without one of the choices that `hpcgnn.ops.cuda` makes.

    python jobs/measurements/ablations.py [--widths 256,64] [--precision fp32,fp16] [--out DIR] GRAPH...

Each GRAPH is an .npz archive or drawn:EDGES. Each product is timed beside ours and beside a gather of the same rows,
the ceiling. The kernels without a choice are in `hpcgnn/ops/cuda/kernels/ablations.cu`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import click
import torch

from hpcgnn.bench import environment
from hpcgnn.bench.place import PRECISION, Place, open_topology
from hpcgnn.bench.timing import CEILING, OURS, Measurement
from hpcgnn.cli.measurement import Shared, check_graphs, finish, open_place, parse_choices, parse_list
from hpcgnn.ops.aggregation import SparseRows, from_csr, multiply
from hpcgnn.ops.attention import sampled_products
from hpcgnn.ops.cuda import aggregation, attention
from hpcgnn.ops.cuda.aggregation import THREADS, fold_segments
from hpcgnn.ops.cuda.module import kernel
from hpcgnn.ops.cuda.segments import PAIR, SUFFIX, WARP, column_blocks
from hpcgnn.ops.resident import on_device

HAVING = (torch.float32, torch.float16)      # storages that the kernels exist for


def spmm_ablations(matrix: SparseRows, rows: torch.Tensor) -> dict[str, Callable[[], torch.Tensor]]:
    """Products (num_rows, dim) of `matrix` and `rows` (n, dim), by the choice that is left out.

    There are none for bfloat16, nor where a row's bytes are not a multiple of 16.

    Reference: HalfGNN, Fig. 9 (atomic writes) and Fig. 10 (one warp per row); pairs of columns are its half2.
    """
    if rows.dtype not in HAVING or rows.shape[1] * rows.itemsize % aggregation.LANE_BYTES:
        return {}
    return {"pairs a lane": lambda: by_pairs(matrix, rows), "atomic writes": lambda: atomically(matrix, rows),
            "a warp a row": lambda: by_row(matrix, rows)}


def sddmm_ablations(matrix: SparseRows, left: torch.Tensor,
                    right: torch.Tensor) -> dict[str, Callable[[], torch.Tensor]]:
    """SDDMM (num_entries, 1) of `left` and `right` (n, dim) float16, by columns per load; none for other storages.

    Reference: HalfGNN, Fig. 8.
    """
    if left.dtype != torch.float16 or left.shape[1] * left.itemsize % aggregation.LANE_BYTES:
        return {}
    return {f"half{vector}": lambda vector=vector: attention.sampled_products(matrix, left, right, 1, vector)
            for vector in (2, 4)}


def by_pairs(matrix: SparseRows, rows: torch.Tensor) -> torch.Tensor:
    out = torch.empty(matrix.num_rows, rows.shape[1], dtype=rows.dtype, device=rows.device)
    aggregation.launch(matrix.geometry.segments(0, matrix.num_rows), matrix, rows, None, out, False,
                       columns=PAIR)
    return out


def atomically(matrix: SparseRows, rows: torch.Tensor) -> torch.Tensor:
    # The order of atomic additions differs from call to call, and so do the last bits.
    cut, dim = matrix.geometry.segments(0, matrix.num_rows), rows.shape[1]
    out = torch.zeros(matrix.num_rows, dim, dtype=rows.dtype, device=rows.device)
    fold_segments("ablations", f"spmm_atomic_{SUFFIX[rows.dtype]}", cut, matrix, rows, dim,
                  on_device(matrix.row_scale, rows), rows, len(rows), dim, out,
                  lane_columns=aggregation.LANE_BYTES // rows.itemsize)
    return out


def by_row(matrix: SparseRows, rows: torch.Tensor) -> torch.Tensor:
    # One warp for 64 columns of a row, however long the row is.
    out = torch.empty(matrix.num_rows, rows.shape[1], dtype=rows.dtype, device=rows.device)
    arrays = (on_device(array, rows) for array in (matrix.begin, matrix.end, matrix.indices))
    kernel("ablations", f"spmm_by_row_{SUFFIX[rows.dtype]}")(
        (-(-matrix.num_rows // (THREADS // WARP)), column_blocks(rows.shape[1])), (THREADS,), *arrays, matrix.num_rows,
        on_device(matrix.row_scale, rows), rows, rows.shape[1], out)
    return out


@dataclass(frozen=True)
class AblationBenchmark:
    """Times both products with and without each choice, over each graph."""

    place: Place
    graphs: tuple[str, ...]
    widths: tuple[int, ...]
    precisions: tuple[str, ...]

    def measure(self) -> Iterator[Measurement]:
        for source in self.graphs:
            graph = open_topology(source, self.place)
            matrix = from_csr(graph.indptr, graph.indices, graph.num_nodes, row_scale=graph.inverse_degree)
            for precision in self.precisions:
                for width in self.widths:
                    left, right = (self.place.random_rows(graph.num_nodes, width, PRECISION[precision], seed)
                                   for seed in (0, 1))
                    case = f"{graph.name} x{width} {precision}"
                    amount = graph.num_edges * width * right.itemsize / 1e9
                    ceiling = self.place.gathering(right, graph.indices)
                    yield self.place.measure("spmm", case, amount, "GB/s", {
                        CEILING: ceiling, OURS: partial(multiply, matrix, right), **spmm_ablations(matrix, right)})
                    yield self.place.measure("sddmm", case, amount, "GB/s", {
                        CEILING: ceiling, OURS: partial(sampled_products, matrix, left, right, 1),
                        **sddmm_ablations(matrix, left, right)})


@click.command(help=__doc__.partition("\n")[0])
@click.argument("graphs", nargs=-1, required=True)
@click.option("--widths", default="256,64,41", show_default=True)
@click.option("--precision", default="fp32,fp16", show_default=True)
@click.option("--repeat", type=click.IntRange(min=1))
@click.option("--out", type=click.Path(path_type=Path), help="Folder for bench.json, table.txt and bench.png.")
def main(graphs: tuple[str, ...], widths: str, precision: str, repeat: int | None, out: Path | None) -> None:
    columns, precisions = parse_list("--widths", widths, int), parse_choices("--precision", precision, tuple(PRECISION))
    shared, threads = Shared(repeat, None, out, "cuda"), environment.available_cores()
    environment.run_in(environment.with_kept_memory(environment.thread_environment(threads)), (__file__,))
    machine, place = open_place("ablations", shared, threads)
    check_graphs(graphs)
    finish("ablations", machine, AblationBenchmark(place, graphs, columns, precisions), shared)


if __name__ == "__main__":
    main()
