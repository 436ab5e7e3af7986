#!/usr/bin/env python3
"""Execute notebooks in place with their default parameters and save outputs fit to be committed.

`.ci/execute.py` runs all notebooks of nbs/, `.ci/execute.py metrics compare/joins` those two.
Cells marked
`#| eval: false` are left alone. Progress bars, error streams and widgets are stripped, the rest
is cleaned as
nbdev_clean does. A notebook is not saved when a cell fails or an output holds a path of this
machine.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

from environment import ROOT, use_the_environment

PROGRESS = re.compile(r"<progress|\d+%\|[^|]*\|")
UNSEEN = ("application/vnd.jupyter.widget-view+json", "application/vnd.jupyter.widget-state+json")


def without_progress(outputs):
    """Outputs without progress bars, error streams and widgets; neighbouring text is joined."""
    kept = []
    for output in outputs:
        if output.output_type == "stream":
            if output.name == "stderr":
                continue
            if kept and kept[-1].output_type == "stream":
                kept[-1].text += output.text
                continue
        elif any(kind in output.get("data", {}) for kind in UNSEEN):
            continue
        elif PROGRESS.search(str(output.get("data", {}).get("text/html", ""))):
            continue
        kept.append(output)
    for output in kept:
        if (
            output.output_type == "stream"
        ):  # what a carriage return had overwritten was never meant to stay
            lines = [line.rstrip("\r").rpartition("\r")[2] for line in output.text.split("\n")]
            output.text = "\n".join(lines)
    return [output for output in kept if output.output_type != "stream" or output.text.strip()]


def paths_in(notebook):
    """Where outputs hold machine paths: (position of the cell, path)."""
    from compatkit.experiments.published import machine_paths

    for position, cell in enumerate(notebook.cells):
        for output in cell.get("outputs", []):
            texts = [
                output.get("text", ""),
                *(v for k, v in output.get("data", {}).items() if k.startswith("text/")),
            ]
            for text in texts:
                yield from ((position, path) for path in machine_paths("".join(text)))


def run_cells(client, cells):
    """Run the code cells, but for those that are not to be run, and clean their outputs."""
    with client.setup_kernel():
        for position, cell in enumerate(cells):
            left_out = re.search(r"^#\|\s*eval:\s*false", cell.source, re.M)
            if cell.cell_type == "code" and not left_out:
                client.execute_cell(cell, position)
                cell.outputs = without_progress(cell.outputs)


def execute(path):
    """Run one notebook and write it back with clean outputs; ValueError for machine paths."""
    import nbformat
    from nbclient import NotebookClient

    from compatkit.experiments.papermill_engine import own_kernel_manager

    text = path.read_text(encoding="utf-8")
    notebook = nbformat.reads(text, as_version=4)
    resources = {"metadata": {"path": str(ROOT)}}
    client = NotebookClient(
        notebook,
        timeout=None,
        kernel_name="python3",
        resources=resources,
        kernel_manager_class=own_kernel_manager(),
    )
    run_cells(client, notebook.cells)
    notebook.metadata.pop("widgets", None)
    found = [f"cell {position}: {path}" for position, path in paths_in(notebook)]
    if found:
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


def chosen(names, rooms):
    """The notebooks that were asked for: `metrics`, `compare/joins`, `nbs/index.ipynb`; all for
    none.
    """
    asked = [name.removeprefix("nbs/").removesuffix(".ipynb") for name in names]
    found = []
    for name in asked:
        alike = [room for room in rooms if f"/{room}".endswith(f"/{name}")]
        exact = [room for room in alike if room == name] or alike
        if len(exact) != 1:
            sys.exit(
                f"{name}: {' or '.join(exact) if exact else 'there is no such notebook in nbs/'}"
            )
        found += exact
    return found or list(rooms)


def main(names):
    sys.path.insert(0, str(ROOT))
    from compatkit.experiments.house import rooms

    paths = [ROOT / "nbs" / f"{name}.ipynb" for name in chosen(names, rooms(ROOT))]
    failed = []
    for path in paths:
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
