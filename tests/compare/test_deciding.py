"""A rule as a service and over files: the same answers as in one piece, and plain words for what
is wrong.
"""

import json
import subprocess
import sys
from math import inf, nan

import numpy as np
import pytest
from two_models import NAMES, models, shuffled

from compatkit.compare.deciding import DecisionRule, _pieces, decide_file, rule_from_files
from compatkit.decisions import Calibration, Pool, choose_price, halves, keep_old, pool
from compatkit.predictions import Predictions, over_classes, softmax
from compatkit.support import table_cells

# --- the rule in a service ------------------------------------------------------------------------


@pytest.mark.parametrize("names", [False, True])
@pytest.mark.parametrize("kind", ["new", "calibrated", "pooled"])
def test_a_rule_decides_one_or_many_as_keep_old_does(names, kind, tmp_path):
    old, new = models(names=names)
    fitted = {"new": None, "calibrated": Calibration(3.0), "pooled": Pool(0.4, 0.8)}[kind]
    rule = DecisionRule(0.7, new.classes or range(4), fitted)
    rule = DecisionRule.load(rule.save(tmp_path / "rule.json"))
    expected = keep_old(old, new, 0.7, fitted).prediction
    assert np.array_equal(rule.apply(old, shuffled(new)).select(old.id).prediction, expected)
    assert rule.apply(old, shuffled(new)).id.tolist() == shuffled(new).id.tolist()
    assert np.array_equal(rule.decide(new.logits, old.prediction, old.logits), expected)
    assert np.array_equal(
        rule.decide(
            softmax(new.logits), old.prediction.tolist(), softmax(old.logits), probabilities=True
        ),
        expected,
    )
    assert [
        rule.decide(*one) for one in zip(new.logits[:50], old.prediction[:50], old.logits[:50])
    ] == expected[:50].tolist()
    assert type(rule.decide(new.logits[0], old.prediction[0], old.logits[0])) is (
        str if names else int
    )


def test_what_the_old_model_never_answered_gets_the_posterior():
    old, new = models(names=True)
    cache = dict(zip(old.id[:200].tolist(), old.prediction[:200].tolist()))
    answers = [cache.get(key) for key in new.id.tolist()]
    for posterior in (None, Pool(0.4, 0.8)):
        rule = DecisionRule(1e9, new.classes, posterior)
        kept = rule.decide(new.logits, answers, old.logits)
        assert np.array_equal(
            kept[:200], keep_old(old, new, 1e9, posterior).prediction[:200]
        ) and np.array_equal(kept[200:], new.prediction[200:])
        assert np.array_equal(rule.apply(old.select(old.id[:200]), new).prediction, kept)
    holes = np.where((np.arange(300) < 200)[:, None], old.logits, nan)
    assert np.array_equal(
        rule.decide(new.logits, answers, holes), kept
    )  # old logits are not read where there is no old answer
    assert rule.decide(new.logits[0], None) == new.prediction[0]


def test_a_rule_without_a_price_keeps_every_old_answer(tmp_path):
    old, new = models()
    for price in (None, inf):
        rule = DecisionRule.load(DecisionRule(price, range(4)).save(tmp_path / "rule.json"))
        assert rule.price is None and np.array_equal(
            rule.apply(old, new).prediction, old.prediction
        )


def test_a_rule_keeps_its_certificate(tmp_path):
    old, new = models(800)
    fits, certifies = halves(old.id)
    fitted = pool(old.select(fits), new.select(fits))
    choice = choose_price(
        old.select(certifies),
        new.select(certifies),
        None,
        0.03,
        posterior=fitted,
        slices=np.array(["a", "b"])[np.arange(400) % 2],
    )
    rule = DecisionRule.load(DecisionRule.of(choice, new, fitted).save(tmp_path / "rule.json"))
    assert rule.price == choice.price and rule.posterior == fitted
    assert rule.certificate["certificate"]["flips"] == choice.certificate.flips and set(
        rule.certificate["slices"]
    ) == {"a", "b"}
    content = json.loads((tmp_path / "rule.json").read_text())
    assert content["kind"] == "rule" and content["classes"] == [0, 1, 2, 3]


def test_indices_are_taken_for_names():
    rule = DecisionRule(1, NAMES)
    assert rule.decide([[0.0, 9.0, 0.0, 0.0], [0.0, 0.0, 0.0, 0.1]], [0, 2]).tolist() == [
        "apple",
        "fig",
    ]


@pytest.mark.parametrize(
    "arguments, complaint",
    [
        (([0.0, 1.0], 0), r"\(1, 2\)"),
        (([[0.0] * 4], [0, 1]), "for 2 old answers"),
        (([0.0, 1.0, nan, 0.0], 0), r"not finite in rows \[0\]"),
        (([0.0, 1.0, inf, 0.0], 0), r"not finite in rows \[0\]"),
        (([0.0] * 4, "quince"), r"\['quince'\].*\['pear'"),
        (([0.0] * 4, 4), r"does not know .*\[4\]"),
        (([0.5, 0.2, 0.2, 0.2], "fig", None, True), "summing to 1"),
        (([1.5, -0.5, 0.0, 0.0], "fig", None, True), "at least 0"),
    ],
)
def test_bad_inputs_of_a_service_are_refused(arguments, complaint):
    with pytest.raises(ValueError, match=complaint):
        DecisionRule(1, NAMES).decide(*arguments)


def test_a_pool_without_old_logits_is_refused():
    with pytest.raises(ValueError, match="give old_logits too"):
        DecisionRule(1, NAMES, Pool(1.0, 1.0)).decide([0.0] * 4, "fig")


A_RULE = (
    '{"kind": "rule", "price": 1, "classes": ["a", "b"], "posterior": null, "certificate": null}'
)


@pytest.mark.parametrize(
    "part, wrong, complaint",
    [
        (A_RULE, "[1]", "holds no rule"),
        (A_RULE, '{"kind": "pool"}', "holds no rule"),
        (A_RULE, '{"kind": "rule"}', "no complete rule"),
        ('"price": 1', '"price": -1', "at least 0"),
        ('"price": 1', '"price": "x"', "the price is 'x'|no complete rule"),
        ('["a", "b"]', '["a", "a"]', "distinct names"),
        ('["a", "b"]', "[]", "distinct names"),
        ('["a", "b"]', "[1, 2]", "0 to C - 1"),
        ('"posterior": null', '"posterior": {"kind": "magic"}', "neither a calibration nor a pool"),
        *(
            (part, wrong, "no list of names|0 to C - 1|no complete rule")
            for part, wrong in [
                ('["a", "b"]', '"abc"'),
                ('["a", "b"]', '{"a": 0, "b": 1}'),
                ('["a", "b"]', "[false, true]"),
                ('["a", "b"]', "null"),
                ('"posterior": null', '"posterior": ""'),
                ('"posterior": null', '"posterior": []'),
            ]
        ),
    ],
)
def test_broken_rule_files_are_refused(tmp_path, part, wrong, complaint):
    (tmp_path / "rule.json").write_text(A_RULE.replace(part, wrong))
    with pytest.raises(ValueError, match=complaint):
        DecisionRule.load(tmp_path / "rule.json")


def test_a_rule_refuses_other_classes_and_repeated_ids():
    old, new = models(names=True)
    rule = DecisionRule(1, NAMES)
    turned = over_classes(new, NAMES[::-1])
    assert np.array_equal(rule.apply(old, turned).prediction, rule.apply(old, new).prediction)
    with pytest.raises(ValueError, match="'pear'"):
        rule.apply(old, new.replace(label=None, classes=None))
    with pytest.raises(ValueError, match="and these predictions have .*quince"):
        rule.apply(old, new.replace(label=None, classes=["pear", "apple", "fig", "quince"]))
    with pytest.raises(ValueError, match="made for the classes"):
        DecisionRule(1, range(5)).apply(*models())

    def twice(side):
        return Predictions(
            [*side.id, side.id[3]],
            prediction=[*side.prediction, side.prediction[3]],
            classes=side.classes,
        )

    with pytest.raises(ValueError, match="'e3'"):
        rule.apply(twice(old), new)
    with pytest.raises(ValueError, match="repeated ids"):
        rule.apply(
            old,
            new.select(list(new.id)).__class__(
                [*new.id, "e3"], logits=np.vstack([new.logits, new.logits[3]]), classes=NAMES
            ),
        )


# --- files ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", [".parquet", ".csv", ".jsonl"])
@pytest.mark.parametrize("names", [False, True])
@pytest.mark.parametrize("kind", ["new", "pooled"])
def test_a_stream_decides_as_one_piece(tmp_path, suffix, names, kind):
    old, new = models(2000, names=names, dtype=np.float32)
    old, new = old.replace(label=None), shuffled(new.replace(label=None))
    posterior = None if kind == "new" else Pool(0.4, 0.8)
    paths = [tmp_path / f"{name}{suffix}" for name in ("old", "new", "out")]
    old.select(old.id[:1500]).save(paths[0]), new.save(paths[1])
    old, new = Predictions.load(paths[0]), Predictions.load(paths[1])
    rule = DecisionRule(0.7, new.classes or range(4), posterior)
    done = decide_file(rule, *paths, without=new.id[:100], rows=130)
    whole, found = rule.apply(old, new), Predictions.load(paths[2])
    assert found.id.tolist() == whole.id[100:].tolist()  # the order of the new file
    assert found.prediction.tolist() == whole.prediction[100:].tolist()
    not_in_old = int((~np.isin(new.id[100:], old.id)).sum())
    before = dict(zip(old.id.tolist(), old.prediction.tolist()))
    kept = sum(
        before.get(one) == answer
        for one, answer in zip(found.id.tolist(), found.prediction.tolist())
    )
    assert done == (1900, kept, not_in_old, 0)
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_a_stream_of_a_hundred_thousand_rows(tmp_path):
    old, new = models(100_000, dtype=np.float32)
    old, new = old.replace(label=None), shuffled(new.replace(label=None))
    old.save(tmp_path / "old.parquet"), new.save(tmp_path / "new.parquet")
    decide_file(
        DecisionRule(1.5, range(4)),
        tmp_path / "old.parquet",
        tmp_path / "new.parquet",
        tmp_path / "out.parquet",
        rows=7_000,
    )
    assert np.array_equal(
        Predictions.load(tmp_path / "out.parquet").select(old.id).prediction,
        keep_old(old, new, 1.5).prediction,
    )


def test_csv_answers_that_look_like_numbers_in_one_piece_only(tmp_path):
    # the first pieces hold only whole numbers, a name comes late: all are names, as when the file
    # is read at once
    classes = ["1", "2", "many"]
    ids, answers = [f"i{i:04d}" for i in range(3000)], ["1", "2"] * 1499 + ["many", "1"]
    (tmp_path / "old.csv").write_text(
        "id,prediction\n" + "".join(f"{one},{answer}\n" for one, answer in zip(ids, answers))
    )
    new = Predictions(ids, logits=np.random.default_rng(0).normal(size=(3000, 3)), classes=classes)
    new.save(tmp_path / "new.parquet")
    decide_file(
        DecisionRule(1.0, classes),
        tmp_path / "old.csv",
        tmp_path / "new.parquet",
        tmp_path / "out.parquet",
        rows=41,
    )
    old = Predictions.load(tmp_path / "old.csv")
    assert np.array_equal(
        Predictions.load(tmp_path / "out.parquet").prediction, keep_old(old, new, 1.0).prediction
    )


def test_awkward_cells_survive_the_cutting(tmp_path):
    ids = ['a,"b"', "line\nbreak", "ünï", " space ", "NA", "null", "0", "007"] * 1
    ids = [f"{one}{i or ''}" for i in range(60) for one in ids]
    new = Predictions(
        ids, logits=np.random.default_rng(0).normal(size=(len(ids), 2)), classes=["no", "yes"]
    )
    old = Predictions(ids, prediction=np.where(np.arange(len(ids)) % 3 == 0, "no", "yes"))
    for suffix in (".csv", ".jsonl", ".parquet"):
        old.save(tmp_path / f"old{suffix}"), new.save(tmp_path / f"new{suffix}")
        decide_file(
            DecisionRule(1.0, ["no", "yes"]),
            tmp_path / f"old{suffix}",
            tmp_path / f"new{suffix}",
            tmp_path / f"out{suffix}",
            rows=45,
        )
        found = Predictions.load(tmp_path / f"out{suffix}")
        assert found.id.tolist() == ids and np.array_equal(
            found.prediction, keep_old(old, new, 1.0).prediction
        ), suffix


def test_a_failed_stream_leaves_nothing_and_names_the_file(tmp_path):
    old, new = (side.replace(label=None) for side in models(500))
    old.save(tmp_path / "old.csv"), new.save(tmp_path / "new.jsonl")
    out, rule = tmp_path / "out.csv", DecisionRule(1.0, range(4))
    lines = (tmp_path / "new.jsonl").read_text().splitlines()
    for changed, complaint in (
        (lines + [lines[3]], r"new.jsonl: repeated ids \['e3'\]"),
        (lines + ["{"], "new.jsonl: line .* is no JSON"),
        (
            lines[:400] + [lines[400].replace("[", "[1.0, ")],
            "new.jsonl: `logits` has|made for the classes|another count",
        ),
    ):
        (tmp_path / "new.jsonl").write_text("\n".join(changed) + "\n")
        with pytest.raises(ValueError, match=complaint):
            decide_file(rule, tmp_path / "old.csv", tmp_path / "new.jsonl", out, rows=100)
        assert not out.exists() and len(list(tmp_path.iterdir())) == 2
    with pytest.raises(FileNotFoundError, match="there is no file"):
        decide_file(rule, tmp_path / "old.csv", tmp_path / "absent.csv", out)
    with pytest.raises(ValueError, match="must end in"):
        decide_file(rule, tmp_path / "old.csv", tmp_path / "new.jsonl", tmp_path / "out.txt")
    (tmp_path / "broken.parquet").write_bytes(b"PAR1" + bytes(2000))
    with pytest.raises(ValueError, match="broken.parquet: "):
        decide_file(rule, tmp_path / "old.csv", tmp_path / "broken.parquet", out)


def test_an_id_that_the_old_model_never_answered_is_decided_once(tmp_path):
    # the two rows stand in different pieces
    rows = [("z", ".1,.9"), *((f"n{i}", ".2,.8") for i in range(100)), ("z", ".9,.1")]
    (tmp_path / "new.csv").write_text(
        "id,prob_x,prob_y\n" + "".join(f"{one},{probability}\n" for one, probability in rows)
    )
    (tmp_path / "old.csv").write_text("id,prediction\nn0,x\n")
    paths = [tmp_path / f"{name}.csv" for name in ("old", "new", "out")]
    with pytest.raises(ValueError, match=r"^new.csv: repeated ids \['z'\]"):
        decide_file(DecisionRule(1.0, ["x", "y"]), *paths, rows=20)
    assert {path.name for path in tmp_path.iterdir()} == {"old.csv", "new.csv"}


def test_deciding_replaces_by_force_alone_and_never_what_it_reads(tmp_path):
    old, new = (side.replace(label=None) for side in models(100))
    paths = old.save(tmp_path / "old.csv"), new.save(tmp_path / "new.csv")
    (tmp_path / "thesis.csv").write_text("my thesis")
    with pytest.raises(ValueError, match="thesis.csv"):
        decide_file(DecisionRule(1.0, range(4)), *paths, tmp_path / "thesis.csv")
    assert (tmp_path / "thesis.csv").read_text() == "my thesis"
    for path in paths:
        with pytest.raises(ValueError, match=path.name):
            decide_file(DecisionRule(1.0, range(4)), *paths, path, force=True)
    assert Predictions.load(paths[0]).prediction.tolist() == old.prediction.tolist()
    decide_file(DecisionRule(1.0, range(4)), *paths, tmp_path / "thesis.csv", force=True)
    assert len(Predictions.load(tmp_path / "thesis.csv")) == 100


def test_rows_that_are_no_probabilities_are_refused(tmp_path):
    (tmp_path / "old.csv").write_text("id,prediction\na,x\nb,y\n")
    (tmp_path / "new.csv").write_text("id,prob_x,prob_y\na,.4,.6\nb,.7,.7\n")
    with pytest.raises(ValueError, match="new.csv.*'b'"):
        files = (tmp_path / f"{name}.csv" for name in ("old", "new", "out"))
        decide_file(DecisionRule(1.0, ["x", "y"]), *files)


def written(folder, n=1500, labelled=900, names=True, suffix=".csv", column=True):
    """Old and new answers in different orders, and labels for some of them."""
    old, new = models(n, seed=7, names=names)
    old.replace(label=None).save(folder / f"old{suffix}")
    shuffled(new.replace(label=None)).save(folder / f"new{suffix}")
    rows = "".join(
        f"{one},{label},{'short' if i % 2 else 'long'}\n"
        for i, (one, label) in enumerate(zip(old.id[:labelled], old.label))
    )
    (folder / "labels.csv").write_text("id,label,kind\n" + rows)
    return old, new


@pytest.mark.parametrize("suffix", [".csv", ".parquet", ".jsonl"])
@pytest.mark.parametrize("names", [False, True])
def test_a_rule_from_files_is_that_of_the_library(tmp_path, suffix, names):
    old, new = written(tmp_path, names=names, suffix=suffix)
    files = tmp_path / f"old{suffix}", tmp_path / f"new{suffix}", tmp_path / "labels.csv"
    part = old.id[:900]
    choice, rule = rule_from_files(*files, max_nfr=0.03)
    assert (
        choice == choose_price(old.select(part), new.select(part), None, 0.03)
        and choice.certificate.n == 900
    )
    assert rule.price == choice.price and rule.posterior is None
    pooled, rule = rule_from_files(*files, max_nfr=0.03, posterior="pooled")
    fits, certifies = halves(part)
    fitted = pool(old.select(part[fits]), new.select(part[fits]))
    assert pooled == choose_price(
        old.select(part[certifies]), new.select(part[certifies]), None, 0.03, posterior=fitted
    )
    assert rule.posterior == fitted and pooled.certificate.n == 450
    sliced, _ = rule_from_files(*files, max_nfr=0.03, slices="kind")
    assert set(sliced.slices) == {"short", "long"}


def test_labels_in_other_formats(tmp_path):
    old, new = written(tmp_path, names=False)
    part = old.id[:900]
    expected = choose_price(old.select(part), new.select(part), None, 0.03)
    Predictions(part, old.label[:900], old.prediction[:900]).save(tmp_path / "labels.parquet")
    Predictions(part, old.label[:900], old.prediction[:900]).save(tmp_path / "labels.jsonl")
    for name in ("labels.parquet", "labels.jsonl"):
        assert (
            rule_from_files(tmp_path / "old.csv", tmp_path / "new.csv", tmp_path / name, 0.03)[0]
            == expected
        )


@pytest.mark.parametrize(
    "text, complaint",
    [
        ("id,bot\na,1\n", r"labels.csv: .*\['label'\].* id, bot"),
        ("id,label\n", r"labels.csv: .*missing"),
        ("id,label\ne1,fig\ne1,fig\n", "labels.csv: .*repeated ids"),
        ("id,label\ne1,\n", "labels.csv: labels are missing"),
        ("id,label\ne1,fig\nnobody,fig\n", r"old.csv lacks .*\['nobody'\]"),
        ("id,label\ne1,fig\n", "^1 calibration examples"),
        ("id,label\ne1,3\n", "^1 calibration examples"),
    ],
)
def test_bad_labels_are_refused(tmp_path, text, complaint):
    written(tmp_path)
    (tmp_path / "labels.csv").write_text(text)
    with pytest.raises(ValueError, match=complaint):
        rule_from_files(tmp_path / "old.csv", tmp_path / "new.csv", tmp_path / "labels.csv", 0.03)


def test_labels_of_another_kind_are_refused(tmp_path):
    old, _ = written(tmp_path)
    Predictions(old.id, prediction=old.prediction).save(tmp_path / "old.csv")
    (tmp_path / "labels.csv").write_text("id,label\ne1,3\ne2,1\n")
    with pytest.raises(ValueError, match="numbers.*text"):
        rule_from_files(tmp_path / "old.csv", tmp_path / "new.csv", tmp_path / "labels.csv", 0.03)


def test_calibration_examples_of_the_training_split_are_refused(tmp_path):
    old, _ = written(tmp_path)
    run = tmp_path / "fine_tune-0123"
    run.mkdir()
    (run / "record.json").write_text("{}")
    (tmp_path / "new.csv").rename(run / "predictions-test.csv")
    files = tmp_path / "old.csv", run / "predictions-test.csv", tmp_path / "labels.csv"
    Predictions(["other"], ["fig"], ["fig"]).save(run / "predictions-train.parquet")
    rule_from_files(*files, 0.03)
    Predictions(["other", "e5"], ["fig", "fig"], ["fig", "fig"]).save(
        run / "predictions-train.parquet"
    )
    with pytest.raises(ValueError, match="'e5'"):
        rule_from_files(*files, 0.03)


def test_a_rule_has_a_list_of_classes():
    with pytest.raises(ValueError, match="'abc'"):
        DecisionRule(1, "abc")


@pytest.mark.parametrize("confidence", ["10%", ".49", "-95%", "0"])
def test_a_certificate_with_little_confidence_is_refused(tmp_path, confidence):
    written(tmp_path)
    options = ("--calibration", "labels.csv", "--max-nfr", "3%", f"--confidence={confidence}")
    status, _, error = run(tmp_path, *options)
    assert status == 2 and "confidence" in error and not (tmp_path / "decided.csv").exists()


@pytest.mark.parametrize("link", ["decided.csv", "rule.json"])
def test_outputs_may_be_links(tmp_path, link):
    written(tmp_path)
    (tmp_path / "far").mkdir()
    (tmp_path / link).symlink_to(tmp_path / "far" / link)
    options = ("--calibration", "labels.csv", "--max-nfr", "10%", "--rule", "rule.json")
    assert run(tmp_path, *options)[0] == 0
    assert (tmp_path / link).is_symlink() and (tmp_path / "far" / link).stat().st_size


def test_an_error_names_the_file_that_was_given(tmp_path):
    old, new = written(tmp_path, suffix=".jsonl")
    for name in ("old", "new"):
        lines = (tmp_path / f"{name}.jsonl").read_text().splitlines()
        lines += lines[:1] if name == "new" else []
        (tmp_path / f"{name}.json").write_text(f"[{','.join(lines)}]")
    arguments = (tmp_path / "old.json", tmp_path / "new.json", tmp_path / "labels.csv")
    with pytest.raises(ValueError, match="^new.json: repeated ids"):
        rule_from_files(*arguments, max_nfr=0.1)


def test_unknown_posterior_and_files(tmp_path):
    written(tmp_path)
    files = tmp_path / "old.csv", tmp_path / "new.csv"
    with pytest.raises(ValueError, match="'both'"):
        rule_from_files(*files, tmp_path / "labels.csv", 0.03, posterior="both")
    with pytest.raises(FileNotFoundError, match="absent.csv"):
        rule_from_files(*files, tmp_path / "absent.csv", 0.03)
    with pytest.raises(ValueError, match="it must be parquet"):
        rule_from_files(*files, tmp_path, 0.03) if (tmp_path / "x").is_file() else rule_from_files(
            *files, written_text(tmp_path), 0.03
        )


def written_text(folder):
    (folder / "labels.txt").write_text("id,label\n")
    return folder / "labels.txt"


@pytest.mark.parametrize("price", [-1e-9, -1, nan])
def test_a_price_below_0_is_refused(price):
    with pytest.raises(ValueError, match="must be at least 0"):
        DecisionRule(price, range(3))


def test_nothing_left_to_decide(tmp_path):
    old, new = written(tmp_path)
    with pytest.raises(ValueError, match="new.csv"):
        decide_file(
            DecisionRule(1.0, NAMES),
            tmp_path / "old.csv",
            tmp_path / "new.csv",
            tmp_path / "out.csv",
            without=new.id,
        )
    assert not (tmp_path / "out.csv").exists()


# --- the command ----------------------------------------------------------------------------------


def run(folder, *options):
    """The command as a process: (status, output, error)."""
    command = [
        sys.executable,
        "-m",
        "compatkit.cli",
        "decide",
        "old.csv",
        "new.csv",
        "--out",
        "decided.csv",
        *options,
    ]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    return done.returncode, done.stdout, done.stderr


def test_the_command_chooses_decides_and_keeps_the_rule(tmp_path):
    old, new = written(tmp_path, names=False)
    status, told, error = run(
        tmp_path, "--calibration", "labels.csv", "--max-nfr", "3%", "--rule", "rule.json"
    )
    part, rest = old.id[:900], old.id[900:]
    choice = choose_price(old.select(part), new.select(part), None, 0.03)
    assert (
        (status, error) == (0, "")
        and str(choice) in told
        and "600 examples decided" in told
        and "exchangeable" in told
    )
    decided = Predictions.load(tmp_path / "decided.csv")
    assert sorted(decided.id) == sorted(rest)
    assert np.array_equal(
        decided.select(rest).prediction,
        keep_old(old.select(rest), new.select(rest), choice.price).prediction,
    )
    (tmp_path / "decided.csv").unlink()
    status, told, error = run(tmp_path, "--rule", "rule.json")
    assert (status, error) == (0, "") and "1,500 examples decided" in told
    everything = Predictions.load(tmp_path / "decided.csv").select(old.id)
    assert np.array_equal(everything.prediction, keep_old(old, new, choice.price).prediction)


@pytest.mark.parametrize("posterior", ["new", "calibrated", "pooled"])
def test_the_same_examples_under_other_ids_certify_nothing(tmp_path, posterior):
    old, new = written(tmp_path)
    sixty = np.r_[np.repeat(np.arange(180), 5), np.arange(900, 1500)]  # the last are decided
    for name, side in {"old": old, "new": new}.items():
        copies = side.select(side.id[sixty]).replace(id=old.id, label=None)
        copies.save(tmp_path / f"{name}.csv")
    rows = [f"{one},{label}\n" for one, label in zip(old.id, old.label[sixty[:900]])]
    (tmp_path / "labels.csv").write_text("id,label\n" + "".join(rows))
    options = ("--calibration", "labels.csv", "--max-nfr", "10%", "--posterior", posterior)
    status, _, error = run(tmp_path, *options)
    assert status == 2 and "calibration examples equal others in logits and label" in error
    assert not (tmp_path / "decided.csv").exists()


def test_weights_are_not_passed_over_in_silence(tmp_path):
    written(tmp_path)
    table = (tmp_path / "labels.csv").read_text().splitlines()
    rows = [f"{line},{number % 7}" for number, line in enumerate(table[1:])]
    (tmp_path / "labels.csv").write_text("\n".join([f"{table[0]},sample_weight", *rows]))
    options = ("--calibration", "labels.csv", "--max-nfr", "10%")
    status, told, _ = run(tmp_path, *options)
    assert status == 0 and "  beware: the column 'sample_weight' is called like a weight" in told
    (tmp_path / "decided.csv").unlink()
    status, told, _ = run(tmp_path, *options, "--slice", "sample_weight")
    assert status == 0 and "called like a weight" not in told


def test_the_command_in_json_with_slices_pool_and_accuracy(tmp_path):
    written(tmp_path)
    status, told, error = run(
        tmp_path,
        "--calibration",
        "labels.csv",
        "--max-nfr",
        ".05",
        "--posterior",
        "pooled",
        "--slice",
        "kind",
        "--min-accuracy",
        "50%",
        "--confidence",
        "90%",
        "--json",
    )
    assert (status, error) == (0, "")
    told = json.loads(told)
    assert (
        set(told["choice"]["slices"]) == {"short", "long"}
        and told["choice"]["certificate"]["min_accuracy"] == 0.5
    )
    assert told["choice"]["certificate"]["confidence"] == 0.9 and told["decided"]["decided"] == 600


def test_only_the_old_model_qualifies_for_the_command(tmp_path):
    written(tmp_path)
    status, told, error = run(
        tmp_path,
        "--calibration",
        "labels.csv",
        "--max-nfr",
        "3%",
        "--min-accuracy",
        "99.9%",
        "--rule",
        "rule.json",
    )
    assert (status, error) == (1, "") and "only the old model qualifies" in told
    assert not (tmp_path / "decided.csv").exists() and not (tmp_path / "rule.json").exists()


@pytest.mark.parametrize(
    "options, status, complaint",
    [
        (("--calibration", "labels.csv", "--max-nfr", ".1%"), 3, "at least 2995 are needed"),
        (("--calibration", "labels.csv"), 2, "--max-nfr is missing"),
        (("--calibration", "labels.csv", "--max-nfr", "3"), 2, "could mean 3 %"),
        (("--calibration", "labels.csv", "--max-nfr", "0%"), 2, "between 0 and 1"),
        (("--calibration", "absent.csv", "--max-nfr", "3%"), 2, "there is no file"),
        (
            ("--calibration", "labels.csv", "--max-nfr", "3%", "--slice", "length"),
            2,
            "needs `length`",
        ),
        (("--calibration", "labels.csv", "--max-nfr", "3%", "--posterior", "mine"), 2, "mine"),
        ((), 2, "give --calibration and --max-nfr; to apply a kept rule, --rule alone"),
        (("--rule", "rule.json", "--max-nfr", "3%"), 2, "give --calibration"),
        (("--rule", "rule.json", "--posterior", "pooled"), 2, "give --calibration"),
        (("--rule", "rule.json", "--confidence", "95%"), 2, "give --calibration"),
        (("--rule", "labels.csv"), 2, "is no JSON"),
        (("--rule", "decided.csv"), 2, "give what is written another name"),
    ],
)
def test_the_command_says_what_is_wrong_in_one_line(tmp_path, options, status, complaint):
    written(tmp_path)
    found, told, error = run(tmp_path, *options)
    assert found == status and told == "" and complaint in error and error.count("\n") == 1
    assert not (tmp_path / "decided.csv").exists()


def test_an_empty_cache_leaves_all_to_the_posterior():
    old, new = models(names=True)
    decided = DecisionRule(1e9, NAMES).apply(old.select([]), new)
    assert np.array_equal(decided.prediction, new.prediction)


@pytest.mark.parametrize("old", ["fig", 1, None])
def test_one_old_answer_for_many_examples_is_refused(old):
    with pytest.raises(ValueError, match="2 examples"):
        DecisionRule(1, NAMES).decide(np.zeros((2, 4)), old)


@pytest.mark.parametrize(
    "content, complaint",
    [
        (b"\x1f\x8b" + bytes(3000), "gzip"),
        (b"id,prediction\n" + b"\xe9,1\n" * 800, "not UTF-8"),
        (b"", "empty"),
        (b"id,prediction\n", "no examples"),
        (b"id,prediction\n" + b"a,1\n" * 600 + b"b,1,2\n", "line 602 has 3 cells and the header 2"),
    ],
)
def test_files_that_are_not_what_they_say_name_themselves_once(tmp_path, content, complaint):
    (tmp_path / "old.csv").write_bytes(content)
    models()[1].save(tmp_path / "new.parquet")
    with pytest.raises(ValueError, match=complaint) as told:
        files = (tmp_path / name for name in ("old.csv", "new.parquet", "out.csv"))
        decide_file(DecisionRule(1, range(4)), *files)
    assert str(told.value).count("old.csv") == 1


@pytest.mark.parametrize("ending", ["csv", "jsonl", "parquet"])
def test_answers_that_were_never_numbers_in_a_file_are_written_by_name(ending, tmp_path):
    """Two files of logits by class name and nothing else: a number would be of no use to whoever
    reads the result.
    """
    polars = pytest.importorskip("polars")
    old, new = models(names=True)
    for name, side in (("old", old), ("new", new)):
        frame = polars.DataFrame(
            {"id": side.id.tolist()}
            | {f"logit_{one}": side.logits[:, place] for place, one in enumerate(NAMES)}
        )
        {"csv": frame.write_csv, "jsonl": frame.write_ndjson, "parquet": frame.write_parquet}[
            ending
        ](tmp_path / f"{name}.{ending}")
    paths = [tmp_path / f"{name}.{ending}" for name in ("old", "new", "out")]
    decide_file(DecisionRule(1.5, tuple(NAMES.tolist())), *paths)
    written = Predictions.load(paths[2]).select(old.id).prediction
    expected = keep_old(old, new, 1.5).prediction
    assert (
        written.tolist() == (expected if expected.dtype.kind == "U" else NAMES[expected]).tolist()
    )


@pytest.mark.parametrize("ending", [".csv", ".jsonl", ".parquet"])
def test_old_answers_that_are_numbers_are_names_of_the_rule(tmp_path, ending):
    """1 is the class that is called 1, not the second column; a csv gets the numbers back."""
    (tmp_path / "old.csv").write_text("id,prediction\na,1\nb,2\n")
    (tmp_path / "new.csv").write_text("id,logit_1,logit_2,logit_3\na,0,0,9\nb,0,9,0\n")
    out = tmp_path / f"out{ending}"
    decide_file(DecisionRule(inf, ("1", "2", "3")), tmp_path / "old.csv", tmp_path / "new.csv", out)
    assert Predictions.load(out).prediction.tolist() == [1, 2], "numbers, as the old answers are"


@pytest.mark.parametrize("ending", [".csv", ".parquet"])
def test_old_answers_in_memory_and_beside_indices_are_indices(tmp_path, ending):
    """Although the classes are called 1, 2 and 3; beside answers by name they are names."""
    right = [0, 1, 2, 1]
    new = Predictions(list("abcd"), right, logits=np.eye(3)[right], classes=list("123"))
    old, rule = Predictions(new.id, prediction=right), DecisionRule(inf, new.classes)
    assert rule.apply(old, new).prediction.tolist() == right
    assert rule.decide(new.logits, right).tolist() == ["1", "2", "3", "2"]
    named = new.replace(label=["1", "2", "3", "2"])
    three = Predictions(new.id, prediction=[3] * 4)
    assert rule.apply(three, named).prediction.tolist() == ["3"] * 4
    paths = old.save(tmp_path / "old.csv"), new.save(tmp_path / "new.parquet")
    out = tmp_path / f"out{ending}"
    decide_file(rule, *paths, out)
    assert Predictions.load(out).prediction.tolist() == right


def test_files_of_classes_called_by_numbers_from_labels_to_answers(tmp_path):
    rows = np.tile([1, 2, 3, 2], 30)
    cells = "\n".join(f"{row},{one}" for row, one in enumerate(rows))
    (tmp_path / "old.csv").write_text(f"id,prediction\n{cells}\n")
    (tmp_path / "labels.csv").write_text(f"id,label\n{cells}\n")
    Predictions(
        range(len(rows)), rows.astype(str), logits=9 * np.eye(3)[rows - 1], classes=list("123")
    ).save(tmp_path / "new.csv")
    files = [tmp_path / name for name in ("old.csv", "new.csv")]
    choice, rule = rule_from_files(*files, tmp_path / "labels.csv", 0.1, min_accuracy=0.9)
    assert choice.price == 0 and rule.names == ("1", "2", "3")
    decide_file(rule, *files, tmp_path / "out.csv", rows=7)
    assert np.array_equal(Predictions.load(tmp_path / "out.csv").prediction, rows)


@pytest.mark.parametrize("rows", [1, 100])
def test_a_csv_does_not_depend_on_how_rows_fall_into_pieces(tmp_path, rows):
    (tmp_path / "old.csv").write_text("id,prediction\na,1\nb,x\nc,0\n")
    (tmp_path / "new.csv").write_text("id,prob_0,prob_1,prob_x\na,.9,.1,0\nb,.9,.1,0\nc,0,1,0\n")
    files = [tmp_path / name for name in ("old.csv", "new.csv", "out.csv")]
    decide_file(DecisionRule(inf, ("0", "1", "x")), *files, rows=rows)
    assert Predictions.load(tmp_path / "out.csv").prediction.tolist() == ["1", "x", "0"]


def test_a_file_is_checked_as_a_whole_once(tmp_path, monkeypatch):
    old, new = models(40)
    checked, path = [], new.save(tmp_path / "new.csv")
    look = table_cells._look_inside
    monkeypatch.setattr(table_cells, "_look_inside", lambda one: checked.append(one) or look(one))
    assert len(list(_pieces(path, rows=10))) == 4 and checked.count(path) == 1


@pytest.mark.parametrize("price", [f"1{'0' * 400}", f"{'[' * 100_000}{']' * 100_000}"])
def test_a_price_beyond_every_float_or_nested_too_deep_is_no_rule(tmp_path, price):
    path = tmp_path / "rule.json"
    rest = '"classes": ["a", "b"], "certificate": null, "posterior": null'
    path.write_text(f'{{"kind": "rule", "price": {price}, {rest}}}')
    with pytest.raises(ValueError, match="rule.json"):
        DecisionRule.load(path)
