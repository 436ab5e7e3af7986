"""The papers' sentences: what they say is what is judged, of tables that the catalogue lists."""

import re

from compatkit.experiments.judging.claims import CLAIMS, CONTROL, NFR, place_of
from compatkit.experiments.planning.catalogue import CATALOGUE


def test_a_start_that_both_models_share_is_another_place():
    scratch, started = (place_of(f"distillation-cifar10-mini-{table}") for table in ("2a", "2b"))
    assert (scratch, started) == ("CIFAR-10", "CIFAR-10 from a common start")


def test_claims_about_adapters_have_a_control():
    about = [one for one in CLAIMS if one.paper == CONTROL.paper and one is not CONTROL]
    assert {one.sentence for one in about if not one.controlled} == {
        "An update with a smaller gain flips more (figure 4): version 2 → wider than 1 → wider"
    }


def test_claims_are_about_tables_of_the_list():
    listed = {
        f"{entry.notebook}:{one}" for entry in CATALOGUE for one in (entry.table, *entry.also)
    } | {"gated_fusion:main", "muscle:main", "decisions:main", "distillation:2a"}
    assert {one for claim in CLAIMS for one in claim.tables} <= listed
    assert len({(claim.paper, claim.sentence, claim.tables) for claim in CLAIMS}) == len(CLAIMS)


def test_sentences_of_flips_say_a_half_and_a_denial_where_they_are_judged_so():
    of_flips = [claim for claim in CLAIMS if claim.quantity == NFR and claim.than]
    assert len(of_flips) > 20
    for claim in of_flips:
        words = set(re.findall("[a-z]+", claim.sentence.lower()))
        assert (claim.factor == 0.5) == bool(words & {"half", "halve", "halves"}), claim
        assert claim.denied == bool(words & {"no", "not", "neither", "nor"}), claim
