"""What parts have equally much of, as users write it; see --balance of `hpcgnn preprocess`."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from hpcgnn.errors import ConfigError
from hpcgnn.partition.choices import (
    BALANCES,
    DEFAULT_LAYERS,
    MEASURED,
    MOST_LAYERS,
    TRAINING,
    default_balance,
    split_balance,
)
from hpcgnn.report.measured import read_measured
from hpcgnn.shards.making import Measured


class Balance(NamedTuple):
    """What `--balance` says."""

    text: str      # as users write it, also for the default
    balance: str      # of BALANCES
    layers: int = DEFAULT_LAYERS      # of the model, for balance "training"
    measured: Measured | None = None      # what the ranks of a run took


def parse_balance(text: str | None, partitioner: str, is_own: bool = False) -> Balance:
    """Read what --balance says; None is the partitioner's default.

    Raises ConfigError: an unknown text, a balance beside the user's own parts, or a run without its ranks' seconds.
    """
    if is_own and text is not None:
        raise ConfigError(f"parts come from {partitioner}, so balance {text} says nothing of them; leave it out")
    text = text or default_balance(partitioner)
    kind, rest = split_balance(text)
    if not kind:
        raise ConfigError(f"balance must be one of {', '.join(BALANCES)}, {TRAINING}:LAYERS with 1 to {MOST_LAYERS} "
                          f"layers, or {MEASURED}:FOLDER, found {text!r}")
    if kind == MEASURED:
        run = read_measured(Path(rest))
        return Balance(text, TRAINING, run.num_layers, Measured(run.shards, run.seconds))
    return Balance(text, kind, int(rest or DEFAULT_LAYERS))
