"""Help of `hpcgnn train`: what most users change at first, everything on request, each setting under its owner."""

from __future__ import annotations

import re

from click.testing import CliRunner

from hpcgnn.cli.train import command
from hpcgnn.config import known_settings


def listed(*flags):
    """Flags in the order of help, by heading."""
    result = CliRunner().invoke(command, [*flags])
    assert result.exit_code == 0
    found, heading = {}, None
    for line in result.output.splitlines():
        if re.fullmatch(r"\S.*:", line):
            heading = found.setdefault(line[:-1], [])
        elif match := re.match(r"  (?:-h, )?--([a-z-]+)", line):
            heading.append(match[1])
    return found, result.output


def test_all_settings_are_listed_once_and_under_their_owner():
    found, output = listed("--help-all")
    flags = [flag for heading in found.values() for flag in heading]
    assert len(flags) == len(set(flags))
    assert {own.name.replace("_", "-") for own in known_settings()} <= set(flags)
    assert found["Method sancus"] == ["staleness", "skip-change"]
    assert found["Method adaqp, joint"] == ["period", "group-size"]
    assert "more options" not in output


def test_short_help_lists_the_common_ones_and_says_how_many_there_are():
    short, output = listed("--help")
    whole, _ = listed("--help-all")
    num_short, num_whole = (sum(map(len, found.values())) for found in (short, whole))
    assert {"model", "method", "epochs", "bits", "resume"} <= {flag for flags in short.values() for flag in flags}
    assert num_short < 30
    assert f"{num_whole - num_short} more options are shown by --help-all." in output


def test_no_shards_are_needed_for_help_and_none_is_no_help():
    assert CliRunner().invoke(command, []).exit_code == 2
