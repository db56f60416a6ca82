"""Answers of a model that predicts links: each node's best new links, and the scores of given pairs, as tables."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import torch
from mpi4py import MPI

from hpcgnn.data.edges import read_links
from hpcgnn.data.ids import NodeRows
from hpcgnn.data.options import SourceOptions
from hpcgnn.errors import CheckpointError, ConfigError
from hpcgnn.links.objective import LinkObjective
from hpcgnn.links.questions import SOURCES, TARGETS, Question, questions_of
from hpcgnn.links.ranking import BLOCK_PRODUCTS, blocks_of, hide_known, products_of_answers
from hpcgnn.results.answer_file import check_writable
from hpcgnn.results.answers import Answers, gathered, row_pieces
from hpcgnn.results.float_run import FloatRun
from hpcgnn.run.launch import together
from hpcgnn.run.watchdog import HERE
from hpcgnn.shards.sealed import reason_of

TABLES = (".csv", ".parquet")


def check_table_file(path: Path) -> None:
    """Check that a table can be written, before the work for it; ConfigError for an unknown ending, CheckpointError."""
    if path.suffix not in TABLES:
        raise ConfigError(f"{path} names no format of links; end it with {' or '.join(TABLES)}")
    check_writable(path)


def write_best_links(run: FloatRun, answers: Answers, most: int, path: Path) -> None:
    """Collective: write each node's `most` best links that its graph lacks, best first.

    Columns: node, target (source if the run asked for sources), score. With the run's candidates=label, only labels are
    linked that some edge links. Raises CollectiveError: the file can't be written.
    """
    comm = run.session.comm
    best, scores = best_links(run, answers, most)
    names = _names_of_all(comm, answers)

    def columns() -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
        for first, (found, of_found) in row_pieces(comm, answers.num_nodes, answers.node_id, [best, scores]):
            place, column = np.nonzero(found >= 0)
            yield first + place, found[place, column], of_found[place, column]

    _write(comm, columns(), names, ("node", "source" if run.session.config.ask == SOURCES else "target"), path)


def best_links(run: FloatRun, answers: Answers, most: int) -> tuple[np.ndarray, np.ndarray]:
    """Collective: the best new links of this rank's nodes and their scores, (num_inner, most) int64 and float32.

    Global ids, best first, -1 where a node has no more.
    """
    session, rows = run.session, torch.from_numpy(answers.logits)
    comm, config, part = session.comm, session.config, run.part
    asked = SOURCES if config.ask == SOURCES else TARGETS
    # A question for each node, with the node itself in place of an answer.
    every = np.stack([part.inner_id, part.inner_id, np.zeros_like(part.inner_id)], axis=1)
    question, = questions_of(comm, part, session.info.cleaning.is_symmetric, asked, every)
    labels = session.objective.labels.cpu().numpy()
    may_link = _linked_labels(comm, run, labels, asked)
    ids, scores = np.full((part.num_inner, most), -1, np.int64), np.full((part.num_inner, most), -np.inf, np.float32)
    for block in blocks_of(comm, rows, part.inner_id, labels):
        step = max(1, BLOCK_PRODUCTS // (len(block.node_id) + most))
        for first in range(0, part.num_inner, step):
            HERE.note("ranks links")
            some = np.arange(first, min(first + step, part.num_inner))
            products = (rows[some].double() @ block.rows.t()).float().numpy()
            hide_known(products, block, question, some)
            products[~may_link[labels[some]][:, block.of_class]] = -np.inf
            together_ids = np.concatenate([ids[some], np.broadcast_to(block.node_id, products.shape)], axis=1)
            value, place = torch.cat([torch.from_numpy(scores[some]), torch.from_numpy(products)], 1).topk(most, 1)
            scores[some], ids[some] = value.numpy(), np.take_along_axis(together_ids, place.numpy(), 1)
    ids[np.isneginf(scores)] = -1
    return ids, scores


def write_pairs(run: FloatRun, answers: Answers, pairs: Path, path: Path) -> None:
    """Collective: write the score of each pair in a file of two columns of ids, in their order: source, target, score.

    Raises CollectiveError: an id that is no node, or a file that can't be read or written.
    """
    comm, part = run.session.comm, run.part
    names = _names_of_all(comm, answers)

    def read() -> np.ndarray | None:
        if names is None:
            return None
        of_names = NodeRows(names, run.session.info.name)
        return np.stack([of_names.find(ends, "a pair") for ends in read_links(pairs, SourceOptions())], axis=1)

    ends = comm.bcast(together(comm, read))
    owned = np.flatnonzero(np.isin(ends[:, 0], part.inner_id))
    order = np.argsort(part.inner_id)
    row = order[np.searchsorted(part.inner_id, ends[owned, 0], sorter=order)]
    none, rows = np.empty(0, np.int64), torch.from_numpy(answers.logits)
    question = Question(np.arange(part.num_inner), row, ends[owned, 1], none, none.astype(bool), none, none)
    scores, _ = products_of_answers(comm, rows, part.inner_id, np.zeros(part.num_inner, np.int64), question,
                                    rows.double())
    places, found = gathered(comm, owned), gathered(comm, scores)
    ordered = np.empty(len(places), np.float32)      # on rank 0 all of them
    ordered[places] = found
    _write(comm, iter([(ends[:, 0], ends[:, 1], ordered)]), names, ("source", "target"), path)


def _linked_labels(comm: MPI.Comm, run: FloatRun, labels: np.ndarray, asked: str) -> np.ndarray:
    """Collective: which labels of answers an anchor's label may have, (num_labels, num_labels) bool."""
    objective = run.session.objective
    num_labels = len(objective.num_of_class) if isinstance(objective, LinkObjective) else 1
    found = np.zeros((num_labels, num_labels), bool)
    if num_labels == 1:
        return ~found
    of_rows = run.session.graph.share(torch.from_numpy(labels).float()[:, None])[:, 0].round().long().numpy()
    target = np.repeat(labels, np.diff(run.part.indptr))
    source = of_rows[run.part.indices]
    found[(target, source) if asked == SOURCES else (source, target)] = True
    comm.Allreduce(MPI.IN_PLACE, found, MPI.LOR)
    return found


def _names_of_all(comm: MPI.Comm, answers: Answers) -> np.ndarray | None:
    """Collective: ids in the source of all nodes, by global id, on rank 0; None on the others."""
    shared = answers.aligned(comm)
    parts = [name for _, (name,) in row_pieces(comm, answers.num_nodes, answers.node_id, [shared.name])]
    return np.concatenate(parts) if comm.rank == 0 else None


def _write(comm: MPI.Comm, columns: Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]], names: np.ndarray | None,
           heads: tuple[str, str], path: Path) -> None:
    """Collective: rank 0 writes a table of two ids and a score, piece by piece; every rank exhausts the iterator."""
    staging, failure = path.with_name(f".{path.name}.incoming"), None
    with ExitStack() as stack:
        table = None
        for source, target, score in columns:
            if names is None or failure is not None:
                continue
            try:
                if table is None:
                    kind = pa.int64() if names.dtype.kind == "i" else pa.large_string()
                    schema = pa.schema([(heads[0], kind), (heads[1], kind), ("score", pa.float32())])
                    make = pyarrow.csv.CSVWriter if path.suffix == ".csv" else pyarrow.parquet.ParquetWriter
                    table = stack.enter_context(make(staging, schema))
                columns_of = zip(schema.names, (names[source], names[target], score), strict=True)
                table.write_table(pa.table(dict(columns_of), schema=schema))
            except (OSError, pa.ArrowException) as error:      # the other ranks still send what rank 0 receives
                failure = error

    def finish() -> None:
        if failure is not None:
            staging.unlink(missing_ok=True)
            reason = reason_of(failure) if isinstance(failure, OSError) else str(failure)
            raise CheckpointError(f"{path} can't be written: {reason}; choose another --out") from failure
        if comm.rank == 0:
            staging.replace(path)

    together(comm, finish)
