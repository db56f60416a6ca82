"""Mean aggregated values by in-degree are those of the model's first convolution, summed arc by arc."""

from __future__ import annotations

import numpy as np
import pytest
from bench.test_accelerator_workload import model_of

from hpcgnn.bench.accelerator_workload import draw_degrees, values_by_degree
from hpcgnn.bench.inference_host import bit_rows
from hpcgnn.bench.inference_work import BatchedGraph
from hpcgnn.data.options import SourceOptions
from hpcgnn.data.source import load_source


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
    found = values_by_degree("drawn", work, model)
    assert found.in_degree.tolist() == sorted(by_degree)
    np.testing.assert_allclose(found.mean, [np.mean(by_degree[one]) for one in sorted(by_degree)], rtol=1e-4)
    draw_degrees(tmp_path / "degrees.png", [found])
    assert (tmp_path / "degrees.png").read_bytes().startswith(b"\x89PNG")


def test_nothing_is_drawn_of_no_model(tmp_path):
    draw_degrees(tmp_path / "degrees.png", [])
    assert not (tmp_path / "degrees.png").exists()
