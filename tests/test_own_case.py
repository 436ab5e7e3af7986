"""The notebook on a user's files: every treatment that applies by one command, and what is wrong
named at once.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from notebook_cells import refusals
from own_files import SPLITS, folder, old_answers, task  # noqa: F401 (fixtures)

ROOT = Path(__file__).resolve().parent.parent


def papermill(tmp_path, *parameters):
    options = [part for name, given in parameters for part in ("-p", name, str(given))]
    command = [
        sys.executable,
        "-m",
        "papermill",
        str(ROOT / "nbs" / "own_case.ipynb"),
        str(tmp_path / "out.ipynb"),
        "--engine",
        "compatkit",
        "--no-progress-bar",
    ]
    return subprocess.run(
        [*command, *options],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )


@pytest.fixture
def files(task, folder, tmp_path):
    """What a user has: a csv, a parquet file and a folder."""
    lines = ["id,text,label,split"]
    for split in SPLITS:
        rows = getattr(task, split)
        lines += [
            f'{one},"{words}",{task.classes[right]},{split}'
            for one, words, right in zip(rows["id"], rows[task.text_fields[0]], rows["label"])
        ]
    (tmp_path / "my.csv").write_text("\n".join(lines) + "\n")
    old_answers(task).save(tmp_path / "old.parquet")
    return [
        ("data_file", tmp_path / "my.csv"),
        ("old_predictions", tmp_path / "old.parquet"),
        ("new_model", folder),
        ("max_steps", 2),
    ]


def outputs_of(path):
    cells = json.loads(path.read_text())["cells"]
    return " ".join(
        "".join(part)
        for cell in cells
        for output in cell.get("outputs", [])
        for part in [
            output.get("text", ""),
            *(output.get("data", {}).get(kind, "") for kind in ("text/html", "text/plain")),
        ]
    )


def test_the_command_runs_everything_that_applies(files, folder, tmp_path):
    done = papermill(tmp_path, *files, ("old_model", folder))
    assert done.returncode == 0, done.stderr[-3000:]
    shown = outputs_of(tmp_path / "out.ipynb")
    for method in (
        "old-new probabilities",
        "old-new logits",
        "BCWI",
        "trained on",
        "dynamic distillation",
        "focal distillation",
        "gated fusion",
        "Recommended:",
    ):
        assert method in shown, method
    assert "Not tried: decision rule, certified" in shown  # so few examples certify nothing
    assert "Recommended:" in done.stderr  # in the terminal, too


def test_answers_without_logits_leave_the_rule(files, task, tmp_path):
    old_answers(task, logits=False).save(tmp_path / "names.csv")
    done = papermill(
        tmp_path,
        *(one for one in files if one[0] != "old_predictions"),
        ("old_predictions", tmp_path / "names.csv"),
    )
    assert done.returncode == 0, done.stderr[-3000:]
    tried, _, left_out = " ".join(done.stderr.split()).partition("Not tried:")
    assert "decision rule (NFR" in tried
    assert "old–new mixtures" in left_out and "distillation and gated fusion" in left_out


def test_bad_input_is_named(files):
    wrong = {
        "new_model = '': a case of your own needs": {"new_model": ""},
        "new_model = '/nowhere'": {"new_model": "/nowhere"},
        "there is no such file": {"data_file": "/nowhere.csv"},
        "nowhere.parquet": {"old_predictions": "/nowhere.parquet"},
        "at least 2": {"epochs": 1},
        "lable": {"label": "lable"},
    }
    given = {
        words: {name: str(value) if isinstance(value, Path) else value for name, value in files}
        | change
        for words, change in wrong.items()
    }
    for words, (error, message) in refusals("own_case", given).items():
        assert words in message, (words, error, message)
