"""Orders and digests that depend on names alone, for ever: published splits were cut by them."""

from compatkit.support.hashing import hash_order, short_digests


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
