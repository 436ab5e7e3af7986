"""In a light installation the error names what to install; a whole one is left as it is."""

import sys
from importlib.util import module_from_spec, spec_from_file_location

import pytest

from compatkit.support import missing


def load(folder, text, name="compatkit.room"):
    """Runs this text as a module of the library."""
    file = folder / "room.py"
    file.write_text(text)
    spec = spec_from_file_location(name, file, loader=missing.Loader(name, str(file)))
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_what_is_missing_is_named_with_its_remedy(tmp_path):
    with pytest.raises(ModuleNotFoundError, match="compatkit.room needs nowhere, .* `pip install"):
        load(tmp_path, "import nowhere.inside")


def test_a_message_is_completed_once(tmp_path):
    text = "raise ModuleNotFoundError('a needs b: `pip install compatkit`', name='b')"
    with pytest.raises(ModuleNotFoundError, match="^a needs b: `pip install compatkit`$"):
        load(tmp_path, text)


def test_a_room_that_does_not_exist_keeps_pythons_own_message(tmp_path):
    with pytest.raises(ModuleNotFoundError, match="'compatkit.attic'"):
        load(tmp_path, "import compatkit.attic")


def test_what_can_be_loaded_is_loaded(tmp_path):
    assert load(tmp_path, "import json\nx = json.loads('1')").x == 1


def test_other_packages_are_not_touched():
    assert missing.Finder.find_spec("json", None) is None
    assert missing.Finder.find_spec("compatkit", None) is None


def test_the_finder_stands_only_in_a_light_installation(monkeypatch):
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    before = list(sys.meta_path)
    assert not missing.explain_missing("json") and sys.meta_path == before
    assert missing.explain_missing("nowhere") and sys.meta_path == [missing.Finder, *before]
    assert not missing.explain_missing("nowhere") and len(sys.meta_path) == len(before) + 1


def test_the_finder_gives_the_librarys_modules_its_loader():
    import compatkit.support

    spec = missing.Finder.find_spec("compatkit.support.lazy", list(compatkit.support.__path__))
    assert type(spec.loader) is missing.Loader
    assert missing.Finder.find_spec("compatkit.support.attic", compatkit.support.__path__) is None
