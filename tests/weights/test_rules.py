"""Rules of interpolation: the formulas, the ends, types, pieces, devices, and a rule of one's
own.
"""

import pytest
import torch

from compatkit.weights import rules
from compatkit.weights.rules import (
    FISHER,
    LINEAR,
    RULES,
    Piece,
    Rule,
    add_rule,
    rule_of,
    write_piece,
)


def drawn(count=50, dtype=torch.float32, seed=0):
    """An old and a new tensor and importances."""
    generator = torch.Generator().manual_seed(seed)
    old, new = (torch.randn(count, generator=generator).to(dtype) for _ in range(2))
    return old, new, torch.rand(count, generator=generator) * 5


def written(old, new, alpha, importance=None, rule=LINEAR, out=None):
    """A piece written into fresh memory."""
    out = torch.empty_like(new) if out is None else out
    write_piece(out, Piece("tensor", old, new, importance), alpha, rule)
    return out


@pytest.mark.parametrize("alpha", [0.001, 0.3, 0.5, 0.999])
def test_both_formulas(alpha):
    old, new, importance = drawn(dtype=torch.float64)
    assert torch.allclose(written(old, new, alpha), alpha * old + (1 - alpha) * new, atol=1e-12)
    weights = alpha * importance, 1 - alpha
    expected = (weights[0] * old + weights[1] * new) / sum(weights)
    assert torch.allclose(written(old, new, alpha, importance, FISHER), expected, atol=1e-6)


@pytest.mark.parametrize("rule", [LINEAR, FISHER])
def test_the_ends_are_copied_whatever_the_rule(rule):
    old, new, importance = drawn()
    old[0], new[0] = float("inf"), float("nan")
    given = importance if rule.weighs else None
    assert torch.equal(written(old, new, 1, given, rule), old)
    assert torch.equal(written(old, new, 0, given, rule)[1:], new[1:])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16])
def test_not_a_number_is_never_written_in_silence(dtype):
    old, new, _ = drawn(dtype=dtype)
    for sides, told in ((["old"], "old model,"), (["old", "new"], "old model and the new model,")):
        values = {"old": old.clone(), "new": new.clone()}
        for side in sides:
            values[side][7] = float("nan")
        with pytest.raises(ValueError, match=f"'tensor' holds NaN in the {told}"):
            written(values["old"], values["new"], 0.5)
    for factor in (Piece("a", old, None), Piece("a", None, new)):
        (factor.new if factor.old is None else factor.old)[7] = float("nan")
        with pytest.raises(ValueError, match="'a' holds NaN"):
            write_piece(torch.empty_like(new), factor, 0.5)
    endless = torch.full((3,), -float("inf"), dtype=dtype)
    with pytest.raises(ValueError, match="the old model and the new model"):
        written(endless, endless, 0.5)
    one_sided = torch.tensor([-float("inf"), 1.0], dtype=dtype)  # such as a kept mask
    assert torch.equal(written(one_sided, one_sided[1:].repeat(2), 0.3), one_sided)


def test_a_weight_without_importance_stays_new_and_a_buffer_goes_linearly():
    old, new, importance = drawn()
    assert torch.equal(written(old, new, 0.7, 0 * importance, FISHER), new)
    assert torch.equal(written(old, new, 0.7, None, FISHER), written(old, new, 0.7))


def test_low_precision_is_rounded_once():
    old, new, _ = drawn(dtype=torch.bfloat16)
    exact = torch.lerp(new.float(), old.float(), 0.3).bfloat16()
    assert torch.equal(written(old, new, 0.3), exact)
    assert torch.equal(written(old, new.float(), 0.3), torch.lerp(new.float(), old.float(), 0.3))


def test_a_single_part_is_scaled():
    old, new, _ = drawn()
    out = torch.empty(50)
    write_piece(out, Piece("factor", old, None, None, 3.0), 0.25)
    assert torch.allclose(out, 0.75 * old)
    write_piece(out, Piece("factor", None, new, None, 2.0), 0.25)
    assert torch.allclose(out, 1.5 * new)


def test_cut_tensors_are_those_written_whole(monkeypatch):
    old, new, importance = drawn(1000)
    whole = written(old, new, 0.3, importance, FISHER), written(old.half(), new.half(), 0.3)
    monkeypatch.setattr(rules, "CHUNK", 7)
    assert torch.equal(written(old, new, 0.3, importance, FISHER), whole[0])
    assert torch.equal(written(old.half(), new.half(), 0.3), whole[1])


def test_a_rule_that_needs_the_whole_tensor_gets_it(monkeypatch):
    """Not elementwise: in half precision too, where other rules see short pieces."""
    monkeypatch.setattr(rules, "CHUNK", 7)
    sizes = []

    def longest(old, new, alpha, importance, out):
        sizes.append(len(old))
        out.copy_(old if old.norm() > new.norm() else new)

    rule = Rule("longest", "the longer of the two", longest, elementwise=False)
    old, new, _ = drawn(100, torch.float16)
    assert torch.equal(written(2 * old, old, 0.5, rule=rule), 2 * old) and sizes == [100]


def test_the_result_may_lie_on_another_device():
    """The meta device stands for a GPU: arithmetic that mixes the two would raise."""
    old, new, importance = drawn()
    for alpha in (0, 0.4, 1):
        for given, rule in ((None, LINEAR), (importance, FISHER)):
            out = torch.empty(50, device="meta")
            assert written(old, new, alpha, given, rule, out).is_meta


def test_rules_by_name():
    assert list(RULES) == ["linear", "fisher"]
    assert rule_of() is LINEAR and rule_of(None, {}) is FISHER and rule_of(LINEAR) is LINEAR
    with pytest.raises(ValueError, match="'linear'"):
        add_rule(Rule("linear", "another", print))
    with pytest.raises(ValueError, match="takes no importances"):
        rule_of("linear", {})
    with pytest.raises(ValueError, match="choose one of fisher, linear"):
        rule_of("slerp")
