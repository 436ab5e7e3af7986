"""Make the files of this folder: invented logits of two models on 1,000 invented requests, drawn
from a seed, and the labels of the first 600. `python examples/logits/make.py` writes them again.
"""

import sys
from pathlib import Path

import numpy as np

from compatkit.predictions import Predictions

CLASSES = ("account", "delivery", "refund")
EXAMPLES, LABELLED = 1000, 600


def main(folder: Path) -> None:
    """Write old.csv, new.csv and labelled.csv; both models find the same requests hard."""
    generator = np.random.default_rng(0)
    label = generator.integers(len(CLASSES), size=EXAMPLES)
    names, right = np.array(CLASSES)[label], np.eye(len(CLASSES))[label]
    shared = generator.normal(size=right.shape)
    for name, signal in {"old.csv": 3.6, "new.csv": 4.2}.items():
        logits = np.round(signal * right + shared + 1.4 * generator.normal(size=right.shape), 2)
        Predictions(np.arange(EXAMPLES), names, logits=logits, classes=CLASSES).save(folder / name)
    rows = [f"{number},{names[number]}" for number in range(LABELLED)]
    (folder / "labelled.csv").write_text("\n".join(["id,label", *rows]) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if sys.argv[1:] else Path(__file__).resolve().parent)
