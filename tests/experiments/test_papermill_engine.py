"""The room `papermill_engine`: the command as typed, in a terminal and in a pipe."""

import importlib.metadata
import json
import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest

from compatkit.experiments import papermill_engine


def make_project(folder, name="compatkit"):
    (folder / "nbs").mkdir(parents=True)
    (folder / "settings.ini").write_text(f"[DEFAULT]\nlib_name = {name}\ndescription = 100% text\n")
    return folder


needs_entry_point = pytest.mark.skipif(
    not any(
        point.value == "compatkit.experiments.papermill_engine:papermill_entry.engine"
        for point in importlib.metadata.entry_points(group="papermill.engine")
    ),
    reason="needs the package installed: pip install -e .",
)


def write_notebook(path):
    def cell(source, tags):
        metadata = {"tags": tags} if tags else {}
        fields = {
            "cell_type": "code",
            "execution_count": None,
            "id": f"cell-{len(cells)}",
            "outputs": [],
        }
        cells.append(fields | {"metadata": metadata, "source": source})

    cells = []
    cell('word = "default"', ["parameters"])
    cell('import sys\nprint("word is", word, sys.executable)', None)
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    path.write_text(
        json.dumps(
            {"cells": cells, "metadata": {"kernelspec": kernel}, "nbformat": 4, "nbformat_minor": 5}
        )
    )
    return path


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A copy of the project, as far as papermill is concerned, with one notebook; runs go where
    they go by default.
    """
    monkeypatch.delenv("COMPATKIT_HOME")
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    root = make_project(tmp_path / "project")
    write_notebook(root / "nbs" / "tiny.ipynb")
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


def in_a_terminal(command, folder):
    """Run a command under a pseudo-terminal: (exit status, all that it showed)."""
    control, terminal = pty.openpty()
    process = subprocess.Popen(
        command, cwd=folder, stdin=terminal, stdout=terminal, stderr=terminal
    )
    os.close(terminal)
    shown = b""
    while True:
        try:
            part = os.read(control, 4096)
        except OSError:  # the other end is closed
            break
        if not part:
            break
        shown += part
    os.close(control)
    return process.wait(timeout=60), shown.decode(errors="replace")


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


LOUD = """
import os
print("the plan of", word, os.environ["OMP_WAIT_POLICY"])
if word == "wrong":
    raise ValueError("no such word; choose default")
"""


def loud(project):
    """The notebook with one more cell, which speaks and may fail."""
    path = project / "nbs" / "tiny.ipynb"
    notebook = json.loads(path.read_text())
    first = notebook["cells"][0] | {"id": "first", "source": "print('shown here')", "metadata": {}}
    last = notebook["cells"][1] | {"id": "loud", "source": LOUD}
    notebook["cells"] = [first, *notebook["cells"], last]
    path.write_text(json.dumps(notebook))


@needs_entry_point
def test_the_terminal_shows_what_a_run_says_and_no_warnings(project):
    loud(project)
    done = subprocess.run(
        [*PAPERMILL, "nbs/tiny.ipynb"], cwd=project, input="", capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert "stop at any time, the same command goes on" in done.stderr
    assert (
        "the plan of default PASSIVE" in done.stderr
    )  # while it runs, and threads that wait sleep
    assert "shown here" not in done.stderr  # a demonstration before the parameters
    assert "%|" not in done.stderr and "encryption" not in done.stderr


@needs_entry_point
def test_a_failed_run_ends_with_its_sentence(project):
    loud(project)
    command = [*PAPERMILL, "nbs/tiny.ipynb", "-p", "word", "wrong"]
    done = subprocess.run(command, cwd=project, input="", capture_output=True, text=True)
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert "error: ValueError: no such word; choose default\n" in done.stderr
    done = subprocess.run(
        [*command, "--debug"], cwd=project, input="", capture_output=True, text=True
    )
    assert done.returncode == 1 and "Traceback" in done.stderr


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


@needs_entry_point
def test_runs_and_notebooks_follow_the_variable(project, tmp_path, monkeypatch):
    monkeypatch.setenv("COMPATKIT_HOME", str(tmp_path / "disk"))
    notebook = str(project / "nbs" / "tiny.ipynb")
    subprocess.run(
        [*AS_MODULE, notebook, *QUICK], cwd=tmp_path, input=b"", capture_output=True, check=True
    )
    assert len(list((tmp_path / "disk" / "notebooks").iterdir())) == 1 and executed(project) == []


@needs_entry_point
def test_an_explicit_output_path_works_as_always(project):
    command = [*AS_MODULE, "nbs/tiny.ipynb", "out.ipynb", *QUICK]
    done = subprocess.run(
        command, cwd=project, stdin=subprocess.DEVNULL, capture_output=True, text=True
    )
    assert done.returncode == 0 and (project / "out.ipynb").is_file() and executed(project) == []
    assert "compatkit" not in done.stderr


@needs_entry_point
def test_a_notebook_outside_the_project_is_left_to_papermill(tmp_path):
    write_notebook(tmp_path / "tiny.ipynb")
    status, shown = in_a_terminal([*AS_MODULE, "tiny.ipynb", *QUICK], tmp_path)
    assert status == 2 and "Missing argument 'OUTPUT_PATH'" in shown
    assert [path.name for path in tmp_path.iterdir()] == ["tiny.ipynb"]


@needs_entry_point
def test_a_name_that_is_no_parameter_is_refused_before_any_cell_runs(project):
    done = subprocess.run(
        [*PAPERMILL, "nbs/tiny.ipynb", "-p", "wrod", "x", "--no-progress-bar"],
        cwd=project,
        capture_output=True,
        text=True,
    )
    assert (
        done.returncode == 1
        and "unknown parameter 'wrod' (did you mean 'word'?); valid names are word" in done.stderr
    )
    assert "word is" not in "".join(map(text_of, executed(project)))


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


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["-"],
        ["NB", "out.ipynb"],
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
