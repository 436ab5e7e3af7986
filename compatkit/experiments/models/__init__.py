"""Models that are trained once and kept: recipes, their trainings, gates, adapters, data updates, and the registry of treatments."""
