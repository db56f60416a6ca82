"""TOML and JSON files with a checksum inside, and the registry of datasets and presets that is installed.

A JSON object ends with a key `crc32`, the checksum of its other text. A TOML file begins with a comment line that has
the checksum of all later lines.
"""

from __future__ import annotations

import importlib.resources
import json
import re
import sys
import zlib
from pathlib import Path
from typing import Any

from hpcgnn.errors import ConfigError

JSON_END = re.compile(r'(,?)(\s*)"crc32": "([0-9a-f]{8})"(\s*)\}$')
CRC = re.compile("[0-9a-f]{8}")
TOML_START, TOML_END = "# crc32 ", " of all that follows; delete this line in a copy that you edit\n"
TOML_LINE = re.compile(f"{TOML_START}([0-9a-f]{{8}}){TOML_END}".encode())
PIECE = 12      # letters; no other text has such a piece of that line by chance, and most damage leaves one intact


def seal_json(text: str) -> str:
    """Add a key `crc32` at the end of an object's text: the checksum of the text without it."""
    body = text.rstrip().removesuffix("}").rstrip()
    rest = text[len(body):]
    gap = "\n  " if "\n" in rest else " "
    return f'{body}{"," if body != "{" else ""}{gap}"crc32": "{_crc(text.encode())}"{rest}'


def read_json(text: str) -> tuple[dict[str, Any], bool]:
    """The object in a JSON text, without its checksum, and whether it had one.

    Raises ValueError: no JSON object, a number that JSON does not have, or a wrong checksum.
    """
    text = text.rstrip()
    end = JSON_END.search(text)
    if end is not None:
        found = _crc(f"{text[:end.start()]}{end[4]}}}".encode())
        if found != end[3]:
            raise ValueError(f"its checksum is {found}, expected {end[3]}")
    try:
        value = json.loads(text, parse_constant=_refuse_constant)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if not isinstance(value, dict):
        raise ValueError("it holds no object")
    last = next(reversed(value.items()), ("", ""))
    if end is None and ("crc32" in value or CRC.fullmatch(str(last[1]))):
        raise ValueError("its last value, the checksum, is damaged")
    if end is not None:
        value.pop("crc32", None)
    return value, end is not None


def seal_toml(text: str) -> str:
    return f"{TOML_START}{_crc(text.encode())}{TOML_END}{text}"


def check_toml(content: bytes) -> None:
    """Check the first line of a TOML file, if it is one of `seal_toml`.

    Raises ValueError: the checksum is wrong, or the line itself is damaged.
    """
    # If any part of the line is found anywhere, the file once began with the complete line.
    words = TOML_END.strip().encode()
    pieces = [words[start:start + PIECE] for start in range(0, len(words) - PIECE + 1, PIECE)]
    if not any(part in content for part in (TOML_START.encode(), *pieces)):
        return
    first = TOML_LINE.match(content)
    if first is None:
        raise ValueError("its first line, the checksum, is damaged")
    found = _crc(content[first.end():])
    if found != first[1].decode():
        raise ValueError(f"its checksum is {found}, expected {first[1].decode()}")


def _crc(content: bytes) -> str:
    return f"{zlib.crc32(content):08x}"


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no number of JSON")


if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


def parse_value(name: str, text: str, kind: str | None) -> Any:
    """A setting's value from text, in its type. If the type is unknown: as TOML reads it, or the text if TOML can't.

    Raises ConfigError: the text is not of this type.
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
    """Parse a TOML file. Raises ConfigError: the file is missing, unreadable or malformed, or has a wrong checksum."""
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
        tables = tomllib.loads(content.decode("utf-8-sig"))
    except RecursionError as error:
        raise ConfigError(f"configuration file {path} is not valid TOML: it is nested too deeply") from error
    except ValueError as error:
        raise ConfigError(f"configuration file {path} is not valid TOML: {error}") from error
    if not tables:
        raise ConfigError(f"configuration file {path} holds no setting; restore it, or leave it out")
    return tables


def read_registry() -> dict[str, Any]:
    with importlib.resources.as_file(importlib.resources.files("hpcgnn") / "registry.toml") as path:
        return read_toml(path)


def as_toml(tables: dict[str, dict[str, Any]]) -> str:
    """Tables of strings, numbers, booleans and lists as TOML text; the table "" comes first, unnamed."""
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
    # TOML has no half of a surrogate pair, by which Python reads a path that is not UTF-8.
    text = str(value).encode(errors="backslashreplace").decode()
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return '"' + "".join(c if c.isprintable() else f"\\U{ord(c):08x}" for c in escaped) + '"'
