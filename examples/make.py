"""Make the example files of this folder from the published answers: `python examples/make.py
prime.parquet`.

The argument is a table of the LLMDrift answers to the prime questions with the columns model,
id, query,
ref_answer and answer. Each answer is a text of several sentences. The rule that turns it into
yes or no: the
last `[Yes]` or `[No]` in it, whatever the case; where there is none, the last word yes or no;
where there is
none either, "no answer".
"""

import re
import sys
from pathlib import Path

import polars as pl

HERE = Path(__file__).resolve().parent
FILES = {
    "gpt-3.5-turbo-0301": "gpt-3.5-2023-03.csv",
    "gpt-3.5-turbo-0613": "gpt-3.5-2023-06.csv",
    "gpt-4-0314": "gpt-4-2023-03.csv",
    "gpt-4-0613": "gpt-4-2023-06.csv",
}
NO_ANSWER = "no answer"


def parsed(text: str) -> str:
    """What an answer says: yes, no, or that it says neither."""
    for pattern in (r"\[(yes|no)\]", r"\b(yes|no)\b"):
        if said := re.findall(pattern, text, re.IGNORECASE):
            return said[-1].lower()
    return NO_ANSWER


def number_asked(query: str) -> int:
    """The number in a question."""
    return int(re.search(r"\d+", query)[0])


def table_of(answers: pl.DataFrame) -> pl.DataFrame:
    """One model's answers as id, number, label and prediction, in the order of the ids."""
    rows = answers.sort("id").to_dicts()
    return pl.DataFrame(
        {
            "id": [row["id"] for row in rows],
            "number": [number_asked(row["query"]) for row in rows],
            "label": [row["ref_answer"].lower() for row in rows],
            "prediction": [parsed(row["answer"]) for row in rows],
        }
    )


def main(source: Path, folder: Path = HERE) -> None:
    """Write one csv file for each of the four models."""
    answers = pl.read_parquet(source)
    for model, name in FILES.items():
        table_of(answers.filter(pl.col("model") == model)).write_csv(folder / name)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(Path(sys.argv[1]))
