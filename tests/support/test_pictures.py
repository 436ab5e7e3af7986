"""The style survives grey, labels find free places, and the check of a picture can fail."""

import pytest
from matplotlib import pyplot

from compatkit.support.pictures import (
    COLOURS,
    MARKERS,
    label_axes,
    looks,
    place_labels,
    plot_style,
    text_problems,
)


@pytest.fixture
def axes():
    figure, axes = pyplot.subplots(figsize=(4, 3), layout="constrained")
    axes.set(xlim=(0, 1), ylim=(0, 1))
    yield axes
    pyplot.close(figure)


def test_looks_are_the_same_for_the_same_names_and_differ_between_them():
    names = [f"method {number}" for number in range(11)]
    assert looks(names) == looks(names)
    assert len(set(looks(names).values())) == 11
    assert looks(["a"])["a"] == (COLOURS[0], MARKERS[0])


def test_labels_that_would_cover_each_other_are_set_apart(axes):
    points = [(0.5, 0.5, "first", "black"), (0.51, 0.5, "second", "black")]
    assert place_labels(axes, points) == []
    assert text_problems(axes.figure) == []


def test_what_finds_no_place_is_returned_and_not_written(axes):
    points = [(0.5, 0.5, f"a label of some length {n}", "black") for n in range(40)]
    left_out = place_labels(axes, points)
    written = {text.get_text() for text in axes.texts}
    assert left_out and written and not written & set(left_out)
    assert text_problems(axes.figure) == []


def test_a_label_stays_inside_the_axes(axes):
    place_labels(axes, [(0.999, 0.999, "corner", "black")])
    assert text_problems(axes.figure) == []
    assert place_labels(axes, [(0.5, 0.5, "x" * 200, "black")]) == ["x" * 200]


def test_text_over_text_and_text_beyond_the_canvas_are_named():
    figure, axes = pyplot.subplots(figsize=(4, 3))
    pyplot.close(figure)
    axes.text(0.5, 0.5, "one")
    axes.text(0.5, 0.5, "other")
    axes.text(0.95, 0.9, "far too long for the place where it begins")
    problems = text_problems(figure)
    assert any("'one' and 'other'" in problem for problem in problems)
    assert any("beyond the canvas" in problem for problem in problems)
    assert len(problems) == 2


def test_ticks_that_are_not_drawn_are_no_problem(axes):
    axes.set_ylim(0, 5.4)
    axes.set_yticks([0, 2, 4, 6])
    assert text_problems(axes.figure) == []


def test_labels_of_the_axes_point_to_better(axes):
    label_axes(axes, "accuracy", "NFR")
    assert axes.get_xlabel().endswith("(better →)") and axes.get_ylabel().startswith("(← better)")


def test_the_style_ends_with_the_block():
    before = pyplot.rcParams["axes.spines.top"]
    with plot_style():
        assert pyplot.rcParams["axes.spines.top"] is False
    assert pyplot.rcParams["axes.spines.top"] == before
