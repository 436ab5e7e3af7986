"""The contract: what is kept, what is refused, and that joins are made by id."""

import gzip
import json
import pickle
import re
import warnings
import weakref
from pathlib import Path

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as parquet
import pytest

from compatkit.predictions import (
    LOG_ZERO,
    Predictions,
    align,
    log_probability,
    log_softmax,
    mean_logits,
    over_classes,
    softmax,
    with_labels,
)

ENDINGS = [".parquet", ".csv", ".jsonl"]
ODD_IDS = [
    "plain",
    "a,b",
    'say "no"',
    "two\nlines",
    "carriage\r\nreturn",
    "übung 猫 🙂",
    " spaced ",
    "007",
    "NA",
    "null",
    "'",
    "tab\there",
]


def odd_predictions(dtype=np.float32, text_labels=True):
    count = len(ODD_IDS)
    generator = np.random.default_rng(0)
    classes = ["yes, sir", 'no "way"', "näh"] if text_labels else None
    label = generator.integers(0, 3, count)
    return Predictions(
        ODD_IDS,
        [classes[i] for i in label] if text_labels else label,
        logits=generator.normal(size=(count, 3)).astype(dtype),
        classes=classes,
        score=np.r_[np.nan, generator.random(count - 1)],
        text=[f'"{i}",\n{i} ß' for i in ODD_IDS],
        columns={
            "length": np.arange(count),
            "share": generator.random(count),
            "note": [f"n, {i}" for i in ODD_IDS],
        },
    )


def same(first, second, logits=True):
    for field in ("id", "label", "prediction", "text"):
        one, two = getattr(first, field), getattr(second, field)
        assert (one is None) == (two is None)
        if one is not None:
            assert one.tolist() == two.tolist(), field
    assert first.classes == second.classes
    if logits and first.logits is not None:
        assert np.array_equal(first.logits, second.logits)
    assert list(first.columns) == list(second.columns)
    for name in first.columns:
        assert first.columns[name].tolist() == second.columns[name].tolist()
    if first.score is not None:
        assert np.array_equal(first.score, second.score, equal_nan=True)


# -- making one -----------------------------------------------------------------------------------


def test_prediction_is_an_index_for_index_labels_and_a_name_for_names():
    logits = [[1.0, 2.0], [3.0, 0.0], [1.0, 1.0]]
    numbers = Predictions(["a", "b", "c"], [0, 0, 1], logits=logits, classes=["no", "yes"])
    assert numbers.prediction.tolist() == [1, 0, 0]  # the first column wins a tie
    assert numbers.label.dtype == np.int64
    names = Predictions(["a", "b", "c"], ["no", "no", "yes"], logits=logits, classes=["no", "yes"])
    assert names.prediction.tolist() == ["yes", "no", "no"]
    assert numbers.correct.tolist() == names.correct.tolist() == [False, True, False]
    with pytest.raises(ValueError, match="need names too"):
        Predictions(["a"], ["no"], logits=[[1.0, 2.0]])


@pytest.mark.parametrize("dtype", [np.int8, np.int32, np.int64, np.uint8])
def test_label_types_are_kept(dtype):
    assert Predictions(["a"], np.array([1], dtype=dtype), [1]).label.dtype == dtype


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_logit_types_are_kept(dtype):
    assert Predictions(["a"], logits=np.ones((1, 2), dtype=dtype)).logits.dtype == dtype


@pytest.mark.parametrize(
    "arguments, message",
    [
        (dict(id=["a", None]), "missing ids at positions 1"),
        (dict(id=["a", ""]), "missing .empty. ids at positions 1"),
        (dict(id=[1.0, 2.0]), "not floats"),
        (dict(id=["a", "b"], label=[1]), "there are 2 ids"),
        (dict(id=["a", "b"], prediction=[1, "1"]), "mixes text"),
        (dict(id=["a", "b"], label=[[1], [2]]), "neither a number nor text"),
        (dict(id=["a", "b"], logits=[1.0, 2.0]), "must have the shape"),
        (dict(id=["a", "b"], logits=[[1.0, 2.0]]), "must have the shape"),
        (dict(id=["a", "b"], logits=[[1.0, 2.0], [np.nan, 1.0]]), "not finite .* ids 'b'"),
        (dict(id=["a", "b"], logits=[[np.inf, 2.0], [-np.inf, 1.0]]), "not finite .* ids 'a', 'b'"),
        (dict(id=["a"], logits=[[1.0, 2.0]], classes=["x"]), "1 class names for 2 columns"),
        (dict(id=["a"], logits=[[1.0, 2.0]], classes=["x", "x"]), "class names repeat"),
        (dict(id=["a"], columns={"label": [1]}), "further columns cannot be called 'label'"),
        (dict(id=["a"], columns={"logit_x": [1]}), "cannot be called"),
        (dict(id=["a", "b"], columns={"z": [1]}), "z has the shape"),
    ],
)
def test_bad_parts_are_refused_by_name(arguments, message):
    with pytest.raises(ValueError, match=message):
        Predictions(**arguments)


def test_many_offenders_are_named_a_few_at_a_time():
    with pytest.raises(ValueError, match="'0'.*'1'.*'2'"):
        Predictions(range(100), logits=np.full((100, 2), np.nan))


def test_it_cannot_be_changed_or_pickled():
    predictions = odd_predictions()
    for name in ("label", "anything"):
        with pytest.raises(AttributeError, match="replace"):
            setattr(predictions, name, 1)
    with pytest.raises(AttributeError):
        del predictions.label
    with pytest.raises(TypeError, match="save and load"):
        pickle.dumps(predictions)


def test_probabilities_are_kept_as_logits_that_give_them_back():
    likely = np.array([[0.7, 0.3], [0.0, 1.0]])
    made = Predictions(["a", "b"], ["x", "y"], classes=["x", "y"], probabilities=likely)
    assert np.allclose(softmax(made.logits), likely) and made.prediction.tolist() == ["x", "y"]
    turned = made.replace(probabilities=likely[::-1])
    assert np.allclose(softmax(turned.logits), likely[::-1])
    assert turned.prediction.tolist() == ["y", "x"]
    with pytest.raises(ValueError, match="give one of them"):
        Predictions(["a", "b"], logits=likely, probabilities=likely)


@pytest.mark.parametrize(
    "wrong", [[[0.7, 0.7], [0.5, 0.5]], [[np.nan, 1], [0.5, 0.5]], [0.5, 0.5], [[0.5, 0.5]] * 3, 1]
)
def test_what_is_no_probability_of_each_class_is_refused(wrong):
    with pytest.raises(ValueError, match="probabilities"):
        Predictions(["a", "b"], probabilities=wrong)


@pytest.mark.parametrize("kind", [np.float16, np.float32, np.float64])
def test_logits_that_sum_to_1_are_warned_about(kind):
    logits = np.random.default_rng(0).normal(0, 3, (2500, 7)).astype(kind)
    ids = [str(n) for n in range(2500)]
    with pytest.warns(UserWarning, match="as `probabilities`"):
        Predictions(ids, logits=softmax(logits).astype(kind))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Predictions(ids, logits=logits)
        Predictions(ids, logits=np.eye(7)[logits.argmax(1)])  # votes
        Predictions(ids, probabilities=softmax(logits)).select(ids[:9])


def test_replace_derives_new_answers_from_new_logits_and_keeps_given_ones_otherwise():
    given = Predictions(["a", "b"], [0, 1], prediction=[1, 1], logits=[[1.0, 0.0], [1.0, 0.0]])
    assert given.prediction.tolist() == [1, 1]
    assert given.replace(label=[1, 1]).prediction.tolist() == [1, 1]
    assert given.replace(logits=[[0.0, 1.0], [1.0, 0.0]]).prediction.tolist() == [1, 0]
    assert given.select(["b"]).prediction.tolist() == [1]
    derived = Predictions(["a", "b"], [0, 1], logits=[[1.0, 0.0], [1.0, 0.0]], classes=["x", "y"])
    assert derived.replace(label=["x", "y"]).prediction.tolist() == ["x", "x"]


def test_select_takes_masks_and_ids_and_no_positions():
    predictions = odd_predictions()
    part = predictions.select(["007", "a,b"])
    assert part.id.tolist() == ["007", "a,b"] and part.columns["length"].tolist() == [7, 1]
    same(
        predictions.select(predictions.correct),
        predictions.select(predictions.id[predictions.correct]),
    )
    assert len(predictions.select([])) == 0
    with pytest.raises(ValueError, match="not positions"):
        predictions.select([0, 1])
    with pytest.raises(ValueError, match="'nobody'"):
        predictions.select(["a,b", "nobody"])
    with pytest.raises(ValueError, match="the mask has the shape"):
        predictions.select(np.array([True]))


def test_correct_and_require_say_what_is_missing():
    with pytest.raises(ValueError, match="needs `label`"):
        Predictions(["a"], prediction=[1]).correct
    with pytest.raises(ValueError, match="needs `prediction`"):
        Predictions(["a"], [1]).correct
    with pytest.raises(ValueError, match="numbers .1. .*text .'1'."):
        Predictions(["a"], [1], ["1"]).correct
    with pytest.raises(ValueError, match="'b'"):
        Predictions(["a", "b"], [0, 1], [0, float("nan")]).correct
    with pytest.raises(ValueError, match="labels alone"):
        Predictions(["a"], [1], [1]).require("logits")
    assert Predictions(["a"], columns={"x": [3]}).require("x").tolist() == [3]


def test_html_is_escaped_and_shows_size_classes_and_accuracy():
    shown = Predictions(["a"], ["<b>"], ["<b>"], classes=["<b>", "c"])._repr_html_()
    assert "<b>" not in shown and "&lt;b&gt;" in shown and "1.0000" in shown
    assert "examples=1" in repr(Predictions(["a"]))


# -- probabilities --------------------------------------------------------------------------------


def test_softmax_agrees_with_scipy_and_survives_extremes():
    from scipy.special import log_softmax as reference

    logits = np.random.default_rng(0).normal(size=(50, 7)) * 100
    assert np.allclose(log_softmax(logits), reference(logits, axis=1))
    assert np.isfinite(log_softmax(np.float16([[60000, -60000]]))).all()
    assert softmax(np.float32([1, 2])).dtype == np.float32


def test_probabilities_come_back_and_zero_stays_finite():
    probability = np.array([[1.0, 0.0], [0.3, 0.7]])
    logits = log_probability(probability)
    assert logits[0, 1] == LOG_ZERO and np.allclose(softmax(logits), probability, atol=1e-300)
    with pytest.raises(ValueError, match="no probabilities .* for rows 1"):
        log_probability([[0.5, 0.5], [0.5, np.nan]])
    with pytest.raises(ValueError, match="no probabilities"):
        log_probability([[1.5, -0.5]])


# -- joining --------------------------------------------------------------------------------------


def test_align_joins_by_id_like_a_naive_loop():
    generator = np.random.default_rng(1)
    for _ in range(30):
        count = int(generator.integers(1, 40))
        ids = [f"i{v}" for v in generator.permutation(1000)[:count]]
        label, logits = generator.integers(0, 3, count), generator.normal(size=(count, 3))
        turn = generator.permutation(count)
        old = Predictions(ids, label, logits=logits)
        new = Predictions(
            [ids[i] for i in turn], label[turn], logits=2 * logits[turn], columns={"place": turn}
        )
        first, second = align(old, new)
        assert first.id.tolist() == second.id.tolist() == ids
        assert np.array_equal(second.logits, 2 * logits)
        assert second.columns["place"].tolist() == list(range(count))


def simple(ids=("a", "b", "c"), label=(0, 1, 1), prediction=(0, 1, 0), **more):
    return Predictions(list(ids), None if label is None else list(label), list(prediction), **more)


@pytest.mark.parametrize(
    "old, new, message",
    [
        (simple(), simple(ids=("a", "b", "b")), "the new predictions: repeated ids 'b'"),
        (simple(ids=("a", "a", "b")), simple(), "the old predictions: repeated ids 'a'"),
        (simple(), simple(ids=("a", "b", "d")), "'c' only in the old; 'd' only in the new"),
        (simple(), simple(("a", "b"), (0, 1), (0, 1)), "'c' only in the old"),
        (simple(), simple(label=(0, 0, 1)), "labels differ for ids 'b'"),
        (
            simple(),
            simple(label=("0", "1", "1"), prediction=("0", "1", "1")),
            "old labels are numbers .0. and the new ones are text",
        ),
        (simple(), simple(label=None, prediction=("0", "1", "0")), "no two would ever be equal"),
        (
            simple(label=None),
            simple(label=None, prediction=("0", "1", "0")),
            "no two would ever be equal",
        ),
        (
            simple(),
            simple(prediction=(0, None, 1)),
            "in the new predictions: missing predictions for ids 'b'",
        ),
        (
            simple(prediction=(0, np.nan, 1)),
            simple(),
            "in the old predictions: missing predictions for ids 'b'",
        ),
        (
            simple(classes=["x", "y"]),
            simple(classes=["x", "z"]),
            "'y' only in the old; 'z' only in the new",
        ),
        (
            simple(logits=np.zeros((3, 2))),
            simple(logits=np.zeros((3, 3))),
            "2 classes and the new ones 3",
        ),
    ],
)
def test_align_refuses_and_names_the_offenders(old, new, message):
    with pytest.raises(ValueError, match=message):
        align(old, new)


def test_align_reorders_classes_and_renumbers_indices():
    generator = np.random.default_rng(2)
    logits, label = generator.normal(size=(50, 4)), generator.integers(0, 4, 50)
    names = np.array(["p", "q", "r", "s"])
    turn = np.array([2, 0, 3, 1])  # column of the turned model -> column of the straight one
    back = np.argsort(turn)
    straight = Predictions(range(50), label, logits=logits, classes=names)
    turned = Predictions(range(50), back[label], logits=logits[:, turn], classes=names[turn])
    explicit = turned.replace(prediction=turned.prediction)
    for other in (turned, explicit):
        old, new = align(straight, other)
        assert np.array_equal(new.logits, logits) and np.array_equal(new.label, label)
        assert (
            np.array_equal(new.prediction, straight.prediction) and new.classes == straight.classes
        )
    assert np.array_equal(turned.correct, straight.correct)


def test_align_fills_in_the_labels_of_the_other_side():
    old, new = align(simple(), simple(label=None))
    assert new.label.tolist() == [0, 1, 1] and new.correct.tolist() == [True, True, False]
    named = Predictions(["a"], ["y"], logits=[[0.0, 1.0]], classes=["x", "y"])
    bare = Predictions(["a"], logits=[[1.0, 0.0]], classes=["y", "x"])
    assert align(named, bare)[1].prediction.tolist() == ["y"]


def test_absent_classes_get_probability_zero():
    small = Predictions(["a"], ["x"], logits=np.float32([[1.0, 2.0]]), classes=["x", "y"])
    large = Predictions(["a"], ["x"], logits=np.float32([[1.0, 2.0, 3.0]]), classes=["y", "z", "x"])
    old, new = align(small, large, absent_classes=True)
    assert old.classes == new.classes == ("x", "y", "z")
    assert softmax(old.logits)[0, 2] == 0 and old.prediction.tolist() == ["y"]
    assert new.logits.tolist() == [[3.0, 1.0, 2.0]]
    with pytest.raises(ValueError, match="lack 'z'"):
        over_classes(large, ["x", "y"])
    with pytest.raises(ValueError, match="labels 5.*'a'"):
        over_classes(Predictions(["a"], [5], logits=[[1.0, 2.0]], classes=["x", "y"]), ["y", "x"])


def test_mean_logits_of_a_generator_holds_one_member_at_a_time():
    alive = []

    def members():
        for number in range(4):
            made = Predictions(["a", "b"], logits=np.full((2, 3), float(number)))
            alive.append(weakref.ref(made.logits))
            yield made
            del made
            assert sum(one() is not None for one in alive[:-1]) <= 1  # the first names the order

    assert (mean_logits(members()).logits == 1.5).all()


def test_mean_logits_is_the_mean_by_id():
    first = Predictions(["a", "b"], [0, 1], logits=np.float16([[1, 2], [3, 4]]))
    second = Predictions(["b", "a"], [1, 0], logits=np.float16([[5, 5], [0, 0]]))
    mean = mean_logits([first, second])
    assert mean.logits.tolist() == [[0.5, 1.0], [4.0, 4.5]] and mean.logits.dtype == np.float16
    with pytest.raises(ValueError, match="at least one"):
        mean_logits([])


def test_new_logits_answer_by_name_where_the_file_did(tmp_path):
    read = Predictions.load(with_probabilities(tmp_path / "a.csv", "123"))
    for made in (mean_logits([read, read]), read.replace(logits=read.logits)):
        assert align(read, made)[1].prediction.tolist() == ["1", "2", "3"]
        assert with_labels(made, {"a": 1, "b": 2, "c": 3}).correct.all()


# -- files ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("text_labels", [True, False])
def test_round_trip(tmp_path, ending, text_labels):
    original = odd_predictions(np.float64, text_labels)
    path = original.save(tmp_path / "deep" / f"answers{ending}")
    same(original, Predictions.load(path))
    assert [p.name for p in path.parent.iterdir()] == [path.name]  # no temporary file is left


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_parquet_keeps_the_type_of_logits_and_csv_and_jsonl_their_values(tmp_path, dtype):
    original = odd_predictions(dtype)
    again = Predictions.load(original.save(tmp_path / "a.parquet"))
    assert again.logits.dtype == dtype
    same(original, again)
    for ending in (".csv", ".jsonl"):
        assert np.array_equal(
            Predictions.load(original.save(tmp_path / f"a{ending}")).logits.astype(dtype),
            original.logits,
        )


def test_parquet_keeps_label_types_and_classes_without_logits(tmp_path):
    original = Predictions(
        ["a", "b"],
        np.int32([0, 1]),
        np.int32([1, 1]),
        classes=["no", "yes"],
        columns={"x": np.float32([1, 2])},
    )
    again = Predictions.load(original.save(tmp_path / "a.parquet"))
    assert (again.label.dtype, again.prediction.dtype, again.columns["x"].dtype) == (
        np.int32,
        np.int32,
        np.float32,
    )
    assert (
        again.classes
        == Predictions.load(original.save(tmp_path / "a.jsonl")).classes
        == ("no", "yes")
    )
    with pytest.raises(ValueError, match="no place for class names"):
        original.save(tmp_path / "a.csv")


def test_answers_that_were_given_survive_beside_logits(tmp_path):
    original = Predictions(["a"], [0], prediction=[1], logits=[[5.0, 0.0]])
    for ending in ENDINGS:
        assert Predictions.load(original.save(tmp_path / f"a{ending}")).prediction.tolist() == [1]


def test_text_that_looks_like_a_number(tmp_path):
    original = Predictions(["1", "02"], ["1", "0"], ["0", "0"])
    for ending in (".parquet", ".jsonl"):
        same(original, Predictions.load(original.save(tmp_path / f"a{ending}")))
    with pytest.raises(ValueError, match="csv.*'1'"):
        original.save(tmp_path / "a.csv")
    assert not list(tmp_path.glob("*.csv")) and not list(tmp_path.glob(".*"))
    zeros = Predictions(["a", "b"], ["007", "01"], ["007", "00"])
    same(zeros, Predictions.load(zeros.save(tmp_path / "zeros.csv")))
    dates = Predictions(["a", "b"], ["2024-01-01", "true"], ["2024-01-01", "null"])
    for ending in ENDINGS:
        same(dates, Predictions.load(dates.save(tmp_path / f"dates{ending}")))


def test_label_and_prediction_of_a_csv_are_of_one_kind(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("id,label,prediction\n1,1,1\n2,1,maybe\n")
    assert Predictions.load(path).correct.tolist() == [True, False]


def test_further_columns_of_a_csv_are_numbers_only_if_all_cells_are(tmp_path):
    columns = {
        "code": ["nan", "01", "1"],
        "power": ["1e3", "1", "2"],
        "hash": ["9" * 19, "1", "2"],
        "share": [0.5, 1e-05, np.nan],
        "whole": [3, -4, 0],
    }
    path = Predictions(list("abc"), prediction=[0, 1, 1], columns=columns).save(tmp_path / "a.csv")
    loaded = Predictions.load(path).columns
    for name in ("code", "power", "hash", "whole"):
        assert loaded[name].tolist() == columns[name]
    assert np.array_equal(loaded["share"], columns["share"], equal_nan=True)
    path.write_text("id,prediction,gap\na,1,3\nb,1,\n")
    assert np.array_equal(Predictions.load(path).columns["gap"], [3, np.nan], equal_nan=True)


def test_numbers_may_be_written_as_other_programs_write_them(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("id,prediction,large,share,whole,code\na,1,1.0E7, 1.5, 7,+1\nb,1,.5,+3.5,8,2\n")
    loaded = Predictions.load(path).columns
    assert loaded["large"].tolist() == [1e7, 0.5] and loaded["share"].tolist() == [1.5, 3.5]
    assert loaded["whole"].tolist() == [7, 8] and loaded["code"].tolist() == ["+1", "2"]


def test_ids_may_be_larger_than_64_bits_and_other_answers_are_text(tmp_path):
    large = 2**63 + 5
    assert Predictions([large, 1], columns={"x": [large, -1]}).id.tolist() == [str(large), "1"]
    with pytest.raises(ValueError, match=f"`prediction` holds {large}, which is more than 64 bits"):
        Predictions(["a"], prediction=[large])
    (tmp_path / "a.csv").write_text(f"id,label,prediction\na,{large},{large}\nb,1,1\n")
    assert Predictions.load(tmp_path / "a.csv").label.tolist() == [str(large), "1"]


def test_missing_answers_stay_visible(tmp_path):
    original = Predictions(["a", "b"], [0, 1], [None, 1])
    for ending in ENDINGS:
        again = Predictions.load(original.save(tmp_path / f"a{ending}"))
        with pytest.raises(ValueError, match="missing predictions for ids 'a'"):
            align(again, again)


def test_probabilities_are_taken_in_as_logarithms(tmp_path):
    probability = np.array([[0.25, 0.75], [1.0, 0.0]])
    parquet.write_table(
        pa.table({"id": [1, 2], "probabilities": probability.tolist()}), tmp_path / "a.parquet"
    )
    (tmp_path / "a.csv").write_text("id,prob_no,prob_yes\n1,.25,.75\n2,1,0\n")
    (tmp_path / "a.jsonl").write_text(
        '{"id": 1, "probabilities": {"no": 0.25, "yes": 0.75}}\n{"id": 2, "probabilities": '
        '{"yes": 0, "no": 1}}\n'
    )
    for ending in ENDINGS:
        loaded = Predictions.load(tmp_path / f"a{ending}")
        assert np.allclose(softmax(loaded.logits), probability, atol=1e-12)
        assert loaded.classes == (None if ending == ".parquet" else ("no", "yes"))


def with_probabilities(path, names, label=None, prediction=None):
    """A file whose classes are called so: the n-th of the three examples is sure of the n-th."""
    rows = [
        {"id": one} | {f"prob_{name}": 0.8 if n == m else 0.1 for m, name in enumerate(names)}
        for n, one in enumerate("abc")
    ]
    for name, values in (("label", label), ("prediction", prediction)):
        rows = [row | {name: value} for row, value in zip(rows, values)] if values else rows
    if path.suffix == ".csv":
        pl.DataFrame(rows).write_csv(path)
    elif path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    else:
        pl.DataFrame(rows).write_parquet(path)
    return path


@pytest.mark.parametrize("ending", ENDINGS)
def test_classes_called_by_numbers_are_matched_by_name(tmp_path, ending):
    """In whatever order their columns stand; numbers that are no places become names."""
    path = tmp_path / f"a{ending}"
    turned = Predictions.load(with_probabilities(path, "201", [2, 0, 0]))
    assert turned.classes is None and turned.prediction.tolist() == [2, 0, 1]
    assert turned.correct.tolist() == [True, True, False]
    for names in (["1", "2", "3"], ["3", "1", "2"], ["-1", "0", "1"], ["7", "rest", "8"]):
        numbers = [int(one) for one in names if one != "rest"]
        loaded = Predictions.load(with_probabilities(path, names, [numbers[0], numbers[1]] * 2))
        assert loaded.label.tolist() == [str(numbers[0]), str(numbers[1]), str(numbers[0])]
        assert loaded.prediction.tolist() == list(names) and loaded.classes == tuple(names)
        unlabelled = Predictions.load(with_probabilities(path, names))
        assert unlabelled.prediction.tolist() == list(names)
    given = Predictions.load(with_probabilities(path, "123", [1, 2, 3], [3, 2, 1]))
    assert given.prediction.tolist() == ["3", "2", "1"]
    floats = Predictions.load(with_probabilities(path, "123", ["1.0", "2.0", "3.0"]))
    assert floats.label.tolist() == ["1", "2", "3"] and floats.correct.all()
    told = "`label` holds 4 .ids 'c'., and the classes are called '1', '2', '3': write answers as"
    with pytest.raises(ValueError, match=told):
        Predictions.load(with_probabilities(path, "123", [1, 2, 4]))
    positions = Predictions.load(with_probabilities(path, ["no", "yes", "2"], [0, 1, 2]))
    assert positions.label.tolist() == positions.prediction.tolist() == [0, 1, 2]


def test_the_order_of_the_keys_in_jsonl_says_nothing(tmp_path):
    (tmp_path / "a.jsonl").write_text(
        '{"id": 1, "label": 1, "probabilities": {"1": 0.9, "0": 0.1}}\n'
        '{"id": 2, "label": 0, "probabilities": {"0": 0.9, "1": 0.1}}\n'
    )
    assert Predictions.load(tmp_path / "a.jsonl").correct.tolist() == [True, True]


def test_numbers_are_indices_in_python_and_names_where_a_file_has_no_classes(tmp_path):
    logits = np.eye(3)
    indices = Predictions(list("abc"), [0, 1, 2], logits=logits, classes=["1", "2", "3"])
    assert indices.correct.all()
    same(indices, Predictions.load(indices.save(tmp_path / "a.parquet")))
    for ending in (".csv", ".jsonl"):
        with pytest.raises(ValueError, match="`label`"):
            indices.save(tmp_path / f"a{ending}")
        answers = Predictions.load(indices.replace(label=None).save(tmp_path / f"a{ending}"))
        assert answers.prediction.tolist() == ["1", "2", "3"]
    turned = Predictions(list("ab"), ["1", "0"], logits=np.eye(2), classes=["1", "0"])
    with pytest.raises(ValueError, match="csv.*'1'"):
        turned.save(tmp_path / "a.csv")
    align(turned, Predictions.load(turned.save(tmp_path / "a.jsonl")))
    named = Predictions.load(with_probabilities(tmp_path / "named.csv", "123", [1, 2, 3]))
    for ending in ENDINGS:
        same(named, Predictions.load(named.save(tmp_path / f"b{ending}")), logits=False)
    same(align(indices, Predictions(list("abc"), [0, 1, 2], [0, 1, 2]))[0], indices)
    plain = Predictions(list("abc"), [1, 2, 3], [1, 2, 2])
    old, new = align(plain, named)
    assert old.label.tolist() == new.label.tolist() and old.correct.tolist() == [True, True, False]
    assert with_labels(named.replace(label=None), {"a": 1, "b": 2, "c": 2}).correct.sum() == 2


@pytest.mark.parametrize("ending", ENDINGS)
def test_other_names_are_mapped_and_a_taken_name_gives_way(tmp_path, ending):
    path = Predictions([1, 2], [0, 1], [0, 0], columns={"better": [1, 1]}).save(
        tmp_path / f"a{ending}"
    )
    loaded = Predictions.load(path, {"better": "prediction", "elsewhere": "score"})
    assert loaded.prediction.tolist() == [1, 1] and loaded.columns == {} and loaded.score is None
    with pytest.raises(ValueError, match="columns repeat: 'label'"):
        Predictions.load(path, {"better": "label", "prediction": "label"})


def test_a_spreadsheet_export_with_byte_order_mark_is_read(tmp_path):
    (tmp_path / "a.csv").write_bytes("\ufeffid,label,prediction\r\nä,1,1\r\nb,0,1\r\n".encode())
    loaded = Predictions.load(tmp_path / "a.csv")
    assert loaded.id.tolist() == ["ä", "b"] and loaded.correct.tolist() == [True, False]


def test_a_table_of_another_tool_is_read(tmp_path):
    import pandas as pd

    frame = pd.DataFrame(
        {
            "id": [3, 1],
            "label": pd.Categorical(["x", "y"]),
            "prediction": ["x", "x"],
            "when": pd.to_datetime(["2024-01-01"] * 2),
        }
    )
    frame.to_parquet(tmp_path / "a.parquet")
    loaded = Predictions.load(tmp_path / "a.parquet")
    assert (
        loaded.id.tolist() == ["3", "1"]
        and loaded.correct.tolist() == [True, False]
        and "when" in loaded.columns
    )
    for ending in ENDINGS:
        same(
            loaded.replace(columns={}),
            Predictions.load(loaded.save(tmp_path / f"b{ending}")).replace(columns={}),
        )
    assert Predictions(["a"], columns=pd.DataFrame({"x": [1]})).columns["x"].tolist() == [1]


BAD = [
    ("a.csv", "", "a.csv: the file is empty"),
    ("a.csv", "id,prediction\n", "no examples"),
    ("a.csv", "label,prediction\n1,1\n", "`id` is missing .found: label, prediction."),
    ("a.csv", "id,label\na,1\n", "none of `prediction`"),
    ("a.csv", "id,prediction\na,1\nb,1\na,1\n", "repeated ids 'a'"),
    ("a.csv", "id,prediction\na,1\n,1\n", "missing .empty. ids at positions 1"),
    ("a.csv", "id,prediction,prediction\na,1,1\n", "columns repeat: 'prediction'"),
    ("a.csv", "id,logit_x,logit_y\na,1,oops\n", "`logit_y` needs numbers, and holds 'oops'"),
    ("a.csv", "id,logit_x,logit_y\na,1,nan\n", "not finite .* ids 'a'"),
    ("a.csv", "id,logit_x,logit_y\na,1,inf\n", "not finite .* ids 'a'"),
    ("a.csv", "id,prob_x,prob_y\na,3,4\n", "no probabilities"),
    ("a.csv", "id,logits\na,[1 2]\n", "one column per class"),
    ("a.csv", "id,prediction\na,1,2\n", "a.csv: "),
    ("a.csv", b"PAR1\x15\x04", "this is not text"),
    ("a.csv", b"\x1f\x8b\x08", "this is a gzip file, not .csv: unpack it"),
    ("a.jsonl", b"PK\x03\x04", "this is a zip or Excel file, not .jsonl"),
    ("a.csv", "id,prediction\na,1\n".encode("utf-16"), "this text is UTF-16: save it as UTF-8"),
    (
        "a.csv",
        "id,prediction\na,gelöst\n".encode("latin-1"),
        "a.csv: this text is not UTF-8 .Latin-1",
    ),
    (
        "a.jsonl",
        '{"id": 1, "prediction": "gelöst"}\n'.encode("latin-1"),
        "a.jsonl: this text is not UTF-8",
    ),
    (
        "a.csv",
        "id;prediction\na;1\n",
        "`id` is missing .the columns are divided by ';', not by commas.",
    ),
    ("a.csv", "id,predicted\na,1\n", "none of `prediction`.* did you mean 'predicted'"),
    ("a.csv", "\ufeff", "a.csv: "),
    ("a.csv", b"id,prediction\n\xff\xfe,1\n", "a.csv: "),
    ("a.jsonl", "id,prediction\na,1\n", "no jsonl file"),
    ("a.jsonl", '{"id": 1, "prediction": 1}\n{"id": 2,\n', "line 2 is no JSON"),
    ("a.jsonl", '{"id": 1, "prediction": 1}\n[1]\n', "line 2 is no JSON object"),
    ("a.jsonl", '{"id": 1, "prediction": 1}\n{"prediction": 1}\n', "missing ids at positions 1"),
    (
        "a.jsonl",
        '{"id": 1, "logits": [1, 2]}\n{"id": 2, "logits": [1]}\n',
        "another count for ids 2",
    ),
    ("a.jsonl", '{"id": 1, "logits": [1, 2]}\n{"id": 2}\n', "it is not for ids 2"),
    (
        "a.jsonl",
        '{"id": 1, "logits": {"x": 1, "y": 2}}\n{"id": 2, "logits": {"x": 1, "z": 2}}\n',
        "other classes for ids 2",
    ),
    ("a.jsonl", '{"id": 1, "logits": [1, Infinity]}\n', "not finite"),
    ("a.jsonl", '{"id": 1, "prediction": 1}\n{"id": 1, "prediction": 1}\n', "repeated ids '1'"),
    ("a.jsonl", '{"id": 1, "prediction": 1}\n{"id": 2, "prediction": "1"}\n', "mixes text"),
    ("a.parquet", "id,prediction\na,1\n", "not a parquet file"),
    ("a.parquet", b"PAR1 and nothing more", "a.parquet: "),
    ("a.json", "{}", "neither a table"),
    ("a.pkl", pickle.dumps([1]), "it must be parquet"),
    ("a.csv", pickle.dumps([1, "two"]), "a.csv: "),
    ("a", "id,prediction\na,1\n", "it must be parquet"),
]


@pytest.mark.parametrize("name, content, message", BAD)
def test_bad_files_are_refused(tmp_path, name, content, message):
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(ValueError, match=message):
        Predictions.load(path)


@pytest.mark.parametrize(
    "columns, message",
    [
        (
            {"id": ["a", "b"], "logits": [[1.0, 2.0], [1.0]]},
            "2 values in the first row and another count for ids 'b'",
        ),
        ({"id": ["a", "b"], "logits": [[1.0, 2.0], None]}, "another count for ids 'b'"),
        ({"id": ["a", "b"], "logits": [[1.0, 2.0], [1.0, None]]}, "not finite .* ids 'b'"),
        ({"id": ["a", "b"], "logits": [1.0, 2.0]}, "must hold a list of numbers"),
        ({"id": ["a", "a"], "prediction": [1, 2]}, "repeated ids 'a'"),
        ({"id": [], "prediction": []}, "no examples"),
        ({"id": [1.5, 2.5], "prediction": [1, 2]}, "not floats"),
        ({"key": ["a"], "prediction": [1]}, "`id` is missing"),
    ],
)
def test_bad_parquet_is_refused(tmp_path, columns, message):
    parquet.write_table(pa.table(columns), tmp_path / "a.parquet")
    with pytest.raises(ValueError, match=message):
        Predictions.load(tmp_path / "a.parquet")


def test_no_file_and_a_bad_name_to_save(tmp_path):
    with pytest.raises(FileNotFoundError, match="there is no file"):
        Predictions.load(tmp_path / "nothing.csv")
    with pytest.raises(ValueError, match="the name must end in"):
        odd_predictions().save(tmp_path / "a.npz")
    with pytest.raises(ValueError, match="repeated ids 'a'"):
        simple(ids=("a", "a", "b")).save(tmp_path / "a.csv")
    assert not list(tmp_path.iterdir())


def test_a_failed_save_leaves_the_old_file(tmp_path):
    path = simple().save(tmp_path / "a.csv")
    before = path.read_bytes()
    with pytest.raises(ValueError):
        Predictions(["1"], ["1"], ["1"]).save(path)
    assert path.read_bytes() == before and list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("ending", ENDINGS)
def test_saving_follows_a_link(tmp_path, ending):
    (tmp_path / "far").mkdir()
    (tmp_path / f"a{ending}").symlink_to(tmp_path / "far" / f"b{ending}")
    simple().save(tmp_path / f"a{ending}")
    assert (tmp_path / f"a{ending}").is_symlink()
    assert len(Predictions.load(tmp_path / "far" / f"b{ending}")) == len(simple())


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("field", ["label", "prediction"])
def test_an_empty_answer_is_no_missing_one(tmp_path, ending, field):
    fields = {"label": ["x", "y"], "prediction": ["x", "x"]} | {field: ["", "x"]}
    made, path = Predictions(["a", "b"], **fields), tmp_path / f"a{ending}"
    if ending == ".csv":
        with pytest.raises(ValueError, match="csv.*empty"):
            made.save(path)
    else:
        assert getattr(Predictions.load(made.save(path)), field).tolist() == ["", "x"]


@pytest.mark.parametrize("name", ["a.json", "a.tsv", "a.json.gz", "a.csv.gz"])
def test_an_error_names_the_file_that_was_given(tmp_path, name):
    text = '[{"id": "x", "prediction": 1}, {"id": "x", "prediction": 1}]'
    if ".json" not in name:
        text = "id,prediction\nx,1\nx,1\n".replace(",", "\t" if name == "a.tsv" else ",")
    packed = gzip.compress(text.encode()) if name.endswith(".gz") else text.encode()
    (tmp_path / name).write_bytes(packed)
    with pytest.raises(ValueError, match=f"^{re.escape(name)}: repeated ids"):
        Predictions.load(tmp_path / name)


def test_a_full_disk_is_called_so(tmp_path, monkeypatch):
    def full(table, path, **_):
        Path(path).unlink()  # as some writers do
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("polars.DataFrame.write_parquet", full)
    with pytest.raises(OSError, match="No space left"):
        simple().save(tmp_path / "a.parquet")


# -- sample files of the lm-evaluation-harness ----------------------------------------------------


def multiple_choice(doc, target, likelihoods, acc, **more):
    return {
        "doc_id": doc,
        "filter": "none",
        "target": target,
        "metrics": ["acc", "acc_norm"],
        "acc": acc,
        "acc_norm": 0.0,
        "filtered_resps": [[str(v), "False"] for v in likelihoods],
        "resps": [[[str(v), "False"]] for v in likelihoods],
        "arguments": {
            f"gen_args_{i}": {"arg_0": "question", "arg_1": f" choice {i}"}
            for i in range(len(likelihoods))
        },
        **more,
    }


def write_samples(folder, *samples, name="samples_my_task_2025-01-31T10-11-12.345678.jsonl"):
    path = folder / name
    path.write_text("".join(json.dumps(s) + "\n" for s in samples))
    return path


def test_samples_of_multiple_choice(tmp_path):
    loaded = Predictions.load(
        write_samples(
            tmp_path,
            multiple_choice(0, "1", [-3.5, -1.25], 1.0),
            multiple_choice(1, " choice 0", [-9, -2], 0.0),
        )
    )
    assert loaded.id.tolist() == ["my_task/0/none", "my_task/1/none"]
    assert loaded.logits.tolist() == [[-3.5, -1.25], [-9.0, -2.0]]
    assert loaded.label.tolist() == [1, 0] and loaded.correct.tolist() == [True, False]
    assert loaded.columns["acc"].tolist() == [1.0, 0.0]


def test_samples_with_varying_numbers_of_choices_keep_the_answers(tmp_path):
    loaded = Predictions.load(
        write_samples(
            tmp_path,
            multiple_choice(0, "1", [-3, -1], 1.0),
            multiple_choice(1, "2", [-3, -2, -1], 1.0),
        )
    )
    assert loaded.logits is None and loaded.prediction.tolist() == [1, 2] and loaded.correct.all()


def test_samples_of_generation(tmp_path):
    samples = [
        {
            "doc_id": i,
            "filter": f,
            "target": "#### 4",
            "metrics": ["exact_match"],
            "exact_match": float(f == "strict"),
            "filtered_resps": ["4"],
            "resps": [["so 4"]],
        }
        for i in range(2)
        for f in ("strict", "flexible")
    ]
    loaded = Predictions.load(write_samples(tmp_path, *samples, name="samples_gsm8k.jsonl"))
    assert loaded.id.tolist() == [
        "gsm8k/0/strict",
        "gsm8k/0/flexible",
        "gsm8k/1/strict",
        "gsm8k/1/flexible",
    ]
    assert (
        loaded.score.tolist() == [1, 0, 1, 0]
        and loaded.text.tolist() == ["4"] * 4
        and loaded.prediction is None
    )


@pytest.mark.parametrize(
    "sample, message",
    [
        (multiple_choice(0, "[0, 1]", [-1, -2], 1.0), "neither the number of a choice"),
        (multiple_choice(0, "nothing", [-1, -2], 1.0), "neither the number of a choice"),
        (multiple_choice(0, "1", [-1, -2], 1.0), "`acc` contradicts"),
        (multiple_choice(0, "1", [-1, float("-inf")], 0.0), "not finite"),
    ],
)
def test_samples_that_cannot_be_read_rightly_are_refused(tmp_path, sample, message):
    with pytest.raises(ValueError, match=message):
        Predictions.load(write_samples(tmp_path, sample))


def test_samples_need_the_task_in_their_name_and_unlike_ids(tmp_path):
    with pytest.raises(ValueError, match="samples_<task>_<date>"):
        Predictions.load(
            write_samples(tmp_path, multiple_choice(0, "1", [-2, -1], 1.0), name="other.jsonl")
        )
    with pytest.raises(ValueError, match="repeated ids 'my_task/0/none'"):
        Predictions.load(write_samples(tmp_path, *[multiple_choice(0, "1", [-2, -1], 1.0)] * 2))


# -- size -----------------------------------------------------------------------------------------


def test_two_hundred_thousand_examples_are_joined():
    count = 200_000
    turn = np.random.default_rng(0).permutation(count)
    ids = np.char.add("example-", np.arange(count).astype(str))
    old = Predictions(ids, np.arange(count) % 7, np.arange(count) % 5)
    first, second = align(old, old.select(ids[turn]))
    assert np.array_equal(first.id, second.id) and np.array_equal(
        first.prediction, second.prediction
    )


def test_labels_are_joined_by_id():
    whole = Predictions(
        [f"e{i}" for i in range(9)], label=[i % 3 for i in range(9)], prediction=[0] * 9
    )
    shared = whole.replace(label=None)
    shuffled = whole.select(list(reversed(whole.id)))
    assert list(with_labels(shared, shuffled).correct) == list(whole.correct)
    labels = {str(key): int(label) for key, label in zip(whole.id, whole.label)}
    assert list(with_labels(shared, labels).label) == list(whole.label)
    del labels["e7"]
    with pytest.raises(ValueError, match="1 ids.*7"):
        with_labels(shared, labels)
    with pytest.raises(ValueError, match="carry no labels"):
        with_labels(shared, shared)


@pytest.mark.parametrize("order", [("true", "false"), ("false", "true")])
def test_a_truth_value_is_the_class_that_is_called_so(tmp_path, order):
    rows = [(f"e{place}", place % 3 == 0) for place in range(9)]
    lines = [
        {"id": one, "label": truth}
        | {f"prob_{name}": 0.9 if (name == "true") == truth else 0.1 for name in order}
        for one, truth in rows
    ]
    path = tmp_path / "new.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert Predictions.load(path).correct.all()


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ('{"id": 1, "label": "a", "classes": 5, "prediction": "a"}', "`classes` must be a list"),
        ('{"id": 1, "score": "x"}', "column `score` needs numbers, and holds 'x' for ids 1"),
        ('{"id": 1, "label": 0, "logits": ["x", 2]}', "`logits` needs numbers, and holds 'x'"),
        ('{"id": 1, "label": 0, "logits": [{"a": 1}, 2]}', "`logits` needs numbers, and holds"),
    ],
)
def test_a_line_of_another_shape_is_named(tmp_path, line, told):
    (tmp_path / "answers.jsonl").write_text(line + "\n")
    with pytest.raises(ValueError, match=re.escape(told)):
        Predictions.load(tmp_path / "answers.jsonl")


@pytest.mark.parametrize(
    ("entry", "told"),
    [
        ({"filtered_resps": 5}, "`filtered_resps` must be a list in every line"),
        ({"arguments": [["only"]]}, "`arguments` must hold a context and a text for each choice"),
    ],
)
def test_a_sample_of_another_shape_is_named(tmp_path, entry, told):
    sample = {"doc_id": 0, "target": "b", "filtered_resps": [[-1.0, True], [-2.0, False]]}
    path = tmp_path / "samples_quiz.jsonl"
    path.write_text(json.dumps(sample | entry) + "\n")
    with pytest.raises(ValueError, match=told):
        Predictions.load(path)
