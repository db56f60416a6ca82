"""NumPy oracles of every operation, written from the published definitions. Nothing of hpcgnn is called."""

from __future__ import annotations

import numpy as np

PHILOX_MULTIPLIERS = np.array([0xD2511F53, 0xCD9E8D57], np.uint64)
PHILOX_KEY_STEPS = np.array([0x9E3779B9, 0xBB67AE85], np.uint32)
DRAWS_A_BLOCK = 8
DROPOUT, FORWARD, BACKWARD = 0, 1, 2


def philox4x32(counter: np.ndarray, key: np.ndarray) -> np.ndarray:
    """Philox4x32-10 of counters (..., 4) uint32 under keys (..., 2) uint32: (..., 4) uint32.

    Reference: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011, Section 3.3.
    """
    word = [np.asarray(counter, np.uint32)[..., i] for i in range(4)]
    key = np.array(key, np.uint32)
    for _ in range(10):
        product = [PHILOX_MULTIPLIERS[i] * word[2 * i].astype(np.uint64) for i in range(2)]
        high = [(p >> np.uint64(32)).astype(np.uint32) for p in product]
        low = [p.astype(np.uint32) for p in product]
        word = [high[1] ^ word[1] ^ key[..., 0], low[1], high[0] ^ word[3] ^ key[..., 1], low[0]]
        key = key + PHILOX_KEY_STEPS
    return np.stack(word, axis=-1)


def stream_of(purpose: int, layer: int, part: int = 0) -> int:
    """Purpose, layer and part in 4, 12 and 16 bits."""
    return (purpose * 4096 + layer) * 65536 + part


def draws_of(node_id: np.ndarray, dim: int, seed: int, epoch: int, stream: int) -> np.ndarray:
    """The 16-bit draw of every (node, column), (n, dim) uint16: eight a Philox block, low half of a word first."""
    node_id = np.asarray(node_id, np.int64).view(np.uint64)
    num_blocks = -(-dim // DRAWS_A_BLOCK)
    counter = np.empty((len(node_id), num_blocks, 4), np.uint32)
    counter[..., 0] = np.arange(num_blocks)
    counter[..., 1] = stream
    counter[..., 2] = (node_id & np.uint64(0xFFFFFFFF))[:, None]
    counter[..., 3] = (node_id >> np.uint64(32))[:, None]
    words = philox4x32(counter, np.array([seed, epoch], np.uint32))
    halves = np.stack([words & np.uint32(0xFFFF), words >> np.uint32(16)], axis=-1)
    return halves.reshape(len(node_id), DRAWS_A_BLOCK * num_blocks)[:, :dim].astype(np.uint16)


def bf16_value(half: np.ndarray) -> np.ndarray:
    """float32 value of bfloat16 bits given as uint16."""
    return (np.asarray(half).astype(np.uint32) << np.uint32(16)).view(np.float32)


def bf16_down(x: np.ndarray) -> np.ndarray:
    """Largest bfloat16 <= x, as bits: the candidate with x's upper half, or its neighbor away from zero."""
    half = (np.asarray(x, np.float32).view(np.uint32) >> np.uint32(16)).astype(np.uint16)
    return np.where(bf16_value(half) > x, half + np.uint16(1), half)


def bf16_up(x: np.ndarray) -> np.ndarray:
    """Smallest bfloat16 >= x, as bits, for float64 x >= 0."""
    half = (np.asarray(x).astype(np.float32).view(np.uint32) >> np.uint32(16)).astype(np.uint16)
    # The nearest float32 may have passed a bfloat16 that is large enough, or fallen on one that is too small.
    below = bf16_value(half - np.uint16(half > 0)).astype(np.float64) >= x
    half = np.where(below & (half > 0), half - np.uint16(1), half)
    return np.where(bf16_value(half).astype(np.float64) < x, half + np.uint16(1), half)


def quantize(rows: np.ndarray, bits: int, draws: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Codes (n, dim) uint8, zero_point and step (n,) bfloat16 bits of rows (n, dim) float32 at 1, 2, 4 or 8 bits.

    code = floor((x - zero_point) / step + (draw + 1/2) / 2^16) in float32, at most 2^bits - 1. The division is
    a product with the reciprocal where that is at most 1e37.
    """
    top = np.float32(2**bits - 1)
    # Adding zero makes -0 to +0: the parameter does not depend on which zero of a row is met first.
    zero_point = bf16_down(rows.min(axis=1) + np.float32(0))
    zero = bf16_value(zero_point)[:, None]
    step = bf16_up((rows.max(axis=1).astype(np.float64) - zero[:, 0]) / np.float64(top))
    width = bf16_value(step)[:, None]
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        inverse = np.float32(1) / width
        scaled = np.where(inverse <= np.float32(1e37), (rows - zero) * inverse, (rows - zero) / width)
    scaled = np.where(width == 0, np.float32(0), scaled)
    noise = (draws.astype(np.float32) + np.float32(0.5)) * np.float32(2.0**-16)
    codes = np.floor(np.minimum(scaled + noise, top)).astype(np.uint8)
    return codes, zero_point, step


def pack(codes: np.ndarray, bits: int) -> np.ndarray:
    """Codes (n, dim) uint8 as a little-endian bit stream a row, (n, ceil(dim * bits / 8)) uint8."""
    stream = np.unpackbits(codes[:, :, None], axis=2, bitorder="little")[:, :, :bits]
    return np.packbits(stream.reshape(len(codes), -1), axis=1, bitorder="little")


def dequantize(codes: np.ndarray, zero_point: np.ndarray, step: np.ndarray) -> np.ndarray:
    """zero_point + step * code, (n, dim) float32."""
    return bf16_value(zero_point)[:, None] + bf16_value(step)[:, None] * codes.astype(np.float32)


def round_to_bf16(rows: np.ndarray, draws: np.ndarray) -> np.ndarray:
    """Stochastic rounding to bfloat16 bits: up in magnitude where draw + dropped bits >= 2^16.

    The largest finite bfloat16 and all beyond are cut instead, so that rounding never makes an infinity.
    """
    bits = rows.view(np.uint32)
    half = bits >> np.uint32(16)
    carries = (bits & np.uint32(0xFFFF)) + draws >= 1 << 16
    is_largest = (half & np.uint32(0x7FFF)) >= 0x7F7F
    return (half + (carries & ~is_largest)).astype(np.uint16)


def round_trip(rows: np.ndarray, bits: int, draws: np.ndarray) -> np.ndarray:
    """What the receiver of float32 rows holds, (n, dim) float32."""
    if bits == 32:
        return rows.copy()
    if bits == 16:
        return bf16_value(round_to_bf16(rows, draws))
    return dequantize(*quantize(rows, bits, draws))


def round_trip_each(rows: np.ndarray, bit_width: np.ndarray, draws: np.ndarray) -> np.ndarray:
    """round_trip with a width a row."""
    received = [round_trip(rows[i:i + 1], int(bits), draws[i:i + 1]) for i, bits in enumerate(bit_width)]
    return np.concatenate([np.empty((0, rows.shape[1]), np.float32), *received])


def encode_message(rows: np.ndarray, bit_width: np.ndarray, draws: np.ndarray) -> bytes:
    """Bytes of one message: (zero_point, step) of every row of 1 to 8 bits, then every row's payload."""
    parameters, payload = b"", b""
    for i, bits in enumerate(int(b) for b in bit_width):
        row, draw = rows[i:i + 1], draws[i:i + 1]
        if bits == 32:
            payload += row.astype("<f4").tobytes()
        elif bits == 16:
            payload += round_to_bf16(row, draw).astype("<u2").tobytes()
        else:
            codes, zero_point, step = quantize(row, bits, draw)
            parameters += np.concatenate([zero_point, step]).astype("<u2").tobytes()
            payload += pack(codes, bits).tobytes()
    return parameters + payload


def dropout(rows: np.ndarray, probability: float, draws: np.ndarray) -> np.ndarray:
    """rows * scale where the draw is at least probability * 2^16, else 0; scale makes the expectation the input."""
    threshold = round(probability * 2**16)
    scale = np.float32(2**16 / (2**16 - threshold))
    return np.where(draws >= threshold, rows * scale, np.float32(0))


def dense_matrix(indptr: np.ndarray, indices: np.ndarray, in_degree: np.ndarray, reduction: str) -> np.ndarray:
    """The (num_rows, num_columns) float64 matrix of an aggregation; in_degree (num_columns,) is of the whole graph.

    sum: A. mean: A with each row over its in-degree. gcn: D^-1/2 (A + I) D^-1/2, D = in-degree + 1.
    """
    num_rows, num_columns = len(indptr) - 1, len(in_degree)
    matrix = np.zeros((num_rows, num_columns))
    for v in range(num_rows):
        np.add.at(matrix[v], indices[indptr[v]:indptr[v + 1]], 1.0)
    if reduction == "mean":
        matrix /= np.maximum(in_degree[:num_rows], 1)[:, None]
    elif reduction == "gcn":
        matrix[np.arange(num_rows), np.arange(num_rows)] += 1
        matrix /= np.sqrt((in_degree[:num_rows, None] + 1.0) * (in_degree[None, :] + 1.0))
    return matrix
