"""The examples of README.md run and do what they say."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from parallel_run import hpcgnn, run_parallel_command

ROOT = Path(__file__).resolve().parents[1]
GRAPH = "synthetic:nodes=3000,mean_degree=10,classes=4,features=32,homophily=0.9"


def test_a_pyg_model_of_ones_own_learns_on_two_ranks(tmp_path):
    pytest.importorskip("torch_geometric", reason="the example uses PyTorch Geometric")
    command = hpcgnn("preprocess", GRAPH, "--out", "shards", "--parts", 2)
    assert run_parallel_command(1, command, tmp_path).status == 0
    example = [command[0], ROOT / "examples" / "own_model.py", "shards", 20]
    ended = run_parallel_command(2, example, tmp_path)
    scores = [float(score) for score in re.findall(r"test ([\d.]+)", ended.stdout)]
    assert ended.status == 0, ended.stderr
    assert len(scores) == 2 and scores[-1] > 0.5    # four classes of equal size: chance is 0.25


def test_readme_shows_the_layer_that_the_example_runs():
    readme, example = (ROOT / "README.md").read_text(), (ROOT / "examples" / "own_model.py").read_text()
    call = "return convolution((h_all, h_all[:graph.num_inner]), graph.edge_index)"
    assert call in readme and call in example
