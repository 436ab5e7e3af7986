"""The command as a process: exit statuses, one-line errors, clean output; and its functions."""

import json
import os
import shlex
import subprocess
import sys

import numpy as np
import pytest

from compatkit import cli
from compatkit.predictions import Predictions, softmax

WORDS = (
    "better and compatible",
    "better but regresses",
    "no measurable difference",
    "worse",
    "too little data",
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Files of 1,000 answers with 25 negative and 80 positive flips, of 20 answers, of scores,
    and one with both columns.
    """
    path = tmp_path_factory.mktemp("files")
    draw = np.random.default_rng(0)
    label = draw.choice(["a", "b", "c"], 1000)
    old = np.where(np.arange(1000) < 800, label, "no")
    new = np.where(np.arange(1000) < 25, "other", np.where(np.arange(1000) < 880, label, "no"))
    columns = {"intent": draw.choice(["x", "y"], 1000), "length": draw.integers(1, 60, 1000)}
    sides = {
        "old": Predictions(np.arange(1000), label, old, columns=columns),
        "new": Predictions(np.arange(1000), label, new),
    }
    third = sides["new"].replace(prediction=old)
    mixed = sides["new"].select(sides["new"].id[draw.permutation(1000)])
    for name, side in (
        *sides.items(),
        ("third", third),
        ("mixed", mixed),
        ("few_old", sides["old"].select(sides["old"].id[:20])),
        (
            "few_new",
            sides["new"]
            .select(sides["new"].id[20:40])
            .replace(id=np.arange(20), label=label[:20], prediction=label[:20]),
        ),
        ("part", sides["new"].select(sides["new"].id[5:])),
    ):
        side.save(path / f"{name}.csv")
    sides["old"].save(path / "old.parquet")
    scores = draw.random(300)
    for name, score in (("old_scores", scores), ("new_scores", scores + 0.02)):
        Predictions(np.arange(300), score=score).save(path / f"{name}.csv")
    (path / "both.csv").write_text(
        "key,y,v1,v2\n"
        + "".join(f"k{i},{y},{o},{n}\n" for i, (y, o, n) in enumerate(zip(label, old, new)))
    )
    (path / "policy.toml").write_text(
        'max_nfr = "4%"\n[[slice]]\nwhere = {intent = "x"}\nmax_nfr = "50%"\n'
    )
    return path


def process(folder, *arguments):
    """The command as a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "compatkit.cli", *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        encoding="utf-8",
    )


@pytest.fixture
def run(monkeypatch, capsys):
    """The command within this process, which takes a tenth of the time; what a process would
    have returned.
    """

    def run_here(folder, *arguments):
        monkeypatch.chdir(folder)
        capsys.readouterr()
        with pytest.raises(SystemExit) as left:
            cli.main(list(arguments))
        return subprocess.CompletedProcess(arguments, left.value.code, *capsys.readouterr())

    return run_here


def fails(done, *parts):
    """One line on the error stream, nothing else, status 2."""
    assert (
        done.returncode == 2
        and done.stdout == ""
        and done.stderr.startswith("error: ")
        and done.stderr.count("\n") == 1
    ), done.stderr
    assert "Traceback" not in done.stderr
    for part in parts:
        assert part in done.stderr
    return done


# --- what it prints -------------------------------------------------------------------------------


def test_the_report(folder):
    done = process(
        folder, "compare", "old.csv", "new.csv", "--slice", "intent", "--slice", "length"
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("old → new: better but regresses\n")
    for part in (
        "25 negative flips",
        "80 positive flips",
        "Negative flip rate (NFR)",
        "Slices by evidence",
        "intent = x",
        "Negative flips\nid ",
    ):
        assert part in done.stdout


def test_json_is_all_there_is(run, folder):
    done = run(
        folder, "compare", "old.csv", "new.csv", "--json", "--slice", "intent", "--max-nfr", "1%"
    )
    found = json.loads(done.stdout)
    assert (
        done.returncode == 1
        and done.stderr == ""
        and found["overall"]["counts"]["negative"] == 25
        and found["gate"]["status"] == "failed"
    )
    assert found["verdict"]["word"] in WORDS and {"intent": "x"} in [
        one["where"] for one in found["slices"]
    ]


def test_markdown_and_quiet(run, folder):
    assert run(folder, "compare", "old.csv", "new.csv", "--markdown").stdout.startswith(
        "### <code>old</code> → <code>new</code>: better but regresses"
    )
    assert (
        run(folder, "compare", "old.csv", "new.csv", "--quiet").stdout == "better but regresses\n"
    )


def test_another_order_and_another_format_give_the_same_bytes(run, folder):
    shown = [
        run(folder, "compare", old, "mixed.csv", "--slice", "length").stdout
        for old in ("old.csv", "old.parquet")
    ]
    assert shown[0] == shown[1]
    first, second = (
        json.loads(run(folder, "compare", old, new, "--json", "--slice", "length").stdout)
        for old, new in (("old.csv", "new.csv"), ("old.parquet", "mixed.csv"))
    )
    assert first.pop("new") == "new" and second.pop("new") == "mixed" and first == second


def test_one_file_with_both_columns(run, folder):
    done = run(
        folder,
        "compare",
        "both.csv",
        "--old",
        "v1",
        "--new",
        "v2",
        "--label",
        "y",
        "--id",
        "key",
        "--json",
    )
    assert (
        json.loads(done.stdout)["overall"]
        == json.loads(run(folder, "compare", "old.csv", "new.csv", "--json").stdout)["overall"]
    )


def test_scores(run, folder):
    found = json.loads(run(folder, "compare", "old_scores.csv", "new_scores.csv", "--json").stdout)
    assert set(found["overall"]) == {"scores"} and found["overall"]["scores"]["pfr"]["value"] == 1


def test_rename(run, folder, tmp_path):
    for name in ("old", "new"):
        header, rest = (folder / f"{name}.csv").read_text().split("\n", 1)
        (tmp_path / f"{name}.csv").write_text(
            header.replace("id", "key").replace("prediction", "answer") + "\n" + rest
        )
    done = run(
        tmp_path,
        "compare",
        "old.csv",
        "new.csv",
        "--rename",
        "prediction=answer",
        "--rename",
        "id=key",
        "--json",
    )
    assert (
        json.loads(done.stdout)["overall"]
        == json.loads(run(folder, "compare", "old.csv", "new.csv", "--json").stdout)["overall"]
    )
    done = run(
        tmp_path,
        "compare",
        "old.csv",
        "new.csv",
        "old.csv",
        "--rename",
        "prediction=answer",
        "--rename",
        "id=key",
        "--json",
    )
    assert json.loads(done.stdout)["nfr"][0] == [0, 0.025, 0]


def test_missing_examples(run, folder):
    fails(
        run(folder, "compare", "old.csv", "part.csv"),
        "'0', '1', '2' and 2 more only in",
        "--on-missing drop",
    )
    done = run(folder, "compare", "old.csv", "part.csv", "--on-missing", "drop", "--json")
    assert (
        json.loads(done.stdout)["left_out"] == {"old only": 5, "new only": 0}
        and done.returncode == 0
    )


def test_the_page(run, folder, tmp_path):
    done = run(
        folder,
        "compare",
        "old.csv",
        "new.csv",
        "--html",
        str(tmp_path / "report.html"),
        "--limit",
        "10",
        "--quiet",
    )
    assert done.returncode == 0 and (tmp_path / "report.html").read_text(
        encoding="utf-8"
    ).startswith("<!")
    assert len(
        (tmp_path / "report-flips.csv").read_text().splitlines()
    ) == 1 + 105 - 10 + both_wrong_different(folder)


def both_wrong_different(folder):
    old, new = (Predictions.load(folder / f"{name}.csv") for name in ("old", "new"))
    return int((~old.correct & ~new.correct & (old.prediction != new.prediction)).sum())


# --- the gate -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options, status",
    [([], 0), (["--max-nfr", "1%"], 1), (["--max-nfr", "1"], 2), (["--policy", "no.toml"], 2)],
)
def test_exit_statuses_of_a_process(folder, options, status):
    done = process(folder, "compare", "old.csv", "new.csv", "--quiet", *options)
    assert (
        done.returncode == status
        and done.stdout == ("" if status == 2 else "better but regresses\n")
        and "Traceback" not in done.stderr
    )


@pytest.mark.parametrize(
    "options, status",
    [
        ([], 0),
        (["--max-nfr", "4%"], 0),
        (["--max-nfr", "1%"], 1),
        (["--max-nfr", "0.04"], 0),
        (["--max-nfr", "3%"], 3),
        (["--max-nfr-observed", "3%"], 0),
        (["--max-nfr-observed", "2%"], 1),
        (["--min-accuracy-gain", "0"], 0),
        (["--min-accuracy-gain", "-0.5%"], 0),
        (["--min-accuracy-gain", "10%"], 1),
        (["--policy", "policy.toml"], 0),
        (["--policy", "policy.toml", "--max-nfr", "1%"], 1),
        (["--tolerance", "5%"], 0),
    ],
)
def test_exit_statuses(run, folder, options, status):
    assert run(folder, "compare", "old.csv", "new.csv", "--quiet", *options).returncode == status


def test_too_little_data(run, folder):
    done = run(folder, "compare", "few_old.csv", "few_new.csv", "--max-nfr", "1%", "--quiet")
    assert (done.returncode, done.stdout) == (3, "too little data\n")
    assert (
        run(folder, "compare", "few_old.csv", "few_new.csv").returncode == 0
    )  # nothing was asked for


def test_tolerance_moves_the_verdict(run, folder):
    assert (
        run(folder, "compare", "old.csv", "new.csv", "--quiet", "--tolerance", "5%").stdout
        == "better and compatible\n"
    )


# --- what is wrong --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "arguments, part",
    [
        (["old.csv"], "--old, --new and --label"),
        (["old.csv", "no.csv"], "no.csv"),
        (["old.csv", "."], "."),
        ([], "Missing argument"),
        (["old.csv", "new.csv", "--max-nfr", "1"], "could mean 1 % or 100 %"),
        (["old.csv", "new.csv", "--tolerance", "1"], "tolerance = 1 could mean"),
        (["old.csv", "new.csv", "--max-nrf", "1%"], "--max-nfr"),
        (["old.csv", "new.csv", "--slice", "intend"], "intent"),
        (["old.csv", "new.csv", "--on-missing", "skip"], "drop"),
        (["old.csv", "new.csv", "--policy", "no.toml"], "no.toml"),
        (["old.csv", "new.csv", "--policy", "old.csv"], "old.csv"),
        (["old.csv", "new.csv", "--rename", "x"], "FIELD=COLUMN"),
        (["old.csv", "new.csv", "--rename", "id=a", "--rename", "id=b"], "id twice"),
        (["old.csv", "new.csv", "--json", "--markdown"], "exclude each other"),
        (["old.csv", "new.csv", "--html", "no/such/report.html"], "no/such/report.html"),
        (["old.csv", "new.csv", "--html", "."], "."),
        (["old.csv", "new.csv", "--limit", "-1"], "--limit"),
        (["old.csv", "new.csv", "--picture", "a.png"], "three or more"),
        (["old.csv", "new.csv", "--old", "v1"], "there are two"),
        (["both.csv", "--old", "v1", "--new", "v3", "--label", "y"], "v3"),
        (["both.csv", "--old", "v1", "--new", "v1", "--label", "y"], "'v1' is given twice"),
        (["old.csv", "old.csv", "--old", "v1", "--new", "v1"], "old.csv is given twice"),
        (
            ["both.csv", "--old", "v1", "--new", "v2", "--label", "y", "--on-missing", "drop"],
            "are for two files",
        ),
        (["old.csv", "new.csv", "third.csv", "--old", "x"], "--old goes with one file"),
        (["old.csv", "new.csv", "third.csv", "--slice", "x"], "no further column 'x'"),
        (["old.csv", "new.csv", "third.csv", "--picture", "a.doc"], "must end in .png"),
        (["few_old.csv", "old_scores.csv", "--on-missing", "drop"], "prediction"),
    ],
)
def test_errors_are_one_line(run, folder, arguments, part):
    fails(run(folder, "compare", *arguments), part)


def test_no_input_is_overwritten(run, folder):
    before = (folder / "new.csv").read_bytes()
    fails(
        run(folder, "compare", "old.csv", "new.csv", "--html", "./new.csv"),
        "new.csv, which is read",
    )
    fails(
        run(folder, "compare", "old.csv", "new.csv", "third.csv", "--html", "third.csv"),
        "third.csv, which is read",
    )
    assert (folder / "new.csv").read_bytes() == before


def test_an_error_of_a_process(folder):
    fails(process(folder, "compare", "old.csv", "new.csv", "--slice", "intend"), "intent")


def test_unknown_commands(run, folder):
    fails(run(folder, "comapre", "old.csv", "new.csv"), "compare")
    assert run(folder).returncode == 2 and "compare" in run(folder).stdout
    assert run(folder, "compare", "--help").returncode == 0


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x00\x01\x02",
        b"PAR1 and no more",
        b"id,label\n1,2\n",
        b"id,label,prediction\n1,a,a,a\n",
        b"\xff\xfe\x00i",
        b"id,label,prediction\na,x,x\na,x,x\n",
        "id,label,prediction\nä,x,x\n".encode("latin-1"),
    ],
)
def test_bad_files_name_themselves(run, folder, tmp_path, content):
    (tmp_path / "bad.csv").write_bytes(content)
    fails(run(folder, "compare", "old.csv", str(tmp_path / "bad.csv")), "bad.csv")


def test_a_file_without_permission(run, folder, tmp_path):
    path = tmp_path / "closed.csv"
    path.write_text((folder / "new.csv").read_text())
    path.chmod(0)
    if os.access(
        path, os.R_OK
    ):  # root reads everything: a folder in the place of the page is as good
        fails(run(folder, "compare", "old.csv", "new.csv", "--html", str(tmp_path)), str(tmp_path))
    else:
        fails(run(folder, "compare", "old.csv", str(path)), "closed.csv")


def test_control_characters_in_messages(run, folder):
    done = fails(run(folder, "compare", "old.csv", "new.csv", "--slice", "\x1b[31mred\nline"))
    assert "\x1b" not in done.stderr and "\\x1b[31mred\\nline" in done.stderr


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_full_disk(folder, unbuffered):
    with open("/dev/full", "w") as full:
        command, environment = (
            [sys.executable, "-m", "compatkit.cli", "compare", "old.csv", "new.csv"],
            os.environ | {"PYTHONUNBUFFERED": unbuffered},
        )
        done = subprocess.run(
            command, cwd=folder, stdout=full, stderr=subprocess.PIPE, text=True, env=environment
        )
    assert (
        done.returncode == 2
        and done.stderr
        == "error: the standard output could not be written: No space left on device\n"
    )


def test_a_reader_that_has_seen_enough(folder):
    command = f"{sys.executable} -m compatkit.cli compare old.csv new.csv --json --max-nfr 1%"
    done = subprocess.run(
        ["bash", "-c", f"{{ {command}; echo status $? >&2; }} | head -c 5"],
        cwd=folder,
        capture_output=True,
        text=True,
    )
    assert done.stdout == '{\n  "' and done.stderr == "status 1\n"
    closed = (
        "import os, sys; sys.argv[1:] = ['compare', 'old.csv', 'new.csv', '--json']; r, w = "
        "os.pipe(); os.close(r); os.dup2(w, 1); from compatkit.cli import main; main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", closed], cwd=folder, capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_an_interrupt_is_quiet(folder, monkeypatch, capsys):
    monkeypatch.setattr(cli, "app", lambda *_, **__: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(SystemExit) as left:
        cli.main(["compare"])
    assert left.value.code == 130 and capsys.readouterr().err == ""


class PanicException(BaseException):
    """As polars raises it: no Exception."""


REPORT = "this is a fault of compatkit, so please report it with the command that led to it"


@pytest.mark.parametrize(
    "error, line",
    [
        (KeyError("x"), f"error: KeyError: 'x': {REPORT}\n"),
        (PanicException("no row 7"), f"error: PanicException: no row 7: {REPORT}\n"),
        (MemoryError(), "error: the files do not fit into memory\n"),
        (ValueError("a\nb"), "error: a\\nb\n"),
        (
            OSError(28, "No space left on device"),
            "error: No space left on device\n",
        ),
        (PermissionError(13, "Permission denied", "f.csv"), "error: Permission denied: f.csv\n"),
        (FileNotFoundError("there is no file f"), "error: there is no file f\n"),
    ],
)
def test_no_error_ends_with_1(error, line, monkeypatch, capsys):
    def broken(*_, **__):
        raise error

    monkeypatch.setattr(cli, "app", broken)
    with pytest.raises(SystemExit) as left:
        cli.main(["compare"])
    assert left.value.code == 2 and capsys.readouterr().err == line


# --- surroundings ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "environment",
    [
        {"LANG": "C", "LC_ALL": "C"},
        {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
        {"PYTHONIOENCODING": "ascii"},
        {"PYTHONIOENCODING": "latin-1"},
    ],
)
def test_terminals_without_utf8(folder, tmp_path, environment):
    for name in ("old", "new"):
        text = (folder / f"{name}.csv").read_text().replace('"a"', '"京"')
        assert "京" in text
        (tmp_path / f"{name}.csv").write_text(text, encoding="utf-8")
    command = [
        sys.executable,
        "-m",
        "compatkit.cli",
        "compare",
        "old.csv",
        "new.csv",
        "--slice",
        "length",
    ]
    done = subprocess.run(
        command, cwd=tmp_path, capture_output=True, env={**os.environ, **environment}
    )
    assert done.returncode == 0 and done.stderr == b"" and b"negative flips" in done.stdout
    assert b"old -> new" in done.stdout or "old → new".encode() in done.stdout


def test_hostile_text_reaches_no_terminal(run, folder, tmp_path):
    for name in ("old", "new"):
        text = (folder / f"{name}.csv").read_text().replace('"a"', '"\x1b[31ma\u202e"')
        assert "\x1b" in text
        (tmp_path / f"{name}.csv").write_text(text, encoding="utf-8")
    for options in ([], ["--markdown"], ["--json"]):
        shown = run(tmp_path, "compare", "old.csv", "new.csv", *options).stdout
        assert shown and all(c.isprintable() or c == "\n" for c in shown)


def test_many_versions(run, folder, tmp_path):
    done = run(folder, "compare", "old.csv", "new.csv", "third.csv")
    assert (
        done.returncode == 0
        and "NFR of replacing the version on the left" in done.stdout
        and "third" in done.stdout
    )
    found = json.loads(run(folder, "compare", "old.csv", "new.csv", "third.csv", "--json").stdout)
    assert (
        found["versions"] == ["old", "new", "third"]
        and found["nfr"][0] == [0, 0.025, 0]
        and found["accuracy"] == [0.8, 0.855, 0.8]
    )
    options = [
        "--html",
        str(tmp_path / "m.html"),
        "--picture",
        str(tmp_path / "m.svg"),
        "--markdown",
    ]
    done = run(folder, "compare", "old.csv", "new.csv", "third.csv", *options)
    assert (
        done.stdout.startswith("**NFR")
        and (tmp_path / "m.html").exists()
        and "<svg" in (tmp_path / "m.svg").read_text()
    )


def test_comparing_loads_only_what_it_needs(folder):
    heavy = (
        "[name for name in ('torch', 'rich', 'pandas', 'scipy.stats', 'scipy.optimize', "
        "'matplotlib', 'jinja2', 'sklearn') if name in sys.modules]"
    )
    code = (
        "import sys, atexit; from compatkit.cli import main; atexit.register(lambda: "
        f"print({heavy}, file=sys.stderr)); main(['compare', 'old.csv', 'new.csv', '--slice', "
        "'intent'])"
    )
    assert (
        subprocess.run(
            [sys.executable, "-c", code], cwd=folder, capture_output=True, text=True
        ).stderr
        == "[]\n"
    )


# --- functions ------------------------------------------------------------------------------------


def test_encodable():
    assert (
        cli._encodable("3 – 7 → x × 京", "ascii") == "3 - 7 -> x x \\u4eac"
        and cli._encodable("3 – 7", "utf-8") == "3 – 7"
    )


def test_renamed():
    assert cli._renamed(["prediction=a=b"]) == {"a=b": "prediction"} and cli._renamed([]) == {}
    for wrong in ("x", "=x", "x=", "="):
        with pytest.raises(ValueError, match="write FIELD=COLUMN"):
            cli._renamed([wrong])
    with pytest.raises(ValueError, match="'a'"):
        cli._renamed(["prediction=a", "label=a"])


def test_interpolate_writes_a_model_that_loads_in_plain_transformers(tmp_path):
    import tiny
    import torch
    from transformers import AutoModelForSequenceClassification

    for seed, name in enumerate(("old", "new")):
        tiny.model(seed).save_pretrained(tmp_path / name)
        tiny.tokenizer().save_pretrained(tmp_path / name)
    command = f"{sys.executable} -m compatkit.cli interpolate old new --alpha 0.4 --out between"
    quietly = {"cwd": tmp_path, "capture_output": True, "text": True}
    done = subprocess.run(command.split(), **quietly)
    assert done.returncode == 0 and "0.4 of the old model" in done.stdout and not done.stderr
    old, new, between = (
        AutoModelForSequenceClassification.from_pretrained(tmp_path / name).state_dict()
        for name in ("old", "new", "between")
    )
    assert all(
        torch.allclose(between[name], 0.4 * old[name] + 0.6 * new[name], atol=1e-6) for name in new
    )
    again = subprocess.run(command.split(), **quietly)
    assert again.returncode == 2 and again.stderr.count("\n") == 1 and "between" in again.stderr


# --- nothing is destroyed -------------------------------------------------------------------------


@pytest.fixture
def decidable(tmp_path):
    """Answers, probabilities and labelled examples of three classes, of which some flip."""
    draw = np.random.default_rng(0)
    names, label = np.array(["cat", "dog", "owl"]), draw.integers(0, 3, 2000)
    old = names[np.where(draw.random(2000) < 0.8, label, (label + 1) % 3)]
    logits = 2 * np.eye(3)[label] + draw.normal(size=(2000, 3))
    Predictions(np.arange(2000), prediction=old).save(tmp_path / "old.csv")
    Predictions(np.arange(2000), logits=logits, classes=names).save(tmp_path / "new.csv")
    rows = [f"{number},{names[right]}\n" for number, right in enumerate(label[:1000].tolist())]
    (tmp_path / "labelled.csv").write_text("id,label\n" + "".join(rows))
    return tmp_path


DECIDE = ("decide", "old.csv", "new.csv", "--calibration", "labelled.csv", "--max-nfr", "2%")


@pytest.mark.parametrize("change", [str.upper, lambda name: name + " ", str.title])
def test_labels_that_are_no_class_certify_nothing(run, decidable, change):
    lines = (decidable / "labelled.csv").read_text().splitlines()
    changed = [
        lines[0],
        *(f"{line.split(',')[0]},{change(line.split(',')[1])}" for line in lines[1:]),
    ]
    (decidable / "labelled.csv").write_text("\n".join(changed) + "\n")
    fails(
        run(decidable, *DECIDE, "--out", "out.csv"),
        "labels are no class of the models",
        f"{change('cat')!r} (like 'cat'?)",
    )
    assert not (decidable / "out.csv").exists()


@pytest.mark.parametrize(
    "written",
    [
        ["--out", "new.csv"],
        ["--out", "labelled.csv"],
        ["--out", "out.csv", "--rule", "labelled.csv"],
        ["--out", "out.csv", "--rule", "out.csv"],
        ["--out", "precious.csv"],
    ],
)
def test_decide_destroys_nothing(run, decidable, written):
    (decidable / "precious.csv").write_text("id,notes\n")
    before = {path.name: path.read_bytes() for path in decidable.iterdir()}
    fails(run(decidable, *DECIDE, *written))
    assert {path.name: path.read_bytes() for path in decidable.iterdir()} == before


def test_force_replaces_what_is_no_input(run, decidable):
    (decidable / "precious.csv").write_text("id,notes\n")
    assert run(decidable, *DECIDE, "--out", "precious.csv", "--force").returncode == 0
    fails(run(decidable, *DECIDE, "--out", "old.csv", "--force"), "which is read")


def test_no_rule_is_kept_when_deciding_fails(run, decidable):
    lines = (decidable / "new.csv").read_text().splitlines()
    (decidable / "new.csv").write_text("\n".join([*lines, lines[1]]) + "\n")  # an id twice
    fails(run(decidable, *DECIDE, "--out", "out.csv", "--rule", "rule.json"))
    assert not (decidable / "rule.json").exists() and not (decidable / "out.csv").exists()


@pytest.mark.parametrize(
    "written",
    [
        ["--html", "policy.toml", "--policy", "policy.toml"],
        ["--html", "old.csv"],
        ["--flips", "new.csv"],
        ["--html", "a.html", "--flips", "a.html"],
    ],
)
def test_compare_destroys_nothing(run, folder, written):
    before = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    fails(run(folder, "compare", "old.csv", "new.csv", *written))
    assert {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()} == before


@pytest.mark.parametrize(
    "option, name, theirs",
    [
        ("--comment", "NOTES.md", "plan: old → new by May\n"),
        ("--flips", "mine.csv", "id,quadrant,owner\n1,negative,me\n"),
        ("--flips", "mine.jsonl", '{"id": "1", "quadrant": "negative", "owner": "me"}\n'),
        ("--picture", "mine.svg", "<svg><title>how compatkit works</title></svg>"),
    ],
)
def test_what_only_looks_like_a_report_stays(run, folder, tmp_path, option, name, theirs):
    (tmp_path / name).write_text(theirs)
    files = ["old.csv", "new.csv", *(["third.csv"] if option == "--picture" else [])]
    done = run(folder, "compare", *files, option, str(tmp_path / name))
    fails(done, "cannot tell that it wrote it")
    assert (tmp_path / name).read_text() == theirs


@pytest.mark.parametrize("files", [["old.csv", "new.csv"], ["old.csv", "new.csv", "third.csv"]])
def test_a_command_may_be_repeated_over_what_it_wrote(run, folder, tmp_path, files):
    names = ["--html a.html", "--flips a.csv", "--flips a.jsonl", "--flips a.parquet"]
    names += ["--picture a.png", "--picture a.svg", "--picture a.pdf"] if len(files) > 2 else []
    names += ["--comment a.md", "--junit a.xml"] if len(files) == 2 else []
    for option, name in map(str.split, names):
        for _ in range(2):
            done = run(folder, "compare", *files, "--quiet", option, str(tmp_path / name))
            assert done.returncode == 0, done.stderr
    flips = str(tmp_path / "a.csv")  # where nothing flipped, the columns are the same
    assert run(folder, "compare", "old.csv", "third.csv", "--flips", flips).returncode == 0


def test_a_csv_beside_the_page_replaces_nothing(run, folder, tmp_path):
    (tmp_path / "rep-flips.csv").write_text("mine")
    page = str(tmp_path / "rep.html")
    fails(run(folder, "compare", "old.csv", "new.csv", "--html", page, "--limit", "3"), "--force")
    assert (tmp_path / "rep-flips.csv").read_text() == "mine" and list(tmp_path.iterdir()) == [
        tmp_path / "rep-flips.csv"
    ]


@pytest.mark.parametrize("stream", [">&-", "> /dev/full"])
def test_an_error_stream_that_takes_nothing_changes_no_status(folder, stream):
    command = f'"{sys.executable}" -m compatkit.cli compare nothing.csv new.csv 2{stream}'
    done = subprocess.run(["sh", "-c", command], cwd=folder, capture_output=True)
    assert (done.returncode, done.stdout) == (2, b"")


def test_a_failed_comparison_keeps_the_last_report(run, folder, tmp_path, monkeypatch):
    from compatkit.compare import page

    path = tmp_path / "report.html"
    assert run(folder, "compare", "old.csv", "new.csv", "--html", str(path)).returncode == 0
    before = path.read_bytes()
    monkeypatch.setattr(
        page,
        "render",
        lambda *_, **__: (_ for _ in ()).throw(OSError(28, "No space left on device")),
    )
    fails(run(folder, "compare", "old.csv", "third.csv", "--html", str(path)), "No space left")
    assert path.read_bytes() == before and [one.name for one in tmp_path.iterdir()] == [
        "report.html"
    ]


# --- what else was asked for ----------------------------------------------------------------------


def test_decide_says_when_it_made_things_worse(run, decidable):
    """The new model is right nearly always and sure only where it is wrong: the price has to be
    high, and costs accuracy.
    """
    names, draw = np.array(["cat", "dog", "owl"]), np.random.default_rng(1)
    label = draw.integers(0, 3, 2000)
    old = np.where(np.arange(2000) % 5 == 0, (label + 1) % 3, label)
    confident_wrong = (np.arange(2000) % 5 == 1) & (draw.random(2000) < 0.1)
    logits = np.eye(3)[np.where(confident_wrong, (label + 1) % 3, label)]
    logits[confident_wrong] *= 10
    logits[np.arange(2000) % 50 == 0] *= 12
    Predictions(np.arange(2000), prediction=names[old]).save(decidable / "old.csv")
    Predictions(np.arange(2000), logits=logits, classes=names).save(decidable / "new.csv")
    rows = [f"{number},{names[right]}\n" for number, right in enumerate(label[:1000].tolist())]
    (decidable / "labelled.csv").write_text("id,label\n" + "".join(rows))
    done = run(decidable, *DECIDE[:-1], "0.5%", "--out", "out.csv")
    assert done.returncode == 0 and "beware: on the calibration examples" in done.stdout
    assert "than those of the new model alone" in done.stdout
    told = json.loads(run(decidable, *DECIDE[:-1], "0.5%", "--out", "out2.csv", "--json").stdout)
    assert len(told["warnings"]) == 1


def test_decide_says_that_logits_are_probabilities(run, decidable):
    (decidable / "new.csv").rename(decidable / "logits.csv")
    new = Predictions.load(decidable / "logits.csv")
    with pytest.warns(UserWarning, match="sum to 1"):
        new.replace(logits=softmax(new.logits)).save(decidable / "new.csv")
    done = run(decidable, *DECIDE, "--rule", "rule.json", "--out", "out.csv")
    assert done.stdout.count("  beware: the rows of the logits sum to 1") == 1
    applied = run(decidable, *DECIDE[:3], "--rule", "rule.json", "--out", "2.csv", "--json")
    assert len(json.loads(applied.stdout)["warnings"]) == 1


@pytest.mark.parametrize(
    "form, said", [((), 1), (("--json",), 0), (("--markdown",), 0), (("--quiet",), 0)]
)
def test_what_was_written_is_said(run, folder, tmp_path, form, said):
    page = str(tmp_path / "page.html")
    done = run(folder, "compare", "old.csv", "new.csv", "--html", page, *form)
    assert done.stdout.count(f"Written: {page}\n") == said
    assert ("Written" in run(folder, "compare", "old.csv", "new.csv").stdout) is False


def test_errors_of_a_json_table_name_it(run, tmp_path):
    for name in ("old", "new"):
        (tmp_path / f"{name}.json").write_text('[{"id": "a", "label": 1, "bot": 1}]')
    done = run(tmp_path, "compare", "old.json", "new.json")
    assert done.returncode == 2 and "old.json: none of" in done.stderr


def test_version_and_flips_and_confidence(run, folder, tmp_path):
    assert run(folder, "--version").stdout.startswith("compatkit, version ")
    path = tmp_path / "flips.jsonl"
    done = run(
        folder,
        "compare",
        "old.csv",
        "new.csv",
        "--flips",
        str(path),
        "--confidence",
        "99%",
        "--json",
    )
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    found = json.loads(done.stdout)
    assert (
        sum(row["quadrant"] == "negative" for row in rows)
        == 25
        == len([row for row in found["flips"] if row["quadrant"] == "negative"])
    )
    assert found["confidence"] == 0.99 and found["changes"][0]["n"] >= 1


def test_colour_only_for_a_terminal(run, folder, monkeypatch):
    from compatkit.compare.report import compare as compare_files

    assert "\x1b" not in run(folder, "compare", "old.csv", "new.csv").stdout
    found = compare_files(folder / "old.csv", folder / "new.csv")
    assert "\x1b[1;33mbetter but regresses" in found.to_text(colour=True)
    assert max(map(len, found.to_text(width=70).splitlines())) <= 72
    monkeypatch.setattr(cli.sys.stdout, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("NO_COLOR", "1")
    assert not cli._terminal()["colour"]


# --- files that people really have ----------------------------------------------------------------

LETTERS = ("a", "b", "c")


def table(change=lambda row: row, heading="id,label,prediction", rows=60):
    """A csv of answers, each tenth wrong; `change` may alter a row, a list of cells."""
    lines = [
        change([f"q{n}", LETTERS[n % 3], LETTERS[(n + (n % 10 == 0)) % 3]]) for n in range(rows)
    ]
    return "\n".join([heading, *(",".join(line) for line in lines)]) + "\n"


def at(id, **cells):
    """A change of `table`: other cells in the row of one id."""
    places = {"label": 1, "prediction": 2}

    def change(row):
        if row[0] == id:
            for name, cell in cells.items():
                row[places[name]] = cell
        return row

    return change


def sure(n, cell=""):
    """Probabilities of the three classes for row n; `cell` stands for the first of them."""
    first = [f"{0.8 if n % 3 == place else 0.1:g}" for place in range(3)]
    return [cell or first[0], *first[1:]]


def probabilities(rows=60, **cells):
    """A csv of probabilities; `cells` are the first ones of some ids."""
    lines = [",".join([f"q{n}", *sure(n, cells.get(f"q{n}", ""))]) for n in range(rows)]
    return "\n".join(["id,prob_a,prob_b,prob_c", *lines]) + "\n"


WHOLE_FILE = table()


@pytest.mark.parametrize(
    "content, parts",
    [
        (table(at("q4", prediction='"b')), ["line 6: a quote is opened and never closed"]),
        (table(at("q4", prediction="b,b")), ["line 6 has 4 cells and the header 3", "quotes"]),
        (table(at("q4", prediction="b\0")), ["line 6 holds a NUL byte"]),
        (table(at("q4", prediction="")), ["missing predictions for ids 'q4'", "fill them in"]),
        (table(at("q4", label="c")), ["labels differ for ids 'q4'", "the same truth"]),
        (WHOLE_FILE.replace(",", ";"), ["divided by ';'"]),
        (WHOLE_FILE.encode("utf-16"), ["UTF-16", "save it as UTF-8"]),
        (WHOLE_FILE.replace("prediction", "label"), ["columns repeat: 'label'"]),
    ],
)
def test_a_bad_table_says_where_and_what_to_do(run, tmp_path, content, parts):
    (tmp_path / "old.csv").write_bytes(content if isinstance(content, bytes) else content.encode())
    (tmp_path / "new.csv").write_text(WHOLE_FILE)
    fails(run(tmp_path, "compare", "old.csv", "new.csv"), *parts)


def test_a_key_that_stands_twice_is_refused(run, tmp_path):
    line = '{"id": "q%d", "label": "a", "prediction": "a"%s}'
    for name, extra in (("old", ', "prediction": "b"'), ("new", "")):
        lines = [line % (n, extra * (n == 3)) for n in range(9)]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(lines))
    done = run(tmp_path, "compare", "old.jsonl", "new.jsonl")
    fails(done, "old.jsonl: line 4: the key 'prediction' stands twice")


def test_a_folder_without_a_log_is_not_blamed_for_samples(run, tmp_path):
    (tmp_path / "plain").mkdir()
    (tmp_path / "plain" / "notes.txt").write_text("x")
    (tmp_path / "old.csv").write_text(WHOLE_FILE)
    for files in (("old.csv", "plain"), ("plain", "old.csv")):
        fails(run(tmp_path, "compare", *files), "plain is a folder without an evaluation log")


def test_columns_with_names_like_patterns_are_sliced(run, tmp_path):
    for name in ("old", "new"):
        text = table(lambda row: [*row, str(int(row[0][1:]) % 2)], "id,label,prediction,^x$")
        (tmp_path / f"{name}.csv").write_text(text)
    done = run(tmp_path, "compare", "old.csv", "new.csv", "--slice", "^x$", "--json")
    assert {"^x$": "1"} in [one["where"] for one in json.loads(done.stdout)["slices"]]


def test_whole_numbers_are_the_same_however_they_are_written(run, tmp_path):
    rows = [(n, n % 2, (n + (n % 10 == 0)) % 2) for n in range(60)]
    for name, ending in (("old", ""), ("new", ".0")):
        lines = [f"{n},{label}{ending},{answer}{ending}" for n, label, answer in rows]
        (tmp_path / f"{name}.csv").write_text("\n".join(["id,label,prediction", *lines]))
    found = json.loads(run(tmp_path, "compare", "old.csv", "new.csv", "--json").stdout)
    assert found["overall"]["accuracy_new"]["value"] == found["overall"]["accuracy_old"]["value"]
    assert found["overall"]["accuracy_new"]["value"] == pytest.approx(0.9)


def test_a_score_beside_answers_is_no_second_nfr(run, tmp_path):
    text = table(lambda row: [*row, "0." + row[0][1:]], "id,label,prediction,score")
    for name in ("old", "new"):
        (tmp_path / f"{name}.csv").write_text(text)
    done = run(tmp_path, "compare", "old.csv", "new.csv")
    told = " ".join(done.stdout.split())
    assert told.count("(NFR)") == 1 and "a score that fell is no error" in told


def test_probabilities_with_gaps_are_named_and_left_out(run, tmp_path):
    heading = "id,label,prediction,prob_a,prob_b,prob_c"
    for name, cell in (("old", ""), ("new", "nan")):
        text = table(lambda row: [*row, *sure(0, cell if row[0] == "q7" else "")], heading)
        (tmp_path / f"{name}.csv").write_text(text)
    done = run(tmp_path, "compare", "old.csv", "new.csv")
    assert done.returncode == 0 and "not finite for ids 'q7'" in " ".join(done.stdout.split())
    assert "Log-loss" not in done.stdout


CERTIFY = ("--calibration", "labels.csv", "--max-nfr", "30%", "--out", "out.csv")


@pytest.mark.parametrize(
    "old, new, parts",
    [
        (WHOLE_FILE, WHOLE_FILE, ["new.csv: a decision needs", "prob_<class>"]),
        (table(at("q50", prediction="")), probabilities(), ["old.csv: missing", "ids 'q50'"]),
        (table(at("q5", prediction="")), probabilities(), ["old.csv: missing", "ids 'q5'"]),
        (
            WHOLE_FILE,
            probabilities(q7="nan"),
            ["new.csv: no probabilities", "ids 'q7'", "nan, 0.8"],
        ),
        (WHOLE_FILE, probabilities(q7="abc"), ["`prob_a` needs numbers", "'abc' for ids 'q7'"]),
        (WHOLE_FILE, probabilities(q7='"0.1'), ["new.csv: line 9: a quote is opened"]),
    ],
)
def test_decide_names_the_file_and_the_example(run, tmp_path, old, new, parts):
    for name, content in (("old.csv", old), ("new.csv", new), ("labels.csv", table(rows=40))):
        (tmp_path / name).write_text(content)
    fails(run(tmp_path, "decide", "old.csv", "new.csv", *CERTIFY), *parts)
    assert not (tmp_path / "out.csv").exists()


def test_an_empty_old_answer_is_no_class_called_none(run, tmp_path):
    """None as text is a class of these models; an empty cell is not."""
    new = probabilities().replace("prob_a", "prob_None")
    (tmp_path / "new.csv").write_text(new)
    (tmp_path / "old.csv").write_text(table(at("q5", prediction="")).replace(",a", ",None"))
    (tmp_path / "labels.csv").write_text(table(rows=40).replace(",a", ",None"))
    fails(run(tmp_path, "decide", "old.csv", "new.csv", *CERTIFY), "missing predictions", "'q5'")


def test_lines_and_ids_are_those_of_the_file_and_not_of_a_block(tmp_path, monkeypatch):
    from compatkit.compare import deciding

    (tmp_path / "new.csv").write_text(probabilities(rows=900, q850="nan"))
    with pytest.raises(ValueError, match="'q850'"):
        list(deciding._pieces(tmp_path / "new.csv", 100))
    lines = ['{"id": "q%d", "prediction": "a"}' % n for n in range(900)]
    (tmp_path / "old.jsonl").write_text("\n".join([*lines[:850], "{", *lines[850:]]))
    with pytest.raises(ValueError, match="old.jsonl.*851"):
        list(deciding._pieces(tmp_path / "old.jsonl", 100))


@pytest.mark.parametrize("price, told", [('"abc"', "'abc'"), ("true", "True"), ("-1", "-1.0")])
def test_a_rule_with_a_price_that_is_none(run, tmp_path, price, told):
    (tmp_path / "rule.json").write_text(
        f'{{"kind": "rule", "price": {price}, "classes": ["a", "b", "c"], "posterior": null, '
        '"certificate": null}'
    )
    (tmp_path / "old.csv").write_text(WHOLE_FILE)
    (tmp_path / "new.csv").write_text(probabilities())
    done = run(tmp_path, "decide", "old.csv", "new.csv", "--rule", "rule.json", "--out", "out.csv")
    fails(done, f"rule.json: the price is {told}", "at least 0")


def test_packed_piped_and_other_layouts_are_read(run, tmp_path):
    import gzip
    import os
    import threading

    (tmp_path / "new.csv").write_text(table(at("q4", prediction="a")))
    (tmp_path / "old.csv").write_text(WHOLE_FILE)
    expected = run(tmp_path, "compare", "old.csv", "new.csv").stdout
    (tmp_path / "old.csv.gz").write_bytes(gzip.compress(WHOLE_FILE.encode()))
    (tmp_path / "old.tsv").write_text(WHOLE_FILE.replace(",", "\t"))
    rows = [dict(zip(("id", "label", "prediction"), line.split(","))) for line in
            WHOLE_FILE.splitlines()[1:]]  # fmt: skip
    (tmp_path / "old.json").write_text(json.dumps(rows))
    for name in ("old.csv.gz", "old.tsv", "old.json"):
        assert run(tmp_path, "compare", name, "new.csv").stdout == expected, name
    (tmp_path / "old.csv").unlink()
    os.mkfifo(tmp_path / "old.csv")
    writer = threading.Thread(target=(tmp_path / "old.csv").write_text, args=(WHOLE_FILE,))
    writer.start()
    assert run(tmp_path, "compare", "old.csv", "new.csv").stdout == expected
    writer.join()
    for command in (["compare"], ["decide", *CERTIFY]):
        fails(run(tmp_path, command[0], "-", "-", *command[1:]), "standard input can be read once")


def test_decide_reads_packed_files(run, tmp_path):
    import gzip

    (tmp_path / "labels.csv").write_text(table(rows=40))
    (tmp_path / "old.csv.gz").write_bytes(gzip.compress(WHOLE_FILE.encode()))
    (tmp_path / "new.csv.gz").write_bytes(gzip.compress(probabilities().encode()))
    done = run(tmp_path, "decide", "old.csv.gz", "new.csv.gz", *CERTIFY)
    assert done.returncode == 0 and "20 examples decided" in done.stdout
    assert sorted(path.name for path in tmp_path.iterdir())[-1] == "out.csv"


def test_a_closed_standard_output_says_so(monkeypatch, capsys):
    import sys

    monkeypatch.setattr(sys, "stdout", None)
    with pytest.raises(SystemExit) as left:
        cli.main(["compare", "a.csv", "b.csv"])
    assert left.value.code == 2
    assert "the standard output is closed" in capsys.readouterr().err


def test_a_version_is_not_compared_with_itself(run, tmp_path):
    for name in ("old.csv", "copy.csv"):
        (tmp_path / name).write_text(WHOLE_FILE)
    (tmp_path / "new.csv").write_text(probabilities())
    for command in (
        ["compare", "old.csv", "old.csv", "--max-nfr", "50%"],
        ["compare", "copy.csv", "old.csv", "./old.csv"],
        ["decide", "new.csv", "new.csv", *CERTIFY],
    ):
        fails(run(tmp_path, *command), "is given twice")
    told = " ".join(run(tmp_path, "compare", "old.csv", "copy.csv").stdout.split())
    assert "gave the same answer to each of the 60 examples" in told


@pytest.mark.parametrize("change", [lambda id: f"{id} ", str.upper, lambda id: f"{id[1:]}.0"])
def test_ids_written_otherwise_are_told_from_other_examples(run, tmp_path, change):
    first = table(lambda row: [row[0][1:], *row[1:]]) if change("q1") == "1.0" else WHOLE_FILE
    (tmp_path / "old.csv").write_text(first)
    (tmp_path / "new.csv").write_text(table(lambda row: [change(row[0]), *row[1:]]))
    fails(run(tmp_path, "compare", "old.csv", "new.csv"), "differ only in spaces, in case")
    (tmp_path / "new.csv").write_text(table(lambda row: [f"other {row[0]}", *row[1:]]))
    fails(run(tmp_path, "compare", "old.csv", "new.csv"), "are these the same examples")


def test_decide_believes_one_truth_and_right_names_of_the_columns(run, tmp_path):
    """Other labels in the new file, and probabilities whose columns have changed places."""
    (tmp_path / "old.csv").write_text(WHOLE_FILE)
    (tmp_path / "labels.csv").write_text(table(rows=40))
    lines = probabilities().splitlines()
    labels = [f"{line},{'b' if number == 3 else 'abc'[number % 3]}" for number, line in
              enumerate(lines[1:])]  # fmt: skip
    (tmp_path / "new.csv").write_text("\n".join([f"{lines[0]},label", *labels]))
    done = run(tmp_path, "decide", "old.csv", "new.csv", *CERTIFY)
    fails(done, "new.csv: labels differ from those of the calibration file for ids 'q3'")
    answers = [f"{line},{'abc'[number % 3]}" for number, line in enumerate(lines[1:])]
    named = "id,prob_b,prob_c,prob_a,prediction"
    (tmp_path / "new.csv").write_text("\n".join([named, *answers]))
    done = run(tmp_path, "decide", "old.csv", "new.csv", *CERTIFY)
    fails(done, "new.csv: `prediction` is not the most probable class in 40 of 40")
    (tmp_path / "new.csv").write_text("\n".join([f"{lines[0]},prediction", *answers]))
    assert run(tmp_path, "decide", "old.csv", "new.csv", *CERTIFY).returncode == 0


def test_what_was_not_written_to_its_end_says_so(run, tmp_path):
    (tmp_path / "new.csv").write_text(WHOLE_FILE)
    (tmp_path / "old.json").write_text('[{"id": "q1", "label": "a", "predic')
    fails(run(tmp_path, "compare", "old.json", "new.csv"), "old.json is no whole JSON")
    (tmp_path / "labels.csv").write_text(table(rows=40) + "q3,a,a\n")
    (tmp_path / "prob.csv").write_text(probabilities())
    done = run(tmp_path, "decide", "new.csv", "prob.csv", *CERTIFY)
    fails(done, "labels.csv: repeated ids 'q3'")


@pytest.mark.parametrize(
    "options, part",
    [
        (["--pairs"], "--pairs is for two or more columns"),
        (["--pairs", "--slice", "intent"], "--pairs is for two or more columns"),
        (["--link", "https://example.org"], "--link stands in what --comment and --github write"),
        (["--limit", "3"], "--limit counts the flips of --html and --json"),
        (["--scorer", "judge"], "--scorer judge"),
        (["--metric", "acc"], "old.csv is a table"),
    ],
)
def test_options_without_effect_are_refused(run, folder, options, part):
    fails(run(folder, "compare", "old.csv", "new.csv", *options), part)


def test_answers_alone_have_normal_forms(run, folder):
    done = run(folder, "compare", "old_scores.csv", "new_scores.csv", "--normalize")
    fails(done, "--normalize is for answers")


def test_examples_without_a_score_are_left_out_when_asked(run, tmp_path):
    table = "question,faithfulness\n" + "".join(f"q{n},{n / 64}\n" for n in range(60))
    (tmp_path / "old.csv").write_text(table.replace("q7,0.109375", "q7,"))
    (tmp_path / "new.csv").write_text(table)
    command = ["compare", "old.csv", "new.csv", "--rename", "id=question"]
    command += ["--rename", "score=faithfulness"]
    fails(run(tmp_path, *command), "'q7'", "--errors drop")
    done = run(tmp_path, *command, "--errors", "drop", "--json")
    assert json.loads(done.stdout)["examples"] == 59


def test_a_file_of_labels(run, folder, tmp_path):
    whole = Predictions.load(folder / "old.csv")
    for name in ("old", "new", "third"):
        Predictions.load(folder / f"{name}.csv").replace(label=None).save(tmp_path / f"{name}.csv")
    rows = zip(whole.id, whole.label)
    (tmp_path / "truth.csv").write_text("id,label\n" + "".join(f"{i},{y}\n" for i, y in rows))
    done = run(tmp_path, "compare", "old.csv", "new.csv", "--truth", "truth.csv", "--json")
    counts = json.loads(done.stdout)["overall"]["counts"]
    assert (counts["negative"], counts["positive"]) == (25, 80)
    done = run(tmp_path, "compare", "old.csv", "new.csv", "third.csv", "--truth", "truth.csv")
    assert done.returncode == 0 and "truth.csv" in done.stdout
    fails(run(tmp_path, "compare", "old.csv", "new.csv"), "label")
    written = run(
        *(tmp_path, "compare", "old.csv", "new.csv", "--truth", "truth.csv"),
        *("--flips", "truth.csv", "--force"),
    )
    fails(written, "truth.csv")


def test_one_long_table_of_versions(run, folder, tmp_path):
    rows = ["my model,key,y,answer\n"]
    for version in ("gpt 4", "gpt 4.1"):
        side = Predictions.load(folder / f"{'old' if version == 'gpt 4' else 'new'}.csv")
        rows += [
            f"{version},{i},{y},{a}\n" for i, y, a in zip(side.id, side.label, side.prediction)
        ]
    (tmp_path / "runs.csv").write_text("".join(rows))
    versions = ["--old", "gpt 4", "--new", "gpt 4.1"]
    told = fails(run(tmp_path, "compare", "runs.csv", *versions), "--by 'my model'").stderr
    command = shlex.split(told.partition("compatkit ")[2])
    names = ["--id", "key", "--label", "y", "--rename", "prediction=answer"]
    found = json.loads(run(tmp_path, *command, *names, "--json").stdout)
    counts = found["overall"]["counts"]
    assert (found["old"], counts["negative"], counts["positive"]) == ("gpt 4", 25, 80)
    fails(run(tmp_path, "compare", "runs.csv", "--by", "my model"), "--old and --new")
    fails(run(tmp_path, "compare", "runs.csv", "runs.csv", "--by", "my model"), "given twice")
    fails(run(folder, "compare", "old.csv", "new.csv", "--by", "intent"), "--by speaks of one file")


# --- columns that are called otherwise, in decide -------------------------------------------------


def decided(run, folder, *options, heading="id,label,prediction", id="id"):
    """A decision of files with other names of columns."""
    (folder / "old.csv").write_text(table(heading=heading))
    (folder / "new.csv").write_text(probabilities().replace("id,", f"{id},", 1))
    (folder / "labels.csv").write_text(table(heading=heading, rows=40))
    return run(folder, "decide", "old.csv", "new.csv", *CERTIFY, *options)


@pytest.mark.parametrize(
    "heading, id, options",
    [
        ("task_id,gold,response", "task_id", ()),
        ("who,gold,bot", "who", ("--rename", "id=who", "--rename", "prediction=bot")),
    ],
)
def test_decide_takes_columns_by_their_names_and_by_other_ones(run, tmp_path, heading, id, options):
    plain = decided(run, tmp_path)
    expected = (tmp_path / "out.csv").read_text()
    (tmp_path / "out.csv").unlink()
    done = decided(run, tmp_path, *options, heading=heading, id=id)
    assert (plain.returncode, done.returncode) == (0, 0)
    assert (tmp_path / "out.csv").read_text() == expected
    assert "labels.csv: Taken by their names" in done.stdout and "'gold' for `label`" in done.stdout


def test_decide_refuses_what_it_would_have_to_guess(run, tmp_path):
    done = decided(run, tmp_path, heading="id,gold,target")
    fails(done, "`label` may be 'gold' or 'target'", "--rename label=gold")


def test_decide_refuses_to_rename_a_column_that_is_not_there(run, tmp_path):
    fails(decided(run, tmp_path, "--rename", "label=truht"), "no column 'truht'")
