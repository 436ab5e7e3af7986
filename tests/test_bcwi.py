"""The paper's method: soups, the sweep in one model, the choice of α, the new model's beginning."""

import gc
import math

import numpy as np
import pytest
import tiny
import torch
from torch import nn
from weight_pairs import Net, adapted, answers, batches, by_hand, merged, pair

from compatkit.bcwi import (
    ALPHAS,
    Choice,
    Curve,
    choose_alpha,
    curve_picture,
    interpolate,
    noninferior,
    reestimate_batchnorm,
    soup,
    start_from,
    sweep,
    target_interval,
)
from compatkit.weights.fisher import fisher_diagonal


def test_adapters_in_a_sweep_and_in_a_soup():
    old, new = adapted(5, name="before"), adapted(6)
    seen = []

    def evaluate(model):
        return (seen.append(tiny.weights(merged(model))), answers(np.arange(4)))[1]

    sweep(old, new, evaluate, (0, 0.4, 1))
    for alpha, found in zip((0, 0.4, 1), seen):
        assert (
            tiny.distance(
                found,
                {
                    name: value.float()
                    for name, value in by_hand(merged(old), merged(new), alpha).items()
                },
            )
            < 1e-5
        )
    mean = merged(soup([adapted(5), adapted(6), adapted(7)]))
    plain = soup([merged(adapted(seed)) for seed in (5, 6, 7)])
    assert tiny.distance(mean, plain) < 1e-5


def test_soups():
    models = [tiny.model(seed) for seed in range(4)]
    mean = soup(models)
    expected = {
        name: sum(tiny.weights(one)[name] for one in models) / 4 for name in tiny.weights(mean)
    }
    assert tiny.distance(mean, expected) < 1e-6
    assert tiny.same(soup(models[:1]), models[0]) and tiny.same(soup([models[0]] * 5), models[0])
    with pytest.raises(ValueError, match="at least one model"):
        soup([])
    for place in (0, 1, 2):
        wrong = [tiny.model(seed, layers=2 if seed == place else 1) for seed in range(3)]
        with pytest.raises(ValueError, match="other tensors"):
            soup(wrong)
    models[1].classifier.bias.data[0] = float("nan")
    with pytest.raises(ValueError, match="'classifier.bias'"):
        soup(models)
    halves = soup([Net(1).half(), Net(2).half(), Net(3).half()])
    assert (
        halves.embed.weight.dtype == torch.float16
        and halves.head.weight is halves.embed.weight
        and halves.norm.num_batches_tracked == 1
    )


def test_statistics_are_estimated_again():
    net = Net(3).train()
    net.embed.eval()
    weight, momentum = net.norm.weight.clone(), net.norm.momentum
    tokens = [torch.randint(0, 9, (16, 3)) for _ in range(3)]
    assert reestimate_batchnorm(net, tokens) is net
    means = torch.stack([net.embed(one).mean(1).mean(0) for one in tokens])
    assert torch.allclose(net.norm.running_mean, means.mean(0), atol=1e-6)
    assert (
        torch.equal(net.norm.weight, weight)
        and net.norm.momentum == momentum
        and net.training
        and not net.embed.training
    )
    kept = net.norm.running_mean.clone()
    with pytest.raises(ValueError, match="no batches"):
        reestimate_batchnorm(net, [])
    assert torch.equal(net.norm.running_mean, kept)
    with pytest.raises(ValueError, match="has no BatchNorm"):
        reestimate_batchnorm(nn.Linear(2, 2), tokens)


def test_a_sweep_writes_every_point_into_one_model():
    old, new = pair()
    seen, models = [], set()

    def evaluate(model):
        seen.append(tiny.weights(model))
        models.add(id(model))
        return answers([0, 1])

    for importance in (None, fisher_diagonal(old, batches())):
        seen.clear(), models.clear()
        curve = sweep(old, new, evaluate, importance=importance)
        assert len(models) == 1 and curve.alphas == ALPHAS and len(curve.answers) == 11
        assert curve.margin == 0.01
        for alpha, found in zip(curve.alphas, seen):
            assert tiny.same(found, interpolate(old, new, alpha, importance))


def test_a_sweep_allocates_no_weights_for_each_point():
    old, new = nn.Linear(1000, 1000), nn.Linear(1000, 1000)

    def known():
        return {
            one.data_ptr()
            for one in gc.get_objects()
            if type(one) in (torch.Tensor, nn.Parameter) and one.numel() >= 1_000_000
        }

    before, sets = known(), []

    def evaluate(model):
        sets.append(known() - before)
        return answers([0, 1])

    sweep(old, new, evaluate)
    assert len(sets[0]) == 1 and all(one == sets[0] for one in sets)


def test_a_curve_counts_accuracy_and_flips_by_hand():
    label = np.array([0, 1, 0, 1])
    points = iter([[0, 1, 1, 0], [0, 0, 0, 0], [0, 0, 0, 1]])
    curve = sweep(*pair(), lambda model: answers(next(points), label), (1, 0, 0.5))
    assert curve.alphas == (0, 0.5, 1) and curve.accuracy.tolist() == [0.5, 0.5, 0.75]
    assert curve.nfr.tolist() == [0.5, 0.25, 0.0] and [one.pfr for one in curve.counts] == [
        0.25,
        0.0,
        0.0,
    ]
    assert curve.at(0.5).prediction.tolist() == [0, 0, 0, 0] and "NFR" in curve._repr_html_()
    with pytest.raises(ValueError, match="alpha 0.7 was not evaluated"):
        curve.at(0.7)


def test_a_curve_without_the_new_model_shows_itself_without_a_choice():
    label = np.array([0, 1, 0, 1])
    curve = sweep(*pair(), lambda model: answers([0, 1, 0, 0], label), (0.4, 1))
    assert curve._repr_html_().endswith("</table>")


def test_flips_are_counted_on_the_examples_of_old_answers():
    label = np.array([0, 1, 2])
    old = answers([0, 0], np.array([0, 1]))
    curve = sweep(*pair(), lambda model: answers([1, 1, 2], label), (0, 0.5), old_answers=old)
    assert curve.nfr.tolist() == [0.5, 0.5] and curve.accuracy.tolist() == [2 / 3, 2 / 3]


def test_sweeps_that_make_no_sense_are_refused():
    def evaluate(model):
        return answers([0, 1])

    for alphas, match in (
        ((), "at least one"),
        ((0.5, 0.5), "different numbers"),
        ((0, 2), "from 0"),
        ((0, 0.5), "give old_answers"),
    ):
        with pytest.raises(ValueError, match=match):
            sweep(*pair(), evaluate, alphas)
    with pytest.raises(ValueError, match="evaluate.*float"):
        sweep(*pair(), lambda model: 0.5)


def curve_of(accuracies, alphas=(0, 0.25, 0.5, 0.75, 1), count=1000):
    """A curve whose points are right on the first examples."""
    given = tuple(
        answers((np.arange(count) >= round(one * count)).astype(int)) for one in accuracies
    )
    return Curve(tuple(alphas), given, given[-1])


def test_over_seeds_the_largest_alpha_within_the_targets_interval():
    targets = [0.80, 0.82, 0.84]
    low, high = target_interval(targets)
    assert low == pytest.approx(0.82 - 4.302653 * 0.02 / math.sqrt(3)) and high == pytest.approx(
        0.82 + 0.82 - low
    )
    curves = [curve_of([0.83, 0.82, 0.80, 0.76, 0.9]), curve_of([0.83, 0.83, 0.76, 0.78, 0.9])]
    choice = choose_alpha(curves, targets, fewest=2)
    assert "of 3 models: too wide" in choice.words
    assert "too wide" not in choose_alpha(curves, [0.8, 0.82] * 3).words
    assert (
        choice == Choice(0.5, True, choice.words, (0.5, 0.75), low) and "0.5, 0.75" in choice.words
    )
    assert (
        choose_alpha(curves, [answers(np.r_[np.zeros(82), np.ones(18)])] * 5).alpha == 0.25
    )  # no spread: the mean itself


def test_alpha_one_is_never_chosen_and_none_says_so():
    choice = choose_alpha([curve_of([0.5, 0.5, 0.5, 0.5, 0.9])] * 2, [0.8] * 5)
    assert (
        choice.alpha == 0
        and not choice.qualified
        and "no α below 1" in choice.words
        and all(map(math.isnan, choice.each))
    )
    assert choose_alpha([curve_of([0.9] * 5)] * 2, [0.1] * 5).alpha == 0.75


def test_for_one_pair_the_paired_test_decides():
    curve = curve_of([0.83, 0.83, 0.829, 0.80, 0.7])
    assert choose_alpha(curve, margin=0.01).alpha == 0.5 == curve.chosen.alpha
    assert curve.chosen.qualified
    assert choose_alpha(curve, margin=0.05).alpha == 0.75
    assert choose_alpha(curve) == choose_alpha(curve, margin=0.01)
    worse = choose_alpha(curve_of([0.83, 0.7, 0.7, 0.7, 0.7]), margin=0.01)
    assert worse.alpha == 0 and not worse.qualified  # the new model itself is no choice
    small = curve_of([0.83, 0.83, 0.82, 0.8, 0.7], count=100)
    choice = choose_alpha(
        small, margin=0.01
    )  # a hundred examples cannot show a margin of one point
    assert choice.alpha == 0 and not choice.qualified and "α = 0 is the new model" in choice.words


def test_the_paired_statistic_by_its_definition():
    generator = np.random.default_rng(0)
    for _ in range(200):
        count, margin = int(generator.integers(20, 2000)), float(generator.uniform(0.002, 0.2))
        better, worse = (int(one) for one in generator.integers(0, count // 4, 2))
        grid = np.linspace(margin, (1 + margin) / 2, 200_001)[1:-1]  # p21, with p12 = p21 − margin
        same = 1 - 2 * grid + margin
        score = (
            better * np.log(np.maximum(grid - margin, 1e-300))
            + worse * np.log(grid)
            + (count - better - worse) * np.log(same)
        )
        best = grid[score.argmax()] if better else None
        if best is not None:
            expected = (better - worse + count * margin) / math.sqrt(
                count * (2 * best - margin * (1 + margin))
            )
            assert noninferior(better, worse, count, margin) == pytest.approx(
                expected, rel=2e-2, abs=2e-2
            )
    assert noninferior(5, 5, 400, 0.02) > noninferior(5, 9, 400, 0.02)
    assert noninferior(0, 0, 100, 0.01) == pytest.approx(math.sqrt(100 * 0.01 / 0.99))
    assert noninferior(0, 0, 20, 0.01) == pytest.approx(math.sqrt(20 * 0.01 / 0.99))


def test_the_paired_statistic_solves_its_likelihood_exactly():
    """The share under the hypothesis is where the likelihood's derivative vanishes."""
    from scipy.optimize import brentq

    for better, worse, count, margin in ((3, 7, 40, 0.05), (1, 1, 12, 0.1), (20, 9, 300, 0.01)):

        def slope(share):
            neither = (count - better - worse) * 2 / (1 - 2 * share + margin)
            return better / (share - margin) + worse / share - neither

        share = brentq(slope, margin + 1e-12, (1 + margin) / 2 - 1e-12, xtol=1e-14)
        spread = math.sqrt(count * (2 * share - margin * (1 + margin)))
        expected = (better - worse + count * margin) / spread
        assert noninferior(better, worse, count, margin) == pytest.approx(expected, rel=1e-8)


def test_choices_that_make_no_sense_are_refused():
    one, other = curve_of([0.8] * 5), curve_of([0.8] * 3, (0, 0.5, 1))
    with pytest.raises(ValueError, match="several curves need the target"):
        choose_alpha([one, one])
    for targets, fewest, named in (
        (4, 5, "at least 5"),
        (1, 2, "at least 2"),
        (1, 0, "at least 2"),
    ):
        with pytest.raises(
            ValueError, match=f"{targets} target model.s. for a t-interval: .*{named}"
        ):
            choose_alpha([one], [0.8] * targets, fewest=fewest)
    assert choose_alpha([one], [0.8, 0.8], fewest=0).qualified  # two are enough for an interval
    with pytest.raises(ValueError, match="4 target"):
        choose_alpha([one], [0.8] * 4)
    with pytest.raises(ValueError, match="different alphas"):
        choose_alpha([one, other], [0.8] * 5)
    for margin in (0, 1, -0.1):
        with pytest.raises(ValueError, match="margin is"):
            choose_alpha(one, margin=margin)
    with pytest.raises(ValueError, match="level is 1"):
        choose_alpha(one, level=1)
    with pytest.raises(ValueError, match="alpha 0.0 was not evaluated"):
        choose_alpha(Curve((0.5,), one.answers[:1], one.old))


def test_a_picture_can_be_drawn():
    figure = curve_picture(
        {"plain": [curve_of([0.8, 0.8, 0.7, 0.6, 0.5])] * 2, "other": [curve_of([0.7] * 5)]},
        (0.75, 0.85),
        "title",
    )
    assert len(figure.axes) == 2 and figure.axes[1].get_xlabel().startswith("α")
    assert curve_of([0.8] * 5).picture() is not None


def test_start_from_names_what_does_not_fit():
    with pytest.raises(ValueError, match="only in the new"):
        start_from(tiny.model(1, layers=2), tiny.model(2))
    grown, old = tiny.model(1, classes=("a", "b", "c", "d")), tiny.model(2)
    kept = grown.classifier.weight[1].clone()
    start_from(grown, old, (0, 2, 3))
    assert torch.equal(grown.classifier.weight[[0, 2, 3]], old.classifier.weight) and torch.equal(
        grown.classifier.weight[1], kept
    )


def test_evaluation_may_move_the_working_model():
    """As a Trainer does, which takes a model to its GPU and leaves it there."""
    old, new = pair()
    types = []

    def evaluate(model):
        types.append(model.classifier.weight.dtype)
        model.double()
        return answers([0, 1])

    sweep(old, new, evaluate, (0, 0.5, 1))
    assert types == [torch.float32, torch.float64, torch.float64]


def test_batches_for_statistics_go_to_the_models_device():
    """The batches lie in main memory; a parameter on the meta device stands for a model on a
    GPU.
    """

    class Elsewhere(nn.Module):
        """Notes where its inputs are."""

        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(3, device="meta"))
            self.norm, self.devices = nn.BatchNorm1d(3), []

        def forward(self, inputs):
            self.devices.append(inputs.device.type)
            return self.norm(torch.zeros(inputs.shape))

    model = reestimate_batchnorm(Elsewhere(), [torch.zeros(8, 3)])
    assert model.devices == ["meta"]


def test_a_sweep_takes_a_rule():
    old, new = pair()
    seen = []

    def evaluate(model):
        return (seen.append(tiny.weights(model)), answers([0, 1]))[1]

    sweep(old, new, evaluate, (0, 0.4, 1), rule="linear")
    assert tiny.same(seen[1], interpolate(old, new, 0.4))
    with pytest.raises(ValueError, match="no rule 'nearest'"):
        sweep(old, new, evaluate, rule="nearest")


@pytest.mark.parametrize("wrong", [float("nan"), -0.1, 84.0])
def test_an_accuracy_that_is_none_bounds_no_interval(wrong):
    with pytest.raises(ValueError, match="it is a share from 0 to 1"):
        target_interval([0.8, 0.82, wrong])
