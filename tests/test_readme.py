"""The README says nothing that does not work: its code runs, its links lead on."""

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import layout
import pytest

from compatkit.metrics import FlipCounts
from compatkit.predictions import Predictions

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / ".ci" / "README.md"]


def block(marker):
    """The code block after a marker comment."""
    return re.search(rf"<!-- {marker} -->\n```\w+\n(.*?)```", README, re.S)[1]


def part(name):
    """What stands between a marker and its end."""
    return (
        (README + CONTRIBUTING)
        .partition(f"<!-- written: {name} -->\n")[2]
        .partition("<!-- end -->")[0]
    )


@pytest.fixture
def clone(tmp_path, monkeypatch):
    """The working folder, with the examples of a clone."""
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_it_is_read_in_three_minutes():
    assert len(README.splitlines()) <= 130
    for name, most in (("claims", 12), ("methods", 8)):
        assert sum(line.startswith("|") for line in part(name).splitlines()) - 2 <= most


def test_the_ten_lines_run_as_printed(clone, capsys):
    code = block("ten lines")
    assert len([line for line in code.splitlines() if line.strip()]) <= 10
    exec(compile(code, "README", "exec"), {})
    old = Predictions.load("examples/logits/old.csv")
    new, mended = Predictions.load("examples/logits/new.csv"), Predictions.load("mended.parquet")
    rates = [f"{FlipCounts.between(old, after).nfr:.1%}" for after in (mended, new)]
    assert f"NFR {FlipCounts.between(old, new).nfr:.2%}" in capsys.readouterr().out
    assert all(rate.replace("%", " %") in README for rate in rates)


def test_the_own_case_runs_as_printed(clone, capsys):
    exec(compile(block("own case"), "README", "exec"), {})
    assert capsys.readouterr().out.startswith("old → new: ")


@pytest.mark.parametrize("command", re.findall(r"^```bash\n(compatkit .+)\n```", README, re.M))
def test_the_commands_run_as_printed(clone, command):
    _, *arguments = shlex.split(command)
    done = subprocess.run(
        [sys.executable, "-m", "compatkit.cli", *arguments], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert "--out" not in arguments or (clone / arguments[arguments.index("--out") + 1]).exists()


def test_the_example_logits_are_those_of_the_seed(clone):
    folder = clone / "examples" / "logits"
    committed = {path.name: path.read_bytes() for path in folder.glob("*.csv")}
    subprocess.run([sys.executable, str(folder / "make.py")], check=True)
    assert {path.name: path.read_bytes() for path in folder.glob("*.csv")} == committed
    assert set(committed) == {"old.csv", "new.csv", "labelled.csv"}


def test_what_is_written_by_the_script_is_todays():
    command = [sys.executable, str(ROOT / ".ci" / "readme.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("page", "target"),
    [
        (page, target)
        for page in PAGES
        for target in sorted(set(re.findall(r"\]\(([^)#:]+)\)", page.read_text(encoding="utf-8"))))
    ],
    ids=str,
)
def test_links_lead_to_files(page, target):
    assert (page.parent / target).exists()


@pytest.mark.parametrize(
    ("page", "name"),
    [
        (page, name)
        for page in PAGES
        for name in sorted(
            set(
                re.findall(
                    r"`((?:nbs|tests|results|\.ci|compatkit)/[\w./]+\w)`",
                    page.read_text(encoding="utf-8"),
                )
            )
        )
    ],
    ids=str,
)
def test_named_files_exist(page, name):
    assert (ROOT / name).exists()


def test_the_map_names_every_notebook_or_counts_them():
    names = set(layout.notebooks(ROOT))
    named = set(re.findall(r"\(nbs/([\w/]+)\.ipynb\)", part("map"))) & names
    for place in {layout.place_of(name) for name in names - named}:
        inside = [name for name in names if layout.place_of(name) == place and name != place]
        (row,) = [line for line in part("map").splitlines() if line.startswith(f"| `{place}` |")]
        assert len(inside) > layout.SHOWN and f"| {len(inside)}: [" in row, row


def test_the_papers_and_the_talk_are_linked():
    for number in ("2011.09161", "2302.02080", "2301.10546", "2407.09435"):
        assert f"https://arxiv.org/abs/{number}" in README
        assert f"https://arxiv.org/abs/{number}" in (ROOT / "CITATION.cff").read_text()
    assert "Model Update Regression" in README


def test_the_first_two_commands_are_single_lines():
    blocks = re.findall(r"```bash\n(.*?)```", README, re.S)
    assert all(len(lines.strip().splitlines()) == 1 for lines in blocks[:2])


def test_what_only_compares_is_installed_from_core():
    assert "`pip install --no-compile ./core`" in README
    assert (ROOT / "core" / "setup.py").exists()
