"""Checksums inside small text files: a JSON object carries that of its other text, a TOML file that of all later lines.

What the objects and tables mean is not known here.
"""

from __future__ import annotations

import json
import re
import zlib
from typing import Any

JSON_END = re.compile(r'(,?)(\s*)"crc32": "([0-9a-f]{8})"(\s*)\}$')
CRC = re.compile("[0-9a-f]{8}")
TOML_START, TOML_END = "# crc32 ", " of all that follows; delete this line in a copy that you edit\n"
TOML_LINE = re.compile(f"{TOML_START}([0-9a-f]{{8}}){TOML_END}".encode())
PIECE = 12      # letters of that line that no other text has by chance; some piece outlives most damage


def seal_json(text: str) -> str:
    """Add one more key, `crc32`, at the end of an object's text: the checksum of the text without it."""
    body = text.rstrip().removesuffix("}").rstrip()
    rest = text[len(body):]
    gap = "\n  " if "\n" in rest else " "
    return f'{body}{"," if body != "{" else ""}{gap}"crc32": "{_crc(text.encode())}"{rest}'


def read_json(text: str) -> tuple[dict[str, Any], bool]:
    """Return the object of a text, without its checksum, and whether it had one.

    Raises
    ------
    ValueError       no JSON object, a number that JSON does not have, or a checksum that is not that of the text
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
    """Return a TOML text with a first line that has the checksum of all others."""
    return f"{TOML_START}{_crc(text.encode())}{TOML_END}{text}"


def check_toml(content: bytes) -> None:
    """Check the first line of a TOML file, if it is one of `seal_toml`.

    Raises
    ------
    ValueError       the checksum is not that of the other lines, or the line itself is damaged
    """
    # Part of the line, anywhere: it was first, and whole.
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
