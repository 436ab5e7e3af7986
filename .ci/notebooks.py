#!/usr/bin/env python3
"""Run all notebooks as CI does, as many at a time as there are cores.

A method notebook makes one table at smoke scale through papermill (the quick entries of grid.py);
every other notebook is run by nbdev's own test, which leaves out what its settings leave out.
`.ci/notebooks.py metrics compare/joins` runs some of them. The longest begin first.
"""

import os
import sys
import tempfile
import time
from functools import partial

import grid
import kernels
from environment import ROOT, use_the_environment

SLOWEST = 12  # notebooks whose seconds are shown
LONGEST_FIRST = ("muscle", "gated_fusion", "bcwi", "distillation")  # of those with a table


def quick_entries():
    """The entries of the grid that CI runs, the longest first."""
    entries = [entry for entry in grid.all_entries() if entry[0]]
    place = {name: number for number, name in enumerate(LONGEST_FIRST)}
    return sorted(entries, key=lambda entry: place.get(entry[1], len(place)))


def tested(name):
    """A notebook by nbdev's test: (passed, one line)."""
    from nbdev.test import test_nb

    begun = time.monotonic()
    passed, _ = test_nb(ROOT / "nbs" / f"{name}.ipynb", skip_flags=["slow"], basepath=ROOT)
    return passed, f"{'ok    ' if passed else 'FAILED'} {time.monotonic() - begun:4.0f} s  {name}"


def seconds_of(outcome):
    """How long a notebook took, read off its line."""
    return int(outcome[1].split()[1])


def main(asked):
    """Run the notebooks that are asked for, or all; the exit status is 1 where one fails."""
    sys.path.insert(0, str(ROOT))
    import layout

    found, entries = layout.notebooks(ROOT), quick_entries()
    if unknown := sorted(set(asked) - set(found)):
        sys.exit(f"there is no notebook {', '.join(unknown)} in nbs/")
    entries = [entry for entry in entries if not asked or entry[1] in asked]
    names = [name for name in asked or found if name not in {entry[1] for entry in entries}]
    names.sort(key=lambda name: -(ROOT / "nbs" / f"{name}.ipynb").stat().st_size)
    kernels.load_packages()
    kernels.load_data()
    with tempfile.TemporaryDirectory() as folder:
        os.environ.setdefault("COMPATKIT_HOME", f"{folder}/runs")
        tables = [partial(grid.made, entry, folder) for entry in entries]
        outcomes = kernels.run_all([*tables, *(partial(tested, name) for name in names)])
    print(*(line for _, line in sorted(outcomes, key=seconds_of)[-SLOWEST:]), sep="\n")
    failed = [line for passed, line in outcomes if not passed]
    print(f"notebooks: {len(outcomes) - len(failed)} of {len(outcomes)} ran", *failed, sep="\n")
    sys.exit(bool(failed))


if __name__ == "__main__":
    use_the_environment("nbdev")
    main(sys.argv[1:])
