"""The module `result_tables`: rows against hand-made counts, what pays is marked, tables come back
whole; and the papers' own arithmetic.
"""

import csv
import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from math import isnan, nan, sqrt
from pathlib import Path

import numpy as np
import pytest

import compatkit.experiments.reporting.result_tables
from compatkit.experiments.reporting.result_tables import (
    ResultTable,
    Row,
    Text,
    combined,
    keep_pictures,
    keep_table,
    kept_pictures,
    kept_tables,
    mark_in,
    mark_of_table,
    measure,
    paper_figures,
)
from compatkit.metrics import paired_difference
from compatkit.predictions import Predictions


def answers(right, classes=2):
    """Predictions of ten examples whose right class is 0; where it is wrong, a model says the
    last class.
    """
    right = np.asarray(right, dtype=bool)
    return Predictions(
        id=[f"e{number}" for number in range(len(right))],
        label=np.zeros(len(right), int),
        prediction=np.where(right, 0, classes - 1),
    )


def at(*places):
    return answers([number in places for number in range(10)])


# two seeds; by hand: NFR 2/10 and 0, PFR 3/10 and 1/10, accuracy .8 and .7, as old .5 and .9
OLD = [at(0, 1, 2, 3, 4, 5, 6), at(0, 1, 2, 3, 4, 5)]
NEW = [at(0, 1, 2, 3, 4, 7, 8, 9), at(0, 1, 2, 3, 4, 5, 6)]
TREATED = [at(0, 1, 2, 3, 4, 5, 7, 8), at(0, 1, 2, 3, 4, 5, 6, 7)]


def shuffled(predictions, seed):
    return predictions.select(np.random.default_rng(seed).permutation(predictions.id))


# --- rows -----------------------------------------------------------------------------------------


def kept(table, folder):
    """A table as it comes back out of a file."""
    keep_table(table, "bcwi-x-mini-main", results=folder)
    return kept_tables(folder)["bcwi-x-mini-main"]


def test_words_keep_their_numbers_beside_them_and_lose_none_in_a_file(tmp_path):
    price = Text("price {price:g}; needs {it}", {"price": 0.25, "it": "old answer"})
    told = combined(["{0, 1}", "", price, Text("{gone:.1f}", {"gone": nan})], ", ")
    assert str(told) == "{0, 1}, price 0.25; needs old answer, nan"
    assert combined(["a", "", "b"]) == "a; b"
    row = Row("it", told, choice={"rule": "price"}, qualified=False)
    table = ResultTable("title", (row,), (price, "a note"), form="rule", curves=("logit",))
    again = kept(table, tmp_path)
    assert again.to_markdown() == table.to_markdown() and again.notes == table.notes
    assert (again.rows[0].choice, again.form, again.curves) == (row.choice, "rule", ("logit",))
    assert row.words == f"{told}; no setting qualified"


def test_a_row_holds_what_one_counts_by_hand():
    row = measure("new model", OLD, NEW, setting="as it is")
    assert row.accuracy == pytest.approx((0.75, 0.1 / sqrt(2)))
    assert row.nfr == pytest.approx((0.1, 0.2 / sqrt(2)))
    assert row.pfr == pytest.approx((0.2, 0.2 / sqrt(2)))
    assert row.as_old == pytest.approx((0.7, 0.4 / sqrt(2)))
    assert (row.method, row.setting, row.seeds) == ("new model", "as it is", 2)
    assert row.difference is None and not row.pays and row.selection == {}


def test_as_old_counts_the_same_wrong_answer_too():
    old, new = (
        answers([1, 0, 0, 1], classes=3),
        answers([1, 0, 0, 1], classes=3).replace(prediction=[0, 2, 1, 0]),
    )
    assert measure("m", [old], [new]).as_old[0] == 0.75


def test_the_difference_is_paired_over_seeds_and_examples():
    row = measure("treated", OLD, TREATED, NEW)
    expected = paired_difference([one.correct for one in TREATED], [one.correct for one in NEW])
    assert row.difference == pytest.approx(tuple(expected)) and row.difference[0] == pytest.approx(
        0.05
    )
    assert row.difference[1] < row.difference[0] < row.difference[2]
    assert measure("untreated", OLD, NEW, NEW).difference == (0.0, 0.0, 0.0)


@pytest.mark.parametrize("seed", range(3))
def test_the_order_of_examples_changes_nothing(seed):
    """Also where the two seeds were saved in different orders."""
    generator = np.random.default_rng(seed)
    hard = generator.random(200)  # the same examples are hard for all models
    models = [
        [answers(generator.random(200) + hard > share) for _ in range(3)]
        for share in (0.6, 0.4, 0.5)
    ]
    row = measure("treated", *models, selection=(models[0], models[1]))
    turned = [
        [shuffled(one, seed + 10 * place + number) for number, one in enumerate(group)]
        for place, group in enumerate(models)
    ]
    assert measure("treated", *turned, selection=(turned[0], turned[1])) == row


def test_models_on_selection_are_one_a_seed_as_well():
    with pytest.raises(ValueError):
        measure("treated", OLD, TREATED, selection=(OLD, NEW[:1]))


def test_a_row_loses_by_its_interval_or_by_more_than_the_margin_and_the_lowest_mean_is_best():
    def row(difference, nfr=(0.02, 0.0), method="treated"):
        return Row(method, "", 3, accuracy=(0.8, 0.0), nfr=nfr, difference=difference)

    assert not row(None).loses and not row((0.0, -0.01, 0.01)).loses
    assert row((-0.001, -0.002, -0.0005)).loses  # the interval, wholly below
    assert not row((-0.005, -0.02, 0.01)).loses  # the margin itself may be lost
    assert row((-0.006, -0.02, 0.01)).loses
    even = (0.0, -0.01, 0.01)
    rows = (
        row(None, (0.05, 0.0), "new model"),
        row(even, (0.03, 0.0), "a"),
        row(even, (0.02, 0.01), "b"),
    )
    assert ResultTable("t", rows).best() == "b"  # by the mean, not by the spread


def test_one_seed_has_no_spread():
    row = measure("new model", OLD[:1], NEW[:1], NEW[:1])
    assert row.nfr[0] == 0.2 and isnan(row.nfr[1]) and row.seeds == 1
    assert (
        "20.00 |" in ResultTable("t", (row,)).to_markdown()
        and "nan" not in ResultTable("t", (row,)).to_markdown()
    )


def test_figures_of_the_selection_split_stand_apart():
    row = measure("treated", OLD, TREATED, selection=(OLD, NEW))
    assert row.nfr[0] != row.selection["nfr"][0] == pytest.approx(0.1)
    assert set(row.selection) == {"accuracy", "nfr"} and row.selection["accuracy"] == pytest.approx(
        (0.75, 0.1 / sqrt(2))
    )


def test_what_does_not_join_is_refused():
    for given in ((OLD, NEW[:1]), (OLD, TREATED, NEW[:1]), (OLD[:1], TREATED, NEW), ([], [])):
        with pytest.raises(ValueError, match="seed"):
            measure("m", *given)
    with pytest.raises(ValueError, match="e9"):
        measure("m", OLD, [NEW[0], NEW[1].select(NEW[1].id[:9])])
    with pytest.raises(ValueError, match="labels differ"):
        measure("m", OLD, [NEW[0], NEW[1].replace(label=np.ones(10, int))])


def test_seeds_on_other_examples_have_no_paired_difference():
    """Bootstrapped over examples, row 3 of one seed has to be row 3 of the other."""
    renamed = [
        one[1].replace(id=[f"other {number}" for number in range(10)])
        for one in (OLD, TREATED, NEW)
    ]
    with pytest.raises(ValueError, match="other 0|e0"):
        measure("m", [OLD[0], renamed[0]], [TREATED[0], renamed[1]], [NEW[0], renamed[2]])


@pytest.mark.parametrize(
    "difference, pays",
    [
        (None, False),
        ((-0.02, -0.03, -0.01), True),
        ((-0.02, -0.04, 0.0), False),
        ((-0.02, -0.05, 0.01), False),
        ((0.02, 0.01, 0.03), False),
    ],
)
def test_what_pays_with_accuracy_is_marked(difference, pays):
    row = Row("m", seeds=3, accuracy=(0.9, 0.01), nfr=(0.02, 0.01), difference=difference)
    assert row.pays is pays
    table = ResultTable("t", (row,))
    assert ("pays with accuracy" in table.to_markdown()) is pays and (
        "pays with accuracy" in table._repr_html_()
    ) is pays
    assert table.to_dict()["rows"][0]["pays_with_accuracy"] is pays


def test_copying_the_old_model_pays():
    old, new = [answers(np.arange(400) % 10 < 7)] * 2, [answers(np.arange(400) % 10 < 9)] * 2
    copied = measure("always the old model", old, old, new)
    assert copied.nfr == (0.0, 0.0) and copied.as_old == (1.0, 0.0) and copied.pays
    assert not measure("nothing", old, new, new).pays


# --- the table ------------------------------------------------------------------------------------


def made(method, nfr, low=-0.01, high=0.01, **more):
    given = {
        "seeds": 3,
        "accuracy": (0.9, 0.01),
        "nfr": (nfr, 0.01),
        "pfr": (0.05, 0.01),
        "as_old": (0.8, 0.02),
    }
    return Row(method, **(given | {"difference": ((low + high) / 2, low, high)} | more))


ROWS = (
    made("old model", 0.0, difference=None),
    made("new model", 0.08, difference=None),
    made("payer", 0.01, low=-0.05, high=-0.03),
    made("good", 0.03, setting="weight 0.7"),
    made(
        "fair",
        0.05,
        selection={"accuracy": (0.95, 0.01), "nfr": (0.04, 0.002)},
        new=("run-1", "run-2"),
    ),
    Row("vote of 20"),
)


def test_best_excludes_those_that_pay_and_those_that_were_not_run():
    assert ResultTable("t", ROWS).best() == "good"
    assert ResultTable("t", (*ROWS, made("absent", 0.0, seeds=0))).best() == "good"
    assert ResultTable("t", (*ROWS, made("target model", 0.0))).best() == "good"
    assert ResultTable("t", ROWS[:3]).best() is None and ResultTable("t", ()).best() is None
    # the fewest flips of all treatments are no merit where plain training has as few
    as_new, more = made("as the new model", 0.08), made("more", 0.09)
    assert ResultTable("t", (*ROWS[:2], as_new, more)).best() is None
    assert (
        ResultTable(
            "t", (made("a: new model", 0.08, difference=None), made("b: good", 0.03))
        ).best()
        is None
    )  # two upgrades


def lines_of(markdown):
    """The cells of each line of a Markdown table."""
    lines = [line for line in markdown.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]


def test_the_markdown_table_shows_every_measure():
    header, rule, old, new, payer, good, fair, absent = lines_of(
        ResultTable("title", ROWS, ("a note",)).to_markdown()
    )
    assert len(
        {len(line) for line in (header, rule, old, new, payer, good, fair, absent)}
    ) == 1 and set(rule) == {"---"}
    assert good == [
        "good",
        "weight 0.7",
        "90.00 ± 1.00",
        "3.00 ± 1.00",
        "5.00 ± 1.00",
        "80.00 ± 2.00",
        "+0.00 [-1.00, +1.00]",
        "–",
        "–",
        "3",
    ]
    assert payer[6] == "-4.00 [-5.00, -3.00] (pays with accuracy)"
    assert fair[7:9] == ["95.00 ± 1.00", "4.00 ± 0.20"] and header[7].startswith("on selection")
    assert (
        old[3:6] == ["–", "–", "–"] and old[2] == "90.00 ± 1.00"
    )  # it has no flips against itself
    on_test = lines_of(ResultTable("title", ROWS, reported="test").to_markdown())
    assert on_test[6][7:9] == on_test[6][2:4] != fair[7:9]
    text = ResultTable("title", ROWS, ("a note",)).to_markdown()
    assert text.startswith("**title**") and text.endswith("- a note")


def test_what_has_not_run_says_so():
    absent = lines_of(ResultTable("t", ROWS).to_markdown())[-1]
    assert absent == ["vote of 20", "", "not run", *["–"] * 6, "0"]
    assert "not run" in ResultTable("t", ROWS)._repr_html_()


def test_bars_in_a_name_do_not_break_the_markdown_table():
    table = ResultTable("t", (made("a|b", 0.02, setting="KL(p_o || p_n)"), Row("c|d")))
    lines = lines_of(table.to_markdown())
    assert {len(line) for line in lines} == {10}
    assert lines[2][:2] == ["a\\|b", "KL(p_o \\|\\| p_n)"] and lines[3][0] == "c\\|d"


class Page(HTMLParser):
    """The tags of a page and the text of its cells; bold rows apart."""

    def __init__(self, page):
        super().__init__()
        self.tags, self.rows, self.bold, self.inside = set(), [], [], ""
        self.feed(page)

    def handle_starttag(self, tag, attributes):
        self.tags.add(tag)
        self.inside = tag
        if tag == "tr":
            self.rows.append([])
            self.bold.append("bold" in str(dict(attributes).get("style")))
        if tag in ("td", "th"):
            self.rows[-1].append("")

    def handle_data(self, data):
        if self.inside in ("td", "th"):
            self.rows[-1][-1] += data


def test_the_page_shows_the_same_cells_and_the_best_in_bold():
    table = ResultTable("t", ROWS, paper={("good", "nfr"): (0.78, 0.2)})
    page = Page(table._repr_html_())
    header, lines = table.cells()
    assert page.rows == [header, *lines]
    assert [row[0] for row, bold in zip(page.rows, page.bold) if bold] == ["good"]


def test_text_from_data_is_shown_as_text():
    evil = "<script>alert('x')</script><img src=x onerror=alert(1)>"
    page = Page(
        ResultTable(evil, (made(evil, 0.01, setting=evil), Row(evil)), (evil,))._repr_html_()
    )
    assert not {"script", "img"} & page.tags
    assert page.rows[1][:2] == [evil, evil]


def test_paper_columns_appear_only_when_they_are_given():
    plain = ResultTable("t", ROWS)
    assert not any("paper:" in name and "as in" not in name for name in plain.cells()[0])
    figures = {
        ("good", "accuracy"): (93.05, 0.09),
        ("good", "nfr"): (0.78, 0.2),
        ("fair", "nfr"): (1.5, None),
        ("elsewhere", "nfr"): (9.9, 0.9),
    }
    header, lines = ResultTable("t", ROWS, paper=figures).cells()
    assert len(header) == len(plain.cells()[0]) + 2 and header[-2].startswith("paper")
    by_method = {line[0]: line[-2:] for line in lines}
    assert by_method["good"] == ["93.05 ± 0.09", "0.78 ± 0.20"] and by_method["fair"] == [
        "–",
        "1.50",
    ]
    assert by_method["vote of 20"] == ["–", "–"] and all(
        "9.90" not in cell for line in lines for cell in line
    )


def same(first, second):
    """Equality in which nan equals nan."""
    if isinstance(first, (tuple, list)):
        return len(first) == len(second) and all(map(same, first, second))
    if isinstance(first, dict):
        return first.keys() == second.keys() and all(same(first[key], second[key]) for key in first)
    return first == second or (first != first and second != second)


def refuse(constant):
    raise AssertionError(f"{constant} is no JSON")


def test_a_table_comes_back_whole(tmp_path):
    tried = ((0.0, ("run-1",)), (1.0, ("run-2",)))
    measured = measure("treated", OLD[:1], TREATED[:1], NEW[:1], "weight 1", (OLD, NEW))
    measured = replace(measured, new=("run-2",), tried=tried)
    figures = {("good", "accuracy"): (93.05, 0.09), ("fair", "nfr"): (1.5, None)}
    table = ResultTable(
        "a|title",
        (*ROWS, measured),
        ("note one", "note two"),
        figures,
        "papermill nbs/gated_fusion.ipynb",
    )
    loaded, path = kept(table, tmp_path), tmp_path / "bcwi-x" / "tables.json"
    (content,) = json.loads(path.read_text(encoding="utf-8"), parse_constant=refuse).values()
    assert (
        content["rows"][4]["new"] == ["run-1", "run-2"]
        and content["command"] == "papermill nbs/gated_fusion.ipynb"
    )
    assert [row["pays_with_accuracy"] for row in content["rows"]] == [
        False,
        False,
        True,
        False,
        False,
        False,
        False,
    ]
    assert (loaded.title, loaded.notes, loaded.command, loaded.best()) == (
        table.title,
        table.notes,
        table.command,
        "good",
    )
    for first, second in zip(table.rows, loaded.rows, strict=True):
        assert same(vars(first), vars(second))
    assert loaded.paper == figures
    assert loaded.to_markdown() == table.to_markdown()
    before = path.read_bytes()
    kept(loaded, tmp_path)
    assert path.read_bytes() == before


def test_numbers_of_numpy_are_saved(tmp_path):
    row = Row(
        "m",
        seeds=np.int64(2),
        accuracy=(np.float32(0.5), np.float64(nan)),
        nfr=(np.float64(0.25), np.float32(0.5)),
    )
    (loaded,) = kept(ResultTable("t", (row,)), tmp_path).rows
    assert (
        loaded.seeds == 2
        and loaded.accuracy[0] == 0.5
        and isnan(loaded.accuracy[1])
        and loaded.nfr == (0.25, 0.5)
    )


def test_tables_of_a_study_stand_together_by_name(tmp_path):
    assert kept_tables(tmp_path) == {}
    for name in ("bcwi-mrpc-mini-b", "bcwi-sst2-mini-main", "bcwi-mrpc-mini-a"):
        keep_table(ResultTable(f"table {name}", ROWS), name, results=tmp_path)
    keep_table(ResultTable("again, by α", ROWS), "bcwi-mrpc-mini-b", results=tmp_path)
    assert "by α" in (tmp_path / "bcwi-mrpc" / "tables.json").read_text(encoding="utf-8")
    found = kept_tables(tmp_path)
    assert list(found) == ["bcwi-mrpc-mini-a", "bcwi-mrpc-mini-b", "bcwi-sst2-mini-main"]
    assert found["bcwi-mrpc-mini-b"].title == "again, by α"
    files = sorted(path.relative_to(tmp_path).as_posix() for path in tmp_path.glob("*/*"))
    assert files == ["bcwi-mrpc/tables.json", "bcwi-sst2/tables.json"]


def test_pictures_belong_to_the_table_with_the_longest_name(tmp_path):
    from matplotlib import pyplot

    figure = pyplot.figure()
    for name in ("bcwi-mrpc-mini-main", "bcwi-mrpc-mini-main-late"):
        keep_table(ResultTable(name, ROWS), name, {"-curve": figure}, results=tmp_path)
    pyplot.close(figure)
    for name in ("bcwi-mrpc-mini-main", "bcwi-mrpc-mini-main-late"):
        assert kept_pictures(name, tmp_path) == [f"bcwi-mrpc/{name}-curve.svg"]
    before = (tmp_path / "bcwi-mrpc" / "bcwi-mrpc-mini-main-curve.svg").read_bytes()
    keep_pictures("bcwi-mrpc-mini-main", {"-curve": figure}, tmp_path)
    assert (tmp_path / "bcwi-mrpc" / "bcwi-mrpc-mini-main-curve.svg").read_bytes() == before


def test_a_picture_carries_the_mark_of_what_it_shows(tmp_path):
    from matplotlib import pyplot

    figure = pyplot.figure()
    pyplot.close(figure)
    with pytest.raises(ValueError, match="bcwi-mrpc-mini-main"):
        keep_pictures("bcwi-mrpc-mini-main", {"": figure}, tmp_path)
    table = ResultTable("a title", ROWS)
    keep_table(table, "bcwi-mrpc-mini-main", {"": figure}, results=tmp_path)
    picture = tmp_path / "bcwi-mrpc" / "bcwi-mrpc-mini-main.svg"
    assert mark_in(picture) == mark_of_table(table) != ""
    assert mark_of_table(replace(table, notes=("explained",))) == mark_of_table(table)
    worse = replace(ROWS[1], nfr=(0.081, 0.01))
    for other in (replace(table, title="b"), replace(table, rows=(ROWS[0], worse, *ROWS[2:]))):
        assert mark_of_table(other) != mark_of_table(table)
    picture.write_text(picture.read_text().replace("drawn from", "drawn by"))
    assert mark_in(picture) == ""


# --- the papers' figures --------------------------------------------------------------------------

UPGRADES = {1: "bert-base to bert-large", 2: "bert-base to electra-base"}
GLUE = {
    "sst2": 872,
    "mrpc": 408,
    "qnli": 5463,
}  # examples of the development sets, on which this paper reports
SEEDS = 5
METHODS = [
    "old model",
    "new model",
    "dynamic distillation",
    "vote of 5",
    "old-new probabilities",
    "old-new logits",
    "gated fusion",
]
VOTES = ["vote of 5", "vote of 10", "vote of 20"]
each_cell = pytest.mark.parametrize(
    "table, task", [(table, task) for table in UPGRADES for task in GLUE]
)


def every_line():
    with open(
        Path(compatkit.experiments.reporting.result_tables.__file__).with_name("papers.csv"),
        newline="",
        encoding="utf-8",
    ) as file:
        return list(csv.DictReader(file))


def figures(table, task, upgrade=None):
    """value by (row, measure) of one table, task and upgrade."""
    upgrade = UPGRADES[upgrade or table]
    return {
        key: value
        for key, (value, _) in paper_figures(
            "gated_fusion", table, task=task, upgrade=upgrade
        ).items()
    }


def test_every_figure_is_a_number_and_stands_there_once():
    lines = every_line()
    keys = [
        tuple(line[name] for name in ("paper", "table", "upgrade", "task", "row", "measure"))
        for line in lines
    ]
    assert len(set(keys)) == len(keys)
    for line in lines:
        assert None not in line.values() and None not in line  # no cell too few or too many
        float(line["value"]), float(line["spread"] or 0)
        assert all(value == value.strip() for value in line.values())


def test_figures_are_found_by_row_and_measure():
    found = paper_figures("gated_fusion", 1, task="mrpc", upgrade=UPGRADES[1])
    assert found["new model", "nfr"] == (4.12, 1.04) and found["old model", "accuracy"] == (
        85.69,
        0.90,
    )
    assert paper_figures("gated_fusion", "5.5", task="qnli", upgrade=UPGRADES[2])[
        "gated fusion", "fix_rate"
    ] == (75.6, None)
    assert (
        paper_figures("gated_fusion", 1, task="pydoc", upgrade=UPGRADES[1]) == {}
    )  # a task that the paper does not have


def test_a_question_with_several_answers_is_refused():
    """Without its task, a figure would be that of whichever task stands last in the file."""
    with pytest.raises(ValueError, match="task"):
        paper_figures("gated_fusion", 1, upgrade=UPGRADES[1])
    with pytest.raises(ValueError, match="upgrades"):
        paper_figures("gated_fusion", 1, task="mrpc", upgrades=UPGRADES[1])


def test_gated_fusion_has_all_tables_rows_and_tasks():
    def flips(rows):
        return {
            (row, name)
            for row in rows
            for name in ("accuracy", "nfr")
            if (row, name) != ("old model", "nfr")
        }

    for number in UPGRADES:
        for task in GLUE:
            assert set(figures(number, task)) == flips(METHODS)
            assert set(figures(3, task, number)) == flips(
                ["old model", "new model", *VOTES, "gated fusion"]
            )
            dropped = ("old model", "new model", "gated fusion", "gated fusion, old dropped")
            assert set(figures(4, task, number)) == {(row, "accuracy") for row in dropped}
            assert set(figures("5.5", task, number)) == {
                ("gated fusion", "fix_rate"),
                ("gated fusion", "new_fault_rate"),
            }
    assert set(figures(5, "sst2", 2)) == flips(
        ["old model", "new model", "cache of 50 %", "cache of 75 %", "gated fusion"]
    )
    lines = [line for line in every_line() if line["paper"] == "gated_fusion"]
    assert {line["table"] for line in lines} == {"1", "2", "3", "4", "5", "5.5"}
    assert {line["task"] for line in lines} == set(GLUE) and {
        line["upgrade"] for line in lines
    } == set(UPGRADES.values())
    assert all(bool(line["spread"]) is (line["table"] != "5.5") for line in lines)


@pytest.mark.parametrize("table", [3, 4, 5])
def test_later_tables_repeat_the_first_two(table):
    repeated = 0
    for number, upgrade in UPGRADES.items():
        for task in GLUE:
            first = paper_figures("gated_fusion", number, task=task, upgrade=upgrade)
            later = paper_figures("gated_fusion", table, task=task, upgrade=upgrade)
            for key in first.keys() & later.keys():
                assert first[key] == later[key], (table, task, upgrade, key)
                repeated += 1
    assert repeated == {3: 2 * 3 * 7, 4: 2 * 3 * 3, 5: 5}[table]


# Section 5.1 and 5.2: points, and share of the untreated model's flips, that gated fusion takes
# away. No misprint was found.
REDUCED = {
    (1, "sst2"): (1.40, 64.2),
    (1, "mrpc"): (2.94, 71.4),
    (1, "qnli"): (1.99, 73.2),
    (2, "sst2"): (0.92, 56.4),
    (2, "mrpc"): (1.33, 35.7),
    (2, "qnli"): (2.01, 71.3),
}
BEYOND_OLD_NEW = {
    "sst2": (0.28, 12.8),
    "mrpc": (0.49, 11.9),
    "qnli": (0.31, 11.4),
}  # against the old-new ensemble, table 1
HALF = 0.05 + 1e-9  # of the last digit that a percentage is printed with


@each_cell
def test_gated_fusion_reduces_the_flips_by_what_the_text_says(table, task):
    given = figures(table, task)
    points = given["new model", "nfr"] - given["gated fusion", "nfr"]
    assert points == pytest.approx(REDUCED[table, task][0], abs=1e-9)
    assert 100 * points / given["new model", "nfr"] == pytest.approx(
        REDUCED[table, task][1], abs=HALF
    )


@pytest.mark.parametrize("task", sorted(GLUE))
def test_gated_fusion_goes_beyond_the_old_new_ensemble(task):
    given = figures(1, task)
    points = given["old-new logits", "nfr"] - given["gated fusion", "nfr"]
    assert points == pytest.approx(BEYOND_OLD_NEW[task][0], abs=1e-9)
    assert 100 * points / given["new model", "nfr"] == pytest.approx(
        BEYOND_OLD_NEW[task][1], abs=HALF
    )
    for name in ("accuracy", "nfr"):  # "both 0.5, hence producing identical results"
        assert given["old-new logits", name] == given["old-new probabilities", name]


def mean_reduction(against, cells):
    """Mean over cells of the share of another row's flips that gated fusion takes away, in
    percent.
    """
    shares = []
    for table, task in cells:
        given = figures(table, task)
        other = given[against(given), "nfr"]
        shares.append(100 * (other - given["gated fusion", "nfr"]) / other)
    return float(np.mean(shares))


def test_the_averages_of_the_abstract():
    cells = [(table, task) for table in UPGRADES for task in GLUE]
    assert mean_reduction(lambda given: "new model", cells) == pytest.approx(62, abs=0.5)
    # "the strongest baseline" is one method, the old-new ensemble of logits; the best baseline of
    # each cell gives 24 %
    assert mean_reduction(lambda given: "old-new logits", cells) == pytest.approx(25, abs=0.5)

    def best(given):
        return min(
            (row for row, name in given if name == "nfr" and row != "gated fusion"),
            key=lambda row: given[row, "nfr"],
        )

    assert round(mean_reduction(best, cells)) == 24


def test_fix_and_new_fault_rates_average_to_those_of_the_text():
    fixed, faults = (
        np.mean(
            [
                figures("5.5", task, number)["gated fusion", name]
                for number in UPGRADES
                for task in GLUE
            ]
        )
        for name in ("fix_rate", "new_fault_rate")
    )
    assert fixed == pytest.approx(69.9, abs=HALF) and faults == pytest.approx(7.9, abs=HALF)


@each_cell
def test_fix_and_new_fault_rates_explain_the_remaining_flips(table, task):
    """What remains is (1 - fixed + new faults) of the flips; a mean of ratios over seeds, so
    only nearly that of the means.
    """
    given, rates = figures(table, task), figures("5.5", task, table)
    left = (
        1 - rates["gated fusion", "fix_rate"] / 100 + rates["gated fusion", "new_fault_rate"] / 100
    )
    assert given["new model", "nfr"] * left == pytest.approx(given["gated fusion", "nfr"], abs=0.06)


@each_cell
def test_new_errors_are_a_third_of_all_errors(table, task):
    """Section 5.1: around 30 % to 40 % of the new model's errors are new."""
    given = figures(table, task)
    assert 30 <= 100 * given["new model", "nfr"] / (100 - given["new model", "accuracy"]) <= 40


def test_electra_gains_more_and_flips_less_but_on_qnli():
    """Section 5.2."""
    for task in GLUE:
        large, electra = figures(1, task), figures(2, task)
        assert electra["new model", "accuracy"] > large["new model", "accuracy"]
        assert (electra["new model", "nfr"] < large["new model", "nfr"]) is (task != "qnli")
        for given in (large, electra):
            assert given["gated fusion", "nfr"] == min(
                value for (_, name), value in given.items() if name == "nfr"
            )


def counted():
    """(table, task, row) → (NFR or None, accuracy) of all rows with an accuracy."""
    found = {}
    for line in every_line():
        if line["paper"] == "gated_fusion" and line["table"] != "5.5":
            place = found.setdefault(
                (line["table"], line["upgrade"], line["task"], line["row"]), {}
            )
            place[line["measure"]] = float(line["value"])
    return found


def test_no_row_flips_more_than_it_can():
    """NFR is at most the new model's error rate and at most the old one's accuracy; PFR = NFR +
    the gain is not negative.
    """
    checked = 0
    for (table, upgrade, task, row), given in counted().items():
        old = paper_figures("gated_fusion", 1, task=task, upgrade=UPGRADES[1])[
            "old model", "accuracy"
        ][0]
        if "nfr" in given:
            assert 0 < given["nfr"] <= min(old, 100 - given["accuracy"]), (
                table,
                upgrade,
                task,
                row,
            )
            assert given["nfr"] + given["accuracy"] - old >= 0, (table, upgrade, task, row)
            checked += 1
    assert checked == 2 * 3 * 6 + 2 * 3 * 5 + 4


def test_every_mean_can_be_a_mean_of_counts():
    """Five seeds on 408 (MRPC) or 872 (SST-2) examples: a mean is a multiple of 1/2,040 or
    1/4,360. (QNLI's are too fine to tell.)
    """
    checked = 0
    for (table, upgrade, task, row), given in counted().items():
        total = SEEDS * GLUE[task]
        if 100 / total < 0.01:
            continue
        for name, value in given.items():
            assert abs(100 * round(value * total / 100) / total - value) < 0.005 + 1e-9, (
                table,
                upgrade,
                task,
                row,
                name,
            )
            checked += 1
    assert checked > 100


# --- the other papers' figures --------------------------------------------------------------------


def tables_of(paper):
    """(table, upgrade, task) → row → measure → value."""
    found = {}
    for line in every_line():
        if line["paper"] == paper:
            rows = found.setdefault((line["table"], line["upgrade"], line["task"]), {})
            rows.setdefault(line["row"], {})[line["measure"]] = float(line["value"])
    return found


PCT_MISPRINTS = {
    ("5a", "new model"): 23.56,
    ("5a", "FD-KL"): 16.03,
    ("5b", "new model"): 42.18,
}  # what equation 11 gives


def test_a_table_of_scores_says_so_and_finds_its_own_printed_figures(tmp_path):
    figures = {("good", "rouge1"): (34.79, None), ("good", "accuracy"): (1.0, None)}
    table = ResultTable("t", ROWS, paper=figures, quantity="ROUGE-1")
    header, lines = table.cells()
    assert (
        header[2] == "ROUGE-1 %"
        and "NFR_D %" in header
        and "NFR %" not in header
        and "ROUGE-1 − untreated" in header
        and "paper: ROUGE-1 %" in header
        and not any("accuracy" in one for one in header)
    )
    assert (
        next(line for line in lines if line[0] == "good")[header.index("paper: ROUGE-1 %")]
        == "34.79"
    )
    assert any("(pays with ROUGE-1)" in cell for line in lines for cell in line)
    assert kept(table, tmp_path).cells() == table.cells()


def test_a_table_keeps_why_it_judges_nothing(tmp_path):
    for about in ({"unjudged": "models at chance"}, {"reported": "test"}):
        table = ResultTable("t", ROWS, **about)
        assert vars(kept(table, tmp_path)).items() >= about.items()


def test_pct_prints_relative_nfr_by_its_equation_11():
    checked, misprints = 0, {}
    for (table, _, _), rows in tables_of("pct").items():
        for name, row in rows.items():
            if name == "old model":
                continue
            independent = (100 - row["error_old"]) * (100 - row["accuracy"]) / 100**2
            by_equation = row["nfr"] / independent
            checked += 1
            if (
                abs(by_equation - row["relative_nfr"]) > 0.005 / independent + 0.005
            ):  # both were rounded
                misprints[table, name] = round(by_equation, 2)
    assert misprints == PCT_MISPRINTS and checked == 5 * 5 + 8


def test_pct_repeats_its_models_between_tables():
    tables = {table: rows for (table, _, _), rows in tables_of("pct").items()}
    assert set(tables) == {"2a", "2b", "3", "4", "5a", "5b"}
    assert (
        tables["3"]["new model"] == tables["2a"]["new model"]
        and tables["3"]["α 1, β 5"] == tables["2a"]["FD-LM"]
    )
    for table, rows in tables.items():
        assert rows["old model"]["accuracy"] == pytest.approx(
            100
            - rows["naive re-weighting" if "naive re-weighting" in rows else "new model"][
                "error_old"
            ]
        )
        for row in (row for name, row in rows.items() if name != "old model"):
            old, new = row["error_old"], 100 - row["accuracy"]
            assert (
                max(0, new - old) <= row["nfr"] <= min(new, 100 - old)
            )  # all that two error rates allow
    assert tables["4"]["ensemble of 16"]["error_old"] == tables["2a"]["ensemble of 16"]["error_old"]


def test_the_talk_s_rows_fit_each_other():
    massive = tables_of("bcwi")["main", "", "massive_adddata"]
    assert (
        massive["BCWI α=0.4"]["nfr"] <= massive["new model"]["nfr"] / 2
        and massive["BCWI α=0.6"]["nfr"] < massive["BCWI α=0.4"]["nfr"]
    )
    for row in massive.values():  # PFR = NFR + the gain in accuracy cannot be negative
        assert row.get("nfr", 0) + row["accuracy"] - massive["old model"]["accuracy"] >= 0


def test_muscle_prints_changes_that_follow_from_its_other_columns():
    checked = 0
    for (table, _, _), rows in tables_of("muscle").items():
        if table == "6":
            continue
        new, adapter = rows["new model"], rows["compatibility adapter"]
        level = "rouge1" if table == "5" else "accuracy"
        assert abs(adapter[level] - new[level] - adapter["gain"]) < 0.0101
        assert abs(100 * adapter["nfr change"] / new["nfr"] - adapter["nfr change %"]) < 0.0101
        checked += 1
    assert checked == 4 + 4 + 4 + 4


def test_muscle_masks_follow_from_the_untreated_flips():
    tables = tables_of("muscle")
    rows, untreated = (
        tables["6", "llama 1 to llama 2", "piqa"],
        tables["3", "llama 1 to llama 2", "piqa"],
    )
    assert len(rows) == 6
    for row in rows.values():
        assert abs(row["pfr change"] - row["nfr change"] - row["gain"]) < 0.0151
        assert (
            abs(100 * row["nfr change"] / untreated["new model"]["nfr"] - row["nfr change %"])
            < 0.0101
        )
    main = untreated["compatibility adapter"]
    assert all(
        main[name] == rows["C wrong"][name] for name in ("nfr change", "nfr change %", "gain")
    )


def test_muscle_names_one_model_alike_and_its_claims_are_those_of_its_rows():
    tables, accuracy = tables_of("muscle"), {}
    for (table, upgrade, task), rows in tables.items():
        if table == "6":
            continue
        level = "rouge1" if table == "5" else "accuracy"
        for name, row in zip(upgrade.split(" to "), (rows["old model"], rows["new model"])):
            assert accuracy.setdefault((task, name), row[level]) == row[level], (task, name)
    rises = {key: rows["compatibility adapter"] for key, rows in tables.items() if key[0] != "6"}
    more_flips = {key for key, row in rises.items() if row["nfr change"] > 0}
    less_accurate = {key for key, row in rises.items() if row["gain"] < 0}
    assert more_flips == {("3", "phi 1.5 to phi 2", "hellaswag")}
    assert less_accurate == more_flips | {("4", "phi 1 to phi 1.5", "gsm8k")}


def test_a_latex_tabular_has_a_line_a_row_and_no_bare_signs():
    text = ResultTable("50 % of a_b", (Row("new & old"), Row("50 %"))).to_latex()
    lines = text.splitlines()
    assert lines[0] == r"% 50 \% of a\_b" and lines[-1] == r"\end{tabular}"
    body = [line for line in lines if line.endswith(r" \\")]
    assert len(body) == 3 and len({line.count(" & ") for line in body}) == 1
    assert body[1].startswith(r"new \& old & ") and body[2].startswith(r"50 \% & ")


def test_a_csv_holds_the_numbers_unrounded_and_no_formula():
    rows = [
        Row("=new", "@λ 1", seeds=3, accuracy=(0.8125, 0.01), nfr=(0.03125, nan), new=("a", "b"))
    ]
    (line,) = csv.DictReader(ResultTable("t", tuple(rows)).to_csv().splitlines())
    assert line["method"] == "'=new" and line["setting"] == "'@λ 1"
    assert float(line["accuracy_mean"]) == 0.8125 and float(line["nfr_mean"]) == 0.03125
    assert line["nfr_std"] == line["pfr_mean"] == "" and line["records"] == "a b"


def test_pictures_are_rounded_in_their_places_alone():
    """A glyph's scale of 1/64 must not become 1/50, nor a number in a text another one."""
    drawn = '<g transform="scale(0.015625)"><path d="{}"/><text x="{}">0.0156</text></g>'
    lighter = compatkit.experiments.reporting.result_tables._lighter
    before, after = ("M 0.123456 -1.5 ", "-7.98765"), ("m.12-1.5", "-7.99")
    assert lighter(drawn.format(*before)) == drawn.format(*after)


def test_a_path_keeps_its_points_and_a_halo_takes_no_second_one():
    path = "M 10 20 \nL 10.004 19.5 \nQ 1 2 3 4 \nz\nM 5 5 \nC 1 1 2 2 3 3.25 \n"
    lighter = compatkit.experiments.reporting.result_tables._lighter
    short = "m10 20l0-.5q-9-17.5-7-15.5zm-5-15c-4-4-3-3-2-1.75"
    assert lighter(f'<path d="{path}" style="a"/>') == f'<path d="{short}" style="a"/>'
    twice = lighter(f'<path d="{path}" style="a"/>\n    <path d="{path}" style="b"/>')
    assert twice.count(short) == 1 and '<g style="a">' in twice and ' style="b"/>' in twice
