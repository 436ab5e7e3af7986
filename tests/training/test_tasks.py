"""The module `tasks`: three splits by a stated rule, the same in every copy and order, and bad data
named.
"""

import csv
import hashlib
import inspect
import json
import os
import subprocess
import sys
from pathlib import Path

import make_hub_cache
import numpy as np
import pytest
import tiny
from datasets import ClassLabel, Dataset, Features, Image, Value

import compatkit.training.tasks
from compatkit.training.images import decode_image
from compatkit.training.tasks import (
    EMBEDDED,
    PYDOC_MODULES,
    TASKS,
    cut_splits,
    example_key,
    image_files,
    load_task,
)

ROOT = Path(compatkit.training.tasks.__file__).resolve().parents[2]
TEXT, NUMBER = Value("string"), Value("int32")

# the hub's columns, its splits (True: the labels are hidden there) and where its files lie; made
# from the hub's own pages
GLUE = {"train": False, "validation": False, "test": True}
SHARD = "{config}/{split}-00000-of-00001.parquet"
LAYOUT = {
    "sst2": (
        {"sentence": TEXT, "label": ClassLabel(names=["negative", "positive"]), "idx": NUMBER},
        GLUE,
        "nyu-mll/glue",
        SHARD,
    ),
    "mrpc": (
        {
            "sentence1": TEXT,
            "sentence2": TEXT,
            "label": ClassLabel(names=["not_equivalent", "equivalent"]),
            "idx": NUMBER,
        },
        GLUE | {"test": False},
        "nyu-mll/glue",
        SHARD,
    ),
    "qnli": (
        {
            "question": TEXT,
            "sentence": TEXT,
            "label": ClassLabel(names=["entailment", "not_entailment"]),
            "idx": NUMBER,
        },
        GLUE,
        "nyu-mll/glue",
        SHARD,
    ),
    "massive": (
        {
            "id": TEXT,
            "locale": TEXT,
            "scenario": ClassLabel(names=["iot", "play"]),
            "intent": ClassLabel(names=["wake", "play", "stop"]),
        }
        | {"utt": TEXT},
        dict.fromkeys(GLUE, False),
        "AmazonScience/massive",
        "{config}/{split}/0000.parquet",
    ),
    "banking77": (
        {"text": TEXT, "label": ClassLabel(names=["card", "cash", "top_up"])},
        {"train": False, "test": False},
        "PolyAI/banking77",
        "{config}/{split}/0000.parquet",
    ),
    "ag_news": (
        {"text": TEXT, "label": ClassLabel(names=["World", "Sports", "Business", "Sci/Tech"])},
        {"train": False, "test": False},
        "fancyzhx/ag_news",
        SHARD,
    ),
    "clinc": (
        {"text": TEXT, "intent": ClassLabel(names=["translate", "oos"])},
        dict.fromkeys(GLUE, False),
        "clinc/clinc_oos",
        SHARD,
    ),
}
SIZES = {"train": 50, "validation": 21, "test": 30}
NAMED = ClassLabel(names=["cat", "dog", "eel"])
IMAGES = {  # the image column, the splits, and where the hub's files lie
    "fashion_mnist": (
        "image",
        ("train", "test"),
        "zalando-datasets/fashion_mnist",
        "fashion_mnist/{split}-00000-of-00001.parquet",
    ),
    "cifar10": (
        "img",
        ("train", "test"),
        "uoft-cs/cifar10",
        "plain_text/{split}-00000-of-00001.parquet",
    ),
    "tiny_imagenet": (
        "image",
        ("train", "validation"),
        "zh-plus/tiny-imagenet",
        "data/{split}-00000-of-00001-0a1b.parquet",
    ),
}


def rows_of(name, split, count=None, **changes):
    """Made-up rows with the hub's columns: distinct texts, every class in turn."""
    columns, hidden = LAYOUT[name][0], LAYOUT[name][1][split]
    count = SIZES[split] if count is None else count
    made = {}
    for column, kind in columns.items():
        if isinstance(kind, ClassLabel):
            made[column] = [
                -1 if hidden and column == TASKS[name].label else number % kind.num_classes
                for number in range(count)
            ]
        elif kind == NUMBER:
            made[column] = list(range(count))
        else:
            made[column] = [f"{column} of {split} {number}" for number in range(count)]
    return made | changes


def write(path, rows, columns):
    path.parent.mkdir(parents=True, exist_ok=True)
    Dataset.from_dict(rows, features=Features(columns)).to_parquet(str(path))


def copy_of(folder, name, rename=None):
    """A local copy as load_task wants it: one folder with <split>.parquet."""
    for split in LAYOUT[name][1]:
        write(
            folder / TASKS[name].folder / f"{(rename or {}).get(split, split)}.parquet",
            rows_of(name, split),
            LAYOUT[name][0],
        )
    return folder / TASKS[name].folder


def snapshot_of(home, name):
    """The same rows in the hub's own cache layout, in two shards where the set has a train split
    of several files.
    """
    columns, splits, repository, pattern = LAYOUT[name]
    place = home / "hub" / f"datasets--{repository.replace('/', '--')}"
    folder = place / "snapshots" / TASKS[name].revision  # a commit needs no reference
    for split in splits:
        path = pattern.format(config=TASKS[name].config, split=split)
        rows = rows_of(name, split)
        if (
            name == "ag_news" and split == "train"
        ):  # as large sets are: the shards follow each other
            first, rows = (
                {column: values[part] for column, values in rows.items()}
                for part in (slice(20), slice(20, None))
            )
            write(folder / path.replace("of-00001", "of-00002"), first, columns)
            path = path.replace("00000-of-00001", "00001-of-00002")
        write(folder / path, rows, columns)
    (folder / "loading_script.py").write_text("raise SystemExit('a script of the hub ran')")
    write(
        folder / "another_part" / "train-00000-of-00001.parquet", {"other": ["x"]}, {"other": TEXT}
    )


def described(task):
    """All of a task that a comparison depends on, as plain values."""
    parts = {"train": task.train, "selection": task.selection, "test": task.test}
    rows = {
        split: {column: list(part[column]) for column in ("id", "label", *task.text_fields)}
        for split, part in parts.items()
    }
    return rows | {
        "classes": list(task.classes),
        "rule": task.rule,
        "title": task.title,
        "fingerprint": task.fingerprint,
    }


@pytest.fixture(autouse=True)
def alone(monkeypatch, tmp_path):
    """Neither a person's own data nor the network."""
    monkeypatch.delenv("COMPATKIT_DATA", raising=False)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


# --- the named tasks ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(LAYOUT))
def test_every_task_loads_from_a_local_copy(name, tmp_path):
    copy_of(tmp_path, name)
    task = load_task(name, tmp_path)
    columns, splits, *_ = LAYOUT[name]
    assert (
        task.classes == tuple(columns[TASKS[name].label].names)
        and task.text_fields == TASKS[name].text
    )
    assert (task.name, task.title, task.source) == (name, name, "folder")
    labelled_test, validation = splits["test"] is False, "validation" in splits
    sizes = (
        (50, 21, 30)
        if labelled_test and validation
        else (45, 5, 30)
        if labelled_test
        else (50, 10, 11)
    )
    assert (len(task.train), len(task.selection), len(task.test)) == sizes
    ids = [one for split in (task.train, task.selection, task.test) for one in split["id"]]
    assert len(set(ids)) == len(ids)
    for split in (task.train, task.selection, task.test):
        assert set(split["label"]) <= set(range(len(task.classes)))
    source = rows_of(name, "train")
    where = {text: number for number, text in enumerate(source[TASKS[name].text[0]])}
    for row in task.train:
        number = where[row[task.text_fields[0]]]
        assert row["label"] == source[TASKS[name].label][number]
        assert [row[field] for field in task.text_fields] == [
            source[field][number] for field in task.text_fields
        ]
        assert row["id"] == f"train-{source['id'][number] if 'id' in source else number}"


LOAD = f"""
import json, sys
from compatkit.training.tasks import load_task
{inspect.getsource(described)}
tasks = [load_task(name) for name in sys.argv[1:]]
json.dump({{task.name: described(task) | {{"source": task.source}} for task in tasks}}, sys.stdout)
"""


def in_another_process(script, *arguments, **variables):
    """What a script prints as JSON, in a process of its own without network and without local
    data.
    """
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("HF_", "COMPATKIT_DATA"))
    }
    env = kept | {"PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1"} | variables
    result = subprocess.run(
        [sys.executable, "-c", script, *arguments],
        env=env,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


@pytest.fixture(scope="module")
def from_the_hub(tmp_path_factory):
    """Every task from snapshots in the hub's cache layout, and pydoc, in another process (the
    hub's library reads HF_HOME once).
    """
    home = tmp_path_factory.mktemp("home")
    for name in LAYOUT:
        snapshot_of(home, name)
    for name in IMAGES:
        image_snapshot_of(home, name)
    seed = "1" if os.environ.get("PYTHONHASHSEED") != "1" else "2"
    return in_another_process(
        LOAD, *LAYOUT, *IMAGES, "pydoc", "digits", HF_HOME=str(home), PYTHONHASHSEED=seed
    )


@pytest.mark.parametrize("name", sorted(LAYOUT))
def test_every_task_from_the_hub_is_the_one_of_the_local_copy(name, tmp_path, from_the_hub):
    copy_of(tmp_path, name)
    found = dict(from_the_hub[name])
    assert found.pop("source") == "hub"
    assert found == described(load_task(name, tmp_path))


def test_the_oddities_of_the_hubs_rows(tmp_path, monkeypatch):
    make_hub_cache.main(tmp_path, (), ("glue", "intents", "images"))
    place = "huggingface_hub._snapshot_download.constants.HF_HUB_CACHE"
    monkeypatch.setattr(place, str(tmp_path / "hub"))
    for name in (*make_hub_cache.GLUE, "massive", "banking77", "ag_news"):
        task = load_task(name)
        read = [(task.train, task.selection, task.test)[n] for n in (0, 2)]
        texts = [text for rows in read for field in task.text_fields for text in rows[field]]
        assert task.source == "hub" and all(isinstance(text, str) for text in texts)
        assert len(task.train) + len(task.selection) >= 96 and len(set(task.train["id"])) > 80
    for name in ("imagenet", "inaturalist"):
        images = image_files(load_task(name, tmp_path / "folders").train, "image")
        shapes = {tuple(decode_image(one, side=32).shape) for one in images}
        assert shapes == {(3, 32, 32)}, "grey ones, and those of four colours, too"


def test_a_cache_with_another_part_of_the_repository_is_no_copy(tmp_path):
    """SST-2 and MRPC are parts of one repository; who has one of them does not have the other."""
    snapshot_of(tmp_path, "mrpc")
    script = """
import json
from compatkit.training.tasks import load_task
try:
    load_task("sst2")
except Exception as error:
    print(json.dumps([isinstance(error, FileNotFoundError), str(error)]))
"""
    missing, message = in_another_process(script, HF_HOME=str(tmp_path))
    assert (
        missing
        and "'sst2'" in message
        and "nyu-mll/glue" in message
        and "COMPATKIT_DATA" in message
    ), message


def test_data_dir_comes_before_the_variable(tmp_path, monkeypatch):
    copy_of(tmp_path / "mine", "sst2")
    folder = copy_of(tmp_path / "everybody", "sst2")
    write(folder / "train.parquet", rows_of("sst2", "train", 40), LAYOUT["sst2"][0])
    copy_of(tmp_path / "everybody", "mrpc")
    monkeypatch.setenv("COMPATKIT_DATA", str(tmp_path / "everybody"))
    assert len(load_task("sst2", tmp_path / "mine").train) == 50
    assert len(load_task("sst2").train) == 40
    assert len(load_task("mrpc", tmp_path / "mine").train) == 50  # not in data_dir: the next place


def test_a_folder_that_is_named_and_not_there_is_refused(tmp_path, monkeypatch):
    copy_of(tmp_path / "everybody", "sst2")
    monkeypatch.setenv("COMPATKIT_DATA", str(tmp_path / "everybody"))
    with pytest.raises(FileNotFoundError, match="data_dir"):
        load_task("sst2", tmp_path / "mistyped")  # and not what lies in the next place
    monkeypatch.setenv("COMPATKIT_DATA", str(tmp_path / "everbody"))
    with pytest.raises(FileNotFoundError, match="COMPATKIT_DATA names .*everbody"):
        load_task("sst2")


def test_hidden_test_labels_give_two_fixed_halves_of_validation(tmp_path):
    copy_of(tmp_path, "sst2")
    task = load_task("sst2", tmp_path)
    both = set(task.selection["id"]) | set(task.test["id"])
    assert (
        both == {f"validation-{number}" for number in range(21)}
        and "two halves of validation" in task.rule
    )
    assert len(task.selection) + len(task.test) == 21
    write(
        tmp_path / "sst2" / "test.parquet",
        rows_of("sst2", "test", label=[number % 2 for number in range(30)]),
        LAYOUT["sst2"][0],
    )
    labelled = load_task("sst2", tmp_path)  # the local copy of SST-2 carries the treebank's labels
    assert (len(labelled.selection), len(labelled.test)) == (21, 30) and labelled.rule != task.rule
    assert labelled.fingerprint != task.fingerprint
    assert task.undivided() is task and labelled.undivided() is labelled  # nothing came from train


def test_without_validation_a_fixed_tenth_of_train_is_kept_for_choosing(tmp_path):
    copy_of(tmp_path, "banking77")
    task = load_task("banking77", tmp_path)
    assert set(task.selection["id"]).isdisjoint(task.train["id"])
    assert set(task.selection["id"]) | set(task.train["id"]) == {
        f"train-{number}" for number in range(50)
    }
    expected = sorted(
        range(50), key=lambda number: hashlib.sha256(f"selection\0train-{number}".encode()).digest()
    )[:5]
    assert set(task.selection["id"]) == {f"train-{number}" for number in expected}
    assert "tenth of train" in task.rule and len(task.undivided().train) == 50


def test_a_part_of_the_training_split_says_so(tmp_path):
    folder = copy_of(tmp_path, "qnli", rename={"train": "train_subset"})
    task = load_task("qnli", tmp_path)
    assert task.title == "qnli (50 train)" and task.name == "qnli"
    copy_of(tmp_path, "banking77", rename={"train": "train_subset"})
    assert (
        load_task("banking77", tmp_path).title == "banking77 (45 train)"
    )  # after the tenth for choosing
    write(folder / "train.parquet", rows_of("qnli", "train", 48), LAYOUT["qnli"][0])
    whole = load_task("qnli", tmp_path)
    assert (
        whole.title == "qnli" and len(whole.train) == 48
    )  # the whole split goes before a part of it
    assert not set(whole.train["id"]) & set(
        task.train["id"]
    )  # row 7 of a part is not row 7 of the whole


def test_the_order_of_rows_with_ids_of_their_own_changes_nothing(tmp_path):
    """MASSIVE has an id column. (Where ids come from the row number, another order is another
    task.)
    """
    copy_of(tmp_path, "massive")
    task = load_task("massive", tmp_path)
    for split in LAYOUT["massive"][1]:
        turned = {column: values[::-1] for column, values in rows_of("massive", split).items()}
        write(tmp_path / "massive_en" / f"{split}.parquet", turned, LAYOUT["massive"][0])
    assert described(load_task("massive", tmp_path)) == described(task)


def test_labels_written_as_names_become_numbers(tmp_path):
    for split in ("train", "test"):
        rows = {"text": ["a", "b", "c"] * 5, "label": ["top_up", "card", "top_up"] * 5}
        write(tmp_path / "banking77" / f"{split}.parquet", rows, {"text": TEXT, "label": TEXT})
    task = load_task("banking77", tmp_path)
    assert task.classes == ("card", "top_up") and list(task.test["label"]) == [1, 0, 1] * 5


# --- images ---------------------------------------------------------------------------------------


def images_of(name, split, **changes):
    """Made-up pictures with the hub's columns."""
    column, splits, *_ = IMAGES[name]
    made = tiny.pictures(SIZES[split], splits.index(split), split)
    files = [{"bytes": one, "path": None} for one in image_files(made, "image")]
    return {column: files, "label": made["label"][:]} | changes


def write_images(path, name, rows, kind=None):
    write(path, rows, {IMAGES[name][0]: kind or Image(), "label": NAMED})


def image_copy_of(folder, name):
    for split in IMAGES[name][1]:
        write_images(folder / f"{split}.parquet", name, images_of(name, split))
    return folder


def image_snapshot_of(home, name):
    """The same pictures in the hub's own cache layout; Tiny ImageNet calls its validation split
    valid.
    """
    _, splits, repository, pattern = IMAGES[name]
    place = home / "hub" / f"datasets--{repository.replace('/', '--')}"
    (place / "refs").mkdir(parents=True)
    commit = TASKS[name].revision
    (place / "refs" / "main").write_text(commit)
    for split in splits:
        file = pattern.format(split="valid" if split == "validation" else split)
        write_images(place / "snapshots" / commit / file, name, images_of(name, split))


@pytest.mark.parametrize("name", sorted(IMAGES))
def test_images_load_from_a_local_copy(name, tmp_path):
    image_copy_of(tmp_path / name, name)
    task = load_task(name, tmp_path)
    column, splits, *_ = IMAGES[name]
    assert (task.name, task.title, task.source, task.text_fields, task.image_field) == (
        name,
        name,
        "folder",
        (),
        column,
    )
    assert task.classes == ("cat", "dog", "eel") and task.test.column_names == [
        "id",
        "label",
        column,
    ]
    assert (len(task.train), len(task.selection)) == (45, 5) and len(task.test) == SIZES[splits[1]]
    assert {one.split("-")[0] for one in task.test["id"]} == {splits[1]}
    given = images_of(name, "train")
    files = image_files(task.train, column)
    for id, label, file in zip(task.train["id"], task.train["label"], files):
        number = int(id.removeprefix("train-"))
        assert file == given[column][number]["bytes"] and label == given["label"][number]
    assert task.train[0][column].size == (8, 8), "decoded when it is asked for"


@pytest.mark.parametrize("name", sorted(IMAGES))
def test_images_from_the_hub_are_those_of_the_local_copy(name, tmp_path, from_the_hub):
    image_copy_of(tmp_path / name, name)
    found = dict(from_the_hub[name])
    assert found.pop("source") == "hub"
    assert found == described(load_task(name, tmp_path))


@pytest.mark.parametrize(
    "name, folder, words",
    [
        ("cifar10", "cifar10_jpeg", "JPEG copy"),
        ("tiny_imagenet", "tiny_imagenet_100", "100 classes"),
    ],
)
def test_a_changed_copy_says_so_and_is_joined_with_nothing_else(name, folder, words, tmp_path):
    image_copy_of(tmp_path / folder, name)
    copy = load_task(name, tmp_path)
    assert copy.title == f"{name} ({words})" and all(
        one.startswith(f"{folder}-") for one in copy.test["id"]
    )
    assert (
        copy.limited(10).title == f"{name} ({words}) (10 train)"
        and copy.limited(10).limited(5).title == f"{name} ({words}) (5 train)"
    )
    image_copy_of(tmp_path / name, name)
    real = load_task(name, tmp_path)  # the set itself goes first
    assert (
        real.title == name
        and not set(real.test["id"]) & set(copy.test["id"])
        and real.fingerprint != copy.fingerprint
    )


def test_tiny_imagenet_is_reported_on_its_validation_set(tmp_path):
    image_copy_of(tmp_path / "tiny_imagenet", "tiny_imagenet")
    task = load_task("tiny_imagenet", tmp_path)
    assert task.rule == "selection: a tenth of train by hash of the id; test: the validation set"
    assert set(task.selection["id"]) | set(task.train["id"]) == {
        f"train-{number}" for number in range(50)
    }


def test_the_fingerprint_sees_images(tmp_path):
    folder = image_copy_of(tmp_path / "fashion_mnist", "fashion_mnist")
    first = load_task("fashion_mnist", tmp_path).fingerprint
    assert load_task("fashion_mnist", tmp_path).fingerprint == first
    rows = images_of("fashion_mnist", "test")
    black = {"bytes": tiny.pgm(np.zeros((8, 8))), "path": None}
    changed = [
        rows | {"image": [black, *rows["image"][1:]]},
        rows | {"image": rows["image"][::-1]},
        rows | {"label": [(rows["label"][0] + 1) % 3, *rows["label"][1:]]},
    ]
    prints = {first}
    for one in changed:
        write_images(folder / "test.parquet", "fashion_mnist", one)
        prints.add(load_task("fashion_mnist", tmp_path).fingerprint)
    assert len(prints) == 4


def test_an_image_column_of_something_else_is_named(tmp_path):
    folder = image_copy_of(tmp_path / "fashion_mnist", "fashion_mnist")
    rows = images_of("fashion_mnist", "test")
    write_images(
        folder / "test.parquet", "fashion_mnist", rows | {"image": [0.5] * 30}, Value("float64")
    )
    with pytest.raises(
        ValueError,
        match="test.parquet of fashion_mnist.*'image'.*float64",
    ):
        load_task("fashion_mnist", tmp_path)
    write(
        folder / "test.parquet",
        {"picture": rows["image"], "label": rows["label"]},
        {"picture": Image(), "label": NAMED},
    )
    with pytest.raises(ValueError, match="test.parquet of fashion_mnist lacks.*'image'.*'picture'"):
        load_task("fashion_mnist", tmp_path)


@pytest.mark.parametrize("lost", [None, {"bytes": None, "path": "https://example.org/cat.png"}])
def test_rows_without_an_image_are_named_and_no_path_is_followed(lost, tmp_path):
    folder = image_copy_of(tmp_path / "fashion_mnist", "fashion_mnist")
    rows = images_of("fashion_mnist", "test")
    outside(
        folder / "test.parquet",
        rows | {"image": [*rows["image"][:2], lost, *rows["image"][3:]]},
        {"image": Image(decode=False), "label": NAMED},
    )
    with pytest.raises(
        ValueError,
        match="test.parquet.*fashion_mnist.*1 rows",
    ):
        load_task("fashion_mnist", tmp_path)


def test_digits_are_there_without_a_download(from_the_hub):
    task = load_task("digits")
    assert load_task("digits") is task and (task.source, task.image_field, task.classes) == (
        "python",
        "image",
        tuple("0123456789"),
    )
    assert [len(split) for split in (task.train, task.selection, task.test)] == [1078, 269, 450]
    assert (
        len({one for split in (task.train, task.selection, task.test) for one in split["id"]})
        == 1797
    )
    assert set(task.train["label"]) == set(task.test["label"]) == set(range(10))
    assert found_again(task.test[0]["image"], image_files(task.test, "image")[0])
    assert task.fingerprint == "a3bfdc9cbcc08f1a422c9eca28fe19bc23fc24e6ec7057467ec43cdbd9396413", (
        "its bytes are ours, the same on every machine"
    )
    found = dict(from_the_hub["digits"])
    assert found.pop("source") == "python" and found == described(task)


def found_again(image, file):
    return list(image.tobytes()) == list(file[-64:]) and max(image.tobytes()) <= 240


# --- folders of class folders ---------------------------------------------------------------------


def class_folders(place, count=4, classes=("cat", "dog"), shade=0, kind="pgm"):
    """One folder a class, with pictures in it."""
    for number, name in enumerate(classes):
        (place / name).mkdir(parents=True)
        for one in range(count):
            (place / name / f"{name}_{one}.{kind}").write_bytes(
                tiny.pgm(np.full((4, 5 + one), 50 * number + one + shade))
            )
    return place


@pytest.mark.parametrize("name", ["imagenet", "inaturalist"])
@pytest.mark.parametrize("validation", ["val", "validation"])
def test_sets_of_class_folders(name, validation, tmp_path):
    class_folders(tmp_path / name / "train", 10)
    class_folders(tmp_path / name / validation, 3, shade=20)
    (tmp_path / name / "test").mkdir()  # ImageNet's own test images lie there without labels
    (tmp_path / name / "test" / "ILSVRC2012_test_00000001.JPEG").write_bytes(b"...")
    task = load_task(name, tmp_path)
    assert (task.title, task.classes, task.image_field, task.source) == (
        name,
        ("cat", "dog"),
        "image",
        "folder",
    )
    assert (len(task.train), len(task.selection), len(task.test)) == (
        18,
        2,
        6,
    ) and task.rule.endswith("test: the validation set")
    assert "validation-dog/dog_2.pgm" in task.test["id"][:]
    whole = task.undivided()
    assert sorted(whole.train["id"]) == sorted([*task.train["id"], *task.selection["id"]])
    assert whole.train["id"][:] == sorted(whole.train["id"]) and whole.rule != task.rule
    assert whole.selection["id"][:] == task.selection["id"][:] and whole.undivided() is whole
    row = task.test[task.test["id"].index("validation-dog/dog_2.pgm")]
    assert row["label"] == 1 and row["image"].size == (7, 4) and row["image"].getpixel((0, 0)) == 72


def test_a_folder_of_ones_own_with_and_without_splits(tmp_path):
    class_folders(tmp_path / "mine", 40)
    task = load_task(tmp_path / "mine")
    assert (task.name, task.title, task.classes) == (
        "mine",
        "mine",
        ("cat", "dog"),
    ) and task.rule.startswith("70 % train")
    assert [len(split) for split in (task.train, task.selection, task.test)] == [56, 12, 12]
    for split, count in (("train", 20), ("validation", 6), ("test", 5)):
        class_folders(tmp_path / "cut" / split, count)
    task = load_task(str(tmp_path / "cut"))
    assert [len(split) for split in (task.train, task.selection, task.test)] == [
        40,
        12,
        10,
    ] and "labelled test set" in task.rule
    assert task.limited(10).title == "cut (10 train)"


def test_class_folders_are_the_same_task_wherever_they_lie(tmp_path):
    import shutil

    first = load_task(class_folders(tmp_path / "one" / "mine", 30)).fingerprint
    shutil.copytree(tmp_path / "one" / "mine", tmp_path / "two" / "mine")
    assert load_task(tmp_path / "two" / "mine").fingerprint == first
    changed = tmp_path / "two" / "mine" / "cat" / "cat_0.pgm"
    changed.write_bytes(changed.read_bytes() + b"!")
    assert load_task(tmp_path / "two" / "mine").fingerprint != first


def test_folders_that_are_no_class_folders_are_named(tmp_path):
    (tmp_path / "flat").mkdir()
    (tmp_path / "flat" / "cat.png").write_bytes(b"...")
    with pytest.raises(ValueError, match="'cat.png'"):
        load_task(tmp_path / "flat")
    class_folders(tmp_path / "some")
    (tmp_path / "some" / "eel").mkdir()
    (tmp_path / "some" / "eel" / "notes.txt").write_text("none yet")
    with pytest.raises(ValueError, match="'eel'"):
        load_task(tmp_path / "some")
    class_folders(tmp_path / "imagenet" / "train")
    (tmp_path / "imagenet" / "val").mkdir()
    (tmp_path / "imagenet" / "val" / "ILSVRC2012_val_00000001.JPEG").write_bytes(b"...")
    with pytest.raises(ValueError, match="ILSVRC2012_val"):
        load_task("imagenet", tmp_path)


def test_splits_with_other_classes_are_named(tmp_path):
    class_folders(tmp_path / "imagenet" / "train", classes=("cat", "dog", "eel"))
    class_folders(tmp_path / "imagenet" / "val", classes=("cat", "dog"))
    with pytest.raises(ValueError, match="1 classes.*'eel'"):
        load_task("imagenet", tmp_path)


def test_lacking_strange_and_doubled_split_folders_are_named(tmp_path):
    class_folders(tmp_path / "imagenet" / "train")
    with pytest.raises(FileNotFoundError, match="'train'"):
        load_task("imagenet", tmp_path)
    for split in ("val", "validation"):
        class_folders(tmp_path / "imagenet" / split)
    with pytest.raises(ValueError, match="validation and val"):
        load_task("imagenet", tmp_path)
    for split in ("train", "dev"):
        class_folders(tmp_path / "own" / split)
    with pytest.raises(ValueError, match="'dev'"):
        load_task(tmp_path / "own")
    with pytest.raises(FileNotFoundError, match="'imagenet'"):
        load_task("imagenet", tmp_path / "own")


@pytest.mark.parametrize("count", [1, 2, 3])
def test_a_folder_too_small_for_three_splits_is_refused(count, tmp_path):
    class_folders(tmp_path / "mine", count)
    if count == 1:
        with pytest.raises(ValueError, match="mine: too few images"):
            load_task(tmp_path / "mine")
    for split in ("train", "test"):
        class_folders(tmp_path / "cut" / split, count)
    with pytest.raises(ValueError, match="cut: too few images"):
        load_task(tmp_path / "cut")


# --- the fingerprint ------------------------------------------------------------------------------


def test_the_fingerprint_sees_whatever_a_model_could_learn_from(tmp_path):
    copy_of(tmp_path, "mrpc")
    first = load_task("mrpc", tmp_path).fingerprint
    assert load_task("mrpc", tmp_path).fingerprint == first
    columns = LAYOUT["mrpc"][0]
    made = rows_of("mrpc", "train")
    changes = {
        "a text": made | {"sentence2": [*made["sentence2"][:-1], "another"]},
        "a label": made | {"label": [1 - made["label"][0], *made["label"][1:]]},
        "texts between the fields": made
        | {"sentence1": made["sentence2"], "sentence2": made["sentence1"]},
        "fewer rows": {column: values[:-1] for column, values in made.items()},
    }
    prints = {first}
    for rows in changes.values():
        write(tmp_path / "mrpc" / "train.parquet", rows, columns)
        prints.add(load_task("mrpc", tmp_path).fingerprint)
    other = columns | {"label": ClassLabel(names=["no", "yes"])}
    for split in LAYOUT["mrpc"][1]:
        write(tmp_path / "mrpc" / f"{split}.parquet", rows_of("mrpc", split), other)
    prints.add(load_task("mrpc", tmp_path).fingerprint)
    assert len(prints) == len(changes) + 2
    write(tmp_path / "mrpc" / "train.parquet", made, columns)


def test_fingerprint_order_and_key_are_fixed_for_ever(tmp_path):
    """Records, published predictions and caches of old logits carry them."""
    copy_of(tmp_path, "sst2")
    assert (
        load_task("sst2", tmp_path).fingerprint
        == "c9b543b225ec25741fc9eb34691c2ddd3311de692a1bf29983339cb497ef47aa"
    )
    assert example_key("ab", "ü") == hashlib.sha256('["ab", "ü"]'.encode()).hexdigest()


def test_keys_tell_fields_apart():
    given = [("ab", "c"), ("a", "bc"), ("abc",), ("c", "ab"), ("ab", "c", ""), ('ab", "c',), ()]
    assert len({example_key(*fields) for fields in given}) == len(given)


# --- a part of a task -----------------------------------------------------------------------------


def test_limited_keeps_a_fixed_part_and_says_so(tmp_path):
    folder = copy_of(tmp_path, "massive")
    task = load_task("massive", tmp_path)
    few, fewer = task.limited(20), task.limited(5)
    assert (few.title, few.name, len(few.train)) == ("massive (20 train)", "massive", 20)
    assert set(fewer.train["id"]) < set(few.train["id"]) < set(task.train["id"])
    assert few.selection is task.selection and few.test is task.test
    assert few.limited(5).title == "massive (5 train)"
    assert task.limited(20).fingerprint == few.fingerprint != task.fingerprint
    assert set(task.limited(20, seed=1).train["id"]) != set(few.train["id"])
    assert "20 training examples" in few.rule and "seed 0" in few.rule
    assert task.limited(50) is task and task.limited(10_000) is task
    turned = {column: values[::-1] for column, values in rows_of("massive", "train").items()}
    write(folder / "train.parquet", turned, LAYOUT["massive"][0])
    assert set(load_task("massive", tmp_path).limited(20).train["id"]) == set(few.train["id"])


@pytest.mark.parametrize("count", [0, -1])
def test_limited_to_nothing_is_refused(tmp_path, count):
    copy_of(tmp_path, "sst2")
    with pytest.raises(ValueError, match=str(count)):
        load_task("sst2", tmp_path).limited(count)


def test_thousands_and_the_page_of_a_task(tmp_path):
    rows = {
        "text": [f"text {number}" for number in range(3000)],
        "label": [number % 2 for number in range(3000)],
    }
    Dataset.from_dict(rows).to_parquet(str(tmp_path / "large.parquet"))
    task = load_task(tmp_path / "large.parquet")
    assert task.limited(1500).title == "large.parquet (1,500 train)"
    page = task._repr_html_()
    assert "2,100" in page and "2 classes" in page and "text 1" not in page  # no row of the data


# --- bad data -------------------------------------------------------------------------------------


def test_an_unknown_task_names_the_known_ones():
    with pytest.raises(ValueError) as caught:
        load_task("sst3")
    assert "'sst3'" in str(caught.value) and all(
        name in str(caught.value) for name in (*EMBEDDED, *TASKS)
    )


def test_a_missing_column_is_named(tmp_path):
    folder = copy_of(tmp_path, "mrpc")
    rows, columns = rows_of("mrpc", "validation"), dict(LAYOUT["mrpc"][0])
    del rows["sentence2"], columns["sentence2"]
    write(folder / "validation.parquet", rows, columns)
    with pytest.raises(
        ValueError, match="validation.parquet of mrpc.*sentence2.*sentence1"
    ) as caught:
        load_task("mrpc", tmp_path)
    assert "['sentence2']" in str(caught.value)


def bare(columns):
    """Columns whose labels are plain numbers: ClassLabel itself refuses to write numbers outside
    its names.
    """
    plain = {ClassLabel: Value("int64"), Image: {"bytes": Value("binary"), "path": TEXT}}
    return {column: plain.get(type(kind), kind) for column, kind in columns.items()}


def outside(path, rows, columns):
    """Write labels and images that the library would refuse or fetch, under its names."""
    import pyarrow.parquet

    write(path, rows, bare(columns))
    table = pyarrow.parquet.read_table(path)
    named = Features(columns).arrow_schema.metadata
    pyarrow.parquet.write_table(table.replace_schema_metadata(named), path)


@pytest.mark.parametrize("split, label", [("train", 7), ("validation", 2), ("train", -2)])
def test_labels_outside_the_classes_are_named(tmp_path, split, label):
    folder = copy_of(tmp_path, "sst2")
    rows = rows_of("sst2", split)
    outside(
        folder / f"{split}.parquet",
        rows | {"label": [label, *rows["label"][1:]]},
        LAYOUT["sst2"][0],
    )
    with pytest.raises(ValueError, match=f"labels outside the 2 classes.*{label}"):
        load_task("sst2", tmp_path)


@pytest.mark.parametrize("split", ["train", "validation"])
def test_a_hidden_label_is_only_possible_in_a_test_split(tmp_path, split):
    """-1 means hidden; no model can be trained or chosen on it."""
    folder = copy_of(tmp_path, "mrpc")
    rows = rows_of("mrpc", split)
    outside(
        folder / f"{split}.parquet", rows | {"label": [-1, *rows["label"][1:]]}, LAYOUT["mrpc"][0]
    )
    with pytest.raises(ValueError, match=split):
        load_task("mrpc", tmp_path)


def test_splits_whose_classes_have_another_order_are_refused(tmp_path):
    folder = copy_of(tmp_path, "mrpc")
    write(
        folder / "test.parquet",
        rows_of("mrpc", "test"),
        LAYOUT["mrpc"][0] | {"label": ClassLabel(names=["equivalent", "not_equivalent"])},
    )
    with pytest.raises(ValueError, match="equivalent"):
        load_task("mrpc", tmp_path)


def test_repeated_ids_are_named(tmp_path):
    folder = copy_of(tmp_path, "massive")
    rows = rows_of("massive", "train")
    write(
        folder / "train.parquet",
        rows | {"id": ["same", "same", *rows["id"][2:]]},
        LAYOUT["massive"][0],
    )
    with pytest.raises(ValueError, match="train.parquet.*massive_en"):
        load_task("massive", tmp_path)


@pytest.mark.parametrize(
    "lost", [["train"], ["validation", "test"], ["train", "validation", "test"]]
)
def test_a_lacking_split_names_the_folder_and_what_it_needs(tmp_path, lost):
    folder = copy_of(tmp_path, "sst2")
    for split in lost:
        (folder / f"{split}.parquet").unlink()
    (folder / "LICENSE.txt").write_text("terms")
    with pytest.raises(FileNotFoundError) as caught:
        load_task("sst2", tmp_path)
    message = str(caught.value)
    assert (
        str(folder) in message
        and "'sst2'" in message
        and "train.parquet" in message
        and "LICENSE.txt" in message
    )


def test_nothing_to_report_on_is_said(tmp_path):
    folder = copy_of(tmp_path, "sst2")
    (folder / "validation.parquet").unlink()  # the test's labels are hidden
    with pytest.raises(ValueError, match="neither a labelled test"):
        load_task("sst2", tmp_path)
    with pytest.raises(ValueError, match="'test'"):
        cut_splits({"test": Dataset.from_dict({"id": ["a"], "label": [0]})})


def test_what_was_looked_for_is_said(tmp_path, monkeypatch):
    with pytest.raises(FileNotFoundError) as caught:
        load_task("massive")
    assert "neither data_dir nor COMPATKIT_DATA is set" in str(
        caught.value
    ) and "AmazonScience/massive" in str(caught.value)
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
    monkeypatch.setenv("COMPATKIT_DATA", str(tmp_path / "second"))
    with pytest.raises(FileNotFoundError) as caught:
        load_task("massive", tmp_path / "first")
    message = str(caught.value)
    assert (
        "'massive_en'" in message
        and str(tmp_path / "first") in message
        and str(tmp_path / "second") in message
    )


# --- pydoc ----------------------------------------------------------------------------------------


def test_pydoc_is_three_disjoint_splits_of_real_text():
    task = load_task("pydoc")
    assert load_task("pydoc") is task and task.source == "python"
    assert len(task.classes) == len(PYDOC_MODULES) and "decimal" in task.classes
    splits = (task.train, task.selection, task.test)
    count = sum(map(len, splits))
    assert count > 1000 and [round(len(split) / count, 2) for split in splits] == [0.60, 0.15, 0.25]
    for field in ("id", "text"):
        values = [value for split in splits for value in split[field]]
        assert len(set(values)) == count
    assert all(len(text) >= 20 for text in task.test["text"])
    assert set(task.train["label"]) == set(task.test["label"]) == set(range(len(PYDOC_MODULES)))
    by_id = dict(zip(task.train["id"], task.train["label"])) | dict(
        zip(task.test["id"], task.test["label"])
    )
    assert {task.classes[label] for name, label in by_id.items() if name.startswith("email.")} == {
        "email"
    }


def test_pydoc_is_the_same_in_another_process(from_the_hub):
    """Whatever the seed of Python's own hashes."""
    found = dict(from_the_hub["pydoc"])
    assert found.pop("source") == "python"
    assert found == described(load_task("pydoc"))


@pytest.fixture
def library(tmp_path, monkeypatch):
    """A standard library of our own, whose modules must not be imported; returns a function that
    writes a source file.
    """

    def write_source(path, body):
        file = tmp_path / "lib" / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(
            f'{body}\nopen({str(tmp_path / "imported")!r}, "w").close()\nraise SystemExit("a '
            'parsed module was imported")\n'
        )

    for number, module in enumerate(PYDOC_MODULES):
        body = f'"""The module {module}, made for a test."""\n' + "\n".join(
            f'def f{n}(): "The function number {n} of {module}."' for n in range(8)
        )
        write_source(f"{module}.py" if number % 2 else f"{module}/__init__.py", body)
    monkeypatch.setattr(
        compatkit.training.tasks.sysconfig, "get_paths", lambda: {"stdlib": str(tmp_path / "lib")}
    )
    compatkit.training.tasks._pydoc.cache_clear()
    yield write_source
    compatkit.training.tasks._pydoc.cache_clear()
    assert not (tmp_path / "imported").exists()


def every_text(task):
    return {
        text: name
        for split in (task.train, task.selection, task.test)
        for text, name in zip(split["text"], split["id"])
    }


def test_pydoc_parses_and_never_imports(library):
    before = set(sys.modules)
    task = load_task("pydoc")
    assert len(every_text(task)) == 9 * len(PYDOC_MODULES)
    assert not {name for name in set(sys.modules) - before if name.split(".")[0] in PYDOC_MODULES}


def test_pydoc_leaves_out_what_is_shared_short_or_a_test(library):
    one, two = PYDOC_MODULES[0], PYDOC_MODULES[2]  # packages
    library(
        f"{one}/one.py",
        '"""Words that two modules have in common."""\ndef a(): "Short."\ndef b(): "Said twice in '
        'one and the same module."',
    )
    said = 'class C:\n    "Said twice in one and the same module."\n'
    library(
        f"{one}/two.py",
        said + '    def inner(self):\n        """A function of a class, indented\n        over '
        'lines."""',
    )
    library(f"{two}/one.py", '"""Words that two modules have in common."""')
    library(f"{one}/test/deep.py", '"""A text of a test, which does not count."""')
    library(f"{two}/tests/deep.py", '"""A text of other tests, which does not count."""')
    getter = '    @property\n    def size(self): "What the getter of size says."\n'
    setter = '    @size.setter\n    def size(self, value): "What the setter of size says."'
    library(f"{one}/three.py", "class C:\n" + getter + setter)
    found = every_text(load_task("pydoc"))
    assert not {"Words that two modules have in common.", "Short."} & set(found)
    assert not [text for text in found if "does not count" in text]
    assert found["Said twice in one and the same module."] == f"{one}.one.b"
    assert found["A function of a class, indented over lines."] == f"{one}.two.C.inner"
    assert found["What the getter of size says."] == f"{one}.three.C.size"
    assert found["What the setter of size says."] == f"{one}.three.C.size#2"


def test_pydoc_names_the_modules_without_sources(library, tmp_path):
    number = PYDOC_MODULES.index("tarfile")
    source = tmp_path / "lib" / ("tarfile.py" if number % 2 else "tarfile/__init__.py")
    source.unlink()
    with pytest.raises(FileNotFoundError, match="tarfile"):
        load_task("pydoc")


# --- a file of one's own --------------------------------------------------------------------------

OWN = {
    "text": [f"my text, number {number}" for number in range(40)],
    "label": ["bad" if number % 4 else "good" for number in range(40)],
}


def own(path, rows):
    """A person's own file, written without the library that reads it."""
    names = list(rows)
    lines = [dict(zip(names, values)) for values in zip(*rows.values())]
    if path.suffix == ".csv":
        with open(path, "w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, names)
            writer.writeheader()
            writer.writerows(lines)
    elif path.suffix == ".jsonl":
        path.write_text(
            "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines), encoding="utf-8"
        )
    else:
        import pyarrow
        import pyarrow.parquet

        pyarrow.parquet.write_table(pyarrow.table(rows), path)
    return path


each_kind = pytest.mark.parametrize("kind", ["csv", "jsonl", "parquet"])


@each_kind
def test_an_own_file_without_splits_is_cut_by_hash(tmp_path, kind):
    task = load_task(own(tmp_path / f"mine.{kind}", OWN))
    assert (task.name, task.title, task.source, task.classes) == (
        "mine",
        f"mine.{kind}",
        "file",
        ("bad", "good"),
    )
    assert (len(task.train), len(task.selection), len(task.test)) == (
        28,
        6,
        6,
    ) and "70 % train" in task.rule
    labels = dict(zip(OWN["text"], OWN["label"]))
    for split in (task.train, task.selection, task.test):
        assert [task.classes[label] for label in split["label"]] == [
            labels[text] for text in split["text"]
        ]
    turned = {column: values[::-1] for column, values in OWN.items()}
    (tmp_path / "turned").mkdir()
    assert described(load_task(own(tmp_path / "turned" / f"mine.{kind}", turned))) == described(
        task
    )


def test_an_own_file_is_the_same_task_in_every_kind_of_file(tmp_path):
    prints = {
        load_task(own(tmp_path / f"mine.{kind}", OWN)).fingerprint
        for kind in ("csv", "jsonl", "parquet")
    }
    assert len(prints) == 1


@each_kind
@pytest.mark.parametrize("word", ["validation", "selection"])
def test_an_own_file_may_name_its_splits(tmp_path, kind, word):
    splits = ["train"] * 20 + [word] * 8 + ["test"] * 12
    task = load_task(
        str(
            own(
                tmp_path / f"mine.{kind}",
                OWN | {"split": splits, "id": [f"n{number}" for number in range(40)]},
            )
        )
    )
    assert list(task.train["id"]) != [] and set(task.train["id"]) == {
        f"n{number}" for number in range(20)
    }
    assert set(task.selection["id"]) == {f"n{number}" for number in range(20, 28)}
    assert set(task.test["id"]) == {f"n{number}" for number in range(28, 40)}


def test_an_own_file_with_two_of_three_splits(tmp_path):
    task = load_task(own(tmp_path / "a.csv", OWN | {"split": ["train"] * 20 + ["test"] * 20}))
    assert (len(task.train), len(task.selection), len(task.test)) == (18, 2, 20)
    task = load_task(own(tmp_path / "b.csv", OWN | {"split": ["train"] * 20 + ["validation"] * 20}))
    assert (len(task.train), len(task.selection), len(task.test)) == (20, 10, 10)
    with pytest.raises(ValueError, match="neither a labelled test split"):
        load_task(own(tmp_path / "c.csv", OWN | {"split": ["train"] * 40}))


def test_other_columns_can_be_named(tmp_path):
    rows = {
        "question": OWN["text"],
        "answer": [f"answer {number % 7}" for number in range(40)],
        "verdict": OWN["label"],
        "unused": [0.5] * 40,
    }
    task = load_task(
        own(tmp_path / "pairs.jsonl", rows), text=("question", "answer"), label="verdict"
    )
    assert task.text_fields == ("question", "answer") and task.classes == ("bad", "good")
    assert set(task.train.column_names) == {"id", "label", "question", "answer"}
    assert load_task(tmp_path / "pairs.jsonl", text="question", label="verdict").text_fields == (
        "question",
    )


@each_kind
def test_labels_that_are_numbers_keep_their_order(tmp_path, kind):
    rows = OWN | {"label": [number % 12 for number in range(40)]}
    task = load_task(own(tmp_path / f"mine.{kind}", rows))
    assert task.classes == tuple(str(number) for number in range(12))
    wanted = dict(zip(rows["text"], rows["label"]))
    assert [wanted[text] for text in task.train["text"]] == list(task.train["label"])


def test_class_names_of_an_own_parquet_file_are_kept(tmp_path):
    path = tmp_path / "mine.parquet"
    write(
        path,
        {"text": OWN["text"], "label": [number % 2 for number in range(40)]},
        {"text": TEXT, "label": ClassLabel(names=["zebra", "ant"])},
    )
    task = load_task(path)
    assert task.classes == ("zebra", "ant")
    assert {
        (int(text.split()[-1]) % 2, label)
        for text, label in zip(task.train["text"], task.train["label"])
    } == {(0, 0), (1, 1)}


def test_words_that_look_like_nothing_are_words(tmp_path):
    """Readers of csv files like to turn 'NA' and 'null' into missing values, and 007 into 7."""
    texts = [
        "NA",
        "null",
        "None",
        "nan",
        "1.50",
        "007",
        "true",
        "two\nlines",
        'a "quoted" text, with a comma',
        "ü",
        *OWN["text"],
    ]
    labels = ["NA" if number % 2 else "EU" for number in range(len(texts))]
    ids = [f"{number:03}" for number in range(len(texts))]
    tasks = [
        load_task(own(tmp_path / f"mine.{kind}", {"id": ids, "text": texts, "label": labels}))
        for kind in ("csv", "jsonl", "parquet")
    ]
    for task in tasks:
        assert task.classes == ("EU", "NA")
        assert {name: text for text, name in every_text(task).items()} == dict(zip(ids, texts))
    assert len({task.fingerprint for task in tasks}) == 1


@each_kind
def test_missing_labels_and_texts_are_refused(tmp_path, kind):
    for number, labels in enumerate((OWN["label"], [0, 1] * 20)):
        with pytest.raises(ValueError, match="no label"):
            load_task(
                own(tmp_path / f"labels{number}.{kind}", OWN | {"label": [None, *labels[1:]]})
            )
    if kind != "csv":  # there nothing and an empty text are written alike
        with pytest.raises(ValueError, match="texts.*without 'text'"):
            load_task(own(tmp_path / f"texts.{kind}", OWN | {"text": [None, *OWN["text"][1:]]}))


def test_a_label_of_minus_one_is_not_taken_for_hidden_in_silence(tmp_path):
    rows = OWN | {"label": [-1 if number % 2 else 1 for number in range(40)]}
    with pytest.raises(ValueError, match="-1"):
        load_task(own(tmp_path / "mine.csv", rows))


def test_an_unknown_split_is_named(tmp_path):
    with pytest.raises(ValueError, match="'dev'"):
        load_task(
            own(tmp_path / "a.jsonl", OWN | {"split": ["train"] * 20 + ["dev"] * 8 + ["test"] * 12})
        )
    with pytest.raises(ValueError, match="split"):
        load_task(
            own(tmp_path / "b.jsonl", OWN | {"split": ["train"] * 20 + [None] * 8 + ["test"] * 12})
        )


@pytest.mark.parametrize("count", [0, 1, 3])
def test_a_file_too_small_for_three_splits_is_refused(tmp_path, count):
    with pytest.raises(ValueError, match="mine.csv"):
        load_task(
            own(tmp_path / "mine.csv", {column: values[:count] for column, values in OWN.items()})
        )


def test_bad_own_files_are_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="no file.*absent.csv"):
        load_task(tmp_path / "absent.csv")
    with pytest.raises(ValueError, match="mine.csv lacks the column.*sentence.*text"):
        load_task(own(tmp_path / "mine.csv", OWN), text=("sentence",))
    with pytest.raises(ValueError, match="mine.csv lacks the column.*verdict"):
        load_task(tmp_path / "mine.csv", label="verdict")
    with pytest.raises(ValueError, match="twice.csv: repeated ids.*'x'"):
        load_task(own(tmp_path / "twice.csv", OWN | {"id": ["x", "x", *map(str, range(38))]}))
    with pytest.raises(ValueError, match="same.csv"):
        load_task(
            own(tmp_path / "same.csv", OWN | {"text": ["the same text"] * 2 + OWN["text"][2:]})
        )


def test_reading_an_own_file_leaves_nothing_behind(tmp_path):
    """No copy of a person's data in a cache, and a file that changed is read anew."""
    script = """
import json, sys
from pathlib import Path
from compatkit.training.tasks import load_task
sizes = []
for count in (20, 40):
    Path(sys.argv[1]).write_text("text,label\\n" + "".join(f"text {n},{n % 2}\\n" for n in range(count)))
    task = load_task(sys.argv[1])
    sizes.append(len(task.train) + len(task.selection) + len(task.test))
print(json.dumps(sizes))
"""  # noqa: E501
    assert in_another_process(
        script, str(tmp_path / "mine.csv"), HF_HOME=str(tmp_path / "home")
    ) == [20, 40]
    left = [
        path for path in (tmp_path / "home").rglob("*") if path.is_file() and path.stat().st_size
    ]
    assert left == []


def test_every_set_of_the_hub_is_read_at_one_commit():
    nowhere = {name for name, source in TASKS.items() if not source.hub}
    assert nowhere == {"imagenet", "inaturalist"}  # folders of pictures
    assert {len(TASKS[name].revision) for name in {*TASKS} - nowhere} == {40}
