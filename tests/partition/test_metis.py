"""METIS and signals: what ends a job must end it, not its partition."""

import os
import signal
import subprocess
import sys
import time

import pytest

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


@pytest.mark.parametrize("threads, status", [("1", {-signal.SIGTERM}), ("2", {-signal.SIGTERM, -signal.SIGSEGV})])
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
