"""Training on shards that a faulty program sealed ends on all ranks with one sentence, and never hangs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from mpi4py import MPI
from resealing import attribute, put, reseal
from training_setup import easy_graph, on_rank_zero, write_once

from hpcgnn.config import TrainConfig
from hpcgnn.errors import CollectiveError
from hpcgnn.training.session import Session


def changed_last(value):
    def change(array):
        array[-1] = value
        return array

    return change


FAULTS = {
    "another validation node": ("graph.h5", attribute("num_val", lambda n: n - 1), "nodes in the splits of its parts"),
    "a name that is a path": ("graph.h5", attribute("name", "../../x"), "names its graph '../../x'"),
    "a source of -1": ("part-0000.h5", put("indices", changed_last(-1)), "indices from -1"),
    "importance that its peer does not hold": ("part-0000.h5", put("importance", lambda a: a * 0), "differ from the"),
    "a halo that its peer does not send": ("part-0000.h5", put("halo_offset", lambda a: a * 0), "halo_offset"),
}


@pytest.mark.parallel([2, 3])
@pytest.mark.parametrize("how", FAULTS)
def test_a_fault_is_one_sentence_on_all_ranks(shared_path, how):
    comm, (name, change, complaint) = MPI.COMM_WORLD, FAULTS[how]
    shards = write_once(comm, easy_graph(), shared_path / "shards")
    on_rank_zero(comm, lambda: reseal(shards / name, change))
    with pytest.raises(CollectiveError, match=complaint) as refused:
        Session.open(comm, shards, TrainConfig())
    assert "\n" not in str(refused.value)


@pytest.mark.parallel([1, 2])
def test_a_graph_without_features_is_refused(shared_path):
    dataset = replace(easy_graph(), features=np.empty((240, 0), np.float32))
    shards = write_once(MPI.COMM_WORLD, dataset, shared_path / "shards")
    with pytest.raises(CollectiveError, match="has no features to train on; run hpcgnn preprocess"):
        Session.open(MPI.COMM_WORLD, shards, TrainConfig())
