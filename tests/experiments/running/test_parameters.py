"""The module `parameters`: names, values and scales."""

import ast
import json
from functools import wraps
from pathlib import Path

import pytest

from compatkit.experiments.running import parameters

ALLOWED = {
    "task": ["pydoc", "mrpc"],
    "table": ("main", "1", "2"),
    "seeds": int,
    "rate": float,
    "data_dir": str,
    "encoder": [None, str],
    "quick": bool,
}
DEFAULTS = {
    "task": "pydoc",
    "table": "main",
    "seeds": 3,
    "rate": 0.1,
    "data_dir": "",
    "encoder": None,
    "quick": False,
}


def checked(**changes):
    """As in a notebook: imports before, the parameters, what papermill adds."""
    before = parameters.names_before({"json": json, "limit": 5, "_hidden": 1})
    namespace = {"json": json, "limit": 5, "_hidden": 2, "before": before, **DEFAULTS, **changes}
    return parameters.check_parameters(namespace, before, ALLOWED)


def test_defaults_pass_and_come_back():
    assert vars(checked()) == DEFAULTS


def test_what_papermill_made_of_text_is_taken_where_the_text_is_valid():
    assert checked(table=1).table == "1"
    assert checked(data_dir=2024).data_dir == "2024" and checked(encoder=7).encoder == "7"
    assert checked(rate=1).rate == 1.0 and isinstance(checked(rate=1).rate, float)
    assert checked(seeds="4").seeds == 4 and checked(quick="True").quick is True
    assert checked(encoder=None).encoder is None


def test_all_unknown_names_are_listed_with_near_ones():
    with pytest.raises(ValueError) as raised:
        checked(tsak="mrpc", zzz=1)
    message = str(raised.value)
    assert "'tsak' (did you mean 'task'?)" in message and "'zzz';" in message
    assert "valid names are data_dir, encoder, quick, rate, seeds, table, task" in message


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"task": "mrcp"}, r"task = 'mrcp': valid are 'pydoc', 'mrpc'"),
        ({"table": 9}, r"table = 9: valid are 'main', '1', '2'"),
        ({"seeds": 2.5}, "seeds = 2.5: valid is any int"),
        ({"seeds": True}, "seeds = True: valid is any int"),
        ({"seeds": "many"}, "seeds = 'many': valid is any int"),
        ({"quick": 1}, "quick = 1: valid is any bool"),
        ({"data_dir": None}, "data_dir = None: valid is any str"),
        ({"encoder": ["a"]}, "encoder = .*valid are None, str"),
    ],
)
def test_wrong_values_are_refused_with_the_valid_ones(changes, message):
    with pytest.raises(ValueError, match=message):
        checked(**changes)


def test_all_problems_are_told_at_once():
    with pytest.raises(ValueError, match="'other'.*task = 5.*seeds = None"):
        checked(other=1, task=5, seeds=None)


def test_imports_functions_and_hidden_names_are_no_parameters():
    assert checked(Path=Path, ast=ast, wraps=wraps, _x=1, PAPERMILL_INPUT_PATH="a.ipynb").seeds == 3


def test_a_value_laid_over_a_name_of_the_notebook_is_noticed():
    with pytest.raises(ValueError, match="unknown parameter 'limit'"):
        checked(limit=6)
    with pytest.raises(ValueError, match="unknown parameter 'before'"):
        checked(before=6)


def test_a_parameter_that_is_not_set_is_named():
    with pytest.raises(ValueError, match="'task'"):
        parameters.check_parameters({}, {}, {"task": ["pydoc"]})


def test_a_function_may_refuse_or_change_a_value():
    def positive(value):
        if value <= 0:
            raise ValueError("give a positive number")
        return value * 10

    assert parameters.check_parameters({"seeds": 2}, {}, {"seeds": positive}).seeds == 20
    with pytest.raises(ValueError, match="seeds = 0"):
        parameters.check_parameters({"seeds": 0}, {}, {"seeds": positive})
    assert parameters.check_parameters({"seeds": 2}, {}, {"seeds": lambda value: None}).seeds == 2


EVERY = ("smoke", "mini", "paper")
EMBEDDED = ("smoke", "mini")


@pytest.mark.parametrize(
    "scale, in_test, scales, gpu, weights, data, expected",
    [
        ("auto", False, EVERY, True, True, True, "paper"),
        ("auto", False, EVERY, True, False, True, "mini"),
        ("auto", False, EVERY, False, True, True, "mini"),
        ("auto", False, EMBEDDED, True, True, True, "mini"),
        ("auto", True, EVERY, True, True, True, "smoke"),
        ("smoke", False, EVERY, True, True, True, "smoke"),
        ("mini", True, EVERY, True, True, True, "mini"),
        ("paper", False, EVERY, False, True, True, "paper"),
    ],
)
def test_the_scale_that_is_chosen(scale, in_test, scales, gpu, weights, data, expected):
    chosen, reason = parameters.choose_scale(scale, in_test, scales, gpu, weights, data)
    assert chosen == expected and reason


def test_missing_things_are_named():
    with pytest.raises(FileNotFoundError, match="missing: the task's data"):
        parameters.choose_scale("auto", False, EVERY, True, True, False)
    with pytest.raises(FileNotFoundError, match="train.parquet"):
        parameters.choose_scale(
            "mini", False, EVERY, True, True, False, data="mrpc/train.parquet in data"
        )
    with pytest.raises(FileNotFoundError, match="missing for the paper scale: the paper's weights"):
        parameters.choose_scale("paper", False, EVERY, True, False, True)
    for scale in ("huge", "paper"):
        with pytest.raises(
            ValueError, match=f"scale '{scale}' is not valid here; valid are auto, smoke, mini"
        ):
            parameters.choose_scale(scale, False, EMBEDDED, True, True, True)


def test_questions_are_asked_only_when_their_answer_matters():
    def unasked():
        raise AssertionError("nobody needs to know")

    assert (
        parameters.choose_scale("mini", False, EVERY, unasked, unasked, lambda: True)[0] == "mini"
    )
    assert parameters.choose_scale("auto", False, EMBEDDED, unasked, unasked, True)[0] == "mini"
    assert parameters.choose_scale("auto", False, EVERY, lambda: False, unasked, True)[0] == "mini"
