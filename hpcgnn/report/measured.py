"""Seconds that each rank of a run needed to compute an epoch, for parts that are cut again."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np

from hpcgnn.errors import ConfigError
from hpcgnn.report.run_folder import read_runs


class MeasuredRun(NamedTuple):
    """Measurements of a run's parts.

    `shards` is the folder that the run was trained on. `seconds` has one number per rank: an epoch without messages,
    the median of the epochs that recorded it.
    """

    shards: str
    num_layers: int
    seconds: tuple[float, ...]


def read_measured(path: Path) -> MeasuredRun:
    """Read a run folder.

    Raises
    ------
    ConfigError      it is not a run folder, is damaged, or does not record each rank's seconds
    """
    (run,) = read_runs([Path(path)])
    tables = [record["by_rank"]["compute_seconds"] for record in run.records if record.get("by_rank")]
    tables = tables[1:] or tables      # the first epoch also builds what later ones reuse
    if not tables or "shards" not in run.provenance or "layers" not in run.config:
        raise ConfigError(f"{path} does not say how long each rank computed: it had one rank, or was never evaluated; "
                          "train on several ranks for some evaluations")
    seconds = np.median(np.array(tables, dtype=float), axis=0)
    if not (seconds > 0).all():
        raise ConfigError(f"{path} says that rank {int(seconds.argmin())} computed for {seconds.min():.3g} s per "
                          "epoch; expected more than 0: train on it for longer")
    return MeasuredRun(run.provenance["shards"], int(run.config["layers"]), tuple(seconds.tolist()))
