"""Expressions over runs: stored and read again, their runs, their dials, what they answer."""

import json
from dataclasses import dataclass
from math import inf
from typing import NamedTuple

import numpy as np
import pytest

from compatkit.decisions import TooFewExamples, choose_price
from compatkit.ensembles import mix
from compatkit.experiments.reporting.expressions import (
    Certified,
    ConstantGate,
    Keep,
    Mean,
    Mix,
    Of,
    PerSplit,
    Vote,
    at,
    from_data,
    ids_in,
    ids_of,
    leaves,
    neighbours,
    reads_logits,
    to_data,
)
from compatkit.predictions import Predictions

COUNT = 200


@dataclass(frozen=True)
class Made:
    """A run of a made-up model, seeded by its name."""

    id: str
    results = {"temperature": 1.5, "gate": {"selection": {"mean": 0.3}}}

    def predictions(self, split):
        random = np.random.default_rng(sum(map(ord, self.id + split.partition("-")[0])))
        label = np.arange(COUNT) % 3
        logits = random.normal(size=(COUNT, 3)) + 2 * np.eye(3)[label]
        return Predictions([f"{split[:4]}{one}" for one in range(COUNT)], label, logits=logits)


class Viewed(NamedTuple):
    """A run seen through something else, as the answers on an update's new data are."""

    run: Made
    update: str

    @property
    def id(self):
        return self.run.id

    def predictions(self, split):
        return self.run.predictions(split)


OLD, NEW, OTHER = Made("old"), Made("new"), Viewed(Made("other"), "more data")
ALL = [
    OLD,
    OTHER,
    Of(NEW, "alone"),
    PerSplit(Of(OLD, "0.4"), Of(NEW, "0.4")),
    Mix(OLD, NEW, 0.25),
    Mix(OLD, OTHER, 0.5, "logit"),
    ConstantGate(OLD, NEW),
    Vote((OLD, NEW, OTHER)),
    Mean((NEW, OTHER)),
    Keep(OLD, NEW, 3.0),
    Keep(OLD, NEW, inf, "pooled"),
    Keep(OLD, NEW, 1.0, Mean((NEW, OTHER))),
    Certified(OLD, NEW, 0.05),
]


@pytest.mark.parametrize("expression", ALL, ids=lambda one: type(one).__name__)
def test_stored_as_json_and_read_again_it_is_the_same_value(expression):
    runs = {run.id: run for run in (OLD, NEW, OTHER)}
    stored = json.loads(json.dumps(to_data(expression)))
    again = from_data(stored, runs.__getitem__)
    assert again == expression and ids_in([stored]) == ids_of([expression])
    assert set(leaves(expression)) <= {OLD, NEW, OTHER}, "a named tuple is a run, not a group"
    for split in ("selection", "test"):
        answers = [one.predictions(split).prediction for one in (expression, again)]
        assert (answers[0] == answers[1]).all()


@pytest.mark.parametrize(
    "data, error",
    [({"kind": "Blend"}, ValueError), ({"kind": "Mix", "old": "old"}, TypeError), ("x", KeyError)],
)
def test_what_is_no_expression_is_refused(data, error):
    with pytest.raises(error, match="Blend|weight|x"):
        from_data(data, {"old": OLD}.__getitem__)


def test_a_posterior_is_one_of_three_or_a_model():
    with pytest.raises(ValueError, match="'newest'"):
        Keep(OLD, NEW, 1.0, "newest")


@pytest.mark.parametrize(
    "expression, value, changed",
    [
        (Mix(OLD, NEW, 0.25), 0.5, Mix(OLD, NEW, 0.5)),
        (Keep(OLD, NEW, 3.0, "pooled"), inf, Keep(OLD, NEW, inf, "pooled")),
        (Of(NEW, "0.4"), 0.5, Of(NEW, "0.5")),
        (PerSplit(Of(OLD, "0"), Of(NEW, "0")), 1.0, PerSplit(Of(OLD, "1"), Of(NEW, "1"))),
    ],
)
def test_another_value_of_a_dial_is_the_same_expression_with_it(expression, value, changed):
    assert at(expression, value) == changed


@pytest.mark.parametrize("expression", [Vote((OLD, NEW)), NEW])
def test_what_has_no_dial_is_refused(expression):
    with pytest.raises(TypeError, match=type(expression).__name__):
        at(expression, 0.5)


def test_the_ends_of_a_dial_are_the_two_models():
    for end, model in (
        (Mix(OLD, NEW, 0.0), OLD),
        (Mix(OLD, NEW, 1.0), NEW),
        (Keep(OLD, NEW, 0.0), NEW),
        (Keep(OLD, NEW, inf), OLD),
        (Mean((NEW,)), NEW),
    ):
        assert (end.predictions("test").prediction == model.predictions("test").prediction).all()


def test_a_constant_gate_is_the_mixture_at_the_mean_gate():
    old, new = (run.predictions("test") for run in (OLD, NEW))
    expected = mix(old.replace(logits=old.logits / 1.5), new, 0.3, "logit")
    found = ConstantGate(OLD, NEW).predictions("test")
    np.testing.assert_allclose(found.logits, expected.logits)


def test_a_certified_price_comes_from_selection_and_holds_on_test():
    sides = [run.predictions("selection") for run in (OLD, NEW)]
    loose, strict = Certified(OLD, NEW, 0.2), Certified(OLD, NEW, 0.015)
    assert 0 <= loose.price == choose_price(*sides, None, 0.2).price < strict.price
    decided = loose.predictions("test").prediction
    assert (decided == Keep(OLD, NEW, loose.price).predictions("test").prediction).all()
    with pytest.raises(TooFewExamples):
        Certified(OLD, NEW, 1e-6).predictions("test")


def test_who_computes_with_logits_is_known():
    computing = [reads_logits(one) for one in ALL]
    kinds = (Mix, ConstantGate, Vote, Mean, Keep, Certified)
    assert computing == [isinstance(one, kinds) for one in ALL]
    assert not reads_logits(Mean((NEW,))) and reads_logits(PerSplit(Mix(OLD, NEW, 0.5), NEW))


def test_neighbours_are_groups_of_one_size_one_a_seed():
    groups = neighbours([Made(str(number)) for number in range(6)], 4, 3)
    assert [len(group) for group in groups] == [4, 4, 4] and len(set(groups)) == 3
    with pytest.raises(ValueError):
        neighbours([OLD, NEW], 4, 3)
