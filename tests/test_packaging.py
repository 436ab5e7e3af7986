"""What is installed: two distributions from one tree, every module and every file in both."""

import configparser
import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SETTINGS = configparser.ConfigParser(interpolation=None)
SETTINGS.read(ROOT / "settings.ini", encoding="utf-8")
SETTINGS = SETTINGS["DEFAULT"]
CORE = [re.match(r"[\w.-]+", line)[0] for line in SETTINGS["core_requirements"].split()]


@pytest.fixture(scope="module")
def clone(tmp_path_factory):
    """What the distributions are built from, in a folder named as a clone would be."""
    copy = tmp_path_factory.mktemp("above") / "compatkit"
    (copy / "results").mkdir(parents=True)
    for name in ("setup.py", "pyproject.toml", "settings.ini", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy)
    for name in ("core", "compatkit"):
        ignored = shutil.ignore_patterns("__pycache__", "build", "_modidx.py")
        shutil.copytree(ROOT / name, copy / name, ignore=ignored)
    return copy


def install(*arguments, **options):
    """pip without a network and without the requirements."""
    offline = [
        "--no-deps",
        "--no-build-isolation",
        "--no-index",
        "--quiet",
        "--no-warn-script-location",
    ]
    command = [sys.executable, "-m", "pip", "install", *offline, *map(str, arguments)]
    subprocess.run(command, check=True, **options)


@pytest.fixture(scope="module")
def installed(clone, tmp_path_factory):
    """Both distributions, each in a folder of its own."""
    folders = {}
    for name, source in {"compatkit": clone, "compatkit-core": clone / "core"}.items():
        folders[name] = tmp_path_factory.mktemp(name)
        install("--target", folders[name], source, cwd=clone)
    return folders


def run(code, folder, *arguments):
    """Runs Python elsewhere with the installed library first."""
    environment = os.environ | {"PYTHONPATH": str(folder), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)


@pytest.mark.parametrize("name", ["compatkit", "compatkit-core"])
def test_every_module_and_every_file_is_installed(installed, name):
    wanted = {
        path.relative_to(ROOT)
        for path in (ROOT / "compatkit").rglob("*")
        if path.is_file() and path.suffix != ".pyc" and path.name != "_modidx.py"
    }
    assert wanted == {
        path.relative_to(installed[name])
        for path in (installed[name] / "compatkit").rglob("*")
        if path.is_file() and path.suffix != ".pyc"
    }


def test_every_module_imports_from_where_it_was_installed(installed):
    code = """
import importlib, pkgutil, compatkit
for module in pkgutil.walk_packages(compatkit.__path__, "compatkit."):
    loaded = importlib.import_module(module.name)
    assert loaded.__file__.startswith(compatkit.__path__[0])
print(compatkit.__path__[0])
"""
    done = run(code, installed["compatkit"])
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == str(installed["compatkit"] / "compatkit")


def test_the_folder_above_a_clone_imports_the_package(clone, tmp_path):
    # there, `compatkit` is also the clone's own folder, and `compatkit.results` a folder in it
    install("--prefix", tmp_path, "--ignore-installed", "--editable", clone, cwd=clone)
    (packages,) = tmp_path.glob("lib/python*/site-packages")
    # what the package needs comes from this environment, but never by the environment's .pth files:
    # they may hold an editable install of the tests' own clone, which would be found instead
    dependencies = [path for path in sys.path if path.endswith("site-packages")]
    code = f"""
import site, sys
site.addsitedir({str(packages)!r})
sys.path += {dependencies!r}
import compatkit, compatkit.metrics
print(compatkit.__file__)
"""
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [sys.executable, "-S", "-c", code]
    done = subprocess.run(command, cwd=clone.parent, env=clean, capture_output=True, text=True)
    assert done.stdout.strip() == str(clone / "compatkit" / "__init__.py"), done.stderr


def metadata(folder):
    (distribution,) = importlib.metadata.distributions(path=[str(folder)])
    return distribution


def test_the_whole_library_requires_all_that_core_does(installed):
    core = metadata(installed["compatkit-core"])
    whole = metadata(installed["compatkit"])
    assert (core.name, whole.name) == ("compatkit-core", "compatkit")
    assert core.version == whole.version == SETTINGS["version"]
    assert {re.match(r"[\w.-]+", line)[0] for line in core.requires} == set(CORE)
    assert set(core.requires) < set(whole.requires)
    assert set(whole.metadata.get_all("Provides-Extra")) == {"ray", "lm", "lab", "dev"}
    assert not core.metadata.get_all("Provides-Extra")


@pytest.mark.parametrize("name", ["compatkit", "compatkit-core"])
def test_the_licence_is_installed_and_the_description_leads_on(installed, name):
    found = metadata(installed[name])
    (licence,) = [path for path in found.files if path.name == "LICENSE"]
    assert found.locate_file(licence).read_bytes() == (ROOT / "LICENSE").read_bytes()
    text = found.metadata.get_payload() or found.metadata["Description"]
    targets = re.findall(r"\]\(([^)]+)\)", text)
    assert targets and all(target.startswith("https://") for target in targets)
    assert f"]({SETTINGS['git_url']}/raw/{SETTINGS['branch']}/results/" in text
    assert f"]({SETTINGS['git_url']}/blob/{SETTINGS['branch']}/nbs/" in text


CORE_ONLY = r"""
import importlib.abc, importlib.metadata, re, sys

def plain(names):
    return {re.sub(r"[-_.]+", "-", name).lower() for name in names}

def closure(names):
    "The distributions that pip would install for these, without extras."
    known, todo = set(), list(plain(names))
    while todo:
        name = todo.pop()
        if name in known:
            continue
        try:
            lines = importlib.metadata.requires(name) or ()
        except importlib.metadata.PackageNotFoundError:
            continue  # for another platform
        known.add(name)
        todo += plain(re.match(r"[\w.-]+", line)[0] for line in lines if "extra ==" not in line)
    return known

KEPT = closure(sys.argv.pop(1).split()) | {"compatkit", "compatkit-core", "pip", "setuptools"}
OWNERS = importlib.metadata.packages_distributions()
FOREIGN = {module for module, owners in OWNERS.items() if not plain(owners) & KEPT}
assert {"torch", "transformers", "datasets", "sklearn", "matplotlib", "pyarrow"} <= FOREIGN

class Refuse(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in FOREIGN:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Refuse())
import importlib.util
find = importlib.util.find_spec
importlib.util.find_spec = lambda name, *rest: None if name in FOREIGN else find(name, *rest)
"""
COMMAND = CORE_ONLY + "from compatkit.cli import main; main()"


@pytest.fixture(scope="module")
def answers(tmp_path_factory):
    """A folder with the answers of two versions."""
    import numpy as np

    from compatkit.predictions import Predictions

    folder = tmp_path_factory.mktemp("answers")
    generator, label = np.random.default_rng(0), np.arange(300) % 3
    for name, share in {"old.parquet": 1.0, "new.csv": 2.0}.items():
        logits = generator.normal(size=(300, 3)) + share * np.eye(3)[label]
        Predictions([f"example {n}" for n in range(300)], label, logits=logits).save(folder / name)
    rows = [f"example {n},{label[n]}" for n in range(200)]
    (folder / "labels.csv").write_text("\n".join(["id,label", *rows]) + "\n")
    return folder


@pytest.mark.parametrize(
    "arguments",
    [
        ["compare", "old.parquet", "new.csv", "--json"],
        ["compare", "old.parquet", "new.csv", "--html", "page.html"],
        ["compare", "old.parquet", "new.csv", "--markdown"],
        ["decide", "old.parquet", "new.csv", "--calibration", "labels.csv", "--max-nfr", "20%"]
        + ["--out", "decided.csv"],
    ],
    ids=lambda arguments: f"{arguments[0]} {arguments[3]}",
)
def test_core_compares_and_decides_with_its_own_requirements(installed, answers, arguments):
    paths = [str(answers / part) if "." in part else part for part in arguments]
    done = run(COMMAND, installed["compatkit-core"], " ".join(CORE), *paths)
    assert done.returncode == 0, done.stderr


def test_in_core_the_error_names_what_is_not_there(installed):
    code = CORE_ONLY + "import compatkit.gated_fusion"
    done = run(code, installed["compatkit-core"], " ".join(CORE))
    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]
    assert last == "ModuleNotFoundError: No module named 'torch'", done.stderr


def test_both_in_one_environment_say_that_one_must_go(clone, tmp_path):
    for source in (clone, clone / "core"):
        install("--target", tmp_path, "--upgrade", source, cwd=clone)
        said = run("import compatkit", tmp_path).stderr
        assert ("compatkit-core are both installed" in said) == (source != clone)
