"""The instruction set is the one asked for, or the start is refused."""

from types import SimpleNamespace

import pytest

from hpcgnn._ext import simd as kernels
from hpcgnn.errors import KernelError
from hpcgnn.ops.simd import LEVELS, simd_level


def test_the_best_level_is_taken_where_none_is_forced(monkeypatch):
    monkeypatch.delenv("HPCGNN_SIMD", raising=False)
    assert simd_level() == LEVELS[kernels.supported_level()]


def test_a_forced_level_is_taken(simd):
    assert simd_level() == simd


@pytest.mark.parametrize("name", ["sse9", "AVX2", ""])
def test_an_unknown_level_is_refused(monkeypatch, name):
    monkeypatch.setenv("HPCGNN_SIMD", name)
    with pytest.raises(KernelError, match=r"HPCGNN_SIMD is .*this processor and build have portable"):
        simd_level()


def test_a_level_that_the_processor_lacks_is_refused(monkeypatch):
    monkeypatch.setattr("hpcgnn.ops.simd.kernels", SimpleNamespace(supported_level=lambda: 0))
    monkeypatch.setenv("HPCGNN_SIMD", "avx2")
    with pytest.raises(KernelError, match=r"have portable$"):
        simd_level()
