"""Sweeps of `hpcgnn bench accelerator`, as --sweep says them. What a number means to a design is not known here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hpcgnn.errors import ConfigError

MOST_POINTS = 64      # of a sweep


@dataclass(frozen=True)
class Sweep:
    """Values that a number of the first design takes in turn.

    Attributes
    ----------
    path : str            see `Design.changed`, or "workload.bit_width"
    values : tuple
    """

    path: str
    values: tuple[Any, ...]

    @classmethod
    def parse(cls, text: str) -> Sweep:
        """Read PATH=VALUES: values with commas, or FIRST:LAST, which doubles; a value with slashes is a list.

        Raises
        ------
        ConfigError      no such form, or too many values
        """
        path, equals, said = text.partition("=")
        first, colon, last = said.partition(":")
        try:
            if not equals or not path or not said:
                raise ValueError
            values = _doubled(float(first), float(last)) if colon else [_value(word) for word in said.split(",")]
        except ValueError:
            raise ConfigError(f"--sweep {text!r} can't be read; expected PATH=A,B,C or PATH=FIRST:LAST, as in "
                              "buffers.input=64:1024 or rules.package_lengths=64/128/192,32/64/96") from None
        if len(values) > MOST_POINTS:
            raise ConfigError(f"--sweep {text!r} asks for {len(values)} runs; expected at most {MOST_POINTS}")
        return cls(path, tuple(values))


def _doubled(first: float, last: float) -> list[float | int]:
    if not 0 < first <= last:
        raise ValueError
    values = []
    while first <= last and len(values) <= MOST_POINTS:
        values.append(int(first) if first == int(first) else first)
        first *= 2
    return values


def _value(word: str) -> Any:
    if "/" in word:
        return [int(part) for part in word.split("/")]
    try:
        number = float(word)
    except ValueError:
        if not word:
            raise
        return word
    return int(number) if number == int(number) else number
