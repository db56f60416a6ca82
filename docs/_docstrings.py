"""A griffe extension: the docstrings' own layout, `name : type    what it is` on one line, as numpydoc has it."""

import re

import griffe

SECTION = re.compile(r"^(Parameters|Attributes|Returns|Raises|Yields)\n-+\n", re.MULTILINE)
ENTRY = re.compile(r"^(?P<head>\S(?:.*?\S)?) {2,}(?P<text>\S.*)$")


def as_numpydoc(text: str) -> str:
    """Return a docstring with each entry's description on lines of its own, four columns in.

    An entry begins in the first column; all that follows it and is indented belongs to it.
    """
    parts = SECTION.split(text)
    titles, bodies = parts[1::2], parts[2::2]
    return parts[0] + "".join(f"{title}\n{'-' * len(title)}\n{_entries(body)}"
                              for title, body in zip(titles, bodies, strict=True))


def _entries(body: str) -> str:
    lines, inside = [], True
    for line in body.split("\n"):
        # What comes after an empty line is text again, unless a section begins.
        inside = inside and bool(line.strip())
        entry = ENTRY.match(line) if inside else None
        if entry:
            lines += [entry["head"], f"    {entry['text']}"]
        else:
            lines.append(f"    {line.strip()}" if inside and line.startswith(" ") else line)
    return "\n".join(lines)


class Docstrings(griffe.Extension):
    """Rewrites each docstring before mkdocstrings parses it."""

    def on_object(self, *, obj: griffe.Object, **kwargs) -> None:
        """Change the docstring of any module, class, function or attribute."""
        if obj.docstring is not None and not obj.is_alias:
            obj.docstring.value = as_numpydoc(obj.docstring.value)
