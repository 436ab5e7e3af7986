"""Logs that Inspect AI itself wrote (make_inspect_logs.py), and logs that were broken by hand."""

import json
import os
import struct
import zipfile
from pathlib import Path

import pytest

from compatkit.compare import compare
from compatkit.compare.inspect_logs import archive_names, holds, read, read_entry
from compatkit.compare.logs import Key, Wanted

LOGS = Path(__file__).parent / "inspect_logs"


def as_json(path, changes=None):
    """A log of the tool as the JSON that the tool writes instead, with changes to its samples by
    id.
    """
    header, samples = (
        json.loads(read_entry(path, name)) for name in ("header.json", "summaries.json")
    )
    samples = [sample | (changes or {}).get(sample["id"], {}) for sample in samples]
    return header | {"samples": samples}


def written(folder, content, name="log.json"):
    path = folder / name
    path.write_text(json.dumps(content))
    return path


def test_what_the_tool_wrote():
    log = read(LOGS / "new.eval")
    values = {
        key.id: (sample.value, sample.trouble, sample.answer) for key, sample in log.samples.items()
    }
    assert values["q0"] == (1.0, "", "1") and values["q4"] == (0.0, "", "9")
    assert values["q2"] == (None, "no answer", "") and values["q5"] == (None, "error", None)
    assert log.scorer == "match" and log.settings["task version"] == "3"
    assert log.samples[Key("sums", "q1")].fields == {"odd": 1}
    assert log.samples[Key("sums", "q1")].target == "2" and not log.unfinished


def test_two_logs_compared():
    found = compare(LOGS / "old.eval", LOGS / "new.eval")
    assert found.summary["overall"]["counts"]["negative"] == 3
    assert (
        "2 of 6 samples of the new run have no value (1 error, 1 no answer)"
        in found.summary["notes"][0]
    )
    dropped = compare(LOGS / "old.eval", LOGS / "new.eval", wanted={"errors": "drop"})
    assert dropped.summary["examples"] == 4


def test_json_and_archive_say_the_same(tmp_path):
    path = written(tmp_path, as_json(LOGS / "old.eval"))
    assert holds(path, path.read_bytes()) and holds(LOGS / "old.eval", b"")
    assert read(path).samples == read(LOGS / "old.eval").samples


def test_found_by_content_under_another_name(tmp_path):
    path = tmp_path / "renamed.log"
    path.write_bytes((LOGS / "old.eval").read_bytes())
    assert holds(path, path.read_bytes()[:4096])


def test_scorers_must_be_chosen():
    with pytest.raises(
        ValueError,
        match="two-scorers.eval.*--scorer",
    ):
        read(LOGS / "two-scorers.eval")
    assert read(LOGS / "two-scorers.eval", Wanted(scorer="includes")).scorer == "includes"
    with pytest.raises(ValueError, match="'f1'"):
        read(LOGS / "old.eval", Wanted(scorer="f1"))


def test_epochs_are_repeats():
    log = read(LOGS / "two-epochs.eval")
    assert {key.repeat for key in log.samples} == {1, 2} and len(log.samples) == 12
    with pytest.raises(ValueError, match="repeats"):
        compare(LOGS / "old.eval", LOGS / "two-epochs.eval")


def test_a_half_written_archive(tmp_path):
    path = tmp_path / "half.eval"
    path.write_bytes((LOGS / "old.eval").read_bytes())
    os.truncate(path, 2_000)
    with pytest.raises(ValueError, match="half.eval"):
        compare(path, LOGS / "old.eval")


def test_a_run_that_was_stopped(tmp_path):
    path = tmp_path / "stopped.eval"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("_journal/start.json", "{}")
        archive.writestr("samples/q0_epoch_1.json", "{}")
    with pytest.raises(ValueError, match="header.json.*1 samples"):
        compare(path, LOGS / "old.eval")


def test_paths_in_an_archive_lead_nowhere(tmp_path):
    path = tmp_path / "evil.eval"
    with zipfile.ZipFile(path, "w") as archive:
        for name in archive_names(LOGS / "old.eval"):
            archive.writestr(name, read_entry(LOGS / "old.eval", name))
        archive.writestr("samples/../../../evil.json", "{}")
    assert read(path).samples == read(LOGS / "old.eval").samples
    assert [other.name for other in tmp_path.parent.glob("evil*")] == []


def test_a_failed_run_is_named(tmp_path):
    content = as_json(LOGS / "old.eval") | {
        "status": "error",
        "error": {"message": "out of credit"},
    }
    path = written(tmp_path, content)
    with pytest.raises(ValueError, match="'error'"):
        compare(LOGS / "old.eval", path)
    assert compare(LOGS / "old.eval", path, on_missing="drop").summary["examples"] == 6


def test_other_targets_and_other_sample_sets(tmp_path):
    path = written(tmp_path, as_json(LOGS / "old.eval", {"q3": {"target": "44"}}))
    with pytest.raises(ValueError, match="right answer.*'q3'"):
        compare(LOGS / "old.eval", path)
    content = as_json(LOGS / "old.eval")
    path = written(tmp_path, content | {"samples": content["samples"][:4]})
    with pytest.raises(ValueError, match="'q4'.*'q5'"):
        compare(LOGS / "old.eval", path)


LONG = "word " * 3_000


@pytest.mark.parametrize(
    ("cut", "whole"),
    [
        (f"{LONG[:5120]}...\n(content truncated)", LONG),
        (
            [{"role": "user", "content": [{"type": "text", "text": f"{LONG[:5120]}..."}]}],
            [{"role": "user", "id": "m1", "content": [{"type": "text", "text": LONG}]}],
        ),
        (
            [{"role": "user", "content": [{"type": "text", "text": "(Image)"}]}],
            [{"role": "user", "content": [{"type": "image", "image": "data:image/png;base64,a"}]}],
        ),
    ],
)
def test_an_input_that_the_summaries_cut_off_is_the_same_question(tmp_path, cut, whole):
    sides = [
        written(tmp_path, as_json(LOGS / "old.eval", {"q3": change}), f"{number}.json")
        for number, change in enumerate(
            ({"input": cut}, {"input": whole, "choices": ["a", "b"]}, {"input": "another"})
        )
    ]
    assert compare(*sides[:2]).summary["examples"] == 6
    with pytest.raises(ValueError, match="question.*'q3'"):
        compare(sides[0], sides[2])
    found = compare(sides[0], sides[2], wanted={"on_changed": "compare"}).summary
    assert found["examples"] == 6 and any("question differs" in note for note in found["notes"])


def test_samples_without_ids_are_joined_by_what_was_asked(tmp_path):
    content = as_json(LOGS / "old.eval", {f"q{n}": {"id": None} for n in range(6)})
    path = written(tmp_path, content)
    found = compare(path, path)
    assert found.summary["examples"] == 6
    assert any("no id: they are joined by a digest" in note for note in found.summary["notes"])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"samples": "all"}, "no list `samples`"),
        ({"samples": [1]}, "no JSON object"),
        ({"samples": []}, "no samples"),
        ({"samples": [{"id": "a", "epoch": "x", "scores": {"match": "C"}}]}, "epoch 'x'"),
        ({"samples": [{"id": "a", "scores": {}}], "eval": {"task": "sums"}}, "no scorer"),
    ],
)
def test_bad_content_is_named(tmp_path, changes, message):
    path = written(tmp_path, as_json(LOGS / "old.eval") | changes)
    with pytest.raises(ValueError, match=f"log.json: .*{message}"):
        read(path)


def test_old_summaries_hold_the_value_alone_and_dictionaries_are_metrics(tmp_path):
    path = written(tmp_path, as_json(LOGS / "old.eval", {"q0": {"scores": {"match": "P"}}}))
    assert read(path).samples[Key("sums", "q0")].value == 0.5
    values = {f"q{n}": {"scores": {"match": {"value": {"f1": 0.5, "exact": 1}}}} for n in range(6)}
    path = written(tmp_path, as_json(LOGS / "old.eval", values))
    with pytest.raises(ValueError, match="--metric.*f1, exact"):
        read(path)
    assert read(path, Wanted(metric="f1")).samples[Key("sums", "q5")].value == 0.5


def test_a_metric_of_a_scorer_that_gives_one_value_is_named():
    with pytest.raises(ValueError, match="match.*--metric f1"):
        read(LOGS / "old.eval", Wanted(metric="f1"))


def test_another_version_of_the_task_is_told(tmp_path):
    content = as_json(LOGS / "old.eval")
    content["eval"]["task_version"] = 4
    notes = compare(LOGS / "old.eval", written(tmp_path, content)).summary["notes"]
    assert "The task version differs: 3 in the old run, 4 in the new one." in notes


def test_other_scorers_are_refused(tmp_path):
    path = written(tmp_path, as_json(LOGS / "two-scorers.eval"))
    with pytest.raises(ValueError, match="--scorer"):
        compare(LOGS / "old.eval", path)
    header, samples = as_json(path := LOGS / "old.eval"), []
    for sample in header["samples"]:
        samples.append(sample | {"scores": {"f1": sample["scores"]["match"]}})
    with pytest.raises(ValueError, match="old.eval.*log.json"):
        compare(path, written(tmp_path, header | {"samples": samples}))


def test_a_log_that_is_a_zip_bomb_is_given_up(tmp_path, monkeypatch):
    path = tmp_path / "bomb.eval"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("header.json", read_entry(LOGS / "old.eval", "header.json"))
        archive.writestr("summaries.json", bytes(3_000_000))
    monkeypatch.setattr(read_entry, "__defaults__", (1_000_000,))  # as a gibibyte takes seconds
    with pytest.raises(ValueError, match="bomb.eval.*summaries.json.*1,000,000"):
        compare(path, path)


# --- archives: broken, or made to do harm ---------------------------------------------------------

CONTENT = b'{"a": 1}' * 100


@pytest.fixture
def archive(tmp_path):
    path = tmp_path / "log.eval"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("header.json", CONTENT)
        file.writestr("../../outside.json", b"{}")
        file.writestr("/etc/outside.json", b"{}")
        file.writestr("bomb.json", bytes(50_000_000))
    return path


def test_an_entry_is_read_and_nothing_is_written(archive):
    before = {path: path.stat().st_mtime_ns for path in archive.parent.parent.rglob("*")}
    assert read_entry(archive, "header.json") == CONTENT
    assert read_entry(archive, "../../outside.json") == b"{}"  # in memory: a name, not a place
    assert len(archive_names(archive)) == 4
    assert before == {path: path.stat().st_mtime_ns for path in archive.parent.parent.rglob("*")}


def test_a_bomb_is_given_up_at_the_limit(archive):
    with pytest.raises(ValueError, match="1,000,000"):
        read_entry(archive, "bomb.json", most=1_000_000)


def test_a_bomb_in_the_header_is_known_before_it_is_unpacked(tmp_path):
    path = tmp_path / "bomb.eval"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("header.json", b"{}")
        file.writestr("summaries.json", b"[]")
    data = bytearray(path.read_bytes())
    place = data.find(b"PK\x01\x02") + 24
    data[place : place + 4] = struct.pack("<L", 1 << 30)  # the directory owns up to a gibibyte
    path.write_bytes(data)
    with pytest.raises(ValueError, match="header.json.*67,108,864"):
        read(path, Wanted())


def test_an_entry_larger_than_its_directory_says_is_refused(tmp_path):
    path = tmp_path / "lies.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as file:
        file.writestr("header.json", CONTENT)
    data = bytearray(path.read_bytes())
    place = data.find(b"PK\x01\x02") + 24
    data[place : place + 4] = struct.pack("<L", 10)
    path.write_bytes(data)
    with pytest.raises(ValueError, match="header.json"):
        read_entry(path, "header.json")


def test_a_half_written_archive_is_named(archive):
    os.truncate(archive, archive.stat().st_size // 2)
    with pytest.raises(ValueError, match="log.eval"):
        archive_names(archive)


def test_a_damaged_entry_is_named(archive):
    data = bytearray(archive.read_bytes())
    place = data.find(b"header.json") + len("header.json") + 4
    data[place] ^= 0xFF
    archive.write_bytes(data)
    with pytest.raises(ValueError, match="header.json"):
        read_entry(archive, "header.json")


def test_an_entry_that_is_not_there_is_named(archive):
    with pytest.raises(ValueError, match="no summaries.json"):
        read_entry(archive, "summaries.json")
