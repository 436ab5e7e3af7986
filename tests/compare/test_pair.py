"""Two files in, one pair out: joined by id and by nothing else."""

import tracemalloc
from decimal import Decimal
from unicodedata import normalize

import numpy as np
import pandas as pd
import polars as pl
import pytest
from answer_files import ENDINGS, GOOD, counted, saved, values, written

from compatkit.compare.pair import Pair, read_columns, read_pair
from compatkit.compare.report import compare, compare_versions
from compatkit.compare.sources import AnswerSource
from compatkit.metrics import FlipCounts
from compatkit.predictions import Predictions, align

# -- the join -------------------------------------------------------------------------------------


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("seed", range(4))
def test_each_row_finds_its_own(tmp_path, ending, seed):
    generator = np.random.default_rng(seed)
    count, answers = (
        int(generator.integers(1, 300)),
        [["näh", "yes, sir", 'no "way"'], [0, 1, 17]][seed % 2],
    )
    ids = [f"ex {i} 猫" for i in range(count)] if seed < 2 else list(range(count))

    def pick():
        return [answers[i] for i in generator.integers(0, 3, count)]

    label, old, new = pick(), pick(), pick()
    rows = [
        [
            {"id": i, "label": truth, "prediction": answer, "length": n}
            for n, (i, truth, answer) in enumerate(zip(ids, label, side))
        ]
        for side in (old, new)
    ]
    turn = generator.permutation(count)
    pair = read_pair(
        saved(tmp_path / f"old{ending}", rows[0]),
        saved(tmp_path / f"new{ending}", [rows[1][i] for i in turn]),
    )
    assert (values(pair, "label"), values(pair, "old"), values(pair, "new")) == (label, old, new)
    assert (
        pair.answers == tuple(sorted({*label, *old, *new}))
        and pair.label.dtype == pair.old.dtype == pair.new.dtype == np.int32
    )
    assert pair.columns["length"].tolist() == list(range(count))
    assert [row["id"] for row in pair.shown(range(count))] == list(map(str, ids))
    assert pair.left_out == {"old only": 0, "new only": 0} and len(pair) == pair.n == count


@pytest.mark.parametrize("old_ending", ENDINGS)
@pytest.mark.parametrize("new_ending", ENDINGS)
def test_formats_may_differ_and_agree_with_align(tmp_path, old_ending, new_ending):
    generator = np.random.default_rng(5)
    old = Predictions(np.arange(50), generator.integers(0, 3, 50), generator.integers(0, 3, 50))
    new = Predictions(np.arange(50), old.label, generator.integers(0, 3, 50)).select(
        np.array(old.id)[generator.permutation(50)]
    )
    pair = read_pair(
        old.save(tmp_path / f"old{old_ending}"), new.save(tmp_path / f"new{new_ending}")
    )
    first, second = align(old, new)
    assert (
        counted(pair)
        == FlipCounts.of(first.label, first.prediction, second.prediction)
        == counted(Pair.of(old, new))
    )


def test_order_of_rows_changes_nothing(tmp_path):
    generator = np.random.default_rng(2)
    rows = [
        [
            {
                "id": f"x{i}",
                "label": i % 3,
                "prediction": int(generator.integers(3)),
                "score": i / 100,
            }
            for i in range(100)
        ]
        for _ in range(2)
    ]
    turn = generator.permutation(100)
    straight = read_pair(*(saved(tmp_path / f"{n}.csv", side) for n, side in enumerate(rows)))
    turned = read_pair(
        *(
            saved(tmp_path / f"{n}.csv", [side[i] for i in order])
            for n, side, order in (("a", rows[0], turn), ("b", rows[1], turn[::-1]))
        )
    )
    assert counted(straight) == counted(turned)

    def by_id(pair):
        return sorted(pair.shown(range(100)), key=lambda row: row["id"])

    assert by_id(straight) == by_id(turned)


# -- what only one side has -----------------------------------------------------------------------


@pytest.mark.parametrize("ending", ENDINGS)
def test_missing_examples_are_named_or_dropped_and_counted(tmp_path, ending):
    def row(i):
        return {"id": f"x{i}", "label": i % 2, "prediction": i % 3, "note": f"n{i}"}

    old, new = (
        saved(tmp_path / f"old{ending}", [row(i) for i in range(8)]),
        saved(tmp_path / f"new{ending}", [row(i) for i in range(11, 2, -1)]),
    )
    with pytest.raises(
        ValueError,
        match="'x0'.*'x1'.*'x2'",
    ):
        read_pair(old, new)
    pair = read_pair(old, new, on_missing="drop")
    assert pair.left_out == {"old only": 3, "new only": 4} and pair.n == 5
    assert [row["id"] for row in pair.shown(range(5))] == [f"x{i}" for i in range(3, 8)]
    assert values(pair, "old") == values(pair, "new") == [i % 3 for i in range(3, 8)]
    assert pair.columns["note"].tolist() == [f"n{i}" for i in range(3, 8)]
    assert "3 only in old" in pair.notes[0] and "4 only in new" in pair.notes[0]
    smaller = saved(tmp_path / f"part{ending}", [row(4)])
    assert read_pair(old, smaller, on_missing="drop").left_out == {"old only": 7, "new only": 0}
    with pytest.raises(ValueError, match="no id of old.* is in none"):
        read_pair(old, saved(tmp_path / f"none{ending}", [row(99)]), on_missing="drop")


def test_dropping_many_rows_leaves_the_shared_ones(tmp_path):
    generator = np.random.default_rng(0)
    sides = [generator.choice(3000, 2000, replace=False) for _ in range(2)]
    files = [
        saved(
            tmp_path / f"{n}.parquet",
            [{"id": int(i), "label": 0, "prediction": int(i)} for i in side],
        )
        for n, side in enumerate(sides)
    ]
    pair = read_pair(*files, on_missing="drop")
    shared = [int(i) for i in sides[0] if i in set(sides[1].tolist())]
    assert values(pair, "old") == values(pair, "new") == shared
    assert pair.left_out == {"old only": 2000 - len(shared), "new only": 2000 - len(shared)}


# -- labels and answers ---------------------------------------------------------------------------


@pytest.mark.parametrize("side", [0, 1])
def test_labels_of_one_side_serve_both(tmp_path, side):
    files = [GOOD, "id,prediction\nc,1\na,0\nb,0\n"]
    old, new = written(tmp_path, old_csv=files[side], new_csv=files[1 - side])
    pair = read_pair(old, new)
    truth = dict(zip("abc", [1, 0, 1]))
    assert [truth[row["id"]] for row in pair.shown(range(3))] == values(pair, "label")
    assert pair.notes == (
        f"Only {['old', 'new'][side]}.csv has labels; every version is judged by them.",
    )


def of_two_classes(folder, ending, labels, turned=(), classes=("neg", "pos")):
    """Two files of two answers beside their probabilities, .8 and .7 of the second and first."""
    for name in ("old", "new"):
        order = classes[::-1] if name in turned else classes
        shares = (dict(zip(classes, (0.2, 0.8))), dict(zip(classes, (0.7, 0.3))))
        rows = [
            {"id": id, "label": label, "prediction": label}
            | {f"prob_{column}": share[column] for column in order}
            for id, label, share in zip("ab", labels, shares)
        ]
        yield saved(folder / f"{name}{ending}", rows)


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize(
    "classes, labels",
    [(("neg", "pos"), (1, 0)), (("true", "false"), (0, 1)), (("01", "02"), (2, 1))],
)
def test_numbers_beside_named_probabilities_are_places_or_names(tmp_path, ending, classes, labels):
    pair = read_pair(*of_two_classes(tmp_path, ending, labels, classes=classes))
    assert pair.notes == ()
    for sureness in (pair.old_sureness, pair.new_sureness):
        assert np.allclose(np.exp(-sureness.log_loss), [0.8, 0.7])


@pytest.mark.parametrize("ending", ENDINGS)
def test_probabilities_that_are_called_logits_are_noted(tmp_path, ending):
    _, new = of_two_classes(tmp_path, ending, (1, 0))
    rows = [
        {"id": id, "label": label, "prediction": 1, "logit_neg": share, "logit_pos": 1 - share}
        for id, label, share in (("a", 1, 0.2), ("b", 0, 0.3))
    ]
    pair = read_pair(saved(tmp_path / f"called{ending}", rows), new)
    assert len(pair.notes) == 1 and pair.notes[0].startswith(f"called{ending}: the rows")
    assert pair.old_sureness is not None


@pytest.mark.parametrize(
    "labels, turned, told",
    [
        ((1, 2), (), "old.csv: the labels 2 are none of the classes ('neg', 'pos'). The answers"),
        (("Pos", "Neg"), (), "the labels 'Neg', 'Pos' are none of the classes"),
        ((1, 0), ("new",), "old.csv and new.csv have the classes 'neg', 'pos' in other places"),
    ],
)
def test_labels_without_a_probability_are_noted(tmp_path, labels, turned, told):
    pair = read_pair(*of_two_classes(tmp_path, ".csv", labels, turned))
    assert len(pair.notes) == 1 and told in pair.notes[0]
    assert pair.old_sureness is pair.new_sureness is None


def test_scores_without_labels_and_beside_them():
    one, two = (
        Predictions(["a", "b"], score=[0.5, 1.0], text=["x", "y"]),
        Predictions(["b", "a"], score=[0.25, 0.75], text=["yy", "xx"]),
    )
    pair = Pair.of(one, two, names=("v1", "v2"))
    assert pair.label is None and pair.old is None and pair.answers == () and len(pair) == 2
    assert (pair.old_score.tolist(), pair.new_score.tolist(), pair.old_name) == (
        [0.5, 1.0],
        [0.75, 0.25],
        "v1",
    )
    assert pair.shown([1]) == [
        {"id": "b", "old_text": "y", "new_text": "yy", "old_score": 1.0, "new_score": 0.25}
    ]
    both = Pair.of(one.replace(label=[1, 1], prediction=[1, 0]), two.replace(prediction=[1, 1]))
    assert both.label is not None and both.old_score is not None


# -- what is refused ------------------------------------------------------------------------------

BAD = [
    (dict(new_csv=GOOD + "c,1,0\n"), {}, "new.csv: repeated ids 'c': keep one row per example"),
    (
        dict(new_csv=GOOD.replace("b,0,1\n", "") + "".join(f"c{i // 2},1,0\n" for i in range(20))),
        {},
        "repeated ids 'c0', 'c1', 'c2' and 7 more",
    ),
    (dict(new_csv=GOOD + ",1,0\n"), {}, "new.csv: missing ids in rows 4: every example needs one"),
    (dict(new_csv="id,label,prediction\n"), {}, "new.csv: the file holds no examples"),
    (dict(new_csv=""), {}, "new.csv: the file is empty"),
    (
        dict(new_csv=GOOD.replace("b,0", "b,1")),
        {},
        "labels differ for ids 'b' .0 in old.csv; 1 in new.csv.: both must be judged by the same",
    ),
    (
        dict(new_csv=GOOD.replace("b,0,1", "b,0,")),
        {},
        "new.csv: missing predictions for ids 'b': fill them in",
    ),
    (dict(new_csv=GOOD.replace("b,0,1", "b,,1")), {}, "new.csv: missing labels for ids 'b'"),
    (dict(new_csv=GOOD.replace("prediction", "bot")), {}, "none of `prediction`"),
    (
        dict(new_csv=GOOD.replace("label", "label_of"), old_csv=GOOD.replace("label", "label_of")),
        {},
        "nothing to compare: needed .*old.csv: found: id, label_of, prediction; did you mean "
        "'label_of'",
    ),
    (dict(new_csv="id,text\na,x\nb,x\nc,y\n"), {}, "nothing to compare"),
    (
        dict(),
        dict(rename={"answr": "prediction"}),
        "no column 'answr', to be read as `prediction`, in old.csv or new.csv .found: id, label",
    ),
    (dict(), dict(label="truth"), "no column 'truth', to be read as `label`"),
    (
        dict(),
        dict(columns=["intent"]),
        "no further column 'intent' in old.csv or new.csv .found: nothing.",
    ),
    (dict(), dict(on_missing="ignore"), 'on_missing is "error" or "drop", not \'ignore\''),
    (
        dict(new_csv="id,score\na,1\nb,x\nc,\n", old_csv="id,score\na,1\nb,2\nc,3\n"),
        {},
        "new.csv: the column `score` needs numbers, and holds 'x'",
    ),
    (
        dict(new_csv="id,score\na,1\nb,inf\nc,\n", old_csv="id,score\na,1\nb,2\nc,3\n"),
        {},
        "new.csv: scores missing or not finite for ids 'b', 'c'",
    ),
]


@pytest.mark.parametrize("files, options, message", BAD)
def test_bad_pairs_are_refused(tmp_path, files, options, message):
    old, new = written(tmp_path, **({"old_csv": GOOD, "new_csv": GOOD} | files))
    with pytest.raises(ValueError, match=message):
        read_pair(old, new, **options)


@pytest.mark.parametrize(
    "columns, message",
    [
        (
            {"id": [1.0, 2.0], "label": [0, 1], "prediction": [0, 1]},
            "ids must be text or whole numbers, not floats .1.0, 2.0.",
        ),
        ({"id": [1, None], "label": [0, 1], "prediction": [0, 1]}, "missing ids in rows 2"),
        (
            {"id": [[1], [2]], "label": [0, 1], "prediction": [0, 1]},
            "ids must be text or whole numbers, not List",
        ),
        (
            {"id": [1, 2], "label": [0, 1], "prediction": [0.0, 0.5]},
            "`prediction` holds fractions .0.5.: answers are whole numbers or text",
        ),
        (
            {"id": [1, 2], "label": [0, 1], "prediction": [Decimal("1.10"), Decimal("1.20")]},
            "`prediction` holds fractions .1.1, 1.2.: answers are whole numbers or text",
        ),
        (
            {
                "id": [1, 2],
                "label": pl.Series([0, 2**64 - 1], dtype=pl.UInt64),
                "prediction": [0, 1],
            },
            "a.parquet: `label` holds 18446744073709551615, which is more than 64 bits hold: write",
        ),
        ({"id": [1, 2], "score": [[0], [1]]}, "a.parquet, a.parquet: "),
        (
            {"id": [1, 2], "label": [0, 1], "prediction": [[0], [1]]},
            "`prediction` holds List.*neither a number nor text",
        ),
        ({"id": [1, 2], "label": [0, None], "prediction": [0, 1]}, "missing labels for ids '2'"),
        (
            {"id": [1, 2], "label": [0, 1], "prediction": [float("nan"), 1]},
            "missing predictions for ids '1'",
        ),
        (
            {"id": [1, 2], "label": [None, None], "prediction": [0, 1]},
            "missing labels for ids '1', '2'",
        ),
    ],
)
def test_bad_parquet_is_refused(tmp_path, columns, message):
    pl.DataFrame(columns).write_parquet(tmp_path / "a.parquet")
    with pytest.raises(ValueError, match=message):
        read_pair(tmp_path / "a.parquet", tmp_path / "a.parquet")


def test_bad_rows_that_are_left_out_do_no_harm(tmp_path):
    old, new = written(tmp_path, old_csv=GOOD + "d,0,\n", new_csv=GOOD)
    assert read_pair(old, new, on_missing="drop").n == 3
    with pytest.raises(FileNotFoundError, match="nowhere"):
        read_pair(old, tmp_path / "nowhere")


def test_one_class_is_allowed_and_noted(tmp_path):
    old, new = written(
        tmp_path,
        old_csv="id,label,prediction\na,x,x\nb,x,y\n",
        new_csv="id,label,prediction\na,x,y\nb,x,y\n",
    )
    assert read_pair(old, new).notes == ("Every label is 'x': there is one class only.",)


# -- further columns and what is shown ------------------------------------------------------------


@pytest.mark.parametrize("ending", ENDINGS)
def test_columns_are_joined_and_told_apart_where_they_differ(tmp_path, ending):
    rows = [
        [
            {
                "id": i,
                "label": 0,
                "prediction": 0,
                "same": f"s{i % 2}",
                "share": i / 4,
                "differs": i * side,
                f"own{side}": i,
                "question": f"question {i}",
            }
            for i in range(60)
        ][::side]
        for side in (1, -1)
    ]
    pair = read_pair(
        *(saved(tmp_path / f"{name}{ending}", side) for name, side in zip(("old", "new"), rows))
    )
    assert list(pair.columns) == [
        "same",
        "share",
        "differs (old)",
        "differs (new)",
        "own1",
        "own-1",
    ]  # the question is free text
    assert pair.columns["differs (new)"].tolist() == [-i for i in range(60)] and pair.columns[
        "own-1"
    ].tolist() == list(range(60))
    assert (
        pair.columns["share"].dtype == np.float64
        and pair.columns["own1"].dtype == np.int64
        and pair.columns["same"].dtype == object
    )
    assert (
        pair.shown([5, 0, 5])[0]
        == pair.shown([5])[0]
        == {
            "id": "5",
            "same": "s1",
            "share": 1.25,
            "differs (old)": 5,
            "differs (new)": -5,
            "own1": 5,
            "own-1": 5,
            "question": "question 5",
            "label": 0,
            "old": 0,
            "new": 0,
        }
    )
    assert pair.shown([0])[0]["differs (new)"] == 0 and pair.shown([]) == []


def test_only_the_columns_asked_for_are_loaded(tmp_path, monkeypatch):
    rows = [
        {"id": i, "label": 0, "prediction": 0, "intent": "a", "question": f"q{i}"}
        for i in range(60)
    ]
    paths = [saved(tmp_path / f"{name}.parquet", rows) for name in ("old", "new")]
    read, true = [], AnswerSource.column
    monkeypatch.setattr(AnswerSource, "column", lambda o, name: read.append(name) or true(o, name))
    assert read_pair(*paths, columns=()).columns == {} and set(read) == {"label", "prediction"}
    assert list(read_pair(*paths, columns=["question"]).columns) == [
        "question"
    ]  # asked for by name, free text or not
    assert "intent" not in read


def test_columns_of_odd_kinds(tmp_path):
    pl.DataFrame(
        {
            "id": ["a", "b"],
            "label": [1, 1],
            "prediction": [1, 1],
            "flag": [True, None],
            "number": [1, None],
            "when": ["2024-01-01"] * 2,
            "nested": [[1], [2]],
        }
    ).with_columns(pl.col("when").str.to_date()).write_parquet(tmp_path / "a.parquet")
    pair = read_pair(tmp_path / "a.parquet", tmp_path / "a.parquet")
    assert pair.columns["when"].tolist() == ["2024-01-01"] * 2 and pair.columns[
        "nested"
    ].tolist() == ["[1]", "[2]"]
    assert pair.columns["number"][0] == 1 and np.isnan(pair.columns["number"][1])
    assert (
        "number" not in pair.shown([1])[0]
        and "flag" not in pair.shown([1])[0]
        and pair.shown([0])[0]["flag"] is True
    )


def test_csv_columns_are_numbers_only_if_all_cells_are(tmp_path):
    (old,) = written(
        tmp_path,
        old_csv="id,label,prediction,whole,share,gap,mixed,empty\na,1,1,3,.5,1,3,\nb,1,1,-4,2,,x,\n",
    )
    columns = read_pair(old, old).columns
    assert (
        columns["whole"].tolist() == [3, -4]
        and columns["whole"].dtype == np.int64
        and columns["share"].tolist() == [0.5, 2.0]
    )
    assert columns["gap"][0] == 1 and np.isnan(columns["gap"][1])
    assert columns["mixed"].tolist() == ["3", "x"] and columns["empty"].tolist() == ["", ""]


def test_codes_in_a_csv_stay_text(tmp_path):
    """01, 1 and 1e3 are three codes, and what is text in one file is compared as text."""
    cells = ["01", "1", "007", "1e3"]
    rows = [f"{n},1,1,{code},{n}.5,{2020 + n}" for n, code in enumerate(cells)]
    (old,) = written(tmp_path, old_csv="\n".join(["id,label,prediction,code,size,year", *rows, ""]))
    pair = read_pair(old, old)
    assert pair.columns["code"].tolist() == cells == [row["code"] for row in pair.shown(range(4))]
    assert pair.shown([1])[0]["code"] == "1" and pair.columns["size"].tolist()[0] == 0.5
    new = saved(
        tmp_path / "new.jsonl",
        [
            {"id": str(n), "label": 1, "prediction": 1, "code": code, "year": str(2020 + n)}
            for n, code in enumerate(cells)
        ],
    )
    for pair in (read_pair(old, new), read_pair(new, old)):
        assert pair.columns["year"].tolist() == ["2020", "2021", "2022", "2023"]
        assert pair.shown([1])[0]["year"] == "2021" and pair.columns["code"].tolist() == cells
    assert read_pair(old, new, columns=()).shown([1])[0]["year"] == "2021"


@pytest.mark.parametrize(
    "values, shown",
    [
        (pl.Series([1500, None]).cast(pl.Duration("ms")), [1.5, None]),
        (pl.Series([1500, None]).cast(pl.Duration("us")), [0.0015, None]),
        (pl.Series([3_600_000_000_000, None]).cast(pl.Time), ["01:00:00", None]),
        (pl.Series([Decimal("1.10"), None]), [1.1, None]),
        (pl.Series([None, None], dtype=pl.Null), [None, None]),
        (pl.Series([b"x", None]), ["b'x'", None]),
        (pl.Series([{"a": 1}, None]), ["{'a': 1}", None]),
        (pl.Series([[1], None]), ["[1]", None]),
        (pl.Series([2**70, None], dtype=pl.Int128), [str(2**70), None]),
        (pl.Series([np.inf, np.nan]), [None, None]),
    ],
)
def test_columns_of_any_kind_are_shown(tmp_path, values, shown):
    """Durations in seconds; what JSON has no word for is left out."""
    frame = pl.DataFrame({"id": ["a", "b"], "label": [1, 1], "prediction": [1, 1], "it": values})
    frame.write_parquet(tmp_path / "a.parquet")
    frame.with_columns(it=values.reverse()).write_parquet(tmp_path / "b.parquet")
    rows = read_pair(tmp_path / "a.parquet", tmp_path / "a.parquet").shown([0, 1])
    assert [row.get("it") for row in rows] == shown
    apart = read_pair(tmp_path / "a.parquet", tmp_path / "b.parquet").shown([1])[0]
    assert apart.get("it (new)", apart.get("it")) == shown[0]
    assert Predictions.load(tmp_path / "a.parquet").columns["it"].shape == (2,)


def test_whole_numbers_beyond_64_bits(tmp_path):
    """Ids and cells are text; other answers are refused by name."""
    large = 9223372036854775813
    rows = [{"id": large + n, "label": 1, "prediction": 1} for n in range(2)]
    path = saved(tmp_path / "a.jsonl", rows)
    assert read_pair(path, path).shown([1])[0]["id"] == str(large + 1)
    path = saved(tmp_path / "b.jsonl", [row | {"label": large} for row in rows])
    with pytest.raises(ValueError, match=f"b.jsonl: `label` holds {large}.*: write such answers"):
        read_pair(path, path)
    digits = "7" * 5000
    (path,) = written(tmp_path, c_csv=f"id,label,prediction,code\na,{digits},1,{digits}\nb,1,1,1\n")
    pair = read_pair(path, path)
    assert values(pair, "label") == [digits, "1"] == pair.columns["code"].tolist()
    assert Predictions.load(path).correct.tolist() == [False, True]


def test_texts_are_shown_as_they_are(tmp_path):
    rows = [
        {"id": "<b>", "label": "x", "prediction": "x", "text": "<script>alert(1)</script>\n\u202e"}
    ]
    for ending in ENDINGS:
        shown = read_pair(*(saved(tmp_path / f"{n}{ending}", rows) for n in "ab")).shown([0])[0]
        assert shown["old_text"] == shown["new_text"] == rows[0]["text"] and shown["id"] == "<b>"


def test_headings(tmp_path):
    for folder in ("v1", "v2", "deep/v1"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "preds.csv").write_text(GOOD)

    def path(folder):
        return tmp_path / folder / "preds.csv"

    def names(*paths):
        return (lambda pair: (pair.old_name, pair.new_name))(read_pair(*paths))

    assert names(path("v1"), path("v2")) == ("v1/preds", "v2/preds")
    assert names(path("deep/v1"), path("v1"))[0] == "deep/v1/preds"
    assert names(path("v1"), path("v1")) == ("preds (old)", "preds (new)")
    (tmp_path / "new.csv").write_text(GOOD)
    assert names(path("v1"), tmp_path / "new.csv") == ("preds", "new")
    assert repr(read_pair(path("v1"), path("v2"))) == "Pair(v1/preds → v2/preds, 3 examples)"
    for content, message in (
        (GOOD + "a,1,1\n", "v2/preds.csv: repeated ids 'a'"),
        ("", "v2/preds.csv: the file is empty"),
        (GOOD + "d,1,1\n", "ids 'd' only in v2/preds.csv"),
    ):
        path("v2").write_text(content)
        with pytest.raises(ValueError, match=message):
            read_pair(path("v1"), path("v2"))


# -- one file with both ---------------------------------------------------------------------------


@pytest.mark.parametrize("ending", ENDINGS)
def test_two_columns_of_one_file(tmp_path, ending):
    rows = [
        {
            "key": f"k{i}",
            "y": i % 2,
            "v1": (i // 2) % 2,
            "v2": 1,
            "prediction": 7,
            "label": 9,
            "text": f"question {i}",
            "size": i,
        }
        for i in range(6)
    ]
    path = saved(tmp_path / f"both{ending}", rows)
    pair = read_columns(path, "v1", "v2", label="y", id="key")
    assert (values(pair, "label"), values(pair, "old"), values(pair, "new")) == (
        [0, 1] * 3,
        [0, 0, 1, 1, 0, 0],
        [1] * 6,
    )
    assert (pair.old_name, pair.new_name, pair.notes) == ("v1", "v2", ())
    assert pair.shown([2])[0] == {
        "id": "k2",
        "size": 2,
        "input": "question 2",
        "label": 0,
        "old": 1,
        "new": 1,
    }
    assert read_columns(path, "prediction", "v2", id="key", columns=["size"]).answers == (1, 7, 9)
    numbered = read_columns(path, "v1", "v2", label="y")
    assert [row["id"] for row in numbered.shown([0, 5])] == [
        "1",
        "6",
    ] and "rows are numbered" in numbered.notes[-1]


@pytest.mark.parametrize(
    "options, message",
    [
        (
            dict(old="v1", new="v3", label="y"),
            "both.csv: there is no column 'v3' .found: y, v1, v2.",
        ),
        (
            dict(old="v1", new="v2"),
            "there is no column `label`: name the one with the right answers",
        ),
        (dict(old="v1", new="v2", label="z"), "there is no column 'z'"),
        (dict(old="v1", new="v2", label="y", id="key"), "there is no column 'key'"),
        (
            dict(old="v1", new="v2", label="v1"),
            "both.csv: column 'v1' is given twice, as --old and as --label: name another column",
        ),
        (dict(old="v1", new="v2", label="y", id="v2"), "'v2' is given twice, as --new and as --id"),
        (dict(old="v1", new="v2", label="y", id="y"), "'y' is given twice, as --label and as --id"),
        (dict(old="v1", new="v1", label="y"), "as --old and as --new .a version .* never flips"),
        (dict(old="v1", new="v2", label="y", columns=["w"]), "no further column 'w'"),
    ],
)
def test_bad_columns_are_refused(tmp_path, options, message):
    (path,) = written(tmp_path, both_csv="y,v1,v2\n1,1,0\n0,0,0\n")
    with pytest.raises(ValueError, match=message):
        read_columns(path, **options)


def test_repeated_ids_in_one_file_are_refused(tmp_path):
    (path,) = written(tmp_path, both_csv="id,label,v1,v2\na,1,1,0\na,0,0,0\n")
    with pytest.raises(ValueError, match="both.csv.*'a'"):
        read_columns(path, "v1", "v2")


def test_a_pair_cannot_be_changed():
    pair = Pair.of(Predictions(["a"], [1], [1]), Predictions(["a"], [1], [0]))
    with pytest.raises(AttributeError):
        pair.label = None


def test_probabilities_of_other_lengths_are_noted_by_id(tmp_path):
    rows = {"id": ["a", "b"], "label": [0, 1], "prediction": [0, 1]}
    lists = [[0.5, 0.5], [0.2, 0.3, 0.5]]
    pl.DataFrame(rows | {"probabilities": lists}).write_parquet(tmp_path / "o.parquet")
    (note,) = read_pair(tmp_path / "o.parquet", tmp_path / "o.parquet").notes
    assert "another count for ids 'b'" in note and "how sure they are is left out" in note


def test_a_single_id_that_is_no_whole_number_is_named(tmp_path):
    pl.DataFrame({"id": [1.5], "label": [0], "prediction": [0]}).write_parquet(
        tmp_path / "o.parquet"
    )
    with pytest.raises(ValueError, match=r"not floats \(1.5\)"):
        read_pair(tmp_path / "o.parquet", tmp_path / "o.parquet")


# -- a file of labels ------------------------------------------------------------------------------


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("labels_ending", ENDINGS)
@pytest.mark.parametrize("names", [["cat", "dog"], [0, 1]])
def test_labels_of_a_file_of_their_own(tmp_path, ending, labels_ending, names):
    draw = np.random.default_rng(3)
    label, old, new = ([names[code] for code in draw.integers(0, 2, 40)] for _ in range(3))

    def answers(name, side, order):
        return saved(tmp_path / name, [{"id": f"q{n}", "prediction": side[n]} for n in order])

    rows = [{"id": f"q{n}", "label": label[n] if n < 40 else names[0]} for n in range(50)]
    truth = saved(tmp_path / f"truth{labels_ending}", rows[::-1])  # of more examples than these
    pair = read_pair(
        answers(f"old{ending}", old, range(40)),
        answers(f"new{ending}", new, draw.permutation(40)),
        truth=truth,
    )
    assert (values(pair, "label"), values(pair, "old"), values(pair, "new")) == (label, old, new)
    assert f"Only truth{labels_ending} has labels" in pair.notes[0] and truth in pair.paths


def test_labels_of_their_own_are_those_of_the_files(tmp_path):
    truth = "id,y\na,1\nb,0\nc,1\n"
    old, new, labels = written(
        tmp_path, old_csv=GOOD, new_csv="id,prediction\nc,0\nb,0\na,1\n", truth_csv=truth
    )
    assert counted(read_pair(old, new, truth=labels)) == FlipCounts.of(
        [1, 0, 1], [1, 1, 0], [1, 0, 0]
    )
    labels.write_text(truth.replace("b,0", "b,1"))
    with pytest.raises(ValueError, match="'b'.*truth.csv.*old.csv"):
        read_pair(old, new, truth=labels)


@pytest.mark.parametrize(
    "content, message",
    [
        ("id,label\na,1\nb,0\n", "truth.csv has no label for ids 'c'"),
        ("id,label\na,1\nb,0\nc,\n", "truth.csv: missing labels for ids 'c'"),
        ("id,label\na,1\nb,0\nc,1\nc,1\n", "truth.csv: repeated ids 'c'"),
        ("id,y,z\na,1,1\n", "truth.csv: the right answers need .* --rename label=COLUMN"),
        ("label\n1\n", "truth.csv: the right answers need"),
        ("id,label\nx,1\n", "truth.csv has no label for ids 'a', 'b', 'c'"),
    ],
)
def test_bad_files_of_labels_are_refused(tmp_path, content, message):
    answers = "id,prediction\na,1\nb,0\nc,1\n"
    old, new, truth = written(tmp_path, old_csv=answers, new_csv=answers, truth_csv=content)
    with pytest.raises(ValueError, match=message):
        read_pair(old, new, truth=truth)


def test_labels_of_repeats_are_those_of_their_example(tmp_path):
    rows = "".join(f"{id},{repeat},{id}\n" for id in "ab" for repeat in (1, 2, 3))
    old, new, truth = written(
        tmp_path,
        old_csv="id,repeat,prediction\n" + rows,
        new_csv="id,repeat,prediction\n" + rows.replace("b,2,b", "b,2,a"),
        truth_csv="id,label\nb,b\na,a\n",
    )
    pair = read_pair(old, new, truth=truth)
    assert (pair.repeats.old.tolist(), pair.repeats.new.tolist()) == ([3, 3], [3, 2])


def test_labels_without_answers_are_refused(tmp_path):
    scores = "id,score\na,0.5\nb,0.25\n"
    old, new, truth = written(
        tmp_path, old_csv=scores, new_csv=scores, truth_csv="id,label\na,1\nb,1\n"
    )
    with pytest.raises(ValueError, match="nothing to compare"):
        read_pair(old, new, truth=truth)


# -- a row for each version and example ------------------------------------------------------------


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("model", ["model", 2024])
def test_versions_in_rows_of_one_table(tmp_path, ending, model):
    draw, versions = np.random.default_rng(1), [f"{model}", f"{model}1", f"{model}2"]
    rows = [
        {"model": type(model)(version), "id": n, "label": n % 3, "prediction": int(code), "size": n}
        for version in versions
        for n, code in enumerate(draw.integers(0, 3, 30))
    ]
    table = saved(tmp_path / f"runs{ending}", [rows[n] for n in draw.permutation(90)])
    pair = read_pair(table, table, sides=(versions[2], versions[0]), by="model")
    old, new = ([rows[30 * v + n]["prediction"] for n in range(30)] for v in (2, 0))
    by_id = {row["id"]: (row["old"], row["new"]) for row in pair.shown(range(30))}
    assert by_id == {str(n): (old[n], new[n]) for n in range(30)}
    assert (pair.old_name, pair.new_name) == (versions[2], versions[0])
    assert list(pair.columns) == ["size"] and counted(pair).n == 30


def test_versions_in_rows_with_probabilities_and_scores(tmp_path):
    rows = [
        {"v": v, "id": n, "label": "b", "prob_a": p, "prob_b": 1 - p}
        for v, p in (("x", 0.25), ("y", 0.75))
        for n in range(4)
    ]
    for ending in ENDINGS:
        table = saved(tmp_path / f"wide{ending}", rows)
        pair = read_pair(table, table, sides=("x", "y"), by="v")
        assert counted(pair) == FlipCounts(0, 4, 0, 0, 0)
        assert pair.new_sureness.confidence == pytest.approx([0.75] * 4)
    scores = saved(
        tmp_path / "scores.csv",
        [{"v": v, "id": n, "score": n / 8 + v} for v in (0, 1) for n in range(4)],
    )
    pair = read_pair(scores, scores, sides=("1", "0"), by="v")
    assert (pair.old_score - pair.new_score).tolist() == [1] * 4


def test_rows_of_versions_that_are_not_there(tmp_path):
    (table,) = written(tmp_path, runs_csv="model,id,label,prediction\nv1,a,1,1\nv2,a,1,0\n,a,1,1\n")
    with pytest.raises(ValueError, match="'model'.*'v3'.*'v1'"):
        read_pair(table, table, sides=("v1", "v3"), by="model")
    with pytest.raises(ValueError, match="'modle'.*'model'"):
        read_pair(table, table, sides=("v1", "v2"), by="modle")
    with pytest.raises(ValueError, match="--by.*--old.*--new"):
        read_columns(table, "v1", "v2")
    with pytest.raises(ValueError, match="repeated ids 'a'"):
        read_pair(
            *written(tmp_path, t_csv=table.read_text() + "v1,a,1,1\n") * 2,
            sides=("v1", "v2"),
            by="model",
        )


# --- columns that are called otherwise ------------------------------------------------------------


@pytest.mark.parametrize("ending", ENDINGS)
def test_columns_are_taken_by_their_names_and_that_is_said(tmp_path, ending):
    rows = [{"task_id": n, "gold": "a", "response": "ab"[n == 2]} for n in range(4)]
    old = saved(tmp_path / f"old{ending}", rows)
    new = saved(tmp_path / f"new{ending}", [row | {"response": "a"} for row in rows])
    pair = read_pair(old, new)
    assert (counted(pair).positive, counted(pair).n) == (1, 4)
    assert any("'task_id' for `id`" in note and "--rename" in note for note in pair.notes)
    assert read_pair(old, new, rename={"gold": "label"}).n == 4


def test_the_index_that_pandas_writes_is_an_id(tmp_path):
    old, new = written(
        tmp_path, old_csv=",y_true,y_pred\n0,1,1\n1,0,0\n", new_csv=",y_true,y_pred\n1,0,1\n0,1,1\n"
    )
    assert counted(read_pair(old, new)).negative == 1


def test_the_command_has_the_files_as_they_were_given(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("old", "new"):
        (tmp_path / f"{name}.json").write_text(
            '[{"id": 1, "gold": "a", "pred": "a", "output": ""}]'
        )
    with pytest.raises(ValueError, match="old.json.*new.json.*--rename"):
        read_pair("old.json", "new.json")


def test_a_name_leads_into_objects_and_lists(tmp_path):
    rows = [{"id": n, "gold": {"answer": "a"}, "out": [{"text": "ab"[n]}]} for n in range(2)]
    old = saved(tmp_path / "old.jsonl", rows)
    new = saved(tmp_path / "new.jsonl", rows[::-1])
    pair = read_pair(old, new, rename={"gold.answer": "label", "out.0.text": "prediction"})
    assert counted(pair).both_right == 1 and counted(pair).n == 2
    renamed = {"gold.answer": "label", "out.0.text": "prediction", "out.1.text": "length"}
    with pytest.raises(ValueError, match="no column 'out.1.text'"):
        read_pair(old, new, rename=renamed)


def test_the_label_of_two_versions_in_one_file(tmp_path):
    (path,) = written(tmp_path, both_csv="id,gold,v1,v2\na,1,1,0\nb,0,0,0\n")
    pair = read_columns(path, "v1", "v2")
    assert counted(pair).negative == 1 and "'gold' for `label`" in pair.notes[0]


# --- labels that differ only as they are written --------------------------------------------------


@pytest.mark.parametrize("ending", ENDINGS)
def test_normalizing_reaches_labels_too(tmp_path, ending):
    composed, apart = (normalize(form, "é") for form in ("NFC", "NFD"))
    old, new = (
        saved(
            tmp_path / f"{name}{ending}",
            [{"id": n, "label": said, "prediction": said if n else "b"} for n in range(3)],
        )
        for name, said in (("old", composed), ("new", apart))
    )
    with pytest.raises(ValueError, match="--normalize"):
        compare(old, new)
    found = compare(old, new, normalize=True)
    assert counted(found.pair).both_right == 2 and found.summary["changes"] == []
    saved(new, [{"id": n, "label": "b" if n == 1 else apart, "prediction": "b"} for n in range(3)])
    with pytest.raises(ValueError, match="labels.*'1'"):
        compare(old, new, normalize=True)


def test_normalizing_reaches_the_labels_of_many_versions_and_of_a_third_file(tmp_path):
    said = [normalize(form, "É") for form in ("NFC", "NFD")]
    paths = [
        saved(
            tmp_path / f"{name}.csv", [{"id": n, "label": one, "prediction": one} for n in range(3)]
        )
        for name, one in zip("abc", (said[0], said[1], said[0].lower()))
    ]
    assert compare_versions(paths, normalize=True).level == [1, 1, 1]
    truth = saved(tmp_path / "truth.csv", [{"id": n, "label": said[1]} for n in range(3)])
    assert counted(compare(*paths[:2], normalize=True, truth=truth).pair).both_right == 3


# --- text that arrays of numpy cannot hold --------------------------------------------------------


def long_text(side):
    """Answers of which one is very long and, of the new side, one ends in a NUL."""
    rows = [{"id": str(n), "label": "a", "prediction": "a", "prompt": "?"} for n in range(300)]
    rows[5] |= {"prediction": "y" * 1_000_000, "prompt": "x" * 1_000_000}
    rows[7] |= {"prediction": "a\0"} if side == "new" else {}
    return rows


@pytest.mark.parametrize("ending", [".parquet", ".jsonl", None])
def test_a_long_answer_and_one_that_ends_in_a_nul(tmp_path, ending):
    sides = [long_text(side) for side in ("old", "new")]
    if ending:
        sides = [saved(tmp_path / f"{n}{ending}", rows) for n, rows in zip(("o", "n"), sides)]
    else:
        sides = [pd.DataFrame(rows) for rows in sides]
    tracemalloc.start()
    found = compare(*sides)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    counts = counted(found.pair)
    assert (counts.negative, counts.both_right) == (1, 298)  # "a\0" is no "a"
    assert found.flips().new.tolist() == ["a\0"]
    assert most < 100 << 20  # padded to the longest, each of four columns would take 1.2 GB


def test_a_number_beyond_64_bits_is_never_a_missing_one(tmp_path):
    rows = [{"id": n, "label": 1, "prediction": 10**30 if n else 1, "seen": 10**30} for n in (0, 1)]
    with pytest.raises(ValueError, match="old.jsonl: `prediction` holds 1000"):
        read_pair(*[saved(tmp_path / f"{name}.jsonl", rows) for name in ("old", "new")])
    rows = [row | {"prediction": 1} for row in rows]
    pair = read_pair(*[saved(tmp_path / f"{name}.jsonl", rows) for name in ("old", "new")])
    assert pair.columns["seen"].tolist() == [str(10**30)] * 2
