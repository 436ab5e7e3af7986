"""What error messages are made of: a few offenders, the nearest valid name."""

from compatkit.support.messages import did_you_mean, few, found, near, nearest


def test_a_few_and_how_many_more():
    assert few(["a", "b", "c"]) == "'a', 'b', 'c'"
    assert few([1, 2, 3, 4]) == "1, 2, 3 and 1 more"
    assert few(["a"], count=2_004) == "'a' and 2,001 more"
    assert few(["z" * 1_000_000, "b"]) == f"'{'z' * 77}…', 'b'"  # what follows is still read


def test_the_nearest_name_whatever_its_case():
    assert nearest("LABEL", ["id", "labels"]) == "labels"
    assert nearest("label", ["Label", "label"]) == "Label"
    assert nearest("xyz", ["id", "label"]) is None and nearest("x", []) is None
    assert did_you_mean("predicton", ["prediction"]) == "; did you mean 'prediction'?"
    assert did_you_mean("zzz", ["prediction"]) == ""


def test_what_is_there():
    assert found([]) == "found: nothing"
    assert found(["id", "Label"], "label") == "found: id, Label; did you mean 'Label'?"
    assert found(range(21)).endswith("19 and 1 more")


def test_near_names():
    assert near("lenght", ["length", "intent"]).startswith("did you mean 'length'?")
    assert near("x", []) == "there is none"
    assert near("zzz", range(20)).endswith("and 8 more")
