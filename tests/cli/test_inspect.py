"""`hpcgnn inspect`: what preprocess printed, checksums, a picture; and what pairs of parts send, counted again."""

from __future__ import annotations

import sys
from dataclasses import replace

import numpy as np
import pytest
from covering import long_but
from reference_partition import arcs_of, expected_importance, needed_ids, random_dataset

from hpcgnn.cli.graph_text import WIDTHS, bits_line, level_bins_of, print_info, row_bytes
from hpcgnn.methods.sylvie import Sylvie
from hpcgnn.ops.quantization import MessageLayout
from hpcgnn.run.output import size_text
from hpcgnn.shards.reader import read_graph_info
from hpcgnn.shards.schema import Provenance
from hpcgnn.shards.writer import Making, write_shards

PERCENTILES = (85, 95, 99)


@pytest.fixture
def shards(tmp_path):
    dataset = random_dataset(60, 200, seed=1, directed=True)
    write_shards(dataset, np.arange(60, dtype=np.int32) % 3, tmp_path / "g", Making(3, reorder="none"),
                 Provenance("edges:[bold]a.csv", "random", 5))
    return tmp_path / "g"


def test_it_prints_what_preprocess_printed_and_goes_on(hpcgnn, shards, capsys):
    print_info(read_graph_info(shards))
    expected = capsys.readouterr().out
    code, out, err = hpcgnn("inspect", shards)
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


def test_verify_says_that_all_files_are_whole(hpcgnn, shards):
    code, out, _ = hpcgnn("inspect", shards, "--verify")
    assert code == 0 and "all 4 files are whole and of one run" in out


def test_damaged_part_is_noticed_only_by_verify(hpcgnn, shards):
    path = shards / "part-0002.h5"
    content = bytearray(path.read_bytes())
    content[-9] ^= 4
    path.write_bytes(content)
    assert hpcgnn("inspect", shards)[0] == 0
    code, out, err = hpcgnn("inspect", shards, "--verify")
    assert (code, out) == (1, "") and f"{path} is damaged: its checksum is" in err and err.count("\n") == 1


def test_folder_without_shards_is_refused(hpcgnn, tmp_path):
    code, _, err = hpcgnn("inspect", tmp_path)
    assert code == 1 and err == (f"hpcgnn: {tmp_path / 'graph.h5'} is missing; name a folder that hpcgnn preprocess "
                                 "--out has made\n")


@pytest.mark.parametrize("suffix, magic", long_but((0,), [("png", b"\x89PNG"), ("pdf", b"%PDF"), ("svg", b"<?xml")]))
def test_picture_is_drawn_in_the_format_of_its_name(hpcgnn, shards, tmp_path, suffix, magic):
    code, out, _ = hpcgnn("inspect", shards, "--plot", tmp_path / f"parts.{suffix}")
    assert code == 0 and out.endswith(f"picture: {tmp_path / 'parts'}.{suffix}\n")
    assert (tmp_path / f"parts.{suffix}").read_bytes().startswith(magic)


def test_a_picture_that_can_not_be_drawn_is_one_sentence(hpcgnn, shards, tmp_path, monkeypatch):
    for name in ("missing/parts.png", "parts.unknown"):
        code, _, err = hpcgnn("inspect", shards, "--plot", tmp_path / name)
        assert code == 1 and f"the picture {tmp_path / name} can't be written" in err and err.count("\n") == 1
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    code, _, err = hpcgnn("inspect", shards, "--plot", tmp_path / "parts.png")
    assert code == 1 and "pip install 'hpcgnn[report]'" in err


@pytest.mark.parametrize("width", [80, 100])
def test_no_line_is_wider_than_the_terminal(hpcgnn, shards, monkeypatch, width):
    monkeypatch.setenv("COLUMNS", str(width))
    _, printed, _ = hpcgnn("inspect", shards, 2)
    # A path is one word, and is not broken.
    assert all(len(line.rstrip()) <= width for line in printed.splitlines() if str(shards) not in line)
    assert all(word in printed.split() for word in ("inner", "central", "boundary", "halo", "volume", "imbalance"))


@pytest.fixture
def inspect(hpcgnn, tmp_path):
    """inspect(dataset, owner, num_parts): what the command prints of their messages."""
    def run(dataset, owner, num_parts):
        write_shards(dataset, owner, tmp_path / "g", Making(num_parts, reorder="none"), Provenance("x:y", "random", 0))
        return hpcgnn("inspect", tmp_path / "g")[1]

    return run


def graph(num_parts):
    return random_dataset(150, 600, seed=3, directed=True), np.arange(150, dtype=np.int32) % num_parts


def table(out, title):
    """Cells of the lines between a table's title and the sum of its rows."""
    cells = [line.replace(",", "").replace("%", "").split() for line in out[out.index(title):].splitlines()[1:]]
    return [row for row in cells if row and not row[0].startswith("─")]


def rows_by_pair(dataset, owner, num_parts):
    arcs = arcs_of(dataset)
    return {(q, p): len(needed_ids(arcs, owner, p, q)) for q in range(num_parts) for p in range(num_parts) if p != q}


def sizes(num_rows, dim):
    """Numbers and units in turn."""
    layouts = (MessageLayout.build(np.full(num_rows, width), dim) for width in WIDTHS.values())
    return [word for layout in layouts for word in size_text(layout.num_bytes).split()]


@pytest.mark.parametrize("width", WIDTHS.values())
@pytest.mark.parametrize("dim", [1, 7, 8, 256])
def test_a_row_costs_what_its_message_does(width, dim):
    assert row_bytes(width, dim) == MessageLayout.build([width], dim).num_bytes


@pytest.mark.parametrize("num_parts", [2, 3, 4])
def test_every_pair_of_few_parts_is_listed_with_its_rows_and_bytes(inspect, num_parts):
    dataset, owner = graph(num_parts)
    dataset = replace(dataset, features=np.zeros((dataset.num_nodes, 7000), np.float32))
    rows = table(inspect(dataset, owner, num_parts), "one exchange of 7,000 columns")
    expected = rows_by_pair(dataset, owner, num_parts)
    assert rows[0][:3] == ["owner", "user", "rows"]
    for cells, (pair, count) in zip(rows[1:], expected.items(), strict=False):
        assert cells == [*map(str, pair), str(count), *sizes(count, 7000)]
    total = sum(expected.values())
    assert rows[1 + len(expected)] == ["all", str(total), *sizes(total, 7000)]


def test_of_many_parts_the_spread_and_the_worst_pairs_are_shown(inspect):
    dataset, owner = graph(6)
    rows = table(inspect(dataset, owner, 6), "one exchange of 3 columns")[1:]
    counts = rows_by_pair(dataset, owner, 6)
    ordered = sorted(counts.values())
    assert [(cells[0], int(cells[1])) for cells in rows[:3]] == [
        ("min", ordered[0]), ("median", (ordered[14] + ordered[15]) // 2), ("max", ordered[-1])]
    worst = [((int(cells[0]), int(cells[1])), int(cells[2])) for cells in rows[3:11]]
    assert [count for _, count in worst] == ordered[:-9:-1] and all(counts[pair] == count for pair, count in worst)
    assert rows[11][:2] == ["all", str(sum(ordered))]


@pytest.mark.parametrize("num_features, dim", [(3, 3), (0, 256)])
def test_columns_are_the_features_or_256(inspect, num_features, dim):
    dataset, owner = graph(2)
    dataset = replace(dataset, features=dataset.features[:, :num_features])
    assert f"one exchange of {dim} columns" in inspect(dataset, owner, 2)


def test_shares_above_the_percentiles_are_those_of_the_oracle(inspect):
    dataset, owner = graph(3)
    out = inspect(dataset, owner, 3)
    rows = table(out, "importance of boundary rows")[1:5]
    importance = np.array(expected_importance(dataset, owner))
    arcs = arcs_of(dataset)
    sent = np.concatenate([needed_ids(arcs, owner, p, q) for p in range(3) for q in range(3)]).astype(int)
    boundary = np.unique(sent)
    levels = [np.searchsorted(np.float32(PERCENTILES) / np.float32(100), importance[nodes], side="right")
              for nodes in (boundary, sent)]
    for level, cells in enumerate(rows):
        counts = [(of == level).sum() for of in levels]
        assert cells[2:] == [str(2 ** level), str(counts[0]), f"{100 * counts[0] / len(boundary):.1f}",
                             str(counts[1]), f"{100 * counts[1] / len(sent):.1f}"]
    assert f"at base 1 a value sent has {(2.0 ** levels[1]).mean():.2f} bits" in out
    degree = np.sort(dataset.in_degree()[boundary])
    said = " ".join(out.split())
    assert (f"in-degree of {len(boundary)} boundary rows: min {degree[0]}, 25 % {degree[(len(boundary) - 1) // 4]}, "
            f"median {degree[(len(boundary) - 1) // 2]}, ") in said and f", max {degree[-1]} importance" in said


def test_bars_are_the_shares_of_rows_sent(inspect):
    dataset, owner = graph(4)
    lines = inspect(dataset, owner, 4).splitlines()
    bars = lines[lines.index("rows sent by importance") + 1:][:10]
    shares = [float(line.split()[4]) for line in bars]
    lengths = [line.count("#") for line in bars]
    assert sum(shares) == pytest.approx(100, abs=0.6) and max(lengths) == 40
    np.testing.assert_allclose(lengths, np.array(shares) * 40 / max(shares), atol=0.7)


def test_one_level_costs_one_bit_and_more_levels_more(inspect, tmp_path):
    dataset, owner = graph(2)
    inspect(dataset, owner, 2)
    info = read_graph_info(tmp_path / "g")
    bits = [float(bits_line(info, level_bins_of(percentiles)).split("a value sent has ")[1].split()[0])
            for percentiles in ((99.5,), (90.0,), (50.0, 90.0), (20.0, 50.0, 90.0))]
    assert bits[0] >= 1 and bits == sorted(set(bits)) and bits[-1] < 8


def test_one_part_sends_nothing(inspect):
    dataset, _ = graph(1)
    out = inspect(dataset, np.zeros(150, np.int32), 1)
    assert out.endswith("no row crosses between parts\n") and "one exchange" not in out


def test_percentiles_are_those_of_training():
    assert level_bins_of(Sylvie().thresholds()) == tuple(2 * percentile for percentile in PERCENTILES)
