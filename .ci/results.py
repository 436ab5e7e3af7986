#!/usr/bin/env python3
"""Write the pages of results/ (README.md, a page a paper, methods.md, results.csv) from the tables.

`.ci/results.py` writes what is out of step, `.ci/results.py --check` only says whether anything is.
`.ci/results.py --evidence [TABLE …]` first computes evidence.json again, all of it or that of some
kept tables and of the upgrades that they are of, and draws the pictures that rest on it: minutes,
and the tasks' data.
`.ci/results.py --renew` before that writes intervals and notes of the tables as today's rules have
them.
`.ci/results.py --pictures` draws pictures again from the kept predictions, with the data too.
`.ci/results.py --prune` takes out the runs, logits and pictures that no table rests on any more.
All of them end with 1 where a picture is older than the table that it shows.
"""

import json
import shutil
import sys
from pathlib import Path

from environment import use_the_environment

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "results"


def write_evidence(*names):
    """evidence.json again, and the pictures that rest on it; gives the names of the files."""
    from compatkit.experiments.judging import evidence, result_pages

    yield str(evidence.write_evidence(RESULTS, names=names))
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
    """Take out what no table rests on: runs, logits, pictures and empty studies; gives how many."""
    from compatkit.experiments.judging.kept_answers import Shelf
    from compatkit.experiments.judging.kept_figures import runs_after_epochs
    from compatkit.experiments.judging.searches import searched_fields, setting_of
    from compatkit.experiments.models.treatments import METHODS
    from compatkit.experiments.running.published import superseded
    from compatkit.experiments.running.store import prune_study, studies

    shelf = Shelf(RESULTS)
    named = {name for table in shelf.tables.values() for row in table.rows for name in row.records}
    named |= runs_after_epochs(shelf)
    fields = {one for method in METHODS for one in searched_fields(method)}
    varied = fields | {"price", "synthesised"}
    gone = superseded(shelf.runs, named, lambda one: setting_of(one, varied)[0])
    read = logits_read(shelf)
    for folder in studies(RESULTS):
        own = [name for name, run in shelf.runs.items() if run.folder == folder]
        prune_study(folder, names := set(own) & set(gone), read)
        yield f"{folder.name}: {len(names)} of {len(own)} runs"
    tidy()


def tidy():
    """Take out pictures of no table, and studies that hold neither a table nor a run."""
    from compatkit.experiments.reporting.result_tables import pictures_by_table

    shown = {one for names in pictures_by_table(RESULTS).values() for one in names}
    for picture in RESULTS.glob("*/*.svg"):
        if str(picture.relative_to(RESULTS)) not in shown:
            picture.unlink()
    for folder in {file.parent for file in RESULTS.glob("*/tables.json")}:
        empty = not json.loads((folder / "tables.json").read_text())
        if empty and not (folder / "records.parquet").exists():
            shutil.rmtree(folder)


def logits_read(shelf):
    """(run, split) of the logits that rows and mixtures' curves of the kept tables read."""
    from compatkit.experiments.reporting.expressions import leaves, reads_logits

    found = set()
    for kept in map(shelf.table, shelf.tables):
        rows = [row for row in kept.rows.values() if row.new]
        own = kept.table.form in ("update", "cost")  # there α is the dial
        mixed = not own and "old model" in kept.rows
        sides = [*kept.olds, *kept.news] if mixed else []
        read = [(one, ("selection", "test")) for one in sides]
        for row in rows:
            shown = [*kept.answering(row), *kept.old_side(row)]
            shown += [one for group in kept.tried(row).values() for one in group]
            splits = ("selection", "test") if row.selection or row.tried else ("test",)
            read += [(one, splits) for one in filter(reads_logits, shown)]
        for one, splits in read:
            for run in leaves(one):
                kept_splits = run.run.record["predictions"]
                found |= {(run.id, name) for name in kept_splits if any(s in name for s in splits)}
    return found


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
    step, tables = arguments[:1], arguments[1:]
    if not set(step) <= set(STEPS) or (tables and step != ["--evidence"]):
        sys.exit(__doc__)
    for name in STEPS[step[0]](*tables) if step else ():
        print(name, flush=True)
    print("\n".join(write_pages(RESULTS)) or "every page is in step")
    sys.exit(stale_pictures())


if __name__ == "__main__":
    use_the_environment("compatkit")
    sys.path.insert(0, str(ROOT))
    main(sys.argv[1:])
