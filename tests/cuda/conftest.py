"""The device that kernels' tests run on: a GPU where torch and cupy have one, else the emulation."""

from __future__ import annotations

import importlib.util
import shutil

import pytest
import torch
from cuda.emulation import COMPILER, EmulatedBackend

from hpcgnn.ops.cuda.module import use_backend

HAS_GPU = torch.cuda.is_available() and importlib.util.find_spec("cupy") is not None
# Seeds; 0 is ascending. A race is reported in any order, so one shuffled order is enough where results aren't compared.
BLOCK_ORDERS = (1, *(pytest.param(seed, marks=pytest.mark.long) for seed in (0, 2)))
both_orders = pytest.mark.parametrize("device", [0, 1], indirect=True)      # ascending and shuffled


def need_compiler():
    """Skip where nothing can compile the emulation."""
    if shutil.which(COMPILER) is None:
        pytest.skip(f"{COMPILER} is not installed: kernels can't be emulated")


@pytest.fixture(params=BLOCK_ORDERS)
def emulated(request):
    """The emulating backend, in use: the test runs once an order of blocks and warps."""
    need_compiler()
    with use_backend(EmulatedBackend(request.param)) as backend:
        yield backend


@pytest.fixture(params=["cuda"] if HAS_GPU else BLOCK_ORDERS)
def device(request):
    """Where tensors live: "cuda", or "cpu" with kernels emulated, once an order of blocks and warps."""
    if HAS_GPU:
        yield "cuda"
        return
    need_compiler()
    with use_backend(EmulatedBackend(request.param)):
        yield "cpu"


@pytest.fixture(scope="module")
def first_results():
    """What a test finds in whichever order of blocks runs first, by its own keys."""
    return {}
