"""What the tests of retiring an old model share: a data update of the tiny task, what it leaves as
traffic, and its models.
"""

from types import SimpleNamespace

import pytest
import tiny

from compatkit.experiments.models.traffic_trainings import traffic_of
from compatkit.experiments.studies.retirements import RetirementStudy
from compatkit.experiments.studies.study import Study
from compatkit.training.data_updates import more_samples, reduced


class Book:
    """Stands for a Study: it counts runs and notes how each is published."""

    scale, must_show, wiring = "mini", False, False
    recalled_notes = Study.recalled_notes

    def __init__(self, seeds=2):
        self.seeds, self.runs, self.published = seeds, {}, {}
        self.chosen = SimpleNamespace(table="main", upgrade="data", keep_results=False)

    def add(self, run, logits=False, splits=("selection", "test")):
        self.runs[run.id], self.published[run.id] = run, (logits, tuple(splits))
        return run

    def begin_with(self, run):
        return run

    def command(self):
        return "papermill nbs/retire_the_old.ipynb"


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """A data update of the tiny task, what it leaves, and a home for runs."""
    task = tiny.task(train=110, test=48)
    update = more_samples(reduced(task, 60), 2 / 3)
    patch = pytest.MonkeyPatch()
    patch.setenv("COMPATKIT_HOME", str(tmp_path_factory.mktemp("runs")))
    yield task, update, traffic_of(update, task)
    patch.undo()


def study_of(world, upgrade="data", seeds=2):
    """The study of an upgrade, trained."""
    _, update, traffic = world
    recipes = (tiny.RECIPE, tiny.RECIPE, tiny.RECIPE)
    models = RetirementStudy(Book(seeds), update, traffic, recipes, upgrade)
    models.train()
    return models


@pytest.fixture(scope="module")
def models(world):
    return study_of(world)
