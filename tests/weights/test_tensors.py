"""The one check before two models are brought together: names, shapes, types, values, ties,
classes, tokenizers.
"""

import pytest
import torch
from torch import nn
from weight_pairs import Net, pair

from compatkit.weights.tensors import (
    TensorSpec,
    check_classes,
    check_models,
    check_tensors,
    device_of,
    is_coded,
    model_class_names,
    moved,
    named_tensors,
    names_by_index,
    specs_of,
)

MATRIX = TensorSpec((3, 2), "F32", True)
TABLE = TensorSpec((3,), "I64", False)


def test_named_tensors_are_the_state_and_tied_names_one_object():
    net = Net(1)
    tensors = named_tensors(net)
    assert list(tensors) == list(net.state_dict())
    assert tensors["head.weight"] is tensors["embed.weight"]
    assert all(torch.equal(tensors[name], value) for name, value in net.state_dict().items())


def test_equal_specs_pass_and_each_difference_is_named():
    """Shapes, names, kinds, with the words of the two sides."""
    both = {"a": MATRIX, "b": TABLE}
    check_tensors(both, dict(both))
    for other, message in (
        ({"a": MATRIX}, r"\['b'\] only in the left"),
        ({**both, "c": TABLE}, r"\['c'\] only in the right"),
        (
            {"a": MATRIX._replace(shape=(2, 3)), "b": TABLE},
            r"'a' has the shape \(3, 2\) in the left and \(2, 3\) in the right",
        ),
        (
            {"a": TensorSpec((3, 2), "I8", False), "b": TABLE},
            "'a' is F32 in the left and I8 in the right",
        ),
    ):
        with pytest.raises(ValueError, match=message):
            check_tensors(both, other, sides=("left", "right"))
    check_tensors(
        {"a": MATRIX}, {"a": MATRIX._replace(type="BF16")}
    )  # other types of fractions meet


def test_values_of_whole_numbers_are_compared_only_where_asked_and_counters_never():
    specs = {"table": TABLE, "norm.num_batches_tracked": TABLE}
    asked = []
    check_tensors(specs, specs, same_values=lambda name: not asked.append(name))
    assert asked == ["table"]
    check_tensors(specs, specs)
    with pytest.raises(ValueError, match="'table'"):
        check_tensors(specs, specs, same_values=lambda name: False)


def test_added_rows_are_explained_or_refused():
    old, new = {"head": MATRIX}, {"head": MATRIX._replace(shape=(4, 2))}
    check_tensors(old, new, old_classes=(0, 1, 3))
    for old_classes, message in (
        ((0, 1), "does not explain"),
        ((0, 1, 4), "does not explain"),
        ((0, 0, 1), "different classes"),
        ((-1, 0, 1), "from 0 on"),
    ):
        with pytest.raises(ValueError, match=message):
            check_tensors(old, new, old_classes=old_classes)
    with pytest.raises(ValueError, match="does not explain"):  # another width is no added class
        check_tensors(old, {"head": MATRIX._replace(shape=(4, 3))}, old_classes=(0, 1, 3))
    with pytest.raises(ValueError, match="leave it out"):
        check_tensors(old, old, old_classes=(0, 1, 2))


def test_models_are_compared_across_devices_and_types():
    old, new = pair()
    check_models(named_tensors(old), named_tensors(new.double()))
    check_models(specs := named_tensors(old), specs)
    assert specs_of(specs)["classifier.bias"] == TensorSpec((3,), "torch.float32", True)
    assert device_of(old).type == "cpu" and device_of(nn.Identity()).type == "cpu"


def test_class_names_by_number_not_by_order_of_entry():
    assert names_by_index({"10": "k", "2": "c", "1": "b"}) == ["b", "c", "k"]
    assert names_by_index(None) is None and names_by_index({}) is None
    assert names_by_index({0: "LABEL_0", 1: "yes"}) == ["LABEL_0", "yes"]
    assert names_by_index({0: "LABEL_0", 1: "LABEL_1"}) is None
    assert model_class_names(nn.Linear(2, 2)) is None
    for wrong in (["x", "y"], {"x": "y"}, {None: "x"}):
        with pytest.raises(ValueError, match="id2label"):
            names_by_index(wrong)


def test_classes_in_another_order_are_named_and_unknown_ones_pass():
    check_classes(["a", "b"], ["a", "b"])
    check_classes(None, ["a"]), check_classes(["a"], None)
    check_classes(["a", "b"], ["b", "x", "a"], old_classes=(2, 0))
    with pytest.raises(ValueError, match="'b'"):
        check_classes(["a", "b"], ["a"])
    with pytest.raises(ValueError, match="'a'.*'b'.*old_classes"):
        check_classes(["a", "b"], ["b", "x", "a"], old_classes=(0, 2))


def test_codes_are_known_by_type_and_width():
    assert not is_coded(nn.Parameter(torch.zeros(2, dtype=torch.bfloat16)))
    assert not is_coded(torch.zeros(2, dtype=torch.int64))  # a buffer of whole numbers
    assert is_coded(nn.Parameter(torch.zeros(2, dtype=torch.int8), requires_grad=False))
    assert is_coded(torch.zeros(2).to(torch.float8_e4m3fn))


def test_batches_move_whole():
    meta = torch.device("meta")
    batch = moved({"ids": torch.zeros(2), "nested": {"mask": torch.ones(1)}, "n": 3}, meta)
    assert batch["ids"].is_meta and batch["nested"]["mask"].is_meta and batch["n"] == 3
    assert moved(torch.zeros(1), meta).is_meta and moved("text", meta) == "text"
