"""The module `published`: what leaves the machine, and how it is found again."""

import shutil
from multiprocessing import get_context

import pytest
from pyarrow import parquet

from compatkit.experiments.running import published, runs
from compatkit.predictions import Predictions, text_digests


def record_of(run):
    return run.folder / "record.json"


def never(folder):
    raise AssertionError("this run is there already and must not be computed")


def predictions_of(n, **fields):
    import numpy

    rng = numpy.random.default_rng(0)
    given = {
        "label": rng.integers(3, size=n),
        "logits": rng.normal(size=(n, 3)),
        "classes": ["a", "b", "c"],
    }
    columns = {"gate": rng.random(n, dtype="float32"), "length": rng.integers(9, size=n)}
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
    with pytest.raises(FileNotFoundError, match="'valid'.*'selection'.*'test'"):
        run.predictions("valid")


@pytest.mark.parametrize("commit", [{"commit": "1234", "dirty": True}, None])
def test_the_project_keeps_no_run_of_code_that_was_not_committed(tmp_path, monkeypatch, commit):
    run = published_run(tmp_path)
    run.record["commit"] = commit
    monkeypatch.setattr(published, "project_root", lambda: tmp_path)
    with pytest.raises(ValueError, match=f"1 of 1 runs .*{run.id}.* remove .*{run.folder.name}"):
        published.publish(run, results=tmp_path / "results")
    assert not (tmp_path / "results").exists()
    published.publish(run, results=tmp_path / "mine")
    run.record["commit"] = {"commit": "1234", "dirty": False}
    published.publish(run, results=tmp_path / "results")


def test_published_runs_hold_no_label_no_text_and_no_paths(tmp_path):
    run = published_run(tmp_path)
    shared = published.publish(run, results=tmp_path / "results", study="example-study")
    assert shared.folder == tmp_path / "results" / "example-study"
    assert sorted(file.name for file in shared.folder.iterdir()) == [
        "predictions.parquet",
        "records.parquet",
    ]
    table = parquet.read_table(shared.folder / "predictions.parquet")
    assert not {"label", "text"} & set(table.column_names)
    for file in shared.folder.iterdir():
        assert b"secret" not in file.read_bytes()
    assert shared.results == {
        "accuracy": 0.5,
        "model": "old",
        "log": ["see y.txt", "https://a.org/b/c"],
    }
    (record,) = parquet.read_table(shared.folder / "records.parquet")["record"].to_pylist()
    assert not published.machine_paths(record)
    (found,) = published.published(tmp_path / "results", kind="example")
    assert found.id == run.id and found.code == run.code and found.splits == ["selection", "test"]
    assert published.published(tmp_path / "results", kind="none") == []
    before, after = run.predictions("test"), found.predictions("test")
    assert list(after.id) == list(before.id) and list(after.prediction) == list(before.prediction)
    assert (
        after.label is None
        and after.logits is None
        and set(after.columns) == {"gate", "text_digest"}
    )
    assert text_digests(after).tolist() == text_digests(before).tolist() and after.text is None
    with pytest.raises(FileNotFoundError, match="'train'"):
        found.predictions("train")


def test_mended_code_does_not_orphan_a_published_run(tmp_path):
    run = published_run(tmp_path)
    published.publish(run, results=tmp_path / "results")
    with published.published_first({"selection": None, "test": None}, tmp_path / "results"):

        def other(folder):
            return {"accuracy": "by other code"}

        back = runs.run_once({"kind": "example"}, other, home=tmp_path / "elsewhere")
    assert back.recalled and back.results["accuracy"] == 0.5


def test_a_study_is_extended_and_a_run_stands_in_one_only(tmp_path):
    first = published_run(tmp_path, configuration={"kind": "example", "seed": 1})
    second = published_run(tmp_path, configuration={"kind": "example", "seed": 2})
    results = tmp_path / "results"
    published.publish(first, results, logits=True, study="study")
    published.publish_study("study", [published.ToPublish(second)], results)
    found = published.published_runs(results)
    assert set(found) == {first.id, second.id}
    assert found[first.id].predictions("test").logits is not None
    published.publish(first, results)  # stays where it is
    assert found[first.id].folder == published.published_runs(results)[first.id].folder
    published.publish(second, results, study="another")
    assert published.published_runs(results)[second.id].folder.name == "study"
    shutil.copytree(results / "study", results / "another")
    with pytest.raises(ValueError, match="another and study"):
        published.published_runs(results)


def test_a_kept_run_stays_what_it_is_and_other_answers_are_refused(tmp_path):
    results, splits = tmp_path / "results", ("selection", "test")
    here, there = (
        published_run(tmp_path / name, classes=None, label=[1] * 50, logits=logits)
        for name, logits in (("here", [[0.0, 1.0]] * 50), ("there", [[0.0, 1.25]] * 50))
    )
    assert here.id == there.id
    published.publish(here, results, study="study")
    published.publish(there, results)  # the same predictions, and that is what was kept
    published.publish(here, results, logits=True)
    before = (results / "study" / "predictions.parquet").read_bytes()
    with pytest.raises(ValueError, match="1.*1 runs") as told:
        published.publish_study("other", [published.ToPublish(there, True, splits)], results)
    for part in (here.id, "-p from_results True", "COMPATKIT_REPLICATE=1"):
        assert part in str(told.value)
    assert (results / "study" / "predictions.parquet").read_bytes() == before
    assert not (results / "other").exists()


def test_two_studies_that_bring_the_same_runs_at_once_keep_them_once(tmp_path):
    made = [published_run(tmp_path, configuration={"kind": "shared", "at": at}) for at in range(4)]
    groups = [[published.ToPublish(run) for run in made[first:]] for first in range(4)]
    results = tmp_path / "results"
    context = get_context("spawn")
    work = [
        context.Process(target=published.publish_study, args=(f"study-{at}", group, results))
        for at, group in enumerate(groups)
    ]
    for one in work:
        one.start()
    for one in work:
        one.join()
    assert [one.exitcode for one in work] == [0, 0, 0, 0]
    assert set(published.published_runs(results)) == {run.id for run in made}


def test_logits_and_scores_are_published_where_asked(tmp_path):
    import numpy

    run = published_run(tmp_path, score=numpy.linspace(0, 1, 50))
    shared = published.publish(run, results=tmp_path / "results", logits=True)
    before, after = run.predictions("test"), shared.predictions("test")
    assert after.logits.dtype == numpy.float16 and after.classes == before.classes
    assert numpy.allclose(after.logits, before.logits, atol=2e-3)
    assert numpy.array_equal(after.score, before.score)
    again = published.publish(run, results=tmp_path / "results")  # less does not replace
    assert again.predictions("test").logits is not None


def test_logits_too_large_for_half_precision_are_published_in_single(tmp_path):
    import numpy

    likelihoods = numpy.float32(
        [[-300.01, -300.02], [-900.3, -900.1]] * 25
    )  # half precision is off by up to a quarter there
    run = published_run(tmp_path, logits=likelihoods, label=[0, 1] * 25, classes=None)
    shared = published.publish(run, results=tmp_path / "results", logits=True).predictions("test")
    assert shared.logits.dtype == numpy.float32 and numpy.array_equal(shared.logits, likelihoods)
    assert list(shared.prediction) == [0, 1] * 25


def test_a_published_run_of_scores_alone_comes_back_without_labels(tmp_path):
    run = published_run(tmp_path, label=None, logits=None, classes=None, score=[0.5] * 50)
    published.publish(run, results=tmp_path / "results")
    with published.published_first({"selection": None, "test": None}, results=tmp_path / "results"):
        back = runs.run_once({"kind": "example"}, never, home=tmp_path / "elsewhere").predictions(
            "test"
        )
    assert back.score.tolist() == [0.5] * 50 and back.label is None
    assert text_digests(back).tolist() == text_digests(run.predictions("test")).tolist()


def test_a_published_run_is_taken_before_it_is_computed_again(tmp_path):
    run = published_run(tmp_path)
    published.publish(run, results=tmp_path / "results", logits=True)
    truth = {split: run.predictions(split) for split in ("selection", "test")}
    with published.published_first(truth, results=tmp_path / "results"):
        back = runs.run_once({"kind": "example"}, never, home=tmp_path / "elsewhere")
        once_more = runs.run_once({"kind": "example"}, never, home=tmp_path / "elsewhere")
        other = runs.run_once(
            {"kind": "other"}, lambda folder: {"computed": True}, home=tmp_path / "elsewhere"
        )
    assert back.recalled and once_more.folder == back.folder and back.id == run.id
    assert not other.recalled and not run.recalled and other.results == {"computed": True}
    for split in ("selection", "test"):
        assert back.predictions(split).correct.tolist() == run.predictions(split).correct.tolist()
        gates = [one.predictions(split).columns["gate"] for one in (back, run)]
        assert 0 < abs(gates[0] - gates[1]).max() <= 2**-11, "to a thousandth"
    with pytest.raises(AssertionError, match="must not be computed"):  # answers that are not kept
        back.predictions("train")
    assert runs.find(tmp_path / "elsewhere") == [other]  # a recalled run is no whole run
    with pytest.raises(AssertionError, match="must not be computed"):  # outside, it is computed
        runs.run_once({"kind": "example"}, never, home=tmp_path / "elsewhere")


def test_a_run_published_in_another_precision_is_found_and_keeps_its_id(tmp_path, capsys):
    """A processor without bfloat16 reads what one with it published, and so do its children."""

    def asked(precision, **more):
        return {"kind": "fine_tune", "recipe": {"precision": precision, "epochs": 2}} | more

    def publish(configuration):
        run = published_run(tmp_path, configuration=configuration)
        published.publish(run, results=tmp_path / "results")
        return run

    old = publish(asked("bfloat16"))
    child = publish(asked("bfloat16", parents=[old.id]))
    published._say_precision.cache_clear()
    truth = {split: old.predictions(split) for split in ("selection", "test")}
    with published.published_first(truth, tmp_path / "results"):
        found = runs.run_once(asked("float32"), never, home=tmp_path / "here")
        again = runs.run_once(asked("float32"), never, home=tmp_path / "here")
        grown = runs.run_once(asked("float32", parents=[found.id]), never, home=tmp_path / "here")
        with pytest.raises(AssertionError, match="must not be computed"):
            runs.run_once(asked("float64"), never, home=tmp_path / "here")
    assert found.recalled and found.id == again.id == old.id and grown.id == child.id
    said = "published runs were trained in bfloat16, not in float32: taken as they are\n"
    assert capsys.readouterr().err == said


def test_what_a_recalled_run_lacks_is_computed_once(tmp_path, monkeypatch):
    run, made = published_run(tmp_path), []
    published.publish(run, results=tmp_path / "results")

    def compute(folder):
        made.append(folder)
        for split in ("train", "test"):
            run.predictions("test").save(folder / f"predictions-{split}.parquet")
        return {}

    def ask():
        return runs.run_once({"kind": "example"}, compute, home=tmp_path / "elsewhere")

    with published.published_first(
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
        again = ask()
        assert again.recalled, "what is published comes before a copy of one's own"
        assert again.whole().folder.parent == tmp_path / "elsewhere" and len(made) == 1
        assert back.with_logits("test").logits is not None and len(made) == 1
        with pytest.raises(FileNotFoundError, match="'validation'.*'test'.*'train'"):
            back.predictions("validation")


def test_a_copy_of_what_was_published_before_is_not_taken(tmp_path):
    results, elsewhere = tmp_path / "results", tmp_path / "elsewhere"
    for name, answer in (("before", 0), ("now", 1)):
        shutil.rmtree(results, ignore_errors=True)
        run = published_run(tmp_path / name, logits=None, label=[1] * 50, prediction=[answer] * 50)
        published.publish(run, results)
        truth = {split: run.predictions(split) for split in ("selection", "test")}
        with published.published_first(truth, results):
            back = runs.run_once({"kind": "example"}, never, home=elsewhere)
        assert back.recalled and set(back.predictions("test").prediction) == {answer}
    shutil.rmtree(results)
    results.mkdir()
    with published.published_first(truth, results):
        own = runs.run_once({"kind": "example"}, lambda folder: {"own": True}, home=elsewhere)
    assert not own.recalled, "what is not published any more is computed"


def test_a_recalled_run_says_how_far_it_differs_where_it_was_computed_again(tmp_path):
    run = published_run(tmp_path)
    published.publish(run, results=tmp_path / "results")

    def compute(folder):
        """Another machine's rounding: 2 of 50 answers on test are others, in another order."""
        own = run.predictions("test")
        answers = own.prediction.copy()
        answers[:2] = (answers[:2] + 1) % 3
        changed = own.replace(prediction=answers, logits=None)
        changed.select(own.id.tolist()[::-1]).save(folder / "predictions-test.parquet")
        return {}

    labels = {split: run.predictions(split) for split in ("selection", "test")}
    with published.published_first(labels, results=tmp_path / "results"):
        back = runs.run_once({"kind": "example"}, compute, home=tmp_path / "elsewhere")
    assert back.recalled and back.differs_here() == 0, "nothing was computed yet"
    back.whole()
    assert back.differs_here() == pytest.approx(2 / 50)
    assert back.whole().differs_here() == run.differs_here() == 0, "only what was read differs"


def test_publishing_a_recalled_run_changes_nothing(tmp_path):
    run = published_run(tmp_path)
    published.publish(run, results=tmp_path / "results", logits=True)
    truth = {split: run.predictions(split) for split in ("selection", "test")}
    with published.published_first(truth, results=tmp_path / "results"):
        back = runs.run_once({"kind": "example"}, never, home=tmp_path / "elsewhere")
    published.publish(back, results=tmp_path / "results")
    assert published.published(tmp_path / "results")[0].predictions("test").logits is not None


def test_a_published_run_of_other_data_is_refused_and_leaves_nothing(tmp_path):
    published.publish(published_run(tmp_path), results=tmp_path / "results")
    short = {split: {"example-0": 1} for split in ("selection", "test")}
    with (
        published.published_first(short, results=tmp_path / "results"),
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
    published.publish(
        kept, results=tmp_path / "results", splits=("new_test-0.4", "new_test-alone", "test")
    )
    with published.published_first(
        {"new_test": answers[0], "test": answers[1]}, results=tmp_path / "results"
    ):
        back = runs.run_once({"kind": "sweep"}, never, home=tmp_path / "elsewhere")
    assert [
        back.predictions(split).label.tolist()
        for split in ("new_test-0.4", "new_test-alone", "test")
    ] == [[0, 1], [0, 1], [1, 1]]
    with (
        published.published_first({"tes": answers[0]}, results=tmp_path / "results"),
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
    with pytest.raises(ValueError, match="column gate"):
        published.publish(run, results=tmp_path / "results")


def test_a_published_run_stays_under_the_limit_and_free_of_paths(tmp_path):
    run = published_run(tmp_path, n=100_000)
    with pytest.raises(ValueError, match="bytes of 1,048,576"):
        published.publish(run, results=tmp_path / "results", logits=True)
    placed = published_run(tmp_path, configuration={"data": {"folder": "/data/glue/mrpc"}})
    with pytest.raises(ValueError, match="'data.folder'"):
        published.publish(placed, results=tmp_path / "results")
    assert not (tmp_path / "results").exists()


def test_publish_outside_a_project_needs_a_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(FileNotFoundError, match="settings.ini"):
        published.published()


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
    assert published.machine_paths(text) == found
