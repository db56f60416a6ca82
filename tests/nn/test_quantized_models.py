"""Stacks trained as integers: what they export runs as they do, on one rank or several, and their size is counted."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from mpi4py import MPI
from reference_integer import forward

from hpcgnn.errors import CollectiveError
from hpcgnn.graph.hop import AloneExchange
from hpcgnn.graph.local_graph import LocalGraph
from hpcgnn.graph.rows import LocalRows
from hpcgnn.lowbit.training import models as quantized_models
from hpcgnn.lowbit.training.models import PRESSURE_RATE, TARGET_TOLERANCE, QuantizationScheme, QuantizedStack, calibrate
from hpcgnn.lowbit.training.quantizer import MAX_DEGREES, count_in_degrees, draw_protected
from hpcgnn.nn.models import ModelShape, build_model

KINDS = ("gcn", "sage", "gin", "gat")
SCHEMES = {"degree-aware": QuantizationScheme("degree-aware", 4, 6),
           "layer-aware": QuantizationScheme("layer-aware", 4, 6),
           "degree-steps": QuantizationScheme("degree-steps", 4, 4), "uniform": QuantizationScheme("uniform", 4, 4),
           "degree-quant": QuantizationScheme("degree-quant", 4, 4, protection=(0.1, 0.3))}


def float_stack(model, num_features, norm="layer", seed=0):
    """Three layers with biases that are not zero, as after training."""
    torch.manual_seed(seed)
    stack = build_model(ModelShape(model, num_features, 8, 4, 3, 0.5, norm, heads=2))
    with torch.no_grad():
        for name, parameter in stack.named_parameters():
            if name.endswith("bias") or name.endswith("epsilon"):
                parameter.uniform_(-0.3, 0.3)
    return stack


def logits_of(model, graph):
    graph.begin_forward(seed=0, epoch=0, is_training=False)
    with torch.no_grad():
        return model.eval()(graph, graph.x)


def assert_runs_as(model, exported, dataset, logits):
    """The oracle's logits on the exported integers are the fake-quantized model's, but for codes on rounding edges."""
    expected, _, rows, mapped = forward(exported, dataset.features, dataset.indptr, dataset.indices,
                                        dataset.in_degree())
    far = np.abs(logits.numpy() - expected) > 1e-4 * np.abs(expected).max()
    assert far.any(axis=1).mean() < 0.05
    assert (logits.numpy().argmax(axis=1) == expected.argmax(axis=1)).mean() > 0.97
    return {"rows": rows, "mapped": mapped}


def codes_of_passes(model, graph):
    """Codes of rows and mapped rows that a fake-quantized pass went through, by convolution, for one rank."""
    seen = []

    def remember(name, scale):
        return lambda module, inputs, out: seen.append((name, np.round(out.numpy() / scale).astype(np.int64)))

    degree = graph.in_degree[:graph.num_inner]
    handles = []
    for convolution, exported in zip(model.convolutions, model.export("").convolutions, strict=True):
        scale, mapped = exported.rows, exported.mapped
        handles.append(convolution.rows.register_forward_hook(remember("rows", scale.step[scale.entry(degree), None])))
        handles.append(convolution.mapped.register_forward_hook(remember("mapped", mapped.step[None])))
    logits_of(model, graph)
    for handle in handles:
        handle.remove()
    return seen


@pytest.mark.parallel([1])
@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("kind", KINDS)
def test_the_exported_integers_are_those_of_the_fake_quantized_model(open_part, graph_with, kind, scheme):
    comm = MPI.COMM_WORLD
    dataset, _ = graph_with(6, directed=True)
    graph = open_part(comm, dataset, np.zeros(60, np.int32)).graph
    model = QuantizedStack.fit(float_stack(kind, 6), SCHEMES[scheme], graph, comm)
    exported = model.export("random")
    assert (exported.num_nodes, exported.num_features, exported.num_classes) == (60, 6, 4)
    assert (exported.scheme, exported.dataset) == (scheme, "random")
    codes = assert_runs_as(model, exported, dataset, logits_of(model, graph))
    seen = codes_of_passes(model, graph)
    pairs = [(one, codes[name][number // 2]) for number, (name, one) in enumerate(seen)]
    assert len(pairs) == 6
    differing = sum((found != expected).sum() for found, expected in pairs)
    assert differing <= 1e-3 * sum(found.size for found, _ in pairs)


@pytest.mark.covering
@pytest.mark.parallel([1, 2, 3])
@pytest.mark.parametrize("norm", ["none", "layer"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_calibrated_stack_is_near_the_float_one_on_any_number_of_ranks(open_part, graph_with, gather_rows, kind,
                                                                       norm):
    comm = MPI.COMM_WORLD
    dataset, owner = graph_with(6)
    graph = open_part(comm, dataset, owner(comm.size)).graph
    stack = float_stack(kind, 6, norm)
    expected = gather_rows(comm, logits_of(stack, graph), graph.node_id[:graph.num_inner])
    model = calibrate(stack, graph, comm, bits=8, row_bits=8)
    logits = gather_rows(comm, logits_of(model, graph), graph.node_id[:graph.num_inner])
    assert (logits - expected).abs().max() < 0.06 * expected.abs().max()
    exported = model.export("random")
    everyone = comm.allgather([one.rows.step.tobytes() + one.mapped.step.tobytes() for one in exported.convolutions])
    assert all(one == everyone[0] for one in everyone)
    assert_runs_as(model, exported, dataset, logits)


@pytest.mark.parallel([1, 2, 3])
def test_in_degrees_are_counted_over_all_ranks(open_part, graph_with):
    comm = MPI.COMM_WORLD
    dataset, owner = graph_with(3, directed=True)
    graph = open_part(comm, dataset, owner(comm.size)).graph
    assert count_in_degrees(graph, comm).tolist() == np.bincount(dataset.in_degree()).tolist()


def test_larger_in_degrees_share_the_last_entry_of_a_table():
    rows = LocalRows(np.zeros(4, np.int64), np.zeros(0, np.int32), np.arange(3), np.array([0, 5000, 9000], np.int32),
                     torch.zeros(3, 1))
    graph = LocalGraph(rows, AloneExchange())
    counts = count_in_degrees(graph, MPI.COMM_SELF)
    assert len(counts) == MAX_DEGREES and counts[0] == 1 and counts[-1] == 2 and counts.sum() == 3


@pytest.mark.parallel([1, 2, 3])
def test_ranks_protect_the_same_nodes_and_more_of_the_higher_in_degrees(open_part, graph_with, gather_rows):
    comm = MPI.COMM_WORLD
    dataset, owner = graph_with(3)
    graph = open_part(comm, dataset, owner(comm.size)).graph
    probability = torch.linspace(0.0, 1.0, 60)
    drawn = []
    for epoch in range(300):
        graph.begin_forward(seed=1, epoch=epoch, is_training=True)
        drawn.append(draw_protected(graph, probability[graph.node_id[:graph.num_inner]]))
    share = gather_rows(comm, torch.stack(drawn).float().mean(dim=0)[:, None], graph.node_id[:graph.num_inner])[:, 0]
    assert (share - probability).abs().max() < 0.15     # five deviations of 300 draws
    graph.begin_forward(seed=1, epoch=7, is_training=True)
    again = draw_protected(graph, probability[graph.node_id[:graph.num_inner]])
    assert torch.equal(again, drawn[7])


@pytest.mark.parallel([1, 2])
@pytest.mark.parametrize("kind, dims", [("gcn", [6, 8, 8]), ("gin", [6, 8, 8, 8, 8, 4])])
def test_every_stored_bit_is_counted(open_part, graph_with, kind, dims):
    comm = MPI.COMM_WORLD
    dataset, owner = graph_with(6)
    graph = open_part(comm, dataset, owner(comm.size)).graph
    model = QuantizedStack.fit(float_stack(kind, 6), SCHEMES["degree-aware"], graph, comm)
    exported, degree = model.export("random"), dataset.in_degree()
    scales = [scale for one in exported.convolutions for scale in (one.rows, one.second_rows) if scale is not None]
    bits = [int(scale.bit_width[scale.entry(degree)].astype(np.int64).sum()) * dim
            for scale, dim in zip(scales, dims, strict=True)]
    size = model.feature_size()
    assert size["feature_kb"] == pytest.approx(sum(bits) / 8192)
    assert size["mean_feature_bits"] == pytest.approx(sum(bits) / (60 * sum(dims)))
    assert size["feature_bits"] == pytest.approx([one / 60 / dim for one, dim in zip(bits, dims, strict=True)])
    stored = model.stored_bits()
    assert stored.weights == exported.weight_bits == 4 * sum(
        one.codes.size for convolution in exported.convolutions for one in convolution.maps)
    assert stored.scales > 32 * sum(len(scale.step) for scale in scales)


@pytest.mark.parametrize("rate, low, high", [
    (PRESSURE_RATE, 0.9, 1.1), pytest.param(0.0, 1.4, 1.6, marks=pytest.mark.long)])     # without pressure
def test_pressure_on_widths_grows_until_the_target_is_met(monkeypatch, rate, low, high):
    monkeypatch.setattr(quantized_models, "PRESSURE_RATE", rate)
    scheme = QuantizationScheme("degree-aware", 4, 8, target_kb=0.35)
    model = QuantizedStack(float_stack("gcn", 6), scheme, np.array([0, 10, 20, 5]), MPI.COMM_SELF, False).train()
    optimizer, sizes = torch.optim.SGD(model.width_parameters(), lr=0.3), []
    for _ in range(400):
        optimizer.zero_grad()
        # What rows gain by bits has the slope of the penalty alone at half too much: 2 e = 1.
        (model.penalty() - model.feature_kb() / model.target_kb).backward()
        model.move_pressure()
        optimizer.step()
        model.clamp_widths()
        sizes.append(model.feature_kb().item() / model.target_kb)
    # One bit of one in-degree is up to a tenth of the target here.
    assert low < min(sizes[300:]) and max(sizes[300:]) < high
    assert any(model.meets_target(size * model.target_kb) for size in sizes[300:]) == (rate > 0)


def test_pressure_on_widths_waits_for_an_excess_and_no_reader_moves_it():
    counts = np.array([0, 10, 20, 5])
    for target_kb, is_missed in ((0.68, True), (0.75, False)):
        scheme = QuantizationScheme("degree-aware", 4, 8, target_kb=target_kb)
        model = QuantizedStack(float_stack("gcn", 6), scheme, counts, MPI.COMM_SELF, has_negative_input=True)
        excess = 8 * 35 * (6 + 8 + 8) / 8192 / target_kb - 1
        for _ in range(2):
            model.train().penalty()
            model.feature_size()
            assert model.pressure.item() == 0
        for number in (1, 2):
            model.move_pressure()
            expected = number * PRESSURE_RATE * (excess - TARGET_TOLERANCE) if is_missed else 0.0
            assert model.pressure.item() == pytest.approx(expected)


def test_the_penalty_is_the_squared_relative_excess_and_none_below_the_target():
    stack = float_stack("gcn", 6)
    counts = np.array([0, 10, 20, 5])
    for target_kb, weight in ((0.25, 3.0), (100.0, 3.0)):
        scheme = QuantizationScheme("degree-aware", 4, 8, target_kb=target_kb, size_weight=weight)
        model = QuantizedStack(stack, scheme, counts, MPI.COMM_SELF, has_negative_input=True)
        penalty = model.penalty()
        penalty.backward()
        kb = 8 * 35 * (6 + 8 + 8) / 8192
        excess = max(0.0, kb / target_kb - 1)
        assert penalty.item() == pytest.approx(weight * excess ** 2, rel=1e-5)
        slope = 2 * weight * excess / target_kb * counts * 8 / 8192
        np.testing.assert_allclose(model.convolutions[1].rows.width.grad.numpy(), slope, rtol=1e-5)


@pytest.mark.parallel([1, 2])
@pytest.mark.parametrize("mean_bits", [2.0, 3.0, 5.0, 9.0])
def test_widths_by_layer_start_as_wide_as_the_target_lets_them(open_part, graph_with, mean_bits):
    comm = MPI.COMM_WORLD
    dataset, owner = graph_with(6)
    graph = open_part(comm, dataset, owner(comm.size)).graph
    target_kb = mean_bits * 60 * (6 + 8 + 8) / 8192
    model = QuantizedStack.fit(float_stack("gcn", 6), QuantizationScheme("layer-aware", 4, 8, target_kb=target_kb),
                               graph, comm)
    widths = [quantizer.whole_width().tolist() for quantizer in model.row_quantizers]
    assert [len(width) for width in widths] == [1, 1, 1]
    assert model.feature_kb().item() <= target_kb
    # A bit more for any layer would pass the target, or 8 bits.
    for (width,), dim in zip(widths, (6, 8, 8), strict=True):
        assert width == 8 or model.feature_kb().item() + 60 * dim / 8192 > target_kb


@pytest.mark.parametrize("scheme", ["degree-steps", "uniform", "degree-quant"])
def test_fixed_widths_have_no_penalty_however_far_above_the_target(scheme):
    model = QuantizedStack(float_stack("gcn", 6), replace(SCHEMES[scheme], target_kb=0.001), np.array([0, 10]),
                           MPI.COMM_SELF, False)
    assert model.feature_kb().item() > 10 * model.target_kb
    assert model.penalty().item() == 0


def test_the_default_target_is_two_bits_a_value():
    scheme = QuantizationScheme("degree-aware", 4, 8)
    model = QuantizedStack(float_stack("gcn", 6), scheme, np.array([0, 10]), MPI.COMM_SELF, False)
    assert model.target_kb == 2 * 10 * (6 + 8 + 8) / 8192
    assert model.meets_target(1.01 * model.target_kb) and not model.meets_target(1.02 * model.target_kb)


@pytest.mark.parallel([1, 2])
def test_features_that_are_not_finite_are_refused_on_all_ranks(open_part, graph_with):
    comm = MPI.COMM_WORLD
    dataset, owner = graph_with(6)
    dataset.features[7, 3] = np.nan
    graph = open_part(comm, dataset, owner(comm.size)).graph
    with pytest.raises(CollectiveError, match="input rows to quantize hold NaN or infinity; expected finite features"):
        calibrate(float_stack("gcn", 6), graph, comm)


@pytest.mark.parametrize("model", ["sage-max", "gcnii", "sgc"])
def test_models_without_integer_convolutions_are_refused(model):
    stack = build_model(ModelShape(model, 6, 8, 4, 2, 0.5))
    with pytest.raises(CollectiveError, match="only stacks of gcn, sage, gin"):
        calibrate(stack, None, MPI.COMM_SELF)
