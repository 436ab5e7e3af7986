"""Pictures from kept predictions: who votes, how a treatment unfolds, and that each can be read."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from matplotlib import pyplot
from svg_texts import problems_of, text_boxes

from compatkit.experiments.judging import kept_figures as module
from compatkit.experiments.judging.kept_answers import Shelf, truth_of
from compatkit.experiments.judging.kept_figures import (
    can_be_drawn,
    drawn_again,
    epochs_of,
    renew_pictures,
    runs_after_epochs,
    uncertain,
    voters_of,
)
from compatkit.experiments.reporting.accuracy_and_flips import accuracy_nfr_picture
from compatkit.experiments.reporting.expressions import Mean
from compatkit.experiments.reporting.result_tables import ResultTable, Row, kept_tables, save_marked
from compatkit.predictions import Predictions
from compatkit.support.pictures import plot_style, text_problems

ROOT = Path(__file__).resolve().parents[3]
TABLES = kept_tables(ROOT / "results")
PYDOC, ZOO = "gated_fusion-pydoc-mini-a-main", "ensembles-cifar10-mini-figure2"
PICTURES = sorted((ROOT / "results").rglob("*.svg"))
LABEL = np.arange(20) % 2


class MadeUp:
    """A published run of noisy answers."""

    def __init__(self, name, **configuration):
        self.id, self.configuration = name, {"kind": "fine_tune", "recipe": "r"} | configuration
        self.run = self

    def predictions(self, split):
        noise = np.random.default_rng(sum(map(ord, self.id))).normal(size=(20, 2))
        return Predictions(np.arange(20).astype(str), LABEL, logits=np.eye(2)[LABEL] + noise)


def made_table(runs):
    """A table of two seeds over these runs."""
    by_id = {run.id: run for run in runs}
    return SimpleNamespace(
        name="made-up",
        olds=[by_id["o0"], by_id["o1"]],
        news=[by_id["o0"], by_id["o1"]],
        shelf=SimpleNamespace(runs=by_id),
        rows={
            "FD-LM": by_id["o0"],
            "average": Mean(tuple(by_id[one] for one in ("o2", "o3", "o4"))),
        },
        answering=lambda row: [row],
        runs=lambda names: [by_id[name] for name in names],
        of=lambda group: lambda split: [one.predictions(split) for one in group],
    )


OWN = [MadeUp(f"o{seed}", seed=seed) for seed in range(5)]


def test_voters_are_those_that_a_row_names():
    table = made_table(OWN)
    assert [run.id for run in voters_of(table)] == ["o2", "o3", "o4"]
    del table.rows["average"]
    with pytest.raises(ValueError, match="no row names the models"):
        voters_of(table)


def test_the_ensembles_uncertainty_is_in_the_order_asked_for():
    table = made_table(OWN)
    order = [str(n) for n in range(20)]
    there = uncertain(table, order)
    assert there.shape == (20,) and (there >= 0).all() and (there <= np.log(2)).all()
    assert uncertain(table, order[::-1]).tolist() == there[::-1].tolist()


@pytest.mark.parametrize("asked", [False, True])  # the old model, about each changed image
def test_epochs_are_found_by_treatment_epoch_and_seed(asked):
    focal = {"distance": "logits"}
    treated = {"treatment": {"name": "WithOldModel", "treatment": focal} if asked else focal}
    plain = {"treatment": None}
    trained = [MadeUp(f"t{seed}", seed=seed, **treated) for seed in (0, 1)]
    trained += [MadeUp(f"p{seed}", seed=seed, **plain) for seed in (0, 1)]
    epochs = [
        MadeUp(f"{run.id}-{epoch}", kind="epoch", parents=[run.id], epoch=epoch)
        for run in trained
        for epoch in (2, 1)
    ]
    lost = MadeUp("lost", kind="epoch", parents=["nobody"], epoch=1)
    table = made_table([*OWN, *trained, *epochs, lost])
    found = epochs_of(table)
    assert list(found) == ["no treatment", "FD-LM"]
    names = [[run.id for run in group] for group in found["FD-LM"]]
    assert names == [["t0-1", "t1-1"], ["t0-2", "t1-2"]]
    shelf = SimpleNamespace(
        tables={"one": ResultTable("it", ()), "other": ResultTable("it", (), form="epochs")},
        table={"other": table}.__getitem__,
    )
    assert runs_after_epochs(shelf) == {run.id for run in epochs}  # pruning must not take them out


@pytest.fixture(scope="module")
def shelf():
    made = Shelf(ROOT / "results")
    made._truths["pydoc", "", "mini", ""] = truth_of("pydoc")
    return made


def test_a_kept_table_gets_its_picture_again(shelf):
    figure = drawn_again(shelf.table(PYDOC))
    assert text_problems(figure) == []
    drawn = {text.get_text() for text in figure.axes[0].texts}
    legend = {text.get_text() for text in figure.axes[0].get_legend().get_texts()}
    methods = {row.method for row in TABLES[PYDOC].rows} - {"old model"}
    assert methods <= {one.removesuffix(" (pays with accuracy)") for one in drawn | legend}
    assert {"mixing probabilities", "mixing logits"} <= legend


def test_the_decision_rule_is_drawn_at_every_price(shelf):
    figure = module._decided(shelf.table(PYDOC))
    assert text_problems(figure) == []
    legend = {text.get_text() for text in figure.axes[0].get_legend().get_texts()}
    assert {"rule, pooled", "rule, new model's posterior", "mixing logits"} <= legend


def test_all_pairs_of_a_zoo_can_be_read(shelf):
    assert text_problems(drawn_again(shelf.table(ZOO))) == []


def test_pictures_that_only_a_notebook_draws_are_refused(shelf):
    kept = shelf.table("decisions-cifar10-mini-guarantee")
    assert not can_be_drawn(kept)
    with pytest.raises(ValueError, match=r"nbs/decisions\.ipynb"):
        drawn_again(kept)


def test_pictures_are_renewed_in_place(shelf, tmp_path, monkeypatch):
    from shutil import copytree

    results = tmp_path / "results"
    copytree(ROOT / "results" / "gated-fusion-pydoc", results / "gated-fusion-pydoc")
    picture = results / "gated-fusion-pydoc" / f"{PYDOC}.svg"
    picture.write_text("old")
    only = SimpleNamespace(tables={PYDOC: TABLES[PYDOC]}, table=shelf.table)
    assert renew_pictures(only, results) == [PYDOC]
    assert picture.read_text().startswith("<?xml")


@pytest.mark.parametrize("kind", ["figure4", "c-6"])
def test_the_pictures_of_language_models_are_drawn_again(shelf, kind):
    name = f"muscle-arithmetic-mini-{kind}"
    figure = drawn_again(shelf.table(name))
    assert text_problems(figure) == []
    if kind == "figure4":  # the bars are what the rows say of themselves
        told = [100 * one[0] for row in TABLES[name].rows for one in (row.nfr, row.pfr)]
        widths = sorted(bar.get_width() for bar in figure.axes[0].patches)
        assert widths == pytest.approx(sorted(told), abs=0.005)


ENCODERS = "embeddings-massive-mini-main"


@pytest.mark.parametrize("ending", ["", "-backfilling"])
def test_pictures_of_encoders_are_drawn_again(ending, monkeypatch):
    monkeypatch.setattr(
        module,
        "_recalls",
        lambda kept, pairs, share=0.0: [
            (0.5 if queries == index else 0.1) + 0.3 * share for queries, index in pairs
        ],
    )
    figure = drawn_again(Shelf(ROOT / "results").table(ENCODERS), ending)
    assert text_problems(figure) == []
    if ending:
        drawn = [np.round(line.get_ydata(), 1) for line in figure.axes[0].lines]
        lines = {tuple(line) for line in drawn if len(line) == 5}  # three, one over another
        assert lines == {(10.0, 17.5, 25.0, 32.5, 40.0)}
    else:
        fields = [[text.get_text() for text in axes.texts] for axes in figure.axes]
        assert fields == [["50.0", "10.0", "10.0", "50.0"]] * 3


def test_searches_of_encoders_are_found_by_who_asks_and_what_is_asked(monkeypatch):
    kept = Shelf(ROOT / "results").table(ENCODERS)
    monkeypatch.setattr(kept, "runs", lambda names: list(names))
    monkeypatch.setattr(
        kept, "of", lambda runs: lambda split: [kept.shelf.runs[one] for one in runs]
    )
    monkeypatch.setattr(module, "recall_at_1", lambda run: run.results["recall_at_1"]["test"])
    pairs = module._encoders(kept)["backward-compatible"]
    row = kept.rows["backward-compatible training"]
    assert np.mean(module._recalls(kept, pairs)) == pytest.approx(row.accuracy[0])
    with pytest.raises(ValueError, match="no search of"):
        module._recalls(kept, pairs, share=0.4)


def dial_table(everywhere):
    """A kept table of BCWI whose values answered on test everywhere, or only where shown."""
    rule = {"rule": "target"}
    rows = {
        "old model": Row("old model", "", 2, (0.7, 0.01), (0.0, 0.0)),
        "new model": Row("new model", "", 2, (0.8, 0.01), (0.04, 0.01)),
        "BCWI": Row("BCWI", "α 0.5", 2, (0.79, 0.01), (0.02, 0.01), choice=rule),
        "BCWI α=0.4": Row("BCWI α=0.4", "as in the talk", 2, (0.8, 0.01), (0.03, 0.01)),
        "soup of 2": Row("soup of 2", "α 0", 2, (0.8, 0.01), (0.03, 0.01)),
        "EWC": Row("EWC", "strength 3", 2, (0.8, 0.01), (0.03, 0.01), choice=rule),
    }
    points = {"selection": (0.0, 0.5, 1.0), "test": (0.0, 0.5, 1.0) if everywhere else (0.5,)}
    table = ResultTable("a table", tuple(rows.values()), form="update")
    return SimpleNamespace(name="bcwi-made-up", rows=rows, table=table, points=points)


@pytest.mark.parametrize("everywhere", [True, False])
def test_a_dials_curve_is_drawn_where_all_its_values_answered(everywhere, monkeypatch):
    module = "compatkit.experiments.judging.kept_figures"
    asked = []

    def curves(kept, row, split):
        asked.append((row.method, split))
        curve = SimpleNamespace(accuracy=np.array([0.8, 0.75, 0.7]), nfr=np.array([0.04, 0.02, 0]))
        return [curve, curve]

    monkeypatch.setattr(f"{module}.curves_of", curves)
    monkeypatch.setattr(f"{module}.alphas_of", lambda kept, row, split: kept.points[split])
    figure = drawn_again(dial_table(everywhere), "-accuracy")
    legend = {text.get_text() for text in figure.axes[0].get_legend().get_texts()}
    dials = {"BCWI", "EWC"} if everywhere else set()
    assert {name for name, _ in asked} == dials and {split for _, split in asked} <= {"test"}
    assert dials | {"flips in proportion"} <= legend
    drawn = {text.get_text() for text in figure.axes[0].texts}
    assert "BCWI α=0.4" not in legend | drawn


@pytest.mark.parametrize("notebook", sorted({name.split("-")[0] for name in TABLES}))
def test_the_rows_of_every_kept_table_can_be_drawn_legibly(notebook):
    """One table of each notebook: the one with the most rows."""
    mine = [table for name, table in TABLES.items() if name.startswith(f"{notebook}-")]
    flips = [table for table in mine if sum(row.nfr[0] is not None for row in table.rows) > 2]
    table = max(flips, key=lambda one: len(one.rows))
    assert text_problems(accuracy_nfr_picture(table.rows, title=table.title)) == []


@pytest.mark.parametrize("picture", PICTURES, ids=[one.stem for one in PICTURES])
def test_the_texts_of_every_kept_picture_are_on_the_canvas_and_apart(picture):
    _, boxes = text_boxes(picture)
    assert len(boxes) > 10 and problems_of(picture) == []


def test_texts_in_a_file_that_leave_the_canvas_or_lie_over_others_are_named(tmp_path):
    with plot_style():
        figure, axes = pyplot.subplots(figsize=(3, 2))
        axes.text(0.5, 0.5, "one")
        axes.text(0.5, 0.5, "other", rotation=90)
        axes.text(0.9, 0.9, "a label that is far too long for this picture")
        pyplot.close(figure)
        figure.savefig(tmp_path / "clash.svg")
    found = " ".join(problems_of(tmp_path / "clash.svg"))
    assert "'one' and 'other' lie over one another" in found
    assert "'a label that is far too long for this picture' reaches beyond the canvas" in found


def test_a_picture_drawn_twice_is_the_same_file(tmp_path, shelf):
    for name in ("one.svg", "other.svg"):
        save_marked(drawn_again(shelf.table(PYDOC)), tmp_path / name, "0" * 16)
    assert (tmp_path / "one.svg").read_bytes() == (tmp_path / "other.svg").read_bytes()
