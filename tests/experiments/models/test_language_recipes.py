"""Which language models a scale compares: the paper's figures as its text has them, and each
upgrade's own needs.
"""

from dataclasses import replace

import pytest

from compatkit.experiments.models import language_recipes
from compatkit.experiments.models.language_recipes import (
    OTHER_TEXTS,
    PAPER_FAMILIES,
    PAPER_UPGRADES,
    SMALL_UPGRADES,
    VERSIONS,
    adapter_recipe,
    alpha_value,
    family_pairs,
    halves_at,
    missing_for,
    paper_cross_entropy,
    reads_other_texts,
    small_base,
    task_at,
    whole_task_at,
)
from compatkit.experiments.reporting.result_tables import paper_figures
from compatkit.language.tasks import load_questions


def test_the_paper_adds_cross_entropy_for_its_smaller_models_only():
    with_it = {
        (letter, task)
        for letter in PAPER_UPGRADES
        for task in ("piqa", "samsum", "gsm8k", "hellaswag")
        if paper_cross_entropy(letter, task)
    }
    assert with_it == {
        ("b", "gsm8k"),
        ("b", "hellaswag"),
        *(("c", task) for task in ("piqa", "samsum", "gsm8k", "hellaswag")),
    }
    assert paper_cross_entropy("c", "piqa") == 0.5


def test_every_upgrade_of_the_paper_has_its_figures_and_ours_has_none():
    for letter, upgrade in PAPER_UPGRADES.items():
        figures = paper_figures("muscle", "3", task="piqa", upgrade=upgrade.name)
        assert bool(figures) == (letter != "e"), letter


def test_figure_4_has_thirteen_pairs():
    pairs = family_pairs(PAPER_FAMILIES)
    assert len(pairs) == len(set(pairs)) == 13
    assert ("microsoft/phi-1", "microsoft/phi-2") in pairs
    assert ("microsoft/phi-2", "microsoft/phi-1") not in pairs


def model(folder, *files):
    """A folder with a model's files, all empty."""
    folder.mkdir(parents=True)
    for name in ("config.json", "model.safetensors", *files):
        (folder / name).write_bytes(b"")
    return str(folder)


def test_a_tokenizer_model_alone_needs_sentencepiece(tmp_path, monkeypatch):
    converted = model(tmp_path / "converted", "tokenizer.model", "tokenizer.json")
    alone = model(tmp_path / "alone", "tokenizer.model")
    monkeypatch.setattr(language_recipes, "find_spec", lambda name: None)
    assert missing_for(converted) == ""
    words = missing_for(converted, alone)
    assert "alone" in words and "pip install sentencepiece" in words
    monkeypatch.setattr(language_recipes, "find_spec", lambda name: object())
    assert missing_for(converted, alone) == ""


def test_the_first_model_that_is_missing_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hub"))
    there = model(tmp_path / "there", "tokenizer.json")
    assert "nobody/nothing" in missing_for(there, "nobody/nothing")


def test_alpha_is_offered_by_name():
    assert adapter_recipe("paper").alpha == adapter_recipe("paper", alpha="twice the rank").alpha
    assert adapter_recipe("paper").alpha == 256 and adapter_recipe("paper").rank == 128
    assert adapter_recipe("paper", alpha="as printed").alpha == 156
    assert adapter_recipe("paper", alpha="twice the rank", rank=16).alpha == 32
    assert adapter_recipe("paper", alpha=7).alpha == 7
    for wrong in ("printed", 0, -1, True, float("nan")):
        with pytest.raises(ValueError, match="twice the rank"):
            alpha_value(wrong)


def test_what_is_not_asked_for_stays_as_it_was():
    # published runs are found by these entries
    assert adapter_recipe("mini").identity() == {
        "rank": 16,
        "alpha": 32,
        "dropout": 0.0,
        "learning_rate": 1e-3,
        "epochs": 2,
        "batch_size": 16,
        "accumulation": 1,
        "warmup_steps": 0.1,
        "weight_decay": 0.0,
        "precision": "float32",
        "max_steps": -1,
    }
    changed = adapter_recipe("mini", 2, batch_size=4, accumulation=4, gradient_checkpointing=True)
    assert (changed.batch_size, changed.accumulation, changed.max_steps) == (4, 4, 2)
    assert changed.gradient_checkpointing and "gradient_checkpointing" not in changed.identity()


def test_versions_differ_in_text_steps_and_width():
    old, new, wider = (small_base("mini", version, True) for version in VERSIONS["mini"])
    assert (old.share, new.share) == (0.5, 1.0) and old.steps < new.steps == wider.steps
    assert old.width == new.width < wider.width
    for sums in (True, False):
        for scale in VERSIONS:
            widths = [small_base(scale, version, sums).width for version in VERSIONS[scale]]
            assert widths[1] < widths[2], (scale, sums)
    assert small_base("mini", "version 1", True, 2).steps == 2


def test_smoke_has_small_sums_and_mini_has_all():
    task = load_questions("arithmetic")
    smoke = task_at(task, "smoke")
    assert len(smoke.train) == 450 and {one.group for one in smoke.train} == {"below 20"}
    assert "below 20" in smoke.title and smoke.rule.startswith("distinct sums")
    assert whole_task_at(task, "mini") is task and len(task_at(task, "mini").train) == 2000


def test_reseeded_bases_read_what_no_adapter_learns():
    sums = load_questions("arithmetic")
    read, learnt = halves_at(sums, "mini")
    ids = [{one.id for one in part.train} for part in (read, learnt)]
    assert not ids[0] & ids[1] and ids[0] | ids[1] == {one.id for one in sums.train}
    assert learnt.test == task_at(sums, "mini").test and "adapters' half" in learnt.rule
    assert read.fingerprint != learnt.fingerprint
    recipe = adapter_recipe("mini", reseeded=True)
    assert (recipe.rank, recipe.alpha, recipe.epochs) == (64, 128, 4)
    assert adapter_recipe("mini", reseeded=True, rank=8).rank == 8
    assert adapter_recipe("paper", reseeded=True) == adapter_recipe("paper")


def test_bases_of_other_texts_differ_in_what_they_may_read_at_once_alone():
    usual, other = (small_base("mini", SMALL_UPGRADES[one][0], False) for one in "cf")
    assert other == replace(usual, max_length=1024)
    assert reads_other_texts("version 2, other texts") and not reads_other_texts("version 2")
    assert "piqa" not in OTHER_TEXTS["piqa"]
