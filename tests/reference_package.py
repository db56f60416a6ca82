"""Adaptive-Package once more, as strings of "0" and "1", written from MEGA's section V-B and the format's description.

Nothing of hpcgnn is used here.
"""

from __future__ import annotations


def field(number, width):
    """Lowest bit first."""
    return format(number, f"0{width}b")[::-1] if width else ""


def value_field(code, width, signed):
    """Sign and magnitude, or magnitude alone, of a code that is not zero."""
    if not signed:
        assert 0 < code < 2**width
        return field(code, width)
    assert 0 < abs(code) < 2 ** (width - 1)
    return field(abs(code), width - 1) + ("1" if code < 0 else "0")


def stream_of(codes, widths, lengths=(64, 128, 192), signed=False):
    """The bits of all packages: values collect until one is full or the width changes; then its mode is chosen."""
    packages, values, open_width = [], [], None

    def close():
        if values:
            held = "".join(values)
            mode = next(m for m, length in enumerate(lengths) if len(held) <= length)
            packages.append(field(mode, 2) + field(open_width - 1, 3) + held.ljust(lengths[mode], "0"))
            values.clear()

    for row, width in zip(codes, widths, strict=True):
        for code in row:
            if code == 0:
                continue
            if width != open_width or (len(values) + 1) * width > lengths[2]:
                close()
                open_width = width
            values.append(value_field(int(code), int(width), signed))
    close()
    return "".join(packages)


def gaps_of(columns, dim):
    """Listed columns of a row: the low bits of all gaps, then the high ones, as so many zeros and a one."""
    shift = ((dim + 1) // (len(columns) + 1)).bit_length() - 1
    gaps = [column - before - 1 for before, column in zip([-1, *columns], columns, strict=False)]
    return ("".join(field(gap % 2**shift, shift) for gap in gaps)
            + "".join("0" * (gap >> shift) + "1" for gap in gaps))


def position_row(row, count_width):
    """A row as a bitmap, or as a list of its values' or of its zeros' columns where that saves a quarter."""
    bitmap = "0" + "".join("1" if code else "0" for code in row)
    values, zeros = ([column for column, code in enumerate(row) if bool(code) == wanted] for wanted in (True, False))
    which, columns = (1, zeros) if len(zeros) < len(values) else (0, values)
    if len(columns) >= 2**count_width:
        return bitmap
    listed = f"1{which}" + field(len(columns), count_width) + gaps_of(columns, len(row))
    return listed if 4 * len(listed) <= 3 * len(bitmap) else bitmap


def positions_of(codes, interval=64):
    """The bits of all positions, and where the blocks of `interval` rows begin; each has the best width for counts."""
    blocks, starts = "", []
    for first in range(0, len(codes), interval):
        rows = codes[first:first + interval]
        starts.append(len(blocks))
        blocks += min((field(width, 5) + "".join(position_row(row, width) for row in rows)
                       for width in range((len(rows[0]) // 2).bit_length() + 1)), key=len)
    return blocks, starts


def bits_of(array):
    """The bits of bytes, lowest first."""
    return "".join(field(int(byte), 8) for byte in array.reshape(-1))


def ideal_bits(codes, widths):
    """Non-zero values at their rows' widths, and nothing else."""
    return sum(int(width) for row, width in zip(codes, widths, strict=True) for code in row if code)
