"""Columns of answers: values of one kind, ids, matrices, classes that are called by numbers."""

import numpy as np
import polars as pl
import pytest

from compatkit.support.answer_columns import (
    called_by_numbers,
    class_names,
    columns_of,
    csv_floats,
    from_wide,
    ids_as_text,
    json_floats,
    json_matrix,
    kind_of,
    logit_matrix,
    matrix_of_lists,
    name_of_number,
    one_kind,
)


@pytest.mark.parametrize(
    "classes, names",
    [
        (("true", "false"), {1: "true", 0: "false"}),
        (("False", "True"), {}),
        (("true", "false", "mixed"), {}),
        (("01", "02", "10"), {1: "01", 2: "02", 10: "10"}),
        (("00", "01"), {}),
        (("1", "01", "2"), {1: "1", 2: "2"}),
    ],
)
def test_classes_are_called_by_padded_numbers_and_by_truth(classes, names):
    assert called_by_numbers(classes) == names


@pytest.mark.parametrize(
    ("value", "name"),
    [(1, "01"), ("1.0", "01"), ("01", "01"), ("7", "7"), ("one", "one"), (None, None)],
)
def test_a_number_is_the_class_that_is_called_so(value, name):
    assert name_of_number(value, {1: "01", 2: "02"}) == name


@pytest.mark.parametrize(
    ("values", "kind", "made"),
    [
        ([True, False], "number", [1, 0]),
        ([1, 2.5], "number", [1.0, 2.5]),
        (["yes", None], "text", ["yes", None]),
        ([float("nan"), 3], "number", [None, 3]),
        ([None, None], None, [None, None]),
        (np.uint8([3]), "number", [3]),
    ],
)
def test_values_keep_their_kind_and_their_gaps(values, kind, made):
    found = one_kind(values, "label")
    assert found.tolist() == made and kind_of(found) == kind


@pytest.mark.parametrize(
    ("values", "why"),
    [
        ([1, "1"], "mixes text .'1'. with other values"),
        ([[1], [2]], "neither a number nor text"),
        ([2**70], "more than 64 bits hold"),
        (np.ones((2, 2)), "not the shape .2, 2."),
    ],
)
def test_values_of_no_kind_are_refused(values, why):
    with pytest.raises(ValueError, match=why):
        one_kind(values, "label")


def test_ids_of_any_size_are_text():
    assert ids_as_text([10**30, 7]).tolist() == [str(10**30), "7"]
    with pytest.raises(ValueError, match="missing .empty. ids at positions 1"):
        ids_as_text(["a", ""])


def test_columns_are_the_whole_numbers_below_the_width():
    assert columns_of([0.0, 2.0, 3.0, -1.0, 1.5], None, 3, "the answers").tolist() == [
        0,
        2,
        -1,
        -1,
        -1,
    ]


def test_columns_of_classes_make_one_matrix_in_the_order_of_numbers():
    fields = {"id": ["a", "b"], "prob_2": [0.1, 0.2], "prob_0": [0.6, 0.5], "prob_1": [0.3, 0.3]}
    assert from_wide(fields, json_floats) is None
    assert fields["probabilities"].tolist() == [[0.6, 0.3, 0.1], [0.5, 0.3, 0.2]]
    named = {"logit_dog": [1.0], "logit_cat": [2.0]}
    assert from_wide(named, json_floats) == ["dog", "cat"] and list(named) == ["logits"]


def test_rows_of_another_width_or_kind_are_named_by_id():
    for refused, why in (
        (lambda: matrix_of_lists(pl.Series([[1.0], [1.0, 2.0]]), "logits", "ab"), "for ids 'b'"),
        (lambda: matrix_of_lists(pl.Series([1.0]), "logits", "a"), "must hold a list of numbers"),
        (lambda: json_matrix([[1, 2], {"cat": 1}], "logits", "ab"), "not for ids 'b'"),
        (lambda: json_matrix([{"cat": 1}, {"dog": 1}], "logits", "ab"), "other classes for ids"),
        (lambda: json_floats([1, True], "score", "ab"), "holds True for ids 'b'"),
        (lambda: csv_floats(["1", ""], "score", "ab"), "holds '' for ids 'b'"),
        (lambda: logit_matrix([[0.0, np.nan]], np.array(["a"])), "not finite .* for ids 'a'"),
        (lambda: class_names(["cat", "cat"], None), "class names repeat: 'cat'"),
    ):
        with pytest.raises(ValueError, match=why):
            refused()


def test_text_that_an_array_cannot_hold_is_refused_and_named():
    for values in (["a", "x\0"], ["y" * 1_000_000, *"a" * 1000]):
        with pytest.raises(ValueError, match="`prediction`"):
            one_kind(values, "prediction")
        with pytest.raises(ValueError, match="`id`"):
            ids_as_text(values)
    assert one_kind(["\0a", ""], "prediction").tolist() == ["\0a", ""]
