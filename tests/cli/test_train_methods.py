"""`hpcgnn train --method ...` from its flags to its files, for the methods that decide by themselves."""

from __future__ import annotations

import json

import pytest
from mpi4py import MPI
from training_setup import easy_graph, on_rank_zero, write_once

from hpcgnn.__main__ import main
from hpcgnn.registry import read_toml
from hpcgnn.training.run_folder import RunFolder

COMM = MPI.COMM_WORLD
FLAGS = ["--model", "sage", "--layers", "2", "--hidden", "8", "--epochs", "6", "--eval-every", "3"]
METHODS = [["sylvie", "--set", "widths=2,4,8", "--set", "percentiles=90,99", "--set", "descent_window=2"],
           ["adaqp", "--set", "period=3", "--set", "group_size=30", "--set", "lam=0.7", "--set", "solver=greedy"],
           ["joint", "--set", "predict=previous", "--set", "deterministic=true"],
           ["sancus", "--set", "staleness=2", "--set", "skip_change=0.2"], ["bns", "--set", "share=0.5"]]


@pytest.mark.parallel([1, 2])
def test_flags_of_every_method_reach_its_run(capsys, shared_path):
    shards = write_once(COMM, easy_graph(), shared_path / "shards")
    for method, *flags in METHODS:
        out = shared_path / method
        with pytest.raises(SystemExit) as stop:
            main(["train", str(shards), "--method", method, *FLAGS, *flags, "--out", str(out)])
        assert not stop.value.code, capsys.readouterr().err
        settings, summary, metrics = on_rank_zero(COMM, lambda out=out: (
            read_toml(out / "config.toml"), json.loads((out / "summary.json").read_text()),
            RunFolder(out).read_metrics()))
        for flag, value in zip(flags, [*flags[1:], None], strict=True):
            name, text = value.split("=") if flag == "--set" else (flag[2:].replace("-", "_"), value)
            if flag.startswith("--"):
                assert str(settings[name]).lower() == text
        assert (summary["method"], summary["epochs"], len(metrics)) == (method, 6, 6)
        assert 0 <= summary["synchronous_share"] <= 1
        assert {"mode", "base_bits", "ldr", "assign_seconds", "staleness", "blocked_seconds",
                "travel_seconds", "width_histogram"} <= set(metrics[0])
    assert settings["share"] == 0.5
    capsys.readouterr()
