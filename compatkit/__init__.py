"""Measure and mend negative flips in model updates."""

__version__ = "0.1.0"

from .support.missing import explain_missing, warn_of_both

explain_missing()
warn_of_both()
