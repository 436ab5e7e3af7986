"""Run folders of HELM: a metric of every instance, and folders with something missing."""

import json
import shutil
from pathlib import Path

import pytest

from compatkit.compare import compare
from compatkit.compare.helm import holds, read
from compatkit.compare.logs import Key, Wanted

REAL = Path(__file__).parent / "tool_logs" / "helm"


def written(folder, values, metrics=("exact_match", "f1_score"), states=True, broken=()):
    folder.mkdir(exist_ok=True)
    stats = [
        {
            "instance_id": f"id{n}",
            "train_trial_index": 0,
            "stats": [{"name": {"name": name, "split": "test"}, "mean": value} for name in metrics],
        }
        for n, value in enumerate(values)
    ]
    stats.append(stats[0] | {"perturbation": {"name": "typos"}})
    (folder / "per_instance_stats.json").write_text(json.dumps(stats))
    if states:
        rows = [
            {
                "instance": {
                    "id": f"id{n}",
                    "input": {"text": f"{n}"},
                    "references": [
                        {"output": {"text": "yes"}, "tags": ["correct"]},
                        {"output": {"text": "no"}, "tags": []},
                    ],
                },
                "train_trial_index": 0,
                "result": {"success": n not in broken, "completions": [{"text": " yes"}]},
            }
            for n in range(len(values))
        ]
        (folder / "scenario_state.json").write_text(json.dumps({"request_states": rows}))
    (folder / "run_spec.json").write_text(
        json.dumps({"name": "boolq:model=a_b,data_augmentation=c"})
    )
    return folder


def test_instances_with_what_was_asked(tmp_path):
    run = written(tmp_path / "run", [1.0, 0.0, 1.0], broken=(2,))
    assert holds(run, b"") and not holds(tmp_path, b"")
    log = read(run)
    assert log.scorer == "exact_match" and len(log.samples) == 3  # the perturbed one is left out
    sample = log.samples[Key("boolq,data_augmentation=c", "id0")]
    assert (sample.value, sample.answer, sample.target) == (
        1.0,
        "yes",
        "yes",
    ) and "question" in sample.asked
    assert log.samples[Key("boolq,data_augmentation=c", "id2")].trouble == "error"


def test_the_metric_must_be_clear(tmp_path):
    run = written(tmp_path / "run", [0.5], metrics=("f1_score", "rouge_l"))
    with pytest.raises(ValueError, match="--metric.*f1_score.*rouge_l"):
        read(run)
    assert [s.value for s in read(run, Wanted(metric="rouge_l")).samples.values()] == [0.5]


def test_without_the_state_the_questions_are_unknown(tmp_path):
    run = written(tmp_path / "run", [1.0], states=False)
    assert [sample.asked for sample in read(run).samples.values()] == [{}]


def test_a_half_written_folder_is_named(tmp_path):
    run = written(tmp_path / "run", [1.0])
    (run / "scenario_state.json").write_text('{"request_states": [{"inst')
    with pytest.raises(ValueError, match="scenario_state"):
        read(run)
    (run / "scenario_state.json").write_text("[]")
    (run / "per_instance_stats.json").write_text("[]")
    with pytest.raises(ValueError, match="^run: "):
        read(run)


def test_what_the_tool_wrote():
    """A run of crfm-helm 0.5.16 with its own model `simple/model1` (make_tool_logs.py)."""
    assert holds(REAL, b"")
    log = read(REAL)
    assert log.scorer == "exact_match" and {key.task for key in log.samples} == {"simple_mcqa"}
    assert {(s.value, s.answer) for s in log.samples.values()} == {(0.0, "Answer:")}
    assert {s.target for s in log.samples.values()} <= {"Even", "Odd"}
    assert all("question" in sample.asked for sample in log.samples.values())
    with pytest.raises(ValueError, match="4 examples"):  # all of which are wrong
        compare(REAL, REAL)


def test_a_letter_is_shown_as_the_text_that_it_stood_for(tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(REAL, folder)
    state = (
        (folder / "scenario_state.json").read_text().replace('"text": "Answer:"', '"text": " A"')
    )
    (folder / "scenario_state.json").write_text(state)
    assert {sample.answer for sample in read(folder).samples.values()} == {"Even"}


def test_valid_and_test_are_tasks_of_their_own(tmp_path):
    for name, values in (("old", [1.0, 1.0, 0.0, 1.0]), ("new", [1.0, 0.0, 0.0, 1.0])):
        run = written(tmp_path / name, values, states=False)
        stats = json.loads((run / "per_instance_stats.json").read_text())
        for one in stats[2:4]:
            for stat in one["stats"]:
                stat["name"]["split"] = "valid"
        (run / "per_instance_stats.json").write_text(json.dumps(stats))
    found = compare(tmp_path / "old", tmp_path / "new")
    tasks = {name: one["overall"]["nfr"] for name, one in found.summary["tasks"].items()}
    assert {name: (one["value"], one["n"]) for name, one in tasks.items()} == {
        "boolq,data_augmentation=c": (0.5, 2),
        "boolq,data_augmentation=c, valid": (0.0, 2),
    }
    assert found.summary["judged_by"] == "`exact_match` (HELM run)"
