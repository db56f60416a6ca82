"""Balance: what parts are to have equally much of, as users write it; see --balance of `hpcgnn preprocess`."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from hpcgnn.errors import ConfigError
from hpcgnn.partition.choices import BALANCES, DEFAULT_LAYERS, TRAINING, default_balance
from hpcgnn.report.measured import read_measured
from hpcgnn.shards.making import Measured

RUN = "run"
MOST_LAYERS = 1024


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


def parse_balance(text: str | None, partitioner: str) -> Balance:
    """Read what --balance says; None is the partitioner's default.

    Raises
    ------
    ConfigError      another text, or a run that does not say what its ranks took
    """
    text = text or default_balance(partitioner)
    kind, colon, rest = text.partition(":")
    if kind == RUN and rest:
        run = read_measured(Path(rest))
        return Balance(text, TRAINING, run.num_layers, Measured(run.shards, run.seconds))
    if kind == TRAINING and rest.isascii() and rest.isdigit() and 1 <= int(rest) <= MOST_LAYERS:
        return Balance(text, TRAINING, int(rest))
    if colon or kind not in BALANCES:
        raise ConfigError(f"balance must be one of {', '.join(BALANCES)}, {TRAINING}:LAYERS with 1 to {MOST_LAYERS} "
                          f"layers, or {RUN}:FOLDER, found {text!r}")
    return Balance(text, kind)
