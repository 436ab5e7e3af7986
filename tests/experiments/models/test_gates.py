"""Gates: the last epoch of gated fusion is a run of its own, from the untreated run's
checkpoint.
"""

import shutil
from dataclasses import replace

import numpy as np
import pytest
import tiny
from safetensors.torch import load_file

from compatkit.experiments.models.gates import (
    GateSetting,
    cached_once,
    fitted_temperature,
    fuse_once,
)
from compatkit.experiments.models.recipes import Recipe
from compatkit.experiments.models.trainings import build, encoded, out_of_fold, train_once
from compatkit.gated_fusion import GatedFusion
from compatkit.metrics import fit_temperature
from compatkit.training.loop import load_weights, outputs, predict

# --- the last epoch as a run ----------------------------------------------------------------------


SETTING = GateSetting(0.4, 1.3, 1e-3)


@pytest.fixture(scope="module")
def upgrade(tmp_path_factory):
    """An old run, a new one with the weights after its first epoch, and the fusion."""
    home, task = tmp_path_factory.mktemp("runs"), tiny.task()
    old = train_once(
        task, replace(tiny.RECIPE, width=64), 0, splits=("train", "selection", "test"), home=home
    )
    new = train_once(task, tiny.RECIPE, 1000, keep_epochs=(1,), home=home)
    return {
        "task": task,
        "old": old,
        "new": new,
        "home": home,
        "run": fuse_once(task, tiny.RECIPE, 1000, SETTING, old, new, home=home),
    }


def fused_again(upgrade, setting=SETTING, **changes):
    given = {"old": upgrade["old"], "new": upgrade["new"], "home": upgrade["home"]} | changes
    return fuse_once(upgrade["task"], tiny.RECIPE, 1000, setting, **given)


def test_one_of_many_settings_keeps_no_weights_and_answers_the_same(upgrade):
    bare = fused_again(upgrade, keep_weights=False)
    assert not (bare.folder / "model.safetensors").exists() and bare.id != upgrade["run"].id
    assert (upgrade["run"].folder / "model.safetensors").exists()
    for split in ("selection", "test"):
        pair = (run.predictions(split).logits for run in (bare, upgrade["run"]))
        assert np.array_equal(*pair)


def test_a_new_model_from_the_results_is_trained_after_all_where_a_gate_needs_its_weights(
    upgrade, tmp_path
):
    recalled = tmp_path / "recalled" / upgrade["new"].id
    shutil.copytree(upgrade["new"].folder, recalled, ignore=shutil.ignore_patterns("*.safe*"))
    asked = []
    new = replace(upgrade["new"], folder=recalled, again=lambda: asked.append(1) or upgrade["new"])
    run = fused_again(upgrade, new=new, home=tmp_path / "runs")
    assert asked == [1] and run.id == upgrade["run"].id
    pair = (one.predictions("test").logits for one in (run, upgrade["run"]))
    assert np.array_equal(*pair)


def test_the_kept_answers_are_the_mixture(upgrade):
    run, old = upgrade["run"], upgrade["old"]
    for split in ("selection", "test"):
        fused, alone, answer = (
            run.predictions(split),
            run.predictions(f"{split}-alone"),
            old.predictions(split),
        )
        assert (
            list(fused.id)
            == list(alone.id)
            == list(answer.id)
            == getattr(upgrade["task"], split)["id"]
        )
        gate = fused.columns["gate"][:, None]
        np.testing.assert_allclose(
            fused.logits, (1 - gate) * answer.logits / 1.3 + gate * alone.logits, atol=1e-5
        )
        assert (
            run.results["accuracy"][split] == fused.correct.mean()
            and run.results["accuracy"][f"{split}-alone"] == alone.correct.mean()
        )
        assert (
            run.results["gate"][split]["mean"] == pytest.approx(gate.mean())
            and run.results["temperature"] == 1.3
        )
        assert fused.classes == alone.classes == tiny.CLASSES
    assert (
        upgrade["new"].id in run.configuration["parents"] and old.id in run.configuration["parents"]
    )


def test_the_kept_weights_and_embeddings_are_the_models(upgrade):
    run, task = upgrade["run"], upgrade["task"]
    model, tokenizer = build(tiny.RECIPE, task, 0)
    fusion = GatedFusion.from_model(model, 1.3)
    load_weights(fusion, run.folder / "model.safetensors")
    found = outputs(
        fusion,
        encoded(tiny.RECIPE, task, tokenizer, "test"),
        ("logits", "embedding"),
        old=upgrade["old"].predictions("test"),
    )
    np.testing.assert_allclose(found["logits"], run.predictions("test").logits, atol=1e-5)
    np.testing.assert_allclose(
        found["embedding"],
        load_file(run.folder / "embedding-test.safetensors")["embedding"],
        atol=1e-5,
    )


def test_it_begins_where_the_untreated_run_was_one_epoch_before_its_end(upgrade):
    still = fused_again(upgrade, GateSetting(0.0, 1.0, 0.0))  # a rate of 0: nothing moves
    model, tokenizer = build(tiny.RECIPE, upgrade["task"], 0)
    load_weights(model, upgrade["new"].folder / "epoch-1.safetensors")
    expected = predict(model, encoded(tiny.RECIPE, upgrade["task"], tokenizer, "test"))
    np.testing.assert_allclose(still.predictions("test-alone").logits, expected.logits, atol=1e-6)
    assert np.abs(upgrade["new"].predictions("test").logits - expected.logits).max() > 1e-3
    assert np.abs(upgrade["run"].predictions("test-alone").logits - expected.logits).max() > 1e-3


def test_a_fusion_is_a_run_like_others(upgrade):
    assert fused_again(upgrade).id == upgrade["run"].id
    different = {
        fused_again(upgrade, replace(SETTING, **change)).id
        for change in ({"drop_gate": 0.5}, {"learning_rate": 2e-3}, {"temperature": 2.0})
    }
    assert len(different | {upgrade["run"].id}) == 4
    elsewhere = fused_again(upgrade, home=upgrade["home"] / "again")
    np.testing.assert_array_equal(
        elsewhere.predictions("test").logits, upgrade["run"].predictions("test").logits
    )


def test_the_temperature_can_be_fitted_on_the_selection_split(upgrade):
    selection = upgrade["old"].predictions("selection")
    fitted = fitted_temperature(upgrade["old"])
    assert fitted == round(fit_temperature(selection.logits, selection.label), 2)
    run = fused_again(upgrade, replace(SETTING, temperature="fit"))
    assert run.results["temperature"] == fitted == run.configuration["treatment"]["temperature"]


def test_the_old_model_may_be_of_another_family_and_answer_out_of_fold(upgrade):
    task, home = upgrade["task"], upgrade["home"]
    old = train_once(task, Recipe("linear"), 0, splits=("train", "selection", "test"), home=home)
    inside = fused_again(upgrade, old=old)
    outside = fused_again(
        upgrade, old=old, old_train=out_of_fold(task, Recipe("linear"), 0, folds=3, home=home)
    )
    assert inside.predictions("test").logits.shape == (24, 3) and inside.id != outside.id
    assert not np.array_equal(inside.predictions("test").logits, outside.predictions("test").logits)


def test_missing_weights_name_the_remedy(upgrade, tmp_path):
    home = tmp_path / "runs"
    folder = upgrade["new"].folder
    shutil.copytree(folder, home / folder.name)
    new = type(upgrade["new"]).load(home / folder.name)
    (new.folder / "epoch-1.safetensors").unlink()
    with pytest.raises(
        FileNotFoundError,
        match=f"{folder.name} kept no weights epoch-1.safetensors; "
        "remove its folder and run it again",
    ):
        fused_again(upgrade, new=new, home=home)


def test_the_old_run_needs_its_training_answers(upgrade):
    with pytest.raises(
        FileNotFoundError, match=f"{upgrade['new'].id} has no predictions of 'train'"
    ):
        fused_again(upgrade, old=upgrade["new"])


def test_a_cache_over_both_halves_of_a_validation_set(upgrade, monkeypatch):
    monkeypatch.setenv("COMPATKIT_HOME", str(upgrade["home"]))
    task, run, old = (upgrade[name] for name in ("task", "run", "old"))
    plain, both = (
        cached_once(task, run, old, 1.0, 0, splits=splits)
        for splits in (("test",), ("selection", "test"))
    )
    assert plain.id != both.id and not (plain.folder / "predictions-selection.parquet").exists()
    for split in ("selection", "test"):  # a full cache is the old model itself
        wanted, found = (one.predictions(split) for one in (run, both))
        assert np.array_equal(wanted.id, found.id)
        assert np.allclose(wanted.logits, found.logits, atol=1e-5)
    half = cached_once(task, run, old, 0.5, 0, splits=("selection", "test"))
    assert 0.4 < half.results["exact"] < 1
