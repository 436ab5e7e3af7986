"""Everything about the package stands in settings.ini; this file hands it to setuptools."""

from configparser import ConfigParser
from pathlib import Path

from setuptools import find_packages, setup

here = Path(__file__).parent
parser = ConfigParser(interpolation=None)
parser.read(here / "settings.ini", encoding="utf-8")
settings = parser["DEFAULT"]

setup(
    name=settings["lib_name"],
    version=settings["version"],
    description=settings["description"],
    long_description=(here / "README.md").read_text(encoding="utf-8")
    if (here / "README.md").exists()
    else "",
    long_description_content_type="text/markdown",
    keywords=settings["keywords"].split(),
    author=settings["author"],
    author_email=settings["author_email"],
    license="Apache-2.0",
    url=settings["git_url"],
    python_requires=f">={settings['min_python']}",
    packages=find_packages(include=[settings["lib_path"], f"{settings['lib_path']}.*"]),
    package_data={
        "compatkit.compare": ["page.html", "page.css", "page.js"],
        "compatkit.experiments": ["papers.csv"],
    },
    install_requires=settings["requirements"].split(),
    extras_require={name: settings[f"{name}_requirements"].split() for name in ("dev", "ray")},
    entry_points={
        "console_scripts": ["compatkit = compatkit.cli:main"],
        # papermill loads this before it reads its arguments: `papermill nbs/x.ipynb` then finds its output path
        "papermill.engine": ["compatkit = compatkit.experiments.runs:papermill_entry.engine"],
    },
)
