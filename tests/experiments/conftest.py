"""A published study of the embedded task, for tests that tamper with it."""

import shutil
from pathlib import Path

import pytest

from compatkit.experiments.judging.kept_answers import truth_of

ROOT = Path(__file__).resolve().parents[2]
STUDY = "gated-fusion-pydoc"


@pytest.fixture(scope="session")
def truth():
    """The embedded task's labels, loaded once."""
    return truth_of("pydoc")


@pytest.fixture
def study(tmp_path):
    """A copy of a published study that may be tampered with."""
    folder = tmp_path / STUDY
    shutil.copytree(ROOT / "results" / STUDY, folder)
    return folder
