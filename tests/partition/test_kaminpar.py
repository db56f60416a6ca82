"""KaMinPar in a process of its own: its parts, and that every fault of it is a sentence."""

import io
import os
import sys

import numpy as np
import pytest
from reference_partition import random_dataset

from hpcgnn.errors import ConfigError
from hpcgnn.partition import kaminpar
from hpcgnn.partition.kaminpar import kaminpar_parts, write_parhip


def test_file_has_header_offsets_lists_and_weights(monkeypatch):
    monkeypatch.setattr(kaminpar, "BLOCK", 2)
    for weight in (None, np.array([5, 6, 7])):
        file = io.BytesIO()
        write_parhip(file, np.array([0, 1, 3, 4]), np.array([1, 0, 2, 1], np.int32), weight)
        data = file.getvalue()
        assert np.frombuffer(data[:24], np.uint64).tolist() == [1 + 8 + (2 if weight is None else 0), 3, 4]
        start = 24 + 4 * 8
        assert np.frombuffer(data[24:start], np.uint64).tolist() == [start, start + 4, start + 12, start + 16]
        assert np.frombuffer(data[start:start + 16], np.uint32).tolist() == [1, 0, 2, 1]
        assert np.frombuffer(data[start + 16:], np.int64).tolist() == ([] if weight is None else [5, 6, 7])


@pytest.mark.parametrize("num_parts", [2, 3, 20])
def test_parts_are_even_in_weight_and_seeded(num_parts):
    graph = random_dataset(1000, 5000, seed=1)
    weight = graph.in_degree() + 3
    part = kaminpar_parts(graph.indptr, graph.indices, num_parts, 7, weight)
    load = np.bincount(part, weights=weight, minlength=num_parts)
    assert part.dtype == np.int32 and load.max() <= 1.04 * weight.sum() / num_parts
    np.testing.assert_array_equal(part, kaminpar_parts(graph.indptr, graph.indices, num_parts, 7, weight))
    assert (part != kaminpar_parts(graph.indptr, graph.indices, num_parts, 8, weight)).any()


def test_missing_library_is_a_sentence(monkeypatch):
    monkeypatch.setattr(kaminpar.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match="KaMinPar is not installed, so it can't partition web; pip install kaminpar, "
                                          "or use --partitioner metis"):
        kaminpar_parts(np.array([0, 1, 2]), np.array([1, 0]), 2, 0, name="web")


@pytest.mark.parametrize("program, reason", [
    ("import sys; sys.exit('out of luck')", "out of luck"),
    ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "its process ended with status -11"),
    ("", "its process ended with status 0"),
])
def test_process_that_fails_is_a_sentence(monkeypatch, tmp_path, program, reason):
    (tmp_path / "program.py").write_text(program)
    monkeypatch.setattr(kaminpar, "PROGRAM", tmp_path / "program.py")
    with pytest.raises(ConfigError, match=rf"KaMinPar could not partition web \({reason}\); use less"):
        kaminpar_parts(np.array([0, 1, 2]), np.array([1, 0]), 2, 0, name="web", advice="use less")


@pytest.mark.skipif(sys.platform != "linux", reason="needs a device that is always full")
def test_full_disk_is_a_sentence(monkeypatch):
    monkeypatch.setattr(kaminpar.tempfile, "TemporaryFile", lambda: os.fdopen(os.open("/dev/full", os.O_WRONLY), "wb"))
    with pytest.raises(ConfigError, match="which can't be written: No space left on device; set TMPDIR to a folder"):
        kaminpar_parts(np.array([0, 1, 2]), np.array([1, 0]), 2, 0)
