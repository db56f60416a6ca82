"""The figures, by what matplotlib was told to draw."""

import numpy as np
import pytest
from report.fake_runs import write_run

pytest.importorskip("matplotlib", reason="matplotlib is not installed (pip install 'hpcgnn[report]')")

from hpcgnn.report import bars, curves
from hpcgnn.report.canvas import LIGHT
from hpcgnn.report.figures import drawable
from hpcgnn.report.run_folder import read_runs


def numbered(runs):
    return list(enumerate(runs))


@pytest.fixture
def runs(tmp_path):
    return read_runs([write_run(tmp_path / "short", num_epochs=10), write_run(tmp_path / "long", scale=16),
                      write_run(tmp_path / "seeds", scale=4, seeds=(0, 1, 2))])


def test_loss_is_drawn_by_epoch_and_by_training_time(runs):
    by_epoch, by_time = curves.draw_loss(numbered(runs), LIGHT).axes
    line = by_epoch.lines[0]
    np.testing.assert_array_equal(line.get_xdata(), runs[0].epochs)
    np.testing.assert_allclose(line.get_ydata(), runs[0].curves("loss")[0])
    np.testing.assert_allclose(by_time.lines[0].get_xdata(), 0.6 * np.arange(1, 11))


def test_the_axes_hold_the_longest_run_from_zero_on(runs):
    left, right = curves.draw_loss(numbered(runs), LIGHT).axes[0].get_xlim()
    assert left == 0
    assert right >= 40


def test_a_repeated_run_is_its_mean_within_a_band(runs):
    axis = curves.draw_loss(numbered(runs), LIGHT).axes[0]
    losses = runs[2].curves("loss")
    np.testing.assert_allclose(axis.lines[2].get_ydata(), losses.mean(axis=0))
    (band,) = axis.collections
    upper = losses.mean(axis=0) + losses.std(axis=0, ddof=1)
    assert band.get_paths()[0].vertices[:, 1].max() == pytest.approx(upper.max())


def test_a_run_has_one_color_in_all_figures(runs):
    line_colors = [line.get_color() for line in curves.draw_loss(numbered(runs), LIGHT).axes[0].lines]
    bar_colors = [bar.get_facecolor()[:3] for bar in bars.draw_bytes(numbered(runs), LIGHT).axes[0].patches[:3]]
    assert len(set(line_colors)) == 3
    for line, bar in zip(line_colors, bar_colors, strict=True):
        np.testing.assert_allclose([int(line[start:start + 2], 16) / 255 for start in (1, 3, 5)], bar)


def test_loss_over_a_wide_range_has_a_log_axis(tmp_path):
    for num_epochs, scale in ((100, "log"), (5, "linear")):
        runs = numbered(read_runs([write_run(tmp_path / scale, num_epochs=num_epochs)]))
        assert curves.draw_loss(runs, LIGHT).axes[0].get_yscale() == scale


def test_scores_are_percent_at_the_evaluated_epochs(runs):
    test, validation = curves.draw_score(numbered(runs), LIGHT).axes[0].lines[:2]
    np.testing.assert_array_equal(test.get_xdata(), [5, 10])
    np.testing.assert_allclose(validation.get_ydata() - test.get_ydata(), 1.0)


def test_bars_split_payload_and_parameters_and_name_the_ratio(runs):
    axis = bars.draw_bytes(numbered(runs), LIGHT).axes[0]
    widths = [bar.get_width() for bar in axis.patches]
    np.testing.assert_allclose(widths, [64, 4, 16, 0.4, 0.4, 0.4])
    assert [text.get_text() for text in axis.texts] == ["64.4 MB", "4.40 MB   1/14.6", "16.4 MB   1/3.93"]


def test_time_bars_add_up_to_the_epoch(runs):
    axis = bars.draw_time(numbered(runs), LIGHT).axes[0]
    widths = np.reshape([bar.get_width() for bar in axis.patches], (4, 3))
    np.testing.assert_allclose(widths.sum(axis=0), [0.6, 0.4 + 0.2 / 16, 0.45])


def test_time_parts_that_exceed_the_median_epoch_are_shown_in_proportion(tmp_path):
    path = write_run(tmp_path / "run", num_epochs=3, is_complete=False)
    path.joinpath("metrics.jsonl").write_text('{"epoch": 1, "loss": 1, "epoch_seconds": 2.0, "compute_seconds": 3.0, '
                                              '"exchange_seconds": 1.0, "quantize_seconds": 0}\n')
    widths = [bar.get_width() for bar in bars.draw_time(numbered(read_runs([path])), LIGHT).axes[0].patches]
    np.testing.assert_allclose(widths, [1.5, 0.5, 0, 0], atol=1e-12)


def test_a_run_without_evaluations_or_messages_has_fewer_figures(tmp_path):
    path = write_run(tmp_path / "run", num_epochs=3, is_complete=False)
    path.joinpath("metrics.jsonl").write_text('{"seed": 0, "epoch": 1, "loss": 0.5}\n')
    assert [chart.name for chart, _ in drawable(read_runs([path]))] == ["loss", "time"]


@pytest.mark.parametrize("name", ["$x", "_hidden", "a $b$ " + 90 * "c", "-"])
def test_any_name_can_be_drawn(tmp_path, name):
    runs = read_runs([write_run(tmp_path / name), write_run(tmp_path / "b")])
    for chart, shown in drawable(runs):
        chart.draw(shown, LIGHT).canvas.draw()
    legend = [text.get_text() for text in curves.draw_loss(numbered(runs), LIGHT).legends[0].get_texts()]
    assert len(legend) == 2
