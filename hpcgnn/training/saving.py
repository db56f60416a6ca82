"""The one place that orders how a run's files reach the disk."""

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
    """Collective: write rank states, then metrics, then a checkpoint that counts them. Returns the checkpoint's token.

    The token is drawn anew each time; all ranks fail together.

    Parameters
    ----------
    checkpoint_of : callable(token) -> Checkpoint      called on rank 0
    write_rank_state : callable(token)                 collective, called on all ranks first
    last_token : str or None                           of the checkpoint before, which becomes the previous one

    Raises
    ------
    CollectiveError      a file can't be written; the checkpoint before is unchanged
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
