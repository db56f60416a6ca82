"""The loss and the scores of one run as a matplotlib figure, for programs and notebooks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from hpcgnn.errors import ConfigError
from hpcgnn.report.charts import SPLITS
from hpcgnn.report.run_folder import Run
from hpcgnn.report.series import mean_over_seeds, score_kind

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLORS = {"train": "C0", "val": "C1", "test": "C2"}      # a split has one color in both panels


def curves_figure(run: Run) -> Figure:
    """Losses on the left, scores on the right, by epoch, means over the seeds.

    Raises ConfigError: matplotlib is not installed.
    """
    try:
        from matplotlib import pyplot  # it tells a notebook how to show a figure
    except ImportError as missing:
        raise ConfigError("plot() needs matplotlib, which is not installed; "
                          "run pip install 'hpcgnn[report]'") from missing
    kind = score_kind([run])
    figure, axes = pyplot.subplots(1, 2, figsize=(10, 3.5), layout="constrained", sharex=True)
    pyplot.close(figure)      # else a notebook shows it twice, and pyplot keeps it for ever
    panels = (("loss", 1, {"loss": "train", "val_loss": "val"}),
              (kind.heading, kind.scale, {f"{split}_score": split for split in COLORS}))
    for panel, (title, scale, splits) in zip(axes, panels, strict=True):
        for key, split in splits.items():
            values = scale * mean_over_seeds(run.curves(key))[0]
            is_known = np.isfinite(values)
            if is_known.any():
                panel.plot(run.epochs[is_known], values[is_known], COLORS[split], label=SPLITS[split])
        panel.set(xlabel="epoch", ylabel=title)
        panel.legend()
    figure.suptitle(run.name)
    return figure
