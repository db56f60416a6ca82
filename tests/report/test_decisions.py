"""Figures of adaptive runs, by what matplotlib was told to draw."""

import json

import numpy as np
import pytest
from report.fake_runs import write_adaptive_run, write_run

pytest.importorskip("matplotlib", reason="matplotlib is not installed (pip install 'hpcgnn[report]')")

from matplotlib.collections import PolyCollection
from matplotlib.colors import to_rgb
from matplotlib.patches import StepPatch

from hpcgnn.report import bars, curves, decisions, pairs
from hpcgnn.report.canvas import LIGHT
from hpcgnn.report.figures import caption_of, drawable
from hpcgnn.report.run_folder import read_runs

SYNCHRONOUS = [epoch % 5 == 1 for epoch in range(1, 11)]


def drawn_names(runs):
    return [chart.name for chart, _ in drawable(runs)]


def numbered(*paths):
    return list(enumerate(read_runs(list(paths))))


def rewrite(path, change):
    """Replace every line of the metrics by what `change` makes of it."""
    metrics = path / "metrics.jsonl"
    records = [change(json.loads(line)) for line in metrics.read_text().splitlines()]
    metrics.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def steps_by_color(axis):
    """(lower, upper) of the stacked areas of a panel by their color."""
    areas = [patch for patch in axis.patches if isinstance(patch, StepPatch)]
    return {tuple(area.get_facecolor()): (area.get_data().baseline, area.get_data().values) for area in areas}


def test_width_shares_are_stacked_from_the_narrowest_to_100_percent(tmp_path):
    figure = decisions.draw_widths(numbered(write_adaptive_run(tmp_path / "run", 10)), LIGHT)
    areas = steps_by_color(figure.axes[0])
    lower, upper = zip(*(areas[tuple(decisions.WIDTH_COLORS[width])] for width in (1, 2, 8)), strict=True)
    np.testing.assert_allclose(upper[0] - lower[0], np.where(SYNCHRONOUS, 0, 75))
    np.testing.assert_allclose(upper[1] - lower[1], np.where(SYNCHRONOUS, 75, 0))
    np.testing.assert_allclose(upper[2] - lower[2], 25)
    np.testing.assert_allclose(lower[0], 0)
    np.testing.assert_allclose(lower[1], upper[0])
    np.testing.assert_allclose(upper[2], 100)


def test_every_width_that_is_drawn_is_in_the_legend_and_no_other(tmp_path):
    figure = decisions.draw_widths(numbered(write_adaptive_run(tmp_path / "run", 10)), LIGHT)
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["1 bit", "2 bits", "8 bits"]


def test_the_base_width_is_a_step_an_epoch(tmp_path):
    figure = decisions.draw_widths(numbered(write_adaptive_run(tmp_path / "run", 10)), LIGHT)
    (line,) = figure.axes[1].lines
    np.testing.assert_array_equal(line.get_ydata()[::2], np.where(SYNCHRONOUS, 2, 1))
    np.testing.assert_array_equal(line.get_ydata()[::2], line.get_ydata()[1::2])
    np.testing.assert_allclose(line.get_xdata()[:4], [0.5, 1.5, 1.5, 2.5])


def test_a_run_without_base_width_has_a_single_panel(tmp_path):
    runs = numbered(write_adaptive_run(tmp_path / "sylvie", 5),
                    write_adaptive_run(tmp_path / "adaqp", 5, base_bits=None, ldr=None))
    assert len(decisions.draw_widths(runs, LIGHT).axes) == 3


def test_an_epoch_that_sent_nothing_is_a_gap(tmp_path):
    path = rewrite(write_adaptive_run(tmp_path / "run", 4),
                   lambda record: {**record, "width_histogram": {}} if record["epoch"] == 3 else record)
    shares = decisions.width_shares(read_runs([path])[0])
    assert sorted(shares) == [1, 2, 8]
    np.testing.assert_array_equal(np.isnan(shares[8]), [False, False, True, False])


def test_several_seeds_show_the_decisions_of_the_first_and_say_so(tmp_path):
    path = rewrite(write_adaptive_run(tmp_path / "run", 10, seeds=(3, 4)),
                   lambda record: {**record, "base_bits": 8 if record["seed"] == 4 else record["base_bits"]})
    runs = read_runs([path])
    line = decisions.draw_widths(list(enumerate(runs)), LIGHT).axes[1].lines[0]
    np.testing.assert_array_equal(line.get_ydata()[::2], np.where(SYNCHRONOUS, 2, 1))
    captions = {chart.name: caption_of(chart, shown) for chart, shown in drawable(runs)}
    assert captions["widths"].endswith("Of several seeds, the first is shown.")
    assert "several seeds" not in captions["pairs"]


def test_bands_cover_the_synchronous_and_the_asynchronous_epochs(tmp_path):
    axis = decisions.draw_execution(numbered(write_adaptive_run(tmp_path / "run", 10)), LIGHT).axes[0]
    bands = [[(path.vertices[:, 0].min(), path.vertices[:, 0].max()) for path in collection.get_paths()]
             for collection in axis.collections if isinstance(collection, PolyCollection)]
    assert bands == [[(0.5, 1.5), (5.5, 6.5)], [(1.5, 5.5), (6.5, 10.5)]]
    (line,) = axis.lines
    np.testing.assert_array_equal(line.get_ydata()[::2], np.where(SYNCHRONOUS, 0, 1))


def test_a_run_that_does_not_tell_its_staleness_has_bands_without_a_scale(tmp_path):
    figure = decisions.draw_execution(numbered(write_adaptive_run(tmp_path / "run", 5, staleness=None)), LIGHT)
    assert not figure.axes[0].lines and not figure.axes[0].get_yticks().size
    assert len(figure.legends[0].get_texts()) == 2


def test_heat_maps_show_the_last_known_bytes_from_row_to_column(tmp_path):
    figure = pairs.draw_pairs(numbered(write_adaptive_run(tmp_path / "run", 13, num_ranks=3)), LIGHT)
    cells = np.ma.filled(figure.axes[0].images[0].get_array().astype(float), np.nan)
    # Epoch 10 is the last that was evaluated; kilobytes, as its largest message is less than a megabyte.
    np.testing.assert_allclose(cells, [[np.nan, 11, 12], [20, np.nan, 22], [30, 31, np.nan]])
    assert sorted(text.get_text() for text in figure.axes[0].texts) == ["11.0", "12.0", "20.0", "22.0", "30.0", "31.0"]


def test_maps_of_many_ranks_have_no_numbers_in_their_cells(tmp_path):
    figure = pairs.draw_pairs(numbered(write_adaptive_run(tmp_path / "run", 5, num_ranks=16)), LIGHT)
    assert figure.axes[0].images[0].get_array().shape == (16, 16)
    assert not figure.axes[0].texts


def test_loss_stands_above_its_rate_of_descent(tmp_path):
    runs = numbered(write_adaptive_run(tmp_path / "run", 12))
    loss, ldr = curves.draw_descent(runs, LIGHT).axes
    np.testing.assert_allclose(loss.lines[0].get_ydata(), runs[0][1].curves("loss")[0])
    np.testing.assert_array_equal(ldr.lines[0].get_xdata(), np.arange(2, 13))   # the first epoch has no rate
    np.testing.assert_allclose(ldr.lines[0].get_ydata(), runs[0][1].curves("ldr")[0, 1:])


def test_a_wide_range_of_positive_rates_has_labels_within_each_decade(tmp_path):
    path = rewrite(write_adaptive_run(tmp_path / "run", 30), lambda record: {**record, "ldr": 0.9 ** record["epoch"]})
    figure = curves.draw_descent(numbered(path), LIGHT)
    figure.canvas.draw()
    assert {"0.1", "0.2", "0.5"} <= {label.get_text() for label in figure.axes[1].get_yticklabels()}


def test_rates_around_zero_have_an_axis_that_is_linear_there(tmp_path):
    path = rewrite(write_adaptive_run(tmp_path / "run", 30),
                   lambda record: {**record, "ldr": 0.5 ** record["epoch"] * (-1) ** record["epoch"]})
    assert curves.draw_descent(numbered(path), LIGHT).axes[1].get_yscale() == "symlog"


def test_blocked_seconds_lie_inside_travelling_seconds(tmp_path):
    axis = bars.draw_waiting(numbered(write_adaptive_run(tmp_path / "run", 10)), LIGHT).axes[0]
    np.testing.assert_allclose([bar.get_width() for bar in axis.patches], [0.1, 0.024])
    assert [text.get_text() for text in axis.texts] == ["0.0240 s blocked, 0.100 s travelling"]


def test_a_run_keeps_its_color_where_others_are_left_out(tmp_path):
    old, new = write_run(tmp_path / "old", num_epochs=5), write_adaptive_run(tmp_path / "new", 5)
    shown = {chart.name: runs for chart, runs in drawable(read_runs([old, new]))}
    assert [number for number, _ in shown["waiting"]] == [number for number, _ in shown["descent"]] == [1]
    assert [number for number, _ in shown["loss"]] == [0, 1]
    blocked = bars.draw_waiting(shown["waiting"], LIGHT).axes[0].patches[1]
    line = curves.draw_loss(shown["loss"], LIGHT).axes[0].lines[1]
    np.testing.assert_allclose(blocked.get_facecolor()[:3], to_rgb(line.get_color()))


def test_older_runs_have_none_of_these_figures(tmp_path):
    assert drawn_names(read_runs([write_run(tmp_path / "run")])) == ["loss", "score", "bytes", "time"]


def test_a_synchronous_run_of_one_width_draws_neither_widths_nor_execution(tmp_path):
    path = write_adaptive_run(tmp_path / "run", 5, mode="sync", staleness=0, base_bits=None, ldr=None,
                              width_histogram={"32": 100})
    assert drawn_names(read_runs([path])) == ["loss", "score", "bytes", "time", "waiting", "pairs"]


def test_a_run_on_one_rank_draws_no_pairs_and_no_waiting(tmp_path):
    path = write_adaptive_run(tmp_path / "run", 5, num_ranks=1, blocked_seconds=0.0, travel_seconds=0.0,
                              width_histogram={}, sent_bytes_payload=0, sent_bytes_parameters=0, mean_bits=None)
    assert drawn_names(read_runs([path])) == ["loss", "score", "time", "execution", "descent"]


@pytest.mark.parametrize("num_epochs, num_runs", [(1, 1), (3, 8)])
def test_short_runs_and_many_runs_can_be_drawn(tmp_path, num_epochs, num_runs):
    runs = read_runs([write_adaptive_run(tmp_path / f"run{number}", num_epochs, mode="async", base_bits=4)
                      for number in range(num_runs)])
    names = drawn_names(runs)
    assert {"widths", "execution", "waiting"} <= set(names)
    for chart, shown in drawable(runs):
        chart.draw(shown, LIGHT).canvas.draw()
