"""Balance: what parts are to have equally much of, as users write it; see --balance of `hpcgnn preprocess`."""

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
    """Hold what a text says.

    Attributes
    ----------
    text : str                   as users would write it, the default one too
    balance : str                of BALANCES
    layers : int                 of the model, for balance "training"
    measured : Measured or None  what the ranks of a run took
    """

    text: str
    balance: str
    layers: int = DEFAULT_LAYERS
    measured: Measured | None = None


def parse_balance(text: str | None, partitioner: str, is_own: bool = False) -> Balance:
    """Read what --balance says; None is the partitioner's default.

    Raises
    ------
    ConfigError      another text, one beside parts that come from elsewhere (is_own), or a run that does not say what
                     its ranks took
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
