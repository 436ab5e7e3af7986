#!/usr/bin/env python3
"""Write the pages of results/ (README.md, a page a paper, methods.md, results.csv) from the tables.

`.ci/results.py` writes what is out of step, `.ci/results.py --check` only says whether anything is.
`.ci/results.py --evidence` first computes evidence.json again, and draws the pictures that rest on
it: minutes, and every task's data.
`.ci/results.py --renew` before that writes intervals and notes of the tables as today's rules have
them.
`.ci/results.py --pictures` draws pictures again from the kept predictions, with the data too.
"""

import sys
from pathlib import Path

from environment import use_the_environment

ROOT = Path(__file__).resolve().parent.parent


def main(arguments):
    """Write or check; the exit status is 1 where a check finds a page out of step."""
    from compatkit.experiments.judging.result_pages import (
        out_of_step,
        write_equal_accuracy_pictures,
        write_pages,
    )

    if arguments == ["--check"]:
        stale = out_of_step(ROOT / "results")
        sys.exit(f"out of step, run .ci/results.py: {', '.join(stale)}" if stale else 0)
    if arguments in (["--evidence"], ["--renew"]):
        from compatkit.experiments.judging.evidence import write_evidence
        from compatkit.experiments.judging.kept_answers import Shelf
        from compatkit.experiments.judging.verification import renew_tables

        if arguments == ["--renew"]:
            print("\n".join(renew_tables(Shelf(ROOT / "results"), ROOT / "results")))
        print(write_evidence(ROOT / "results"))
        print("\n".join(write_equal_accuracy_pictures(ROOT / "results")))
    elif arguments == ["--pictures"]:
        from compatkit.experiments.judging.kept_answers import Shelf
        from compatkit.experiments.judging.kept_figures import renew_pictures

        print("\n".join(renew_pictures(Shelf(ROOT / "results"), ROOT / "results")))
    elif arguments:
        sys.exit(__doc__)
    print("\n".join(write_pages(ROOT / "results")) or "every page is in step")


if __name__ == "__main__":
    use_the_environment("compatkit")
    sys.path.insert(0, str(ROOT))
    main(sys.argv[1:])
