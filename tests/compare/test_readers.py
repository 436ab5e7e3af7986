"""Formats are found by content; two kinds are not compared; the command reads them all."""

import inspect
import json
import sys
from pathlib import Path
from shutil import copytree

import pytest
from click.testing import CliRunner

from compatkit.cli import app
from compatkit.compare import readers
from compatkit.compare.logs import Wanted

LOGS = Path(__file__).parent / "inspect_logs"


def nemo(path, *rewards):
    path.write_text(
        "\n".join(
            json.dumps({"problem_idx": n, "repeat": 0, "reward": reward})
            for n, reward in enumerate(rewards)
        )
    )
    return path


def test_each_kind_is_found_and_tables_are_none(tmp_path):
    assert readers.reader_of(LOGS / "old.eval").name == "Inspect AI log"
    assert readers.reader_of(nemo(tmp_path / "x.jsonl", 1.0)).name == "NeMo Evaluator results"
    for name, text in (("a.csv", "id,label\n"), ("a.jsonl", '{"id": 1}\n'), ("a.json", "[]")):
        (tmp_path / name).write_text(text)
        assert readers.reader_of(tmp_path / name) is None
    assert readers.reader_of(tmp_path / "absent.eval") is None


def test_two_kinds_are_refused(tmp_path):
    with pytest.raises(ValueError, match="old.eval.*x.jsonl"):
        readers.read_logs(LOGS / "old.eval", nemo(tmp_path / "x.jsonl", 1.0))


def test_a_reader_is_one_line_in_the_list(tmp_path, monkeypatch):
    line = readers.Reader(
        "a format", lambda path, head: head.startswith(b"MINE"), lambda path, wanted: path
    )
    joined = line._replace(join=lambda old, new, *how: {"notes": how})
    monkeypatch.setattr(readers, "READERS", (joined, *readers.READERS))
    (tmp_path / "a").write_text("MINE"), (tmp_path / "b").write_text("MINE")
    fields = readers.read_logs(tmp_path / "a", tmp_path / "b", wanted=Wanted(errors="drop"))
    assert fields == {"notes": ("error", "drop", "error", None)}


TOOLS = LOGS.parent / "tool_logs"
SHAPES = [  # log, its file, what stands there, another shape, what is said
    (
        "every_eval-new.jsonl",
        "",
        '"input": {"raw": "1+1',
        '"input": "?", "as": {"a": "',
        "sample 2",
    ),
    ("promptfoo.json", "", '"response": {', '"response": ["?"], "as": {', "sample 1 of"),
    ("helm", "per_instance_stats.json", '"stats": [', '"stats": ["?", ', " is not as its tool"),
]


@pytest.mark.parametrize("name, file, there, other, told", SHAPES)
def test_an_entry_of_another_shape_is_named(tmp_path, name, file, there, other, told):
    path = copytree(TOOLS, tmp_path / "logs") / name
    text = (path / file).read_text()
    (path / file).write_text(text.replace(there, other, 1))
    with pytest.raises(ValueError, match=rf"^{name}.*{told}.*'(str|list)' object"):
        readers.reader_of(path).read(path, Wanted(side="first" if "promptfoo" in name else ""))


def test_two_logs_that_cannot_be_joined_are_named(tmp_path, monkeypatch):
    nemo(tmp_path / "x.jsonl", 1.0), nemo(tmp_path / "y.jsonl", 1.0)
    line = readers.Reader("a format", lambda path, head: True, lambda path, wanted: None)
    monkeypatch.setattr(readers, "READERS", (line,))
    with pytest.raises(ValueError, match="x.jsonl.*y.jsonl"):
        readers.read_logs(tmp_path / "x.jsonl", tmp_path / "y.jsonl")


def run(*arguments):
    return CliRunner().invoke(app, ["compare", *map(str, arguments)])


def test_the_command_compares_logs_and_follows_its_options(tmp_path):
    done = run(LOGS / "old.eval", LOGS / "new.eval", "--errors", "drop", "--json")
    assert json.loads(done.output)["examples"] == 4
    again = tmp_path / "again.eval"  # one file beside itself would be refused
    again.write_bytes((LOGS / "two-scorers.eval").read_bytes())
    done = run(LOGS / "two-scorers.eval", again, "--scorer", "includes", "--json")
    assert json.loads(done.output)["examples"] == 6
    done = run(LOGS / "two-scorers.eval", LOGS / "old.eval")
    assert done.exit_code != 0 and "match, includes" in str(done.exception)


# --- readers of other packages --------------------------------------------------------------------


def installed(monkeypatch, folder, module, value="ours:READER"):
    """A package with a reader, as pip leaves it."""
    (folder / "ours.py").write_text(module)
    info = folder / "ours-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: ours\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[{readers.GROUP}]\nour_tool = {value}\n")
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.delitem(sys.modules, "ours", raising=False)
    readers.readers_of_packages.cache_clear()


@pytest.fixture(autouse=True)
def _forgotten():
    """Each test looks at the packages anew."""
    yield
    readers.readers_of_packages.cache_clear()


OURS = """
from compatkit.compare.logs import Key, Log, Sample
from compatkit.compare.readers import Reader

def read(path, wanted):
    lines = path.read_text().splitlines()[1:]
    return Log(path.name, {Key("t", str(n)): Sample(float(line)) for n, line in enumerate(lines)})

READER = Reader("our tool's results", lambda path, head: head.startswith(b"OURS"), read)
"""


def test_a_package_brings_its_reader(tmp_path, monkeypatch):
    installed(monkeypatch, tmp_path, OURS)
    for name, lines in (("a.txt", "1\n1\n0"), ("b.txt", "1\n0\n0")):
        (tmp_path / name).write_text(f"OURS\n{lines}\n")
    assert readers.reader_of(tmp_path / "a.txt").name == "our tool's results"
    fields = readers.read_logs(tmp_path / "a.txt", tmp_path / "b.txt")
    assert [fields["answers"][code] for code in fields["new"]] == ["right", "wrong", "wrong"]


@pytest.mark.parametrize("module", ["raise RuntimeError('no')", "READER = 3"])
def test_a_reader_that_is_none_is_named_with_its_package(tmp_path, monkeypatch, module):
    installed(monkeypatch, tmp_path, module)
    (tmp_path / "a.txt").write_text("?")
    with pytest.raises(ValueError, match="our_tool"):
        readers.reader_of(tmp_path / "a.txt")


# --- choices that a reader would not follow -------------------------------------------------------


def test_two_models_of_a_log_that_holds_one_are_refused():
    log = str(LOGS / "old.eval")
    done = CliRunner().invoke(app, ["compare", log, "--old", "a", "--new", "b"])
    assert done.exit_code == 1 and "name two logs instead" in str(done.exception)


@pytest.mark.parametrize("option", ["task", "scorer", "metric", "side", "errors"])
def test_a_choice_without_effect_is_refused_by_every_reader(tmp_path, monkeypatch, option):
    paths = tmp_path / "a", tmp_path / "b"
    for path in paths:
        path.write_text("MINE")
    for reader in readers.READERS:
        own = reader._replace(
            holds=lambda path, head: head == b"MINE",
            read=lambda path, wanted: path,
            join=lambda *how: {"notes": ()},
        )
        monkeypatch.setattr(readers, "READERS", (own,))
        sides = ("x", "y") if option == "side" else ("", "")
        wanted = Wanted(**({} if option == "side" else {option: "drop"}))
        if option in own.choices:
            assert readers.read_logs(*paths, wanted=wanted, sides=sides)
            continue
        with pytest.raises(ValueError, match="--old x and --new y" if sides[0] else f"--{option}"):
            readers.read_logs(*paths, wanted=wanted, sides=sides)


@pytest.mark.parametrize("reader", readers.READERS, ids=lambda reader: reader.name)
def test_every_choice_is_read_by_its_reader(reader):
    """What a reader says that it follows stands in its source."""
    modules = {module.NAME: module for module in (*readers._CHOICES, readers.lm_eval)}
    source = inspect.getsource(modules[reader.name])
    followed = {one for one in ("task", "scorer", "metric", "side") if f"wanted.{one}" in source}
    assert followed == {*reader.choices} - {"errors"}
