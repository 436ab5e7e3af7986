"""Training: the Trainer is transformers' own, a treatment changes what it says and nothing else."""

import pickle
from types import SimpleNamespace

import numpy as np
import pytest
import tiny
import torch
from tiny import FAST, Anchor, Endless, train
from transformers import Trainer, TrainingArguments
from transformers.trainer_pt_utils import LengthGroupedSampler

from compatkit.distillation import DynamicDistillation
from compatkit.gated_fusion import LearnGate
from compatkit.predictions import Predictions
from compatkit.regularizers import Mixout, PriorWeightDecay
from compatkit.training import loop
from compatkit.training.loop import (
    Treatment,
    WithOldModel,
    check_old_logits,
    collator,
    encode,
    fine_tune,
    last_checkpoint,
    load_weights,
    on_one_device,
    predict,
    resolve_precision,
    save_weights,
    steps_done,
)
from compatkit.training.models import last_linear

QUIET = {
    "report_to": "none",
    "save_strategy": "no",
    "disable_tqdm": True,
    "logging_strategy": "epoch",
    "use_cpu": not torch.cuda.is_available(),
}


@pytest.fixture(scope="module")
def plain():
    """The weights of plain training with seed 0."""
    return tiny.weights(train())


# --- plain training -------------------------------------------------------------------------------


class OwnTrainer(Trainer):
    """transformers' Trainer; only the order of the examples is given."""

    def _get_train_sampler(self, train_dataset=None):
        return LengthGroupedSampler(self.args.train_batch_size, lengths=self.train_dataset.lengths)


def test_plain_training_is_transformers_own_bit_for_bit(plain, tmp_path):
    rows, model = tiny.data(), tiny.model()
    arguments = TrainingArguments(
        str(tmp_path),
        num_train_epochs=2,
        learning_rate=3e-3,
        per_device_train_batch_size=8,
        weight_decay=0.01,
        warmup_steps=0.1,
        lr_scheduler_type="linear",
        max_grad_norm=1.0,
        optim="adamw_torch_fused",
        seed=0,
        data_seed=0,
        remove_unused_columns=False,
        dataloader_pin_memory=torch.cuda.is_available(),
        **QUIET,
    )

    def collate(examples):
        return rows.collate(examples) | {"labels": torch.tensor([one["label"] for one in examples])}

    trainer = OwnTrainer(model, arguments, train_dataset=rows, data_collator=collate)
    trainer.train()  # the loss is the model's own
    assert tiny.same(trainer.model, plain)
    assert not tiny.same(tiny.model(), plain)


def test_the_same_seed_gives_the_same_bits_and_another_does_not(plain):
    torch.rand(3)  # whatever was drawn before
    assert tiny.same(train(), plain)
    assert not tiny.same(train(seed=1), plain)


class SeesTheType(Treatment):
    """Notes in which type the head computes."""

    def prepare(self, model):
        self.seen = []
        last_linear(model).register_forward_hook(
            lambda layer, given, result: self.seen.append(result.dtype)
        )
        return model


def test_bfloat16_and_float32_in_turn_in_one_process(plain):
    found = {}
    for precision in ("float32", "bfloat16", "float32"):
        treatment = SeesTheType()
        model = train(treatment, precision=precision)
        assert set(treatment.seen) == {getattr(torch, precision)}
        treatment.seen.clear()
        predict(model, tiny.data())
        assert set(treatment.seen) == {torch.float32}, (
            "after training nothing of the autocast may stay"
        )
        found.setdefault(precision, []).append(tiny.weights(model))
    assert all(tiny.same(one, plain) for one in found["float32"])
    assert 0 < tiny.distance(found["bfloat16"][0], plain) < 1


def test_a_wrong_precision_is_named():
    with pytest.raises(ValueError, match="'half'"):
        resolve_precision("half")
    assert resolve_precision() in {"bfloat16", "float32"}


def test_epochs_are_announced_with_the_weights_they_have():
    seen, start = [], tiny.weights(tiny.model())
    model = train(on_epoch=lambda model, epoch: seen.append((epoch, tiny.weights(model))))
    assert [epoch for epoch, _ in seen] == [1, 2]
    assert (
        tiny.same(seen[1][1], model)
        and not tiny.same(seen[0][1], model)
        and not tiny.same(seen[0][1], start)
    )


def test_the_history_holds_one_loss_an_epoch():
    history = fine_tune(tiny.model(), tiny.data(), **FAST).history
    assert len([entry for entry in history if "loss" in entry]) == 2


# --- going on after a kill ------------------------------------------------------------------------


def stop_after(last):
    """A hook that stops the training when an epoch is over."""

    def stop(model, epoch):
        if epoch > last:
            raise KeyboardInterrupt

    return stop


@pytest.mark.parametrize(
    "treatment",
    [
        Treatment,
        lambda: DynamicDistillation(2.0),
        lambda: LearnGate(0.5, 1.0, 3),
        lambda: Mixout(tiny.model(5), 0.7),
        lambda: PriorWeightDecay(tiny.model(5), 3.0),
        lambda: WithOldModel(DynamicDistillation(2.0), tiny.model(6)),
    ],
    ids=("plain", "dynamic", "gate", "mixout", "prior weight decay", "old model in the loop"),
)
def test_a_killed_training_goes_on_and_gives_the_same_bits(tmp_path, monkeypatch, treatment):
    monkeypatch.setattr(loop, "CHECKPOINT_SECONDS", 0.0)
    rows = tiny.data()
    given = {"num_train_epochs": 4, "old": tiny.old_answers(rows)}
    whole = fine_tune(tiny.model(), rows, treatment(), **(FAST | given))
    place = tmp_path / "checkpoints"
    with pytest.raises(KeyboardInterrupt):
        stopped = given | {"checkpoints": place, "on_epoch": stop_after(2)}
        fine_tune(tiny.model(), rows, treatment(), **(FAST | stopped))
    assert steps_done(place) == 8 and len(list(place.glob("checkpoint-*"))) == 1
    seen = []
    more = {"checkpoints": place, "on_epoch": lambda model, epoch: seen.append(epoch)}
    gone_on = fine_tune(tiny.model(), rows, treatment(), **(FAST | given | more))
    assert seen == [3, 4] and tiny.same(gone_on.model, whole.model)
    losses = [[one["loss"] for one in run.history if "loss" in one] for run in (whole, gone_on)]
    assert losses[0] == losses[1] and len(losses[0]) == 4
    again = fine_tune(tiny.model(), rows, treatment(), **(FAST | given | more))
    assert seen == [3, 4] and tiny.same(again.model, whole.model), "nothing was left to train"


def test_a_checkpoint_that_was_being_written_is_not_gone_on_from(tmp_path, monkeypatch, capfd):
    monkeypatch.setattr(loop, "CHECKPOINT_SECONDS", 0.0)
    fine_tune(tiny.model(), tiny.data(), checkpoints=tmp_path, **FAST)
    assert "Writing model shards" not in capfd.readouterr().err
    whole = last_checkpoint(tmp_path)
    half = tmp_path / "checkpoint-99"
    half.mkdir()
    (half / "model.safetensors").write_bytes(b"some of it")
    assert last_checkpoint(tmp_path) == whole and not half.exists()
    assert last_checkpoint(tmp_path / "nothing") is None and steps_done(None) == 0


def test_short_trainings_write_no_checkpoints(tmp_path):
    fine_tune(tiny.model(), tiny.data(), checkpoints=tmp_path, **FAST)
    assert not list(tmp_path.glob("checkpoint-*"))


# --- treatments, through the Trainer --------------------------------------------------------------


def test_distillation_of_weight_0_is_plain_training(plain):
    assert tiny.same(
        train(DynamicDistillation(weight=0.0), old=tiny.old_answers(tiny.data())), plain
    )


def test_old_logits_are_joined_by_id(plain):
    rows = tiny.data()
    old = tiny.old_answers(rows)
    treated = tiny.weights(train(DynamicDistillation(), old=old))
    assert not tiny.same(treated, plain)
    order = np.random.default_rng(0).permutation(len(old))
    assert tiny.same(train(DynamicDistillation(), old=old.select(old.id[order])), treated)
    further = Predictions(
        ["never seen"], [0], logits=np.zeros((1, 3), np.float32)
    )  # more examples than the training split
    more = [
        np.concatenate(pair)
        for pair in ((further.id, old.id), (further.label, old.label), (further.logits, old.logits))
    ]
    assert tiny.same(
        train(DynamicDistillation(), old=Predictions(more[0], more[1], logits=more[2])), treated
    )
    shuffled = Predictions(old.id, old.label, logits=old.logits[order])
    assert not tiny.same(train(DynamicDistillation(), old=shuffled), treated)


class Recorder(Treatment):
    """Writes down what every hook is given."""

    def __init__(self):
        self._forward, self._loss, self._penalty, self._rates, self._start = [], [], [], [], None

    def prepare(self, model):
        self._start = tiny.weights(model)
        self._model = model
        return model

    def forward(self, model, inputs, old_logits, step):
        self._forward.append((set(inputs), inputs["input_ids"].clone(), old_logits.clone(), step))
        return super().forward(model, inputs, old_logits, step)

    def loss(self, logits, label, old_logits=None):
        self._loss.append((tuple(logits.shape), label.clone(), old_logits.clone()))
        return super().loss(logits, label)

    def penalty(self, model):
        self._penalty.append(model is self._model)

    def after_step(self, model, learning_rate):
        self._rates.append((model is self._model, learning_rate))


def test_every_hook_is_given_the_right_things(plain):
    rows = tiny.data()
    old = tiny.old_answers(rows)
    of_tokens = {tuple(tokens): row for row, tokens in enumerate(rows.tokens["input_ids"])}
    assert len(of_tokens) == len(rows)
    treatment = Recorder()
    assert tiny.same(train(treatment, old=old), plain), (
        "a treatment that only looks changes nothing"
    )
    assert tiny.same(treatment._start, tiny.model())
    steps = 2 * len(rows) // 8
    assert [step for *_, step in treatment._forward] == list(range(steps))
    for (names, tokens, old_logits, _), (shape, label, old_again) in zip(
        treatment._forward, treatment._loss, strict=True
    ):
        assert "labels" not in names and {"input_ids", "attention_mask"} <= names
        which = [of_tokens[tuple(row[row != rows.pad_token_id].tolist())] for row in tokens.cpu()]
        assert shape == (len(which), 3) and label.tolist() == [rows.labels[row] for row in which]
        np.testing.assert_array_equal(old_logits.cpu().numpy(), old.logits[which])
        assert torch.equal(old_again, old_logits)
    assert treatment._penalty == [True] * steps
    warm, rate = max(1, round(0.1 * steps)), FAST["learning_rate"]
    expected = [
        rate * step / warm if step < warm else rate * (steps - step) / (steps - warm)
        for step in range(steps)
    ]
    assert all(own for own, _ in treatment._rates)
    np.testing.assert_allclose(
        [used for _, used in treatment._rates], expected, rtol=1e-6, atol=1e-12
    )


def test_a_penalty_holds_the_weights_back():
    options = {
        "optim": "sgd",
        "learning_rate": 0.1,
        "max_grad_norm": 0.0,
        "dropout": 0.0,
        "num_train_epochs": 4,
    }
    start = tiny.model(dropout=0.0)
    free, held = train(**options), train(Anchor(4.0), **options)
    assert tiny.same(train(Anchor(0.0), **options), free)
    assert 0 < tiny.distance(held, start) < tiny.distance(free, start) / 3


class GoesBack(Treatment):
    """After every step the first weights come back."""

    def prepare(self, model):
        self._start = tiny.weights(model)
        return model

    def after_step(self, model, learning_rate):
        model.load_state_dict(self._start)


def test_after_step_has_the_last_word():
    assert tiny.same(train(GoesBack()), tiny.model())


class Widened(Treatment):
    """Trains another model than it was given."""

    def prepare(self, model):
        return tiny.model(seed=5, layers=2)


def test_the_prepared_model_is_the_one_that_is_trained():
    model = train(Widened())
    assert model.config.num_hidden_layers == 2 and not model.training


@pytest.mark.parametrize(
    "treatment", [DynamicDistillation(2.0, 2.0), Anchor(0.1)], ids=lambda one: type(one).__name__
)
def test_two_half_batches_are_one_whole_batch(treatment):
    rows = tiny.data()
    options = {"old": tiny.old_answers(rows), "dropout": 0.0, "optim": "sgd", "learning_rate": 0.2}
    halves = train(
        treatment, per_device_train_batch_size=4, gradient_accumulation_steps=2, **options
    )
    whole = train(treatment, per_device_train_batch_size=8, **options)
    assert tiny.distance(halves, whole) < 1e-5 < tiny.distance(whole, tiny.model(dropout=0.0))


def changed(old, **fields):
    return Predictions(**({"id": old.id, "label": old.label, "logits": old.logits} | fields))


@pytest.mark.parametrize(
    "spoil, named",
    [
        (lambda old: old.select(old.id[old.id != "train-3"]), "train-3"),
        (
            lambda old: changed(
                old,
                label=[
                    (one + 1) % 3 if name == "train-5" else one
                    for name, one in zip(old.id, old.label)
                ],
            ),
            "train-5",
        ),
        (lambda old: changed(old, label=None, id=["x" + one for one in old.id]), "train-0"),
        (
            lambda old: changed(
                old, logits=np.where(np.arange(32)[:, None] == 4, np.nan, old.logits)
            ),
            "train-4",
        ),
        (lambda old: old.select([*old.id, "train-6"]), "train-6"),
        (
            lambda old: changed(old, logits=old.logits[:, :2], label=None),
            r"\(8, 2\), expected \(8, 3\)",
        ),
        (lambda old: changed(old, logits=None, prediction=old.prediction), "logits"),
    ],
    ids=[
        "missing id",
        "another label",
        "other ids",
        "not a number",
        "repeated id",
        "wrong width",
        "labels only",
    ],
)
def test_old_logits_that_do_not_fit_are_refused_by_name(spoil, named):
    old = tiny.old_answers(tiny.data())
    with pytest.raises(ValueError, match=named):
        train(DynamicDistillation(), old=spoil(old))


def test_a_treatment_that_needs_old_logits_says_so():
    for treatment in (DynamicDistillation(), LearnGate()):
        with pytest.raises(
            ValueError, match=f"{type(treatment).__name__} needs the old model's logits"
        ):
            train(treatment)


def test_old_logits_are_checked_for_shape_and_values():
    check_old_logits(torch.zeros(2, 3), 3, 2)
    for bad in (torch.zeros(2, 4), torch.zeros(3, 3), torch.zeros(3), torch.zeros(2, 3, 1)):
        with pytest.raises(ValueError, match=r"expected \(2, 3\)"):
            check_old_logits(bad, 3, 2)
    for value in (np.nan, np.inf, -np.inf):
        with pytest.raises(ValueError, match=r"not finite in rows \[1\]"):
            check_old_logits(torch.tensor([[0.0, 0, 0], [0, value, 0]]), 3, 2)


def test_a_loss_that_is_no_number_stops_the_training():
    with pytest.raises(FloatingPointError, match="(inf|nan) at step 4"):
        train(Endless())
    with pytest.raises(FloatingPointError, match="the loss is nan"):
        train(learning_rate=1e30, max_grad_norm=0.0)


# --- answers --------------------------------------------------------------------------------------


def test_answers_depend_neither_on_the_order_nor_on_the_batch():
    source = tiny.rows(23, 3, "test")
    model = train()
    rows = encode(source, tiny.tokenizer(), ("text",), 16)
    answer = predict(model, rows, classes=tiny.CLASSES)
    assert (
        list(answer.id) == source["id"]
        and list(answer.label) == source["label"]
        and answer.classes == tiny.CLASSES
    )
    assert answer.logits.dtype == np.float32 and answer.logits.shape == (23, 3)
    by_hand = []
    for text in source["text"]:
        with torch.no_grad():
            by_hand.append(
                model(**tiny.tokenizer()(text, return_tensors="pt").to(model.device))
                .logits[0]
                .cpu()
                .numpy()
            )
    np.testing.assert_allclose(answer.logits, by_hand, atol=1e-6)
    turned = encode(source.select(range(22, -1, -1)), tiny.tokenizer(), ("text",), 16)
    for data, size in ((rows, 1), (rows, 5), (turned, 64), (turned, 4)):
        again = predict(model, data, batch_size=size)
        assert list(again.id) == data.ids
        np.testing.assert_allclose(again.select(list(answer.id)).logits, answer.logits, atol=1e-6)


def test_pairs_of_texts_and_long_ones():
    source = tiny.rows(4, 0, "train").add_column(
        "second", [f"{tiny.WORDS[n]} {tiny.WORDS[0]}" for n in range(4)]
    )
    rows = encode(source, tiny.tokenizer(), ("text", "second"), 8)
    assert max(rows.lengths) == 8 and len(rows) == 4
    batch = collator(rows)([rows[0], rows[3]])
    assert batch["input_ids"].shape == batch["attention_mask"].shape and batch[
        "labels"
    ].tolist() == [rows.labels[0], rows.labels[3]]
    assert batch["attention_mask"].sum(1).tolist() == [rows.lengths[0], rows.lengths[3]]


def test_weights_of_another_model_are_refused(tmp_path):
    save_weights(tiny.model(layers=2), tmp_path / "two.safetensors")
    with pytest.raises(ValueError, match="of another model: missing .*layer.2"):
        load_weights(tiny.model(layers=3), tmp_path / "two.safetensors")
    with pytest.raises(
        FileNotFoundError,
        match="other.safetensors",
    ):
        load_weights(tiny.model(), tmp_path / "other.safetensors")


def test_it_works_on_texts_as_well():
    old = tiny.model(seed=5, dropout=0.0)
    rows = tiny.data()
    cached = train(DynamicDistillation(5.0), old=predict(old, rows), dropout=0.0)
    assert (
        tiny.distance(cached, train(WithOldModel(DynamicDistillation(5.0), old), dropout=0.0))
        < 1e-3
        < tiny.distance(cached, train(dropout=0.0))
    )


def test_the_record_names_old_models_as_published_runs_do():
    weights = {"b": torch.arange(6.0).reshape(2, 3).T, "a": torch.tensor(1.5).bfloat16()}
    old = [SimpleNamespace(state_dict=lambda: weights)]
    assert WithOldModel(Treatment(), old).configuration()["old_weights"] == ["7a73dde30f2937de"]


def test_a_collator_can_be_sent_to_a_worker():
    rows = tiny.data(6)
    made = collator(rows, torch.arange(12.0).view(6, 2))
    sent = pickle.loads(pickle.dumps(made))
    one, other = (each([rows[4], rows[1]]) for each in (made, sent))
    assert one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)
    assert one["old_logits"].tolist() == [[8.0, 9.0], [2.0, 3.0]]


def test_one_process_never_spreads_over_several_gpus(tmp_path):
    """Four GPUs in one process would make a batch of 8 one of 32."""
    arguments = TrainingArguments(str(tmp_path), per_device_train_batch_size=8, use_cpu=True)
    arguments.device  # noqa: B018 - asks for the devices
    arguments._n_gpu = 4
    assert arguments.train_batch_size == 32
    assert on_one_device(arguments).n_gpu == 1 and arguments.train_batch_size == 8
