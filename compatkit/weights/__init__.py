"""Weights of models: interpolation, factors, checkpoints, Fisher information, permutations."""
