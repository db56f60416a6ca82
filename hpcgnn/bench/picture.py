"""bench.png: bars of the share of each ceiling and of the ratio to each peer. Needs matplotlib, an optional extra."""

from __future__ import annotations

from pathlib import Path

from hpcgnn.bench.timing import CEILING, Measurement
from hpcgnn.errors import ConfigError


def check_matplotlib() -> None:
    """Raise ConfigError where pictures can't be drawn."""
    try:
        import matplotlib  # noqa: F401
    except ImportError as missing:
        raise ConfigError("--out draws a picture with matplotlib, which is not installed; "
                          "run pip install 'hpcgnn[report]'") from missing


def draw_bars(measurements: list[Measurement], title: str, path: Path) -> None:
    """Write the picture; the ceilings themselves, and work that has neither a ceiling nor a peer, are left out.

    Raises
    ------
    ConfigError      the file can't be written
    """
    from matplotlib.figure import Figure

    shown = [row for row in measurements if row.group != CEILING and (CEILING in row.seconds or row.peers)]
    figure = Figure(figsize=(11, 1.6 + 0.34 * max(len(shown), 3)), layout="constrained")
    shares, ratios = figure.subplots(1, 2, sharey=True)
    labels = [f"{row.group}: {row.case}" for row in shown]
    shares.barh(labels, [100 * (row.ceiling_share or 0) for row in shown])
    shares.axvline(100, color="black", linewidth=0.8)
    shares.set(xlabel="share of the ceiling (%)", ylim=(len(shown) - 0.5, -0.5))
    _draw_ratios(ratios, shown)
    figure.suptitle(title)
    try:
        figure.savefig(path, dpi=150)
    except OSError as reason:
        raise ConfigError(f"the picture {path} can't be written: {reason}") from reason


def _draw_ratios(axes, shown: list[Measurement]) -> None:
    peers = list(dict.fromkeys(peer for row in shown for peer in row.peers))
    height = 0.8 / max(len(peers), 1)
    for number, peer in enumerate(peers):
        places = [place for place, row in enumerate(shown) if peer in row.seconds]
        axes.barh([place - 0.4 + (number + 0.5) * height for place in places],
                  [shown[place].peer_ratio[peer] for place in places], height=height, label=peer)
    axes.axvline(1, color="black", linewidth=0.8)
    axes.set(xlabel="a peer's seconds over ours")
    if peers:
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter("{x:g}")
        axes.figure.legend(loc="outside lower right", ncols=len(peers), frameon=False)
