"""Methods at equal accuracy, and what of the flips is noise."""

import json

import pytest

from compatkit.experiments.judging import equal_accuracy
from compatkit.experiments.judging.claim_verdicts import EVIDENCE
from compatkit.experiments.judging.claims import place_of
from compatkit.experiments.judging.equal_accuracy import (
    FAMILIES,
    Level,
    equal_accuracy_picture,
    family_of,
    lowest_at,
    lowest_of,
    method_summaries,
    noise_markdown,
    places_of,
    points_beside,
    points_markdown,
    summaries_markdown,
)
from compatkit.support.pictures import text_problems


def place(name, nfr=0.04, reseed=None, old=0.7, points=None, recurring=None, within=(), **methods):
    about = {
        "place": name,
        "tables": [f"of-{name}-mini-main"],
        "within": [*within],
        "seeds": 3,
        "accuracy": 0.8,
        "accuracy_old": old,
    }
    about |= {"nfr": nfr, "churn": 0.1, "reseed": reseed or {"old": None, "new": None}}
    about |= {"shared_base": name == "piqa", "methods": methods, "points": points or {}}
    about |= {"recurring": recurring, "intervals": dict.fromkeys(methods, [None] * 3)}
    return about


def write(folder, *places):
    (folder / EVIDENCE).write_text(json.dumps({"tables": {}, "places": places}))
    return folder


def test_a_level_takes_the_lowest_nfr_of_what_is_accurate_enough():
    points = [(0.79, 0.01), (0.795, 0.02), (0.80, 0.03), (0.81, 0.035)]
    assert lowest_at(points, 0.80) == [points[2], points[1], points[0]]
    assert lowest_at(points[:1], 0.80) == [None, None, points[0]]
    assert lowest_at([], 0.80) == [None] * 3


def test_the_longest_beginning_names_a_method():
    assert family_of("gated fusion, old dropped").method != family_of("gated fusion").method
    assert family_of("BCWI α=0.4").method == family_of("BCWI").method == "BCWI"
    for untreated in ("new model", "target model", "constant gate", "gated fusion + rule"):
        assert family_of(untreated) is None
    assert family_of("distillation").method != family_of("dynamic distillation").method
    assert all(family_of(name).method == family.method for name, family in FAMILIES.items())


def test_the_lowest_of_points_is_none_where_none_is_as_accurate():
    assert lowest_of([(0.8, 0.03), (0.9, 0.04)], 0.85) == 0.04
    assert lowest_of([(0.8, 0.03)], 0.85) is None


DIAL = "mixture of old and new logits"


def test_an_upgrade_counts_once_where_a_method_has_the_most_seeds(tmp_path):
    other = "vote of five new models"
    larger = place("more seeds", 0.04, **{DIAL: [0.01, 0.01, 0.01]})
    smaller = {DIAL: [0.02, 0.02, 0.02], other: [0.03, 0.03, 0.03]}
    write(tmp_path, place("few seeds", 0.04, within=["of-more seeds-mini-main"], **smaller), larger)
    made = {one.family.method: one.levels[0] for one in method_summaries(tmp_path)}
    assert made[DIAL] == Level(0.25, 0.25, 0.25, 1, 1) and made[other].median == 0.75
    assert "few seeds" not in noise_markdown(tmp_path)


def test_summaries_are_medians_in_which_an_unreached_level_counts_as_untreated(tmp_path):
    write(
        tmp_path,
        place("x", **{"gated fusion": [None, 0.01, 0.01], DIAL: [0.04, 0.02, 0.01]}),
        place("y", **{"gated fusion": [None, None, 0.03]}),
        place("z", 0.02, **{"gated fusion": [None, 0.025, 0.02]}),
    )
    mixed, gated = method_summaries(tmp_path)
    assert mixed.family.method == DIAL and mixed.levels[1] == Level(0.5, 0.5, 0.5, 1, 1)
    assert gated.levels[0] == Level(1, 1, 1, 0, 3)
    assert gated.levels[1] == pytest.approx(Level(1.0, 0.25, 1.25, 2, 3))
    assert gated.levels[2] == pytest.approx(Level(0.75, 0.25, 1.0, 3, 3))
    cells = "1.00 [1.00, 1.00]; 0 of 3 | 1.00 [0.25, 1.25]; 2 of 3 | 0.75 [0.25, 1.00]; 3 of 3"
    own, rest = cells.split(" | ", 1)
    assert f"| gated fusion | {own} | – | {rest} |" in summaries_markdown(tmp_path)


def test_a_method_stands_beside_the_mixture_on_the_upgrades_that_both_have(tmp_path):
    mixture = FAMILIES["old-new probabilities"].method
    write(
        tmp_path,
        place("x", **{"gated fusion": [0.02] * 3, mixture: [0.01] * 3}),
        place("y", **{"gated fusion": [0.02] * 3}, within=["of-z-mini-main"]) | {"methods": {}},
        place("z", **{mixture: [0.03] * 3}),
    )
    found = {one.family.method: one for one in method_summaries(tmp_path)}
    assert found["gated fusion"].mixture[0] == Level(0.25, 0.25, 0.25, 1, 1)
    assert found[mixture].mixture == found[mixture].shared == found[mixture].levels
    assert "| gated fusion | 0.50; 1 of 1 | 0.50 : 0.25 on 1 |" in summaries_markdown(tmp_path)


def test_the_own_median_is_of_the_same_upgrades_as_the_mixtures(tmp_path):
    mixture = FAMILIES["old-new probabilities"].method
    given = {"gated fusion": [0.02] * 3}
    write(tmp_path, place("x", **given, **{mixture: [0.01] * 3}), place("y", 0.02, **given))
    gated = next(one for one in method_summaries(tmp_path) if one.family.method == "gated fusion")
    assert (gated.levels[0].median, gated.shared[0].median) == (0.75, 0.5)


@pytest.mark.parametrize("scale", ["mini", "paper"])
def test_the_same_models_by_another_measure_count_once(tmp_path, scale):
    names = [place_of(f"muscle-arithmetic-{scale}-a-{table}") for table in ("main", "4")]
    write(tmp_path, *(place(one, **{DIAL: [0.02] * 3}) for one in names))
    (mixed,) = method_summaries(tmp_path)
    assert mixed.levels[0].upgrades == 1


def test_a_method_of_which_nothing_qualified_is_beside_no_curve(tmp_path):
    given = {"gated fusion": [None] * 3}
    write(tmp_path, place("x", points={"gated fusion": []}, **given))
    assert points_beside(tmp_path) == []
    assert method_summaries(tmp_path)[0].levels[0] == Level(1, 1, 1, 0, 1)


def test_an_adapter_counts_only_where_its_control_works(tmp_path, monkeypatch):
    adapter = "compatibility adapter"
    given = {adapter: [0.02] * 3, DIAL: [0.01] * 3}
    places = [place(name, **given) | {"tables": [name], "intervals": {}} for name in ("x", "y")]
    write(tmp_path, *places)
    monkeypatch.setattr(equal_accuracy, "unfit_trials", lambda results: {"y": "no control"})
    mixed, adapted = sorted(method_summaries(tmp_path), key=lambda one: one.family.method)[::-1]
    assert adapted.family.method == adapter and adapted.levels[0].upgrades == 1
    assert mixed.family.method == DIAL and mixed.levels[0].upgrades == 2


def test_an_upgrade_whose_old_model_is_as_accurate_as_a_level_is_left_out_there(tmp_path):
    write(tmp_path, place("x", old=0.797, **{DIAL: [0.02, 0.0, 0.0]}))
    (mixed,) = method_summaries(tmp_path)
    assert mixed.levels[0].median == 0.5 and mixed.levels[1:] == (None, None)
    assert f"| {DIAL} | 0.50; 1 of 1 | – | – | – |" in summaries_markdown(tmp_path)


def test_a_point_stands_beside_what_the_curves_give_at_its_accuracy(tmp_path):
    def point(accuracy, nfr, mixed):
        curves = {"mixture of old and new probabilities": mixed}
        return {"accuracy": accuracy, "nfr": nfr, "curves": curves}

    fused = [point(0.79, 0.02, 0.03), point(0.81, 0.01, None)]
    write(
        tmp_path,
        place("x", points={"gated fusion": fused}),
        place("y", points={"gated fusion": [point(0.80, 0.03, 0.02)]}),
    )
    (found,) = points_beside(tmp_path)
    assert (found.points, found.ratio) == (3, 0.5) and found.change == pytest.approx(0.0)
    assert found.curves["mixture of old and new probabilities"] == pytest.approx((0.625, 1, 2))
    line = "| gated fusion | 3 | +0.00 | 0.50 | 0.62 | 1 of 2 | – | – |"
    assert line in points_markdown(tmp_path)


def test_a_picture_shows_what_is_left_and_who_is_not_as_accurate(tmp_path):
    given = place("x", BCWI=[0.02, 0.01, 0.01], **{"gated fusion": [None, 0.01, 0.01]})
    given |= {"tables": ["bcwi-x-mini-main"]}
    given["intervals"] = {"BCWI": [[-0.03, -0.01], None, None], "gated fusion": [None] * 3}
    write(tmp_path, given)
    picture = equal_accuracy_picture(("bcwi",), "Interpolation", tmp_path)
    (panel,) = picture.axes
    assert [text.get_text() for text in panel.get_yticklabels()] == ["BCWI", "gated fusion"]
    drawn = [line.get_xydata().tolist() for line in panel.lines[1:]]
    own = [[[0.5, 0.0]], [[0.25, 0.0], [0.75, 0.0]]]
    assert drawn == [*own, [[1.0, 1.0]], [[0.25, 1.0]]], "the other for half a point less"
    assert text_problems(picture) == []
    assert equal_accuracy_picture(("muscle",), "", tmp_path) is None


def test_what_counts_in_another_column_is_shown_pale_beside_the_rest(tmp_path):
    whole = place("x", BCWI=[0.02, 0.01, 0.01])
    part = place("x", within=["of-x-mini-main"], BCWI=[0.03, 0.02, 0.02], EWC=[None, 0.01, 0.01])
    whole["tables"], part["tables"] = ["of-x-mini-main", "bcwi-1-mini-main"], ["bcwi-2-mini-main"]
    write(tmp_path, whole, part)
    _, beside = equal_accuracy_picture(("bcwi",), "Interpolation", tmp_path).axes
    drawn = {line.get_xydata().tolist()[0][0]: line.get_alpha() for line in beside.lines[1:]}
    assert drawn == {0.75: 0.35, 1.0: 1.0, 0.25: 1.0}, "BCWI pale, EWC as dark as its own"
    summaries = {one.family.method: one.levels[0] for one in method_summaries(tmp_path)}
    assert summaries["BCWI"].upgrades == 1 and summaries["BCWI"].median == 0.5


def test_an_upgrade_with_fewer_seeds_lies_beside_itself(tmp_path):
    given = [place(name, BCWI=[0.02, 0.01, 0.01]) for name in ("x", "y", "x")]
    for number, one in enumerate(given):
        one["tables"] = [f"bcwi-{number}-mini-main"]
    shown = places_of(("bcwi",), write(tmp_path, *given))
    assert [one["tables"] for one in shown] == [
        ["bcwi-0-mini-main"],
        ["bcwi-2-mini-main"],
        ["bcwi-1-mini-main"],
    ]
    panels = equal_accuracy_picture(("bcwi",), "Interpolation", tmp_path).axes
    titles = [panel.get_title(loc="left").splitlines()[0] for panel in panels]
    assert titles == ["x: main", "x: main", "y"], "the tables of an upgrade that was made twice"


def test_noise_is_split_into_a_reseed_and_what_the_update_adds(tmp_path):
    floors = {"old": {"churn": 0.08, "nfr": 0.045}, "new": {"churn": 0.06, "nfr": 0.03}}
    write(tmp_path, place("x", reseed=floors), place("piqa"))
    first, second = noise_markdown(tmp_path).splitlines()[2:]
    assert first == "| x | 10.00 | 8.00 | +2.00 | 6.00 | 4.00 | 4.50 | -0.50 | 3.00 | 3 |"
    assert second == "| piqa | 10.00 | – | – | – | 4.00 | – | – | – | 3, one base |"


def test_nothing_kept_nothing_said(tmp_path):
    assert method_summaries(tmp_path) == points_beside(tmp_path) == []
    assert len(noise_markdown(tmp_path).splitlines()) == 2
