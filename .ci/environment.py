"""What the scripts of this folder share: they go on with the project's environment when started
by a bare Python.
"""

import os
import sys
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def use_the_environment(package: str) -> None:
    """Where `package` is missing, start again with the Python of the environment that
    .ci/test.sh makes.
    """
    if find_spec(package):
        return
    python = ROOT / os.environ.get("VENV", ".venv") / "bin" / "python"
    if not python.exists() or Path(sys.executable) == python:
        sys.exit(f"{package} is missing and there is no {python}; run `bash .ci/test.sh` first")
    os.execv(python, [str(python), *sys.argv])
