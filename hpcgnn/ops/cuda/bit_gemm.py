"""Products of bits on a device: launches of kernels/bit_packing.cu, bit_gemm.cu and tiles.cu.

Every product ends alike: `product_end` allocates sums, values or planes and lists the kernel's last arguments. Tiles
are made on the host, once per batch; their words are copied to the device once.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, partial

import torch

from hpcgnn.errors import KernelError
from hpcgnn.ops.bit_gemm import PAD8, WORD_BITS, BitLines, CodeRange, LineValues, Rescaling, padded, words_of
from hpcgnn.ops.cuda.module import kernel
from hpcgnn.ops.resident import on_device
from hpcgnn.ops.tiles import TileList

WARP = 32
PACKING_WARPS = 8       # warps per block
PRODUCT_WARPS = 4       # warps per block; each has other rows, or another share of the steps of the same rows
END_COLUMNS = 32        # columns per warp
STEP_WORDS = 4
CHUNK_STEPS = 4         # steps in a chunk; a share has whole chunks
FORM_ROWS = {"popcount": 8, "mma8": 8, "mma16": 16}     # rows per warp
AND_CAPABILITY = (8, 0)          # from here on tensor cores multiply bits by AND,
SOFTWARE_CAPABILITY = (10, 0)    # and from here on common instructions replace them
EMULATED_PROCESSORS = 132        # multiprocessors of the emulated device

_packing = partial(kernel, "bit_packing", is_exact=True)
_product = partial(kernel, "bit_gemm", is_exact=True)


@dataclass(frozen=True)
class ProductEnd:
    """Memory for a product's result, and the kernel's arguments from num_rows on; each warp takes 32 columns."""

    result: torch.Tensor | BitLines
    arguments: tuple
    num_column_groups: int


def form_of(capability: tuple[int, int], is_small: bool) -> str:
    if not AND_CAPABILITY <= capability < SOFTWARE_CAPABILITY:
        return "popcount"
    return "mma8" if is_small else "mma16"


def checked_form(form: str | None, device: torch.device, is_small: bool) -> str:
    """`form`, or the device's; the emulated device uses the form of current chips. KernelError for an unknown form."""
    if form is None:
        capability = torch.cuda.get_device_capability(device) if device.type == "cuda" else AND_CAPABILITY
        return form_of(capability, is_small)
    if form not in FORM_ROWS:
        raise KernelError(f"the forms of a product of bits are {', '.join(FORM_ROWS)}, found {form!r}")
    return form


def blocks_of(num_warps: int, warps_a_block: int) -> int:
    return -(-num_warps // warps_a_block)


def packing_warps(num_rows: int, num_columns: int, is_by_column: bool) -> int:
    lines, length = (-(-num_columns // WARP), num_rows) if is_by_column else (num_rows, num_columns)
    return lines * -(-length // WORD_BITS)


def product_blocks(num_rows: int, num_column_groups: int, form: str, num_shares: int = 1) -> int:
    """Blocks of a product of lines: rows of PRODUCT_WARPS / num_shares warps, one group of columns each."""
    return blocks_of(num_rows, PRODUCT_WARPS // num_shares * FORM_ROWS[form]) * num_column_groups


@cache
def processors_of(device: torch.device) -> int:
    if device.type != "cuda":
        return EMULATED_PROCESSORS
    return torch.cuda.get_device_properties(device).multi_processor_count


def shares_of(num_rows: int, num_column_groups: int, num_steps: int, form: str, num_processors: int,
              least_rows: int = 1) -> int:
    """Number of warps that divide the steps of the same rows in a block: 1, 2 or 4.

    Shares double until each multiprocessor has two blocks, while each share has a chunk of steps and each block
    `least_rows` rows.
    """
    num_shares = 1
    while (2 * num_shares <= min(PRODUCT_WARPS, blocks_of(num_steps, CHUNK_STEPS))
           and PRODUCT_WARPS // (2 * num_shares) * FORM_ROWS[form] >= least_rows
           and product_blocks(num_rows, num_column_groups, form, num_shares) < 2 * num_processors):
        num_shares *= 2
    return num_shares


def pack_codes(codes: torch.Tensor, lines: BitLines, is_by_column: bool) -> None:
    name = "pack_codes_of_columns" if is_by_column else "pack_codes_of_rows"
    _pack(_packing(name), codes, (codes,), lines, is_by_column)


def pack_values(values: torch.Tensor, codes: CodeRange, lines: BitLines, is_by_column: bool) -> None:
    name = "pack_values_of_columns" if is_by_column else "pack_values_of_rows"
    values, low, step = (matrix.detach() for matrix in (values, codes.low, codes.step))
    is_per_line = len(codes.low) > 1
    _pack(_packing(name), values, (values, low, step, is_per_line, codes.offset), lines, is_by_column)


def unpack_codes(lines: BitLines) -> torch.Tensor:
    codes = torch.empty(lines.num_lines, lines.length, dtype=torch.uint8, device=lines.words.device)
    num_warps = packing_warps(lines.num_lines, lines.length, False)
    _packing("unpack_codes")((blocks_of(num_warps, PACKING_WARPS),), (PACKING_WARPS * WARP,), *_planes(lines),
                             lines.num_lines, lines.length, codes)
    return codes


def sum_lines(lines: BitLines) -> torch.Tensor:
    sums = torch.empty(lines.num_lines, dtype=torch.int64, device=lines.words.device)
    _packing("sum_codes")((blocks_of(lines.num_lines, PACKING_WARPS),), (PACKING_WARPS * WARP,), *_planes(lines),
                          lines.num_lines, sums)
    return sums


def multiply_bits(left: BitLines, right: BitLines, rescaling: Rescaling | None, codes: CodeRange | None,
                  form: str | None = None, num_shares: int | None = None) -> torch.Tensor | BitLines:
    # `form` is a key of FORM_ROWS, by default the chip's; `num_shares` is 1, 2 or 4, by default from `shares_of`.
    device = right.words.device
    form = checked_form(form, device, is_small=left.num_lines <= PRODUCT_WARPS * FORM_ROWS["mma8"])
    end = product_end(left.num_lines, right, rescaling, codes)
    words, num_padded, num_planes, num_steps = right_arguments(right)
    if num_shares is None:
        num_shares = shares_of(left.num_lines, end.num_column_groups, num_steps, form, processors_of(device))
    _product(f"multiply_{form}")(
        (product_blocks(left.num_lines, end.num_column_groups, form, num_shares),), (PRODUCT_WARPS * WARP,),
        left.words, left.words.shape[1], left.bit_width, words, num_padded, num_planes, num_steps, num_shares,
        end.num_column_groups, *end.arguments)
    return end.result


def right_arguments(right: BitLines) -> tuple:
    num_planes, num_padded, line_words = right.words.shape
    return right.words, num_padded, num_planes, line_words // STEP_WORDS


def product_end(num_rows: int, right: BitLines, rescaling: Rescaling | None, codes: CodeRange | None) -> ProductEnd:
    num_columns, device = right.num_lines, right.words.device
    num_groups = blocks_of(num_columns, END_COLUMNS)
    sums = values = planes = None
    if rescaling is None:
        result = sums = torch.empty(num_rows, num_columns, dtype=torch.int32, device=device)
    elif codes is None:
        result = values = torch.empty(num_rows, num_columns, device=device)
    else:
        # The kernel also writes the words of padding.
        planes = torch.empty(codes.bit_width, padded(num_rows, PAD8), words_of(num_columns), dtype=torch.int32,
                             device=device)
        result, num_groups = BitLines(planes, num_rows, num_columns), planes.shape[2]
    return ProductEnd(result, (num_rows, num_columns, sums, values, planes, *_scaling(rescaling, right.length),
                               *_coding(codes, planes)), num_groups)


def _scaling(rescaling: Rescaling | None, length: int) -> tuple:
    if rescaling is None:
        return (None,) * 6 + (0.0, None, None, False, False)
    return (*_vectors(rescaling.rows), *_vectors(rescaling.columns), length, _vector(rescaling.gain),
            _vector(rescaling.bias), rescaling.is_by_row, rescaling.has_relu)


def _coding(codes: CodeRange | None, planes: torch.Tensor | None) -> tuple:
    if planes is None:
        return 0.0, 1.0, 0.0, 1, 0, 0
    return codes.low, codes.step, codes.offset, codes.bit_width, planes.shape[1], planes.shape[2]


def _pack(pack, matrix: torch.Tensor, source: tuple, lines: BitLines, is_by_column: bool) -> None:
    num_rows, num_columns = matrix.shape
    num_blocks = blocks_of(packing_warps(num_rows, num_columns, is_by_column), PACKING_WARPS)
    num_planes, num_padded, line_words = lines.words.shape
    pack((num_blocks,), (PACKING_WARPS * WARP,), *source, num_rows, num_columns, lines.words, num_planes, num_padded,
         line_words)


def _planes(lines: BitLines) -> tuple:
    num_planes, num_padded, line_words = lines.words.shape
    return lines.words, num_planes, num_padded, line_words


def _vectors(lines: LineValues) -> tuple[torch.Tensor | None, ...]:
    return tuple(_vector(values) for values in (lines.step, lines.zero_point, lines.sum))


def _vector(values: torch.Tensor | None) -> torch.Tensor | None:
    return None if values is None else values.detach().contiguous()


ROWS_A_BLOCK = 256      # rows of a block that counts entries, one thread per row

_kernel = partial(kernel, "tiles", is_exact=True)


def count_entries(tiles: TileList) -> torch.Tensor:
    counts = torch.empty(tiles.num_rows, dtype=torch.int64, device=tiles.words.device)
    _kernel("count_entries")((blocks_of(tiles.num_rows, ROWS_A_BLOCK),), (ROWS_A_BLOCK,),
                             on_device(tiles.begin, tiles.words), tiles.words, tiles.num_rows, counts)
    return counts


def multiply_tiles(tiles: TileList, right: BitLines, jump: bool, reuse: bool, rescaling: Rescaling | None,
                   codes: CodeRange | None, form: str | None = None) -> tuple[torch.Tensor | BitLines, int]:
    # `form` as in `multiply_bits`. A list holds no tile of zeros, so the device need not count any.
    num_tile_rows, is_jumping = len(tiles.begin) - 1, jump and tiles.is_dense
    form = checked_form(form, right.words.device, is_small=tiles.num_tiles < 2 * num_tile_rows)
    end = product_end(tiles.num_rows, right, rescaling, codes)
    num_multiplied = torch.zeros(num_tile_rows, dtype=torch.int32, device=right.words.device)
    _kernel(f"multiply_{form}")(
        (tile_blocks(num_tile_rows, end.num_column_groups),), (PRODUCT_WARPS * WARP,),
        on_device(tiles.begin, right.words), on_device(tiles.column, right.words), tiles.words, num_tile_rows,
        *right_arguments(right), end.num_column_groups, is_jumping, reuse, num_multiplied, *end.arguments)
    if is_jumping:
        return end.result, int(num_multiplied.sum())
    return end.result, tiles.num_tiles if right.num_lines else 0


def tile_blocks(num_tile_rows: int, num_column_groups: int) -> int:
    return blocks_of(num_tile_rows * num_column_groups, PRODUCT_WARPS)
