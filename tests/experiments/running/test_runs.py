"""The module `runs`: names, folders, runs done once, the code behind them."""

import importlib.util
import json
import math
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from notebook_cells import make_project

from compatkit.experiments.running import runs
from compatkit.predictions import Predictions

ROOT = Path(__file__).resolve().parents[3]


def record_of(run):
    return run.folder / "record.json"


def never(folder):
    raise AssertionError("this run is there already and must not be computed")


def test_project_root_is_the_nearest_folder_of_compatkit(tmp_path):
    root = make_project(tmp_path / "outer")
    make_project(root / "nbs" / "inner", name="another")
    assert runs.project_root(root / "nbs" / "inner" / "nbs") == root
    assert runs.project_root(tmp_path) is None


def test_project_root_survives_a_broken_settings_file(tmp_path):
    root = make_project(tmp_path / "outer")
    (root / "nbs" / "settings.ini").write_bytes(b"\xff\xfe no section")
    assert runs.project_root(root / "nbs") == root


def test_home_prefers_the_variable_then_the_project_then_here(tmp_path, monkeypatch):
    root = make_project(tmp_path / "project")
    monkeypatch.setenv("COMPATKIT_HOME", str(tmp_path / "disk"))
    monkeypatch.chdir(root / "nbs")
    assert runs.home() == tmp_path / "disk"
    monkeypatch.delenv("COMPATKIT_HOME")
    assert runs.home() == root / "runs"
    monkeypatch.chdir(tmp_path)
    assert runs.home() == tmp_path / "runs"


def test_configuration_hash_does_not_depend_on_order_or_process():
    given = {"b": [1, 2.5, None, True], "a": {"y": "ü", "x": 1e-07}}
    turned = {"a": {"x": 1e-07, "y": "ü"}, "b": (1, 2.5, None, True)}
    assert runs.configuration_hash(given) == runs.configuration_hash(turned)
    assert runs.configuration_hash(given) == runs.configuration_hash(json.loads(json.dumps(given)))
    # fixed for ever: folders and published results carry these names
    assert (
        runs.run_id({"kind": "fine_tune", "rate": 1e-4, "seed": 1}) == "fine_tune-75458db365027513"
    )


def test_every_change_gives_another_name():
    base = {"seed": 1, "rate": 0.1, "options": {"mask": "wrong"}}
    changes = [
        {"seed": 2},
        {"rate": math.nextafter(0.1, 1)},
        {"options": {"mask": None}},
        {"seed": "1"},
        {"seed": True},
    ]
    names = {runs.run_id(base | change) for change in [{}, *changes]}
    assert len(names) == len(changes) + 1


@pytest.mark.parametrize(
    "configuration, place",
    [
        ({"model": {"folder": Path("a")}}, r"configuration\['model'\]\['folder'\] is a \w*Path"),
        ({"rates": [0.1, math.inf]}, r"configuration\['rates'\]\[1\] is inf"),
        ({"classes": {0: "a"}}, r"configuration\['classes'\] has the key 0"),
        ({"ids": {1, 2}}, r"configuration\['ids'\] is a set"),
    ],
)
def test_what_json_cannot_hold_is_refused_by_name(configuration, place):
    with pytest.raises(ValueError, match=place):
        runs.configuration_hash(configuration)


def test_a_run_is_computed_once_and_its_record_is_whole(tmp_path):
    configuration = {"kind": "example", "task": "pydoc", "seed": 1}

    def compute(folder):
        (folder / "weights.bin").write_bytes(b"123")
        assert folder.parent == tmp_path / "unfinished"
        return {"accuracy": 0.5, "curve": (1, 2), "undefined": math.nan}

    run = runs.run_once(configuration, compute, home=tmp_path)
    assert run.folder == tmp_path / f"{run.id}-{run.code[:8]}" and len(run.code) == 64
    assert run.id == runs.run_id(configuration)
    assert run.results == {"accuracy": 0.5, "curve": [1, 2], "undefined": None}
    assert run.configuration == configuration
    assert (run.folder / "weights.bin").read_bytes() == b"123"
    for field in ("versions", "commit", "hardware", "threads", "started", "seconds"):
        assert field in run.record
    assert run.record["versions"]["python"] == ".".join(map(str, sys.version_info[:3]))
    assert (
        runs.run_once(dict(reversed(configuration.items())), compute, home=tmp_path).record
        == run.record
    )
    assert not list((tmp_path / "unfinished").iterdir())
    assert "pydoc" in run._repr_html_() and run.id in run._repr_html_()


def test_a_finished_folder_is_moved_into_place_not_copied(tmp_path):
    run = runs.run_once({"a": 1}, lambda folder: {"inode": folder.stat().st_ino}, home=tmp_path)
    assert run.folder.stat().st_ino == run.results["inode"]


def test_numbers_of_numpy_are_kept_and_arrays_are_refused(tmp_path):
    import numpy

    run = runs.run_once(
        {"a": 1}, lambda folder: {"x": numpy.float32(0.5), "n": numpy.int64(3)}, home=tmp_path
    )
    assert run.results == {"x": 0.5, "n": 3}
    with pytest.raises(ValueError, match="'x'"):
        runs.run_once({"a": 2}, lambda folder: {"x": numpy.ones(3)}, home=tmp_path)
    assert not (tmp_path / runs.run_id({"a": 2})).exists()


# --- the code behind a run ---------------------------------------------------------------------


def kept_in(name, text, folder):
    """A module with this text; its function `compute` computes a run."""
    (folder / f"{name}.py").write_text(text)
    spec = importlib.util.spec_from_file_location(name, folder / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


CODE = """
def loss(x):
    return {value}  # {words}

def compute(folder):
    return {{"loss": loss(1)}}
"""


def test_mended_code_never_reuses_a_run_and_a_mended_comment_does(tmp_path, capsys):
    first = kept_in("code_first", CODE.format(value=1, words="as it was"), tmp_path)
    words = kept_in("code_words", CODE.format(value=1, words="better said"), tmp_path)
    other = kept_in("code_other", CODE.format(value=2, words="as it was"), tmp_path)

    def ask(module):
        return runs.run_once({"kind": "example"}, module.compute, home=tmp_path / "runs")

    run = ask(first)
    assert ask(words).record == run.record and not capsys.readouterr().out
    mended = ask(other)
    assert (mended.id, mended.results) == (run.id, {"loss": 2}) and mended.folder != run.folder
    assert f"{run.id} was done on " in capsys.readouterr().out
    assert ask(first).record == run.record  # the older one stays, for older code
    assert {one.results["loss"] for one in runs.find(tmp_path / "runs")} == {1, 2}


def test_a_run_whose_parents_code_was_mended_is_done_again(tmp_path):
    first = kept_in("parent_first", CODE.format(value=1, words=""), tmp_path)
    other = kept_in("parent_other", CODE.format(value=2, words=""), tmp_path)
    made = []

    def child_of(module):
        parent = runs.run_once({"kind": "parent"}, module.compute, home=tmp_path / "runs")
        configuration = {"kind": "child", "more": {"parents": [parent.id]}}
        return runs.run_once(configuration, lambda folder: made.append(1), home=tmp_path / "runs")

    children = [child_of(module) for module in (first, other, first)]
    assert len({child.id for child in children}) == 1 and len(made) == 2
    assert children[0].folder == children[2].folder != children[1].folder


def test_fingerprints_of_code_leave_configurations(tmp_path):
    run = runs.run_once({"kind": "a", "code": "1f"}, lambda folder: {}, home=tmp_path)
    assert run.configuration == {"kind": "a"} and run.id == runs.run_id({"kind": "a"})


def test_checkpoints_have_one_place_a_run_and_code(tmp_path):
    places = []

    def interrupted(folder):
        places.append(runs.checkpoint_folder(folder))
        raise KeyboardInterrupt

    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            runs.run_once({"a": 1}, interrupted, home=tmp_path)
    assert places[0] == places[1] and places[0].parent == tmp_path / "checkpoints"
    assert places[0].name.startswith(runs.run_id({"a": 1}) + "-")


# --- failures, interruptions, several processes ------------------------------------------------


def test_a_failure_is_recorded_and_can_be_tried_again(tmp_path):
    def fails(folder):
        (folder / "half").write_text("written")
        raise ZeroDivisionError("the loss is not finite")

    with pytest.raises(ZeroDivisionError, match="not finite"):
        runs.run_once({"kind": "example", "rate": 9.0}, fails, home=tmp_path)
    (failed,) = runs.failed_runs(tmp_path)
    assert failed["configuration"] == {"kind": "example", "rate": 9.0}
    assert (
        failed["error"] == "ZeroDivisionError: the loss is not finite"
        and "in fails" in failed["traceback"]
    )
    assert runs.find(tmp_path) == [] and not list((tmp_path / "unfinished").iterdir())
    assert runs.run_once(
        {"kind": "example", "rate": 9.0}, lambda folder: {"ok": 1}, home=tmp_path
    ).results == {"ok": 1}
    assert len(runs.failed_runs(tmp_path)) == 1


def test_an_interruption_by_hand_is_no_failure(tmp_path):
    def interrupted(folder):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        runs.run_once({"a": 1}, interrupted, home=tmp_path)
    assert runs.failed_runs(tmp_path) == [] and not list((tmp_path / "unfinished").iterdir())


# --- several processes, one table ----------------------------------------------------------------

TABLE = """
import os, sys, time
from pathlib import Path
from compatkit.experiments.running.runs import finish_shared_runs, run_once

home, word, slow = Path(sys.argv[1]), sys.argv[2], float(sys.argv[3])

def part(name, seconds, *parents):
    def compute(folder):
        with open(home / "begun.txt", "a") as file:
            file.write(f"{name} {word}\\n")
        time.sleep(seconds)
        return {"value": 1 + sum(parent.results["value"] for parent in parents)}

    return run_once({"kind": "part", "name": name, "parents": [one.id for one in parents]},
                    compute, home)

olds = [part(f"old {seed}", slow if seed == 0 else 0.3) for seed in range(3)]
news = [part(f"new {seed}", 0.3, old) for seed, old in enumerate(olds)]
unread = part("unread", 0.1)
print(sum(run.results["value"] for run in news))
finish_shared_runs()
"""


def worker(home, word, slow=0.3):
    """A process that makes the table, beside others."""
    home.mkdir(exist_ok=True)
    command = [sys.executable, "-c", TABLE, str(home), word, str(slow)]
    given = os.environ | {"COMPATKIT_SHARED": "1", "PYTHONPATH": str(ROOT)}
    return subprocess.Popen(
        command, env=given, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def begun(home):
    """Who computed what: (name of the run, word of the process), in order."""
    file = home / "begun.txt"
    lines = file.read_text().splitlines() if file.exists() else []
    return [tuple(line.rsplit(" ", 1)) for line in lines]


def test_two_processes_share_the_runs_of_one_table(tmp_path):
    home = tmp_path / "runs"
    both = [worker(home, word) for word in ("first", "second")]
    told = [one.communicate(timeout=120) for one in both]
    assert [one.returncode for one in both] == [0, 0], told
    assert {text.splitlines()[-1] for text, _ in told} == {"6"}, "both see the whole table"
    found = begun(home)
    assert sorted(name for name, _ in found) == sorted(
        [f"{side} {seed}" for side in ("old", "new") for seed in range(3)] + ["unread"]
    )
    assert {word for _, word in found} == {"first", "second"}
    assert len(runs.find(home)) == 7 and not list((home / "unfinished").iterdir())


def test_what_a_killed_process_was_computing_is_taken_over(tmp_path):
    home = tmp_path / "runs"
    doomed = worker(home, "doomed", slow=600)
    while ("old 0", "doomed") not in begun(home):
        assert doomed.poll() is None, doomed.communicate()
        time.sleep(0.02)
    other = worker(home, "other")
    while ("unread", "other") not in begun(home):  # everything but old 0 and what stands on it
        assert other.poll() is None, other.communicate()
        time.sleep(0.02)
    assert ("new 0", "other") not in begun(home) and ("new 2", "other") in begun(home)
    doomed.kill()
    text, error = other.communicate(timeout=120)
    assert other.returncode == 0 and text.splitlines()[-1] == "6", error
    assert begun(home)[-2:] == [("old 0", "other"), ("new 0", "other")]
    doomed.communicate()


def test_an_awaited_run_has_its_name_before_it_is_there(tmp_path, monkeypatch):
    monkeypatch.setenv(runs.SHARED, "1")
    about = {"kind": "part", "name": "slow"}
    taken = []

    def compute(folder):
        return taken.append(folder) or {"value": 7}

    with monkeypatch.context() as patch:
        patch.setattr(runs.AwaitedRun, "attempt", lambda run: False)  # another process is at it
        run = runs.run_once(about, compute, home=tmp_path)
    assert isinstance(run, runs.AwaitedRun) and not taken and not run.recalled
    assert run.id == runs.run_id(about) and run.configuration == about and len(run.code) == 64
    child = runs.run_once({"kind": "child", "parents": [run.id]}, never, tmp_path)
    assert isinstance(child, runs.AwaitedRun) and not child.ready()
    assert run.results == {"value": 7} and run.splits == [] and len(taken) == 1
    assert child.ready() and runs.run_once(about, never, home=tmp_path).results == {"value": 7}
    assert run.there and not child.there
    del runs._AWAITED[child.id]
    told = []
    runs.finish_shared_runs(lambda: told.append(run.there))
    assert told == [True] and not runs._AWAITED


def test_a_run_inside_a_run(tmp_path):
    def outer(folder):
        return {"inner": runs.run_once({"part": 1}, lambda inside: {"x": 1}, home=tmp_path).id}

    run = runs.run_once({"part": 0}, outer, home=tmp_path)
    assert run.results == {"inner": runs.run_id({"part": 1})}


def test_find_selects_by_parts_of_the_configuration(tmp_path):
    for seed in (1, 2):
        for layers in (1, 3):
            configuration = {"task": "pydoc", "seed": seed, "model": {"layers": layers, "width": 8}}
            runs.run_once(configuration, lambda folder: {}, home=tmp_path)
    assert len(runs.find(tmp_path)) == 4
    assert [run.configuration["seed"] for run in runs.find(tmp_path, seed=2)] == [2, 2]
    assert [
        run.configuration["model"]["layers"]
        for run in runs.find(tmp_path, seed=1, model={"layers": 3})
    ] == [3]
    assert runs.find(tmp_path, absent=None) == [] and runs.find(tmp_path / "nowhere") == []


@pytest.fixture
def finished(tmp_path):
    return runs.run_once(
        {"kind": "example", "seed": 1}, lambda folder: {"accuracy": 0.5}, home=tmp_path
    )


def broken_by(run, change):
    record = json.loads(record_of(run).read_text())
    change(record)
    record_of(run).write_text(json.dumps(record))


@pytest.mark.parametrize(
    "change, message",
    [
        (lambda record: record["configuration"].update(seed=2), "was changed"),
        (lambda record: record.update(id="example-0000000000000000"), "was changed"),
        (lambda record: record.update(configuration=None), "was changed"),
        (lambda record: record.pop("results"), "lacks results"),
        (lambda record: record.clear(), "lacks id, configuration"),
    ],
)
def test_an_edited_record_is_refused_with_its_file_and_the_remedy(
    finished, tmp_path, change, message
):
    broken_by(finished, change)
    for attempt in (
        lambda: runs.Run.load(finished.folder),
        lambda: runs.run_once({"kind": "example", "seed": 1}, never, home=tmp_path),
        lambda: runs.find(tmp_path),
    ):
        with pytest.raises(ValueError, match=message) as raised:
            attempt()
        assert str(record_of(finished)) in str(raised.value) and "remove the folder" in str(
            raised.value
        )


def test_a_half_written_or_missing_record_is_refused(finished):
    whole = record_of(finished).read_text()
    for part in ("", whole[: len(whole) // 2], "[]"):
        record_of(finished).write_text(part)
        with pytest.raises(ValueError, match="record.json (is not readable|lacks)"):
            runs.Run.load(finished.folder)
    record_of(finished).unlink()
    with pytest.raises(ValueError, match="not a finished run"):
        runs.Run.load(finished.folder)


def test_cut_predictions_name_the_runs_folder(tmp_path):
    def compute(folder):
        answers = Predictions(id=["a", "b", "c"], label=[0, 1, 1], prediction=[0, 1, 0])
        answers.save(folder / "predictions-test.parquet")
        return {}

    run = runs.run_once({"kind": "example"}, compute, home=tmp_path)
    file = run.folder / "predictions-test.parquet"
    whole = file.read_bytes()
    for end in range(0, len(whole), 7):
        file.write_bytes(whole[:end])
        with pytest.raises(ValueError, match=re.escape(str(run.folder))):
            run.predictions("test")


# Another process that asks for one run; it writes a line each time it computes.
WORKER = """
import sys, time
from pathlib import Path
from compatkit.experiments.running.runs import run_once

home, seconds = Path(sys.argv[1]), float(sys.argv[2])

def compute(folder):
    (folder / "part").write_text("written")
    with open(home / "computed", "a") as file:
        file.write("once\\n")
    time.sleep(seconds)
    return {"done": 1}

run_once({"kind": "example", "seed": 1}, compute, home=home)
print("finished")
"""


def start_worker(folder, seconds):
    (folder / "worker.py").write_text(WORKER)
    command = [sys.executable, str(folder / "worker.py"), str(folder), str(seconds)]
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    }
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)


def wait_for(condition, process):
    end = time.monotonic() + 60
    while not condition():
        assert process.poll() is None, "the worker ended early"
        assert time.monotonic() < end, "the worker did not begin"
        time.sleep(0.01)


def computed(folder):
    return (folder / "computed").read_text().count("once") if (folder / "computed").exists() else 0


def test_two_processes_train_the_same_run_once(tmp_path):
    first = start_worker(tmp_path, 2)
    wait_for(lambda: computed(tmp_path) == 1, first)
    second = start_worker(tmp_path, 2)
    outputs = [process.communicate(timeout=60)[0] for process in (first, second)]
    assert (first.returncode, second.returncode) == (0, 0)
    assert computed(tmp_path) == 1
    assert outputs[0] == "finished\n"
    assert outputs[1].startswith("waiting for another process that is computing example-")


def test_a_killed_process_loses_its_run_and_no_other(tmp_path):
    computed_once = []

    def compute(folder):
        return computed_once.append(1)

    other = runs.run_once({"kind": "other"}, compute, home=tmp_path)
    worker = start_worker(tmp_path, 60)
    wait_for(lambda: computed(tmp_path) == 1, worker)
    worker.send_signal(signal.SIGKILL)
    worker.communicate()
    assert len(list((tmp_path / "unfinished").iterdir())) == 1
    assert [run.id for run in runs.find(tmp_path)] == [other.id]
    again = start_worker(tmp_path, 0)
    assert again.communicate(timeout=60)[0] == "finished\n"
    assert computed(tmp_path) == 2 and not list((tmp_path / "unfinished").iterdir())
    assert {run.id for run in runs.find(tmp_path)} == {
        other.id,
        runs.run_id({"kind": "example", "seed": 1}),
    }
    again = runs.run_once({"kind": "other"}, compute, home=tmp_path)
    assert again.record == other.record and computed_once == [1]


def test_the_module_is_light():
    code = (
        "import sys, compatkit.experiments.running.runs; print([n for n in ('torch', 'numpy', "
        "'pandas', 'pyarrow', 'click') if n in sys.modules])"
    )
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True
    )
    assert done.stdout == "[]\n"


def test_what_runs_write_to_results_is_no_change_of_the_code(tmp_path, monkeypatch):
    monkeypatch.setattr(runs, "project_root", lambda: tmp_path)
    for name in ("nbs", "results"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "one.txt").write_text("as committed")
    identity = ["-c", "user.name=a", "-c", "user.email=a@b"]
    for arguments in (["init", "-q"], ["add", "-A"], [*identity, "commit", "-qm", "first"]):
        subprocess.run(["git", "-C", str(tmp_path), *arguments], check=True)
    (tmp_path / "results" / "one.txt").write_text("a run wrote this")
    assert not runs._commit()["dirty"]
    (tmp_path / "nbs" / "one.txt").write_text("a person wrote this")
    (tmp_path / "new.txt").write_text("and this")
    assert runs._commit()["dirty"] and runs.uncommitted() == ["nbs/one.txt", "new.txt"]


def test_a_number_of_its_own_makes_every_run_another_one(tmp_path, monkeypatch):
    def made(**changes):
        return runs.run_once({"kind": "example", **changes}, lambda folder: {}, home=tmp_path)

    plain = made()
    monkeypatch.setenv("COMPATKIT_REPLICATE", "1")
    again = made()
    assert again.id != plain.id and again.configuration == plain.configuration | {"replicate": 1}
    assert made().folder == again.folder, "found by the number as well"
    for nothing in ("0", "", " "):
        monkeypatch.setenv("COMPATKIT_REPLICATE", nothing)
        assert made().folder == plain.folder
    for wrong in ("-1", "one", "1.5"):
        monkeypatch.setenv("COMPATKIT_REPLICATE", wrong)
        with pytest.raises(ValueError, match=f"COMPATKIT_REPLICATE is '{wrong}': give a whole"):
            made()
