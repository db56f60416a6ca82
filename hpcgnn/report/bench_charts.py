"""Charts of benchmark folders: size of rows by format (MEGA's Fig. 4), and DRAM traffic (MEGA's Fig. 6 and 20b).

`BenchFolder` holds the content of a folder of jobs/measurements/packages.py or dram.py, checked as it is read.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hpcgnn.errors import ConfigError
from hpcgnn.report.charts import Chart
from hpcgnn.report.formats import format_bytes
from hpcgnn.report.run_folder import read_text

PACKAGES, DRAM = "bench.json", "dram.json"
TRAFFIC_PARTS = ("dense_bytes", "sparse_bytes", "copy_bytes", "list_bytes")


@dataclass(frozen=True)
class StoredRows:
    """Sizes of the same rows in each format."""

    bits: str                                      # width of the codes, or their range
    density: float                                 # share of nonzeros
    stored_bits: dict[str, tuple[float, float]]    # format → bits of values, and of their positions


@dataclass(frozen=True)
class SchemeTraffic:
    """Bytes that one scheme reads from DRAM in an aggregation, by TRAFFIC_PARTS."""

    group: str
    scheme: str
    parts: dict[str, float]


@dataclass(frozen=True)
class BenchFolder:
    """Sizes of formats, bytes of schemes, or both, and a title with the counted aggregation."""

    name: str
    rows: list[StoredRows] = field(default_factory=list)
    traffic: list[SchemeTraffic] = field(default_factory=list)
    title: str = ""


def is_of_benchmark(path: Path) -> bool:
    """Whether a folder holds files of a benchmark and none of a run."""
    return any((path / name).exists() for name in (PACKAGES, DRAM)) and not (path / "metrics.jsonl").exists()


def read_bench_folders(paths: list[Path]) -> list[BenchFolder]:
    """Read folders in order.

    Raises
    ------
    ConfigError      a folder holds neither sizes nor traffic, or a damaged file
    """
    return [_read_folder(path) for path in paths]


def _read_folder(path: Path) -> BenchFolder:
    packages, dram = (_read_json(path / name) for name in (PACKAGES, DRAM))
    rows, traffic, title = [], [], ""
    try:
        if packages.get("kind") == "packages":
            rows = [_stored_rows(row) for row in packages["measurements"] if "stored_bits" in row]
        if dram:
            title = str(dram["settings"]["title"])
            traffic = [SchemeTraffic(str(row["group"]), str(row["scheme"]),
                                     {part: float(row[part]) for part in TRAFFIC_PARTS}) for row in dram["traffic"]]
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ConfigError(f"benchmark folder {path} is damaged: {type(error).__name__} {error}; "
                          "run the benchmark again") from error
    if not rows and not traffic:
        raise ConfigError(f"{path} holds neither sizes of formats nor DRAM traffic; "
                          "give a folder that jobs/measurements/packages.py --out or dram.py --out has made")
    return BenchFolder(path.resolve().name, rows, traffic, title)


def _stored_rows(row: dict[str, Any]) -> StoredRows:
    sizes = {str(name): (float(values), float(positions)) for name, (values, positions) in row["stored_bits"].items()}
    if not sizes["dense"][0] > 0:
        raise ValueError("rows without a dense size")
    return StoredRows(str(row["bits"]), float(row["density"]), sizes)


def _read_json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        content = json.loads(read_text(path))
    except ValueError as error:
        raise ConfigError(f"{path} is damaged: {error}; run the benchmark again") from error
    if not isinstance(content, dict):
        raise ConfigError(f"{path} is damaged: it holds no object; run the benchmark again")
    return content


PART_NAMES = ("same cluster", "other clusters", "copies written", "lists")
REFERENCE = "dense"      # other formats are shown relative to this one


def bench_charts(folders: list[BenchFolder]) -> list[Chart]:
    """Charts of all folders in order; names are numbered from the second folder on."""
    charts = []
    for number, folder in enumerate(folders):
        suffix = f"-{number + 1}" if number else ""
        if folder.rows:
            charts.append(_sizes_chart(f"formats{suffix}", folder))
        if folder.traffic:
            charts.append(_traffic_chart(f"dram{suffix}", folder))
    return charts


def relative_sizes(row: StoredRows, name: str) -> tuple[float, float]:
    """Bits of a format's values, and of their positions, relative to the same rows stored densely."""
    dense = sum(row.stored_bits[REFERENCE])
    values, positions = row.stored_bits[name]
    return values / dense, positions / dense


def _sizes_chart(name: str, folder: BenchFolder) -> Chart:
    formats = [known for known in folder.rows[0].stored_bits if known != REFERENCE]
    panels = []
    for density in dict.fromkeys(row.density for row in folder.rows):
        rows = [row for row in folder.rows if row.density == density]
        sizes = {known: [relative_sizes(row, known) for row in rows] for known in formats}
        panels.append({"title": f"{100 * density:g} % not zero", "unit": "", "parts": ["values", "positions"],
                       "categories": [row.bits for row in rows], "reference": 1, "series": [
                           {"name": known, "values": [list(part) for part in zip(*sizes[known], strict=True)]}
                           for known in formats]})
    smallest = min(((sum(relative_sizes(row, known)), known, row) for row in folder.rows for known in formats
                    if known != "ideal"), key=lambda one: one[0]) if set(formats) - {"ideal"} else None
    seen = f"The smallest is {smallest[1]} at {smallest[2].bits} bits with {100 * smallest[2].density:g} % not zero, " \
           f"{100 * smallest[0]:.3g} % of dense rows." if smallest else ""
    return Chart(name, f"Size by format: {folder.name}", "columns", "Stored bits of random rows relative to dense "
                 "rows of one width; the paler part is positions. Adaptive-Package and the ideal store each row at its "
                 "own width.", seen, {"panels": panels, "axis": "bits of the codes"})


def _traffic_chart(name: str, folder: BenchFolder) -> Chart:
    firsts: dict[str, float] = {}
    rows = []
    for one in folder.traffic:
        total = _total(one)
        first = firsts.setdefault(one.group, total)
        rows.append({"run": None, "label": f"{one.group}: {one.scheme}",
                     "values": [one.parts[part] for part in TRAFFIC_PARTS],
                     "note": f"{format_bytes(total)}, {total / first if first else 1:.2f}"})
    least = min(folder.traffic, key=_total)
    return Chart(name, f"DRAM traffic: {folder.name}", "bars", f"{folder.title}. Bytes read for one aggregation, and "
                 "written for copies, and the ratio to the first of the group.",
                 f"{least.group}: {least.scheme} reads the least, {format_bytes(_total(least))}.",
                 {"unit": "B", "parts": list(PART_NAMES), "rows": rows})


def _total(one: SchemeTraffic) -> float:
    return sum(one.parts.values())
