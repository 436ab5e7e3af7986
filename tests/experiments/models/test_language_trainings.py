"""Pretrained bases, task adapters and compatibility adapters as runs: computed once, named by
what they are made of.
"""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import tiny_llama
from safetensors.torch import load_file
from tiny_llama import RECIPE

from compatkit.experiments.models import language_trainings
from compatkit.experiments.models.language_trainings import (
    CompatibilitySetting,
    LanguageRecipe,
    _parts,
    adapted,
    compatibility_once,
    copied_adapter_once,
    few_shot_once,
    pretrain_once,
    task_adapter_once,
    training_rows,
)
from compatkit.language.adapters import load_adapter
from compatkit.language.models import answer, byte_pairs, language_model, small_language_model
from compatkit.language.tasks import Question, Questions, load_questions
from compatkit.training.loop import resolve_precision

TEXTS = [
    f"{first} and {second} are {what} naïve"
    for first in ("cats", "doghouses")
    for second in ("dogs", "catfish")
    for what in ("not", "hardly", "certainly")
]
TOKENIZERS = byte_pairs(TEXTS, 275), byte_pairs(TEXTS, 310)


def animals():
    """A task of choosing and its rows."""
    made = [
        Question(str(n), text.rpartition(" ")[0], choices=("naïve", "clever"), label=n % 2)
        for n, text in enumerate(TEXTS)
    ]
    return Questions(
        "animals",
        "animals",
        tuple(made[:8]),
        tuple(made[8:10]),
        tuple(made[10:]),
        ("choice",),
        None,
        "made up",
        "made",
    )


def base(folder, seed, tokenizer, width=32):
    """A base model's folder."""
    small_language_model(tokenizer, seed, 1, width, 32).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.mark.parametrize("same_tokenizer", (True, False))
def test_both_adapters_as_runs(tmp_path, same_tokenizer):
    old_words, new_words = TOKENIZERS
    old_base = base(tmp_path / "old", 0, new_words if same_tokenizer else old_words)
    new_base, recipe, home = (
        base(tmp_path / "new", 1, new_words),
        replace(RECIPE, epochs=1),
        tmp_path / "runs",
    )
    old, new = (
        task_adapter_once(folder, animals(), recipe, seed, home)
        for seed, folder in enumerate((old_base, new_base))
    )
    run = compatibility_once(
        old_base, old, new_base, new, animals(), recipe, CompatibilitySetting(k=8), 1, home
    )
    assert len({old.id, new.id, run.id}) == 3 and run.configuration["parents"] == [old.id, new.id]
    for one in (old, new, run):
        assert (
            len(one.predictions("test-choice")) == 2
            and len(one.predictions("selection-choice")) == 2
        )
    assert (
        compatibility_once(
            old_base, old, new_base, new, animals(), recipe, CompatibilitySetting(k=8), 1, home
        ).folder
        == run.folder
    )
    assert (
        compatibility_once(
            old_base,
            old,
            new_base,
            new,
            animals(),
            recipe,
            CompatibilitySetting("none", k=8),
            1,
            home,
        ).id
        != run.id
    )
    assert not list((home / "checkpoints").glob("*")), "checkpoints go when a run is done"
    model, _ = adapted(new_base, run)
    with pytest.raises(ValueError, match="another base model"):
        adapted(old_base, run)
    assert model.peft_config["task"].r == RECIPE.rank


def test_a_copied_adapter_answers_on_the_other_base_and_trains_nothing(tmp_path):
    words, home = TOKENIZERS[1], tmp_path / "runs"
    old_base, new_base = base(tmp_path / "old", 0, words), base(tmp_path / "new", 1, words)
    old = task_adapter_once(old_base, animals(), replace(RECIPE, epochs=1), 0, home)
    run = copied_adapter_once(new_base, old, animals(), home)
    assert run.configuration["parents"] == [old.id] and "seed" not in run.configuration
    assert run.id == copied_adapter_once(new_base, old, animals(), home).id
    model, tokenizer = adapted(new_base, old, any_base=True)
    by_hand = answer(model, tokenizer, animals(), "test", "choice", too_long="cut")
    np.testing.assert_array_equal(
        run.predictions("test-choice").logits, by_hand.logits.astype(np.float32)
    )
    itself = copied_adapter_once(old_base, old, animals(), home)  # onto its own base: itself
    np.testing.assert_array_equal(
        itself.predictions("test-choice").logits, old.predictions("test-choice").logits
    )
    wider = base(tmp_path / "wider", 1, words, width=48)
    with pytest.raises(ValueError, match="this base model"):
        copied_adapter_once(wider, old, animals(), home)


def test_a_model_is_asked_behind_the_shots_of_its_seed(tmp_path):
    folder = small_language_model(TOKENIZERS[0], 0, 1, 32, 256)
    folder.save_pretrained(tmp_path / "base")
    TOKENIZERS[0].save_pretrained(tmp_path / "base")
    task, home = animals(), tmp_path / "runs"

    def asked(shots, seed):
        return few_shot_once(tmp_path / "base", task, shots, seed, home)

    assert asked(0, 0).id == asked(0, 1).id, "without shots there is nothing to draw"
    runs = [asked(0, 0), asked(2, 0), asked(2, 1), asked(3, 0)]
    assert len({run.id for run in runs}) == 4
    model, tokenizer = language_model(tmp_path / "base")
    ours = answer(model, tokenizer, task.with_shots(2, 1))
    kept = runs[2].predictions("test-choice")
    assert list(kept.id) == [one.id for one in task.test]
    np.testing.assert_allclose(kept.logits, ours.logits, atol=1e-4)
    assert not np.allclose(kept.logits, runs[1].predictions("test-choice").logits)


def test_a_pretrained_version_is_kept_once_and_read_back(tmp_path):
    task = load_questions("arithmetic").limited(train=100, selection=10, test=10)
    recipe = LanguageRecipe(
        layers=1, width=32, max_length=64, vocabulary=270, block=32, steps=2, batch_size=4
    )
    whole = pretrain_once(recipe, [task], 0, tmp_path)
    assert pretrain_once(recipe, [task], 0, tmp_path).record == whole.record
    half = pretrain_once(
        LanguageRecipe(**{**vars(recipe), "share": 0.5, "steps": 1}), [task], 0, tmp_path
    )
    assert half.id != whole.id and half.results["tokens"] < 0.6 * whole.results["tokens"]
    (model, tokenizer), (_, of_half) = (
        language_model(whole.folder / "model"),
        language_model(half.folder / "model"),
    )
    assert (
        tokenizer.get_vocab() == of_half.get_vocab()
        and model.num_parameters() == whole.results["parameters"]
    )
    assert len(answer(model, tokenizer, task)) == 10
    assert {pretrain_once(recipe, [task], seed, tmp_path).id for seed in (0, 1)} != {whole.id}


def test_a_run_is_named_by_these_entries_and_no_others(tmp_path):
    # published runs are found by their configuration: an entry more, and none is found again
    tokenizer = TOKENIZERS[0]
    folder, recipe = base(tmp_path / "base", 0, tokenizer), replace(RECIPE, max_steps=1)
    run = task_adapter_once(folder, animals(), recipe, 0, tmp_path / "runs")
    assert sorted(run.configuration) == ["base", "data", "kind", "recipe", "seed", "task"]
    other = compatibility_once(
        folder, run, folder, run, animals(), recipe, CompatibilitySetting(k=4), 0, tmp_path / "runs"
    )
    assert sorted(other.configuration) == [
        "data",
        "kind",
        "parents",
        "recipe",
        "seed",
        "setting",
        "task",
    ]
    assert other.configuration["setting"] == {
        "mask": "wrong",
        "cross_entropy": 0.0,
        "temperature": 2.0,
        "k": 4,
    }
    assert "gradient_checkpointing" not in run.configuration["recipe"]


def test_a_run_without_weights_cannot_be_built_upon(tmp_path):
    folder, recipe = base(tmp_path / "base", 0, TOKENIZERS[0]), replace(RECIPE, max_steps=1)
    run = task_adapter_once(folder, animals(), recipe, 0, tmp_path / "runs")
    recalled = replace(run, folder=tmp_path / "recalled" / run.id)
    with pytest.raises(ValueError, match="neither weights nor embeddings"):
        adapted(folder, recalled)
    with pytest.raises(ValueError, match="neither weights nor embeddings"):
        task_adapter_once(recalled, animals(), replace(recipe, rank=2), 0, tmp_path / "runs")


def test_a_task_may_bring_its_own_validation_part(tmp_path):
    folder, recipe = base(tmp_path / "base", 0, TOKENIZERS[0]), replace(RECIPE, max_steps=1)
    own = replace(animals(), selection_chooses_epoch=True, rule="its own")
    model, tokenizer = language_model(folder)
    rows = training_rows(own, model, tokenizer)
    train, validation = _parts(own, rows)
    assert train.ids == [one.id for one in own.train]
    assert validation.ids == [one.id for one in own.selection]
    assert len(_parts(animals(), training_rows(animals(), model, tokenizer))[1]) == 2, (
        "a fifth of 8"
    )
    home = tmp_path / "runs"
    run = task_adapter_once(folder, own, recipe, 0, home)
    setting = CompatibilitySetting(k=4)
    other = compatibility_once(folder, run, folder, run, own, recipe, setting, 0, home)
    assert len(other.predictions("test-choice")) == 2


def test_the_harness_is_named_in_the_configuration_and_asks_on_test_only(tmp_path, monkeypatch):
    folder, recipe = base(tmp_path / "base", 0, TOKENIZERS[0]), replace(RECIPE, max_steps=1)
    asked = []

    def harness(model, tokenizer, task, files):
        asked.append(files)
        return answer(model, tokenizer, task)

    monkeypatch.setattr(language_trainings, "harness_answers", harness)
    files = {"validation": []}
    plain, run = (
        task_adapter_once(folder, animals(), recipe, 0, tmp_path / "runs", given)
        for given in (None, files)
    )
    assert asked == [files] and plain.id != run.id
    assert run.configuration["evaluation"].startswith("lm-evaluation-harness 0.")


# --- over several processes -----------------------------------------------------------------------


def test_the_command_of_the_readme_trains_adapters_of_the_papers_models(tmp_path, monkeypatch):
    """Two steps, by one process; tests/test_muscle.py trains with two that share the weights."""
    import make_hub_cache

    old, new = "microsoft/phi-1", "microsoft/phi-1_5"
    make_hub_cache.main(tmp_path, [old, new], ("questions",))
    monkeypatch.setattr(
        "huggingface_hub._snapshot_download.constants.HF_HUB_CACHE", str(tmp_path / "hub")
    )
    monkeypatch.delenv("COMPATKIT_DATA", raising=False)
    short = ["--max-steps", "2", "--rank", "4", "--accumulation", "2"]
    places = [str(tmp_path / name) for name in ("old", "new", "compatible")]
    for base, place in zip((old, new), places):
        language_trainings.main([base, "piqa", place, *short])
    more = ["--old", old, places[0], "--start", places[1]]
    language_trainings.main([new, "piqa", places[2], *more, *short])
    weights = [load_file(f"{place}/adapter_model.safetensors") for place in places[1:]]
    assert weights[0].keys() == weights[1].keys()
    told = [json.loads(Path(place, "checkpoints", "training.json").read_text()) for place in places]
    assert [one["objective"]["name"] for one in told] == ["Objective", "Objective", "Compatibility"]
    model, _ = language_model(new, resolve_precision())
    assert load_adapter(model, places[2]).active_adapter == "task"
    assert list((tmp_path / "new" / "checkpoints").glob("checkpoint-2"))


def test_a_model_is_cut_into_pieces_only_between_gpus(monkeypatch):
    model = tiny_llama.llama()
    assert language_trainings.sharding(model) == {}
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    found = language_trainings.sharding(model)
    assert found["fsdp"] and found["fsdp_config"]["transformer_layer_cls_to_wrap"] == [
        "LlamaDecoderLayer"
    ]
