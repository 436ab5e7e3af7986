"""How Sphinx makes the site of what .ci/site.py prepared: mathematics as MathML, its own font,
comments of parameters.
"""

import configparser
import gc
import posixpath
import re
import sys
from functools import cache, cached_property
from importlib.resources import files
from inspect import isclass, isroutine
from io import BytesIO
from logging import WARNING, getLogger
from pathlib import Path
from unicodedata import normalize

from docutils import nodes
from fastcore.docments import docments
from fontTools import subset, ttLib
from furo.navigation import get_navigation_tree
from math_core import LatexError, LatexToMathML
from sphinx.environment.adapters.toctree import global_toctree_for_doc
from sphinx.search.en import SearchEnglish
from sphinx.util import logging

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))
settings = configparser.ConfigParser(interpolation=None)
settings.read(ROOT / "settings.ini", encoding="utf-8")
settings = settings["DEFAULT"]

project, author, version = settings["title"], settings["author"], settings["version"]
copyright = settings["copyright"]
html_title = project
extensions = ["myst_nb", "sphinx.ext.autodoc"]
# an annotation names a class without its module, and three modules have a class Source
suppress_warnings = ["ref.python"]

# notebooks: shown as they were saved
nb_execution_mode = "off"
nb_render_markdown_format = "gfm"
myst_enable_extensions = ["dollarmath"]
myst_dmath_double_inline = True
myst_heading_anchors = 3

# docstrings: what stands in single backticks is code, and a link where it names something of the
# library
default_role = "py:obj"
autodoc_default_options = {"members": True, "undoc-members": True, "member-order": "bysource"}
autodoc_preserve_defaults = True
maximum_signature_line_length = 88

html_theme = "furo"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_copy_source = False
SearchEnglish.stem = cache(SearchEnglish.stem)  # Sphinx remembers a word's stem for one page only
html_search_scorer = str(Path(__file__).with_name("scorer.js"))
html_show_sphinx = False
html_math_renderer = "mathml"

# the trees of all pages stay alive to the end: collecting garbage took a sixth of the build
gc.disable()

LOG = logging.getLogger(__name__)
getLogger("fontTools").setLevel(WARNING)  # it tells every table that it touches
TO_MATHML = LatexToMathML(fancy_error=False)
CHARACTERS = {
    "√"
    # of all formulas: the font keeps these; a root is an element without a character, and drawn
    # with
    # this one
}


def write_formula(writer, node, display):
    """A formula as MathML, which browsers show by themselves; one that cannot be read is a
    warning, so it fails the build.
    """
    try:
        text = TO_MATHML.convert_with_local_state(node.astext(), displaystyle=display)
    except LatexError as error:
        LOG.warning("not a formula: %s: %s", node.astext(), error, location=node)
        text = ""
    CHARACTERS.update(text)
    writer.body.append(f'<div class="formula">{text}</div>' if display else text)
    raise nodes.SkipNode


def write_font(app, exception):
    """The formulas' own font, cut to the characters in use: a system need not have one whose
    braces and roots grow.
    """
    if exception:
        return
    italics = {
        character
        for character in map(chr, range(0x1D434, 0x1D71C))
        if normalize("NFKC", character) in CHARACTERS
    }
    font = ttLib.TTFont(
        BytesIO((files("ziamath") / "fonts" / "STIXTwoMath-Regular.ttf").read_bytes())
    )
    cutter = subset.Subsetter(subset.Options(layout_features=["ssty"], hinting=False))
    cutter.populate(text="".join(CHARACTERS | italics | {"ℎ"}))
    cutter.subset(font)
    font.flavor = "woff"
    font.save(app.outdir / "_static" / "mathematics.woff")


def sidebar(app):
    """The sidebar's tree with addresses from the site's root, made once: Sphinx would make it
    anew for each of some two hundred pages, which took most of the build.
    """
    if not hasattr(app, "own_sidebar"):
        tree = global_toctree_for_doc(
            app.env,
            app.config.root_doc,
            app.builder,
            tags=app.tags,
            collapse=False,
            titles_only=True,
            maxdepth=-1,
            includehidden=True,
        )
        made = app.builder.render_partial(tree)["fragment"] if tree is not None else ""
        app.own_sidebar = get_navigation_tree(made)
    return app.own_sidebar


def seen_from(tree, page):
    """The tree as a page shows it: addresses from its folder, itself marked, its branch open."""
    here = f"{page}.html"

    def link(match):
        there = match[1]
        if there.startswith(("#", "http")):
            return match[0]
        return f'href="{posixpath.relpath(there, posixpath.dirname(page) or ".")}"'

    lines = tree.split("\n")
    own = next((n for n, line in enumerate(lines) if f'href="{here}"' in line), None)
    if own is not None:
        marked = lines[own].replace(f'href="{here}"', 'href="#"', 1)
        marked = marked.replace('<li class="', '<li class="current current-page ', 1)
        lines[own] = marked.replace('<a class="', '<a class="current ', 1)
        inner = "toctree-l2" in lines[own]
        above = (n for n in range(own, -1, -1) if "toctree-l1" in lines[n])
        branch = next(above) if inner else own
        lines[branch] = lines[branch].replace("<input ", '<input checked="" ', 1)
    return re.sub(r'href="([^"]*)"', link, "\n".join(lines))


def no_tree(app, page, template, context, doctree):
    """Before the theme makes its own."""
    context["toctree"] = lambda **options: ""


def own_tree(app, page, template, context, doctree):
    """After it."""
    context["furo_navigation_tree"] = seen_from(sidebar(app), page)


def plain(line):
    """A name that ends in an underscore is no link, as long as it stands outside of code."""
    parts = line.split("`")
    parts[::2] = [re.sub(r"(?<=\w)_(?!\w)", r"\\_", part) for part in parts[::2]]
    return "`".join(parts)


def add_comments(app, what, name, thing, options, lines):
    """What stands beside parameters and fields in the source, as nbdev reads it."""
    lines[:] = [plain(line) for line in lines]
    if what not in ("function", "method", "class"):
        return
    try:
        comments = docments(thing)
    except (TypeError, ValueError, OSError):  # no source to read
        return
    found = [
        f":param {parameter}: {plain(' '.join(text.split()))}"
        for parameter, text in comments.items()
        if text and parameter not in ("self", "return")
    ]
    lines += ["", *found] if found else []


def leave_out(app, what, name, thing, skip, options):
    """Fields stand in the signature and among the parameters already."""
    told = isroutine(thing) or isclass(thing) or isinstance(thing, (property, cached_property))
    return True if what == "class" and not told else None


def setup(app):
    app.add_html_math_renderer(
        "mathml",
        (lambda writer, node: write_formula(writer, node, False), None),
        (lambda writer, node: write_formula(writer, node, True), None),
    )
    app.connect("autodoc-process-docstring", add_comments)
    app.connect("autodoc-skip-member", leave_out)
    app.connect("html-page-context", no_tree, priority=100)
    app.connect("html-page-context", own_tree, priority=900)
    app.connect("build-finished", write_font)
