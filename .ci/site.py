#!/usr/bin/env python3
"""Build the site: the notebooks with their saved outputs, the results, the interface from
docstrings.

`.ci/site.py` writes to _site/, `.ci/site.py FOLDER` elsewhere. Sphinx with myst-nb does the work;
this script prepares what they read. Nothing is executed, nothing is asked of the network, and a
warning (a broken reference, a formula that cannot be read) fails the build. The sidebar comes from
the folders and the notebooks' own first cells (layout.py), so a new notebook needs
no entry here.
"""

import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from environment import ROOT, use_the_environment

NO_BREAK = "\u00a0"  # a space at which no line ends
DIRECTIVE = re.compile(r"\s*#\s*\|\s*(.*)")
MENTION = re.compile(r"(?<!\[)`(?:nbs/)?([\w/]+)\.ipynb`|(?<=\bmodule )`([\w/]+)`")
KEPT = re.compile(r"\]\((?:\.\./)+results/")  # a kept picture in a notebook
PICTURE = re.compile(r"!\[[^]]*\]\(([^)#:]+)\)")


def without_directives(source):
    """A code cell's source without the directives at its top and what they were, such as
    ['export'].
    """
    lines, found = source.split("\n"), []
    while lines and (match := DIRECTIVE.fullmatch(lines[0])):
        found.append(match[1].strip())
        lines.pop(0)
    return "\n".join(lines).strip("\n"), found


def linked(text, names):
    """Markdown in which a notebook named as `nbs/metrics.ipynb` or module `metrics` links to its
    page.
    """
    stems = [name.rpartition("/")[2] for name in names]
    short = {stem: name for stem, name in zip(stems, names, strict=True) if stems.count(stem) == 1}

    def link(match):
        name = match[1] or match[2]
        page = name if name in names else short.get(name)
        return f"[{match[0]}](/{page}.ipynb)" if page else match[0]

    return MENTION.sub(link, text)


def readable(text):
    """The same with means and their spreads, percentages and intervals, on one line, and a dash
    for an undefined number.
    """
    text = re.sub(r"(?<=\d) %", f"{NO_BREAK}%", text)
    text = text.replace(" ± ", f"{NO_BREAK}±{NO_BREAK}").replace("nan – nan", "–")
    text = re.sub(r"(\[[+-]?[\d.]+,) ([+-]?[\d.]+\])(?!\()", rf"\1{NO_BREAK}\2", text)
    return re.sub(r"(<td[^>]*>|\| *)nan(?=</td>| *\|)", r"\1–", text)


def page_cells(cells, names):
    """The cells that a page shows: no directives, nothing hidden, links between notebooks."""
    kept = []
    for cell in cells:
        if cell.cell_type == "code":
            cell.source, directives = without_directives(cell.source)
            if "hide" in directives or not cell.source:
                continue
            if "echo: false" in directives:
                cell.metadata["tags"] = ["remove-input"]
            kept += [cell, *map_cells(cell)]
            for output in cell.outputs:
                shown = output.get("data", {})
                for kind in ("text/html", "text/markdown"):
                    if kind in shown:
                        shown[kind] = readable(shown[kind])
            continue
        if cell.cell_type == "markdown":
            cell.source = KEPT.sub("](/measured/", linked(cell.source, names))
        kept.append(cell)
    return kept


def map_cells(cell):
    """Outputs that link to notebooks, as cells of text: only there does Sphinx follow links."""
    import nbformat

    texts = ["".join(output.get("data", {}).get("text/markdown", "")) for output in cell.outputs]
    if not any(".ipynb)" in text for text in texts):
        return []
    cell.outputs = []
    return [nbformat.v4.new_markdown_cell(text) for text in texts]


def with_link(text, module):
    """The first cell with a link to the module's page after the title and the claim."""
    page = module.replace(".", "/")
    link = f"Its functions and classes on one page: [compatkit.{module}](/api/{page}.md)"
    return re.sub(r"\A(# .*\n+(?:>.*(?:\n|\Z))*)", rf"\1\n\n{link}\n", text, count=1)


def toctree(entries, caption=None):
    """The directive that puts pages into the sidebar."""
    options = [":hidden:", ":titlesonly:", *([f":caption: {caption}"] if caption else [])]
    return "\n".join(["```{toctree}", *options, "", *entries, "```", ""])


def welcome():
    """What the project is, its first command and its picture, from README, for the first page."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    about = text.split("\n\n")[1]
    command = re.search(r"```bash\n.*?\n```", text, re.S)[0]
    picture = re.search(r"!\[([^]]*)\]\(results/([^)]+)\)", text)
    return f"{about}\n\n{command}\n\n![{picture[1]}](/measured/{picture[2]})\n\n*{picture[1]}.*\n"


def write_notebooks(target):
    """Every notebook of nbs/ as the page that Sphinx reads; the guide gets the sidebar."""
    import nbformat
    from layout import HOME, notebooks, sections

    found = notebooks(ROOT)
    trees = [
        toctree([one.name for one in there], caption) for caption, there in sections(ROOT).items()
    ]
    trees.insert(0, toctree(["measured/index", "api/index"], "Reference"))
    for name, one in found.items():
        notebook = nbformat.read(ROOT / "nbs" / f"{name}.ipynb", as_version=4)
        notebook.cells = page_cells(notebook.cells, found)
        if one.module:
            notebook.cells[0].source = with_link(notebook.cells[0].source, one.module)
        if name == HOME:
            notebook.cells.insert(1, nbformat.v4.new_markdown_cell(welcome()))
            notebook.cells.append(nbformat.v4.new_markdown_cell("\n".join(trees)))
        notebook.metadata["language_info"] = {"name": "python", "pygments_lexer": "ipython3"}
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        nbformat.write(notebook, target / f"{name}.ipynb")


def write_measured(target, names):
    """The pages of results/ with their pictures; the overview comes first, the others in its
    order.
    """
    target.mkdir()
    results = ROOT / "results"
    overview = (results / "README.md").read_text(encoding="utf-8")
    pages = sorted(
        results.glob("*.md"),
        key=lambda page: (page.name != "README.md", overview.find(f"({page.name})"), page.name),
    )
    for page in pages:
        text = page.read_text(encoding="utf-8")
        for picture in set(PICTURE.findall(text)):
            (target / picture).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(page.parent / picture, target / picture)
        name = "index" if page.name == "README.md" else page.stem
        text = site_links(readable(linked(text, names)), page)
        (target / f"{name}.md").write_text(with_notebooks(text, page.name), encoding="utf-8")
    others = [page.stem for page in pages if page.name != "README.md"]
    with open(target / "index.md", "a", encoding="utf-8") as index:
        index.write(f"\n\n{toctree(others)}")


def with_notebooks(text, page):
    """A paper's page with links to the notebooks that made its tables, below its title."""
    from compatkit.experiments.judging.result_pages import PAPERS

    paper = next((paper for paper in PAPERS if paper.page == page), None)
    if paper is None:
        return text
    links = ", ".join(f"[{name}](/{name}.ipynb)" for name in paper.notebooks)
    title, _, rest = text.partition("\n")
    return f"{title}\n\nMade by {links}.\n{rest}"


def site_links(text, page):
    """A page's links to files of the project as links to pages of the site, or to the file's
    address.
    """
    from configparser import ConfigParser

    settings = ConfigParser(interpolation=None)
    settings.read(ROOT / "settings.ini", encoding="utf-8")
    address = f"{settings['DEFAULT']['git_url']}/blob/{settings['DEFAULT']['branch']}"

    def link(match):
        before, target, place = match[1], match[2], match[3] or ""
        file = (page.parent / target).resolve()
        inside = file.relative_to(ROOT).as_posix() if file.is_relative_to(ROOT) else target
        if inside == "results/README.md":
            return f"{before}(index.md{place})"
        if file.suffix == ".md" and file.parent == page.parent:
            return match[0]
        if inside.startswith("nbs/") and file.suffix == ".ipynb":
            return f"{before}(/{inside.removeprefix('nbs/')}{place})"
        return f"{before}({address}/{inside}{place})"

    return re.sub(r"((?<!!)\[[^][]*\])\(([^)#:]+)(#[^)]*)?\)", link, text)


def write_api(target):
    """A page for each module from its docstrings."""
    from layout import modules, notebooks

    found = notebooks(ROOT)
    names = sorted(modules(ROOT))
    for name in names:
        module = f"compatkit.{name.replace('/', '.')}"
        text = (
            f"# {module}\n\nExplained, shown and checked in module `{name}`."
            f"\n\n```{{eval-rst}}\n.. automodule:: {module}\n```\n"
        )
        text = linked(text, found)
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        (target / f"{name}.md").write_text(text, encoding="utf-8")
    lines = [f"- [compatkit.{name.replace('/', '.')}]({name}.md)" for name in names]
    text = "\n".join(["# Functions and classes", "", *lines, "", toctree(names)])
    (target / "index.md").write_text(text, encoding="utf-8")


def prepare(target):
    """Everything that Sphinx reads, in an empty folder."""
    from layout import notebooks

    write_notebooks(target)
    write_measured(target / "measured", notebooks(ROOT))
    write_api(target / "api")


def sphinx(source, made):
    """Runs Sphinx; its exit status, 0 only without a warning."""
    words = ["--builder", "html", "--quiet", "--fail-on-warning"]
    words += ["--conf-dir", ROOT / ".ci" / "site_settings"]
    words += ["--doctree-dir", made.with_name(f"{made.name}-doctrees"), source, made]
    command = [sys.executable, "-m", "sphinx", *map(str, words)]
    return subprocess.run(command, cwd=ROOT).returncode


def build(folder):
    """The site in a folder, in place of an earlier one; ValueError for other contents, or a
    warning.
    """
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
    use_the_environment("sphinx")
    main(sys.argv[1:])
