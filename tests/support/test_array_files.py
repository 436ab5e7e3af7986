"""Arrays of numpy as tables whose rows are numbered."""

import gzip
import json

import numpy as np
import polars as pl
import pytest

from compatkit.compare.report import compare
from compatkit.metrics import FlipCounts
from compatkit.predictions import Predictions
from compatkit.support.array_files import arrays_as_table, name_of_array, rows_are_numbered
from compatkit.support.table_files import plain_file

LABEL = np.array([0, 1, 2, 1, 0, 2])
OLD, NEW = np.array([0, 1, 2, 0, 0, 1]), np.array([0, 2, 2, 1, 0, 0])
COUNTS = FlipCounts.of(LABEL, OLD, NEW)


def distributions(answers):
    return np.eye(3)[answers] * 0.5 + 1 / 6


@pytest.mark.parametrize(
    "array, name",
    [
        (distributions(OLD), "probabilities"),
        (np.float16([[0.25, 0.75]]), "probabilities"),
        (np.log(distributions(OLD)), "logits"),
        (np.array([[2, 1], [-1, 0]]), "logits"),
        (OLD, "prediction"),
        (OLD.astype(np.float32), "prediction"),
        (np.array(["a", "b"]), "prediction"),
        (np.array([True, False]), "prediction"),
        (np.array([0.5, 1]), "score"),
        (np.array([np.nan, 1]), "score"),
    ],
)
def test_what_an_array_is(array, name):
    assert name_of_array(array) == name


def counted(old, new, **options):
    pair = compare(old, new, **options).pair
    return FlipCounts.of(pair.label, pair.old, pair.new)


FORMS = {
    "answers": lambda answers: answers,
    "floats": lambda answers: answers.astype(float),
    "column": lambda answers: answers[:, None],
    "probabilities": distributions,
    "logits": lambda answers: np.log(distributions(answers)).astype(np.float16),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("labels", ["y.npy", "y.csv", "ids.csv", "y.npz"])
def test_arrays_beside_labels(tmp_path, form, labels):
    for name, answers in (("old", OLD), ("new", NEW)):
        np.save(tmp_path / f"{name}.npy", FORMS[form](answers))
    np.save(tmp_path / "y.npy", LABEL)
    np.savez(tmp_path / "y.npz", y=LABEL)
    (tmp_path / "y.csv").write_text("y\n" + "".join(f"{one}\n" for one in LABEL))
    turned = [f"{n},{one}\n" for n, one in enumerate(LABEL)][::-1]
    (tmp_path / "ids.csv").write_text("id,label\n" + "".join(turned))
    files = tmp_path / "old.npy", tmp_path / "new.npy"
    assert counted(*files, truth=tmp_path / labels) == COUNTS


@pytest.mark.parametrize("labels", ["y.npy", "y.csv"])
def test_labels_of_other_examples_are_refused(tmp_path, labels):
    for name, answers in (("old", OLD), ("new", NEW)):
        np.save(tmp_path / f"{name}.npy", answers)
    np.save(tmp_path / "y.npy", np.append(LABEL, 0))
    (tmp_path / "y.csv").write_text("y\n" + "0\n" * 7)
    with pytest.raises(ValueError, match="7 rows.*6"):
        counted(tmp_path / "old.npy", tmp_path / "new.npy", truth=tmp_path / labels)


def test_named_arrays_hold_everything(tmp_path):
    names = np.array(["ant", "bee", "cat"])
    for name, answers in (("old", OLD), ("new", NEW)):
        np.savez_compressed(
            tmp_path / f"{name}.npz",
            id=np.arange(10, 16),
            label=names[LABEL],
            proba=distributions(answers),
            classes=names,
            length=np.arange(6),
        )
    found = compare(tmp_path / "old.npz", tmp_path / "new.npz")
    pair = found.pair
    assert FlipCounts.of(pair.label, pair.old, pair.new) == COUNTS
    assert pair.answers == ("ant", "bee", "cat") and pair.shown([0])[0]["id"] == "10"
    assert pair.new_sureness.confidence == pytest.approx([2 / 3] * 6)
    one = Predictions.load(tmp_path / "old.npz")
    assert one.classes == ("ant", "bee", "cat") and one.correct.sum() == 4


def test_packed_arrays_and_fields_of_records(tmp_path):
    records = np.array([(0, "a"), (1, "b")], dtype=[("label", int), ("prediction", "U1")])
    np.save(tmp_path / "a.npy", records)
    packed = tmp_path / "b.npy.gz"
    packed.write_bytes(gzip.compress((tmp_path / "a.npy").read_bytes()))
    for path in (tmp_path / "a.npy", packed):
        plain = plain_file(path)
        assert rows_are_numbered(plain)
        assert pl.read_parquet(plain).to_dicts()[1] == {"id": 1, "label": 1, "prediction": "b"}


def test_what_is_no_table_is_refused(tmp_path):
    def refused(message, name="a.npz", **arrays):
        np.savez(tmp_path / name, **arrays)
        with pytest.raises(ValueError, match=f"{name} .*{message}"):
            arrays_as_table(tmp_path / name, tmp_path / "t.parquet")

    refused(r"shapes label \(2,\), prediction \(3,\)", label=[0, 1], prediction=[0, 1, 2])
    refused(r"at most two dimensions", logits=np.zeros((2, 2, 2)))
    refused(r"shapes .*\(\)", prediction=np.array(3))
    refused("no column", prediction=np.array([1j, 2j]))
    for name in ("objects.npy", "text.npy", "text.npz", "cut.npz"):
        path = tmp_path / name
        if name == "objects.npy":
            np.save(path, np.array([{"a": 1}], dtype=object), allow_pickle=True)
        elif name == "cut.npz":
            path.write_bytes((tmp_path / "a.npz").read_bytes()[:40])
        else:
            path.write_text("no array")
        with pytest.raises(ValueError, match=f"{name} cannot be read as arrays") as error:
            arrays_as_table(path, tmp_path / "t.parquet")
        assert "unsafe" not in str(error.value)
    with pytest.raises(FileNotFoundError):
        arrays_as_table(tmp_path / "nowhere.npy", tmp_path / "t.parquet")


def test_numbers_are_no_ids_of_other_files(tmp_path):
    """Rows of a csv without ids belong to nobody; only beside arrays their order says whose."""
    for name in ("old", "new"):
        rows = [{"id": n, "prediction": int(one)} for n, one in enumerate(OLD)]
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "y.csv").write_text("y\n" + "".join(f"{one}\n" for one in LABEL))
    with pytest.raises(ValueError, match="y.csv"):
        counted(tmp_path / "old.jsonl", tmp_path / "new.jsonl", truth=tmp_path / "y.csv")
    assert not rows_are_numbered(tmp_path / "y.csv")
