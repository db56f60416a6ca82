"""build_partition against a brute-force oracle."""

from __future__ import annotations

import numpy as np
import pytest
from reference_partition import arcs_of, expected_partition, random_dataset

from hpcgnn.errors import ConfigError
from hpcgnn.partition import partition as halo
from hpcgnn.partition.build import build_partition
from hpcgnn.partition.partition import find_halos, measure_partition

DTYPES = {"inner_id": np.int64, "halo_id": np.int64, "halo_offset": np.int64, "boundary_index": np.int32,
          "boundary_offset": np.int64, "indptr": np.int64, "indices": np.int32, "in_degree": np.int32,
          "importance": np.float32, "features": np.float32,
          "train_mask": np.bool_, "val_mask": np.bool_, "test_mask": np.bool_}


def assert_matches_oracle(dataset, owner, part, num_parts, partition):
    for name, expected in expected_partition(dataset, owner, part, num_parts).items():
        np.testing.assert_array_equal(getattr(partition, name), expected, err_msg=name)
    for name, dtype in DTYPES.items():
        assert getattr(partition, name).dtype == dtype, name


@pytest.mark.parametrize("num_parts", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("directed", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_every_array_of_every_part_equals_the_oracle(num_parts, directed, seed):
    dataset = random_dataset(30, [0, 15, 60, 300][seed], seed, directed, multi_label=seed % 2 == 1, sparse=seed == 2)
    owner = np.random.default_rng(seed).integers(0, num_parts, 30).astype(np.int32)
    halos = find_halos(dataset, owner, num_parts)
    for part in range(num_parts):
        assert_matches_oracle(dataset, owner, part, num_parts, build_partition(dataset, owner, part, num_parts, halos))


def test_blocks_of_few_arcs_give_the_same_part(monkeypatch):
    dataset = random_dataset(40, 200, seed=5, directed=True)
    owner = np.arange(40, dtype=np.int32) % 3
    monkeypatch.setattr(halo, "EDGES_PER_BLOCK", 3)
    for part in range(3):
        assert_matches_oracle(dataset, owner, part, 3, build_partition(dataset, owner, part, 3))


def test_empty_part_has_no_rows_but_whole_offsets():
    dataset = random_dataset(20, 60, seed=2)
    owner = np.array([0, 2], np.int32)[np.arange(20) % 2]
    part = build_partition(dataset, owner, 1, 3)
    assert_matches_oracle(dataset, owner, 1, 3, part)
    assert part.num_inner == part.num_halo == 0
    assert part.features.shape == (0, 3) and part.indptr.tolist() == [0]


def test_statistics_add_up_over_parts():
    dataset = random_dataset(80, 300, seed=9)
    owner = np.random.default_rng(9).integers(0, 4, 80).astype(np.int32)
    table = [measure_partition(build_partition(dataset, owner, p, 4)) for p in range(4)]
    cut = sum(owner[u] != owner[v] for u, v in arcs_of(dataset))
    assert sum(row.num_inner for row in table) == 80
    assert sum(row.num_edges for row in table) == dataset.num_edges
    assert sum(row.num_cut_edges for row in table) == cut
    assert sum(row.num_sent for row in table) == sum(row.num_halo for row in table)
    assert sum(row.imbalance for row in table) == pytest.approx(4)


@pytest.mark.parametrize("owner, part, complaint", [
    (np.zeros(9, np.int32), 0, "one entry for each of 10 nodes"),
    (np.full(10, 2, np.int32), 0, "parts run from 0 to 1"),
    (np.full(10, -1, np.int32), 0, "parts run from 0 to 1"),
    (np.zeros(10, np.int32), 2, "part 2 does not exist"),
])
def test_owner_that_does_not_fit_is_refused(owner, part, complaint):
    with pytest.raises(ConfigError, match=complaint):
        build_partition(random_dataset(10, 20), owner, part, 2)
