"""Encoders and searches as runs: kept, found again, cut where widths differ."""

from dataclasses import replace

import numpy as np
import pytest
import tiny
import torch

from compatkit.embeddings import fit_map
from compatkit.experiments.models import embedding_trainings as module
from compatkit.experiments.models.embedding_trainings import (
    EncoderSetting,
    FeatureRows,
    LayersOnTop,
    LayersRecipe,
    _halves,
    embeddings_of,
    encoder_once,
    search_once,
)
from compatkit.retrieval import Embeddings, answerable, recall_at_1, retrieve
from compatkit.training.data_updates import more_classes, more_samples
from compatkit.training.loop import fine_tune

UPDATE = more_samples(tiny.task(48))
NARROW = replace(tiny.RECIPE, width=16)


@pytest.fixture(autouse=True, scope="module")
def home(tmp_path_factory):
    """All runs of this file go to one folder."""
    patch = pytest.MonkeyPatch()
    patch.setenv("COMPATKIT_HOME", str(tmp_path_factory.mktemp("runs")))
    yield
    patch.undo()


def old(recipe=tiny.RECIPE, update=UPDATE):
    return encoder_once(update, "old", recipe, 0)


def new(setting=EncoderSetting(), update=UPDATE, before=None):
    before = None if setting == EncoderSetting() else before or old(update=update)
    return encoder_once(update, "updated", tiny.RECIPE, 1, setting, before)


def test_an_encoder_keeps_all_embeddings_of_today_and_its_head():
    run = old()
    for split in ("train", "selection", "test"):
        found = embeddings_of(run, split)
        rows = getattr(UPDATE.new, split)
        assert list(found.id) == list(rows["id"]) and list(found.label) == list(rows["label"])
    assert (run.folder / "head.safetensors").is_file() and old().id == run.id
    assert run.record["started"] == old().record["started"]  # found, not trained again


def test_each_setting_is_a_run_of_its_own_with_the_old_one_as_parent():
    settings = [
        EncoderSetting(),
        EncoderSetting("compatible", 1.0),
        EncoderSetting("regression", 1),
    ]
    runs = [new(one) for one in settings]
    assert len({run.id for run in runs}) == 3
    assert [run.configuration["parents"] for run in runs] == [[], [old().id], [old().id]]
    vectors = [embeddings_of(run, "test").vector for run in runs]
    assert not np.array_equal(vectors[0], vectors[1]) and not np.array_equal(*vectors[1:])
    assert str(settings[0]) == "" and str(settings[1]) == "λ 1"
    assert str(EncoderSetting("compatible", 0.1, True)) == "λ 0.1, rows for new classes"


def test_a_search_keeps_first_hits_and_precisions():
    run = search_once(new(), old())
    for split in ("selection", "test"):
        entries, _ = _halves(embeddings_of(old(), split))
        _, asked = _halves(embeddings_of(new(), split))
        wanted = retrieve(answerable(asked, entries), entries)
        found = run.predictions(split)
        assert list(found.id) == list(wanted.id)
        assert list(found.prediction) == list(wanted.prediction)
        assert np.allclose(found.score, wanted.score, atol=1e-4)
        assert run.results["recall_at_1"][split] == pytest.approx(recall_at_1(wanted))
    assert search_once(new(), old()).id == run.id != search_once(old(), new()).id


def test_queries_can_be_mapped_and_an_index_can_be_on_its_way():
    mapped = search_once(new(), old(), "linear").predictions("test")
    to_old = fit_map(embeddings_of(new(), "train"), embeddings_of(old(), "train"))
    entries, asked = (
        _halves(embeddings_of(old(), "test"))[0],
        _halves(embeddings_of(new(), "test"))[1],
    )
    wanted = retrieve(answerable(to_old(asked), entries), entries)
    assert list(mapped.prediction) == list(wanted.prediction)
    half = search_once(new(), old(), share=0.5).predictions("test")
    assert half.score is None and len(half) == len(mapped)
    whole = search_once(new(), old(), share=1.0).predictions("test")
    own = search_once(new(), new()).predictions("test")
    assert np.mean(whole.prediction == own.prediction) > 0.7  # directions are rounded once more


def test_wider_embeddings_are_cut():
    narrow = old(NARROW)
    assert embeddings_of(narrow, "test").width == 16
    compatible = new(EncoderSetting("compatible", 1.0), before=narrow)
    for pair in ((compatible, narrow), (narrow, compatible)):
        assert len(search_once(*pair).predictions("test")) > 0


def test_added_classes_are_left_out_of_the_influence_or_get_rows():
    update = more_classes(tiny.task(48), 0.7)
    assert len(update.old_classes) == 2
    runs = [
        new(EncoderSetting("compatible", 1.0, synthesised), update) for synthesised in (False, True)
    ]
    first, second = (embeddings_of(run, "test").vector for run in runs)
    assert not np.array_equal(first, second)
    assert set(embeddings_of(old(update=update), "test").label) == {0, 1, 2}


def test_halves_share_nothing_and_do_not_depend_on_the_order():
    given = Embeddings([f"t{n}" for n in range(11)], np.eye(11) + 1, np.arange(11) % 2)
    index, queries = _halves(given)
    assert {*index.id} | {*queries.id} == {*given.id} and not {*index.id} & {*queries.id}
    again, _ = _halves(given.select(given.id[::-1].tolist()))
    assert {*again.id} == {*index.id}


def test_a_recalled_run_holds_no_embeddings(tmp_path):
    from compatkit.experiments.running.runs import Run

    kept = Run(tmp_path / "recalled" / "encoder-1", {"id": "encoder-1"})
    with pytest.raises(ValueError, match="neither weights nor"):
        embeddings_of(kept, "test")


# --- two layers on features -----------------------------------------------------------------------


def test_two_layers_learn_on_features_that_stay(monkeypatch):
    draw = np.random.default_rng(0)
    centre = draw.normal(size=(3, 6))
    label = np.arange(60) % 3
    features = (centre[label] + 0.3 * draw.normal(size=(60, 6))).astype("float32")
    rows = FeatureRows([f"{n}" for n in range(60)], label.tolist(), features)
    recipe = LayersRecipe("nowhere", "made up", 1, width=4, hidden=8, dropout=0.0, epochs=20)
    monkeypatch.setattr(module, "feature_rows", lambda recipe, task, split: rows)
    model, of, train = module.model_and_rows(recipe, tiny.task(), 3)
    assert of("test") is rows is train and isinstance(model, LayersOnTop)
    again = LayersOnTop(6, recipe, 3, 3)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), again.parameters()))
    given = {"learning_rate": 1e-2, "num_train_epochs": 20, "per_device_train_batch_size": 16}
    trained = fine_tune(model, rows, None, 0, precision="float32", progress=False, **given).model
    vectors = module.embed(trained, rows)
    assert vectors.width == 4
    with torch.no_grad():
        right = trained(rows.features).logits.argmax(1).numpy() == label
    assert right.mean() > 0.9 and torch.equal(rows.features, torch.as_tensor(features))


def test_features_are_means_over_a_text_s_own_tokens():
    class Encoder(torch.nn.Module):
        def forward(self, input_ids, attention_mask):
            states = torch.stack([input_ids.float(), 2 * input_ids.float()], -1)
            return type("Output", (), {"last_hidden_state": states})

    ids, mask = torch.tensor([[2, 4, 99], [6, 99, 99]]), torch.tensor([[1, 1, 0], [1, 0, 0]])
    found = module._Mean(Encoder())(attention_mask=mask, input_ids=ids)["mean"]
    assert found.tolist() == [[3.0, 6.0], [6.0, 12.0]]


def test_a_recipe_of_layers_says_what_it_is(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "weights_fingerprint", lambda folder: "abc")
    recipe = LayersRecipe("/a/folder", "encoder", 3, width=64)
    assert recipe.identity()["weights"] == "abc" and "folder" not in recipe.identity()
    assert "width 64" in recipe.words() and "encoder's layer 3" in recipe.words()
    assert recipe.arguments()["num_train_epochs"] == 30


def test_an_image_encoder_ends_in_an_embedding_and_cosines():
    task = tiny.image_task()
    recipe = module.EncoderRecipe(**vars(tiny.IMAGE_RECIPE) | {"embedding": 8})
    model, rows, train = module.model_and_rows(recipe, task, seed=3)
    again, _, _ = module.model_and_rows(recipe, task, seed=3)
    head = model.classifier[-1]
    assert isinstance(head, module.CosineHead) and head.in_features == 8
    assert all(torch.equal(*both) for both in zip(model.parameters(), again.parameters()))
    logits = model(**train.collate([train[0], train[1]])).logits
    assert logits.shape == (2, len(task.classes)) and logits.abs().max() <= recipe.scale
    assert recipe.identity() != replace(recipe, embedding=4).identity()
    assert "embedding of width 8" in recipe.words()
