"""The charts as plain data: what they draw is what the run folders hold, computed here from the lines themselves."""

import numpy as np
import pytest
from report.fake_runs import lines_of, rewrite, with_summary, write_adaptive_run, write_run

from hpcgnn.report.charts import charts_of, remarks_of
from hpcgnn.report.run_folder import read_runs
from hpcgnn.report.series import MAX_POINTS, positions

ADAPTIVE = ["progress", "score", "loss", "bytes", "time", "waiting", "balance", "pairs", "seconds", "widths", "bits",
            "execution", "descent"]
SYNCHRONOUS = np.arange(1, 11) % 5 == 1


def charts(*paths):
    return {chart.name: chart for chart in charts_of(read_runs(list(paths)))}


def panel(chart, title):
    return next(one for one in chart.data["panels"] if one["title"] == title)


def test_a_curve_holds_the_lines_of_its_run(tmp_path):
    path = write_run(tmp_path / "run", num_epochs=10)
    (line,) = panel(charts(path)["loss"], "training loss")["series"]
    np.testing.assert_allclose(line["y"], [record["loss"] for record in lines_of(path)], rtol=1e-5)
    assert line["run"] == 0 and "band" not in line


def test_a_repeated_run_is_its_mean_within_a_band(tmp_path):
    path = write_run(tmp_path / "run", num_epochs=6, seeds=(0, 1, 2))
    losses = np.reshape([record["loss"] for record in lines_of(path)], (3, 6))
    (line,) = panel(charts(path)["loss"], "training loss")["series"]
    np.testing.assert_allclose(line["y"], losses.mean(axis=0), rtol=1e-5)
    np.testing.assert_allclose(line["band"], losses.std(axis=0, ddof=1), rtol=1e-4)


def test_curves_stand_over_epochs_seconds_and_bytes(tmp_path):
    path = write_run(tmp_path / "run", scale=4, num_epochs=5, seeds=(0, 1))
    (run,) = read_runs([path])
    found, epochs = positions(run), np.arange(1, 6)
    np.testing.assert_array_equal(found["epoch"], epochs)
    np.testing.assert_allclose(found["seconds"], 0.45 * epochs)
    np.testing.assert_allclose(found["bytes"], (16e6 + 4e5) * epochs)


def test_long_runs_are_thinned_and_keep_evaluated_epochs_and_the_last(tmp_path):
    path = rewrite(write_run(tmp_path / "run", num_epochs=4000, is_complete=False),
                   lambda record: {**record, "test_score": 0.5 if record["epoch"] % 100 == 0 else None})
    (run,) = read_runs([path])
    epochs = positions(run)["epoch"]
    assert len(epochs) < MAX_POINTS + 50 and epochs[-1] == 4000
    assert set(range(100, 4001, 100)) <= set(epochs)
    assert any("1,500 of the epochs at most" in remark for remark in remarks_of([run]))


def test_scores_of_all_splits_are_drawn_in_percent(tmp_path):
    path, other = write_run(tmp_path / "a", num_epochs=10), write_run(tmp_path / "b", num_epochs=5)
    (alone,) = charts(path)["score"].data["panels"]
    assert alone["bySplit"] and [line["label"] for line in alone["series"]] == ["test", "validation", "training"]
    scores = [100 * record["test_score"] if record["test_score"] else None for record in lines_of(path)]
    assert alone["series"][0]["y"] == [score and pytest.approx(score, rel=1e-5) for score in scores]
    several = charts(path, other)["score"].data["panels"]
    assert [one["title"] for one in several] == ["test accuracy", "validation accuracy", "training accuracy"]
    assert [len(one["series"]) for one in several] == [2, 2, 2]


def test_the_first_chart_is_the_validation_score_over_seconds_of_training(tmp_path):
    slow, fast = write_run(tmp_path / "slow", num_epochs=10), write_run(tmp_path / "fast", scale=16, num_epochs=15)
    first, *_ = charts_of(read_runs([slow, fast]))
    assert (first.name, first.kind, first.data["axis"]) == ("progress", "lines", "seconds")
    (drawn,) = first.data["panels"]
    assert drawn["title"] == "validation accuracy" and [line["run"] for line in drawn["series"]] == [0, 1]
    scores = [100 * record["val_score"] for record in lines_of(fast) if record["val_score"]]
    assert [score for score in drawn["series"][1]["y"] if score] == pytest.approx(scores, rel=1e-5)
    goal = 100 * lines_of(slow)[9]["val_score"]     # an epoch of `slow` takes 0.6 s, one of `fast` 0.4125 s
    assert first.seen == (f"All reach a validation accuracy of {goal:.2f} %: fast first, after 4.12 s; slow last, "
                          "after 6.00 s.")


def test_the_chart_over_seconds_knows_scores_of_which_less_is_better_and_runs_alone(tmp_path):
    def as_error(record):
        return {**record, "val_score": record["val_score"] and 1 - record["val_score"]}

    path = with_summary(rewrite(write_run(tmp_path / "run", num_epochs=20), as_error), score_name="mae")
    best = min(record["val_score"] for record in lines_of(path) if record["val_score"])
    assert charts(path)["progress"].seen.startswith(f"run reaches its best validation MAE, {best:.4g}")
    rewrite(path, lambda record: {**record, "epoch_seconds": None})
    assert "progress" not in charts(path)


def test_the_sentence_names_the_best_and_the_worst_score(tmp_path):
    paths = [with_summary(write_run(tmp_path / name), test_score=score)
             for name, score in (("low", 0.6512), ("high", 0.7012))]
    seen = charts(*paths)["score"].seen
    assert seen == ("high has the best test accuracy, 70.12 %, at the epoch with the best validation score; low the "
                    "worst, 65.12 %: 5.00 points apart.")


def test_bytes_split_payload_and_parameters_and_name_the_ratio(tmp_path):
    chart = charts(write_run(tmp_path / "fp32"), write_run(tmp_path / "packed", scale=16))["bytes"]
    assert [row["values"] for row in chart.data["rows"]] == [[64e6, 4e5, 0, 0], [4e6, 4e5, 0, 0]]
    assert [row["note"] for row in chart.data["rows"]] == ["64.4 MB", "4.40 MB, 1/14.6"]
    assert chart.seen == "fp32 sends 64.4 MB per epoch; packed the least, 4.40 MB: 14.6 times fewer."


def test_bytes_of_sums_and_of_a_solver_count(tmp_path):
    def with_more(path):
        return rewrite(path, lambda record: {**record, "sent_bytes_sums": 2_000_000, "sent_bytes_control": 100_000})

    # Up to version 0.3 a summary's bytes were of messages alone.
    old = with_summary(with_more(write_run(tmp_path / "old")), sent_bytes_messages_per_epoch=None)
    stopped = with_more(write_run(tmp_path / "stopped", is_complete=False))
    chart = charts(old, stopped)["bytes"]
    assert [row["values"] for row in chart.data["rows"]] == [[64e6, 4e5, 2e6, 1e5]] * 2
    assert [row["note"] for row in chart.data["rows"]] == ["66.5 MB", "66.5 MB, 1"]


def test_parts_of_the_time_add_up_to_the_epoch_and_the_deciding_after_it(tmp_path):
    path = rewrite(write_adaptive_run(tmp_path / "run", 10),
                   lambda record: {**record, "exchange_seconds": 0.1, "epoch_seconds": 0.45})
    (row,) = charts(path)["time"].data["rows"]
    blocked = np.where(SYNCHRONOUS, 0.08, 0.01).mean()
    np.testing.assert_allclose(row["values"], [0.3, 0.05, 0.1 - blocked, blocked, 0.001], atol=1e-12)
    assert row["note"] == "451 ms"


def test_blocked_seconds_are_a_part_of_the_travelling(tmp_path):
    (row,) = charts(write_adaptive_run(tmp_path / "run", 10))["waiting"].data["rows"]
    np.testing.assert_allclose(row["values"], [0.024, 0.076])
    assert row["note"] == "24.0 ms blocked of 100 ms"


def test_hidden_seconds_are_the_travelling_beside_which_a_rank_was_not_blocked(tmp_path):
    run = rewrite(write_adaptive_run(tmp_path / "run", 10), lambda record: {
        **record, "travel_seconds": 0.1, "hidden_seconds": 0.09, "blocked_seconds": 0.05})
    (row,) = charts(run)["waiting"].data["rows"]
    np.testing.assert_allclose(row["values"], [0.01, 0.09])
    assert row["note"] == "10.0 ms blocked of 100 ms"


def test_balance_is_the_mean_over_evaluated_epochs_by_rank(tmp_path):
    chart = charts(write_adaptive_run(tmp_path / "run", 10, num_ranks=3))["balance"]
    seconds, sent, memory = chart.data["panels"]
    np.testing.assert_allclose(seconds["series"][0]["values"], [[0.3, 0.33, 0.36], [0.01] * 3, [0.06] * 3, [0.04] * 3])
    np.testing.assert_allclose(sent["series"][0]["values"], [[7500, 8500, 9500]])    # epochs 5 and 10
    np.testing.assert_allclose(memory["series"][0]["values"], [[3e8, 3.01e8, 3.02e8]])
    assert chart.seen == "In run the slowest rank computes 1.09 times as long as the mean of its ranks."


def test_pairs_are_the_last_known_bytes_from_row_to_column(tmp_path):
    chart = charts(write_adaptive_run(tmp_path / "run", 13, num_ranks=3))["pairs"]
    assert chart.data["maps"][0]["cells"] == [[0, 11e3, 12e3], [20e3, 0, 22e3], [30e3, 31e3, 0]]
    assert "31.0 kB from rank 2 to rank 1 of run, 1.48 times the mean" in chart.seen


def test_width_shares_and_base_widths_are_those_of_each_epoch(tmp_path):
    (shown,) = charts(write_adaptive_run(tmp_path / "run", 10))["widths"].data["panels"]
    assert shown["widths"] == [1, 2, 8]
    np.testing.assert_allclose(shown["shares"], [np.where(SYNCHRONOUS, 0, 75), np.where(SYNCHRONOUS, 75, 0), [25] * 10])
    np.testing.assert_array_equal(shown["base"], np.where(SYNCHRONOUS, 2, 1))


def test_an_epoch_that_sent_nothing_is_a_gap(tmp_path):
    path = rewrite(write_adaptive_run(tmp_path / "run", 4),
                   lambda record: {**record, "width_histogram": {}} if record["epoch"] == 3 else record)
    (shown,) = charts(path)["widths"].data["panels"]
    assert [share is None for share in shown["shares"][-1]] == [False, False, True, False]


def test_decisions_are_those_of_the_first_seed_and_the_caption_says_so(tmp_path):
    path = rewrite(write_adaptive_run(tmp_path / "run", 10, seeds=(3, 4)),
                   lambda record: {**record, "base_bits": 8 if record["seed"] == 4 else record["base_bits"]})
    found = charts(path)
    np.testing.assert_array_equal(found["widths"].data["panels"][0]["base"], np.where(SYNCHRONOUS, 2, 1))
    assert found["widths"].caption.endswith("If a run has several seeds, the first is shown.")


def test_execution_and_staleness_are_those_of_each_epoch(tmp_path):
    chart = charts(write_adaptive_run(tmp_path / "run", 10))["execution"]
    (shown,) = chart.data["panels"]
    assert shown["modes"] == ["sync" if is_sync else "async" for is_sync in SYNCHRONOUS]
    assert shown["ages"] == [0 if is_sync else 1 for is_sync in SYNCHRONOUS]
    assert chart.seen == "80.0 % of the epochs of run ran asynchronously, with rows up to 1 epoch old."


def test_an_adaptive_run_has_all_charts_and_an_older_one_fewer(tmp_path):
    assert list(charts(write_adaptive_run(tmp_path / "new"))) == ADAPTIVE
    assert list(charts(write_run(tmp_path / "old"))) == ["progress", "score", "loss", "bytes", "time", "memory",
                                                              "seconds"]


def test_a_run_on_one_rank_has_no_empty_charts_and_a_sentence(tmp_path):
    path = write_adaptive_run(tmp_path / "run", 5, num_ranks=1, mode="sync", staleness=0, width_histogram={},
                              sent_bytes_payload=0, sent_bytes_parameters=0, mean_bits=None, base_bits=None, ldr=None)
    config = path / "config.toml"
    config.write_text(config.read_text().replace("ranks = 2", "ranks = 1"))
    rewrite(path, lambda record: {key: value for key, value in record.items() if key != "by_rank"})
    assert list(charts(path)) == ["progress", "score", "loss", "time", "seconds"]
    assert remarks_of(read_runs([path])) == ["run trained on one rank and sent no messages: charts of messages, ranks "
                                             "and pairs leave it out."]


def test_a_run_without_evaluations_or_messages_has_fewer_charts(tmp_path):
    path = write_run(tmp_path / "run", num_epochs=3, is_complete=False)
    (path / "metrics.jsonl").write_text('{"seed": 0, "epoch": 1, "loss": 0.5}\n')
    assert list(charts(path)) == ["loss"]


def test_a_run_keeps_its_number_where_others_are_left_out(tmp_path):
    found = charts(write_run(tmp_path / "old", num_epochs=5), write_adaptive_run(tmp_path / "new", 5))
    assert [row["run"] for row in found["waiting"].data["rows"]] == [1]
    assert [line["run"] for line in panel(found["loss"], "training loss")["series"]] == [0, 1]


def test_loss_over_a_wide_range_begins_with_a_logarithmic_axis(tmp_path):
    for num_epochs, is_log in ((100, True), (5, False)):
        found = charts(write_run(tmp_path / str(num_epochs), num_epochs=num_epochs))
        assert panel(found["loss"], "training loss")["log"] is is_log
