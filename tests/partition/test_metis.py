"""METIS, signals and threads: what ends a job must end it, not its partition, and bars move meanwhile."""

import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace

import numpy as np
import pymetis
import pytest
from reference_partition import random_dataset

from hpcgnn.errors import ConfigError
from hpcgnn.partition import metis
from hpcgnn.partition.metis import metis_parts

PARTITION = """
import time
import numpy as np
from hpcgnn.partition.metis import metis_parts
rng = np.random.default_rng(0)
num_nodes, num_edges = 60_000, 480_000
one, other = rng.integers(0, num_nodes, num_edges), rng.integers(0, num_nodes, num_edges)
source, target = np.concatenate([one, other]), np.concatenate([other, one])
order = np.argsort(source, kind="stable")
indptr = np.concatenate([[0], np.cumsum(np.bincount(source, minlength=num_nodes))])
print("start", flush=True)
metis_parts(indptr, target[order], 4, "cut", 0)
print("partitioned", flush=True)
time.sleep(60)
"""


@pytest.mark.parametrize("threads, status", [
    ("1", {-signal.SIGTERM}), pytest.param("2", {-signal.SIGTERM, -signal.SIGSEGV}, marks=pytest.mark.long)])
def test_sigterm_within_metis_ends_the_process_and_not_just_the_partition(threads, status):
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": threads}
    with subprocess.Popen([sys.executable, "-c", PARTITION], env=environment, stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "start\n"
        time.sleep(0.3)                 # METIS takes longer; if it did not, the signal would end the sleep after it
        process.send_signal(signal.SIGTERM)
        printed, said = process.communicate(timeout=120)
    assert process.returncode in status
    assert (printed, said) == ("", "")


@pytest.mark.parametrize("objective", ["volume", "cut"])
@pytest.mark.parametrize("num_parts", [2, 7])
@pytest.mark.parametrize("is_weighted", [False, True])
def test_parts_are_those_of_pymetis(objective, num_parts, is_weighted):
    graph = random_dataset(500, 3000, seed=4)
    index = np.dtype(pymetis.zero_copy_dtype())
    weight = graph.in_degree().astype(index) if is_weighted else None
    options = pymetis.Options(objtype={"volume": pymetis.ObjType.VOL, "cut": pymetis.ObjType.CUT}[objective], seed=5)
    expected = pymetis.part_graph(num_parts, pymetis.CSRAdjacency(graph.indptr.astype(index),
                                                                  graph.indices.astype(index)),
                                  options=options, vweights=weight, recursive=False).vertex_part
    found = metis_parts(graph.indptr, graph.indices, num_parts, objective, 5, weight)
    assert found.dtype == np.int32
    np.testing.assert_array_equal(found, expected)


def test_other_threads_run_while_metis_does():
    """Progress bars are drawn by one."""
    graph = random_dataset(20_000, 200_000, seed=1)
    ticks, is_over = [], threading.Event()

    def tick():
        while not is_over.wait(0.005):
            ticks.append(time.monotonic())

    thread = threading.Thread(target=tick)
    thread.start()
    start = time.monotonic()
    metis_parts(graph.indptr, graph.indices, 4, "cut", 0)
    end = time.monotonic()
    is_over.set()
    thread.join()
    within = sum(start < at < end for at in ticks)
    assert within > 5, f"{within} ticks in {end - start:.2f} s"


def test_a_graph_that_metis_gives_up_on_is_a_sentence(monkeypatch):
    monkeypatch.setattr(metis, "_find_function", lambda: lambda *_: -3)
    with pytest.raises(ConfigError, match=r"METIS could not partition web \(it has not enough memory\); use less"):
        metis_parts(np.array([0, 1, 2]), np.array([1, 0]), 2, "cut", 0, name="web", advice="use less")


def test_a_library_that_keeps_metis_to_itself_is_called_through_pymetis(monkeypatch):
    graph = random_dataset(300, 1500, seed=4)
    expected = metis_parts(graph.indptr, graph.indices, 3, "cut", 5)
    monkeypatch.setattr(metis, "_find_function", lambda: None)
    np.testing.assert_array_equal(metis_parts(graph.indptr, graph.indices, 3, "cut", 5), expected)


def test_parallel_edges_are_one_neighbor():
    plain = random_dataset(30, 60, seed=1)
    twice = replace(plain, indptr=2 * plain.indptr, indices=np.repeat(plain.indices, 2))
    for found, expected in zip(metis.symmetric_adjacency(twice), metis.symmetric_adjacency(plain), strict=True):
        np.testing.assert_array_equal(found, expected)
