"""The trainer, from top to bottom: one epoch, then a run over epochs and seeds with evaluations and checkpoints.

All ranks call every function together. A run trains on a Session, training changes a Learner, and rank 0 decides each
epoch's EpochPlan with a Controller.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

import torch
from mpi4py import MPI
from torch import nn

from hpcgnn.config import NODES, TrainConfig, settings_of
from hpcgnn.errors import CollectiveError, Interrupted, TrainingError
from hpcgnn.graph.local_graph import LocalGraph
from hpcgnn.methods.controller import Decision
from hpcgnn.nn.heads import with_term
from hpcgnn.nn.models import plain
from hpcgnn.ops.adam import StepCheck, UnreadCheck
from hpcgnn.ops.arena import keeping
from hpcgnn.ops.counter import SUM, CounterKey
from hpcgnn.run.launch import together
from hpcgnn.run.output import tell, time_text
from hpcgnn.run.signals import OUT_OF_TIME, STOP_REQUEST, StopRequest
from hpcgnn.run.watchdog import HERE
from hpcgnn.training.alike import alike_draws, check_same
from hpcgnn.training.checkpoint import Checkpoint, Progress
from hpcgnn.training.epoch_trace import (
    EpochTrace,
    StepsTaken,
    costs_of,
    fault_error,
    modeled_seconds,
    remark_on_divergence,
)
from hpcgnn.training.evaluate import Evaluation, classes_of, evaluate
from hpcgnn.training.learner import Learner
from hpcgnn.training.model_hooks import hooks_of
from hpcgnn.training.objective import Objective
from hpcgnn.training.optimizer import FlatAdam, OwnOptimizer
from hpcgnn.training.progress import EpochDisplay
from hpcgnn.training.rank_state import restore_rank_state, save_rank_state
from hpcgnn.training.run_folder import RunFolder, save
from hpcgnn.training.run_lock import is_in_a_job_of_unknown_end, seconds_of_this_process, seconds_to_the_end_of_the_job
from hpcgnn.training.session import Session
from hpcgnn.training.summary import OtherPrograms, bytes_by_pair, costs_by_rank, summarize

if TYPE_CHECKING:
    from hpcgnn.training.memory_limit import MemoryLimit


def train_epoch(session: Session, learner: Learner, seed: int, epoch: int, stop: StopRequest | None = None,
                num_steps: int = 1, by_row: bool = False) -> EpochTrace | None:
    """Collective: train one epoch on the whole graph, in one step or several.

    The loss is the mean over all training nodes of all ranks, so gradients equal the gradients of one process. With
    several steps, a step's loss is the share of its nodes times the number of steps: an unbiased estimate. If scaled
    gradients overflow, all ranks skip the step.

    Parameters
    ----------
    seed, epoch : int            key the random draws; epochs count from 0
    stop : StopRequest or None   asked after every step
    num_steps : int              above 1 only if the session has `steps`
    by_row : bool                deal rows out to the steps one by one, not in clusters

    Returns
    -------
    EpochTrace, or None if some rank was asked to stop before the last step; the next call continues from there
    """
    comm, started = session.comm, time.perf_counter()
    if not learner.model.training or learner.gradients.finds_unused:      # a user's program may change its modules
        learner.model.train()
    steps, taken, objective = session.steps, StepsTaken(), session.begin_labels(seed, epoch)
    if num_steps == 1:
        learner.average.take()
        taken.note(*whole_step(session, learner, objective, Moment(seed, epoch)))
        learner.average.note(num_steps)
    else:
        taken = StepsTaken.of_state(steps.take_begun(num_steps, by_row))
        for step in steps.steps(learner.model, seed, epoch, num_steps, taken.number, by_row,
                                session.graph_of(seed, epoch)):
            of_step = objective.of_rows(step.rows, num_steps, taken.number)
            loss, check = train_step(session, learner, step.graph, of_step,
                                     Moment(seed, epoch, taken.number, num_steps))
            learner.average.note(num_steps)
            taken.note(loss, check)
            if stop is not None and taken.number < num_steps and comm.allreduce(stop.signal_number, MPI.MAX):
                steps.begun = taken.state(num_steps, by_row, time.perf_counter() - started,
                                          session.exchange.training.take())
                return None
    loss, check = taken.read(num_steps)
    session.end_labels()
    seconds = taken.seconds + time.perf_counter() - started
    traffic = taken.with_earlier(session.exchange.training.take())
    session.exchange.end_epoch(traffic.sent_by_peer, costs_of(seconds, traffic))
    stop_signal = 0 if stop is None else stop.signal_number
    with session.exchange.giving_way(meets=False):
        return EpochTrace.sum_over_ranks(comm, loss, seconds, traffic, stop_signal, check, session.mates)


def _checkpoints(model: nn.Module, graph: LocalGraph) -> AbstractContextManager:
    """`checkpoints_on` for a user's own model."""
    if type(model).__module__.startswith("hpcgnn."):
        return nullcontext()
    from hpcgnn.pyg.recomputation import checkpoints_on

    return checkpoints_on(model, graph)


class Moment(NamedTuple):
    """The current epoch and step, counted from 0."""

    seed: int
    epoch: int
    number: int = 0
    num_steps: int = 1


def whole_step(session: Session, learner: Learner, objective: Objective,
               moment: Moment) -> tuple[torch.Tensor, StepCheck | UnreadCheck]:
    """Collective: `train_step` of an epoch that has one, replayed on a GPU if the settings say so."""
    def step() -> tuple[torch.Tensor, StepCheck | UnreadCheck]:
        return train_step(session, learner, session.graph_of(moment.seed, moment.epoch), objective, moment)

    return step() if learner.step_graph is None else learner.step_graph.take(step, learner.optimizer, moment.epoch)


def train_step(session: Session, learner: Learner, graph: LocalGraph, objective: Objective,
               moment: Moment) -> tuple[torch.Tensor, StepCheck | UnreadCheck]:
    """Collective: update the weights once, by the loss of a graph's rows; return its share of the loss and a check."""
    comm, model = session.comm, learner.model
    graph.begin_forward(moment.seed, moment.epoch, is_training=True, num_hops=getattr(model, "num_hops", None),
                        loss_scale=learner.loss_scale.value)
    if learner.begin_step():
        session.exchange.forget_sums()
    with alike_draws(model, moment.seed, moment.epoch, moment.number), keeping(), _checkpoints(model, graph):
        outputs = model(graph, graph.x)      # exchanges halo rows; backward() exchanges their gradients
        loss_sum = objective.of_model(model).loss_sum(outputs, "train", graph)
        loss = loss_sum / (objective.mean_rows["train"] / moment.num_steps)
    num_rows = graph.num_nodes if graph.current_pass.hops_left is None else objective.num_global["train"]
    loss = with_term(loss, outputs, num_rows / moment.num_steps, comm.size)
    del outputs      # so that the backward pass can free them
    hooks = hooks_of(model)
    loss = hooks.with_penalty(loss, comm.size)
    if loss.requires_grad:      # else every weight is frozen, and `collect` raises an error
        with learner.gradients.without_hooks():
            (loss if learner.loss_scale.value == 1.0 else loss * learner.loss_scale.value).backward()
    with session.exchange.giving_way() if learner.gradients.finds_unused else nullcontext():
        learner.gradients.collect(comm)
    session.exchange.spoil_if_overflowed(learner.gradients.flat)
    if learner.untrained:
        together(comm, learner.refuse_untrained)
    HERE.note("waits for the sum of the gradients")
    session.exchange.sum_gradients(learner.gradients.shared, CounterKey(moment.seed, moment.epoch, SUM, moment.number),
                                   learner.loss_scale.value)
    HERE.note("computes")
    check = learner.step()
    hooks.end_step()
    return loss.detach(), check


class TrainingRun:
    """The epochs of one `hpcgnn train`, from a session to a finished run folder, continuing from `resumed` if given."""

    def __init__(self, session: Session, folder: RunFolder, resumed: Checkpoint | None = None,
                 memory: MemoryLimit | None = None):
        self.session, self.folder, self.memory = session, folder, memory
        self.progress = Progress() if resumed is None else resumed.progress
        self.learner = Learner.start(session, self.seed, resumed)
        if isinstance(self.learner.optimizer, OwnOptimizer):
            check_same(session.comm, self.learner.optimizer.record(), "the program's optimizer's ")
        context = session.method_context()
        self.controller, self._control = session.config.method.controller(context), context.control
        if resumed is not None:
            self.controller.restore(resumed.controller)
            restore_rank_state(session, self.controller, folder.rank_files, resumed.token)
        self._token = None if resumed is None else resumed.token     # token of the last checkpoint
        self._is_asked_to_end = False
        self.callbacks = session.recipe.callbacks_of(session.config)
        self._is_main = session.comm.rank == 0
        self._are_called = session.comm.allreduce(bool(self.callbacks), MPI.LOR)     # whether some rank has callbacks

    @property
    def comm(self) -> MPI.Comm:
        return self.session.comm

    @property
    def config(self) -> TrainConfig:
        return self.session.config

    @property
    def model(self) -> nn.Module:
        """The model in training: a user's own module, even if it is distributed."""
        return plain(self.learner.model)

    @property
    def seed(self) -> int:
        """Seed of the current training."""
        return self.session.config.seed + self.progress.seed_index

    def execute(self) -> dict[str, Any]:
        """Collective: train every seed, write checkpoint and summary, and return the summary.

        Raises Interrupted if a signal asked to stop: the checkpoint holds everything. Raises CollectiveError if loss,
        gradients, weights or outputs are not finite, ranks' weights differ, or a file can't be written.
        """
        others = OtherPrograms()
        with STOP_REQUEST as stop, EpochDisplay(self.session.config, self._is_main, self.session.score) as display:
            self._limit(stop)
            self._call("on_start")
            try:
                self._train_seeds(stop, display)
            except BaseException as error:
                for callback in self.callbacks:
                    with suppress(Exception):      # the first error is the one to raise
                        callback.on_failure(self, error)
                self.learner.end()
                raise
        self._save()
        state_bytes, other_cores = self.session.state_bytes, others.num_cores(self.comm)
        self.session.forget()
        results = [*self.progress.finished, self.progress.result(self.seed)]
        metrics = self.folder.read_metrics() if self._is_main else None
        summary = {**summarize(self.session, self.learner, results, metrics, state_bytes), "other_cores": other_cores}
        together(self.session.comm, lambda: self.folder.write_summary(summary) if self._is_main else None)
        for sentence in self._remarks(metrics or []):
            tell(f"hpcgnn: {sentence}")
        self._call("on_end", summary)
        self.learner.end()
        return summary

    def _limit(self, stop: StopRequest) -> None:
        """Collective: end after the hours of the settings; without them, when rank 0's batch job ends."""
        if self.config.hours:
            stop.end_in(3600 * self.config.hours - seconds_of_this_process())
            return
        left = self.comm.bcast(seconds_to_the_end_of_the_job())
        if left is None:
            if self._is_main and is_in_a_job_of_unknown_end():
                tell("hpcgnn: this Slurm does not say when the job ends; pass --hours, unless the job gets a signal "
                     "before, as by #SBATCH --signal in jobs/train.sbatch")
            return
        if self._is_main:
            tell(f"hpcgnn: the job ends in {time_text(left)} (SLURM_JOB_END_TIME); a run that is not complete by then "
                 "ends before, with a checkpoint and status 75; --hours sets another time")
        stop.end_in(left)

    def _remarks(self, metrics: list[dict[str, Any]]) -> Iterator[str]:
        """Rank 0's remarks about a complete run."""
        for seed in dict.fromkeys(record["seed"] for record in metrics):
            losses = [record["loss"] for record in metrics if record["seed"] == seed]
            sentence = remark_on_divergence(losses, self.config.lr)
            if sentence is not None:
                yield f"seed {seed}: {sentence}"
        num_nodes = self.session.objective.num_global
        without = [split for split in ("val", "test") if not num_nodes[split]]
        if self._is_main and without:
            kind = "node of the {} split is labeled" if self.config.task == NODES else "link is held out for {}"
            yield f"no {kind.format(' and '.join(without))}, so it has no score"

    def _train_seeds(self, stop: StopRequest, display: EpochDisplay) -> None:
        self._train_seed(stop, display)
        while self.progress.seed_index + 1 < self.session.config.repeat:
            self._begin_next_seed()
            self._train_seed(stop, display)

    def _begin_next_seed(self) -> None:
        self.progress.finish_seed(self.seed)
        self.learner = Learner.start(self.session, self.seed, None)
        self.controller.forget()
        self.session.forget()

    def _train_seed(self, stop: StopRequest, display: EpochDisplay) -> None:
        """Collective: train epoch after epoch, evaluate, record and save, until a seed is done."""
        config, progress = self.session.config, self.progress
        while progress.epoch < config.epochs and not self._has_stalled() and not self._is_asked_to_end:
            # Train, evaluate if due, record, and save last: a checkpoint counts only lines that are written.
            trace, decision = self._train_epoch(stop)
            sent_control = self._sum_control_bytes()
            progress.epoch += 1
            is_due = progress.epoch % config.eval_every == 0 or progress.epoch == config.epochs
            evaluation = self._evaluate() if is_due else None
            if evaluation is not None:
                self.controller.judge(progress.evaluations_since_best == 0)
            self._record({**vars(trace), "sent_bytes_control": sent_control, **self._move_rate(evaluation),
                          **vars(decision), **(self.memory.take_use() if self.memory else {})}, evaluation)
            display.advance(self.seed, progress, trace, evaluation)
            if trace.stop_signal:
                self._stop()
            if config.checkpoint_every and progress.epoch % config.checkpoint_every == 0:
                self._save()
            stop.note_lap()
        if progress.best is None and not progress.evaluations_since_best:    # ended before the first evaluation
            self._evaluate()
        if progress.best is None:
            self._refuse_undefined_scores()
        self._is_asked_to_end = False

    def _refuse_undefined_scores(self) -> NoReturn:
        """Collective: end if no evaluation had a finite score. Weights are saved for another score."""
        number, self.progress.evaluations_since_best = self.progress.evaluations_since_best, 0
        self._save()
        self.session.exchange.forget()
        raise CollectiveError(f"the validation score {self.session.score.name} was not finite in any of {number} "
                              f"evaluations, so no epoch is the best; {self.folder.checkpoint} holds the last weights, "
                              "go on from it with --resume and another score")

    def _move_rate(self, evaluation: Evaluation | None) -> dict[str, float]:
        """Let the schedule, if any, move the learning rate; return the rate of the epoch that has ended."""
        schedule = self.learner.schedule
        if schedule is None:
            return {}
        rate = schedule.rate
        schedule.end_epoch(evaluation)
        return {"lr": rate}

    def _call(self, moment: str, *arguments: Any) -> None:
        """Collective: call the callbacks; if one returns True on any rank, this seed's training ends."""
        if not self._are_called:
            return
        HERE.note("calls the callbacks")
        answers = [getattr(callback, moment)(self, *arguments) for callback in self.callbacks]
        self.learner.gradients.check_same(self.learner.model)
        if isinstance(self.learner.optimizer, FlatAdam):
            self.learner.optimizer.follow_weights()
        if moment in ("on_epoch_end", "on_evaluation"):
            for callback, answer in zip(self.callbacks, answers, strict=True):
                # Also a truth value of NumPy or torch.
                if answer is not None and getattr(answer, "dtype", type(answer)) not in (bool, torch.bool):
                    raise TrainingError(f"{type(callback).__name__}.{moment} returned {str(answer)[:40]!r}; it must "
                                        "return True to end the training, or None to go on")
            asked = self.session.comm.allreduce(any(answers), MPI.LOR)
            self._is_asked_to_end = self._is_asked_to_end or asked

    def _has_stalled(self) -> bool:
        limit = self.session.config.early_stop
        return limit > 0 and self.progress.evaluations_since_best >= limit

    def _train_epoch(self, stop: StopRequest) -> tuple[EpochTrace, Decision]:
        """Collective: rank 0 plans an epoch, all train it, and rank 0's controller learns how it went."""
        session, learner, epoch = self.session, self.learner, self.progress.epoch
        HERE.epoch = self.seed, epoch + 1
        HERE.note("plans the epoch")
        plan = self.controller.plan(self.seed, epoch)
        session.exchange.begin_epoch(plan)
        HERE.note("computes")
        # In the first epoch in clusters after epochs of single rows, Adam's moments do not fit, so discard them.
        if plan.is_turn and session.steps.begun is None:
            learner.optimizer.forget()
        trace = train_epoch(session, learner, self.seed, epoch, stop, plan.num_steps, plan.by_row)
        if trace is None:
            self._stop()
        if trace.fault or not math.isfinite(trace.loss):
            # Raised before this epoch is saved, so the last checkpoint has good weights.
            session.exchange.forget()
            raise fault_error(session.comm, trace.fault, trace.loss, epoch + 1, learner.optimizer.last_check.read(),
                              session.graph.x)
        seconds = trace.epoch_seconds
        if session.config.method.deterministic:
            seconds = modeled_seconds(trace, session.info.num_edges, session.config, session.comm.size,
                                      plan.is_asynchronous)
        HERE.note("decides how rows are sent" if self._is_main else "waits for rank 0 to decide how rows are sent")
        return trace, self.controller.observe(trace.loss, seconds, session.exchange.traces(),
                                              session.exchange.movements() if self.controller.measures else {},
                                              session.steps.clusters.inside if plan.in_clusters else None)

    def _sum_control_bytes(self) -> int:
        """Collective: bytes that all ranks have sent since the last epoch to decide on widths."""
        num_swaps, sent_bytes = self._control.take()
        return self.session.comm.allreduce(sent_bytes) if num_swaps else 0

    def _evaluate(self) -> Evaluation:
        session = self.session
        HERE.note("evaluates")
        with self.learner.average.in_model():
            evaluation = evaluate(session.comm, self.learner.model, session.graph, session.objective, session.score)
            if self.progress.note(evaluation, session.score.prefers_low, session.objective.num_global["val"] > 0):
                self.learner.note_best()
        return evaluation

    def _record(self, epoch: dict[str, Any], evaluation: Evaluation | None) -> None:
        """Collective: rank 0 writes a line of metrics.jsonl. A full disk ends all ranks; the last checkpoint stays."""
        HERE.note("records the epoch")
        pairs = {**bytes_by_pair(self.session),
                 **costs_by_rank(self.comm, self.session.exchange.last_costs)} if evaluation else {}
        record = {"seed": self.seed, "epoch": self.progress.epoch, **epoch}
        del record["stop_signal"], record["fault"]
        if self._is_main:
            sizes = hooks_of(self.learner.model).feature_size()
            self.folder.append_metrics({**record, **pairs, **sizes, **(asdict(evaluation) if evaluation else {})})
        self._call("on_epoch_end", record)
        if evaluation is not None:
            self._call("on_evaluation", evaluation)

    def _stop(self) -> NoReturn:
        """Collective: save, and raise Interrupted."""
        self._save()
        self.session.exchange.forget()
        begun = None if self.session.steps is None else self.session.steps.begun
        when = f"epoch {self.progress.epoch}" if begun is None else \
            f"step {len(begun['losses'])} of {begun['num_steps']} in epoch {self.progress.epoch + 1}"
        of_time = "stopped as its hours end after" if self.config.hours else "stopped as its job ends after"
        why = of_time if STOP_REQUEST.signal_number == OUT_OF_TIME else "stopped by a signal after"
        raise Interrupted(f"{why} {when} of seed {self.seed}; {self.folder.checkpoint} holds everything, the same "
                          "command with --resume goes on")

    def _save(self) -> None:
        """Collective: write everything that --resume needs."""
        learned = self.learner.saved(self.folder.path)
        self._token = save(self.comm, self.folder, lambda token: self._checkpoint(token, learned),
                           self._save_rank_state, self._token)
        self._call("on_checkpoint", self.folder.checkpoint)

    def _save_rank_state(self, token: str) -> None:
        save_rank_state(self.session, self.controller, self.folder.rank_files, token)

    def _checkpoint(self, token: str, learned: dict[str, Any]) -> Checkpoint:
        learner, info = self.learner, self.session.info
        return Checkpoint(
            settings=settings_of(self.session.config), dataset=info.name, fingerprint=info.fingerprint, token=token,
            progress=self.progress, **learned, loss_scale=learner.loss_scale, controller=self.controller.state(),
            schedule=None if learner.schedule is None else learner.schedule.state(),
            own_optimizer=learner.optimizer.record() if isinstance(learner.optimizer, OwnOptimizer) else None,
            loss=learner.loss_tensors, best_loss=learner.best_loss,
            frozen=learner.frozen_since(),
            answers_with=classes_of(info))
