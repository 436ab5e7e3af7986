"""Labels and answers as numbers: all of one kind, names matched by name, and what would never be
equal refused.
"""

import numpy as np
import polars as pl
import pytest
from answer_files import ENDINGS, GOOD, counted, saved, values, written

from compatkit.compare.pair import Pair, read_pair
from compatkit.metrics import FlipCounts
from compatkit.predictions import Predictions


def test_csv_files_are_decided_together_and_typed_files_never_mixed(tmp_path):
    old, new, parquet = (
        *written(
            tmp_path, old_csv=GOOD, new_csv="id,label,prediction\na,1,maybe\nb,0,0\nc,1,007\n"
        ),
        tmp_path / "new.parquet",
    )
    assert read_pair(old, new).answers == ("0", "007", "1", "maybe")
    assert read_pair(old, old).answers == (0, 1)
    Predictions(["a", "b", "c"], ["1", "0", "1"], ["1", "1", "1"]).save(parquet)
    for pair in ((old, parquet), (parquet, old)):
        with pytest.raises(
            ValueError,
            match="'0'.*'1'",
        ):
            read_pair(*pair)


def test_truth_values_whole_floats_and_categories_are_answers(tmp_path):
    frame = pl.DataFrame({"id": ["a", "b"], "label": [True, False], "prediction": [1.0, 0.0]})
    frame.write_parquet(tmp_path / "old.parquet")
    frame.with_columns(label=pl.Series([1, 0], dtype=pl.UInt8)).write_parquet(
        tmp_path / "new.parquet"
    )
    assert counted(read_pair(tmp_path / "old.parquet", tmp_path / "new.parquet")) == FlipCounts(
        2, 0, 0, 0, 0
    )
    text = pl.DataFrame({"id": ["a", "b"], "label": ["x", "y"], "prediction": ["y", "y"]})
    text.with_columns(pl.col("label", "prediction").cast(pl.Categorical)).write_parquet(
        tmp_path / "c.parquet"
    )
    text.with_columns(pl.col("label", "prediction").cast(pl.Enum(["y", "x", "z"]))).write_parquet(
        tmp_path / "e.parquet"
    )
    assert values(read_pair(tmp_path / "c.parquet", tmp_path / "e.parquet"), "old") == ["y", "y"]


def test_wide_ranges_of_numbers_and_many_names_are_answers(tmp_path):
    huge = [{"id": i, "label": 10**12 + i * 10**9, "prediction": -5} for i in range(4)]
    assert values(read_pair(*(saved(tmp_path / f"{n}.parquet", huge) for n in "ab")), "label") == [
        row["label"] for row in huge
    ]
    names = [{"id": i, "label": f"name {i}\0", "prediction": "é" * (i % 50)} for i in range(400)]
    pair = read_pair(*(saved(tmp_path / f"{n}.parquet", names) for n in "cd"))
    assert values(pair, "label") == [row["label"] for row in names] and values(pair, "new") == [
        row["prediction"] for row in names
    ]


def test_indices_become_names_where_names_are_known():
    logits = np.float32([[2, 1], [0, 3]])
    old = Predictions(["a", "b"], [0, 0], logits=logits, classes=["no", "yes"])
    new = Predictions(["b", "a"], [1, 1], logits=logits, classes=["yes", "no"])
    pair = Pair.of(old, new)
    assert (pair.answers, values(pair, "label"), values(pair, "old"), values(pair, "new")) == (
        ("no", "yes"),
        ["no", "no"],
        ["no", "yes"],
        ["no", "yes"],
    )
    named = Pair.of(old, Predictions(["a", "b"], ["no", "no"], ["yes", "no"]))
    assert values(named, "old") == ["no", "yes"]
    assert Pair.of(old, new.replace(classes=None, label=[0, 0])).answers == (
        0,
        1,
    )  # only one side knows names
    wider = Predictions(["a", "b"], logits=[[1.0, 2, 3]] * 2, classes=["no", "yes", "other"])
    assert any("knows the classes 'other'" in note for note in Pair.of(old, wider).notes)
    with pytest.raises(ValueError, match="2 classes.*3"):
        Pair.of(old, wider.replace(classes=None))
    with pytest.raises(ValueError, match="`label`.*2 classes"):
        Pair.of(old.replace(label=[0, 5]), new)


def test_classes_called_by_numbers_are_matched_by_name(tmp_path):
    """Whether the columns give the answers or stand beside them, in files of any kind."""
    rows = [
        {"id": "a", "label": 1, "prob_1": 0.8, "prob_3": 0.1, "prob_2": 0.1},
        {"id": "b", "label": 3, "prob_1": 0.1, "prob_3": 0.7, "prob_2": 0.2},
    ]
    answers = [{"id": "a", "label": 1, "prediction": 1}, {"id": "b", "label": 3, "prediction": 2}]
    both = [row | {"prediction": row["label"]} for row in rows]
    for ending in ENDINGS:
        wide, plain, full = (
            saved(tmp_path / f"{name}{ending}", made)
            for name, made in (("wide", rows), ("plain", answers), ("full", both))
        )
        for old in (wide, full):
            pair = read_pair(old, plain)
            assert [str(one) for one in values(pair, "old")] == ["1", "3"]
            assert counted(pair) == FlipCounts(1, 1, 0, 0, 0)
        pair = read_pair(wide, full)
        assert np.allclose(np.exp(-pair.old_sureness.log_loss), [0.8, 0.7])
    turned = "id,label,prob_1,prob_0\na,1,.9,.1\nb,0,.2,.8\nc,1,.7,.3\n"
    old, new = written(tmp_path, o_csv=turned, n_csv=turned.replace(".7,.3", ".4,.6"))
    pair = read_pair(old, new)
    assert values(pair, "old") == values(pair, "label") == [1, 0, 1]
    assert values(pair, "new") == [1, 0, 0]


def test_numbers_for_answers_and_names_for_labels_are_refused_in_csv_files_too(tmp_path):
    """Cells are text, so nothing would fail: every answer would be wrong."""
    (tmp_path / "old.csv").write_text("id,label,prediction\na,cat,cat\nb,dog,cat\n")
    (tmp_path / "new.csv").write_text("id,prediction\na,0\nb,1\n")
    with pytest.raises(
        ValueError,
        match="`prediction`.*new.csv.*`label`",
    ):
        read_pair(tmp_path / "old.csv", tmp_path / "new.csv")
    (tmp_path / "new.csv").write_text(
        "id,prediction\na,0\nb,dog\n"
    )  # a class that is called so, or a model's odd answer
    assert read_pair(tmp_path / "old.csv", tmp_path / "new.csv").n == 2


# -- classes that are called by numbers ------------------------------------------------------------

RIGHT = [0, 1, 2, 1]
SURE = np.eye(3)[RIGHT] + 0.5


def indices():
    return Predictions(list("abcd"), RIGHT, logits=SURE, classes=list("123"))


def by_number(path, answers=True):
    """A csv that calls its classes 1, 2 and 3."""
    probabilities = {f"prob_{place + 1}": np.eye(3)[RIGHT][:, place] for place in range(3)}
    rows = {"id": list("abcd"), "label": [one + 1 for one in RIGHT]}
    rows |= {"prediction": rows["label"]} if answers else {}
    pl.DataFrame(rows | probabilities).write_csv(path)
    return path


def test_numbers_beside_indices_are_indices(tmp_path):
    """In memory, and in a file beside one of ours whose answers are indices."""
    bare, new = Predictions(list("abcd"), prediction=RIGHT), indices()
    for old in (bare, bare.replace(label=RIGHT), bare.replace(classes=list("123"))):
        assert counted(Pair.of(old, new)).accuracy_old == 1
    paths = bare.save(tmp_path / "old.csv"), new.save(tmp_path / "new.parquet")
    assert counted(read_pair(*paths)).accuracy_old == 1
    unnamed = Pair.of(new.replace(classes=None), new)
    assert counted(unnamed).accuracy_old == 1
    assert np.array_equal(unnamed.new_sureness, unnamed.old_sureness)


@pytest.mark.parametrize("spelled", [int, float])
@pytest.mark.parametrize("answers", [True, False])
def test_numbers_beside_names_are_names(tmp_path, answers, spelled):
    """Whether the answers stand in a column or follow from the columns called 1, 2 and 3."""
    new, old = by_number(tmp_path / "new.csv", answers), tmp_path / "old.csv"
    given = [spelled(one + 1) for one in RIGHT]
    pl.DataFrame({"id": list("abcd"), "prediction": given}).write_csv(old)
    assert counted(read_pair(old, new)).accuracy_old == 1
    ours = indices().save(tmp_path / "ours.parquet")
    assert values(read_pair(ours, new), "old") == ["1", "2", "3", "2"]


def test_columns_called_0_and_1_are_names_beside_others_and_places_beside_none(tmp_path):
    """In whatever order they stand."""
    (tmp_path / "old.csv").write_text(
        "id,label,prediction,prob_1,prob_0\na,1,1,.9,.1\nb,0,0,.2,.8\n"
    )
    turned = Predictions(list("ab"), [0, 1], logits=np.eye(2), classes=["1", "0"])
    turned.save(tmp_path / "new.parquet")
    assert values(read_pair(tmp_path / "old.csv", tmp_path / "new.parquet"), "new") == ["1", "0"]
    Predictions(list("ab"), [1, 0], logits=np.eye(2)[[1, 0]]).save(tmp_path / "new.parquet")
    assert values(read_pair(tmp_path / "old.csv", tmp_path / "new.parquet"), "new") == [1, 0]


def test_places_beside_names_are_refused(tmp_path):
    unnamed = indices().replace(classes=None, label=None).save(tmp_path / "old.parquet")
    told = "new.csv calls its classes '1', '2', '3', and numbers of old.parquet are places"
    with pytest.raises(ValueError, match=told):
        read_pair(unnamed, by_number(tmp_path / "new.csv"))
    with pytest.raises(ValueError, match="no two would ever be equal"):
        read_pair(unnamed, by_number(tmp_path / "new.csv", answers=False))
