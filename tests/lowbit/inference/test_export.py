"""What training exports answers on integers as the fake-quantized model does, to rounding."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from mpi4py import MPI
from training_setup import easy_graph, train, write_once

from hpcgnn.lowbit.inference.model_source import StoredPart
from hpcgnn.lowbit.inference.run import IntegerRun


def logits_of(run, shards, **settings):
    """Collective: (fake-quantized logits, integer logits) of this rank's rows, each by ascending global id."""
    _, _, trained = train(MPI.COMM_WORLD, shards, run, **settings)
    session, model = trained.session, trained.learner.model
    stored = StoredPart.read(MPI.COMM_WORLD, shards, session.info)
    integers = IntegerRun.open(MPI.COMM_WORLD, model.export("synthetic"), stored, session.info)
    with torch.no_grad():
        session.graph.begin_forward(seed=0, epoch=0, is_training=False)
        floats = model.eval()(session.graph, session.graph.x).numpy()
    found, _ = integers.forward()
    return floats[np.argsort(session.graph.node_id[:len(floats)])], found[np.argsort(integers.part.inner_id)]


@pytest.mark.covering(1)
@pytest.mark.parallel([1, 2])
@pytest.mark.parametrize("scheme", ["uniform", "degree-steps", "degree-aware", "layer-aware"])
@pytest.mark.parametrize("model", ["gcn", "sage", "gin", "gat"])
def test_an_exported_model_equals_the_one_that_was_trained(shared_path, model, scheme):
    shards = write_once(MPI.COMM_WORLD, easy_graph(), shared_path / "shards")
    floats, found = logits_of(shared_path / "run", shards, model=model, quantize=scheme, quantize_bits=4, norm="layer",
                              epochs=4, eval_every=4)
    error, steps = np.abs(found - floats), np.abs(floats).max()
    # A value halfway between two codes may be rounded either way; then its row and those around it move by a step.
    assert np.median(error) < 1e-5 * steps
    assert (error > 1e-4 * steps).mean() < 0.05
    assert (found.argmax(axis=1) == floats.argmax(axis=1)).mean() > 0.98
