#!/usr/bin/env python3
"""Every table of every method notebook at smoke, and two steps at the papers' scale, through
papermill.

`.ci/grid.py` runs all of them, `.ci/grid.py bcwi muscle` those of some notebooks. As many at a time
as there are cores, one thread each. Those marked quick run in CI too (notebooks.py). A task that is
named comes, like the papers' models, from a made-up cache of the hub (tests/make_hub_cache.py),
offline. Each keeps its results, in a folder that is thrown away with the executed notebooks; at the
end evidence, pages and pictures are made of them and every number is computed again, so that a run
of hours on a GPU does not end in an error when it is to be kept. The last lines say what ran. The
tables are those of the catalogue; a variant of one that it does not list has a line in VARIANTS.
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

KEEPS_NOTHING = ("landscape", "own_case")
QUICK = (  # run in CI too: a table of each notebook
    "gated_fusion:main",
    "decisions:main",
    "bcwi:main",
    "retire_the_old:main",
    "distillation:main",
    "ensembles:figure3",
    "muscle:3",
    "embeddings:main",
    "reranking:main",
)
USUAL = ("pydoc", "arithmetic")  # tasks that notebooks have unless they are told another
# notebook → what it is told at smoke, and for two steps at the papers' scale; two seeds show a
# spread
SMOKE = {
    **dict.fromkeys(("gated_fusion", "decisions", "bcwi"), {"seeds": 2}),
    "ensembles": {"seeds": 3},
    "landscape": {"seeds": 1, "points": 5},
}
PAPER = {
    "gated_fusion": {"seeds": 1, "settings": 1},
    "distillation": {"seeds": 1, "settings": 1, "ensemble": 2},
    "ensembles": {"seeds": 1, "size": 2},
    "bcwi": {"seeds": 2},
    "landscape": {"points": 3},
}
ONE = {"seeds": 1}
FEW = {"scale": "smoke", "seeds": 1}
VARIANTS = (  # what no table of the catalogue tries: (notebook, parameters)
    ("gated_fusion", FEW | {"table": "main", "upgrade": "b", "seeds": 2}),
    ("gated_fusion", FEW | {"table": "main", "old_logits": "out_of_fold"}),
    ("gated_fusion", FEW | {"table": "main", "task": "mrpc"}),
    ("decisions", FEW | {"table": "main", "upgrade": "b", "seeds": 2}),
    ("decisions", FEW | {"table": "main", "task": "mrpc"}),
    ("retire_the_old", FEW | {"table": "main", "upgrade": "a", "prices": "1,3"}),
    ("retire_the_old", ONE | {"scale": "paper", "max_steps": 2, "task": "massive"}),
    ("distillation", FEW | {"table": "main", "task": "digits"}),
    ("distillation", FEW | {"table": "main", "task": "mrpc"}),
    ("distillation", FEW | {"table": "4", "task": "digits", "answers": "digits_models/smaller"}),
    ("ensembles", FEW | {"table": "figure2", "task": "digits", "answers": "digits_models"}),
    ("embeddings", FEW | {"table": "main", "task": "massive"}),
    *(
        ("embeddings", FEW | {"table": table, "task": "digits"})
        for table in ("main", "classes", "width", "architecture")
    ),
    ("reranking", FEW | {"table": "main", "task": "samsum", "max_steps": 2}),
    ("own_case", {"scale": "smoke"}),
)


def first_of_each(jobs):
    """Those jobs by which each table is made once, and each of a notebook's tasks."""
    seen = set()
    for job in jobs:
        of_job = {job.entry.name, (job.entry.notebook, job.task)}
        if of_job - seen:
            yield job
        seen |= of_job


def all_entries():
    """(quick?, notebook, parameters) of every run: the catalogue's tables, then the variants."""
    from compatkit.experiments.planning.catalogue import jobs

    found = []
    for job in jobs(scale="smoke"):
        told = SMOKE.get(job.entry.notebook, ONE) | job.parameters
        if job.task in USUAL:
            told.pop("task")
        found.append((job.entry.name in QUICK, job.entry.notebook, told))
    for job in first_of_each(jobs(scale="paper")):
        told = PAPER.get(job.entry.notebook, ONE) | job.parameters | {"max_steps": 2}
        found.append((False, job.entry.notebook, told))
    return found + [(False, *variant) for variant in VARIANTS]


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
    sys.path.insert(0, str(ROOT))
    names, entries = sys.argv[1:], all_entries()
    if set(names) - {notebook for _, notebook, _ in entries}:
        sys.exit(__doc__)
    entries = [entry for entry in entries if not names or entry[1] in names]
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
