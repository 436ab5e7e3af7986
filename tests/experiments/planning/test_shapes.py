"""The papers' models against published parameter counts, and tasks that have sizes alone."""

import pytest

from compatkit.experiments.models.language_recipes import PAPER_UPGRADES
from compatkit.experiments.models.recipes import PAPER, ROBERTA, TEXT_UPGRADES, Recipe
from compatkit.experiments.planning.rehearsal import Step
from compatkit.experiments.planning.shapes import (
    MODELS,
    SIZES,
    before_update,
    hub_shape,
    mean_tokens,
    shape_of,
    sized_task,
    sized_update,
)

PUBLISHED = {  # parameters with a head of two classes, of ImageNet's classes, or of the vocabulary
    "google-bert/bert-base-uncased": 109_483_778,
    "google-bert/bert-large-uncased": 335_143_938,
    "FacebookAI/roberta-base": 124_647_170,
    "microsoft/resnet-18": 11_689_512,
    "microsoft/resnet-34": 21_797_672,
    "microsoft/resnet-50": 25_557_032,
    "microsoft/resnet-101": 44_549_160,
    "microsoft/resnet-152": 60_192_808,
    "huggyllama/llama-7b": 6_738_415_616,
    "meta-llama/Meta-Llama-3-8B": 8_030_261_248,
    "microsoft/phi-1_5": 1_418_270_720,
    "microsoft/phi-2": 2_779_683_840,
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_shapes_have_the_published_number_of_parameters(name):
    model = Step(MODELS[name][0], 1, 8).model()
    assert sum(one.numel() for one in model.parameters()) == PUBLISHED[name]


def test_every_model_that_a_recipe_names_has_a_shape():
    assert {*PAPER, *(one.new for one in TEXT_UPGRADES.values()), ROBERTA} <= set(MODELS)
    assert {name for pair in PAPER_UPGRADES.values() for name in pair[1:3]} <= set(MODELS)


def test_a_recipe_of_a_model_on_the_hub_needs_no_weights():
    assert shape_of(Recipe("encoder", folder=ROBERTA), 7) == hub_shape(ROBERTA, 7)
    assert hub_shape("microsoft/phi-2").head == "language"


def test_a_task_of_sizes_has_lengths_and_no_examples():
    for name, size in SIZES.items():
        task = sized_task(name)
        assert len(task.train) == size.train and len(task.classes) == size.classes
        assert len(task.selection) + len(task.test) == size.answered
        assert bool(task.image_field) == (name in ("imagenet", "inaturalist"))
        assert mean_tokens(task) == size.tokens


def test_updates_have_the_sizes_of_the_data_before():
    added = sized_update("massive_adddata")
    assert (len(added.old.train), len(added.new.train), added.old_classes) == (1000, 1500, None)
    classes = sized_update("banking77", "add_classes")
    assert len(classes.old.classes) == len(classes.old_classes) == 38
    assert len(classes.new.classes) == 77 and len(classes.old.train) == 750
    half = before_update(sized_task("imagenet"), 1 / 2)
    assert len(half.old.classes) == 1000 and half.old.title != half.new.title
