"""The registry of methods: names, grids, and what each asks for."""

import pytest

from compatkit.experiments.models import treatments
from compatkit.experiments.models.treatments import (
    METHODS,
    NOTHING,
    OLD_ANSWER,
    OLD_LOGITS,
    OLD_MODEL,
    OLD_WEIGHTS,
    TRAFFIC,
    Method,
    method,
    setting_words,
    usable,
)
from compatkit.training.loop import Treatment


@pytest.mark.parametrize("name", [name for name, one in METHODS.items() if one.grids])
@pytest.mark.parametrize("scale", ["smoke", "mini", "paper"])
def test_every_grid_makes_different_settings(name, scale):
    for embedded in (False, True):
        grid = method(name).grid(scale, embedded)
        held = [repr(one.configuration() if isinstance(one, Treatment) else one) for one in grid]
        assert held and len(set(held)) == len(held)
        assert scale != "mini" or len(grid) <= 6, "at mini at most six settings"


def test_a_treatment_that_needs_old_logits_says_so_in_the_registry():
    for one in METHODS.values():
        if isinstance(one.make, type) and issubclass(one.make, Treatment):
            reads = bool({OLD_LOGITS, TRAFFIC} & set(one.training))
            assert reads == one.make.needs_old_logits, one.name


def test_known_arguments_reach_every_setting():
    assert {one.old_classes for one in method("FD-LM").grid("mini", old_classes=(0, 2))} == {(0, 2)}


def test_a_notebook_may_have_a_grid_of_its_own():
    dynamic = method("dynamic distillation")
    assert [setting_words(one) for one in dynamic.grid("smoke")] == ["λ 1, T 1"]
    assert [setting_words(one) for one in dynamic.grid("smoke", notebook="gated_fusion")] == [
        "λ 1, T 1",
        "λ 1, T 2",
    ]
    assert (
        len(dynamic.grid("mini", True, "gated_fusion"))
        == 2
        != len(dynamic.grid("mini", False, "gated_fusion"))
    )


def test_unknown_names_and_scales_are_refused():
    with pytest.raises(ValueError, match="did you mean 'FD-LM'"):
        method("FD-ML")
    with pytest.raises(ValueError, match="scale mini"):
        Method("new", "").grid("mini")


def test_what_can_be_used_follows_from_what_is_left_of_the_old_model():
    assert usable() == []
    assert set(usable(answer=(OLD_ANSWER,))) == {"rule on answers"}
    assert "gated fusion" not in usable((OLD_LOGITS,)) and "gated fusion" in usable(
        (OLD_LOGITS,), (OLD_MODEL,)
    )
    assert usable((TRAFFIC,)) == ["student of the rule", "head of old logits"]
    assert {"BCWI", "EWC"} <= set(usable((OLD_WEIGHTS,))) and "FD-LM" not in usable((OLD_WEIGHTS,))


def test_one_entry_is_enough(monkeypatch):
    added = Method(
        "new",
        "",
        lambda weight: ("made", weight),
        grids={"smoke": [{"weight": 2.0}]},
        answer=(NOTHING,),
    )
    monkeypatch.setitem(treatments.METHODS, "new", added)
    assert method("new").grid("smoke") == [("made", 2.0)] and "new" in usable()


def test_a_row_says_whether_squared_differences_are_summed_or_averaged_over_classes():
    for one in ("sum", "mean"):
        told = setting_words(method("FD-LM").make(over_classes=one))
        assert told == f"α 1, β 5, λ 1, {one} over classes"
    assert setting_words(method("ELODI").make()) == "λ 1, sum over classes"
    by_kl = method("FD-KL").make(distance="kl", over_classes="mean")
    assert "classes" not in setting_words(by_kl)
    assert by_kl.configuration() == method("FD-KL").make(distance="kl").configuration()


def test_stored_tables_sum_over_classes_and_the_papers_thousand_are_averaged():
    for name in ("FD-LM", "ordinary distillation"):
        grids = {scale: method(name).grid(scale) for scale in ("smoke", "mini", "paper")}
        found = {scale: {one.over_classes for one in grid} for scale, grid in grids.items()}
        assert found == {"smoke": {"sum"}, "mini": {"sum"}, "paper": {"mean"}}
