"""compatkit-core: compatkit's modules, with the requirements of comparing and deciding only."""

import runpy
from pathlib import Path

from setuptools import setup

distribution = runpy.run_path(str(Path(__file__).resolve().parent.parent / "setup.py"))
setup(**distribution["core"](distribution["settings"]()) | {"package_dir": {"": ".."}})
