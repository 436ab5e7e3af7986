"""What a method notebook answers to its parameters, without waiting for the demonstrations that
stand before them.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SAYS = """
import json, sys
from papermill.iorw import load_notebook_node
from papermill.parameterize import parameterize_notebook

book = load_notebook_node(sys.argv[1])
code = lambda book: [cell.source for cell in book.cells if cell.cell_type == "code"]
start = next(
    number for number, source in enumerate(code(book)) if "names_before(globals())" in source
)
definitions = {"__name__": "__main__", "display": lambda *shown: None}
for source in code(book)[:start]:
    if source.startswith(("#| export", "import ", "from ")):  # demonstrations are left out
        exec(source, definitions)


def stop(*args, **options):
    raise InterruptedError("it would have trained")


definitions |= dict.fromkeys({"train_once", "pretrain_once"} & set(definitions), stop)
if "Study" in definitions:
    definitions["Study"].train = stop
for parameters in json.loads(sys.argv[2]):
    names = dict(definitions)
    try:
        for source in code(parameterize_notebook(book, parameters))[start:]:
            exec(source, names)
    except Exception as error:
        print(json.dumps([type(error).__name__, str(error)]))
"""


def refusals(notebook, given, environment):
    """name → (error, message) for each set of parameters, as papermill would put them in, each
    from fresh definitions.
    """
    clean = {
        name: value
        for name, value in os.environ.items()
        if name not in {"COMPATKIT_DATA", "IN_TEST"}
    }
    command = [
        sys.executable,
        "-c",
        SAYS,
        str(ROOT / "nbs" / f"{notebook}.ipynb"),
        json.dumps(list(given.values())),
    ]
    done = subprocess.run(
        command,
        cwd=ROOT,
        capture_output=True,
        text=True,
        env=clean | {"OMP_NUM_THREADS": "1"} | environment,
    )
    answers = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('["')]
    assert len(answers) == len(given), done.stdout[-2000:] + done.stderr[-3000:]
    return dict(zip(given, answers))
