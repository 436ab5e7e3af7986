"""A comparison takes what people have, shows itself in every way, and says the same whatever the
order of its examples.
"""

import csv
import json
import re
import subprocess
import sys
from math import inf, nan

import numpy as np
import pytest

from compatkit.compare.pair import Pair, read_pair
from compatkit.compare.policy import Policy
from compatkit.compare.report import EXIT_STATUS, Comparison, compare, compare_versions
from compatkit.compare.verdict import VERDICTS
from compatkit.metrics import FlipCounts
from compatkit.predictions import Predictions

HOSTILE = "</script>\x1b[31m|@you\n`*_[x](http://y.z)\u202e<img src=x>"


def sides(seed=0, n=300, answers=("ab", "cd", "ef"), **columns):
    draw = np.random.default_rng(seed)
    names, label = np.array(answers), draw.integers(0, len(answers), n)

    def answer(share):
        return names[np.where(draw.random(n) < share, label, draw.integers(0, len(answers), n))]

    extra = {"kind": draw.choice(["x", "y"], n), "length": draw.integers(0, 90, n)} | columns
    ids = [f"e{i}" for i in range(n)]
    return Predictions(ids, names[label], answer(0.7), columns=extra), Predictions(
        ids, names[label], answer(0.8)
    )


def scored(n=200, seed=0):
    draw = np.random.default_rng(seed)
    old = draw.random(n)
    return [
        Predictions([f"e{i}" for i in range(n)], score=score, text=[f"text {i}" for i in range(n)])
        for score in (old, np.clip(old + draw.normal(0, 0.1, n), 0, 1))
    ]


# --- what goes in ---------------------------------------------------------------------------------


def test_predictions_pairs_paths_and_frames_say_the_same(tmp_path):
    pd, pl = pytest.importorskip("pandas"), pytest.importorskip("polars")
    old, new = sides()

    def table(side):
        return {
            "id": side.id,
            "label": side.label,
            "prediction": side.prediction,
            **side.columns,
        }

    expected = compare(old, new, ["kind"]).to_dict()
    assert compare(Pair.of(old, new), slices=["kind"]).to_dict() == expected
    assert compare(pd.DataFrame(table(old)), pd.DataFrame(table(new)), "kind").to_dict() == expected
    assert (
        compare(pl.DataFrame(table(old)), pl.DataFrame(table(new)), ("kind",)).to_dict() == expected
    )
    for ending in ("parquet", "csv", "jsonl"):
        paths = [
            side.save(tmp_path / f"{name}.{ending}") for name, side in (("old", old), ("new", new))
        ]
        assert compare(*paths, ["kind"]).to_dict() == expected
        assert compare(str(paths[0]), str(paths[1]), ["kind"]).to_dict() == expected
        assert compare(paths[0], new, ["kind"]).to_dict() == expected  # a path beside predictions


def test_names():
    old, new = sides()
    assert (
        compare(old, new).summary["old"] == "old"
        and compare(old, new, names=("v1", "v2")).summary["new"] == "v2"
    )


def test_a_frame_with_scores():
    pd = pytest.importorskip("pandas")
    found = compare(
        *[pd.DataFrame({"id": ["a", "b"], "score": score}) for score in ([0.1, 0.2], [0.3, 0.1])]
    )
    assert found.summary["overall"]["scores"]["nfr"]["value"] == 0.5


def test_columns_under_other_names(tmp_path):
    for name, answer in (("old", "x"), ("new", "y")):
        (tmp_path / f"{name}.csv").write_text(f"id,truth,answer\na,x,{answer}\nb,x,x\n")
    found = compare(
        tmp_path / "old.csv",
        tmp_path / "new.csv",
        rename={"truth": "label", "answer": "prediction"},
    )
    assert found.summary["overall"]["counts"]["negative"] == 1
    with pytest.raises(ValueError, match="rename is for files"):
        compare(*sides(), rename={"truth": "label"})


@pytest.mark.parametrize(
    "given, message",
    [
        ((lambda old, new: (old, None)), "compare needs two versions"),
        ((lambda old, new: (old, 3)), "new must be a path, Predictions or a data frame, not int"),
        ((lambda old, new: (Pair.of(old, new), new)), "holds both versions already"),
        ((lambda old, new: (old, new.select(new.id[5:]))), "e0"),
        ((lambda old, new: (old, "no.csv")), "no.csv"),
        ((lambda old, new: (old, new.replace(label=new.label[::-1]))), "label"),
    ],
)
def test_what_cannot_be_compared(given, message):
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        compare(*given(*sides()))


def test_a_frame_without_ids():
    pd = pytest.importorskip("pandas")
    with pytest.raises(ValueError, match="`id`"):
        compare(pd.DataFrame({"label": [1], "prediction": [1]}), sides()[1])


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_a_frame_of_probabilities_is_what_a_file_of_them_is(library, tmp_path):
    frames = pytest.importorskip(library)
    rows = [[0.3, 0.7], [0.8, 0.2]] * 20
    table = {"id": [f"e{i}" for i in range(40)], "label": [1, 0] * 20, "probabilities": rows}
    path = tmp_path / "frame.jsonl"
    path.write_text(
        "".join(json.dumps(dict(zip(table, row))) + "\n" for row in zip(*table.values()))
    )
    old = new = frames.DataFrame(table)
    found, of_files = (compare(*both, names=("a", "b")) for both in ((old, new), (path, path)))
    assert found.to_json() == of_files.to_json()
    uneven = frames.DataFrame(table | {"probabilities": [[1.0], *rows[1:]]})
    with pytest.raises(ValueError, match="`probabilities`"):
        compare(old, uneven)


@pytest.mark.parametrize("library", ["pandas", "polars"])
@pytest.mark.parametrize("answered", [True, False])
@pytest.mark.parametrize(
    "labels, classes",
    [(["no", "yes"], ["no", "yes"]), ([0, 1], ["no", "yes"]), ([0, 1], "01"), ([2, 1], "12")],
)
def test_a_frame_with_a_column_a_class_is_what_a_file_of_it_is(
    library, answered, labels, classes, tmp_path
):
    frames = pytest.importorskip(library)
    tables = []
    for shares in ((0.3, 0.8, 0.6, 0.9), (0.9, 0.2, 0.4, 0.7)):
        table = {"id": [f"e{i}" for i in range(40)], "label": labels * 20}
        if answered:
            table["prediction"] = [labels[share > 0.5] for share in shares] * 10
        first, second = [share for share in shares] * 10, [1 - share for share in shares] * 10
        tables.append(table | {f"prob_{classes[0]}": first, f"prob_{classes[1]}": second})
    given = [frames.DataFrame(table) for table in tables]
    found = compare(*given, names=("a", "b")).to_json()
    assert json.loads(found)["models"]["log_loss"]["old"] > 0
    for ending in ("csv", "parquet"):
        paths = [tmp_path / f"{name}.{ending}" for name in "ab"]
        for path, table in zip(paths, tables):
            frame = frames.DataFrame(table)
            if library == "polars":
                getattr(frame, f"write_{ending}")(path)
            else:
                getattr(frame, f"to_{ending}")(path, index=False)
        assert compare(*paths).to_json() == found


def test_a_frame_whose_probabilities_are_none():
    pd = pytest.importorskip("pandas")
    table = {"id": ["a", "b"], "label": ["x", "y"], "prob_x": [0.5, "half"], "prob_y": [0.5, 0.5]}
    told = "the data frame new: the column `prob_x` needs numbers, and holds 'half'"
    with pytest.raises(ValueError, match=told):
        compare(pd.DataFrame(table | {"prob_x": [0.5, 0.5]}), pd.DataFrame(table))


@pytest.mark.parametrize("option", ["slices", "categorical", "numeric"])
def test_one_column_may_be_named_alone(option, tmp_path):
    old, new = (side.save(tmp_path / f"{i}.csv") for i, side in enumerate(sides()))
    alone, listed = {option: "length"}, {option: ["length"]}
    assert compare(old, new, **alone).to_json() == compare(old, new, **listed).to_json()
    of_many = [compare_versions([old, new, old], **one).to_json() for one in (alone, listed)]
    assert of_many[0] == of_many[1]


@pytest.mark.parametrize("names", [["a"], ["a", "b", "c"], "ab"])
def test_two_versions_have_two_names(names, tmp_path):
    paths = [side.save(tmp_path / f"{i}.csv") for i, side in enumerate(sides())]
    for given in (sides(), paths):
        with pytest.raises(ValueError, match="names must be two"):
            compare(*given, names=names)


def test_json_holds_no_infinity():
    old, new = sides(ratio=np.full(300, inf))
    for found in (compare(old, new), compare_versions([old, new, old])):
        text = found.to_json(flips=10)
        assert "Infinity" not in text and json.loads(text)["flips"][0].get("ratio") is None


def test_what_is_missing_can_be_dropped():
    old, new = sides()
    found = compare(old, new.select(new.id[7:]), on_missing="drop")
    assert found.summary["examples"] == len(old) - 7 and found.summary["left_out"] == {
        "old only": 7,
        "new only": 0,
    }
    for shown in (str(found), found.to_markdown(), found._repr_html_(), found.to_html()):
        assert "7" in shown and "left out" in shown.lower()


def test_policies_of_every_kind(tmp_path):
    old, new = sides()
    path = tmp_path / "p.toml"
    path.write_text('max_nfr = "90%"')
    for policy in (path, str(path), {"max_nfr": "90%"}, Policy.of(max_nfr=0.9)):
        assert compare(old, new, policy=policy).status == "holds"
    assert compare(old, new).status is None and compare(old, new, policy={}).status is None
    assert compare(old, new, policy={"max_nfr": "0.01%"}).status == "failed"
    assert EXIT_STATUS == {None: 0, "holds": 0, "failed": 1, "too little data": 3}


# --- what comes out -------------------------------------------------------------------------------


def test_the_numbers_are_those_of_metrics():
    old, new = sides()
    found, counts = compare(old, new), FlipCounts.between(old, new)
    assert found.to_dict()["overall"]["counts"] == dict(
        zip(
            ("both_right", "negative", "positive", "both_wrong_same", "both_wrong_different"),
            counts.counts,
        )
    )
    assert found.to_dict()["overall"]["nfr"]["value"] == counts.nfr and found.verdict in VERDICTS


def test_json_is_strict_ascii_and_its_copy_free():
    found = compare(*sides(answers=("ä", "b")), ["kind"], {"max_nfr": 0.5})
    text = found.to_json()
    assert (
        text.isascii()
        and json.loads(text, parse_constant=lambda name: pytest.fail(name)) == found.to_dict()
    )
    found.to_dict()["examples"] = 0
    found.to_dict()["overall"]["nfr"]["value"] = 0
    assert found.to_dict() == json.loads(text)


def test_flips_hold_exactly_what_changed():
    old, new = sides()
    flips = compare(old, new).flips()
    right_old, right_new = old.correct, new.correct
    for quadrant, which in (
        ("negative", right_old & ~right_new),
        ("positive", ~right_old & right_new),
        ("both wrong, different", ~right_old & ~right_new & (old.prediction != new.prediction)),
    ):
        inside = flips[flips.quadrant == quadrant]
        assert inside.id.tolist() == sorted(old.id[which])
        place = [int(identity[1:]) for identity in inside.id]
        assert (
            (inside.old == old.prediction[place]).all()
            and (inside.new == new.prediction[place]).all()
            and (inside.label == old.label[place]).all()
        )
        assert (inside.length == old.columns["length"][place]).all()
    assert list(flips.columns[:5]) == ["id", "quadrant", "label", "old", "new"]


def test_no_flips():
    old, _ = sides()
    found = compare(old, old)
    assert len(found.flips()) == 0 and list(found.flips().columns) == ["id", "quadrant"]
    assert "Negative flips\n" not in str(found) and "There is no flip to show" in found.to_html()


def test_flips_of_scores():
    old, new = scored()
    flips = compare(old, new).flips()
    assert (flips.quadrant == "negative").sum() == (new.score < old.score - 0.01).sum() and {
        "old_text",
        "new_text",
        "old_score",
        "new_score",
    } <= set(flips.columns)


def test_a_column_called_quadrant_does_not_hide_the_quadrant():
    old, new = sides(quadrant=np.array(["mine"] * 300))
    assert set(compare(old, new).flips().quadrant) == {
        "negative",
        "positive",
        "both wrong, different",
    }


@pytest.mark.parametrize("make", [sides, scored])
@pytest.mark.parametrize("seed", range(3))
def test_another_order_gives_the_same_bytes(make, seed, tmp_path):
    old, new = make(seed=seed)
    draw = np.random.default_rng(seed)
    mixed = [side.select(side.id[draw.permutation(len(side))]) for side in (old, new)]
    slices = ["kind", "length"] if make is sides else []
    first, second = (
        compare(old, new, slices, {"max_nfr": 0.2}),
        compare(*mixed, slices, {"max_nfr": 0.2}),
    )
    for write in (
        str,
        repr,
        Comparison.to_json,
        Comparison.to_markdown,
        Comparison.to_html,
        Comparison._repr_html_,
        lambda found: found.flips().to_csv(),
    ):
        assert write(first) == write(second)
    written = [
        found.save_html(tmp_path / name, most=10)
        for found, name in ((first, "page.html"), (second, "page2.html"))
    ]
    assert [path.read_text().replace("page2", "page") for path in written[0]] == [
        path.read_text().replace("page2", "page") for path in written[1]
    ]


@pytest.mark.parametrize("show", [str, Comparison.to_markdown, Comparison._repr_html_])
def test_what_everybody_sees(show):
    found = compare(*sides(), ["kind"], {"max_nfr": "1%"})
    shown = show(found)
    for part in (
        found.verdict,
        "Gate: failed",
        "max_nfr",
        "NFR",
        "95 % interval",
        "Slices by evidence",
        "kind",
        "300",
    ):
        assert part in shown
    assert "None" not in shown and "nan" not in shown


def test_the_text_begins_with_the_verdict_and_ends_with_examples_to_look_at():
    lines = str(compare(*sides())).splitlines()
    assert lines[0] == f"old → new: {compare(*sides()).verdict}"
    assert "Negative flips" in lines and lines[-1].endswith("more negative flips are not shown.")


def test_markdown_is_short():
    found = compare(*sides(), ["kind", "length"]).to_markdown()
    assert len(found.splitlines()) < 40 and found.startswith(
        "### <code>old</code> → <code>new</code>: "
    )


def test_undefined_values_are_dashes():
    old = Predictions(["a", "b"], ["x", "x"], ["x", "x"])
    shown = str(compare(old, old))
    assert re.search(r"Relative NFR +– +2 examples", shown) and "None" not in shown
    assert "Mean fall" in str(compare(*[Predictions(["a"], score=[1.0])] * 2))


def test_hostile_text_from_everywhere():
    n = 60
    label, kind = (
        np.array([HOSTILE, "b"])[np.arange(n) % 2],
        np.array([HOSTILE + "k", "z"])[np.arange(n) % 2],
    )
    ids = [HOSTILE + str(i) for i in range(n)]
    old = Predictions(ids, label, label, columns={HOSTILE: kind})
    new = Predictions(ids, label, label[::-1])
    found = compare(
        old,
        new,
        [HOSTILE],
        {"slice": [{"each": HOSTILE, "max_nfr": "1%"}]},
        names=(HOSTILE, HOSTILE + "2"),
    )
    text = str(found)
    assert all(c.isprintable() or c == "\n" for c in text) and "\\x1b[31m" in text
    markdown = found.to_markdown()
    assert (
        "@you" not in markdown
        and "<img" not in markdown
        and "](http" not in markdown
        and "\x1b" not in markdown
    )
    tables = [line for line in markdown.splitlines() if line.startswith("|")]
    assert {line.count("|") for line in tables} <= {5, 6, 7}
    html = found._repr_html_()
    assert "<img" not in html and "</script>" not in html
    assert "<img" not in found.to_html() and found.to_html().count(
        "</script>"
    ) == sides_page().count("</script>")


def test_a_label_is_no_markdown_in_sentences():
    picture = "![x](http://evil.example/p.png) @octocat"
    ids, label = [f"e{i}" for i in range(60)], np.full(60, picture)
    old = Predictions(ids, label, np.where(np.arange(60) < 50, label, "other"))
    new = old.replace(prediction=np.char.upper(old.prediction))
    found = compare(old, new)
    assert found.verdict == "answers are spelled otherwise"
    for text in (found.to_markdown(), compare_versions([old, new, old]).to_markdown()):
        assert "evil" in text and "![x]" not in text and "@octocat" not in text


def sides_page():
    return compare(*sides()).to_html()


def test_the_page_and_the_csv_beside_it(tmp_path):
    found = compare(*sides(), ["kind"])
    page, beside = found.save_html(tmp_path / "report.html", most=10)
    assert (page.name, beside.name) == ("report.html", "report-flips.csv")
    with open(beside, encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    flips = found.flips()
    assert [row["id"] for row in rows] == flips.id[10:].tolist() and [
        row["quadrant"] for row in rows
    ] == flips.quadrant[10:].tolist()
    assert "report-flips.csv" in page.read_text(encoding="utf-8")
    assert (
        found.save_html(tmp_path / "whole.html") == [tmp_path / "whole.html"]
        and not (tmp_path / "whole-flips.csv").exists()
    )
    assert found.to_html() == (tmp_path / "whole.html").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "save, name", [(Comparison.save_html, "a.html"), (Comparison.save_flips, "a.jsonl")]
)
def test_a_foreign_file_is_replaced_only_by_force(tmp_path, save, name):
    found, path = compare(*sides()), tmp_path / name
    path.write_text("theirs")
    with pytest.raises(ValueError, match="force=True"):
        save(found, path)
    assert path.read_text() == "theirs"
    save(found, path, force=True)
    written = path.read_text()
    save(found, path)  # its own file it writes again
    assert written == path.read_text() != "theirs"


def test_what_was_compared_is_replaced_not_even_by_force(tmp_path):
    paths = [tmp_path / f"{name}.csv" for name in ("old", "new", "third")]
    for path, side in zip(paths, (*sides(), sides()[0])):
        side.save(path)
    before = [path.read_bytes() for path in paths]
    for found in (compare(*paths[:2]), compare_versions(paths).steps[0]):
        for save in (found.save_html, found.save_flips):
            with pytest.raises(ValueError, match=paths[0].name):
                save(paths[0], force=True)
    assert [path.read_bytes() for path in paths] == before


def test_flips_with_a_column_of_somebodys_own_stay(tmp_path):
    path = compare(*sides()).save_flips(tmp_path / "flips.csv")
    annotated = path.read_text().replace("\n", ",mine\n")
    path.write_text(annotated)
    with pytest.raises(ValueError, match="cannot tell that it wrote it"):
        compare(*sides()).save_flips(path)
    assert path.read_text() == annotated


@pytest.mark.parametrize("name", ["flips.csv", "flips.jsonl"])
def test_flips_are_replaced_although_fewer_columns_have_a_value(tmp_path, name):
    def compared(*wrong):
        """The same examples, of which the first two have a topic."""
        rows = [
            {"id": str(i), "label": "x", "prediction": "y" if i in wrong else "x"}
            | ({"topic": f"of its own, {i}"} if i < 2 else {})
            for i in range(60)
        ]
        path = tmp_path / f"new{len(wrong)}.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return path

    old = compared()
    for new in (compared(1, 10), compared(11)):
        path = compare(old, new).save_flips(tmp_path / name)
    assert "topic" not in path.read_text()


def test_flips_are_saved_as_they_are_shown(tmp_path):
    found = compare(*sides(), ["kind"])
    with open(found.save_flips(tmp_path / "flips.csv"), encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    flips = found.flips()
    assert [row["id"] for row in rows] == flips.id.tolist()
    assert [row["quadrant"] for row in rows] == flips.quadrant.tolist()


def test_a_folder_that_is_not_there(tmp_path):
    with pytest.raises(ValueError, match="the page.*there is no folder") as caught:
        compare(*sides()).save_html(tmp_path / "no" / "report.html")
    assert "--html" not in str(caught.value), "a Python call knows no option"


def test_flips_of_several_tasks_are_those_that_count():
    codes = [
        np.array(side, dtype=np.int32)
        for side in ([0, 0, 0, 0, -1, -1], [0, 1, 0, 0, -1, -1], [1, 1, 1, 1, -1, -1])
    ]
    scores = np.array([[nan] * 4 + [0.5, 0.5], [nan] * 4 + [0.4, 0.6]])
    task = np.array(["t (acc)"] * 2 + ["t (acc_norm)"] * 2 + ["s (bleu)"] * 2, dtype=object)

    def name(positions):
        return [{"id": f"e{position}", "task": task[position]} for position in positions]

    pair = Pair("a", "b", ("x", "y"), *codes, *scores, task=task, details=name)
    found = compare(pair)
    assert [(row["id"], row["quadrant"]) for row in found.flips().to_dict("records")] == [
        ("e0", "negative"),
        ("e4", "score fell"),
        ("e5", "score rose"),
    ]
    assert "\nTasks\n" in str(found)


# --- many versions --------------------------------------------------------------------------------


def test_versions_against_pairs():
    old, new = sides()
    third = new.replace(prediction=old.prediction[::-1])
    found = compare_versions([old, new, third], names=["a", "b", "c"])
    for i, first in enumerate((old, new, third)):
        for j, second in enumerate((old, new, third)):
            counts = FlipCounts.between(first, second)
            assert found.nfr[i, j] == counts.nfr and found.gain[i, j] == pytest.approx(
                counts.accuracy_new - counts.accuracy_old, abs=1e-12
            )
    assert found.level == pytest.approx(
        [side.correct.mean() for side in (old, new, third)]
    ) and found.names == ("a", "b", "c")
    assert found.to_dict()["nfr"][0][1] == counts_of(old, new) and set(found.to_dict()) == {
        "versions",
        "examples",
        "notes",
        "accuracy",
        "nfr",
        "nfr_interval",
        "accuracy_gain",
        "gate",
        "updates",
    }


def counts_of(old, new):
    return FlipCounts.between(old, new).nfr


def test_versions_in_other_orders_and_with_missing_examples():
    old, new = sides()
    third = new.replace(prediction=old.prediction[::-1])
    draw = np.random.default_rng(0)
    mixed = [side.select(side.id[draw.permutation(300)]) for side in (old, new, third)]
    assert compare_versions(mixed).to_dict() == compare_versions([old, new, third]).to_dict()
    with pytest.raises(ValueError, match="e0"):
        compare_versions([old, new.select(new.id[3:]), third])
    few = compare_versions(
        [old, new.select(new.id[3:]), third.select(third.id[:-4])], on_missing="drop"
    )
    expected = compare_versions([side.select(side.id[3:-4]) for side in (old, new, third)])
    whole = few.to_dict()
    assert "293 examples that all 3 versions have" in whole.pop("notes")[-1] and few.examples == 293
    assert whole == {name: part for name, part in expected.to_dict().items() if name != "notes"}


@pytest.mark.parametrize("ending", ["csv", "parquet", None])
@pytest.mark.parametrize("judge", [0, 1, 2])
def test_labels_of_any_version_judge_them_all(tmp_path, ending, judge):
    old, new = sides(n=60)
    texts = [[f"{name} {i}" for i in range(60)] for name in ("first", "second", "third")]
    whole = [
        side.replace(label=old.label, text=text, columns={"length": np.full(60, number)})
        for number, (side, text) in enumerate(
            zip((old, new, new.replace(prediction=old.prediction[::-1])), texts)
        )
    ]
    given = [one if n == judge else one.replace(label=None) for n, one in enumerate(whole)]
    if ending:
        given = [one.save(tmp_path / f"{n}.{ending}") for n, one in enumerate(given)]
    found = compare_versions(given, names="abc", slices=["label"])
    expected = compare_versions(whole, names="abc", slices=["label"]).to_dict()
    assert any("has labels" in note for note in found.notes)
    assert found.to_dict() | {"notes": []} == expected
    row = found.flip_rows()[0][-1]  # of the last update, b → c
    place = row["id"].removeprefix("e")
    assert row["new_text"] == f"third {place}" and row.get("old_text", f"second {place}") == (
        f"second {place}"
    )
    if judge == 2:
        assert (row["length (old)"], row["length (new)"]) == (1, 2)


@pytest.mark.parametrize("order", ["WIV", "IWV", "WVI"])
def test_versions_that_know_the_classes_beside_one_that_does_not(tmp_path, order):
    contents = {
        "W": "id,label,prob_neg,prob_pos\na,0,.8,.2\nb,1,.3,.7\n",
        "I": "id,label,prediction\na,0,0\nb,1,1\n",
        "V": "id,label,prob_neg,prob_pos\na,0,.6,.4\nb,1,.6,.4\n",
    }
    paths = [tmp_path / f"{name}.csv" for name in order]
    for path in paths:
        path.write_text(contents[path.stem])
    found = compare_versions(paths)
    assert dict(zip(order, found.level)) == {"W": 1, "I": 1, "V": 0.5}
    paths[-1].write_text(paths[-1].read_text().replace("b,1", "b,0"))
    with pytest.raises(ValueError, match="labels differ .*for ids 'b'"):
        compare_versions(paths)


def test_a_column_is_renamed_in_whichever_version_has_it(tmp_path):
    plain, truth = "id,label,prediction\na,x,x\nb,y,x\n", "id,truth,prediction\na,x,x\nb,y,y\n"
    paths = [tmp_path / f"{name}.csv" for name in "abc"]
    for at in range(3):
        for number, path in enumerate(paths):
            path.write_text(truth if number == at else plain)
        found = compare_versions(paths, rename={"truth": "label"})
        assert found.level == [1 if number == at else 0.5 for number in range(3)]
        with pytest.raises(ValueError, match="'truht'"):
            compare_versions(paths, rename={"truht": "label"})
        paths[at].write_text(truth.replace("b,y", "b,z"))
        with pytest.raises(ValueError, match="labels differ for ids 'b'"):
            compare_versions(paths, rename={"truth": "label"})


def test_folders_of_samples(tmp_path):
    for name, right in (("v1", [1, 1, 0]), ("v2", [1, 0, 0]), ("v3", [1, 1, 1])):
        (tmp_path / name).mkdir()
        lines = [
            {
                "doc_id": i,
                "doc": {},
                "target": "4",
                "arguments": {},
                "resps": [["4"]],
                "filtered_resps": [str(4 * value)],
                "filter": "none",
                "metrics": ["exact_match"],
                "doc_hash": "d",
                "prompt_hash": "p",
                "target_hash": "t",
                "exact_match": float(value),
            }
            for i, value in enumerate(right)
        ]
        (tmp_path / name / "samples_sums_2026-01-01T00-00-00.jsonl").write_text(
            "\n".join(map(json.dumps, lines))
        )
    found = compare_versions([tmp_path / name for name in ("v1", "v2", "v3")])
    assert found.names == ("v1", "v2", "v3") and found.nfr[0].tolist() == [
        0,
        pytest.approx(1 / 3),
        0,
    ]
    assert list(compare(tmp_path / "v1", tmp_path / "v2").summary["tasks"]) == [
        "sums (exact_match)"
    ]


def test_versions_of_scores():
    old, new = scored()
    found = compare_versions([old, new])
    assert (
        found.kind == "mean score"
        and found.nfr[0, 1] == (new.score < old.score - 0.01).mean()
        and found.gain[0, 1] == pytest.approx((new.score - old.score).mean())
    )
    assert set(found.to_dict()) == {
        "versions",
        "examples",
        "notes",
        "mean_score",
        "nfr",
        "nfr_interval",
        "mean_difference",
        "gate",
        "updates",
    }


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda old, new: [old], "1 version: a comparison needs at least two"),
        (lambda old, new: [], "0 versions"),
        (lambda old, new: [old, 3], "must be a path"),
    ],
)
def test_versions_that_cannot_be_compared(make, message):
    with pytest.raises(ValueError, match=message):
        compare_versions(make(*sides()))
    with pytest.raises(ValueError, match="3 names for 2 versions"):
        compare_versions(list(sides()), names=["a", "b", "c"])


# --- light ----------------------------------------------------------------------------------------


def test_nothing_heavy_is_loaded_to_compare(tmp_path):
    old, new = sides()
    paths = [
        str(side.save(tmp_path / f"{name}.csv")) for name, side in (("old", old), ("new", new))
    ]
    heavy = (
        "[name for name in ('torch', 'pandas', 'matplotlib', 'sklearn', 'scipy.stats', "
        "'scipy.optimize', 'jinja2') if name in sys.modules]"
    )
    code = (
        "import sys; from compatkit.compare.report import compare; "
        f"print(str(compare({paths[0]!r}, {paths[1]!r}, ['kind']))[:0], {heavy})"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.strip() == "[]", done.stderr


def test_nan_is_no_number_of_a_report():
    assert nan not in compare(*sides()).summary["overall"]["nfr"].values()


def test_a_column_that_is_asked_for_is_no_free_text():
    """In memory as in a file."""
    names = [f"customer {n % 60}" for n in range(100)]
    ids = [f"e{n}" for n in range(100)]
    side = Predictions(ids, [1] * 100, [1] * 100, columns={"customer": names})
    assert len(compare(side, side, slices="customer").summary["slices"])


def test_not_even_by_force_is_the_file_of_a_pair_replaced(tmp_path):
    paths = [
        Predictions(["a", "b"], [1, 0], [1, 0]).save(tmp_path / f"{name}.csv")
        for name in ("o", "n")
    ]
    before = paths[0].read_bytes()
    with pytest.raises(ValueError, match="o.csv"):
        compare(read_pair(*paths)).save_flips(paths[0], force=True)
    assert paths[0].read_bytes() == before
