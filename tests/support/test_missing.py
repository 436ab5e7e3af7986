"""What only the whole library brings is named with its remedy; two distributions are warned of."""

import json
import warnings

import pytest

from compatkit.support import missing


def test_what_is_missing_is_named_with_its_remedy():
    assert missing.brought("json") is json
    with pytest.raises(ModuleNotFoundError, match="needs nowhere, .* `pip install compatkit` does"):
        missing.brought("nowhere.inside")


def test_two_distributions_beside_each_other_are_warned_of(tmp_path):
    (tmp_path / "compatkit-0.1.0.dist-info").mkdir()
    with warnings.catch_warnings(action="error"):
        missing.warn_of_both([str(tmp_path), str(tmp_path / "nowhere")])
    (tmp_path / "compatkit_core-0.1.0.dist-info").mkdir()
    with pytest.warns(UserWarning, match="compatkit and compatkit-core are both installed"):
        missing.warn_of_both([str(tmp_path)])
