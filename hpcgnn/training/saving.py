"""Saving: the one place that orders how a run's files reach the disk, and from which of them it goes on."""

from __future__ import annotations

import secrets
from collections.abc import Callable

from mpi4py import MPI

from hpcgnn.run.launch import together
from hpcgnn.training.checkpoint import Checkpoint
from hpcgnn.training.run_folder import RunFolder

TOKEN_BYTES = 16


def save(comm: MPI.Comm, folder: RunFolder, checkpoint_of: Callable[[str], Checkpoint],
         write_rank_state: Callable[[str], None], last_token: str | None) -> str:
    """Collective: bring what ranks remember, metrics, then a checkpoint that counts them, to the disk; all ranks fail
    together if it can't. Returns the checkpoint's token.

    Parameters
    ----------
    checkpoint_of : callable(token) -> Checkpoint      called on rank 0; the token, 32 hexadecimal digits, is drawn anew
                                                       for every checkpoint and the same on all ranks
    write_rank_state : callable(token)                 collective, called on all ranks first
    last_token : str or None                           of the checkpoint before, which becomes the previous one

    Raises
    ------
    CollectiveError      a file can't be written; the checkpoint before is as it was
    """
    token = comm.bcast(secrets.token_hex(TOKEN_BYTES) if comm.rank == 0 else None)

    write_rank_state(token)

    def write_generation() -> None:
        if comm.rank == 0:
            folder.sync_metrics()
            folder.generations.write(checkpoint_of(token))
            folder.rank_files.remove_others(token, *([last_token] if last_token else []))

    together(comm, write_generation)
    return token
