"""Losses, and two whole steps of every method, on another device than the data's home: what is
left on the CPU fails, as on a GPU.
"""

import copy
from contextlib import nullcontext
from functools import partial

import numpy as np
import pytest
import tiny
import tiny_llama
import torch
from elsewhere import DEVICE, Elsewhere, OtherDevice, move_model, moved
from own_files import SPLITS, folder, old_answers, task  # noqa: F401 (fixtures)

from compatkit import bcwi
from compatkit.bcwi import interpolate, soup, start_from, sweep
from compatkit.distillation import (
    DynamicDistillation,
    FocalDistillation,
    LogitDifferenceInhibition,
    NaiveReweighting,
)
from compatkit.embeddings import (
    BackwardCompatibleTraining,
    EmbeddingRegression,
    embed,
    frozen_head,
)
from compatkit.experiments.models import traffic_trainings
from compatkit.experiments.models.given_answers import given_answers
from compatkit.experiments.studies import own_case, weight_planes
from compatkit.gated_fusion import LearnGate
from compatkit.language.adapters import add_adapter, copy_adapter
from compatkit.language.chunked_loss import MASKS, compatibility_loss_from_hidden
from compatkit.language.models import byte_pairs, small_language_model
from compatkit.language.tasks import Generation, load_questions
from compatkit.language.teachers import HiddenStates, learnt_positions, top_tokens
from compatkit.muscle import Compatibility, compatibility_loss
from compatkit.regularizers import ElasticWeightConsolidation, Mixout, PriorWeightDecay
from compatkit.reranking import KINDS, Proposal, Reranker, propose, write_together
from compatkit.retire_the_old import (
    Anchor,
    OldLogitsHead,
    OneModel,
    RobustnessCongruent,
    StudentOfTraffic,
)
from compatkit.training.loop import Treatment, WithOldModel, collator, old_rows, outputs, predict
from compatkit.weights import interpolation
from compatkit.weights.fisher import fisher_diagonal


def batch():
    """States and head of a student, logits of both teachers, labels with gaps."""
    generator = torch.Generator().manual_seed(0)
    states, head, new, old = (
        torch.randn(*shape, generator=generator)
        for shape in ((2, 6, 8), (30, 8), (2, 6, 30), (2, 6, 30))
    )
    labels = torch.randint(0, 30, (2, 6), generator=generator)
    labels[0, :3] = -100
    return states.requires_grad_(), head, new, old, labels


def test_a_tensor_that_was_left_at_home_fails_and_numbers_are_the_same():
    here = torch.arange(6.0).reshape(2, 3)
    with OtherDevice():
        there = moved(here)
        assert isinstance(there, Elsewhere) and there.device.type == "meta"
        assert torch.equal((there * 2 + torch.ones(2, 3, device=there.device)).inside, here * 2 + 1)
        assert torch.equal(there.to("cpu"), here)
        with pytest.raises(RuntimeError, match="1.*2 tensors"):
            there + here
        with pytest.raises(RuntimeError, match="left on the CPU"):
            there + torch.zeros(2, 3)


@pytest.mark.parametrize("teachers", ("logits", "kept"))
@pytest.mark.parametrize("mask", MASKS)
def test_muscles_loss(mask, teachers):
    states, head, new, old, labels = batch()
    positions, label = learnt_positions(labels)
    if teachers == "kept":
        new, old = (top_tokens(one.reshape(-1, 30)[positions], label, 5) for one in (new, old))
    student = HiddenStates(states, head)
    plain = compatibility_loss_from_hidden(student, new, old, labels, mask, cross_entropy=0.1)
    (slope,) = torch.autograd.grad(plain, states)
    with OtherDevice():
        away = moved(states)
        student = HiddenStates(away, moved(head))
        loss = compatibility_loss_from_hidden(
            student, moved(new), moved(old), moved(labels), mask, cross_entropy=0.1
        )
        (gradient,) = torch.autograd.grad(loss, away)
    assert torch.equal(loss.inside.detach(), plain.detach())
    assert torch.equal(gradient.inside, slope)


def test_a_teacher_that_was_left_at_home_fails():
    _, _, new, old, labels = batch()
    with OtherDevice(), pytest.raises(RuntimeError, match="CPU"):
        compatibility_loss(moved(new), moved(new), old, moved(labels))


@pytest.mark.parametrize(
    "treatment",
    (NaiveReweighting(), FocalDistillation(), FocalDistillation("kl"), DynamicDistillation()),
    ids=("naive", "focal", "focal by kl", "dynamic"),
)
def test_losses_from_logits(treatment, monkeypatch):
    # torch has no autocast for the device that ours says it is
    monkeypatch.setattr(torch, "autocast", lambda *given, **options: nullcontext())
    generator = torch.Generator().manual_seed(1)
    logits, old = (torch.randn(8, 5, generator=generator) for _ in range(2))
    label = torch.randint(0, 5, (8,), generator=generator)
    plain = treatment.loss(logits, label, old)
    with OtherDevice():
        loss = treatment.loss(*moved((logits, label, old)))
        with pytest.raises(RuntimeError, match="CPU"):
            treatment.loss(moved(logits), moved(label), old)
    assert torch.equal(loss.inside, plain)


# --- two steps of every method --------------------------------------------------------------------


@pytest.fixture
def no_autocast(monkeypatch):
    """torch has no autocast for the device that ours says it is."""
    monkeypatch.setattr(torch, "autocast", lambda *given, **options: nullcontext())


def at_home(value):
    """The numbers of a tensor, wherever it is."""
    return (value.inside if isinstance(value, Elsewhere) else value).detach()


def two_steps(treatment, away):
    """(losses, weights) of two optimizer steps as TreatmentTrainer does them; `away`: on the
    other device, to which the model moves after it was prepared and each batch as it comes.
    """
    rows = tiny.data()
    width = 3 * (
        1 + isinstance(treatment, RobustnessCongruent)
    )  # that one holds two models' logits
    old = tiny.old_answers(rows, classes=width)
    collate = collator(rows, old_rows(old, rows.ids, rows.labels))
    torch.manual_seed(0)
    model = treatment.prepare(tiny.model(dropout=0.0))
    model = (move_model(model) if away else model).train()
    optimizer, losses = torch.optim.SGD(model.parameters(), lr=0.1, foreach=False), []
    for step in range(2):
        batch = collate([rows[row] for row in range(8 * step, 8 * step + 8)])
        batch = moved(batch) if away else batch
        label, old = batch.pop("labels"), batch.pop("old_logits")
        loss = treatment.loss(treatment.forward(model, batch, old, step), label, old)
        penalty = treatment.penalty(model)
        loss = loss if penalty is None else loss + penalty
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        treatment.after_step(model, 0.1)
        losses.append(float(at_home(loss)))
    return losses, {name: at_home(value) for name, value in model.named_parameters()}


def importances():
    """Made-up Fisher information of the old model."""
    return {name: torch.ones_like(value) for name, value in tiny.model(5).named_parameters()}


METHODS = {
    "no treatment": Treatment,
    "naive re-weighting": NaiveReweighting,
    "FD-LM": FocalDistillation,
    "FD-KL": lambda: FocalDistillation("kl"),
    "dynamic distillation": DynamicDistillation,
    "ELODI": LogitDifferenceInhibition,
    "ELODI, top 2": lambda: LogitDifferenceInhibition(top=2),
    "gated fusion": lambda: LearnGate(0.0, 1.2, 3),
    "gated fusion, gate dropped": lambda: LearnGate(0.99, 1.2, 3),
    "EWC": lambda: ElasticWeightConsolidation(tiny.model(5), importances(), 1.0),
    "prior weight decay": lambda: PriorWeightDecay(tiny.model(5), 3.0),
    "Mixout": lambda: Mixout(tiny.model(5), 0.7),
    "old model in the loop": lambda: WithOldModel(DynamicDistillation(), tiny.model(6)),
    "backward-compatible training": lambda: BackwardCompatibleTraining(frozen_head(tiny.model(5))),
    "regression to old embeddings": EmbeddingRegression,
    "student of traffic": StudentOfTraffic,
    "anchor": Anchor,
    "RCAT": RobustnessCongruent,
}


@pytest.mark.parametrize("name", METHODS)
def test_two_steps_of_a_treatment(name, no_autocast):
    losses, weights = two_steps(METHODS[name](), away=False)
    with OtherDevice():
        found, moved_weights = two_steps(METHODS[name](), away=True)
    assert found == pytest.approx(losses, rel=1e-5)
    assert all(torch.allclose(moved_weights[name], weights[name], atol=1e-6) for name in weights)


def test_a_treatment_that_leaves_its_tensors_at_home_fails(no_autocast):
    with OtherDevice(), pytest.raises(RuntimeError, match="CPU"):
        two_steps(tiny.Anchor(0.1), away=True)


def test_a_gated_model_answers(no_autocast):
    rows = tiny.data(8)
    model, old = LearnGate(0.5, 1.0, 0).prepare(tiny.model()), tiny.old_answers(rows)
    given = {"names": ("logits", "gate", "new_logits", "embedding"), "old": old}
    here = outputs(copy.deepcopy(model), rows, device="cpu", **given)
    with OtherDevice():
        there = outputs(move_model(model), rows, device=DEVICE, **given)
    assert all(np.allclose(there[name], here[name], atol=1e-5) for name in given["names"])


def pair_and_batches(away):
    """An old and a new model, and batches for the Fisher."""
    rows, models = tiny.data(8), [tiny.model(seed).eval() for seed in (1, 2)]
    batches = [rows.collate([rows[row] for row in range(8)])]
    return [move_model(model) for model in models] if away else models, rows, batches


def weight_space(away):
    """What BCWI makes of two models: weights of the interpolated and the mean model, answers of
    the sweep.
    """
    (old, new), rows, batches = pair_and_batches(away)
    fisher = fisher_diagonal(old, batches)
    made = [interpolate(old, new, 0.4), interpolate(old, new, 0.4, fisher), soup([old, new])]
    begun = copy.deepcopy(new)
    start_from(begun, old)

    def evaluate(model):
        return predict(model, rows, device=DEVICE if away else "cpu")

    curve = sweep(old, new, evaluate, (0.0, 0.4, 1.0), fisher)
    weights = [at_home(value) for one in (*made, begun) for value in one.parameters()]
    return weights, [answers.logits for answers in curve.answers]


def test_interpolation_soup_fisher_and_sweep(monkeypatch):
    # weights on torch's meta device have no values and are refused; ours only says that it is it
    for module in (interpolation, bcwi):
        monkeypatch.setattr(module, "refuse_quantised", lambda *given: None)
    weights, logits = weight_space(away=False)
    with OtherDevice():
        found = weight_space(away=True)
    assert all(torch.allclose(*pair, atol=1e-4) for pair in zip(found[0], weights, strict=True))
    assert all(np.allclose(*pair, atol=1e-3) for pair in zip(found[1], logits, strict=True))


def muscle_steps(away, mask="wrong"):
    """Losses of two steps of the compatibility adapter, teachers asked at every step."""
    rows, old = tiny_llama.counting(8), tiny_llama.llama(1)
    model = add_adapter(tiny_llama.llama(), tiny_llama.RECIPE, seed=0)
    copy_adapter(model, "task", "compatibility")
    model, old = (move_model(model), move_model(old)) if away else (model, old)
    objective, losses = Compatibility(old, "task", mask, cross_entropy=0.1), []
    trained = [value for value in model.parameters() if value.requires_grad]
    optimizer = torch.optim.SGD(trained, lr=0.5, foreach=False)
    for start in (0, 4):
        batch = tiny_llama.batch_of(rows, range(start, start + 4))
        loss = objective.loss(model, moved(batch) if away else batch)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(at_home(loss)))
    return losses


@pytest.mark.parametrize("mask", ("wrong", "sequence_likelihood"))
def test_two_steps_of_muscle(mask, no_autocast):
    losses = muscle_steps(False, mask)
    with OtherDevice():
        assert muscle_steps(True, mask) == pytest.approx(losses, rel=1e-4)


def two_writers():
    """An old and a new language model of one tokenizer, and three sums."""
    sums = load_questions("arithmetic").limited(train=60, selection=1, test=3)
    tokenizer = byte_pairs([one.text for one in sums.train], 270)
    models = [small_language_model(tokenizer, seed, 1, 32, 64).eval() for seed in (1, 2)]
    return models, tokenizer, sums.test


def reranked(away):
    """Log-likelihoods of both models, what is proposed and what both write together."""
    models, tokenizer, questions = two_writers()
    (old, new), device = map(move_model, models) if away else models, DEVICE if away else "cpu"
    both, options = ((new, tokenizer), (old, tokenizer)), {"device": device, "batch_size": 2}
    generation = Generation(stops=("\n",), max_new_tokens=3)
    texts = {one.id: ["12", "4"] for one in questions}
    made = Reranker(*both).scored(questions, texts, **options)
    together = write_together(*both, questions, 0.5, generation, **options)
    proposals = [
        propose(*both[0], questions, generation, Proposal(kind, 3), **options) for kind in KINDS
    ]
    return [made.new, made.old], together, proposals


def test_reranking():
    scores, together, proposals = reranked(away=False)
    with OtherDevice():
        there = reranked(away=True)
    for side, same in zip(scores, there[0], strict=True):
        assert all(same[one] == pytest.approx(values, rel=1e-4) for one, values in side.items())
    assert there[1] == together and [list(one) for one in there[2]] == [
        list(one) for one in proposals
    ]


def embeddings_and_head(away):
    """What embeddings and a head in the old model's place make of a new model."""
    rows, device = tiny.data(8), {"device": DEVICE if away else "cpu"}
    torch.manual_seed(0)
    both = OneModel(tiny.model(dropout=0.0), OldLogitsHead(32, 3, 3, 8), 0.5).eval()
    model = tiny.model(dropout=0.0).eval()
    both, model = (move_model(both), move_model(model)) if away else (both, model)
    read = embed(model, rows, **device), predict(both, rows, **device)
    old_head = frozen_head(model)
    treatment = BackwardCompatibleTraining(old_head.to(DEVICE) if away else old_head)
    return [read[0].vector, read[1].logits], treatment.configuration()


def test_embeddings_and_a_head_in_the_old_models_place():
    here, configuration = embeddings_and_head(away=False)
    with OtherDevice():
        there, same = embeddings_and_head(away=True)
    assert all(np.allclose(*pair, atol=1e-5) for pair in zip(there, here, strict=True))
    assert same == configuration


def on_the_other_device(monkeypatch, module, *names):
    """Evaluation in a module takes the model to the other device, as it does to a GPU."""
    for name in names:
        monkeypatch.setattr(module, name, partial(getattr(module, name), device=DEVICE))


def planes_and_lines():
    """What landscape measures of three models: lines, distances, the plane."""
    rows = {name: tiny.data(16, seed) for seed, name in enumerate(("new_selection", "new_test"))}
    old, new, target = (tiny.model(seed, dropout=0.0).eval() for seed in (1, 2, 3))
    family = weight_planes.SeedModels(old, {"new": new, "target": target}, rows)
    lines = weight_planes.all_lines([family], (0.0, 0.5, 1.0), orders=1)
    measured = weight_planes.surface(family, lines.matchings["target"][0].model, 3)
    curves = [weight_planes.losses(curve) for (curve,) in lines.curves.values()]
    return [*curves, measured.values], weight_planes.lines_table(lines)


def test_landscape(monkeypatch):
    """The models come from files to the CPU; the first answer takes each to the other device."""
    for module in (interpolation, bcwi):
        monkeypatch.setattr(module, "refuse_quantised", lambda *given: None)
    here, table = planes_and_lines()
    on_the_other_device(monkeypatch, weight_planes, "predict", "outputs")
    with OtherDevice():
        there, found = planes_and_lines()
    assert found == table
    assert all(np.allclose(*pair, atol=1e-4) for pair in zip(there, here, strict=True))


def own_cases_answers(task, folder, old_folder, place):  # noqa: F811
    """What own_case makes of given models itself: the new model's answers, BCWI's row, what a
    head learns from. Its trainings are the treatments above.
    """
    case = own_case.Case(task, given_answers(task, old_answers(task)), folder, home=place)
    own_case.try_interpolation(case, str(old_folder), 0.3)
    model, tokenizer = own_case.text_classifier(str(folder), task.classes)
    rows = {"test": own_case.encode(task.test, tokenizer, task.text_fields, case.tokens)}
    traffic_trainings.keep_embedded(model, rows, task, place)
    assert not case.not_tried
    return case.new.predictions("test").logits, case.rows[-1], case.costs


def test_own_case(task, folder, tmp_path_factory, monkeypatch):  # noqa: F811 (fixtures)
    for module in (interpolation, bcwi):
        monkeypatch.setattr(module, "refuse_quantised", lambda *given: None)
    places = [tmp_path_factory.mktemp(name) for name in ("old", "here", "there")]
    tiny.model(4, classes=task.classes).save_pretrained(places[0])
    new, tokenizer = tiny.model(5, classes=task.classes), tiny.tokenizer()
    new.save_pretrained(folder)
    tokenizer.save_pretrained(places[0])
    logits, row, costs = own_cases_answers(task, folder, places[0], places[1])
    on_the_other_device(monkeypatch, own_case, "predict")
    on_the_other_device(monkeypatch, traffic_trainings, "embedded")
    with OtherDevice():
        found = own_cases_answers(task, folder, places[0], places[2])
    assert np.allclose(found[0], logits, atol=1e-5)
    assert found[1:] == (row, costs) and row.method == "BCWI"
