#!/usr/bin/env python3
"""On a machine with a GPU: what the rehearsal foretells, done, and what a step costs beside plain
training.

`.ci/gpu.py results/on-a-gpu.json` takes about five minutes. It takes the steps of `steps` with
random weights (room `rehearsal`) and runs the training sections of `nbs/benchmarks.ipynb`, cell by
cell as they stand there, and writes a record of each: machine, versions, commit, numbers. The room
`rehearsal` shows the first. No weights and no data are needed.
"""

import json
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path

from environment import ROOT, use_the_environment

LAST = "## A whole table against its rows"  # the first section of benchmarks that is left out
ADAPTERS = "## A step of adapter training"
# what was predicted for a GPU before the first measurement, at BERT-base's size: a step of some 20
# ms is bound by starting kernels, so a treatment costs what it starts beside the 2,500 of a step
PREDICTED = {
    "in the loop": 1.15,
    "dynamic distillation": 1.02,
    "gated fusion": 1.03,
    "naive re-weighting": 1.01,
    "FD-KL": 1.02,
    "FD-LM": 1.01,
    "ordinary distillation": 1.01,
    "logit difference inhibition": 1.01,
    "prior weight decay": 1.05,
    "elastic weight consolidation": 1.4,
    "Mixout": 1.3,
    "kept distributions": 1.05,
    "on the fly": 1.7,
}


def steps():
    """name → Step: the largest of the papers' text classifiers, image classifiers and language
    models, as their tables train them.
    """
    from compatkit.experiments.planning.rehearsal import Step
    from compatkit.experiments.planning.shapes import hub_shape
    from compatkit.language.adapters import AdapterRecipe

    recipe, llama = AdapterRecipe(), hub_shape("huggyllama/llama-7b")
    adapter = {"weights": "bfloat16", "rank": recipe.rank}
    return {
        "BERT-large, 16 texts of 128 tokens": Step(
            hub_shape("google-bert/bert-large-uncased", 2), 16, 128
        ),
        "ResNet-50, 256 images of 224 pixels": Step(
            hub_shape("microsoft/resnet-50"), 256, 224, "sgd"
        ),
        "Llama 7B with LoRA, 4 rows of 512 tokens": Step(llama, 4, 512, **adapter),
        "the same with gradient checkpointing": Step(llama, 4, 512, **adapter, checkpointing=True),
    }


def performed():
    """The steps, each with what it took; one after the other, with all memory free."""
    import gc

    import torch

    from compatkit.experiments.planning.rehearsal import perform

    done = []
    for name, step in steps().items():
        gc.collect()
        torch.cuda.empty_cache()
        done.append({"name": name, "step": asdict(step), "performed": perform(step)._asdict()})
        print(name, done[-1]["performed"], flush=True)
    return done


def cells(first="", last=""):
    """The source of benchmarks' code cells from one heading (else the beginning) to another."""
    notebook = json.loads((ROOT / "nbs" / "benchmarks.ipynb").read_text(encoding="utf-8"))
    inside, found = not first, []
    for cell in notebook["cells"]:
        source = "".join(cell["source"])
        if last and source.startswith(last):
            return found
        inside = inside or source.startswith(first)
        if inside and cell["cell_type"] == "code":
            found.append(source.replace("import polars\n", ""))  # of sections that are left out
    return found


def predicted(what):
    """What was predicted for a line of benchmarks."""
    return next(value for name, value in PREDICTED.items() if name in what)


def ratios():
    """The lines of benchmarks' training sections: what, predicted, target, ratios."""
    names = {}
    for source in cells(last=LAST):
        exec(compile(source, "benchmarks", "exec"), names)
    names.update(dict.fromkeys(("new_model", "wide_model", "old_model")))  # their memory
    for source in cells(ADAPTERS):
        exec(compile(source, "benchmarks", "exec"), names)
        if "adapter_step" in names:
            break
    step, line = names["adapter_step"], names["Line"]
    told = {"kept": "kept distributions", "on the fly": "teachers on the fly"}
    adapters = [
        line(f"adapter step: compatibility, {words} ÷ plain", step[key] / step["plain"], 1.0, limit)
        for (key, words), limit in zip(told.items(), ("at most 1.15", ""))
    ]
    lines = [*names["training_lines"], *names["pct_lines"], *names["near_lines"], *adapters]
    return [
        {
            "what": one.what,
            "predicted": predicted(one.what),
            "target": one.target,
            "ratios": [round(float(ratio), 4) for ratio in one.ratios],
        }
        for one in lines
    ]


def main():
    """Measure and write, the steps first."""
    from compatkit.experiments.running.runs import run_once, write_json

    target, told = Path(sys.argv[1]), {}
    parts = {"steps": performed, "ratios": ratios}
    with tempfile.TemporaryDirectory() as home:
        for name, measure in parts.items():
            asked = {"kind": "on_a_gpu", "part": name}
            told[name] = run_once(asked, lambda folder: {name: measure()}, home).record
            write_json(target, told)


if __name__ == "__main__":
    use_the_environment("torch")
    main()
