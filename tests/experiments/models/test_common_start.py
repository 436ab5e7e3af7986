"""A common start: one body for both models, trained on half of the data."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import tiny
import torch

from compatkit.experiments.models.common_start import common_start
from compatkit.experiments.models.trainings import build


@pytest.mark.parametrize(
    "task, recipe",
    [(tiny.task(), tiny.RECIPE), (tiny.image_task(), tiny.IMAGE_RECIPE)],
    ids=["texts", "images"],
)
def test_two_models_start_from_one_body_with_heads_of_their_own(
    task, recipe, tmp_path, monkeypatch
):
    monkeypatch.setenv("COMPATKIT_HOME", str(tmp_path))
    started = common_start(task, recipe)
    assert started == common_start(task, recipe), "made once"
    assert started.name == "common start" and started.model == (
        "image" if recipe.of_images else "encoder"
    )
    bodies, heads = [], []
    for seed in (0, 1):
        model, _ = build(started, task, seed)
        body = model.base_model.state_dict()
        bodies.append(body)
        heads.append(
            {name: value for name, value in model.state_dict().items() if "classifier" in name}
        )
    assert all(torch.equal(value, bodies[1][name]) for name, value in bodies[0].items())
    assert any(not torch.equal(value, heads[1][name]) for name, value in heads[0].items())
    assert "common start" in started.words()


def test_a_start_may_come_from_other_classes_and_is_known_by_its_run(tmp_path, monkeypatch):
    monkeypatch.setenv("COMPATKIT_HOME", str(tmp_path))
    other = replace(tiny.image_task(seed=7), title="others", classes=("x", "y", "z"))
    longer = replace(tiny.IMAGE_RECIPE, epochs=3)
    started = common_start(tiny.image_task(), tiny.IMAGE_RECIPE, other, longer)
    (trained,) = tmp_path.glob("fine_tune-*")
    record = json.loads((trained / "record.json").read_text(encoding="utf-8"))["configuration"]
    assert record["task"] == "others" and record["recipe"]["epochs"] == 3
    assert started.epochs == tiny.IMAGE_RECIPE.epochs, "what follows has its own recipe"
    assert started.start != common_start(tiny.image_task(), tiny.IMAGE_RECIPE).start
    before = started.identity()
    assert before["weights"] == started.start and "start" not in before
    weights = Path(started.folder) / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"\0")  # as another machine's rounding would
    assert started.identity() == before
