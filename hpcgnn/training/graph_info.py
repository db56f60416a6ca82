"""What graph.h5 says, on all ranks: one of them reads it, since it is as long as the graph has nodes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from mpi4py import MPI

from hpcgnn.errors import CollectiveError, HpcgnnError
from hpcgnn.shards.reader import GraphInfo, check_num_parts, read_graph_info
from hpcgnn.whereabouts import HERE


def read_shared_info(comm: MPI.Comm, folder: Path) -> GraphInfo:
    """Collective: have rank 0 read and check graph.h5; return what it says of the whole graph, and of this rank's part.

    Files of parts name the run of preprocess that made them, so that a rank whose folder is another one says so when it
    reads its part.

    Raises
    ------
    CollectiveError      shards that are missing, damaged or for another number of ranks; the same on all ranks
    """
    told: list[tuple[GraphInfo | None, str | None]] | None = None
    if comm.rank == 0:
        try:
            info = read_graph_info(folder)
            check_num_parts(info, comm.size)
            told = [(replace(info, statistics={part: row}), None) for part, row in enumerate(info.statistics)]
        except HpcgnnError as error:
            told = [(None, str(error))] * comm.size
    HERE.note("waits for what graph.h5 says")
    info, sentence = comm.scatter(told)
    HERE.note("goes on")
    if sentence is not None:
        raise CollectiveError(sentence)
    return info
