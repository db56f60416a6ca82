"""Bytes of rows by method, against the layout that trainings use, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest
from planning_setup import parse_method

from hpcgnn.config import TrainConfig, settings_of
from hpcgnn.errors import ConfigError
from hpcgnn.ops.counter import BACKWARD, FORWARD
from hpcgnn.ops.quantization import MessageLayout
from hpcgnn.planning.messages import messages_of
from hpcgnn.planning.model import Exchange, ModelSize
from hpcgnn.training.session import rotated_rows
from hpcgnn.widths import BIT_WIDTHS


def size_of(precision="fp32"):
    return ModelSize("sage", 12, 8, 4, 3, precision=precision)


@pytest.mark.parametrize("is_backward", [False, True])
@pytest.mark.parametrize("dim", [1, 7, 8, 41, 256])
@pytest.mark.parametrize("bits", BIT_WIDTHS)
def test_a_row_has_the_bytes_of_its_layout(bits, dim, is_backward):
    rotated, least = rotated_rows(TrainConfig.of(method="uniform", bits=bits))
    is_rotated = (BACKWARD if is_backward else FORWARD) in rotated and dim >= least
    layout = MessageLayout.build(np.full(5, bits, np.uint8), dim, "rotated" if is_rotated else "affine")
    messages = parse_method(f"uniform:{bits}", size_of())
    assert 5 * messages.row_bytes(Exchange(1, is_backward, dim, 2)) == layout.num_bytes


@pytest.mark.parametrize("precision, bits", [("fp32", 32), ("bf16", 16)])
@pytest.mark.parametrize("name", ["vanilla", "pipegcn", "bns"])
def test_rows_travel_as_they_are_stored(name, precision, bits):
    messages = parse_method(name, size_of(precision))
    assert messages.bits == bits and messages.row_bytes(Exchange(1, False, 10, 2)) == 10 * bits // 8
    assert messages.is_asynchronous == (name == "pipegcn") and messages.is_exact == (name != "bns")
    assert messages.share == (0.1 if name == "bns" else 1.0)


@pytest.mark.parametrize("text, says", [
    ("uniform", "needs its bits, as in uniform:8"), ("uniform:3", "bits '3'; expected one of 1, 2, 4, 8, 16, 32"),
    ("uniform:", "bits ''"), ("vanilla:8", "write uniform:BITS"), ("fast", "found 'fast'")])
def test_nonsense_is_refused_in_a_sentence(text, says):
    with pytest.raises(ConfigError, match=says):
        parse_method(text, size_of())


@pytest.mark.parametrize("name, widths", [("random", (2, 8)), ("sancus", (0, 32)), ("sylvie", (1, 8)),
                                          ("adaqp", (2, 8)), ("sylvie-paper", (1, 8)), ("joint", (1, 8))])
def test_methods_that_decide_while_they_train_have_a_least_and_a_most(name, widths):
    messages = parse_method(name, size_of())
    assert (messages.narrowest.bits, messages.bits) == widths and not messages.is_exact
    bits = {"widths": "4"} if "widths" in settings_of(TrainConfig.of(method=name)) else None
    assert bits is None or messages_of(name, TrainConfig.of(method=name, **bits), size_of()).is_exact


def test_another_model_is_refused_with_a_way_out():
    with pytest.raises(ConfigError, match="not my:Own; run mpirun -n P hpcgnn train SHARDS --dry-run"):
        ModelSize("my:Own", 12, 8, 4, 3)
