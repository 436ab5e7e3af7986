"""The house: every notebook is executed, clean and fit to be read; every room has its three files and its floor."""

import ast
import configparser
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from compatkit.training.tasks import EMBEDDED, TASKS
from compatkit.experiments.runs import machine_paths

ROOT = Path(__file__).resolve().parent.parent
NOTEBOOKS = sorted((ROOT / "nbs").glob("*.ipynb"))
WITHOUT_MODULE = {"index", "benchmarks", "landscape"}
METHODS = {
    "gated_fusion",
    "decisions",
    "distillation",
    "ensembles",
    "bcwi",
    "landscape",
    "muscle",
    "own_case",
}  # those that papermill runs; a new method notebook is added here
LARGEST_OUTPUT, LARGEST_NOTEBOOK = 300_000, 2_000_000  # characters
FLOORS = [
    {"predictions", "hub", "policy", "sections", "binomial"},
    {
        "data",
        "models",
        "images",
        "fisher",
        "checkpoints",
        "questions",
        "distributions",
        "spans",
        "runs",
        "sources",
        "samples",
        "slices",
        "joins",
    },
    {"training", "language", "updates", "metrics", "inputs"},
    {
        "recipes",
        "distillation",
        "regularizers",
        "bcwi",
        "rebasin",
        "gated_fusion",
        "adapters",
        "ensembles",
        "decisions",
        "results",
        "comparison",
        "page",
        "versions",
    },
    {"upgrades", "muscle", "report", "serving", "catalogue", "claims"},
    {"tables", "own_case"},
    {"cli"},
]
LIGHT = {
    "predictions",
    "runs",
    "metrics",
    "ensembles",
    "decisions",
    "results",
    "cli",
    "policy",
    "sections",
    "slices",
    "sources",
    "samples",
    "joins",
    "binomial",
    "questions",
}  # never import torch
LIGHT |= {
    "inputs",
    "comparison",
    "page",
    "versions",
    "report",
    "serving",
    "catalogue",
    "claims",
    "tables",
}
MODULES = {path.stem for path in (ROOT / "compatkit").glob("*.py") if not path.stem.startswith("_")}

each_notebook = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


def cells_of(path, kind="code"):
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return [cell for cell in cells if cell["cell_type"] == kind]


def source_of(cell):
    return "".join(cell["source"])


def texts_of(output):
    """What an output shows as text, whatever its kind; pictures are left out."""
    data = output.get("data", {})
    parts = [output.get("text", ""), *(data[kind] for kind in data if kind.startswith("text/"))]
    return ["".join(part) for part in parts]


def exported_module(path):
    """The name after #| default_exp, or None."""
    found = [
        re.search(r"^#\|\s*default_exp\s+(\S+)", source_of(cell), re.M) for cell in cells_of(path)
    ]
    names = [match[1] for match in found if match]
    assert len(names) <= 1, f"{path.name} exports to {names}; one notebook, one module"
    return names[0] if names else None


def test_there_are_notebooks():
    assert {"predictions", "runs"} <= {path.stem for path in NOTEBOOKS}


@each_notebook
def test_outputs_are_saved_and_none_is_an_error_or_error_stream(path):
    outputs = [output for cell in cells_of(path) for output in cell["outputs"]]
    assert outputs or not cells_of(path), "no outputs: run .ci/execute.py " + path.stem
    assert all(output["output_type"] != "error" for output in outputs), "an error was saved"
    assert all(output.get("name") != "stderr" for output in outputs), (
        "run .ci/execute.py, which strips error streams"
    )


@each_notebook
def test_outputs_hold_no_machine_paths_and_no_progress_bars(path):
    for position, cell in enumerate(cells_of(path)):
        for output in cell["outputs"]:
            for text in texts_of(output):
                assert not machine_paths(text), f"code cell {position}"
                assert "\r" not in text and "<progress" not in text, f"code cell {position}"
            assert not [kind for kind in output.get("data", {}) if "widget" in kind], (
                f"code cell {position}"
            )


@each_notebook
def test_outputs_are_small(path):
    sizes = [len(json.dumps(output)) for cell in cells_of(path) for output in cell["outputs"]]
    assert max(sizes, default=0) < LARGEST_OUTPUT
    assert path.stat().st_size < LARGEST_NOTEBOOK


@each_notebook
def test_the_kernel_names_its_language(path):
    kernel = json.loads(path.read_text(encoding="utf-8"))["metadata"]["kernelspec"]
    assert (
        kernel["name"] == "python3" and kernel["language"] == "python"
    )  # papermill needs the language


@each_notebook
def test_imports_stand_in_cells_of_their_own(path):
    # nbdev runs import cells before a page is built; a cell that mixes them with work would run that too
    for cell in cells_of(path):
        source = source_of(cell)
        if re.search(r"^\s*[%!]", source, re.M):
            continue
        kinds = {isinstance(node, (ast.Import, ast.ImportFrom)) for node in ast.parse(source).body}
        assert kinds != {True, False}, f"imports and other code in one cell:\n{source[:200]}"
        stars = [
            node
            for node in ast.walk(ast.parse(source))
            if isinstance(node, ast.ImportFrom) and node.names[0].name == "*"
        ]
        assert not stars, "name what is imported"


@each_notebook
def test_the_title_is_the_name(path):
    first = source_of(cells_of(path, "markdown")[0]).splitlines()
    assert first[0].lower() == f"# {path.stem}" or path.stem == "index"
    assert any(line.startswith("> ") for line in first), "the claim in one line, after >"


@each_notebook
def test_parameters_are_tagged_once_and_checked(path):
    cells = cells_of(path)
    tagged = [
        position
        for position, cell in enumerate(cells)
        if "parameters" in cell["metadata"].get("tags", [])
    ]
    before = [
        position
        for position, cell in enumerate(cells)
        if "names_before(globals())" in source_of(cell)
    ]
    after = [
        position
        for position, cell in enumerate(cells)
        if "check_parameters(globals()" in source_of(cell)
    ]
    if path.stem not in METHODS:
        assert tagged == before == after == [], f"a method notebook? add {path.stem} to METHODS"
        return
    assert len(tagged) == 1 and [tagged[0] - 1, tagged[0] + 1] == [*before, *after]
    for statement in ast.parse(
        source_of(cells[tagged[0]])
    ).body:  # flat, so that papermill can replace them
        assert isinstance(statement, (ast.Assign, ast.AnnAssign))
        ast.literal_eval(statement.value)


@pytest.mark.parametrize("name", sorted(METHODS))
def test_saved_outputs_are_those_of_the_default_run_on_a_task_without_a_licence(name):
    # what is saved may show examples of the embedded tasks, never a row of a data set
    cells = cells_of(ROOT / "nbs" / f"{name}.ipynb")
    assert not [cell for cell in cells if "injected-parameters" in cell["metadata"].get("tags", [])]
    tagged = next(cell for cell in cells if "parameters" in cell["metadata"].get("tags", []))
    values = {
        node.targets[0].id: ast.literal_eval(node.value)
        for node in ast.parse(source_of(tagged)).body
    }
    assert values["task"] in (*EMBEDDED, "arithmetic") and values["data_dir"] == ""
    shown = " ".join(
        text for cell in cells for output in cell["outputs"] for text in texts_of(output)
    )
    assert values["task"] in shown and not [
        task for task in TASKS if f"{task} (" in shown or f"scale; {task}" in shown
    ]


def test_method_notebooks_exist():
    assert METHODS <= {path.stem for path in NOTEBOOKS}


def test_one_notebook_one_module_one_test_file():
    exports = {path.stem: exported_module(path) for path in NOTEBOOKS}
    assert exports == {name: None if name in WITHOUT_MODULE else name for name in exports}
    assert MODULES == {name for name in exports if exports[name]}, (
        "a module without a notebook, or not exported"
    )
    tests = {path.stem.removeprefix("test_") for path in (ROOT / "tests").glob("test_*.py")}
    assert MODULES <= tests, "a room without its test file"


def rooms_imported(text):
    """The rooms that a module imports, at its top or inside a function."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom) and (
            node.level == 1 or (node.module or "").startswith("compatkit")
        ):
            module = (node.module or "").removeprefix("compatkit").strip(".")
            yield from [module.split(".")[0]] if module else [alias.name for alias in node.names]
        elif isinstance(node, ast.Import):
            yield from [
                alias.name.split(".")[1]
                for alias in node.names
                if alias.name.startswith("compatkit.")
            ]


@pytest.mark.parametrize("name", sorted(MODULES))
def test_a_room_imports_only_floors_below(name):
    floor = {room: number for number, rooms in enumerate(FLOORS) for room in rooms}
    assert name in floor, f"give {name} a floor"
    used = set(rooms_imported((ROOT / "compatkit" / f"{name}.py").read_text(encoding="utf-8")))
    assert all(floor[room] < floor[name] for room in used), (
        f"{name} (floor {floor[name]}) imports {sorted(used)}"
    )


def test_imports_of_rooms_are_found():
    text = "from .data import x\nfrom compatkit.experiments.runs import y\nimport compatkit.support.hub\nfrom . import models\nimport os"
    assert list(rooms_imported(text)) == ["data", "runs", "hub", "models"]


def test_light_rooms_load_no_torch():
    rooms = sorted(LIGHT & MODULES)
    heavy = "[name for name in ('torch', 'transformers', 'datasets', 'pandas', 'sklearn', 'matplotlib') if name in sys.modules]"
    code = (
        "import sys\n"
        + "\n".join(f"import compatkit.{room}" for room in rooms)
        + f"\nprint({heavy})"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout == "[]\n"


# --- the project's own ground ----------------------------------------------------------------------------------------


def test_the_readme_prints_the_command_that_ci_runs():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert readme.count("<!-- test command -->") == 1
    block = readme.partition("<!-- test command -->")[2].strip()
    assert block.startswith("```") and len(block.split("```")[1].strip().splitlines()) in (1, 2)


def base_requirements():
    """What `pip install` brings, by the names that are imported."""
    parser = configparser.ConfigParser(interpolation=None)
    parser.read(ROOT / "settings.ini", encoding="utf-8")
    names = [re.split(r"[<>=!~\[]", line)[0] for line in parser["DEFAULT"]["requirements"].split()]
    return {
        {"scikit-learn": "sklearn", "ipython": "IPython"}.get(name, name).replace("-", "_")
        for name in names
    }


def packages_imported(text):
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            yield node.module.split(".")[0]


def test_modules_and_method_notebooks_need_base_requirements_only():
    # the first command of the README installs no more than these
    texts = {
        path.name: path.read_text(encoding="utf-8")
        for path in (ROOT / "compatkit").glob("[!_]*.py")
    }
    for name in METHODS:
        texts[name] = "\n".join(
            source_of(cell) for cell in cells_of(ROOT / "nbs" / f"{name}.ipynb")
        )
    allowed = (
        base_requirements() | {"compatkit", "ray"} | sys.stdlib_module_names
    )  # ray: where it lacks, `tables` says so
    beyond = {name: sorted(set(packages_imported(text)) - allowed) for name, text in texts.items()}
    assert not {name: packages for name, packages in beyond.items() if packages}


def test_base_requirements_are_used():
    texts = [path.read_text(encoding="utf-8") for path in (ROOT / "compatkit").glob("[!_]*.py")]
    texts += [
        source_of(cell)
        for path in NOTEBOOKS
        for cell in cells_of(path)
        if not re.search(r"^\s*[%!]", source_of(cell), re.M)
    ]
    used = {package for text in texts for package in packages_imported(text)}
    # accelerate is what transformers.Trainer runs on, pillow what datasets decodes images with; nobody imports them here
    assert base_requirements() - used <= {"accelerate", "pillow"}


def test_the_parameters_tag_survives_cleaning():
    settings = (ROOT / "settings.ini").read_text(encoding="utf-8")
    assert re.search(r"^allowed_cell_metadata_keys\s*=.*\btags\b", settings, re.M)


def run_pytest(folder, body, **environment):
    (folder / "conftest.py").write_text((ROOT / "tests" / "conftest.py").read_text())
    (folder / "test_it.py").write_text("import pytest\n" + body)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(folder)]
    return subprocess.run(
        command, cwd=folder, capture_output=True, text=True, env=os.environ | environment
    )


def test_where_everything_is_required_a_skip_fails(tmp_path):
    inside = "def test_a(): pytest.skip('no chromium')"
    marked = "@pytest.mark.skipif(True, reason='needs a GPU with 20 GB')\ndef test_a(): pass"
    importing = "pytest.importorskip('no_such_module_anywhere')"
    assert run_pytest(tmp_path, inside, COMPATKIT_REQUIRE_ALL="0").returncode == 0
    done = run_pytest(tmp_path, inside, COMPATKIT_REQUIRE_ALL="1")
    assert done.returncode == 1 and "no chromium" in done.stdout
    assert run_pytest(tmp_path, marked, COMPATKIT_REQUIRE_ALL="1").returncode == 0
    assert run_pytest(tmp_path, importing, COMPATKIT_REQUIRE_ALL="1").returncode != 0
