#!/usr/bin/env python3
"""Write the pages of results/ (README.md, a page a paper, methods.md, results.csv) from the tables,
and the numbers that sentences of notebooks and of README.md quote from them.

`.ci/results.py` writes what is out of step, `.ci/results.py --check` only says whether anything is.
`.ci/results.py --evidence` first computes evidence.json again, and draws the pictures that rest on
it: minutes, and every task's data.
`.ci/results.py --renew` before that writes intervals and notes of the tables as today's rules have
them.
`.ci/results.py --pictures` draws pictures again from the kept predictions, with the data too.
`.ci/results.py --prune` takes out the runs that no table rests on any more.
All of them end with 1 where a picture is older than the table that it shows.
"""

import sys
from pathlib import Path

from environment import use_the_environment

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "results"


def write_evidence():
    """evidence.json again, and the pictures that rest on it; gives the names of the files."""
    from compatkit.experiments.judging import evidence, result_pages

    yield str(evidence.write_evidence(RESULTS))
    yield from result_pages.write_equal_accuracy_pictures(RESULTS)


def renew():
    """Intervals and notes by today's rules, then the evidence; gives the names of what changed."""
    from compatkit.experiments.judging.kept_answers import Shelf
    from compatkit.experiments.judging.verification import renew_tables

    yield from renew_tables(Shelf(RESULTS), RESULTS)
    yield from write_evidence()


def draw():
    """The pictures that kept predictions suffice for; gives their names."""
    from compatkit.experiments.judging.kept_answers import Shelf
    from compatkit.experiments.judging.kept_figures import renew_pictures
    from compatkit.experiments.judging.result_pages import write_equal_accuracy_pictures

    yield from renew_pictures(Shelf(RESULTS), RESULTS)
    yield from write_equal_accuracy_pictures(RESULTS)


def prune():
    """Take out the runs that no table rests on; gives how many of each study."""
    from compatkit.experiments.judging.kept_answers import Shelf
    from compatkit.experiments.judging.kept_figures import runs_after_epochs
    from compatkit.experiments.reporting.result_tables import kept_tables
    from compatkit.experiments.running.published import published_runs, superseded
    from compatkit.experiments.running.store import drop_runs

    runs, tables = published_runs(RESULTS), kept_tables(RESULTS).values()
    named = {name for table in tables for row in table.rows for name in row.records}
    named |= runs_after_epochs(Shelf(RESULTS))
    of_study = {}
    for name in superseded(runs, named):
        of_study.setdefault(runs[name].folder, []).append(name)
    for folder, names in of_study.items():
        drop_runs(folder, names)
        yield f"{folder.name}: {len(names)} of {sum(one.folder == folder for one in runs.values())}"


def stale_pages():
    """What is wrong with the pages, as a sentence; nothing where they are in step."""
    from compatkit.experiments.judging.result_pages import out_of_step

    names = ", ".join(out_of_step(RESULTS))
    return f"out of step, run .ci/results.py: {names}" if names else None


def stale_pictures():
    """Which pictures are older than their tables, as a sentence; nothing where none is."""
    from compatkit.experiments.judging import result_pages

    names = ", ".join(result_pages.stale_pictures(RESULTS))
    remedy = "run .ci/results.py --pictures; what that does not draw, its table's command does"
    return f"older than their tables, {remedy}: {names}" if names else None


def quote():
    """Bring quoted numbers into step with the tables; gives the names of the files that changed."""
    from compatkit.experiments.judging.quotations import write_quotations
    from compatkit.experiments.reporting.result_tables import kept_tables

    tables = kept_tables(RESULTS)
    for file in (ROOT / "README.md", *sorted((ROOT / "nbs").rglob("*.ipynb"))):
        if write_quotations(file, tables):
            yield str(file.relative_to(ROOT))


STEPS = {
    "--evidence": write_evidence,
    "--renew": renew,
    "--pictures": draw,
    "--prune": prune,
}


def main(arguments):
    """Write or check; the exit status is 1 where a page or a picture is out of step."""
    from compatkit.experiments.judging.result_pages import write_pages

    if arguments == ["--check"]:
        sys.exit(stale_pages() or stale_pictures())
    if len(arguments) > 1 or not set(arguments) <= set(STEPS):
        sys.exit(__doc__)
    for step in arguments:
        for name in STEPS[step]():
            print(name, flush=True)
    print("\n".join([*write_pages(RESULTS), *quote()]) or "every page is in step")
    sys.exit(stale_pictures())


if __name__ == "__main__":
    use_the_environment("compatkit")
    sys.path.insert(0, str(ROOT))
    main(sys.argv[1:])
