"""What verdicts rest on: computed from answers, the same again, found out when it is changed."""

import json
import math
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from compatkit.experiments import evidence as room
from compatkit.experiments.claims import (
    ACCURACY,
    EVIDENCE,
    KEPT,
    NFR,
    NFR_MC,
    Compared,
    kept_evidence,
)
from compatkit.experiments.evidence import (
    Seen,
    area,
    auc_of_flips,
    difference_of,
    evidence,
    evidence_gaps,
    places,
    resampled,
    unfolded_difference,
)
from compatkit.experiments.kept_answers import Shelf, truth_of
from compatkit.experiments.verification import verify_evidence
from compatkit.metrics import FlipCounts, paired_difference
from compatkit.predictions import Predictions

ROOT = Path(__file__).resolve().parents[2]
NAMES = ["decisions-pydoc-mini-a-main", "gated_fusion-pydoc-mini-a-main"]


@pytest.fixture(scope="module")
def shelf():
    made = Shelf(ROOT / "results")
    made._truths["", "pydoc", ""] = truth_of("gated_fusion", "pydoc", "main")
    return made


def test_values_are_what_the_table_says(shelf):
    kept = shelf.table(NAMES[1])
    seen = Seen(kept)
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
    seen, new = Seen(kept), kept.rows["new model"].nfr[0]
    gated = kept.rows["gated fusion"].nfr[0]
    seeds, mean, low, high = difference_of(seen, Compared(NFR, "gated fusion", "new model", 0.5))
    assert seeds == 3 and mean == pytest.approx(gated - new / 2) and low < mean < high
    accuracy = difference_of(seen, Compared(ACCURACY, "gated fusion", ""))
    assert accuracy[1:] == pytest.approx(list(kept.rows["gated fusion"].difference))
    flips = difference_of(seen, Compared(KEPT, "gated fusion", "positive flips"))
    pfr = kept.rows["gated fusion"].pfr[0] / kept.rows["new model"].pfr[0]
    assert flips[1] == pytest.approx(gated / new - pfr)


def test_a_place_holds_all_tables_of_an_upgrade_and_overwrites_nothing(shelf):
    (group,) = (group for group in places(shelf).values() if group[0].task == "pydoc")
    assert [one.name for one in group] == NAMES
    everywhere = [one.name for tables in places(shelf).values() for one in tables]
    assert len(everywhere) == len(set(everywhere)) > 20


def test_the_kept_evidence_comes_out_again_and_a_changed_number_is_found(shelf, tmp_path):
    names = [name for name in NAMES if name in shelf.tables]
    kept = kept_evidence(ROOT / "results")
    (tmp_path / EVIDENCE).write_text(json.dumps(kept))
    assert verify_evidence(shelf, names, tmp_path).word == "same"
    kept["tables"][NAMES[1]]["differences"][0][6] += 1e-6
    (tmp_path / EVIDENCE).write_text(json.dumps(kept))
    assert verify_evidence(shelf, names, tmp_path).word == "differs"


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


def test_an_area_is_how_often_a_flip_ranks_above():
    generator = np.random.default_rng(0)
    place = generator.integers(0, 9, 60)
    flips, others = generator.integers(0, 3, (2, 60))
    above = (place[:, None] > place) + 0.5 * (place[:, None] == place)
    expected = (flips @ above @ others) / (flips.sum() * others.sum())
    assert area(flips, others, place) == pytest.approx(expected)


def test_a_share_drawn_again_has_the_interval_of_its_paired_difference():
    generator = np.random.default_rng(0)
    right = generator.random((3, 300)) < 0.2

    def share(of_seeds, of_examples):
        return of_seeds @ right @ of_examples / (of_seeds.sum() * of_examples.sum())

    found = resampled(share, 3, 300)
    known = paired_difference(right.astype(float), np.zeros_like(right, dtype=float))
    assert found.mean == pytest.approx(known.mean)
    assert found[1:] == pytest.approx(known[1:], abs=0.006)


def test_flips_that_rank_no_higher_than_others_have_half_the_area(monkeypatch):
    label = np.zeros(400, dtype=int)
    old = Predictions(np.arange(400).astype(str), label, label)
    new = old.replace(prediction=(np.arange(400) % 4 == 0).astype(int))
    seen = SimpleNamespace(kept=None, pairs=lambda method: [(old, new)] * 3)
    monkeypatch.setattr(room, "uncertain", lambda kept, order: np.arange(400) // 4 / 100)
    even = auc_of_flips(seen, "other examples")
    assert even.mean == 0 and even.low < 0 < even.high
    monkeypatch.setattr(room, "uncertain", lambda kept, order: np.arange(400) % 4 == 0)
    assert auc_of_flips(seen, "other examples").mean == 0.5


def test_the_gap_between_two_trainings_is_that_of_their_relative_nfr(monkeypatch):
    label = np.zeros(100, dtype=int)

    def answers(wrong):
        given = np.zeros(100, dtype=int)
        given[wrong] = 1
        one = Predictions(np.arange(100).astype(str), label, given)
        return SimpleNamespace(predictions=lambda split: one)

    old, plain, treated = answers(slice(0, 20)), answers(slice(10, 40)), answers(slice(0, 20))
    epochs = {"no treatment": [[old] * 3, [plain] * 3], "FD-LM": [[treated] * 3] * 2}
    monkeypatch.setattr(room, "epochs_of", lambda kept: epochs)

    def of(runs):
        return lambda split: [one.predictions(split) for one in runs]

    seen = SimpleNamespace(kept=SimpleNamespace(olds=[old] * 3, of=of))
    sides = (old.predictions("test"), plain.predictions("test"))
    expected = FlipCounts.between(*sides).relative_nfr
    assert unfolded_difference(seen, "the last epoch").mean == pytest.approx(0 - expected)
    assert unfolded_difference(seen, "the first epoch").mean == 0
