"""What a planted fault is, where it is planted, and which tests must catch it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

WORD = re.compile(r"\w+|[^\w\s]")
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
        source, wanted = path.read_text(), WORD.findall(self.old)
        if wanted[0] not in source:
            return []
        spans = list(WORD.finditer(source))
        words = [span.group() for span in spans]
        return [(path, source, spans[first].start(), spans[first + len(wanted) - 1].end())
                for first in range(len(words) - len(wanted) + 1) if words[first:first + len(wanted)] == wanted]
