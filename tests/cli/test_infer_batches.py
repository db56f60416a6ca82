"""`hpcgnn infer --clusters`: answers within batches are the same on any number of ranks and by either aggregation."""

from __future__ import annotations

import pytest
from integer_models import some_model
from mpi4py import MPI
from training_setup import easy_graph, on_rank_zero, random_owner, write, write_once

from hpcgnn.__main__ import main
from hpcgnn.lowbit.inference.model_file import write_model
from hpcgnn.lowbit.inference.predictions import read_predictions
from hpcgnn.shards.features import FeatureStorage, fingerprint_of


def infer(capsys, *arguments):
    """Collective: (exit status, standard output, standard error) of rank 0."""
    with pytest.raises(SystemExit) as stop:
        main(["infer", *map(str, arguments)])
    printed = capsys.readouterr()
    return MPI.COMM_WORLD.bcast((stop.value.code or 0, printed.out, printed.err))


@pytest.mark.parallel([1, 2, 4])
@pytest.mark.parametrize("kind", ["gcn", "sage"])
def test_batched_answers_are_the_same_on_any_number_of_ranks(kind, shared_path, capsys):
    comm, dataset = MPI.COMM_WORLD, easy_graph()
    shards = write_once(comm, dataset, shared_path / "shards")
    model = shared_path / "model.h5"
    on_rank_zero(comm, lambda: write_model(model, some_model(kind), fingerprint_of(dataset, FeatureStorage("float32"))))
    found = []
    for way in ("tiles", "gather", "auto"):
        code, out, err = infer(capsys, model, shards, "--clusters", 40, "--set", "batch_size=2", "--set",
                               f"aggregation={way}", "--repeat", 2, "--out", shared_path / f"{way}.h5")
        assert code == 0, err
        assert "batches: 20 with" in out and f"of {dataset.num_edges:,} edges" in out
        assert "as codes of " in out and "between layers" not in out      # what batches have there is not counted
        assert ("tiles took 40 of 40 sums" in out) == (way == "tiles")
        found.append(on_rank_zero(comm, lambda path=shared_path / f"{way}.h5": read_predictions(path)))
    assert all(one.logits.tobytes() == found[0].logits.tobytes() for one in found)
    assert found[0].logits.tobytes() == alone(dataset, shared_path, kind).tobytes()


def alone(dataset, folder, kind):
    """Logits of one rank, computed by every rank for itself."""
    from hpcgnn.lowbit.inference.dealt import DealtBatches, DealtRun
    from hpcgnn.lowbit.inference.input_rows import StoredPart
    from hpcgnn.lowbit.inference.run import IntegerRun
    from hpcgnn.shards.reader import read_graph_info

    shards = on_rank_zero(MPI.COMM_WORLD, lambda: write(dataset, random_owner(dataset, 1), 1, folder / "alone"))
    info = read_graph_info(shards)
    run = IntegerRun.open(MPI.COMM_SELF, some_model(kind), StoredPart.read(MPI.COMM_SELF, shards, info), info)
    codes = run.rows.coded(run.model.convolutions[0].rows, run.in_degree).coded().codes
    dealt = DealtBatches.deal(MPI.COMM_SELF, run.part, 40, 2)
    logits, _ = DealtRun(dealt, run.model, codes, run.in_degree, "gather").forward()
    out = logits.copy()
    out[run.part.inner_id] = logits
    return out


@pytest.mark.parallel([1, 2])
@pytest.mark.parametrize("flags, words", [(["--clusters", 0], "0 is not in the range"),
                                          (["--clusters", 4, "--set", "aggregation=dense"], "'dense' is not one of"),
                                          (["--set", "batch_size=4"], "add --clusters"),
                                          (["--clusters", 4, "--packages", "p"], "leave --clusters out"),
                                          (["--clusters", 4, "--set", "pack_features=true"], "leave --clusters out"),
                                          (["--set", "aggregation=tiles"], "add --clusters")])
def test_batches_that_can_not_be_are_refused(flags, words, shared_path, capsys):
    code, _, err = infer(capsys, "model.h5", "shards", *flags)
    assert code == 2 and words in err
