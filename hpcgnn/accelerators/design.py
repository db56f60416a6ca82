"""A design as its TOML file says it: units, buffers, rules and DRAM; and which function makes passes of a workload."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hpcgnn.accelerators.configuration import names_in, read_named
from hpcgnn.errors import ConfigError

FOLDER = Path(__file__).parent / "configurations"
SECTIONS = {"design", "units", "buffers", "rules"}


@dataclass(frozen=True)
class Design:
    """An accelerator.

    Attributes
    ----------
    name : str                        of its file
    kind : str                        whose dataflow it has: mega, hygcn, gcnax, grow, sgcn
    bit_width : int                   of its values; 0 where each row has its own, as the model says
    clock_ghz : float
    dram : str                        name or path of a file that hpcgnn.accelerators.dram reads
    units : mapping of str to int     how many there are of each; operations are counted by these names
    buffers : mapping of str to float of KB (1,024 bytes); events of SRAM are counted by these names
    rules : mapping                   what else the dataflow asks
    """

    name: str
    kind: str
    bit_width: int
    clock_ghz: float
    dram: str
    units: Mapping[str, int]
    buffers: Mapping[str, float]
    rules: Mapping[str, Any]

    def buffer_bytes(self, name: str) -> int:
        """Return the bytes of a buffer."""
        return int(self.buffers[name] * 1024)

    def changed(self, changes: Mapping[str, Any]) -> Design:
        """Return the design with other numbers: "SECTION.NAME" to its value, as `buffers.input` to 128.

        Raises
        ------
        ConfigError      the design has no such number
        """
        design = self
        for path, value in changes.items():
            section, _, name = path.partition(".")
            if section == "design" and name in ("bit_width", "clock_ghz", "dram"):
                design = replace(design, **{name: value})
            elif section in ("units", "buffers", "rules") and name in getattr(design, section):
                design = replace(design, **{section: {**getattr(design, section), name: value}})
            else:
                raise ConfigError(f"{self.name} has no {path}; it has {', '.join(self.names())}")
        return design.checked()

    def checked(self) -> Design:
        """Return the design, whose numbers are of the right kinds; rules are checked by their dataflow.

        Raises
        ------
        ConfigError      a number is missing, of another kind or out of range
        """
        if not _is_number(self.clock_ghz):
            raise ConfigError(f"design.clock_ghz of {self.name} is {self.clock_ghz!r}; expected a number above zero")
        if isinstance(self.bit_width, bool) or not isinstance(self.bit_width, int) or not 0 <= self.bit_width <= 32:
            raise ConfigError(f"design.bit_width of {self.name} is {self.bit_width!r}; expected 0 (mixed) to 32")
        for section in ("units", "buffers"):
            for name, value in getattr(self, section).items():
                if not _is_number(value):
                    raise ConfigError(f"{section}.{name} of {self.name} is {value!r}; expected a number above zero")
        return self

    def names(self) -> list[str]:
        """Return the paths of all numbers that can be changed."""
        return ["design.bit_width", "design.clock_ghz", "design.dram"] + [
            f"{section}.{name}" for section in ("units", "buffers", "rules") for name in getattr(self, section)]


def _is_number(value: object) -> bool:
    return not isinstance(value, bool) and isinstance(value, (int, float)) and 0 < value < math.inf


def design_names() -> list[str]:
    """Return the names of the designs that come with hpcgnn."""
    return names_in(FOLDER)


def read_design(name: str | Path) -> Design:
    """Read a design: one that comes with hpcgnn by its name, or any file.

    Raises
    ------
    ConfigError      there is none, it can't be read, or a number is missing or negative
    """
    path, said = read_named("design", name, FOLDER)
    if set(said) - SECTIONS or not all(isinstance(said.get(section, {}), dict) for section in SECTIONS):
        raise ConfigError(f"{path} has the sections {', '.join(said)}; expected {', '.join(sorted(SECTIONS))}")
    design = dict(said.get("design", {}))
    missing = {"kind", "bit_width", "clock_ghz", "dram"} - set(design)
    if missing or set(design) - {"kind", "bit_width", "clock_ghz", "dram"}:
        raise ConfigError(f"[design] of {path} names {', '.join(design) or 'nothing'}; expected kind, bit_width, "
                          "clock_ghz and dram")
    return Design(path.stem, **design, units=said.get("units", {}), buffers=said.get("buffers", {}),
                  rules=said.get("rules", {})).checked()
