#!/usr/bin/env python3
"""Run all notebooks as CI does, as many at a time as there are cores.

A method notebook makes one table at smoke scale through papermill (the quick entries of grid.py);
every other notebook is run by nbdev's own test, which leaves out what its settings leave out.
`.ci/notebooks.py metrics compare/joins` runs some of them. What most notebooks import is loaded
once, before the workers branch off; the longest begin first.
"""

import gc
import os
import sys
import tempfile
import time
from multiprocessing import get_context
from multiprocessing.connection import wait
from pathlib import Path

import grid
import kernels
from environment import ROOT, use_the_environment

SLOWEST = 12  # notebooks whose seconds are shown
LONGEST_FIRST = ("muscle", "gated_fusion", "bcwi", "distillation")  # of those with a table


def load_packages():
    """What most notebooks import. Nothing is computed that starts threads: they do not survive the
    branching.
    """
    import datasets  # noqa: F401
    import ipykernel.ipkernel  # noqa: F401
    import ipykernel.kernelapp  # noqa: F401
    import matplotlib.pyplot  # noqa: F401
    import matplotlib_inline.backend_inline  # noqa: F401
    import nbdev.test  # noqa: F401
    import papermill.cli  # noqa: F401
    import peft  # noqa: F401
    import polars.io  # noqa: F401
    import scipy.stats  # noqa: F401
    import sklearn.datasets  # noqa: F401
    import transformers.models.bert.modeling_bert  # noqa: F401
    import transformers.models.llama.modeling_llama  # noqa: F401

    import compatkit.compare.verdict  # noqa: F401
    import compatkit.experiments.studies.language_study  # noqa: F401
    import compatkit.experiments.studies.study  # noqa: F401
    import compatkit.training.loop  # noqa: F401


def load_data():
    """The embedded data, which is made once a process and the same in all notebooks."""
    from compatkit.language.tasks import load_questions
    from compatkit.training.tasks import load_task

    for made in (load_task("pydoc"), load_task("digits"), load_questions("arithmetic")):
        made.fingerprint  # noqa: B018  # it is kept


def quick_entries():
    """The entries of the grid that CI runs, the longest first."""
    entries = [entry for entry in grid.GRID if entry[0]]
    place = {name: number for number, name in enumerate(LONGEST_FIRST)}
    return sorted(entries, key=lambda entry: place.get(entry[1], len(place)))


def tested(name):
    """A notebook by nbdev's test: (passed, one line)."""
    from nbdev.test import test_nb

    begun = time.monotonic()
    passed, _ = test_nb(ROOT / "nbs" / f"{name}.ipynb", skip_flags=["slow"], basepath=ROOT)
    return passed, f"{'ok    ' if passed else 'FAILED'} {time.monotonic() - begun:4.0f} s  {name}"


def made(entry, folder):
    """An entry of the grid through papermill: (passed, one line)."""
    begun = time.monotonic()
    said = Path(folder) / f"{entry[1]}-{os.getpid()}.txt"
    passed = kernels.papermill(*grid.command_of(entry, folder), said)
    return passed, grid.line_of(entry, passed, begun) + ("" if passed else f"\n{tail(said)}")


def tail(said):
    """The last of what a notebook's papermill said."""
    return said.read_text(encoding="utf-8", errors="replace")[-8000:]


def report(task, folder, into):
    """The outcome of an entry of the grid or of a notebook's name, into a pipe."""
    into.send(tested(task) if isinstance(task, str) else made(task, folder))


def begin(task, folder):
    """A process for a task: (the end of the pipe where its outcome comes out, process, task)."""
    context = get_context("fork")
    out, into = context.Pipe(duplex=False)
    process = context.Process(target=report, args=(task, folder, into))
    process.start()
    into.close()  # so that a process that dies closes the pipe
    return out, process, task


def run_all(tasks, folder):
    """The outcomes of all tasks, each in a process of its own, as many at a time as cores."""
    waiting, running, outcomes = list(tasks), {}, []
    while waiting or running:
        while waiting and len(running) < (os.cpu_count() or 1):
            out, *begun = begin(waiting.pop(0), folder)
            running[out] = begun
        for out in wait(running):
            process, task = running.pop(out)
            try:
                outcomes.append(out.recv())
            except EOFError:
                outcomes.append((False, f"FAILED    0 s  {task}: its process died"))
            process.join()
    return outcomes


def seconds_of(outcome):
    """How long a notebook took, read off its line."""
    return int(outcome[1].split()[1])


def main(asked):
    """Run the notebooks that are asked for, or all; the exit status is 1 where one fails."""
    sys.path.insert(0, str(ROOT))
    from compatkit.support.house import rooms

    house, entries = rooms(ROOT), quick_entries()
    if unknown := sorted(set(asked) - set(house)):
        sys.exit(f"there is no notebook {', '.join(unknown)} in nbs/")
    entries = [entry for entry in entries if not asked or entry[1] in asked]
    names = [name for name in asked or house if name not in {entry[1] for entry in entries}]
    names.sort(key=lambda name: -(ROOT / "nbs" / f"{name}.ipynb").stat().st_size)
    load_packages()
    load_data()
    gc.collect()
    gc.freeze()  # the collector of garbage leaves alone what all share
    with tempfile.TemporaryDirectory() as folder:
        os.environ.setdefault("COMPATKIT_HOME", f"{folder}/runs")
        outcomes = run_all([*entries, *names], folder)
    print(*(line for _, line in sorted(outcomes, key=seconds_of)[-SLOWEST:]), sep="\n")
    failed = [line for passed, line in outcomes if not passed]
    print(f"notebooks: {len(outcomes) - len(failed)} of {len(outcomes)} ran", *failed, sep="\n")
    sys.exit(bool(failed))


if __name__ == "__main__":
    use_the_environment("nbdev")
    main(sys.argv[1:])
