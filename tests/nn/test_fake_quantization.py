"""Fake quantization: codes and gradients as the formulas say, and steps that fit what they are given."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from mpi4py import MPI

from hpcgnn.errors import CollectiveError
from hpcgnn.lowbit.training.quantizer import (
    ColumnQuantizer,
    Nodes,
    RowQuantizer,
    TrackedRange,
    WeightQuantizer,
    fake_quantize,
    look_up,
    protection_by_degree,
    round_through,
    search_steps,
    take_nearest,
)

ALONE = MPI.COMM_SELF
NOBODYS = Nodes(torch.zeros(0, dtype=torch.int64))      # of columns it does not matter whose the rows are


def some_values(is_signed, num_rows=7, dim=5, seed=0):
    values = np.random.default_rng(seed).normal(size=(num_rows, dim)).astype(np.float32)
    return values if is_signed else np.abs(values)


def expected_gradients(values, step, width, is_signed, upstream):
    """Of values, of each row's step and of each row's width, element by element."""
    of_values = np.zeros_like(values)
    of_step, of_width = np.zeros(len(values)), np.zeros(len(values))
    for (row, column), x in np.ndenumerate(values.astype(np.float64)):
        levels = 2.0 ** (width[row] - is_signed)
        ratio, g = x / step[row], float(upstream[row, column])
        if abs(ratio) <= levels - 1:
            of_values[row, column] = g
            of_step[row] += g * (np.sign(x) * np.floor(abs(ratio) + 0.5) - ratio)
        else:
            of_step[row] += g * np.sign(x) * (levels - 1)
            of_width[row] += g * np.sign(x) * step[row] * levels * np.log(2)
    return of_values, of_step, of_width


def quantize_by_row(values, step, width, is_signed, local_weight=None):
    """Quantized rows, and the leaves that gradients come to."""
    leaves = [torch.tensor(part, dtype=torch.float32, requires_grad=True) for part in (values, step, width)]
    out = fake_quantize(leaves[0], leaves[1][:, None], leaves[2][:, None], is_signed, local_weight)
    return out, leaves


@pytest.mark.parametrize("is_signed", [False, True])
def test_values_are_steps_times_their_clamped_nearest_codes(is_signed):
    values, step = some_values(is_signed), np.linspace(0.1, 1.0, 7)
    width = np.arange(7) % 7 + 1.0 + is_signed
    out, _ = quantize_by_row(values, step, width, is_signed)
    largest = 2.0 ** (width - is_signed)[:, None] - 1
    codes = np.sign(values) * np.minimum(np.floor(np.abs(values) / step[:, None] + 0.5), largest)
    np.testing.assert_allclose(out.detach().numpy(), codes * step[:, None], rtol=1e-6)


@pytest.mark.parametrize("is_signed", [False, True])
def test_gradients_are_those_of_the_formulas(is_signed):
    values, step = some_values(is_signed), np.linspace(0.05, 0.6, 7)
    width = np.array([1, 2, 3, 4, 2, 1, 3.0]) + is_signed
    upstream = some_values(True, seed=1)
    out, leaves = quantize_by_row(values, step, width, is_signed)
    out.backward(torch.from_numpy(upstream))
    for leaf, expected in zip(leaves, expected_gradients(values, step, width, is_signed, upstream), strict=True):
        np.testing.assert_allclose(leaf.grad.numpy(), expected, rtol=2e-5, atol=1e-6)


def test_the_gradient_of_a_clipped_step_and_width_is_that_of_finite_differences():
    """Where every value is clipped nothing is rounded, and the formulas are true derivatives."""
    values = 1.0 + np.abs(some_values(True))
    step, width, h = np.full(7, 0.01), np.full(7, 3.0), 1e-2
    out, leaves = quantize_by_row(values, step, width, True)
    out.sum().backward()
    np.testing.assert_allclose(leaves[1].grad.numpy(), 5 * 3.0, rtol=1e-6)
    clipped = [5 * 0.01 * (2.0 ** (3.0 - 1 + sign * h) - 1) for sign in (1, -1)]
    np.testing.assert_allclose(leaves[2].grad.numpy(), (clipped[0] - clipped[1]) / (2 * h), rtol=1e-4)


def test_the_local_gradient_is_that_of_the_rows_own_error():
    values, step, width = some_values(True), np.linspace(0.05, 0.6, 7), np.full(7, 3.0)
    upstream = some_values(True, seed=1)
    out, leaves = quantize_by_row(values, step, width, True, local_weight=0.25)
    out.backward(torch.from_numpy(upstream))
    error = 0.25 * np.sign(out.detach().numpy() - values)
    _, of_step, of_width = expected_gradients(values, step, width, True, error)
    of_values, _, _ = expected_gradients(values, step, width, True, upstream)
    for leaf, expected in zip(leaves, (of_values, of_step, of_width), strict=True):
        np.testing.assert_allclose(leaf.grad.numpy(), expected, rtol=2e-5, atol=1e-6)


def test_a_table_gathers_gradients_by_entry_in_order():
    table, entry = torch.randn(4, requires_grad=True), torch.tensor([3, 0, 3, 1, 3])
    look_up(table, entry).backward(torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0]))
    assert table.grad.tolist() == [2.0, 4.0, 0.0, 9.0]


def test_a_width_is_rounded_and_its_gradient_is_not():
    width = torch.tensor([1.2, 2.7, 4.0], requires_grad=True)
    whole = round_through(width)
    whole.backward(torch.tensor([1.0, 2.0, 3.0]))
    assert whole.tolist() == [1.0, 3.0, 4.0] and width.grad.tolist() == [1.0, 2.0, 3.0]


def rows_of_degrees(rows, in_degree, **settings):
    """A fitted quantizer of these rows, and what it makes of them."""
    in_degree = np.asarray(in_degree)
    quantizer = RowQuantizer(ALONE, rows.shape[1], np.bincount(in_degree), is_signed=bool((rows < 0).any()), **settings)
    quantizer.fitting_comm = ALONE
    out = quantizer(rows, Nodes(torch.from_numpy(in_degree)))
    quantizer.fitting_comm = None
    return quantizer, out


@pytest.mark.parametrize("bits", [1, 4, 8])
def test_rows_of_zeros_and_ones_are_exact_at_one_bit(bits):
    rows = (torch.rand(40, 30, generator=torch.Generator().manual_seed(0)) < 0.2).float()
    quantizer, out = rows_of_degrees(rows, np.arange(40) % 5, bits=bits, learns_width=True, shrinks=True)
    assert torch.equal(out, rows)
    scale = quantizer.scale()
    assert scale.step.tolist() == [1.0] * 5 and scale.bit_width.tolist() == [1] * 5 and not scale.is_signed
    assert quantizer.num_bits().item() == 40 * 30


def test_exact_rows_give_their_steps_no_gradient():
    rows = (torch.arange(60.0).view(12, 5) % 2)
    quantizer, out = rows_of_degrees(rows, np.arange(12) % 3, bits=8, learns_width=True, shrinks=True)
    out.backward(torch.randn(12, 5))
    assert quantizer.log_range.grad.abs().max() == 0 and quantizer.width.grad.abs().max() == 0


def test_the_unit_of_rows_does_not_change_what_their_own_error_asks_of_widths():
    rows, in_degree = torch.from_numpy(some_values(True, 40, 6)), np.arange(40) % 4
    gradients = []
    for unit in (1.0, 1024.0):
        quantizer, _ = rows_of_degrees(rows * unit, in_degree, bits=3, learns_width=True, is_local=True)
        with torch.no_grad():
            quantizer.log_range.sub_(1.0)       # so that values are clipped, which more bits would mend
        quantizer(rows * unit, Nodes(torch.from_numpy(in_degree))).sum().backward()
        gradients.append(quantizer.width.grad)
    assert (gradients[0] < 0).all()
    torch.testing.assert_close(gradients[1], gradients[0])


def test_a_fitted_step_is_no_worse_than_any_of_a_fine_grid():
    values = torch.from_numpy(some_values(True, 400, 3))
    column = torch.arange(3).expand(400, 3).reshape(-1)
    step = search_steps(ALONE, values.reshape(-1), column, np.full(3, 7)).step

    def error(steps):
        steps = torch.as_tensor(steps, dtype=torch.float32)
        return (fake_quantize(values, steps[None], torch.tensor([[4.0]]), True) - values).square().sum(dim=0).numpy()

    grid = np.linspace(0.05, 1.0, 200)
    best = np.min([error([one] * 3) for one in grid], axis=0)
    assert (error(step) <= 1.1 * best).all()


def test_in_degrees_that_no_node_has_take_the_nearest_one_that_some_has():
    known = np.array([False, True, False, False, True, False])
    assert take_nearest(np.arange(6), known, 9).tolist() == [1, 1, 1, 4, 4, 4]
    assert take_nearest(np.arange(3), np.zeros(3, bool), 9).tolist() == [9, 9, 9]
    rows = torch.tensor([[1.0, 0.0], [4.0, 8.0]])
    quantizer, _ = rows_of_degrees(rows, [1, 4], bits=3, shrinks=True)
    assert quantizer.scale().step.tolist() == [1.0, 1.0, 1.0, 4.0, 4.0]
    assert quantizer.scale().bit_width.tolist() == [1, 1, 1, 2, 2]


def test_an_in_degree_beyond_the_table_takes_the_last_entry():
    quantizer = RowQuantizer(ALONE, 2, np.array([1, 1]), bits=2, is_signed=False)
    with torch.no_grad():
        quantizer.log_range.copy_(torch.tensor([1.0, 4.0]).log())
    rows = torch.tensor([[3.0, 8.0]])
    assert quantizer(rows, Nodes(torch.tensor([1]))).tolist() == quantizer(rows, Nodes(torch.tensor([99]))).tolist()


def test_widths_are_clamped_between_one_or_two_and_eight_bits_and_not_by_reading_them():
    for is_signed in (False, True):
        quantizer = RowQuantizer(ALONE, 2, np.array([1, 1]), bits=4, is_signed=is_signed, learns_width=True)
        with torch.no_grad():
            quantizer.width.copy_(torch.tensor([-3.0, 30.0]))
        quantizer.whole_width(), quantizer.num_bits()
        assert quantizer.width.tolist() == [-3.0, 30.0]
        quantizer.clamp_width()
        assert quantizer.width.tolist() == [1 + is_signed, 8]
        assert quantizer.scale().bit_width.tolist() == [1 + is_signed, 8]


SCALES = torch.tensor([1.0, 10.0, 100.0, 0.1])


def weights_of_scales(seed=0):
    return torch.from_numpy(some_values(True, 4, 50, seed)) * SCALES[:, None]


def test_steps_of_outputs_follow_the_scale_of_each_and_grow_with_their_weights():
    weight, quantizer = weights_of_scales(), WeightQuantizer(4, 4)
    quantizer.fitting_comm = ALONE
    out = quantizer(weight)
    quantizer.fitting_comm = None
    assert ((out - weight).abs().amax(dim=1) < 0.4 * weight.abs().amax(dim=1)).all()
    torch.testing.assert_close(quantizer(3 * weight), 3 * out)
    codes = quantizer.integers(weight)
    torch.testing.assert_close(torch.from_numpy(codes.codes * codes.scale.step[:, None]), out)


def fitted_columns(rows, is_local=False):
    quantizer = ColumnQuantizer(ALONE, rows.shape[1], len(rows), 4, is_local)
    quantizer.fitting_comm = ALONE
    quantizer(rows, NOBODYS)
    quantizer.fitting_comm = None
    return quantizer


def mapped_rows():
    return torch.from_numpy(some_values(False, 30, 50)) @ weights_of_scales().t()


def test_steps_of_columns_follow_the_scale_of_each_and_what_the_column_has_been_lately():
    rows = mapped_rows()
    quantizer = fitted_columns(rows)
    before, out = quantizer.step.detach(), quantizer.eval()(rows, NOBODYS)
    assert ((out - rows).abs().amax(dim=0) < 0.4 * rows.abs().amax(dim=0)).all()
    quantizer(9 * rows, NOBODYS)
    assert torch.equal(quantizer.step, before)       # an evaluation moves nothing
    quantizer.train()(3 * rows, NOBODYS)
    torch.testing.assert_close(quantizer.step.detach(), before * (0.9 + 0.1 * 3))
    for _ in range(200):
        quantizer(3 * rows, NOBODYS)
    torch.testing.assert_close(quantizer.eval()(3 * rows, NOBODYS), 3 * out)
    assert quantizer.scale().step.tolist() == quantizer.step.tolist()


def test_a_column_of_zeros_keeps_its_step_and_takes_values_when_they_come():
    rows = mapped_rows()
    rows[:, 1] = 0.0
    quantizer = fitted_columns(rows)
    before = quantizer.step.detach()
    quantizer.train()(rows, NOBODYS)
    assert quantizer.step[1] == before[1] > 0
    for _ in range(60):
        late = quantizer(mapped_rows(), NOBODYS)
    assert late[:, 1].abs().max() > 0.2 * mapped_rows()[:, 1].abs().max()


def test_multiples_of_columns_follow_the_loss_or_the_error():
    """At half the fitted steps: a loss that is even in the rows has no slope, the error of clipped values shrinks."""
    gradients = []
    for is_local in (False, True):
        rows = torch.cat([mapped_rows(), -mapped_rows()])
        quantizer = fitted_columns(rows, is_local).eval()
        with torch.no_grad():
            quantizer.log_step -= np.log(2.0)
        quantizer(rows, NOBODYS).sum().backward()
        gradients.append(quantizer.log_step.grad)
    torch.testing.assert_close(gradients[0], torch.zeros(4), atol=1e-4, rtol=0)
    assert (gradients[1] < 0).all()


@pytest.mark.parallel([1, 2, 3])
def test_columns_have_the_same_steps_on_any_number_of_ranks():
    comm, rows = MPI.COMM_WORLD, mapped_rows()
    mine = rows[[*range(comm.rank, 20, comm.size), *(range(20, 30) if comm.rank == 0 else ())]]
    alone, shared = fitted_columns(rows), ColumnQuantizer(comm, 4, 30, 4)
    shared.fitting_comm = comm
    shared(mine, NOBODYS)
    shared.fitting_comm = None
    for factor in (1.0, 2.0, 5.0):
        alone.train()(factor * rows, NOBODYS)
        shared.train()(factor * mine, NOBODYS)
    torch.testing.assert_close(shared.step, alone.step, rtol=1e-6, atol=0)


def test_an_output_without_weights_has_a_step_all_the_same():
    quantizer = WeightQuantizer(2, 4)
    quantizer.fitting_comm = ALONE
    assert quantizer(torch.zeros(2, 3)).tolist() == [[0.0] * 3] * 2
    assert (quantizer.integers(torch.zeros(2, 3)).scale.step > 0).all()


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_values_that_are_not_finite_are_refused(bad):
    values = torch.tensor([1.0, bad, 2.0])
    with pytest.raises(CollectiveError, match="rows to quantize hold NaN or infinity"):
        search_steps(ALONE, values, torch.tensor([0, 1, 1]), np.array([7, 7]))


def test_a_tracked_range_is_the_percentile_and_moves_slowly():
    tracked = TrackedRange(ALONE, bits=4, is_signed=False)
    nodes, rows = Nodes(torch.zeros(1000, dtype=torch.int64)), torch.linspace(0.0, 1.0, 1000)[:, None]
    tracked.fitting_comm = ALONE
    tracked(rows, nodes)
    tracked.fitting_comm = None
    assert tracked.largest.item() == pytest.approx(0.999, rel=0.01)
    tracked.train()(3 * rows, nodes)
    assert tracked.largest.item() == pytest.approx(0.9 * 0.999 + 0.1 * 3 * 0.999, rel=0.01)
    before = tracked.largest.item()
    tracked.eval()(9 * rows, nodes)
    assert tracked.largest.item() == before


def test_protected_rows_pass_as_they_are():
    tracked, rows = TrackedRange(ALONE, bits=2, is_signed=True), torch.tensor([[0.3, -0.6], [0.3, -0.6]])
    out = tracked.eval()(rows, Nodes(torch.zeros(2, dtype=torch.int64), torch.tensor([True, False])))
    assert out[0].tolist() == rows[0].tolist() and out[1].tolist() == [0.0, -1.0]


def test_protection_rises_with_the_rank_of_the_in_degree():
    probability = protection_by_degree(np.array([0, 6, 3, 1]), 0.1, 0.3)
    np.testing.assert_allclose(probability.numpy(), [0.1, 0.22, 0.28, 0.3], rtol=1e-6)
