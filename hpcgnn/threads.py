"""Environment variables of the thread pools in one process. They must be set before NumPy and torch load, so nothing
here imports either, or MPI.
"""

from __future__ import annotations

THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
# The kernels, torch and OpenBLAS bring a pool of threads each, on the same cores: one that waits must sleep, not spin.
WAITING = {"OMP_WAIT_POLICY": "PASSIVE", "OPENBLAS_THREAD_TIMEOUT": "10"}
