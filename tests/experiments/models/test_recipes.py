"""What a scale trains: the data's part, the recipes, and the names of runs that must not change."""

import json
from dataclasses import replace
from types import SimpleNamespace

import make_hub_cache
import pytest
import tiny

from compatkit.experiments.models import recipes
from compatkit.experiments.models.recipes import (
    MINI,
    Experiment,
    Recipe,
    at_scale,
    begin,
    begin_with_images,
    pretrained,
    small,
    two_sizes,
    update_recipes,
    upgrade_models,
    upgrade_recipes,
    weights_at_hand,
)
from compatkit.experiments.models.treatments import method
from compatkit.training.models import MINI_PACKAGE


def parameters(**changes):
    """Checked parameters as a notebook has them."""
    return SimpleNamespace(
        **(
            {
                "task": "pydoc",
                "scale": "smoke",
                "data_dir": "",
                "max_steps": -1,
                "keep_results": False,
            }
            | changes
        )
    )


def of(name, source="folder", train=300, image=False):
    task = tiny.image_task() if image else tiny.task(train)
    return replace(task, name=name, source=source)


def test_smoke_takes_a_part_and_paper_takes_all():
    assert len(at_scale(of("mrpc"), "smoke").train) == 200
    assert (
        at_scale(of("mrpc"), "mini").fingerprint
        == of("mrpc").fingerprint
        == at_scale(of("mrpc"), "paper").fingerprint
    )


def test_mini_takes_all_where_it_is_asked_for(monkeypatch):
    monkeypatch.setattr(recipes, "MINI_TRAIN", {"sst2": 50})
    for scale, whole, train in (("mini", True, 300), ("mini", False, 50), ("smoke", True, 200)):
        begun = begin(parameters(scale=scale), task=of("sst2"), whole=whole)
        assert len(begun.task.train) == train


def test_a_file_of_ones_own_is_not_the_set_it_is_named_after(monkeypatch):
    monkeypatch.setattr("compatkit.experiments.models.recipes.MINI_TRAIN", {"sst2": 50})
    assert len(at_scale(of("sst2"), "mini").train) == 50
    assert len(at_scale(of("sst2", "file"), "mini").train) == 300
    monkeypatch.setattr(
        "compatkit.experiments.models.recipes.find_encoder", lambda encoder: ("folder", "name")
    )

    def layers(source):
        return [recipe.layers for recipe in upgrade_recipes(of("mrpc", source), "mini", "a")]

    assert layers("folder") == [MINI["mrpc"][0][0], None] and layers("file") == [3, None]


def test_each_side_of_a_pretrained_upgrade_has_its_own_numbers(monkeypatch):
    """A model is known by its name wherever it lies, and what is not listed has the usual ones."""
    sources = {"": ("pip", MINI_PACKAGE), "org/first": ("hub", "org/first"), "x": ("x", "second")}
    monkeypatch.setattr(recipes, "find_encoder", sources.get)
    numbers = {"first": {"sst2": (2e-5, 16, 4)}, "all-MiniLM-L6-v2": {"sst2": (1e-4, 32, 5)}}
    monkeypatch.setattr(recipes, "ENCODERS", numbers)

    def pair(*given):
        both = upgrade_recipes(of(given[0]), "mini", "b", *given[1:])
        assert all(one.model == "encoder" and one.layers is None for one in both)
        return [(one.name, one.learning_rate, one.batch_size, one.epochs) for one in both]

    usual = (5e-5, 32, 3)
    new, old = (MINI_PACKAGE, 1e-4, 32, 5), ("org/first", 2e-5, 16, 4)
    assert pair("sst2", "", -1, "org/first") == [old, new]
    assert pair("mrpc", "x", -1, "org/first") == [("org/first", *usual), ("second", *usual)]
    assert upgrade_recipes(of("sst2"), "mini", "b")[0].model == "linear"


def test_upgrades_share_the_new_model_and_b_has_a_linear_old_one():
    for scale in ("smoke", "mini"):
        (old_a, new_a), (old_b, new_b) = (
            upgrade_recipes(of("pydoc"), scale, upgrade) for upgrade in "ab"
        )
        assert new_a == new_b and old_b.model == "linear" and (old_a.layers, new_a.layers) == (1, 2)


def test_the_steps_reach_the_recipes():
    assert {
        recipe.max_steps for recipe in upgrade_recipes(of("pydoc"), "smoke", "a", max_steps=2)
    } == {2}
    assert (
        pretrained("f", "n", 1e-4, 8, 2, max_steps=2).max_steps
        == small("mini", 1, 2).max_steps
        == 2
    )


def test_the_papers_numbers():
    old, new = upgrade_recipes(of("mrpc"), "paper", "b")
    assert (old.learning_rate, old.batch_size, old.epochs, old.max_length) == (3e-5, 16, 5, 128)
    assert (new.learning_rate, new.batch_size, new.epochs) == (
        5e-5,
        32,
        5,
    ) and new.name == "google/electra-base-discriminator"


def test_identities_of_kept_runs_have_not_changed():
    """The keys and numbers that name the runs under results/; a change here orphans them."""
    assert small("mini", 2).identity() == {
        "model": "small",
        "layers": 2,
        "width": 96,
        "vocabulary": 4000,
        "max_length": 48,
        "epochs": 10,
        "learning_rate": 1e-3,
        "batch_size": 32,
        "weight_decay": 0.01,
        "warmup": 0.1,
        "precision": "float32",
        "max_steps": -1,
    }


@pytest.mark.parametrize(
    "recipe", [small("mini", 2), Recipe("linear"), tiny.IMAGE_RECIPE, small("smoke", 1, 2)]
)
def test_a_recipe_is_read_back_from_what_a_run_records(recipe):
    recorded = json.loads(json.dumps(recipe.identity()))  # lists in the place of tuples
    again = Recipe.recalled(recorded | {"weights": "of an encoder"})
    assert again.identity() == recipe.identity() and again.words() == recipe.words()


@pytest.mark.parametrize(
    ("scale", "name", "steps", "wiring"),
    [
        ("smoke", "pydoc", -1, False),
        ("smoke", "mrpc", -1, True),
        ("mini", "mrpc", -1, False),
        ("mini", "pydoc", 2, True),
    ],
)
def test_what_shows_only_the_wiring(scale, name, steps, wiring):
    assert Experiment(of(name), scale, "", steps).wiring == wiring


def test_smoke_and_wiring_are_not_kept(monkeypatch):
    monkeypatch.setattr(recipes, "uncommitted", list)
    for change in ({"scale": "smoke"}, {"scale": "mini", "max_steps": 2}):
        with pytest.raises(ValueError, match="keep_results"):
            begin(parameters(keep_results=True, **change))
    assert begin(parameters(keep_results=True, scale="mini")).scale == "mini"


def test_results_are_kept_from_a_clean_tree_alone(monkeypatch):
    monkeypatch.setattr(recipes, "uncommitted", lambda: ["nbs/bcwi.ipynb"])
    with pytest.raises(ValueError, match="nbs/bcwi.ipynb.*commit them first"):
        begin(parameters(keep_results=True, scale="mini"))
    assert begin(parameters(scale="mini")).scale == "mini"


def test_a_folder_of_ones_own_takes_any_runs(monkeypatch, tmp_path):
    monkeypatch.setattr(recipes, "uncommitted", lambda: ["nbs/bcwi.ipynb"])
    monkeypatch.setenv("COMPATKIT_RESULTS", str(tmp_path))
    assert begin(parameters(keep_results=True, scale="smoke")).scale == "smoke"
    monkeypatch.setenv("COMPATKIT_RESULTS", str(recipes.project_root() / "results"))
    with pytest.raises(ValueError, match="which COMPATKIT_RESULTS names"):
        begin(parameters(keep_results=True, scale="smoke"))


def test_an_embedded_task_has_no_paper_scale():
    with pytest.raises(ValueError, match="valid are auto, smoke, mini"):
        begin(parameters(scale="paper"))


def test_missing_weights_are_named_only_if_asked_for(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert not weights_at_hand([str(tmp_path)], asked_for=False)
    with pytest.raises(FileNotFoundError, match="config.json"):
        weights_at_hand([str(tmp_path)], asked_for=True)


def test_mini_names_where_an_encoder_could_come_from(monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr("compatkit.training.models.packaged_model", lambda name: None)
    with pytest.raises(FileNotFoundError, match=MINI_PACKAGE):
        upgrade_recipes(of("mrpc"), "mini", "a")


# --- paper scale ----------------------------------------------------------------------------------


def test_a_batch_is_the_whole_one_over_devices_and_accumulation(monkeypatch):
    recipe = Recipe(batch_size=32)
    assert recipe.arguments()["per_device_train_batch_size"] == 32
    assert "gradient_accumulation_steps" not in recipe.arguments()
    monkeypatch.setenv("WORLD_SIZE", "2")
    split = replace(recipe, accumulation=4).arguments()
    assert split["per_device_train_batch_size"] == 8 and split["gradient_accumulation_steps"] == 2
    monkeypatch.setenv("WORLD_SIZE", "4")
    assert "gradient_accumulation_steps" not in replace(recipe, accumulation=4).arguments()
    monkeypatch.setenv("WORLD_SIZE", "3")
    with pytest.raises(ValueError, match="32.*1 parts.*3 process"):
        recipe.arguments()


def test_accumulation_is_part_of_a_name_only_where_it_is_used():
    assert "accumulation" not in Recipe().identity()
    assert replace(Recipe(), accumulation=2).identity()["accumulation"] == 2


def test_a_missing_model_of_this_upgrade_stops_auto_and_is_named(monkeypatch):
    """With a GPU nobody is given a smaller scale's table because a download failed."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.delenv("IN_TEST", raising=False)
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("compatkit.experiments.models.recipes.model_folder", only("google-bert"))
    chosen = parameters(task="mrpc", scale="auto")
    task = of("mrpc")
    assert begin(chosen, upgrade_models("a"), task).scale == "paper"
    with pytest.raises(FileNotFoundError, match="`-p scale mini`"):
        begin(chosen, upgrade_models("b"), task)


def only(owner):
    """Models of this owner can be had, no others."""

    def folder(name):
        if not name.startswith(owner):
            raise FileNotFoundError(f"no whole local copy of the model {name!r}")
        return name

    return folder


# --- texts and images -----------------------------------------------------------------------------


def test_of_images_only_named_tasks_have_a_paper_scale(monkeypatch):
    asked = {}

    def begun(chosen, papers, task, scales=("smoke", "mini", "paper"), whole=False):
        asked[chosen.task] = papers, scales, whole
        return Experiment(task, scales[-1], "")

    monkeypatch.setattr(recipes, "begin", begun)
    monkeypatch.setattr(recipes, "load_task", lambda name, folder: of(name, image=name != "mrpc"))
    for name in ("imagenet", "cifar10", "mrpc"):
        begin_with_images(parameters(task=name), {"imagenet": ("a/resnet",)})
    assert asked["imagenet"] == (("a/resnet",), ("smoke", "mini", "paper"), False)
    # CIFAR-10's studies take all of its images, whichever notebook asks
    assert asked["cifar10"] == ((), ("smoke", "mini"), True)
    # of texts the models of upgrade (a), and another upgrade's cannot be missing
    assert asked["mrpc"] == (recipes.upgrade_models("a"), ("smoke", "mini", "paper"), False)


def test_images_at_the_paper_scale_hold_nothing_out(monkeypatch, tmp_path):
    make_hub_cache.main(tmp_path, (), ("images",))
    monkeypatch.setattr(recipes, "_papers_weights", lambda papers: True)
    given = {"data_dir": str(tmp_path / "folders")}
    for name in ("imagenet", "inaturalist"):
        sizes = {}
        for scale in ("mini", "paper"):
            task = begin_with_images(parameters(task=name, scale=scale, **given), {name: ()}).task
            sizes[scale] = len(task.train), len(task.selection), len(task.test)
        assert sizes == {"mini": (36, 4, 8), "paper": (40, 4, 8)}
    pct = ("naive re-weighting", "FD-KL", "FD-LM", "ordinary distillation", "ELODI")
    for name in (*pct, "dynamic distillation"):
        assert len(method(name).grid("paper", notebook="distillation")) == 1, "nothing is chosen"


def test_where_nothing_is_chosen_all_images_are_trained_on(monkeypatch, tmp_path):
    make_hub_cache.main(tmp_path, (), ("images",))
    given = {"data_dir": str(tmp_path / "folders"), "task": "imagenet", "scale": "mini"}
    for names, choosing, size in (((), False, 36), (("imagenet",), True, 36)):
        monkeypatch.setattr(recipes, "ALL_IMAGES", names)
        experiment = begin_with_images(parameters(**given), {}, choosing=choosing)
        assert (len(experiment.task.train), experiment.undivided) == (size, False)
    experiment = begin_with_images(parameters(**given), {}, choosing=False)
    assert (len(experiment.task.train), experiment.undivided) == (40, True)


def test_two_sizes_are_encoders_only_for_texts_beyond_smoke(monkeypatch):
    asked, made = [], (tiny.RECIPE, replace(tiny.RECIPE, layers=2))
    monkeypatch.setattr(recipes, "upgrade_recipes", lambda *given: given)
    monkeypatch.setattr(recipes, "architectures", lambda *given: asked.append(given) or made)
    real, smoke = (Experiment(of("mrpc"), scale, "", 2) for scale in ("mini", "smoke"))
    assert two_sizes(real, "mine") == (real.task, "mini", "a", "mine", 2, "")
    assert two_sizes(smoke) == two_sizes(real, "mine", from_scratch=True) == made
    pictures = Experiment(of("imagenet", image=True), "paper", "")
    names = ("a/small", "a/large")
    assert two_sizes(pictures, pretrained=names) == made
    assert [given[2:] for given in asked] == [((), 2), ((), 2), (names, -1)]


def test_all_notebooks_train_the_same_networks_on_many_images():
    base, large = two_sizes(Experiment(of("cifar10", image=True), "mini", "", whole=True))
    assert (base.epochs, base.device, large.device) == (15, "", "cuda")
    # neither where a part is taken, nor for a file that has the name
    for task, whole in ((of("fashion_mnist", image=True), False), (of("cifar10", "file"), True)):
        both = two_sizes(Experiment(task, "mini", "", whole=whole), from_scratch=True)
        assert not [one for one in both if one.device or one.epochs == 15]


def test_updates_without_pretrained_weights_train_longer():
    for name, scale, layers, epochs in (("pydoc", "mini", 2, 10), ("mrpc", "smoke", 1, 7)):
        old, new = update_recipes(name, scale, max_steps=2)
        assert (old.model, old.layers, old.epochs, new.epochs) == ("small", layers, epochs, 4)
        assert replace(new, epochs=epochs) == old and new.max_steps == 2
