"""Which function computes an operation, by the device of its rows."""

from __future__ import annotations

import pytest
import torch

from hpcgnn.errors import KernelError
from hpcgnn.ops import cuda, pointwise
from hpcgnn.ops.dispatch import device_kernels, device_kernels_on_cpu

CPU = torch.device("cpu")


def test_cpu_tensors_are_computed_by_the_host_but_inside_an_emulation():
    operation = pointwise._dropout
    assert operation.on(CPU) is operation.host
    with device_kernels_on_cpu():
        from hpcgnn.ops.cuda import pointwise as device_side

        assert operation.on(CPU) is device_side.dropout
        with device_kernels_on_cpu():
            assert operation.on(CPU) is device_side.dropout
        assert operation.on(CPU) is device_side.dropout
    assert operation.on(CPU) is operation.host


def test_an_operation_that_a_device_lacks_is_refused_in_one_sentence(monkeypatch):
    monkeypatch.setattr(cuda, "__path__", [])
    with device_kernels_on_cpu(), pytest.raises(KernelError, match="nothing has no kernel for device cpu"):
        device_kernels("nothing", CPU)


def test_a_module_that_can_not_import_its_own_needs_says_so(monkeypatch, tmp_path):
    """A kernel room without cupy, say, must not be mistaken for a missing kernel."""
    (tmp_path / "needy.py").write_text("import a_library_that_is_not_here\n")
    monkeypatch.setattr(cuda, "__path__", [str(tmp_path)])
    with device_kernels_on_cpu(), pytest.raises(ModuleNotFoundError, match="a_library_that_is_not_here"):
        device_kernels("needy", CPU)
