"""What the scripts of this folder share: they go on with the project's environment when started
by a bare Python.
"""

import os
import sys
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
RESTARTED = "COMPATKIT_RESTARTED"  # so that it goes on once


def use_the_environment(package: str) -> None:
    """Where `package` is missing, start again with the Python of the environment that
    .ci/test.sh makes.
    """
    if find_spec(package):
        return
    python = ROOT / os.environ.get("VENV", ".venv") / "bin" / "python"
    lacks = f"there is no {python}"
    if python.exists():
        if RESTARTED not in os.environ:
            os.execve(python, [str(python), *sys.argv], os.environ | {RESTARTED: "1"})
        lacks = f"{python} does not have it"
    sys.exit(f"{package} is missing, {lacks}: run `bash .ci/test.sh` first")
