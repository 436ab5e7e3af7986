#!/usr/bin/env python3
"""On a machine with a GPU: what the rehearsal foretells, done.

`.ci/gpu.py results/on-a-gpu.json` takes the steps of `steps` with random weights, some minutes, and
writes what each took with machine, versions and commit. The notebook `rehearsal` shows it. No
weights and no data are needed.
"""

import sys
import tempfile
from dataclasses import asdict
from pathlib import Path

from environment import use_the_environment


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


def main():
    """Measure and write."""
    from compatkit.experiments.running.runs import run_once, write_json

    asked = {"kind": "on_a_gpu", "part": "steps"}
    with tempfile.TemporaryDirectory() as home:
        done = run_once(asked, lambda folder: {"steps": performed()}, home)
        write_json(Path(sys.argv[1]), {"steps": done.record})


if __name__ == "__main__":
    use_the_environment("torch")
    main()
