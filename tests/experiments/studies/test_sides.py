"""Both sides of an update: who answers which examples, and which old model a method is compared
with.
"""

from types import SimpleNamespace

import numpy as np
import pytest
import tiny

from compatkit.distillation import LogitDifferenceInhibition
from compatkit.experiments.models.recipes import Experiment
from compatkit.experiments.models.upgrades import Search
from compatkit.experiments.reporting.expressions import Mean
from compatkit.experiments.studies.sides import (
    Compared,
    Seen,
    Update,
    as_pct_prints,
    averages,
    teach,
    unwrapped,
)
from compatkit.experiments.studies.study import Study
from compatkit.metrics import FlipCounts
from compatkit.predictions import Predictions
from compatkit.training.data_updates import more_classes

LABEL = np.array([0, 1, 2, 0, 1, 2])


class Fixed:
    """A run whose answers are given."""

    recalled = False

    def __init__(self, name, *answers):
        self.id, self.answers = name, answers

    def predictions(self, split):
        logits = 2 * np.eye(3)[list(self.answers)]
        return Predictions(np.arange(6).astype(str), LABEL, logits=logits)


RIGHT, WRONG = Fixed("right", 0, 1, 2, 0, 1, 2), Fixed("wrong", 1, 1, 2, 0, 1, 2)


def test_an_average_is_the_mean_of_its_members_logits_and_names_them_all():
    both = Mean((RIGHT, WRONG))
    assert both.id == "right wrong"
    assert both.predictions("test").logits[0].tolist() == [1.0, 1.0, 0.0]
    assert both.predictions("test").logits[1].tolist() == [0.0, 2.0, 0.0]


def test_neighbouring_runs_make_an_ensemble_a_seed():
    runs = [Fixed(str(number), *LABEL) for number in range(4)]
    assert [group.id for group in averages(runs, 2, 3)] == ["0 1", "1 2", "2 3"]
    with pytest.raises(ValueError, match="need 5 members"):
        averages(runs, 2, 4)


def test_the_run_itself_answers_all_examples():
    seen = Seen(RIGHT, None, False)
    assert unwrapped(seen) is RIGHT and unwrapped(RIGHT) is RIGHT
    assert unwrapped(Mean((seen, seen))).members == (RIGHT, RIGHT)


def test_a_method_with_its_own_old_model_says_how_accurate_that_is():
    own = Compared("ensemble", [WRONG], [RIGHT]).row([RIGHT], [RIGHT])
    assert own.words == "its old model: 83.33%" and (own.new, own.old) == (("right",), ("wrong",))


def test_an_old_model_of_its_own_at_a_later_seed_is_named_too():
    sides = [RIGHT, WRONG], [RIGHT, RIGHT]
    row = Compared("most central of 2", *sides).row([RIGHT, RIGHT], [RIGHT, RIGHT])
    assert row.words == "its old model: 91.67%" and row.old == ("right", "wrong")
    usual = Compared("treated", [RIGHT], [WRONG], "λ 1").row([RIGHT], [RIGHT], all_classes=True)
    assert usual.words == "λ 1; all classes: 83.33%" and usual.nfr[0] == pytest.approx(1 / 6)
    assert usual.difference is not None and usual.records == ("wrong",)
    assert Compared("new model", [RIGHT], [WRONG]).row([WRONG], [RIGHT]).difference is None


def test_a_searched_method_says_its_setting_and_whether_it_was_on_a_par():
    found = Search(LogitDifferenceInhibition(0.1, 2), [WRONG], [], False)
    method = Compared.of("ELODI", [RIGHT], found)
    assert (method.olds, method.news, method.models) == ([RIGHT], [WRONG], 1)
    assert method.setting == "λ 0.1, top 2, sum over classes" and not method.qualified


def test_pct_prints_errors_of_both_sides():
    text = as_pct_prints([Compared("new model", [RIGHT], [WRONG], models=3)]).data.splitlines()
    assert [cell.strip() for cell in text[2].strip("|").split("|")] == [
        "new model",
        "0.00",
        "16.67",
        "16.67",
        "100.00",
        "3",
    ]


@pytest.fixture
def study(tmp_path, monkeypatch):
    monkeypatch.setenv("COMPATKIT_HOME", str(tmp_path))
    chosen = SimpleNamespace(
        task="tiny", seeds=2, table="main", max_steps=-1, from_results=False, keep_results=False
    )
    return Study("mine", chosen, Experiment(tiny.task(), "smoke", "asked for"))


def test_where_classes_grow_only_known_ones_count(study):
    grown = more_classes(study.task)
    update = Update(tiny.RECIPE, tiny.RECIPE, grown)
    old, new = update.old_run(study, 0), update.new_run(study, 0)
    answered, after = old.predictions("test"), new.predictions("test")
    assert list(answered.id) == list(after.id)
    assert len(after) < len(unwrapped(new).predictions("test"))
    known = {study.task.classes[column] for column in update.old_classes}
    names = [study.task.classes[label] for label in after.label]
    assert set(names) <= known and FlipCounts.between(answered, after).n == len(names)
    assert old.predictions("train").logits.shape[1] == len(update.old_classes)
    assert set(study.runs) == {old.id, new.id}, "both are counted and published"


def test_students_stand_on_both_sides_with_seeds_of_their_own(study):
    update = Update(tiny.RECIPE, tiny.RECIPE)
    splits = ("train", "selection", "test")
    olds = [update.old_run(study, member) for member in range(3)]
    news = [update.new_run(study, member, splits=splits) for member in range(3)]
    grid = [LogitDifferenceInhibition(weight) for weight in (1.0, 0.1)]
    ensembles = averages(olds, 2, 2), averages(news, 2, 2)
    taught = teach(study, update, grid, *ensembles, news[:2])
    seeds = [
        [run.configuration["seed"] for run in side] for side in (taught.olds, taught.search.runs)
    ]
    assert seeds == [[500, 501], [1500, 1501]]
    assert taught.olds[1].configuration["parents"] == [olds[1].id, olds[2].id]
    assert len(taught.search.tried) == 2 and taught.search.setting in grid
    chosen = [one for one in taught.search.tried if one[0] is taught.search.setting]
    flips = [
        FlipCounts.between(old.predictions("selection"), new.predictions("selection")).nfr
        for old, new in zip(taught.olds, taught.search.runs)
    ]
    assert chosen[0][2] == pytest.approx(sum(flips) / 2), "flips between the two students"
