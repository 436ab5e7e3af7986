#!/usr/bin/env python3
"""Execute notebooks in place with their default parameters and save outputs fit to be committed.

`.ci/execute.py` runs all notebooks of nbs/, `.ci/execute.py metrics compare/joins` those two.
Cells marked `#| eval: false` are left alone. Progress bars, error streams and widgets are stripped,
the rest is cleaned as nbdev_clean does. A notebook is not saved when a cell fails or an output
holds a path of this machine.
"""

import os
import re
import subprocess
import sys
from itertools import groupby
from pathlib import Path

from environment import ROOT, use_the_environment

UNSEEN = re.compile(r"<progress|\d+%\|[^|]*\||application/vnd.jupyter.widget-(view|state)\+json")


def fit(outputs):
    """Outputs without progress bars, error streams, widgets, empty text and what a carriage return
    had overwritten; neighbouring text is joined.
    """
    outputs = [one for one in outputs if one.get("name") != "stderr" and not unseen(one)]
    for stream, group in groupby(outputs, lambda one: one.output_type == "stream"):
        if not stream:
            yield from group
            continue
        first, *others = group
        text = "".join(one.text for one in (first, *others)).replace("\r\n", "\n")
        first.text = re.sub(r"[^\n]*\r", "", text)
        if first.text.strip():
            yield first


def unseen(output):
    """Whether an output is a progress bar or a widget."""
    return bool(UNSEEN.search(" ".join(map(str, shown(output)))))


def shown(output):
    """The kinds of an output and its text."""
    data = output.get("data", {})
    return [*data, *(text for kind, text in data.items() if kind.startswith("text/"))]


def paths_in(notebook):
    """Where outputs hold machine paths: (position of the cell, path)."""
    from compatkit.experiments.running.published import machine_paths

    for position, cell in enumerate(notebook.cells):
        for output in cell.get("outputs", []):
            for text in [output.get("text", ""), *shown(output)]:
                yield from (f"cell {position}: {path}" for path in machine_paths("".join(text)))


def run_cells(client, cells):
    """Run the code cells, but for those that are not to be run, and clean their outputs."""
    with client.setup_kernel():
        for position, cell in enumerate(cells):
            left_out = re.search(r"^#\|\s*eval:\s*false", cell.source, re.M)
            if cell.cell_type == "code" and not left_out:
                client.execute_cell(cell, position)
                cell.outputs = list(fit(cell.outputs))


def execute(path):
    """Run one notebook and write it back with clean outputs; ValueError for machine paths."""
    import nbformat
    from nbclient import NotebookClient

    from compatkit.experiments.running.papermill_engine import own_kernel_manager

    text = path.read_text(encoding="utf-8")
    notebook = nbformat.reads(text, as_version=4)
    client = NotebookClient(
        notebook,
        timeout=None,
        kernel_name="python3",
        resources={"metadata": {"path": str(ROOT)}},
        kernel_manager_class=own_kernel_manager(),
    )
    run_cells(client, notebook.cells)
    notebook.metadata.pop("widgets", None)
    if found := list(paths_in(notebook)):
        raise ValueError(
            f"{path.name} was not saved, its outputs hold machine paths: {'; '.join(found[:5])}"
        )
    if path.read_text(encoding="utf-8") != text:
        raise ValueError(f"{path.name} was edited while it ran, so it was not saved; run it again")
    unfinished = path.with_name(f".{path.name}.unfinished")
    nbformat.write(notebook, unfinished)
    os.replace(unfinished, path)
    subprocess.run(
        [Path(sys.executable).parent / "nbdev_clean", "--fname", str(path)], cwd=ROOT, check=True
    )


def chosen(names, there):
    """The notebooks of those names: `metrics`, `compare/joins`, `nbs/index.ipynb`; all for none."""
    found = []
    for name in (name.removeprefix("nbs/").removesuffix(".ipynb") for name in names):
        alike = [one for one in there if f"/{one}".endswith(f"/{name}")]
        exact = [one for one in alike if one == name] or alike
        if len(exact) != 1:
            sys.exit(f"{name}: {' or '.join(exact) or 'there is no such notebook in nbs/'}")
        found += exact
    return found or list(there)


def main(names):
    sys.path.insert(0, str(ROOT))
    from layout import notebooks

    failed = []
    for path in (ROOT / "nbs" / f"{name}.ipynb" for name in chosen(names, notebooks(ROOT))):
        try:
            execute(path)
            print(f"executed {path.relative_to(ROOT)}", flush=True)
        except Exception as error:
            failed.append(path.name)
            print(f"FAILED {path.name}: {error}", file=sys.stderr, flush=True)
    sys.exit(f"not saved: {', '.join(failed)}" if failed else 0)


if __name__ == "__main__":
    use_the_environment("nbdev")
    main(sys.argv[1:])
