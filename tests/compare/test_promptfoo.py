"""Results of promptfoo: two providers in one file or two files, joined by variables and prompt."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from compatkit.cli import app
from compatkit.compare.logs import Wanted
from compatkit.compare.pair import read_pair
from compatkit.compare.promptfoo import holds, read

REAL = Path(__file__).parent / "tool_logs" / "promptfoo.json"


def row(n, provider="one", reason=0, prompt="sum", **other):
    return {
        "vars": {"number": n, "kind": "easy"},
        "prompt": {"raw": f"{prompt} {n}+1?", "label": prompt},
        "testIdx": 99 - n,
        "provider": {"id": provider, "label": provider.upper()},
        "success": reason == 0,
        "score": float(reason == 0),
        "failureReason": reason,
        "error": "Expected output to equal 2" if reason else None,
        "namedScores": {"style": 0.5},
        "response": {} if reason == 2 else {"output": {"answer": n}},
    } | other


def written(path, rows):
    path.write_text(
        json.dumps({"evalId": "e", "results": {"version": 3, "prompts": [], "results": rows}})
    )
    return path


def test_a_failed_assertion_is_wrong_and_a_broken_call_is_not(tmp_path):
    path = written(tmp_path / "r.json", [row(0), row(1, reason=1), row(2, reason=2)])
    assert holds(path, path.read_bytes())
    samples = list(read(path).samples.values())
    assert [sample.value for sample in samples] == [1.0, 0.0, None]
    assert samples[2].trouble == "error" and samples[1].answer == '{"answer": 1}'
    assert samples[0].fields == {"number": 0, "kind": "easy"}


def test_rows_are_joined_by_their_variables_in_any_order(tmp_path):
    old = written(tmp_path / "old.json", [row(0), row(1), row(2, reason=1)])
    new = written(tmp_path / "new.json", [row(2), row(0, reason=1), row(1)])
    pair = read_pair(old, new)
    right = pair.answers.index("right")
    assert (pair.old == right).tolist() == [True, True, False]
    assert (pair.new == right).tolist() == [False, True, True]


def test_two_providers_of_one_file(tmp_path):
    path = written(tmp_path / "r.json", [row(n, name) for n in range(3) for name in ("one", "two")])
    with pytest.raises(ValueError, match="--old.*--new"):
        read(path)
    pair = read_pair(path, path, sides=("one", "TWO"))  # by id or by label
    assert (pair.old_name, pair.new_name, pair.n) == ("one", "TWO", 3)


def test_a_changed_prompt_is_compared_and_named(tmp_path):
    old = written(tmp_path / "old.json", [row(0), row(1)])
    new = written(tmp_path / "new.json", [row(0, prompt="add"), row(1, reason=1, prompt="add")])
    pair = read_pair(old, new)
    assert pair.n == 2 and (pair.new != pair.label).tolist() == [False, True]
    assert any("prompt differs for 2 of 2" in note for note in pair.notes)


def test_two_prompts_of_one_file(tmp_path):
    rows = [row(n, name, prompt=prompt) for n in range(3) for name in "ab" for prompt in "xy"]
    one = written(tmp_path / "one.json", [one for one in rows if one["provider"]["id"] == "a"])
    pair = read_pair(one, one, sides=("x", "y"))
    assert pair.n == 3 and any("prompt differs for 3 of 3" in note for note in pair.notes)
    both = written(tmp_path / "both.json", rows)
    with pytest.raises(ValueError, match="there is A / x, B / x"):
        read(both, Wanted(side="x"))
    assert read_pair(both, both, sides=("A / x", "b / y")).n == 3


def test_two_prompts_are_two_questions_and_a_second_time_is_a_repeat(tmp_path):
    rows = [row(0), row(0, prompt="plus"), row(0)]
    keys = list(read(written(tmp_path / "r.json", rows)).samples)
    assert keys[0].id != keys[1].id and keys[2] == keys[0]._replace(repeat=2)


def test_named_scores(tmp_path):
    path = written(tmp_path / "r.json", [row(0)])
    assert [s.value for s in read(path, Wanted(metric="style")).samples.values()] == [0.5]
    with pytest.raises(ValueError, match="'success'.*'score'.*'style'"):
        read(path, Wanted(metric="tone"))


@pytest.mark.parametrize(
    "content",
    ['{"results": {"version": 3, "results": []}}', '{"evalId": 1}', '{"evalId": "e", "resu'],
)
def test_bad_content_is_named(tmp_path, content):
    path = tmp_path / "r.json"
    path.write_text(content)
    with pytest.raises(ValueError, match="^r.json"):
        read(path)


def test_what_the_tool_wrote():
    """A file of promptfoo 0.123.1 (make_tool_logs.py): two providers, each test twice."""
    assert holds(REAL, REAL.read_bytes()[:4096])
    old, new = (read(REAL, Wanted(side=side)) for side in ("first", "second"))
    assert [sample.value for sample in old.samples.values()] == [1.0] * 6
    values = {(s.fields["number"], key.repeat): s.value for key, s in new.samples.items()}
    assert values == {
        (number, repeat): value
        for number, value in (("1", 1.0), ("2", 0.0), ("3", None))
        for repeat in (1, 2)
    }
    assert {s.trouble for s in new.samples.values() if s.value is None} == {"error"}
    pair = read_pair(REAL, REAL, sides=("first", "second"))
    assert pair.n == 3 and pair.repeats.new.tolist() == [2, 0, 0]
    assert read(REAL, Wanted(side="second", metric="exact")).scorer == "exact"


def test_one_log_alone_is_told_what_else_is_needed():
    done = CliRunner().invoke(app, ["compare", str(REAL)])
    assert "is one log (promptfoo results)" in str(done.exception)
    assert "two of them, with --old and --new" in str(done.exception)


def test_a_row_a_line(tmp_path):
    rows = [row(n, promptIdx=0) for n in range(3)]
    old = tmp_path / "old.jsonl"
    old.write_text("".join(json.dumps(one) + "\n" for one in rows))
    new = tmp_path / "new.jsonl"
    new.write_text(
        "".join(json.dumps(one) + "\n" for one in [row(2, reason=1, promptIdx=0), *rows[:2]])
    )
    pair = read_pair(old, new)
    assert (pair.new == pair.label).tolist() == [True, True, False]


def test_its_csv_is_refused_with_the_command_that_writes_json(tmp_path):
    for name in ("old", "new"):
        (tmp_path / f"{name}.csv").write_text(
            'number,"[openai:gpt-4] Say {{number}}"\n1,"[PASS] (1.00)\n\n2"\n2,[FAIL] (0.00) 4\n'
        )
    with pytest.raises(ValueError, match="old.csv.*--output"):
        read_pair(tmp_path / "old.csv", tmp_path / "new.csv")


def test_a_csv_that_only_quotes_such_words_is_a_table(tmp_path):
    for name in ("old", "new"):
        (tmp_path / f"{name}.csv").write_text("id,label,prediction\n1,[PASS] a,[PASS] a\n")
    assert read_pair(tmp_path / "old.csv", tmp_path / "new.csv").n == 1
