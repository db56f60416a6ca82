"""The sum of ceilings counts an epoch's products, sums and passes; the peers' arrays are the shards' own graph."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from reference_partition import random_dataset

from hpcgnn.bench.environment import allocator_name, call_in_child, thread_environment, with_kept_memory, with_tcmalloc
from hpcgnn.bench.epoch import EpochSettings, Trained, complaint, score_line
from hpcgnn.bench.epoch_work import count_parts, epoch_ceiling, export_arrays, layer_products, layer_widths
from hpcgnn.bench.peers import epoch_loop
from hpcgnn.shards.schema import Provenance
from hpcgnn.shards.writer import Making, write_shards


@pytest.fixture
def dataset():
    return random_dataset(60, 300, seed=1, directed=True)


@pytest.mark.parametrize("num_parts", [1, 3])
def test_exported_arrays_are_the_source_graph(dataset, num_parts, tmp_path):
    shards = tmp_path / "shards"
    write_shards(dataset, np.arange(60, dtype=np.int32) % num_parts, shards, Making(num_parts, reorder="none"),
                 Provenance("edges:a.csv", "random", 0))
    assert count_parts(shards) == num_parts
    facts = export_arrays(shards, tmp_path / "arrays.npz")
    assert facts["num_features"] == dataset.num_features and facts["num_classes"] == dataset.num_classes
    with np.load(tmp_path / "arrays.npz") as arrays:
        for name in ("indptr", "indices", "labels", "train_mask", "val_mask", "test_mask"):
            np.testing.assert_array_equal(arrays[name], getattr(dataset, name), name)
        features = dataset.features if isinstance(dataset.features, np.ndarray) else dataset.features.toarray()
        np.testing.assert_array_equal(arrays["features"], features)


@pytest.mark.long      # a process that loads torch for it
def test_work_beside_a_training_is_done_in_a_child(tmp_path, dataset):
    write_shards(dataset, np.arange(60, dtype=np.int32) % 3, tmp_path, Making(3, reorder="none"),
                 Provenance("edges:a.csv", "random", 0))
    assert call_in_child(2, "count_parts", tmp_path) == 3


def test_layers_multiply_forward_and_backward_but_not_into_the_input():
    of_input = [(65536, 256, 256), (65536, 512, 0)]
    of_last = [(20480, 256, 80), (20480, 336, 0), (20480, 80, 256)]
    assert layer_products([128, 256, 40], per_layer=2) == of_input + of_last
    assert layer_products([8, 9], per_layer=1) == [(72, 8, 9), (72, 17, 0)]


def test_layers_sum_their_narrower_side():
    assert layer_widths([128, 256, 256, 40]) == [128, 256, 40, 256, 40]
    assert layer_widths([500, 256, 40]) == [256, 40, 256, 40]


def test_the_ceiling_of_an_epoch_has_three_parts(tmp_path, dataset):
    np.savez(tmp_path / "arrays.npz", indptr=dataset.indptr, indices=dataset.indices.astype(np.int32))
    for precision in ("fp32", "bf16"):
        seconds = epoch_ceiling(tmp_path / "arrays.npz", [5, 8, 3], "sage", precision)
        assert list(seconds) == ["products", "sums", "passes"] and min(seconds.values()) > 0


def test_a_contestants_environment_names_its_threads_and_allocator(monkeypatch):
    plain = thread_environment(3, {"LD_PRELOAD": "libother.so"})
    assert plain["OMP_NUM_THREADS"] == plain["OPENBLAS_NUM_THREADS"] == "3" and plain["OMP_WAIT_POLICY"] == "PASSIVE"
    assert allocator_name(plain) == "glibc" and allocator_name(with_kept_memory(plain)) == "glibc, memory kept"
    monkeypatch.setattr("hpcgnn.bench.environment.find_tcmalloc", lambda: "libtcmalloc.so.4")
    assert with_tcmalloc(plain)["LD_PRELOAD"] == "libtcmalloc.so.4:libother.so"
    assert allocator_name(with_tcmalloc(plain)) == "tcmalloc"
    monkeypatch.setattr("hpcgnn.bench.environment.find_tcmalloc", lambda: None)
    assert with_tcmalloc(plain) == plain


def test_a_failed_run_is_reported_by_its_own_sentence():
    assert complaint("warning\nhpcgnn: no shards\n---\n") == "hpcgnn: no shards"
    assert complaint("Traceback\nKeyError: 'x'\n\n") == "KeyError: 'x'" and complaint("") == "it said nothing"


class Rows(torch.nn.Module):
    """A peer's model whose logits are a multiple of its rows, whatever the graph."""

    def __init__(self):
        super().__init__()
        self.scale = torch.nn.Parameter(torch.ones(1))

    def forward(self, graph, rows):
        return rows * self.scale


def test_a_peers_score_is_that_of_the_test_nodes_at_the_first_best_validation_score(monkeypatch):
    scores = iter([(0.5, 0.9), (0.7, 0.2), (0.7, 0.8)])
    monkeypatch.setattr(epoch_loop, "evaluate", lambda *arguments: next(scores))
    rows, labels, mask = torch.eye(2), torch.tensor([0, 1]), torch.tensor([True, True])
    settings = EpochSettings("sage", 1, 1, epochs=5, seed=0, eval_every=2)
    assert [epoch for epoch in range(1, 6) if settings.is_evaluated(epoch)] == [2, 4, 5]
    seconds, score = epoch_loop.train(Rows(), None, rows, labels, {"train": mask}, settings)
    assert (len(seconds), score, list(scores)) == (5, 0.2, [])


def test_a_peer_is_scored_on_each_split_and_on_none_of_its_nodes_with_zero():
    logits = torch.tensor([[2.0, 1.0], [0.0, 1.0], [3.0, 1.0], [0.0, 1.0]])
    masks = {"val": torch.tensor([True, True, True, False]), "test": torch.tensor([False] * 4)}
    found = epoch_loop.evaluate(Rows(), None, logits, torch.tensor([0, 1, 1, 1]), masks)
    assert found == pytest.approx((2 / 3, 0.0))


def test_scores_of_several_rounds_have_their_standard_deviation():
    runs = {"ours": [Trained([1.0], 1, score, "glibc") for score in (0.5, 0.6)], "dgl": [Trained([1.0], 1, 0.4, "")]}
    assert score_line("case", runs) == ("case: test score in % at the best validation score, mean of the rounds: "
                                        "ours 55.00 ± 7.07, dgl 40.00")
