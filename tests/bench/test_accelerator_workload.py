"""Workloads of bench accelerator: counts are of the codes that a model reads, arcs and means are the model's."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse

from hpcgnn.accelerators.workload import NUM_SLICES, FeatureCounts, Product, Workload
from hpcgnn.bench import accelerator_workload as built
from hpcgnn.bench.float_networks import FloatBatches, integer_model, random_stack
from hpcgnn.bench.inference_host import bit_rows
from hpcgnn.bench.inference_work import BatchedGraph
from hpcgnn.data.options import SourceOptions
from hpcgnn.data.source import load_source
from hpcgnn.errors import ConfigError
from hpcgnn.lowbit.package import encode


@pytest.fixture(scope="module")
def dataset():
    return load_source("synthetic:nodes=60,mean_degree=5,features=10,classes=3,seed=3", SourceOptions())


def model_of(dataset, kind, bits=3, hidden=9):
    work = BatchedGraph.whole(dataset)
    stack, seen = random_stack(kind, [work.features.shape[1], hidden, work.num_classes], hidden), []
    FloatBatches(stack, work.batches, work.features).forward(seen)
    return integer_model(stack, bits, seen, work.name)


def test_counts_of_packages_are_those_of_their_codes():
    rng = np.random.default_rng(0)
    codes = rng.integers(0, 3, (7, 10)).astype(np.uint8)
    codes[3] = 0
    width = rng.integers(2, 9, 7).astype(np.uint8)
    counts = built.counts_of_packages(encode(codes, width))
    expected = [[np.count_nonzero(row[first:first + 3]) for first in (0, 3, 6, 9)] for row in codes]
    assert counts.nonzeros.tolist() == expected and counts.dim == 10
    assert counts.bit_width.tolist() == [1 if row == 3 else width[row] for row in range(7)]


@pytest.mark.parametrize("kind, shape", [
    ("gcn", [(10, 9, 9), (9, 3, 3)]),
    ("sage", [(10, 18, 9), (9, 6, 3)]),
    ("gin", [(10, 9, 9), (9, 9, 0), (9, 9, 9), (9, 3, 0)]),
])
def test_a_trained_model_has_a_product_for_each_map(dataset, kind, shape):
    workload = built.trained_workload(BatchedGraph.whole(dataset), model_of(dataset, kind), "drawn")
    found = [(product.rows.dim, product.combined_dim, product.aggregated_dim) for product in workload.products]
    assert found == shape and workload.num_nodes == 60
    assert all(product.rows.row_nonzeros().sum() > 0 for product in workload.products)
    assert all((product.rows.bit_width == 3).sum() + (product.rows.row_nonzeros() == 0).sum() >= 60
               for product in workload.products)


def test_the_first_product_reads_the_features_themselves(dataset):
    """At 8 bits no feature of the largest ones of its row becomes zero, and a zero stays one."""
    workload = built.trained_workload(BatchedGraph.whole(dataset), model_of(dataset, "gcn", bits=8), "drawn")
    part = BatchedGraph.whole(dataset).part
    counts = np.count_nonzero(part.features, axis=1)
    assert (workload.products[0].rows.row_nonzeros() <= counts).all()
    assert (workload.products[0].rows.row_nonzeros() >= counts - 2).all()


@pytest.mark.parametrize("kind", ["gcn", "gin"])
def test_gcn_and_gin_have_an_arc_from_each_node_to_itself(dataset, kind):
    indptr, indices = built.arcs_of_model(dataset.indptr, dataset.indices, kind)
    expected = scipy.sparse.csr_matrix((np.ones(dataset.num_edges), dataset.indices, dataset.indptr), shape=(60, 60))
    expected = (expected + scipy.sparse.identity(60)).tocsr()
    expected.sort_indices()
    assert indptr.tolist() == expected.indptr.tolist() and indices.tolist() == expected.indices.tolist()


def test_sage_samples_without_replacement_from_each_row():
    rng = np.random.default_rng(1)
    dense = rng.random((40, 40)) < 0.6
    dense[5] = False
    arcs = scipy.sparse.csr_matrix(dense)
    indptr, indices = built.sampled(arcs.indptr.astype(np.int64), arcs.indices, 10, np.random.default_rng(0))
    for row in range(40):
        kept, given = indices[indptr[row]:indptr[row + 1]], arcs.indices[arcs.indptr[row]:arcs.indptr[row + 1]]
        assert len(kept) == min(len(given), 10) and set(kept) <= set(given) and (np.diff(kept) > 0).all()
    assert sum(set(indices[indptr[row]:indptr[row + 1]]) != set(arcs.indices[arcs.indptr[row]:][:10])
               for row in range(40)) > 30      # not the first ones


def test_an_untrained_graph_has_the_counts_of_its_features(dataset):
    workload = built.untrained_workload(dataset, "gcn")
    features = np.asarray(dataset.features.todense() if scipy.sparse.issparse(dataset.features) else dataset.features)
    assert workload.products[0].rows.row_nonzeros().tolist() == np.count_nonzero(features, axis=1).tolist()
    assert [product.combined_dim for product in workload.products] == [128, 3]
    hidden = workload.products[1].rows
    assert abs(hidden.row_nonzeros().mean() - 64) < 4
    assert (np.diff(hidden.bit_width[np.argsort(np.diff(dataset.indptr), kind="stable")].astype(int)) >= 0).all()


def test_a_graph_without_labels_has_assumed_features_and_classes(dataset, tmp_path):
    np.savez(tmp_path / "bare.npz", indptr=dataset.indptr, indices=dataset.indices, num_features=0)
    workload, = built.read_workloads((f"{tmp_path / 'bare.npz'}:sage",), [])
    assert [(one.rows.dim, one.combined_dim) for one in workload.products] == [(128, 512), (256, 80)]
    assert workload.name == "bare sage" and (workload.products[0].rows.row_nonzeros() == 128).all()


def test_a_drawn_graph_has_no_arc_twice_and_hubs():
    indptr, indices = built.draw_arcs(2000, 20_000, np.random.default_rng(0))
    row = np.repeat(np.arange(2000), np.diff(indptr))
    assert (row != indices).all() and len(set(zip(row.tolist(), indices.tolist(), strict=True))) == len(indices)
    assert 19_000 < len(indices) <= 20_000 and np.diff(indptr).max() > 20 * np.diff(indptr).mean()


def test_what_can_not_be_made_a_workload_is_refused():
    with pytest.raises(ConfigError, match="no drawn:cora; choose drawn:nell, drawn:reddit, drawn:products"):
        list(built.drawn_workloads("cora", ("gcn",)))
    with pytest.raises(ConfigError, match="fewer than 0 nonzeros, or more than columns"):
        FeatureCounts(np.full((1, NUM_SLICES), 3, np.int32), np.ones(1, np.uint8), 9)
    with pytest.raises(ConfigError, match=r"have the shape \(2, 4\)"):
        FeatureCounts(np.zeros((2, NUM_SLICES), np.int32), np.ones(1, np.uint8), 9)
    rows = FeatureCounts(np.zeros((1, NUM_SLICES), np.int32), np.ones(1, np.uint8), 9)
    with pytest.raises(ConfigError, match="5 of 4 columns can't be aggregated"):
        Product("layer 1", rows, 4, 5)
    with pytest.raises(ConfigError, match="expected products, each with a row per node"):
        Workload("drawn", np.zeros(3, np.int64), np.empty(0, np.int32), (Product("layer 1", rows, 4, 4),))


@pytest.mark.parametrize("kind", ["gcn", "gin", "sage"])
def test_values_are_averaged_by_in_degree(kind, tmp_path):
    dataset = load_source("synthetic:nodes=40,mean_degree=4,features=6,classes=3,seed=5", SourceOptions())
    work, model = BatchedGraph.whole(dataset), model_of(dataset, kind)
    convolution, coded = model.convolutions[0], bit_rows(work, model).coded()
    rows = coded.codes.astype(float) * coded.step[:, None]
    mapped = rows @ (convolution.neighbor.codes.astype(float) * convolution.neighbor.scale.step[:, None]).T
    degree, by_degree = work.in_degree, {}
    for node in range(40):
        sources = work.part.indices[work.part.indptr[node]:work.part.indptr[node + 1]]
        if kind == "gcn":
            total = sum(mapped[one] / np.sqrt((degree[node] + 1) * (degree[one] + 1)) for one in [*sources, node])
        else:
            total = sum((mapped[one] for one in sources), np.zeros(mapped.shape[1]))
            total = total / max(len(sources), 1) if kind == "sage" else total + (1 + convolution.epsilon) * mapped[node]
        by_degree.setdefault(int(degree[node]), []).append(np.abs(total).mean())
    found = built.values_by_degree("drawn", work, model)
    assert found.in_degree.tolist() == sorted(by_degree)
    np.testing.assert_allclose(found.mean, [np.mean(by_degree[one]) for one in sorted(by_degree)], rtol=1e-4)
    built.draw_degrees(tmp_path / "degrees.png", [found])
    assert (tmp_path / "degrees.png").read_bytes().startswith(b"\x89PNG")
    built.draw_degrees(tmp_path / "none.png", [])
    assert not (tmp_path / "none.png").exists()
