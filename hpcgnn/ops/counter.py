"""CounterKey says what a random draw is for. The draw is a pure function of the key, a global node id and a column.

No generator state exists anywhere in the program, so a resumed run and any number of ranks make the same draws.
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
    layer : int in [0, 4096)     of SUM a step of the epoch
    part : int in [0, 65536)     sender of a gradient, so that two ranks' errors on one node are independent; else 0

    Reference: Salmon et al., SC 2011 (Philox4x32-10); layout in ext/src/philox.h.
    """

    seed: int
    epoch: int
    purpose: int
    layer: int
    part: int = 0

    @property
    def stream(self) -> int:
        """Return the purpose, layer and part packed in 32 bits: 4 | 12 | 16.

        Raises
        ------
        KernelError      layer or part does not fit, and would share its draws with another
        """
        if not (0 <= self.layer < MAX_LAYERS and 0 <= self.part < MAX_PARTS):
            raise KernelError(f"random draws are addressed by layers below {MAX_LAYERS} and parts below {MAX_PARTS}, "
                              f"found layer {self.layer} and part {self.part}")
        return self.purpose << 28 | self.layer << 16 | self.part

    def rotation(self) -> CounterKey:
        """Return the key of the rotation of the rows that this key rounds.

        Raises
        ------
        KernelError      a purpose other than FORWARD and BACKWARD, which rounds no rows of messages
        """
        if self.purpose not in ROTATION_OF:
            raise KernelError(f"rows are rotated for purposes {FORWARD} and {BACKWARD}, found {self.purpose}")
        return self._replace(purpose=ROTATION_OF[self.purpose])
