"""Which rows a training rotates: those of the method's choice, or of the user's."""

from __future__ import annotations

import pytest
from mpi4py import MPI
from training_setup import train

COMM = MPI.COMM_WORLD


@pytest.mark.parallel([2])
@pytest.mark.parametrize("method, bits, hidden, is_rotated", [
    ("uniform", 1, 8, True), ("uniform", 1, 7, False), ("uniform", 8, 32, False)])
def test_a_method_rotates_rows_of_few_bits_that_are_wide_enough(shared_path, shards, method, bits, hidden, is_rotated):
    """A rotated row has 2 bytes of parameters, an affine one 4; the last layer's rows are narrow."""
    settings = {"method": method, "bits": bits, "hidden": hidden, "layers": 3, "epochs": 2}
    sent = {}
    for code in ("auto", "affine", "rotated"):
        _, metrics, _ = train(COMM, shards, shared_path / code, code=code, **settings)
        sent[code] = metrics[0]["sent_bytes_parameters"]
    assert sent["rotated"] * 2 == sent["affine"]
    assert (sent["auto"] < sent["affine"]) is is_rotated and sent["auto"] >= sent["rotated"]


@pytest.mark.parallel([2])
@pytest.mark.parametrize("method, is_rotated", [("sylvie", True), ("joint", True), ("sylvie-paper", False),
                                                ("adaqp", False), ("random", False)])
def test_methods_of_the_papers_have_the_papers_codes(shared_path, shards, method, is_rotated):
    sent = {}
    for code in ("auto", "affine"):
        _, metrics, _ = train(COMM, shards, shared_path / code, code=code, method=method, hidden=32, layers=3, epochs=1)
        sent[code] = metrics[0]["sent_bytes_parameters"]
    assert (sent["auto"] < sent["affine"]) is is_rotated
