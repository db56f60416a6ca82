"""Ids of any kind, and splits that name nodes by them."""

import re

import numpy as np
import pytest

from hpcgnn.data.given import read_splits
from hpcgnn.data.ids import NodeRows, look_at_ids, numbers_of_ends, renumbered
from hpcgnn.errors import DatasetError


def test_rows_of_ids_are_found_whatever_their_order():
    rng = np.random.default_rng(0)
    ids = rng.permutation(1000)[:300] * 17 - 40
    rows = NodeRows(ids, "g")
    asked = rng.choice(ids, 2000)
    np.testing.assert_array_equal(ids[rows.find(asked, "an edge")], asked)
    np.testing.assert_array_equal(rows.find(np.empty(0, np.int64), "an edge"), [])


@pytest.mark.parametrize("ids, has_names", [([0, 1, 2], False), ([1, 0, 2], True), ([1, 2, 3], True),
                                            (["0", "1"], True)])
def test_ids_that_count_the_rows_are_no_names(ids, has_names):
    assert (NodeRows(np.array(ids), "g").names is not None) == has_names


@pytest.mark.parametrize("ids, asked, complaint", [
    ([1, 5], [5, 7], "g has an edge to node 7, which does not exist"),
    (["a", "b"], ["zed"], "g has an edge to node 'zed', which does not exist"),
    (["a", "b"], [1], "node 1, which does not exist.* ids are texts such as 'a', and the ids here are integers"),
    ([7, 8], ["007"], "node '007', which does not exist.* ids are integers such as 7, and the ids here are texts"),
])
def test_an_id_that_no_node_has_is_named(ids, asked, complaint):
    with pytest.raises(DatasetError, match=complaint):
        NodeRows(np.array(ids), "g").find(np.array(asked), "an edge")


@pytest.mark.parametrize("ids, asked", [
    (["10", "11", "a7"], [11, 10]), ([10, 11], ["11", "10"]), ([10**19, 10, 11], [11, 10]),
    ([10, 11], np.array([11, 10], object))])
def test_a_number_is_the_same_id_as_its_decimal_text(ids, asked):
    places = [[str(one) for one in ids].index(str(one)) for one in asked]
    assert NodeRows(ids, "g").find(asked, "an edge").tolist() == places


@pytest.mark.parametrize("ids, doubts", [
    (["1.0", "1", "a", "b"], ["1 ids look or count like another .* '1.0' beside '1'"]),
    (["+7", "007", "7", "8.5"], ["2 ids look or count like another"]),
    (["Zu\u0308rich", "Z\u00fcrich", "\u200bBern", "Bern"], ["2 ids look or count like another"]),
    (["nan", "b", "c"], ["a node is called 'nan'"]), (["\\N", "b", "c"], [r"a node is called '\\\\N'"]),
    (["1", "2", "3", "Total"], ["all ids are numbers but 1, such as 'Total'"]),
    (["1.23457E+11", "a", "b"], ["1 ids are written as 1.23457E.11, as spreadsheets shorten"]),
    (["a", "b", "A", "1", "2"], []), (["0", "-0", "10", "1e1"], []), ([1, 2, 3], []), ([], [])])
def test_texts_that_may_be_one_node_or_none_are_said(ids, doubts):
    found = look_at_ids(NodeRows(ids, "g").ids)
    assert len(found) == len(doubts) and all(map(re.match, doubts, found))


def test_an_id_twice_is_named():
    with pytest.raises(DatasetError, match="g has node 'b' twice"):
        NodeRows(np.array(["b", "a", "b"]), "g")


@pytest.mark.parametrize("ends, num_nodes, ids", [
    (([0, 5, 2], [1, 0, 0]), 6, None),                                     # 3 and 4 are isolated nodes
    (([1, 2, 3], [2, 3, 4]), 5, None), (([], []), 0, None), (([-1, 0], [0, 10**12]), 10**12 + 1, None),
    (([10**6, 10**6 + 7], [10**6 + 7, 10**6 + 14]), 3, [10**6, 10**6 + 7, 10**6 + 14]),
    (([0, 2**63 - 1], [10**12, 0]), 3, [0, 10**12, 2**63 - 1]), (([0, 1, 2, 2], [9, 9, 9, 0]), 4, [0, 1, 2, 9])])
def test_numbers_with_large_gaps_are_ids_and_others_count_the_nodes(ends, num_nodes, ids):
    source, target = (np.array(end, np.int64) for end in ends)
    found = numbers_of_ends(source, target)
    assert (found[0], None if found[1] is None else found[1].tolist()) == (num_nodes, ids)
    if ids is not None:
        assert [ids[place] for place in renumbered(source, found[1])] == ends[0]


EXPECTED = ([True, False, True, False], [False, True, False, False], [False, False, False, True])


@pytest.mark.parametrize("splits", [
    ["train", "valid", "TRAIN ", "test"],
    np.array(["tr", "va", "train", "te"], dtype=object),
    [np.array(mask) for mask in EXPECTED],
    ([0, 2], [1], [3]),
    {"train": [2, 0], "val": [1], "test": np.array(EXPECTED[2])},
])
def test_splits_of_any_form_are_masks(splits):
    for mask, expected in zip(read_splits(splits, 4, "g"), EXPECTED, strict=True):
        assert mask.tolist() == expected


def test_a_word_for_no_split_and_splits_that_are_left_out_are_empty():
    assert read_splits(np.array(["train", None, "", "none"], dtype=object), 4, "g")[0].tolist() == [True] + 3 * [False]
    train, val, test = read_splits({"train": [1]}, 3, "g")
    assert train.tolist() == [False, True, False] and not val.any() and not test.any()


def test_lists_name_nodes_by_their_ids():
    rows = NodeRows(np.array(["c", "a", "b"]), "g")
    masks = read_splits((["a"], [], ["b", "c"]), 3, "g", rows)
    assert [np.flatnonzero(mask).tolist() for mask in masks] == [[1], [], [0, 2]]
    with pytest.raises(DatasetError, match="g has a training split that refers to node 'x', which does not exist"):
        read_splits((["x"], [], []), 3, "g", rows)


@pytest.mark.parametrize("splits, complaint", [
    (["train", "hold-out"], "a split called 'hold-out'; expected train, val"),
    (["train"], "expected one word per node"),
    ([1, 2], "expected one word per node"),
    (([0], [1], [7]), "node 7 in its test split, which does not exist"),
    ({"train": [0], "holdout": [1]}, "a split called 'holdout'"),
    ({"test": [0]}, "without training nodes"),
    (([0.5], [1], [1]), "nodes of the training split hold numbers that are missing or have a fraction"),
])
def test_splits_of_another_form_are_refused(splits, complaint):
    with pytest.raises(DatasetError, match=complaint):
        read_splits(splits, 2, "g")
