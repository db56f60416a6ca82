"""What each rank of a run took, as preprocess and inspect read it."""

import json

import numpy as np
import pytest
from report.fake_runs import costs_by_rank, write_adaptive_run, write_run

from hpcgnn.errors import ConfigError
from hpcgnn.report.run_folder import read_measured


@pytest.fixture
def run(tmp_path):
    path = write_adaptive_run(tmp_path / "run", num_epochs=10, num_ranks=3)      # two evaluations
    text = (path / "config.toml").read_text()
    (path / "config.toml").write_text("layers = 2\n" + text.replace("[provenance]", '[provenance]\nshards = "/shards"'))
    return path


def test_seconds_are_medians_without_the_first_evaluation(run):
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    first = next(line for line in lines if line.get("by_rank"))
    first["by_rank"]["compute_seconds"] = [50.0, 60.0, 70.0]
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    found = read_measured(run)
    assert (found.shards, found.num_layers) == ("/shards", 2)
    np.testing.assert_allclose(found.seconds, costs_by_rank(0, 3)["compute_seconds"])


def test_a_run_that_does_not_say_it_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="alone does not say how long each rank computed: it had one rank"):
        read_measured(write_run(tmp_path / "alone"))


def test_no_time_is_refused(run):
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    for line in lines:
        if line.get("by_rank"):
            line["by_rank"]["compute_seconds"][1] = 0.0
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    with pytest.raises(ConfigError, match="rank 1 computed for 0 s per epoch"):
        read_measured(run)
