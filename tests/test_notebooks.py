"""The notebooks: executed, clean and fit to be read; each module has its three files and its place
in the chain.
"""

import ast
import configparser
import json
import os
import re
import shlex
import subprocess
import sys
from contextlib import suppress
from functools import cache
from graphlib import TopologicalSorter
from importlib import import_module
from pathlib import Path

import execute
import layout
import pytest
from nbformat.v4 import new_output
from papermill.cli import _resolve_type

from compatkit.experiments.planning.catalogue import jobs
from compatkit.experiments.reporting.result_tables import kept_tables
from compatkit.experiments.running.published import machine_paths
from compatkit.training.tasks import EMBEDDED, TASKS

ROOT = Path(__file__).resolve().parent.parent
NBS, PACKAGE, TESTS = ROOT / "nbs", ROOT / "compatkit", ROOT / "tests"
NOTEBOOKS = layout.notebooks(ROOT)
MODULES = layout.modules(ROOT)


@cache
def imports():
    """Module → the modules that it imports; not read while tests are collected."""
    return layout.imports(ROOT)


METHODS = [name for name, one in NOTEBOOKS.items() if one.parameters]
LARGEST_OUTPUT, LARGEST_NOTEBOOK = 300_000, 2_000_000  # characters
LONGEST_EXPERIMENT = 110  # lines of code after the parameters; the rest belongs into a module

FIRST_SHOWN = 12  # cells within which a reader sees something
WEIGHTS = [name for name in NOTEBOOKS if name.startswith("weights/")]

# What is not done yet, by name. Each of these tests is expected to fail; when it passes, the suite
# asks for the name to be taken out.
STILL_IMPORT_TO_THE_RIGHT: set[str] = set()
STILL_EXPORT_ELSEWHERE: set[str] = set()
STILL_WITHOUT_TEST_FILE: set[str] = set()
STILL_WITHOUT_OUTPUTS: set[str] = set()
STILL_LONG: set[str] = set()


def params(names, unfinished):
    """The names as parameters of a test; those in `unfinished` are expected to fail, strictly."""
    gone = unfinished - set(names)
    assert not gone, f"no longer there, take them out: {sorted(gone)}"
    mark = pytest.mark.xfail(strict=True, reason="not done yet")
    return [pytest.param(name, marks=[mark] if name in unfinished else []) for name in names]


each_notebook = pytest.mark.parametrize(
    "path", [NBS / f"{name}.ipynb" for name in NOTEBOOKS], ids=list(NOTEBOOKS)
)


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


@pytest.mark.parametrize("name", params(NOTEBOOKS, STILL_WITHOUT_OUTPUTS))
def test_outputs_are_saved(name):
    cells = cells_of(NBS / f"{name}.ipynb")
    outputs = [output for cell in cells for output in cell["outputs"]]
    assert outputs or not cells, f"no outputs: run .ci/execute.py {name}"


def shows_its_last_line(source):
    """Whether a cell ends in a value that Jupyter shows; calls may return nothing."""
    if re.match(r"\s*[%!]", source) or re.search(r"^#\|\s*eval:\s*false", source, re.M):
        return False
    body = ast.parse(source).body
    shown = (ast.Name, ast.Tuple, ast.List, ast.Dict, ast.JoinedStr, ast.Subscript, ast.BinOp)
    return bool(body) and isinstance(body[-1], ast.Expr) and isinstance(body[-1].value, shown)


@each_notebook
def test_a_cell_that_ends_in_a_value_has_it_saved(path):
    cells = [cell for cell in cells_of(path) if shows_its_last_line(source_of(cell))]
    missing = [source_of(cell)[-80:] for cell in cells if not cell["outputs"]]
    assert not missing, f"run .ci/execute.py {path.stem}: {missing}"


@pytest.mark.parametrize("name", [name for name in NOTEBOOKS if name.count("/") == 0] + WEIGHTS)
def test_something_is_shown_before_the_machinery(name):
    cells = json.loads((NBS / f"{name}.ipynb").read_text(encoding="utf-8"))["cells"]
    table = re.compile(r"^\|\s?---|^!\[", re.M)
    shown = [bool(cell.get("outputs")) or bool(table.search(source_of(cell))) for cell in cells]
    assert True in shown[:FIRST_SHOWN], "begin with the smallest version that shows the idea"


def test_the_index_lists_todays_notebooks():
    outputs = [output for cell in cells_of(NBS / "index.ipynb") for output in cell["outputs"]]
    shown = "\n".join(text for output in outputs for text in texts_of(output))
    missing = [line for line in layout.notebook_lines(ROOT, nbs="") if line not in shown]
    assert not missing, f"run .ci/execute.py index: {missing[:3]}"


@each_notebook
def test_no_output_is_an_error_or_an_error_stream(path):
    outputs = [output for cell in cells_of(path) for output in cell["outputs"]]
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
    # nbdev runs import cells before a page is built; a cell that mixes them with work would run
    # that too
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


@pytest.mark.parametrize("one", NOTEBOOKS.values(), ids=list(NOTEBOOKS))
def test_a_notebook_begins_with_its_name_and_its_claim(one):
    assert one.title.lower() == one.stem or one.name == layout.HOME
    assert one.claim, "the claim in one line, after '> '"


NAMED = re.compile(r"\bmodules?\s+`([\w/]+)`|\(see `(\w+)`\)")  # how a text names a module


def modules_named(text):
    """The names without their place, as the words of a text have them."""
    return {(match[1] or match[2]).rpartition("/")[2] for match in NAMED.finditer(text)}


@each_notebook
def test_a_module_that_a_text_names_is_there(path):
    text = "\n".join(map(source_of, cells_of(path, "markdown")))
    assert modules_named(text) <= {name.rpartition("/")[2] for name in NOTEBOOKS}


def test_a_module_is_named_with_and_without_its_place():
    text = "the module `a`, modules\n`weights/b` and a `c` (see `d`)"
    assert modules_named(text) == {"a", "b", "d"}


def test_a_file_of_tests_names_its_own_module():
    for name in MODULES:
        file = file_of_tests(name)
        words = ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or ""
        found = re.match("The module `(.+?)`", words)
        assert not found or found[1] == name.rpartition("/")[2], file.name


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
        if re.search(r"check_parameters\(\s*globals\(\)", source_of(cell))
    ]
    if not tagged:
        assert before == after == [], "a cell that checks parameters, and none is tagged so"
        return
    assert len(tagged) == 1 and [tagged[0] - 1, tagged[0] + 1] == [*before, *after]
    for statement in ast.parse(
        source_of(cells[tagged[0]])
    ).body:  # flat, so that papermill can replace them
        assert isinstance(statement, (ast.Assign, ast.AnnAssign))
        ast.literal_eval(statement.value)


def names_of_the_check(path):
    """The names that a notebook's check of its parameters needs, the parameters' own cell and the
    check, without what the notebook computes before it.
    """
    cells = cells_of(path)
    at = next(i for i, cell in enumerate(cells) if "parameters" in cell["metadata"].get("tags", []))
    module = PACKAGE / f"{path.stem}.py"
    names = dict(vars(import_module(f"compatkit.{path.stem}"))) if module.exists() else {}
    for cell in cells[:at]:
        tree = ast.parse(source_of(cell))
        tree.body = [
            one
            for one in tree.body
            if isinstance(one, (ast.Import, ast.ImportFrom))
            or (isinstance(one, ast.Assign) and ast.unparse(one.targets[0]).isupper())
        ]
        exec(compile(tree, path.name, "exec"), names)
    check = ast.parse(source_of(cells[at + 1]))
    last = next(i for i, one in enumerate(check.body) if "check_parameters(" in ast.unparse(one))
    check.body = check.body[: last + 1]
    return names, source_of(cells[at]), compile(check, path.name, "exec")


def asked_for():
    """Notebook → the parameters of each kept table's command and of each job of the catalogue."""
    asked = {}
    for table in kept_tables(ROOT / "results").values():
        words = shlex.split(table.command)
        given = [words[at + 1 : at + 3] for at, word in enumerate(words) if word == "-p"]
        name = next(Path(word).stem for word in words if word.endswith(".ipynb"))
        asked.setdefault(name, []).append({key: _resolve_type(value) for key, value in given})
    for job in jobs(scale="mini"):
        asked.setdefault(job.entry.notebook, []).append(job.parameters)
    return asked


@pytest.mark.parametrize("name, asked", asked_for().items(), ids=asked_for())
def test_the_commands_of_kept_tables_and_of_the_catalogue_are_accepted(name, asked):
    names, parameters, check = names_of_the_check(NBS / f"{name}.ipynb")
    for given in asked:
        before = dict(names)
        here = dict(before, before=before)
        exec(parameters, here)
        with suppress(FileNotFoundError):  # of data that are not here
            exec(check, here | given)
    with pytest.raises(ValueError, match="table"):
        exec(check, here | {"table": "no such table"})


def experiment_of(name):
    """The source of each code cell after the parameters."""
    cells = cells_of(NBS / f"{name}.ipynb")
    tagged = ["parameters" in cell["metadata"].get("tags", []) for cell in cells]
    return [source_of(cell) for cell in cells[tagged.index(True) + 1 :]]


@pytest.mark.parametrize("name", params(METHODS, STILL_LONG))
def test_an_experiment_is_read_in_one_go(name):
    lines = [line.strip() for source in experiment_of(name) for line in source.splitlines()]
    code = [line for line in lines if line and not line.startswith("#")]
    assert len(code) <= LONGEST_EXPERIMENT, "move what is not grid, rows, table or picture"


@pytest.mark.parametrize("name", METHODS)
def test_an_experiment_has_no_state_in_globals_and_names_no_lambda(name):
    for source in experiment_of(name):
        for node in ast.walk(ast.parse(source)):
            assert not isinstance(node, ast.Global), source
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Lambda):
                named = [target for target in node.targets if isinstance(target, ast.Name)]
                assert not named, f"def {named[0].id}(…) instead of a lambda"


@pytest.mark.parametrize("name", METHODS)
def test_saved_outputs_are_those_of_the_default_run_on_a_task_without_a_licence(name):
    # what is saved may show examples of the embedded tasks, never a row of a data set
    cells = cells_of(NBS / f"{name}.ipynb")
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


# --- three files, one place, imports to the left --------------------------------------------------


@pytest.mark.parametrize("name", params(NOTEBOOKS, STILL_EXPORT_ELSEWHERE))
def test_a_notebook_exports_to_the_module_of_its_own_name_or_to_none(name):
    one = NOTEBOOKS[name]
    exports = any(
        re.match(r"#\|\s*exports?\b", source_of(cell)) for cell in cells_of(NBS / f"{name}.ipynb")
    )
    assert one.module in (name.replace("/", "."), None)
    assert exports == (one.module is not None)


def test_every_module_has_its_notebook():
    exported = {one.module.replace(".", "/") for one in NOTEBOOKS.values() if one.module}
    assert set(MODULES) == exported, "a module without a notebook, or one that is not exported yet"


def file_of_tests(name):
    folder, slash, stem = name.rpartition("/")
    return TESTS / f"{folder}{slash}test_{stem}.py"


@pytest.mark.parametrize("name", params(MODULES, STILL_WITHOUT_TEST_FILE))
def test_every_module_has_its_file_of_tests(name):
    assert file_of_tests(name).exists()


def test_no_test_file_is_left_of_a_module_that_is_gone():
    in_folders = {path for path in TESTS.rglob("test_*.py") if path.parent != TESTS}
    assert in_folders <= {file_of_tests(name) for name in MODULES}


@pytest.mark.parametrize("name", params(MODULES, STILL_IMPORT_TO_THE_RIGHT))
def test_a_module_imports_only_to_the_left(name):
    assert not layout.wrong_imports(name, imports()[name])


def test_no_module_imports_in_a_circle():
    within_packages = {
        name: {other for other in used if layout.place_of(other) == layout.place_of(name)}
        for name, used in imports().items()
    }
    TopologicalSorter(within_packages).prepare()  # CycleError shows the circle


def test_light_modules_load_nothing_heavy():
    lines = [f"import compatkit.{name.replace('/', '.')}" for name in layout.light_modules(ROOT)]
    shown = f"print([name for name in {layout.HEAVY!r} if name in sys.modules])"
    code = "\n".join(["import sys", *lines, shown])
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout == "[]\n"


# --- signatures -----------------------------------------------------------------------------------


def public_functions(body, owner=""):
    """Name and definition of each public function, and of a public class's methods."""
    for node in body:
        name = getattr(node, "name", "_")
        if isinstance(node, ast.ClassDef) and not name.startswith("_"):
            yield from public_functions(node.body, f"{owner}{name}.")
        elif isinstance(node, ast.FunctionDef) and (special(name) or not name.startswith("_")):
            yield f"{owner}{name}", node


def special(name):
    """Whether Python itself calls the method, as `__init__` and `__add__`."""
    return name.startswith("__") and name.endswith("__")


def without_type(function):
    """The parameters that have no type, and "what it returns"."""
    given = function.args
    every = [*given.posonlyargs, *given.args, *given.kwonlyargs, given.vararg, given.kwarg]
    named = [one for one in every if one is not None and one.arg not in ("self", "cls")]
    missing = [one.arg for one in named if one.annotation is None]
    returns = special(function.name) or function.returns is not None
    return missing + ["what it returns"] * (not returns)


def missing_types(text):
    """A line for each public signature of a module that lacks a type."""
    found = ((name, without_type(node)) for name, node in public_functions(ast.parse(text).body))
    fields = re.findall(r"^([A-Z]\w*) = namedtuple\(", text, re.M)
    return [
        *(f"{name}: {', '.join(missing)}" for name, missing in found if missing),
        *(f"{name}: its fields, by typing.NamedTuple" for name in fields),
    ]


@pytest.mark.parametrize("name", MODULES)
def test_public_signatures_have_types(name):
    lines = missing_types(MODULES[name].read_text(encoding="utf-8"))
    assert not lines, f"write these types in nbs/{name}.ipynb: {'; '.join(lines)}"


def test_a_missing_type_is_named():
    text = """
def whole(a: int, *more: int, **options: int) -> int: ...
def parts(a, b: int, *more, c=1, **options: int): ...
def _own(a): ...
class Kept:
    def __init__(self, a): ...
    def __len__(self): ...
    def __add__(self, other): ...
    @classmethod
    def of(cls, a: int): ...
class _Own:
    def of(self, a): ...
Pair = namedtuple("Pair", "a b")
_Pair = namedtuple("_Pair", "a b")
"""
    assert missing_types(text) == [
        "parts: a, c, more, what it returns",
        "Kept.__init__: a",
        "Kept.__add__: other",
        "Kept.of: what it returns",
        "Pair: its fields, by typing.NamedTuple",
    ]


# --- the project's own ground ---------------------------------------------------------------------


def test_the_readme_prints_the_command_that_ci_runs():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert readme.count("<!-- test command -->") == 1
    block = readme.partition("<!-- test command -->")[2].strip()
    assert block.startswith("```") and len(block.split("```")[1].strip().splitlines()) in (1, 2)


def base_requirements():
    """What `pip install` brings, by the names that are imported."""
    parser = configparser.ConfigParser(interpolation=None)
    parser.read(ROOT / "settings.ini", encoding="utf-8")
    settings = parser["DEFAULT"]
    lines = (settings["requirements"] + settings["core_requirements"]).split()
    names = [re.match(r"[\w.-]+", line)[0] for line in lines]
    modules = {"scikit-learn": "sklearn", "ipython": "IPython", "backports.zstd": "backports"}
    return {modules.get(name, name).replace("-", "_") for name in names}


def packages_imported(text):
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            yield node.module.split(".")[0]


def test_modules_and_method_notebooks_need_base_requirements_only():
    # the first command of the README installs no more than these
    texts = {
        str(path.relative_to(ROOT)): path.read_text(encoding="utf-8")
        for path in PACKAGE.rglob("*.py")
    }
    for name in METHODS:
        texts[name] = "\n".join(source_of(cell) for cell in cells_of(NBS / f"{name}.ipynb"))
    allowed = (
        base_requirements() | {"compatkit", "ray", "lm_eval"} | sys.stdlib_module_names
    )  # extras: where they lack, a sentence says so
    beyond = {name: sorted(set(packages_imported(text)) - allowed) for name, text in texts.items()}
    assert not {name: packages for name, packages in beyond.items() if packages}


def test_base_requirements_are_used():
    texts = [path.read_text(encoding="utf-8") for path in PACKAGE.rglob("*.py")]
    texts += [
        source_of(cell)
        for name in NOTEBOOKS
        for cell in cells_of(NBS / f"{name}.ipynb")
        if not re.search(r"^\s*[%!]", source_of(cell), re.M)
    ]
    used = {package for text in texts for package in packages_imported(text)}
    # accelerate is what transformers.Trainer runs on, pillow what datasets decodes images with;
    # nobody imports them here, and backports.zstd only where Python has no such module itself
    assert base_requirements() - used <= {"accelerate", "pillow", "backports"}


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


FIGURE = re.compile(r"\d[\d.,]*(?: to \d+)?\s?(?:%|points?\b)")
LEVELS = {"5 %", "95 %", "100 %"}
TYPED = {  # figures that no table holds, by notebook
    "bcwi": {"1.7 points", "83 %"},  # the standard error of a share of 500
    "distillation": {"20 to 30 %"},  # PCT's training errors
}


@pytest.mark.parametrize("name", METHODS)
def test_closing_words_hold_no_results(name):
    """Percentages and points that were measured stand in results/, not after the parameters."""
    cells = json.loads((NBS / f"{name}.ipynb").read_text(encoding="utf-8"))["cells"]
    tagged = [n for n, cell in enumerate(cells) if "parameters" in cell["metadata"].get("tags", [])]
    words = [source_of(one) for one in cells[tagged[0] :] if one["cell_type"] == "markdown"]
    text = "\n".join(words)
    for quoted in (r"`[^`]*`", r"\$[^$]*\$"):
        text = re.sub(quoted, "", text, flags=re.S)
    assert set(FIGURE.findall(text)) <= LEVELS | TYPED.get(name, set())


def test_saved_outputs_hold_no_progress_no_errors_and_joined_text():
    def stream(name, text):
        return new_output("stream", name=name, text=text)

    html = {"text/html": "<progress value=1>", "text/plain": "<IPython.core.display.HTML object>"}
    table = new_output("display_data", {"text/html": "<table>"})
    outputs = [
        *(
            stream("stdout", "a\n"),
            stream("stderr", "warned"),
            stream("stdout", "1 of 2\r2 of 2\n"),
        ),
        *(stream("stdout", "b"), new_output("display_data", html), table, stream("stdout", "\n")),
    ]
    assert list(execute.fit(outputs)) == [stream("stdout", "a\n2 of 2\nb"), table]


TRIES = """
import sys
from functools import partial
from pathlib import Path
sys.path.insert(0, ".ci")
import kernels

def tried(tries, said):
    with open(tries, "a") as file:
        file.write("x")
    passed = said is None or Path(tries).stat().st_size > 1
    return passed, "it passed" if passed else f"FAILED {said}"

said = None if sys.argv[2] == "nothing" else sys.argv[2]
print(kernels.run_all([partial(tried, sys.argv[1], said)]))
"""


@pytest.mark.parametrize(
    ("said", "tries", "outcome"),
    [
        ("nothing", 1, "[(True, 'it passed')]"),
        ("RuntimeError: Kernel died before replying to kernel_info", 2, "[(True, 'it passed')]"),
        (
            "ValueError: a cell's own error",
            1,
            '[(False, "FAILED ValueError: a cell\'s own error")]',
        ),
    ],
)
def test_ci_tries_a_notebook_again_whose_kernel_never_began(tmp_path, said, tries, outcome):
    command = [sys.executable, "-c", TRIES, str(tmp_path / "tries"), said]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == outcome
    assert len((tmp_path / "tries").read_text()) == tries
