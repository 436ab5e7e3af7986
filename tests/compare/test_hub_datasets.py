"""Data sets with two columns of answers: saved by the library `datasets` itself, as on the hub,
and broken ones.
"""

import json

import datasets
import polars as pl
import pytest
from click.testing import CliRunner

from compatkit.cli import app
from compatkit.compare.hub_datasets import is_dataset, names_hub, read_dataset
from compatkit.compare.logs import Wanted
from compatkit.compare.pair import read_columns

ROWS = {
    "id": ["a", "b", "c"],
    "label": ["x", "y", "x"],
    "v1": ["x", "x", "y"],
    "v2": ["x", "y", "x"],
}


@pytest.fixture
def saved(tmp_path):
    """One split, in two Arrow files."""
    datasets.Dataset.from_dict(ROWS).save_to_disk(str(tmp_path / "one"), num_shards=2)
    return tmp_path / "one"


@pytest.fixture
def splits(tmp_path):
    parts = {name: datasets.Dataset.from_dict(ROWS) for name in ("test", "train")}
    datasets.DatasetDict(parts).save_to_disk(str(tmp_path / "several"))
    return tmp_path / "several"


def test_what_the_library_saved(saved):
    assert is_dataset(saved)
    pair = read_columns(saved, "v1", "v2")
    assert pair.n == 3 and (pair.old == pair.label).tolist() == [True, False, False]
    assert (pair.new == pair.label).all()


def test_splits_are_chosen(splits):
    with pytest.raises(ValueError, match="--task"):
        read_columns(splits, "v1", "v2")
    assert read_columns(splits, "v1", "v2", wanted=Wanted(task="train")).n == 3
    with pytest.raises(ValueError, match="did you mean 'test'"):
        read_dataset(splits, {}, "tets")


def test_the_layout_of_the_hub(tmp_path):
    (tmp_path / "data").mkdir()
    for number in range(2):
        path = tmp_path / "data" / f"test-0000{number}-of-00002.parquet"
        pl.DataFrame(ROWS).with_columns(pl.col("id") + str(number)).write_parquet(path)
    assert read_columns(tmp_path, "v1", "v2").n == 6


def test_class_labels_are_numbers_on_both_sides(tmp_path):
    names = datasets.ClassLabel(names=["x", "y"])
    features = datasets.Features({"label": names, "v1": names, "v2": names})
    rows = {name: ROWS[name] for name in ("label", "v1", "v2")}
    datasets.Dataset.from_dict(rows, features=features).save_to_disk(str(tmp_path / "d"))
    pair = read_columns(tmp_path / "d", "v1", "v2")
    assert pair.answers == (0, 1) and "rows are numbered from 1" in pair.notes[-1]


def test_names_of_the_hub():
    from pathlib import Path

    assert names_hub(Path("owner/name"))
    for text in ("name", "owner/name.csv", "a/b/c", "/owner/name"):
        assert not names_hub(Path(text))


def test_no_file_outside_the_folder_is_read(saved):
    state = json.loads((saved / "state.json").read_text())
    state["_data_files"][0]["filename"] = "../other.arrow"
    (saved / "state.json").write_text(json.dumps(state))
    with pytest.raises(ValueError, match="names files outside the folder"):
        read_dataset(saved, {})


def test_broken_folders_are_named(saved):
    for state, told in (
        ("{}", "one: this data set is broken"),
        ("{", "one: state.json is no whole JSON"),
        ('{"_data_files": []}', "one: state.json names no files"),
    ):
        (saved / "state.json").write_text(state)
        with pytest.raises(ValueError, match=told):
            read_dataset(saved, {})


def test_a_file_that_is_missing_from_a_folder_is_named(saved):
    next(saved.glob("*.arrow")).unlink()
    with pytest.raises(ValueError, match="one.*arrow"):
        read_dataset(saved, {})


def test_the_command(splits):
    arguments = ["compare", str(splits), "--old", "v1", "--new", "v2", "--task", "test", "--json"]
    assert json.loads(CliRunner().invoke(app, arguments).output)["examples"] == 3
