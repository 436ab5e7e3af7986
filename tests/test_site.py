"""The site: what .ci/site.py makes of the notebooks, and the pages in a browser, offline."""

import os
import re
import subprocess
import sys
from functools import partial
from html.parser import HTMLParser
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from threading import Thread
from urllib.parse import unquote, urlsplit

import layout
import nbformat
import pytest
from browser import READABLE, contrast, requests, screen

ROOT = Path(__file__).resolve().parent.parent
SCRIPT = ROOT / ".ci" / "site.py"
NOTEBOOKS = layout.notebooks(ROOT)
MODULES = set(layout.modules(ROOT))
RESULTS = {page.stem for page in (ROOT / "results").glob("*.md")} - {"README"}
new_code, new_text = nbformat.v4.new_code_cell, nbformat.v4.new_markdown_cell


def loaded():
    """The script as a module; it finds its neighbours in .ci."""
    specification = spec_from_file_location("site_script", SCRIPT)
    module = module_from_spec(specification)
    sys.path.insert(0, str(SCRIPT.parent))
    try:
        specification.loader.exec_module(module)
    finally:
        sys.path.remove(str(SCRIPT.parent))
    return module


site = loaded()


# --- what is prepared ---------------------------------------------


@pytest.mark.parametrize(
    ("source", "shown", "directives"),
    [
        ("#| export\ndef a(): pass", "def a(): pass", ["export"]),
        (
            "#|eval: false\n# | hide\n\nx = 1\n#| not at the top",
            "x = 1\n#| not at the top",
            ["eval: false", "hide"],
        ),
        ("#| default_exp metrics", "", ["default_exp metrics"]),
        ("# a comment\nx = 1", "# a comment\nx = 1", []),
    ],
)
def test_directives_are_taken_off(source, shown, directives):
    assert site.without_directives(source) == (shown, directives)


def test_hidden_and_empty_cells_are_gone():
    cells = [
        new_text("# a"),
        new_code("#| default_exp module"),
        new_code("#| hide\nsecret = 1"),
        new_code("#| export\nx = 1"),
        new_code("#| hide_me_not\ny"),
    ]
    kept = site.page_cells(cells, {})
    assert [cell.source for cell in kept] == ["# a", "x = 1", "y"]


def test_a_cell_may_show_its_output_alone_and_kept_pictures_are_found():
    cells = [new_code("#| echo: false\nx"), new_text("![a](../results/a-b/c.svg)")]
    code, text = site.page_cells(cells, {})
    assert code.source == "x" and code.metadata["tags"] == ["remove-input"]
    assert text.source == "![a](/measured/a-b/c.svg)"


def test_an_undefined_number_is_a_dash():
    assert site.readable("<td>nan</td><td class='a'>nan</td>") == "<td>–</td><td class='a'>–</td>"
    assert site.readable("| nan | 1 | nan |") == "| – | 1 | – |"
    assert site.readable("<td>nan – nan</td>") == "<td>–</td>"
    assert site.readable("| Nancy | nano |") == "| Nancy | nano |"


def test_an_interval_stays_on_one_line():
    assert site.readable("-3.67 [-4.82, -2.52]") == "-3.67 [-4.82,\u00a0-2.52]"
    assert site.readable("95 % of 7 %s") == "95\u00a0% of 7\u00a0%s"
    assert site.readable("[Table 1, 2](a.md) [1, 2](b.md)") == "[Table 1, 2](a.md) [1, 2](b.md)"


def test_pages_of_results_come_in_the_overviews_order(tmp_path):
    site.write_measured(tmp_path / "measured", {})
    index = (tmp_path / "measured" / "index.md").read_text()
    listed = index.rpartition(":titlesonly:")[2].split("```")[0].split()
    assert set(listed) == RESULTS
    places = [index.find(f"({name}.md") for name in listed]
    assert places == sorted(places)


def test_means_and_spreads_of_outputs_stay_on_one_line():
    output = nbformat.v4.new_output(
        "display_data", {"text/html": "<td>1 ± 2</td>", "text/plain": "1 ± 2"}
    )
    kept = site.page_cells([new_code("x", outputs=[output])], {})
    assert kept[0].outputs[0].data == {
        "text/html": "<td>1\u00a0±\u00a02</td>",
        "text/plain": "1 ± 2",
    }


@pytest.mark.parametrize(
    ("text", "page"),
    [
        ("`nbs/metrics.ipynb`", "metrics"),
        ("`metrics.ipynb`", "metrics"),
        ("`nbs/compare/joins.ipynb`", "compare/joins"),
        ("the module `compare/joins`", "compare/joins"),
        ("module `joins`", "compare/joins"),
        ("`metrics`", None),
        ("`nbs/x.ipynb`", None),
        ("module `x`", None),
        ("module `tasks`", None),  # there are two
        ("[`metrics.ipynb`](x)", None),
    ],
)
def test_notebooks_named_in_text_become_links(text, page):
    names = ["metrics", "compare/joins", "training/tasks", "language/tasks"]
    linked = site.linked(text, names)
    assert linked == text if page is None else f"](/{page}.ipynb)" in linked


@pytest.mark.parametrize(
    "text",
    [
        "# a\n\n> claim\n> goes on",
        "# a\n\n> claim\n> goes on\n\nText.",
        "# a\n> claim\n> goes on\n\nText.",
    ],
)
def test_the_link_to_the_functions_stands_below_the_claim(text):
    linked = site.with_link(text, "a")
    assert re.search(
        r"> goes on\n\n+Its functions and classes on one page: "
        r"\[compatkit.a\]\(/api/a.md\)(\n\n+Text\.)?\s*\Z",
        linked,
    )
    assert linked.count("Text.") == text.count("Text.")


@pytest.mark.parametrize(
    ("link", "there"),
    [
        ("[a](../nbs/compare/joins.ipynb)", "[a](/compare/joins.ipynb)"),
        ("[a](README.md)", "[a](index.md)"),
        ("[a](bcwi.md)", "[a](bcwi.md)"),
        ("[a](https://arxiv.org)", "[a](https://arxiv.org)"),
        ("![a](x.svg)", "![a](x.svg)"),
    ],
)
def test_links_of_results_lead_to_pages_of_the_site(link, there):
    assert site.site_links(link, ROOT / "results" / "README.md") == there


def test_links_of_results_to_other_files_lead_to_the_repository():
    address = site.site_links("[a](results.csv)", ROOT / "results" / "README.md")
    assert re.fullmatch(r"\[a\]\(https://[^)]+/blob/main/results/results.csv\)", address)


@pytest.mark.parametrize("environment", ["this", "none", "bare"])
def test_a_bare_python_goes_on_with_the_environment_or_says_what_it_lacks(environment, tmp_path):
    # without site-packages nothing but the standard library is there
    bare = [sys.executable, "-S", "-E"]
    python = tmp_path / "bin" / "python"
    if environment == "bare":
        python.parent.mkdir()
        python.write_text(f'#!/bin/sh\nexec {" ".join(bare)} "$@"\n')
        python.chmod(0o755)
    done = subprocess.run(
        [*bare, str(SCRIPT), "--help"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        env=os.environ | {"VENV": sys.prefix if environment == "this" else str(tmp_path)},
    )
    said = {"this": "Build the site", "none": f"there is no {python}", "bare": f"{python} does not"}
    assert done.returncode == 1 and said[environment] in done.stderr


def test_a_folder_with_something_else_is_left_alone(tmp_path):
    (tmp_path / "thesis.txt").write_text("precious")
    done = subprocess.run(
        [sys.executable, str(SCRIPT), str(tmp_path)], capture_output=True, text=True
    )
    assert done.returncode == 1 and "holds something other than a site" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


def test_a_formula_that_cannot_be_read_and_a_broken_link_fail_the_build(tmp_path, capfd):
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "index.md").write_text(
        "# Title\n\n$\\nonsense{x}$ and $\\hat x$ and [x](missing.ipynb)\n"
    )
    assert site.sphinx(tmp_path / "source", tmp_path / "made") == 1
    told = capfd.readouterr().err
    assert (
        "not a formula: \\nonsense{x}" in told
        and "missing.ipynb" in told
        and told.count("WARNING") == 2
    )


METHODS = ("gated_fusion", "bcwi", "distillation", "muscle", "regularizers", "ensembles")


READ = sorted(path.stem for path in (ROOT / "nbs").glob("*.ipynb"))


@pytest.mark.parametrize("name", READ)
def test_the_first_table_or_picture_comes_within_the_first_third(name):
    cells = nbformat.read(ROOT / "nbs" / f"{name}.ipynb", as_version=4).cells
    lines, first, shown = 0, None, {"text/html", "text/markdown", "image/png", "image/svg+xml"}
    for cell in cells:
        lines += len(cell.source.splitlines())
        kinds = {kind for output in cell.get("outputs", []) for kind in output.get("data", {})}
        drawn = cell.cell_type == "markdown" and re.search(r"^\|---|^!\[", cell.source, re.M)
        if first is None and (drawn or kinds & shown):
            first = lines
    assert first <= lines / 3


@pytest.mark.parametrize("name", [*METHODS[:4], "ensembles", "decisions", "landscape", "own_case"])
def test_the_answer_of_a_notebook_is_marked(name):
    cells = nbformat.read(ROOT / "nbs" / f"{name}.ipynb", as_version=4).cells
    marked = [cell for cell in cells if "result" in cell.metadata.get("tags", ())]
    assert marked and all(cell.cell_type == "code" for cell in marked)


# --- what is built ---------------------------------------------


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The whole site, as the command makes it."""
    folder = tmp_path_factory.mktemp("built") / "site"
    done = subprocess.run(
        [sys.executable, str(SCRIPT), str(folder)],
        capture_output=True,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return folder


class Page(HTMLParser):
    """Targets, names that can be pointed to, what is loaded, and the text of code."""

    def __init__(self, path, sidebar):
        super().__init__()
        self.links, self.names, self.loaded, self.tags = [], set(), [], []
        self.text = path.read_text(encoding="utf-8")
        tree = r'<div class="sidebar-tree">.*?</aside>'
        self.feed(self.text if sidebar else re.sub(tree, "", self.text, count=1, flags=re.S))

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        self.tags.append(tag)
        self.names.add(attributes.get("id"))
        if tag == "a" and "href" in attributes:
            self.links.append(attributes["href"])
        if tag == "link" and attributes.get("rel") not in ("index", "search", "next", "prev"):
            self.loaded.append(attributes["href"])
        if "src" in attributes:
            self.loaded.append(attributes["src"])


# of each depth one; all others have the same sidebar, and two hundred of them take their time
WITH_SIDEBAR = ("index.html", "metrics.html", "compare/report.html", "api/metrics.html")


@pytest.fixture(scope="module")
def pages(built):
    """Address inside the site → the page."""
    found = {path.relative_to(built).as_posix(): path for path in sorted(built.rglob("*.html"))}
    return {here: Page(path, here in WITH_SIDEBAR) for here, path in found.items()}


def test_the_sidebar_marks_the_page_and_opens_its_branch(pages):
    for here in ("compare/report.html", "api/metrics.html"):
        (own,) = re.findall(
            r'<li class="current current-page [^"]*"><a class="current.*', pages[here].text
        )
        assert f'href="#">{"report" if "report" in here else "compatkit.metrics"}</a>' in own
    assert "toctree-checkbox" in pages["index.html"].text
    branches = [page.text.count('<input checked=""') for page in map(pages.get, WITH_SIDEBAR)]
    assert branches == [0, 0, 0, 1]


def test_home_shows_the_first_command_and_the_picture(pages):
    text = re.sub(r"<[^>]*>", "", pages["index.html"].text)
    assert text.index("papermill nbs/gated_fusion.ipynb") < text.index("Three routes")
    before = pages["index.html"].text.partition("Three routes</h2>")[0]
    assert "_images/gated_fusion-pydoc-mini-a-main.svg" in before
    assert "drawing(ROOT)" not in text, "the picture, not the code that draws it"


def test_pages_of_results_lead_to_their_notebooks(pages):
    assert "../gated_fusion.html" in pages["measured/gated-fusion.html"].links


def test_every_notebook_result_and_module_has_its_page(pages):
    wanted = {f"{name}.html" for name in NOTEBOOKS} | {f"measured/{name}.html" for name in RESULTS}
    assert wanted | {f"api/{name}.html" for name in MODULES} <= set(pages)
    for name in MODULES & set(NOTEBOOKS):
        up = "../" * name.count("/")
        assert f"{up}api/{name}.html" in pages[f"{name}.html"].links
        assert f"{up}../{name}.html" in pages[f"api/{name}.html"].links


def test_the_guide_comes_first_and_leads_to_every_notebook(pages):
    assert "three routes through the notebooks" in pages["index.html"].text
    assert {f"{name}.html" for name in set(NOTEBOOKS) - {layout.HOME}} <= set(
        pages["index.html"].links
    )


def test_no_cell_of_a_table_says_nan(pages):
    assert not [here for here, page in pages.items() if re.search(r"<td[^>]*>\s*nan\b", page.text)]


def test_every_internal_link_and_anchor_resolves(pages, built):
    broken = []
    for here, page in pages.items():
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme in ("http", "https", "mailto"):
                continue
            there = (
                os.path.normpath(os.path.join(os.path.dirname(here), unquote(parts.path)))
                if parts.path
                else here
            )
            if (
                not (built / there).is_file()
                or parts.fragment
                and unquote(parts.fragment) not in pages[there].names
            ):
                broken.append((here, link))
    assert not broken


def test_nothing_is_loaded_from_elsewhere(pages, built):
    foreign = re.compile(r"(?:https?:)?//")
    assert not [
        (here, address)
        for here, page in pages.items()
        for address in page.loaded
        if foreign.match(address)
    ]
    for path in [*built.rglob("*.css"), *built.rglob("*.js")]:
        text = path.read_text(encoding="utf-8")
        assert not re.findall(
            r"""(?:url\(|@import |fetch\(|import\()\s*["']?(?:https?:)?//""", text
        ), path.name


def test_no_directive_of_nbdev_is_shown(pages):
    for name in NOTEBOOKS:
        first_lines = re.findall(r"<pre>(?:<span></span>)?(.*)", pages[f"{name}.html"].text)
        assert not [line for line in first_lines if re.sub("<.*?>", "", line).startswith("#|")], (
            name
        )


def test_docstrings_and_comments_of_parameters_are_there(pages):
    text = re.sub(r"<[^>]*>", "", pages["api/metrics.html"].text)
    assert "How many examples fall into each of the five groups" in text
    assert "one number per seed" in text  # the comment beside over_seeds(values)
    assert "Alias for field number" not in text


# --- in a browser ---------------------------------------------


@pytest.fixture(scope="module")
def address(built):
    """Of the built site on this machine."""

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *_):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(built))) as server:
        Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


@pytest.fixture
def show(browser, address):
    """Opens a page; afterwards the browser must have asked nobody but this server."""
    from selenium.webdriver.support.ui import WebDriverWait

    def open_page(page, **how):
        screen(browser, **how)
        browser.get(address + page)
        WebDriverWait(browser, 20).until(  # once, under load, the page before was still there
            lambda running: running.execute_script(
                "return document.readyState === 'complete' && location.href === arguments[0]",
                address + page,
            )
        )
        return browser

    requests(browser)
    yield open_page
    assert not [
        asked
        for asked in requests(browser)
        if not asked.startswith((address, "data:", "blob:", "about:"))
    ]


def test_pictures_load_and_no_page_is_wider_than_a_phone(show, pages):
    chosen = [here for here, page in pages.items() if "img" in page.tags] + [
        "index.html",
        "api/metrics.html",
        "measured/index.html",
        "search.html",
    ]
    seen = 0
    for here in chosen:
        browser = show(here, width=390, height=800)
        missing = browser.execute_script(
            "return [...document.images].filter(i => !i.complete || !i.naturalWidth)"
            ".map(i => i.src)"
        )
        width = browser.execute_script("return document.documentElement.scrollWidth")
        seen += browser.execute_script("return document.images.length")
        assert not missing and width <= 390, (here, width)
    assert seen > 20


def test_mathematics_is_drawn_with_its_own_font(show):
    browser = show("gated_fusion.html")
    browser.execute_async_script("document.fonts.ready.then(arguments[0])")
    heights = browser.execute_script(
        "return [...document.querySelectorAll('.formula math')]"
        ".map(m => m.getBoundingClientRect().height)"
    )
    assert len(heights) >= 2 and min(heights) > 20  # a fraction is higher than a line
    assert browser.execute_script(
        "return [...document.fonts].filter(f => f.family.includes('Site Mathematics'))"
        ".map(f => f.status)"
    ) == ["loaded"]
    assert "$" not in browser.execute_script(
        "return [...document.querySelectorAll('article p')].map(p => p.textContent).join(' ')"
    )


def test_a_search_for_negative_flip_finds_its_definition_first(show):
    from selenium.webdriver.support.ui import WebDriverWait

    browser = show("search.html?q=negative+flip")
    results = (
        "return [...document.querySelectorAll('#search-results li a')]"
        ".map(a => new URL(a.href).pathname + new URL(a.href).hash)"
    )
    found = WebDriverWait(browser, 20).until(lambda running: running.execute_script(results))
    assert found[0] == "/index.html#negative-flip"


def test_code_is_not_cut_on_a_wide_screen(show):
    browser = show("metrics.html", width=1700)
    wider = browser.execute_script(
        "return [...document.querySelectorAll('.cell_input pre')]"
        ".filter(p => p.scrollWidth > p.clientWidth + 1).map(p => p.textContent)"
    )
    assert not wider


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize(
    "page",
    [
        "index.html",
        "compare/report.html",
        "gated_fusion.html",
        "api/metrics.html",
        "measured/index.html",
    ],
)
def test_every_word_is_readable(show, page, theme):
    colours = show(page, theme=theme).execute_script(READABLE)
    assert len(colours) > 4
    assert not [
        (where, round(contrast(colour, ground), 2))
        for colour, ground, where in colours
        if contrast(colour, ground) < 4.5
    ]
