"""What a step costs: memory counted once, after the optimizer has its state; time as a median."""

import time
from dataclasses import replace

import pytest
import torch

from compatkit.experiments.judging.kept_answers import Shelf
from compatkit.experiments.judging.verification import verify_table
from compatkit.experiments.reporting.result_tables import ResultTable, keep_table
from compatkit.experiments.running.runs import run_id
from compatkit.experiments.running.store import extend_study
from compatkit.experiments.studies.step_costs import PLAIN, cost_rows, held_bytes, step_cost
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


def test_what_comes_before_the_first_step_is_counted_without_it():
    def train(treatment):
        for _ in range(6):
            time.sleep(0.02)
            treatment.after_step(None, 0.1)

    def made():
        time.sleep(0.2)
        return Treatment()

    prepared = step_cost(made, train)
    # a sleep is never shorter than what is asked for; how much longer depends on the machine
    assert prepared.seconds >= 0.02 and prepared.before >= 0.1


def test_too_few_steps_have_no_median():
    with pytest.raises(ValueError, match="2 steps"):
        step_cost(Treatment, lambda treatment: [treatment.after_step(None, 0.1) for _ in range(2)])


BESIDE = {"seconds": 0.2, "bytes": 100, "before": 1.0}  # plain training, right before each method
MEASURED = {
    "weights": 2**20,
    "steps": 100,  # of a whole training
    "methods": {
        "EWC": {"seconds": 0.3, "bytes": 100 + 3 * 2**20, "before": 3.0, "plain": BESIDE},
        "prior weight decay": {"seconds": 0.2, "bytes": 50, "before": 1.0, "plain": BESIDE},
        "Mixout": {"seconds": 0.2, "bytes": 0, "before": 0.9, "plain": BESIDE},
    },
}


def test_the_words_follow_from_what_was_measured():
    told = {row.method: row.setting for row in cost_rows([MEASURED])}
    assert told[PLAIN] == "plain training; the weights are 1.0 MiB"
    assert told["EWC"].startswith(
        "memory +3.0 MiB, a step takes 1.50 of plain training's, what comes before as long as 10 "
        "of its steps, a whole training 1.60 of it;"
    )
    assert told["Mixout"].startswith("memory +0.0 MiB, a step takes 1.00")
    assert list(told)[-2:] == ["BCWI", "probability ensemble"]


def test_several_measurements_have_a_mean_and_a_spread():
    slower = MEASURED["methods"]["EWC"] | {"seconds": 0.34}
    again = MEASURED | {"methods": MEASURED["methods"] | {"EWC": slower}}
    rows = {row.method: row for row in cost_rows([MEASURED, again], ("a", "b"))}
    assert rows["EWC"].setting.startswith("memory +3.0 MiB, a step takes 1.60 ± 0.14 of plain")
    assert [round(one["step"], 9) for one in rows["EWC"].by_seed] == [1.5, 1.7]
    assert [round(one["time"], 9) for one in rows["EWC"].by_seed] == [1.6, 1.8]
    assert rows["BCWI"].by_seed == ({"bytes": 0, "time": 1.0},) * 2 and rows["BCWI"].seeds == 2


def test_a_kept_table_of_costs_is_held_to_its_record(tmp_path):
    configuration = {"kind": "training_cost", "parents": [], "strengths": {"EWC": 1.0}}
    record = {"id": run_id(configuration), "configuration": configuration, "results": MEASURED}
    extend_study(tmp_path / "bcwi-x", [record | {"predictions": {}}], [])
    rows = cost_rows([MEASURED], (record["id"],))
    for change, word in ((lambda text: text, "same"), (str.upper, "differs")):
        changed = replace(rows[0], setting=change(rows[0].setting))
        keep_table(
            ResultTable("costs", (changed, *rows[1:]), form="cost"),
            "bcwi-x-mini-cost",
            results=tmp_path,
        )
        assert verify_table(Shelf(tmp_path).table("bcwi-x-mini-cost")).word == word
    keep_table(
        ResultTable("costs", tuple(cost_rows([MEASURED])), form="cost"),
        "bcwi-x-mini-cost",
        results=tmp_path,
    )
    assert verify_table(Shelf(tmp_path).table("bcwi-x-mini-cost")).word == "not checked"
