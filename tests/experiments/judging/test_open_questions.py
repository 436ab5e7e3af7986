"""What the papers leave open: another seed, more data, the next update."""

import json

import numpy as np
import pytest

from compatkit.experiments.judging.claim_verdicts import EVIDENCE
from compatkit.experiments.judging.evidence import in_a_row
from compatkit.experiments.judging.open_questions import (
    data_markdown,
    in_a_row_markdown,
    in_a_row_words,
    recurrence_markdown,
    recurrence_words,
)
from compatkit.experiments.reporting.result_tables import ResultTable, Row, keep_table


def place(name, nfr=0.04, old=0.7, recurring=None):
    about = {"place": name, "tables": [f"of-{name}"], "within": [], "seeds": 3}
    about |= {"accuracy": 0.8, "accuracy_old": old, "nfr": nfr, "recurring": recurring}
    return about | {"methods": {}, "points": {}, "shared_base": False}


def write(folder, *places, tables=None):
    (folder / EVIDENCE).write_text(json.dumps({"tables": tables or {}, "places": places}))


def test_a_flip_is_followed_into_the_other_seeds_pairs(tmp_path):
    found = {"again": 0.6, "new_right": 0.3, "old_wrong": 0.2}
    write(tmp_path, place("x"), place("y", old=0.6, recurring=found))
    first, second = recurrence_markdown(tmp_path).splitlines()[2:]
    assert first == "| y | +20.00 | 4.00 | 33 | 60 | 30 | 20 |"  # 0.04 / (0.6 × 0.2)
    assert second == "| x | +10.00 | 4.00 | 29 | – | – | – |"
    words = recurrence_words(tmp_path)
    assert words.startswith("Of the negative flips") and "60% flip in another pair" in words


def test_a_larger_gain_and_relative_nfr_are_correlated_over_upgrades(tmp_path):
    olds, flips = (0.5, 0.6, 0.65, 0.7, 0.75), (0.05, 0.04, 0.03, 0.02, 0.01)
    write(tmp_path, *(place(f"{old}", nfr, old=old) for old, nfr in zip(olds, flips)))
    words = recurrence_words(tmp_path)  # the larger the gain, the more flips
    assert "Over 5 upgrades" in words and "is +1.00 (permutation p = 0.02)" in words


def test_nothing_kept_nothing_said(tmp_path):
    assert recurrence_words(tmp_path) == in_a_row_words(tmp_path) == ""
    for lines in (recurrence_markdown(tmp_path), data_markdown(tmp_path)):
        assert len(lines.splitlines()) == 2


def test_trials_that_differ_in_their_images_stand_together(tmp_path):
    rows = (
        Row("old model", "", 5, (0.75, 0.01)),
        Row("new model", "", 5, (0.8, 0.01), (0.03, 0.002)),
    )
    for name in ("distillation-cifar10-mini-5a", "distillation-cifar10-mini-4"):
        keep_table(ResultTable("t", rows), name, results=tmp_path)
    (line,) = data_markdown(tmp_path).splitlines()[2:]
    assert line == "| CIFAR-10 | half → whole | 75.0 → 80.0 | 3.00 ± 0.20 | 20 | 5 |"


def test_the_next_update_mends_flips_and_loses_gains():
    generator = np.random.default_rng(0)
    models = generator.random((3, 2, 500)) < 0.7
    found = {"mended": [0, 0], "shared": [0, 0], "lost": [0, 0], "held": [0, 0]}
    for first, second, third in zip(*(model.reshape(-1) for model in models)):  # one by one
        name = {(1, 0): "mended", (0, 0): "shared", (0, 1): "lost", (1, 1): "held"}[first, second]
        found[name][0] += third == (name in ("mended", "shared"))
        found[name][1] += 1
    expected = {name: hits / of for name, (hits, of) in found.items()}
    assert in_a_row(*models) == pytest.approx(expected)
    assert in_a_row(models[0], models[0], models[2])["mended"] is None  # nothing flips


def test_rows_of_three_are_shown_by_zoo(tmp_path):
    shares = {"mended": 0.6, "shared": 0.2, "lost": 0.3, "held": 0.04}
    kept = {"in_a_row": {"small → base → wide": shares}}
    names = ("ensembles-cifar10-mini-figure2", "ensembles-cifar10-mini-figure2-cifar10_resnets")
    write(tmp_path, tables={names[0]: kept, names[1]: kept, "bcwi-a-mini-main": {}})
    first, second = in_a_row_markdown(tmp_path).splitlines()[2:]
    assert first == "| CIFAR-10 | small → base → wide | 60 | 20 | 30 | 4 |"
    assert second.startswith("| CIFAR-10, public networks |")
    words = in_a_row_words(tmp_path)
    assert "mends 60%" in words and "loses 30%" in words and "over 2 rows" in words
