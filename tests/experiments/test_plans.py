"""What each table of the papers trains, counted by its own study, for every job of the list."""

import pytest

from compatkit.experiments.planning.catalogue import CATALOGUE, jobs
from compatkit.experiments.planning.rehearsal import added_up
from compatkit.experiments.planning.shapes import SIZES
from compatkit.experiments.plans import (
    PLANNED,
    distinct_hours,
    downloads_of,
    plan_jobs,
    trainings_of_job,
)
from compatkit.experiments.studies.update_studies import STRENGTHS

PAPER_JOBS = jobs([], "paper")
GATES, KEPT = "last epochs of gated fusion", "of them once more, to be kept"


def counted(name, task, seeds=0):
    (job,) = jobs([name], "paper", [task], seeds)
    return added_up((one.what, one.number) for one in trainings_of_job(job))


@pytest.mark.parametrize("job", PAPER_JOBS, ids=str)
def test_every_job_of_the_paper_scale_is_counted(job):
    trainings = trainings_of_job(job)
    assert trainings and all(one.number > 0 and one.examples >= 0 for one in trainings)
    assert all(one.runs for one in trainings)
    assert all(size > 0 for _, size in downloads_of(trainings, job.task))


def test_every_notebook_of_the_list_is_counted():
    assert {entry.notebook for entry in CATALOGUE if entry.paper_scale} == set(PLANNED)
    assert {task for entry in CATALOGUE for task in entry.paper_scale} <= set(SIZES)


def test_seeds_are_the_jobs_or_the_notebooks():
    assert counted("bcwi:main", "massive", 7)["old"] == 7
    assert counted("bcwi:main", "massive")["old"] == 10
    assert counted("gated_fusion:4", "sst2")["old"] == 5
    assert counted("distillation:3", "imagenet")["old"] == 3


def test_a_search_tries_its_grid_on_three_seeds_and_the_choice_on_all():
    found = counted("gated_fusion:1", "mrpc", 5)
    trained = {"distilled a": 9 * 3 + 2, f"{GATES} a": 80 * 3 + 2, f"{KEPT} a": 5}
    assert found == {"old": 5, "new a": 5 + 4} | trained, "four models only vote"


def test_a_grids_weights_do_not_stay():
    (job,) = jobs(["gated_fusion:1"], "paper", ["mrpc"], 5)
    kept = added_up((one.what, one.number * one.kept) for one in trainings_of_job(job))
    assert kept == {"new a": 5, f"{KEPT} a": 5}, "those that only vote keep none"
    assert next(plan_jobs([job])).to_dict()["disk_bytes"] < 25e9
    assert counted("gated_fusion:3", "mrpc", 5)["new a"] == 5 + 19
    assert "distilled a" not in counted("gated_fusion:4", "mrpc", 5)
    once, twice = (counted(f"gated_fusion:{table}", "sst2", 5) for table in ("4", "folds"))
    gates = f"{GATES} a"
    assert twice["old with a fold left out"] == 25 and twice[gates] == 2 * once[gates]
    assert twice[f"{KEPT} a"] == 10 and f"{GATES} b" in once and f"{GATES} b" not in twice


def test_ensembles_have_further_members_and_students():
    found = counted("distillation:main", "imagenet", 1)
    students = {f"{side} students of ensembles": 1 for side in ("old", "new")}
    assert found == {"old": 16, "new": 16, "treated": 5} | students
    assert counted("distillation:4", "imagenet", 1) == {"old": 16, "new": 16, "treated": 3}
    assert counted("distillation:5a", "imagenet", 1) == {"old": 4, "new": 4, "treated": 3}
    (job,) = jobs(["distillation:augmentation"], "paper", ["imagenet"], 1)
    again = {one.what: (one.number, bool(one.step.old)) for one in trainings_of_job(job)}
    assert again["treated"] == (2, False)
    assert again["treated, old logits recomputed"] == (2, True)


def test_a_larger_model_comes_after_a_smaller_one():
    (job,) = jobs(["distillation:4"], "paper", ["imagenet"], 1)
    depths = {one.what: one.step.shape.settings["depths"] for one in trainings_of_job(job)}
    small, large = [2, 2, 2, 2], [3, 4, 6, 3]
    assert depths == {"old": small, "new": large, "treated": large}


def test_baselines_are_trained_at_all_strengths():
    found = counted("bcwi:baselines", "massive", 3)
    assert found["EWC"] == 36 and found["Mixout"] == 27 and found["new"] == 3
    assert counted("bcwi:soup", "massive", 2)["new"] == 32


def test_of_a_baseline_the_answers_stay_and_of_a_soup_the_weights():
    (baselines,), (soup,) = (
        jobs([f"bcwi:{table}"], "paper", ["massive"], 2) for table in ("baselines", "soup")
    )
    kept = {one.what: one.number * one.kept for one in trainings_of_job(baselines)}
    nothing = dict.fromkeys((*STRENGTHS["paper"], "sweeps"), 0)
    assert kept == dict.fromkeys(("old", "target", "new"), 2) | nothing
    assert sum(one.number * one.kept for one in trainings_of_job(soup)) == 2 * 2 + 32


def test_every_epoch_of_figure_5_stays():
    (job,) = jobs(["distillation:figure5"], "paper", ["imagenet"], 3)
    found = {one.what: one for one in trainings_of_job(job)}
    treated, answers = found["treated, every epoch kept"], found["answers after an epoch"]
    assert (treated.number, treated.kept) == (6, 90) and found["new"].kept == 0
    assert (answers.number, answers.epochs, answers.kept) == (6 * 90, 0, 0)
    assert 25e9 < treated.disk < 27e9 and answers.disk == 540 * 25_000 * (4 * 1000 + 48)


def test_teachers_leave_their_distributions():
    (main,), (plain,) = (
        jobs([f"muscle:{table}"], "paper", ["piqa"], 3) for table in ("6", "figure4")
    )
    left = {one.what: one.further for one in trainings_of_job(main)}
    tokens = round(SIZES["piqa"].train * SIZES["piqa"].tokens)
    assert left["old microsoft/phi-1"] == left["new microsoft/phi-2"] == tokens * 264
    assert not any(bytes_ for name, bytes_ in left.items() if name.startswith("compatible"))
    assert not any(one.further for one in trainings_of_job(plain)), "nobody learns from these"


def test_every_pair_of_a_family_has_two_adapters():
    found = counted("muscle:figure4", "piqa", 3)
    assert sum(found.values()) == 3 * (2 + 4 + 2 + 4) and not any("→" in name for name in found)
    assert sum(counted("muscle:6", "piqa", 1).values()) == 8 + 7 * 4


def test_a_plan_names_its_numbers_and_shares_runs():
    chosen = jobs(["bcwi:main", "bcwi:curve"], "paper", ["massive"], 2)
    plans = list(plan_jobs(chosen))
    assert distinct_hours(plans) == pytest.approx(plans[0].hours)
    wanted = {
        "job",
        "trainings",
        "flops",
        "peak_memory_bytes",
        "hours",
        "disk_bytes",
        "download_bytes",
    }
    for one in plans:
        content = one.to_dict()
        assert wanted <= content.keys() and content["trainings"] == 6 and content["fits"]
        assert 499_000_000 < content["download_bytes"] < 510_000_000


def test_images_are_stored_once_for_all_tables_of_a_task():
    (images,), (texts,) = (
        list(plan_jobs(jobs([name], "paper", [task])))
        for name, task in (("distillation:3", "imagenet"), ("bcwi:main", "massive_adddata"))
    )
    content = images.to_dict()
    assert 3e11 < content["stored_image_bytes"] < content["disk_bytes"]
    assert texts.to_dict()["stored_image_bytes"] == 0


def test_what_cannot_be_planned_is_named():
    with pytest.raises(ValueError, match="a plan is made for the paper scale"):
        list(plan_jobs(jobs(["bcwi:main"], "smoke")))
    with pytest.raises(ValueError, match="makes? bcwi's tables on ag_news, banking77, massive"):
        trainings_of_job(jobs(["bcwi:main"], "paper", ["inaturalist"])[0])
    with pytest.raises(ValueError, match="the plan knows the notebooks"):
        trainings_of_job(jobs(["decisions:main"], "mini")[0])
