"""Levels keep every example, counts add up, the test is the textbook's, and false discoveries
stay rare.
"""

import itertools
from types import SimpleNamespace

import numpy as np
import pytest
from scipy.stats import hypergeom

from compatkit.compare.pair import Pair
from compatkit.compare.slices import (
    MOST_SLICES,
    Flips,
    Levels,
    cells,
    column_levels,
    excess_p,
    false_discovery,
    flip_positions,
    labelled_part,
    levels,
    once,
)


def pair_of(
    label=None,
    old=None,
    new=None,
    columns=None,
    old_score=None,
    new_score=None,
    task=None,
    answers=("a", "b", "c"),
):
    codes = [
        None if given is None else np.array(given, dtype=np.int32) for given in (label, old, new)
    ]
    return SimpleNamespace(
        answers=answers,
        label=codes[0],
        old=codes[1],
        new=codes[2],
        columns=columns or {},
        task=task,
        old_score=old_score,
        new_score=new_score,
    )


# --- levels ---------------------------------------------------------------------------------------


def as_words(values):
    found = levels(np.asarray(values))
    return [found.names[code] for code in found.codes]


def test_few_numbers_stay_as_they_are():
    assert as_words([3, 1, 3, 10]) == ["3", "1", "3", "10"]
    assert as_words([0.5, 2.0, 0.5]) == ["0.5", "2", "0.5"]
    assert as_words(list(range(10))) == [str(number) for number in range(10)]


def test_many_numbers_are_cut_at_quartiles_named_by_what_is_in_them():
    values = np.random.default_rng(0).permutation(np.arange(1, 101))
    found = levels(values)
    assert found.names == ["1 – 25", "26 – 50", "51 – 75", "76 – 100"]
    assert np.bincount(found.codes).tolist() == [25] * 4
    for code, name in enumerate(found.names):
        low, high = map(int, name.split(" – "))
        inside = values[found.codes == code]
        assert (inside.min(), inside.max()) == (low, high)


def test_ties_stay_together():
    values = np.concatenate([np.zeros(90, dtype=int), np.arange(1, 31)])
    found = levels(values)
    assert found.names[0] == "0" and (found.codes[:90] == 0).all() and (found.codes[90:] > 0).all()


def test_names_of_parts_differ_however_close_the_numbers():
    values = 1e6 + np.arange(40) * 1e-6
    assert len(set(levels(values).names)) == 4
    assert len(set(levels(np.array([1 / 3, 1 / 3 + 1e-16 * 2])).names)) == 2


@pytest.mark.parametrize(
    "values, missing",
    [
        (np.array([1.0, np.nan, 2.0]), 1),
        (np.array(["a", None, "b"], dtype=object), 1),
        (np.array(["a", np.nan], dtype=object), 1),
        (np.array([np.nan] * 3), 3),
    ],
)
def test_missing_values_are_a_level(values, missing):
    found = levels(values)
    assert found.names[-1] == "(missing)" and (found.codes == len(found.names) - 1).sum() == missing


def test_a_value_called_missing_is_not_missing():
    assert as_words(np.array(["(missing)", None], dtype=object)) == ["(missing)", "((missing))"]


def test_extreme_numbers():
    values = np.array([np.inf, -np.inf, *range(50)], dtype=float)
    found = levels(values)
    assert found.names[0].startswith("-inf – ") and found.names[-1].endswith(" – inf")
    assert levels(np.array([2**63 - 1, -(2**63)])).names == [str(-(2**63)), str(2**63 - 1)]
    assert levels(np.array([2**64 - 1, 0], dtype=np.uint64)).names == ["0", str(2**64 - 1)]


def test_text_of_every_kind():
    assert as_words(np.array(["b", "a", "", "a"])) == ["b", "a", "", "a"]
    assert levels(np.array(["b", "a"])).names == ["a", "b"]
    assert as_words(np.array([1, "1", "x"], dtype=object)) == ["1", "1", "x"]
    assert as_words(np.array(["\ud800", "<b>|\n"], dtype=object)) == ["\\ud800", "<b>|\n"]
    assert as_words(np.array([True, False])) == ["True", "False"]
    assert as_words(np.array(["2026-01-02", "2026-01-03"], dtype="datetime64[D]")) == [
        "2026-01-02",
        "2026-01-03",
    ]


@pytest.mark.parametrize("seed", range(20))
def test_the_order_of_rows_leaves_no_trace(seed):
    draw = np.random.default_rng(seed)
    for values in (
        draw.integers(0, 40, 100),
        draw.normal(size=100).round(1),
        draw.choice(list("xyz"), 100),
    ):
        order = draw.permutation(100)
        found, other = levels(values), levels(values[order])
        assert found.names == other.names and (found.codes[order] == other.codes).all()
        assert set(found.codes) == set(range(len(found.names)))


def test_columns_by_name():
    pair = pair_of([0, 1], [0, 1], [0, 0], {"length": np.array([1, 2])}, task=np.array(["t", "u"]))
    assert column_levels(pair, "length").names == ["1", "2"]
    assert column_levels(pair, "label").names == ["a", "b", "c"]
    assert column_levels(pair, "task").names == ["t", "u"]
    with pytest.raises(
        ValueError,
        match="'lenght'.*'length'.*'label'",
    ):
        column_levels(pair, "lenght")
    with pytest.raises(ValueError, match="'label'.*'x'"):
        column_levels(pair_of(columns={"x": np.array([1])}), "label")


def test_a_further_column_wins_over_the_reserved_name():
    assert column_levels(
        pair_of([0], [0], [0], {"task": np.array(["mine"])}, task=np.array(["t"])), "task"
    ).names == ["mine"]


# --- several metrics of one task ------------------------------------------------------------------


def harness(tasks, label, old, new, scores=None, **columns):
    """A pair as files of the harness give it: a code of -1, or a score of nan, where there is
    none.
    """
    codes = (
        [np.array(side, dtype=np.int32) for side in (label, old, new)]
        if label is not None
        else [None] * 3
    )
    return Pair(
        "a",
        "b",
        ("no", "yes"),
        *codes,
        *([None] * 2 if scores is None else np.array(scores, dtype=float)),
        columns=columns,
        task=np.array(tasks, dtype=object),
    )


def test_each_example_counts_once():
    pair = harness(
        ["t (acc_norm)"] * 2 + ["t (acc)"] * 2 + ["u"],
        [0, 0, 1, 1, 0],
        [0, 1, 1, 0, 0],
        [1, 1, 0, 0, 0],
        kind=np.arange(5),
    )
    assert once(pair).rows.tolist() == [False, False, True, True, True] and once(pair).examples == 3
    part = labelled_part(pair)
    assert (
        part.label.tolist() == [1, 1, 0]
        and part.columns["kind"].tolist() == [2, 3, 4]
        and part.n == 3
    )
    assert once(part).rows.all() and labelled_part(part) is part


def test_one_metric_of_each_kind():
    nan = np.nan
    pair = harness(
        ["q (f1)", "q (f1)", "q (em)", "q (em)", "s (rouge, none)"],
        [-1, -1, 0, 1, -1],
        [-1, -1, 0, 1, -1],
        [-1, -1, 1, 1, -1],
        [[0.1, 0.2, nan, nan, 0.3], [0.2, 0.1, nan, nan, 0.3]],
    )
    assert (
        once(pair).rows.all() and once(pair).examples == 3
    )  # two questions, judged twice, and a summary
    assert labelled_part(pair).label.tolist() == [0, 1]
    flips = flip_positions(pair)
    assert (flips.negative.tolist(), flips.positive.tolist()) == ([2], [])


def test_filters_are_metrics_too():
    pair = harness(["g (exact_match, strict)", "g (exact_match, flexible)"], [0, 0], [0, 0], [1, 0])
    assert once(pair).rows.tolist() == [False, True]


def test_pairs_without_tasks_are_left_alone():
    pair = Pair(
        "a", "b", ("no",), np.zeros(3, np.int32), np.zeros(3, np.int32), np.zeros(3, np.int32)
    )
    assert once(pair).rows.all() and once(pair).examples == 3 and labelled_part(pair) is pair
    scores = harness(["s"] * 2, None, None, None, [[0.1, 0.2]] * 2)
    assert labelled_part(scores) is scores and once(scores).examples == 2


# --- counting -------------------------------------------------------------------------------------


def test_flips_of_answers_and_of_scores():
    flips = flip_positions(pair_of([0, 0, 0, 1, 1], [0, 0, 1, 2, 1], [0, 1, 0, 0, 2]))
    assert (flips.negative.tolist(), flips.positive.tolist()) == ([1, 4], [2])
    flips = flip_positions(
        pair_of(old_score=np.array([0.1, 0.5, 0.5]), new_score=np.array([0.2, 0.5, 0.1]))
    )
    assert (flips.negative.tolist(), flips.positive.tolist()) == ([2], [0])


@pytest.mark.parametrize("seed", range(10))
def test_cells_against_a_loop(seed):
    draw = np.random.default_rng(seed)
    n = 300
    columns = {
        name: Levels(draw.integers(0, size, n), [f"{name}{i}" for i in range(size)])
        for name, size in (("a", 3), ("b", 4), ("c", 2))
    }
    flips = Flips(np.flatnonzero(draw.random(n) < 0.2), np.flatnonzero(draw.random(n) < 0.1))
    found = cells(flips, columns)
    expected = {}
    for i in range(n):
        where = tuple(column.names[column.codes[i]] for column in columns.values())
        counts = expected.setdefault(where, [0, 0, 0])
        counts[0] += 1
        counts[1] += i in flips.negative
        counts[2] += i in flips.positive
    assert {
        tuple(where.values()): list(map(int, counts)) for where, *counts in zip(*found)
    } == expected
    assert (found.n.sum(), found.negative.sum(), found.positive.sum()) == (
        n,
        len(flips.negative),
        len(flips.positive),
    )


def test_many_levels_that_hardly_occur():
    # 3,000 x 3,000 combinations, of which 3,000 occur: no table of nine millions is needed to be
    # right
    codes = np.arange(3000)
    column = Levels(codes, list(map(str, codes)))
    found = cells(Flips(np.array([5]), np.array([7])), {"a": column, "b": column})
    assert len(found.n) == 3000 and (found.n == 1).all() and found.where[5] == {"a": "5", "b": "5"}
    assert found.negative[5] == 1 and found.positive[7] == 1


def test_too_many_slices_are_refused():
    column = Levels(np.arange(MOST_SLICES + 1), list(map(str, range(MOST_SLICES + 1))))
    with pytest.raises(
        ValueError,
        match="100,001.*100,000",
    ):
        cells(Flips(np.array([0]), np.array([1])), {"user": column})
    wide = Levels(np.zeros(1, dtype=int), ["x"] * 2**21)
    with pytest.raises(ValueError, match="a × b × c could make"):
        cells(Flips(np.zeros(0, int), np.zeros(0, int)), {"a": wide, "b": wide, "c": wide})


# --- the test -------------------------------------------------------------------------------------


def test_excess_against_scipy():
    draw = np.random.default_rng(0)
    for _ in range(500):
        total = int(draw.integers(1, 400))
        n, all_flips = int(draw.integers(1, total + 1)), int(draw.integers(0, total + 1))
        flips = int(draw.integers(max(0, n + all_flips - total), min(n, all_flips) + 1))
        assert excess_p(flips, n, all_flips, total) == pytest.approx(
            hypergeom.sf(flips - 1, total, all_flips, n), rel=1e-8, abs=1e-12
        )


def test_excess_of_large_samples():
    for flips in (9_000, 10_000, 10_400, 12_000):
        expected = hypergeom.sf(flips - 1, 10**7, 10**5, 10**6)
        assert excess_p(flips, 10**6, 10**5, 10**7) == pytest.approx(expected, rel=1e-4, abs=1e-12)


def test_excess_by_hand():
    assert excess_p(2, 2, 2, 4) == pytest.approx(1 / 6)  # both flips in one of the six pairs
    assert excess_p(0, 2, 2, 4) == 1 and excess_p(4, 4, 4, 4) == 1


def benjamini_hochberg(p, rate):
    """As the paper says it: the largest i with p_(i) <= i * rate / m; the first i are
    discoveries.
    """
    order = sorted(range(len(p)), key=lambda i: p[i])
    largest = max(
        (i for i in range(1, len(p) + 1) if p[order[i - 1]] <= i * rate / len(p)), default=0
    )
    return {order[i] for i in range(largest)}


@pytest.mark.parametrize("seed", range(30))
def test_false_discovery_against_the_paper(seed):
    draw = np.random.default_rng(seed)
    p = np.where(draw.random(60) < 0.3, draw.random(60) ** 6, draw.random(60)).round(3)  # with ties
    q = false_discovery(p)
    for rate in (0.01, 0.05, 0.2):
        assert set(np.flatnonzero(q <= rate + 1e-12)) == benjamini_hochberg(p, rate + 1e-12)
    assert (q >= p).all() and (q <= 1).all()
    assert (np.argsort(q[np.argsort(p, kind="stable")], kind="stable") == np.arange(60)).all()


def test_false_discovery_of_none_and_one():
    assert false_discovery([]).tolist() == [] and false_discovery([0.03]).tolist() == [0.03]


def test_blind_flips_are_seldom_called_worse():
    """Over overlapping slices of 300 updates whose flips have nothing to do with the columns; 5
    % is allowed.
    """
    draw, alarms = np.random.default_rng(0), 0
    for _ in range(300):
        columns = {
            name: Levels(draw.integers(0, size, 500), list(map(str, range(size))))
            for name, size in (("a", 6), ("b", 4))
        }
        flips = Flips(np.flatnonzero(draw.random(500) < 0.08), np.zeros(0, dtype=int))
        groups = [
            cells(flips, {name: columns[name] for name in chosen})
            for size in (1, 2)
            for chosen in itertools.combinations(columns, size)
        ]
        p = [
            excess_p(int(k), int(n), len(flips.negative), 500)
            for group in groups
            for k, n in zip(group.negative, group.n)
        ]
        alarms += (false_discovery(p) <= 0.05).any()
    assert alarms <= 24  # three standard errors above 15
