"""A plan's bytes are those that a training sends, to the byte: by epoch, by pair, of an evaluation and of the input."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from mpi4py import MPI
from planning_setup import NETWORK, counted, parse_method
from training_setup import easy_graph, shared_path, train, write_once  # noqa: F401

from hpcgnn.exchange.halo import Around
from hpcgnn.partition.work import hops_to_loss
from hpcgnn.planning.loads import count_shared_pairs
from hpcgnn.planning.memory import layout_bytes
from hpcgnn.planning.model import ModelSize, exchanges_of
from hpcgnn.planning.predictions import bytes_sent

METHODS = {"vanilla": {"method": "vanilla"}, "uniform:8": {"method": "uniform", "bits": 8},
           "uniform:1": {"method": "uniform", "bits": 1}, "pipegcn": {"method": "pipegcn"}}


def bytes_of_layouts(exchange):
    """What an exchange keeps to know its messages by: lists of rows and where these lie in them."""
    while isinstance(exchange, Around):
        exchange = exchange.exchange
    codecs = [*exchange._full_codecs.values(),
              *(codec for kept in exchange._codecs._codecs.values() for codec in kept.values())]
    arrays = []
    for messages in (messages for codec in codecs for messages in codec._messages.values()):
        for layout in (*messages.send_layouts, *messages.receive_layouts):
            arrays += [layout.bit_width, layout.payload_offset, layout.parameter_offset]
        for rows in (*messages.send_rows, *messages.receive_rows):
            arrays += [rows.index, rows.node_id, rows.position]
    return sum({id(array): array.nbytes for array in arrays}.values())


@pytest.mark.parallel([2, 4])
@pytest.mark.parametrize("name, model, layers, precision, ranks_per_node", [
    ("vanilla", "sage", 3, "fp32", None), ("uniform:8", "sage", 3, "fp32", None), ("uniform:1", "gcn", 2, "fp32", None),
    ("vanilla", "gcn", 4, "bf16", None), ("pipegcn", "sage", 2, "fp32", None), ("vanilla", "sage", 3, "fp32", 2),
    ("uniform:1", "gcn", 2, "fp32", 3)])
def test_a_plan_s_bytes_are_those_of_the_training(shared_path, name, model, layers, precision,  # noqa: F811
                                                  ranks_per_node):
    """Whether or not ranks of a node share rows."""
    comm = MPI.COMM_WORLD
    dataset = easy_graph(spec="synthetic:nodes=240,mean_degree=3,classes=4,features=12,signal=2")
    dataset.train_mask[np.flatnonzero(dataset.train_mask)[5:]] = False      # so that the reach leaves rows out
    shards = write_once(comm, dataset, shared_path / "shards")
    summary, metrics, run = train(comm, shards, shared_path / "run", model=model, layers=layers, hidden=20, epochs=2,
                                  eval_every=1, precision=precision, **METHODS[name],
                                  **({} if ranks_per_node is None else
                                     {"nodes_aware": "on", "ranks_per_node": ranks_per_node}))
    evaluated = comm.allreduce(run.session.exchange.evaluation.payload_bytes)
    graph, loads = counted(shards, layers)
    if ranks_per_node is not None:
        arcs = graph.dataset.indptr, graph.dataset.indices
        hops = hops_to_loss(*arcs, graph.dataset.train_mask, layers)
        shared = count_shared_pairs(*arcs, hops, graph.owner, ranks_per_node, loads)
        loads = replace(loads, pairs=shared)
    size = ModelSize(model, graph.num_features, 20, graph.num_classes, layers, precision=precision)
    messages = parse_method(name, size)
    sent = bytes_sent(size, loads, messages, NETWORK.ranks_per_node)
    kept = comm.allgather(bytes_of_layouts(run.session.exchange))
    assert layout_bytes(list(exchanges_of(size)), messages, loads.pairs, loads).tolist() == kept
    for record in metrics:
        assert sent.total == record["sent_bytes_payload"] + record["sent_bytes_parameters"]
    assert sent.evaluation * 2 == evaluated      # two epochs, two evaluations
    assert sent.setup == summary["setup_bytes"]
    assert (sent.total > 0) == (ranks_per_node is None or ranks_per_node < comm.size)
    assert loads.rows_within.sum(axis=0).tolist() == summary["rows_within"]
    by_pair = np.array(metrics[-1]["sent_bytes_by_pair"])
    assert np.sort(by_pair[by_pair > 0]).tolist() == np.sort(sent.by_pair[sent.by_pair > 0]).tolist()
