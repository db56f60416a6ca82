"""The number of threads."""

from __future__ import annotations

import pytest
import torch


@pytest.fixture
def threads():
    """threads(number) sets the threads of torch and of the kernels, which share one OpenMP."""
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)
