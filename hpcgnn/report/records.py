"""The lines of metrics.jsonl as dictionaries, each checked once: what is drawn later may trust their types.

Fields that a line lacks are absent data, whatever version wrote it; fields that nobody knows are kept and ignored.
"""

from __future__ import annotations

import reprlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hpcgnn.checked_text import read_json
from hpcgnn.errors import ConfigError

MODES = ("sync", "async")
BY_RANK = ("compute_seconds", "quantize_seconds", "exchange_seconds", "blocked_seconds", "sent_bytes", "rss_bytes")


def read_records(path: Path, is_complete: bool = False) -> tuple[dict[str, Any], ...]:
    """Finished lines of metrics.jsonl in order.

    Parameters
    ----------
    is_complete : bool      the run has ended, so no line is unfinished

    Raises
    ------
    ConfigError      the file can't be read, or a line is damaged
    """
    # What follows the last newline is empty, or a line that is being written or was cut off when the run was killed.
    *lines, unfinished = read_text(path).split("\n")
    if is_complete and unfinished:
        raise _damaged_line(path, len(lines) + 1, "it has no end")
    found = [_parse_record(path, number, line) for number, line in enumerate(lines, start=1)]
    # An earlier version wrote no line with a checksum, this one none without.
    unsealed = [number for number, (_, is_sealed) in enumerate(found, start=1) if not is_sealed]
    if unsealed and len(unsealed) < len(found):
        raise _damaged_line(path, unsealed[0], "it has no checksum, as the other lines have")
    return tuple(record for record, _ in found)


def read_text(path: Path) -> str:
    """A whole file; bytes that are no UTF-8 become replacement characters.

    Raises
    ------
    ConfigError      it can't be read
    """
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise ConfigError(f"{path} can't be read: {error.strerror}") from error


def has_valid_widths(summary: dict[str, Any]) -> bool:
    """Whether what summary.json says of learned widths, if anything, is an entry a layer with numbers by in-degree."""
    entries = summary.get("widths_by_degree", [])
    return isinstance(entries, list) and all(isinstance(entry, dict) and _are_columns(
        [entry.get(key) for key in ("in_degree", "num_nodes", "bit_width")]) for entry in entries)


def _are_columns(columns: list[Any]) -> bool:
    return all(isinstance(column, list) and len(column) == len(columns[0]) > 0 and all(map(_is_whole, column))
               for column in columns)


def _parse_record(path: Path, number: int, line: str) -> tuple[dict[str, Any], bool]:
    """A line's record, and whether a checksum vouches for it."""
    try:
        record, is_sealed = read_json(line)
    except ValueError as error:
        raise _damaged_line(path, number, str(error)) from error
    if "epoch" not in record or "loss" not in record:
        raise _damaged_line(path, number, "expected an object with epoch and loss")
    for key, value in record.items():
        is_valid, expected = _expectation(key)
        if not is_valid(value):
            raise _damaged_line(path, number, f"{key} is {reprlib.repr(value)}, expected {expected}")
    return record, is_sealed


def _damaged_line(path: Path, number: int, reason: str) -> ConfigError:
    return ConfigError(f"{path}, line {number} is damaged: {reason}; remove that line, or train again")


def _expectation(key: str) -> tuple[Callable[[Any], bool], str]:
    """Return the check for the values of a key, and the words for what they must be."""
    if key in ("seed", "epoch"):
        return _is_whole, "a whole number"
    if key == "mode":
        return (lambda value: value is None or value in MODES), " or ".join(MODES)
    if key == "width_histogram":
        return _is_histogram, "numbers of rows by bit-width"
    if key == "by_rank":
        return _are_lists_by_rank, "lists of numbers, one a rank"
    if key == "sent_bytes_by_pair":
        return _is_square, "a square table of numbers"
    is_measure = (key in ("loss", "ldr", "mean_bits", "base_bits", "staleness")
                  or key.endswith(("_seconds", "_score")) or key.startswith("sent_bytes"))
    return (_is_measured if is_measure else lambda value: True), "a number"


def _is_whole(value: Any) -> bool:
    return type(value) is int


def _is_number(value: Any) -> bool:
    return type(value) in (int, float)


def _is_measured(value: Any) -> bool:
    return value is None or _is_number(value)


def _is_histogram(value: Any) -> bool:
    return value is None or (isinstance(value, dict) and all(
        width.isdecimal() and int(width) > 0 and _is_number(count) and count >= 0 for width, count in value.items()))


def _are_lists_by_rank(value: Any) -> bool:
    if value is None or value == {}:
        return True
    lists = list(value.values()) if isinstance(value, dict) else [None]
    return set(BY_RANK) <= set(value) and all(
        isinstance(one, list) and len(one) == len(lists[0]) > 0 and all(map(_is_number, one)) for one in lists)


def _is_square(value: Any) -> bool:
    return value is None or (isinstance(value, list) and all(
        isinstance(row, list) and len(row) == len(value) and all(map(_is_number, row)) for row in value))
