"""CounterKey names a random draw: a draw is a pure function of the key, a global node id and a column.

Random numbers have no state, so a resumed run and any number of ranks draw the same ones. For example, the dropout of
node 7 in layer 1 and epoch 3 is drawn by CounterKey(seed, 3, DROPOUT, 1) on whichever rank owns node 7.
"""

from __future__ import annotations

from typing import NamedTuple

from hpcgnn.errors import KernelError

DRAW_LEVELS = 1 << 16     # a draw is a 16-bit number
MAX_LAYERS, MAX_PARTS = 1 << 12, 1 << 16

# Purposes, four bits of the stream. Part of the wire and checkpoint contract: never renumber.
DROPOUT, FORWARD, BACKWARD, SAMPLE, WIDTH, PROTECT, ROTATE_FORWARD, ROTATE_BACKWARD, SUM, STORE = range(10)
ROTATION_OF = {FORWARD: ROTATE_FORWARD, BACKWARD: ROTATE_BACKWARD}     # of the rows whose rounding has the purpose


class CounterKey(NamedTuple):
    """Address of a family of draws.

    Attributes
    ----------
    seed, epoch : int in [0, 2**32)
    purpose : {DROPOUT, FORWARD, BACKWARD, SAMPLE, WIDTH, PROTECT, ROTATE_FORWARD, ROTATE_BACKWARD, SUM, STORE}
    layer : int in [0, 4096)     for SUM a step of the epoch
    part : int in [0, 65536)     rank that sends a gradient, so that errors of two ranks on one node differ; else 0

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
        """Key of the rotation of the rows that this key rounds. Raises KernelError unless FORWARD or BACKWARD."""
        if self.purpose not in ROTATION_OF:
            raise KernelError(f"rows are rotated for purposes {FORWARD} and {BACKWARD}, found {self.purpose}")
        return self._replace(purpose=ROTATION_OF[self.purpose])
