"""Backward-compatible training: the loss by hand, the wiring through the Trainer, widths and
classes, and what is refused.
"""

import copy

import numpy as np
import pytest
import tiny
import torch
from torch.nn import functional as F

from compatkit.embeddings import (
    BackwardCompatibleTraining,
    CosineHead,
    EmbeddingRegression,
    LinearMap,
    as_old_logits,
    embed,
    fit_map,
    frozen_head,
    re_embedded,
    truncated,
    with_new_classes,
)
from compatkit.retrieval import Embeddings, recall_at_1, retrieve
from compatkit.training.loop import predict
from compatkit.training.models import last_linear

ROWS = tiny.data(24)


@pytest.fixture(scope="module")
def old():
    """An old model that was trained a little."""
    return tiny.train(None, 7, ROWS, model=tiny.model(7))


def caught(treatment, model, rows=ROWS, count=6):
    """(logits, labels) of a batch, after the treatment has seen its embeddings."""
    model.eval()
    treatment.prepare(model)
    batch = rows.collate([rows[n] for n in range(count)])
    return model(**batch).logits, torch.tensor(rows.labels[:count])


def test_the_embedding_is_what_the_head_reads(old):
    found = embed(old, ROWS)
    with torch.no_grad():
        logits = frozen_head(old)(torch.from_numpy(found.vector)).numpy()
    assert np.allclose(logits, predict(old, ROWS).logits, atol=1e-5)
    assert list(found.id) == ROWS.ids and list(found.label) == ROWS.labels


def test_the_embedding_of_images_is_pooled():
    train = tiny.image_task()
    from compatkit.experiments.models.trainings import build, encoded

    model, preparation = build(tiny.IMAGE_RECIPE, train, 0)
    rows = encoded(tiny.IMAGE_RECIPE, train, preparation, "test")
    assert embed(model, rows).vector.shape == (len(rows), tiny.IMAGE_RECIPE.widths[-1])


def test_the_loss_is_the_paper_s(old):
    model, head = tiny.model(1), frozen_head(old)
    treatment = BackwardCompatibleTraining(head, 0.7)
    logits, label = caught(treatment, model)
    embedding = torch.from_numpy(embed(tiny.model(1), ROWS).vector[:6])
    wanted = F.cross_entropy(logits, label) + 0.7 * F.cross_entropy(head(embedding), label)
    assert torch.allclose(treatment.loss(logits, label), wanted, atol=1e-5)


def test_examples_of_new_classes_take_no_part(old):
    head = torch.nn.Linear(32, 2)  # an old model of two classes, which are 2 and 0 today
    treatment = BackwardCompatibleTraining(head, 1.0, old_classes=[2, 0])
    logits, label = caught(treatment, tiny.model(1))
    label = torch.tensor([2, 1, 0, 1, 1, 2])
    embedding = torch.from_numpy(embed(tiny.model(1), ROWS).vector[:6])
    known = label != 1
    influence = F.cross_entropy(head(embedding[known]), torch.tensor([0, 1, 0]))
    wanted = F.cross_entropy(logits, label) + influence
    assert torch.allclose(treatment.loss(logits, label), wanted, atol=1e-5)
    logits, _ = caught(treatment, tiny.model(1))
    alone = torch.ones(6, dtype=torch.long)
    assert torch.allclose(treatment.loss(logits, alone), F.cross_entropy(logits, alone))


def test_weight_0_is_plain_training_and_another_weight_is_not(old):
    plain = tiny.train(None, 1, ROWS)
    without = tiny.train(BackwardCompatibleTraining(frozen_head(old), 0.0), 1, ROWS)
    influenced = tiny.train(BackwardCompatibleTraining(frozen_head(old), 1.0), 1, ROWS)
    assert tiny.same(plain, without) and not tiny.same(plain, influenced)


def test_the_old_head_stays_and_shows_in_the_configuration(old):
    head = frozen_head(old)
    before, treatment = copy.deepcopy(head.weight), BackwardCompatibleTraining(head)
    tiny.train(treatment, 1, ROWS)
    assert torch.equal(head.weight, before) and torch.equal(last_linear(old).weight, before)
    other = BackwardCompatibleTraining(torch.nn.Linear(32, 3)).configuration()
    assert treatment.configuration()["old_head"] != other["old_head"]
    assert treatment.configuration()["weight"] == 1.0


def test_shuffled_old_classes_change_the_result(old):
    one, other = (
        tiny.train(BackwardCompatibleTraining(frozen_head(old), 3.0, places), 1, ROWS)
        for places in (None, [1, 2, 0])
    )
    assert not tiny.same(one, other)


def test_a_wider_embedding_is_judged_by_its_first_dimensions():
    head = torch.nn.Linear(5, 3)
    treatment = BackwardCompatibleTraining(head)
    logits, label = caught(treatment, tiny.model(1))
    embedding = torch.from_numpy(embed(tiny.model(1), ROWS).vector[:6])
    influence = F.cross_entropy(head(embedding[:, :5]), label)
    wanted = F.cross_entropy(logits, label) + influence
    assert torch.allclose(treatment.loss(logits, label), wanted, atol=1e-5)
    assert truncated(embed(tiny.model(1), ROWS), 5).width == 5


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: BackwardCompatibleTraining(torch.nn.Linear(4, 3), -1.0), "weight -1.0"),
        (lambda: BackwardCompatibleTraining(torch.nn.Linear(4, 3), float("nan")), "weight nan"),
        (lambda: BackwardCompatibleTraining("head"), "is a str"),
        (lambda: BackwardCompatibleTraining(torch.nn.Linear(4, 3), 1.0, [0, 0, 1]), "2 of them"),
        (
            lambda: BackwardCompatibleTraining(torch.nn.Linear(64, 3)).prepare(tiny.model()),
            "32 .*64.*mapped",
        ),
        (
            lambda: BackwardCompatibleTraining(torch.nn.Linear(8, 2), 1.0, [0, 5]).prepare(
                tiny.model()
            ),
            "names the class 5 and the model has 3",
        ),
        (lambda: EmbeddingRegression(-2.0), "weight -2.0"),
    ],
)
def test_wrong_settings_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_new_classes_get_the_mean_direction_of_their_old_embeddings():
    head = torch.nn.Linear(4, 2).requires_grad_(False)
    label = np.array([0, 1, 1, 2])
    given = Embeddings(list("abcd"), np.random.default_rng(0).normal(size=(4, 4)), label)
    made = with_new_classes(head, given, [2, 0], 3)
    assert torch.equal(made.weight[2], head.weight[0]) and torch.equal(made.bias[0], head.bias[1])
    centre = given.direction[1:3].mean(0)
    cosine = float(F.cosine_similarity(made.weight[1], torch.from_numpy(centre), dim=0))
    assert cosine == pytest.approx(1.0)
    assert float(made.weight[1].norm()) == pytest.approx(float(head.weight.norm(dim=1).mean()))
    with pytest.raises(ValueError, match="new classes 3"):
        with_new_classes(head, given, [2, 0], 4)


def test_regression_draws_embeddings_to_the_old_ones(old):
    target = embed(old, ROWS)
    plain = tiny.train(None, 1, ROWS)
    drawn = tiny.train(EmbeddingRegression(30.0), 1, ROWS, old=as_old_logits(target))
    without = tiny.train(EmbeddingRegression(0.0), 1, ROWS, old=as_old_logits(target))
    near, far = (np.sum(embed(one, ROWS).direction * target.direction) for one in (drawn, plain))
    assert near > far and tiny.same(plain, without)
    with pytest.raises(ValueError, match="needs the old model's logits"):
        tiny.train(EmbeddingRegression(1.0), 1, ROWS)
    wide = Embeddings(target.id, np.ones((len(target), 40)))
    with pytest.raises(ValueError, match="32.*40"):
        tiny.train(EmbeddingRegression(1.0), 1, ROWS, old=as_old_logits(wide))


def test_a_map_is_the_least_squares_one_and_joins_by_id():
    draw = np.random.default_rng(0)
    new = Embeddings([f"{n}" for n in range(60)], draw.normal(size=(60, 6)), np.arange(60) % 4)
    turn = draw.normal(size=(6, 3))
    old = Embeddings(new.id, new.direction @ turn + 0.1)
    shuffled = old.select(draw.permutation(old.id).tolist())
    found = fit_map(new, shuffled)(new)
    from sklearn.linear_model import LinearRegression

    wanted = LinearRegression().fit(new.direction, old.direction).predict(new.direction)
    assert np.allclose(found.vector, wanted, atol=1e-4) and found.width == 3
    with pytest.raises(ValueError, match="'59'"):
        fit_map(new, old.select([f"{n}" for n in range(59)]))
    with pytest.raises(ValueError, match="6 examples.*6 dimensions"):
        fit_map(new.select([f"{n}" for n in range(6)]), old)
    with pytest.raises(ValueError, match="width 2, not 6"):
        LinearMap(np.ones((2, 2)), np.zeros(2))(new)
    with pytest.raises(ValueError, match="width 7"):
        truncated(new, 7)


def test_an_index_on_its_way_holds_the_smaller_shares():
    ids = [f"{n}" for n in range(20)]
    draw = np.random.default_rng(1)
    old, new = (Embeddings(ids, draw.normal(size=(20, 3)), np.arange(20) % 2) for _ in range(2))
    assert (re_embedded(old, new, 0.0).vector == old.direction).all()
    assert (re_embedded(old, new.select(ids[::-1]), 1.0).vector == new.direction).all()
    shares = [(re_embedded(old, new, one).vector == new.direction).all(1) for one in (0.3, 0.6)]
    assert shares[0].sum() == 6 and shares[1].sum() == 12 and (shares[0] <= shares[1]).all()
    with pytest.raises(ValueError, match="share 1.5"):
        re_embedded(old, new, 1.5)


def test_compatible_queries_find_their_class_in_the_old_index(old):
    train = tiny.data(120)
    alone, compatible = (
        tiny.train(treatment, 1, train, num_train_epochs=8)
        for treatment in (None, BackwardCompatibleTraining(frozen_head(old)))
    )
    index, asked = embed(old, tiny.data(120)), tiny.data(60, 5)
    found = []
    for model in (alone, compatible):
        queries = embed(model, asked)
        queries = Embeddings([f"q{one}" for one in queries.id], queries.vector, queries.label)
        found.append(recall_at_1(retrieve(queries, index)))
    assert found[1] > found[0]


def test_a_cosine_head_sees_directions_only():
    torch.manual_seed(0)
    head, embedding = CosineHead(4, 3, 5.0), torch.randn(6, 4)
    wanted = 5 * torch.cosine_similarity(embedding[:, None], head.weight[None], dim=2)
    assert torch.allclose(head(embedding), wanted, atol=1e-6)
    assert torch.allclose(head(7 * embedding), wanted, atol=1e-6)
    old = Embeddings(np.array(list("ab")), np.eye(4, dtype=np.float32)[:2], np.array([3, 3]))
    more = with_new_classes(head.requires_grad_(False), old, [0, 1, 2], 4)
    assert isinstance(more, CosineHead) and float(more.scale) == 5.0
    assert torch.equal(more.weight[:3], head.weight) and more.weight[3, 0] == more.weight[3, 1]
