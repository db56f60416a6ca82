"""What labels ask for: by their type and shape, and by what the user says."""

import numpy as np
import pytest

from hpcgnn.datasets.targets import read_labels
from hpcgnn.errors import DatasetError

NAN = float("nan")


@pytest.mark.parametrize("values, expected, names", [
    (["b", "a", "b", "c"], [1, 0, 1, 2], ("a", "b", "c")),
    (["b", "", "NaN", "a"], [1, -1, -1, 0], ("a", "b")),
    (np.array(["é", None, "z", NAN], dtype=object), [1, -1, 0, -1], ("z", "é")),
    ([b"b", b"a"], [1, 0], ("a", "b")),
    ([3, 0, -1], [3, 0, -1], ()),
    ([[3], [0]], [3, 0], ()),
    ([3.0, NAN, 1.0], [3, -1, 1], ()),
    ([True, False], [1, 0], ()),
    (np.array([2, None, 1], dtype=object), [2, -1, 1], ()),
])
def test_one_column_is_classes(values, expected, names):
    found = read_labels(np.asarray(values), "auto", "g")
    assert found.values.dtype == np.int64 and found.values.tolist() == expected
    assert found.class_names == names
    assert found.num_classes == (len(names) or max(expected) + 1)


def test_columns_of_0_and_1_are_indicators_with_their_names():
    found = read_labels(np.array([[0, 1.0], [1, 1]]), "auto", "g", column_names=("x", "y"))
    assert found.values.dtype == np.uint8 and found.values.tolist() == [[0, 1], [1, 1]]
    assert (found.num_classes, found.class_names) == (2, ("x", "y"))


@pytest.mark.parametrize("values, task, expected", [
    ([0.5, 1, NAN], "auto", [[0.5], [1], [NAN]]),
    ([[0.5, 1], [NAN, 2]], "auto", [[0.5, 1], [NAN, 2]]),
    ([3, 4], "regression", [[3], [4]]),
    ([[0, 1], [1, 1]], "regression", [[0, 1], [1, 1]]),
])
def test_numbers_with_a_fraction_or_a_word_of_the_user_are_targets(values, task, expected):
    found = read_labels(np.array(values), task, "g")
    assert found.values.dtype == np.float32 and found.num_classes == len(expected[0])
    np.testing.assert_array_equal(found.values, expected)
    assert any("is no class" in one for one in found.remarks) == (task == "auto")


def test_every_nan_of_targets_has_one_pattern_of_bits():
    odd = np.array([0x7FC00001, 0xFFC00000, 0x7F800001], np.uint32).view(np.float32)
    bits = read_labels(odd, "regression", "g").values.view(np.uint32)
    assert len(np.unique(bits)) == 1


@pytest.mark.parametrize("values, task, complaint", [
    ([0.5, 1], "classes", "label 0.5 at node 0; expected a whole class number"),
    ([[0, 2]], "auto", "multi-label value 2 at node 0; expected 0 or 1"),
    ([["a", "b"]], "auto", "expected 0 and 1"),
    (["a"], "regression", "labels that are texts, 'a' first; a regression needs numbers"),
    ([np.inf], "regression", "the target inf at node 0"),
    ([1.0, 1e39], "regression", "the target 1e\\+39 at node 1"),
    (np.array(["a", 3], dtype=object), "auto", "labels of several types, int and str among them"),
    (np.array([1j]), "auto", "labels of type complex128"),
    (np.zeros((2, 2, 2)), "auto", "labels of shape"),
])
def test_labels_that_a_task_can_not_have_are_refused(values, task, complaint):
    with pytest.raises(DatasetError, match=complaint):
        read_labels(np.asarray(values), task, "g")


@pytest.mark.parametrize("values, has_remark", [
    (np.array([[200.5], [203.0], [198.0]]), True), (np.array([[0.5], [-3.0], [2.0]]), False),
    (np.array([[7.5, 1.0], [7.5, -1.0]]), True), (np.array([[np.nan, 0.5], [np.nan, 1.5]]), False)])
def test_targets_far_from_zero_are_remarked(values, has_remark):
    remarks = read_labels(values, "regression", "houses").remarks
    assert [("standardize them" in one) for one in remarks] == [True] * has_remark
