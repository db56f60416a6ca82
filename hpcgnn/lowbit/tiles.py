"""BitTiles: an unweighted adjacency as 1-bit tiles of 8 x 128, and aggregation by bits that skips tiles of zeros.

Example: 300 nodes make 38 x 3 tiles. If rows 0 to 7 have neighbors only among nodes 0 to 127, two of the three tiles in
their row are jumped.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import scipy.sparse
import torch

from hpcgnn.errors import KernelError
from hpcgnn.lowbit.bit_tensor import BitTensor, of_codes, to_bit
from hpcgnn.lowbit.linear_algebra import fixed_range, rescaling_of
from hpcgnn.ops.tiles import TileList, count_entries, multiply_tiles, tiles_of_csr


class TileProduct(NamedTuple):
    """A product with tiles, and how many tiles were multiplied and jumped."""

    result: torch.Tensor | BitTensor
    num_multiplied: int
    num_jumped: int


@dataclass(frozen=True)
class BitTiles:
    """A 0/1 matrix in tiles, the left side of an aggregation.

    step, (num_rows,) float32 or None for 1, is the value of a row's entries, such as 1 / in-degree for a mean.
    """

    tiles: TileList
    step: torch.Tensor | None = None
    zero_point: None = None

    def __post_init__(self) -> None:
        step = self.step
        if step is not None and (step.dtype != torch.float32 or step.shape != (self.num_lines,)):
            raise KernelError(f"tiles of {self.num_lines} rows need {self.num_lines} float32 scales, "
                              f"found {step.dtype} of shape {tuple(step.shape)}")

    @classmethod
    def from_csr(cls, indptr: np.ndarray, indices: np.ndarray, num_columns: int, dense: bool = False,
                 row_scale: torch.Tensor | None = None, device: torch.device | str = "cpu") -> BitTiles:
        """Return tiles of an adjacency by destination: row v lists the sources of the edges into v.

        Parameters
        ----------
        indptr : (num_rows + 1,) int64
        indices : (num_entries,) int32
        dense : bool                        keep the tiles of zeros
        row_scale : (num_rows,) float32

        Raises KernelError if this is not the CSR of such a matrix.
        """
        return cls(tiles_of_csr(indptr, indices, num_columns, dense, device), row_scale)

    @classmethod
    def from_matrix(cls, matrix: torch.Tensor, dense: bool = False, row_scale: torch.Tensor | None = None) -> BitTiles:
        """Return tiles with a one for each non-zero entry of a matrix.

        Parameters
        ----------
        matrix : (num_rows, num_columns), any type; dense and row_scale as in `from_csr`
        """
        pattern = scipy.sparse.csr_matrix(matrix.cpu().numpy() != 0)
        return cls.from_csr(pattern.indptr.astype(np.int64), pattern.indices.astype(np.int32), matrix.shape[1], dense,
                            row_scale, matrix.device)

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns of the matrix."""
        return self.tiles.num_rows, self.tiles.num_columns

    @property
    def num_lines(self) -> int:
        return self.tiles.num_rows

    @property
    def device(self) -> torch.device:
        return self.tiles.words.device

    @property
    def nbytes(self) -> int:
        """Bytes of the tiles and of their places."""
        return self.tiles.words.nbytes + self.tiles.column.nbytes + self.tiles.begin.nbytes

    @cached_property
    def code_sums(self) -> torch.Tensor:
        """Number of entries per row, (num_rows,) int64."""
        return count_entries(self.tiles)

    @cached_property
    def num_zero_tiles(self) -> int:
        """Number of tiles without an entry, stored or not."""
        stored = int((self.tiles.words != 0).flatten(1).any(dim=1).sum())
        return self.tiles.num_places - stored


def aggregate_bits(tiles: BitTiles, features: BitTensor, *, jump: bool = True, reuse: bool = True) -> TileProduct:
    """Sum neighbors' codes.

    Parameters
    ----------
    tiles : (M, K) BitTiles
    features : (K, N) BitTensor packed by row
    jump : bool          skip tiles of zeros; False needs the dense form
    reuse : bool         load a tile once for all planes of the features

    Returns (M, N) int32, exact, and numbers of tiles multiplied and jumped. Raises KernelError for packings or lengths
    that don't fit, sums that could overflow, or jump=False for a list.

    Reference: QGTC, Sections 4.3 and 4.4.
    """
    return _product(tiles, features, *multiply_tiles(tiles.tiles, _checked(features).lines, jump, reuse))


def aggregate_to_float(tiles: BitTiles, features: BitTensor, *, gain: torch.Tensor | None = None,
                       bias: torch.Tensor | None = None, relu: bool = False, jump: bool = True,
                       reuse: bool = True) -> TileProduct:
    """Sum neighbors' values.

    Parameters
    ----------
    tiles, features, jump, reuse     as in `aggregate_bits`
    gain, bias, relu                 as in `bit_mm_to_float`

    Returns (M, N) float32, and numbers of tiles multiplied and jumped. Raises KernelError as `aggregate_bits`, or for a
    gain or bias of another shape.
    """
    rescaling = rescaling_of(tiles, _checked(features), gain, bias, relu)
    return _product(tiles, features, *multiply_tiles(tiles.tiles, features.lines, jump, reuse, rescaling))


def aggregate_to_bit(tiles: BitTiles, features: BitTensor, bit_width: int, *, low: float | None = None,
                     high: float | None = None, rounding: str = "floor", gain: torch.Tensor | None = None,
                     bias: torch.Tensor | None = None, relu: bool = False, jump: bool = True,
                     reuse: bool = True) -> TileProduct:
    """Sum as `aggregate_to_float`, then quantize, and pack by column for the next product.

    Parameters
    ----------
    tiles, features, jump, reuse     as in `aggregate_bits`
    bit_width : int, 1 to 8
    low, high, rounding, gain, bias, relu      as in `bit_mm_to_bit`

    Returns an (M, N) BitTensor, and numbers of tiles multiplied and jumped. Raises KernelError as `aggregate_to_float`
    and `to_bit`.
    """
    if low is None or high is None:
        values = aggregate_to_float(tiles, features, gain=gain, bias=bias, relu=relu, jump=jump, reuse=reuse)
        return values._replace(result=to_bit(values.result, bit_width, low=low, high=high, rounding=rounding))
    codes = fixed_range(bit_width, low, high, rounding)
    rescaling = rescaling_of(tiles, _checked(features), gain, bias, relu)
    lines, num_multiplied = multiply_tiles(tiles.tiles, features.lines, jump, reuse, rescaling, codes)
    return _product(tiles, features, of_codes(lines, "column", codes), num_multiplied)


def _checked(features: BitTensor) -> BitTensor:
    if features.packing != "row":
        raise KernelError(f"an aggregation takes features packed by 'row', found {features.packing!r}")
    return features


def _product(tiles: BitTiles, features: BitTensor, result: torch.Tensor | BitTensor,
             num_multiplied: int) -> TileProduct:
    if features.shape[1] == 0:
        return TileProduct(result, 0, 0)
    return TileProduct(result, num_multiplied, tiles.tiles.num_places - num_multiplied)
