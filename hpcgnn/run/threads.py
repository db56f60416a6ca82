"""Environment variables of the thread pools in one process. They must be set before NumPy and torch load, so nothing
here imports either, or MPI.
"""

from __future__ import annotations

THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
# The kernels, torch and OpenBLAS bring a pool of threads each, on the same cores: one that waits must sleep, and spin
# for some 10 us before, since steps have thousands of short regions, and to wake a thread costs as much as they do.
WAITING = {"OMP_WAIT_POLICY": "PASSIVE", "GOMP_SPINCOUNT": "10000", "OPENBLAS_THREAD_TIMEOUT": "10"}
