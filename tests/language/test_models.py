"""The module `models`: choices and texts as the harness gives them, whatever the batch, and bad
input named.
"""

import copy
import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import numpy as np
import pytest
import torch
from make_lm_eval_samples import EXACT, MULTIPLE_CHOICE, OVERLAP, WORDS, tiny_language_model
from peft import LoraConfig, get_peft_model
from rouge_score.rouge_scorer import RougeScorer
from tokenizers import normalizers, processors
from transformers import TrainingArguments

from compatkit.language import adapters, models
from compatkit.language.models import (
    TokenRows,
    answer,
    byte_pairs,
    chance_of,
    encode_examples,
    final_number,
    generate,
    judge,
    language_arguments,
    language_model,
    length_normalized,
    pack,
    pretrain,
    rouge1,
    score_choices,
    small_language_model,
)
from compatkit.language.tasks import Generation, Question, Questions, load_questions, raw_text
from compatkit.metrics import FlipCounts
from compatkit.predictions import Predictions

TESTS = Path(__file__).resolve().parents[1]
HARNESS = """
import json, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from make_lm_eval_samples import make_samples, make_tasks
folder = Path(sys.argv[2])
make_samples(folder / "out", 3, make_tasks(folder / "tasks"))

from lm_eval.api.metrics import exact_match_hf_evaluate
from lm_eval.filters.extraction import RegexFilter
from lm_eval.tasks import TaskManager
import lm_eval, yaml
text = (Path(lm_eval.__file__).parent / "tasks/gsm8k/gsm8k.yaml").read_text()
config = yaml.safe_load(text)
ignore = config["metric_list"][0]["regexes_to_ignore"]
cases, found = json.loads((folder / "cases.json").read_text()), {}
for name, part in (("strict", config["filter_list"][0]), ("flexible", config["filter_list"][1])):
    options = {key: value for key, value in part["filter"][0].items() if key != "function"}
    numbers = [one[0] for one in RegexFilter(**options).apply([[written] for written, _ in cases], [{}] * len(cases))]
    found[name] = [float(exact_match_hf_evaluate([number], [right], regexes_to_ignore=ignore, ignore_case=True)["exact_match"])
                   for number, (_, right) in zip(numbers, cases)]
(folder / "exact.json").write_text(json.dumps(found))
"""  # noqa: E501


def cases():
    """Texts of numbers, marks and words in every order, each with a reference."""
    generator, made = np.random.default_rng(0), []
    parts = (
        "7",
        "-7",
        "1,250",
        "$3.50",
        "12.",
        "####",
        "#### 7",
        "#### 1,250",
        "none",
        "so",
        ".",
        ",",
        "$",
        "3 4",
        "\n",
        "#### -7.",
    )
    for _ in range(300):
        written = " ".join(generator.choice(parts, generator.integers(0, 6)))
        made.append(
            (
                written,
                str(
                    generator.choice(
                        ("#### 7", "because\n#### 1,250", "-7", "3.50", "#### 4", "$12")
                    )
                ),
            )
        )
    return made


@pytest.fixture(scope="module")
def harness(tmp_path_factory):
    """What lm-evaluation-harness says about a random model, on a task of each kind; and how it
    judges the cases.
    """
    folder = tmp_path_factory.mktemp("harness")
    (folder / "cases.json").write_text(json.dumps(cases()))
    settings = os.environ | {
        "HF_HUB_OFFLINE": "1",
        "HF_DATASETS_OFFLINE": "1",
        "HF_HOME": str(folder / "cache"),
        "OMP_NUM_THREADS": "1",
    }
    done = subprocess.run(
        [sys.executable, "-c", HARNESS, TESTS, folder], env=settings, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return folder


def documents(folder):
    return [json.loads(line) for line in (folder / "tasks" / "docs.jsonl").read_text().splitlines()]


def samples(folder, task):
    return Predictions.load(next((folder / "out").rglob(f"samples_{task}_*.jsonl")))


def asked(folder, kind=None):
    """The harness's documents as questions."""
    prompt = "the {thing} is :"
    if kind is None:
        return [
            Question(f"{n}", prompt.format(**doc), choices=doc["choices"], label=doc["gold"])
            for n, doc in enumerate(documents(folder))
        ]
    return [
        Question(f"{n}", prompt.format(**doc), doc["answer"])
        for n, doc in enumerate(documents(folder))
    ]


@lru_cache(maxsize=2)
def small(seed=0, steps=30):
    """A tiny Llama that has seen a few sums, its tokenizer and the task."""
    task = load_questions("arithmetic").limited(train=200, selection=20, test=24)
    tokenizer = byte_pairs(raw_text(task), 280)
    model = small_language_model(tokenizer, seed, layers=1, width=32, max_length=64)
    rows = pack(raw_text(task), tokenizer, 32)
    return (
        pretrain(model, rows, seed, max_steps=steps, learning_rate=1e-2, progress=False).model,
        tokenizer,
        task,
    )


# --- lm-evaluation-harness agrees -----------------------------------------------------------------


def test_log_likelihoods_and_accuracies_are_the_harness_s(harness):
    model, tokenizer = tiny_language_model(3)
    theirs, questions = samples(harness, MULTIPLE_CHOICE), asked(harness)
    ours = score_choices(model, tokenizer, questions, batch_size=5)
    number = [int(one.split("/")[1]) for one in theirs.id]
    assert sorted(number) == list(range(24))
    np.testing.assert_allclose(ours.logits[number], theirs.logits, rtol=1e-5, atol=1e-5)
    assert (ours.prediction[number] == theirs.prediction).all() and (
        ours.label[number] == theirs.label
    ).all()
    assert (length_normalized(ours, questions).correct[number] == theirs.columns["acc_norm"]).all()
    assert (
        length_normalized(ours, questions).prediction != ours.prediction
    ).any()  # else this shows nothing


@pytest.mark.parametrize(
    "task, generation", [(EXACT, Generation(("?",), 1)), (OVERLAP, Generation(("?",), 6))]
)
def test_texts_are_the_harness_s(harness, task, generation):
    model, tokenizer = tiny_language_model(3)
    written = generate(model, tokenizer, asked(harness, "text"), generation, batch_size=4)
    theirs = samples(harness, task)
    kept = [row for row, one in enumerate(theirs.id) if not one.endswith("/loose")]
    assert len(kept) == 24 and len(set(written)) > 1
    for row in kept:
        assert written[int(theirs.id[row].split("/")[1])] == theirs.text[row]


@pytest.mark.parametrize("extract", ["strict", "flexible"])
def test_exact_match_is_the_harness_s(harness, extract):
    theirs = json.loads((harness / "exact.json").read_text())[extract]
    questions = [Question(f"{n}", "?", right) for n, (_, right) in enumerate(cases())]
    ours = judge(questions, [written for written, _ in cases()], "number", extract)
    assert list(ours.score) == theirs and 0.02 < np.mean(theirs) < 0.98
    assert (ours.correct == ours.score).all()


# --- choosing -------------------------------------------------------------------------------------


def test_a_score_is_the_sum_over_the_tokens_of_the_choice():
    model, tokenizer, task = small()
    answers = score_choices(model, tokenizer, task.test[:3])
    for question, logits in zip(task.test, answers.logits):
        for choice, logit in zip(question.choices, logits):
            start, tokens = (
                len(tokenizer(question.prompt)["input_ids"]),
                tokenizer(f"{question.prompt} {choice}")["input_ids"],
            )
            with torch.no_grad():
                steps = model(torch.tensor([tokens])).logits[0].log_softmax(-1)
            assert float(
                sum(steps[place - 1, tokens[place]] for place in range(start, len(tokens)))
            ) == pytest.approx(float(logit), abs=1e-4)
    assert list(answers.id) == [one.id for one in task.test[:3]] and list(
        answers.columns["group"]
    ) == [one.group for one in task.test[:3]]


def test_no_score_depends_on_the_batch_or_on_the_order():
    model, tokenizer, task = small()
    whole = score_choices(model, tokenizer, task.test)
    for size in (1, 3, 1000):
        np.testing.assert_allclose(
            score_choices(model, tokenizer, task.test, batch_size=size).logits,
            whole.logits,
            atol=1e-4,
        )
    turned = score_choices(model, tokenizer, task.test[::-1])
    np.testing.assert_allclose(turned.select(list(whole.id)).logits, whole.logits, atol=1e-4)


@pytest.mark.parametrize("wrapped", [False, True])
def test_what_all_contexts_begin_with_is_read_once(monkeypatch, wrapped):
    model, tokenizer, task = small()
    model = copy.deepcopy(model)  # which others ask too
    asked, read = task.with_shots(4).test, []
    if wrapped:  # by an adapter
        lora = LoraConfig(target_modules=["q_proj"], task_type="CAUSAL_LM")
        model = get_peft_model(model, lora)
    head = model.get_output_embeddings()
    head.register_forward_pre_hook(lambda _, given: read.append(given[0].shape[:-1].numel()))
    model.get_input_embeddings().register_forward_pre_hook(
        lambda _, given: read.append(given[0].numel())
    )
    found = []
    for least in (1, 10**9):
        monkeypatch.setattr(models, "_LONG", least)
        read.clear()
        found.append((score_choices(model, tokenizer, asked, batch_size=8).logits, sum(read)))
    (once, few), (each, many) = found
    np.testing.assert_allclose(once, each, atol=1e-4)
    assert few < many / 2


def test_a_context_may_be_empty_or_end_in_a_blank_or_share_a_token_with_the_answer():
    model, tokenizer, _ = small()
    first = score_choices(model, tokenizer, [Question("a", "", choices=("1 + 1", "2"), label=0)])
    bare = tokenizer(" 2", add_special_tokens=False)["input_ids"]
    with torch.no_grad():
        steps = model(torch.tensor([[tokenizer.bos_token_id, *bare]])).logits[0].log_softmax(-1)
    assert float(first.logits[0, 1]) == pytest.approx(
        float(sum(steps[n, token] for n, token in enumerate(bare))), abs=1e-4
    )
    blanks = score_choices(
        model, tokenizer, [Question("a", "1 + 1 =  ", choices=("3", "2"), label=1)]
    )
    assert np.isfinite(blanks.logits).all() and (blanks.logits < 0).all()


def test_per_character_is_a_division():
    questions = [
        Question("a", "x", choices=("four", "no"), label=0),
        Question("b", "x", choices=("é", "eight888"), label=0),
    ]
    scored = Predictions(["a", "b"], [0, 0], logits=[[-4.0, -2.2], [-1.0, -8.0]])
    np.testing.assert_allclose(
        length_normalized(scored, questions).logits, [[-1.0, -1.1], [-1.0, -1.0]], rtol=1e-6
    )
    assert list(scored.prediction) == [1, 0] and list(
        length_normalized(scored, questions).prediction
    ) == [0, 0]
    with pytest.raises(ValueError, match="belong to other questions"):
        length_normalized(scored, questions[::-1])


def test_questions_that_cannot_be_scored_are_named():
    model, tokenizer, task = small()
    two = Question("two", "1 + 1 =", choices=("2", "3"), label=0)
    with pytest.raises(ValueError, match="', 2: '"):
        score_choices(model, tokenizer, [*task.test, two])
    with pytest.raises(ValueError, match="'open'"):
        score_choices(model, tokenizer, [Question("open", "1 + 1 =", "2")])
    with pytest.raises(ValueError, match="no questions"):
        score_choices(model, tokenizer, [])
    with pytest.raises(ValueError, match="'silent'"):
        # a tokenizer that drops what it does not know
        words = byte_pairs(["a b"], 270)
        words.backend_tokenizer.normalizer = normalizers.Sequence(
            [normalizers.Replace("☃", ""), normalizers.Strip()]
        )
        score_choices(model, words, [Question("silent", "a", choices=("☃", "b"), label=0)])


def test_contexts_longer_than_the_model_are_refused_or_cut_on_the_left():
    model, tokenizer, _ = small()
    long = Question("long", "1 + " * 60 + "1 =", choices=("61", "62"), label=0)
    fits = Question("fits", "1 + 1 =", choices=("2", "3"), label=0)
    with pytest.raises(
        ValueError,
        match=r"65 tokens.*'long' \(\d+ tokens\).*too_long='cut'",
    ):
        score_choices(model, tokenizer, [fits, long])
    cut = score_choices(model, tokenizer, [fits, long], too_long="cut")
    tokens = tokenizer(long.text)["input_ids"][-65:]
    with torch.no_grad():
        steps = model(torch.tensor([tokens[:-1]])).logits[0].log_softmax(-1)
    answer_length = len(tokenizer(" 61", add_special_tokens=False)["input_ids"])
    wanted = sum(steps[place, tokens[place + 1]] for place in range(64 - answer_length, 64))
    assert float(cut.logits[1, 0]) == pytest.approx(float(wanted), abs=1e-4)
    with pytest.raises(ValueError, match="65 tokens.*leave them out$"):
        endless = Question("endless", "1", choices=("2" * 70, "3"), label=0)
        score_choices(model, tokenizer, [endless], too_long="cut")
    with pytest.raises(ValueError, match="too_long.*'right'"):
        score_choices(model, tokenizer, [fits], too_long="right")


def test_exactly_as_long_as_the_model_is_not_too_long():
    model, tokenizer, _ = small()
    prompt = (
        "1" * 62
    )  # with the begin token, the blank and one digit of the answer: 65, of which 64 are read
    assert len(tokenizer(f"{prompt} 2")["input_ids"]) == 65
    assert np.isfinite(
        score_choices(model, tokenizer, [Question("a", prompt, choices=("2", "3"), label=0)]).logits
    ).all()
    with pytest.raises(ValueError, match="longer than the 65"):
        score_choices(model, tokenizer, [Question("a", prompt + "1", choices=("2", "3"), label=0)])


# --- writing --------------------------------------------------------------------------------------


def slowly(model, tokenizer, prompt, steps):
    """Greedy generation without a cache, a batch or padding."""
    tokens = tokenizer(prompt)["input_ids"]
    start = len(tokens)
    for _ in range(steps):
        with torch.no_grad():
            tokens.append(int(model(torch.tensor([tokens])).logits[0, -1].argmax()))
        if tokens[-1] == tokenizer.eos_token_id:
            break
    return tokenizer.decode(tokens[start:], skip_special_tokens=True)


def test_writing_is_greedy_and_does_not_depend_on_the_batch():
    model, tokenizer = tiny_language_model(3)
    prompts = [
        "the",
        "a red box and a blue ball and a green cup is :",
        *(f"the {first} {second} is :" for first, second in zip(WORDS, WORDS[3:])),
    ]
    questions = [Question(f"{n}", prompt, "red") for n, prompt in enumerate(prompts)]
    wanted = [slowly(model, tokenizer, prompt, 10) for prompt in prompts]
    assert len(set(wanted)) > 5
    for size in (1, 3, 100):
        assert generate(model, tokenizer, questions, Generation((), 10), batch_size=size) == wanted


def test_a_model_s_own_sampling_settings_are_not_followed():
    model, tokenizer, task = small()
    wanted = generate(model, tokenizer, task.test[:4], Generation((), 8))
    kept = model.generation_config
    try:
        model.generation_config = type(kept)(
            **kept.to_dict()
            | {"do_sample": True, "temperature": 5.0, "top_p": 0.5, "repetition_penalty": 3.0}
        )
        assert generate(model, tokenizer, task.test[:4], Generation((), 8)) == wanted
    finally:
        model.generation_config = kept


def test_stops_end_an_answer_wherever_they_begin():
    model, tokenizer = tiny_language_model(3)
    questions = [
        Question(f"{n}", f"the {first} {second} is :", "red")
        for n, (first, second) in enumerate(zip(WORDS, WORDS[3:]))
    ]
    whole = generate(model, tokenizer, questions, Generation((), 12))
    stops = {word[1:] for text in whole for word in text.split()} | {
        text[place : place + 4] for text in whole for place in (3, 8)
    }
    assert len(set(whole)) > 5 and len(stops) > 8
    for stop in filter(None, stops):  # within a word, and over the border of two
        stopped = generate(
            model, tokenizer, questions, Generation((stop, "never written"), 12), batch_size=5
        )
        assert stopped == [text.split(stop)[0] for text in whole]
    assert generate(model, tokenizer, questions[:3], Generation(("",), 12)) == whole[:3]


def test_stops_save_steps():
    model, tokenizer = tiny_language_model(3)
    question, steps, forward = Question("a", "the red box is :", "red"), [], model.forward
    model.forward = lambda *arguments, **named: steps.append(1) or forward(*arguments, **named)
    text = generate(model, tokenizer, [question], Generation((), 30))[0]
    whole = len(steps)
    steps.clear()
    assert (
        generate(model, tokenizer, [question], Generation((text.split()[2],), 30))[0]
        == text.split(text.split()[2])[0]
    )
    assert len(steps) == 1 + text.split().index(text.split()[2]) < whole


def test_no_pair_of_tokens_comes_twice_if_that_is_asked_for():
    model, tokenizer = tiny_language_model(3)
    question = Question("a", "the red box is : the", "red")
    free, bound = (
        generate(model, tokenizer, [question], Generation((), 30, no_repeat))[0]
        for no_repeat in (0, 2)
    )
    words = f"{question.prompt} {bound}".split()
    pairs = list(zip(words, words[1:]))
    assert free != bound and len(words) > 8 and len(set(pairs)) == len(pairs)


def test_contexts_without_room_for_an_answer_are_refused_or_cut():
    model, tokenizer, _ = small()
    long = Question("long", "1 + " * 60 + "1 =", "61")
    with pytest.raises(ValueError, match="'long'"):
        generate(model, tokenizer, [long], Generation((), 8))
    (cut,) = generate(model, tokenizer, [long], Generation((), 8), too_long="cut")
    tokens = tokenizer(long.prompt)["input_ids"][-56:]
    with torch.no_grad():
        first = int(model(torch.tensor([tokens])).logits[0, -1].argmax())
    assert cut.startswith(tokenizer.decode([first], skip_special_tokens=True))
    with pytest.raises(ValueError, match="64 tokens"):
        generate(model, tokenizer, [long], Generation((), 64))
    assert generate(model, tokenizer, [], Generation((), 8)) == []


# --- judging --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text, flexible, strict",
    [
        ("so 48/2 = 24\n#### 24", "24", "24"),
        ("#### 1,000", "1000", "1000"),
        ("$1,250.", "1250", "[invalid]"),
        ("-3 or -4", "-4", "[invalid]"),
        ("#### 5 but then 6", "6", "5"),
        ("", "[invalid]", "[invalid]"),
        ("no number", "[invalid]", "[invalid]"),
        ("7", "7", "[invalid]"),
    ],
)
def test_the_final_number(text, flexible, strict):
    assert (final_number(text), final_number(text, "strict")) == (flexible, strict)
    with pytest.raises(ValueError, match="'last'"):
        final_number(text, "last")


def test_rouge_1_by_hand_and_by_its_package():
    assert rouge1("the cat sat", "the cat ran away") == pytest.approx(
        2 * (2 / 3) * (2 / 4) / (2 / 3 + 2 / 4)
    )
    assert rouge1("", "cat") == rouge1("dog", "cat") == 0 and rouge1("CAT!", "cat") == 1
    generator = np.random.default_rng(0)
    for _ in range(30):
        text, reference = (
            " ".join(generator.choice(WORDS, generator.integers(1, 12))) for _ in range(2)
        )
        assert (
            rouge1(text, reference)
            == RougeScorer(["rouge1"]).score(reference, text)["rouge1"].fmeasure
        )
        assert 0 <= rouge1(text, reference) <= 1 and rouge1(text, text) == pytest.approx(
            float(bool(re.findall("[a-z0-9]", text)))
        )


def test_judged_answers_are_saved_loaded_and_counted(tmp_path):
    questions = [
        Question("a", "1+1", "so\n#### 2"),
        Question("b", "2+2", "#### 4"),
        Question("c", "3+3", "#### 6"),
    ]
    old, new = (
        judge(questions, ["2", "five", "6"], "number"),
        judge(questions, ["#### 2", "4.", "7"], "number"),
    )
    assert (
        list(old.label) == ["2", "4", "6"]
        and list(old.prediction) == ["2", "[invalid]", "6"]
        and list(old.score) == [1, 0, 1]
    )
    counts = FlipCounts.between(
        *(Predictions.load(one.save(tmp_path / f"{n}.parquet")) for n, one in enumerate((old, new)))
    )
    assert (counts.both_right, counts.negative, counts.positive) == (1, 1, 1)
    written = judge(questions, ["so 2", "4", ""], "rouge1")
    loaded = Predictions.load(written.save(tmp_path / "written.parquet"))
    assert (
        list(loaded.text) == ["so 2", "4", ""]
        and list(loaded.score) == list(written.score) == [1, 1, 0]
        and loaded.label is None
    )
    with pytest.raises(ValueError, match="2 texts for 3 questions"):
        judge(questions, ["a", "b"], "rouge1")
    with pytest.raises(ValueError, match="'bleu'.*number, rouge1"):
        judge(questions, ["a", "b", "c"], "bleu")


def test_one_call_answers_a_task_by_each_of_its_measures():
    model, tokenizer, task = small()
    chosen, written = (
        answer(model, tokenizer, task),
        answer(model, tokenizer, task, "selection", "number"),
    )
    assert chosen.logits.shape == (24, 4) and (len(written), list(written.id)) == (
        20,
        [one.id for one in task.selection],
    )
    shorter = answer(model, tokenizer, task, "selection", "number", generation=Generation((), 1))
    assert all(len(text) <= 2 for text in shorter.text)
    with pytest.raises(ValueError, match="'validation'"):
        answer(model, tokenizer, task, "validation")
    with pytest.raises(ValueError, match="'rouge1'"):
        answer(model, tokenizer, task, measure="rouge1")


# --- tokens ---------------------------------------------------------------------------------------


def test_a_tokenizer_is_the_same_in_every_process():
    texts = [
        f"{a}{b}{c} naïve 日本" for a in "abcdef" for b in "uvwxyz" for c in "klm"
    ]  # ties without end
    code = (
        "import json, sys; from compatkit.language.models import byte_pairs; "
        "print(json.dumps(byte_pairs(json.load(sys.stdin), 350).backend_tokenizer.to_str()))"
    )
    env = os.environ | {"PYTHONHASHSEED": "1", "RAYON_NUM_THREADS": "2"}
    done = subprocess.run(
        [sys.executable, "-c", code],
        input=json.dumps(texts),
        env=env,
        capture_output=True,
        text=True,
        check=True,
    )
    here = byte_pairs(texts, 350).backend_tokenizer.to_str()
    assert json.loads(done.stdout) == here and len(json.loads(here)["model"]["vocab"]) == 350


def test_any_text_is_read_back_and_digits_stand_alone():
    tokenizer = byte_pairs(["the cat sat on the mat 1234 1234 1234 1234"] * 9, 300)
    for text in ("the cat", " 12345 = 9", "naïve 日本 ☃", "a\n\nb\t c  ", "", "</s"):
        numbers = tokenizer(text)["input_ids"]
        assert (
            numbers[0] == tokenizer.bos_token_id
            and tokenizer.decode(numbers, skip_special_tokens=True) == text
        )
    assert tokenizer.convert_ids_to_tokens(tokenizer("1234")["input_ids"])[1:] == [
        "1",
        "2",
        "3",
        "4",
    ]
    assert not [
        token
        for token in tokenizer.get_vocab()
        if len(token) > 1 and any(letter.isdigit() for letter in token)
    ]
    assert len(tokenizer) <= 300


def test_examples_are_learned_whole_or_from_the_answer_on():
    _, tokenizer, task = small()
    for learn in ("all", "answer"):
        rows = encode_examples(task.train[:5], tokenizer, 64, learn=learn)
        assert rows.ids == [one.id for one in task.train[:5]]
        batch = rows.collate([rows[3], rows[0]])
        for place, row in enumerate((3, 0)):
            question = task.train[row]
            tokens = tokenizer(question.text)["input_ids"] + [tokenizer.eos_token_id]
            start = 0 if learn == "all" else len(tokenizer(question.prompt)["input_ids"])
            assert batch["input_ids"][place].tolist()[: len(tokens)] == tokens
            assert batch["labels"][place].tolist() == [-100] * start + tokens[start:] + [-100] * (
                batch["labels"].shape[1] - len(tokens)
            )
            assert batch["attention_mask"][place].tolist() == [1] * len(tokens) + [0] * (
                batch["labels"].shape[1] - len(tokens)
            )
    with pytest.raises(ValueError, match="'context'"):
        encode_examples(task.train, tokenizer, 64, learn="context")


def test_examples_that_are_too_long_are_named_or_cut_on_the_left():
    _, tokenizer, task = small()
    with pytest.raises(
        ValueError,
        match=r"10 tokens.*\(1\d tokens\)",
    ):
        encode_examples(task.train, tokenizer, 10)
    for learn in ("all", "answer"):
        whole, cut = (
            encode_examples(task.train, tokenizer, size, learn=learn, too_long="cut")
            for size in (64, 10)
        )
        for row in range(len(whole)):
            assert cut.tokens[row] == whole.tokens[row][-10:]

            def learned(rows):
                return rows.tokens[row][rows.learned_from[row] :]

            assert learned(cut) == (learned(whole) if learn == "answer" else cut.tokens[row])


def test_packing_loses_nothing_and_its_order_is_the_seed_s():
    _, tokenizer, task = small()
    texts = raw_text(task)
    first, again, other = (pack(texts, tokenizer, 48, seed) for seed in (0, 0, 1))

    def stream(rows):
        return [token for row in rows.tokens for token in row]

    assert first.fingerprint == again.fingerprint != other.fingerprint
    assert (
        sorted(stream(first))
        == sorted(stream(other))
        == sorted(
            token
            for text in texts
            for token in [*tokenizer(text)["input_ids"], tokenizer.eos_token_id]
        )
    )
    assert set(first.lengths[:-1]) == {48} and 1 <= first.lengths[-1] <= 48
    read = tokenizer.decode(stream(first)).split("</s>")
    assert sorted(text.removeprefix("<s>") for text in read if text) == sorted(texts)
    for nothing in (lambda: pack([], tokenizer), lambda: TokenRows([], [], 0)):
        with pytest.raises(ValueError, match="no texts to train on"):
            nothing()


def test_no_text_in_a_block_sees_its_neighbours():
    model, tokenizer, task = small()
    rows = pack([*raw_text(task)[:20], "1 + " * 40], tokenizer, 50)
    batch = rows.collate([rows[n] for n in range(len(rows))])
    assert "attention_mask" not in batch and batch["labels"][-1, rows.lengths[-1] :].eq(-100).all()
    with torch.no_grad():
        together = model(
            input_ids=batch["input_ids"], position_ids=batch["position_ids"], use_cache=False
        ).logits
    compared = 0
    for row, (tokens, places) in enumerate(zip(rows.tokens, rows.positions)):
        starts = [n for n, place in enumerate(places) if place == 0]
        for start, end in zip(starts, [*starts[1:], len(tokens)]):
            with torch.no_grad():
                alone = model(torch.tensor([tokens[start:end]])).logits[0]
            np.testing.assert_allclose(together[row, start:end], alone, atol=1e-4)
            compared += 1
    assert (
        compared == sum(places.count(0) for places in rows.positions) > 21
        and max(map(max, rows.positions)) < 50
    )


def test_pretraining_on_blocks_is_training_on_the_texts_themselves():
    # the same loss and, after a step, the same weights as by hand, one text at a time
    _, tokenizer, task = small()
    rows = pack(raw_text(task)[:8], tokenizer, 200)
    model, history = pretrain(
        small_language_model(tokenizer, 3, layers=1, width=32),
        rows,
        max_steps=1,
        learning_rate=0.1,
        optim="sgd",
        lr_scheduler_type="constant",
        warmup_steps=0,
        max_grad_norm=1e9,
        progress=False,
    )
    assert model.config.use_cache
    hand = small_language_model(tokenizer, 3, layers=1, width=32)
    parts, (tokens, places) = [], (rows.tokens[0], rows.positions[0])
    starts = [n for n, place in enumerate(places) if place == 0]
    for start, end in zip(starts, [*starts[1:], len(tokens)]):
        logits = hand(torch.tensor([tokens[start:end]])).logits[0]
        wanted = torch.tensor(
            [*tokens[start + 1 : end], *tokens[end : end + 1]]
        )  # the end of a text is followed by the next one's beginning
        parts.append(
            torch.nn.functional.cross_entropy(logits[: len(wanted)], wanted, reduction="sum")
        )
    loss = sum(parts) / (len(tokens) - 1)
    loss.backward()
    assert history[-1]["train_loss"] == pytest.approx(float(loss.detach()), abs=1e-4)
    with torch.no_grad():
        for (name, value), trained in zip(hand.named_parameters(), model.parameters()):
            np.testing.assert_allclose(trained, value - 0.1 * value.grad, atol=1e-5, err_msg=name)


def test_a_fingerprint_of_rows_knows_all_of_them():
    def rows(ids=("a", "b"), tokens=((1, 2), (3,)), start=None):
        return TokenRows(ids, tokens, 0, start).fingerprint

    assert (
        rows() == rows()
        and len(
            {
                rows(),
                rows(ids=("a", "c")),
                rows(tokens=((1, 2), (4,))),
                rows(tokens=((1,), (2, 3))),
                rows(start=(1, 0)),
            }
        )
        == 5
    )


def test_tokenizers_that_cannot_end_a_text_or_always_do_are_refused():
    _, tokenizer, task = small()
    ending = byte_pairs(raw_text(task), 280)
    ending.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single="$A </s>", special_tokens=[("</s>", 1)]
    )
    with pytest.raises(ValueError, match="end-of-text"):
        encode_examples(task.train, ending, 64)
    endless = byte_pairs(raw_text(task), 280)
    endless.eos_token = None
    with pytest.raises(ValueError, match="has no end-of-text token"):
        pack(raw_text(task), endless)


# --- models and training --------------------------------------------------------------------------


def test_pretraining_is_the_same_bits_for_the_same_seed_and_learns():
    task = load_questions("arithmetic").limited(train=200)
    tokenizer = byte_pairs(raw_text(task), 280)
    rows = pack(raw_text(task), tokenizer, 32)

    def trained(seed):
        model = small_language_model(tokenizer, seed, layers=1, width=32)
        return pretrain(
            model,
            rows,
            seed,
            max_steps=8,
            learning_rate=1e-2,
            progress=False,
            logging_strategy="steps",
            logging_steps=1,
        )

    (first, history), (again, _), (other, _) = trained(0), trained(0), trained(1)

    def same(a, b):
        return all(
            torch.equal(value, b.state_dict()[name]) for name, value in a.state_dict().items()
        )

    assert same(first, again) and not same(first, other) and not first.training
    losses = [log["loss"] for log in history if "loss" in log]
    assert (
        losses[0] == pytest.approx(np.log(len(tokenizer)), rel=0.1) and losses[-1] < 0.8 * losses[0]
    )


def test_a_model_with_an_adapter_is_trained_by_the_same_call_and_its_base_stays():
    _, tokenizer, task = small()
    base = small_language_model(tokenizer, 5, layers=1, width=32, max_length=64)
    before = {name: value.clone() for name, value in base.state_dict().items()}
    adapted = get_peft_model(
        base, LoraConfig(r=4, lora_alpha=8, target_modules="all-linear", task_type="CAUSAL_LM")
    )
    untrained = score_choices(adapted, tokenizer, task.test[:4]).logits
    rows = encode_examples(task.train[:40], tokenizer, 64)
    model, history = pretrain(
        adapted,
        rows,
        validation=encode_examples(task.selection, tokenizer, 64),
        num_train_epochs=2,
        progress=False,
    )
    assert len([log for log in history if "eval_loss" in log]) == 2
    assert not np.allclose(score_choices(model, tokenizer, task.test[:4]).logits, untrained)
    assert generate(model, tokenizer, task.test[:2], Generation((), 4))
    kept = {
        name.replace("base_model.model.", "").replace("base_layer.", ""): value
        for name, value in model.state_dict().items()
    }
    assert all(torch.equal(value, kept[name]) for name, value in before.items())


def test_a_loss_that_is_no_number_stops_with_its_reason():
    _, tokenizer, task = small()
    model = small_language_model(tokenizer, 0, layers=1, width=32)
    with torch.no_grad():
        model.get_input_embeddings().weight[5:] = torch.nan
    with pytest.raises(FloatingPointError, match="nan"):
        pretrain(model, encode_examples(task.train[:8], tokenizer, 64), max_steps=1, progress=False)


def test_precision_is_bfloat16_or_float32(tmp_path):
    assert (
        language_arguments(precision="bfloat16", output_dir=str(tmp_path)).bf16
        and not language_arguments(output_dir=str(tmp_path)).bf16
    )
    with pytest.raises(ValueError, match="'float16'"):
        language_arguments(precision="float16", output_dir=str(tmp_path))


def test_models_that_cannot_be_read_safely_are_refused(tmp_path):
    model, tokenizer, _ = small()
    model.save_pretrained(tmp_path / "good")
    tokenizer.save_pretrained(tmp_path / "good")
    again, _ = language_model(tmp_path / "good")
    assert (
        all(
            torch.equal(value, again.state_dict()[name])
            for name, value in model.state_dict().items()
        )
        and not again.training
    )
    assert language_model(tmp_path / "good", "bfloat16")[0].dtype == torch.bfloat16
    with pytest.raises(ValueError, match="'int8'"):
        language_model(tmp_path / "good", "int8")
    byte_pairs(
        ["a" * n for n in range(99)] + [f"{a}{b}" for a in "abcdef" for b in "uvwxyz"], 330
    ).save_pretrained(tmp_path / "good")
    with pytest.raises(ValueError, match="they do not belong together"):
        language_model(tmp_path / "good")
    (tmp_path / "good" / "model.safetensors").unlink()
    with pytest.raises(ValueError, match="no weights"):
        language_model(tmp_path / "good")


class RunsOnLoading:
    """A pickle that writes a file when it is read."""

    def __init__(self, file):
        self.file = str(file)

    def __reduce__(self):
        return open, (self.file, "w")


def test_older_weights_are_read_and_run_nothing(tmp_path):
    """As Vicuna's repository holds them: pytorch_model.bin and no safetensors."""
    model, tokenizer, _ = small()
    model.config.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    torch.save(model.state_dict(), tmp_path / "pytorch_model.bin")
    again, _ = language_model(tmp_path)
    assert all(torch.equal(x, again.state_dict()[name]) for name, x in model.state_dict().items())
    evil = model.state_dict() | {"evil": RunsOnLoading(tmp_path / "ran")}
    torch.save(evil, tmp_path / "pytorch_model.bin")
    with pytest.raises(Exception, match="[Ww]eights.only"):
        language_model(tmp_path)
    assert not (tmp_path / "ran").exists()


def test_code_that_comes_with_a_model_is_not_run(tmp_path):
    model, tokenizer, _ = small()
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    config |= {
        "model_type": "own",
        "auto_map": {"AutoConfig": "own.Config", "AutoModelForCausalLM": "own.Model"},
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "own.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    with pytest.raises(ValueError):
        language_model(tmp_path)
    assert not (tmp_path / "ran").exists()


def test_a_task_of_one_s_own_is_answered(tmp_path):
    model, tokenizer, _ = small()
    split = (Question("a", "Dialogue:\nA: hi\nSummary:", "A greets."),)
    task = Questions(
        "own",
        "own",
        split,
        split,
        split,
        ("rouge1",),
        Generation(("\n\n",), 8, 2),
        "as given",
        "made",
    )
    judged = answer(model, tokenizer, task)
    assert judged.label is None and 0 <= judged.score[0] <= 1 and task.chance is None


def told(*answers):
    """Questions with these written answers."""
    return tuple(Question(f"q{n}", f"story {n}", answer=one) for n, one in enumerate(answers))


def written_task(train, test, measure):
    """A task of written answers."""
    given = told("x"), told(*test), (measure,), Generation(), "as given", "made"
    return Questions("own", "own", told(*train), *given)


def test_chance_is_one_answer_for_all_questions():
    numbers = written_task(["7", "1,000", "1000", "3"], ["1000", "1,000", "5", "2"], "number")
    assert chance_of(numbers, "number") == 0.5
    train = ["Ann meets Bob", "Ann meets Tim", "Ann calls Tim", "it rains"]
    texts = written_task(train, ["Ann meets Tim", "snow"], "rouge1")
    assert chance_of(texts, "rouge1") == pytest.approx(0.5)
    choices = replace(
        numbers, measures=("choice",), test=(Question("q", "p", choices=("a", "b"), label=0),)
    )
    assert chance_of(choices, "choice") == 0.5
    with pytest.raises(ValueError, match="'bleu'.*choice, number, rouge1"):
        chance_of(numbers, "bleu")


def test_a_language_model_is_trained_on_one_of_several_gpus(monkeypatch):
    """Trainer puts a model under DataParallel wherever it sees two GPUs."""
    several = property(lambda arguments: 1 if arguments.__dict__.get("_n_gpu") == 1 else 4)
    monkeypatch.setattr(TrainingArguments, "n_gpu", several)
    recipe = adapters.AdapterRecipe()
    given = {"output_dir": "unused"}
    made = language_arguments(**given), adapters._arguments(recipe, 0, False, given)
    assert [one.n_gpu for one in made] == [1, 1]
