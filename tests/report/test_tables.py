"""The tables of the page: cells, what they are sorted by, differences from a baseline, what differs between runs."""

import pytest
from report.fake_runs import with_summary, write_adaptive_run, write_run

from hpcgnn.report.comparison import MAX_BASELINES, as_plain, baselines_of, best_run, differences_from
from hpcgnn.report.page import headlines
from hpcgnn.report.run_folder import read_runs
from hpcgnn.report.tables import environment_table, facts_of, results_table, settings_table


def with_provenance(path, text):
    with open(path / "config.toml", "a") as file:
        file.write(text)
    return path


def column(table, heading):
    place = [one.heading for one in table.columns].index(heading)
    return [row[place] for row in table.rows]


@pytest.fixture
def runs(tmp_path):
    return read_runs([write_run(tmp_path / "fp32"),
                      with_summary(write_run(tmp_path / "packed", scale=16), test_score=0.80, val_score=0.81,
                                   peak_rss_bytes=None),
                      with_summary(write_run(tmp_path / "other"), test_score=0.70, val_score=0.69,
                                   sent_bytes_per_epoch=0)])


def test_cells_show_and_sort_by_what_the_summary_says(runs):
    table = results_table(runs)
    assert [(cell.text, cell.value) for cell in column(table, "test accuracy (%)")] == [
        ("78.12", 0.7812), ("80.00", 0.80), ("70.00", 0.70)]
    assert [cell.text for cell in column(table, "sent per epoch")] == ["64.4 MB", "4.40 MB", "0 B"]
    assert [cell.value for cell in column(table, "peak memory")] == [1_234_567_890, None, 1_234_567_890]
    assert [cell.text for cell in column(table, "training")] == ["24.0 s", "16.5 s", "24.0 s"]   # 40 epochs


def test_columns_that_no_run_fills_are_left_out(runs, tmp_path):
    assert "synchronous (%)" not in [one.heading for one in results_table(runs).columns]
    assert "synchronous (%)" in [one.heading for one in
                                 results_table(read_runs([write_adaptive_run(tmp_path / "new", 5)])).columns]


def test_differences_are_points_and_ratios_in_plain_words(runs):
    fp32, packed, other = differences_from(runs, 0)
    assert {one.text for one in fp32.values()} == {"baseline"}
    assert [(packed[key].text, packed[key].verdict) for key in ("score", "time", "bytes")] == [
        ("+1.88 points", "better"), ("1.45× faster", "better"), ("14.6× fewer", "better")]
    assert [(other[key].text, other[key].verdict) for key in ("score", "time", "bytes")] == [
        ("−8.12 points", "worse"), ("same", ""), ("–", "")]


def test_a_run_can_be_the_baseline_and_the_page_has_the_same_numbers(runs):
    cells = column(results_table(runs, baseline=1), "bytes against")
    assert [cell.text for cell in cells] == ["14.6× more", "baseline", "–"]
    assert [one["bytes"]["text"] for one in as_plain(runs)["1"]] == [cell.text for cell in cells]


def test_a_lower_error_is_better(runs):
    for run in runs:
        run.summary.update(score_name="mae")
    assert best_run(runs) == 2
    assert differences_from(runs, 0)[2]["score"].verdict == "better"


def test_the_test_score_has_no_say_in_which_run_is_best(runs):
    runs[2].summary["test_score"] = 0.99
    assert best_run(runs) == 1


def test_many_runs_offer_the_first_ones_and_the_best_as_baselines(tmp_path):
    path = write_run(tmp_path / "run", num_epochs=1)
    many = read_runs([path]) * (MAX_BASELINES + 10)
    assert baselines_of(many) == list(range(MAX_BASELINES))


def test_headlines_name_the_best_run_by_each_measure(runs):
    assert [(one.title, one.text, one.run, one.remark) for one in headlines(runs)] == [
        ("test accuracy, best by validation", "80.00 %", 1, "+1.88 points against fp32"),
        ("shortest epoch", "413 ms", 1, "1.45× faster than fp32"),
        ("fewest bytes per epoch", "4.40 MB", 1, "14.6× fewer than fp32")]


def test_headlines_say_what_other_programs_took(runs, tmp_path):
    """Not only that a run was slower: the reader can't know why."""
    (busy,) = read_runs([with_summary(write_run(tmp_path / "busy"), other_cores=1.6)])
    assert headlines([busy])[1].remark.endswith("; other programs used 1.60 cores during busy")
    assert headlines([busy, runs[1]])[1].remark.endswith(" than busy; other programs used 1.60 cores during busy")
    assert not any("other programs" in one.remark for one in headlines(runs))


def test_headlines_of_one_run_are_its_figures(tmp_path):
    (run,) = read_runs([write_run(tmp_path / "run", seeds=(0, 1))])
    assert [one.text for one in headlines([run])] == ["78.12 ± 0.41 %", "600 ms", "64.4 MB", "1.23 GB"]


def test_settings_that_differ_are_columns_and_the_others_are_said_once(runs):
    table = settings_table(runs)
    assert [one.heading for one in table.columns] == ["bits"]
    assert [row[0].text for row in table.rows] == ["32", "2", "32"]
    assert [row[0].value for row in table.rows] == [32, 2, 32]
    assert table.alike == {"model": "sage", "method": "uniform", "hidden": "256"}


def test_a_setting_that_only_some_runs_have_is_unknown_for_the_others(tmp_path):
    first, second = write_run(tmp_path / "a"), write_run(tmp_path / "b")
    config = second / "config.toml"
    config.write_text('levels = "1,2"\n' + config.read_text())
    table = settings_table(read_runs([first, second]))
    assert [(row[0].text, row[0].value) for row in table.rows] == [("–", None), ("1,2", "1,2")]


def test_the_environment_says_where_when_and_how_long(tmp_path):
    path = with_provenance(
        with_summary(write_run(tmp_path / "run"), ended="2026-03-01T12:30:10+00:00",
                     parts_by_rank={"host": ["n1", "n1", "n2"]}),
        'started = "2026-03-01T12:00:00+00:00"\nhost = "n1"\ncommit = "abc"\ncommand = "hpcgnn train x"\n'
        'variables = ["OMP_NUM_THREADS=4", "SLURM_JOB_ID=7"]\n')
    facts = facts_of(read_runs([path])[0])
    assert facts["host"] == "n1 (2 ranks), n2 (1 rank)"
    assert (facts["started"], facts["wall time"]) == ("2026-03-01 12:00:00 UTC", "30 min 10 s")
    assert (facts["commit"], facts["command"]) == ("abc", "hpcgnn train x")
    assert facts["variables"] == "OMP_NUM_THREADS=4, SLURM_JOB_ID=7"
    assert facts["setup messages"] == "4.21 MB" and facts["MPI"] == "Open MPI v5"


def test_a_run_of_an_older_version_has_fewer_facts_and_an_unfinished_one_says_so(tmp_path):
    run, halfway = read_runs([write_run(tmp_path / "old"), write_run(tmp_path / "half", 1, 17, is_complete=False)])
    assert not {"started", "wall time", "commit", "command", "host"} & set(facts_of(run))
    table = environment_table([run, halfway])
    assert [cell.text for cell in column(table, "state")] == ["complete", "unfinished, epoch 17"]
