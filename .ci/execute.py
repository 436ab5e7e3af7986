#!/usr/bin/env python3
"""Execute notebooks in place with their default parameters and save outputs fit to be committed.

`.ci/execute.py` runs all notebooks of nbs/, `.ci/execute.py metrics compare/joins` those two.
Cells marked
`#| eval: false` are left alone. Progress bars, error streams and widgets are stripped, the rest
is cleaned as
nbdev_clean does. A notebook is not saved when a cell fails or an output holds a path of this
machine.

`.ci/execute.py benchmarks --only "Proving the tables"` runs one section of a notebook, and saves
its outputs alone: before it the earlier cells run that define the names it uses.
"""

import argparse
import ast
import os
import re
import subprocess
import symtable
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
    from compatkit.experiments.running.published import machine_paths

    for position, cell in enumerate(notebook.cells):
        for output in cell.get("outputs", []):
            texts = [
                output.get("text", ""),
                *(v for k, v in output.get("data", {}).items() if k.startswith("text/")),
            ]
            for text in texts:
                yield from ((position, path) for path in machine_paths("".join(text)))


def section_cells(cells, title):
    """The positions of the code cells below a heading, down to the next heading of its rank;
    ValueError lists the headings for one that is not there.
    """
    headings = {}
    for position, cell in enumerate(cells):
        found = re.match(r"(#+) (.+)", cell.source) if cell.cell_type == "markdown" else None
        if found:
            headings[position] = len(found[1]), found[2].strip()
    starts = [position for position, (_, name) in headings.items() if name == title]
    if len(starts) != 1:
        names = ", ".join(name for _, name in headings.values())
        raise ValueError(f"{len(starts)} sections are called {title!r}; there are {names}")
    rank = headings[starts[0]][0]
    ends = [at for at, (other, _) in headings.items() if at > starts[0] and other <= rank]
    inside = range(starts[0], min(ends, default=len(cells)))
    return [position for position in inside if cells[position].cell_type == "code"]


def names_in(source):
    """(names that a cell defines, names that it takes from earlier cells)."""
    code = re.sub(r"^[%!].*$", "", source, flags=re.M)
    table = symtable.symtable(code, "cell", "exec")
    own = {one.get_name() for one in table.get_symbols() if one.is_assigned() or one.is_imported()}
    scopes, used = [table], set()
    for scope in scopes:  # grows while it is read
        scopes += scope.get_children()
        found = (one for one in scope.get_symbols() if one.is_referenced())
        used |= {one.get_name() for one in found if scope is table or one.is_global()}
    return own, used - {name for name in own if not read_first(name, code)}


def read_first(name, code):
    """Whether a cell reads a name no later than it defines it, as `x = f(x)` does."""
    nodes = [node for node in ast.walk(ast.parse(code)) if getattr(node, "id", "") == name]
    lines = {
        kind: [node.lineno for node in nodes if isinstance(node.ctx, kind)]
        for kind in (ast.Load, ast.Store)
    }
    return bool(lines[ast.Load]) and min(lines[ast.Load]) <= min(lines[ast.Store], default=0)


def with_needed(cells, wanted):
    """The wanted positions and those of the earlier code cells that define what they use."""
    parts = {n: names_in(c.source) for n, c in enumerate(cells) if c.cell_type == "code"}
    found, used = set(wanted), set()
    for position in sorted((n for n in parts if n <= max(wanted)), reverse=True):
        defined, mine = parts[position]
        if position in found or defined & used:
            found.add(position)
            used |= mine
    return sorted(found)


def run_cells(client, cells, title=""):
    """Run the code cells, but for those that are not to be run, and clean their outputs; of one
    section alone where a title is given.
    """
    saved = section_cells(cells, title) if title else range(len(cells))
    runs = with_needed(cells, saved) if title else saved
    with client.setup_kernel():
        for position in runs:
            cell, before = cells[position], cells[position].get("outputs")
            left_out = re.search(r"^#\|\s*eval:\s*false", cell.source, re.M)
            if cell.cell_type == "code" and not left_out:
                client.execute_cell(cell, position)
                cell.outputs = without_progress(cell.outputs) if position in saved else before


def execute(path, title=""):
    """Run one notebook, or a section of it, and write it back with clean outputs; ValueError for
    machine paths.
    """
    import nbformat
    from nbclient import NotebookClient

    from compatkit.experiments.running.papermill_engine import own_kernel_manager

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
    run_cells(client, notebook.cells, title)
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


def main(arguments):
    asked = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    asked.add_argument("notebooks", nargs="*", help="all for none")
    asked.add_argument("--only", default="", metavar="SECTION", help="of one notebook")
    asked = asked.parse_args(arguments)
    if asked.only and len(asked.notebooks) != 1:
        sys.exit("--only is for a section of one notebook: name the notebook too")
    sys.path.insert(0, str(ROOT))
    from house import rooms

    paths = [ROOT / "nbs" / f"{name}.ipynb" for name in chosen(asked.notebooks, rooms(ROOT))]
    failed = []
    for path in paths:
        try:
            execute(path, asked.only)
            print(f"executed {path.relative_to(ROOT)}", flush=True)
        except Exception as error:
            failed.append(path.name)
            print(f"FAILED {path.name}: {error}", file=sys.stderr, flush=True)
    sys.exit(f"not saved: {', '.join(failed)}" if failed else 0)


if __name__ == "__main__":
    use_the_environment("nbdev")
    main(sys.argv[1:])
