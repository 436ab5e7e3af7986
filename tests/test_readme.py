"""The README says nothing that does not work: its code runs, its links lead somewhere, its tables are those of results/."""

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from compatkit.predictions import Predictions

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


def block(marker):
    """The code block after a marker comment."""
    return re.search(rf"<!-- {marker} -->\n```\w+\n(.*?)```", README, re.S)[1]


def made_up(seed, share):
    generator = np.random.default_rng(seed)
    label = np.arange(60) % 3
    logits = generator.normal(size=(60, 3)) + share * np.eye(3)[label]
    return Predictions(id=[f"example {n}" for n in range(60)], label=label, logits=logits)


def test_the_ten_lines_run_as_printed(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    made_up(0, 1.0).save("old.parquet")
    made_up(1, 2.0).save("new.csv")
    code = block("ten lines")
    assert len([line for line in code.splitlines() if line.strip()]) <= 10
    exec(compile(code, "README", "exec"), {})
    assert "NFR" in capsys.readouterr().out
    assert len(Predictions.load("mended.parquet")) == 60


def test_the_training_lines_run_as_printed(tmp_path, monkeypatch):
    from compatkit.training.tasks import load_task
    from compatkit.training.models import small_classifier, train_tokenizer

    monkeypatch.chdir(tmp_path)
    lines = [f"a {word} film number {n},{word}" for n in range(40) for word in ("good", "bad")]
    Path("examples.csv").write_text("text,label\n" + "\n".join(lines) + "\n")
    tokenizer = train_tokenizer([line.split(",")[0] for line in lines], 100)
    small_classifier(tokenizer, ("bad", "good"), layers=1, width=32).save_pretrained("model")
    tokenizer.save_pretrained("model")
    train = load_task("examples.csv").train
    label = np.asarray(train["label"])
    names = {"old_on_train": Predictions(train["id"], label, logits=np.eye(2)[label])}
    exec(compile(block("training").replace("path/or/hub-id", "model"), "README", "exec"), names)
    assert len(names["mended"]) == len(load_task("examples.csv").test)


def test_the_results_are_those_of_the_results_folder():
    done = subprocess.run(
        [sys.executable, str(ROOT / ".ci" / "readme"), "--check"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("target", sorted(set(re.findall(r"\]\(([^)#:]+)\)", README))))
def test_links_lead_to_files(target):
    assert (ROOT / target).exists()


@pytest.mark.parametrize(
    "name", sorted(set(re.findall(r"`((?:nbs|tests|results|\.ci|compatkit)/[\w./]+\w)`", README)))
)
def test_named_files_exist(name):
    assert (ROOT / name).exists()


def test_the_map_has_every_room():
    rooms = {
        path.stem for path in (ROOT / "compatkit").glob("*.py") if not path.stem.startswith("_")
    }
    assert rooms <= set(re.findall(r"`(\w+)`", README))


def test_the_first_two_commands_are_single_lines():
    blocks = re.findall(r"```bash\n(.*?)```", README, re.S)
    assert all(len(one.strip().splitlines()) == 1 for one in blocks[:2])


ONLY_THESE = """
import importlib.abc, importlib.metadata, re, runpy, sys

def closure(names):
    "The distributions that pip would install for these, without extras."
    found, todo = set(), list(names)
    while todo:
        name = re.sub(r"[-_.]+", "-", todo.pop()).lower()
        if name not in found:
            found.add(name)
            for line in importlib.metadata.requires(name) or ():
                if "extra ==" not in line and "extra==" not in line:
                    one = re.match(r"[\\w.-]+", line)[0]
                    try:
                        importlib.metadata.distribution(one)
                        todo.append(one)
                    except importlib.metadata.PackageNotFoundError:
                        pass  # for another platform
    return found

class Refuse(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if "." not in name and name in FOREIGN:
            raise ModuleNotFoundError(f"{name} is not among those that the README lists", name=name)

kept = closure(HANDFUL) | {"compatkit", "pip", "setuptools"}
named = importlib.metadata.packages_distributions()
FOREIGN = {module for module, owners in named.items() if not {re.sub(r"[-_.]+", "-", one).lower() for one in owners} & kept}
assert {"torch", "transformers", "datasets", "sklearn"} <= FOREIGN
sys.meta_path.insert(0, Refuse())
sys.argv = ["compatkit", *ARGUMENTS]
runpy.run_module("compatkit.cli", run_name="__main__")
"""


@pytest.mark.parametrize(
    "options", [["--json"], ["--html", "page.html"], ["--markdown"]], ids=lambda options: options[0]
)
def test_files_are_compared_with_the_listed_packages_alone(tmp_path, options):
    made_up(0, 1.0).save(tmp_path / "old.parquet")
    made_up(1, 2.0).save(tmp_path / "new.csv")
    handful = block("without torch").split("pip install ")[-1].split()
    assert "torch" not in handful and len(handful) < 10
    code = f"HANDFUL = {handful!r}\nARGUMENTS = {['compare', 'old.parquet', 'new.csv', *options]!r}\n{ONLY_THESE}"
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 0, done.stderr
