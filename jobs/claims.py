"""Compares the figures on pages with the tables of data/benchmarks: `python jobs/claims.py [ROOT]` lists them all.

data/benchmarks/claims.toml says for each sentence of a page from which cells of which table its numbers follow. A
sentence stands there as on the page, with an expression in braces in place of each number:

    send {min(fewer)} to {max(fewer)} times fewer bytes        on the page: send 8.7 to 22 times fewer bytes

Expressions have `min`, `max` and `mean` of a list of cells, and `ratio` and `difference` of two lists, pair by pair. A
number agrees if the expression's value, rounded to the decimals that the page shows, is the number. The command ends
with status 1 and a sentence for each number that does not agree, or that has no table on a page that needs one for all.
"""

from __future__ import annotations

import itertools
import operator
import re
import statistics
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

WORDS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
NUMBER = r"\d+(?:,\d{3})*(?:\.\d+)?(?:e[-+]?\d+)?"
SHOWN = rf"((?<![\w.])[-+−]?{NUMBER}|\b(?:{'|'.join(WORDS)})\b)"
IN_CELL = re.compile(rf"(?:(?<![\w.)])[-+−])?{NUMBER}")
# Text of a page whose numbers nobody measured: code, comments, and where links lead.
CODE = re.compile(r"^```.*?^```$|<!--.*?-->|`[^`\n]+`|\]\([^)]*\)", re.MULTILINE | re.DOTALL)


class ClaimError(Exception):
    """A number that disagrees with its table, or lacks one, in one sentence."""


@dataclass(frozen=True)
class Figure:
    """A number of a page, or a claim that finds none; `fault` is the sentence that says what is wrong."""

    page: str
    place: range = range(0)        # of its characters in the page
    shown: str = ""
    expression: str = ""
    tables: tuple[str, ...] = ()   # their names in claims.toml
    fault: str = ""


def value_of(text: str) -> float:
    """Return the value of a number as pages and cells write it: 1,289, −0.85 or five."""
    return float(WORDS.index(text) if text in WORDS else text.replace(",", "").replace("−", "-"))


def agrees(shown: str, value: float) -> bool:
    """Whether a value, rounded to the decimals of the shown number, is this number."""
    digits, _, exponent = ("", "", "") if shown in WORDS else shown.partition("e")
    unit = 10.0 ** (int(exponent or 0) - len(digits.partition(".")[2]))
    return abs(value - value_of(shown)) <= unit / 2 * (1 + 1e-9)


def pattern_of(words: str) -> str:
    """Return a regular expression that finds words across line breaks."""
    return r"\s+".join(map(re.escape, re.split(r"\s+", words)))


def harmless_pattern(words: str) -> str:
    """Return a regular expression that finds words whose numbers are no part of longer ones."""
    return rf"(?<![\w.]){pattern_of(words)}(?!\.?\d)"


def table_below(text: str, after: str) -> list[dict[str, str]]:
    """Return the rows of the first Markdown table below the words `after`, a dict of its columns each.

    An empty first cell repeats the one above. A heading's second column is called `heading (2)`.
    """
    found = list(re.finditer(pattern_of(after), text))
    if len(found) != 1:
        raise ClaimError(f"the words {after!r} stand {len(found)} times in it; they must stand there once")
    lines = re.search(r"(?:^\|.*\n?)+", text[found[0].end():], re.MULTILINE)
    if lines is None:
        raise ClaimError(f"no table is below the words {after!r}")
    headings, _, *rows = ([cell.replace("**", "").strip() for cell in line.strip().strip("|").split("|")]
                          for line in lines[0].splitlines())
    for above, row in itertools.pairwise(rows):
        row[0] = row[0] or above[0]
    headings = [f"{heading} ({count})" if (count := headings[:place].count(heading) + 1) > 1 else heading
                for place, heading in enumerate(headings)]
    return [dict(zip(headings, row, strict=True)) for row in rows]


def listed(value: Any) -> list:
    """Return a list as it is, another value as a list of one."""
    return value if isinstance(value, list) else [value]


def cells_of(rows: list[dict[str, str]], where: dict[str, Any] | None = None, column: Any = None, part: int = 0,
             distinct: str = "") -> Any:
    """Return the chosen cells' numbers, row by row, None where a cell has none; one number if a single cell is chosen.

    `where` has the texts that a column may have, `part` is the place of the number in its cell. `distinct` names a
    column of which the number of different texts is returned instead.
    """
    where = where or {}
    if missing := {*where, *listed(distinct or column)} - rows[0].keys():
        raise ClaimError(f"its table has no column {sorted(missing)}")
    chosen = [row for row in rows if all(row[name] in listed(texts) for name, texts in where.items())]
    if not chosen:
        raise ClaimError(f"its table has no row where {where}")
    if distinct:
        return len({row[distinct] for row in chosen})
    numbers = [IN_CELL.findall(row[name])[part:part + 1] for row in chosen for name in listed(column)]
    if not any(numbers):
        raise ClaimError(f"the cells of {column!r} where {where} have no number {part + 1}")
    values = [value_of(found[0]) if found else None for found in numbers]
    return values[0] if len(values) == 1 else values


def of_numbers(function: Callable) -> Callable:
    """Return a function of a list that passes over missing numbers."""
    return lambda values: function(value for value in values if value is not None)


def of_pairs(function: Callable) -> Callable:
    """Return a function of two lists, pair by pair; a pair that lacks a number gives None."""
    return lambda ones, others: [None if None in pair else function(*pair) for pair in zip(ones, others, strict=True)]


FUNCTIONS = {"min": of_numbers(min), "max": of_numbers(max), "mean": of_numbers(statistics.fmean),
             "ratio": of_pairs(operator.truediv), "difference": of_pairs(operator.sub)}


def evaluate(expression: str, cells: dict[str, Any]) -> float:
    """Return the value of an expression of named cells with FUNCTIONS."""
    if not set(re.findall(r"\w+", expression)) & cells.keys():
        raise ClaimError(f"its {{{expression}}} names none of its cells {sorted(cells)}")
    try:
        return eval(expression, {"__builtins__": {}}, {**FUNCTIONS, **cells})
    except (NameError, SyntaxError, TypeError, ValueError) as error:
        raise ClaimError(f"its {{{expression}}} has no value: {error}") from error


class Claims:
    """The claims of data/benchmarks/claims.toml in a checkout."""

    def __init__(self, root: Path) -> None:
        self.root, self.folder = root, root / "data/benchmarks"
        self.content = tomllib.loads((self.folder / "claims.toml").read_text())
        self.rows: dict[str, list[dict[str, str]]] = {}

    def rows_of(self, name: str) -> list[dict[str, str]]:
        """Return the rows of a table, once its page is found to name its command, machine and commit."""
        if name not in self.rows:
            table = self.content["tables"][name]
            text = (self.folder / table["file"]).read_text()
            for key in ("command", "machine", "commit"):
                if not re.search(pattern_of(table[key]), text):
                    raise ClaimError(f"it does not say {table[key]!r}, the {key} of table {name!r}")
            self.rows[name] = table_below(text, table["after"])
        return self.rows[name]

    def cells_of_claim(self, claim: dict[str, Any]) -> dict[str, Any]:
        """Return the values of a claim's named cells."""
        cells = {}
        for name, choice in claim["cells"].items():
            arguments = {key: value for key, value in choice.items() if key != "table"}
            try:
                cells[name] = cells_of(self.rows_of(choice["table"]), **arguments)
            except ClaimError as error:
                raise ClaimError(f"{self.content['tables'][choice['table']]['file']} can't back it: {error}") from error
        return cells

    def figures_of(self, claim: dict[str, Any]) -> Iterator[Figure]:
        """Yield each number of a claim's sentence."""
        page, text = claim["page"], (self.root / claim["page"]).read_text()
        words, expressions = re.split(r"\{[^}]*\}", claim["text"]), re.findall(r"\{([^}]*)\}", claim["text"])
        found = list(re.finditer(SHOWN.join(pattern_of(piece) if piece else "" for piece in words), text))
        if len(found) != 1:
            yield Figure(page, fault=f"{page} has the words {claim['text']!r} {len(found)} times, not once; "
                                     "change the text in data/benchmarks/claims.toml as the page was changed")
            return
        try:
            cells = self.cells_of_claim(claim)
            for number, expression in enumerate(expressions, 1):
                value = evaluate(expression, cells)
                used = tuple(claim["cells"][name]["table"] for name in cells if re.search(rf"\b{name}\b", expression))
                (first, end), shown, fault = found[0].span(number), found[0][number], ""
                if not agrees(shown, value):
                    fault = (f"{page} says {shown} in {' '.join(found[0][0].split())!r}, where "
                             f"{self.content['tables'][used[0]]['file']} has {value:.6g} ({expression}); "
                             "correct the page, or measure anew")
                first -= 2 * text.endswith("1/", 0, first)        # as in 1/29 of the bytes
                yield Figure(page, range(first, end), text[first:end], expression, used, fault)
        except ClaimError as error:
            yield Figure(page, fault=f"{page}, {claim['text']!r}: {error}")

    def without_a_table(self, page: str, figures: list[Figure]) -> Iterator[str]:
        """Yield a sentence for each number of a page that no claim has and that is not listed as harmless."""
        text = (self.root / page).read_text()
        known = {place for figure in figures if figure.page == page for place in figure.place}
        for words in self.content["harmless"]:
            known.update(*(range(*match.span()) for match in re.finditer(harmless_pattern(words), text)))
        prose = CODE.sub(lambda code: re.sub(r"\S", " ", code[0]), text)
        for match in re.finditer(rf"(?<![\w.]){NUMBER}", prose):
            if match.start() not in known or match.end() - 1 not in known:
                around = " ".join(text[max(0, match.start() - 30):match.end() + 30].split())
                yield (f"{page} says {match[0]} in '… {around} …', which follows from no table; add a claim to "
                       "data/benchmarks/claims.toml, or list the words there as harmless if nobody measured them")

    def check(self) -> tuple[list[Figure], list[str]]:
        """Return the figures that agree with their tables, and a sentence for each fault."""
        figures = [figure for claim in self.content["claims"] for figure in self.figures_of(claim)]
        faults = [figure.fault for figure in figures if figure.fault]
        texts = [(self.root / page).read_text() for page in self.content["complete"]]
        faults += [f"no page has the harmless number {words!r}; take it out of data/benchmarks/claims.toml"
                   for words in self.content["harmless"]
                   if not any(re.search(harmless_pattern(words), text) for text in texts)]
        for page in self.content["complete"]:
            faults += self.without_a_table(page, figures)
        return [figure for figure in figures if not figure.fault], faults

    def line_of(self, figure: Figure) -> str:
        """Return a figure as a line of a Markdown table: where it stands, what it follows from and how."""
        tables = [self.content["tables"][name] for name in dict.fromkeys(figure.tables)]
        cells = [figure.page, figure.shown, f"`{figure.expression}`",
                 *("; ".join(dict.fromkeys(table[key] for table in tables))
                   for key in ("file", "after", "command", "commit", "machine", "graph", "seeds", "counts"))]
        return "| " + " | ".join(cell.replace("|", r"\|") for cell in cells) + " |"


def main() -> None:
    """See the module."""
    claims = Claims(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parents[1])
    figures, faults = claims.check()
    print("| page | number | from its cells | table of | below | command | commit | machine | graph | seeds | counts |")
    print("|" + "---|" * 11)
    print("\n".join(map(claims.line_of, figures)))
    sys.exit("\n".join(faults) or 0)


if __name__ == "__main__":
    main()
