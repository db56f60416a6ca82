"""Charts of quantization: learned widths by in-degree, sizes by format, DRAM traffic; damage that is refused."""

from __future__ import annotations

import json

import numpy as np
import pytest
from report.fake_runs import write_run

from hpcgnn.__main__ import main
from hpcgnn.errors import ConfigError
from hpcgnn.report.bench_charts import bench_charts, read_bench_folders
from hpcgnn.report.charts import charts_of
from hpcgnn.report.page import write_report
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


def chart_named(charts, name):
    return next(chart for chart in charts if chart.name == name)


def test_only_runs_with_learned_widths_are_drawn_by_in_degree(tmp_path):
    runs = read_runs([write_run(tmp_path / "b"), write_quantized_run(tmp_path / "a")])
    (panel,) = chart_named(charts_of(runs), "degrees").data["panels"]
    assert (panel["run"], panel["title"], panel["layers"]) == (1, "a", LAYERS)
    assert "1 to 5 bits" in chart_named(charts_of(runs), "degrees").seen
    plain = read_runs([write_quantized_run(tmp_path / "c", []), tmp_path / "b"])
    assert "degrees" not in {chart.name for chart in charts_of(plain)}


@pytest.mark.parametrize("layers", [5, [[1]], [{"in_degree": [1]}], [{**LAYERS[0], "num_nodes": [1]}],
                                    [{**LAYERS[0], "bit_width": [1, "x", 2]}],
                                    [{"in_degree": [], "num_nodes": [], "bit_width": []}]])
def test_damaged_widths_are_refused(tmp_path, layers):
    with pytest.raises(ConfigError, match=r"summary\.json is damaged: widths_by_degree must list in_degree"):
        read_runs([write_quantized_run(tmp_path / "a", layers)])


def test_columns_are_sizes_over_dense_rows_with_positions_on_top(tmp_path):
    (chart,) = bench_charts(read_bench_folders([write_package_bench(tmp_path / "sizes")]))
    left, right = chart.data["panels"]
    assert (left["categories"], left["title"], right["title"]) == (["1", "1-8"], "10 % not zero", "100 % not zero")
    by_name = {one["name"]: one["values"] for one in left["series"]}
    assert "dense" not in by_name
    np.testing.assert_allclose(by_name["adaptive-package"], [[0.275, 0.275], [0.1, 0.1]])
    assert chart.seen.startswith("The smallest is adaptive-package") and "37.5 % of dense rows" in chart.seen


def test_traffic_adds_up_and_is_over_the_first_of_its_group(tmp_path):
    (chart,) = bench_charts(read_bench_folders([write_dram_bench(tmp_path / "dram")]))
    assert [row["note"] for row in chart.data["rows"]] == ["4.00 MB, 1.00", "2.50 MB, 0.62"]
    assert sum(sum(row["values"]) for row in chart.data["rows"]) == pytest.approx(6.5e6)
    assert chart.seen == "schemes: metis reads the least, 2.50 MB."


def test_charts_of_benchmarks_follow_those_of_runs_on_the_page(tmp_path):
    folders = read_bench_folders([write_package_bench(tmp_path / "sizes"), write_dram_bench(tmp_path / "dram")])
    assert [chart.name for chart in bench_charts(folders)] == ["formats", "dram-2"]
    page = write_report(read_runs([write_run(tmp_path / "a")]), tmp_path / "all.html", folders).read_text()
    assert page.index("chart-loss") < page.index("chart-formats") < page.index("chart-dram-2")
    assert "DRAM traffic: dram" in page


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
        main(["report", str(run), str(bench), "--out", str(tmp_path / "all.html")])
    assert not stop.value.code, capsys.readouterr().err
    page = (tmp_path / "all.html").read_text()
    assert "chart-formats" in page and "chart-degrees" in page


def test_a_benchmark_alone_or_in_a_table_is_refused(tmp_path, capsys):
    run, bench = write_quantized_run(tmp_path / "run"), write_package_bench(tmp_path / "sizes")
    for words, sentence in (([bench], "holds results of a benchmark and no run"),
                            ([run, bench, "--out", tmp_path / "all.csv"], f"{bench} holds a benchmark, which")):
        with pytest.raises(SystemExit) as stop:
            main(["report", *map(str, words)])
        assert stop.value.code == 1 and sentence in capsys.readouterr().err
