"""Adaptive-Package once more, as strings of "0" and "1", written from MEGA's section V-B and the format's description.

Nothing of hpcgnn is used here.
"""

from __future__ import annotations


def field(number, width):
    """Lowest bit first."""
    return format(number, f"0{width}b")[::-1]


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


def bitmap_of(codes):
    """Bits of each row, padded to bytes."""
    padded = -(-len(codes[0]) // 8) * 8 if len(codes) else 0
    return ["".join("1" if code else "0" for code in row).ljust(padded, "0") for row in codes]


def bits_of(array):
    """The bits of bytes, lowest first."""
    return "".join(field(int(byte), 8) for byte in array.reshape(-1))


def ideal_bits(codes, widths):
    """Non-zero values at their rows' widths, and nothing else."""
    return sum(int(width) for row, width in zip(codes, widths, strict=True) for code in row if code)
