"""What verdicts rest on: computed from answers, the same again, found out when it is changed."""

import json
import math
from copy import deepcopy
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import made_studies
import numpy as np
import pytest

from compatkit.bcwi import Curve
from compatkit.ensembles import mix
from compatkit.experiments.judging import evidence as module
from compatkit.experiments.judging.claim_verdicts import (
    EVIDENCE,
    RowPair,
    differences_of,
    kept_evidence,
)
from compatkit.experiments.judging.claims import (
    ACCURACY,
    AGREEMENT,
    EARLY,
    GAINS,
    KEPT,
    MATCHED,
    MENDED,
    NEW_ERRORS,
    NFR,
    NFR_AT_OWN,
    NFR_MC,
    RELATIVE,
    REMAINING,
    UNCERTAINTY,
)
from compatkit.experiments.judging.evidence import (
    NowhereAsAccurate,
    TableAnswers,
    difference_of,
    evidence,
    evidence_gaps,
    placements,
    places,
    ratio,
    recurrence,
    write_evidence,
)
from compatkit.experiments.judging.kept_answers import KeptTable, Shelf, truth_of
from compatkit.experiments.judging.verification import verify_evidence
from compatkit.experiments.reporting.result_tables import Row
from compatkit.metrics import FlipCounts, fix_rate
from compatkit.predictions import Predictions

ROOT = Path(__file__).resolve().parents[3]
NAMES = ["gated_fusion-pydoc-mini-a-4", "gated_fusion-pydoc-mini-a-main"]


@pytest.fixture(scope="module")
def shelf():
    """All that is kept, and a second table of the docstrings' models."""
    made = Shelf(ROOT / "results")
    made._truths["pydoc", "", "mini", ""] = truth_of("pydoc")
    made.tables = dict(sorted((made.tables | {NAMES[0]: made.tables[NAMES[1]]}).items()))
    return made


def test_a_baseline_stands_at_all_its_strengths():
    shelf, name = made_studies.shelf_of_massive()
    kept = shelf.table(name)

    def measured(method):
        return module._measured_point(partial(module._in_use, kept, kept.rows[method]))[:2]

    for method in ("EWC", "Mixout", "distillation"):
        points = module._row_points(kept, kept.rows[method])
        assert len(points) == 6, "five strengths and the new model itself"
        assert np.allclose(points[0][:2], measured("new model"))
        chosen = [np.allclose(one[:2], measured(method)) for one in points]
        assert sum(chosen) == 1, "the chosen strength is one of them"
        pairs = points[-1].pairs()
        assert len(pairs) == kept.seeds
        assert np.mean([(~new.correct & old.correct).mean() for old, new in pairs]) == (
            pytest.approx(points[-1].nfr)
        )
    unset = [replace(row, qualified=False) for row in kept.rows.values()]
    bare = KeptTable(shelf, kept.name, replace(kept.table, rows=tuple(unset)))
    dials = [module._methods([one])[1] for one in (kept, bare)]
    assert dials[0].keys() == dials[1].keys() >= {"EWC", "Mixout", "BCWI"}, "picked on test anyway"
    assert len(dials[1]["EWC"]) == 6


def test_an_interpolated_soup_is_a_curve_and_a_plain_one_a_point(monkeypatch):
    monkeypatch.setattr(module, "alphas_of", lambda kept, row, split: [0.0, 0.5, 1.0])
    curve = SimpleNamespace(accuracy=[0.8, 0.79, 0.78], nfr=[0.03, 0.01, 0.0])
    monkeypatch.setattr(module, "curves_of", lambda kept, row, split: [curve, curve])
    kept, numbers, chosen = None, {}, {"rule": "target"}
    for method in ("BCWI", "SoupBCWI of 16", "soup of 16", "BCWI α=0.4"):
        choice = chosen if "BCWI" in method and "=" not in method else {}
        row = Row(method, "α 0", accuracy=(0.81, 0.01), nfr=(0.02, 0.01), choice=choice)
        numbers[method] = [point[:2] for point in module._row_points(kept, row)]
    assert numbers["BCWI"] == numbers["SoupBCWI of 16"] == [(0.8, 0.03), (0.79, 0.01), (0.78, 0.0)]
    assert numbers["soup of 16"] == numbers["BCWI α=0.4"] == [(0.81, 0.02)]


def test_an_upgrade_that_was_made_again_counts_within_the_first():
    def table(name, replicate):
        configuration = {"replicate": replicate} if replicate else {}
        runs = {name: SimpleNamespace(configuration=configuration)}
        rows = {"new model": SimpleNamespace(records=[name])}
        return SimpleNamespace(name=name, rows=rows, shelf=SimpleNamespace(runs=runs))

    tables = {
        "first": table("bcwi-x-mini-main", 0),
        "again": table("bcwi-x-mini-baselines", 1),
        "other": table("bcwi-y-mini-main", 0),
    }
    groups = {(frozenset({name}), "", name != "y"): [one] for name, one in tables.items()}
    found = {key: module._within(key, groups) for key in groups}
    assert [found[key] for key in groups] == [[], ["bcwi-x-mini-main"], []]


def test_values_are_what_the_table_says(shelf):
    kept = shelf.table(NAMES[1])
    seen = TableAnswers(kept)
    for method, row in kept.rows.items():
        exact = 1e-9 if "old-new" not in method and method != "constant gate" else 0.002
        assert seen.values(method, NFR).mean() == pytest.approx(row.nfr[0], abs=exact)
        assert seen.values(method, ACCURACY).mean() == pytest.approx(row.accuracy[0], abs=exact)
        assert seen.values(method, "PFR").mean() == pytest.approx(row.pfr[0], abs=exact)
        if row.by_seed:
            told = np.mean([one["nfr_mc"] for one in row.by_seed])
            assert seen.values(method, NFR_MC).mean() == pytest.approx(told)


def test_differences_are_paired_and_scaled(shelf):
    kept = shelf.table(NAMES[1])
    seen, new = TableAnswers(kept), kept.rows["new model"].nfr[0]
    gated = kept.rows["gated fusion"].nfr[0]
    mean, *errors, seeds, examples = difference_of(
        seen, RowPair(NFR, "gated fusion", "new model", 0.5)
    )
    assert (seeds, examples) == (3, 655) and mean == pytest.approx(gated - new / 2)
    assert all(error >= 0 for error in errors) and max(errors) > 0
    accuracy = difference_of(seen, RowPair(ACCURACY, "gated fusion", ""))
    assert accuracy[0] == pytest.approx(kept.rows["gated fusion"].difference[0])
    flips = difference_of(seen, RowPair(KEPT, "gated fusion", "positive flips"))
    pfr = kept.rows["gated fusion"].pfr[0] / kept.rows["new model"].pfr[0]
    assert flips[0] == pytest.approx(gated / new - pfr)


def test_a_mixture_is_read_off_its_curve_at_a_methods_own_accuracy(shelf):
    kept = shelf.table(NAMES[1])
    seen, row = TableAnswers(kept), kept.rows["dynamic distillation"]
    sides = list(zip(*(kept.of(runs)("test") for runs in (kept.olds, kept.news))))
    points = []
    for weight in np.linspace(0, 1, 101):
        mixed = [mix(old, new, weight, "logit") for old, new in sides]
        flips = [(old.correct & ~one.correct).mean() for (old, _), one in zip(sides, mixed)]
        points.append((np.mean([one.correct.mean() for one in mixed]), np.mean(flips)))
    able = [nfr for accuracy, nfr in points if accuracy >= row.accuracy[0] - 1e-9]
    found = difference_of(seen, RowPair(NFR_AT_OWN, row.method, "old-new logits"))
    assert found[0] == pytest.approx(row.nfr[0] - min(able)) and found[4] == kept.seeds
    above = replace(row, accuracy=(0.999, 0.0))
    rows = tuple(above if one is row else one for one in kept.table.rows)
    lifted = TableAnswers(KeptTable(shelf, kept.name, replace(kept.table, rows=rows)))
    with pytest.raises(NowhereAsAccurate):
        difference_of(lifted, RowPair(NFR_AT_OWN, row.method, "old-new logits"))


def test_a_curve_that_is_nowhere_as_accurate_is_kept_as_such(shelf, monkeypatch):
    def nowhere(seen, asked):
        raise NowhereAsAccurate

    asked = RowPair(NFR_AT_OWN, "gated fusion", "old-new logits")
    monkeypatch.setattr(module, "asked_of", lambda name, kept: [asked])
    monkeypatch.setattr(module, "difference_of", nowhere)
    kept = shelf.table(NAMES[1])
    found = module.table_evidence(kept)
    assert found["differences"] == [[*asked, None]]
    evidence = {"tables": {kept.name: found}}
    assert differences_of(evidence, kept.name, kept.table) == {asked: None}
    monkeypatch.setattr(module, "difference_of", lambda seen, asked: {}["a fault"])
    with pytest.raises(KeyError):
        module.table_evidence(kept)


def test_quantities_that_are_ratios_have_the_value_of_their_definition(shelf):
    seen = TableAnswers(shelf.table(NAMES[1]))

    def told(quantity, method, other):
        return difference_of(seen, RowPair(quantity, method, other))[0]

    pairs, fused = seen.pairs("new model"), seen.pairs("gated fusion")
    relative = np.mean([FlipCounts.between(*pair).relative_nfr for pair in pairs])
    assert told(RELATIVE, "new model", "100 %") == pytest.approx(relative - 1)
    counts = [
        (old.label, old.prediction, new.prediction, treated.prediction)
        for (old, new), (_, treated) in zip(pairs, fused)
    ]
    joined = [np.concatenate(column) for column in zip(*counts)]
    assert told(MENDED, "gated fusion", "half") == pytest.approx(fix_rate(*joined) - 0.5)
    row = shelf.table(NAMES[1]).rows["new model"]
    gain = row.pfr[0] - row.nfr[0]
    assert told(NEW_ERRORS, "new model", "gain") == pytest.approx(row.nfr[0] - gain)


def test_what_ensembles_leave_is_compared_group_by_group():
    right = {
        "single models": [[0, 0, 1, 1], [0, 1, 0, 1]] * 2,
        "ensembles of 2": [[0, 1, 1, 1]] * 2,
    }
    flips = {
        "single models": [[1, 0, 0, 0], [0, 0, 1, 0]] * 2,
        "ensembles of 2": [[1, 0, 0, 0]] * 2,
    }
    given = {ACCURACY: right, NFR: flips}

    def values(method, kind):
        return np.array(given[kind][method], dtype=float)

    seen = SimpleNamespace(values=values)
    found = difference_of(seen, RowPair(REMAINING, "ensembles of 2", "remaining errors"))
    assert found[0] == pytest.approx(1.0 - 0.5) and found[4:] == [2, 4]


def test_a_place_holds_all_tables_of_an_upgrade_and_overwrites_nothing(shelf):
    groups = [[one.name for one in group] for group in places(shelf).values()]
    assert NAMES in groups, "tables of other seeds of the same task are a place of their own"
    everywhere = [one.name for tables in places(shelf).values() for one in tables]
    assert len(everywhere) == len(set(everywhere)) > 20


def test_the_kept_evidence_comes_out_again_and_a_changed_number_is_found(shelf, tmp_path):
    kept, alone = kept_evidence(ROOT / "results"), Shelf(ROOT / "results")
    alone._truths = shelf._truths
    (tmp_path / EVIDENCE).write_text(json.dumps(kept))
    assert verify_evidence(alone, NAMES[1:], tmp_path).word == "same"
    kept["tables"][NAMES[1]]["differences"][0][6] += 1e-6
    (tmp_path / EVIDENCE).write_text(json.dumps(kept))
    assert verify_evidence(alone, NAMES[1:], tmp_path).word == "differs"


def test_evidence_of_some_tables_is_computed_again_and_that_of_the_others_stays(
    shelf, tmp_path, monkeypatch
):
    kept = kept_evidence(ROOT / "results")
    name, other = NAMES[1], next(one for one in kept["tables"] if one not in NAMES)
    spoilt = deepcopy(kept)
    for one in (name, other):
        spoilt["tables"][one]["content"] = "another"
    spoilt["places"] = [one for one in spoilt["places"] if name not in one["tables"]]
    (tmp_path / EVIDENCE).write_text(json.dumps(spoilt))
    monkeypatch.setattr(module, "Shelf", lambda *_: shelf)
    write_evidence(tmp_path, names=[name])
    made = kept_evidence(tmp_path)
    assert made["tables"][name]["content"] == kept["tables"][name]["content"]
    assert made["tables"][other]["content"] == "another"
    assert NAMES in [one["tables"] for one in made["places"]]
    assert len(made["places"]) == len(kept["places"])
    with pytest.raises(ValueError, match="'nowhere'"):
        write_evidence(tmp_path, names=["nowhere"])


def test_words_that_nothing_computes_cannot_be_edited_unseen(shelf, tmp_path):
    kept = kept_evidence(ROOT / "results")
    (tmp_path / EVIDENCE).write_text(json.dumps(kept))
    name, other = NAMES[1], Shelf(ROOT / "results")
    other._truths, table = shelf._truths, shelf.tables[name]
    assert verify_evidence(other, [name], tmp_path).word == "same"
    for changed in (
        replace(table, notes=(*table.notes[:-1], f"{table.notes[-1]} indeed")),
        replace(table, command=table.command + " -p seeds 5"),
        replace(table, title=table.title + "!"),
    ):
        other.tables[name] = changed
        found = verify_evidence(other, [name], tmp_path)
        assert found.word == "differs" and "content" in found.detail


def test_a_place_is_left_out_where_not_all_its_tables_are_asked_for(shelf):
    assert evidence(shelf, NAMES[:1])["places"] == []


def test_gaps_name_what_is_missing_added_or_another():
    kept = {"a": {"b": [1.0, "word"], "c": 2}}
    assert max(gap for gap, _ in evidence_gaps(kept, kept)) == 0
    for other in ({"a": {"b": [1.0, "word"]}}, {"a": {"b": [1.0], "c": 2}}, {}):
        assert max(gap for gap, _ in evidence_gaps(kept, other)) == math.inf
        assert max(gap for gap, _ in evidence_gaps(other, kept)) == math.inf
    assert max(evidence_gaps(kept, {"a": {"b": [1.5, "word"], "c": 2}})) == (
        0.5,
        "a b: kept 1.0, made 1.5",
    )


def test_placements_average_to_how_often_one_group_ranks_above_the_other():
    generator = np.random.default_rng(0)
    value, kind = generator.integers(0, 9, 60), generator.integers(0, 3, 60)
    first, second = kind == 0, kind == 1
    above = (value[:, None] > value) + 0.5 * (value[:, None] == value)
    expected = above[first][:, second].mean()
    assert placements(first, second, value).mean() == pytest.approx(expected)


def test_a_ratio_varies_as_its_bootstrap_says():
    generator = np.random.default_rng(0)
    bottom = generator.random(3000) < 0.3
    top = (generator.random(3000) < 0.5).astype(float)
    found, drawn = ratio(top, bottom), []
    assert found.mean() == pytest.approx(top[bottom].mean())
    for _ in range(800):
        again = generator.integers(0, 3000, 3000)
        drawn.append(top[again][bottom[again]].mean())
    assert found.std() / 3000**0.5 == pytest.approx(np.std(drawn), rel=0.1)
    with pytest.raises(ZeroDivisionError, match="no example counts"):
        ratio(top, np.zeros(3000, bool))


def test_sizes_of_changes_are_means_of_what_changed():
    old, new = np.array([0.5, 0.5, 0.2, 0.4]), np.array([0.7, 0.4, 0.6, 0.4])
    seen = TableAnswers(SimpleNamespace(known=None))
    seen._pairs = {"it": [tuple(SimpleNamespace(label=None, score=one) for one in (old, new))]}
    assert seen.values("it", GAINS).mean() == pytest.approx((0.2 + 0.4) / 2)
    assert seen.values("it", NFR).tolist() == [[0, 1, 0, 0]]


def test_larger_groups_stand_beside_those_that_they_are_made_of():
    """Ensemble k of four has the ensembles 2 k and 2 k + 1 of two, not the k-th one."""
    label = np.zeros(40, dtype=int)

    def seed(wrong):
        given = (np.arange(40) < wrong).astype(int)
        old = Predictions(np.arange(40).astype(str), label, label)
        return old, old.replace(prediction=given)

    table = SimpleNamespace(form="sizes")
    seen = TableAnswers(SimpleNamespace(by="", known=None, table=table))
    seen._pairs = {"four": [seed(2), seed(6)], "two": [seed(4), seed(8), seed(16), seed(20)]}
    mean, *_, seeds, _ = difference_of(seen, RowPair(NFR, "four", "two"))
    assert mean == pytest.approx((2 + 6 - (4 + 8) / 2 - (16 + 20) / 2) / 2 / 40) and seeds == 2
    table.form = "methods"
    assert difference_of(seen, RowPair(NFR, "four", "two"))[0] == pytest.approx((8 - 12) / 2 / 40)


def test_agreement_counts_equal_answers_right_or_wrong():
    old = Predictions(list("abcd"), [0, 0, 1, 1], [0, 1, 1, 2])
    new = old.replace(prediction=np.array([0, 1, 2, 1]))
    seen = TableAnswers(SimpleNamespace(by="", known=None))
    seen._pairs = {"it": [(old, new)]}
    assert seen.values("it", AGREEMENT).tolist() == [[1, 1, 0, 0]]


def along(*wrong):
    """A curve a seed, of two alike: the examples, of four, that each of its values has wrong."""
    ids, old = list("abcd"), Predictions(list("abcd"), [0] * 4, [0] * 4)
    answers = [Predictions(ids, [0] * 4, [int(one in group) for one in ids]) for group in wrong]
    values = tuple(at / max(len(wrong) - 1, 1) for at in range(len(wrong)))
    return [Curve(values, tuple(answers), old)] * 2


def test_two_curves_are_compared_where_they_are_as_accurate(monkeypatch):
    line = along("ab", "a", "")  # at 1 it is the old model, which is never taken
    baseline = [replace(one, alphas=(0.0, 0.25, 0.5, 0.75)) for one in along("ab", "c", "bcd", "")]
    monkeypatch.setattr(module, "curves_of", lambda kept, row, split: row)
    seen = SimpleNamespace(kept=SimpleNamespace(rows={"BCWI": line, "EWC": baseline}))
    asked = RowPair(MATCHED, "BCWI", "EWC")
    # a against c; a against b, c and d; none is as accurate as the last, so a and b against none
    expected = np.array([1 + 1 + 1, 0 - 1 + 1, -1 - 1 + 0, 0 - 1 + 0]) / 3
    assert np.allclose(module._matched(seen, asked), [expected] * 2)
    assert difference_of(seen, asked)[0] == pytest.approx((0 - 0.5 + 0.5) / 3)


def test_flips_that_rank_no_higher_than_others_have_half_the_area(monkeypatch):
    label = np.zeros(400, dtype=int)
    old = Predictions(np.arange(400).astype(str), label, label)
    new = old.replace(prediction=(np.arange(400) % 4 == 0).astype(int))
    seen = SimpleNamespace(kept=None, pairs=lambda method: [(old, new)] * 3)
    asked = RowPair(UNCERTAINTY, "new model", "other examples")
    monkeypatch.setattr(module, "uncertain", lambda kept, order: np.arange(400) // 4 / 100)
    mean, *errors, seeds, _ = difference_of(seen, asked)
    assert abs(mean) < 1e-12 and seeds == 3 and max(errors) > 0
    monkeypatch.setattr(module, "uncertain", lambda kept, order: np.arange(400) % 4 == 0)
    assert difference_of(seen, asked)[0] == 0.5


def test_the_gap_between_two_trainings_is_that_of_their_relative_nfr(monkeypatch):
    label = np.zeros(100, dtype=int)

    def answers(wrong):
        given = np.zeros(100, dtype=int)
        given[wrong] = 1
        one = Predictions(np.arange(100).astype(str), label, given)
        return SimpleNamespace(predictions=lambda split: one)

    old, plain, treated = answers(slice(0, 20)), answers(slice(10, 40)), answers(slice(0, 20))
    untreated = [old, plain, old, old, old, plain]
    epochs = {"no treatment": [[one] * 3 for one in untreated], "FD-LM": [[treated] * 3] * 6}
    monkeypatch.setattr(module, "epochs_of", lambda kept: epochs)

    def of(runs):
        return lambda split: [one.predictions(split) for one in runs]

    seen = SimpleNamespace(kept=SimpleNamespace(olds=[old] * 3, of=of))
    sides = (old.predictions("test"), plain.predictions("test"))
    expected = FlipCounts.between(*sides).relative_nfr

    def told(when):
        return difference_of(seen, RowPair(RELATIVE, "new model", when))[0]

    assert told("the last epoch") == pytest.approx(0 - expected)
    assert told(EARLY) == pytest.approx((0 - expected) / 2), "two epochs of six"


def test_a_flip_that_comes_again_belongs_to_the_update():
    olds = np.array([[1, 1, 1, 0, 1], [1, 1, 0, 0, 1]], bool)
    news = np.array([[0, 0, 0, 1, 1], [0, 1, 0, 1, 1]], bool)
    # flips: three of the first pair, one of the second, which is one of the first's
    found = recurrence(olds, news)
    assert found == pytest.approx({"again": 2 / 4, "new_right": 1 / 4, "old_wrong": 1 / 4})
    assert recurrence(olds[:1], news[:1]) is None and recurrence(olds, olds) is None


def test_an_old_model_that_answered_known_classes_alone_is_joined():
    kept = SimpleNamespace(known=lambda split: ["a"])
    old = Predictions(["a"], [0], [0])
    new = Predictions(["b", "a"], [1, 0], [1, 1])
    old, new = module._joined(kept, old, new)
    assert list(old.id) == list(new.id) == ["a"] and not new.correct[0]


@pytest.mark.parametrize(
    "tables, place",
    [
        ((("decisions", "main"), ("distillation", "4")), "CIFAR-10 table 4"),
        ((("distillation", "2a"), ("decisions", "main")), "CIFAR-10 table 2a"),
        ((("distillation", "2b"),), "CIFAR-10 from a common start"),
        ((("distillation", "all_images"),), "CIFAR-10 with all images"),
        ((("decisions", "main"), ("bcwi", "main")), "CIFAR-10"),
    ],
)
def test_an_upgrade_of_focal_distillation_is_called_by_its_table(tables, place):
    kept = [
        SimpleNamespace(notebook=notebook, kind=kind, name=f"{notebook}-cifar10-mini-{kind}")
        for notebook, kind in tables
    ]
    assert module._place(kept) == place
