"""Studies of gated fusion: which runs an upgrade has, whose logits teach, and what each row is."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import tiny
import torch

from compatkit.distillation import DynamicDistillation
from compatkit.experiments.models.gates import GateSetting, _looked_up
from compatkit.experiments.models.recipes import Experiment
from compatkit.experiments.models.upgrades import answers
from compatkit.experiments.studies import fusion_studies
from compatkit.experiments.studies.fusion_studies import FusionStudy
from compatkit.experiments.studies.study import Study

GATES = [GateSetting(0.4, temperature, 1e-3) for temperature in (1.0, 1.5)]
OLD, NEW = replace(tiny.RECIPE, width=64), tiny.RECIPE


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """Runs of their own, and the recipes of the tiny task whatever the upgrade."""
    patch = pytest.MonkeyPatch()
    patch.setenv("COMPATKIT_HOME", str(tmp_path_factory.mktemp("runs")))
    patch.setattr(fusion_studies, "upgrade_recipes", lambda *given: (OLD, NEW))
    yield
    patch.undo()


def begun(distillations=(), votes=(), old_logits="in_sample", seeds=2, table="main"):
    """A study of the tiny task."""
    chosen = SimpleNamespace(
        task="tiny", table=table, seeds=seeds, encoder="", old_encoder="", max_steps=-1,
        old_logits=old_logits, from_results=False, keep_results=False,
    )  # fmt: skip
    study = Study("gated_fusion", chosen, Experiment(tiny.task(), "smoke", "asked for"))
    return FusionStudy(study, GATES, distillations, votes)


@pytest.fixture(scope="module")
def fusion(home):
    return begun([DynamicDistillation(weight) for weight in (0.0, 1.0)], votes=(2,))


@pytest.fixture(scope="module")
def fused(fusion):
    with fusion.study.running():
        return fusion.run("a")


def seeds_of(runs):
    return [run.configuration["seed"] for run in runs]


def test_each_seed_has_its_pair_and_votes_have_further_members(fused):
    pair = fused.pair
    assert (seeds_of(pair.olds), seeds_of(pair.news)) == ([0, 1], [1000, 1001, 1002])
    assert seeds_of(fused.gated.runs) == seeds_of(fused.distilled.runs) == [1000, 1001]
    assert len(fused.gated.tried) == 2 and len(fused.distilled.tried) == 2
    assert fused.searches == [fused.distilled, fused.gated]
    for seed, run in enumerate(fused.gated.runs):  # from the untreated run of its seed
        assert run.configuration["parents"] == [pair.olds[seed].id, pair.news[seed].id]
    assert {run.configuration["keep_epochs"][0] for run in pair.news} == {NEW.epochs - 1}


def test_what_is_counted_is_what_was_planned(fusion, fused, capsys):
    fusion.plan("a")
    told = capsys.readouterr().out.splitlines()[1]
    assert told == "upgrade a: 2 old, 3 new, 4 distilled, 4 last epochs of gated fusion"
    assert len(fusion.study.runs) == 2 + 3 + 4 + 4


def test_at_paper_scale_the_chosen_gates_are_trained_once_more_and_weights_counted(home):
    fusion = begun([DynamicDistillation(0.0), DynamicDistillation(1.0)], votes=(2,))
    fusion.study.scale = "paper"
    planned = [(one.kind, one.number, one.kept) for one in fusion.planned("a") if one.number]
    assert planned == [
        ("old", 2, 0),
        ("new", 2, 1),
        ("new", 1, 0),  # which only votes
        ("distilled", 4, 0),
        ("last epochs of gated fusion", 4, 0),
        ("of them once more, to be kept", 2, 1),
    ]


def test_gates_are_published_with_logits_and_what_they_answer_alone(fusion, fused):
    published = fusion.study._published
    splits = {"selection", "test", "selection-alone", "test-alone"}
    for run in fused.gated.runs:
        assert published[run.id]["logits"] and set(published[run.id]["splits"]) == splits


def test_rows_are_of_the_paper(fused):
    alone = [answer.correct.mean() for answer in answers(fused.gated.runs, "test-alone")]
    assert fused.dropped_row().accuracy[0] == pytest.approx(np.mean(alone))
    assert fused.gated_row().words.startswith("D 40%, T ")
    assert fused.distilled_row().words.startswith("λ ")
    constant = fused.constant_row()
    assert constant.words.startswith("mean gate 0.") and constant.method == "constant gate"
    assert set(constant.records) == {run.id for run in (*fused.gated.runs, *fused.pair.olds)}
    assert [len(triple) for triple in fused.triples] == [3, 3]
    assert str(fused.rates_note()).startswith(
        "of the untreated model's negative flips gated fusion"
    )


def test_a_cache_of_everything_is_the_old_model_and_counts_as_runs(fusion, fused):
    before = len(fusion.study.runs)
    row = fused.cache_row(fusion.study, 100)
    assert (row.accuracy, row.nfr) == (fused.gated_row().accuracy, fused.gated_row().nfr)
    assert row.method == "cache of 100 %" and len(fusion.study.runs) == before + 2


def test_a_head_answers_for_inputs_that_the_cache_does_not_know(fusion, fused):
    nearest, learned = (fused.cache_row(fusion.study, 90, by_head) for by_head in (False, True))
    assert learned.method == "cache of 90 %, head" and nearest.method == "cache of 90 %"
    assert set(learned.records).isdisjoint(nearest.records)
    olds = [old.predictions("test").logits for old in fused.pair.olds]
    for seed, old in enumerate(olds):
        run = fused.gated.runs[seed]
        given = fusion.study.task, run, fused.pair.olds[seed], 0.9, seed
        (near, exact), (guess, same) = (_looked_up(*given, one, ["test"]) for one in (False, True))
        assert torch.equal(exact, same) and 0 < int(exact.sum()) < len(old)
        kept = torch.tensor(old)[exact]
        assert torch.equal(near[exact], kept) and torch.equal(guess[exact], kept)
        assert not torch.equal(near[~exact], guess[~exact])


def test_out_of_fold_answers_teach_and_the_old_model_answers(home, monkeypatch):
    asked = []

    def held_out(task, recipe, seed):
        """Any run that has answers on the training split will do."""
        asked.append((recipe, seed))
        return fusion.study.train(OLD, 50 + seed, splits=("train", "selection", "test"))

    monkeypatch.setattr(fusion_studies, "out_of_fold", held_out)
    fusion = begun([DynamicDistillation(1.0)], old_logits="out_of_fold", seeds=1)
    assert fusion.folds == 5 and begun().folds == 0
    assert (fusion.variant, fusion.taught_by) == ("out_of_fold", "out of fold")
    assert (begun().variant, begun().taught_by) == ("", "in sample")
    with fusion.study.running():
        fused = fusion.run("a")
    teacher = fusion.study.train(OLD, 50, splits=("train", "selection", "test")).id
    assert asked == [(OLD, 0)] and len(fused.pair.news) == 1
    assert fused.distilled.runs[0].configuration["parents"] == [teacher]
    pair = fused.pair
    parents = [pair.olds[0].id, pair.news[0].id, teacher]
    assert fused.gated.runs[0].configuration["parents"] == parents


def test_both_kinds_of_old_logits_stand_side_by_side(home, monkeypatch):
    def held_out(task, recipe, seed):
        """Any run that has answers on the training split will do."""
        return fusion.study.train(OLD, 50 + seed, splits=("train", "selection", "test"))

    monkeypatch.setattr(fusion_studies, "out_of_fold", held_out)
    fusion = begun([DynamicDistillation(1.0)], table="folds", seeds=1)
    assert fusion.both and fusion.folds == 5 and fusion.variant == ""
    assert fusion.taught_by == "in sample, or out of fold, as the row says"
    gates = [one.number for one in fusion.planned("a") if one.kind == "last epochs of gated fusion"]
    assert gates == [4], "two settings, two kinds"
    with fusion.study.running():
        fused = fusion.run("a")
    untreated = [fused.pair.olds[0].id, fused.pair.news[0].id]
    teacher = fusion.study.train(OLD, 50, splits=("train", "selection", "test")).id
    parents = [search.runs[0].configuration["parents"] for search in fused.searches]
    assert parents == [untreated[:1], untreated, [*untreated, teacher]], "distilled in sample"
    rows = fused.gated_row(), fused.unseen_row()
    assert [row.method for row in rows] == list(fused.searched())[1:]
    assert rows[1].method == "gated fusion, out of fold"
    assert rows[0].records != rows[1].records
    published = fusion.study._published
    assert all(published[search.runs[0].id]["logits"] for search in fused.searches[1:])
    alone = replace(fused, unseen=None)
    assert alone.searches == fused.searches[:2]
    with pytest.raises(ValueError, match="upgrade a.*old logits"):
        alone.unseen_row()


def test_both_kinds_at_once_leave_nothing_to_choose(home):
    with pytest.raises(ValueError, match="old_logits"):
        begun(table="folds", old_logits="out_of_fold")


def test_without_distillation_there_is_no_row_of_it(fused):
    bare = replace(fused, distilled=None)
    assert bare.searches == [fused.gated]
    with pytest.raises(ValueError, match="dynamic distillation.*upgrade a"):
        bare.distilled_row()


def test_the_first_two_models_are_shown_before_any_treatment(fused, tmp_path, monkeypatch):
    monkeypatch.setenv("COMPATKIT_PAGE", str(tmp_path / "page.html"))
    study = begun().study
    looking = FusionStudy(study, GATES)
    with study.running():
        assert next(study.seed_by_seed()) == 1
        study.seeds = 1  # as inside the loop
        looking.first_look("a")
        assert len(study.runs) == 2, "nothing was treated"
    page = (tmp_path / "page.html").read_text()
    assert "before any treatment" in page and "1 of 2 seeds" in page and "old-new logits" in page
