"""CounterKey names a random draw: a draw is a pure function of the key, a global node id and a column.

Random numbers have no state, so a resumed run and any number of ranks draw the same ones. For example, the dropout of
node 7 in layer 1 and epoch 3 is drawn by CounterKey(seed, 3, DROPOUT, 1) on whichever rank owns node 7.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from hpcgnn.errors import KernelError

PHILOX_ROUNDS = 10
PHILOX_MULTIPLIERS = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
PHILOX_KEY_STEPS = 0x9E3779B9, 0xBB67AE85
LOW_32, HALF = np.uint64(0xFFFFFFFF), np.uint64(32)
DRAW_LEVELS = 1 << 16     # a draw is a 16-bit number
MAX_LAYERS, MAX_PARTS = 1 << 12, 1 << 16

# Purposes, four bits of the stream. Part of the wire and checkpoint contract: never renumber.
(DROPOUT, FORWARD, BACKWARD, SAMPLE, WIDTH, PROTECT, ROTATE_FORWARD, ROTATE_BACKWARD, SUM, STORE,
 INITIAL, LABELS, EDGES, ROTATE_SUM, NEGATIVES) = range(15)
# rounding purpose -> rotation purpose
ROTATION_OF = {FORWARD: ROTATE_FORWARD, BACKWARD: ROTATE_BACKWARD, SUM: ROTATE_SUM}


class CounterKey(NamedTuple):
    """Address of a family of draws.

    seed, epoch : int in [0, 2**32)
    purpose : {DROPOUT, FORWARD, BACKWARD, SAMPLE, WIDTH, PROTECT, ROTATE_FORWARD, ROTATE_BACKWARD, SUM, STORE, INITIAL,
        LABELS, EDGES, ROTATE_SUM, NEGATIVES}
    layer : int in [0, 4096)     for SUM, the step of the epoch
    part : int in [0, 65536)     rank that sends a gradient, so that ranks round a row's gradients independently; for
        NEGATIVES, the step of the epoch; else 0

    Reference: Salmon et al., SC 2011 (Philox4x32-10); layout in ext/src/philox.h.
    """

    seed: int
    epoch: int
    purpose: int
    layer: int
    part: int = 0

    @property
    def stream(self) -> int:
        """Purpose, layer and part in 4 | 12 | 16 bits. Raises KernelError if layer or part does not fit."""
        if not (0 <= self.layer < MAX_LAYERS and 0 <= self.part < MAX_PARTS):
            raise KernelError(f"random draws are addressed by layers below {MAX_LAYERS} and parts below {MAX_PARTS}, "
                              f"found layer {self.layer} and part {self.part}")
        return self.purpose << 28 | self.layer << 16 | self.part

    def rotation(self) -> CounterKey:
        """Key for the rotation of the rows that this key rounds. Raises KernelError unless FORWARD, BACKWARD or SUM."""
        if self.purpose not in ROTATION_OF:
            raise KernelError(f"rows are rotated for purposes {', '.join(map(str, ROTATION_OF))}, found {self.purpose}")
        return self._replace(purpose=ROTATION_OF[self.purpose])


def words_of(node_id: np.ndarray, num_words: int, key: CounterKey) -> np.ndarray:
    """Random 32-bit words of nodes, (n, num_words) uint64; four per Philox block, as in ext/src/philox.h."""
    shape, keys = (len(node_id), -(-num_words // 4)), [key.seed, key.epoch]
    number = node_id.astype(np.uint64)[:, None]
    words = [np.broadcast_to(part, shape) for part in (np.arange(shape[1], dtype=np.uint64), np.uint64(key.stream),
                                                       number & LOW_32, number >> HALF)]
    for _ in range(PHILOX_ROUNDS):
        first, second = words[0] * PHILOX_MULTIPLIERS[0], words[2] * PHILOX_MULTIPLIERS[1]
        words = [(second >> HALF) ^ words[1] ^ np.uint64(keys[0]), second & LOW_32,
                 (first >> HALF) ^ words[3] ^ np.uint64(keys[1]), first & LOW_32]
        keys = [(one + step) % (1 << 32) for one, step in zip(keys, PHILOX_KEY_STEPS, strict=True)]
    return np.stack(words, axis=-1).reshape(len(node_id), -1)[:, :num_words]
