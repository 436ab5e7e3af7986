"""The module `pages`: an executed notebook, and what was found so far, as self-contained pages."""

import re
from pathlib import Path

import nbformat
import pytest
from browser import READABLE, complaints, contrast, requests, screen
from matplotlib.figure import Figure

from compatkit.experiments.running import pages

ROOT = Path(__file__).resolve().parents[3]

cell, markdown, output = (
    nbformat.v4.new_code_cell,
    nbformat.v4.new_markdown_cell,
    nbformat.v4.new_output,
)
TABLE = "<table><caption><b>pydoc, table main</b></caption><tr><td>1.83 ± 0.20</td></tr></table>"


def notebook(tags=("result",)):
    """A small executed notebook: prose, an exported cell with a progress bar, a table."""
    bar = output("stream", name="stderr", text="40%|####      | 2/5")
    said = output("stream", name="stdout", text="gated <fusion> is best")
    shown = output("display_data", {"text/html": TABLE, "text/plain": "a table"})
    drawn = output("display_data", {"image/png": "aGVsbG8=\n", "text/plain": "<Figure>"})
    return nbformat.v4.new_notebook(
        cells=[
            markdown("# gated_fusion\n> A gate decides: $g(x) \\cdot z$."),
            cell("#| export\nx = 1", outputs=[bar]),
            markdown("## The table"),
            cell("table", outputs=[said, shown], metadata={"tags": list(tags)}),
            cell("figure", outputs=[drawn]),
        ]
    )


def test_the_result_stands_before_everything_else():
    page = pages.notebook_page(notebook())
    assert "<title>Gated fusion: pydoc, table main</title>" in page
    places = [page.index(text) for text in ("gated &lt;fusion&gt; is best", "1.83 ±", "A gate")]
    assert places == sorted(places) and page.index("<details>") > places[-1]


def test_without_a_result_the_page_follows_the_notebook():
    page = pages.notebook_page(notebook(tags=()))
    assert "<title>gated fusion</title>" in page and 'class="result"' not in page
    assert page.count("1.83 ±") == 1


def test_bars_directives_and_addresses_are_not_on_the_page():
    page = pages.notebook_page(notebook())
    assert "40%" not in page and "export" not in page and "<Figure>" not in page
    assert not re.findall(r"(?:src|href)=\"(?!data:|#)", page) and "<script" not in page
    assert 'src="data:image/png;base64,aGVsbG8="' in page
    assert 'name="viewport"' in page


def test_an_error_is_shown_without_its_colours():
    broken = notebook()
    error = output("error", ename="ValueError", evalue="\x1b[31mno <data>\x1b[0m", traceback=[])
    broken.cells[1].outputs = [error]
    assert "ValueError: no &lt;data&gt;" in pages.notebook_page(broken)


@pytest.mark.parametrize(
    ("text", "formulas"),
    [
        ("the share $\\frac{1}{2}$ of $x$", 2),
        ("$$x^2$$ and `$HOME/$USER`", 1),
        ("```\n$a$ and $b$\n```", 0),
        ("it costs 5$ or 6$", 0),
        ("$\\nonsense$", 0),
    ],
)
def test_formulas_become_mathml_and_code_stays(text, formulas):
    made = pages.with_formulas(text)
    assert made.count("<math") == formulas
    assert formulas or made == text


def test_what_was_found_so_far_has_a_page():
    class Table:
        def _repr_html_(self):
            return TABLE

    figure = Figure(figsize=(2, 1))
    figure.subplots().plot([0, 1], [1, 0])
    page = pages.result_page("mrpc, 1 of 3 seeds", ["Too few <seeds>.", Table(), figure])
    assert "<h1>mrpc, 1 of 3 seeds</h1>" in page and "Too few &lt;seeds&gt;." in page
    assert TABLE in page and page.count("<svg") == 1 and "<?xml" not in page


def test_the_notebook_begins_with_links_to_its_results():
    links = pages.links_to_results(notebook())
    assert links == "**Gated fusion: pydoc, table main.** Go to: [The table](#The-table)."
    assert pages.links_to_results(notebook(tags=())) == ""


@pytest.mark.parametrize("there", (True, False))
def test_a_kept_picture_is_part_of_the_page(there, tmp_path, monkeypatch):
    """A page lies elsewhere than its notebook: a relative address would lead nowhere."""
    monkeypatch.setenv("COMPATKIT_RESULTS", str(tmp_path))
    if there:
        (tmp_path / "study").mkdir()
        (tmp_path / "study" / "table.svg").write_text("<svg/>")
    text = "![flips on pydoc](../results/study/table.svg)\n\n| a | b |\n|---|---|\n| 1 | 2 |"
    made = pages.notebook_page(
        nbformat.v4.new_notebook(cells=[nbformat.v4.new_markdown_cell(text)])
    )
    assert "../results" not in made and "flips on pydoc" in made
    assert ("data:image/svg+xml;base64,PHN2Zy8+" in made) == there == ("<img" in made)
    assert re.search(r'<div class="table"><table>.*</table></div>', made, re.S)


READ = sorted(path.stem for path in (ROOT / "nbs").glob("*.ipynb"))


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("name", READ)
def test_a_page_fits_a_phone_and_can_be_read(name, theme, browser, tmp_path):
    file = tmp_path / "page.html"
    file.write_text(pages.notebook_page(nbformat.read(ROOT / "nbs" / f"{name}.ipynb", 4)), "utf-8")
    screen(browser, width=390, height=800, theme=theme)
    browser.get("about:blank")
    requests(browser)
    browser.get(file.as_uri())
    asked = [one for one in requests(browser) if not one.startswith((file.as_uri(), "data:"))]
    assert not asked and not complaints(browser)
    assert browser.execute_script("return document.documentElement.scrollWidth") <= 390
    faint = [
        (where, round(contrast(*colours), 1))
        for *colours, where in browser.execute_script(READABLE)
        if contrast(*colours) < 4.5
    ]
    assert not faint
