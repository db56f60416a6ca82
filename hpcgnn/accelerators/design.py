"""A design as its TOML file describes it: units, buffers, rules and DRAM.

A name stands for a file that comes with hpcgnn; anything else is a path. Numbers are checked when a file is read;
`check_needs` checks what a dataflow needs before it makes its first block.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hpcgnn.accelerators.workload import Workload
from hpcgnn.errors import ConfigError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


def read_design(name: str | Path) -> Design:
    """Read a design by its name or path. Raises ConfigError if it can't be read, or a number is missing or negative."""
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


def names_in(folder: Path) -> list[str]:
    return sorted(path.stem for path in folder.glob("*.toml"))


def read_named(kind: str, name: str | Path, folder: Path) -> tuple[Path, dict[str, Any]]:
    """Path and contents of a TOML file, called `kind` in error messages. Raises ConfigError if it can't be read."""
    path = folder / f"{name}.toml" if str(name) in names_in(folder) else Path(name)
    try:
        with path.open("rb") as file:
            return path, tomllib.load(file)
    except FileNotFoundError:
        known = ", ".join(names_in(folder))
        raise ConfigError(f"there is no {kind} {name}; choose a file, or one of {known}") from None
    except (OSError, tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} can't be read as a {kind}: {error}") from error


def check_needs(design: Design, units: tuple[str, ...], buffers: tuple[str, ...], counts: tuple[str, ...]) -> None:
    """Check that a design has the units, buffers and rules of its dataflow; rules in `counts` are whole, from 1 on.

    Raises ConfigError if one is missing, or a unit, rule, seed or switch has an impossible value.
    """
    missing = [f"{section}.{name}" for section, names in (("units", units), ("buffers", buffers), ("rules", counts))
               for name in names if name not in getattr(design, section)]
    if missing:
        raise ConfigError(f"{design.name} of the kind {design.kind} lacks {', '.join(missing)}")
    for path, value in [(f"units.{name}", design.units[name]) for name in units] + [
            (f"rules.{name}", design.rules[name]) for name in counts]:
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ConfigError(f"{path} of {design.name} is {value!r}; expected a whole number from 1 on")
    for name, most in (("seed", None), ("sparse_input", 1)):
        value = design.rules.get(name, 0)
        if not isinstance(value, int) or value < 0 or (most is not None and value > most):
            said = "a whole number from 0 on" if most is None else "true or false"
            raise ConfigError(f"rules.{name} of {design.name} is {value!r}; expected {said}")
    if design.bit_width < 1:
        raise ConfigError(f"design.bit_width of {design.name} is {design.bit_width}; expected 1 at least")


def check_own_columns(design: Design, workload: Workload) -> None:
    """Raise ConfigError if a product adds more or fewer columns of the row itself than of its neighbors."""
    for product in workload.products:
        if product.own_dim not in (0, product.aggregated_dim):
            raise ConfigError(f"{product.name} adds {product.own_dim} columns to {product.aggregated_dim}; "
                              f"{design.kind} adds as many as it aggregates")


FOLDER = Path(__file__).parent / "configurations"
SECTIONS = {"design", "units", "buffers", "rules"}


@dataclass(frozen=True)
class Design:
    name: str                       # name of the design's file
    kind: str                       # dataflow: mega, hygcn, gcnax, grow or sgcn
    bit_width: int                  # bits of a value; 0: each row has its own width, given by the model
    clock_ghz: float
    dram: str                       # name or path, see `hpcgnn.accelerators.dram.read_dram`
    units: Mapping[str, int]        # number of each unit; operations are counted by unit name
    buffers: Mapping[str, float]    # KB (1,024 bytes); bytes of SRAM are counted by buffer name
    rules: Mapping[str, Any]        # everything else that the dataflow needs

    def buffer_bytes(self, name: str) -> int:
        return int(self.buffers[name] * 1024)

    def changed(self, changes: Mapping[str, Any]) -> Design:
        """A copy with other numbers, by path: {"buffers.input": 128}. Raises ConfigError for an unknown path."""
        design = self
        for path, value in changes.items():
            section, _, name = path.partition(".")
            if section == "design" and name in ("bit_width", "clock_ghz", "dram"):
                design = replace(design, **{name: value})
            elif section in ("units", "buffers", "rules") and name in getattr(design, section):
                section_changed: dict[str, Any] = {section: {**getattr(design, section), name: value}}
                design = replace(design, **section_changed)
            else:
                raise ConfigError(f"{self.name} has no {path}; it has {', '.join(self.names())}")
        return design.checked()

    def checked(self) -> Design:
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
        return ["design.bit_width", "design.clock_ghz", "design.dram"] + [
            f"{section}.{name}" for section in ("units", "buffers", "rules") for name in getattr(self, section)]


def _is_number(value: object) -> bool:
    return not isinstance(value, bool) and isinstance(value, (int, float)) and 0 < value < math.inf
