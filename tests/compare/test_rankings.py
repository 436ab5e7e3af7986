"""Rankings of a search: found by content, judged by first hit or list, broken files named."""

import json

import pytest
from click.testing import CliRunner

from compatkit.cli import app
from compatkit.compare import readers
from compatkit.compare.logs import Key, Wanted
from compatkit.compare.rankings import holds, read

RELEVANT = {"q1": ["d2", "d4"], "q2": ["d1"], "q3": ["d9"]}
BEFORE = {"q1": ["d2", "d1", "d4"], "q2": ["d1", "d3"], "q3": ["d1", "d9"]}
AFTER = {"q1": ["d1", "d2", "d4"], "q2": ["d1"], "q3": ["d9", "d1"]}


def written(path, rankings, relevant=RELEVANT):
    """A file of rankings."""
    rows = [
        {"id": one, "ranked": found, "relevant": relevant[one], "area": "a"}
        for one, found in rankings.items()
    ]
    path.write_text("\n".join(map(json.dumps, rows)) + "\n")
    return path


def values(path, metric=""):
    return {key.id: one.value for key, one in read(path, Wanted(metric=metric)).samples.items()}


def test_a_ranking_is_known_by_its_first_line(tmp_path):
    path = written(tmp_path / "a.jsonl", BEFORE)
    assert holds(path, path.read_bytes()) and readers.reader_of(path).name == "search rankings"
    assert not holds(path, b'{"id": 1, "ranked": []}') and not holds(path, b"id,ranked,relevant")


def test_measures(tmp_path):
    path = written(tmp_path / "a.jsonl", AFTER)
    assert values(path) == {"q1": 0.0, "q2": 1.0, "q3": 1.0}
    assert values(path, "recall at 2") == {"q1": 1.0, "q2": 1.0, "q3": 1.0}
    assert values(path, "average precision")["q1"] == pytest.approx((1 / 2 + 2 / 3) / 2)
    sample = read(path).samples[Key("queries", "q1")]
    assert (sample.answer, sample.target, sample.fields) == ("d1", "d2, d4", {"area": "a"})
    silent = written(tmp_path / "b.jsonl", {"q1": []})
    assert read(silent).samples[Key("queries", "q1")].trouble == "no answer"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"id": "q", "ranked": ["a"], "relevant": []}', "query 'q': there are no relevant ids"),
        ('{"id": "q", "ranked": ["a", "a"], "relevant": ["a"]}', "holds 'a' twice"),
        ('{"id": "q", "ranked": "a", "relevant": ["a"]}', "line 1: ranked is no list"),
        ('{"ranked": ["a"], "relevant": ["a"]}', "line 1 lacks id"),
        ('{"id": "q", "ranked": ["a"], "relevant": ["a"]}\n' * 2, "repeated ids 'q'"),
        ('{"id": "q", "ranked": ["a"', "line 1 is no whole JSON"),
        ("", "no samples"),
    ],
)
def test_broken_rankings_are_named(tmp_path, text, message):
    path = tmp_path / "r.jsonl"
    path.write_text(text)
    with pytest.raises(ValueError, match=f"^r.jsonl: .*{message}"):
        read(path)


def test_unknown_metrics_are_listed(tmp_path):
    with pytest.raises(ValueError, match="'ndcg'"):
        read(written(tmp_path / "a.jsonl", BEFORE), Wanted(metric="ndcg"))


def test_the_command_counts_flips_of_the_first_hit(tmp_path):
    old, new = written(tmp_path / "old.jsonl", BEFORE), written(tmp_path / "new.jsonl", AFTER)
    done = CliRunner().invoke(app, ["compare", str(old), str(new), "--json"])
    told = json.loads(done.output)
    assert told["examples"] == 3
    flips = json.dumps(told)
    assert '"negative": 1' in flips and '"positive": 1' in flips


def test_other_relevant_ids_are_another_question(tmp_path):
    old = written(tmp_path / "old.jsonl", BEFORE)
    new = written(tmp_path / "new.jsonl", AFTER, RELEVANT | {"q2": ["d3"]})
    with pytest.raises(ValueError, match="q2"):
        readers.read_logs(old, new)
