"""The module `papermill_engine`: the command as typed, in a terminal and in a pipe."""

import importlib.metadata
import json
import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from notebook_cells import make_project, write_notebook

from compatkit.experiments.running import papermill_engine

ROOT = Path(__file__).resolve().parents[3]


needs_entry_point = pytest.mark.skipif(
    not any(
        point.value == "compatkit.experiments.running.papermill_engine:papermill_entry.engine"
        for point in importlib.metadata.entry_points(group="papermill.engine")
    ),
    reason="needs the package installed: pip install -e .",
)


def tiny_notebook(path):
    write_notebook(path, 'word = "default"', 'import sys\nprint("word is", word, sys.executable)')
    return path


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A copy of the project, as far as papermill is concerned, with one notebook; runs go where
    they go by default.
    """
    monkeypatch.delenv("COMPATKIT_HOME")
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    root = make_project(tmp_path / "project")
    tiny_notebook(root / "nbs" / "tiny.ipynb")
    return root


def text_of(notebook):
    cells = json.loads(notebook.read_text())["cells"]
    return "".join(
        "".join(output.get("text", "")) for cell in cells for output in cell.get("outputs", [])
    )


def executed(root):
    return sorted((root / "runs" / "notebooks").glob("*.ipynb")) if (root / "runs").exists() else []


PAPERMILL = [str(Path(sys.executable).parent / "papermill")]
AS_MODULE = [sys.executable, "-m", "papermill"]
QUICK = ["--prepare-only", "--no-progress-bar"]  # all of papermill but the kernel


def in_a_terminal(command, folder, stop_at=None):
    """Run a command under a pseudo-terminal: (exit status, all that it showed).

    Where `stop_at` appears, Ctrl-C is pressed, once.
    """
    process, terminal = pty.fork()
    if process == 0:
        os.chdir(folder)
        os.execv(command[0], command)
    shown = b""
    while True:
        try:
            part = os.read(terminal, 4096)
        except OSError:  # the other end is closed
            break
        if not part:
            break
        shown += part
        if stop_at and stop_at.encode() in shown:
            os.write(terminal, b"\x03")
            stop_at = None
    os.close(terminal)
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]), shown.decode(errors="replace")


LOUD = """
import os, time
print("the plan of", word, os.environ["OMP_WAIT_POLICY"], flush=True)
if word == "wrong":
    raise ValueError("no such word; choose default")
if word == "slow":
    time.sleep(60)
"""


def loud(project):
    """The notebook with one cell more before its parameters, and one after, which speaks."""
    path = project / "nbs" / "tiny.ipynb"
    notebook = json.loads(path.read_text())
    first = notebook["cells"][0] | {"id": "first", "source": "print('shown here')", "metadata": {}}
    last = notebook["cells"][1] | {"id": "loud", "source": LOUD, "metadata": {"tags": ["result"]}}
    notebook["cells"] = [first, *notebook["cells"], last]
    path.write_text(json.dumps(notebook))


@needs_entry_point
def test_the_users_command_in_a_terminal(project, tmp_path, monkeypatch):
    # a kernel of the same name, installed long ago for another Python, stands first in the path
    kernel = tmp_path / "jupyter" / "kernels" / "python3"
    kernel.mkdir(parents=True)
    (kernel / "kernel.json").write_text(
        json.dumps(
            {
                "argv": ["/nowhere/python", "-f", "{connection_file}"],
                "display_name": "old",
                "language": "python",
            }
        )
    )
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path / "jupyter"))
    loud(project)
    source = (project / "nbs" / "tiny.ipynb").read_bytes()
    status, shown = in_a_terminal([*PAPERMILL, "nbs/tiny.ipynb", "-p", "word", "mrpc"], project)
    assert status == 0, shown
    (output,) = executed(project)
    assert re.fullmatch(r"tiny-word-mrpc-\d{8}T\d{6}Z-\d+\.ipynb", output.name)
    assert f"word is mrpc {sys.executable}" in text_of(output)
    assert "the executed notebook goes to" in shown
    page = output.with_suffix(".html")  # for those without Jupyter
    assert "word is mrpc" in page.read_text() and page.name in shown
    assert (project / "nbs" / "tiny.ipynb").read_bytes() == source
    # while it runs: what it says, and nothing of papermill's bar or the kernel's warnings
    assert "stop at any time, the same command goes on" in shown
    assert "the plan of mrpc PASSIVE" in shown, "threads that wait sleep"
    assert "shown here" not in shown, "a demonstration before the parameters"
    assert "%|" not in shown and "encryption" not in shown
    assert not output.with_suffix(".kernel.log").exists(), (
        "the kernel had nothing to complain about"
    )


@needs_entry_point
def test_a_log_of_ones_own_beside_the_output_stays(project, tmp_path):
    own = tmp_path / "result.log"
    own.write_text("what a person wrote")
    command = [*PAPERMILL, "nbs/tiny.ipynb", str(tmp_path / "result.ipynb"), "-p", "word", "mrpc"]
    status, shown = in_a_terminal(command, project)
    assert status == 0, shown
    assert own.read_text() == "what a person wrote"


@needs_entry_point
def test_a_stop_is_one_line(project):
    loud(project)
    command = [*PAPERMILL, "nbs/tiny.ipynb", "-p", "word", "slow"]
    status, shown = in_a_terminal(command, project, stop_at="the plan of slow")
    assert status == 1 and "Traceback" not in shown and "Error" not in shown, shown
    after = shown.partition("the plan of slow PASSIVE")[2].replace("^C", "")
    (stopped,) = (line for line in after.splitlines() if line.strip())
    assert stopped.startswith("compatkit: stopped; finished models are kept in ")
    assert stopped.endswith("go on with the same command")


def test_a_stop_in_the_middle_of_a_line_is_said_all_the_same(monkeypatch, capfd):
    class Writing:
        """Standard error while a cell's text is being written: it cannot be entered again."""

        def write(self, text):
            raise RuntimeError("reentrant call")

        flush = write

    ended = []
    monkeypatch.setattr(sys, "stderr", Writing())
    monkeypatch.setattr(papermill_engine.os, "_exit", ended.append)
    papermill_engine._stop(None)
    monkeypatch.undo()
    assert ended == [1]
    assert capfd.readouterr().err.startswith("\ncompatkit: stopped; finished models are kept in ")


@needs_entry_point
def test_a_failed_run_ends_with_its_sentence(project):
    loud(project)
    command = [*PAPERMILL, "nbs/tiny.ipynb", "-p", "word", "wrong"]
    done = subprocess.run(command, cwd=project, input="", capture_output=True, text=True)
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert done.stderr.endswith("\nerror: ValueError: no such word; choose default\n")


def test_debug_leaves_errors_as_papermill_shows_them(monkeypatch):
    import papermill.engines  # noqa: F401  which asks for the engine itself when it is imported

    shown = sys.excepthook
    monkeypatch.setattr(sys, "excepthook", shown)
    monkeypatch.setattr(sys, "argv", ["/bin/papermill", "absent.ipynb", "--debug"])
    papermill_engine.papermill_entry.engine
    assert sys.excepthook is shown and sys.argv == ["/bin/papermill", "absent.ipynb"]


def test_other_errors_are_shown_as_ever(capsys):
    shown = []
    show = papermill_engine.brief_errors(lambda *error: shown.append(error))
    show(ValueError, ValueError("x"), None)
    assert len(shown) == 1 and capsys.readouterr().err == ""


@needs_entry_point
@pytest.mark.parametrize("program", [PAPERMILL, AS_MODULE], ids=["script", "module"])
def test_the_users_command_with_a_pipe_as_input(project, program):
    source = (project / "nbs" / "tiny.ipynb").read_bytes()
    done = subprocess.run(
        [*program, "tiny.ipynb", *QUICK], cwd=project / "nbs", input=b"", capture_output=True
    )
    assert done.returncode == 0, done.stderr.decode()
    assert len(executed(project)) == 1 and done.stdout == b""
    assert (project / "nbs" / "tiny.ipynb").read_bytes() == source


def test_runs_and_notebooks_follow_the_variable(project, tmp_path, monkeypatch):
    monkeypatch.setenv("COMPATKIT_HOME", str(tmp_path / "disk"))
    output, *_ = papermill_engine.papermill_completion([str(project / "nbs" / "tiny.ipynb")])
    assert Path(output).parent == tmp_path / "disk" / "notebooks"


def test_a_notebook_outside_the_project_is_left_to_papermill(tmp_path):
    assert papermill_engine.papermill_completion([str(tiny_notebook(tmp_path / "a.ipynb"))]) == []


def test_a_name_that_is_no_parameter_ends_with_a_sentence(project):
    notebook = nbformat.read(project / "nbs" / "tiny.ipynb", as_version=4)
    notebook.metadata["papermill"] = {"parameters": {"word": "x"}}
    papermill_engine.refuse_early(notebook)
    notebook.metadata["papermill"]["parameters"]["wrod"] = "x"
    told = "error: unknown parameter 'wrod' .did you mean 'word'.*; valid names are word"
    with pytest.raises(SystemExit, match=told):
        papermill_engine.refuse_early(notebook)


METHODS = [
    path.stem
    for path in sorted((ROOT / "nbs").glob("*.ipynb"))
    if "check_parameters(" in path.read_text(encoding="utf-8")
]
RESOLVED = """
import sys, nbformat
from compatkit.experiments.running.papermill_engine import valid_values
for name in sys.argv[1:]:
    notebook = nbformat.read(name, as_version=4)
    tagged = [one for one in notebook.cells if "parameters" in one.metadata.get("tags", ())]
    exec(tagged[0].source, values := {})
    del values["__builtins__"]
    assert set(valid_values(notebook, values)) == set(values), name
assert not {"torch", "transformers", "datasets"} & set(sys.modules), "slow to import"
"""


def test_the_values_of_every_method_are_known_without_torch():
    assert len(METHODS) >= 9
    notebooks = [str(ROOT / "nbs" / f"{name}.ipynb") for name in METHODS]
    command = [sys.executable, "-c", RESOLVED, *notebooks]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr


def with_parameters(name, **given):
    notebook = nbformat.read(ROOT / "nbs" / f"{name}.ipynb", as_version=4)
    notebook.metadata["papermill"] = {"parameters": given}
    return notebook


@pytest.mark.parametrize(
    ("name", "given", "offender"),
    [
        ("gated_fusion", {"task": "mrcp"}, "mrcp"),
        ("bcwi", {"fisher_examples": "last"}, "last"),
        ("retire_the_old", {"students": "selff"}, "selff"),
        ("muscle", {"mask": "wrnog"}, "wrnog"),
        ("decisions", {"max_nfr": 2}, "max_nfr"),
        ("own_case", {"new_model": "somewhere"}, "data_file"),
        ("gated_fusion", {"task": "nowhere.csv"}, "nowhere.csv"),
        ("gated_fusion", {"task": "mrpc", "data_dir": "nowhere"}, "nowhere"),
        ("gated_fusion", {"task": "mrpc", "data_dir": "."}, "mrpc/train.parquet"),
        ("muscle", {"task": "piqa", "data_dir": "."}, "piqa/train.parquet"),
        ("bcwi", {"task": "massive_adddata", "data_dir": "."}, "massive_en/train.parquet"),
        ("distillation", {"task": "imagenet", "data_dir": "."}, "imagenet/train/<class>"),
    ],
)
def test_a_wrong_value_and_missing_data_are_named_before_a_kernel_starts(
    name, given, offender, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(SystemExit, match=re.escape(offender)):
        papermill_engine.refuse_early(with_parameters(name, **given))


@pytest.mark.parametrize("encoder", ["./nowhere", "no-such-package-of-a-model"])
def test_a_missing_encoder_is_named_where_it_would_be_asked(encoder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    (tmp_path / "mrpc").mkdir()
    for split in ("train", "validation"):
        (tmp_path / "mrpc" / f"{split}.parquet").touch()
    given = {"task": "mrpc", "data_dir": ".", "encoder": encoder}
    with pytest.raises(SystemExit, match=encoder):
        papermill_engine.refuse_early(with_parameters("gated_fusion", **given, scale="mini"))
    papermill_engine.refuse_early(with_parameters("gated_fusion", **given, scale="smoke"))
    from_scratch = with_parameters("distillation", **given, scale="mini", table="2a")
    papermill_engine.refuse_early(from_scratch)
    unused = with_parameters("decisions", **given, scale="mini", from_results=False)
    papermill_engine.refuse_early(unused)


def test_right_parameters_pass(tmp_path):
    for name in METHODS:
        papermill_engine.refuse_early(with_parameters(name))


def test_a_definition_that_is_not_read_is_not_run():
    names = papermill_engine.Definitions("a = 1\nb = a + 1\nc = 1 / 0\ndef d(x): return x + b\n")
    assert names["d"](1) == 3 and "c" not in names
    with pytest.raises(ZeroDivisionError):
        names["c"]


def test_the_executed_notebook_begins_with_links_and_has_its_page(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COMPATKIT_RESULTS", str(tmp_path / "kept" / "results"))
    cell, markdown = nbformat.v4.new_code_cell, nbformat.v4.new_markdown_cell
    said = nbformat.v4.new_output("stream", name="stdout", text="all is well")
    result = cell("x", outputs=[said], metadata={"tags": ["result"]})
    notebook = nbformat.v4.new_notebook(cells=[markdown("# tiny"), markdown("## Found"), result])
    notebook.cells[0].source += "\n![flips](../results/a/b.svg)"
    output = tmp_path / "tiny.ipynb"
    papermill_engine._finish(notebook, output)
    assert notebook.cells[0].source == "**tiny.** Go to: [Found](#Found)."
    assert notebook.cells[0].metadata["papermill"]["status"] == "completed"
    assert "all is well" in output.with_suffix(".html").read_text()
    assert "to read in a browser" in capsys.readouterr().err
    assert notebook.cells[1].source.endswith("![flips](kept/results/a/b.svg)")
    foreign = tmp_path / "mine.html"
    foreign.write_text("<p>my own</p>")
    papermill_engine._finish(notebook, tmp_path / "mine.ipynb")
    assert foreign.read_text() == "<p>my own</p>"
    assert f"{foreign} is no page of compatkit's and stays as it is" in capsys.readouterr().err
    papermill_engine._finish(notebook, output)  # our own page is written again
    assert "to read in a browser" in capsys.readouterr().err
    said.output_type = "error"
    papermill_engine._finish(notebook, tmp_path / "failed.ipynb")
    assert len(notebook.cells) == 6 and not (tmp_path / "failed.html").exists()


@needs_entry_point
def test_the_engine_of_our_name_is_known_to_papermill():
    from papermill.engines import NBClientEngine, papermill_engines

    assert issubclass(papermill_engines.get_engine("compatkit"), NBClientEngine)


@pytest.mark.parametrize(
    "arguments, slug",
    [
        (["NB"], "tiny"),
        (["-p", "task", "mrpc", "NB"], "tiny-task-mrpc"),
        (["NB", "-ptask", "mrpc", "-r", "data_dir", "/a b/c"], "tiny-task-mrpc-data_dir-a-b-c"),
        (["--log-output", "NB", "--cwd=nbs", "-k", "python3"], "tiny"),
        (["--", "NB"], "tiny"),
        (["-p", "x", "out.ipynb", "-y", "a: 1", "NB"], "tiny-x-out.ipynb"),
    ],
)
def test_calls_that_get_an_output_path(project, arguments, slug):
    notebook = str(project / "nbs" / "tiny.ipynb")
    output, *rest = papermill_engine.papermill_completion(
        [notebook if part == "NB" else part for part in arguments]
    )
    assert Path(output).parent == project / "runs" / "notebooks"
    assert re.fullmatch(re.escape(slug) + r"-\d{8}T\d{6}Z-\d+\.ipynb", Path(output).name)
    ours = ["--engine", "compatkit", "--no-progress-bar"]
    assert rest == ([] if "-k" in arguments else ours)


@pytest.mark.parametrize("more", [[], ["-k", "python3"], ["--engine", "nbclient"]])
def test_calls_with_an_output_path_get_the_engine_alone(project, more):
    notebook = str(project / "nbs" / "tiny.ipynb")
    added = papermill_engine.papermill_completion([notebook, "out.ipynb", *more])
    assert added == ([] if more else ["--engine", "compatkit", "--no-progress-bar"])


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["-"],
        ["NB", "s3://bucket/out.ipynb"],
        ["NB", "out.ipynb", "more.ipynb"],
        ["NB", "-"],
        ["NB", "--help"],
        ["-h", "NB"],
        ["--version", "NB"],
        ["--help-notebook", "NB"],
        ["NB", "--unknown-option", "x"],
        ["NB", "-p", "task"],
        ["-p", "task", "NB"],
        ["absent.ipynb"],
        ["s3://bucket/tiny.ipynb"],
        ["x" * 5000 + ".ipynb"],
    ],
)
def test_calls_that_are_left_alone(project, arguments):
    notebook = str(project / "nbs" / "tiny.ipynb")
    assert (
        papermill_engine.papermill_completion(
            [notebook if part == "NB" else part for part in arguments]
        )
        == []
    )


def test_our_list_of_papermills_options_is_papermills():
    import click
    from papermill.cli import papermill

    theirs = {}
    for option in papermill.params:
        if isinstance(option, click.Option):
            for name in [*option.opts, *option.secondary_opts]:
                theirs[name] = 0 if option.is_flag else option.nargs
    context = papermill_engine._papermill_arguments([])
    assert context is not None
    for name, count in theirs.items():
        given = papermill_engine._papermill_arguments([name, *["value"] * count, "NB"])
        assert given is not None and given["paths"] == ("NB",), name


def test_other_programs_are_not_touched(project, monkeypatch):
    call = ["python", str(project / "nbs" / "tiny.ipynb")]
    monkeypatch.setattr(sys, "argv", list(call))
    papermill_engine.papermill_entry.engine
    assert sys.argv == call
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    monkeypatch.setattr(sys, "argv", ["/bin/papermill", call[1]])
    papermill_engine.papermill_entry.engine
    assert len(sys.argv) == 6
    papermill_engine.papermill_entry.engine  # a second time changes nothing
    assert len(sys.argv) == 6
