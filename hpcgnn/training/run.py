"""TrainingRun: from a session to a finished run folder, over seeds, epochs, evaluations and checkpoints."""

from __future__ import annotations

import copy
import math
import resource
from dataclasses import asdict
from typing import Any

import numpy as np
from mpi4py import MPI

from hpcgnn.adaptive.controller import Decision
from hpcgnn.config import settings_of
from hpcgnn.errors import Interrupted
from hpcgnn.launch import together
from hpcgnn.methods import name_of
from hpcgnn.nn.quantized.models import QuantizedStack
from hpcgnn.stop_signals import STOP_REQUEST, StopRequest
from hpcgnn.training.checkpoint import Checkpoint, Progress
from hpcgnn.training.clock import modeled_seconds
from hpcgnn.training.epoch import EpochTrace, train_epoch
from hpcgnn.training.evaluate import Evaluation, evaluate
from hpcgnn.training.learner import Learner
from hpcgnn.training.metrics import RunFolder
from hpcgnn.training.precision import storage_bits
from hpcgnn.training.progress import EpochDisplay
from hpcgnn.training.rank_state import restore_rank_state, save_rank_state
from hpcgnn.training.saving import save
from hpcgnn.training.session import Session
from hpcgnn.training.soundness import fault_error
from hpcgnn.training.summary import epoch_statistics, quantized_statistics, score_statistics, software_versions
from hpcgnn.whereabouts import HERE

MAX_PAIRED_RANKS = 64     # more would make the matrix of a line of metrics too long


class TrainingRun:
    """The epochs of one `hpcgnn train`.

    Parameters
    ----------
    session : Session
    folder : RunFolder                   written by rank 0
    resumed : Checkpoint or None         where to go on, the same on all ranks
    """

    def __init__(self, session: Session, folder: RunFolder, resumed: Checkpoint | None = None):
        self.session, self.folder = session, folder
        self.progress = Progress() if resumed is None else resumed.progress
        self.learner = Learner.start(session, self.seed, resumed)
        self.controller = session.config.method.controller(session.method_context())
        if resumed is not None:
            self.controller.restore(resumed.controller)
            restore_rank_state(session, self.controller, folder.rank_files, resumed.token)
        self._token = None if resumed is None else resumed.token     # of the last checkpoint
        self._is_main = session.comm.rank == 0

    @property
    def seed(self) -> int:
        return self.session.config.seed + self.progress.seed_index

    def execute(self) -> dict[str, Any]:
        """Collective: train every seed, write checkpoint and summary, and return the summary.

        Raises
        ------
        Interrupted          a signal asked to stop; the checkpoint holds everything
        CollectiveError      loss, gradients, weights or answers are not finite, the ranks' weights differ, or a file
                             can't be written
        """
        with STOP_REQUEST as stop, EpochDisplay(self.session.config, is_shown=self._is_main) as display:
            self._train_seed(stop, display)
            while self.progress.seed_index + 1 < self.session.config.repeat:
                self.progress.finish_seed(self.seed)
                self.learner = Learner.start(self.session, self.seed, None)
                self.controller.forget()
                self.session.exchange.forget()
                self._train_seed(stop, display)
        self._save()
        state_bytes = self.session.exchange.state_bytes
        self.session.exchange.forget()
        summary = self._summarize(state_bytes)
        together(self.session.comm, lambda: self.folder.write_summary(summary) if self._is_main else None)
        return summary

    def _train_seed(self, stop: StopRequest, display: EpochDisplay) -> None:
        config, progress = self.session.config, self.progress
        while progress.epoch < config.epochs and not self._has_stalled():
            trace, decision = self._train_epoch(stop.signal_number)
            progress.epoch += 1
            is_due = progress.epoch % config.eval_every == 0 or progress.epoch == config.epochs
            evaluation = self._evaluate() if is_due else None
            self._record(trace, decision, evaluation)
            display.advance(self.seed, progress, trace, evaluation)
            if trace.stop_signal:
                self._stop()
            if config.checkpoint_every and progress.epoch % config.checkpoint_every == 0:
                self._save()
        if progress.best is None:    # resumed with fewer --epochs than are done, before the first evaluation
            self._evaluate()

    def _has_stalled(self) -> bool:
        limit = self.session.config.early_stop
        return limit > 0 and self.progress.evaluations_since_best >= limit

    def _train_epoch(self, stop_signal: int) -> tuple[EpochTrace, Decision]:
        session, learner = self.session, self.learner
        HERE.epoch = self.seed, self.progress.epoch + 1
        HERE.note("plans the epoch")
        plan = self.controller.plan(self.seed, self.progress.epoch)
        session.exchange.begin_epoch(plan)
        HERE.note("computes")
        trace = train_epoch(session, learner, self.seed, self.progress.epoch, stop_signal)
        if trace.fault or not math.isfinite(trace.loss):
            # Before anything of this epoch is saved: the last checkpoint is one of good weights.
            session.exchange.forget()
            raise fault_error(session.comm, trace.fault, trace.loss, self.progress.epoch + 1,
                              learner.optimizer.last_check, session.graph.x)
        seconds = trace.epoch_seconds
        if session.config.method.deterministic:
            seconds = modeled_seconds(trace, session.info.num_edges, session.config, session.comm.size,
                                      plan.is_asynchronous)
        HERE.note("decides how rows are sent" if self._is_main else "waits for rank 0 to decide how rows are sent")
        return trace, self.controller.observe(trace.loss, seconds, session.exchange.traces())

    def _evaluate(self) -> Evaluation:
        session = self.session
        HERE.note("evaluates")
        evaluation = evaluate(session.comm, self.learner.model, session.graph, session.objective, session.score)
        if self.progress.note(evaluation):
            self.learner.best_model = copy.deepcopy(self.learner.model.state_dict())
        return evaluation

    def _record(self, trace: EpochTrace, decision: Decision, evaluation: Evaluation | None) -> None:
        """Collective: rank 0 writes a line of metrics.jsonl. A full disk here aborts all ranks; the last checkpoint
        stands.
        """
        HERE.note("records the epoch")
        pairs = self._bytes_by_pair() if evaluation else {}
        if not self._is_main:
            return
        record = {"seed": self.seed, "epoch": self.progress.epoch, **asdict(trace), **asdict(decision), **pairs}
        if isinstance(self.learner.model, QuantizedStack):
            record.update(self.learner.model.feature_size())
        del record["stop_signal"], record["fault"]
        self.folder.append_metrics({**record, **(asdict(evaluation) if evaluation else {})})

    def _bytes_by_pair(self) -> dict[str, list[list[int]]]:
        """Collective: what each rank sent to each in the last epoch, on rank 0, where the ranks are few enough."""
        comm, sent = self.session.comm, np.zeros(self.session.comm.size, np.int64)
        if comm.size > MAX_PAIRED_RANKS:
            return {}
        for peer, num_bytes in self.session.exchange.last_sent.items():
            sent[peer] = num_bytes
        everyone = comm.gather(sent.tolist())
        return {"sent_bytes_by_pair": everyone} if comm.rank == 0 else {}

    def _stop(self) -> None:
        self._save()
        self.session.exchange.forget()
        raise Interrupted(f"stopped by a signal after epoch {self.progress.epoch} of seed {self.seed}; "
                          f"{self.folder.checkpoint} holds everything, the same command with --resume goes on")

    def _save(self) -> None:
        """Collective: all that --resume needs is on the disk."""
        self._token = save(self.session.comm, self.folder, self._checkpoint, self._save_rank_state, self._token)

    def _save_rank_state(self, token: str) -> None:
        save_rank_state(self.session, self.controller, self.folder.rank_files, token)

    def _checkpoint(self, token: str) -> Checkpoint:
        learner, info = self.learner, self.session.info
        return Checkpoint(
            settings=settings_of(self.session.config), dataset=info.name, fingerprint=info.fingerprint, token=token,
            progress=self.progress, model=learner.model.state_dict(), best_model=learner.best_model,
            optimizer=learner.optimizer.state(), loss_scale=learner.loss_scale, controller=self.controller.state())

    def _epoch_statistics(self) -> dict[str, Any]:
        """Summarize the recorded epochs on rank 0, which holds the metrics; empty on the others."""
        if not self._is_main:
            return {}
        metrics = self.folder.read_metrics()
        return {**epoch_statistics(metrics), "num_epochs_recorded": len(metrics)}

    def _summarize(self, state_bytes: int) -> dict[str, Any]:
        """Collective: what summary.json says; complete on rank 0, which holds the metrics.

        state_bytes : memory of this rank that the method kept between epochs
        """
        session, config = self.session, self.session.config
        peak_bytes = session.comm.allreduce(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024, MPI.MAX)
        state_bytes = session.comm.allreduce(state_bytes, MPI.MAX)
        setup = np.array([session.exchange.setup.payload_bytes], dtype=np.int64)
        session.comm.Allreduce(MPI.IN_PLACE, setup)
        results = [*self.progress.finished, self.progress.result(self.seed)]
        test_score, test_std = score_statistics([result["test_score"] for result in results])
        val_score, _ = score_statistics([result["val_score"] for result in results])
        return {
            "dataset": session.info.name, "fingerprint": asdict(session.info.fingerprint),
            "model": config.model, "method": name_of(config.method),
            "bits": config.method.fixed_bits(storage_bits(config.precision)),
            "ranks": session.comm.size, "seeds": [result["seed"] for result in results],
            "score_name": session.score, "val_score": val_score, "test_score": test_score,
            "test_score_std": test_std, "results": results,
            **self._epoch_statistics(),
            "device": config.device, "transport": session.transport.name,
            "setup_bytes": int(setup[0]), "peak_rss_bytes": peak_bytes, "precision": config.precision,
            "predict": config.predict, "method_state_bytes": state_bytes,
            "rows_within": session.rows_within, "epochs": config.epochs,
            **(quantized_statistics(self.learner.with_best_weights(), results)
               if isinstance(self.learner.model, QuantizedStack) else {}),
            "versions": software_versions(),
        }
