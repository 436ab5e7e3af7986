#!/usr/bin/env python3
"""Write the parts of README.md and CONTRIBUTING.md that come from elsewhere, between markers.

The map comes from the folders, the tables of claims and methods from results/, and what a command
printed from running it. `.ci/readme.py --check` only says which parts are out of step.
"""

import re
import shlex
import subprocess
import sys

from environment import ROOT, use_the_environment

LINES = 4  # of what a command printed, without the empty ones
PART = re.compile(r"(<!-- written: (.+?) -->\n)(.*?)(<!-- end -->)", re.S)
PAGES = ("README.md", "CONTRIBUTING.md")
METHODS = (  # the papers' own and what needs no training
    "decision rule, pooled posterior",
    "mixture of old and new probabilities",
    "BCWI",
    "vote of five new models",
    "dynamic distillation",
    "gated fusion",
    "compatibility adapter",
    "student of unlabelled traffic, with a head",
)


def table(header, rows):
    """Markdown of a table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def claims():
    """How the four papers came out, and their headlines: what they print, what was measured."""
    from compatkit.experiments.judging.claim_verdicts import judged_claims
    from compatkit.experiments.judging.result_pages import PAPERS, conclusion, headlines
    from compatkit.experiments.reporting.result_tables import kept_tables

    found, tables = judged_claims(ROOT / "results"), kept_tables(ROOT / "results")
    said = "\n".join(
        f"- *{one.title}.* {' '.join(conclusion(one, found, tables)[:2])}" for one in PAPERS[:4]
    )
    pages, rows = {paper.title: f"results/{paper.page}" for paper in PAPERS}, []
    for one in headlines(ROOT / "results"):
        continued = one.claim.sentence.startswith("…")
        title = "" if continued else f"[{one.claim.paper}]({pages[one.claim.paper]}): "
        told = title + one.claim.words
        here = f"{one.measured} on {one.place}".removeprefix(" on ")
        rows.append([told, one.printed or "–", here, one.difference, str(one.seeds), one.verdicts])
    header = ["claim", "in the paper", "here, where it is clearest", "what decides there"]
    header += ["seeds", "verdicts"]
    return f"{said}\n\n{table(header, rows)}"


def methods():
    """The methods of METHODS, the one with the fewest flips first."""
    from compatkit.experiments.judging.equal_accuracy import beside_words, method_summaries

    found = method_summaries(ROOT / "results")
    rows = [
        [
            summary.family.method,
            level(summary.levels[0]),
            beside_words(summary),
            level(summary.levels[1]),
            *summary.family[1:3],
        ]
        for summary in found
        if summary.family.method in METHODS
    ]
    header = ["method", "at its accuracy", "beside a mixture", "half a point below"]
    header += ["to answer", "to train"]
    return table(header, rows)


def level(found):
    """The median at a level, and in how many upgrades it was reached where not in all."""
    if found is None:
        return "–"
    every = found.reached == found.upgrades
    return f"{found.median:.2f}" + ("" if every else f" ({found.reached} of {found.upgrades})")


def layout_map():
    """The packages and modules, as CONTRIBUTING shows them."""
    import layout

    return "\n".join(layout.map_lines(ROOT)) + "\n"


def printed(command):
    """The first lines of what a command of the library prints, as a block."""
    _, *arguments = shlex.split(command)
    done = subprocess.run(
        [sys.executable, "-m", "compatkit.cli", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    lines = [line for line in done.stdout.split("\n") if line.strip()]
    shown = "\n".join(lines[:LINES])
    return f"```text\n{shown}{' …' if len(lines) > LINES else ''}\n```\n"


def written(name):
    """A part by the name in its marker; ValueError for a name that nothing writes."""
    writers = {"claims": claims, "methods": methods, "map": layout_map}
    if name.startswith("compatkit "):
        return printed(name)
    if name not in writers:
        raise ValueError(f"a marker asks for {name!r}; .ci/readme.py writes {', '.join(writers)}")
    return writers[name]()


def renewed(page):
    """A page with every part as it would be written today, and the names of what differs."""
    changed = []

    def renew(match):
        text = written(match[2])
        if text != match[3]:
            changed.append(match[2])
        return f"{match[1]}{text}{match[4]}"

    return PART.sub(renew, page), changed


def main(arguments):
    """Write or check; the exit status is 1 where a check finds a part out of step."""
    sys.path.insert(0, str(ROOT))
    out_of_step = []
    for path in (ROOT / name for name in PAGES):
        text, changed = renewed(path.read_text(encoding="utf-8"))
        out_of_step += changed
        if arguments != ["--check"]:
            path.write_text(text, encoding="utf-8")
    if arguments == ["--check"]:
        sys.exit(f"run .ci/readme.py, out of step: {out_of_step}" if out_of_step else 0)
    print(f"written: {', '.join(out_of_step)}" if out_of_step else "all parts are in step")


if __name__ == "__main__":
    use_the_environment("papermill")
    main(sys.argv[1:])
