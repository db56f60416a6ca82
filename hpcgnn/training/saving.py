"""The order in which a run's files reach the disk."""

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
    """Collective: write the ranks' states, then metrics.jsonl, then a checkpoint. Returns the new checkpoint's token.

    All ranks call `write_rank_state` first, then rank 0 calls `checkpoint_of`, both with the new token. `last_token` is
    the token of the newest checkpoint so far, which is kept as the previous one. CollectiveError on all ranks if a file
    can't be written; the checkpoint of `last_token` is then unchanged.
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
