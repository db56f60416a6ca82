"""TOML files, checked before they are believed, and the registry of datasets and presets that is installed."""

from __future__ import annotations

import importlib.resources
import sys
from pathlib import Path
from typing import Any

from hpcgnn.checked_text import check_toml
from hpcgnn.errors import ConfigError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


def parse_value(name: str, text: str, kind: str | None) -> Any:
    """Return a setting's value from text: of its type, or where that is not known as TOML reads it, else as it stands.

    Raises
    ------
    ConfigError      the text is none of this type
    """
    if kind is None:
        try:
            return tomllib.loads(f"value = {text}")["value"]
        except tomllib.TOMLDecodeError:
            return text
    if kind == "bool":
        if text not in ("true", "false"):
            raise ConfigError(f"{name} must be true or false, found {text!r}")
        return text == "true"
    try:
        return {"int": int, "float": float, "str": str}[kind](text)
    except ValueError as error:
        raise ConfigError(f"{name} must be of type {kind}, found {text!r}") from error


def read_toml(path: Path | str) -> dict[str, Any]:
    """Parse a TOML file.

    Raises
    ------
    ConfigError      the file is missing, unreadable or malformed, or has a checksum of another text
    """
    try:
        content = Path(path).read_bytes()
    except OSError as error:
        raise ConfigError(f"configuration file {path} can't be read: {error.strerror}") from error
    try:
        check_toml(content)
    except ValueError as error:
        raise ConfigError(f"configuration file {path} is not as it was written: {error}; restore it, or delete its "
                          "first line if you have edited it") from error
    try:
        tables = tomllib.loads(content.decode())
    except RecursionError as error:
        raise ConfigError(f"configuration file {path} is not valid TOML: it is nested too deeply") from error
    except ValueError as error:
        raise ConfigError(f"configuration file {path} is not valid TOML: {error}") from error
    if not tables:
        raise ConfigError(f"configuration file {path} holds no setting; restore it, or leave it out")
    return tables


def read_registry() -> dict[str, Any]:
    """Return the datasets and presets of data/registry.toml, installed with the package."""
    with importlib.resources.as_file(importlib.resources.files("hpcgnn") / "registry.toml") as path:
        return read_toml(path)


def as_toml(tables: dict[str, dict[str, Any]]) -> str:
    """Tables of strings, numbers, booleans and lists of those as TOML text; the table "" comes first, unnamed."""
    lines = []
    for name, table in tables.items():
        lines += [f"[{name}]"] if name else []
        lines += [f"{key} = {_toml_value(value)}" for key, value in table.items()]
        lines.append("")
    return "\n".join(lines)


def _toml_value(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (int, float)):
        return repr(value)
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(_toml_value, value)) + "]"
    escaped = str(value).replace("\\", "\\\\").replace('"', '\\"')
    return '"' + "".join(c if c.isprintable() else f"\\u{ord(c):04x}" for c in escaped) + '"'
