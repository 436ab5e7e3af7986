"""The README says nothing that does not work: its code runs, its links lead on."""

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from compatkit.predictions import Predictions
from compatkit.support import house

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / ".ci" / "README.md"]


def block(marker):
    """The code block after a marker comment."""
    return re.search(rf"<!-- {marker} -->\n```\w+\n(.*?)```", README, re.S)[1]


def part(name):
    """What stands between a marker and its end."""
    return README.partition(f"<!-- written: {name} -->\n")[2].partition("<!-- end -->")[0]


def made_up(seed, share):
    generator = np.random.default_rng(seed)
    label = np.arange(60) % 3
    logits = generator.normal(size=(60, 3)) + share * np.eye(3)[label]
    return Predictions(id=[f"example {n}" for n in range(60)], label=label, logits=logits)


def test_it_is_read_in_three_minutes():
    assert README.count("\n") <= 200
    assert len(part("claims").splitlines()) - 2 <= 15
    assert len(part("methods").splitlines()) - 2 <= 8


def test_the_ten_lines_run_as_printed(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    made_up(0, 1.0).save("old.parquet")
    made_up(1, 2.0).save("new.csv")
    code = block("ten lines")
    assert len([line for line in code.splitlines() if line.strip()]) <= 10
    exec(compile(code, "README", "exec"), {})
    assert "NFR" in capsys.readouterr().out
    assert len(Predictions.load("mended.parquet")) == 60


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


def test_the_map_names_every_room_or_counts_them():
    rooms = set(house.rooms(ROOT))
    named = set(re.findall(r"\(nbs/([\w/]+)\.ipynb\)", part("map"))) & rooms
    for wing in {house.place_of(name) for name in rooms - named}:
        inside = [name for name in rooms if house.place_of(name) == wing and name != wing]
        (row,) = [line for line in part("map").splitlines() if line.startswith(f"| `{wing}` |")]
        assert len(inside) > house.SHOWN and f"{len(inside)} rooms:" in row, row


def test_the_papers_and_the_talk_are_linked():
    for number in ("2011.09161", "2302.02080", "2301.10546", "2407.09435"):
        assert f"https://arxiv.org/abs/{number}" in README
        assert f"https://arxiv.org/abs/{number}" in (ROOT / "CITATION.cff").read_text()
    assert "Model Update Regression" in README


def test_the_first_two_commands_are_single_lines():
    blocks = re.findall(r"```bash\n(.*?)```", README, re.S)
    assert all(len(lines.strip().splitlines()) == 1 for lines in blocks[:2])


def test_what_only_compares_is_installed_from_core():
    assert block("core").split() == ["pip", "install", "--no-compile", "./core"]
    assert (ROOT / "core" / "setup.py").exists()
