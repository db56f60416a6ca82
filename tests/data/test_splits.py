import numpy as np
import pytest

from hpcgnn.data.assemble import masks_from_ids, random_split
from hpcgnn.data.options import SourceOptions
from hpcgnn.errors import DatasetError


@pytest.mark.parametrize("num_nodes", [5, 10, 97, 1000])
def test_the_default_split_is_one_permutation_cut_at_60_and_80_percent(num_nodes):
    order = np.random.default_rng(0).permutation(num_nodes)
    first, second = int(0.6 * num_nodes), int(0.8 * num_nodes)
    masks = random_split(np.zeros(num_nodes, dtype=np.int64), SourceOptions())
    for mask, expected in zip(masks, (order[:first], order[first:second], order[second:]), strict=True):
        assert np.flatnonzero(mask).tolist() == sorted(expected)


def test_a_node_without_a_label_is_in_no_split():
    labels = np.array([0, -1, 1, -1, 2, 0, 1])
    train, val, test = random_split(labels, SourceOptions())
    assert ((train | val | test) == (labels >= 0)).all()


def test_another_seed_gives_another_split():
    labels = np.zeros(50, dtype=np.int64)
    assert (random_split(labels, SourceOptions(seed=1))[0] != random_split(labels, SourceOptions(seed=2))[0]).any()


@pytest.mark.parametrize("bad", [10, -1])
def test_a_split_that_names_a_missing_node_is_refused(bad):
    with pytest.raises(DatasetError, match=f"g has node {bad} in its validation split"):
        masks_from_ids((np.array([0]), np.array([1, bad]), np.array([2])), 10, "g")
