"""The programs of examples/ run and do what they say, and README.md shows them as they are."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from fork_server import served
from parallel_run import clean_environment, hpcgnn, launcher, run_parallel_command

from hpcgnn.registry import read_json

ROOT = Path(__file__).resolve().parents[1]
GRAPH = "synthetic:nodes=3000,mean_degree=10,classes=4,features=32,homophily=0.9"


@pytest.mark.long      # tests/pyg trains such models on ranks
def test_a_pyg_model_of_ones_own_learns_on_two_ranks(tmp_path):
    pytest.importorskip("torch_geometric", reason="the example uses PyTorch Geometric")
    command = hpcgnn("preprocess", GRAPH, "--out", "shards", "--parts", 2)
    assert run_parallel_command(1, command, tmp_path).status == 0
    shutil.copy(ROOT / "examples" / "own_model.py", tmp_path)      # a module of the current folder is found
    sent = {}
    for bits in (8, 32):
        ended = run_parallel_command(2, hpcgnn("train", "shards", "--model", "own_model:GAT", "--method", "uniform",
                                               "--bits", bits, "--hidden", 64, "--epochs", 20, "--out", f"run{bits}"),
                                     tmp_path)
        assert ended.status == 0, ended.stderr
        summary, _ = read_json((tmp_path / f"run{bits}" / "summary.json").read_text())
        assert summary["test_score"] > 0.5      # four classes of equal size: chance is 0.25
        lines = (tmp_path / f"run{bits}" / "metrics.jsonl").read_text().splitlines()
        sent[bits] = [json.loads(line)["sent_bytes_payload"] for line in lines]
    assert len(sent[8]) == 20 and [4 * one for one in sent[8]] == sent[32]


@pytest.fixture(scope="module")
def cora():
    """The archive of Cora, where the machine has real graphs."""
    folder = os.environ.get("HPCGNN_DATASETS")
    if folder is None:
        pytest.skip("HPCGNN_DATASETS names no folder with cora.npz")
    return Path(folder) / "cora.npz"


@pytest.mark.long      # tests/pyg compares losses with those of one process
def test_readmes_lines_train_pygs_model_distributed_with_the_same_loss_and_score(tmp_path, cora, request):
    """The lines as README prints them, beside a file called cora.npz, and once more on three ranks."""
    pytest.importorskip("torch_geometric", reason="the examples use PyTorch Geometric")
    shutil.copy(cora, tmp_path / "cora.npz")
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    lines = re.search(r"your own `cora.npz`,\n\n```sh\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)[1]
    alone, *distributed = lines.splitlines()
    words = alone.split()
    assert words[0] == "python" and len(distributed) == 2
    alone = subprocess.run(served(words[1:]), capture_output=True, text=True, cwd=tmp_path,
                           env=clean_environment(), timeout=300)
    assert alone.returncode == 0, alone.stderr
    for parts in (2, 3) if request.config.getoption("--all") else (2,):
        preprocess, train = (line.replace("-p2", f"-p{parts}").replace("--parts 2", f"--parts {parts}")
                             for line in distributed)
        assert run_parallel_command(1, hpcgnn(*preprocess.split()[1:]), tmp_path).status == 0
        ended = run_parallel_command(parts, [sys.executable, *train.partition(" python ")[2].split()], tmp_path)
        assert ended.status == 0, ended.stderr
        assert ended.stdout == alone.stdout


def test_readme_shows_the_lines_that_the_example_runs():
    readme, example = (ROOT / "README.md").read_text(), (ROOT / "examples" / "cora_distributed.py").read_text()
    shown = re.search(r"```diff\n(.*?)```", readme, re.DOTALL)[1].splitlines()
    assert len([line for line in shown if line.startswith("+")]) <= 5
    for line in (line[1:] for line in shown if line[0] in "+ "):
        assert line in example.splitlines()


def cells_of_the_notebook() -> list[dict]:
    notebook = json.loads((ROOT / "examples" / "notebook.ipynb").read_text())
    return [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]


def test_the_notebook_holds_cells_that_are_python_and_no_outputs():
    cells = cells_of_the_notebook()
    assert len(cells) > 5 and all(cell["outputs"] == [] and cell["execution_count"] is None for cell in cells)
    for cell in cells:
        compile("".join(cell["source"]), "cell", "exec")


@pytest.mark.long      # tests/library/test_notebook.py tests what its cells show
def test_the_notebook_runs_from_top_to_bottom(tmp_path):
    pytest.importorskip("torch_geometric", reason="the notebook trains a model of PyTorch Geometric")
    pytest.importorskip("matplotlib", reason="the notebook draws a figure")
    program = "\n\n".join("".join(cell["source"]) for cell in cells_of_the_notebook())
    (tmp_path / "cells.py").write_text(program + "\nassert run.test_score > 0.6, run.test_score\n")      # chance: 0.25
    ended = subprocess.run(served(["cells.py"]), capture_output=True, text=True, cwd=tmp_path,
                           env=clean_environment(), timeout=300)
    assert ended.returncode == 0, ended.stderr
    assert "chart-loss" in (tmp_path / "runs" / "notebook" / "report.html").read_text()


# What each script prints last; numbers are of fixed seeds, or checked by the script itself.
SCRIPTS = {
    "bit_tensor": r"153600 bytes of features became 14592, and their product 19456 instead of 153600",
    "bit_tiles": r"[1-9]\d* of \d+ tiles were zero and jumped",
    "adaptive_package": r"ideal (\d+) kB, adaptive-package \d+ kB, dense 256 kB, bitmap \d+ kB, csr \d+ kB, coo \d+ kB",
    "combination": r"2708 rows of 1433 codes became 64 exact sums each",
    "condense_edge": r"\d+ copies; (?P<first>\d+) bytes as they come, (?P<second>\d+) by METIS, "
                     r"(?P<last>\d+) condensed",
}


@pytest.mark.parametrize("name, line", [
    pytest.param(name, line, marks=() if name == "bit_tensor" else pytest.mark.long) for name, line in SCRIPTS.items()])
def test_a_script_of_a_part_runs_and_checks_itself(name, line, tmp_path):
    source = os.environ.get("PYTHONPATH")
    environment = {**clean_environment(), "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), source]))}
    ended = subprocess.run(served([ROOT / "examples" / f"{name}.py"]), capture_output=True, text=True,
                           cwd=tmp_path, env=environment, timeout=300)
    assert ended.returncode == 0, ended.stderr
    found = re.fullmatch(line, ended.stdout.splitlines()[-1])
    assert found
    if name == "condense_edge":
        assert int(found["first"]) > int(found["second"]) > int(found["last"])


def test_every_script_says_how_it_is_run_and_is_ten_lines_or_so():
    for path in (ROOT / "examples").glob("*.py"):
        source = path.read_text()
        assert f"python examples/{path.name}" in source or f"hpcgnn train shards/cora-p2 --model {path.stem}:" in source
        if path.stem in SCRIPTS:
            body = [line for line in source.splitlines()[1:] if line.strip() and "import" not in line]
            assert len(body) <= 12, path


@pytest.mark.long
def test_a_degree_aware_run_becomes_integers_that_answer_on_two_ranks(tmp_path):
    """The two shell examples, one after the other."""
    environment = {**clean_environment(), "HPCGNN": shlex.join(served(["-m", "hpcgnn"])), "EPOCHS": "4",
                   "HPCGNN_MPIRUN": f"{launcher()} -n 2"}
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    printed = ""
    for name in ("degree_aware.sh", "integer_inference.sh"):
        ended = subprocess.run(["bash", ROOT / "examples" / name, tmp_path / "out"], capture_output=True, text=True,
                               env=environment, timeout=900)
        assert ended.returncode == 0, ended.stderr
        printed += ended.stdout
    assert "chart-degrees" in (tmp_path / "out/run/report.html").read_text()
    assert (tmp_path / "out/predictions.h5").exists()
    assert "degree-aware" in printed and "peak memory" in printed
