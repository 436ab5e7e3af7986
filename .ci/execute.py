#!/usr/bin/env python3
"""Execute notebooks in place with their default parameters and save outputs fit to be committed.

`.ci/execute.py` runs all notebooks of nbs/, `.ci/execute.py metrics gated_fusion` those two. Cells marked
`#| eval: false` are left alone. Progress bars, error streams and widgets are stripped, the rest is cleaned as
nbdev_clean does. A notebook is not saved when a cell fails or an output holds a path of this machine.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PROGRESS = re.compile(r"<progress|\d+%\|[^|]*\|")
UNSEEN = ("application/vnd.jupyter.widget-view+json", "application/vnd.jupyter.widget-state+json")


def use_the_environment():
    """Started with a Python that lacks nbdev: go on with the one of the environment that .ci/test.sh makes."""
    try:
        import nbdev  # noqa: F401
    except ImportError:
        python = ROOT / os.environ.get("VENV", ".venv") / "bin" / "python"
        if not python.exists() or Path(sys.executable) == python:
            sys.exit(f"nbdev is missing and there is no {python}; run `bash .ci/test.sh` first")
        os.execv(python, [str(python), *sys.argv])


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
    from compatkit.experiments.runs import machine_paths

    for position, cell in enumerate(notebook.cells):
        for output in cell.get("outputs", []):
            texts = [
                output.get("text", ""),
                *(v for k, v in output.get("data", {}).items() if k.startswith("text/")),
            ]
            for text in texts:
                yield from ((position, path) for path in machine_paths("".join(text)))


def execute(path):
    """Run one notebook and write it back with clean outputs; ValueError for machine paths."""
    import nbformat
    from nbclient import NotebookClient

    from compatkit.experiments.runs import own_kernel_manager

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
    with client.setup_kernel():
        for position, cell in enumerate(notebook.cells):
            if cell.cell_type == "code" and not re.search(
                r"^#\|\s*eval:\s*false", cell.source, re.M
            ):
                client.execute_cell(cell, position)
                cell.outputs = without_progress(cell.outputs)
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


def main(names):
    known = sorted((ROOT / "nbs").rglob("[!.]*.ipynb"))
    asked = [
        Path(name).with_suffix("") for name in names
    ]  # metrics, compare/joins, nbs/index.ipynb
    paths = [
        path
        for path in known
        if not asked or any(path.with_suffix("").match(str(one)) for one in asked)
    ]
    missing = [
        str(one) for one in asked if not any(path.with_suffix("").match(str(one)) for path in known)
    ]
    if missing:
        sys.exit(f"there is no {', '.join(missing)} in nbs/")
    failed = []
    for path in paths:
        try:
            execute(path)
            print(f"executed {path.name}", flush=True)
        except Exception as error:
            failed.append(path.name)
            print(f"FAILED {path.name}: {error}", file=sys.stderr, flush=True)
    sys.exit(f"not saved: {', '.join(failed)}" if failed else 0)


if __name__ == "__main__":
    use_the_environment()
    main(sys.argv[1:])
