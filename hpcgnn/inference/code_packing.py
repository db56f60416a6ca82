"""Signed codes packed at their own width, one behind the other, lowest bit first. Who reads them is not known here."""

from __future__ import annotations

import numpy as np

from hpcgnn.errors import KernelError

TOGETHER = 8               # codes whose fields fill whole bytes at every width
BLOCK_CODES = 1 << 20      # packed at a time, a multiple of TOGETHER


def packed_bytes(num_codes: int, bit_width: int) -> int:
    """Count the bytes of so many codes."""
    return -(-num_codes * bit_width // 8)


def pack_codes(codes: np.ndarray, bit_width: int, out: np.ndarray | None = None) -> np.ndarray:
    """Return the low `bit_width` bits of each code, in order.

    Parameters
    ----------
    codes : int8 of any shape, of magnitude below 2**(bit_width - 1)
    bit_width : int, 2 to 8
    out : (packed_bytes,) uint8      written where given

    Returns
    -------
    (packed_bytes,) uint8; bits behind the last code are 0
    """
    flat = codes.reshape(-1)
    out = np.empty(packed_bytes(flat.size, bit_width), np.uint8) if out is None else out
    for first in range(0, flat.size, BLOCK_CODES):
        block = flat[first:first + BLOCK_CODES].view(np.uint8)
        start = first // 8 * bit_width
        out[start:start + packed_bytes(block.size, bit_width)] = _pack_block(block, bit_width)
    return out


def unpack_codes(packed: np.ndarray, bit_width: int, out: np.ndarray) -> None:
    """Write the codes that `pack_codes` packed to `out`, int8 and contiguous.

    Raises
    ------
    KernelError      packed is not as long as so many codes
    """
    flat = out.reshape(-1)
    if packed.dtype != np.uint8 or len(packed) != packed_bytes(flat.size, bit_width):
        raise KernelError(f"{flat.size} codes of {bit_width} bits take {packed_bytes(flat.size, bit_width)} bytes, "
                          f"found {len(packed)} of {packed.dtype}")
    for first in range(0, flat.size, BLOCK_CODES):
        block, start = flat[first:first + BLOCK_CODES], first // 8 * bit_width
        block[:] = _unpack_block(packed[start:start + packed_bytes(block.size, bit_width)], bit_width, block.size)


def _pack_block(codes: np.ndarray, bit_width: int) -> np.ndarray:
    if bit_width == 8:
        return codes
    fields = np.zeros((-(-codes.size // TOGETHER), TOGETHER), np.uint8)
    fields.reshape(-1)[:codes.size] = codes & (2**bit_width - 1)
    words = np.zeros(len(fields), "<u8")
    for place in range(TOGETHER):
        words |= fields[:, place].astype(np.uint64) << np.uint64(bit_width * place)
    whole = words.view(np.uint8).reshape(-1, 8)[:, :bit_width].reshape(-1)
    return whole[:packed_bytes(codes.size, bit_width)]


def _unpack_block(packed: np.ndarray, bit_width: int, num_codes: int) -> np.ndarray:
    if bit_width == 8:
        return packed.view(np.int8)
    padded = np.zeros(-(-num_codes // TOGETHER) * bit_width, np.uint8)
    padded[:len(packed)] = packed
    words = np.zeros((len(padded) // bit_width, 8), np.uint8)
    words[:, :bit_width] = padded.reshape(-1, bit_width)
    numbers, spare = words.view("<u8").reshape(-1), 8 - bit_width
    fields = np.empty((len(numbers), TOGETHER), np.uint8)
    for place in range(TOGETHER):
        fields[:, place] = numbers >> np.uint64(bit_width * place) & np.uint64(2**bit_width - 1)
    # Moved to the top of a byte and back, a field keeps its sign.
    return ((fields << spare).view(np.int8) >> spare).reshape(-1)[:num_codes]
