"""The papers' sentences: what they say is what is judged, of tables that the catalogue lists."""

import re

from compatkit.experiments.judging.claims import CLAIMS, CONTROL, NFR, bears_on, place_of
from compatkit.experiments.planning.catalogue import CATALOGUE


def test_a_start_that_both_models_share_is_another_place():
    scratch, started = (place_of(f"distillation-cifar10-mini-{table}") for table in ("2a", "2b"))
    assert (scratch, started) == ("CIFAR-10", "CIFAR-10 from a common start")


def test_claims_about_adapters_have_a_control():
    about = [one for one in CLAIMS if one.paper == CONTROL.paper and one is not CONTROL]
    assert {one.sentence for one in about if not one.controlled} == {
        "An update with a smaller gain flips more (figure 4): version 2 → wider than 1 → wider"
    }


def test_a_rule_is_told_by_the_models_that_it_decides():
    names = ("", "-2b", "-4", "-resnet20")
    assert [place_of(f"decisions-cifar10-mini-main{told}") for told in names] == [
        "CIFAR-10",
        "CIFAR-10 from a common start",
        "CIFAR-10 (table 4)",
        "CIFAR-10 after a public ResNet-20",
    ]
    of_the_rule = next(claim for claim in CLAIMS if claim.tables == ("decisions:main",))
    assert all(bears_on(of_the_rule, f"decisions-cifar10-mini-main{told}") for told in names)
    assert not bears_on(of_the_rule, "decisions-cifar10-mini-guarantee-4")


def test_claims_are_about_tables_of_the_list():
    listed = {
        f"{entry.notebook}:{one}"
        for entry in CATALOGUE
        for one in (entry.whose or entry.table, *entry.also)
    } | {"gated_fusion:main", "muscle:main", "decisions:main", "distillation:2a"}
    assert {one for claim in CLAIMS for one in claim.tables} <= listed
    assert len({(claim.paper, claim.words, claim.tables) for claim in CLAIMS}) == len(CLAIMS)


def test_sentences_of_flips_say_a_half_and_a_denial_where_they_are_judged_so():
    of_flips = [claim for claim in CLAIMS if claim.quantity == NFR and claim.than]
    assert len(of_flips) > 20
    for claim in of_flips:
        words = set(re.findall("[a-z]+", claim.sentence.lower()))
        assert (claim.factor == 0.5) == bool(words & {"half", "halve", "halves"}), claim
        assert claim.denied == bool(words & {"no", "not", "neither", "nor"}), claim
