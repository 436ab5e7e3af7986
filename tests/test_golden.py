"""A small golden run of each method: does today's code still do what it did?

Each run takes a second or so on made-up data. What is kept in golden.json is the predicted class of
each of 24 examples (for language models the best next token of each position) and the mean size of
the logits. A class is compared where the logits do not nearly tie, the size to three parts in a
hundred: another processor or version of torch may round differently, while another loss or order
of batches is noticed. After a change that is meant, raise the treatment's `revision` and write
the file anew:

    python -m pytest tests/test_golden.py --write-golden
"""

import json
from pathlib import Path

import numpy as np
import pytest
import tiny
import tiny_llama
import torch

from compatkit.bcwi import interpolate, soup
from compatkit.decisions import choose_price, keep_old
from compatkit.distillation import (
    DynamicDistillation,
    FocalDistillation,
    LogitDifferenceInhibition,
    NaiveReweighting,
)
from compatkit.embeddings import (
    BackwardCompatibleTraining,
    EmbeddingRegression,
    as_old_logits,
    embed,
    frozen_head,
)
from compatkit.ensembles import average_logits, mix
from compatkit.gated_fusion import LearnGate
from compatkit.language.adapters import AdapterRecipe, add_adapter, split_rows, train_adapter
from compatkit.language.models import TokenRows, byte_pairs, small_language_model
from compatkit.language.tasks import load_questions
from compatkit.language.teachers import keep_distributions
from compatkit.muscle import Compatibility, train_compatibility_adapter
from compatkit.predictions import Predictions
from compatkit.regularizers import ElasticWeightConsolidation, Mixout, PriorWeightDecay
from compatkit.reranking import Reranker, rerank
from compatkit.retire_the_old import (
    UNLABELLED,
    Anchor,
    RobustnessCongruent,
    StudentOfTraffic,
    beside,
    embedded,
    fit_head,
)
from compatkit.training import encode, fine_tune
from compatkit.training.loop import outputs
from compatkit.weights.fisher import fisher_diagonal

FILE = Path(__file__).with_name("golden.json")
NEARLY = 0.02  # two classes whose logits are nearer than this may change places on another machine
SIZE = 0.03  # relative, of the mean size of the logits
# small steps: at twice the rate a change of 1e-6 in the weights, as processors make, became answers
LONGER = tiny.FAST | {"num_train_epochs": 6, "learning_rate": 5e-3}


@pytest.fixture(scope="module")
def world():
    """Training and test rows, an old model trained on half of them, and its logits."""
    train = tiny.data(120)
    test = encode(tiny.rows(24, 5, "test"), tiny.tokenizer(), ("text",), 16)
    old = fine_tune(tiny.model(7), tiny.data(60), None, 7, **LONGER).model
    new = fine_tune(tiny.model(1), train, None, 1, **LONGER).model
    return {"train": train, "test": test, "old": old, "new": new, "old_train": answers(old, train)}


def answers(model, rows, **options):
    """The model's answers as Predictions."""
    logits = outputs(model, rows, **options)["logits"]
    return Predictions(np.asarray(rows.ids), np.asarray(rows.labels), logits=logits)


def treated(world, treatment):
    """The logits on the test rows of a model trained under a treatment."""
    train, old = world["train"], world["old_train"]
    if isinstance(treatment, RobustnessCongruent):
        old = beside(old, answers(world["new"], train))
    if isinstance(treatment, StudentOfTraffic):  # every other row has no label
        train = tiny.data(120)
        train.labels = [one if row % 2 else UNLABELLED for row, one in enumerate(train.labels)]
        old = old.replace(label=None)
    found = fine_tune(tiny.model(1), train, treatment, 1, old=old, **LONGER)
    old_test = answers(world["old"], world["test"])
    takes_old = isinstance(treatment, LearnGate)
    return answers(found.model, world["test"], **({"old": old_test} if takes_old else {})).logits


def importances(world):
    """The old model's Fisher information."""
    batches = [{"input_ids": torch.tensor([row["input_ids"]])} for row in list(world["train"])[:8]]
    return fisher_diagonal(world["old"], batches)


TREATMENTS = {
    "plain": lambda world: None,
    "naive re-weighting": lambda world: NaiveReweighting(2.0),
    "focal, logits": lambda world: FocalDistillation("logits", weight=0.02, over_classes="sum"),
    "focal, KL": lambda world: FocalDistillation("kl", weight=0.5),
    "dynamic distillation": lambda world: DynamicDistillation(1.0),
    "logit difference": lambda world: LogitDifferenceInhibition(0.05, top=2),
    "elastic weight consolidation": lambda world: ElasticWeightConsolidation(
        world["old"], importances(world), 0.1
    ),
    "prior weight decay": lambda world: PriorWeightDecay(world["old"], 1.0),
    "mixout": lambda world: Mixout(world["old"], 0.2),
    "gated fusion": lambda world: LearnGate(seed=3),
    "anchor": lambda world: Anchor(0.5, 0.3),
    "RCAT": lambda world: RobustnessCongruent(0.05, 0.1),
    "student of traffic": lambda world: StudentOfTraffic(2.0),
    "backward-compatible training": lambda world: BackwardCompatibleTraining(
        frozen_head(world["old"])
    ),
}


def drawn_to_old_embeddings(world):
    """The logits of a model whose embeddings are drawn to the old ones."""
    old = as_old_logits(embed(world["old"], world["train"]))
    found = fine_tune(tiny.model(1), world["train"], EmbeddingRegression(2.0), 1, old=old, **LONGER)
    return answers(found.model, world["test"]).logits


def reranked():
    """The mixed log-likelihoods of six candidates, a row a question; the best is taken."""
    task = load_questions("arithmetic").limited(train=60, selection=5, test=24)
    tokenizer = byte_pairs([one.text for one in task.train], 270)
    new, old = (small_language_model(tokenizer, seed, 1, 32, 64).eval() for seed in (1, 2))
    texts = {one.id: [one.answer, "0", "7", "11", "23", "105"] for one in task.test}
    made = Reranker((new, tokenizer), (old, tokenizer)).scored(task.test, texts)
    mixed = np.array(
        [0.7 * np.array(made.old[one]) + 0.3 * np.array(made.new[one]) for one in texts]
    )
    assert (rerank(made, weight=0.3).place == mixed.argmax(1)).all()
    return mixed


def pair(world):
    """The old and the plainly trained new model."""
    return world["old"], world["new"]


def interpolated(world):
    old, new = pair(world)
    return answers(interpolate(old, new, 0.4), world["test"]).logits


def with_importances(world):
    old, new = pair(world)
    return answers(interpolate(old, new, 0.4, importances(world)), world["test"]).logits


def in_a_soup(world):
    return answers(soup(list(pair(world))), world["test"]).logits


def mixed(world):
    old, new = (answers(model, world["test"]) for model in pair(world))
    return mix(old, new, 0.3, space="logit").logits


def averaged(world):
    return average_logits([answers(model, world["test"]) for model in pair(world)]).logits


def decided(world):
    old, new = (answers(model, world["test"]) for model in pair(world))
    price = choose_price(old, new, old.label, max_nfr=0.5).price
    kept = keep_old(old, new, price + 30.0)
    return np.eye(3)[np.asarray(kept.prediction)] * (1.0 + price)


def guessed(world):
    """Old logits as a head guesses them from the new model's embedding and logits."""
    seen = [embedded(world["new"], world[split]) for split in ("train", "test")]
    pairs = (seen[0]["embedding"], seen[0]["logits"], world["old_train"].logits)
    with torch.no_grad():
        read = (torch.tensor(seen[1][name]) for name in ("embedding", "logits"))
        return fit_head(*pairs, hidden=16, seed=3).head(*read).numpy()


def compatibility_adapter(world, folder):
    """A language model's next-token logits after MUSCLE's training."""
    recipe = AdapterRecipe(
        rank=4,
        batch_size=8,
        epochs=2,
        learning_rate=5e-3,
        warmup_steps=0,
        precision="float32",  # "auto" is bfloat16 on some processors: other steps, not rounding
    )
    rows: TokenRows = tiny_llama.counting(40)
    old, new = (add_adapter(tiny_llama.llama(seed), recipe) for seed in (0, 1))
    for model in (old, new):
        train_adapter(model, *split_rows(rows), recipe)
    kept = [
        keep_distributions(model, rows, folder / name, k=40)
        for name, model in (("old", old), ("new", new))
    ]
    train_compatibility_adapter(new, rows, recipe, Compatibility(*kept))
    batch = tiny_llama.text_of(tiny_llama.batch_of(rows, range(6)))
    with torch.no_grad():
        logits = new(**batch).logits
    return logits[batch["attention_mask"].bool()].float().numpy()


METHODS = {
    **{
        name: (lambda world, folder, make=make: treated(world, make(world)))
        for name, make in TREATMENTS.items()
    },
    "interpolation": lambda world, folder: interpolated(world),
    "interpolation with importances": lambda world, folder: with_importances(world),
    "soup": lambda world, folder: in_a_soup(world),
    "mixture of logits": lambda world, folder: mixed(world),
    "average of logits": lambda world, folder: averaged(world),
    "decision rule": lambda world, folder: decided(world),
    "head of old logits": lambda world, folder: guessed(world),
    "compatibility adapter": compatibility_adapter,
    "regression onto old embeddings": lambda world, folder: drawn_to_old_embeddings(world),
    "backward-congruent re-ranking": lambda world, folder: reranked(),
}


def summary(logits):
    """What is kept: predicted classes, those that nearly tie, the mean size of a logit."""
    best = np.sort(logits, axis=1)
    return {
        "predicted": np.argmax(logits, axis=1).tolist(),
        "tied": np.flatnonzero(best[:, -1] - best[:, -2] < NEARLY).tolist(),
        "size": round(float(np.abs(logits).mean()), 4),
    }


@pytest.fixture(scope="module")
def kept(request):
    """What golden.json holds; with --write-golden it is written anew from this run."""
    if not request.config.getoption("--write-golden"):
        yield json.loads(FILE.read_text(encoding="utf-8"))
        return
    before = json.loads(FILE.read_text(encoding="utf-8")) if FILE.exists() else {}
    written = {name: before[name] for name in METHODS if name in before}
    yield written
    lines = [f"{json.dumps(name)}: {json.dumps(found)}" for name, found in sorted(written.items())]
    FILE.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


def differing(found, wanted):
    """The positions whose class changed though neither run nearly ties there."""
    tied = {*found["tied"], *wanted["tied"]}
    pairs = enumerate(zip(found["predicted"], wanted["predicted"], strict=True))
    return [position for position, (now, then) in pairs if now != then and position not in tied]


@pytest.mark.parametrize("name", METHODS)
def test_a_method_does_what_it_did(name, world, kept, request, tmp_path):
    found = summary(METHODS[name](world, tmp_path))
    if request.config.getoption("--write-golden"):
        kept[name] = found
        return
    assert not differing(found, kept[name])
    assert found["size"] == pytest.approx(kept[name]["size"], rel=SIZE)


@pytest.mark.parametrize("name", METHODS)
def test_rounding_as_of_another_processor_stays_within_the_tolerance(
    name, world, monkeypatch, tmp_path
):
    """Weights that begin a hundred-thousandth off, far more than processors differ by, must end
    within what `test_a_method_does_what_it_did` allows: a golden run that amplifies rounding would
    fail for a stranger.
    """

    def shaken(make):
        def made(seed=0, *given, **more):
            model, generator = make(seed, *given, **more), torch.Generator().manual_seed(seed)
            with torch.no_grad():
                for one in model.parameters():
                    one.mul_(1 + 1e-5 * torch.randn(one.shape, generator=generator))
            return model

        return made

    plain = summary(METHODS[name](world, tmp_path / "plain"))
    monkeypatch.setattr(tiny, "model", shaken(tiny.model))
    monkeypatch.setattr(tiny_llama, "llama", shaken(tiny_llama.llama))
    off = summary(METHODS[name](world, tmp_path / "off"))
    assert not differing(off, plain)
    assert off["size"] == pytest.approx(plain["size"], rel=SIZE)


def test_every_kept_run_is_of_a_method(kept):
    assert sorted(kept) == sorted(METHODS)


def test_the_runs_differ_from_each_other(kept):
    # a treatment that did nothing would have the plain run's numbers
    runs = [json.dumps([run["predicted"], run["size"]]) for run in kept.values()]
    assert len(set(runs)) == len(runs)


def test_another_class_or_another_size_is_noticed():
    wanted = {"predicted": [0, 1, 2], "tied": [2], "size": 1.0}
    assert differing(wanted | {"predicted": [0, 0, 1]}, wanted) == [1]
    assert summary(np.array([[0.0, 1.0], [0.5, 0.51]])) == {
        "predicted": [1, 1],
        "tied": [1],
        "size": 0.5025,
    }
