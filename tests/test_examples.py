"""The example files: what they hold, what the README and the notebook say of them, and the rule
that made them.
"""

from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import polars as pl
import pytest

from compatkit.compare import compare
from compatkit.predictions import Predictions

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"


def loaded():
    """The script as a module."""
    spec = spec_from_file_location("make_examples", EXAMPLES / "make.py")
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


make = loaded()


@pytest.mark.parametrize(
    ("model", "old", "new", "negative"), [("gpt-3.5", 529, 761, 172), ("gpt-4", 840, 511, 476)]
)
def test_the_published_counts(model, old, new, negative):
    found = compare(EXAMPLES / f"{model}-2023-03.csv", EXAMPLES / f"{model}-2023-06.csv")
    counts = found.summary["overall"]["counts"]
    assert counts["both_right"] + counts["negative"] == old
    assert counts["both_right"] + counts["positive"] == new
    assert counts["negative"] == negative and found.summary["examples"] == 1000


@pytest.mark.parametrize("name", make.FILES.values())
def test_labels_say_which_numbers_are_primes(name):
    answers = Predictions.load(EXAMPLES / name)
    numbers = answers.columns["number"].astype(int).tolist()
    prime = [all(number % part for part in range(2, int(number**0.5) + 1)) for number in numbers]
    assert [label == "yes" for label in answers.label] == prime
    assert set(answers.prediction) <= {"yes", "no", make.NO_ANSWER}


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("[No]\n\nYes, it is divisible by 1. [YES]", "yes"),
        ("First yes, then no. [Yes] Nobody knows.", "yes"),
        ("Is it? Yes. No.", "no"),
        ("nobody eyes it", make.NO_ANSWER),
        ("", make.NO_ANSWER),
    ],
)
def test_how_an_answer_is_read(text, answer):
    assert make.parsed(text) == answer


def test_the_script_writes_a_file_for_each_model(tmp_path):
    rows = [
        {"model": model, "id": 1 - n, "query": f"Is {n + 7} a prime?", "ref_answer": "Yes"}
        | {"answer": "[No]"}
        for model in make.FILES
        for n in range(2)
    ]
    pl.DataFrame(rows).write_parquet(tmp_path / "prime.parquet")
    make.main(tmp_path / "prime.parquet", tmp_path)
    assert sorted(path.name for path in tmp_path.glob("*.csv")) == sorted(make.FILES.values())
    text = (tmp_path / "gpt-4-2023-03.csv").read_text()
    assert text == "id,number,label,prediction\n0,8,yes,no\n1,7,yes,no\n"
