"""Charts of benchmark folders: size of rows by format (MEGA's Fig. 4), and DRAM traffic (its Fig. 6 and 20b).

What a folder says is read in `hpcgnn.report.bench_folder`.
"""

from __future__ import annotations

from hpcgnn.report.bench_folder import TRAFFIC_PARTS, BenchFolder, SchemeTraffic, StoredRows
from hpcgnn.report.chart import Chart
from hpcgnn.report.formats import format_bytes

PART_NAMES = ("same cluster", "other clusters", "copies written", "lists")
REFERENCE = "dense"      # the format that the others are measured against


def bench_charts(folders: list[BenchFolder]) -> list[Chart]:
    """Charts of all folders in order; names are numbered from the second folder on."""
    charts = []
    for number, folder in enumerate(folders):
        suffix = f"-{number + 1}" if number else ""
        if folder.rows:
            charts.append(_sizes_chart(f"formats{suffix}", folder))
        if folder.traffic:
            charts.append(_traffic_chart(f"dram{suffix}", folder))
    return charts


def relative_sizes(row: StoredRows, name: str) -> tuple[float, float]:
    """Return a format's values, and where they stand, over the size of the same rows stored densely."""
    dense = sum(row.stored_bits[REFERENCE])
    values, positions = row.stored_bits[name]
    return values / dense, positions / dense


def _sizes_chart(name: str, folder: BenchFolder) -> Chart:
    formats = [known for known in folder.rows[0].stored_bits if known != REFERENCE]
    panels = []
    for density in dict.fromkeys(row.density for row in folder.rows):
        rows = [row for row in folder.rows if row.density == density]
        sizes = {known: [relative_sizes(row, known) for row in rows] for known in formats}
        panels.append({"title": f"{100 * density:g} % not zero", "unit": "", "parts": ["values", "positions"],
                       "categories": [row.bits for row in rows], "reference": 1, "series": [
                           {"name": known, "values": [list(part) for part in zip(*sizes[known], strict=True)]}
                           for known in formats]})
    smallest = min(((sum(relative_sizes(row, known)), known, row) for row in folder.rows for known in formats
                    if known != "ideal"), key=lambda one: one[0]) if set(formats) - {"ideal"} else None
    seen = f"The smallest is {smallest[1]} at {smallest[2].bits} bits with {100 * smallest[2].density:g} % not zero, " \
           f"{100 * smallest[0]:.3g} % of dense rows." if smallest else ""
    return Chart(name, f"Size by format: {folder.name}", "columns", "Stored bits of random rows over those of dense "
                 "rows of one width; the paler part says where values stand. Adaptive-Package and the ideal store each "
                 "row at its own width.", seen, {"panels": panels, "axis": "bits of the codes"})


def _traffic_chart(name: str, folder: BenchFolder) -> Chart:
    firsts: dict[str, float] = {}
    rows = []
    for one in folder.traffic:
        total = _total(one)
        first = firsts.setdefault(one.group, total)
        rows.append({"run": None, "label": f"{one.group}: {one.scheme}",
                     "values": [one.parts[part] for part in TRAFFIC_PARTS],
                     "note": f"{format_bytes(total)}, {total / first if first else 1:.2f}"})
    least = min(folder.traffic, key=_total)
    return Chart(name, f"DRAM traffic: {folder.name}", "bars", f"{folder.title}. Bytes read for one aggregation, and "
                 "written for copies; beside them their ratio to the first of the group.",
                 f"{least.group}: {least.scheme} reads the least, {format_bytes(_total(least))}.",
                 {"unit": "B", "parts": list(PART_NAMES), "rows": rows})


def _total(one: SchemeTraffic) -> float:
    return sum(one.parts.values())
