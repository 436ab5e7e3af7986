"""Interpolation on disk: the same as in memory, little memory, checked before a byte is written,
never half a folder.
"""

import json
import struct
import subprocess
import sys

import numpy as np
import pytest
import tiny
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from transformers import AutoModelForSequenceClassification

from compatkit.weights import checkpoints
from compatkit.weights.checkpoints import interpolate_checkpoints, read_header, read_tensors
from compatkit.weights.interpolation import interpolate


def saved(folder, seed, dtype=torch.float32, shards=None, **options):
    """A small BERT and its tokenizer on disk."""
    model = tiny.model(seed, **options).to(dtype).eval()
    model.save_pretrained(folder, **({"max_shard_size": shards} if shards else {}))
    tiny.tokenizer().save_pretrained(folder)
    return model


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def tensors(folder, **content):
    """A folder with one file of these tensors."""
    folder.mkdir()
    save_file(content, str(folder / "model.safetensors"))
    return folder


# --- right results ---


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("shards", [None, "8KB"])
def test_as_in_memory_and_loads_in_plain_transformers(tmp_path, dtype, shards):
    old, new = saved(tmp_path / "old", 1, dtype), saved(tmp_path / "new", 2, dtype, shards)
    out = interpolate_checkpoints(tmp_path / "old", tmp_path / "new", 0.3, tmp_path / "out")
    assert names(out) == names(tmp_path / "new") and (shards is None) == (
        len(list(out.glob("*.safetensors"))) == 1
    )
    loaded, expected = (
        AutoModelForSequenceClassification.from_pretrained(out, dtype=dtype).eval(),
        interpolate(old, new, 0.3),
    )
    step = {torch.float32: 1e-7, torch.float64: 1e-15, torch.float16: 1e-3, torch.bfloat16: 8e-3}[
        dtype
    ]
    for name, value in loaded.state_dict().items():
        assert value.dtype == dtype and torch.allclose(
            value, expected.state_dict()[name], rtol=step, atol=step / 10
        ), name
    if dtype == torch.float32:
        batch = tiny.data().collate([tiny.data()[row] for row in range(4)])
        assert torch.allclose(loaded(**batch).logits, expected(**batch).logits, atol=1e-5)


@pytest.mark.parametrize("alpha", [0, 1, 0.0, 1.0])
def test_the_ends_are_the_models_to_the_last_bit(tmp_path, alpha):
    models = saved(tmp_path / "new", 2, torch.bfloat16), saved(tmp_path / "old", 1, torch.bfloat16)
    out = interpolate_checkpoints(tmp_path / "old", tmp_path / "new", alpha, tmp_path / "out")
    assert tiny.same(load_file(str(out / "model.safetensors")), models[int(alpha)])


def test_special_numbers_and_bfloat16_round_as_in_torch(tmp_path):
    generator = torch.Generator().manual_seed(0)
    old, new = torch.randn(3000, generator=generator), torch.randn(3000, generator=generator)
    for dtype, huge in ((torch.bfloat16, (1e38, 3e38)), (torch.float16, (6e4, 6.5e4))):
        old[:4], new[:4] = (
            torch.tensor([0.0, huge[0], 2.0, 1e-40]),
            torch.tensor([-0.0, huge[1], 1.0, -1e-40]),
        )
        place = tmp_path / str(dtype)
        place.mkdir()
        tensors(place / "old", x=old.to(dtype)), tensors(place / "new", x=new.to(dtype))
        out = interpolate_checkpoints(place / "old", place / "new", 0.7, place / "out")
        exact = torch.lerp(new.to(dtype).double(), old.to(dtype).double(), 0.7).float().to(dtype)
        found = load_file(str(out / "model.safetensors"))["x"]
        near = (found.float() - exact.float()).abs() <= exact.float().abs() * 2**-7 + 1e-6
        assert (near | (found == exact)).all() and (found == exact)[4:].float().mean() > 0.99


@pytest.mark.parametrize("side", ["old", "new"])
def test_not_a_number_is_refused_with_its_tensor_and_file(tmp_path, side):
    values = {name: torch.ones(3) for name in ("old", "new")}
    values[side][1] = float("nan")
    for name, one in values.items():
        tensors(tmp_path / name, fine=torch.ones(2), broken=one)
    folders = [tmp_path / name for name in ("old", "new", "out")]
    told = rf"'broken' holds NaN in the {side} checkpoint \({side}/model.safetensors\).*download"
    with pytest.raises(ValueError, match=told):
        interpolate_checkpoints(*folders[:2], 0.5, folders[2])
    assert names(tmp_path) == ["new", "old"]  # nothing is half written


def test_types_are_the_new_ones_and_mixed_types_meet_in_between(tmp_path):
    old, new = torch.tensor([1.0, 2.0, 3.0]), torch.tensor([3.0, 2.0, 1.0])
    (
        tensors(tmp_path / "old", a=old, b=old.half()),
        tensors(tmp_path / "new", a=new.bfloat16(), b=new.double()),
    )
    found = load_file(
        str(
            interpolate_checkpoints(tmp_path / "old", tmp_path / "new", 0.5, tmp_path / "out")
            / "model.safetensors"
        )
    )
    assert found["a"].dtype == torch.bfloat16 and found["b"].dtype == torch.float64
    assert found["a"].tolist() == found["b"].tolist() == [2.0, 2.0, 2.0]
    ends = load_file(
        str(
            interpolate_checkpoints(tmp_path / "old", tmp_path / "new", 1, tmp_path / "end")
            / "model.safetensors"
        )
    )
    assert ends["a"].tolist() == old.tolist() and ends["a"].dtype == torch.bfloat16


def test_pieces_do_not_show(tmp_path, monkeypatch):
    old, new = torch.randn(1000), torch.randn(1000)
    tensors(tmp_path / "old", x=old), tensors(tmp_path / "new", x=new)
    whole = interpolate_checkpoints(tmp_path / "old", tmp_path / "new", 0.2, tmp_path / "whole")
    monkeypatch.setattr(checkpoints, "CHUNK", 7)
    parts = interpolate_checkpoints(tmp_path / "old", tmp_path / "new", 0.2, tmp_path / "parts")
    assert (whole / "model.safetensors").read_bytes() == (parts / "model.safetensors").read_bytes()


def test_counters_scalars_and_empty_tensors(tmp_path):
    both = {"x": torch.tensor(2.0), "none": torch.zeros(0, 3), "table": torch.arange(3)}
    tensors(tmp_path / "old", **both, **{"bn.num_batches_tracked": torch.tensor(5)})
    tensors(
        tmp_path / "new",
        **(both | {"x": torch.tensor(4.0)}),
        **{"bn.num_batches_tracked": torch.tensor(9)},
    )
    out = (
        interpolate_checkpoints(tmp_path / "old", tmp_path / "new", 0.5, tmp_path / "out")
        / "model.safetensors"
    )
    found = load_file(str(out))
    assert (
        found["x"] == 3
        and found["none"].shape == (0, 3)
        and found["bn.num_batches_tracked"] == 9
        and found["table"].tolist() == [0, 1, 2]
    )
    with safe_open(str(out), "pt") as file:
        assert file.metadata() == {"format": "pt"}
    assert {one.start % 8 for one in read_header(out)[0].values() if one.type == "I64"} == {0}


def test_small_files_come_along_and_other_weights_do_not(tmp_path):
    saved(tmp_path / "old", 1), saved(tmp_path / "new", 2)
    (tmp_path / "new" / "notes.md").write_text("read me")
    (tmp_path / "new" / "pytorch_model.bin").write_bytes(b"other weights")
    (tmp_path / "new" / "pytorch_model.bin.index.json").write_text("{}")
    out = interpolate_checkpoints(
        tmp_path / "old", tmp_path / "new", 0.5, tmp_path / "deep" / "out"
    )
    assert set(names(out)) == set(names(tmp_path / "new")) - {
        "pytorch_model.bin",
        "pytorch_model.bin.index.json",
    }


# --- refusals, and nothing left behind ---


def refused(tmp_path, match, alpha=0.5, old="old", new="new", out="out", kind=ValueError):
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    with pytest.raises(kind, match=match):
        interpolate_checkpoints(tmp_path / old, tmp_path / new, alpha, tmp_path / out)
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}.keys() == before.keys()


@pytest.mark.parametrize("alpha", [-0.1, 1.1, float("nan"), "0.5", True, None])
def test_alpha_outside(tmp_path, alpha):
    refused(tmp_path, "weight of the old model, from 0", alpha)


def test_files_that_are_missing_or_cut_off(tmp_path):
    saved(tmp_path / "old", 1), saved(tmp_path / "new", 2, shards="8KB")
    refused(tmp_path, "there is no folder", old="nowhere", kind=FileNotFoundError)
    (tmp_path / "bare").mkdir()
    refused(tmp_path, "has 0 safetensors files", old="bare", kind=FileNotFoundError)
    shard = sorted((tmp_path / "new").glob("*.safetensors"))[0]
    whole = shard.read_bytes()
    shard.write_bytes(whole[:-1])
    refused(tmp_path, f"{shard.name} is cut off or damaged: it has {len(whole) - 1} bytes")
    shard.write_bytes(whole[:50])
    refused(tmp_path, "do not hold its header")
    shard.unlink()
    refused(tmp_path, f"lacks the shard.s. .*{shard.name}", kind=FileNotFoundError)


FOUR = b'{"x": {"dtype": "F32", "shape": %s, "data_offsets": %s}}'
HEADERS = (  # none describes the 16 bytes that follow it
    b"not json at all!",
    b'["a list"]',
    b"\xff\xfe\x00\x01",
    b"[" * 100_000,
    b'{"x": ' * 5_000,
    b'{"x": {"dtype": "F32"}}',
    b'{"x": 5}',
    b'{"x": {"dtype": ["F32"], "shape": [4], "data_offsets": [0, 16]}}',
    b'{"__metadata__": ["pt"], "x": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}}',
    b'{"__metadata__": {"a": 1}, "x": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}}',
    FOUR % (b"[5]", b"[0, 16]"),
    FOUR % (b"[4]", b"[0, 8, 16]"),
    FOUR % (b"[-2, -2]", b"[0, 16]"),
    FOUR % (b"[4.0]", b"[0, 16]"),
    FOUR % (b'"4"', b"[0, 16]"),
    FOUR % (b"[4]", b'["0", "16"]'),
    FOUR % (b"[4]", b"[0, 1e400]"),
    FOUR % (b"[4]", b"[-16, 0]"),
    FOUR % (b"[3]", b"[0, 12]"),  # four bytes that belong to nobody
    FOUR % (b"[3]", b"[4, 16]"),
    b'{"x": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]},'
    b' "y": {"dtype": "F32", "shape": [2], "data_offsets": [8, 16]}}',
)


def test_damaged_files_end_in_a_sentence_that_names_them(tmp_path):
    path = tensors(tmp_path / "new", x=torch.ones(4), y=torch.ones(2, 2)) / "model.safetensors"
    whole, random = path.read_bytes(), np.random.default_rng(0)
    for _ in range(500):
        found = bytearray(whole)
        for place in random.integers(len(found) - 32, size=random.integers(1, 4)):
            found[place] = random.integers(256)
        path.write_bytes(found[: random.choice([len(found), random.integers(len(found))])])
        try:
            assert len(read_tensors(path)) == 2
        except ValueError as error:
            assert path.name in str(error)
    path.write_bytes(whole)
    with pytest.raises(ValueError, match=r"model\.safetensors lacks z$"):
        read_tensors(path, ["x", "z"])


def test_damaged_headers_and_indexes(tmp_path):
    saved(tmp_path / "new", 2, shards="8KB")
    index = tmp_path / "new" / checkpoints.INDEX
    content = json.loads(index.read_text())
    file = tensors(tmp_path / "old", x=torch.zeros(4)) / "model.safetensors"
    for text in HEADERS:
        file.write_bytes(struct.pack("<Q", len(text)) + text + bytes(16))
        refused(tmp_path, r"model\.safetensors")
    index.write_text(
        json.dumps({"weight_map": content["weight_map"] | {"x": "../old/model.safetensors"}})
    )
    refused(tmp_path, "names files outside the folder", old="new")
    name, shard = next(iter(content["weight_map"].items()))
    index.write_text(json.dumps({"weight_map": content["weight_map"] | {"ghost": shard}}))
    refused(tmp_path, "ghost.*that their shards do not hold", old="new")
    del content["weight_map"][name]
    index.write_text(json.dumps(content))
    refused(tmp_path, "places elsewhere or not at all", old="new")
    for text, told in (
        ("{", "is no JSON object"),
        ('{"weight_map": {"x": 5}}', "has no weight_map"),
    ):
        index.write_text(text)
        refused(tmp_path, told, old="new")


def test_checkpoints_of_other_architectures(tmp_path):
    (
        tensors(tmp_path / "old", a=torch.zeros(2), b=torch.zeros(2)),
        tensors(tmp_path / "new", a=torch.zeros(2), c=torch.zeros(2)),
    )
    refused(tmp_path, r"\['b'\] only in the old checkpoint; \['c'\] only in the new")
    tensors(tmp_path / "wide", a=torch.zeros(3), b=torch.zeros(2))
    refused(tmp_path, r"'a' has the shape \(2,\) in the old checkpoint and \(3,\)", new="wide")
    tensors(tmp_path / "coded", a=torch.zeros(2, dtype=torch.int8), b=torch.zeros(2))
    refused(tmp_path, "'a' is F32 in the old checkpoint and I8 in the new", new="coded")
    tensors(tmp_path / "eight", a=torch.zeros(2, dtype=torch.float8_e4m3fn), b=torch.zeros(2))
    refused(tmp_path, "'a' is F8_E4M3", old="eight", new="eight", alpha=0.25)
    tensors(tmp_path / "table", a=torch.ones(2, dtype=torch.int8), b=torch.zeros(2))
    refused(tmp_path, "integer tensor 'a' differs", old="coded", new="table")


def test_other_classes_tokenizers_and_quantised_models(tmp_path):
    saved(tmp_path / "old", 1), saved(tmp_path / "new", 2)
    config = tmp_path / "new" / "config.json"
    content = json.loads(config.read_text())
    swapped = content | {"id2label": {"0": "second", "1": "first", "2": "third"}}
    config.write_text(json.dumps(swapped))
    refused(tmp_path, "class 0 is 'first' and 'second'")
    config.write_text(json.dumps(content | {"quantization_config": {"bits": 4}}))
    refused(tmp_path, "'new' is quantised")
    config.write_text(json.dumps(content | {"architectures": ["Other"]}))
    refused(tmp_path, "one architecture is needed")
    for names in (["x", "y"], {"x": "y"}):
        config.write_text(json.dumps(content | {"id2label": names}))
        refused(tmp_path, "config.json in 'new': id2label is .*'x'.* each class's name under its")
    for text in ("{", "[]"):
        config.write_text(text)
        refused(tmp_path, "config.json in 'new' is no JSON object")
    config.write_text(json.dumps(content))
    tokenizer = tmp_path / "new" / "tokenizer.json"
    whole = json.loads(tokenizer.read_text())
    whole["padding"] = None
    tokenizer.write_text(json.dumps(whole))
    interpolate_checkpoints(tmp_path / "old", tmp_path / "new", 0.5, tmp_path / "fine")
    whole["model"]["vocab"]["babi"], whole["model"]["vocab"]["bada"] = (
        whole["model"]["vocab"]["bada"],
        whole["model"]["vocab"]["babi"],
    )
    tokenizer.write_text(json.dumps(whole))
    refused(tmp_path, "tokenizers differ .tokenizer.json.")


def test_settings_that_change_no_shape_must_agree(tmp_path):
    saved(tmp_path / "old", 1), saved(tmp_path / "new", 2)
    config = tmp_path / "new" / "config.json"
    content = json.loads(config.read_text())
    config.write_text(json.dumps(content | {"hidden_act": "relu"}))
    refused(tmp_path, r"differ in hidden_act \('gelu' and 'relu'\)")
    left_out = {name: value for name, value in content.items() if name != "hidden_act"}
    config.write_text(json.dumps(left_out | {"attention_probs_dropout_prob": 0.3}))
    interpolate_checkpoints(tmp_path / "old", tmp_path / "new", 0.5, tmp_path / "fine")


def test_a_merge_is_one_however_it_is_written(tmp_path):
    for name, merges in (("a", ["l o", "lo w"]), ("b", [["l", "o"], ["lo", "w"]]), ("c", ["l o"])):
        (tmp_path / name).mkdir()
        content = {"model": {"type": "BPE", "vocab": {"l": 0}, "merges": merges}}
        (tmp_path / name / "tokenizer.json").write_text(json.dumps(content))
    one, same, other = (
        checkpoints._vocabulary(tmp_path / name / "tokenizer.json") for name in "abc"
    )
    assert one == same != other


def test_adapters_are_sent_to_peft(tmp_path):
    tensors(tmp_path / "old", x=torch.zeros(1)), tensors(tmp_path / "new", x=torch.zeros(1))
    (tmp_path / "new" / "adapter_config.json").write_text("{}")
    refused(tmp_path, "PEFT adapter.*compatkit.bcwi.interpolate, or merge")


def test_the_output_must_be_a_folder_of_its_own(tmp_path):
    tensors(tmp_path / "old", x=torch.zeros(1)), tensors(tmp_path / "new", x=torch.zeros(1))
    refused(tmp_path, "one of the inputs", out="new")
    refused(tmp_path, "one of the inputs", out="old/sub")
    (tmp_path / "used").mkdir()
    (tmp_path / "used" / "file").write_text("mine")
    refused(tmp_path, "exists and is not an empty folder", out="used")
    refused(tmp_path, "exists and is not an empty folder", out="used/file")
    (tmp_path / "empty").mkdir()
    assert names(
        interpolate_checkpoints(tmp_path / "old", tmp_path / "new", 0.5, tmp_path / "empty")
    ) == ["model.safetensors"]


@pytest.mark.parametrize("error", [OSError("disk full"), KeyboardInterrupt()])
def test_what_goes_wrong_half_way_leaves_nothing(tmp_path, monkeypatch, error):
    saved(tmp_path / "old", 1), saved(tmp_path / "new", 2, shards="8KB")
    calls, real = [], checkpoints._interpolated

    def failing(*given):
        calls.append(1)
        if len(calls) == 6:
            raise error
        return real(*given)

    monkeypatch.setattr(checkpoints, "_interpolated", failing)
    with pytest.raises(type(error)):
        interpolate_checkpoints(tmp_path / "old", tmp_path / "new", 0.5, tmp_path / "out")
    assert names(tmp_path) == ["new", "old"]


def test_what_a_link_points_to_outside_is_not_copied(tmp_path):
    saved(tmp_path / "old", 1)
    cache = tmp_path / "models--made--up"
    new = cache / "snapshots" / "0123"
    saved(new, 2)
    (cache / "blobs").mkdir()
    for path in list(new.iterdir()):  # as the hub's cache holds them
        blob = cache / "blobs" / path.name
        path.rename(blob)
        path.symlink_to(f"../../blobs/{path.name}")
    (new / "more.json").symlink_to("config.json")
    out = interpolate_checkpoints(tmp_path / "old", new, 0.5, tmp_path / "out")
    assert names(out) == names(new)
    assert not any(path.is_symlink() for path in out.iterdir())
    secret = tmp_path / "secret.json"
    secret.write_text("{}")
    for target in (secret, "../../../secret.json", "../../../old/config.json"):
        (new / "notes.json").symlink_to(target)
        refused(tmp_path, "notes.json.*outside", new=new, out="out2")
        (new / "notes.json").unlink()


def test_inputs_stay_as_they_were(tmp_path):
    saved(tmp_path / "old", 1), saved(tmp_path / "new", 2)
    content = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    interpolate_checkpoints(tmp_path / "old", tmp_path / "new", 0.5, tmp_path / "out")
    assert all(path.read_bytes() == kept for path, kept in content.items())


MEMORY = """
import resource, sys
from pathlib import Path
from compatkit.weights.checkpoints import interpolate_checkpoints
def anonymous(): return int(next(line for line in open("/proc/self/status") if line.startswith("RssAnon")).split()[1]) * 1024
import threading, time
before, peak, going = anonymous(), [0], [True]
def watch():
    while going[0]:
        peak[0] = max(peak[0], anonymous())
        time.sleep(0.001)
watcher = threading.Thread(target=watch); watcher.start()
interpolate_checkpoints(*map(Path, sys.argv[1:3]), 0.4, Path(sys.argv[3]))
going[0] = False; watcher.join()
print(peak[0] - before)
"""  # noqa: E501


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_memory_stays_below_four_tensors(tmp_path, dtype):
    largest = 3_000_000
    for seed, name in enumerate(("old", "new")):
        torch.manual_seed(seed)
        tensors(
            tmp_path / name, **{f"layer.{n}": torch.randn(largest, dtype=dtype) for n in range(4)}
        )
    done = subprocess.run(
        [sys.executable, "-c", MEMORY, *(str(tmp_path / name) for name in ("old", "new", "out"))],
        capture_output=True,
        text=True,
        check=True,
    )
    assert int(done.stdout) <= 4 * largest * dtype.itemsize
    assert np.isfinite(
        load_file(str(tmp_path / "out" / "model.safetensors"))["layer.3"].float().numpy()
    ).all()
