"""BenchFolder holds what a folder of `hpcgnn bench packages` or `hpcgnn bench dram` says, checked as it is read.

Only reading lives here; no figure, and no room that measures.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hpcgnn.errors import ConfigError
from hpcgnn.report.records import read_text

PACKAGES, DRAM = "bench.json", "dram.json"
TRAFFIC_PARTS = ("dense_bytes", "sparse_bytes", "copy_bytes", "list_bytes")


@dataclass(frozen=True)
class StoredRows:
    """Sizes of the same rows in each format.

    Attributes
    ----------
    bits : str                                width of the codes, or their range
    density : float                           share that is not zero
    stored_bits : dict name → (float, float)  of values, and of where they stand
    """

    bits: str
    density: float
    stored_bits: dict[str, tuple[float, float]]


@dataclass(frozen=True)
class SchemeTraffic:
    """Bytes that one scheme reads from DRAM in an aggregation, by the names of TRAFFIC_PARTS."""

    group: str
    scheme: str
    parts: dict[str, float]


@dataclass(frozen=True)
class BenchFolder:
    """Sizes of formats or bytes of schemes, one of the two or both, and what the counted aggregation was."""

    name: str
    rows: list[StoredRows] = field(default_factory=list)
    traffic: list[SchemeTraffic] = field(default_factory=list)
    title: str = ""


def is_of_benchmark(path: Path) -> bool:
    """Whether a folder holds files of a benchmark, and none of a run."""
    return any((path / name).exists() for name in (PACKAGES, DRAM)) and not (path / "metrics.jsonl").exists()


def read_bench_folders(paths: list[Path]) -> list[BenchFolder]:
    """Read folders in order.

    Raises
    ------
    ConfigError      a folder holds neither sizes nor traffic, or a file in it is damaged
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
                          "give a folder that hpcgnn bench packages --out or hpcgnn bench dram --out has made")
    return BenchFolder(path.resolve().name, rows, traffic, title)


def _stored_rows(row: dict[str, Any]) -> StoredRows:
    sizes = {str(name): (float(values), float(positions)) for name, (values, positions) in row["stored_bits"].items()}
    if not sizes["dense"][0] > 0:
        raise ValueError("rows without a dense size")
    return StoredRows(str(row["bits"]), float(row["density"]), sizes)


def _read_json(path: Path) -> dict[str, Any]:
    """The object of a file; empty where there is no such file."""
    if not path.is_file():
        return {}
    try:
        content = json.loads(read_text(path))
    except ValueError as error:
        raise ConfigError(f"{path} is damaged: {error}; run the benchmark again") from error
    if not isinstance(content, dict):
        raise ConfigError(f"{path} is damaged: it holds no object; run the benchmark again")
    return content
