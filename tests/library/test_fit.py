"""hpcgnn.fit trains as `hpcgnn train` does, with what a program brings: model, loss, score, optimizer and more."""

from __future__ import annotations

import copy
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext

import numpy as np
import pytest
import torch
import torch.nn.utils.prune
from library.conftest import Stop
from mpi4py import MPI
from training_setup import SMALL, easy_graph, losses, train, without_seconds

import hpcgnn
from hpcgnn.errors import CollectiveError, ConfigError, Interrupted, TrainingError
from hpcgnn.training.scores import own_score

COMM = MPI.COMM_WORLD
RUN = {"epochs": 6, "eval_every": 2, "checkpoint_every": 6}


class Two(torch.nn.Module):
    """Two layers of a linear map of a node's row and the mean of its neighbors'."""

    def __init__(self, in_dim: int, out_dim: int):
        super().__init__()
        self.first, self.last = torch.nn.Linear(2 * in_dim, 8), torch.nn.Linear(16, out_dim)

    @staticmethod
    def layer(linear, graph, h):
        return linear(torch.cat([h, graph.aggregate(graph.halo(h), "mean")], dim=1))

    def forward(self, graph, x):
        return self.layer(self.last, graph, torch.relu(self.layer(self.first, graph, x)))


class Closure(torch.optim.SGD):
    def step(self, closure):
        return super().step(closure)


def two(graph: hpcgnn.Graph, seed: int = 0) -> Two:
    torch.manual_seed(seed)
    return Two(graph.num_features, graph.num_classes)


@pytest.fixture
def fit(graph, shared_path):
    """fit(model=two(graph), out="run", **more): a short training, whose folder is named."""
    def train_it(model=None, out="run", **more):
        return hpcgnn.fit(two(graph) if model is None else model, graph, out=shared_path / out, **{**RUN, **more})
    return train_it


@pytest.mark.parallel([1, 2])
def test_a_named_model_trains_bit_for_bit_as_from_the_shell(fit, graph, shared_path):
    settings = {**SMALL, "epochs": 4, "method": "uniform", "bits": 2}
    _, expected, _ = train(COMM, graph.shards, shared_path / "shell", **settings)
    run = fit(settings.pop("model"), out="fit", **settings)
    assert without_seconds(run.metrics) == without_seconds(expected)
    assert run.evaluate().test_score == run.test_score


@pytest.mark.parallel([1, 2])
def test_ranks_begin_with_the_weights_of_rank_0_and_end_with_the_best_ones(fit, graph):
    model, first = two(graph, seed=COMM.rank), two(graph, seed=0)
    run = fit(model)
    again = fit(first, out="again")
    assert without_seconds(run.metrics) == without_seconds(again.metrics)
    for name, tensor in run.model.state_dict().items():
        assert torch.equal(model.state_dict()[name], tensor) and torch.equal(first.state_dict()[name], tensor)


@pytest.mark.parallel([1, 3])
@pytest.mark.parametrize("reduction", ["none", "mean"])
def test_an_own_loss_of_rows_or_of_their_mean_is_the_built_in_one(fit, reduction):
    built_in = fit(out="built-in")
    own = fit(out="own", loss=lambda outputs, labels: torch.nn.functional.cross_entropy(outputs, labels,
                                                                                    reduction=reduction))
    np.testing.assert_allclose(losses(own.metrics), losses(built_in.metrics), rtol=1e-5)


def test_a_loss_of_another_shape_is_refused(fit):
    with pytest.raises(hpcgnn.HpcgnnError, match=r"the loss gives values of shape \(144, 4\) for 144 rows"):
        fit(loss=lambda outputs, labels: outputs)


@pytest.mark.parallel([1, 3])
def test_an_own_score_sees_the_rows_of_all_ranks_once(fit):
    def error_rate(outputs: torch.Tensor, labels: torch.Tensor) -> float:
        return (outputs.argmax(dim=1) != labels).double().mean()

    run = fit(out="own", score=error_rate, prefers_low=True)
    accuracy = fit(out="accuracy")
    found = [1 - record["val_score"] for record in run.metrics if "val_score" in record]
    np.testing.assert_allclose(found, [record["val_score"] for record in accuracy.metrics if "val_score" in record])
    assert run.summary["score_name"] == "error_rate"
    assert run.test_score == pytest.approx(1 - accuracy.test_score)


@pytest.mark.parallel([1, 2, 3])
def test_an_own_score_sees_rows_in_the_order_of_the_source(fit):
    """So it may look up what it knows of each node."""
    dataset, seen = easy_graph(), []
    fit(score=lambda outputs, labels: seen.append(labels.numpy()) or 0.5)
    masks = dataset.train_mask, dataset.val_mask, dataset.test_mask
    for found, mask in zip(seen[-3:], masks, strict=False):      # rank 0 calls it
        np.testing.assert_array_equal(found, dataset.labels[mask.astype(bool)])
    assert len(seen) >= 3 or COMM.rank


def test_an_own_score_of_no_row_is_nan():
    score = own_score(lambda outputs, labels: 1.0, prefers_low=False)
    assert np.isnan(score(MPI.COMM_SELF, torch.ones(0, 2), torch.ones(0)))


@pytest.mark.parallel([1, 2])
def test_torchs_adam_takes_the_steps_of_the_built_in_one(fit):
    built_in = fit(out="built-in", lr=0.02)
    own = fit(out="own", optimizer=lambda parameters: torch.optim.Adam(parameters, lr=0.02))
    np.testing.assert_allclose(losses(own.metrics), losses(built_in.metrics), rtol=1e-4)


def schedules() -> dict:
    """By name, functions that make a schedule; of the plateau's, one that is reached within a few evaluations."""
    of_torch = torch.optim.lr_scheduler
    return {"cosine": lambda it: of_torch.CosineAnnealingLR(it, 6),
            "warm-up": lambda it: of_torch.SequentialLR(it, [of_torch.LinearLR(it, 0.1, total_iters=2),
                                                            of_torch.ExponentialLR(it, 0.9)], [2]),
            "lambda": lambda it: of_torch.LambdaLR(it, lambda epoch: 0.8 ** epoch),
            "plateau": lambda it: of_torch.ReduceLROnPlateau(it, factor=0.5, patience=0, threshold=0.2)}


@pytest.mark.covering(1)
@pytest.mark.parallel([1, 2])
@pytest.mark.parametrize("name, optimizer", [
    ("cosine", None), ("plateau", None), ("warm-up", lambda it: torch.optim.SGD(it, lr=0.3, momentum=0.9)),
    ("lambda", lambda it: torch.optim.AdamW(it, lr=0.05))])
def test_a_stopped_run_with_schedule_and_optimizer_goes_on_bit_for_bit(fit, graph, name, optimizer):
    brought = {"schedule": schedules()[name], "optimizer": optimizer, "eval_every": 1}
    whole = fit(out="whole", **brought)
    with pytest.raises(Interrupted):
        fit(out="stopped", callbacks=[Stop(3)], **brought)
    model = two(graph, seed=5)      # what it holds has no say: the checkpoint does
    resumed = fit(model, out="stopped", resume=True, **brought)
    assert without_seconds(resumed.metrics) == without_seconds(whole.metrics)
    assert len({record["lr"] for record in whole.metrics}) > 1


class Counting(torch.optim.SGD):
    """Moves a number in its groups, as schedule-free optimizers do."""

    def step(self, closure=None):
        for group in self.param_groups:
            group["lr"] *= 0.8
        super().step(closure)


@pytest.mark.parallel([1, 2])
def test_what_an_optimizer_keeps_in_its_groups_goes_on_too(fit):
    brought = {"optimizer": lambda it: Counting(it, lr=0.5)}
    whole = fit(out="whole", **brought)
    with pytest.raises(Interrupted):
        fit(out="stopped", callbacks=[Stop(2)], **brought)
    resumed = fit(out="stopped", resume=True, **brought)
    assert without_seconds(resumed.metrics) == without_seconds(whole.metrics)


@pytest.mark.parametrize("first, second, complaint", [
    ({"optimizer": torch.optim.SGD}, {}, "with torch.optim.sgd.SGD and can't go on with the built-in Adam"),
    ({}, {"optimizer": torch.optim.Adam}, "with the built-in Adam and can't go on with torch.optim.adam.Adam"),
    ({"schedule": schedules()["cosine"]}, {}, "with a schedule of the learning rate and can't go on with none"),
    ({}, {"schedule": schedules()["cosine"]}, "with no schedule of the learning rate and can't go on with one"),
])
def test_a_run_goes_on_with_what_it_was_begun_with_only(fit, first, second, complaint):
    fit(**first)
    with pytest.raises(CollectiveError, match=complaint):
        fit(resume=True, **second, epochs=20)


def test_a_plateau_of_the_highest_value_is_one_of_the_score(fit):
    """The score rises in every epoch, so a schedule that looked at the falling loss would lower the rate."""
    run = fit(lr=0.02, eval_every=1, epochs=8,
                     score=lambda outputs, labels: len(labels) + next(steps),
                     schedule=lambda it: torch.optim.lr_scheduler.ReduceLROnPlateau(it, mode="max", patience=0))
    assert {record["lr"] for record in run.metrics} == {0.02}


steps = iter(range(1000))


@pytest.mark.parallel([1, 2])
def test_a_score_that_fails_is_named_on_all_ranks(fit):
    with pytest.raises(CollectiveError, match="the score macro fails: KeyError: 'no such class'"):
        fit(score=macro)


def macro(outputs, labels):
    raise KeyError("no such class")


def test_weights_of_a_part_called_module_are_saved_too(fit, shared_path):
    class Inner(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.module, self.last = torch.nn.Linear(12, 8), torch.nn.Linear(8, 4)

        def forward(self, graph, x):
            return self.last(torch.relu(self.module(x)))

    fit(Inner()).save(shared_path / "model.pt")
    found = torch.load(shared_path / "model.pt", weights_only=True)
    assert sorted(found) == ["last.bias", "last.weight", "module.bias", "module.weight"]


@pytest.mark.parallel([1, 2])
def test_batch_statistics_of_one_ranks_rows_are_refused(fit):
    model = torch.nn.Sequential()
    model.norm = torch.nn.BatchNorm1d(12)
    model.forward = lambda graph, x: model.norm(x)[:, :4]
    if COMM.size == 1:
        fit(model)
    else:
        with pytest.raises(CollectiveError, match="norm is a BatchNorm1d, and its statistics would cover one rank"):
            fit(model)


def made_where(context, graph):
    with context:
        return two(graph)


@pytest.mark.parametrize("model, complaint", [
    (lambda graph: torch.nn.Linear, "the function that makes the model fails: "),
    (lambda graph: dict, "the function that makes the model gives a dict"),
    (lambda graph: 3, "model must be a torch.nn.Module, a function .* found a int"),
    (lambda graph: made_where(torch.device("meta"), graph),
     "the weights of Two are on torch's device meta, without values"),
    (lambda graph: made_where(torch.inference_mode(), graph),
     r"made inside torch\.inference_mode, so they can't be trained")])
def test_what_can_not_be_trained_as_a_model_is_refused(graph, fit, model, complaint):
    with pytest.raises(CollectiveError, match=complaint):
        fit(model(graph))


def test_rates_are_those_of_torch_alone(fit):
    run = fit(lr=0.02, schedule=schedules()["cosine"])
    alone = torch.optim.SGD([torch.zeros(1)], lr=0.02)
    schedule, expected = schedules()["cosine"](alone), []
    for _ in range(RUN["epochs"]):
        expected.append(alone.param_groups[0]["lr"])
        alone.step()
        schedule.step()
    np.testing.assert_allclose([record["lr"] for record in run.metrics], expected)


def test_a_rate_of_zero_moves_nothing(fit, graph):
    model = two(graph)
    before = copy.deepcopy(model.state_dict())
    fit(model, schedule=lambda it: torch.optim.lr_scheduler.LambdaLR(it, lambda epoch: 0.0))
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


def test_frozen_weights_stay(fit, graph):
    model = two(graph)
    model.first.weight.requires_grad_(False)
    before = copy.deepcopy(model.state_dict())
    fit(model, weight_decay=0.1)
    moved = {name: not torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items()}
    assert moved == {"first.weight": False, "first.bias": True, "last.weight": True, "last.bias": True}


class Notes(hpcgnn.Callback):
    """Notes the moments of a run, and ends it in an epoch."""

    def __init__(self, last: int = 0, rank: int = 0):
        self.moments, self.last, self.rank = [], last, rank

    def on_start(self, run):
        self.moments.append(("start", run.progress.epoch))

    def on_epoch_end(self, run, record):
        self.moments.append(("epoch", record["epoch"]))
        return record["epoch"] == self.last and run.comm.rank == self.rank

    def on_evaluation(self, run, evaluation):
        self.moments.append(("evaluation", 0 <= evaluation.val_score <= 1))

    def on_checkpoint(self, run, path):
        assert run.comm.rank or path.exists()
        self.moments.append(("checkpoint", run.progress.epoch))

    def on_end(self, run, summary):
        self.moments.append(("end", run.progress.epoch))

    def on_failure(self, run, error):
        self.moments.append(("failure", type(error).__name__))


@pytest.mark.parallel([1, 2])
def test_callbacks_see_the_moments_of_a_run_and_any_rank_may_end_it(fit):
    notes = Notes(last=6, rank=COMM.size - 1)
    run = fit(callbacks=[notes], checkpoint_every=5, epochs=8)
    assert notes.moments == [
        ("start", 0), ("epoch", 1), ("epoch", 2), ("evaluation", True), ("epoch", 3), ("epoch", 4),
        ("evaluation", True), ("epoch", 5), ("checkpoint", 5), ("epoch", 6), ("evaluation", True), ("checkpoint", 6),
        ("end", 6)]
    assert len(run.metrics) == 6 and run.summary["results"][0]["epochs"] == 6


class At(hpcgnn.Callback):
    """Calls a function of the model at the end of the third epoch, and returns what it gives."""

    def __init__(self, change):
        self.change = change

    def on_epoch_end(self, run, record):
        return self.change(run.model) if record["epoch"] == 3 else None


@torch.no_grad()
def halve(model):
    for weight in model.parameters():
        weight.mul_(0.5)


def halve_elsewhere(model):
    for weight in model.parameters():
        weight.data = weight.data * 0.5


@pytest.mark.parallel([1, 2])
@pytest.mark.parametrize("optimizer", [None, torch.optim.Adam])
def test_a_callback_may_give_weights_other_memory(fit, optimizer):
    """As torch.nn.utils.vector_to_parameters does, and a copy of averaged weights."""
    runs = [fit(out=change.__name__, optimizer=optimizer, callbacks=At(change)) for change in (halve, halve_elsewhere)]
    assert without_seconds(runs[0].metrics) == without_seconds(runs[1].metrics)


def another_bias(model):
    model.last.bias = torch.nn.Parameter(model.last.bias.detach().clone())


@pytest.mark.parallel([1, 2])
@pytest.mark.parametrize("change, complaint", [
    (another_bias, "weight last.bias of the model is another object since the training began"),
    (lambda model: torch.nn.utils.prune.l1_unstructured(model.first, "weight", 0.5),
     "weight first.weight of the model"),
    (lambda model: model.add_module("more", torch.nn.Linear(2, 2)), "weight more.weight of the model is new"),
    (lambda model: "go on", r"At.on_epoch_end returned .*; it must return True to end the training")])
def test_what_a_callback_may_not_do_is_named(fit, change, complaint):
    with pytest.raises(TrainingError, match=complaint):
        fit(callbacks=[At(change)])


def test_a_run_is_found_from_another_folder(graph, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run = hpcgnn.fit(two(graph), graph, out="run", **RUN)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir("elsewhere")
    assert len(run.metrics) == len(run.to_pandas()) == RUN["epochs"]


@pytest.mark.parallel([1, 2])
def test_callbacks_are_told_of_a_run_that_is_stopped(fit):
    notes = Notes()
    with pytest.raises(Interrupted):
        fit(callbacks=[notes, Stop(1)])
    assert notes.moments[-1] == ("failure", "Interrupted") and ("end", 2) not in notes.moments


def test_each_seed_has_a_model_of_its_own(fit, graph):
    run = fit(lambda: Two(graph.num_features, graph.num_classes), repeat=2)
    first = [record["loss"] for record in run.metrics if record["epoch"] == 1]
    assert run.summary["seeds"] == [0, 1] and first[0] != first[1]


@pytest.mark.parallel([1, 3])
def test_predictions_are_of_all_nodes_in_the_order_of_the_source_and_have_the_score(fit):
    run = fit()
    answers, dataset = run.predict(), easy_graph()
    assert (answers is None) == (COMM.rank > 0)
    if answers is not None:
        np.testing.assert_array_equal(answers.node_id, np.arange(dataset.num_nodes))
        right = (answers.prediction == dataset.labels)[dataset.test_mask]
        assert right.mean() == pytest.approx(run.test_score)
    assert len(run.predict(gather=False)) == run.session.graph.num_inner


def test_weights_are_saved_by_name(fit, graph, shared_path):
    model = two(graph)
    fit(model).save(shared_path / "model.pt")
    loaded = torch.load(shared_path / "model.pt", weights_only=True)
    assert loaded.keys() == model.state_dict().keys()
    assert all(torch.equal(loaded[name], tensor) for name, tensor in model.state_dict().items())


@pytest.mark.parallel([1, 2])
@pytest.mark.parametrize("brought, complaint", [
    ({"hidden": 8}, "hidden has no effect if the model is given; leave it out"),
    ({"repeat": 2}, "repeat trains models of several seeds, and one is given; give a function that makes it"),
    ({"optimizer": 3}, "optimizer must be a function that makes one, such as lambda it: ..; found a int"),
    ({"optimizer": "sgd"}, "optimizer must be one of adam, adamw, found 'sgd'"),
    ({"optimizer": torch.optim.AdamW, "lr": 0.1}, "lr has no effect if an optimizer is given; leave it out"),
    ({"optimizer": lambda it: torch.optim.SGD(it[:1], lr=1)}, "the optimizer does not hold first.bias"),
    ({"optimizer": lambda it: it}, "optimizer must be a function that makes a torch.optim.Optimizer from parameters"),
    ({"optimizer": torch.optim.LBFGS}, "optimizer LBFGS computes the loss several times per step"),
    ({"optimizer": lambda it: Closure(it, lr=0.1)}, "Closure.step can't be called without arguments (missing"),
    ({"optimizer": torch.optim.AdamW, "quantize": "uniform"}, "quantize trains steps and widths at rates of their own"),
    ({"schedule": lambda it: None}, "schedule must be a function that makes one of torch's schedules"),
    ({"schedule": lambda it: torch.optim.lr_scheduler.OneCycleLR(it, 0.1, total_steps=20)},
     "OneCycleLR cycles the momentum, and the built-in Adam's stays"),
    ({"callbacks": [print]}, "callbacks must be hpcgnn.Callback's, found a builtin_function_or_method"),
    ({"callbacks": None}, "callbacks must be hpcgnn.Callback's, found a NoneType"),
    ({"loss": "mse"}, "loss mse does not fit these labels, which are single-label; use cross_entropy"),
    ({"loss": "own"}, "this run's loss came from a program, and only that program has it"),
    ({"score": "r2"}, "score r2 does not fit synthetic, which is single-label; use accuracy"),
    ({"prefers_low": True}, "prefers_low is for a score of your own; leave it out"),
    ({"epoch": 3}, "unknown setting 'epoch' in the flags; did you mean 'epochs'?"),
])
def test_what_can_t_be_done_is_refused_on_all_ranks_before_the_folder_is_made(fit, shared_path, brought, complaint):
    with pytest.raises(CollectiveError) as refused:
        fit(out="refused", **brought)
    assert complaint in str(refused.value)
    COMM.Barrier()      # rank 0 removes what its lock has made
    assert not (shared_path / "refused").exists()


def test_a_folder_in_place_of_a_graph_is_refused(graph):
    with pytest.raises(ConfigError, match=r"graph must be what hpcgnn\.open\(SHARDS\) returns, found a str"):
        hpcgnn.fit(two(graph), "shards/mine")


@pytest.mark.parallel(2)
def test_a_model_that_differs_between_ranks_is_refused(fit, graph):
    with pytest.raises(CollectiveError, match=r"settings differ between the ranks: model is .*Linear on rank 0 and "
                                              r".*Two on rank 1"):
        fit(two(graph) if COMM.rank else torch.nn.Linear(2, 2))


@contextmanager
def default_of(setter, value, usual):
    setter(value)
    try:
        yield
    finally:
        setter(usual)


def test_a_program_goes_on_with_its_own_draws(fit):
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    fit("gcn")
    assert torch.equal(torch.rand(3), expected)


STATES = {"no_grad": torch.no_grad, "autocast": lambda: torch.autocast("cpu", dtype=torch.bfloat16),
          "inference_mode": torch.inference_mode,
          "float64": lambda: default_of(torch.set_default_dtype, torch.float64, torch.float32),
          "device": lambda: default_of(torch.set_default_device, "meta", None)}


@pytest.mark.covering(1)
@pytest.mark.parallel([1, 2])
@pytest.mark.parametrize("state", STATES)
def test_the_state_of_torch_that_the_caller_has_set_changes_nothing(fit, graph, state):
    expected = fit(lambda: two(graph), out="usual")
    with STATES[state]():
        run = fit(lambda: two(graph))
        answers, evaluation = run.predict(gather=False), run.evaluate()
        assert torch.get_default_dtype() == (torch.float64 if state == "float64" else torch.float32)
        assert torch.is_inference_mode_enabled() == (state == "inference_mode")
    assert without_seconds(run.metrics) == without_seconds(expected.metrics)
    np.testing.assert_array_equal(answers.logits, expected.predict(gather=False).logits)
    assert evaluation == expected.evaluate()


class Rounding(torch.nn.Module):
    """A model whose maps are computed in 16 bits by autocast, in a block of its own in each pass."""

    def __init__(self, num_features, num_classes):
        super().__init__()
        self.first, self.last = torch.nn.Linear(num_features, 8), torch.nn.Linear(8, num_classes)

    def forward(self, x, edge_index):
        with torch.autocast("cpu", dtype=torch.bfloat16, cache_enabled=True):
            return self.last(self.first(x).relu()).float()


@pytest.mark.parametrize("state", ["usual", "autocast"])
def test_blocks_of_autocast_in_a_model_read_the_weights_of_their_pass(graph, tmp_path, state):
    """Weights that autocast has cast are kept until its outermost block ends, which must not be around a training."""
    torch.manual_seed(0)
    model = Rounding(graph.num_features, graph.num_classes)
    before = [weight.clone() for weight in model.parameters()]
    with STATES[state]() if state in STATES else nullcontext():
        run = hpcgnn.fit(model, graph, epochs=4, lr=0.05, out=tmp_path / "run")
        assert torch.is_autocast_enabled("cpu") == (state == "autocast")
    assert not any(torch.equal(weight, old) for weight, old in zip(model.parameters(), before, strict=True))
    assert len({round(record["loss"], 4) for record in run.metrics}) == 4


class Modes(hpcgnn.Callback):
    """Notes how many modes of Python see every operation of torch."""

    def __init__(self):
        self.seen = set()

    def on_epoch_end(self, run, record):
        self.seen.add(torch._C._len_torch_function_stack())


def test_no_mode_of_python_stands_between_training_and_torch(fit, graph):
    """A context of a device would take half of the host's time of an epoch on a GPU."""
    modes = Modes()
    fit(lambda: two(graph), callbacks=[modes])
    assert modes.seen == {0}


class Float(torch.nn.Module):
    """A model on LocalGraph whose weights are float32, whatever its rows are."""

    def __init__(self, num_features, num_classes):
        super().__init__()
        self.map = torch.nn.Linear(num_features, num_classes)

    def forward(self, graph, x):
        return self.map(graph.aggregate(graph.halo(x), "mean"))


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_weights_of_another_type_than_the_rows_are_named(fit, graph, precision):
    with pytest.raises(CollectiveError, match=r"Float can't compute on rows of b?float16, .* precision fp32"):
        fit(lambda: Float(graph.num_features, graph.num_classes), precision=precision)


def test_another_thread_than_the_main_one_trains(graph, tmp_path):
    with ThreadPoolExecutor(1) as pool:
        run = pool.submit(hpcgnn.fit, "gcn", graph, out=tmp_path / "run", epochs=2).result()
    assert len(run.metrics) == 2


def test_threads_that_train_at_once_train_as_one_after_another(fit, graph, tmp_path):
    """The first thread is held between the seeding of torch and its draws, while the second would seed torch, too."""
    is_seeded, end = threading.Event(), threading.Event()

    def held():
        is_seeded.set()
        end.wait(1)
        return Two(graph.num_features, graph.num_classes)

    alone = fit(lambda: Two(graph.num_features, graph.num_classes), out="alone")
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(fit, held, out="first")
        is_seeded.wait()
        second = pool.submit(hpcgnn.fit, "gcn", graph, out=tmp_path / "second", seed=1, epochs=1)
        second.add_done_callback(lambda _: end.set())
    np.testing.assert_array_equal(losses(first.result().metrics), losses(alone.metrics))


class Halving(torch.optim.SGD):
    """Halves its rate whenever its gradients are cleared, or keeps them."""

    keeps = False

    def zero_grad(self, set_to_none=True):
        if not self.keeps:
            self.param_groups[0]["lr"] /= 2
            super().zero_grad(set_to_none)


@pytest.mark.parallel([1, 2])
def test_an_optimizers_own_zero_grad_is_called_before_each_step(fit, monkeypatch):
    def losses_with(kind, name, rate):
        halving = None if kind is Halving else lambda it: torch.optim.lr_scheduler.ExponentialLR(it, 0.5)
        return losses(fit(out=name, schedule=halving, optimizer=lambda parameters: kind(parameters, lr=rate)).metrics)

    np.testing.assert_allclose(losses_with(Halving, "own", 0.8), losses_with(torch.optim.SGD, "plain", 0.4), rtol=1e-6)
    monkeypatch.setattr(Halving, "keeps", True)
    with pytest.raises(TrainingError, match=r"Halving\.zero_grad keeps gradients of earlier steps"):
        losses_with(Halving, "kept", 0.4)


def test_a_schedule_of_fewer_steps_than_epochs_is_named(fit):
    with pytest.raises(TrainingError, match=r"OneCycleLR can't step any more .*as many steps as epochs"):
        fit(optimizer=torch.optim.SGD,
                   schedule=lambda it: torch.optim.lr_scheduler.OneCycleLR(it, 0.1, total_steps=2))


@pytest.mark.parallel([2])
def test_ranks_without_a_shared_disk_resume(graph, shared_path, monkeypatch):
    """A relative path in working folders of each rank's own stands for disks of their own."""
    own = shared_path / f"node-{COMM.rank}"
    own.mkdir()
    monkeypatch.chdir(own)
    settings = {"hidden": 8, "layers": 2, "eval_every": 2}
    hpcgnn.fit("gcn", graph, out="run", epochs=2, **settings)
    resumed = hpcgnn.fit("gcn", graph, out="run", epochs=4, resume=True, **settings)
    whole = hpcgnn.fit("gcn", graph, out="whole", epochs=4, **settings)
    assert COMM.rank or without_seconds(resumed.metrics) == without_seconds(whole.metrics)
    assert (own / "run/checkpoint.h5").exists() == (COMM.rank == 0)
