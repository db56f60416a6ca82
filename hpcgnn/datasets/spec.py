"""Splitting of a source specification's `key=value,key=value` settings, with typed values.

What the settings mean is decided by each source.
"""

from __future__ import annotations

import re

from hpcgnn.errors import DatasetError

NOTHING = "none"
BOOLEANS = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}


def split_settings(text: str, valid: tuple[str, ...], source: str) -> dict[str, str]:
    """Split "a=1,b=2" into {"a": "1", "b": "2"}.

    Raises
    ------
    DatasetError      a setting without "=", given twice, or not in `valid`
    """
    settings: dict[str, str] = {}
    for item in filter(None, text.split(",")):
        key, equals, value = item.partition("=")
        key = key.strip().replace("-", "_")
        if not equals or key not in valid:
            raise DatasetError(f"{source} has no setting {item!r}; expected NAME=VALUE with NAME one of "
                               f"{', '.join(valid)}")
        if key in settings:
            raise DatasetError(f"{source} gives {key} twice; expected it once")
        settings[key] = value.strip()
    return settings


def split_path(rest: str, valid: tuple[str, ...], source: str) -> tuple[str, dict[str, str]]:
    """Split "PATH,a=1,b=2" into the path, which may hold commas, and its settings; see split_settings."""
    path, settings = (*re.split(rf",(?=(?:{'|'.join(valid)})=)", rest, maxsplit=1), "")[:2]
    return path, split_settings(settings, valid, source)


def choice_of(text: str | None) -> str | bool | None:
    """Return what a setting chooses: False where it is "none", None where it is not given."""
    return False if text == NOTHING else text


def ignored_of(text: str | None) -> list[str] | bool | None:
    """Return what ignore= names, "a;b" as a list; False for "none"."""
    return text.split(";") if text is not None and text != NOTHING else choice_of(text)


def split_of(text: str | None) -> str | int | bool | None:
    """Return the name of a split's column, or the number of one of several splits."""
    return int(text) if text is not None and text.isdecimal() else choice_of(text)


def convert_setting(key: str, text: str, kind: type, source: str) -> int | float | bool:
    """Convert one value to `kind`: int (1e6 is accepted), float or bool.

    Raises
    ------
    DatasetError      text that is not such a value
    """
    try:
        if kind is bool:
            return BOOLEANS[text.lower()]
        if kind is float:
            return float(text)
        return int(text) if "e" not in text.lower() else _whole(float(text))
    except (ValueError, KeyError, OverflowError):
        expected = {bool: "true or false", float: "a number", int: "a whole number"}[kind]
        raise DatasetError(f"{source} has {key}={text!r}; expected {expected}") from None


def _whole(value: float) -> int:
    if not value.is_integer():
        raise ValueError(value)
    return int(value)
