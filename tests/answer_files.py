"""Small files of answers of every kind, and what was read of them, in plain values."""

import csv
import json

import polars as pl

from compatkit.metrics import FlipCounts

ENDINGS = [".parquet", ".csv", ".jsonl"]
GOOD = "id,label,prediction\na,1,1\nb,0,1\nc,1,0\n"


def written(folder, **files):
    for name, content in files.items():
        path = folder / name.replace("_", ".")
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return [folder / name.replace("_", ".") for name in files]


def saved(path, rows):
    """Rows (dictionaries) as a file of any kind, without help from the code under test."""
    if path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    elif path.suffix == ".csv":
        with open(path, "w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
    else:
        pl.DataFrame(rows).write_parquet(path)
    return path


def counted(pair):
    return FlipCounts.of(pair.label, pair.old, pair.new)


def values(pair, name):
    return [pair.answers[code] for code in getattr(pair, name)]
