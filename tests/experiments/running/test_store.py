"""The module `store`: what is kept is read back equal, and what was changed is noticed."""

import numpy as np
import pytest
from made_studies import edit_records

from compatkit.experiments.running import store
from compatkit.experiments.running.runs import run_id
from compatkit.experiments.running.store import KeptName
from compatkit.predictions import Predictions

IDS = [f"example {n}" for n in range(6)]
KINDS = {
    "classes": {"prediction": [0, 1, 2, 0, 1, 300]},
    "names": {"prediction": ["a", "b", "ü", "a", "", "c"]},
    "half": {"logits": np.float16(np.eye(6) / 3), "classes": list("abcdef")},
    "large halves": {"logits": np.float16(np.eye(6) * 65504), "classes": list("abcdef")},
    "single": {"logits": np.float32(np.eye(6) * -999.3)},
    "gate": {"prediction": [1] * 6, "columns": {"gate": np.float32(np.linspace(0, 1, 6))}},
    "score": {"score": [0.1, 0.2, 1 / 3, 0.0, 1.0, 0.5]},
    "digest": {
        "score": [0.5] * 6,
        "columns": {"text_digest": np.array([2**62, -(2**62), 0, 1, 2, 3])},
    },
}


def record(seed=0):
    configuration = {"kind": "example", "seed": seed}
    return {"id": run_id(configuration), "configuration": configuration}


def same(one, two):
    """Whether two Predictions are equal in every field and type."""
    pairs = [
        (getattr(one, name), getattr(two, name)) for name in ("id", "prediction", "logits", "score")
    ]
    pairs += [(one.columns[name], two.columns[name]) for name in {*one.columns, *two.columns}]
    return one.classes == two.classes and all(
        (a is None and b is None) or (a.dtype == b.dtype and np.array_equal(a, b)) for a, b in pairs
    )


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_prediction_is_read_back_equal(tmp_path, kind):
    wanted = Predictions(IDS, **KINDS[kind])
    others = Predictions(IDS[::-1], prediction=[1] * 6)
    kept = [
        store.Kept(record()["id"], "test", wanted),
        store.Kept(record()["id"], "selection", others),
    ]
    store.extend_study(tmp_path / "study", [record()], kept)
    (read,) = store.read_records(tmp_path / "study").values()
    for one in kept:
        assert same(store.checked_predictions(tmp_path / "study", read, one.split), one.predictions)


def test_a_study_grows_and_a_run_is_replaced(tmp_path):
    def keep(seed, value):
        return store.extend_study(
            tmp_path / "study",
            [record(seed)],
            [store.Kept(record(seed)["id"], "test", Predictions(IDS, prediction=[value] * 6))],
        )

    keep(1, 1), keep(2, 2), keep(1, 3)
    records = store.read_records(tmp_path / "study")
    values = {
        one["configuration"]["seed"]: store.checked_predictions(tmp_path / "study", one, "test")
        for one in records.values()
    }
    assert {seed: int(one.prediction[0]) for seed, one in values.items()} == {1: 3, 2: 2}
    before = {path.name: path.read_bytes() for path in (tmp_path / "study").iterdir()}
    keep(1, 3)
    assert {path.name: path.read_bytes() for path in (tmp_path / "study").iterdir()} == before


@pytest.mark.parametrize("lesser", ["no split", "no logits"])
def test_a_run_is_not_replaced_by_less_of_it(tmp_path, lesser):
    """Other tables rest on what is kept: a table that needs no logits must not take them away."""
    run, folder = record()["id"], tmp_path / "study"
    whole = Predictions(IDS, prediction=[1] * 6, logits=np.eye(6, dtype=np.float16)[:, :2])
    store.extend_study(folder, [record()], [store.Kept(run, "test", whole)])
    few = [store.Kept(run, "test", Predictions(IDS, prediction=[1] * 6))]
    store.extend_study(folder, [record(), record(2)], few if lesser == "no logits" else [])
    read = store.read_records(folder)
    assert store.checked_predictions(folder, read[run], "test").logits is not None
    assert record(2)["id"] in read


def test_ids_stand_once_a_set_of_examples(tmp_path):
    from pyarrow import parquet

    for seed in range(3):
        kept = store.Kept(record(seed)["id"], "test", Predictions(IDS, prediction=[seed] * 6))
        store.extend_study(tmp_path / "study", [record(seed)], [kept])
    ids = parquet.read_table(tmp_path / "study" / store.PREDICTIONS).column("id").to_pylist()
    assert [one is not None for one in ids] == [True, False, False]


def test_a_killed_writer_leaves_the_study_as_it_was(tmp_path, monkeypatch):
    def kept(seed):
        return [store.Kept(record(seed)["id"], "test", Predictions(IDS, prediction=[seed] * 6))]

    store.extend_study(tmp_path / "study", [record(1)], kept(1))

    def killed(path, records):
        raise KeyboardInterrupt

    monkeypatch.setattr(store, "_write_records", killed)
    with pytest.raises(KeyboardInterrupt):
        store.extend_study(tmp_path / "study", [record(2)], kept(2))
    monkeypatch.undo()
    (only,) = store.read_records(tmp_path / "study").values()
    assert only["configuration"]["seed"] == 1
    assert store.checked_predictions(tmp_path / "study", only, "test").prediction[0] == 1
    store.extend_study(tmp_path / "study", [record(3)], kept(3))
    assert len(store.read_records(tmp_path / "study")) == 2


CHANGES = {
    "a digit of a configuration": lambda text: text.replace('"seed": 1', '"seed": 2'),
    "an id": lambda text: text.replace('"id": "example-', '"id": "example-0'),
    "half a row": lambda text: text[: len(text) // 2],
    "no hashes": lambda text: text.replace('"predictions"', '"prediction"'),
}


@pytest.mark.parametrize("change", CHANGES)
def test_an_edited_record_is_named_with_its_row(tmp_path, change):
    store.extend_study(tmp_path / "study", [record(1)], [])
    edit_records(tmp_path / "study", CHANGES[change])
    with pytest.raises(ValueError, match="study/records.parquet, row 1"):
        store.read_records(tmp_path / "study")


def test_a_file_that_holds_no_records_is_named(tmp_path):
    store.extend_study(tmp_path / "study", [record(1)], [])
    (tmp_path / "study" / store.RECORDS).write_text("no parquet")
    with pytest.raises(ValueError, match="study/records.parquet holds no records"):
        store.read_records(tmp_path / "study")


@pytest.mark.parametrize("field", ["prediction", "id", "logits", "gate", "classes", "hash"])
def test_one_changed_value_is_noticed(tmp_path, field):
    fields = {"logits": np.float16(2 * np.eye(6)), "classes": list("abcdef")}
    fields["columns"] = {"gate": np.float32(np.zeros(6))}
    whole = Predictions(IDS, **fields)
    logits = whole.logits.copy()
    logits[0, 5] = 0.5
    changed = {
        "prediction": whole.replace(prediction=[1, 1, 2, 3, 4, 5], logits=None, classes=None),
        "id": Predictions(["another", *IDS[1:]], **fields),
        "logits": whole.replace(logits=logits),
        "gate": whole.replace(columns={"gate": np.float32([0, 0, 0, 0, 0, 1e-6])}),
        "classes": whole.replace(classes=list("abcdeg")),
        "hash": whole,
    }[field]
    store.extend_study(tmp_path / "study", [record()], [store.Kept(record()["id"], "test", whole)])
    (read,) = store.read_records(tmp_path / "study").values()
    place = [store.Kept(record()["id"], "test", changed)]
    store._write_parquet(
        list(store._rows(place)), store._schemas()[0], tmp_path / "study" / store.PREDICTIONS
    )
    store._write_parquet(
        list(store._logit_rows(place)), store._schemas()[1], tmp_path / "study" / store.LOGITS
    )
    if field == "hash":
        read = read | {"predictions": {"test": "0" * 64}}
    with pytest.raises(ValueError, match="study: example-.* on test was changed"):
        store.checked_predictions(tmp_path / "study", read, "test")


def test_predictions_that_went_are_missed(tmp_path):
    kept = [store.Kept(record()["id"], "test", Predictions(IDS, prediction=[1] * 6))]
    store.extend_study(tmp_path / "study", [record()], kept)
    (tmp_path / "study" / store.PREDICTIONS).unlink()
    (read,) = store.read_records(tmp_path / "study").values()
    with pytest.raises(ValueError, match="not kept"):
        store.checked_predictions(tmp_path / "study", read, "test")


def test_what_has_no_place_is_refused(tmp_path):
    for fields, message in (
        ({"columns": {"length": [1] * 6}}, r"columns \['length'\] are not kept"),
        ({"prediction": [10**6] * 6}, "not a class number"),
    ):
        kept = [
            store.Kept(
                record()["id"], "test", Predictions(IDS, **{"prediction": [1] * 6, **fields})
            )
        ]
        with pytest.raises(ValueError, match=message):
            store.extend_study(tmp_path / "study", [record()], kept)
        assert not (tmp_path / "study" / store.RECORDS).exists()


def test_studies_have_names_that_people_read():
    assert store.study_name("bcwi-massive_adddata-mini-main") == "bcwi-massive-adddata"
    assert store.study_name("gated_fusion-sst2") == "gated-fusion-sst2"


def test_the_studies_of_this_repository_are_whole():
    """Every record's hashes are those of its predictions, and no run stands in two studies."""
    from pathlib import Path

    results = Path(__file__).resolve().parents[3] / "results"
    seen = {}
    for folder in store.studies(results):
        for name, one in store.read_records(folder).items():
            assert name not in seen, (name, folder.name, seen[name])
            seen[name] = folder.name
    assert len(seen) >= 604
    for folder in store.studies(results)[:1]:
        for one in store.read_records(folder).values():
            for split in one["predictions"]:
                store.checked_predictions(folder, one, split)


def test_runs_that_no_table_names_can_be_taken_out(tmp_path):
    folder, names = tmp_path / "study", [record(seed)["id"] for seed in range(3)]
    for seed, name in enumerate(names):
        kept = [store.Kept(name, "test", Predictions(IDS, prediction=[seed] * 6))]
        store.extend_study(folder, [record(seed)], kept)
    (folder / "tables.json").write_text(f'{{"a table": {{"records": ["{names[2]}"]}}}}')
    store.prune_study(folder, names[:1], ())
    left = store.read_records(folder)
    assert sorted(left) == sorted(names[1:])
    assert store.checked_predictions(folder, left[names[1]], "test").prediction.tolist() == [1] * 6
    for name, why in ((names[2], "a table names it"), (names[0], "not there")):
        with pytest.raises(ValueError, match=why):
            store.prune_study(folder, [name], ())
    assert sorted(store.read_records(folder)) == sorted(names[1:])


def test_logits_that_nothing_reads_go_and_answers_stay(tmp_path):
    folder, name = tmp_path / "study", record(0)["id"]
    logits = np.arange(12, dtype="float16").reshape(6, 2)
    answers = [Predictions(IDS, logits=logits + shift) for shift in (0, 1)]
    splits = ("selection", "test")
    kept = [store.Kept(name, *pair) for pair in zip(splits, answers)]
    store.extend_study(folder, [record(0)], kept)
    store.prune_study(folder, [], {(name, "test")})
    left = store.read_records(folder)[name]
    found = [store.checked_predictions(folder, left, split) for split in splits]
    assert found[0].logits is None and (found[1].logits == logits + 1).all()
    assert all((one.prediction == was.prediction).all() for one, was in zip(found, answers))


@pytest.mark.parametrize(
    ("name", "parts", "last"),
    [
        ("bcwi-mrpc-mini-main", ("bcwi", "mrpc", "mini", "", "main", (), ""), "main"),
        ("gated_fusion-sst2-mini-b-2", ("gated_fusion", "sst2", "mini", "b", "2", (), ""), "2"),
        (
            "gated_fusion-x-mini-a-main-out_of_fold",
            ("gated_fusion", "x", "mini", "a", "main", ("out_of_fold",), ""),
            "out_of_fold",
        ),
        ("gated_fusion-x-mini-1", ("gated_fusion", "x", "mini", "", "1", (), ""), "1"),
        (
            "distillation-x-mini-pretrained-5a",
            ("distillation", "x", "mini", "", "5a", (), "pretrained"),
            "5a",
        ),
    ],
)
def test_a_kept_name_falls_into_its_parts(name, parts, last):
    assert KeptName.of(name) == parts and KeptName.of(name).last == last
    assert str(KeptName.of(name)) == name


def test_a_name_of_three_parts_is_none():
    with pytest.raises(ValueError, match="notebook-task-scale-…-table is expected"):
        KeptName.of("bcwi-mrpc-main")
