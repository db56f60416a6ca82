"""Joules of counted events.

DRAM is priced per bit, SRAM per byte by the buffer's size, operations by their kind, leakage by the cycles of a run.
Constants and their sources are in configurations/reference/energy.toml.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from hpcgnn.accelerators.design import FOLDER, Design, read_named
from hpcgnn.errors import ConfigError

REFERENCE = FOLDER / "reference"
PJ = 1e-12
TRANSFERS = ("read:", "write:")


def energy_of(design: Design, events: Mapping[str, int], dram_bytes: int, cycles: int) -> Energy:
    """Price what a run has counted: `events` of `hpcgnn.accelerators.schedule.Blocks`, and bytes of all DRAM bursts.

    Raises ConfigError if an event names a buffer or unit that the design lacks.
    """
    sram = processing = 0.0
    for name, count in events.items():
        if name.startswith(TRANSFERS):
            buffer = name.partition(":")[2]
            if buffer not in design.buffers:
                raise ConfigError(f"{design.name} has no buffer {buffer}; it has {', '.join(design.buffers)}")
            sram += count * sram_pj_per_byte(design.buffers[buffer]) * PJ
        else:
            processing += count * operation_pj(design, name) * PJ
    seconds = cycles / (design.clock_ghz * 1e9)
    if design.kind == "mega":
        processing += cycles * operation_pj(design, "others") * PJ
    return Energy(8 * dram_bytes * constants()["dram"]["pj_per_bit"] * PJ, sram, processing,
                  leakage_mw(design) * 1e-3 * seconds)


@dataclass(frozen=True)
class Energy:
    dram: float
    sram: float
    processing: float
    leakage: float

    @property
    def total(self) -> float:
        return self.dram + self.sram + self.processing + self.leakage


@cache
def constants() -> dict[str, Any]:
    return read_named("table", "energy", REFERENCE)[1]


def shrink() -> float:
    scaling = constants()["scaling"]
    return scaling["to_nm"] / scaling["from_nm"]


def sram_pj_per_byte(kb: float) -> float:
    """Picojoules of a byte read from or written to a buffer of `kb` KB.

    Energy is a power of the size between two published sizes; beyond them, the power of the nearest two.
    """
    published = constants()["sram"]
    size, energy = np.log(published["kb"]), np.log(published["pj_per_word"])
    piece = int(np.clip(np.searchsorted(size, np.log(kb)) - 1, 0, len(size) - 2))
    slope = (energy[piece + 1] - energy[piece]) / (size[piece + 1] - size[piece])
    word = np.exp(energy[piece] + slope * (np.log(kb) - size[piece]))
    return float(word / published["word_bytes"] * shrink())


def operation_pj(design: Design, unit: str) -> float:
    """Picojoules of an operation of a unit; ConfigError for an unknown unit, or a width without a published energy.

    MEGA's units: Table IV at full activity, without leakage. Lanes of other designs: a multiply-add at the design's
    width.
    """
    if design.kind == "mega":
        if unit not in constants()["units"]:
            raise ConfigError(f"there is no energy of {unit}; Table IV has {', '.join(constants()['units'])}")
        entry = constants()["units"][unit]
        return entry["power_mw"] * (1 - constants()["leakage"]["share"]) / entry["per_cycle"]   # at 1 GHz: mW are pJ
    if unit not in design.units:
        raise ConfigError(f"{design.name} has no unit {unit}; it has {', '.join(design.units)}")
    arithmetic = constants()["arithmetic"]
    if str(design.bit_width) not in arithmetic["multiply_pj"]:
        raise ConfigError(f"there is no energy of products of {design.bit_width} bits; energy.toml has "
                          f"{', '.join(arithmetic['multiply_pj'])}")
    return (arithmetic["multiply_pj"][str(design.bit_width)] + arithmetic["add_pj"]) * shrink()


def leakage_mw(design: Design) -> float:
    """Leakage: the assumed share of the power in Table IV, for buffers by their KB.

    All logic leaks as much as MEGA's, since the compared configurations have its area (§VI-A).
    """
    table = constants()
    of_buffers = sum(entry["power_mw"] for entry in table["buffers"].values())
    kb = sum(entry["kb"] for entry in table["buffers"].values())
    of_units = sum(entry["power_mw"] for entry in table["units"].values())
    return table["leakage"]["share"] * (of_units + of_buffers / kb * sum(design.buffers.values()))
