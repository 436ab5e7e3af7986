"""Real files of the lm-evaluation-harness: runs it offline on language models of random weights
and on tasks made up here.

    python tests/make_lm_eval_samples.py FOLDER      (about ten seconds; imports torch, so tests
    call it as a process of its own)

makes FOLDER/old and FOLDER/new (two models, the same questions), FOLDER/shots (the new model,
asked with an example before each
question), FOLDER/version (the new model on other documents under the same numbers) and
FOLDER/again (the new model without one task).
"""

import json
import os
import subprocess
import sys
from pathlib import Path

WORDS = (
    "red",
    "blue",
    "green",
    "small",
    "large",
    "round",
    "box",
    "ball",
    "cup",
    "is",
    "the",
    "a",
    "and",
    "?",
    ":",
)
MULTIPLE_CHOICE, EXACT, OVERLAP = "pick_a_word", "say_a_word", "say_some_words"

_TASKS = {
    MULTIPLE_CHOICE: """
output_type: multiple_choice
doc_to_text: "the {{thing}} is :"
doc_to_target: gold
doc_to_choice: choices
metric_list: [{metric: acc}, {metric: acc_norm}]
""",
    EXACT: """
output_type: generate_until
doc_to_text: "the {{thing}} is :"
doc_to_target: "{{answer}}"
generation_kwargs: {until: ["?"], max_gen_toks: 1}
metric_list: [{metric: exact_match, aggregation: mean, higher_is_better: true}]
filter_list:
  - {name: strict, filter: [{function: take_first}]}
  - {name: loose, filter: [{function: lowercase}, {function: take_first}]}
""",
    OVERLAP: """
output_type: generate_until
doc_to_text: "the {{thing}} is :"
doc_to_target: "{{answer}} {{thing}} box and the cup"
generation_kwargs: {until: ["?"], max_gen_toks: 6}
process_results: !function measures.overlap
metric_list: [{metric: overlap, aggregation: mean, higher_is_better: true}, {metric: missed, aggregation: mean, higher_is_better: false}]
""",  # noqa: E501
}
_MEASURES = """
def overlap(doc, results):
    "Which part of the wanted words was said, and how many were not."
    wanted, said = set((doc["answer"] + " " + doc["thing"] + " box and the cup").split()), set(results[0].split())
    return {"overlap": len(wanted & said) / len(wanted), "missed": len(wanted - said)}
"""  # noqa: E501


def make_tasks(folder, documents=24, shift=0):
    """Writes the tasks and their data.

    Another `shift` gives documents of another version under the same numbers.
    """
    folder.mkdir(parents=True, exist_ok=True)
    adjectives, things = WORDS[:6], WORDS[6:9]
    docs = []
    for number in range(documents):
        kind = number + shift
        choices = [
            adjectives[kind % 6],
            f"{adjectives[(kind + 1) % 6]} and {adjectives[(kind + 2) % 6]}",
            adjectives[(kind + 4) % 6],
        ]
        docs.append(
            {
                "thing": f"{adjectives[kind // 3 % 6]} {things[kind % 3]}",
                "choices": choices,
                "gold": kind % 3,
                "answer": WORDS[kind % 15],
                "shape": things[kind % 3],
            }
        )  # `shape` is for slices
    (folder / "docs.jsonl").write_text("".join(json.dumps(doc) + "\n" for doc in docs))
    (folder / "measures.py").write_text(_MEASURES)
    head = (
        "dataset_path: json\ndataset_kwargs: {data_files: {test: "
        f"{folder / 'docs.jsonl'}}}}}\ntest_split: test\nmetadata: {{version: 1.0}}\n"
    )
    for name, text in _TASKS.items():
        (folder / f"{name}.yaml").write_text(f"task: {name}\n{head}{text}")
    return folder


def tiny_language_model(seed):
    """A GPT-2 of one layer with random weights, and a tokenizer of one token a word."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

    pieces = ("[END]", "[UNK]", *WORDS)
    core = Tokenizer(
        models.WordLevel({word: n for n, word in enumerate(pieces)}, unk_token="[UNK]")
    )
    core.pre_tokenizer, core.decoder = (
        pre_tokenizers.Whitespace(),
        decoders.WordPiece(prefix="##", cleanup=False),
    )
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=core, eos_token="[END]", unk_token="[UNK]", pad_token="[END]"
    )
    torch.manual_seed(seed)
    config = GPT2Config(
        vocab_size=len(pieces),
        n_positions=64,
        n_embd=16,
        n_layer=1,
        n_head=2,
        bos_token_id=0,
        eos_token_id=0,
        initializer_range=0.5,
    )
    return GPT2LMHeadModel(config).eval(), tokenizer


def make_samples(output, seed, tasks, names=tuple(_TASKS), shots=0):
    """Runs the harness and writes its files as `lm_eval --log_samples --output_path` does.

    Returns the folder that holds them.
    """
    from lm_eval import simple_evaluate
    from lm_eval.loggers import EvaluationTracker
    from lm_eval.models.huggingface import HFLM
    from lm_eval.tasks import TaskManager

    model, tokenizer = tiny_language_model(seed)
    tracker = EvaluationTracker(output_path=str(output))
    manager = TaskManager(include_path=str(tasks), include_defaults=False)
    results = simple_evaluate(
        model=HFLM(pretrained=model, tokenizer=tokenizer, batch_size=4, device="cpu"),
        tasks=list(names),
        task_manager=manager,
        num_fewshot=shots,
        log_samples=True,
        bootstrap_iters=0,
        evaluation_tracker=tracker,
    )
    samples = results.pop("samples")
    tracker.save_results_aggregated(results=results, samples=samples)
    for name in results["configs"]:
        tracker.save_results_samples(task_name=name, samples=samples[name])
    return next(Path(output).rglob("samples_*.jsonl")).parent


def make_all(folder):
    """The five runs, made by a process of its own. Returns the folder."""
    settings = os.environ | {
        "HF_HUB_OFFLINE": "1",
        "HF_DATASETS_OFFLINE": "1",
        "HF_HOME": str(folder / "cache"),
        "OMP_NUM_THREADS": "1",
    }
    done = subprocess.run(
        [sys.executable, __file__, folder], env=settings, capture_output=True, text=True
    )
    if done.returncode:
        raise RuntimeError(done.stderr[-3000:])
    return folder


def main():
    folder = Path(sys.argv[1])
    tasks, other = make_tasks(folder / "tasks"), make_tasks(folder / "tasks_version", shift=1)
    make_samples(folder / "old", 0, tasks)
    make_samples(folder / "new", 1, tasks)
    make_samples(folder / "shots", 1, tasks, (MULTIPLE_CHOICE,), shots=1)
    make_samples(folder / "version", 1, other, (MULTIPLE_CHOICE,))
    make_samples(folder / "again", 1, tasks, (MULTIPLE_CHOICE, EXACT))


if __name__ == "__main__":
    main()
