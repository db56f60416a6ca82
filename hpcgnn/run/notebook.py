"""What a cell of a Jupyter notebook shows: a line that is rewritten, tables and pages. Imports IPython only there."""

from __future__ import annotations

import html
import time
from collections.abc import Mapping

SECONDS_BETWEEN = 0.2      # two drawings of a line


class CellLine:
    """A line below the running cell, with a bar before it; each drawing of it costs a message to the browser."""

    def __init__(self) -> None:
        from IPython.display import display

        self._handle, self._next, self._last = display(_bundle("", 0.0), raw=True, display_id=True), 0.0, ("", 0.0)

    def show(self, text: str, share: float, is_urgent: bool = False) -> None:
        """Replace the line, unless it was drawn just now and this is not urgent; `share` is what is done, 0 to 1."""
        self._last = (text, share)
        if is_urgent or time.monotonic() >= self._next:
            self._next = time.monotonic() + SECONDS_BETWEEN
            self._handle.update(_bundle(*self._last), raw=True)

    def end(self) -> None:
        self.show(*self._last, is_urgent=True)


def _bundle(text: str, share: float) -> dict[str, str]:
    return {"text/plain": text,
            "text/html": f'<progress max="1" value="{share:.4f}"></progress> <code>{html.escape(text)}</code>'}


def show_page(page: str) -> None:
    """Show a whole HTML page in a frame below the running cell."""
    from IPython.display import display

    frame = f'<iframe srcdoc="{html.escape(page)}" width="100%" height="600" frameborder="0"></iframe>'
    display({"text/plain": "an HTML page", "text/html": frame}, raw=True)


def html_table(title: str, facts: Mapping[str, str]) -> str:
    """An HTML table of two columns below a title; all texts are escaped."""
    rows = "".join(f"<tr><th style='text-align: left'>{html.escape(name)}</th>"
                   f"<td style='text-align: left'>{html.escape(value)}</td></tr>" for name, value in facts.items())
    return f"<table><caption>{html.escape(title)}</caption>{rows}</table>"
