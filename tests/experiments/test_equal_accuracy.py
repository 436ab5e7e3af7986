"""Methods at equal accuracy, and what of the flips is noise."""

import json

import pytest

from compatkit.experiments.claims import EVIDENCE
from compatkit.experiments.equal_accuracy import (
    FAMILIES,
    family_of,
    lowest_at,
    method_summaries,
    noise_markdown,
    summaries_markdown,
)


def place(name, nfr=0.04, reseed=None, **methods):
    about = {"place": name, "tables": [], "seeds": 3, "accuracy": 0.8, "nfr": nfr, "churn": 0.1}
    return about | {"reseed": reseed, "shared_base": name == "piqa", "methods": methods}


def write(folder, *places):
    (folder / EVIDENCE).write_text(json.dumps({"tables": {}, "places": places}))
    return folder


def test_a_level_takes_the_lowest_nfr_of_what_is_accurate_enough():
    points = [(0.79, 0.01), (0.795, 0.02), (0.80, 0.03), (0.81, 0.035)]
    assert lowest_at(points, 0.80) == [0.03, 0.02, 0.01]
    assert lowest_at(points[:1], 0.80) == [None, None, 0.01]
    assert lowest_at([], 0.80) == [None] * 3


def test_the_longest_beginning_names_a_method():
    assert family_of("gated fusion, old dropped").method != family_of("gated fusion").method
    assert family_of("BCWI α=0.4").method == family_of("BCWI").method == "BCWI"
    for untreated in ("new model", "target model", "constant gate", "gated fusion + rule"):
        assert family_of(untreated) is None
    assert all(family_of(name).method == family.method for name, family in FAMILIES.items())


def test_summaries_are_medians_over_the_upgrades_that_reach_a_level(tmp_path):
    dial = "mixture of old and new logits"
    write(
        tmp_path,
        place("x", **{"gated fusion": [None, 0.01, 0.01], dial: [0.04, 0.02, 0.01]}),
        place("y", **{"gated fusion": [None, None, 0.03]}),
        place("z", 0.02, **{"gated fusion": [None, 0.02, 0.02]}),
    )
    mixed, gated = method_summaries(tmp_path)
    assert mixed.family.method == dial and mixed.ratios[1] == (0.5, 0.5, 0.5, 1)
    assert gated.upgrades == 3 and gated.ratios[0] is None
    assert gated.ratios[1] == pytest.approx((0.625, 0.25, 1.0, 2))
    assert gated.ratios[2] == pytest.approx((0.75, 0.25, 1.0, 3))
    line = "| gated fusion | 3 | – (0 of 3) | 0.62 [0.25, 1.00] (2 of 3) | 0.75 [0.25, 1.00] |"
    assert line in summaries_markdown(tmp_path)


def test_noise_is_split_into_a_reseed_and_what_the_update_adds(tmp_path):
    write(tmp_path, place("x", reseed={"churn": 0.08, "nfr": 0.045}), place("piqa"))
    first, second = noise_markdown(tmp_path).splitlines()[2:]
    assert first == "| x | 10.00 | 8.00 | +2.00 | 4.00 | 4.50 | -0.50 | 3 |"
    assert second == "| piqa | 10.00 | – | – | 4.00 | – | – | 3, one base |"


def test_nothing_kept_nothing_said(tmp_path):
    assert method_summaries(tmp_path) == [] and len(noise_markdown(tmp_path).splitlines()) == 2
