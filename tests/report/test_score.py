"""What runs are scored by: in percent or not, higher or lower, known from the summary or from the settings."""

import json

from report.fake_runs import write_run

from hpcgnn.report.formats import UNKNOWN
from hpcgnn.report.run_folder import read_runs
from hpcgnn.report.series import ScoreKind, score_kind


def with_summary(path, **changes):
    summary = json.loads((path / "summary.json").read_text())
    (path / "summary.json").write_text(json.dumps({**summary, **changes}))
    return path


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
