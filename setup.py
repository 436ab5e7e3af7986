"""Everything about the package stands in settings.ini; this file hands it to setuptools.

One tree, two distributions: `pip install .` brings compatkit, the whole library, and
`pip install ./core` brings compatkit-core: the same modules, requiring what comparing needs.
"""

import re
from configparser import ConfigParser, SectionProxy
from pathlib import Path

from setuptools import find_packages, setup

ROOT = Path(__file__).resolve().parent
EXTRAS = ("ray", "lm", "lab", "dev")


def settings() -> SectionProxy:
    """What settings.ini says."""
    parser = ConfigParser(interpolation=None)
    parser.read(ROOT / "settings.ini", encoding="utf-8")
    return parser["DEFAULT"]


def long_description(told: SectionProxy) -> str:
    """README with its relative links made absolute, as a package index has none of the files."""
    readme = ROOT / "README.md"
    text = readme.read_text("utf-8") if readme.exists() else ""
    base = f"{told['git_url']}/{{}}/{told['branch']}/"
    text = re.sub(r"(!\[[^]]*\]\()(?!\w+:|#)", rf"\1{base.format('raw')}", text)
    return re.sub(r"((?<!!)\[[^]]*\]\()(?!\w+:|#)", rf"\1{base.format('blob')}", text)


def shared(told: SectionProxy) -> dict:
    """What both distributions say alike."""
    return {
        "version": told["version"],
        "long_description": long_description(told),
        "long_description_content_type": "text/markdown",
        "keywords": told["keywords"].split(),
        "author": told["author"],
        "author_email": told["author_email"],
        "license": "Apache-2.0",
        "url": told["git_url"],
        "python_requires": f">={told['min_python']}",
        "packages": find_packages(str(ROOT), include=["compatkit", "compatkit.*"]),
        # a plain layout makes an editable installation a plain path: `import compatkit` then finds
        # the package also from the folder above a clone named compatkit
        "package_dir": {"": "."},
        "package_data": {"": ["*.html", "*.css", "*.js", "*.csv", "*.mplstyle", "*.typed"]},
    }


def core(told: SectionProxy) -> dict:
    """compatkit-core: the command, and what it needs to compare and decide."""
    return shared(told) | {
        "name": f"{told['lib_name']}-core",
        "description": f"{told['description']} (comparing and deciding only)",
        "install_requires": told["core_requirements"].split(),
        "entry_points": {"console_scripts": ["compatkit = compatkit.cli:main"]},
    }


def whole(told: SectionProxy) -> dict:
    """compatkit: everything."""
    engine = "compatkit = compatkit.experiments.running.papermill_engine:papermill_entry.engine"
    return shared(told) | {
        "name": told["lib_name"],
        "description": told["description"],
        "install_requires": (told["core_requirements"] + told["requirements"]).split(),
        "extras_require": {name: told[f"{name}_requirements"].split() for name in EXTRAS},
        # papermill loads the engine before it reads its arguments, so that it finds its output path
        "entry_points": core(told)["entry_points"] | {"papermill.engine": [engine]},
    }


if __name__ == "__main__":
    setup(**whole(settings()))
