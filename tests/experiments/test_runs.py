"""The room `runs`: names, fingerprints, runs done once, what is published, parameters, scales, papermill's output path."""

import ast
import importlib.metadata
import importlib.util
import json
import math
import os
import pty
import re
import signal
import subprocess
import sys
import textwrap
import time
from functools import partial, wraps
from pathlib import Path

import pytest

from compatkit.experiments import runs
from compatkit.predictions import Predictions, text_digests

ROOT = Path(__file__).resolve().parents[2]


def record_of(run):
    return run.folder / "record.json"


def never(folder):
    raise AssertionError("this run is there already and must not be computed")


# --- where results live --------------------------------------------------------------------------------------------


def make_project(folder, name="compatkit"):
    (folder / "nbs").mkdir(parents=True)
    (folder / "settings.ini").write_text(f"[DEFAULT]\nlib_name = {name}\ndescription = 100% text\n")
    return folder


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


# --- names -----------------------------------------------------------------------------------------------------------


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


# --- the fingerprint of code -----------------------------------------------------------------------------------------


def module_from(text, folder, name):
    """A module made of this text, imported under this name."""
    (folder / f"{name}.py").write_text(textwrap.dedent(text))
    spec = importlib.util.spec_from_file_location(name, folder / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


FIRST = """
def step(x, rate=0.1):
    return x - rate

class Treatment:
    weight = 1.0

    def loss(self, x):
        return self.weight * x
"""
WORDS = '''
# a comment

def step(x, rate=0.1):
    """What a step does."""
    return (x - rate)  # moves


class Treatment:
    "A docstring."
    weight = 1.0

    def loss(self, x):
        """Another."""
        # why
        return self.weight * x
'''


def test_words_do_not_count_and_code_does(tmp_path):
    first, words = (
        module_from(FIRST, tmp_path, "first_module"),
        module_from(WORDS, tmp_path, "words_module"),
    )
    assert runs.code_fingerprint(first.step) == runs.code_fingerprint(words.step)
    assert runs.code_fingerprint(first.Treatment) == runs.code_fingerprint(words.Treatment)
    for number, (old, new) in enumerate(
        [("0.1", "0.2"), ("weight = 1.0", "weight = 2.0"), ("self.weight * x", "x")]
    ):
        changed = module_from(FIRST.replace(old, new), tmp_path, f"changed_{number}")
        both = runs.code_fingerprint(changed.step, changed.Treatment)
        assert both != runs.code_fingerprint(first.step, first.Treatment)


def test_a_text_that_is_no_docstring_counts(tmp_path):
    one = module_from('def name():\n    "doc"\n    return "a"\n', tmp_path, "text_one")
    two = module_from('def name():\n    "doc"\n    return "b"\n', tmp_path, "text_two")
    assert runs.code_fingerprint(one.name) != runs.code_fingerprint(two.name)


def test_decorators_count_and_wrapped_functions_are_seen_through(tmp_path):
    text = """
    from functools import lru_cache, wraps

    def twice(function):
        @wraps(function)
        def wrapper(*given):
            return 2 * function(*given)
        return wrapper

    {decorator}
    def value(x):
        return x
    """
    plain, cached, doubled = (
        module_from(textwrap.dedent(text).format(decorator=decorator), tmp_path, name)
        for name, decorator in [
            ("d_plain", ""),
            ("d_cached", "@lru_cache(maxsize=None)"),
            ("d_twice", "@twice"),
        ]
    )
    prints = {runs.code_fingerprint(module.value) for module in (plain, cached, doubled)}
    assert len(prints) == 3


def test_methods_partials_nested_and_same_named_definitions(tmp_path):
    text = """
    class A:
        def go(self): return 1
    class B:
        def go(self): return 2
    def make(n):
        if n:
            def inner(x): return x
        else:
            def inner(x): return -x
        return inner
    """
    module = module_from(text, tmp_path, "nested_module")
    assert runs.code_fingerprint(module.A.go) != runs.code_fingerprint(module.B.go)
    assert runs.code_fingerprint(module.A().go) == runs.code_fingerprint(module.A.go)
    assert runs.code_fingerprint(partial(module.make, 1)) == runs.code_fingerprint(module.make)
    assert runs.code_fingerprint(module.make(1)) != runs.code_fingerprint(module.make(0))


def test_the_same_text_in_a_notebook_and_in_the_exported_module(tmp_path):
    from IPython.core.interactiveshell import InteractiveShell

    notebook = """
    from dataclasses import dataclass

    def step(x):
        from compatkit.experiments.runs import home
        return x, home  # a comment

    @dataclass
    class Setting:
        "A class without methods of its own."
        rate: float = 0.1

    class Treatment(Setting):
        def loss(self, x): return x
    """
    exported = module_from(
        notebook.replace("compatkit.experiments.runs", ".runs"), tmp_path, "exported_module"
    )
    shell = InteractiveShell()
    shell.run_cell("class Setting:\n    rate: int = 0").raise_error()
    shell.run_cell(textwrap.dedent(notebook)).raise_error()
    for name in ("step", "Setting", "Treatment"):
        found = runs.code_fingerprint(shell.user_ns[name])
        assert found == runs.code_fingerprint(getattr(exported, name)), name


def test_what_has_no_source_is_refused_by_name():
    with pytest.raises(TypeError, match="<built-in function len> is neither"):
        runs.code_fingerprint(len)
    namespace = {"__name__": "nowhere"}
    exec("def ghost(): return 1", namespace)
    with pytest.raises(ValueError, match="ghost"):
        runs.code_fingerprint(namespace["ghost"])


# --- runs done once --------------------------------------------------------------------------------------------------


def test_a_run_is_computed_once_and_its_record_is_whole(tmp_path):
    configuration = {"kind": "example", "task": "pydoc", "seed": 1}

    def compute(folder):
        (folder / "weights.bin").write_bytes(b"123")
        assert folder.parent == tmp_path / "unfinished"
        return {"accuracy": 0.5, "curve": (1, 2), "undefined": math.nan}

    run = runs.run_once(configuration, compute, home=tmp_path)
    assert run.folder == tmp_path / run.id == tmp_path / runs.run_id(configuration)
    assert run.results == {"accuracy": 0.5, "curve": [1, 2], "undefined": None}
    assert run.configuration == configuration
    assert (run.folder / "weights.bin").read_bytes() == b"123"
    for field in ("versions", "commit", "hardware", "threads", "started", "seconds"):
        assert field in run.record
    assert run.record["versions"]["python"] == ".".join(map(str, sys.version_info[:3]))
    assert (
        runs.run_once(dict(reversed(configuration.items())), never, home=tmp_path).record
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
    with pytest.raises(ValueError, match=r"results\['x'\] is a ndarray"):
        runs.run_once({"a": 2}, lambda folder: {"x": numpy.ones(3)}, home=tmp_path)
    assert not (tmp_path / runs.run_id({"a": 2})).exists()


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


# Another process that asks for one run; it writes a line each time it computes.
WORKER = """
import sys, time
from pathlib import Path
from compatkit.experiments.runs import run_once

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
    other = runs.run_once({"kind": "other"}, lambda folder: {"x": 1}, home=tmp_path)
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
    assert runs.run_once({"kind": "other"}, never, home=tmp_path).record == other.record


# --- what is published -----------------------------------------------------------------------------------------------


def predictions_of(n, **fields):
    import numpy

    rng = numpy.random.default_rng(0)
    given = {
        "label": rng.integers(3, size=n),
        "logits": rng.normal(size=(n, 3)),
        "classes": ["a", "b", "c"],
    }
    columns = {"gate": rng.random(n), "length": rng.integers(9, size=n)}
    return Predictions(
        [f"example-{i}" for i in range(n)], text=["secret"] * n, columns=columns, **(given | fields)
    )


def published_run(tmp_path, n=50, configuration=None, **fields):
    def compute(folder):
        for split in ("train", "selection", "test"):
            predictions_of(n, **fields).save(folder / f"predictions-{split}.parquet")
        return {
            "accuracy": 0.5,
            "model": "/home/somebody/models/old",
            "log": ["see /tmp/x/y.txt", "https://a.org/b/c"],
        }

    return runs.run_once(configuration or {"kind": "example"}, compute, home=tmp_path / "runs")


def test_a_run_gives_its_predictions_or_says_what_it_has(tmp_path):
    run = published_run(tmp_path)
    assert len(run.predictions("test")) == 50
    with pytest.raises(
        FileNotFoundError, match=r"'valid'; it has \['selection', 'test', 'train'\]"
    ):
        run.predictions("valid")


def test_published_runs_hold_no_label_no_text_and_no_paths(tmp_path):
    from pyarrow import parquet

    run = published_run(tmp_path)
    shared = runs.publish(run, results=tmp_path / "results")
    assert sorted(file.name for file in shared.folder.iterdir()) == [
        "predictions-selection.parquet",
        "predictions-test.parquet",
        "record.json",
    ]
    table = parquet.read_table(shared.folder / "predictions-test.parquet")
    assert set(table.column_names) == {"id", "prediction", "gate", "text_digest"}
    assert b"secret" not in (shared.folder / "predictions-test.parquet").read_bytes()
    assert shared.results == {
        "accuracy": 0.5,
        "model": "old",
        "log": ["see y.txt", "https://a.org/b/c"],
    }
    assert not runs.machine_paths(record_of(shared).read_text())
    (found,) = runs.published(tmp_path / "results", kind="example")
    assert found.id == run.id and runs.published(tmp_path / "results", kind="none") == []
    before, after = run.predictions("test"), found.predictions("test")
    assert list(after.id) == list(before.id) and list(after.prediction) == list(before.prediction)
    assert (
        after.label is None
        and after.logits is None
        and set(after.columns) == {"gate", "text_digest"}
    )
    assert text_digests(after).tolist() == text_digests(before).tolist() and after.text is None


def test_logits_and_scores_are_published_where_asked(tmp_path):
    import numpy

    run = published_run(tmp_path, score=numpy.linspace(0, 1, 50))
    shared = runs.publish(run, results=tmp_path / "results", logits=True)
    before, after = run.predictions("test"), shared.predictions("test")
    assert after.logits.dtype == numpy.float16 and after.classes == before.classes
    assert numpy.allclose(after.logits, before.logits, atol=2e-3)
    assert numpy.array_equal(after.score, before.score)
    again = runs.publish(run, results=tmp_path / "results")  # replaces
    assert again.predictions("test").logits is None


def test_logits_too_large_for_half_precision_are_published_in_single(tmp_path):
    import numpy

    likelihoods = numpy.float32(
        [[-300.01, -300.02], [-900.3, -900.1]] * 25
    )  # half precision is off by up to a quarter there
    run = published_run(tmp_path, logits=likelihoods, label=[0, 1] * 25, classes=None)
    shared = runs.publish(run, results=tmp_path / "results", logits=True).predictions("test")
    assert shared.logits.dtype == numpy.float32 and numpy.array_equal(shared.logits, likelihoods)
    assert list(shared.prediction) == [0, 1] * 25


def test_a_published_run_of_scores_alone_comes_back_without_labels(tmp_path):
    run = published_run(tmp_path, label=None, logits=None, classes=None, score=[0.5] * 50)
    runs.publish(run, results=tmp_path / "results")
    with runs.published_first({"selection": None, "test": None}, results=tmp_path / "results"):
        back = runs.run_once({"kind": "example"}, never, home=tmp_path / "elsewhere").predictions(
            "test"
        )
    assert back.score.tolist() == [0.5] * 50 and back.label is None
    assert text_digests(back).tolist() == text_digests(run.predictions("test")).tolist()


def test_a_published_run_is_taken_before_it_is_computed_again(tmp_path):
    run = published_run(tmp_path)
    runs.publish(run, results=tmp_path / "results", logits=True)
    truth = {split: run.predictions(split) for split in ("selection", "test")}
    with runs.published_first(truth, results=tmp_path / "results"):
        back = runs.run_once({"kind": "example"}, never, home=tmp_path / "elsewhere")
        once_more = runs.run_once({"kind": "example"}, never, home=tmp_path / "elsewhere")
        other = runs.run_once(
            {"kind": "other"}, lambda folder: {"computed": True}, home=tmp_path / "elsewhere"
        )
    assert back.recalled and once_more.folder == back.folder and back.id == run.id
    assert not other.recalled and not run.recalled and other.results == {"computed": True}
    for split in ("selection", "test"):
        assert back.predictions(split).correct.tolist() == run.predictions(split).correct.tolist()
        assert (
            back.predictions(split).columns["gate"].tolist()
            == run.predictions(split).columns["gate"].tolist()
        )
    with pytest.raises(AssertionError, match="must not be computed"):  # answers that are not kept
        back.predictions("train")
    assert runs.find(tmp_path / "elsewhere") == [other]  # a recalled run is no whole run
    with pytest.raises(AssertionError, match="must not be computed"):  # outside, it is computed
        runs.run_once({"kind": "example"}, never, home=tmp_path / "elsewhere")


def test_what_a_recalled_run_lacks_is_computed_once(tmp_path, monkeypatch):
    run, made = published_run(tmp_path), []
    runs.publish(run, results=tmp_path / "results")

    def compute(folder):
        made.append(folder)
        for split in ("train", "test"):
            run.predictions("test").save(folder / f"predictions-{split}.parquet")
        return {}

    ask = lambda: runs.run_once({"kind": "example"}, compute, home=tmp_path / "elsewhere")
    with runs.published_first(
        {split: run.predictions(split) for split in ("selection", "test")},
        results=tmp_path / "results",
    ):
        back = ask()
        assert back.recalled and back.predictions("test").logits is None and not made
        monkeypatch.setenv("COMPATKIT_COMPUTE", "0")
        with pytest.raises(RuntimeError, match="forbids to compute"):
            back.predictions("train")
        monkeypatch.delenv("COMPATKIT_COMPUTE")
        for _ in range(2):
            assert (
                back.predictions("train").logits.tolist() == run.predictions("test").logits.tolist()
                and len(made) == 1
            )
        assert not ask().recalled, "the whole run is there now"
        with pytest.raises(
            FileNotFoundError, match=r"no predictions of 'validation'; it has \['test', 'train'\]"
        ):
            back.predictions("validation")


def test_publishing_a_recalled_run_changes_nothing(tmp_path):
    run = published_run(tmp_path)
    runs.publish(run, results=tmp_path / "results", logits=True)
    truth = {split: run.predictions(split) for split in ("selection", "test")}
    with runs.published_first(truth, results=tmp_path / "results"):
        back = runs.run_once({"kind": "example"}, never, home=tmp_path / "elsewhere")
    runs.publish(back, results=tmp_path / "results")
    assert runs.published(tmp_path / "results")[0].predictions("test").logits is not None


def test_a_published_run_of_other_data_is_refused_and_leaves_nothing(tmp_path):
    runs.publish(published_run(tmp_path), results=tmp_path / "results")
    short = {split: {"example-0": 1} for split in ("selection", "test")}
    with (
        runs.published_first(short, results=tmp_path / "results"),
        pytest.raises(ValueError, match="49 ids have no label"),
    ):
        runs.run_once({"kind": "example"}, never, home=tmp_path / "elsewhere")
    assert not list((tmp_path / "elsewhere").rglob("*.parquet"))


def test_a_variant_of_a_split_has_the_splits_labels(tmp_path):
    """A sweep's answers on test stand as test-0.4, a gate's without the old model as test-alone."""
    answers = [Predictions(["a", "b"], [one, 1], prediction=[0, 1]) for one in (0, 1)]

    def compute(folder):
        for split, given in (
            ("new_test-0.4", answers[0]),
            ("new_test-alone", answers[0]),
            ("test", answers[1]),
        ):
            given.save(folder / f"predictions-{split}.parquet")
        return {}

    kept = runs.run_once({"kind": "sweep"}, compute, home=tmp_path / "runs")
    runs.publish(
        kept, results=tmp_path / "results", splits=("new_test-0.4", "new_test-alone", "test")
    )
    with runs.published_first(
        {"new_test": answers[0], "test": answers[1]}, results=tmp_path / "results"
    ):
        back = runs.run_once({"kind": "sweep"}, never, home=tmp_path / "elsewhere")
    assert [
        back.predictions(split).label.tolist()
        for split in ("new_test-0.4", "new_test-alone", "test")
    ] == [[0, 1], [0, 1], [1, 1]]
    with (
        runs.published_first({"tes": answers[0]}, results=tmp_path / "results"),
        pytest.raises(ValueError, match="no labels for the published answers on"),
    ):
        runs.run_once({"kind": "sweep"}, never, home=tmp_path / "third")


def test_a_gate_that_is_no_number_is_not_published(tmp_path):
    def compute(folder):
        Predictions(["a", "b"], prediction=[0, 1], columns={"gate": ["x", "y"]}).save(
            folder / "predictions-test.parquet"
        )
        return {}

    run = runs.run_once({}, compute, home=tmp_path)
    with pytest.raises(ValueError, match="gate that is not numeric"):
        runs.publish(run, results=tmp_path / "results")


def test_a_published_run_stays_under_the_limit_and_free_of_paths(tmp_path):
    run = published_run(tmp_path, n=100_000)
    with pytest.raises(ValueError, match="bytes of 1,048,576"):
        runs.publish(run, results=tmp_path / "results", logits=True)
    placed = published_run(tmp_path, configuration={"data": {"folder": "/data/glue/mrpc"}})
    with pytest.raises(ValueError, match=r"machine paths in \['data.folder'\]"):
        runs.publish(placed, results=tmp_path / "results")
    assert not list((tmp_path / "results").iterdir())


def test_labels_are_joined_by_id(tmp_path):
    run = published_run(tmp_path)
    shared = runs.publish(run, results=tmp_path / "results").predictions("test")
    whole = run.predictions("test")
    shuffled = whole.select(list(reversed(list(whole.id))))
    assert list(runs.with_labels(shared, shuffled).correct) == list(whole.correct)
    labels = {str(key): int(label) for key, label in zip(whole.id, whole.label)}
    assert list(runs.with_labels(shared, labels).label) == list(whole.label)
    del labels["example-7"]
    with pytest.raises(ValueError, match="1 ids have no label, among them .*example-7"):
        runs.with_labels(shared, labels)
    with pytest.raises(ValueError, match="carry no labels"):
        runs.with_labels(shared, shared)


def test_publish_outside_a_project_needs_a_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(FileNotFoundError, match="settings.ini"):
        runs.published()


@pytest.mark.parametrize(
    "text, found",
    [
        ("in /home/me/x.py, line 3", ["/home/me/x.py"]),
        ("'C:\\Users\\me\\x'", ["C:\\Users\\me\\x"]),
        ("~/models/old", ["~/models/old"]),
        ("https://huggingface.co/org/model and old/new/both, 3/4, </b></td>", []),
        ("sentence-transformers/all-MiniLM-L6-v2", []),
    ],
)
def test_machine_paths(text, found):
    assert runs.machine_paths(text) == found


# --- parameters ------------------------------------------------------------------------------------------------------

ALLOWED = {
    "task": ["pydoc", "mrpc"],
    "table": ("main", "1", "2"),
    "seeds": int,
    "rate": float,
    "data_dir": str,
    "encoder": [None, str],
    "quick": bool,
}
DEFAULTS = {
    "task": "pydoc",
    "table": "main",
    "seeds": 3,
    "rate": 0.1,
    "data_dir": "",
    "encoder": None,
    "quick": False,
}


def checked(**changes):
    """As in a notebook: imports before, the parameters, what papermill adds."""
    before = runs.names_before({"json": json, "limit": 5, "_hidden": 1})
    namespace = {"json": json, "limit": 5, "_hidden": 2, "before": before, **DEFAULTS, **changes}
    return runs.check_parameters(namespace, before, ALLOWED)


def test_defaults_pass_and_come_back():
    assert vars(checked()) == DEFAULTS


def test_what_papermill_made_of_text_is_taken_where_the_text_is_valid():
    assert checked(table=1).table == "1"
    assert checked(data_dir=2024).data_dir == "2024" and checked(encoder=7).encoder == "7"
    assert checked(rate=1).rate == 1.0 and isinstance(checked(rate=1).rate, float)
    assert checked(seeds="4").seeds == 4 and checked(quick="True").quick is True
    assert checked(encoder=None).encoder is None


def test_all_unknown_names_are_listed_with_near_ones():
    with pytest.raises(ValueError) as raised:
        checked(tsak="mrpc", zzz=1)
    message = str(raised.value)
    assert "'tsak' (did you mean 'task'?)" in message and "'zzz';" in message
    assert "valid names are data_dir, encoder, quick, rate, seeds, table, task" in message


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"task": "mrcp"}, r"task = 'mrcp': valid are 'pydoc', 'mrpc'"),
        ({"table": 9}, r"table = 9: valid are 'main', '1', '2'"),
        ({"seeds": 2.5}, "seeds = 2.5: valid is any int"),
        ({"seeds": True}, "seeds = True: valid is any int"),
        ({"seeds": "many"}, "seeds = 'many': valid is any int"),
        ({"quick": 1}, "quick = 1: valid is any bool"),
        ({"data_dir": None}, "data_dir = None: valid is any str"),
        ({"encoder": ["a"]}, "encoder = .*valid are None, str"),
    ],
)
def test_wrong_values_are_refused_with_the_valid_ones(changes, message):
    with pytest.raises(ValueError, match=message):
        checked(**changes)


def test_all_problems_are_told_at_once():
    with pytest.raises(ValueError, match="unknown parameter 'other'.*task = 5.*seeds = None"):
        checked(other=1, task=5, seeds=None)


def test_imports_functions_and_hidden_names_are_no_parameters():
    assert checked(Path=Path, ast=ast, wraps=wraps, _x=1, PAPERMILL_INPUT_PATH="a.ipynb").seeds == 3


def test_a_value_laid_over_a_name_of_the_notebook_is_noticed():
    with pytest.raises(ValueError, match="unknown parameter 'limit'"):
        checked(limit=6)
    with pytest.raises(ValueError, match="unknown parameter 'before'"):
        checked(before=6)


def test_a_parameter_that_is_not_set_is_named():
    with pytest.raises(ValueError, match="does not set 'task'"):
        runs.check_parameters({}, {}, {"task": ["pydoc"]})


def test_a_function_may_refuse_or_change_a_value():
    def positive(value):
        if value <= 0:
            raise ValueError("give a positive number")
        return value * 10

    assert runs.check_parameters({"seeds": 2}, {}, {"seeds": positive}).seeds == 20
    with pytest.raises(ValueError, match="seeds = 0: give a positive number"):
        runs.check_parameters({"seeds": 0}, {}, {"seeds": positive})
    assert runs.check_parameters({"seeds": 2}, {}, {"seeds": lambda value: None}).seeds == 2


# --- scales ----------------------------------------------------------------------------------------------------------

EVERY = ("smoke", "mini", "paper")
EMBEDDED = ("smoke", "mini")


@pytest.mark.parametrize(
    "scale, in_test, scales, gpu, weights, data, expected",
    [
        ("auto", False, EVERY, True, True, True, "paper"),
        ("auto", False, EVERY, True, False, True, "mini"),
        ("auto", False, EVERY, False, True, True, "mini"),
        ("auto", False, EMBEDDED, True, True, True, "mini"),
        ("auto", True, EVERY, True, True, True, "smoke"),
        ("smoke", False, EVERY, True, True, True, "smoke"),
        ("mini", True, EVERY, True, True, True, "mini"),
        ("paper", False, EVERY, False, True, True, "paper"),
    ],
)
def test_the_scale_that_is_chosen(scale, in_test, scales, gpu, weights, data, expected):
    chosen, reason = runs.choose_scale(scale, in_test, scales, gpu, weights, data)
    assert chosen == expected and reason


def test_missing_things_are_named():
    with pytest.raises(FileNotFoundError, match="missing: the task's data"):
        runs.choose_scale("auto", False, EVERY, True, True, False)
    with pytest.raises(FileNotFoundError, match="missing: mrpc/train.parquet in data"):
        runs.choose_scale(
            "mini", False, EVERY, True, True, False, data="mrpc/train.parquet in data"
        )
    with pytest.raises(FileNotFoundError, match="missing for the paper scale: the paper's weights"):
        runs.choose_scale("paper", False, EVERY, True, False, True)
    for scale in ("huge", "paper"):
        with pytest.raises(
            ValueError, match=f"scale '{scale}' is not valid here; valid are auto, smoke, mini"
        ):
            runs.choose_scale(scale, False, EMBEDDED, True, True, True)


def test_questions_are_asked_only_when_their_answer_matters():
    def unasked():
        raise AssertionError("nobody needs to know")

    assert runs.choose_scale("mini", False, EVERY, unasked, unasked, lambda: True)[0] == "mini"
    assert runs.choose_scale("auto", False, EMBEDDED, unasked, unasked, True)[0] == "mini"
    assert runs.choose_scale("auto", False, EVERY, lambda: False, unasked, True)[0] == "mini"


# --- papermill -------------------------------------------------------------------------------------------------------

needs_entry_point = pytest.mark.skipif(
    not any(
        point.value == "compatkit.experiments.runs:papermill_entry.engine"
        for point in importlib.metadata.entry_points(group="papermill.engine")
    ),
    reason="needs the package installed: pip install -e .",
)


def write_notebook(path):
    def cell(source, tags):
        metadata = {"tags": tags} if tags else {}
        fields = {
            "cell_type": "code",
            "execution_count": None,
            "id": f"cell-{len(cells)}",
            "outputs": [],
        }
        cells.append(fields | {"metadata": metadata, "source": source})

    cells = []
    cell('word = "default"', ["parameters"])
    cell('import sys\nprint("word is", word, sys.executable)', None)
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    path.write_text(
        json.dumps(
            {"cells": cells, "metadata": {"kernelspec": kernel}, "nbformat": 4, "nbformat_minor": 5}
        )
    )
    return path


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A copy of the project, as far as papermill is concerned, with one notebook; runs go where they go by default."""
    monkeypatch.delenv("COMPATKIT_HOME")
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    root = make_project(tmp_path / "project")
    write_notebook(root / "nbs" / "tiny.ipynb")
    return root


def text_of(notebook):
    cells = json.loads(notebook.read_text())["cells"]
    return "".join(
        "".join(output.get("text", "")) for cell in cells for output in cell.get("outputs", [])
    )


def executed(root):
    return sorted((root / "runs" / "notebooks").glob("*.ipynb")) if (root / "runs").exists() else []


PAPERMILL = [str(Path(sys.executable).parent / "papermill")]
AS_MODULE = [sys.executable, "-m", "papermill"]
QUICK = ["--prepare-only", "--no-progress-bar"]  # all of papermill but the kernel


def in_a_terminal(command, folder):
    """Run a command under a pseudo-terminal: (exit status, all that it showed)."""
    control, terminal = pty.openpty()
    process = subprocess.Popen(
        command, cwd=folder, stdin=terminal, stdout=terminal, stderr=terminal
    )
    os.close(terminal)
    shown = b""
    while True:
        try:
            part = os.read(control, 4096)
        except OSError:  # the other end is closed
            break
        if not part:
            break
        shown += part
    os.close(control)
    return process.wait(timeout=60), shown.decode(errors="replace")


@needs_entry_point
def test_the_users_command_in_a_terminal(project, tmp_path, monkeypatch):
    # a kernel of the same name, installed long ago for another Python, stands first in the path
    kernel = tmp_path / "jupyter" / "kernels" / "python3"
    kernel.mkdir(parents=True)
    (kernel / "kernel.json").write_text(
        json.dumps(
            {
                "argv": ["/nowhere/python", "-f", "{connection_file}"],
                "display_name": "old",
                "language": "python",
            }
        )
    )
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path / "jupyter"))
    source = (project / "nbs" / "tiny.ipynb").read_bytes()
    status, shown = in_a_terminal([*PAPERMILL, "nbs/tiny.ipynb", "-p", "word", "mrpc"], project)
    assert status == 0, shown
    (output,) = executed(project)
    assert re.fullmatch(r"tiny-word-mrpc-\d{8}T\d{6}Z-\d+\.ipynb", output.name)
    assert f"word is mrpc {sys.executable}" in text_of(output)
    assert "the executed notebook goes to" in shown
    page = output.with_suffix(".html")  # for those without Jupyter
    assert "word is mrpc" in page.read_text() and page.name in shown
    assert (project / "nbs" / "tiny.ipynb").read_bytes() == source


@needs_entry_point
@pytest.mark.parametrize("program", [PAPERMILL, AS_MODULE], ids=["script", "module"])
def test_the_users_command_with_a_pipe_as_input(project, program):
    source = (project / "nbs" / "tiny.ipynb").read_bytes()
    done = subprocess.run(
        [*program, "tiny.ipynb", *QUICK], cwd=project / "nbs", input=b"", capture_output=True
    )
    assert done.returncode == 0, done.stderr.decode()
    assert len(executed(project)) == 1 and done.stdout == b""
    assert (project / "nbs" / "tiny.ipynb").read_bytes() == source


@needs_entry_point
def test_runs_and_notebooks_follow_the_variable(project, tmp_path, monkeypatch):
    monkeypatch.setenv("COMPATKIT_HOME", str(tmp_path / "disk"))
    notebook = str(project / "nbs" / "tiny.ipynb")
    subprocess.run(
        [*AS_MODULE, notebook, *QUICK], cwd=tmp_path, input=b"", capture_output=True, check=True
    )
    assert len(list((tmp_path / "disk" / "notebooks").iterdir())) == 1 and executed(project) == []


@needs_entry_point
def test_an_explicit_output_path_works_as_always(project):
    command = [*AS_MODULE, "nbs/tiny.ipynb", "out.ipynb", *QUICK]
    done = subprocess.run(
        command, cwd=project, stdin=subprocess.DEVNULL, capture_output=True, text=True
    )
    assert done.returncode == 0 and (project / "out.ipynb").is_file() and executed(project) == []
    assert "compatkit" not in done.stderr


@needs_entry_point
def test_a_notebook_outside_the_project_is_left_to_papermill(tmp_path):
    write_notebook(tmp_path / "tiny.ipynb")
    status, shown = in_a_terminal([*AS_MODULE, "tiny.ipynb", *QUICK], tmp_path)
    assert status == 2 and "Missing argument 'OUTPUT_PATH'" in shown
    assert [path.name for path in tmp_path.iterdir()] == ["tiny.ipynb"]


@needs_entry_point
def test_a_name_that_is_no_parameter_is_refused_before_any_cell_runs(project):
    done = subprocess.run(
        [*PAPERMILL, "nbs/tiny.ipynb", "-p", "wrod", "x", "--no-progress-bar"],
        cwd=project,
        capture_output=True,
        text=True,
    )
    assert (
        done.returncode == 1
        and "unknown parameter 'wrod' (did you mean 'word'?); valid names are word" in done.stderr
    )
    assert "word is" not in "".join(map(text_of, executed(project)))


@needs_entry_point
def test_the_engine_of_our_name_is_known_to_papermill():
    from papermill.engines import NBClientEngine, papermill_engines

    assert issubclass(papermill_engines.get_engine("compatkit"), NBClientEngine)


@pytest.mark.parametrize(
    "arguments, slug",
    [
        (["NB"], "tiny"),
        (["-p", "task", "mrpc", "NB"], "tiny-task-mrpc"),
        (["NB", "-ptask", "mrpc", "-r", "data_dir", "/a b/c"], "tiny-task-mrpc-data_dir-a-b-c"),
        (["--log-output", "NB", "--cwd=nbs", "-k", "python3"], "tiny"),
        (["--", "NB"], "tiny"),
        (["-p", "x", "out.ipynb", "-y", "a: 1", "NB"], "tiny-x-out.ipynb"),
    ],
)
def test_calls_that_get_an_output_path(project, arguments, slug):
    notebook = str(project / "nbs" / "tiny.ipynb")
    output, *rest = runs.papermill_completion(
        [notebook if part == "NB" else part for part in arguments]
    )
    assert Path(output).parent == project / "runs" / "notebooks"
    assert re.fullmatch(re.escape(slug) + r"-\d{8}T\d{6}Z-\d+\.ipynb", Path(output).name)
    assert rest == ([] if "-k" in arguments else ["--engine", "compatkit"])


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["-"],
        ["NB", "out.ipynb"],
        ["NB", "-"],
        ["NB", "--help"],
        ["-h", "NB"],
        ["--version", "NB"],
        ["--help-notebook", "NB"],
        ["NB", "--unknown-option", "x"],
        ["NB", "-p", "task"],
        ["-p", "task", "NB"],
        ["absent.ipynb"],
        ["s3://bucket/tiny.ipynb"],
        ["x" * 5000 + ".ipynb"],
    ],
)
def test_calls_that_are_left_alone(project, arguments):
    notebook = str(project / "nbs" / "tiny.ipynb")
    assert (
        runs.papermill_completion([notebook if part == "NB" else part for part in arguments]) == []
    )


def test_our_list_of_papermills_options_is_papermills():
    import click
    from papermill.cli import papermill

    theirs = {}
    for option in papermill.params:
        if isinstance(option, click.Option):
            for name in [*option.opts, *option.secondary_opts]:
                theirs[name] = 0 if option.is_flag else option.nargs
    context = runs._papermill_arguments([])
    assert context is not None
    for name, count in theirs.items():
        given = runs._papermill_arguments([name, *["value"] * count, "NB"])
        assert given is not None and given["paths"] == ("NB",), name


def test_other_programs_are_not_touched(project, monkeypatch):
    call = ["python", str(project / "nbs" / "tiny.ipynb")]
    monkeypatch.setattr(sys, "argv", list(call))
    runs.papermill_entry.engine
    assert sys.argv == call
    monkeypatch.setattr(sys, "argv", ["/bin/papermill", call[1]])
    runs.papermill_entry.engine
    assert len(sys.argv) == 5
    runs.papermill_entry.engine  # a second time changes nothing
    assert len(sys.argv) == 5


def test_the_room_is_light():
    code = "import sys, compatkit.experiments.runs; print([n for n in ('torch', 'numpy', 'pandas', 'pyarrow', 'click') if n in sys.modules])"
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True
    )
    assert done.stdout == "[]\n"
