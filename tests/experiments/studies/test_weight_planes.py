"""The plane through three models and the lines between them: places, distances, what matching
may change.
"""

import copy

import numpy as np
import pytest
import tiny
import torch
from torch import nn

from compatkit.experiments.studies.weight_planes import (
    Plane,
    SeedModels,
    all_lines,
    distance,
    lines_picture,
    lines_table,
    losses,
    markdown_table,
    matching_words,
    nearest_matching,
    plane_picture,
    seeds_words,
    surface,
)
from compatkit.support.pictures import text_problems


@pytest.fixture(scope="module")
def family():
    """Three small models that were not trained."""
    rows = {name: tiny.data(16, seed) for seed, name in enumerate(("new_selection", "new_test"))}
    old, new, target = (tiny.model(seed, dropout=0.0).eval() for seed in (1, 2, 3))
    return SeedModels(old, {"new": new, "target": target}, rows)


def test_the_plane_holds_its_three_models(family):
    three = (family.old, family.others["new"], family.others["target"])
    plane = Plane(*three)
    for place, model in zip(plane.places, three):
        assert distance(plane.at(*place), model) < 1e-2
    assert plane.places[0] == (0, 0)
    assert plane.places[1] == (
        pytest.approx(distance(*three[:2]), rel=1e-4),
        pytest.approx(0, abs=1e-3),
    )
    assert abs(float(plane.x @ plane.y)) < 1e-4 and float(plane.x.norm()) == pytest.approx(
        1, abs=1e-4
    )


def test_a_plane_writes_into_its_model_where_that_lies():
    """The meta device stands for a GPU to which evaluation took the model."""
    plane = Plane(*(nn.Linear(2, 2) for _ in range(3)))
    plane.model.to("meta")
    assert all(weight.is_meta for weight in plane.at(0.1, 0.2).parameters())


def test_distance_by_hand_and_across_types():
    one, other = nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False)
    other.weight.data = one.weight.data + torch.tensor([[3.0, 0.0], [0.0, 4.0]])
    assert distance(one, other) == pytest.approx(5)
    with pytest.raises(ValueError):
        distance(one, nn.Linear(2, 2))


def test_lines_end_at_the_models_and_matching_changes_only_the_way(family):
    lines = all_lines([family], (0, 0.5, 1), orders=1)
    assert list(lines.curves) == ["new", "target", "target, matched"]
    as_trained, matched = lines.curves["target"][0], lines.curves["target, matched"][0]
    assert losses(matched)[[0, 2]] == pytest.approx(losses(as_trained)[[0, 2]], abs=1e-5)
    matching = lines.matchings["target"][0]
    assert matching.distance_after <= matching.distance_before
    assert distance(lines.models("target, matched")[0], family.old) == pytest.approx(
        matching.distance_after, rel=1e-4
    )
    assert lines.rises("new") >= 0
    table = lines_table(lines).splitlines()
    assert len(table) == 6 and table[2].startswith("| old |") and "matched" in table[5]
    assert not text_problems(lines_picture(lines))


def test_a_matching_that_changes_answers_is_noticed(family, monkeypatch):
    from compatkit.experiments.studies import weight_planes

    other = copy.deepcopy(family.others["target"])
    other.classifier.bias.data += 1
    wrong = weight_planes.Matching(other, {}, 1.0, 0.5)
    monkeypatch.setattr(weight_planes, "nearest_match", lambda *given: wrong)
    with pytest.raises(AssertionError, match="must give the same logits"):
        nearest_matching(family, "target", 1)


def test_a_surface_measures_shares(family):
    measured = surface(family, family.others["target"], 3)
    assert measured.values.shape == (3, 3, 3) and np.isfinite(measured.values).all()
    assert measured.values[1:].min() >= 0 and measured.values[1:].max() <= 1
    assert len(plane_picture(measured, "title").axes) == 6


def test_numbers_over_seeds():
    assert seeds_words([1.0, 3.0]) == "2.00 ± 1.41" and seeds_words([0.5], 100, 0) == "50"
    assert markdown_table([["a"], ["b"]]) == "| a |\n| --- |\n| b |"


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        (2.0, 0.2, "re-basin works: the barrier of the loss goes from 2.00 to 0.20; that of the "),
        (2.0, 0.21, "re-basin helps and does not suffice"),
        (2.0, 1.8, "re-basin helps and does not suffice"),
        (2.0, 1.81, "re-basin does not work"),
        (0.04, 0.0, "there is hardly a barrier to take away (0.04)"),
    ],
)
def test_what_matching_did_is_said_by_the_share_that_is_left(before, after, words):
    assert matching_words(before, after, 0.01).startswith(words)
