"""RaceSettings and PeerSettings say what all contestants train alike; they travel to a peer's process as JSON.

Nothing here imports NumPy or torch.
"""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class RaceSettings:
    """Describes what is the same for all contestants: dropout, convolution, LayerNorm, ReLU; Adam.

    Attributes
    ----------
    epochs, seconds : limits of a training, whichever comes first; seconds of training, without evaluations
    eval_every : epochs between evaluations; the last epoch has one too
    enough : a validation score with which a training ends, as a share; infinite: the limits alone end it
    """

    model: str
    epochs: int
    seconds: float
    eval_every: int
    layers: int = 3
    hidden: int = 256
    dropout: float = 0.5
    enough: float = math.inf


@dataclass(frozen=True)
class PeerSettings(RaceSettings):
    """Describes one training of a peer.

    Attributes
    ----------
    lr : float
    batch : training nodes of a batch of one process, about so many with clusters
    fanout : neighbors drawn for a node in each layer, the input's first; empty for batches of clusters
    seed : int
    processes, rank : how many train together, and which of them this is
    store : file by which several find each other
    """

    lr: float = 0.01
    batch: int = 1024
    fanout: tuple[int, ...] = ()
    seed: int = 0
    processes: int = 1
    rank: int = 0
    store: str = ""

    def is_evaluated(self, epoch: int) -> bool:
        """Say whether scores are taken after this many epochs, unless it is the last one."""
        return epoch == self.epochs or epoch % self.eval_every == 0
