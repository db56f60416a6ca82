"""The choice follows its costs: a dense batch takes tiles, a sparse one gathers. No clock is asserted."""

from __future__ import annotations

import numpy as np
import pytest

from hpcgnn.errors import ConfigError
from hpcgnn.lowbit.inference import tile_costs as batch_costs
from hpcgnn.lowbit.inference.tile_costs import (
    FITTED_DIMS,
    AggregationCosts,
    BatchShapes,
    choose,
    fit_costs,
    machine_costs,
)
from hpcgnn.ops import simd

# Nanoseconds: 1 an entry and 0.5 a vector of it; 3000 a batch, 0.1 a sum, 10 a panel.
COSTS = AggregationCosts(np.array([5, 2, 1, 0.5]), np.array([3000, 0.1, 0.05, 10]))
SPARSE = (2000, 8000, 3000)       # rows, entries, tiles
DENSE = (2000, 600_000, 4000)


def shapes_of(*batches):
    return BatchShapes(*np.array(batches, np.int64).T)


def test_the_faster_side_of_the_costs_is_always_taken():
    rng = np.random.default_rng(0)
    shapes = shapes_of(*rng.integers(1, 10_000, (200, 3)).tolist())
    for dim, bits in ((1, 1), (33, 3), (64, 8)):
        gather, tiles = shapes.gather_terms(dim) @ COSTS.gather, shapes.tile_terms(dim, bits) @ COSTS.tiles
        taken = np.where(choose("auto", shapes, dim, bits, COSTS), tiles, gather)
        np.testing.assert_array_equal(taken, np.minimum(tiles, gather))


@pytest.mark.parametrize("way", ["tiles", "gather"])
def test_a_forced_choice_needs_no_costs(way, monkeypatch):
    monkeypatch.setattr(batch_costs, "machine_costs", None)
    assert choose(way, shapes_of(SPARSE, DENSE), 16, 4).tolist() == [way == "tiles"] * 2


def test_another_word_is_refused():
    with pytest.raises(ConfigError, match="'dense'; expected one of auto, tiles, gather"):
        choose("dense", shapes_of(SPARSE), 16, 4, COSTS)


def test_a_fit_finds_the_costs_that_made_the_seconds():
    rng = np.random.default_rng(1)
    shapes = shapes_of(*rng.integers(1, 10_000, (30, 3)).tolist())
    terms = np.concatenate([shapes.tile_terms(dim, bits) for dim in (16, 64) for bits in (2, 8)])
    np.testing.assert_allclose(fit_costs(terms, terms @ COSTS.tiles), COSTS.tiles, rtol=1e-6)


def test_a_fit_of_noise_is_never_negative():
    rng = np.random.default_rng(2)
    assert (fit_costs(rng.uniform(0, 1, (9, 4)), rng.uniform(1e-6, 1e-3, 9)) >= 0).all()


def test_the_machine_is_measured_once_and_its_costs_are_usable(monkeypatch):
    batch_costs._measured.cache_clear()
    calls = []
    clock = iter(np.arange(1, 10**6) * 1e-4)
    monkeypatch.setattr(simd.time, "perf_counter", lambda: calls.append(1) or next(clock))
    costs = machine_costs()
    num_calls = len(calls)
    assert num_calls and machine_costs() is costs and len(calls) == num_calls
    for side in (costs.gather, costs.tiles):
        assert side.shape == (4,) and (side >= 0).all() and side.any()
    batch_costs._measured.cache_clear()


def test_products_of_the_fit_leave_no_term_undetermined():
    batches = [batch_costs._random_batches(*sizes, np.random.default_rng(0))[0]
               for sizes in batch_costs.FITTED_BATCHES]
    shapes = [BatchShapes.of(tiles) for tiles in batches]
    gather = np.array([one.gather_terms(dim).sum(axis=0) for one in shapes for dim in FITTED_DIMS])
    tiles = np.array([one.tile_terms(dim, bits).sum(axis=0) for one in shapes for dim in FITTED_DIMS
                      for bits in batch_costs.FITTED_WIDTHS])
    assert np.linalg.matrix_rank(gather / gather.max(axis=0)) == 4
    assert np.linalg.matrix_rank(tiles / tiles.max(axis=0)) == 4
