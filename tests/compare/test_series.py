"""The matrix over all updates: against pairs one by one, on what all versions share, and as a
picture that can be read.
"""

import json
import re
from dataclasses import replace
from math import nan

import numpy as np
import pytest

from compatkit.compare.pair import Pair
from compatkit.compare.series import Versions, _shade, _shared, all_pairs, versions_of
from compatkit.metrics import FlipCounts
from compatkit.predictions import Predictions

HOSTILE = "</script>\x1b[31m|@you\n`*_[x](http://y.z)\u202e<img src=x>"


def matrix(names, seed=0):
    draw = np.random.default_rng(seed)
    found = all_pairs(
        [draw.random(500) < accuracy for accuracy in np.linspace(0.6, 0.9, len(names))]
    )
    return Versions(tuple(names), 500, "accuracy", found.level.tolist(), found.nfr, found.gain)


def test_all_pairs_against_pairs():
    draw = np.random.default_rng(0)
    right = [draw.random(500) < accuracy for accuracy in (0.5, 0.7, 0.9)]
    _, nfr, gain = all_pairs(right)
    for i, old in enumerate(right):
        for j, new in enumerate(right):
            counts = FlipCounts.of(np.ones(500, dtype=int), old.astype(int), new.astype(int))
            assert nfr[i, j] == counts.nfr and gain[i, j] == pytest.approx(counts.pfr - counts.nfr)


def test_all_pairs_of_scores():
    _, nfr, gain = all_pairs([np.array([0.1, 0.5]), np.array([0.2, 0.4])])
    assert nfr.tolist() == [[0, 0.5], [0.5, 0]] and gain == pytest.approx(np.zeros((2, 2)))


@pytest.mark.parametrize(
    "values", [[], [np.ones(3)], [np.ones(3), np.ones(4)], [np.ones(0), np.ones(0)]]
)
def test_versions_that_do_not_fit(values):
    with pytest.raises(ValueError, match="two or more versions"):
        all_pairs(values)


def test_versions_of_several_tasks_count_each_example_once():
    pairs = []
    for new, score in (([1, 1, 1, 1, -1], 0.4), ([0, 0, 1, 1, -1], 0.6)):
        codes = [
            np.array(side, dtype=np.int32) for side in ([0, 0, 0, 0, -1], [0, 1, 0, 0, -1], new)
        ]
        task = np.array(["t (acc)"] * 2 + ["t (acc_norm)"] * 2 + ["s (bleu)"], dtype=object)
        pairs.append(
            Pair(
                "a",
                "b",
                ("x", "y"),
                *codes,
                *np.array([[nan] * 4 + [0.5], [nan] * 4 + [score]]),
                task=task,
            )
        )
    assert [rows.tolist() for rows in _shared(pairs)] == [[0, 1], [0, 1]]


def test_versions_that_share_nothing():
    first = Predictions(["a", "b"], [0, 1], [0, 1])
    pairs = [
        Pair.of(first, Predictions([name], [label], [label]), on_missing="drop")
        for name, label in (("a", 0), ("b", 1))
    ]
    with pytest.raises(ValueError, match="no example is in all versions"):
        versions_of(pairs, "xyz")


def test_answers_beside_scores():
    both = Predictions(["a"], [0], [0], score=[0.5])
    pairs = [Pair.of(both, both), Pair.of(both, Predictions(["a"], score=[0.7]))]
    with pytest.raises(ValueError, match="only scores"):
        versions_of(pairs, "xyz")


@pytest.mark.parametrize("share", np.linspace(0, 0.3, 30))
def test_values_can_be_read_on_their_shade(share):
    back, front = _shade(share, 0.3)
    grey = int(re.match(r"rgb\((\d+),", back)[1]) / 255
    light = grey / 12.92 if grey <= 0.04045 else ((grey + 0.055) / 1.055) ** 2.4
    contrast = (light + 0.05) / 0.05 if front == "#000" else 1.05 / (light + 0.05)
    assert contrast >= 4.5  # WCAG AA


def test_versions_show_themselves(tmp_path):
    found = matrix([HOSTILE, "b", "$x$ and $y$"])
    page = found.to_html()
    assert "<img" not in page and "\x1b" not in page and page.count("<script") == 2
    for shown in (found.to_markdown(), found._repr_html_()):
        assert (
            "NFR of replacing" in shown
            and "<img" not in shown
            and "<script" not in shown
            and "\x1b" not in shown
        )
    noted = replace(found, notes=(f"Every label is {HOSTILE!r}.", "A sentence of 90 letters " * 4))
    assert "](http" not in noted.to_markdown() and "@you" not in noted.to_markdown()
    assert noted.notes[1] in noted._repr_html_() and noted.notes[1] in noted.to_markdown()
    assert "@you" not in found.to_markdown() and all(
        c.isprintable() or c == "\n" for c in str(found)
    )
    assert json.loads(found.to_json())["versions"][0] == HOSTILE
    found.picture().savefig(tmp_path / "matrix.png")
    assert (tmp_path / "matrix.png").read_bytes().startswith(b"\x89PNG")
    texts = [text.get_text() for text in found.picture().axes[0].texts]
    assert texts[0] == "" and texts[1].startswith(f"{100 * found.nfr[0, 1]:.2f} %")


def test_equal_versions_have_a_picture():
    found = all_pairs([np.ones(3, dtype=bool)] * 2)
    found = Versions(("a", "b"), 3, "accuracy", found.level.tolist(), found.nfr, found.gain)
    assert (
        (found.nfr == 0).all() and found.picture() is not None and "0.00 %" in found._repr_html_()
    )
