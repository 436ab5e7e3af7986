"""Orders and hashes that depend on content alone, for ever: published splits were cut by them, and
published runs are named by them.
"""

import torch

from compatkit.support.hashing import hash_order, short_digests, weights_hash


def test_the_order_is_fixed_for_ever():
    """Records, published predictions and caches of old logits rely on it."""
    assert hash_order(["a", "b", "c", "d"], "demo") == [0, 3, 1, 2]


def test_order_by_hash_depends_on_the_salt_and_not_on_the_position():
    ids = [f"example {number}" for number in range(200)]
    ordered = [ids[place] for place in hash_order(ids, "one")]
    turned = ids[::-1]
    assert ordered == [turned[place] for place in hash_order(turned, "one")]
    assert sorted(ordered) == sorted(ids) and ordered != ids
    assert ordered != [ids[place] for place in hash_order(ids, "two")]
    assert hash_order([], "one") == []


def test_digests_are_short_stable_and_apart():
    digests = short_digests(["a", "b", "\udcff"])
    assert digests[0] == "40f89e395b66422f" == short_digests(["a"])[0]
    assert len(set(digests)) == 3 and {len(digest) for digest in digests} == {16}
    assert len(short_digests(["a"], size=4)[0]) == 8


HEADING = "{name} {dtype} {shape}\n"


def test_hashes_of_weights_are_fixed_for_ever():
    weights = [("a", torch.tensor(1.5).bfloat16()), ("b", torch.arange(6.0).reshape(2, 3).T)]
    assert weights_hash(weights, HEADING) == "d49f6eb4752c7853"
    assert weights_hash(iter(weights), "{name} {shape} {dtype}") == "7a73dde30f2937de"


def test_hashes_of_weights_see_names_shapes_types_values_and_order():
    base = {"a": torch.zeros(2, 3), "b": torch.ones(1)}
    others = [
        {"a": torch.zeros(3, 2), "b": torch.ones(1)},
        {"a": torch.zeros(2, 3), "c": torch.ones(1)},
        {"a": torch.zeros(2, 3).double(), "b": torch.ones(1)},
        {"a": torch.zeros(2, 3), "b": torch.zeros(1)},
        {"a": torch.zeros(2, 3)},
        {"b": torch.ones(1), "a": torch.zeros(2, 3)},
    ]
    assert len({weights_hash(one.items(), HEADING) for one in (base, *others)}) == 7
    strided = {"a": torch.zeros(3, 2).T, "b": torch.ones(1)}
    assert weights_hash(strided.items(), HEADING) == weights_hash(base.items(), HEADING)
