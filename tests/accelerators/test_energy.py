"""Energy: Table IV adds up, prices follow their published points, and each event is paid for once."""

from __future__ import annotations

import pytest

from hpcgnn.accelerators import energy
from hpcgnn.accelerators.design import Design, read_design
from hpcgnn.errors import ConfigError


def a_design(**changes):
    said = {"name": "drawn", "kind": "grow", "bit_width": 32, "clock_ghz": 1.0, "dram": "hbm1", "units": {"mac": 32},
            "buffers": {"cache": 32.0}, "rules": {}}
    return Design(**{**said, **changes})


def test_the_parts_of_table_iv_add_up_to_its_totals():
    table = energy.constants()
    parts = [*table["units"].values(), *table["buffers"].values()]
    assert sum(part["power_mw"] for part in parts) == pytest.approx(table["total"]["power_mw"], abs=0.005)
    # The printed areas are rounded to a thousandth each; they add up to 1.874.
    assert sum(part["area_mm2"] for part in parts) == pytest.approx(table["total"]["area_mm2"], abs=0.0065)
    assert {name: part["kb"] for name, part in table["buffers"].items()} == dict(read_design("mega").buffers)


@pytest.mark.parametrize("kb, pj", [(8, 10.0), (32, 20.0), (1024, 100.0)])
def test_a_buffer_of_a_published_size_takes_the_published_energy(kb, pj):
    assert energy.sram_pj_per_byte(kb) == pytest.approx(pj / 8 * 28 / 45)


def test_energy_of_sram_rises_with_the_size():
    sizes = [1, 8, 16, 32, 100, 1024, 4096]
    prices = [energy.sram_pj_per_byte(size) for size in sizes]
    assert prices == sorted(prices) and len(set(prices)) == len(sizes)
    assert energy.sram_pj_per_byte(2) == pytest.approx(5.0 / 8 * 28 / 45)      # four times smaller, half as much


def test_every_event_is_paid_for_once():
    design = a_design()
    run = energy.energy_of(design, {"read:cache": 1000, "write:cache": 500, "mac": 10_000}, 4096, 2_000_000)
    assert run.dram == pytest.approx(4096 * 8 * 7e-12)
    assert run.sram == pytest.approx(1500 * 20 / 8 * 28 / 45 * 1e-12)
    assert run.processing == pytest.approx(10_000 * 3.2 * 28 / 45 * 1e-12)
    assert run.leakage == pytest.approx(0.2 * (53.73 + 141.25 * 32 / 392) * 1e-3 * 2e-3)
    assert run.total == pytest.approx(run.dram + run.sram + run.processing + run.leakage)


def test_all_units_of_mega_at_work_for_a_cycle_cost_what_table_iv_says_less_leakage():
    design = read_design("mega")
    events = {name: part["per_cycle"] for name, part in energy.constants()["units"].items() if name != "others"}
    run = energy.energy_of(design, events, 0, 1)
    assert run.processing == pytest.approx(0.8 * 53.73e-12)
    assert run.leakage == pytest.approx(0.2 * 194.98e-12)


@pytest.mark.parametrize("events", [{"read:cup": 1}, {"write:cup": 1}])
def test_an_unknown_buffer_is_refused(events):
    with pytest.raises(ConfigError, match="has no buffer cup; it has cache"):
        energy.energy_of(a_design(), events, 0, 1)


def test_what_has_no_published_energy_is_refused():
    with pytest.raises(ConfigError, match="no energy of products of 5 bits"):
        energy.energy_of(a_design(bit_width=5), {"mac": 1}, 0, 1)
    with pytest.raises(ConfigError, match="drawn has no unit max; it has mac"):
        energy.energy_of(a_design(), {"max": 1}, 0, 1)
    with pytest.raises(ConfigError, match="no energy of mac"):
        energy.energy_of(read_design("mega"), {"mac": 1}, 0, 1)
