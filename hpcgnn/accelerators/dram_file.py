"""The TOML file of a DRAM, read and checked: which numbers it has, and which of them a DRAM can have.

What the numbers mean in time is known by hpcgnn.accelerators.dram.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hpcgnn._ext.dram_timing import LIMITS
from hpcgnn.accelerators.configuration import read_named
from hpcgnn.errors import ConfigError

FOLDER = Path(__file__).parent / "configurations" / "dram"
FIELDS = ("clock_ghz", "num_channels", "channel_bits", "burst_length", "num_bank_groups", "banks_per_group", "num_rows",
          "row_bytes", "queue_depth", "scheduling", "mapping")
TIMINGS = ("rcd_read", "rcd_write", "rp", "cl", "cwl", "ccd_s", "ccd_l", "ras", "rc", "rrd_s", "rrd_l", "faw", "rtp",
           "wr", "wtr_s", "wtr_l", "refi", "rfc")
SCHEDULING = ("first-ready", "in-order")
NO_WHOLE_NUMBERS = {"clock_ghz", "scheduling", "mapping"}
ADDRESS_FIELDS = {"channel", "bank group", "column", "bank", "row"}


def read_tables(name: str | Path) -> tuple[Path, dict[str, Any], dict[str, Any]]:
    """Return a file's path, its table of the organization and that of the timings, of the right names, unchecked.

    Raises
    ------
    ConfigError      there is no such file, it can't be read, or names are missing or unknown
    """
    path, said = read_named("DRAM", name, FOLDER)
    for section, names in (("dram", FIELDS), ("timings", TIMINGS)):
        table = said.get(section, {})
        if not isinstance(table, dict) or set(table) != set(names):
            found = ", ".join(table) if isinstance(table, dict) and table else "nothing"
            raise ConfigError(f"[{section}] of {path} names {found}; expected {', '.join(names)}")
    if set(said) != {"dram", "timings"}:
        raise ConfigError(f"{path} has the sections {', '.join(said)}; expected dram and timings")
    return path, said["dram"], said["timings"]


def checked(path: Path, organization: Mapping[str, Any], timings: Mapping[str, Any]) -> None:
    """Check all numbers.

    Raises
    ------
    ConfigError      a number is of another type, impossible, or larger than the model holds
    """
    clock = organization["clock_ghz"]
    if isinstance(clock, bool) or not isinstance(clock, (int, float)) or not 0.001 <= clock <= 100:
        raise ConfigError(f"clock_ghz of {path} is {clock!r}; expected a number from 0.001 to 100")
    for name, value in {**organization, **timings}.items():
        least = 0 if name == "refi" else 1
        if name not in NO_WHOLE_NUMBERS and (type(value) is not int or not least <= value < 1 << 32):
            raise ConfigError(f"{name} of {path} is {value!r}; expected a whole number from {least} on")
    for name in set(FIELDS) - {*NO_WHOLE_NUMBERS, "queue_depth"}:
        if organization[name] & (organization[name] - 1):
            raise ConfigError(f"{name} of {path} is {organization[name]}; expected a power of two")
    if organization["scheduling"] not in SCHEDULING:
        raise ConfigError(f"scheduling of {path} is {organization['scheduling']!r}; expected {' or '.join(SCHEDULING)}")
    mapping = organization["mapping"]
    if not isinstance(mapping, (list, tuple)) or sorted(map(str, mapping)) != sorted(ADDRESS_FIELDS):
        raise ConfigError(f"mapping of {path} is {mapping!r}; expected an order of {', '.join(sorted(ADDRESS_FIELDS))}")
    _check_sizes(path, organization)
    _check_timings(path, organization["burst_length"] // 2, timings)


def _check_sizes(path: Path, organization: Mapping[str, Any]) -> None:
    burst_bytes = organization["channel_bits"] * organization["burst_length"] // 8
    banks = organization["num_bank_groups"] * organization["banks_per_group"]
    sizes = {"burst_length": (organization["burst_length"], 2, 64),
             "row_bytes": (organization["row_bytes"], max(burst_bytes, 1), 1 << 20),
             "channel_bits": (organization["channel_bits"], 8, 1 << 16),
             "num_channels": (organization["num_channels"], 1, 1 << 12),
             "num_bank_groups": (organization["num_bank_groups"], 1, LIMITS["groups"]),
             "banks in all groups": (banks, 1, LIMITS["banks"]),
             "queue_depth": (organization["queue_depth"], 1, LIMITS["queue"]),
             "num_rows": (organization["num_rows"], 1, 1 << 24)}
    for name, (value, least, most) in sizes.items():
        if not least <= value <= most:
            raise ConfigError(f"{name} of {path}: {value}; expected {least} to {most}")


def _check_timings(path: Path, burst_clocks: int, timings: Mapping[str, int]) -> None:
    """Columns come in the order of their bursts, and a refresh ends before the next one is due."""
    if timings["cl"] + timings["ccd_s"] + 2 <= timings["cwl"]:
        raise ConfigError(f"cwl of {path} is {timings['cwl']}; expected less than cl + ccd_s + 2")
    closing = max(timings["ras"], timings["cwl"] + burst_clocks + timings["wr"], timings["rtp"]) + timings["rp"]
    opening = max(timings["rc"], timings["faw"], timings["rrd_l"]) + timings["rcd_read"] + timings["rcd_write"]
    if timings["refi"] and timings["refi"] <= timings["rfc"] + closing + opening:
        raise ConfigError(f"refi of {path} is {timings['refi']}; expected 0, or more than the "
                          f"{timings['rfc'] + closing + opening} clocks in which a refresh and a burst are served")
