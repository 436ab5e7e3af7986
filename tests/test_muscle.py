"""MUSCLE's loss as the method calls it, and the training of the adapter with kept and asked
teachers.
"""

import json
import math
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import make_hub_cache
import numpy as np
import pytest
import tiny
import tiny_llama
import torch
from notebook_cells import refusals
from tiny_llama import RECIPE
from torch.distributed.tensor import DTensor
from transformers import TrainerCallback

from compatkit.language.adapters import (
    RowsPart,
    add_adapter,
    base_fingerprint,
    copy_adapter,
    save_adapter,
    split_rows,
    switched_to,
    train_adapter,
)
from compatkit.language.chunked_loss import MASKS, compatibility_loss_from_hidden
from compatkit.language.teachers import (
    KeptDistributions,
    keep_distributions,
    model_fingerprint,
)
from compatkit.muscle import Compatibility, compatibility_loss, train_compatibility_adapter

ROOT = Path(__file__).resolve().parents[1]


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("settings", [(2.0, 0.0), (1.0, 0.3)])
def test_the_loss_is_that_of_the_chunks_at_every_setting(mask, settings):
    generator = torch.Generator().manual_seed(0)
    logits, new, old = torch.randn(3, 2, 6, 9, generator=generator)
    labels = torch.randint(0, 9, (2, 6), generator=generator)
    found = compatibility_loss(logits, new, old, labels, mask, *settings)
    wanted = compatibility_loss_from_hidden(logits, new, old, labels, mask, *settings)
    assert torch.equal(found, wanted)
    assert not torch.equal(found, compatibility_loss(logits, old, new, labels, mask, *settings))


@pytest.mark.parametrize(
    "wrong", [{"mask": "right"}, {"temperature": 0}, {"cross_entropy": float("nan")}]
)
def test_an_objective_refuses_settings_that_mean_nothing(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        Compatibility(tiny_llama.llama(), **wrong)


# --- training -------------------------------------------------------------------------------------

ROWS = tiny_llama.counting(40)


@pytest.fixture(scope="module")
def teachers(tmp_path_factory):
    """(old model, maker of the new one with its task adapter trained, kept distributions of both
    over all words)
    """
    folder = tmp_path_factory.mktemp("teachers")
    old, new = (add_adapter(tiny_llama.llama(seed), RECIPE) for seed in (0, 1))
    for model in (old, new):
        train_adapter(model, *split_rows(ROWS), RECIPE)
    kept = {
        name: keep_distributions(model, ROWS, folder / name, k=40)
        for name, model in (("old", old), ("new", new))
    }
    state = {name: value.clone() for name, value in new.state_dict().items()}

    def fresh():
        model = add_adapter(tiny_llama.llama(1), RECIPE)
        model.load_state_dict(state)
        return model

    return old, fresh, kept


def trained(teachers, objective, **options):
    """The compatibility adapter's fingerprint and its training."""
    model = teachers[1]()
    found = train_compatibility_adapter(model, ROWS, RECIPE, objective, **options)
    return model, found


def losses(found):
    return np.array([entry["eval_loss"] for entry in found.history if "eval_loss" in entry])


def test_it_starts_from_the_task_adapter_and_leaves_the_teachers_alone(teachers):
    old, fresh, kept = teachers
    before = model_fingerprint(fresh()), model_fingerprint(old)
    model, found = trained(teachers, Compatibility(kept["old"], kept["new"]))
    assert model.active_adapter == "compatibility" and model_fingerprint(model) != before[0]
    with switched_to(model, "task"):
        assert model_fingerprint(model) == before[0]
    assert model_fingerprint(old) == before[1]
    assert found.validation_loss == losses(found).min()
    still, _ = trained(teachers, Compatibility(kept["old"], kept["new"]), learning_rate=1e-12)
    with switched_to(still, "task"):
        task = still(**tiny_llama.text_of(tiny_llama.batch_of(ROWS))).logits
    assert torch.allclose(
        still(**tiny_llama.text_of(tiny_llama.batch_of(ROWS))).logits, task, atol=1e-4
    )


def test_kept_and_asked_teachers_train_alike(teachers):
    old, _, kept = teachers
    _, by_kept = trained(teachers, Compatibility(kept["old"], kept["new"]))
    _, asked = trained(teachers, Compatibility(old))
    np.testing.assert_allclose(losses(by_kept), losses(asked), atol=2e-3)


def test_it_comes_nearer_to_the_old_model(teachers):
    old, fresh, kept = teachers
    text = tiny_llama.text_of(tiny_llama.batch_of(ROWS))
    model, _ = trained(teachers, Compatibility(kept["old"], kept["new"], mask="none"))
    with torch.no_grad():
        answers = {
            name: torch.log_softmax(one(**text).logits / 2, -1)
            for name, one in (("old", old), ("near", model), ("far", fresh()))
        }
    distance = {
        name: float(
            torch.nn.functional.kl_div(
                answers[name], answers["old"], log_target=True, reduction="sum"
            )
        )
        for name in ("near", "far")
    }
    assert distance["near"] < 0.8 * distance["far"]


def test_drawn_to_the_new_model_everywhere_it_stays_that(teachers):
    text = tiny_llama.text_of(tiny_llama.batch_of(ROWS))
    answers = []
    for mask in ("never", "none"):
        model, _ = trained(teachers, Compatibility(teachers[2]["old"], teachers[2]["new"], mask))
        with torch.no_grad():
            answers.append(model(**text).logits.log_softmax(-1))
    with torch.no_grad():
        plain = teachers[1]()(**text).logits.log_softmax(-1)
    stays, goes = ((one - plain).abs().mean() for one in answers)
    assert stays < 0.2 * goes, "Adam takes the rounding of kept distributions for a slope"


@pytest.mark.parametrize(
    "change",
    (
        {"mask": "none"},
        {"mask": "never"},
        {"mask": "old_right"},
        {"cross_entropy": 0.5},
        {"temperature": 1.0},
    ),
)
def test_every_setting_reaches_the_loss(teachers, change):
    old, _, kept = teachers
    _, usual = trained(teachers, Compatibility(old))
    _, other = trained(teachers, Compatibility(old, **change))
    assert np.abs(losses(usual) - losses(other)).max() > 1e-3


def test_the_old_models_answers_matter(teachers):
    old, _, kept = teachers

    class Shuffled(KeptDistributions):
        def of(self, rows):
            found = super().of(rows)
            return found._replace(token=found.token.flip(1))

    shuffled = Shuffled(kept["old"].folder)
    _, usual = trained(teachers, Compatibility(kept["old"], kept["new"]))
    _, other = trained(teachers, Compatibility(shuffled, kept["new"]))
    assert np.abs(losses(usual) - losses(other)).max() > 1e-2


def test_another_tokenizer_trains(tmp_path):
    old_tokenizer, new_tokenizer = tiny_llama.pair_of_tokenizers()
    targets, rows, _, _ = tiny_llama.aligned(old_tokenizer, new_tokenizer, tmp_path / "old", k=16)
    model = add_adapter(tiny_llama.llama(2, len(new_tokenizer)), RECIPE)
    train_adapter(model, *split_rows(rows), RECIPE)
    kept = keep_distributions(model, rows, tmp_path / "new", new_tokenizer, k=16)
    found = train_compatibility_adapter(model, rows, RECIPE, Compatibility(targets, kept))
    assert np.isfinite(losses(found)).all() and len(losses(found)) == 3


def test_teachers_that_do_not_fit_are_refused(teachers, tmp_path):
    old, fresh, kept = teachers
    model = fresh()
    other = tiny_llama.counting(40, seed=3)

    def refused(match, objective, rows=ROWS, model=model, **options):
        with pytest.raises(ValueError, match=match):
            train_compatibility_adapter(model, rows, RECIPE, objective, **options)

    refused(
        "the old base has 50 tokens and the new one 40: the vocabularies differ",
        Compatibility(tiny_llama.llama(vocabulary=50)),
    )
    refused(
        "the new teacher's kept distributions are of another model",
        Compatibility(kept["old"], kept["old"]),
    )
    refused(
        "the old teacher's kept distributions are of another data",
        Compatibility(kept["old"]),
        other,
    )
    refused(
        "the new teacher's kept distributions are of another data",
        Compatibility(kept["old"], kept["new"]),
        other,
    )
    refused("another temperature", Compatibility(kept["old"], kept["new"], temperature=1.0))
    refused(
        "no adapter 'task' to start from", Compatibility(kept["old"]), model=tiny_llama.llama(1)
    )
    refused(
        "no adapter 'taks' to be the new teacher; there are \\['task'\\]",
        Compatibility(kept["old"], "taks"),
    )
    words = keep_distributions(
        old, ROWS, tmp_path / "words", tiny_llama.pair_of_tokenizers()[0], k=4
    )
    refused(
        "the old teacher's kept distributions are of another tokenizer",
        Compatibility(words, kept["new"]),
    )


def test_every_setting_is_in_the_configuration(teachers):
    kept = teachers[2]
    plain = Compatibility(kept["old"]).configuration()
    for name, value in {"mask": "none", "temperature": 1.5, "cross_entropy": 0.25}.items():
        changed = Compatibility(kept["old"], **{name: value}).configuration()
        assert changed == plain | {name: value} != plain
    assert Compatibility(kept["new"]).configuration()["old"] != plain["old"]


def test_an_old_model_that_is_asked_at_every_step_answers_without_dropout(teachers):
    old, fresh, _ = teachers
    old.train()
    Compatibility(old).loss(fresh(), tiny_llama.batch_of(ROWS, range(3)))
    assert not any(part.training for part in old.modules())


@pytest.mark.parametrize("side", ["old", "new"])
def test_a_head_that_does_more_than_multiply_is_refused(teachers, side):
    """Of the old base that is asked at every step, or of the new one that is trained."""
    _, fresh, kept = teachers
    model, old = fresh(), tiny_llama.llama(vocabulary=len(fresh().get_output_embeddings().weight))
    twice = {"old": old, "new": model}[side].get_output_embeddings()
    handle = twice.register_forward_hook(lambda module, given, made: 2 * made)
    objective = Compatibility(old if side == "old" else kept["old"])
    with pytest.raises(ValueError, match="hidden states"):
        train_compatibility_adapter(model, ROWS, RECIPE, objective)
    handle.remove()


class Kill(TrainerCallback):
    """Ends a training at its first checkpoint."""

    def on_save(self, args, state, control, **others):
        raise KeyboardInterrupt


def test_a_killed_training_goes_on(teachers, tmp_path):
    _, _, kept = teachers
    whole, wanted = trained(teachers, Compatibility(kept["old"], kept["new"]))
    with pytest.raises(KeyboardInterrupt):
        trained(
            teachers, Compatibility(kept["old"], kept["new"]), folder=tmp_path, callbacks=(Kill(),)
        )
    again, found = trained(teachers, Compatibility(kept["old"], kept["new"]), folder=tmp_path)
    assert (
        model_fingerprint(again) == model_fingerprint(whole)
        and losses(found).tolist() == losses(wanted).tolist()
    )
    with pytest.raises(ValueError, match="of another training .objective differ"):
        trained(teachers, Compatibility(kept["old"], kept["new"], mask="none"), folder=tmp_path)


def five_losses(objective, model, recipe=RECIPE, **arguments):
    """The losses of the first five steps on rows of one length, without validation."""
    from compatkit.language.models import TokenRows

    rows = TokenRows(
        [str(n) for n in range(40)], [(np.arange(6) + n % 30).tolist() for n in range(40)], 0
    )
    if callable(objective):
        objective = objective(rows)
    told = {
        "eval_strategy": "no",
        "save_strategy": "no",
        "load_best_model_at_end": False,
        "logging_strategy": "steps",
        "logging_steps": 1,
    }
    part = RowsPart(rows, range(40))
    copy_adapter(model, "task", "compatibility")
    history = train_adapter(
        model, part, part, replace(recipe, max_steps=5), objective, **(told | arguments)
    ).history
    return np.array([entry["loss"] for entry in history if "loss" in entry])


@pytest.fixture(scope="module")
def plain_losses(teachers):
    found = five_losses(Compatibility(teachers[0]), teachers[1]())
    assert len(found) == 5
    assert (
        np.abs(
            found
            - five_losses(
                Compatibility(teachers[0]), teachers[1](), replace(RECIPE, learning_rate=1e-9)
            )
        ).max()
        > 0.01
    )
    return found


def test_gradient_checkpointing_changes_nothing(teachers, plain_losses):
    recipe = replace(RECIPE, gradient_checkpointing=True)
    np.testing.assert_allclose(
        five_losses(Compatibility(teachers[0]), teachers[1](), recipe), plain_losses, atol=1e-4
    )


def test_half_precision_changes_little(teachers, plain_losses):
    found = five_losses(
        Compatibility(teachers[0]), teachers[1](), replace(RECIPE, precision="bfloat16")
    )
    np.testing.assert_allclose(found, plain_losses, atol=1e-2 * plain_losses.max())
    assert not np.array_equal(found, plain_losses)


SHARES = {"per_device_train_batch_size": 4, "ddp_backend": "gloo", "use_cpu": True}


def train_share(rank, folder, states):
    """One of two processes that train together."""
    found = {}
    for name in ("asked", "kept"):
        old, new = (add_adapter(tiny_llama.llama(seed), RECIPE) for seed in (0, 1))
        for model, state in ((old, states["old"]), (new, states["new"])):
            model.load_state_dict(state)
        objective = (
            Compatibility(old)
            if name == "asked"
            else lambda rows: Compatibility(
                keep_distributions(old, rows, Path(folder) / "kept", k=40)
            )
        )
        losses = five_losses(objective, new, **SHARES)
        found[name] = {"losses": losses.tolist(), "adapter": model_fingerprint(new)}

    def train(model, **options):
        return train_compatibility_adapter(
            model, ROWS, RECIPE, Compatibility(old), **SHARES, **options
        )

    with pytest.raises(ValueError, match="2 processes"):
        train(new, name="second")
    best = train(new, folder=Path(folder) / "checkpoints", name="third")
    found["trained"] = {"losses": [best.validation_loss], "adapter": model_fingerprint(new)}
    (Path(folder) / f"found-{rank}.json").write_text(json.dumps(found))


def test_two_processes_give_what_one_gives_with_twice_the_batch(teachers, plain_losses, tmp_path):
    states = {"old": teachers[0].state_dict(), "new": teachers[1]().state_dict()}
    tiny.train_together(train_share, str(tmp_path), states)
    first, second = (json.loads((tmp_path / f"found-{rank}.json").read_text()) for rank in range(2))
    for name in ("asked", "kept"):
        np.testing.assert_allclose(
            first[name]["losses"], plain_losses, atol=1e-4 if name == "asked" else 2e-3
        )
    assert first == second, "both processes hold the same weights, the best epoch's too"


def train_sharded(rank, folder, states):
    """One of two processes that hold a half of the new model each."""
    tiny.shard_on_the_cpu()
    place, shared = (
        Path(folder),
        SHARES
        | {
            "fsdp": True,
            "fsdp_config": {"version": 2, "transformer_layer_cls_to_wrap": ["LlamaDecoderLayer"]},
        },
    )

    def loaded(seed, state):
        model = add_adapter(tiny_llama.llama(seed), RECIPE)
        model.load_state_dict(state)
        return model

    old, new = loaded(0, states["old"]), loaded(1, states["new"])
    found = {
        "base": base_fingerprint(new),
        "losses": five_losses(Compatibility(old), new, **shared).tolist(),
    }
    found["sharded"] = (
        all(isinstance(value, DTensor) for value in new.parameters())
        and base_fingerprint(new) == found["base"]
    )

    def ask(model, name, **options):
        return train_compatibility_adapter(
            model, ROWS, RECIPE, Compatibility(old), folder=place / name, **shared, **options
        )

    whole, killed, again = (loaded(1, states["new"]) for _ in range(3))
    found["best"] = ask(whole, "whole").best_epoch
    save_adapter(whole, "compatibility", place / "adapter")
    with pytest.raises(KeyboardInterrupt):
        ask(killed, "killed", callbacks=(Kill(),))
    ask(again, "killed")
    found |= {"whole": model_fingerprint(whole), "again": model_fingerprint(again)}
    (place / f"found-{rank}.json").write_text(json.dumps(found))


def test_a_model_sharded_over_two_processes(teachers, plain_losses, tmp_path):
    """The same losses as in one process, a killed training goes on, and the adapter that is
    saved is a whole one.
    """
    from peft import PeftModel

    states = {"old": teachers[0].state_dict(), "new": teachers[1]().state_dict()}
    tiny.train_together(train_sharded, str(tmp_path), states)
    first, second = (json.loads((tmp_path / f"found-{rank}.json").read_text()) for rank in range(2))
    assert first == second and first["sharded"] and first["whole"] == first["again"]
    assert first["base"] == base_fingerprint(teachers[1]())
    np.testing.assert_allclose(first["losses"], plain_losses, atol=1e-4)
    plain = PeftModel.from_pretrained(tiny_llama.llama(1), str(tmp_path / "adapter"))
    assert model_fingerprint(plain) == first["whole"] != model_fingerprint(teachers[1]())


# --- the notebook ---------------------------------------------------------------------------------


def test_wrong_parameters_are_all_named_with_the_valid_ones():
    wrong = {
        "task": "sst2",
        "table": 7,
        "mask": "right",
        "cross_entropy": 2,
        "maks": "wrong",
        "upgrade": "g",
        "alpha": "printed",
    }
    error, message = refusals("muscle", {"wrong": wrong})["wrong"]
    assert error == "ValueError"
    for part in (
        "task = 'sst2'",
        "'arithmetic', 'piqa', 'hellaswag', 'gsm8k', 'samsum'",
        "table = 7",
        "'figure5'",
        "mask = 'right'",
        "'token_likelihood'",
        "cross_entropy = 2: a number from 0 to 1",
        "unknown parameter 'maks'",
        "did you mean 'mask'",
        "upgrade = 'g'",
        "alpha = 'printed': valid are auto, twice the rank, as printed",
    ):
        assert part in message, part


# --- another tokenizer, from files of the hub to the table ----------------------------------------


def test_two_steps_from_llama_2_to_llama_3(tmp_path):
    """Upgrade e: both models read as the hub holds them, the old teacher aligned by spans."""
    bases = ["meta-llama/Llama-2-7b-hf", "meta-llama/Meta-Llama-3-8B"]
    make_hub_cache.main(tmp_path / "hub_home", bases, ("questions",))
    wiring = "task=piqa scale=paper upgrade=e table=3 seeds=1 max_steps=2".split()
    options = [part for one in wiring for part in ("-p", *one.split("="))]
    program = [sys.executable, "-m", "papermill", "--engine", "compatkit"]
    notebooks = [str(ROOT / "nbs" / "muscle.ipynb"), str(tmp_path / "out.ipynb")]
    clean = {
        key: one for key, one in os.environ.items() if key not in {"COMPATKIT_DATA", "IN_TEST"}
    }
    own = {"HF_HOME": str(tmp_path / "hub_home"), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    own["COMPATKIT_HOME"] = str(tmp_path / "runs")
    done = subprocess.run(
        [*program, *notebooks, *options],
        cwd=ROOT,
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        env=clean | own,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    page = (tmp_path / "out.html").read_text("utf-8")
    assert all(name in page for name in bases) and "piqa, upgrade e, paper scale" in page
    assert re.search(r"aligned by spans, [\d,]+ spans over [\d,]+ tokens: [\d.]+% one to one", page)
    (record,) = (tmp_path / "runs").glob("compatibility_adapter-*/record.json")
    trained = json.loads(record.read_text())
    assert trained["configuration"]["setting"]["mask"] == "wrong"
    assert any(0 < entry.get("loss", 0) < math.inf for entry in trained["results"]["history"])
