"""Measure and mend negative flips in model updates."""

__version__ = "0.1.0"

from .support.missing import warn_of_both

warn_of_both()
