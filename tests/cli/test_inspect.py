"""`hpcgnn inspect`: what preprocess printed, importance and bytes by pair, checksums on request, and a picture."""

from __future__ import annotations

import sys
from dataclasses import replace

import numpy as np
import pytest
from reference_partition import random_dataset

from hpcgnn.__main__ import main
from hpcgnn.cli.graph_text import print_info
from hpcgnn.shards.reader import read_graph_info
from hpcgnn.shards.schema import Provenance
from hpcgnn.shards.writer import Making, write_shards


@pytest.fixture
def shards(tmp_path):
    dataset = random_dataset(60, 200, seed=1, directed=True)
    write_shards(dataset, np.arange(60, dtype=np.int32) % 3, tmp_path / "g", Making(3, reorder="none"),
                 Provenance("edges:[bold]a.csv", "random", 5))
    return tmp_path / "g"


@pytest.fixture
def inspect(capsys):
    def run(*arguments):
        with pytest.raises(SystemExit) as stop:
            main(["inspect", *map(str, arguments)])
        printed = capsys.readouterr()
        return stop.value.code or 0, printed.out, printed.err

    return run


def test_it_prints_what_preprocess_printed_and_goes_on(inspect, shards, capsys):
    print_info(read_graph_info(shards))
    expected = capsys.readouterr().out
    code, out, err = inspect(shards)
    assert (code, err) == (0, "") and out.startswith(expected + "in-degree of ")
    assert "what was read from edges:[bold]a.csv\n" in expected and "  drawn at random\n" in expected
    assert "edges are directed" in expected and "3 parts by random, seed 5" in expected


def test_imbalance_of_edges_is_shown_beside_that_of_rows(shards, capsys):
    info = read_graph_info(shards)
    print_info(info)
    lines = {cells[0]: cells for line in capsys.readouterr().out.splitlines()
             if len(cells := line.replace("│", " ").split()) == 10}
    expected = [3 * row.num_edges / info.num_edges for row in info.statistics]
    assert [lines[str(part)][-1] for part in range(3)] == [f"{value:.3f}" for value in expected]
    assert lines["all"][-2:] == ["1.000", f"{max(expected):.3f}"]


def test_narrow_terminal_cuts_no_number(shards, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    info = read_graph_info(shards)
    large = tuple(replace(row, num_edges=3_141_592_653 + row.part) for row in info.statistics)
    print_info(replace(info, statistics=large))
    out = capsys.readouterr().out
    assert "…" not in out and "3,141,592,653" in out and "9,424,777,962" in out


def test_verify_says_that_all_files_are_whole(inspect, shards):
    code, out, _ = inspect(shards, "--verify")
    assert code == 0 and "all 4 files are whole and of one run" in out


def test_damaged_part_is_noticed_only_by_verify(inspect, shards):
    path = shards / "part-0002.h5"
    content = bytearray(path.read_bytes())
    content[-9] ^= 4
    path.write_bytes(content)
    assert inspect(shards)[0] == 0
    code, out, err = inspect(shards, "--verify")
    assert (code, out) == (1, "") and f"{path} is damaged: its checksum is" in err and err.count("\n") == 1


def test_folder_without_shards_is_refused(inspect, tmp_path):
    code, _, err = inspect(tmp_path)
    assert code == 1 and err == (f"hpcgnn: {tmp_path / 'graph.h5'} is missing; name a folder that hpcgnn preprocess "
                                 "--out has made\n")


@pytest.mark.parametrize("suffix, magic", [("png", b"\x89PNG"), ("pdf", b"%PDF"), ("svg", b"<?xml")])
def test_picture_is_drawn_in_the_format_of_its_name(inspect, shards, tmp_path, suffix, magic):
    code, out, _ = inspect(shards, "--plot", tmp_path / f"parts.{suffix}")
    assert code == 0 and out.endswith(f"picture: {tmp_path / 'parts'}.{suffix}\n")
    assert (tmp_path / f"parts.{suffix}").read_bytes().startswith(magic)


@pytest.mark.parametrize("name", ["missing/parts.png", "parts.unknown"])
def test_picture_that_cannot_be_written_is_named(inspect, shards, tmp_path, name):
    code, _, err = inspect(shards, "--plot", tmp_path / name)
    assert code == 1 and f"the picture {tmp_path / name} can't be written" in err and err.count("\n") == 1


def test_missing_matplotlib_names_the_extra(inspect, shards, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    code, _, err = inspect(shards, "--plot", tmp_path / "parts.png")
    assert code == 1 and "pip install 'hpcgnn[report]'" in err


@pytest.mark.parametrize("width", [80, 100])
def test_no_line_is_wider_than_the_terminal(shards, capsys, monkeypatch, width):
    monkeypatch.setenv("COLUMNS", str(width))
    with pytest.raises(SystemExit):
        main(["inspect", str(shards), "2"])
    printed = capsys.readouterr().out
    # A path is one word, and is not broken.
    assert all(len(line.rstrip()) <= width for line in printed.splitlines() if str(shards) not in line)
    assert all(word in printed.split() for word in ("inner", "central", "boundary", "halo", "volume", "imbalance"))
