"""Rank state: what each rank remembers apart from the checkpoint, in its own sealed HDF5 file, `rank-RRRR-TOKEN.h5`.

Format 3. Attributes: `token` of the checkpoint it belongs to, `layout` (a digest of the rank's rows), `settings`
(JSON). Groups `exchange`, `controller` and, with several steps per epoch, `steps` hold arrays as datasets, numbers as
attributes and nested states as groups.
"""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from hpcgnn.config import settings_of
from hpcgnn.errors import CheckpointError, KernelError
from hpcgnn.exchange.state import State
from hpcgnn.methods.controller import Controller
from hpcgnn.run.launch import together, words_of_all
from hpcgnn.shards.sealed import open_sealed, write_sealed
from hpcgnn.training.run_folder import RankFiles
from hpcgnn.training.session import Session

logger = logging.getLogger(__name__)

KIND, VERSION = "rank-state", 3
# Settings that do not affect what ranks remember; if any other changes, ranks begin with empty memory.
NOT_REMEMBERED = frozenset({
    "epochs", "steps", "lr", "schedule", "warmup", "sum_bits", "store_activations", "dropout", "input_dropout",
    "edge_dropout", "weight_decay", "eval_every", "early_stop", "repeat", "average", "ema", "optimizer",
    "checkpoint_every", "memory", "scratch", "score", "overlap", "link_mbps", "pipeline", "sums", "transport", "device",
    "exchange", "target_kb", "size_weight", "quantize_lr", "quantize_gradient", "protect", "hours", "track", "timeout"})


def is_needed(session: Session, controller: Controller) -> bool:
    """Whether ranks of this method remember anything that a checkpoint does not hold."""
    return session.keeps_state or controller.keeps_rank_state


def save_rank_state(session: Session, controller: Controller, files: RankFiles, token: str) -> None:
    """Collective: write every rank's file; call it before the checkpoint of `token` replaces the last checkpoint.

    Nothing is written if the method remembers nothing, or if some rank does not see the run folder; rank 0 says so
    once. CollectiveError if a rank's file can't be written.
    """
    if not is_needed(session, controller) or not _is_shared(session, files):
        return
    states = {}
    if session.steps is not None:
        # First, since a step's late messages also change what the exchange keeps.
        session.exchange.settle()
        states["steps"] = session.steps.state()
    states |= {"exchange": session.exchange.state(), "controller": controller.rank_state()}

    def fill(file: h5py.File) -> None:
        file.attrs["token"], file.attrs["layout"] = token, session.plan.digest
        file.attrs["settings"] = json.dumps(_remembered(settings_of(session.config)))
        for name, state in states.items():
            _write(file.create_group(name), state)

    together(session.comm, lambda: write_sealed(files.path(session.comm.rank, token), KIND, VERSION, fill,
                                                error=CheckpointError))


def _is_shared(session: Session, files: RankFiles) -> bool:
    """Collective: whether all ranks see the run folder."""
    words = words_of_all(session.comm, None if files.folder.is_dir() else "unseen")
    unseen = [rank for rank, word in enumerate(words) if word]
    if unseen and session.comm.rank == 0 and not files.has_complained:
        logger.warning("rank %d does not see the run folder %s, so what ranks remember is not saved and a resumed run "
                       "will not be bit for bit this one; choose an --out that all nodes share",
                       unseen[0], files.folder)
        files.has_complained = True
    return not unseen


def restore_rank_state(session: Session, controller: Controller, files: RankFiles, token: str) -> bool:
    """Collective: continue from a checkpoint's files, on all ranks or none.

    Returns whether the run continues bit for bit; if not, rank 0 says why.
    """
    if not is_needed(session, controller):
        return True
    reason = None
    try:
        _restore(session, controller, files, token)
    except CheckpointError as error:
        reason = str(error)
    reasons = [found for found in words_of_all(session.comm, reason) if found]
    if not reasons and not controller.agrees():
        reasons = [f"the ranks' files in {files.folder} do not match each other"]
    if not reasons:
        return True
    session.forget()
    controller.forget_rank()
    if session.comm.rank == 0:
        logger.warning("from here on the run is not bit for bit the one that was stopped: %s; its next epoch is "
                       "synchronous, and exchanges and widths begin anew", reasons[0])
    return False


def _remembered(settings: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in settings.items() if name not in NOT_REMEMBERED}


def _restore(session: Session, controller: Controller, files: RankFiles, token: str) -> None:
    """Continue from this rank's file; CheckpointError if it is missing, damaged, or of another run or method."""
    num_ranks, path = files.num_ranks(token), files.path(session.comm.rank, token)
    if num_ranks != session.comm.size:
        raise CheckpointError(f"{files.folder} holds the files of {num_ranks} rank{'s' * (num_ranks != 1)}, and this "
                              f"run has {session.comm.size}")
    states = _read(session, path, token)
    try:
        session.exchange.restore(states["exchange"])
        if session.steps is not None:
            session.steps.restore(states["steps"])
        controller.restore_rank(states["controller"])
    except (KernelError, KeyError, ValueError, TypeError) as error:
        raise CheckpointError(f"{path} is not as this version writes it ({error})") from error


def _read(session: Session, path: Path, token: str) -> dict[str, State]:
    rooms = ("exchange", "controller", *(() if session.steps is None else ("steps",)))
    with open_sealed(path, KIND, VERSION, error=CheckpointError, advice="the run goes on without it") as file:
        try:
            said = {name: file.attrs[name] for name in ("token", "layout", "settings")}
            states = {name: _read_state(file[name]) for name in rooms}
            written = json.loads(said["settings"])
        except (KeyError, ValueError, TypeError, OSError) as error:
            raise CheckpointError(f"{path} is not as this version writes it ({error})") from error
    if said["token"] != token:
        raise CheckpointError(f"{path} belongs to another checkpoint")
    for name, value in _remembered(settings_of(session.config)).items():
        if written.get(name) != value:
            raise CheckpointError(f"the stopped run had {name} = {written.get(name)!r}, and this run has {value!r}")
    if said["layout"] != session.plan.digest:
        raise CheckpointError(f"{path} was written for another partition of the graph")
    return states


def _write(group: h5py.Group, state: State) -> None:
    for name, value in state.items():
        if isinstance(value, dict):
            _write(group.create_group(name), value)
        elif isinstance(value, np.ndarray):
            group.create_dataset(name, data=value)
        else:
            group.attrs[name] = value


def _read_state(group: h5py.Group) -> State:
    state: State = dict(group.attrs)
    for name, value in group.items():
        state[name] = _read_state(value) if isinstance(value, h5py.Group) else value[()]
    return state
