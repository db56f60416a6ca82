"""The tables of benchmarks: which run a rate is chosen by, and what a difference and its error are."""

import json
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
from parallel_run import run_parallel_command

JOBS = Path(__file__).parents[2] / "jobs"


def write_run(folder, validation, test, std=0.01, **others):
    """The summary of a run; its test score is that of all seeds."""
    folder.mkdir(parents=True)
    summary = {"seeds": list(range(len(validation))), "test_score": test, "test_score_std": std,
               "results": [{"val_score": score} for score in validation], **others}
    (folder / "summary.json").write_text(json.dumps(summary))


@pytest.fixture
def run_script(monkeypatch, capsys):
    """run_script(name, *arguments): what a script of jobs/ prints, in this process."""
    def run(name, *arguments):
        monkeypatch.setattr(sys, "argv", [name, *map(str, arguments)])
        monkeypatch.syspath_prepend((JOBS / name).parent)
        runpy.run_path(str(JOBS / name), run_name="__main__")
        return capsys.readouterr().out

    return run


def cells(line):
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


@pytest.fixture
def rates(tmp_path):
    """Three rates: the best over all its seeds is not the best over the first three, where two are equal."""
    place = tmp_path / "cora" / "gcn" / "fp32"
    write_run(place / "0.01", [0.70, 0.72, 0.74], 0.80)
    write_run(place / "0.003", [0.72, 0.72, 0.72, 0.50, 0.50], 0.82)
    write_run(place / "0.001", [0.60, 0.60, 0.60, 0.99, 0.99], 0.84)
    return place


def test_rates_are_compared_by_their_first_seeds_and_the_largest_of_equals_wins(rates, run_script):
    for order in (("0.01", "0.003", "0.001"), ("0.001", "0.003", "0.01")):
        assert run_script("best_rate.py", *(rates / rate for rate in order)).strip() == str(rates / "0.01")


def test_the_table_has_the_chosen_rate_and_the_error_of_the_difference(rates, tmp_path, run_script):
    stored = {"quantize": "uniform", "feature_bits": [4, 4], "mean_feature_bits": 4.0, "feature_kb": 100.0,
              "stored_kb": 120.0, "float_kb": 960.0, "meets_target": True}
    write_run(tmp_path / "cora" / "gcn" / "uniform" / "0.001", [0.7] * 12, 0.79, 0.02, **stored)
    header, _, full, uniform = map(cells, run_script("degree_aware_table.py", tmp_path).splitlines())
    named = dict(zip(header, uniform, strict=True))
    assert dict(zip(header, full, strict=True))["lr"] == "0.01"
    assert (named["lr"], named["seeds"], named["less fp32"]) == ("0.001", "12", "-1.00")
    # sqrt(1 / 3 + 4 / 12), the squared standard errors of both in percent
    assert named["± its error"] == "0.82" and named["times smaller"] == "8.0"


def write_training(folder, validation, test, curve, is_complete=True):
    """A run of one seed; `curve` has the test scores of its evaluations, one every second epoch."""
    folder.mkdir(parents=True)
    (folder / "config.toml").write_text('model = "sage"\n')
    records = [record for number, score in enumerate(curve, 1)
               for record in ({"seed": 0, "epoch": 2 * number - 1, "loss": 1.0},
                              {"seed": 0, "epoch": 2 * number, "loss": 1.0, "test_score": score})]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    if is_complete:
        (folder / "summary.json").write_text(json.dumps({
            "seeds": [0], "num_epochs_recorded": len(records),
            "results": [{"val_score": validation, "test_score": test}]}))


def test_a_recipe_is_compared_with_the_base_of_the_same_seed(tmp_path, run_script):
    place = tmp_path / "cora" / "sage"
    for seed, (base, better) in enumerate([(0.70, 0.71), (0.80, 0.83)]):
        write_training(place / "base" / str(seed), base, base - 0.1, [0.1] * 25 + [0.6] * 19 + [0.5])
        write_training(place / "norm=batch" / str(seed), better, base - 0.2, [0.1] * 19 + [0.4] * 20)
    write_training(place / "norm=batch" / "2", 0.99, 0.99, [0.99] * 20)      # the base has no such seed
    write_training(place / "ema=0.9" / "0", 0.99, 0.99, [0.99] * 20, is_complete=False)
    corrected = place / "correct-and-smooth" / "1"
    corrected.mkdir(parents=True)
    (corrected / "scores.txt").write_text("accuracy: train 99.00 %, val 82.50 %, test 74.00 %\n")
    header, _, *lines = map(cells, run_script("recipe_table.py", tmp_path).splitlines()[4:])
    base, smooth, batch = (dict(zip(header, line, strict=True)) for line in lines)
    assert header.count("less base") == 2
    assert base["validation"] == "75.00 ± 5.00" and base["test"] == "65.00 ± 5.00"
    assert (base["last 20: mean"], base["worst"]) == ("59.50", "50.00")
    assert lines[2][:5] == ["sage", "norm=batch", "2", "77.00 ± 6.00", "+2.00 ± 1.00"]
    assert lines[2][6] == "-10.00 ± 0.00" and batch["worst"] == "40.00"
    assert lines[1] == ["sage", "correct-and-smooth", "1", "82.50", "+2.50", "74.00", "+4.00", "-", "-"]
    assert smooth["seeds"] == "1"


def test_scores_on_typed_graphs_are_compared_by_seed_and_recipes_by_validation(tmp_path, run_script):
    def line(side, recipe, seed, val, micro, ranks=1):
        return json.dumps({"graph": "acm", "split": 20, "model": "rgcn", "side": side, "recipe": recipe, "seed": seed,
                           "ranks": ranks, "val": val, "micro": micro, "macro": micro - 0.01, "last": micro - 0.1,
                           "worst": micro - 0.2}) + "\n"

    lines = [line("hpcgnn", "a", 100, 0.7, 0.9), line("hpcgnn", "b", 100, 0.8, 0.1), line("PyG", "a", 100, 0.9, 0.2),
             line("PyG", "b", 100, 0.8, 0.9), line("hpcgnn", "b", 0, 0.5, 0.80), line("hpcgnn", "b", 1, 0.5, 0.84),
             line("PyG", "a", 0, 0.5, 0.82), line("PyG", "a", 1, 0.5, 0.82), line("PyG", "a", 2, 0.5, 0.99),
             line("hpcgnn", "b", 0, 0.5, 0.79, ranks=2)]
    (tmp_path / "scores.jsonl").write_text("".join(lines))
    printed = run_script("typed_table.py", tmp_path / "scores.jsonl").splitlines()
    scores, recipes, ranks = (cells(printed[number]) for number in (4, 8, 12))
    assert scores[:7] == ["acm", "20", "rgcn", "2", "82.00 ± 2.83 (80.00)", "82.00 ± 0.00 (82.00)", "+0.00 ± 2.00"]
    assert scores[7] == "81.00 ± 2.83 (79.00)" and scores[10:] == ["72.00, 60.00", "72.00, 62.00"]
    assert recipes == ["acm", "rgcn", "b", "a"]
    assert ranks == ["acm", "20", "rgcn", "2", "80.00", "79.00", "79.00", "78.00"]


def test_losses_of_other_ranks_are_compared_with_those_of_the_first_file(tmp_path, run_script):
    pytest.importorskip("torch_geometric")
    for ranks, losses in ((1, [2.0, 1.0]), (2, [2.0, 1.001])):
        found = {"losses": losses, "test_score": 0.5, "seconds": 0.1 * ranks}
        (tmp_path / f"p{ranks}.json").write_text(json.dumps({"ranks": ranks, "models": {"PNA": {"40": found}}}))
    table = run_script("measurements/own_models.py", "table", tmp_path / "p1.json", tmp_path / "p2.json")
    header, _, line = map(cells, table.splitlines())
    found = dict(zip(header, line, strict=True))
    assert (found["model"], found["steps"], found["test %, 2 ranks"]) == ("PNA", "40", "50.00")
    assert (found["losses differ by, 1 rank"], found["losses differ by, 2 ranks"]) == ("0.0e+00", "1.0e-03")
    assert (found["s an epoch, 1 rank"], found["s an epoch, 2 ranks"]) == ("0.100", "0.200")


@pytest.mark.long
@pytest.mark.parametrize("ranks", [1, 2])
def test_own_models_train_in_steps_and_in_one(tmp_path, ranks):
    pytest.importorskip("torch_geometric")
    subprocess.run([sys.executable, "-m", "hpcgnn", "preprocess", "synthetic:nodes=400,classes=3,features=8",
                    "--parts", str(ranks), "--out", tmp_path / "shards"], check=True, capture_output=True)
    command = [sys.executable, JOBS / "measurements/own_models.py", "train", "shards", "own.json", "steps=2"]
    assert run_parallel_command(ranks, [*command, "epochs=2"], tmp_path, seconds=300).status == 0
    models = json.loads((tmp_path / "own.json").read_text())["models"]
    assert len(models) == 5
    assert all(len(found["losses"]) == 2 for by_steps in models.values() for found in by_steps.values())
    assert {tuple(by_steps) for by_steps in models.values()} == {("2", "1")}
