"""A package offers the names of its modules and loads a module only when it is asked."""

import subprocess
import sys

import pytest

from compatkit.support.lazy import names_of


def test_a_name_comes_from_its_module():
    load, listed, offered = names_of("json", {"decoder": ["JSONDecoder"]})
    import json

    assert load("JSONDecoder") is json.JSONDecoder
    assert listed() == offered == ["JSONDecoder"]


def test_an_unknown_name_is_an_attribute_error():
    load, _, _ = names_of("json", {"decoder": ["JSONDecoder"]})
    with pytest.raises(AttributeError, match="'json'.*'nothing'"):
        load("nothing")


LIGHT = ["metrics", "predictions", "ensembles", "decisions", "compare.pair", "cli"]
HEAVY = "torch transformers datasets scipy pandas pyarrow polars sklearn matplotlib rich jinja2"


def test_light_modules_load_nothing_heavy():
    """Imported one after another in one process: a library stands behind the first with it."""
    code = (
        "import sys; from importlib import import_module as load\n"
        f"for name in {LIGHT}:\n"
        f"    load('compatkit.' + name); print(name, *{set(HEAVY.split())} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == LIGHT


def test_the_packages_give_what_they_promise_and_load_no_torch_for_a_light_module():
    code = (
        "import sys, compatkit.compare, compatkit.training.tasks; print('torch' in sys.modules);"
        "from compatkit.training import fine_tune, predict, Treatment;"
        "from compatkit.compare import compare; from compatkit.fisher import fisher_diagonal;"
        "import compatkit.compare.report as report; print(compare is report.compare)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "True"]
