"""Figures of quantization: learned widths by in-degree, sizes by format, DRAM traffic; damage that is refused."""

from __future__ import annotations

import json

import numpy as np
import pytest
from report.fake_runs import write_run

pytest.importorskip("matplotlib", reason="matplotlib is not installed (pip install 'hpcgnn[report]')")

from hpcgnn.__main__ import main
from hpcgnn.errors import ConfigError
from hpcgnn.report.bench_figures import bench_charts, draw_sizes, draw_traffic
from hpcgnn.report.bench_folder import read_bench_folders
from hpcgnn.report.canvas import DARK, LIGHT
from hpcgnn.report.figures import drawable
from hpcgnn.report.page import write_report
from hpcgnn.report.quantization import LAYERS_APART, draw_degree_widths
from hpcgnn.report.run_folder import read_runs

LAYERS = [{"in_degree": [1, 2, 30], "num_nodes": [100, 25, 4], "bit_width": [2, 3, 5]},
          {"in_degree": [1, 2, 30], "num_nodes": [100, 25, 4], "bit_width": [1, 1, 2]}]
SIZES = {"ideal": [50, 0], "adaptive-package": [55, 20], "dense": [200, 0], "coo": [100, 300]}


def write_quantized_run(path, layers=LAYERS):
    write_run(path)
    summary = json.loads((path / "summary.json").read_text())
    (path / "summary.json").write_text(json.dumps({**summary, "widths_by_degree": layers}))
    return path


def write_package_bench(path, cases=((1, 0.1), ("1-8", 0.1), (1, 1.0)), kind="packages", sizes=SIZES):
    path.mkdir(parents=True)
    rows = [{"group": "package encode", "bits": bits, "density": density, "stored_bits": sizes}
            for bits, density in cases]
    (path / "bench.json").write_text(json.dumps({"kind": kind, "measurements": [*rows, {"group": "package decode"}]}))
    return path


def write_dram_bench(path, **changes):
    path.mkdir(parents=True)
    parts = {"dense_bytes": 3e6, "sparse_bytes": 1e6, "copy_bytes": 0, "list_bytes": 0, **changes}
    traffic = [{"group": "schemes", "scheme": name, **parts, "dense_bytes": scale * 3e6, "dropped_arcs": 0}
               for name, scale in (("naive", 1), ("metis", 0.5))]
    (path / "dram.json").write_text(json.dumps({"settings": {"title": "a graph"}, "machine": {}, "traffic": traffic}))
    return path


def test_dots_lie_at_in_degree_and_width_with_layers_side_by_side(tmp_path):
    runs = list(enumerate(read_runs([write_quantized_run(tmp_path / "a")])))
    (axis,) = draw_degree_widths(runs, LIGHT).axes
    first, second = (dots.get_offsets() for dots in axis.collections)
    above = LAYERS_APART / 2
    np.testing.assert_allclose(first, [[1, above + 2], [2, above + 3], [30, above + 5]])
    np.testing.assert_allclose(second[:, 1], np.array([1, 1, 2]) - LAYERS_APART / 2)
    sizes = axis.collections[0].get_sizes()
    assert sizes[0] > sizes[1] > sizes[2] > 0


def test_isolated_nodes_have_a_place_on_the_axis(tmp_path):
    layer = {"in_degree": [0, 1], "num_nodes": [3, 9], "bit_width": [4, 2]}
    runs = list(enumerate(read_runs([write_quantized_run(tmp_path / "a", [layer])])))
    figure = draw_degree_widths(runs, DARK)
    figure.canvas.draw()
    assert figure.axes[0].get_xscale() == "symlog"
    assert figure.axes[0].get_xlim()[0] <= 0


def test_only_runs_with_learned_widths_have_the_figure(tmp_path):
    runs = read_runs([write_quantized_run(tmp_path / "a"), write_run(tmp_path / "b")])
    shown = {chart.name: [run.name for _, run in members] for chart, members in drawable(runs)}
    assert shown["degrees"] == ["a"]
    plain = read_runs([write_quantized_run(tmp_path / "c", []), tmp_path / "b"])
    assert "degrees" not in {chart.name for chart, _ in drawable(plain)}


@pytest.mark.parametrize("layers", [5, [[1]], [{"in_degree": [1]}], [{**LAYERS[0], "num_nodes": [1]}],
                                    [{**LAYERS[0], "bit_width": [1, "x", 2]}],
                                    [{"in_degree": [], "num_nodes": [], "bit_width": []}]])
def test_damaged_widths_are_refused(tmp_path, layers):
    with pytest.raises(ConfigError, match=r"summary\.json is damaged: widths_by_degree is no list of in_degree"):
        read_runs([write_quantized_run(tmp_path / "a", layers)])


def test_bars_are_sizes_over_dense_rows_with_positions_on_top(tmp_path):
    (folder,) = read_bench_folders([write_package_bench(tmp_path / "sizes")])
    left, right = draw_sizes(folder.rows, LIGHT).axes
    assert [label.get_text() for label in left.get_xticklabels()] == ["1", "1-8"]
    assert left.get_title(loc="left") == "10 % not zero" and right.get_title(loc="left") == "100 % not zero"
    bars = left.patches[4:8]       # of adaptive-package: values, then positions
    np.testing.assert_allclose([(bar.get_y(), bar.get_height()) for bar in bars],
                               [(0, 0.275), (0, 0.275), (0.275, 0.1), (0.275, 0.1)])


def test_traffic_bars_add_up_and_are_over_the_first_of_their_group(tmp_path):
    (folder,) = read_bench_folders([write_dram_bench(tmp_path / "dram")])
    (axis,) = draw_traffic(folder.traffic, LIGHT).axes
    assert [text.get_text() for text in axis.texts] == ["4.00 MB   1.00", "2.50 MB   0.62"]
    assert sum(bar.get_width() for bar in axis.patches) == pytest.approx(6.5)


def test_figures_of_benchmarks_follow_those_of_runs_on_the_page(tmp_path):
    folders = read_bench_folders([write_package_bench(tmp_path / "sizes"), write_dram_bench(tmp_path / "dram")])
    assert [chart.name for chart in bench_charts(folders)] == ["formats", "dram-2"]
    files = write_report(read_runs([write_run(tmp_path / "a")]), tmp_path / "all.html", folders)
    assert [file.name for file in files[-2:]] == ["all-formats.png", "all-dram-2.png"]
    assert "DRAM traffic: dram" in files[0].read_text()


@pytest.mark.parametrize("write, complaint", [
    (lambda path: path.mkdir(), "holds neither sizes of formats nor DRAM traffic"),
    (lambda path: write_package_bench(path, kind="bits"), "holds neither sizes of formats nor DRAM traffic"),
    (lambda path: write_package_bench(path, sizes={"ideal": [1, 2]}), "is damaged: KeyError 'dense'"),
    (lambda path: write_package_bench(path, sizes={"dense": [1]}), "is damaged: ValueError"),
    (lambda path: write_package_bench(path, sizes={"dense": [0, 0]}), "rows without a dense size"),
    (lambda path: write_dram_bench(path, copy_bytes=None), "is damaged: TypeError"),
    (lambda path: (path.mkdir(), (path / "dram.json").write_text("{")), "dram.json is damaged"),
    (lambda path: (path.mkdir(), (path / "bench.json").write_text("[]")), "bench.json is damaged: it holds no object"),
])
def test_folders_that_are_damaged_or_of_another_benchmark_are_refused(tmp_path, write, complaint):
    write(tmp_path / "folder")
    with pytest.raises(ConfigError, match=complaint):
        read_bench_folders([tmp_path / "folder"])


def test_the_command_draws_benchmarks_beside_a_run(tmp_path, capsys):
    run, bench = write_quantized_run(tmp_path / "run"), write_package_bench(tmp_path / "sizes")
    with pytest.raises(SystemExit) as stop:
        main(["report", str(run), "--bench", str(bench), "--out", str(tmp_path / "all.html")])
    assert not stop.value.code, capsys.readouterr().err
    assert (tmp_path / "all-formats.png").exists() and (tmp_path / "all-degrees.png").exists()
