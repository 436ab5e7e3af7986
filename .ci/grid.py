#!/usr/bin/env python3
"""Every table of every method notebook at smoke, and two steps at the papers' scale, through
papermill.

`.ci/grid.py` runs all of them, `.ci/grid.py bcwi muscle` those of some notebooks. As many at a time
as there are cores, one thread each. Those marked quick run in CI too (notebooks.py). A task that is
named comes, like the papers' models, from a made-up cache of the hub (tests/make_hub_cache.py),
offline. Each keeps its results, in a folder that is thrown away with the executed notebooks; at the
end evidence, pages and pictures are made of them and every number is computed again, so that a run
of hours on a GPU does not end in an error when it is to be kept. The last lines say what ran. New
method notebook: add its lines to GRID.
"""

import os
import re
import subprocess
import sys
import tempfile
import time
import traceback
from functools import partial
from pathlib import Path

import kernels
from environment import ROOT, use_the_environment

# (quick?, notebook, parameters)
GATED_FUSION = ("main", "1", "2", "3", "4", "5", "6", "rates")
DISTILLATION = ("main", "3", "4", "5a", "5b", "figure5", "one_model")
BCWI = ("main", "curve", "baselines", "cost", "ensemble", "soup", "fisher", "basin", "classes")
RETIRE = ("main", "together", "cache", "churn")
MUSCLE = ("main", "3", "4", "6", "figure4", "figure5", "dial", "shots")
STEPS = {"scale": "paper", "max_steps": 2}
TWO_STEPS = STEPS | {"seeds": 1, "settings": 1}
KEEPS_NOTHING = ("landscape", "own_case")
FEW = {"scale": "smoke", "seeds": 1}
PAIR = FEW | {"seeds": 2}  # enough to show a spread
GRID = [
    *((table == "main", "gated_fusion", PAIR | {"table": table}) for table in GATED_FUSION),
    (False, "gated_fusion", PAIR | {"table": "main", "upgrade": "b"}),
    (False, "gated_fusion", FEW | {"table": "main", "old_logits": "out_of_fold"}),
    (False, "gated_fusion", FEW | {"table": "main", "task": "mrpc"}),
    # both upgrades; in CI tests/test_gated_fusion.py tries table 4
    *(
        (False, "gated_fusion", TWO_STEPS | {"table": table, "task": "mrpc"})
        for table in GATED_FUSION
    ),
    *(
        (False, "gated_fusion", TWO_STEPS | {"table": "main", "task": task})
        for task in ("sst2", "qnli")
    ),
    *(
        (table == "main", "decisions", PAIR | {"table": table})
        for table in ("main", "guarantee", "on_top")
    ),
    (False, "decisions", PAIR | {"table": "main", "upgrade": "b"}),
    (False, "decisions", FEW | {"table": "main", "task": "mrpc"}),
    *((table == "main", "bcwi", PAIR | {"table": table}) for table in BCWI),
    *((False, "bcwi", STEPS | {"table": table, "task": "massive", "seeds": 2}) for table in BCWI),
    *(
        (False, "bcwi", STEPS | {"table": table, "task": task, "seeds": 2})
        for table in ("main", "classes")
        for task in ("banking77", "ag_news")
    ),
    *((table == "main", "retire_the_old", FEW | {"table": table}) for table in RETIRE),
    (False, "retire_the_old", FEW | {"table": "main", "upgrade": "a", "prices": "1,3"}),
    (False, "retire_the_old", FEW | {"table": "main", "upgrade": "b"}),
    (False, "retire_the_old", STEPS | {"table": "main", "task": "massive", "seeds": 1}),
    *((table == "main", "distillation", FEW | {"table": table}) for table in DISTILLATION),
    *(
        (False, "distillation", FEW | {"table": table, "task": "digits"})
        for table in ("main", "2b", "5b", "augmentation")
    ),
    *(
        (False, "distillation", TWO_STEPS | {"table": table, "task": "imagenet", "ensemble": 2})
        for table in (*DISTILLATION, "augmentation")
    ),
    (False, "distillation", TWO_STEPS | {"table": "2b", "task": "inaturalist", "ensemble": 2}),
    *(
        (False, "distillation", FEW | {"table": table, "task": "mrpc"})
        for table in ("main", "mrpc")
    ),
    (False, "distillation", TWO_STEPS | {"table": "mrpc", "task": "mrpc"}),
    (
        False,
        "distillation",
        FEW | {"table": "4", "task": "digits", "answers": "digits_models/smaller"},
    ),
    *(
        (table == "figure3", "ensembles", {"scale": "smoke", "table": table})
        for table in ("figure2", "figure3", "figure4")
    ),
    *(
        (False, "ensembles", STEPS | {"table": table, "task": "imagenet", "seeds": 1, "size": 2})
        for table in ("figure2", "figure3", "figure4")
    ),
    (
        False,
        "ensembles",
        {"scale": "smoke", "table": "figure2", "task": "digits", "answers": "digits_models"},
    ),
    *((table == "main", "muscle", FEW | {"table": table}) for table in MUSCLE),
    *(
        (False, "muscle", STEPS | {"table": table, "task": task, "seeds": 1})
        for table, task in (
            ("main", "piqa"),
            ("3", "hellaswag"),
            ("4", "gsm8k"),
            ("5", "samsum"),
            ("6", "piqa"),
            ("figure4", "piqa"),
            ("figure5", "piqa"),
            ("dial", "piqa"),
        )
    ),
    *(
        (table == "main", "embeddings", FEW | {"table": table})
        for table in ("main", "classes", "width")
    ),
    (False, "embeddings", FEW | {"table": "main", "task": "massive"}),
    *(
        (False, "embeddings", FEW | {"table": table, "task": "digits"})
        for table in ("main", "classes", "width", "architecture")
    ),
    *((table == "main", "reranking", FEW | {"table": table}) for table in ("main", "candidates")),
    (False, "reranking", FEW | {"table": "main", "task": "samsum", "max_steps": 2}),
    *((False, "landscape", FEW | {"table": table, "points": 5}) for table in ("main", "rebasin")),
    (False, "landscape", STEPS | {"table": "main", "task": "massive", "points": 3}),
    (False, "own_case", {"scale": "smoke"}),
]


def make_hub(folder):
    """A cache of the hub with the papers' models and data, all tiny."""
    made = [sys.executable, "tests/make_hub_cache.py", str(Path(folder) / "hub")]
    subprocess.run(made, cwd=ROOT, check=True, env=os.environ | {"PYTHONPATH": str(ROOT)})


def offline(folder):
    """Environment variables under which only the made-up cache of the hub is there."""
    hub = Path(folder) / "hub"
    return {"HF_HOME": str(hub), "HF_HUB_OFFLINE": "1", "COMPATKIT_DATA": str(hub / "folders")}


def results_of(entry, folder):
    """Where an entry keeps its results: what was trained on other examples never meets."""
    _, notebook, parameters = entry
    return Path(folder) / "kept" / ("steps" if "max_steps" in parameters else "smoke")


def command_of(entry, folder):
    """What papermill is told for an entry: (arguments, environment)."""
    _, notebook, parameters = entry
    options = [part for name, value in parameters.items() for part in ("-p", name, str(value))]
    target = Path(folder) / ("-".join([notebook, *map(str, parameters.values())]) + ".ipynb")
    engine = ["--engine", "compatkit", "--no-progress-bar"]
    kept = {
        name: value
        for name, value in os.environ.items()
        if name not in ("COMPATKIT_DATA", "IN_TEST")
    }
    if notebook not in KEEPS_NOTHING:
        options += ["-p", "keep_results", "True"]
    arguments = [f"nbs/{notebook}.ipynb", str(target), *engine, *options]
    hub = offline(folder) if "task" in parameters else {}
    own = {"OMP_NUM_THREADS": "1", "COMPATKIT_RESULTS": str(results_of(entry, folder))}
    return arguments, kept | hub | own


def line_of(entry, passed, begun):
    """The line of an entry that ran."""
    _, notebook, parameters = entry
    told = " ".join(f"-p {name} {value}" for name, value in parameters.items())
    outcome = "ok    " if passed else "FAILED"
    return f"{outcome} {time.monotonic() - begun:4.0f} s  {notebook} {told}"


def made(entry, folder):
    """An entry of the grid through papermill: (passed, one line, with papermill's last words where
    it failed).
    """
    begun = time.monotonic()
    said = Path(folder) / f"{entry[1]}-{os.getpid()}.txt"
    passed = kernels.papermill(*command_of(entry, folder), said)
    words = "" if passed else f"\n{said.read_text(encoding='utf-8', errors='replace')[-8000:]}"
    return passed, line_of(entry, passed, begun) + words


def of_rounding(detail):
    """Whether a number differs by a few answers alone: logits are kept in half precision, and at
    smoke one answer of 150 is more than what is allowed elsewhere.
    """
    found = re.search(r"kept (-?[\d.]+), made (-?[\d.]+)$", detail)
    return bool(found) and abs(float(found[1]) - float(found[2])) < 0.02


def proved(results):
    """Evidence, pictures and pages of what was kept, then every number again: (passed, lines)."""
    begun, lines, numbers = time.monotonic(), [], 0
    try:
        wrong = False
        for one in computed_again(results):
            numbers += one.numbers
            wrong |= one.word == "differs" and not of_rounding(one.detail)
            if one.word in ("differs", "not checked"):
                lines.append(f"  {one.name}: {one.word}, {one.detail}")
        passed = numbers > 0 and not wrong
    except Exception:
        passed, lines = False, [*lines, traceback.format_exc()]
    outcome = "ok    " if passed else "FAILED"
    told = f"{outcome} {time.monotonic() - begun:4.0f} s  {results.name}: {numbers:,} kept numbers"
    return passed, "\n".join([told, *lines])


def computed_again(results):
    """The verdicts on all that is kept in a folder, once everything is written from it."""
    from compatkit.experiments.judging import evidence, kept_figures, result_pages
    from compatkit.experiments.judging.kept_answers import Shelf
    from compatkit.experiments.judging.verification import verify

    evidence.write_evidence(results)
    list(kept_figures.renew_pictures(Shelf(results), results))
    list(result_pages.write_equal_accuracy_pictures(results))
    result_pages.write_pages(results)
    return verify(results=results)


def main():
    names = sys.argv[1:]
    if set(names) - {notebook for _, notebook, _ in GRID}:
        sys.exit(__doc__)
    entries = [entry for entry in GRID if not names or entry[1] in names]
    sys.path.insert(0, str(ROOT))
    with tempfile.TemporaryDirectory() as folder:
        os.environ.setdefault("COMPATKIT_HOME", str(Path(folder) / "runs"))
        make_hub(folder)
        os.environ.update(offline(folder))  # before huggingface_hub is imported, which reads it
        kernels.load_packages()
        kernels.load_data()
        tables = [partial(made, entry, folder) for entry in entries]
        results = kernels.run_all(tables, partial(print, flush=True))
        for kept in sorted(Path(folder).glob("kept/*")):
            results.append(proved(kept))
            print(results[-1][1], flush=True)
    failed = [line for passed, line in results if not passed]
    print(f"grid: {len(results) - len(failed)} of {len(results)} notebooks ran", *failed, sep="\n")
    sys.exit(bool(failed))


if __name__ == "__main__":
    use_the_environment("papermill")
    main()
