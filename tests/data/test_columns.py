"""The gate: what each form of a foreign column becomes, by its role. Expected values are written out by hand."""

from __future__ import annotations

from decimal import Decimal

import numpy as np
import pandas
import pyarrow as pa
import pytest
import torch

from hpcgnn.data.columns import (
    Cells,
    Words,
    as_features,
    as_ids,
    as_labels,
    as_mask,
    as_numbers,
    as_sparse,
    as_words,
    is_mask,
)
from hpcgnn.errors import DatasetError

BIG = 11898508762506083287


def listed(values):
    return values.tolist() if isinstance(values, np.ndarray) else values.to_pylist()


def arrow(values, kind):
    return pandas.Series(values, dtype=pandas.ArrowDtype(kind))


IDS = {
    "a list": ([3, -1], [3, -1]), "a tuple": ((3, 1), [3, 1]), "a range": (range(2), [0, 1]), "nothing": ([], []),
    "int32": (np.array([3, 1], np.int32), [3, 1]), "uint64": (np.array([3, 2**40], np.uint64), [3, 2**40]),
    "another byte order": (np.array([3, 1], ">i8"), [3, 1]), "every second": (np.arange(6)[::2], [0, 2, 4]),
    "whole floats": (np.array([3.0, 1.0]), [3, 1]), "whole float32": (np.array([3, 1], np.float32), [3, 1]),
    "texts": (["b", "a"], ["b", "a"]), "fixed texts": (np.array(["b", "a"]), ["b", "a"]),
    "bytes": (np.array([b"b", "é".encode()], dtype=object), ["b", "é"]),
    "fixed bytes": (np.array([b"ab", b"a"]), ["ab", "a"]),
    "objects": (np.array([3, -7], object), [3, -7]), "NumPy scalars": ([np.int64(3), np.uint8(1)], [3, 1]),
    "NumPy texts": ([np.str_("b"), "a"], ["b", "a"]), "arrays of no axis": ([np.array(3), np.array(1)], [3, 1]),
    "tensors of no axis": ([torch.tensor(3), torch.tensor(1)], [3, 1]),
    "floats among objects": (np.array([3.0, 1], object), [3, 1]),
    "texts and integers": (np.array(["a7", 10], object), ["a7", "10"]),
    "uint64 beyond int64": (np.array([BIG, 7], np.uint64), [str(BIG), "7"]),
    "one beyond int64": ([BIG, -7, 2**62 + 1], [str(BIG), "-7", str(2**62 + 1)]),
    "one beyond uint64": ([2**70, 7], [str(2**70), "7"]),
    "decimals": ([Decimal("12"), Decimal(BIG)], ["12", str(BIG)]),
    "Arrow's decimals": (pa.array([Decimal("12"), Decimal("7")], pa.decimal128(20, 0)), [12, 7]),
    "a tensor": (torch.tensor([3, 1], dtype=torch.int16), [3, 1]),
    "a pandas index": (pandas.Index(["b", "a"]), ["b", "a"]),
    "a range of pandas": (pandas.RangeIndex(2), [0, 1]), "pandas": (pandas.Series([3, 1]), [3, 1]),
    "nullable": (pandas.Series([3, 1], dtype="Int32"), [3, 1]),
    "UInt64": (pandas.Series([BIG], dtype="UInt64"), [str(BIG)]),
    "int64[pyarrow]": (arrow([3, 1], pa.int64()), [3, 1]),
    "string[pyarrow]": (arrow(["b", "a"], pa.string()), ["b", "a"]),
    "categories": (pandas.Series(["b", "a", "b"], dtype="category"), ["b", "a", "b"]),
    "categories of integers": (pandas.Series([30, 10], dtype="category"), [30, 10]),
    "chunks": (pa.chunked_array([["b"], ["a"]]), ["b", "a"]),
    "a dictionary": (pa.array(["b", "a"]).dictionary_encode(), ["b", "a"]),
    "chunks of dictionaries": (pa.chunked_array([pa.array([one]).dictionary_encode() for one in "ba"]),
                               ["b", "a"]),
    "views": (pa.array(["b", "a"], pa.string_view()), ["b", "a"]), "binary": (pa.array([b"b"], pa.binary()), ["b"]),
    "cells": (Cells(pa.array(["10", " 7 "])), [10, 7]), "cells of text": (Cells(pa.array(["10", "a7"])), ["10", "a7"]),
    "cells with zeros": (Cells(pa.array(["007", "8"])), ["007", "8"]),
    "cells beyond int64": (Cells(pa.array([str(BIG), "8"])), [str(BIG), "8"]),
}


@pytest.mark.parametrize("form", IDS)
def test_ids_become_int64_or_texts_and_none_is_changed(form):
    values, expected = IDS[form]
    found = as_ids(values, "the ids")
    assert listed(found) == expected
    assert isinstance(found, pa.LargeStringArray) if isinstance((expected or [0])[0], str) else found.dtype == np.int64
    assert as_ids(found, "the ids") is found


NO_IDS = {
    "a fraction": ([1.5], "a fraction"), "NaN": ([1.0, np.nan], "missing"), "infinity": (np.array([np.inf]), "missing"),
    "no text": (["a", ""], "lack an id at place 1"), "None": (["a", None], "lack an id at place 1"),
    "null": (pa.array([1, None]), "lack an id at place 1"), "masked": (np.ma.array([1, 2], mask=[0, 1]), "at place 1"),
    "NA": (pandas.Series([1, None], dtype="Int64"), "lack an id at place 1"),
    "an empty cell": (Cells(pa.array(["10", ""])), "lack an id at place 1"),
    "pairs": ([[1, 2]], r"shape \(1, 2\)"), "one number": (np.int64(7), "a single value, 7"),
    "truths": ([True, False], "True and False"), "digits that are lost": ([1e17, 1.0], "have lost digits"),
    "digits that float32 loses": (np.array([2.0**24], np.float32), "have lost digits"),
    "digits that bfloat16 loses": (torch.tensor([257.0]).bfloat16(), "have lost digits"),
    "times": (np.array(["2020-01-01"], "M8[D]"), "are times"), "spans": (np.array([1], "m8[s]"), "spans of time"),
    "Arrow's times": (pa.array([0], pa.timestamp("s")), "Arrow's type timestamp"),
    "times of pandas": (pandas.Series(pandas.date_range("2020", periods=2, tz="UTC")), "are of Timestamp"),
    "periods": (pandas.Series(pandas.period_range("2020", periods=2)), "Arrow's type extension"),
    "complex": (np.array([1j]), "complex numbers"), "records": (np.zeros(2, [("u", int)]), "are records"),
    "a set": ({1, 2}, "are a set"), "floats and texts": (np.array(["a", 1.5], object), "a mix of types"),
    "half of a character": (["\ud800"], "no text that UTF-8 can hold"),
    "bytes of another code": ([b"\xff"], "no UTF-8"), "vectors of two lengths": ([[1], [1, 2]], "several lengths"),
}


@pytest.mark.parametrize("form", NO_IDS)
def test_what_is_no_id_is_refused_in_a_sentence(form):
    values, complaint = NO_IDS[form]
    with pytest.raises(DatasetError, match=rf"^the ids [^\n]*{complaint}[^\n]*$"):
        as_ids(values, "the ids")


NAN = float("nan")
NUMBERS = {
    "float16": (np.array([1.5], np.float16), np.float16, [1.5]),
    "a foreign order": (np.array([1.5], ">f4"), np.float32, [1.5]),
    "long": (np.array([1.5], np.longdouble), np.float64, [1.5]), "bool": ([True, False], bool, [True, False]),
    "None": ([1, None], np.float64, [1, NAN]), "masked": (np.ma.array([1, 2], mask=[0, 1]), np.float64, [1, NAN]),
    "masked matrix": (np.ma.masked_equal([[1.0, 9.0]], 9), np.float64, [[1, NAN]]),
    "decimals": (arrow([Decimal("1.50"), None], pa.decimal128(12, 2)), np.float64, [1.5, NAN]),
    "nullable": (pandas.Series([1, None], dtype="Int64"), np.float64, [1, NAN]),
    "bool[pyarrow]": (arrow([True, False], pa.bool_()), bool, [True, False]),
    "float[pyarrow]": (arrow([1.5, None], pa.float32()), np.float32, [1.5, NAN]),
    "sparse pandas": (pandas.Series([1.5, 0], dtype=pandas.SparseDtype(float)), np.float64, [1.5, 0]),
    "a frame": (pandas.DataFrame({"a": [1, 2], "b": [0.5, None]}), np.float64, [[1, 0.5], [2, NAN]]),
    "an Arrow table": (pa.table({"a": [1, 2], "b": [3, 4]}), np.int64, [[1, 3], [2, 4]]),
    "vectors": ([[1, 2], [3, 4]], np.int64, [[1, 2], [3, 4]]),
    "arrays": ([np.ones(2), np.zeros(2)], np.float64, [[1, 1], [0, 0]]),
    "lists of Arrow": (pa.array([[1.5, 2.0], [3.0, None]]), np.float64, [[1.5, 2], [3, NAN]]),
    "fixed lists": (pa.array([[1, 2]], pa.list_(pa.int8(), 2)), np.int8, [[1, 2]]),
    "bfloat16": (torch.tensor([1.5]).bfloat16(), np.float32, [1.5]),
    "gradients": (torch.tensor([1.5], requires_grad=True), np.float32, [1.5]),
    "sparse": (torch.eye(2).to_sparse(), np.float32, [[1, 0], [0, 1]]),
    "sparse rows": (torch.eye(2).to_sparse_csr(), np.float32, [[1, 0], [0, 1]]),
    "a negative view": (torch.complex(torch.zeros(1), torch.tensor([2.0])).conj().imag, np.float32, [-2]),
    "words of truth": (["True", "False"], bool, [True, False]),
    "cells": (Cells(pa.array(["1", ""])), np.float64, [1, NAN]),
    "whole cells": (Cells(pa.array(["1", "-2"])), np.int64, [1, -2]),
    "a number per element": ([np.float32(0.5), 2], np.float64, [0.5, 2]),
    "nothing known": (pa.nulls(2), np.float64, [NAN, NAN]),
}


@pytest.mark.parametrize("form", NUMBERS)
def test_numbers_keep_their_type_and_what_is_unknown_is_nan(form):
    values, dtype, expected = NUMBERS[form]
    found = as_numbers(values, "the weights")
    np.testing.assert_array_equal(found, expected)
    assert found.dtype == dtype and found.dtype.isnative


@pytest.mark.parametrize("values", [["1.5", "2"], [[1], [1, 2]], [{}], {"a": 1}, np.array([1j]), Cells(pa.array(["x"])),
                                    pa.array([[1], None]), [[1], None], np.array("x"), iter([1]), [object()]])
def test_what_is_no_number_is_refused_in_a_sentence(values):
    with pytest.raises(DatasetError, match=r"^the weights [^\n]*$"):
        as_numbers(values, "the weights")


@pytest.mark.parametrize("values, complaint", [
    (["1.5", "2", "x"], "such as 'x'; expected numbers, or"), (["1.5", "2"], "such as '1.5'; expected numbers: conv"),
    (["2", "1,5"], "such as '1,5'; expected numbers, with a point before decimals"), (["2", None, "-"], "such as '-'")])
def test_the_text_that_is_no_number_is_named(values, complaint):
    for given in (values, pa.array(values).dictionary_encode(), Cells(pa.array(values))):
        if not isinstance(given, Cells) or complaint[9] not in "1":
            with pytest.raises(DatasetError, match=f"the weights hold texts {complaint}"):
                as_numbers(given, "the weights")


def test_truths_in_capital_letters_are_true_and_false():
    assert as_numbers(Cells(pa.array(["TRUE", "FALSE"])), "x").tolist() == [True, False]
    assert as_mask(["FALSE", "TRUE"], "x").tolist() == [False, True]
    assert as_mask(Cells(pa.array(["1.0", "0.0", "1.0"])), "x").tolist() == [True, False, True]


@pytest.mark.parametrize("values, expected", [
    (np.ma.array([1, 2, 0], mask=[0, 1, 0]), [1, NAN, 0]), ([1, None], [1, NAN]), (pa.array([1, None]), [1, NAN]),
    (pandas.Series([1, None], dtype="Int64"), [1, NAN]), (torch.tensor([[1], [0]]), [[1], [0]]),
    (Cells(pa.array(["1", "NA"])), [1, NAN])])
def test_labels_that_are_masked_are_unknown(values, expected):
    np.testing.assert_array_equal(as_labels(values, "the labels"), expected)


@pytest.mark.parametrize("values", [
    ["cat", None, "dog", "cat"], np.array(["cat", None, "dog", "cat"], object), pa.array(["cat", None, "dog", "cat"]),
    np.ma.array(["cat", "?", "dog", "cat"], mask=[0, 1, 0, 0]), pandas.Series(["cat", None, "dog", "cat"]),
    pandas.Series(["cat", None, "dog", "cat"], dtype=pandas.CategoricalDtype(["owl", "dog", "cat"])),
    pa.DictionaryArray.from_arrays(pa.array([0, 1, 2, 0]), pa.array(["cat", None, "dog"])),
    pandas.Series(["cat", np.nan, "dog", "cat"], dtype=object)])
def test_texts_are_words_each_kept_once(values):
    found = as_labels(values, "the labels")
    assert isinstance(found, Words) and sorted(found.word) == ["cat", "dog"]
    assert [None if code < 0 else found.word[code] for code in found.code] == ["cat", None, "dog", "cat"]
    assert as_words(values, "the splits").word == found.word


@pytest.mark.parametrize("dtype", [bool, np.uint8, np.int64, np.float16, np.float64, object, "torch", str])
def test_zeros_and_ones_a_node_are_a_mask_whatever_their_type(dtype):
    values = np.array([1, 0, 0, 1])
    column = torch.from_numpy(values).bfloat16() if dtype == "torch" else values.astype(bool).astype(dtype)
    assert is_mask(column, 4, "the nodes") and as_mask(column, "the nodes").tolist() == [True, False, False, True]


@pytest.mark.parametrize("values, num_nodes, expected", [
    ([0, 2], 4, False), ([0, 1], 4, False), ([0, 1, 2], 3, False), ([], 4, False), ([1, 1], 2, True),
    ([0, 0, 1], 3, True), (["a", "b"], 2, False)])
def test_a_list_of_ids_is_no_mask(values, num_nodes, expected):
    assert is_mask(values, num_nodes, "the nodes") == expected


def test_what_may_be_a_mask_or_ids_is_refused():
    with pytest.raises(DatasetError, match=r"the nodes are \[0, 1\], which may be a mask or ids"):
        is_mask([0, 1], 2, "the nodes")
    for values in ([0, 2], [0.5, 1.0], [1, None], ["yes", "no"]):
        with pytest.raises(DatasetError, match="expected a mask of bool, or of 0 and 1"):
            as_mask(values, "the marks")
    with pytest.raises(DatasetError, match="the marks lack a value at place 1; expected a mask"):
        as_mask(Cells(pa.array(["True", "", "True"])), "the marks")


@pytest.mark.parametrize("layout", ["to_sparse_coo", "to_sparse_csr", "to_sparse_csc"])
def test_sparse_tensors_of_every_layout_stay_sparse(layout):
    dense = torch.tensor([[0, 2.0, 0], [1, 0, 0]])
    found = as_features(getattr(dense, layout)())
    assert found.nnz == 2 and found.toarray().tolist() == dense.tolist()


def test_repeated_places_of_a_sparse_tensor_are_kept_for_an_exact_sum():
    places, values = torch.tensor([[0, 0, 1], [1, 1, 0]]), torch.tensor([100, 100, 1], dtype=torch.int8)
    found = as_sparse(torch.sparse_coo_tensor(places, values, (2, 2)))
    assert found.data.tolist() == [100, 100, 1] and (found.row.tolist(), found.col.tolist()) == ([0, 0, 1], [1, 1, 0])


def test_a_long_text_takes_no_more_than_itself():
    ids = as_ids(["x" * 100_000, *(f"n{number}" for number in range(10_000))], "the ids")
    assert ids.nbytes < 400_000
    words = as_labels(["x" * 100_000] * 5 + ["y"] * 10_000, "the labels")
    assert words.code.nbytes < 100_000 and words.word == ("x" * 100_000, "y")
