"""A command reads each shard once, and checks its settings once."""

from __future__ import annotations

import pytest
from mpi4py import MPI
from training_setup import easy_graph, write_once

from hpcgnn.config import TrainConfig
from hpcgnn.shards import reader


@pytest.mark.parallel([1, 2])
def test_train_predict_quantize_and_infer_read_one_part_and_check_their_settings_once(hpcgnn, shared_path, monkeypatch):
    shards, run = write_once(MPI.COMM_WORLD, easy_graph(), shared_path / "shards"), shared_path / "run"
    seen, open_sealed, check = [], reader.open_sealed, TrainConfig.__post_init__
    monkeypatch.setattr(reader, "open_sealed", lambda path, *more, **named: seen.append(path.name) or open_sealed(
        path, *more, **named))
    monkeypatch.setattr(TrainConfig, "__post_init__", lambda config: seen.append("settings") or check(config))
    part, small = f"part-{MPI.COMM_WORLD.rank:04d}.h5", ("--epochs", 5, "--hidden", 8)
    for words in (("train", shards, "--out", run, *small), ("predict", run, shards), ("quantize", run, shards),
                  ("infer", run, shards, "--repeat", 1)):
        seen.clear()
        status, _, complaints = hpcgnn(*words)
        assert status == 0, complaints
        assert (seen.count(part), seen.count("settings")) == (1, 1), words
