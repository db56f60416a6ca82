"""Reading run folders (finished, unfinished, cut off and damaged ones), what scores they have, how long ranks took."""

import json

import numpy as np
import pytest
from report.fake_runs import costs_by_rank, rewrite, with_summary, write_adaptive_run, write_run

from hpcgnn.errors import ConfigError
from hpcgnn.report.formats import UNKNOWN
from hpcgnn.report.run_folder import read_measured, read_run, read_runs
from hpcgnn.report.series import ScoreKind, score_kind


def append_to_metrics(path, text):
    with open(path / "metrics.jsonl", "a") as file:
        file.write(text)


def test_a_finished_run_tells_its_summary(tmp_path):
    run = read_run(write_run(tmp_path / "run"), "run")
    assert run.is_complete
    assert run.summary["test_score"] == 0.7812
    assert run.config["hidden"] == 256
    assert run.provenance == {"dataset": "cora <b>", "ranks": 2}


def test_curves_have_a_row_a_seed_and_nan_where_nothing_was_evaluated(tmp_path):
    run = read_run(write_run(tmp_path / "run", num_epochs=10, seeds=(3, 4)), "run")
    assert run.seeds == [3, 4]
    assert run.epochs.tolist() == list(range(1, 11))
    scores = run.curves("test_score")
    assert scores.shape == (2, 10)
    assert np.isfinite(scores).all(axis=0).tolist() == [epoch % 5 == 0 for epoch in range(1, 11)]


def test_a_seed_that_stopped_early_leaves_nan_behind(tmp_path):
    path = write_run(tmp_path / "run", num_epochs=4, is_complete=False)
    append_to_metrics(path, '{"seed": 1, "epoch": 1, "loss": 2.0, "epoch_seconds": 1.0}\n'
                            '{"seed": 1, "epoch": 2, "loss": 1.0, "epoch_seconds": 1.5}\n')
    run = read_run(path, "run")
    np.testing.assert_array_equal(run.curves("loss")[1], [2.0, 1.0, np.nan, np.nan])
    np.testing.assert_array_equal(run.elapsed_seconds()[1], [1.0, 2.5, np.nan, np.nan])


def test_a_run_without_summary_is_summarized_from_its_epochs(tmp_path):
    run = read_run(write_run(tmp_path / "run", scale=2, num_epochs=12, seeds=(0, 1), is_complete=False), "run")
    assert not run.is_complete
    assert run.summary["sent_bytes_per_epoch"] == 32e6 + 4e5
    assert run.summary["median_epoch_seconds"] == pytest.approx(0.5)
    assert (run.summary["dataset"], run.summary["mean_bits"]) == ("cora <b>", 16)
    best = [max((record for record in run.records if record["seed"] == seed and record["val_score"]),
                key=lambda record: record["val_score"])["test_score"] for seed in (0, 1)]
    assert run.summary["test_score"] == pytest.approx(np.mean(best))
    assert run.summary["test_score_std"] == pytest.approx(np.std(best, ddof=1))


def test_a_run_that_was_never_evaluated_has_no_score(tmp_path):
    run = read_run(write_run(tmp_path / "run", num_epochs=3, is_complete=False), "run")
    assert run.summary["test_score"] is None


def test_an_adaptive_run_without_summary_is_summarized_from_its_epochs(tmp_path):
    summary = read_run(write_adaptive_run(tmp_path / "run", 10), "run").summary
    assert summary["synchronous_share"] == 0.2
    assert summary["width_histogram"] == {"1": 6000, "2": 1500, "8": 2500}
    # Two epochs at 3.5 bits, eight at 2.75, equal bytes: the mean weighs by values, which are bytes over bits.
    assert summary["mean_bits"] == pytest.approx(10 / (2 / 3.5 + 8 / 2.75))


def test_a_run_of_an_older_version_tells_neither_execution_nor_widths(tmp_path):
    summary = read_run(write_run(tmp_path / "run"), "run").summary
    assert (summary["synchronous_share"], summary["width_histogram"]) == (None, None)
    assert summary["mean_bits"] == 32


def test_fields_that_a_method_does_not_have_may_be_null(tmp_path):
    path = write_adaptive_run(tmp_path / "run", 3, mode=None, base_bits=None, ldr=None, width_histogram=None,
                              sent_bytes_by_pair=None, staleness=None, mean_bits=None)
    assert read_run(path, "run").summary["mean_bits"] is None


def test_a_half_written_last_line_is_left_out(tmp_path):
    path = write_run(tmp_path / "run", num_epochs=7, is_complete=False)
    append_to_metrics(path, '{"seed": 0, "epoch": 8, "lo')
    assert read_run(path, "run").epochs.tolist() == list(range(1, 8))


def test_a_complete_run_has_no_half_line(tmp_path):
    path = write_run(tmp_path / "run", num_epochs=7)
    append_to_metrics(path, '{"seed": 0, "epoch": 8, "lo')
    with pytest.raises(ConfigError, match=r"metrics\.jsonl, line 8 is damaged: the file ends within it; "):
        read_run(path, "run")


@pytest.mark.parametrize("change, reason", [
    (lambda lines: lines[:3] + lines[4:], "it has 6 epochs, the summary in its folder counts 7"),
    (lambda lines: lines[:-1], "it has 6 epochs, the summary in its folder counts 7"),
    (lambda lines: lines[:4] + lines[3:], "its epochs do not ascend"),
    (lambda lines: [lines[1], lines[0], *lines[2:]], "its epochs do not ascend"),
], ids=["lost", "last lost", "repeated", "moved"])
def test_a_whole_line_that_is_lost_repeated_or_moved_is_noticed(tmp_path, change, reason):
    path = write_run(tmp_path / "run", num_epochs=7)
    metrics = path / "metrics.jsonl"
    metrics.write_text("".join(change(metrics.read_text().splitlines(keepends=True))))
    with pytest.raises(ConfigError, match=rf"metrics\.jsonl is damaged: {reason}; "):
        read_run(path, "run")


@pytest.mark.parametrize("line, reason", [
    ('{"seed": 0, "epoch": 8, "lo', "Unterminated string"),
    ("[1, 2]", "it holds no object"),
    ('{"epoch": 8}', "expected an object with epoch and loss"),
    ('{"epoch": "8", "loss": 1.0}', "epoch is '8', expected a whole number"),
    ('{"epoch": 8, "loss": "low"}', "loss is 'low', expected a number"),
    ('{"epoch": 8, "loss": 1.0, "val_score": [1]}', r"val_score is \[1\], expected a number"),
    ('{"epoch": 8, "loss": 1.0, "ldr": "up"}', "ldr is 'up', expected a number"),
    ('{"epoch": 8, "loss": 1.0, "mode": "fast"}', "mode is 'fast', expected sync or async"),
    ('{"epoch": 8, "loss": 1.0, "mode": []}', r"mode is \[\], expected sync or async"),
    ('{"epoch": 8, "loss": 1.0, "width_histogram": [3]}', r"width_histogram is \[3\], expected numbers of rows"),
    ('{"epoch": 8, "loss": 1.0, "width_histogram": {"two": 3}}', "width_histogram is {'two': 3}, expected numbers"),
    ('{"epoch": 8, "loss": 1.0, "width_histogram": {"2": -3}}', "width_histogram is {'2': -3}, expected numbers"),
    ('{"epoch": 8, "loss": 1.0, "by_rank": {"sent_bytes": [1]}}', "by_rank is {.*expected lists of numbers"),
    ('{"epoch": 8, "loss": 1.0, "by_rank": [1]}', r"by_rank is \[1\], expected lists of numbers"),
    ('{"epoch": 8, "loss": 1.0, "sent_bytes_by_pair": 7}', "sent_bytes_by_pair is 7, expected a square table"),
    ('{"epoch": 8, "loss": 1.0, "sent_bytes_by_pair": [[0, 1]]}', r"sent_bytes_by_pair is \[\[0, 1\]\], expected"),
])
def test_any_other_damaged_line_is_refused_with_its_number(tmp_path, line, reason):
    path = write_run(tmp_path / "run", num_epochs=7)
    append_to_metrics(path, line + "\n" + json.dumps({"epoch": 9, "loss": 1.0}) + "\n")
    with pytest.raises(ConfigError, match=rf"metrics\.jsonl, line 8 is damaged: {reason}"):
        read_run(path, "run")


def test_a_loss_that_was_not_finite_is_a_gap(tmp_path):
    path = write_run(tmp_path / "run", num_epochs=2, is_complete=False)
    append_to_metrics(path, '{"seed": 0, "epoch": 3, "loss": null}\n')
    np.testing.assert_array_equal(np.isfinite(read_run(path, "run").curves("loss")), [[True, True, False]])


def test_a_folder_without_metrics_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"holds no metrics\.jsonl, so it is no run folder"):
        read_run(tmp_path, "run")


def test_a_run_without_a_finished_epoch_is_refused(tmp_path):
    path = write_run(tmp_path / "run", num_epochs=0)
    with pytest.raises(ConfigError, match="no finished epoch yet"):
        read_run(path, "run")


@pytest.mark.parametrize("content", ["{", "[]"])
def test_a_damaged_summary_is_refused(tmp_path, content):
    path = write_run(tmp_path / "run")
    path.joinpath("summary.json").write_text(content)
    with pytest.raises(ConfigError, match=r"summary\.json is damaged"):
        read_run(path, "run")


def test_runs_of_one_name_are_called_by_their_paths(tmp_path):
    paths = [write_run(tmp_path / "a" / "run"), write_run(tmp_path / "b" / "run"), write_run(tmp_path / "other")]
    assert [run.name for run in read_runs(paths)] == [str(paths[0]), str(paths[1]), "other"]


def test_one_folder_given_twice_is_refused(tmp_path):
    path = write_run(tmp_path / "run")
    with pytest.raises(ConfigError, match="given twice"):
        read_runs([path, tmp_path / "a" / ".." / "run"])


def test_shares_are_percent_with_a_deviation_only_over_seeds():
    kind = ScoreKind("accuracy")
    assert kind.show(0.81234, 0.0041) == "81.23 ± 0.41"
    assert kind.show(0.81234, 0.0, with_unit=True) == "81.23 %"
    assert kind.show(None, None) == kind.show(float("nan"), with_unit=True) == UNKNOWN
    assert (kind.heading, kind.show_gap(0.012)) == ("accuracy (%)", "1.20 points")


def test_a_score_that_is_no_share_is_shown_as_it_is():
    kind = ScoreKind("rmse", is_share=False, prefers_low=True)
    assert kind.show(0.81234, 0.0041, with_unit=True) == "0.8123 ± 0.0041"
    assert (kind.heading, kind.show_gap(0.5)) == ("RMSE", "0.5")
    assert kind.best({"a": 2.0, "b": 1.0, "c": 3.0}) == "b"


def test_the_kind_is_what_the_summaries_say(tmp_path):
    path = with_summary(write_run(tmp_path / "a"), score_name="own", score_is_share=False, score_prefers_low=True)
    assert score_kind(read_runs([path])) == ScoreKind("own", False, True)
    other = write_run(tmp_path / "b")
    assert score_kind(read_runs([other])) == ScoreKind("accuracy")
    assert score_kind(read_runs([path, other])) == ScoreKind("score", is_share=False)


def test_an_unfinished_run_is_scored_by_what_its_settings_name(tmp_path):
    path = write_run(tmp_path / "a", is_complete=False)
    (path / "config.toml").write_text('score = "mae"\n' + (path / "config.toml").read_text())
    (run,) = read_runs([path])
    assert score_kind([run]) == ScoreKind("mae", False, True)
    lowest = min((record for record in run.records if record["val_score"]), key=lambda record: record["val_score"])
    assert run.summary["test_score"] == lowest["test_score"]


@pytest.fixture
def run(tmp_path):
    path = write_adaptive_run(tmp_path / "run", num_epochs=10, num_ranks=3)      # two evaluations
    text = (path / "config.toml").read_text()
    (path / "config.toml").write_text("layers = 2\n" + text.replace("[provenance]", '[provenance]\nshards = "/shards"'))
    return path


def with_seconds(record, seconds):
    return {**record, "by_rank": {**record["by_rank"], "compute_seconds": seconds}} if record.get("by_rank") else record


def test_measured_seconds_are_medians_without_the_first_evaluation(run):
    rewrite(run, lambda record: with_seconds(record, [50.0, 60.0, 70.0]) if record["epoch"] == 5 else record)
    found = read_measured(run)
    assert (found.shards, found.num_layers) == ("/shards", 2)
    np.testing.assert_allclose(found.seconds, costs_by_rank(0, 3)["compute_seconds"])


def test_seconds_that_were_not_measured_or_are_none_are_refused(run, tmp_path):
    with pytest.raises(ConfigError, match="alone does not say how long each rank computed: it had one rank"):
        read_measured(write_run(tmp_path / "alone"))
    with pytest.raises(ConfigError, match="rank 1 computed for 0 s per epoch"):
        read_measured(rewrite(run, lambda record: with_seconds(record, [0.3, 0.0, 0.3])))
