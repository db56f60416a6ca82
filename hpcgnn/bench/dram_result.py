"""The bytes of `hpcgnn bench dram` as a table for the terminal, dram.json and dram.png. Nothing is counted here."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from hpcgnn.errors import ConfigError
from hpcgnn.partition.condense_traffic import DramTraffic

JSON, PICTURE = "dram.json", "dram.png"
PARTS = {"same cluster": "dense_bytes", "other clusters": "sparse_bytes", "copies": "copy_bytes",
         "lists": "list_bytes"}
CAPTION = "MB read (copies: written) for one aggregation; arcs, new rows and sums, alike for all, are not counted"

Counts = list[tuple[str, str, DramTraffic]]


def show_traffic(title: str, counts: Counts) -> None:
    """Print one row a scheme or order, each over the first of its group."""
    table = Table(box=box.SIMPLE_HEAD, title=title, title_justify="left", caption=CAPTION, caption_justify="left")
    table.add_column("scheme", no_wrap=True)
    for heading in (*PARTS, "total", "of the first", "arcs dropped"):
        table.add_column(heading, justify="right")
    first: dict[str, DramTraffic] = {}
    for group, name, traffic in counts:
        if group not in first:
            table.add_section()
            table.add_row(f"[bold]{group}")
        base = first.setdefault(group, traffic).total_bytes
        numbers = [getattr(traffic, part) for part in PARTS.values()] + [traffic.total_bytes]
        table.add_row(name, *(f"{number / 1e6:,.2f}" for number in numbers),
                      f"{traffic.total_bytes / base:.3f}" if base else "", f"{traffic.dropped_arcs:,}")
    Console(width=max(Console().width, 110)).print(table)


def write_traffic(folder: Path, settings: dict[str, Any], machine: dict[str, Any], counts: Counts) -> None:
    """Write dram.json and dram.png.

    Raises
    ------
    ConfigError      a file can't be written
    """
    records = [{"group": group, "scheme": name, **asdict(traffic), "total_bytes": traffic.total_bytes}
               for group, name, traffic in counts]
    try:
        (folder / JSON).write_text(json.dumps({"settings": settings, "machine": machine, "traffic": records}, indent=1)
                                   + "\n")
        _draw(settings, counts).savefig(folder / PICTURE, dpi=150)
    except OSError as error:
        raise ConfigError(f"{folder} can't take {JSON} and {PICTURE}: {error}") from error


def _draw(settings: dict[str, Any], counts: Counts):
    """Stacked bars, as MEGA's Fig. 6."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 1.6 + 0.32 * len(counts)), layout="constrained")
    axes = figure.subplots()
    labels = [f"{group}: {name}" for group, name, _ in counts]
    left = [0.0] * len(counts)
    for part, attribute in PARTS.items():
        widths = [getattr(traffic, attribute) / 1e6 for *_, traffic in counts]
        axes.barh(labels, widths, left=left, label=part)
        left = [before + width for before, width in zip(left, widths, strict=True)]
    axes.set(xlabel="MB read from DRAM, or written as copies", ylim=(len(counts) - 0.5, -0.5))
    axes.legend(frameon=False)
    figure.suptitle(settings["title"])
    return figure
