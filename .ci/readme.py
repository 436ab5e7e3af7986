#!/usr/bin/env python3
"""Write the tables of results/ and the verdicts on the papers' claims into README.md, between their markers. `--check` only says whether they are in step."""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def between(readme, name, text):
    """The README with a text between the markers of this name."""
    begin, end = f"<!-- {name}: written by .ci/readme.py -->", f"<!-- end of {name} -->"
    before, rest = readme.split(begin)
    return f"{before}{begin}\n{text}{end}{rest.split(end)[1]}"


def with_results(readme):
    """The README with today's tables and verdicts."""
    from compatkit.experiments.claims import claims_markdown, summaries_markdown
    from compatkit.experiments.result_tables import results_markdown

    readme = between(readme, "results", results_markdown(ROOT / "results" / "tables"))
    readme = between(readme, "methods", summaries_markdown(ROOT / "results"))
    return between(readme, "claims", claims_markdown(ROOT / "results"))


def main():
    path = ROOT / "README.md"
    readme = path.read_text(encoding="utf-8")
    wanted = with_results(readme)
    if sys.argv[1:] == ["--check"]:
        sys.exit(
            0 if readme == wanted else "README.md is out of step with results/: run .ci/readme.py"
        )
    path.write_text(wanted, encoding="utf-8")


if __name__ == "__main__":
    main()
