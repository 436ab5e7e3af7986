"""What a method notebook answers to its parameters, without waiting for the demonstrations that
stand before them.
"""

import json
import os
import subprocess
import sys
from contextlib import chdir
from pathlib import Path
from unittest.mock import patch

ROOT = Path(__file__).resolve().parent.parent


def make_project(folder, name="compatkit"):
    """The folder of a project, as far as its root is recognised."""
    (folder / "nbs").mkdir(parents=True)
    (folder / "settings.ini").write_text(f"[DEFAULT]\nlib_name = {name}\ndescription = 100% text\n")
    return folder


def write_notebook(path, parameters, code):
    """A notebook of two cells, the first of them its parameters."""
    from nbformat import v4, write

    first = v4.new_code_cell(parameters, metadata={"tags": ["parameters"]})
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    cells = [first, v4.new_code_cell(code)]
    write(v4.new_notebook(cells=cells, metadata={"kernelspec": kernel}), path)


def stop(*args, **options):
    """In place of training."""
    raise InterruptedError("it would have trained")


def definitions_of(sources):
    """The names that the cells before the parameters define; demonstrations are left out."""
    names = {"__name__": "__main__", "display": lambda *shown: None}
    for source in sources:
        if source.startswith(("#| export", "import ", "from ")):
            exec(source, names)
    return names | dict.fromkeys({"train_once", "pretrain_once"} & set(names), stop)


def answers_of(notebook, given):
    """name → (error, message) for each set of parameters, in this process."""
    from papermill.iorw import load_notebook_node
    from papermill.parameterize import parameterize_notebook

    from compatkit.experiments.studies.study import Study

    def code(book):
        return [cell.source for cell in book.cells if cell.cell_type == "code"]

    book, found = load_notebook_node(str(ROOT / "nbs" / f"{notebook}.ipynb")), {}
    start = next(n for n, source in enumerate(code(book)) if "names_before(globals())" in source)
    definitions = definitions_of(code(book)[:start])
    for name, parameters in given.items():
        names = dict(definitions)
        try:
            with patch.object(Study, "train", stop):
                for source in code(parameterize_notebook(book, parameters))[start:]:
                    exec(source, names)
        except Exception as error:
            found[name] = (type(error).__name__, str(error))
    assert found.keys() == given.keys(), "a set of parameters was not refused"
    return found


def refusals(notebook, given):
    """name → (error, message) for each set of parameters, as papermill would put them in, each
    from fresh definitions.
    """
    kept = {
        name: value
        for name, value in os.environ.items()
        if name not in {"COMPATKIT_DATA", "IN_TEST"}
    }
    with patch.dict(os.environ, kept, clear=True), chdir(ROOT):
        return answers_of(notebook, given)


def refusals_elsewhere(notebook, given, environment):
    """The same in a process with another environment, which libraries read when they load."""
    code = "import json, sys, notebook_cells as cells; a, b = sys.argv[1:]; "
    code += "print(json.dumps(cells.refusals(a, json.loads(b))))"
    paths = [environment.get("PYTHONPATH", ""), str(ROOT), str(ROOT / "tests")]
    changed = environment | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(paths)}
    done = subprocess.run(
        [sys.executable, "-c", code, notebook, json.dumps(given)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        env=os.environ | changed,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])
