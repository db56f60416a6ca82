"""Sizes, times and rates as text, in the unit that keeps the number short. Nothing is printed here."""

from __future__ import annotations

DIGITS = 3
SIZES = (("B", 1.0), ("kB", 1e3), ("MB", 1e6), ("GB", 1e9), ("TB", 1e12))


def number_text(value: float) -> str:
    """Return a number with three significant digits, and separators from a thousand on: 0.0123, 12.3, 1,235."""
    if value == 0 or abs(value) >= 100:
        return f"{value:,.0f}"
    text = f"{value:#.{DIGITS}g}"
    return f"{float(text):.{DIGITS - 1}f}" if "e" in text and abs(value) >= 1 else text.rstrip(".")


def size_text(num_bytes: float) -> str:
    """Return a size in bytes, kB, MB, GB or TB, powers of 1000: 12 B, 2.50 kB, 412 MB.

    Parameters
    ----------
    num_bytes : non-negative
    """
    if num_bytes < 1:
        return f"{num_bytes:.2g} B" if num_bytes else "0 B"
    # 999.6 kB would be written as 1,000.
    unit, size = next(((unit, size) for unit, size in SIZES if num_bytes < 999.5 * size), SIZES[-1])
    return f"{num_bytes / size:.0f} B" if unit == "B" else f"{number_text(num_bytes / size)} {unit}"


def time_text(seconds: float) -> str:
    """Return a duration: 250 µs, 12.3 ms, 4.20 s, 3 min 20 s, 2 h 05 min.

    Parameters
    ----------
    seconds : non-negative
    """
    for unit, size in (("ns", 1e-9), ("µs", 1e-6), ("ms", 1e-3)):
        if 0 < seconds < 999.5 * size:
            return f"{number_text(seconds / size)} {unit}"
    if seconds < 99.95:
        return f"{number_text(seconds)} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02} s"
    return f"{minutes // 60} h {minutes % 60:02} min"
