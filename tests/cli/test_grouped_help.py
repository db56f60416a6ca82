"""Help of `hpcgnn train`: what most users change at first, everything on request, each setting under its owner."""

from __future__ import annotations

import re

import pytest
from click.testing import CliRunner

from hpcgnn.cli.grouped import brief_of
from hpcgnn.cli.train import command, read_assignments
from hpcgnn.config import known_settings
from hpcgnn.errors import ConfigError


def listed(*flags):
    """Flags, and settings that have none, in the order of help, by heading."""
    result = CliRunner().invoke(command, [*flags])
    assert result.exit_code == 0
    found, heading = {}, None
    for line in result.output.splitlines():
        if re.fullmatch(r"\S.*:", line):
            heading = found.setdefault(line[:-1], [])
        elif match := re.match(r"  (?:-h, )?--(set [a-z0-9_]+=|[a-z-]+)", line):
            heading.append(match[1].removeprefix("set ").rstrip("=").replace("_", "-"))
    return found, result.output


def test_all_settings_are_listed_once_and_under_their_owner():
    found, output = listed("--help-all")
    flags = [flag for heading in found.values() for flag in heading]
    assert len(flags) == len(set(flags))
    assert {own.name.replace("_", "-") for own in known_settings()} <= set(flags)
    assert found["Method sancus"] == ["staleness", "skip-change"]
    assert found["Method adaqp, joint"] == ["period", "group-size", "solver"]
    assert "more settings" not in output


def test_short_help_lists_the_common_ones_and_says_how_many_there_are():
    short, output = listed("--help")
    whole, _ = listed("--help-all")
    num_short, num_whole = (sum(map(len, found.values())) for found in (short, whole))
    assert {"model", "method", "epochs", "bits", "resume"} <= {flag for flags in short.values() for flag in flags}
    assert num_short < 30
    assert f"{num_whole - num_short} more settings are shown by --help-all." in output


def test_short_help_fits_a_screen():
    _, output = listed("--help")
    lines = output.splitlines()
    assert len(lines) <= 60 and max(map(len, lines)) <= 80 and "or the preset's" not in output


@pytest.mark.parametrize("flag, text, brief", [
    ("--layers INTEGER", "Number of convolutions; of steps for sgc. [default: 3, or the preset's]",
     ("--layers N", "Number of convolutions. [default: 3]")),
    ("--method TEXT", "How rows are sent. One of a, b, or your own as M:C. [default: a, or the preset's]",
     ("--method NAME", "How rows are sent. One of a, b, or your own as M:C. [default: a]")),
    ("--precision TEXT", "Storage of rows; sums stay. auto is bf16. One of fp32, auto. [default: fp32]",
     ("--precision NAME", "Storage of rows. One of fp32, auto. [default: fp32]")),
    ("--resume", "Go on; start anew.", ("--resume", "Go on."))])
def test_short_help_has_the_first_clause_the_choices_and_the_default(flag, text, brief):
    assert brief_of(flag, text) == brief


def test_a_setting_without_a_flag_says_how_it_is_changed():
    result = CliRunner().invoke(command, ["shards", "--most-motion", "0.1"])
    assert result.exit_code == 2 and "--most-motion is no flag; write --set most_motion=VALUE" in result.output


@pytest.mark.parametrize("flag, hint", [
    ("--most-moton", "; did you mean --set most_motion=VALUE?"), ("--hiden", "; did you mean --hidden?"),
    ("--learning-rate", "; did you mean --lr?"), ("--num_layers", "; did you mean --layers?"), ("--zzzz", "")])
def test_an_unknown_flag_names_the_one_that_was_probably_meant(flag, hint):
    result = CliRunner().invoke(command, ["shards", flag, "1"])
    assert result.exit_code == 2 and f"No such option '{flag}'{hint}\n" in result.output


@pytest.mark.parametrize("words, found", [
    (["most_motion=0.5", "theta=1", "solver=greedy"], {"most_motion": 0.5, "theta": 1.0, "solver": "greedy"}),
    (["percentiles=90", "overlap=false", "epochs = 3"], {"percentiles": "90", "overlap": False, "epochs": 3}),
    (["method=odd:Mine", "model=gcn"], {"method": "odd:Mine", "model": "gcn"}),
    (["descent-window=7", "protect=0,0.5"], {"descent_window": 7, "protect": "0,0.5"}),
    (["few_bits=4", "of_mine=a b", "is_mine=true"], {"few_bits": 4, "of_mine": "a b", "is_mine": True})])
def test_assigned_settings_have_their_own_type_and_unknown_ones_that_of_toml(words, found):
    assert read_assignments(tuple(words)) == found


@pytest.mark.parametrize("words, sentence", [
    (["lr"], "--set lr is no NAME=VALUE"), (["lr=1", "lr=2"], "--set names lr twice"),
    (["epochs=2.5"], "epochs must be of type int, found '2.5'"),
    (["overlap=yes"], "overlap must be true or false, found 'yes'")])
def test_an_assignment_that_cant_be_read_is_refused(words, sentence):
    with pytest.raises(ConfigError, match=f"^{re.escape(sentence)}$"):
        read_assignments(tuple(words))


def test_a_setting_is_not_given_in_two_ways():
    result = CliRunner().invoke(command, ["shards", "--lr", "0.1", "--set", "lr=0.1"])
    assert result.exit_code == 2 and "--lr and --set lr contradict each other" in result.output


def test_no_shards_are_needed_for_help_and_none_is_no_help():
    assert CliRunner().invoke(command, []).exit_code == 2
