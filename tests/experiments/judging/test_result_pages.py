"""The pages of results/ say what the kept tables say, and say when they are out of step."""

import csv
import json
import re
from math import nan
from pathlib import Path
from shutil import copytree

import pytest
from made_studies import edit_records

from compatkit.experiments.judging.claim_verdicts import CLAIM_VERDICTS, Evidence, judged_claims
from compatkit.experiments.judging.claims import CLAIMS, CONTROL
from compatkit.experiments.judging.result_pages import (
    CSV_COLUMNS,
    PAPERS,
    conclusion,
    headlines,
    origins,
    out_of_step,
    paper_of,
    result_pages,
    shown_in_terminal,
    stale_pictures,
    title_of,
    unclean_runs,
    write_pages,
)
from compatkit.experiments.reporting.result_tables import (
    ResultTable,
    Row,
    keep_table,
    kept_tables,
)
from compatkit.experiments.running.store import read_records, studies, study_name

ROOT = Path(__file__).resolve().parents[3]
PAIRS = ((0.85, 0.01), (0.04, 0.002), (0.06, 0.001), (0.9, 0.01))


@pytest.fixture
def results(tmp_path):
    old = Row("old model", "", 3, (0.8, 0.01))
    new = Row("new model", "", 3, *PAIRS, new=("fine_tune-1", "fine_tune-2"))
    late = Row("late | method", "<b>", 0)
    treated = Row("treated", "strength 1", 3, *PAIRS, difference=(-0.02, -0.03, -0.01))
    table = ResultTable(
        "t", (old, new, treated, late), ("a note",), command="papermill nbs/x.ipynb"
    )
    for name in ("gated_fusion-mrpc-mini-a-1", "muscle-piqa-mini-figure4"):
        keep_table(table, name, results=tmp_path)
    picture = tmp_path / "gated-fusion-mrpc" / "gated_fusion-mrpc-mini-a-1-curve.svg"
    picture.write_text("<svg/>")
    return tmp_path


@pytest.mark.parametrize(
    "name, title",
    [
        ("gated_fusion-sst2-mini-b-2", "Gated Fusion, table 2 on SST-2, upgrade b (mini scale)"),
        (
            "bcwi-massive_adddata-mini-curve",
            "BCWI, curve on MASSIVE with the authors' added data (mini scale)",
        ),
        (
            "distillation-digits-paper-main",
            "Positive-Congruent Training, table 2a on digits (paper scale)",
        ),
        ("muscle-piqa-mini-figure4", "MUSCLE, figure 4 on PIQA (mini scale)"),
        (
            "gated_fusion-mrpc-mini-a-rates",
            "Gated Fusion, section 5.5 on MRPC, upgrade a (mini scale)",
        ),
        (
            "gated_fusion-pydoc-mini-a-main-out_of_fold",
            "Gated Fusion, tables 1 and 2, out of fold, on pydoc, upgrade a (mini scale)",
        ),
    ],
)
def test_titles_are_words(name, title):
    assert title_of(name) == title


def test_a_name_that_is_none_and_a_notebook_without_a_paper_are_refused():
    with pytest.raises(ValueError, match="'table' is no table's name"):
        paper_of("table")
    with pytest.raises(ValueError, match="strange is of no paper"):
        paper_of("strange-mrpc-mini-main")


def test_every_kept_table_stands_in_the_index_and_on_its_papers_page(results):
    pages = result_pages(results)
    for title, page in (
        ("Gated Fusion, table 1 on MRPC, upgrade a (mini scale)", "gated-fusion.md"),
        ("MUSCLE, figure 4 on PIQA (mini scale)", "muscle.md"),
    ):
        assert f"[{title}]({page}#" in pages["README.md"]
        assert f"## {title}" in pages[page] and "- a note" in pages[page]
    assert "bcwi.md" not in pages, "a paper without tables has no page"
    assert "gated-fusion-mrpc/gated_fusion-mrpc-mini-a-1-curve.svg" in pages["gated-fusion.md"]
    assert ".svg" not in pages["muscle.md"]


def test_the_csv_has_every_row_that_was_run_in_fractions(results):
    rows = list(csv.DictReader(result_pages(results)["results.csv"].splitlines()))
    assert tuple(rows[0]) == tuple(CSV_COLUMNS)
    assert [row["method"] for row in rows] == ["old model", "new model", "treated"] * 2
    assert float(rows[1]["nfr"]) == 0.04 and rows[1]["records"] == "fine_tune-1 fine_tune-2"
    assert rows[0]["nfr"] == "" and rows[2]["pays"] == "True"
    assert rows[2]["difference_low"] == "-0.03" and rows[0]["paper"] == "Gated Fusion"


def test_the_csv_has_a_row_a_seed_where_each_is_known(tmp_path):
    seeds = tuple({"n": 10, "accuracy": value, "nfr": 0.1, "nfr_mc": nan} for value in (0.5, 0.7))
    row = Row("treated", "strength 1", 2, (0.6, 0.1), (0.1, 0.0), new=("a", "b"), by_seed=seeds)
    keep_table(ResultTable("t", (row,)), "bcwi-mrpc-mini-main", results=tmp_path)
    lines = list(csv.DictReader(result_pages(tmp_path)["results.csv"].splitlines()))
    assert [(one["seed"], one["accuracy"], one["nfr_mc"]) for one in lines] == [
        ("0", "0.5", ""),
        ("1", "0.7", ""),
    ]
    assert lines[0]["accuracy_std"] == "" and lines[0]["study"] == "bcwi-mrpc"
    assert lines[0]["n"] == "10" and [one["records"] for one in lines] == ["a", "b"]


def test_what_is_out_of_step_is_named_and_written_once(results):
    assert "README.md" in out_of_step(results)
    assert set(write_pages(results)) == set(result_pages(results))
    assert out_of_step(results) == [] == write_pages(results)
    page = results / "gated-fusion.md"
    page.write_text(page.read_text().replace("85.00", "85.01"))
    assert out_of_step(results) == ["gated-fusion.md"]


def test_the_pages_and_pictures_of_this_repository_are_in_step():
    results = Path(__file__).resolve().parents[3] / "results"
    assert out_of_step(results) == [] == stale_pictures(results)


def test_pictures_older_than_their_table_or_without_one_are_named(tmp_path):
    ours = Path(__file__).resolve().parents[3] / "results" / "gated-fusion-pydoc"
    study = tmp_path / ours.name
    copytree(ours, study)
    assert stale_pictures(tmp_path) == []
    (study / "lost.svg").write_text("<svg/>")
    assert stale_pictures(tmp_path) == [f"{study.name}/lost.svg"]
    (study / "lost.svg").unlink()
    tables = json.loads((study / "tables.json").read_text())
    name = "gated_fusion-pydoc-mini-a-main"
    tables[name]["rows"][-1]["nfr"][0] += 0.01
    (study / "tables.json").write_text(json.dumps(tables))
    assert stale_pictures(tmp_path) == [f"{study.name}/{name}.svg"]


def test_the_index_says_how_many_runs_came_from_uncommitted_code(tmp_path):
    assert origins(tmp_path) == ""
    folder = ROOT / "results" / "gated-fusion-pydoc"
    told = origins(ROOT / "results")
    dirty = sum(one["commit"]["dirty"] for one in read_records(folder).values())
    assert f"| gated-fusion-pydoc | {len(read_records(folder))} | {dirty} |" in told
    # which a test above finds in step with what result_pages makes of all tables
    index = (ROOT / "results" / "README.md").read_text(encoding="utf-8")
    assert told in index and "each of the dirty" in told


@pytest.mark.parametrize(
    ("field", "said"),
    [
        ("code_before", " 1 runs were computed where some packages"),
        ("named_before", " 1 runs were computed under another name"),
    ],
)
def test_the_index_says_whose_fingerprint_or_name_was_another_before(tmp_path, field, said):
    folder = ROOT / "results" / "gated-fusion-pydoc"
    copytree(folder, tmp_path / folder.name)
    assert field not in origins(tmp_path)
    added = f'"{field}": "a", "code":'
    edit_records(tmp_path / folder.name, lambda text: text.replace('"code":', added, 1))
    assert said in origins(tmp_path) and origins(tmp_path).count("_before") == 1


def test_every_kept_run_was_computed_by_committed_code():
    """A home may hold a run that an unclean tree made; kept, it could not be traced."""
    unknown = [name for name, known in unclean_runs(ROOT / "results").items() if not known]
    assert not unknown, unknown


def test_runs_by_unknown_code_are_counted(tmp_path):
    folder = ROOT / "results" / "gated-fusion-pydoc"
    copytree(folder, tmp_path / folder.name)
    changed = '"dirty": false', '"dirty": true'
    edit_records(tmp_path / folder.name, lambda text: text.replace(*changed))
    assert not any(unclean_runs(tmp_path).values())
    count = len(read_records(tmp_path / folder.name))
    assert f"For the other {count:,} nobody can tell" in origins(tmp_path)


def test_a_page_begins_with_what_was_reproduced():
    found, tables = judged_claims(ROOT / "results"), kept_tables(ROOT / "results")
    for paper in PAPERS:
        said = conclusion(paper, found, tables)
        tried = [claim for claim, given in found if claim.paper == paper.title and given]
        assert paper.models in said[0] and f"Of {len(tried)} claims" in said[0] and len(said) <= 4
        assert next(one for one in tried if one != CONTROL).sentence in said[1]
        page = (ROOT / "results" / paper.page).read_text(encoding="utf-8")
        assert all(f"- {one}\n" in page for one in said)
    assert conclusion(PAPERS[0], [], tables) == []


_MODELS = {  # what a run's configuration says of its model → what a page calls it
    "resnet": "ResNet",
    "image": "MobileNetV2",
    "linear": "TF-IDF",
    "small": "BERT",
    "encoder": "MiniLM",
    "layers": "MiniLM",
    "pretrain": "Llama",
    "few_shot": "SmolLM2",
}


def test_a_page_names_the_models_that_its_runs_are_of():
    for study in studies(ROOT / "results"):
        name = next(one for one in kept_tables(ROOT / "results") if study_name(one) == study.name)
        about = [record["configuration"] for record in read_records(study).values()]
        kinds = {one.get("recipe", {}).get("model", one["kind"]) for one in about}
        assert kinds.isdisjoint(_MODELS) <= (study.name == "ensembles-tiny-imagenet")
        assert all(_MODELS[kind] in paper_of(name).models for kind in kinds & {*_MODELS}), name


def test_headlines_show_what_the_papers_print_beside_what_was_measured():
    found = headlines(ROOT / "results")
    assert len(found) <= 12, "README's table"
    for one in found:
        numbers = re.findall(r"\d+\.\d\d", one.printed)
        assert len(numbers) == 2
        assert one.seeds >= 3 and any(word in one.verdicts for word in CLAIM_VERDICTS)
        assert one.words.endswith(f"on {one.place}, in the paper {one.printed.split(' ', 1)[1]}")
    focal = next(one for one in found if one.claim.method.startswith("FD-KL"))
    assert focal.printed == "NFR 6.44 → 2.50 %", "table 2a of the paper"
    adapter = next(one for one in found if one.claim.printed[:1] == ("muscle",))
    assert adapter.printed == "NFR 11.59 → 7.62 %", "printed as a change of -3.97"


def test_a_paper_is_shown_in_a_terminal():
    for paper in PAPERS:
        told = shown_in_terminal(paper.page.removesuffix(".md"), ROOT / "results")
        assert "Tried here with" in told and "new model" in told
        assert max(map(len, told.partition("\n\n")[0].splitlines())) <= 100
    with pytest.raises(ValueError, match="'bcw'.*bcwi"):
        shown_in_terminal("bcw", ROOT / "results")


@pytest.mark.parametrize(
    "words, end",
    [
        (["open", "reproduced"], "1 held on at least one"),
        (["reproduced", "opposite"], "1 came out the opposite"),
        (["fewer flips, less accurate", "open"], "1 held at the price of accuracy"),
        (["not tested", "open"], "1 remained open"),
        (["not tested"], "1 could not be tested"),
    ],
)
def test_a_claim_is_counted_once_and_paying_is_no_reproduction(words, end):
    about, tables = PAPERS[1], kept_tables(ROOT / "results")
    claim = next(one for one in CLAIMS if one.paper == about.title and not one.printed)
    names = ("gated_fusion-sst2-mini-a-1", "gated_fusion-mrpc-mini-a-1")
    given = [Evidence(name, word, "its reason") for name, word in zip(names, words)]
    first, headline = conclusion(about, [(claim, given)], tables)
    assert f"Of 1 claims, {end}" in first and claim.sentence in headline
    assert ("its reason" in headline) == ({*words} != {"not tested"})
