"""What labels ask for: by their type and shape, and by what the user says."""

import numpy as np
import pandas
import pyarrow as pa
import pytest

from hpcgnn.data.dataset import Origins
from hpcgnn.data.labels import place_beside, read_labels
from hpcgnn.errors import DatasetError

NAN = float("nan")


@pytest.mark.parametrize("values, expected, names", [
    (["b", "a", "b", "c"], [1, 0, 1, 2], ("a", "b", "c")),
    (["b", "", "NaN", "a"], [1, -1, -1, 0], ("a", "b")),
    (np.array(["é", None, "z", NAN], dtype=object), [1, -1, 0, -1], ("z", "é")),
    ([b"b", b"a"], [1, 0], ("a", "b")),
    ([2, 0, -1, 1], [2, 0, -1, 1], ()),
    ([[1], [0]], [1, 0], ()),
    ([2.0, NAN, 1.0, 0.0], [2, -1, 1, 0], ()),
    ([True, False], [1, 0], ()),
    (np.array([2, None, 1, 0], dtype=object), [2, -1, 1, 0], ()),
])
def test_one_column_is_classes(values, expected, names):
    found = read_labels(np.asarray(values), "auto", "g")
    assert found.values.dtype == np.int64 and found.values.tolist() == expected
    assert found.class_names == names
    assert found.num_classes == (len(names) or max(expected) + 1)


@pytest.mark.parametrize("values, complaint", [
    (["Art", "art", "law"], "'Art' and 'art' differ in case"), (["art", "art ", "law"], "'art' and 'art ' differ in"),
    ([" ", "art", "law"], "of a class called ' '"), (["NAN", "art", "law"], "of a class called 'NAN'"),
    (["\\N", "art", "law"], r"of a class called '\\N'"), (["#N/A", "art", "law"], "of a class called '#N/A'"),
    (["Action,Drama", "Drama", "Action"], "such as 'Action,Drama' are classes of their own; write a;b")])
def test_names_of_classes_that_may_be_one_or_none_are_said(values, complaint):
    (doubt,) = read_labels(values, "auto", "g").dubious
    assert complaint in doubt


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
    assert any("is no class" in one for one in found.dubious) == (task == "auto")


def test_every_nan_of_targets_has_one_pattern_of_bits():
    odd = np.array([0x7FC00001, 0xFFC00000, 0x7F800001], np.uint32).view(np.float32)
    bits = read_labels(odd, "regression", "g").values.view(np.uint32)
    assert len(np.unique(bits)) == 1


@pytest.mark.parametrize("values", [[[0, 1, 2, 1]], [[0.5, 1.5]], [["a", "b", "a"]]])
def test_labels_in_one_row_are_refused(values):
    with pytest.raises(DatasetError, match=r"a row for one node; if these are labels of \d nodes, pass labels.reshape"):
        read_labels(np.array(values), "auto", "g")


@pytest.mark.parametrize("values, task, complaint", [
    ([0.5, 1], "classes", "label 0.5 at node 0; expected a whole class number"),
    ([[0, 2], [1, 0]], "auto", "multi-label value 2 at node 0; expected 0 or 1"),
    ([["a", "b"], ["a", "c"]], "auto", "texts of shape .2, 2. for labels"),
    (["['a', 'b']", "['a']", "nan"], "auto", "lists that were written as texts; write a;b"),
    (['["a"]', "[]"], "auto", "lists that were written as texts; write a;b"),
    (["a"], "regression", "labels that are texts, 'a' first; a regression needs numbers"),
    ([np.inf], "regression", "the target inf at node 0"),
    ([1.0, 1e39], "regression", "the target 1e\\+39 at node 1"),
    (np.array(["a", 3], dtype=object), "auto", "the labels are of several types, int and str among them"),
    (np.array([1j]), "auto", "the labels are complex numbers .complex128."),
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


@pytest.mark.parametrize("values, expected, names, word", [
    ([11111, 92812, 52392, 11111], [0, 2, 1, 0], ("11111", "52392", "92812"), "81,699"),     # 92,812 - 11,111 + 1 - 3
    ([3, 1, 2, 1], [2, 0, 1, 0], ("1", "2", "3"), ""),
    ([0, 3, -1], [0, 1, -1], ("0", "3"), "2 of these have no node"),
    ([3.0, NAN, 1.0], [1, -1, 0], ("1", "3"), "1 of these have no node"),
    ([10**12, 7], [1, 0], ("7", str(10**12)), "999,999,999,992"),
    ([2, 5, -1], [0, 1, -1], ("2", "5"), "2 of these have no node"),
])
def test_codes_of_classes_are_numbered_in_their_order_and_are_the_names(values, expected, names, word):
    found = read_labels(np.array(values), "auto", "g")
    assert found.values.tolist() == expected
    assert (found.num_classes, found.class_names) == (len(names), names)
    assert word in " ".join(found.dubious) and bool(found.dubious) == bool(word)


def test_a_number_of_classes_that_the_source_states_is_kept():
    found = read_labels(np.array([0, 3, 3, -1]), "auto", "g", num_classes=6)
    assert (found.values.tolist(), found.num_classes, found.class_names) == ([0, 3, 3, -1], 6, ())


@pytest.mark.parametrize("fill", [255, -100, 65535, -9999, 2**31 - 1])
@pytest.mark.parametrize("first, num_classes", [(0, None), (1, None), (0, 2)])
def test_a_number_that_stands_for_unknown_by_custom_is_no_class(fill, first, num_classes):
    found = read_labels(np.array([first, fill, first + 1, fill, first]), "auto", "g", num_classes)
    assert (found.values.tolist(), found.num_classes) == ([0, -1, 1, -1, 0], 2)
    assert found.unlabeled.tolist() == [False, True, False, True, False]
    assert found.dubious[0] == (f"2 nodes have the label {fill}, which is no class here but unknown; ignore=none makes "
                                "it a class")
    if num_classes is None:
        kept = read_labels(np.array([first, fill, first + 1, fill, first]), "auto", "g", ignore=None)
        assert kept.num_classes == 3 and str(fill) in kept.class_names


def test_255_among_its_neighbors_is_a_class():
    found = read_labels(np.arange(256).repeat(8), "auto", "g")
    assert (found.num_classes, found.unlabeled) == (256, None)


@pytest.mark.parametrize("values, ignore, expected", [
    ([0, 1, 9, 9], (9,), [0, 1, -1, -1]),
    ([0, 1, 9, 9], ("9",), [0, 1, -1, -1]),
    (["a", "unknown", "b", "a"], ("unknown",), [0, -1, 1, 0]),
    ([1, -1, 1, -1], None, [1, 0, 1, 0]),
])
def test_labels_that_are_ignored_are_unknown(values, ignore, expected):
    found = read_labels(np.array(values), "auto", "g", ignore=ignore)
    assert found.values.tolist() == expected


def test_a_class_called_unknown_is_dubious():
    found = read_labels(np.array(["a", "b", "Unknown", "a"]), "auto", "g")
    assert found.dubious == ("1 nodes are of a class called 'Unknown'; ignore=Unknown makes them nodes without a "
                             "label",)


@pytest.mark.parametrize("values, complaint", [
    ([f"node {k}" for k in range(60)], "60 classes for 60 nodes by the labels of attribute label, such as 'node 0', "
     r"which are names rather than classes; name the classes by label=COLUMN \(labels=COLUMN in Python\), one of y, "
     "size"),
    (np.arange(60) * 7, "60 classes for 60 nodes .* pass --task regression"),
    (np.r_[np.arange(40), np.arange(20)], "40 classes for 60 nodes"),
])
def test_a_class_for_nearly_every_node_is_refused(values, complaint):
    with pytest.raises(DatasetError, match=complaint):
        read_labels(np.array(values), "auto", "g", origins=Origins(labels="attribute label", others=("y", "size")))


def test_many_classes_of_few_nodes_are_dubious():
    assert "20 classes for 60 labeled nodes, 3.0 nodes" in read_labels(np.arange(60) % 20, "auto", "g").dubious[0]


@pytest.mark.parametrize("values, ignore, complaint", [
    ([0, 1, -2], (), "label -2 at node 2.*ignore=-2 if it stands for unknown, or ignore=none"),
    ([1, -1, 1], (), "no labels but 1 and unknown ones.*ignore=none if -1 is a class, too"),
    ([0, 1], (5,), "neither a column nor a label '5' to ignore"),
    (["a", "b"], ("c",), "neither a column nor a label 'c' to ignore"),
])
def test_numbers_that_may_be_unknown_or_a_class_are_asked_for(values, ignore, complaint):
    with pytest.raises(DatasetError, match=complaint):
        read_labels(np.array(values), "auto", "g", ignore=ignore)


def test_coordinates_are_no_targets_unless_it_is_said():
    latitude, origins = np.array([48.1, 48.2]), Origins(labels="column y", place="x", others=("street_count",))
    with pytest.raises(DatasetError, match=r"would learn the numbers of column y, next to x: these look like "
                                           r"coordinates; name the labels by label=COLUMN .*one of street_count"):
        read_labels(latitude, "auto", "g", origins=origins)
    assert read_labels(latitude, "regression", "g", origins=origins).num_classes == 1


@pytest.mark.parametrize("column, held, found", [
    ("y", {"x": np.float32(1.5), "y": 1.0}, "x"), ("Y", {"X": 1.5, "Y": 2.0}, "X"),
    ("y", {"x": np.ones(3), "y": 1.0}, ""), ("y", {"x": [1.0, 2.0], "y": 1.0}, ""),
    ("label", {"x": 1.5, "label": 1.0}, ""), ("y", {"lon": 1.5, "y": 1.0}, "lon"),
])
def test_a_column_y_beside_another_coordinate_is_a_place(column, held, found):
    assert place_beside(column, held) == found


def test_texts_that_join_names_are_several_labels_a_node():
    found = read_labels(np.array(["art;music", "music", "art", "art; science", ""]), "auto", "g")
    assert found.class_names == ("art", "music", "science")
    assert found.values.tolist() == [[1, 1, 0], [0, 1, 0], [1, 0, 0], [1, 0, 1], [255, 255, 255]]
    assert found.unlabeled.tolist() == [False] * 4 + [True]
    alone = read_labels(np.array(["a|b", "c|d", "c|d"]), "auto", "g")     # no name twice: two classes
    assert alone.class_names == ("a|b", "c|d")


def test_a_row_of_nan_is_a_node_without_labels_and_a_row_of_zeros_is_dubious():
    found = read_labels(np.array([[1, 0], [NAN, NAN], [0, 0], [1, 1]]), "auto", "g")
    assert found.values.tolist() == [[1, 0], [255, 255], [0, 0], [1, 1]] and found.values.dtype == np.uint8
    assert found.unlabeled.tolist() == [False, True, False, False]
    assert found.dubious[0].startswith("1 nodes have a row of zeros")


def test_an_unknown_label_among_known_ones_is_kept_as_unknown():
    found = read_labels(np.array([[1, 0], [NAN, 1], [0, NAN]]), "auto", "g")
    assert (found.values.tolist(), found.unlabeled) == ([[1, 0], [255, 1], [0, 255]], None)
    assert found.remarks == ("2 nodes have labels that are unknown, which the loss and scores leave out",)


@pytest.mark.parametrize("values, names, expected", [
    ([{"b", "a"}, {"a"}, set(), None], ("a", "b"), [[1, 1], [1, 0], [0, 0], [255, 255]]),
    ([["b", "a"], ["a"]], ("a", "b"), [[1, 1], [1, 0]]),
    ([["a", "b"], ["c", "b"]], ("a", "b", "c"), [[1, 1, 0], [0, 1, 1]]),
    ([[10, 2], [2], []], ("2", "10"), [[1, 1], [1, 0], [0, 0]]),
    ([frozenset((1,)), frozenset((0, 1))], ("0", "1"), [[0, 1], [1, 1]]),
])
def test_sets_and_lists_of_classes_are_several_labels_a_node(values, names, expected):
    lists = [None if items is None else sorted(items) for items in values]
    for form in (values, pandas_column(values), pa.array(lists), pandas.Series(lists, dtype=pandas.ArrowDtype(
            pa.array(lists).type)), pandas_column([None if items is None else np.array(items) for items in lists])):
        found = read_labels(form, "auto", "g")
        assert (found.class_names, found.values.tolist()) == (names, expected)


def test_lists_of_as_many_numbers_are_a_matrix():
    assert read_labels([[0, 1], [1, 1]], "auto", "g").values.tolist() == [[0, 1], [1, 1]]
    assert read_labels([[0.5, 1], [1, 1]], "auto", "g").values.dtype == np.float32


def pandas_column(values):
    """An array of objects, as a column of pandas holds sets and lists."""
    column = np.empty(len(values), object)
    column[:] = values
    return column


def test_rows_with_one_1_each_are_dubious_labels_and_classes_where_it_is_said():
    rows = np.array([[0, 1, 0], [1, 0, 0], [0, 1, 0]])
    assert "--task classes" in read_labels(rows, "auto", "g").dubious[0]
    found = read_labels(rows, "classes", "g")
    assert (found.values.tolist(), found.num_classes) == ([1, 0, 1], 3)
