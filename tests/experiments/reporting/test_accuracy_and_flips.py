"""The picture of every table: nothing hidden, nothing over anything, colours shared by points
and curves.
"""

from math import nan
from types import SimpleNamespace

import pytest
from matplotlib.colors import to_hex

from compatkit.experiments.reporting.accuracy_and_flips import accuracy_nfr_picture
from compatkit.support.pictures import text_problems


def row(method, accuracy, nfr, spread=0.004, seeds=3, pays=False):
    return SimpleNamespace(
        method=method, accuracy=(accuracy, spread), nfr=(nfr, spread), seeds=seeds, pays=pays
    )


ROWS = [
    row("old model", 0.80, nan),
    row("new model", 0.85, 0.04),
    row("mixture", 0.846, 0.02),
    row("gate", 0.852, 0.021),
    row("constant gate", 0.852, 0.021),
    row("distillation", 0.838, 0.03, pays=True),
]
CURVES = {"mixture": ([0.8, 0.846, 0.85], [0, 0.02, 0.04]), "other": ([0.8, 0.85], [0, 0.04])}
FLOORS = {"reseed floor, old recipe": 0.05, "reseed floor, new recipe": 0.0501}


def names(figure):
    axes = figure.axes[0]
    legend = axes.get_legend()
    listed = [text.get_text() for text in legend.get_texts()] if legend else []
    return listed, [text.get_text() for text in axes.texts]


def test_every_method_is_named_once_and_nothing_lies_over_anything():
    figure = accuracy_nfr_picture(ROWS, CURVES, FLOORS, "a title")
    listed, beside = names(figure)
    for method in ("new model", "gate", "constant gate", "distillation (pays with accuracy)"):
        assert (listed + beside).count(method) == 1
    assert text_problems(figure) == []


def test_a_curve_is_seen_up_to_where_it_is_most_accurate():
    best = {"mixture": ([0.5, 0.9, 0.85], [0, 0.02, 0.04]), "none": ([nan], [nan])}
    left, right = accuracy_nfr_picture(ROWS, best, {}, "").axes[0].get_xlim()
    assert 80 < left and right > 90  # its lower end would leave the points no room


@pytest.mark.parametrize("count", [1, 7, 15])
def test_many_methods_stay_legible(count):
    rows = [row(f"a method with a long name {n}", 0.8 + 0.001 * n, 0.02) for n in range(count)]
    figure = accuracy_nfr_picture(rows, title="many")
    listed, beside = names(figure)
    assert len(listed + beside) == count
    assert text_problems(figure) == []


def test_a_curve_has_its_methods_colour_and_a_strange_one_is_grey():
    axes = accuracy_nfr_picture(ROWS, CURVES, {}, "").axes[0]
    curves = {line.get_label(): line for line in axes.lines if len(line.get_xdata()) > 2}
    points = {
        line.get_label(): line for line in axes.lines if line.get_marker() not in ("", "None")
    }
    assert curves["mixture"].get_color() == points["mixture"].get_color()
    other = next(line for line in axes.lines if line.get_label() == "other")
    red, green, blue = (to_hex(other.get_color())[i : i + 2] for i in (1, 3, 5))
    assert red == green == blue


def test_of_two_markers_in_one_place_the_later_is_a_ring():
    axes = accuracy_nfr_picture(ROWS, {}, {}, "").axes[0]
    points = {
        line.get_label(): line for line in axes.lines if line.get_marker() not in ("", "None")
    }
    gate, constant = points["gate"], points["constant gate"]
    assert constant.get_markersize() > gate.get_markersize()
    assert constant.get_markerfacecolor() == "none" and gate.get_markerfacecolor() != "none"


def test_floors_in_one_place_share_a_name():
    listed, _ = names(accuracy_nfr_picture(ROWS, {}, FLOORS, ""))
    assert "reseed floor, old recipe and new recipe" in listed
    apart, _ = names(accuracy_nfr_picture(ROWS, {}, {"floor, a": 0.01, "floor, b": 0.05}, ""))
    assert {"floor, a", "floor, b"} <= set(apart)


def test_the_axes_begin_where_the_points_are_and_hold_every_cross():
    axes = accuracy_nfr_picture(ROWS, CURVES, FLOORS, "").axes[0]
    left, right = axes.get_xlim()
    assert 80 < left < 83.4 and 85.6 < right < 87
    assert axes.get_ylim()[0] == 0 and axes.get_ylim()[1] > 5.01


def test_rows_that_were_not_run_are_not_drawn_and_nothing_at_all_is_still_a_picture():
    listed, beside = names(accuracy_nfr_picture([row("late", nan, nan, seeds=0)], CURVES))
    assert "late" not in listed + beside
    assert accuracy_nfr_picture([]).axes
