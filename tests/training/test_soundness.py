"""A training that ended far above where it began is told so; one that fell, or ended early, is not."""

from __future__ import annotations

import pytest

from hpcgnn.training.epoch_trace import remark_on_divergence


@pytest.mark.parametrize("losses, is_said", [
    ([1.5, 8e12, 1e11, 1.6e11, 1.6e11], True), ([1.5, 1.2, 0.9, 0.8], False), ([1.5, 9.0, 1.6, 1.4], False),
    ([1.5, 9.0], False), ([1.5, 1.6, 1.7, 1.8], False), ([-1.0, 2.0, 3.0, 4.0], False)])
def test_divergence(losses, is_said):
    sentence = remark_on_divergence(losses, 1e6)
    assert (sentence is not None) == is_said
    assert not is_said or "try a lower --lr than 1e+06" in sentence
