"""The figures of the ensembles: groups that share no member, all pairs of a zoo, and who is
uncertain.
"""

import re

import make_hub_cache
import numpy as np
import pytest
import tiny
import torch
from safetensors.torch import load_file
from transformers import ConvNextImageProcessorPil, ResNetForImageClassification

from compatkit.ensembles import average_logits
from compatkit.experiments.models.recipes import Recipe
from compatkit.experiments.studies.ensemble_figures import (
    IMAGENET_ZOO,
    NOT_IN_ZOO,
    Sides,
    as_published_once,
    flip_picture,
    size_picture,
    size_rows,
    sizes_up_to,
    zoo,
    zoo_notes,
    zoo_picture,
    zoo_rows,
)
from compatkit.metrics import FlipCounts
from compatkit.predictions import Predictions
from compatkit.support.pictures import text_problems
from compatkit.training.tasks import load_task

LABEL = np.arange(90) % 3


class MadeUp:
    """A run of noisy answers."""

    def __init__(self, name, seed, spread=0.8):
        self.id, self.seed, self.spread = name, seed, spread

    def predictions(self, split):
        noise = np.random.default_rng(self.seed).normal(size=(90, 3))
        logits = np.eye(3)[LABEL] + self.spread * noise
        return Predictions(np.arange(90).astype(str), LABEL, logits=logits)


OLDS, NEWS = (
    [MadeUp(f"{side}{n}", 100 * at + n) for n in range(4)] for at, side in enumerate("on")
)


@pytest.mark.parametrize(
    "largest, sizes", [(1, [1]), (2, [1, 2]), (6, [1, 2, 4, 6]), (16, [1, 2, 4, 8, 16])]
)
def test_sizes_double_up_to_the_largest(largest, sizes):
    assert sizes_up_to(largest) == sizes


def test_groups_of_one_size_share_no_member():
    rows = size_rows(Sides("same", OLDS, NEWS), ", twice")
    assert [row.method for row in rows] == [
        "single models, twice",
        "ensembles of 2, twice",
        "ensembles of 4, twice",
    ]
    assert [row.seeds for row in rows] == [4, 2, 1]
    whole = [average_logits([run.predictions("test") for run in side]) for side in (OLDS, NEWS)]
    assert rows[2].nfr[0] == FlipCounts.between(*whole).nfr
    assert set(rows[0].records) == {run.id for run in OLDS + NEWS}


def test_a_row_names_the_members_of_its_groups_alone():
    """Three members a side hold one group of two; the number of records tells the size."""
    rows = size_rows(Sides("same", OLDS[:3], NEWS[:3]))
    assert [row.method for row in rows] == ["single models", "ensembles of 2", "ensembles of 3"]
    assert rows[1].records == ("n0", "n1", "o0", "o1") and rows[1].seeds == 1
    assert [len(row.records) for row in rows] == [6, 4, 6]


def test_the_curves_of_sizes_are_those_of_the_rows(capsys):
    sides = Sides("same", OLDS, NEWS)
    figure = size_picture([sides, sides])
    assert text_problems(figure) == []
    drawn = figure.axes[0].lines
    nfr = [100 * row.nfr[0] for row in size_rows(sides)]
    assert any(len(line.get_ydata()) == 3 and np.allclose(line.get_ydata(), nfr) for line in drawn)
    assert "same: NFR" in capsys.readouterr().out


def test_every_pair_of_the_zoo_is_a_row_and_a_cell():
    zoo_of = {"small": OLDS[:2], "large": OLDS[2:]}, {"small": NEWS[:2], "large": NEWS[2:]}
    rows = zoo_rows(*zoo_of)
    assert [row.method for row in rows] == [
        "small → small",
        "small → large",
        "large → small",
        "large → large",
    ]
    figure = zoo_picture(["small", "large"], rows)
    assert text_problems(figure) == []
    cells = [text.get_text() for text in figure.axes[2].texts]
    assert cells == [f"{100 * row.nfr[0]:.1f}" for row in rows]


def test_a_model_without_a_second_seed_has_no_cell_on_the_diagonal(capsys):
    published = [OLDS[0]] * 2  # one run stands on both sides
    zoo_of = {"trained": OLDS[:2], "published": published}
    rows = zoo_rows(zoo_of, {"trained": NEWS[:2], "published": published})
    assert [row.method for row in rows] == [
        "trained → trained", "trained → published", "published → trained",
    ]  # fmt: skip
    figure = zoo_picture(["trained", "published"], rows)
    shown = [text.get_text() for text in figure.axes[2].texts]
    assert shown.count("–") == 1 and "nan" not in capsys.readouterr().out


def test_a_zoo_goes_from_small_to_large():
    base, large = Recipe(layers=1, width=64), Recipe(layers=2, width=64)
    models = zoo(tiny.task(), "mini", base, large)
    assert [*models] == ["linear", "narrow", "base", "two layers"] and models["narrow"].width == 32
    images = zoo(tiny.image_task(), "mini", tiny.IMAGE_RECIPE, tiny.IMAGE_RECIPE)
    assert images["deep"].depths == (2, 2) and images["small"].widths == (4,)


def test_a_classifier_of_others_may_be_there_as_bin_alone(tmp_path, monkeypatch):
    monkeypatch.setenv("COMPATKIT_HOME", str(tmp_path / "runs"))
    make_hub_cache.make_images(tmp_path)
    task, answered = load_task("imagenet", tmp_path), []
    for kind in ("safetensors", "bin"):
        folder = tmp_path / kind
        folder.mkdir()
        make_hub_cache.make_resnet(folder, "microsoft/resnet-18")
        if kind == "bin":
            weights = folder / "model.safetensors"
            torch.save(load_file(weights), folder / "pytorch_model.bin")
            weights.unlink()
        recipe = Recipe("image", kind, str(folder))
        answered.append(as_published_once(task, recipe).predictions("test"))
    assert np.array_equal(answered[0].logits, answered[1].logits) and len(answered[0]) == 8


def test_a_classifier_of_others_sees_images_as_its_own_processor_makes_them(tmp_path, monkeypatch):
    monkeypatch.setenv("COMPATKIT_HOME", str(tmp_path / "runs"))
    make_hub_cache.make_images(tmp_path)
    task, folder = load_task("imagenet", tmp_path), tmp_path / "model"
    folder.mkdir()
    make_hub_cache.make_resnet(folder, "microsoft/resnet-18")
    model, found = ResNetForImageClassification.from_pretrained(folder).eval(), []
    for share in (0.5, 1.0):  # of the image's shorter side
        own = ConvNextImageProcessorPil(size={"shortest_edge": 32}, crop_pct=share)
        own.save_pretrained(folder)
        recipe = Recipe("image", f"cropped to {share}", str(folder))
        found.append(as_published_once(task, recipe).predictions("test").logits)
        pixels = own([row["image"].convert("RGB") for row in task.test], return_tensors="pt")
        with torch.no_grad():
            np.testing.assert_allclose(found[-1], model(**pixels).logits.numpy(), atol=1e-4)
    assert not np.allclose(*found)


def test_what_the_papers_zoo_has_and_ours_lacks_is_named():
    published = {name: [OLDS[0]] * 2 for name in IMAGENET_ZOO}
    diagonal, networks = zoo_notes(published, published)
    assert all(name in diagonal for name in IMAGENET_ZOO) and "twice, are missing" in diagonal
    assert all(name in networks for name in NOT_IN_ZOO)
    trained = {"trained": OLDS[:2]}
    assert zoo_notes(trained, {"trained": NEWS[:2]}) == ()
    told = zoo_notes(published, published, "answers of others")
    assert "by their answers in answers of others" in told[0]


def test_flips_are_counted_where_the_ensemble_is_uncertain(capsys):
    voters = [MadeUp(f"v{n}", 50 + n).predictions("test") for n in range(4)]
    old, new, treated = (
        MadeUp(name, seed, 0.6).predictions("test") for seed, name in enumerate("ont")
    )
    figure = flip_picture(voters, [(old, new, treated)])
    assert text_problems(figure) == []
    flips = int((old.correct & ~new.correct).sum())
    shown = [text.get_text() for text in figure.axes[0].get_legend().get_texts()]
    assert f"negative flips ({flips:,})" in shown and f"other examples ({90 - flips:,})" in shown
    left = int((old.correct & ~treated.correct).sum())
    said = capsys.readouterr().out
    (halves,) = re.findall(r"(\d+) surer .* has (\d+); .* (\d+) less sure .*, (\d+)", said)
    surer, left_surer, less, left_less = map(int, halves)
    assert (left_surer + left_less, surer + less) == (left, flips), "every flip is in one half"
    assert f"flips, FD-LM ({left:,})" in [
        text.get_text() for text in figure.axes[1].get_legend().get_texts()
    ]
