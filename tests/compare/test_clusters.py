"""Examples that belong together: the cluster is the unit of intervals, test and gate."""

import numpy as np
import polars as pl
import pytest
from click.testing import CliRunner
from made_pairs import scored_pair

from compatkit.cli import app
from compatkit.compare import clusters, repeats
from compatkit.compare.pair import Pair
from compatkit.compare.report import compare, compare_versions
from compatkit.compare.verdict import Settings, summarize


def tables(folder, fate, right, column="doc", sizes=10, **columns):
    """Two files: each document's `fate` is -1 (only the old version has it right), 1 (only the
    new one) or 0 (both as in `right`, (N,)).
    """
    codes = np.repeat(np.arange(len(fate)), sizes)
    of_row = np.asarray(fate)[codes]
    frame = {"id": [f"q{n}" for n in range(len(codes))], column: [f"d{c}" for c in codes]}
    frame |= {"label": ["y"] * len(codes)} | columns
    for name, wins in (("old", -1), ("new", 1)):
        good = np.where(of_row == 0, right, of_row == wins)
        answers = frame | {"prediction": np.where(good, "y", "n")}
        pl.DataFrame(answers).write_csv(folder / f"{name}.csv")
    return folder / "old.csv", folder / "new.csv"


@pytest.fixture
def moved(tmp_path):
    """100 documents with 10 questions, of which 8 fell and 4 rose as a whole."""
    right = np.random.default_rng(0).random(1_000) < 0.7
    return tables(tmp_path, [-1] * 8 + [1] * 4 + [0] * 88, right)


def pair_of(codes, old, new, **fields):
    """A Pair of right and wrong answers with a column of clusters."""
    label = np.ones(len(codes), dtype=np.int32)
    sides = (np.asarray(side).astype(np.int32) for side in (old, new))
    return Pair("old", "new", ("n", "y"), label, *sides, columns={"doc": codes}, **fields)


def test_documents_that_moved_as_a_whole_are_no_thousand_examples(moved):
    plain, found = compare(*moved), compare(*moved, cluster="doc")
    assert plain.verdict == "worse"
    assert found.verdict == "regresses without measurable gain"  # 8 of 100 documents fell
    gain = found.summary["overall"]["accuracy_gain"]
    assert gain["value"] == pytest.approx(-0.04) and gain["clusters"] == 100
    values = np.r_[np.full(8, -1.0), np.ones(4), np.zeros(88)]
    error = values.std(ddof=1) / 10  # the t interval of 100 means of equal size
    assert gain["low"] == pytest.approx(-0.04 - 1.9842 * error, abs=1e-4)
    assert gain["high"] > 0 and found.summary["overall"]["mcnemar"]["value"] > 0.05
    assert found.summary["overall"]["nfi"]["low"] is None  # it takes examples as independent


def test_a_gate_is_judged_by_cluster_for_all_and_for_slices(tmp_path):
    half = np.repeat(["a", "b"], 2_000)
    fell = [-1, -1] + [0] * 398
    paths = tables(tmp_path, fell, np.ones(4_000), half=half)
    policy = {"max_nfr": "1%", "slice": [{"each": "half", "max_nfr": "1%"}]}
    statuses = [
        [
            one["status"]
            for one in compare(*paths, policy=policy, **unit).summary["gate"]["conditions"]
        ]
        for unit in ({}, {"cluster": "doc"})
    ]
    assert statuses[0] == ["holds", "too little data", "holds"]
    assert statuses[1] == ["too little data"] * 3


@pytest.mark.parametrize("sizes", ["equal", "unequal"])
@pytest.mark.parametrize("documents, moved", [(30, 0.5), (100, 0.2), (400, 0.04)])
def test_false_alarms_and_false_passes_under_strong_dependence(documents, moved, sizes):
    """At most 6 % of 300 draws (and two standard errors) call equal versions better or worse, or
    let a gate hold at the true rate.
    """
    draw, alarms, passes, trials = np.random.default_rng(documents), 0, 0, 300
    for _ in range(trials):
        each = draw.integers(2, 19, documents) if sizes == "unequal" else 10
        codes = np.repeat(np.arange(documents), each)
        chances = [moved / 2, 1 - moved, moved / 2]
        fate = draw.choice([-1, 0, 1], documents, p=chances)[codes]
        right = draw.random(len(codes)) < 0.5
        sides = (np.where(fate == 0, right, fate == wins) for wins in (-1, 1))
        counts = repeats.Counts(np.ones(len(codes), dtype=int), *(s.astype(int) for s in sides))
        found = clusters.measures(counts, codes, 0.95)
        gain = found["accuracy_gain"]
        alarms += gain["low"] > 0 or gain["high"] < 0
        passes += found["nfr"]["high"] <= moved / 2
    assert alarms <= 0.06 * trials + 2 * np.sqrt(0.06 * 0.94 * trials)
    assert passes <= 0.06 * trials


def test_scores_have_intervals_by_cluster_too():
    draw = np.random.default_rng(0)
    codes = np.repeat(np.arange(50), 20)
    old = draw.random(1_000)
    pair = scored_pair(old, old + 0.1 * draw.normal(size=50)[codes])
    pair.columns["doc"] = codes
    plain, found = (
        summarize(pair, Settings(cluster=name))["overall"]["scores"] for name in ("", "doc")
    )
    wide, narrow = (one["mean_difference"] for one in (found, plain))
    assert wide["high"] - wide["low"] > 3 * (narrow["high"] - narrow["low"])
    assert wide["value"] == pytest.approx(narrow["value"]) and found["nfr"]["clusters"] == 50


def test_one_cluster_is_too_little_data_and_single_ones_change_nothing():
    draw = np.random.default_rng(1)
    old, new = draw.random((2, 200)) < 0.8
    alone = summarize(pair_of(np.zeros(200, dtype=int), old, new), Settings(cluster="doc"))
    assert alone["overall"]["accuracy_gain"]["low"] == -1
    single = summarize(pair_of(np.arange(200), old, new), Settings(cluster="doc"))["overall"]
    plain = summarize(pair_of(np.arange(200), old, new))["overall"]
    for name in ("nfr", "pfr", "accuracy_old"):
        assert single[name]["high"] == pytest.approx(plain[name]["high"])


def test_repeats_may_have_clusters(tmp_path):
    right = np.ones((40, 3), dtype=bool)
    paths = []
    for name in ("old", "new"):
        rows = {"id": np.repeat([f"e{n}" for n in range(40)], 3), "repeat": [1, 2, 3] * 40}
        rows |= {"doc": np.repeat([f"d{n}" for n in range(10)], 12), "label": ["y"] * 120}
        right[:4] = name == "old"
        frame = pl.DataFrame(rows | {"prediction": np.where(right.ravel(), "y", "n")})
        frame.write_csv(tmp_path / f"{name}.csv")
        paths.append(tmp_path / f"{name}.csv")
    nfr = compare(*paths, cluster="doc").summary["overall"]["nfr_beyond_noise"]
    assert (nfr["value"], nfr["n"], nfr["clusters"]) == (pytest.approx(0.1), 40, 10)
    assert nfr["high"] > 0.4  # one of ten documents


@pytest.mark.parametrize("column", ["doc", "Document_ID", "conversation", "strange"])
def test_a_column_that_looks_like_clusters_is_pointed_out(tmp_path, column):
    right = np.random.default_rng(0).random(1_000) < 0.7
    paths = tables(tmp_path, [-1] * 8 + [1] * 4 + [0] * 88, right, column)
    slices = ("strange",) if column == "strange" else ()  # found by the flips, not by its name
    assert any(
        f"--cluster {column} " in note for note in compare(*paths, slices=slices).summary["notes"]
    )
    assert not any("--cluster" in note for note in compare(*paths, cluster=column).summary["notes"])


def test_columns_that_are_no_clusters_are_not_pointed_out():
    draw, named = np.random.default_rng(2), 0
    for _ in range(200):
        old, new = draw.random((2, 600)) < 0.8
        pair = pair_of(np.arange(600), old, new)
        pair.columns["hour"] = draw.integers(0, 24, 600)
        named += "hour" in clusters.suspects(pair)
        assert "doc" not in clusters.suspects(pair)  # each example has its own
    assert named <= 4


def test_an_absent_column_and_missing_values_are_refused(moved):
    with pytest.raises(ValueError, match="docs"):
        compare(*moved, cluster="docs")
    codes = np.array(["a", None, "b", "b"], dtype=object)
    with pytest.raises(ValueError, match="1 examples have no 'doc'"):
        summarize(pair_of(codes, [1, 1, 1, 1], [1, 1, 0, 1]), Settings(cluster="doc"))


def test_the_command_and_many_versions_take_clusters(moved, tmp_path):
    run = CliRunner().invoke(
        app, ["compare", *map(str, moved), "--cluster", "doc", "--max-nfr", "5%"]
    )
    assert "in 100 clusters" in run.output and run.exit_code == 3
    many = compare_versions([*moved, moved[0].rename(tmp_path / "third.csv")][1:], cluster="doc")
    assert many.steps[0].summary["overall"]["nfr"]["clusters"] == 100
