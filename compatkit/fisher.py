"""`compatkit.fisher.fisher_diagonal`, which lives in `compatkit.weights.fisher`."""

from .weights.fisher import fisher_diagonal

__all__ = ["fisher_diagonal"]
