"""Environment variables of thread pools, to be set before NumPy and torch load."""

from __future__ import annotations

THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
# Kernels, torch and OpenBLAS each have a thread pool on the same cores, so a waiting thread must sleep. It spins for
# about 10 us first: a step has thousands of short parallel regions, and waking a thread costs as much as one of them.
WAITING = {"OMP_WAIT_POLICY": "PASSIVE", "GOMP_SPINCOUNT": "10000", "OPENBLAS_THREAD_TIMEOUT": "10"}
