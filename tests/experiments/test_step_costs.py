"""What a step costs: memory counted once, after the optimizer has its state; time as a median."""

import pytest
import torch

from compatkit.experiments.step_costs import held_bytes, step_cost
from compatkit.training.loop import Treatment


def test_shared_memory_counts_once():
    before = held_bytes()
    block = torch.zeros(1000, dtype=torch.float64)
    view = block.view(10, 100)[2:]
    assert held_bytes() - before == 8000 and len(view) == 8


def test_what_a_treatment_holds_is_counted_and_freed():
    class Heavy(Treatment):
        """Holds a million numbers."""

        def __init__(self):
            self.block = torch.zeros(1_000_000)

    def train(treatment):
        for _ in range(6):
            treatment.after_step(None, 0.1)

    assert step_cost(Heavy, train).bytes == 4_000_000
    assert step_cost(Treatment, train).bytes == 0 and step_cost(Treatment, train).seconds >= 0


def test_too_few_steps_have_no_median():
    with pytest.raises(ValueError, match="2 steps show no median"):
        step_cost(Treatment, lambda treatment: [treatment.after_step(None, 0.1) for _ in range(2)])
