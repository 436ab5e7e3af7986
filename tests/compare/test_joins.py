"""Partners by id: a permutation, or an error that names who has none."""

import numpy as np
import polars as pl
import pytest

from compatkit.compare import joins
from compatkit.compare.joins import by_block, match_rows, picked, rows_beside
from compatkit.compare.sources import AnswerSource, predictions_source
from compatkit.predictions import Predictions


def source(name, ids):
    return predictions_source(Predictions(ids, prediction=[0] * len(ids)), name)


def test_work_reaches_every_row_once_and_its_errors_come_back():
    seen = np.zeros(3 * joins._BLOCK + 1, dtype=int)

    def count(part):
        seen[part] += 1

    by_block(count, len(seen))
    assert (seen == 1).all()

    def fail(part):
        raise ValueError(f"from {part.start}")

    with pytest.raises(ValueError, match="from 0"):
        by_block(fail, len(seen))


@pytest.mark.parametrize("count", [0, 1, joins._BLOCK, joins._BLOCK + 1])
def test_picked_is_indexing(count):
    rows = np.random.default_rng(0).integers(0, 10, count)
    assert np.array_equal(picked(np.arange(10) ** 2, rows), rows**2)


@pytest.mark.parametrize("count", [0, 1, 2, 3, 100, 5000, 2 * joins._BLOCK + 17])
def test_one_to_one_is_the_permutation(count):
    generator = np.random.default_rng(count)
    hashes = generator.integers(0, 1 << 64, count, dtype=np.uint64)
    turn = generator.permutation(count)
    assert np.array_equal(joins._one_to_one(hashes[turn], hashes), turn)
    if count:
        other = hashes.copy()
        other[0] += np.uint64(1)
        assert (
            joins._one_to_one(hashes, other) is None
            and joins._one_to_one(hashes, hashes[1:]) is None
        )


@pytest.mark.parametrize("seed", range(60))
def test_one_to_one_refuses_whatever_is_no_bijection(seed):
    generator = np.random.default_rng(seed)
    pool = (generator.integers(0, 4, 8).astype(np.uint64) << np.uint64(61)) + generator.integers(
        0, 3, 8
    ).astype(np.uint64)  # many share a slot
    before, after = generator.choice(pool, 5), generator.choice(pool, 5)
    if seed % 2:
        after = generator.permutation(before)
    unique = len(set(before.tolist())) == 5 and set(before.tolist()) == set(after.tolist())
    rows = joins._one_to_one(before, after)
    assert (rows is not None) == unique
    if unique:
        assert np.array_equal(after[rows], before)


@pytest.mark.parametrize("join", [lambda old, new: match_rows(old, new).new, rows_beside])
def test_a_collision_of_hashes_is_seen_and_another_seed_taken(monkeypatch, join):
    true, seeds = AnswerSource.hashes, []

    def poor(self, seed=1):
        seeds.append(seed)
        return np.full(3, 5, dtype=np.uint64) if seed == 1 else true(self, seed)

    monkeypatch.setattr(AnswerSource, "hashes", poor)
    rows = join(source("old", ["a", "b", "c"]), source("new", ["c", "b", "a"]))
    assert rows.tolist() == [2, 1, 0]
    assert set(seeds) == {1, 2}


def test_rows_of_one_id_have_one_partner():
    many, one = source("old", ["a", "b", "a", "z"]), source("labels", ["b", "a"])
    assert rows_beside(many, one).tolist() == [1, 0, 1, -1]
    with pytest.raises(ValueError, match="old: repeated ids 'a'"):
        rows_beside(one, many)


@pytest.mark.parametrize("seed", range(20))
def test_partners_are_those_of_a_dictionary(seed):
    generator = np.random.default_rng(seed)
    count = int(generator.integers(1, 200))
    old, new = (
        generator.permutation(count + extra)[:count].astype(str)
        for extra in (0, int(generator.integers(0, 3)))
    )
    place = {identity: row for row, identity in enumerate(new.tolist())}
    shared = [row for row, identity in enumerate(old.tolist()) if identity in place]
    rows = match_rows(source("old", old), source("new", new), "drop")
    assert (list(range(count)) if rows.old is None else rows.old.tolist()) == shared
    assert rows.new.tolist() == [place[old[row]] for row in shared]
    assert rows.left_out == {"old only": count - len(shared), "new only": count - len(shared)}


@pytest.mark.parametrize(
    "old, new, message",
    [
        (["a", "b", "a"], ["a", "b", "c"], "old: repeated ids 'a': keep one row per example"),
        (["a", "b", "c"], ["c", "b", "c"], "new: repeated ids 'c'"),
        (["a", "a"], ["a", "a"], "old: repeated ids 'a'"),
        (["x"] * 5000, ["x"] * 5000, "old: repeated ids 'x'"),
        (
            [f"{n // 2}" for n in range(5000)],
            ["x"],
            "old: repeated ids '[0-9]+', '[0-9]+', '[0-9]+' and 2,497 more",
        ),
        (
            ["a", "b"],
            ["b", "c", "d", "e", "f"],
            "'a' only in old; ids 'c', 'd', 'e' and 1 more only in new",
        ),
        (["a"], ["b"], "old is in new .ids 'a' there, 'b' here"),
    ],
)
def test_what_has_no_partner_is_named(old, new, message):
    with pytest.raises(ValueError, match=message):
        match_rows(source("old", old), source("new", new))


def test_numbers_and_text_are_the_same_id():
    assert match_rows(source("old", [7, 8]), source("new", ["8", "7"])).new.tolist() == [1, 0]
    assert match_rows(source("old", [7, 8]), source("new", ["07", "8"]), "drop").left_out == {
        "old only": 1,
        "new only": 1,
    }


def test_many_rows_in_another_order():
    count = 2 * joins._BLOCK + 5
    turn = np.random.default_rng(0).permutation(count)
    ids = pl.Series([f"example-{n:07d}" for n in range(count)])
    sides = [
        AnswerSource(
            name,
            {"id": pl.String()},
            lambda names, frame=pl.DataFrame({"id": own}): frame.lazy().select(names),
        )
        for name, own in (("old", ids), ("new", ids.gather(turn.tolist())))
    ]
    assert np.array_equal(match_rows(*sides).new, np.argsort(turn))
