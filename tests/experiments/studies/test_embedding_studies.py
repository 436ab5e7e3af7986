"""The tables of embeddings at smoke: one study for all, its choice, rows, pictures and verdicts."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import tiny

from compatkit.experiments.models.embedding_trainings import EncoderSetting
from compatkit.experiments.models.upgrades import answers
from compatkit.experiments.studies import embedding_studies as module
from compatkit.experiments.studies.embedding_studies import (
    COMPATIBLE,
    REGRESSION,
    SHARES,
    EmbeddingStudy,
    backfilling,
    backfilling_picture,
    checked,
    dial_lines,
    four_searches,
    four_searches_picture,
    method_rows,
    search_row,
    verdicts_of,
)
from compatkit.retrieval import recall_at_1

ALONE = EncoderSetting()


def begun(**changes):
    """A study with these parameters."""
    given = {"task": "pydoc", "scale": "smoke", "seeds": 1, "table": "main", "max_steps": 2}
    given |= {"data_dir": "", "encoder": "", "settings": 0, "from_results": False}
    return EmbeddingStudy.begin(SimpleNamespace(**given | {"keep_results": False} | changes))


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    """A study of two steps a training: wiring only."""
    patch = pytest.MonkeyPatch()
    patch.setenv("COMPATKIT_HOME", str(tmp_path_factory.mktemp("runs")))
    yield begun(seeds=2)
    patch.undo()


def test_rows_pictures_and_verdicts(study, capsys):
    study.plan()
    assert "2 old encoders, 6 new encoders" in capsys.readouterr().out
    rows = [
        search_row(study, "old model", study.old_in_old()),
        search_row(study, "new model", study.in_own()),
        search_row(study, "new model, old index", study.in_old()),
    ]
    assert rows[0].nfr[0] == 0 and rows[0].difference is None and rows[2].difference is not None
    assert rows[0].words.startswith("mAP") and "update gain" in rows[2].words
    made, chosen = method_rows(study, COMPATIBLE)
    assert [row.method for row in made][:2] == [COMPATIBLE, f"own index, {COMPATIBLE}"]
    table = study.table([*rows, *made])
    assert table.title.endswith("wiring only") and "recall at 1" in " ".join(map(str, table.notes))
    assert "both encoders competent" in checked(study, [*rows, *made])
    fields = four_searches(study, {"trained alone": ALONE})
    assert fields["trained alone"].shape == (2, 2)
    means = [
        np.mean([recall_at_1(one) for one in answers(runs)])
        for runs in (study.old_in_old(), study.in_own())
    ]
    assert fields["trained alone"][0, 0] == means[0] and fields["trained alone"][1, 1] == means[1]
    on_the_way = backfilling(study, {"trained alone": ALONE})["trained alone"]
    assert on_the_way.shape == (2, len(SHARES))
    assert on_the_way[:, -1].mean() == pytest.approx(means[1], abs=0.03)
    assert four_searches_picture(fields).axes and backfilling_picture({"a": on_the_way}, 0.5).axes
    verdicts = verdicts_of(study, chosen)
    assert {one.word for one in verdicts.values()} == {"undecided"}  # two seeds decide nothing
    assert len(dial_lines(study, REGRESSION)) == 1
    assert {len(one) for one in (study.study.runs[row].splits for row in made[0].records)} == {2}


def chosen_of(patch, recalls, nfrs):
    """What a study chooses whose settings give these recalls and flips on selection."""
    study = EmbeddingStudy.__new__(EmbeddingStudy)
    study.settings = lambda: {"m": [EncoderSetting("compatible", w) for w in recalls]}
    study.old_in_old = lambda: "old"
    study.in_own = lambda setting=ALONE: ("own", recalls.get(setting.weight, 0.8))
    study.in_old = lambda setting=ALONE, mapping="": ("old", nfrs.get(setting.weight))
    patch.setattr(module, "answers", lambda runs, split: [runs])
    patch.setattr(module, "recall_at_1", lambda one: one[1])
    row = lambda method, olds, given: SimpleNamespace(nfr=(given[0][1],))  # noqa: E731
    patch.setattr(module, "measure", row)
    return study.best("m")


@pytest.mark.parametrize(("allowed", "taken"), [(0.0, 0.1), (0.01, 1.0), (0.5, 10.0)])
def test_the_setting_with_the_fewest_flips_among_those_that_keep_recall(
    monkeypatch, allowed, taken
):
    monkeypatch.setattr(module, "WITHIN", allowed)
    recalls, nfrs = {0.1: 0.8, 1.0: 0.795, 10.0: 0.6}, {0.1: 0.2, 1.0: 0.1, 10.0: 0.05}
    chosen = chosen_of(monkeypatch, recalls, nfrs)
    assert (chosen.setting.weight, chosen.qualified) == (taken, True)
    assert len(chosen.tried) == 3


def test_where_nothing_qualifies_the_row_says_so(monkeypatch):
    chosen = chosen_of(monkeypatch, {0.1: 0.7, 1.0: 0.6}, {0.1: 0.1, 1.0: 0.1})
    assert chosen.setting.weight == 0.1 and not chosen.qualified


@pytest.mark.parametrize("table", ["classes", "width"])
def test_other_tables_have_other_updates(tmp_path, monkeypatch, table):
    monkeypatch.setenv("COMPATKIT_HOME", str(tmp_path))
    study = begun(table=table)
    if table == "classes":
        assert study.update.old_classes and len(study.settings()[COMPATIBLE]) == 2
    else:
        assert [one.embedding for one in study.recipes] == [32, 64]
        assert len(study.search(study.new(0), study.old(0)).predictions("test")) > 0


def test_another_architecture_needs_a_real_task():
    with pytest.raises(ValueError, match="pydoc"):
        begun(table="architecture")


def test_smoke_results_are_not_kept():
    with pytest.raises(ValueError, match="keep_results"):
        begun(keep_results=True)


@pytest.mark.parametrize("table", module.TABLES)
def test_images_are_searched_too(table, tmp_path, monkeypatch):
    """The same encoder twice; a narrower old embedding, or a larger new ResNet, where asked for."""
    monkeypatch.setenv("COMPATKIT_HOME", str(tmp_path))
    study = begun(task="digits", table=table)
    old, new = study.recipes
    assert (old.embedding, new.embedding) == ((32, 64) if table == "width" else (64, 64))
    assert (old.widths == new.widths) == (table != "architecture")
    if table != "main":
        return
    row = search_row(study, "new model, old index", study.in_old())
    assert 0 <= row.accuracy[0] <= 1
    table = study.table([search_row(study, "old model", study.old_in_old()), row])
    assert "images; new: ResNet from scratch" in " ".join(map(str, table.notes))


def test_large_pictures_are_scaled_for_encoders():
    assert begun_with_images("tiny_imagenet").side == 32
    assert begun_with_images("cifar10").side == 0
    assert begun_with_images("cifar10").epochs == module.IMAGE_EPOCHS


def begun_with_images(name):
    """The new encoder's recipe for an image task of this name at mini scale."""
    task = replace(tiny.image_task(), name=name)
    chosen = SimpleNamespace(max_steps=-1)
    study = SimpleNamespace(task=task, scale="mini", chosen=chosen)
    return module.recipes_of(study, "main", "")[1]
