"""Proof: a published table comes out as it is kept, and whatever is changed in it is found."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from made_studies import edit_records
from pyarrow import parquet

from compatkit.experiments.judging.kept_answers import Shelf
from compatkit.experiments.judging.result_pages import write_pages
from compatkit.experiments.judging.verification import (
    compare_rows,
    renew_tables,
    verify,
    verify_evidence,
    verify_outputs,
    verify_pages,
    verify_readme,
    verify_saved,
    verify_study,
    verify_table,
)
from compatkit.experiments.reporting.result_tables import Row, Text, kept_tables
from compatkit.experiments.running.store import content_hash, read_predictions, read_records

ROOT = Path(__file__).resolve().parents[3]
NAME = "gated_fusion-pydoc-mini-a-main"


def verdict(study, truth, name=NAME):
    shelf = Shelf(study.parent)
    shelf._truths["pydoc", "", "mini", ""] = truth
    return verify_table(shelf.table(name))


def tamper(study, change, name=NAME):
    """Change a kept table's content."""
    path = study / "tables.json"
    tables = json.loads(path.read_text())
    change(tables[name])
    path.write_text(json.dumps(tables))


def row(table, method):
    return next(one for one in table["rows"] if one["method"] == method)


def test_a_published_table_comes_out_as_it_is_kept(study, truth):
    found = verdict(study, truth)
    assert found.word in ("same", "within rounding") and found.numbers > 200, found


def digit(table):
    row(table, "dynamic distillation")["nfr"][0] += 1e-7


def selection_digit(table):
    row(table, "new model")["selection"]["accuracy"][0] += 1e-7


def seed_digit(table):
    row(table, "gated fusion")["by_seed"][1]["pfr"] += 1e-7


def interval_digit(table):
    row(table, "gated fusion")["difference"][1] += 1e-7


def mixed_digit(table):
    row(table, "old-new logits")["nfr"][0] += 0.004


def deleted_row(table):
    table["rows"].remove(row(table, "dynamic distillation"))


def added_row(table):
    table["rows"].append(row(table, "new model") | {"method": "another model"})


def fewer_seeds(table):
    row(table, "gated fusion")["by_seed"].pop()


def seeds_of_another_mean(table):
    for one in row(table, "gated fusion")["by_seed"]:
        one["nfr"] += 0.03


def setting(table):
    row(table, "dynamic distillation")["setting"] = "λ 10, T 1"


def gate_setting(table):
    row(table, "gated fusion")["setting"] = "D 50%, T 1.0, lr2 0.0001"


def weight(table):
    row(table, "old-new probabilities")["setting"]["values"]["weight"] += 0.1


def record(table):
    row(table, "dynamic distillation")["new"][0] = row(table, "new model")["new"][0]


def order_of_records(table):
    row(table, "gated fusion")["new"].reverse()


def further_record(table):
    row(table, "gated fusion")["new"].append(row(table, "new model")["new"][0])


def unknown_record(table):
    row(table, "gated fusion")["new"][0] = "gated_fusion-0000000000000000"


def texts(table):
    """The notes that hold numbers."""
    return [one for one in table["notes"] if isinstance(one, dict)]


def note_about_sizes(table):
    table["notes"][0]["values"]["test"] += 1


def note_about_votes(table):
    (note,) = (one for one in texts(table) if "windows" in one["values"])
    note["values"]["windows"] = note["values"]["windows"].replace("share 4", "share 3")


def note_about_seeds(table):
    (note,) = (one for one in texts(table) if "tried_seeds" in one["values"])
    note["values"]["tried_seeds"] = 1


@pytest.mark.parametrize(
    "change",
    [digit, selection_digit, seed_digit, interval_digit, mixed_digit]
    + [
        fewer_seeds,
        seeds_of_another_mean,
        setting,
        gate_setting,
        weight,
        record,
        order_of_records,
        further_record,
        unknown_record,
    ]
    + [note_about_sizes, note_about_votes, note_about_seeds],
)
def test_whatever_is_changed_in_a_table_is_found(study, truth, change):
    before = (study / "tables.json").read_text()
    tamper(study, change)
    assert json.loads(before) != json.loads((study / "tables.json").read_text())
    assert verdict(study, truth).word == "differs"


@pytest.mark.parametrize("change", [deleted_row, added_row])
def test_a_row_that_is_lost_or_added_is_found(study, truth, change):
    """By the digest of the table that its verdicts were judged on."""
    shutil.copy(ROOT / "results" / "evidence.json", study.parent)
    tamper(study, change)
    shelf = Shelf(study.parent)
    shelf._truths["pydoc", "", "mini", ""] = truth
    assert verify_evidence(shelf, [NAME], study.parent).word == "differs"


def test_a_weight_that_todays_rule_does_not_take_is_chosen_again(study, truth):
    before = row(json.loads((study / "tables.json").read_text())[NAME], "old-new logits")
    other = before["setting"] | {"values": {"weight": 0.9}}
    tamper(study, lambda table: row(table, "old-new logits").update(setting=other))
    shelf = Shelf(study.parent)
    shelf._truths["pydoc", "", "mini", ""] = truth
    assert NAME in renew_tables(shelf, study.parent)
    after = row(json.loads((study / "tables.json").read_text())[NAME], "old-new logits")
    assert after["setting"] == before["setting"]
    assert after["nfr"] == pytest.approx(before["nfr"], abs=2e-3)  # logits are kept in half


def flipped(study, run):
    """Change one predicted class of a run on test."""
    path = study / "predictions.parquet"
    table = parquet.read_table(path, partitioning=None)
    rows = table.to_pylist()
    place = next(n for n, one in enumerate(rows) if (one["run"], one["split"]) == (run, "test"))
    numbers = [one["number"] for one in rows]
    numbers[place][0] = (numbers[place][0] + 1) % 12
    column = table.schema.get_field_index("number")
    field = table.schema.field("number")
    import pyarrow

    changed = table.set_column(column, field, pyarrow.array(numbers, field.type))
    parquet.write_table(changed, path)


def test_one_changed_prediction_is_found_and_so_is_one_whose_hash_was_changed_too(study, truth):
    run = kept_tables(study.parent)[NAME].rows[2].records[0]
    flipped(study, run)
    assert "was changed" in verify_study(study).detail
    assert "was changed" in verdict(study, truth).detail
    known = read_records(study)[run]["predictions"]["test"]
    changed = content_hash(read_predictions(study, run, "test"))
    edit_records(study, lambda text: text.replace(known, changed))
    assert verify_study(study).word == "same"
    found = verdict(study, truth)
    assert found.word == "differs" and "dynamic distillation" in found.detail


def test_predictions_without_a_record_and_records_that_were_edited_are_found(study):
    edit_records(study, lambda text: text.partition("\n")[2])
    assert "no record names" in verify_study(study).detail
    edit_records(study, lambda text: text.replace('"seed": ', '"seed": 7', 1))
    found = verify_study(study)
    assert found.word == "differs" and "was changed" in found.detail


def test_a_changed_sentence_of_a_page_is_found(study):
    write_pages(study.parent)
    assert [one.word for one in verify_pages(study.parent)] == ["same"]
    page = study.parent / "gated-fusion.md"
    page.write_text(page.read_text().replace("the least", "the most").replace("655", "656"))
    (found,) = verify_pages(study.parent)
    assert found.word == "differs" and found.name == "results/gated-fusion.md"
    tamper(study, lambda table: table["notes"].append("all is well"))
    assert {one.name for one in verify_pages(study.parent)} == {"results/gated-fusion.md"}


def test_a_picture_older_than_its_table_is_found(study):
    write_pages(study.parent)
    (picture,) = study.glob(f"{NAME}.svg")
    picture.write_text(picture.read_text().replace("drawn from ", "drawn from 0"))
    (found,) = verify_pages(study.parent)
    assert found.word == "differs" and found.name == f"results/{study.name}/{NAME}.svg"


@pytest.mark.parametrize("change", ["a digit", "a row"])
def test_a_changed_digit_and_a_deleted_row_of_the_csv_are_found(study, change):
    write_pages(study.parent)
    file = study.parent / "results.csv"
    lines = file.read_text().splitlines(keepends=True)
    if change == "a row":
        del lines[5]
    else:
        digit = next(one for one in reversed(lines[5]) if one.isdigit())
        lines[5] = lines[5].replace(digit, str((int(digit) + 1) % 10), 1)
    file.write_text("".join(lines))
    assert [(one.name, one.word) for one in verify_pages(study.parent)] == [
        ("results/results.csv", "differs")
    ]


def test_a_page_says_how_many_runs_an_unclean_tree_made(study):
    page = study.parent / "gated-fusion.md"
    edit_records(study, lambda text: text.replace('"dirty": false', '"dirty": true', 3))
    write_pages(study.parent)
    assert " runs were recorded from a tree with uncommitted changes, " in page.read_text()
    edit_records(study, lambda text: text.replace('"dirty": true', '"dirty": false'))
    found = {one.name for one in verify_pages(study.parent)}
    assert found == {"results/README.md", "results/gated-fusion.md"}
    write_pages(study.parent)
    assert "uncommitted changes" not in page.read_text()


def test_a_changed_verdict_of_the_readme_is_found(tmp_path):
    shutil.copytree(ROOT / ".ci", tmp_path / ".ci")
    for name in ("README.md", "CONTRIBUTING.md"):
        shutil.copy(ROOT / name, tmp_path / name)
    for name in ("results", "nbs", "compatkit", "examples", "settings.ini"):
        (tmp_path / name).symlink_to(ROOT / name)
    readme = tmp_path / "README.md"
    claims = readme.read_text().split("<!-- written: claims -->")[1]
    assert "reproduced on" in claims
    changed = claims.replace("reproduced on", "open on", 1)
    readme.write_text(readme.read_text().replace(claims, changed))
    found = verify_readme(tmp_path)
    assert found.word == "differs" and "claims" in found.detail
    assert verify_readme(tmp_path / "results").word == "not checked"


SHOWN = ("claim_verdicts", "equal_accuracy", "open_questions")


@pytest.mark.parametrize("module", SHOWN)
def test_a_changed_word_of_a_saved_verdict_or_summary_is_found(tmp_path, module):
    folder = tmp_path / "nbs/experiments/judging"
    folder.mkdir(parents=True)
    for name in SHOWN:
        shutil.copy(ROOT / "nbs/experiments/judging" / f"{name}.ipynb", folder)
    file = folder / f"{module}.ipynb"
    notebook = json.loads(file.read_text())
    shown = [
        output["data"]
        for cell in notebook["cells"]
        for output in cell.get("outputs", [])
        if "data" in output
    ]
    for data in shown:
        for kind, text in data.items():
            data[kind] = (
                "".join(text)
                .replace("opposite", "reproduced")
                .replace("| 0.", "| 9.")
                .replace("| 3", "| 9")
            )
    file.write_text(json.dumps(notebook))
    words = {one.name: one.word for one in verify_saved(tmp_path, ROOT / "results")}
    assert words.pop(f"nbs/experiments/judging/{module}.ipynb") == "differs"
    assert set(words.values()) == {"same"}


def test_a_notebooks_output_shows_the_kept_table(tmp_path):
    table = kept_tables(ROOT / "results")[NAME]
    shown = {"data": {"text/html": [table._repr_html_()]}}
    file = tmp_path / "gated_fusion.ipynb"
    file.write_text(json.dumps({"cells": [{"outputs": [shown]}, {}]}))
    (found,) = verify_outputs(file, {table.title: table})
    assert found.word == "same" and found.numbers > 80
    other = replace(table, rows=(replace(table.rows[0], accuracy=(0.5, 0.1)), *table.rows[1:]))
    (found,) = verify_outputs(file, {table.title: other})
    assert found.word == "differs" and "50.00 ± 10.00" in found.detail
    assert verify_outputs(file, {}) == []
    own = {"data": {"text/html": [other._repr_html_()]}}
    for order in ([shown, own], [own, shown]):
        file.write_text(json.dumps({"cells": [{"outputs": order}]}))
        assert [one.word for one in verify_outputs(file, {table.title: table})] == ["same"]


def test_tables_follow_a_changed_rule_without_training(study, truth):
    tamper(study, weight)
    tamper(study, interval_digit)
    shelf = Shelf(study.parent)
    shelf._truths["pydoc", "", "mini", ""] = truth
    shelf.tables = {NAME: shelf.tables[NAME], "gated_fusion-pydoc-mini-a-lost": lost(shelf)}
    renewed, refused = renew_tables(shelf, study.parent)
    assert renewed == NAME and "lost not renewed: the run nowhere is named" in refused
    found = verdict(study, truth)
    assert found.word in ("same", "within rounding"), found


def lost(shelf):
    """A table of which a run is not published."""
    table = shelf.tables[NAME]
    rows = [replace(row, new=("nowhere",) * row.seeds) for row in table.rows[:1]]
    return replace(table, rows=(*rows, *table.rows[1:]))


def test_data_that_are_not_at_hand_leave_a_table_unchecked(tmp_path, monkeypatch):
    monkeypatch.delenv("COMPATKIT_DATA", raising=False)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    shutil.copytree(ROOT / "results" / "gated-fusion-mrpc", tmp_path / "gated-fusion-mrpc")
    nowhere = str(tmp_path / "nowhere")
    name = "gated_fusion-mrpc-mini-a-1"
    found = next(one for one in verify([name], nowhere, 1, results=tmp_path) if one.name == name)
    assert found.word == "not checked" and "data" in found.detail
    with pytest.raises(ValueError, match="has no table nothing"):
        list(verify(["nothing"], results=tmp_path))


def test_a_whole_pass_reads_the_predictions_of_every_study(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    study = tmp_path / "gated-fusion-mrpc"
    shutil.copytree(ROOT / "results" / study.name, study)

    def word():
        """The verdict on the study, in a pass over everything."""
        found = {one.name: one.word for one in verify((), str(tmp_path / "nowhere"), 1, tmp_path)}
        return found[f"results/{study.name}"]

    assert word() == "same"
    flipped(study, next(iter(read_records(study))))
    assert word() == "differs"


PRICE = Text("price {price:g}; needs it", {"price": 2.0})
ONE = Row("it", PRICE, 3, accuracy=(0.8, 0.01), nfr=(0.1, 0.0), new=("a",))


@pytest.mark.parametrize(
    "made, allowed, fine",
    [
        (ONE, 1e-9, True),
        (replace(ONE, accuracy=(0.8 + 1e-12, 0.01)), 1e-9, True),
        (replace(ONE, accuracy=(0.8005, 0.01)), 1e-9, False),
        (replace(ONE, accuracy=(0.8005, 0.01)), 0.0006, True),
        (replace(ONE, accuracy=(0.8007, 0.01)), 0.0006, False),
        (replace(ONE, nfr=(float("nan"), 0.0)), 0.0006, False),
        (replace(ONE, seeds=2), 0.0006, False),
        (replace(ONE, setting=replace(PRICE, values={"price": 4.0})), 0.0006, False),
        (replace(ONE, setting=replace(PRICE, form="price {price:g}")), 0.0006, False),
        (replace(ONE, new=("b",)), 0.0006, False),
        (replace(ONE, qualified=False), 0.0006, False),
        (replace(ONE, by_seed=({"nfr": 0.1},)), 0.0006, False),
        (replace(ONE, difference=(0.0, 0.0, 0.0)), 0.0006, False),
    ],
)
def test_rows_are_compared_number_by_number(made, allowed, fine):
    found = compare_rows(ONE, made, allowed)
    assert all(one.gap <= one.allowed for one in found) == fine


def test_measured_percentages_of_a_setting_may_move_where_rounding_may():
    kept, made = (
        replace(ONE, setting=Text("its old model: {old_right:.2%}", {"old_right": value}))
        for value in (0.8711, 0.8712)
    )
    assert all(one.gap <= one.allowed for one in compare_rows(kept, made, 0.0006))
    assert not all(one.gap <= one.allowed for one in compare_rows(kept, made))


def test_saved_verdicts_and_summaries_are_of_todays_tables(tmp_path):
    assert [one.word for one in verify_saved(ROOT, ROOT / "results")] == ["same"] * 3
    assert [one.word for one in verify_saved(ROOT, tmp_path)] == ["differs"] * 3


def test_what_notebooks_show_of_kept_tables_is_todays():
    kept = kept_tables(ROOT / "results")
    titles = {table.title: table for table in kept.values()}
    found = [
        one
        for file in sorted((ROOT / "nbs").glob("*.ipynb"))
        for one in verify_outputs(file, titles)
    ]
    assert [one for one in found if one.word != "same"] == []
    assert "nbs/gated_fusion.ipynb" in {one.name for one in found}


def test_every_row_names_its_records_but_measured_costs():
    for name, table in kept_tables(ROOT / "results").items():
        nameless = [row.method for row in table.rows if row.seeds and not row.records]
        assert not nameless or name.endswith("-cost"), (name, nameless)
