import dataclasses

import numpy as np
import pytest

from hpcgnn.data import synthetic
from hpcgnn.data.options import SourceOptions
from hpcgnn.data.source import load_source
from hpcgnn.data.synthetic import BlockModel, parse_block_model
from hpcgnn.errors import DatasetError

SMALL = "nodes=3000,classes=5,features=8"


def generate(settings="", **options):
    return load_source(f"synthetic:{settings}", SourceOptions(**options))


def edge_homophily(dataset, labels):
    target = np.repeat(np.arange(dataset.num_nodes), dataset.in_degree())
    return float((labels[dataset.indices] == labels[target]).mean())


@pytest.mark.parametrize("mean_degree", [3, 20, 77.5])
def test_the_mean_degree_is_met_exactly(mean_degree):
    dataset = generate(f"{SMALL},mean_degree={mean_degree}")
    assert dataset.num_edges == 2 * round(3000 * mean_degree / 2)
    assert dataset.cleaning.duplicate_edges_removed == dataset.cleaning.self_loops_removed == 0


@pytest.mark.parametrize("homophily", [0.0, 0.3, 0.8, 1.0])
def test_the_homophily_is_met_up_to_one_edge(homophily):
    dataset = generate(f"{SMALL},homophily={homophily}")
    assert edge_homophily(dataset, dataset.labels) == pytest.approx(homophily, abs=2 / dataset.num_edges)


@pytest.mark.parametrize("exponent", [2.2, 3.0])
def test_the_tail_of_the_degrees_follows_the_power_law(exponent):
    degree = generate(f"nodes=30000,features=1,classes=2,mean_degree=30,exponent={exponent}").in_degree()
    # Hill's estimator above a cutoff well past the median; its standard error is (exponent - 1) / sqrt(2000) < 0.05,
    # and rounding and the noise of the degrees around their weights bias it by less than 0.15.
    tail = np.sort(degree)[-2000:]
    estimate = 1 + len(tail) / np.log(tail / tail[0]).sum()
    assert estimate == pytest.approx(exponent, abs=0.2)
    assert degree.max() > 20 * np.median(degree)


def test_the_same_seed_gives_the_same_graph_and_another_seed_another():
    first, same, other = generate(f"{SMALL},seed=3"), generate(SMALL, seed=3), generate(SMALL, seed=4)
    for name in ("indptr", "indices", "features", "labels", "train_mask"):
        np.testing.assert_array_equal(getattr(first, name), getattr(same, name))
    assert not np.array_equal(first.features, other.features)
    assert not np.array_equal(first.indptr, other.indptr)


def test_the_number_of_features_does_not_change_the_edges():
    first, second = generate(SMALL), generate(SMALL.replace("features=8", "features=3"))
    np.testing.assert_array_equal(first.indices, second.indices)


def test_small_chunks_meet_the_same_counts(monkeypatch):
    monkeypatch.setattr(synthetic, "CHUNK_PAIRS", 1000)
    dataset = generate(SMALL)
    assert dataset.num_edges == 60_000
    assert edge_homophily(dataset, dataset.labels) == pytest.approx(0.65, abs=1e-4)


def test_class_means_of_the_features_lie_at_the_signal_and_the_noise_is_standard():
    dataset = generate("nodes=20000,classes=4,features=16,signal=2")
    means = np.stack([dataset.features[dataset.labels == label].mean(axis=0) for label in range(4)])
    np.testing.assert_allclose(np.linalg.norm(means, axis=1), 2, atol=0.1)
    np.testing.assert_allclose((dataset.features - means[dataset.labels]).std(axis=0), 1, atol=0.03)


def test_multi_label_rows_hold_at_least_one_class_and_about_half_a_companion():
    dataset = generate("nodes=20000,classes=8,features=4,multi_label=true")
    assert dataset.labels.shape == (20000, 8)
    per_node = dataset.labels.sum(axis=1)
    assert per_node.min() >= 1
    # 1 + 0.5 + 0.02 * 6.5 on average; the standard error of the mean is below 0.006.
    assert per_node.mean() == pytest.approx(1.63, abs=0.03)


def test_progress_counts_every_edge_and_every_node():
    done = {}

    class Task:
        def __init__(self, description):
            self.description = description

        def advance(self, amount):
            done[self.description] = done.get(self.description, 0) + amount

    generate(SMALL, progress=lambda description, total: Task(description))
    assert done == {"drawing edges": 30_000, "cleaning edges": 60_000, "drawing features": 3000}


@pytest.mark.parametrize(("settings", "match"), [
    ("node=5", "no setting 'node=5'; expected NAME=VALUE with NAME one of nodes, mean_degree, classes"),
    ("nodes", "no setting 'nodes'"),
    ("nodes=5.5", "nodes='5.5'; expected a whole number"),
    ("nodes=1e-1", "expected a whole number"),
    ("nodes=1e999", "expected a whole number"),
    ("homophily=high", "expected a number"),
    ("homophily=nan", "homophily=nan; expected a number from 0 to 1"),
    ("multi_label=maybe", "expected true or false"),
    ("nodes=50,nodes=60", "gives nodes twice"),
    ("nodes=0", "nodes=0; expected at least two for each of the 16 classes"),
    ("classes=1", "classes=1; expected at least 2"),
    ("mean_degree=-1", "mean_degree=-1.0; expected a positive number"),
    ("mean_degree=50000", "expected a positive number below 20000"),
    ("homophily=1.5", "homophily=1.5; expected a number from 0 to 1"),
    ("exponent=2", "exponent=2.0; expected a number above 2"),
    ("features=0", "features=0; expected at least 1"),
    ("seed=-1", "seed=-1; expected a non-negative integer"),
    ("nodes=100,classes=10,mean_degree=60", "edges inside classes, more than half of the .* possible ones"),
])
def test_bad_settings_are_refused(settings, match):
    with pytest.raises(DatasetError, match=match):
        generate(settings)


def test_settings_accept_exponents_hyphens_and_blanks():
    model = parse_block_model("nodes=1e4, mean-degree=7,multi_label=TRUE", seed=9)
    assert model == dataclasses.replace(BlockModel(), nodes=10_000, mean_degree=7.0, multi_label=True, seed=9)


@pytest.mark.parametrize("settings", ["nodes=60,classes=2,mean_degree=25,features=2,homophily=0.5",
                                      "nodes=4,classes=2,mean_degree=1,features=1,homophily=0"])
def test_small_dense_graphs_are_completed(settings):
    model = parse_block_model(settings, 0)
    assert generate(settings).num_edges == 2 * model.num_undirected_edges


def test_a_pair_of_nodes_has_one_relation_both_ways(monkeypatch):
    dataset = generate(f"{SMALL},relations=4")
    target = np.repeat(np.arange(dataset.num_nodes), dataset.in_degree())
    pairs = zip(dataset.indices.tolist(), target.tolist(), strict=True)
    known = dict(zip(pairs, dataset.edge_type.tolist(), strict=True))
    assert len(known) == dataset.num_edges and all(known[v, u] == relation for (u, v), relation in known.items())
    # 30,000 pairs: a share is off by 0.01 once in 10,000 graphs.
    assert np.abs(np.bincount(dataset.edge_type, minlength=4) / dataset.num_edges - 0.25).max() < 0.01
    assert len(dataset.relation_names) == 4
    monkeypatch.setattr(synthetic, "FEATURE_BLOCK_ROWS", 7)
    plain = generate(SMALL)
    again = synthetic.draw_relations(BlockModel(3000, relations=4), plain.indptr, plain.indices)
    assert np.array_equal(again, dataset.edge_type)
    assert not np.array_equal(generate(f"{SMALL},relations=4", seed=1).edge_type[:100], dataset.edge_type[:100])
    assert plain.edge_type is None and plain.relation_names == ()


def test_links_that_are_held_out_keep_their_relations():
    whole, dataset = (generate(f"{SMALL},relations=4", hold_out=shares) for shares in ((0.0, 0.0), (0.1, 0.2)))
    target = np.repeat(np.arange(whole.num_nodes), whole.in_degree())
    known = set(zip(whole.indices.tolist(), target.tolist(), whole.edge_type.tolist(), strict=True))
    held = {(source, target, relation) for source, target, _, relation in dataset.held_out.tolist()}
    assert held < known and len(held) == round(0.3 * len(known) / 2)
    assert dataset.num_edges == len(dataset.edge_type) == len(known) - 2 * len(held)
