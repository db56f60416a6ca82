"""Chart: one figure of the page as plain data, which the page's scripts draw."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hpcgnn.report.run_folder import Run

NumberedRuns = list[tuple[int, Run]]      # with their numbers in the report, which give their colors


@dataclass(frozen=True)
class Chart:
    """One figure of the report.

    Attributes
    ----------
    name : str            unique on the page
    title : str
    kind : {"lines", "bars", "columns", "areas", "bands", "heat", "dots"}     what draws it
    caption : str         what is drawn, and how it was measured
    seen : str            what is seen in these runs, "" where there is nothing to say
    data : dict           of lists, numbers and strings, as the script of that kind takes it
    """

    name: str
    title: str
    kind: str
    caption: str
    seen: str
    data: dict[str, Any]
