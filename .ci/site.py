#!/usr/bin/env python3
"""Build the site: the notebooks as pages with their saved outputs, the results, the interface from docstrings.

`.ci/site.py` writes to _site/, `.ci/site.py FOLDER` elsewhere. Nothing is executed, nothing is asked of the network, and
a warning (a broken reference, a formula that cannot be read) fails the build. New notebook: add it to GROUPS.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
HOME = "index"  # the guide, the first page
GROUPS = {  # the sidebar, from top to bottom; foundations by floor
    "The methods": "gated_fusion distillation ensembles bcwi landscape muscle decisions own_case",
    "Comparing versions": "report comparison versions page cli serving inputs slices policy",
    "The papers' tables": "tables catalogue claims results",
    "Foundations": "predictions hub sections binomial data models images runs sources joins samples "
    "fisher checkpoints questions distributions spans metrics training updates language "
    "regularizers rebasin adapters recipes upgrades",
    "What it costs": "benchmarks",
}
NO_BREAK = "\u00a0"  # a space at which no line ends
DIRECTIVE = re.compile(r"\s*#\s*\|\s*(.*)")
MENTION = re.compile(r"(?<!\[)`(?:nbs/)?(\w+)\.ipynb`|(?<=\broom )`(\w+)`")


def use_the_environment():
    """Started with a Python that lacks Sphinx: go on with the one of the environment that .ci/test.sh makes."""
    try:
        import sphinx  # noqa: F401
    except ImportError:
        python = ROOT / os.environ.get("VENV", ".venv") / "bin" / "python"
        if not python.exists() or Path(sys.executable) == python:
            sys.exit(f"sphinx is missing and there is no {python}; run `bash .ci/test.sh` first")
        os.execv(python, [str(python), *sys.argv])


def in_groups(names):
    """Caption → names of notebooks. ValueError for a notebook that is in none or in several, or one that is not there."""
    groups = {caption: group.split() for caption, group in GROUPS.items()}
    listed = [name for group in groups.values() for name in group]
    if missing := sorted(set(names) - {*listed, HOME}):
        raise ValueError(
            f"in no group of the site: {', '.join(missing)}; add to GROUPS in .ci/site.py"
        )
    if twice := sorted({name for name in listed if listed.count(name) > 1}):
        raise ValueError(
            f"in several groups of the site: {', '.join(twice)}; leave one each in GROUPS in .ci/site.py"
        )
    if gone := sorted(set(listed) - set(names)):
        raise ValueError(f"not in nbs/: {', '.join(gone)}; take out of GROUPS in .ci/site.py")
    return groups


def without_directives(source):
    """A code cell's source without the directives at its top and what they were, such as ['export']."""
    lines, found = source.split("\n"), []
    while lines and (match := DIRECTIVE.fullmatch(lines[0])):
        found.append(match[1].strip())
        lines.pop(0)
    return "\n".join(lines).strip("\n"), found


def linked(text, names):
    """Markdown in which a notebook named as `nbs/metrics.ipynb` or room `metrics` is a link to its page."""

    def link(match):
        name = match[1] or match[2]
        return f"[{match[0]}](/{name}.ipynb)" if name in names else match[0]

    return MENTION.sub(link, text)


def unbroken(text):
    """The same with means and their spreads kept on one line."""
    return text.replace(" ± ", f"{NO_BREAK}±{NO_BREAK}")


def pages_cells(cells, names):
    """The cells that a page shows, and the module that they export, if any."""
    kept, module = [], None
    for cell in cells:
        if cell.cell_type == "code":
            cell.source, found = without_directives(cell.source)
            module = next(
                (each.split()[1] for each in found if each.startswith("default_exp ")), module
            )
            if "hide" in found or not cell.source:
                continue
            for output in cell.outputs:
                shown = output.get("data", {})
                shown.update(
                    {
                        kind: unbroken(shown[kind])
                        for kind in ("text/html", "text/markdown")
                        if kind in shown
                    }
                )
        elif cell.cell_type == "markdown":
            cell.source = linked(cell.source, names)
        kept.append(cell)
    return kept, module


def with_link(text, module):
    """The first cell with a link to the module's page after the title and the claim."""
    link = f"Its functions and classes on one page: [compatkit.{module}](/api/{module}.md)"
    return re.sub(r"\A(# .*\n+(?:>.*(?:\n|\Z))*)", rf"\1\n\n{link}\n", text, count=1)


def toctree(entries, caption=None):
    """The directive that puts pages into the sidebar."""
    options = [":hidden:", ":titlesonly:", *([f":caption: {caption}"] if caption else [])]
    return "\n".join(["```{toctree}", *options, "", *entries, "```", ""])


def write_notebooks(target):
    """Every notebook of nbs/ as the page that Sphinx reads; the guide gets the sidebar. ValueError as in_groups."""
    import nbformat

    paths = sorted((ROOT / "nbs").glob("*.ipynb"))
    names = {path.stem for path in paths}
    trees = [toctree(group, caption) for caption, group in in_groups(names).items()]
    trees.append(toctree(["measured/index", "api/index"], "Reference"))
    for path in paths:
        notebook = nbformat.read(path, as_version=4)
        notebook.cells, module = pages_cells(notebook.cells, names)
        if module:
            notebook.cells[0].source = with_link(notebook.cells[0].source, module)
        if path.stem == HOME:
            notebook.cells.append(nbformat.v4.new_markdown_cell("\n".join(trees)))
        notebook.metadata["language_info"] = {"name": "python", "pygments_lexer": "ipython3"}
        nbformat.write(notebook, target / path.name)


def write_measured(target, names):
    """The README's results: an overview with the papers' claims, and a page for each table with its pictures and records."""
    from compatkit.experiments.result_tables import load_table, results_markdown

    paths = sorted((ROOT / "results" / "tables").glob("*.json"))
    pictures = {
        picture: owner(picture.stem, [path.stem for path in paths])
        for picture in (ROOT / "results" / "pictures").glob("*.svg")
    }
    target.mkdir()
    for path in paths:
        shown = [picture for picture in sorted(pictures) if pictures[picture] == path.stem]
        for picture in shown:
            shutil.copy(picture, target)
        (target / f"{path.stem}.md").write_text(
            table_page(load_table(path), [picture.name for picture in shown]), encoding="utf-8"
        )
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    introduction = readme.partition("## Results\n")[2].partition("<!-- results")[0]
    claims = (
        readme.partition("<!-- end of results -->")[2]
        .partition("\n## ")[0]
        .replace("\n### ", "\n## ")
    )
    head, line, *lines = (
        results_markdown(ROOT / "results" / "tables").partition("\n\n<details>")[0].split("\n")
    )
    rows = [with_page(unbroken(row), path.stem) for row, path in zip(lines, paths, strict=True)]
    text = "\n".join(
        [
            "# Results",
            linked(introduction, names),
            head,
            line,
            *rows,
            linked(claims, names),
            toctree([path.stem for path in paths]),
        ]
    )
    (target / "index.md").write_text(text, encoding="utf-8")


def with_page(row, name):
    """A row of the overview whose title leads to its table's page and breaks after commas only."""
    title = row.split(" | ")[0].removeprefix("| ")
    return row.replace(
        title, f"[{title.replace(' ', NO_BREAK).replace(f',{NO_BREAK}', ', ')}]({name}.md)", 1
    )


def owner(picture, tables):
    """The table that a picture belongs to: the longest name that its own begins with, or None."""
    return max(
        (name for name in tables if f"{picture}-".startswith(f"{name}-")), key=len, default=None
    )


def table_page(table, pictures):
    """Markdown of one table of results."""
    body = unbroken(table.to_markdown().partition("\n\n")[2])
    records = [
        f"- {row.method}: {', '.join(f'`{one}`' for one in row.records)}"
        for row in table.rows
        if row.records
    ]
    folded = (
        [
            "<details><summary>The runs behind each row, folders of results/</summary>\n",
            *records,
            "\n</details>",
        ]
        if records
        else []
    )
    images = [f"![{table.title}]({picture})\n" for picture in pictures]
    return "\n".join([f"# {table.title}\n", f"`{table.command}`\n", body, "", *images, *folded, ""])


def write_api(target):
    """A page for each module from its docstrings."""
    names = sorted(path.stem for path in (ROOT / "compatkit").glob("[!_]*.py"))
    target.mkdir()
    for name in names:
        text = f"# compatkit.{name}\n\nExplained, shown and checked in the notebook [{name}](/{name}.ipynb).\n\n```{{eval-rst}}\n.. automodule:: compatkit.{name}\n```\n"
        (target / f"{name}.md").write_text(text, encoding="utf-8")
    text = "# Functions and classes\n\n" + "\n".join(
        f"- [compatkit.{name}]({name}.md)" for name in names
    )
    (target / "index.md").write_text(f"{text}\n\n{toctree(names)}", encoding="utf-8")


def prepare(target):
    """Everything that Sphinx reads, in an empty folder. ValueError for a notebook without its group."""
    write_notebooks(target)
    write_measured(target / "measured", {path.stem for path in target.glob("*.ipynb")})
    write_api(target / "api")


def sphinx(source, made):
    """Runs Sphinx; its exit status, 0 only without a warning."""
    command = [
        sys.executable,
        "-m",
        "sphinx",
        "--builder",
        "html",
        "--quiet",
        "--fail-on-warning",
        "--conf-dir",
        str(ROOT / ".ci" / "sphinx"),
    ]
    return subprocess.run(
        [
            *command,
            "--doctree-dir",
            str(made.with_name(f"{made.name}-doctrees")),
            str(source),
            str(made),
        ],
        cwd=ROOT,
    ).returncode


def build(folder):
    """The site in a folder, which is replaced if it holds an earlier one. ValueError for a folder with anything else, or a warning."""
    if folder.exists() and any(folder.iterdir()) and not (folder / "searchindex.js").exists():
        raise ValueError(
            f"{folder} holds something other than a site; name an empty folder or a new one"
        )
    with tempfile.TemporaryDirectory() as scratch:
        source, made = Path(scratch) / "source", Path(scratch) / "site"
        source.mkdir()
        prepare(source)
        if sphinx(source, made):
            raise ValueError("Sphinx warned, see above")
        if folder.exists():
            shutil.rmtree(folder)
        shutil.move(made, folder)


def main(arguments):
    folder = Path(arguments[0]) if arguments else ROOT / "_site"
    if len(arguments) > 1 or str(folder).startswith("-"):
        sys.exit(__doc__)
    sys.path.insert(0, str(ROOT))
    try:
        build(folder)
    except ValueError as error:
        sys.exit(f"the site was not built: {error}")
    print(f"{folder / 'index.html'}: {len(list(folder.rglob('*.html')))} pages")


if __name__ == "__main__":
    use_the_environment()
    main(sys.argv[1:])
