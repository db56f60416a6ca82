"""Answers of a model that predicts links: each node's best new links, and the scores of given pairs, as tables."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import torch
from mpi4py import MPI
from torch import nn

from hpcgnn.config import LINK_DECODER
from hpcgnn.data.edges import read_links
from hpcgnn.data.hold_out import relations_of
from hpcgnn.data.ids import NodeRows
from hpcgnn.data.options import SourceOptions
from hpcgnn.errors import CheckpointError, CollectiveError, ConfigError
from hpcgnn.links.decoders import in_float64, network_of, scores_of_all
from hpcgnn.links.objective import LinkObjective
from hpcgnn.links.questions import SOURCES, TARGETS, Question, Relations, questions_of
from hpcgnn.links.ranking import BLOCK_PRODUCTS, blocks_of, hide_known, products_of_answers, queries_of
from hpcgnn.nn.models import plain
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


def write_best_links(run: FloatRun, answers: Answers, most: int, path: Path, relation: str | None = None) -> None:
    """Collective: write each node's `most` best links of a relation that its graph lacks, best first.

    Columns: node, relation if the graph has any, target (source if the run asked for sources), score. In a graph with
    types of nodes, or with the run's candidates=label, only types or labels are linked that some edge links, by the
    relation if there are any.

    Raises CollectiveError: no relation, or an unknown one, for a graph with relations; the file can't be written.
    """
    comm, relation_names = run.session.comm, run.session.info.relation_names
    number = together(comm, lambda: relation_number(relation, relation_names, run.session.info.name))
    best, scores = best_links(run, answers, most, number)
    names = _names_of_all(comm, answers)

    def columns() -> Iterator[Links]:
        for first, (found, of_found) in row_pieces(comm, answers.num_nodes, answers.node_id, [best, scores]):
            place, column = np.nonzero(found >= 0)
            yield Links(first + place, np.full(len(place), number), found[place, column], of_found[place, column])

    heads = ("node", "source" if run.session.config.ask == SOURCES else "target")
    _write(comm, columns(), names, relation_names, heads, path)


def relation_number(relation: str | None, names: tuple[str, ...], graph: str) -> int:
    """The number of a relation; 0 without relations. ConfigError if the graph has none, or does not have this one."""
    if relation is None and names:
        raise ConfigError(f"{graph} has {len(names)} relations, and --top answers for one; name it by --set "
                          f"relation=NAME, such as {names[0]!r}")
    if relation is not None and relation not in names:
        known = f"{', '.join(names[:3])}{', ..' if len(names) > 3 else ''}" if names else "none"
        raise ConfigError(f"{graph} has no relation {relation!r}; its relations are {known}")
    return 0 if relation is None else names.index(relation)


def best_links(run: FloatRun, answers: Answers, most: int, relation: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Collective: the best new links of this rank's nodes and their scores, (num_inner, most) int64 and float32.

    Global ids, best first, -1 where a node has no more.
    """
    session, rows = run.session, torch.from_numpy(answers.logits)
    comm, config, part = session.comm, session.config, run.part
    asked = SOURCES if config.ask == SOURCES else TARGETS
    # A question for each node, with the node itself in place of an answer.
    every = np.stack([part.inner_id, part.inner_id, *np.full((2, part.num_inner), [[0], [relation]])], axis=1)
    question, = questions_of(comm, part, session.info.cleaning.is_symmetric, asked,
                             Relations.of(session.info.relation_names), every, without_self=True)
    decoder = _decoder(run)
    queries, network = queries_of(question, rows, decoder), network_of(decoder)
    kinds, num_kinds = _kinds_of(run)
    may_link = _linked_kinds(comm, run, kinds, num_kinds, asked, relation)
    ids, scores = np.full((part.num_inner, most), -1, np.int64), np.full((part.num_inner, most), -np.inf, np.float32)
    for block in blocks_of(comm, rows, part.inner_id, kinds):
        step = max(1, BLOCK_PRODUCTS // (len(block.node_id) + most))
        for first in range(0, part.num_inner, step):
            HERE.note("ranks links")
            some = np.arange(first, min(first + step, part.num_inner))
            with torch.no_grad():
                products = scores_of_all(network, queries[some], block.rows).float().numpy()
            hide_known(products, block, question, some)
            products[~may_link[kinds[some]][:, block.of_class]] = -np.inf
            together_ids = np.concatenate([ids[some], np.broadcast_to(block.node_id, products.shape)], axis=1)
            scores[some], ids[some] = best_of(np.concatenate([scores[some], products], axis=1), together_ids, most)
    ids[np.isneginf(scores)] = -1
    return ids, scores


def best_of(scores: np.ndarray, ids: np.ndarray, most: int) -> tuple[np.ndarray, np.ndarray]:
    """The `most` best scores of each row, and their ids; of equal ones the lower ids, so that ranks change nothing."""
    value, place = (found.numpy() for found in torch.from_numpy(scores).topk(most, 1))
    last = value[:, -1:]
    is_cut = ((scores == last).sum(1) > (value == last).sum(1)) & (last[:, 0] > -np.inf)
    place[is_cut] = np.lexsort((ids[is_cut], -scores[is_cut]))[:, :most]
    found, of_found = (np.take_along_axis(array, place, 1) for array in (scores, ids))
    order = np.lexsort((of_found, -found))
    return np.take_along_axis(found, order, 1), np.take_along_axis(of_found, order, 1)


def write_pairs(run: FloatRun, answers: Answers, pairs: Path, path: Path) -> None:
    """Collective: write the score of each pair in a file, in their order.

    The file has two columns of ids, source and target; if the graph has relations, three: source, relation, target. So
    has the table that is written, and a column score.

    Raises CollectiveError: an id that is no node, an unknown relation, or a file that can't be read or written.
    """
    comm, part, info = run.session.comm, run.part, run.session.info
    names = _names_of_all(comm, answers)

    def read() -> np.ndarray | None:
        if names is None:
            return None
        of_names = NodeRows(names, info.name)
        columns = read_links(pairs, SourceOptions())
        if info.relation_names and len(columns) != 3:
            raise ConfigError(f"{pairs} has {len(columns)} columns, and {info.name} has relations; expected three: "
                              "source, relation, target")
        ends = [of_names.find(ends, "a pair") for ends in (columns[0], columns[2 if info.relation_names else 1])]
        relation = relations_of(columns[1], info.relation_names, str(pairs)) if info.relation_names \
            else np.zeros_like(ends[0])
        return np.stack([*ends, relation], axis=1)

    ends = comm.bcast(together(comm, read))
    if info.node_types:
        _check_types(run, ends, pairs)
    owned = np.flatnonzero(np.isin(ends[:, 0], part.inner_id))
    order = np.argsort(part.inner_id)
    row = order[np.searchsorted(part.inner_id, ends[owned, 0], sorter=order)]
    asked, place = np.unique(np.stack([row, ends[owned, 2]], axis=1), axis=0, return_inverse=True)
    none, rows = np.empty(0, np.int64), torch.from_numpy(answers.logits)
    question = Question(asked[:, 0], asked[:, 1], False, place.reshape(-1), ends[owned, 1], none, none.astype(bool),
                        none, none)
    decoder = _decoder(run)
    scores, _ = products_of_answers(comm, rows, part.inner_id, np.zeros(part.num_inner, np.int64), question,
                                    queries_of(question, rows, decoder), network_of(decoder))
    places, found = gathered(comm, owned), gathered(comm, scores)
    ordered = np.empty(len(places), np.float32)      # on rank 0 all of them
    ordered[places] = found
    _write(comm, iter([Links(ends[:, 0], ends[:, 2], ends[:, 1], ordered)]), names, info.relation_names,
           ("source", "target"), path)


def _decoder(run: FloatRun) -> nn.Module | None:
    return in_float64(getattr(plain(run.model), LINK_DECODER, None))


def _kinds_of(run: FloatRun) -> tuple[np.ndarray, int]:
    """Types of this rank's nodes, or their labels if candidates are of one label, (num_inner,) int64; and their number.
    """
    objective, info = run.session.objective, run.session.info
    if info.node_types:
        return info.type_of(run.part.inner_id), len(info.node_types)
    return objective.labels.cpu().numpy(), len(objective.num_of_class) if isinstance(objective, LinkObjective) else 1


def _linked_kinds(comm: MPI.Comm, run: FloatRun, kinds: np.ndarray, num_kinds: int, asked: str,
                  relation: int) -> np.ndarray:
    """Collective: which kinds of answers a kind of anchors may have, (num_kinds, num_kinds) bool: those that an edge of
    the relation links.
    """
    found = np.zeros((num_kinds, num_kinds), bool)
    if num_kinds == 1:
        return ~found
    part = run.part
    of_rows = run.session.graph.share(torch.from_numpy(kinds).float()[:, None])[:, 0].round().long().numpy()
    of_relation = slice(None) if part.edge_type is None else part.edge_type == relation
    target = np.repeat(kinds, np.diff(part.indptr))[of_relation]
    source = of_rows[part.indices][of_relation]
    found[(target, source) if asked == SOURCES else (source, target)] = True
    comm.Allreduce(MPI.IN_PLACE, found, MPI.LOR)
    return found


def _check_types(run: FloatRun, ends: np.ndarray, pairs: Path) -> None:
    """Collective: refuse pairs, (n, 3) sources, targets and relations, of types that no edge of the relation joins."""
    comm, info, types = run.session.comm, run.session.info, run.session.info.node_types
    found = np.unique(np.column_stack([ends[:, 2], info.type_of(ends[:, 0]), info.type_of(ends[:, 1])]), axis=0)
    for relation in np.unique(found[:, 0]).tolist():
        joined = _linked_kinds(comm, run, *_kinds_of(run), TARGETS, relation)
        for source, target in found[found[:, 0] == relation, 1:].tolist():
            if joined.any() and not joined[source, target]:
                known = " or ".join(f"{types[first][0]} to {types[last][0]}" for first, last in np.argwhere(joined))
                of = f" of {info.relation_names[relation]}" if info.relation_names else ""
                raise CollectiveError(f"{pairs} has a pair{of} from {types[source][0]} to {types[target][0]}, and "
                                      f"edges go from {known}; swap the columns, or leave such pairs out")


def _names_of_all(comm: MPI.Comm, answers: Answers) -> np.ndarray | None:
    """Collective: ids in the source of all nodes, by global id, on rank 0; None on the others."""
    shared = answers.aligned(comm)
    parts = [name for _, (name,) in row_pieces(comm, answers.num_nodes, answers.node_id, [shared.name])]
    return np.concatenate(parts) if comm.rank == 0 else None


class Links(NamedTuple):
    """Some links with their scores: global ids and relations, (n,) int64, and (n,) float32."""

    first: np.ndarray
    relation: np.ndarray
    second: np.ndarray
    score: np.ndarray


def _write(comm: MPI.Comm, pieces: Iterator[Links], names: np.ndarray | None, relation_names: tuple[str, ...],
           heads: tuple[str, str], path: Path) -> None:
    """Collective: rank 0 writes a table of links, piece by piece; every rank exhausts the iterator."""
    staging, failure = path.with_name(f".{path.name}.incoming"), None
    names_of_relations = np.array(relation_names, object)
    with ExitStack() as stack:
        table = None
        for links in pieces:
            if names is None or failure is not None:
                continue
            try:
                kind = pa.int64() if names.dtype.kind == "i" else pa.large_string()
                schema = pa.schema([(heads[0], kind), *([("relation", pa.large_string())] if relation_names else []),
                                    (heads[1], kind), ("score", pa.float32())])
                if table is None:
                    make = pyarrow.csv.CSVWriter if path.suffix == ".csv" else pyarrow.parquet.ParquetWriter
                    table = stack.enter_context(make(staging, schema))
                columns = [names[links.first], *([names_of_relations[links.relation]] if relation_names else []),
                           names[links.second], links.score]
                table.write_table(pa.table(dict(zip(schema.names, columns, strict=True)), schema=schema))
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
