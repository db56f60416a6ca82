"""The smallest set of sources and targets that touches all arcs, against a search through all sets."""

import itertools

import numpy as np
import pytest
import scipy.sparse
import scipy.sparse.csgraph

from hpcgnn.partition.vertex_cover import minimum_vertex_cover


def smallest_size(pairs: list[tuple[int, int]], num_sources: int, num_targets: int) -> int:
    """Rows and columns of the smallest cover, found by trying all of them."""
    ends = [("source", row) for row in range(num_sources)] + [("target", column) for column in range(num_targets)]
    for size in range(len(ends) + 1):
        for chosen in itertools.combinations(ends, size):
            if all(("source", row) in chosen or ("target", column) in chosen for row, column in pairs):
                return size
    raise AssertionError("all of them are a cover")


def matrix_of(pairs, num_sources, num_targets):
    rows, columns = np.array(pairs, int).reshape(-1, 2).T
    return scipy.sparse.csr_matrix((np.ones(len(rows), bool), (rows, columns)), shape=(num_sources, num_targets))


@pytest.mark.parametrize("seed", range(40))
def test_no_smaller_set_touches_every_arc(seed):
    rng = np.random.default_rng(seed)
    num_sources, num_targets = rng.integers(1, 6, 2).tolist()
    pairs = [pair for pair in itertools.product(range(num_sources), range(num_targets)) if rng.random() < rng.random()]
    has_source, has_target = minimum_vertex_cover(matrix_of(pairs, num_sources, num_targets))
    assert has_source.shape == (num_sources,) and has_target.shape == (num_targets,)
    assert all(has_source[row] or has_target[column] for row, column in pairs)
    assert has_source.sum() + has_target.sum() == smallest_size(pairs, num_sources, num_targets)


@pytest.mark.parametrize("pairs, sources, targets", [
    ([(0, 0), (0, 1), (0, 2)], [True], [False, False, False]),              # one goes to many: it is sent
    ([(0, 0), (1, 0), (2, 0)], [False, False, False], [True]),              # many go to one: their sum is
    ([(0, 0), (1, 0), (2, 1), (2, 2)], [False, False, True], [True, False, False]),
    ([], [False, False], [False]),
])
def test_a_star_is_covered_by_its_center(pairs, sources, targets):
    has_source, has_target = minimum_vertex_cover(matrix_of(pairs, len(sources), len(targets)))
    assert has_source.tolist() == sources and has_target.tolist() == targets


def test_parts_of_any_size_have_one_end_of_each_matched_pair():
    arcs = scipy.sparse.random(3000, 2500, density=0.001, random_state=np.random.default_rng(0), format="csr")
    has_source, has_target = minimum_vertex_cover(arcs)
    rows, columns = arcs.nonzero()
    assert np.all(has_source[rows] | has_target[columns])
    match = scipy.sparse.csgraph.maximum_bipartite_matching(arcs, perm_type="column")
    assert has_source.sum() + has_target.sum() == (match >= 0).sum()
