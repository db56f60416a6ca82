"""Which weights a run reports: the best on validation, never chosen by the test split, and when it stops early."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from mpi4py import MPI
from training_setup import SMALL, easy_graph, on_rank_zero, random_owner, train, write, write_once

from hpcgnn.config import TrainConfig
from hpcgnn.errors import CollectiveError
from hpcgnn.training.checkpoint import Progress, read_checkpoint
from hpcgnn.training.evaluate import Evaluation, evaluate
from hpcgnn.training.recipe import Recipe
from hpcgnn.training.run_folder import RunFolder
from hpcgnn.training.scores import own_score
from hpcgnn.training.session import Session
from hpcgnn.training.trainer import TrainingRun

NAN = math.nan


def evaluation(val_score, test_score=0.5, val_loss=1.0):
    return Evaluation(train_score=0.9, val_score=val_score, test_score=test_score, val_loss=val_loss)


@pytest.mark.parametrize("test_score", [0.0, 1.0, NAN])
def test_the_test_split_has_no_say(test_score):
    assert evaluation(0.7, test_score).is_better_than(evaluation(0.6, 0.9))
    assert not evaluation(0.6, test_score).is_better_than(evaluation(0.7, 0.1))
    assert not evaluation(0.6, test_score).is_better_than(evaluation(0.6, 0.1))


def test_equal_scores_are_decided_by_validation_loss():
    assert evaluation(0.6, val_loss=0.8).is_better_than(evaluation(0.6, val_loss=0.9))
    assert not evaluation(0.6, val_loss=0.9).is_better_than(evaluation(0.6, val_loss=0.9))
    assert not evaluation(0.6, val_loss=0.1).is_better_than(evaluation(0.7, val_loss=0.9))


def test_without_validation_nodes_the_last_evaluation_counts():
    progress = Progress()
    for epoch, test_score in ((1, 0.9), (2, 0.1)):
        progress.epoch = epoch
        assert progress.note(evaluation(NAN, test_score), has_validation=False)
    assert (progress.best_epoch, progress.best.test_score, progress.evaluations_since_best) == (2, 0.1, 0)


@pytest.mark.parametrize("prefers_low", [False, True])
@pytest.mark.parametrize("undefined", [NAN, math.inf, -math.inf])
def test_a_score_that_is_not_finite_is_no_improvement_and_never_the_best(undefined, prefers_low):
    progress, found = Progress(), []
    for epoch, val_score in enumerate((undefined, 0.4, undefined, 0.4, 0.3 if prefers_low else 0.5, undefined), 1):
        progress.epoch = epoch
        found.append(progress.note(evaluation(val_score), prefers_low))
    assert found == [False, True, False, False, True, False]
    assert (progress.best_epoch, progress.evaluations_since_best) == (5, 1)


@pytest.mark.parallel([1, 2])
def test_a_run_in_which_no_score_is_a_number_ends_in_a_sentence_and_another_score_goes_on(shared_path, shards):
    comm = MPI.COMM_WORLD

    def session(score):
        config = TrainConfig.of(**{**SMALL, "early_stop": 2, "epochs": 6})
        return Session.open(comm, shards, config, recipe=Recipe(score=score))

    nan = own_score(lambda outputs, labels: NAN, prefers_low=True)
    folder = RunFolder(shared_path / "run")
    on_rank_zero(comm, lambda: folder.create(overwrite=False))
    with pytest.raises(CollectiveError, match="score <lambda> was not finite in any of 2 evaluations"):
        TrainingRun(session(nan), folder).execute()
    kept = on_rank_zero(comm, lambda: read_checkpoint(folder.checkpoint))
    assert (kept.progress.epoch, kept.progress.best) == (4, None)
    summary = TrainingRun(session(None), folder, kept).execute()
    assert summary["results"][0]["epochs"] == 6 and summary["results"][0]["val_score"] > 0.5


def test_progress_keeps_the_best_of_each_seed_and_starts_the_next_afresh():
    progress = Progress()
    for epoch, val_score in ((2, 0.4), (4, 0.8), (6, 0.6), (8, 0.7)):
        progress.epoch = epoch
        progress.note(evaluation(val_score, test_score=val_score / 2))
    assert (progress.best_epoch, progress.evaluations_since_best) == (4, 2)
    progress.finish_seed(11)
    assert progress.finished == [{"seed": 11, "epochs": 8, "best_epoch": 4, "train_score": 0.9, "val_score": 0.8,
                                  "test_score": 0.4, "val_loss": 1.0}]
    assert progress == Progress(seed_index=1, finished=progress.finished)


@pytest.mark.parallel([1, 2, 3])
def test_a_run_stops_after_that_many_evaluations_without_a_better_one(shared_path, shards):
    comm = MPI.COMM_WORLD
    # At learning rate 0 the first evaluation, after two epochs, stays the best.
    summary, metrics, _ = train(comm, shards, shared_path / "run", lr=0.0, epochs=50, eval_every=2, early_stop=3)
    assert len(metrics) == 8
    assert [(result["best_epoch"], result["epochs"]) for result in summary["results"]] == [(2, 8)]


@pytest.mark.parallel([1, 2])
def test_the_summary_reports_the_epoch_of_the_best_validation_score(shared_path):
    comm = MPI.COMM_WORLD
    shards = write_once(comm, easy_graph(spec="synthetic:nodes=240,mean_degree=4,classes=4,features=12,signal=1"),
                        shared_path / "shards")
    summary, metrics, run = train(comm, shards, shared_path / "run", epochs=12, eval_every=1, lr=0.15)
    best = max(metrics, key=lambda record: (record["val_score"], -record["val_loss"]))
    (result,) = summary["results"]
    assert best["epoch"] < 12
    assert (result["best_epoch"], result["val_score"], result["test_score"]) == (
        best["epoch"], best["val_score"], best["test_score"])
    assert summary["test_score"] == best["test_score"]
    run.learner.model.load_state_dict(run.learner.best_model)
    again = evaluate(comm, run.learner.model, run.session.graph, run.session.objective, run.session.score)
    assert again.test_score == best["test_score"]
    stored = on_rank_zero(comm, lambda: read_checkpoint(shared_path / "run/checkpoint.h5").best_model)
    assert all(torch.equal(stored[name], run.learner.best_model[name]) for name in stored)


@pytest.mark.parallel([1, 2])
def test_a_graph_without_validation_nodes_reports_the_last_epoch(shared_path):
    comm = MPI.COMM_WORLD
    dataset = easy_graph()
    dataset = replace(dataset, val_mask=np.zeros_like(dataset.val_mask)).check()
    shards = write_once(comm, dataset, shared_path / "shards")
    summary, metrics, _ = train(comm, shards, shared_path / "run", early_stop=2)
    assert len(metrics) == SMALL["epochs"]
    assert metrics[-1]["val_score"] is None
    stored = on_rank_zero(comm, lambda: json.loads((shared_path / "run/summary.json").read_text()))
    assert stored["val_score"] is None
    assert summary["results"][0]["best_epoch"] == SMALL["epochs"]
    assert summary["test_score"] == metrics[-1]["test_score"]


@pytest.mark.parallel([2])
def test_labels_of_test_nodes_change_no_weight_and_no_choice(shared_path):
    comm = MPI.COMM_WORLD
    dataset = easy_graph()
    owner = random_owner(dataset, comm.size)
    labels = np.where(dataset.test_mask, 0, dataset.labels)
    found = []
    for name, variant in (("true", dataset), ("hidden", replace(dataset, labels=labels).check())):
        shards = on_rank_zero(comm, lambda name=name, variant=variant: write(
            variant, owner, comm.size, shared_path / f"shards-{name}"))
        summary, metrics, run = train(comm, shards, shared_path / name)
        found.append((summary["val_score"], summary["results"][0]["best_epoch"], [r["loss"] for r in metrics],
                      [tensor.tolist() for tensor in run.learner.best_model.values()]))
    assert found[0] == found[1]
