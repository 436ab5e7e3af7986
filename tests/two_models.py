"""Made-up answers of an old and a new model, for tests that need no torch."""

import numpy as np

from compatkit.predictions import Predictions

NAMES = np.array(["pear", "apple", "fig", "plum"])  # not in alphabetical order on purpose


def models(n=300, seed=0, classes=4, names=False, dtype=np.float64):
    """An old and a new model; the new one is better, and they share some of their errors."""
    generator = np.random.default_rng(seed)
    label = generator.integers(0, classes, n)
    shared, first, second = generator.normal(size=(3, n, classes))
    ids, right = [f"e{i}" for i in range(n)], np.eye(classes)[label]
    label = NAMES[label] if names else label

    def make(z):
        return Predictions(
            ids, label, logits=z.astype(dtype), classes=NAMES[:classes] if names else None
        )

    return make(1.5 * right + shared + first), make(2.5 * right + shared + second)


def shuffled(predictions, seed=0):
    return predictions.select(np.random.default_rng(seed).permutation(predictions.id))
