"""Random generators of torch, NumPy and Python with the same state on all ranks in each step.

A model that skips a whole layer, or masks columns, draws from a generator. The generator's state is a function of seed,
epoch and step, like all other draws, so all ranks draw alike and a resumed run continues with the same draws. A
user's own draws before and after a step are not disturbed.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import nn

# Found once per model, in its first pass.
_HELD: WeakKeyDictionary[nn.Module, list] = WeakKeyDictionary()


@contextmanager
def alike_draws(model: nn.Module, *key: int) -> Iterator[None]:
    """Within the block, the global generators and those in the model's modules follow `key`: seed, epoch and step."""
    if type(model).__module__.startswith("hpcgnn.nn."):      # hpcgnn's models don't draw from generators
        yield
        return
    seed = int.from_bytes(hashlib.blake2b(repr(key).encode(), digest_size=4).digest(), "little")
    if model not in _HELD:
        _HELD[model] = _held_by(model)
    for generator in _HELD[model]:
        _set(generator, seed)
    python, numpy = random.getstate(), np.random.get_state()  # noqa: NPY002
    with ExitStack() as stack:
        stack.callback(random.setstate, python)
        stack.callback(np.random.set_state, numpy)
        for generator in _of_torch():
            stack.callback(generator.set_state, generator.get_state())
            generator.manual_seed(seed)
        random.seed(seed)
        np.random.seed(seed)  # noqa: NPY002
        yield


def _of_torch() -> list[torch.Generator]:
    return [torch.default_generator, *(torch.cuda.default_generators if torch.cuda.is_initialized() else ())]


def _held_by(model: nn.Module) -> list:
    kinds = torch.Generator, np.random.Generator, np.random.RandomState, random.Random
    return [value for module in model.modules() for value in vars(module).values() if isinstance(value, kinds)]


def _set(generator: torch.Generator | np.random.Generator | np.random.RandomState | random.Random, seed: int) -> None:
    if isinstance(generator, torch.Generator):
        generator.manual_seed(seed)
    elif isinstance(generator, np.random.Generator):
        generator.bit_generator.state = type(generator.bit_generator)(seed).state
    else:
        generator.seed(seed)
