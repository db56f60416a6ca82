"""Numbers as text: three significant digits, in the unit that keeps them short; UNKNOWN for None."""

from __future__ import annotations

UNKNOWN = "–"
# Scores for which lower is better; for runs that do not record the direction: from earlier versions, or still training.
LOW_SCORES = ("mae", "rmse")


def format_number(value: float | None) -> str:
    """Three significant digits and thousands separators: 0.0123, 1.23, 12.3, 1,235."""
    if value is None:
        return UNKNOWN
    if value == 0 or abs(value) >= 100:
        return f"{value:,.0f}"
    digits = 2
    while digits < 8 and abs(value) < 10 ** (2 - digits):
        digits += 1
    return f"{value:.{digits if abs(value) < 10 else 1}f}"


def format_percent(share: float | None) -> str:
    """A share of 0 to 1 as a percentage, without "%": 100, 12.5."""
    return format_number(None if share is None else 100 * share)


def format_histogram(histogram: dict[str, float]) -> str:
    """Shares of message rows by bit-width: 1: 75 %, 8: 25 %."""
    total = sum(histogram.values())
    shares = sorted((int(width), count) for width, count in histogram.items())
    return ", ".join(f"{width}: {100 * count / total:.3g} %" for width, count in shares if count) or UNKNOWN


def format_ratio(value: float | None, first: float | None) -> str:
    """`value` as a multiple of the first run's: 1, 1/15.7 or 2.1×."""
    if not first or not value:
        return UNKNOWN
    if value == first:
        return "1"
    return f"1/{format_number(first / value)}" if value < first else f"{format_number(value / first)}×"


def format_bytes(value: float | None) -> str:
    """412 MB, 3.21 GB."""
    if value is None:
        return UNKNOWN
    for unit, size in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if value >= size:
            return f"{format_number(value / size)} {unit}"
    return f"{value:.0f} B"


def format_seconds(value: float | None) -> str:
    """850 µs, 12.3 ms, 4.56 s, 2 min 5 s, 3 h 20 min."""
    if value is None:
        return UNKNOWN
    if 0 < value < 1:
        return f"{format_number(value * 1e3)} ms" if value >= 1e-3 else f"{format_number(value * 1e6)} µs"
    if value < 60:
        return f"{format_number(value)} s"
    minutes, seconds = divmod(round(value), 60)
    hours, left = divmod(minutes, 60)
    return f"{hours} h {left} min" if hours else f"{minutes} min {seconds} s"
