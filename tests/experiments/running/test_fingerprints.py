"""The module `fingerprints`: what of a change is seen, and what is not."""

import importlib
import importlib.util
import json
import sys
import textwrap
from functools import partial
from pathlib import Path

import pytest

from compatkit.experiments.running.fingerprints import code_fingerprint, followed

ROOT = Path(__file__).resolve().parents[3]


def module_from(text, folder, name):
    """A module made of this text, imported under this name."""
    (folder / f"{name}.py").write_text(textwrap.dedent(text))
    spec = importlib.util.spec_from_file_location(name, folder / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


FIRST = """
def step(x, rate=0.1):
    return x - rate

class Treatment:
    weight = 1.0

    def loss(self, x):
        return self.weight * x
"""
WORDS = '''
# a comment

def step(x, rate=0.1):
    """What a step does."""
    return (x - rate)  # moves


class Treatment:
    "A docstring."
    weight = 1.0

    def loss(self, x):
        """Another."""
        # why
        return self.weight * x
'''


def test_words_do_not_count_and_code_does(tmp_path):
    first, words = (
        module_from(FIRST, tmp_path, "first_module"),
        module_from(WORDS, tmp_path, "words_module"),
    )
    assert code_fingerprint(first.step) == code_fingerprint(words.step)
    assert code_fingerprint(first.Treatment) == code_fingerprint(words.Treatment)
    for number, (old, new) in enumerate(
        [("0.1", "0.2"), ("weight = 1.0", "weight = 2.0"), ("self.weight * x", "x")]
    ):
        changed = module_from(FIRST.replace(old, new), tmp_path, f"changed_{number}")
        both = code_fingerprint(changed.step, changed.Treatment)
        assert both != code_fingerprint(first.step, first.Treatment)


def test_a_text_that_is_no_docstring_counts(tmp_path):
    one = module_from('def name():\n    "doc"\n    return "a"\n', tmp_path, "text_one")
    two = module_from('def name():\n    "doc"\n    return "b"\n', tmp_path, "text_two")
    assert code_fingerprint(one.name) != code_fingerprint(two.name)


def test_decorators_count_and_wrapped_functions_are_seen_through(tmp_path):
    text = """
    from functools import lru_cache, wraps

    def twice(function):
        @wraps(function)
        def wrapper(*given):
            return 2 * function(*given)
        return wrapper

    {decorator}
    def value(x):
        return x
    """
    plain, cached, doubled = (
        module_from(textwrap.dedent(text).format(decorator=decorator), tmp_path, name)
        for name, decorator in [
            ("d_plain", ""),
            ("d_cached", "@lru_cache(maxsize=None)"),
            ("d_twice", "@twice"),
        ]
    )
    prints = {code_fingerprint(module.value) for module in (plain, cached, doubled)}
    assert len(prints) == 3


def test_methods_partials_nested_and_same_named_definitions(tmp_path):
    text = """
    class A:
        def go(self): return 1
    class B:
        def go(self): return 2
    def make(n):
        if n:
            def inner(x): return x
        else:
            def inner(x): return -x
        return inner
    """
    module = module_from(text, tmp_path, "nested_module")
    assert code_fingerprint(module.A.go) != code_fingerprint(module.B.go)
    assert code_fingerprint(module.A().go) == code_fingerprint(module.A.go, module.A)
    assert code_fingerprint(partial(module.make, 1)) == code_fingerprint(module.make)
    assert code_fingerprint(module.make(1)) != code_fingerprint(module.make(0))


def test_the_same_text_in_a_notebook_and_in_the_exported_module():
    from IPython.core.interactiveshell import InteractiveShell

    from compatkit import ensembles

    shell = InteractiveShell()
    shell.run_cell("class Setting:\n    rate: int = 0").raise_error()
    notebook = """
    from dataclasses import dataclass

    @dataclass
    class Setting:
        "A class without methods of its own."
        rate: float = 0.1

    class Treatment(Setting):
        def loss(self, x):
            from compatkit.metrics import FlipCounts
            return FlipCounts.of(x)
    """
    shell.run_cell(textwrap.dedent(notebook)).raise_error()
    found = followed(shell.user_ns["Treatment"])
    assert any(text.startswith("@dataclass\nclass Setting:\n    rate: float") for text in found)
    assert any(text.startswith("@dataclass(frozen=True)\nclass FlipCounts") for text in found)
    cell = Path(ROOT / "nbs" / "ensembles.ipynb").read_text(encoding="utf-8")
    cells = [
        "".join(one["source"]) for one in json.loads(cell)["cells"] if one["cell_type"] == "code"
    ]
    imports = [one for one in cells if one.startswith("#| export") and "import " in one][:2]
    definition = next(one for one in cells if "def mix(" in one)
    for one in (*imports, definition):
        shell.run_cell(one).raise_error()
    here = {text for text in followed(shell.user_ns["mix"]) if text.startswith("def mix(")}
    assert here == {text for text in followed(ensembles.mix) if text.startswith("def mix(")}


def test_what_has_no_source_counts_with_its_compiled_code():
    made = []
    for value in (1, 1, 2):
        namespace = {"__name__": "__main__"}
        exec(f"def ghost(): return {value}", namespace)
        made.append(code_fingerprint(namespace["ghost"]))
    assert made[0] == made[1] != made[2]
    assert followed(len) == []


# --- names are followed ------------------------------------------------------------------------


PACKAGE = {
    "deep": """
        RATE = 0.5
        TABLE = {}

        def listed(function):
            TABLE[function.__name__] = function
            return function

        @listed
        def rule(x):
            return x * 2

        def scaled(x):
            'Words.'
            return x * RATE

        class Base:
            def twice(self, x):
                return scaled(x)
        """,
    "middle": """
        from . import deep
        from .deep import Base

        class Treatment(Base):
            weight = 1.0

            def loss(self, x):
                from .late import penalty
                return deep.scaled(x) + penalty(x)

        def by_name(x):
            return deep.TABLE["rule"](x)
        """,
    "late": """
        import math

        def penalty(x):
            return math.sqrt(x)
        """,
    "top": """
        from functools import partial
        from .middle import Treatment, by_name

        def computing(treatment, x=0):
            def compute(folder):
                return treatment.loss(x)
            return compute

        def direct(folder):
            return Treatment().loss(1)

        def through_the_table(folder):
            return by_name(1)

        later = partial(direct, None)
        """,
}


@pytest.fixture
def package(tmp_path, monkeypatch):
    """Makes a package of these files with one text replaced; each has a name of its own."""
    monkeypatch.syspath_prepend(str(tmp_path))
    made = []

    def make(module=None, old="", new=""):
        name = f"followed_{len(made)}_{tmp_path.name}"
        made.append(name)
        (tmp_path / name).mkdir()
        for part, text in {"__init__": "", **PACKAGE}.items():
            text = textwrap.dedent(text)
            assert part != module or old in text
            text = text.replace(old, new) if part == module else text
            (tmp_path / name / f"{part}.py").write_text(text)
        return importlib.import_module(f"{name}.top")

    return make


ENTRIES = {
    "a function that names the class": lambda top: top.direct,
    "an object in a closure": lambda top: top.computing(top.Treatment()),
    "a partial": lambda top: top.later,
    "a bound method": lambda top: top.Treatment().loss,
    "a list of objects": lambda top: [{"treatment": top.Treatment()}],
}


@pytest.mark.parametrize("entry", ENTRIES)
@pytest.mark.parametrize(
    "module, old, new",
    [
        ("deep", "return x * RATE", "return x + RATE"),  # through two modules
        ("deep", "RATE = 0.5", "RATE = 0.6"),
        ("deep", "return scaled(x)", "return -scaled(x)"),  # the base class
        ("middle", "weight = 1.0", "weight = 2.0"),
        ("late", "math.sqrt(x)", "math.exp(x)"),  # an import inside a method
    ],
)
def test_a_change_far_away_is_seen(package, entry, module, old, new):
    def fingerprint(top):
        return code_fingerprint(ENTRIES[entry](top))

    assert fingerprint(package()) != fingerprint(package(module, old, new))


@pytest.mark.parametrize("entry", ENTRIES)
@pytest.mark.parametrize(
    "module, old, new",
    [
        ("deep", "'Words.'", "'Other words.'"),
        ("deep", "def scaled(x):", "def scaled(x: float) -> float:  # a share"),
        ("deep", "return x * 2", "return x * 3"),  # a function that nobody on the way names
        ("late", "import math\n", "import math\n\n\nunused = 1\n"),
    ],
)
def test_words_and_what_is_not_reached_do_not_count(package, entry, module, old, new):
    def fingerprint(top):
        return code_fingerprint(ENTRIES[entry](top))

    assert fingerprint(package()) == fingerprint(package(module, old, new))


def test_a_table_filled_by_decorators_counts_with_what_it_holds(package):
    same, other = package(), package("deep", "return x * 2", "return x * 3")
    assert code_fingerprint(same.through_the_table) == code_fingerprint(package().through_the_table)
    assert code_fingerprint(same.through_the_table) != code_fingerprint(other.through_the_table)


def test_foreign_packages_count_by_name_only(package):
    found = "\n".join(followed(package().direct))
    assert "math.sqrt" in found and "class partial" not in found


def test_what_pip_put_into_any_folder_is_foreign_and_what_lies_beside_is_not(tmp_path):
    text = "def f(x):\n    return x + 1\n"
    record = tmp_path / "put_by_pip-1.0.dist-info" / "RECORD"  # of `pip install --target`
    record.parent.mkdir()
    record.write_text("put_by_pip.py,sha256=00,26\nput_by_pip-1.0.dist-info/RECORD,,\n")
    assert not followed(module_from(text, tmp_path, "put_by_pip").f)
    assert "return x + 1" in "\n".join(followed(module_from(text, tmp_path, "readers_own").f))


def test_values_of_objects_are_no_code(package):
    top = package()
    one, two = top.Treatment(), top.Treatment()
    two.rate, two.names = 5, ["a"]
    assert code_fingerprint(one) == code_fingerprint(two)


def test_imports_of_the_library_lose_their_module_at_any_depth(tmp_path):
    texts = [
        "def f():\n    from compatkit.metrics import FlipCounts\n    return FlipCounts\n",
        "def f():\n    from ..metrics import FlipCounts\n    return FlipCounts\n",
        "def f():\n    from ...compatkit.metrics import FlipCounts\n    return FlipCounts\n",
    ]
    modules = [module_from(text, tmp_path, f"import_{n}") for n, text in enumerate(texts)]
    texts = [
        next(one for one in followed(module.f) if one.startswith("def f")) for module in modules
    ]
    assert len(set(texts)) == 1 and "from compatkit import FlipCounts" in texts[0]


def test_an_object_may_say_what_it_stands_for(tmp_path):
    module = module_from(FIRST, tmp_path, "identity_module")
    module.Treatment.code_identity = lambda self: "as agreed"
    assert followed(module.Treatment()) == ["as agreed"]


def test_real_treatments_lead_to_their_losses():
    from compatkit.distillation import DynamicDistillation

    found = "\n".join(followed(DynamicDistillation()))
    assert "class DynamicDistillation" in found and "class Treatment" in found
    assert "def shared_columns" in found  # once missing from a list kept by hand


def test_an_fstring_counts_alike_in_every_version_of_python(tmp_path):
    """ast.unparse quotes f-strings anew from 3.12 on, so a home would serve one version only."""
    first, words, *others = (
        module_from(f"def told(a, w):\n    return {text}\n", tmp_path, f"fstring_{number}")
        for number, text in enumerate(
            [
                """f"{a['x']!r:>{w}}, '" """,
                """f'''{a["x"]!r:>{w}}, \\'''' """,
                """f"{a['y']!r:>{w}}, '" """,
                """f"{a['x']!s:>{w}}, '" """,
                """f"{a['x']!r:<{w}}, '" """,
                """f"{a['x']!r:>{w}}; '" """,
            ]
        )
    )
    assert code_fingerprint(first.told) == code_fingerprint(words.told)
    assert len({code_fingerprint(one.told) for one in (first, *others)}) == 5
    written = "\n".join(followed(first.told))
    assert "('f', (a['x'], 114, ('f', '>', (w, -1, None))), \", '\")" in written
