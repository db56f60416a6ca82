"""What a planted fault is, where it is planted, and which tests must catch it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path

WORD, LETTER = re.compile(r"\w+|[^\w\s]"), re.compile(r"\w")
SOURCES = {".py", ".c", ".h", ".cu", ".cuh", ".j2", ".js"}


@dataclass(frozen=True)
class Tests:
    """Arguments of pytest, files below tests/ first, and the ranks that run them."""

    __test__ = False

    arguments: str
    ranks: int = 1


@dataclass(frozen=True)
class Mutation:
    """A fault below hpcgnn/: the words of `old`, which stand there once however lines are broken, become `new`.

    `file` is where they stand; where it has gone, or they have left it, they are looked for in the whole package.
    """

    file: str
    fault: str
    old: str
    new: str
    caught_by: Tests

    def plant(self, package: Path) -> tuple[Path, str]:
        """Find the place; the file and its source with the fault.

        Raises
        ------
        LookupError     the words stand nowhere, or in several places
        """
        named = package / self.file
        found = self._places(named) if named.is_file() else []
        if not found:
            found = [place for path in sorted(package.rglob("*")) if path.suffix in SOURCES and path != named
                     for place in self._places(path)]
        if len(found) != 1:
            raise LookupError(f"{self.file}: {self.old!r} stands {len(found)} times in the package, not once")
        path, source, start, end = found[0]
        if source.count(self.old) == 1:     # as it is written here, with its spaces
            return path, source.replace(self.old, self.new)
        return path, source[:start] + self.new.strip() + source[end:]

    def _places(self, path: Path) -> list[tuple[Path, str, int, int]]:
        source = path.read_text()
        return [(path, source, *found.span()) for found in self._pattern.finditer(source)]

    @cached_property
    def _pattern(self) -> re.Pattern:
        """The words of `old` with any space between them, and some where two letters or digits would meet."""
        words = WORD.findall(self.old)
        text = re.escape(words[0])
        for before, word in pairwise(words):
            text += (r"\s+" if LETTER.match(before) and LETTER.match(word) else r"\s*") + re.escape(word)
        ends = [r"\b" if LETTER.match(word) else "" for word in (words[0], words[-1])]
        return re.compile(text.join(ends))
