"""Designs are read from files, changed by paths, and refused with a sentence."""

from __future__ import annotations

import pytest

from hpcgnn.accelerators.design import read_design
from hpcgnn.errors import ConfigError

TEXT = """
[design]
kind = "grow"
bit_width = 32
clock_ghz = 1.0
dram = "hbm1"

[units]
mac = 32

[buffers]
cache = 4
"""


def write(folder, text):
    path = folder / "mine.toml"
    path.write_text(text)
    return path


def test_a_file_of_ones_own_is_a_design_of_its_name(tmp_path):
    design = read_design(write(tmp_path, TEXT))
    assert (design.name, design.kind, design.units, design.buffer_bytes("cache")) == ("mine", "grow", {"mac": 32}, 4096)


def test_mega_is_the_configuration_of_table_iv():
    design = read_design("mega")
    assert sum(design.buffers.values()) == 392
    assert design.rules["package_lengths"] == [64, 128, 192]


def test_numbers_change_by_their_paths_and_the_design_that_was_read_stays(tmp_path):
    design = read_design(write(tmp_path, TEXT))
    changed = design.changed({"buffers.cache": 8, "units.mac": 64, "design.bit_width": 8})
    assert (changed.buffers["cache"], changed.units["mac"], changed.bit_width) == (8, 64, 8)
    assert (design.buffers["cache"], design.units["mac"], design.bit_width) == (4, 32, 32)


@pytest.mark.parametrize("path", ["buffers.cup", "cache", "design.kind", "rules.order"])
def test_a_number_that_the_design_lacks_is_refused(tmp_path, path):
    with pytest.raises(ConfigError, match=rf"mine has no {path}; it has design.bit_width, .*buffers.cache"):
        read_design(write(tmp_path, TEXT)).changed({path: 1})


@pytest.mark.parametrize("path, value", [("buffers.cache", 0), ("buffers.cache", "wide"), ("units.mac", -1),
                                         ("units.mac", True), ("buffers.cache", float("inf"))])
def test_a_number_that_can_not_be_is_refused_where_it_is_changed_too(tmp_path, path, value):
    with pytest.raises(ConfigError, match=f"{path} of mine is .*; expected a number above zero"):
        read_design(write(tmp_path, TEXT)).changed({path: value})


@pytest.mark.parametrize("old, new, complaint", [
    ("[units]", "[unit]", "has the sections design, unit, buffers; expected"),
    ("kind = \"grow\"", "", r"\[design\] of .* names bit_width, clock_ghz, dram; expected kind"),
    ("dram =", "ram =", r"\[design\] of .* names .*ram; expected kind"),
    ("mac = 32", "mac = -1", "units.mac of .* is -1; expected a number above zero"),
    ("cache = 4", "cache = \"4\"", "buffers.cache of .* is '4'; expected a number above zero"),
    ("cache = 4", "cache = true", "buffers.cache of .* is True; expected a number above zero"),
    ("clock_ghz = 1.0", "clock_ghz = \"fast\"", "design.clock_ghz of mine is 'fast'; expected a number above zero"),
    ("bit_width = 32", "bit_width = 2.5", r"design.bit_width of mine is 2.5; expected 0 \(mixed\) to 32"),
    ("mac = 32", "mac = ", "can't be read as a design"),
])
def test_a_file_that_is_no_design_is_refused(tmp_path, old, new, complaint):
    assert old in TEXT
    with pytest.raises(ConfigError, match=complaint):
        read_design(write(tmp_path, TEXT.replace(old, new)))


def test_a_design_that_is_not_there_is_refused_with_those_that_are():
    with pytest.raises(ConfigError, match=r"there is no design meg; choose a file, or one of .*mega"):
        read_design("meg")
