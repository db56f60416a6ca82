"""Forged input for the decoders of bytes that others have written, in batches; run under sanitizers by sanitize.py.

Reads numbers of batches, and answers each with `done N`, N the decoder executions. What is refused is refused by
KernelError or a kernel's fault number; a fault of memory ends the process. `--collect N` writes the corpus anew.
"""

from __future__ import annotations

import json
import sys
from contextlib import suppress
from pathlib import Path

import numpy as np
import torch
from campaigns.sanitize import BATCH_EXECUTIONS
from integer_models import some_model

from hpcgnn._ext import combination_sparse
from hpcgnn._ext import package as kernels
from hpcgnn.errors import KernelError
from hpcgnn.lowbit.inference.batches import Batches
from hpcgnn.lowbit.inference.coded_rows import CodedRows
from hpcgnn.lowbit.inference.host_pass import BatchNeighborhood, forward_codes, pack_features
from hpcgnn.lowbit.package import PackagedRows, PackageFormat, encode
from hpcgnn.ops import aggregation, bit_gemm, integer_rows, quantization, tiles
from hpcgnn.ops.counter import FORWARD, CounterKey

CORPUS = Path(__file__).parent / "corpus" / "packages.json"
ARRAYS = ("stream", "positions", "index_bit", "index_values", "index_position")
STORAGES = (torch.float32, torch.bfloat16, torch.float16)
KEY = CounterKey(0, 0, FORWARD, 0)
FORGED_NUMBERS = (-2**31, -1, 0, 1, 7, 8, 63, 64, 10**6, 2**31 - 1)


def decode_all_ways(packed: PackagedRows, out: dict[str, np.ndarray]) -> tuple[int, ...]:
    """Fault numbers of the six readers of packages, each of which reads all rows."""
    source, num_rows = packed.source, packed.num_rows
    return (kernels.decode_rows(source, 0, num_rows, out["codes"], None, None, None)[0],
            kernels.decode_rows(source, 0, num_rows, None, out["rows"], out["scale"], out["width"])[0],
            kernels.decode_chosen(source, out["node"], out["codes"])[0],
            kernels.read_bitmaps(source, 0, num_rows, out["bitmap"])[0],
            combination_sparse.combine_packages(source, 0, num_rows, out["weight"], False, out["sums"])[0],
            combination_sparse.combine_packages(source, 0, num_rows, out["weight"], True, out["sums"])[0])


def room_for(num_rows: int, dim: int) -> dict[str, np.ndarray]:
    """What the readers write to, and what they read beside the packages."""
    return {"codes": np.empty((num_rows, dim), np.uint8), "rows": np.empty((num_rows, dim), np.float32),
            "scale": np.ones(num_rows, np.float32), "width": np.empty(num_rows, np.uint8),
            "node": np.arange(num_rows)[::-1].copy(), "bitmap": np.empty((num_rows, -(-dim // 8)), np.uint8),
            "weight": (np.arange(5 * dim).reshape(5, dim) * 37 % 255 - 127).astype(np.int8),
            "sums": np.empty((num_rows, 5), np.int32)}


def some_packages(rng: np.random.Generator) -> PackagedRows:
    """A good stream of random rows, some longer than a block of columns."""
    signed = bool(rng.integers(2))
    form = PackageFormat([(64, 128, 192), (8, 8, 8), (37, 99, 100)][rng.integers(3)], signed)
    shape = (rng.integers(1, 100), rng.integers(1, 40)) if rng.integers(8) else (10, rng.integers(500, 1500))
    widths = rng.integers(1 + signed, 9, shape[0])
    codes = rng.integers(0, 256, shape) % (form.max_code(8) + 1) >> (8 - widths)[:, None]
    is_there = rng.random(shape) < rng.choice([rng.random(), 0.003, 0.997])
    return encode((codes * is_there).astype(form.dtype), widths, form)


def flip(packed: PackagedRows, rng: np.random.Generator) -> None:
    """Flip one to four bits of the arrays, in place; bits after the last stay zero."""
    for _ in range(rng.integers(1, 5)):
        array = getattr(packed, ARRAYS[rng.integers(5)] if rng.integers(3) else "positions").reshape(-1).view(np.uint8)
        if array.size:
            array[rng.integers(array.size)] ^= 1 << rng.integers(8)
    for array, num_bits in ((packed.stream, packed.num_bits), (packed.positions, packed.num_position_bits)):
        if num_bits % 8:
            array[-1] &= (1 << num_bits % 8) - 1


def hidden_packages(rng: np.random.Generator) -> PackagedRows:
    """What a hidden layer of a model of integers reads, each row at the width of its in-degree."""
    num_rows, dim = int(rng.integers(2, 60)), int(rng.integers(4, 40))
    indptr = np.append(0, np.cumsum(rng.integers(0, 6, num_rows))).astype(np.int64)
    batches = Batches(np.arange(num_rows), np.array([0, num_rows]), indptr,
                      rng.integers(0, num_rows, indptr[-1]).astype(np.int32))
    model = some_model(str(rng.choice(["gcn", "gin", "sage", "gat"])), num_features=dim, seed=int(rng.integers(2**31)),
                       hidden=2 * int(rng.integers(2, 90)), num_layers=3, has_norm=bool(rng.integers(2)))
    degree, seen = batches.in_degree, []
    packed = pack_features(model, batches, rng.normal(size=(num_rows, dim)).astype(np.float32), degree)
    coded = CodedRows.empty(model.convolutions[0].rows, degree, dim)
    coded.codes[...] = packed.codes()
    forward_codes(model, coded, BatchNeighborhood(packed, "gather"), lambda rows: seen.append(rows.packages()))
    return seen[int(rng.integers(1, 3))]


def try_hidden(rng: np.random.Generator) -> int:
    return try_flipped(hidden_packages(rng), rng)


def try_packages(rng: np.random.Generator) -> int:
    return try_flipped(some_packages(rng), rng)


def try_flipped(packed: PackagedRows, rng: np.random.Generator) -> int:
    """Good packages read in all ways, each time with other bits flipped."""
    executions = 0
    good, out = {name: getattr(packed, name).copy() for name in ARRAYS}, room_for(packed.num_rows, packed.dim)
    while executions < BATCH_EXECUTIONS:
        flip(packed, rng)
        executions += len(decode_all_ways(packed, out))
        for name in ARRAYS:
            getattr(packed, name)[...] = good[name]
    return executions


def try_messages(rng: np.random.Generator) -> int:
    """Messages of any bytes, whose rows go to tables that some of them are not in."""
    for _ in range(BATCH_EXECUTIONS // 4):
        num_rows, dim, storage = int(rng.integers(0, 12)), int(rng.integers(0, 90)), STORAGES[rng.integers(3)]
        layout = quantization.MessageLayout.build(rng.choice(quantization.BIT_WIDTHS, num_rows), dim,
                                                  str(rng.choice(quantization.CODES)))
        message = rng.integers(0, 256, layout.num_bytes, np.uint8)
        table = torch.zeros(int(rng.integers(0, 14)), dim, dtype=storage)
        place = rng.permutation(14)[:num_rows].astype(np.int32) - int(rng.integers(5) == 0)
        for accumulate in (False, True):
            with suppress(KernelError):
                quantization.dequantize_rows(message, place, np.arange(num_rows), layout, table, accumulate, KEY)
        with suppress(KernelError):
            quantization.parameters_of(message, layout)
        if layout.code == "affine":
            with suppress(KernelError):
                try_packed_rows(rng, message, layout, table)
    return BATCH_EXECUTIONS


def try_packed_rows(rng: np.random.Generator, message: np.ndarray, layout, near: torch.Tensor) -> None:
    """A product that decodes rows of a message as it reads them; some do not lie in it."""
    far = int((layout.bit_width <= 8).sum())
    offset = layout.payload_offset[:far] + rng.choice([0, 0, 0, 1, -1, 10**9])
    packed = aggregation.PackedRows(message, layout.bit_width[layout.bit_width <= 8], offset,
                                    layout.parameter_offset[:far])
    indptr = np.array([0, 0, len(near) + far])
    matrix = aggregation.from_csr(indptr, np.arange(len(near) + far, dtype=np.int32), len(near) + far)
    aggregation.multiply(matrix, near, packed)


def forged_csr(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, int]:
    """indptr, indices and the number of columns of a small matrix, with one number changed in half of them."""
    num_rows, num_columns = int(rng.integers(1, 20)), int(rng.integers(1, 20))
    indptr = np.append(0, np.cumsum(rng.integers(0, 6, num_rows)))
    indices = rng.integers(0, num_columns, indptr[-1]).astype(np.int32)
    if rng.integers(2):
        array = (indptr, indices)[rng.integers(2)]
        if array.size:
            array[rng.integers(array.size)] = FORGED_NUMBERS[rng.integers(len(FORGED_NUMBERS))]
    return indptr, indices, num_columns


def try_matrices(rng: np.random.Generator) -> int:
    """Kernels that follow the indices of a matrix."""
    for _ in range(BATCH_EXECUTIONS // 5):
        indptr, indices, num_columns = forged_csr(rng)
        dim, num_rows = int(rng.integers(1, 40)), len(indptr) - 1
        h = torch.ones(num_columns, dim, dtype=STORAGES[rng.integers(3)])
        codes = rng.integers(-128, 128, (max(num_columns, num_rows), dim)).astype(np.int8)
        scores = integer_rows.Scores(*np.zeros((2, len(codes), 1), np.int64))
        with suppress(KernelError):
            aggregation.multiply(aggregation.from_csr(indptr, indices, num_columns), h)
        with suppress(KernelError):
            aggregation.row_maximum(aggregation.from_csr(indptr, indices, num_columns), h)
        with suppress(KernelError):
            integer_rows.sum_codes(indptr, indices, codes)
        with suppress(KernelError):
            integer_rows.attend_codes(indptr, indices, codes, scores)
        with suppress(KernelError):
            tiles.count_entries(tiles.tiles_of_csr(indptr, indices, num_columns, bool(rng.integers(2))))
    return BATCH_EXECUTIONS


def try_bits(rng: np.random.Generator) -> int:
    """Planes of any bits."""
    for _ in range(BATCH_EXECUTIONS // 20):
        length, widths = int(rng.integers(1, 300)), rng.integers(1, 9, 2)
        sides = [bit_gemm.BitLines(torch.from_numpy(rng.integers(
            -2**31, 2**31, (width, bit_gemm.padded(lines, 8), bit_gemm.words_of(length))).astype(np.int32)), lines,
            length) for width, lines in zip(widths, map(int, rng.integers(1, 30, 2)), strict=True)]
        for side in sides:
            bit_gemm.unpack_codes(side)
            bit_gemm.sum_lines(side)
        with suppress(KernelError):
            bit_gemm.multiply_bits(*sides)
    return BATCH_EXECUTIONS // 20 * 5


KINDS = (try_packages, try_packages, try_hidden, try_hidden, try_messages, try_matrices, try_bits)


def as_text(packed: PackagedRows) -> dict:
    """A stream for the corpus."""
    return {"lengths": list(packed.format.lengths), "is_signed": bool(packed.format.is_signed),
            **{name: int(getattr(packed, name)) for name in ("num_rows", "dim", "num_bits", "num_position_bits",
                                                              "interval")},
            **{name: getattr(packed, name).tobytes().hex() for name in ARRAYS}}


def from_text(one: dict) -> PackagedRows:
    """A stream of the corpus."""
    types = dict(zip(ARRAYS, (np.uint8, np.uint8, np.int64, np.int32, np.int64), strict=True))
    scalars = {name: one[name] for name in ("num_rows", "dim", "num_bits", "num_position_bits", "interval")}
    return PackagedRows(PackageFormat(one["lengths"], one["is_signed"]), **scalars,
                      **{name: np.frombuffer(bytes.fromhex(one[name]), types[name]) for name in ARRAYS})


def try_corpus() -> int:
    """All streams of the corpus; returns the decoder executions."""
    streams = [from_text(one) for one in json.loads(CORPUS.read_text())]
    return sum(len(decode_all_ways(packed, room_for(packed.num_rows, packed.dim))) for packed in streams)


def collect(count: int) -> None:
    """Write the smallest of `count` forged streams for each combination of faults that readers find."""
    rng, found = np.random.default_rng(0), {}
    for _ in range(count):
        packed = some_packages(rng)
        if packed.num_rows * packed.dim > 400:
            continue
        flip(packed, rng)
        faults = (*decode_all_ways(packed, room_for(packed.num_rows, packed.dim)), packed.format.is_signed)
        size = packed.stream.size + packed.positions.size
        if faults not in found or size < found[faults][0]:
            found[faults] = size, as_text(packed)
    lines = ",\n".join(json.dumps(one) for _, one in found.values())
    CORPUS.parent.mkdir(exist_ok=True)
    CORPUS.write_text(f"[{lines}]\n")


def main() -> None:
    if sys.argv[1] == "--collect":
        collect(int(sys.argv[2]))
        return
    seed, corpus = int(sys.argv[1]), try_corpus()
    for line in sys.stdin:
        number = int(line)
        executions = KINDS[number // 3 % len(KINDS)](np.random.default_rng([seed, number]))
        print(f"done {executions + corpus}", flush=True)
        corpus = 0


if __name__ == "__main__":
    main()
