"""Making tables: side by side, through failures and kills, on a cluster; and taking them away."""

import io
import re
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import patch

import pytest
from notebook_cells import make_project, write_notebook

from compatkit import cli as command
from compatkit.experiments import tables
from compatkit.experiments.planning.catalogue import jobs
from compatkit.experiments.reporting.result_tables import ResultTable, Row, keep_table
from compatkit.experiments.running.runs import failed_runs, find
from compatkit.experiments.tables import (
    JobFailed,
    machines_share,
    run_job,
    run_jobs,
    run_jobs_on_ray,
)
from compatkit.training.loop import workers as loader_workers

ROOT = Path(__file__).resolve().parents[2]
MAKE_COSTS = [sys.executable, "-m", "compatkit.cli"]
MAKE_COSTS += ["tables", "--run", "bcwi:cost", "--scale", "smoke"]


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A project with a notebook of its own behind the name `bcwi`, as quick as a kernel starts."""
    make_project(tmp_path)
    (tmp_path / "results").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COMPATKIT_HOME", str(tmp_path / "runs"))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))

    def tables_of(body):
        names = "task, scale, table, seeds, keep_results, from_results"
        given = f'{names} = "", "", "", 1, False, "False"'
        write_notebook(tmp_path / "nbs" / "bcwi.ipynb", given, body)

    tables_of("print(task, scale, table, seeds)")
    tables.source = tables_of
    from compatkit.experiments.planning.catalogue import source_fingerprint

    source_fingerprint.cache_clear()
    yield tmp_path
    source_fingerprint.cache_clear()


def one_job(name="bcwi:cost", **more):
    return replace(jobs([name], "smoke")[0], **more)


def test_a_job_leaves_its_notebook_page_and_log_and_is_found_again(project):
    run = run_job(one_job(seeds=4))
    assert {"notebook.ipynb", "notebook.html", "log.txt", "record.json"} <= {
        file.name for file in run.folder.iterdir()
    }
    assert "pydoc smoke cost 4" in (run.folder / "notebook.ipynb").read_text()
    before = run.record["started"]
    assert run_job(one_job(seeds=4)).record["started"] == before


def test_a_failed_job_keeps_its_error_and_notebook_and_the_others_go_on(project):
    tables.source('print("so far")\nassert table != "soup", "no soup today"')
    wanted = [one_job("bcwi:soup"), one_job("bcwi:cost")]
    outcomes = {one.job.entry.table: one for one in run_jobs(wanted, workers=1)}
    assert outcomes["cost"].run is not None and outcomes["soup"].run is None
    assert "no soup today" in outcomes["soup"].error and "AssertionError" in outcomes["soup"].error
    place = re.search(r"as far as it came: (\S+)", outcomes["soup"].error)[1]
    assert "so far" in Path(place).read_text()
    assert outcomes["soup"].error.startswith(JobFailed.__name__)
    assert [one["configuration"]["parameters"]["table"] for one in failed_runs()] == ["soup"]


KILLED = """
import os, time
from pathlib import Path
from compatkit.experiments.running.runs import home, run_once

begun = home() / table
attempt = len(begun.read_text()) if begun.exists() else 0
with open(begun, "a") as file:
    file.write("x")
run = run_once({"kind": "part", "of": table}, lambda folder: {"attempt": attempt})
if table == "soup" or attempt == 0:
    os.kill(os.getppid(), 9)
    time.sleep(60)
print("made from attempt", run.results["attempt"])
"""


def test_a_killed_job_is_made_once_more_with_the_runs_that_it_finished(project, capsys):
    tables.source(KILLED)
    wanted = [one_job("bcwi:soup"), one_job("bcwi:cost")]
    outcomes = {one.job.entry.table: one for one in run_jobs(wanted, workers=2)}
    made = outcomes["cost"].run.folder / "notebook.ipynb"
    assert "made from attempt 0" in made.read_text(), "its first attempt's run was found"
    assert outcomes["soup"].error.startswith("JobKilled: bcwi:soup")
    assert "stopped with status -9" in outcomes["soup"].error
    attempts = {name: (project / "runs" / name).read_text() for name in ("soup", "cost")}
    assert attempts == {"soup": "xx", "cost": "xx"}, "twice, and not for ever"
    told = capsys.readouterr().err.splitlines()
    assert sorted(line.split()[0] for line in told) == ["bcwi:cost", "bcwi:soup"]
    assert all("was killed: it is made once more" in line for line in told)


def test_workers_share_cores_and_gpus(monkeypatch):
    monkeypatch.setattr(tables.os, "sched_getaffinity", lambda _: set(range(8)), raising=False)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert machines_share() == (8, 1, []) and machines_share(2) == (2, 4, [])
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,5")
    assert machines_share() == (2, 4, ["2", "5"])
    assert machines_share(gpus=1) == (1, 8, ["2"])
    with pytest.raises(ValueError, match="3 GPUs.*2.*VISIBLE"):
        machines_share(gpus=3)


def test_a_gpu_that_the_driver_does_not_list_is_named(monkeypatch):
    """CUDA leaves out what follows such a number, and the job would train on the processor."""
    lines = "GPU 0: One (UUID: GPU-a)\nGPU 1: One (UUID: GPU-b)\n"
    answer = subprocess.CompletedProcess([], 0, lines, "")
    monkeypatch.setattr(tables.subprocess, "run", lambda *given, **options: answer)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1,GPU-a")
    assert machines_share()[2] == ["1", "GPU-a"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1,7")
    with pytest.raises(ValueError, match="`nvidia-smi -L`"):
        machines_share()
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    assert machines_share()[2] == ["0", "1"]
    answer.returncode = 9  # the driver does not answer
    assert machines_share()[2] == []


@pytest.mark.parametrize("cpus, gpus", [(1, 9), (1, 3), (64, 0)])
def test_more_than_any_node_of_a_cluster_has_is_refused_at_once(monkeypatch, cpus, gpus):
    """Ray itself would wait for such a node without end, though two nodes have four together."""
    resources = [{"CPU": 8.0, "GPU": 2.0}] * 2 + [{"CPU": 4.0}]
    nodes = [{"Alive": True, "Resources": one} for one in resources]
    nodes.append({"Alive": False, "Resources": {"CPU": 64.0, "GPU": 9.0}})
    left = []
    ray = SimpleNamespace(
        nodes=lambda: nodes,
        cluster_resources=lambda: {"CPU": 20.0, "GPU": 4.0},
        shutdown=lambda: left.append(True),
    )
    monkeypatch.setattr(tables, "_connected", lambda address: ray)
    words = f"asks for {cpus} CPUs and {gpus} GPUs, and .* have 4 and 0 or 8 and 2: ask for less"
    with pytest.raises(ValueError, match=words):
        next(run_jobs_on_ray([one_job()], "auto", threads=cpus, gpus=gpus))
    assert left == [True]
    assert tables._gpus_of_a_job(ray, 8, 2.0) == 2.0 and tables._gpus_of_a_job(ray, 8, None) == 1.0


class Growing:
    """Stands for Ray: a head without anything, which three nodes with a GPU join one after the
    other; the job ends when the last one has joined.
    """

    exceptions = SimpleNamespace(RayError=LookupError)

    def __init__(self):
        self.joined, self.begun, self.running = 0, [], []

    def cluster_resources(self):
        return {"CPU": 8.0 * self.joined, "GPU": 1.0 * self.joined}

    def nodes(self):
        return [{"Alive": True, "Resources": {"CPU": 8.0}}]

    def remote(self, **options):
        def begin(function, *given):
            self.begun.append((self.joined, "helper" if given[0] is print else "job", options))
            self.running.append(len(self.begun))
            return len(self.begun)

        return lambda function: SimpleNamespace(remote=partial(begin, function))

    def wait(self, tasks, num_returns, timeout):
        if timeout == tables._LOOK_AGAIN:  # for the job
            self.joined += 1
            return (tasks, []) if self.joined > 3 else ([], tasks)
        if self.joined == 3:
            self.running = [task for task in self.running if task != 2]  # the first helper's node
        return [], [task for task in tasks if task in self.running]

    def get(self, task):
        raise LookupError(f"task {task} has nothing to show")

    def shutdown(self):
        self.joined = 0


def test_a_cluster_may_grow_and_nodes_that_join_help(monkeypatch):
    monkeypatch.setattr(tables, "_connected", lambda address: ray)
    given = {"threads": 8, "helper": print}
    ray = Growing()
    with pytest.raises(ValueError, match="--ray-grows"):
        next(run_jobs_on_ray([one_job()], "auto", gpus=1, **given))
    with pytest.raises(ValueError, match="may have no GPU yet"):
        next(run_jobs_on_ray([one_job()], "auto", grows=True, **given))
    ray = Growing()
    (outcome,) = run_jobs_on_ray([one_job()], "auto", gpus=1, grows=True, **given)
    assert outcome.error == "task 1 has nothing to show"
    # a node for the job, one for a helper; then one leaves and one joins, and two can help
    assert [begun[:2] for begun in ray.begun] == [(0, "job"), (2, "helper"), *[(3, "helper")] * 2]
    assert {options["num_gpus"] for *_, options in ray.begun} == {1}


def pretended(log, seconds=0.02):
    def work(job, folder, threads, environment):
        log.append(("begin", job, environment.get("CUDA_VISIBLE_DEVICES")))
        time.sleep(seconds)
        log.append(("end", job, None))

    return work


def test_every_job_runs_once_and_gpus_are_never_shared(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    log, wanted = [], jobs(scale="smoke")
    assert {str(one.job) for one in run_jobs(wanted, work=pretended(log))} == {
        str(job) for job in wanted
    }
    running = {}
    for what, job, gpu in log:
        if what == "begin":
            assert gpu not in running.values()
            running[job] = gpu
        else:
            del running[job]
    assert sum(what == "begin" for what, *_ in log) == len(wanted)


def test_jobs_share_the_cores_for_their_loaders_too(monkeypatch):
    monkeypatch.setattr(tables.os, "sched_getaffinity", lambda _: set(range(8)), raising=False)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    given, wanted = [], jobs(["bcwi:cost", "bcwi:soup"], "smoke")
    list(run_jobs(wanted, work=lambda *told: given.append(told[2:])))
    assert len(given) == 2 and loader_workers() == 8
    for threads, environment in given:
        with patch.dict("os.environ", environment):
            assert loader_workers() == threads == 4


def test_a_worker_without_a_job_helps_until_the_job_is_made(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2")
    log, helped = [], []

    def help_(job, folder, threads, environment, over):
        helped.append((job, environment["CUDA_VISIBLE_DEVICES"]))
        while not over():
            time.sleep(0.01)

    wanted = jobs(["bcwi:cost", "bcwi:soup"], "smoke")
    outcomes = list(run_jobs(wanted, work=pretended(log, 0.3), helper=help_))
    assert {one.job for one in outcomes} == set(wanted)
    assert sum(what == "begin" for what, *_ in log) == 2 and helped[0] == (wanted[0], "2")


PARTS = """
import os, time
from compatkit.experiments.running.runs import run_once

def part(number):
    def compute(folder):
        time.sleep(0.5)
        with open("parts.txt", "a") as file:
            file.write(f"{number} {os.getpid()}\\n")
        return {"value": number}

    return run_once({"kind": "part", "number": number}, compute)

runs = [part(number) for number in range(16)]
print(sum(run.results["value"] for run in runs))
"""


def test_two_workers_share_the_runs_of_one_table(project):
    tables.source(PARTS)
    (outcome,) = run_jobs([one_job()], workers=2, helper=tables.help_job)
    assert "120" in (outcome.run.folder / "notebook.ipynb").read_text()
    lines = [line.split() for line in (project / "parts.txt").read_text().splitlines()]
    assert sorted(int(number) for number, _ in lines) == list(range(16)), "each was computed once"
    assert len({process for _, process in lines}) == 2
    assert not [path for path in project.rglob("*.ipynb") if "bcwi" in path.name][1:]


def test_two_commands_at_once_make_a_job_once(project):
    tables.source(
        'import pathlib, os, time\ntime.sleep(1)\nwith open("count.txt", "a") as file:\n    '
        'file.write("x")'
    )
    both = [
        subprocess.Popen(MAKE_COSTS, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        for _ in range(2)
    ]
    told = [one.communicate(timeout=120)[0] for one in both]
    assert [one.returncode for one in both] == [0, 0], told
    written = list(project.rglob("count.txt"))
    assert sum(len(file.read_text()) for file in written) == 1


def test_an_interrupt_stops_the_jobs_and_a_later_call_makes_them(project):
    tables.source(
        'import time, pathlib\npathlib.Path("begun.txt").touch()\ntime.sleep(60 if not '
        'pathlib.Path("quick.txt").exists() else 0)'
    )
    process = subprocess.Popen(
        MAKE_COSTS,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )

    def begun():
        return [*project.rglob("begun.txt")]

    end = time.monotonic() + 60
    while not begun() and time.monotonic() < end:
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=30) == 130
    assert find(kind="table") == [] and failed_runs() == []
    begun()[0].with_name("quick.txt").touch()
    done = subprocess.run(MAKE_COSTS, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and "1 made, 0 failed" in done.stdout, done.stdout + done.stderr


def cli(*arguments):
    """The command within this process, which saves the start of one; what it would have given."""
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err), pytest.raises(SystemExit) as left:
        command.main(["tables", *arguments])
    return subprocess.CompletedProcess(arguments, left.value.code, out.getvalue(), err.getvalue())


def test_commands_are_lines_that_make_the_job(project):
    listed = cli("--run", "bcwi:cost", "--scale", "smoke", "--seeds", "2", "--commands")
    assert listed.stdout.splitlines() == [
        "compatkit tables --run bcwi:cost --scale smoke --task pydoc --seeds 2"
    ]
    done = cli(*listed.stdout.split()[2:])
    assert done.returncode == 0 and "made    bcwi:cost pydoc smoke seeds=2" in done.stdout
    assert cli("--run", "bcwi:cost", "--scale", "smoke", "--seeds", "2", "--commands").stdout == ""
    assert "done" in cli("--only", "bcwi:cost", "--scale", "smoke", "--seeds", "2").stdout


def test_a_failed_job_is_told_and_status_1(project):
    tables.source("1 / 0")
    done = cli("--run", "bcwi:cost", "--scale", "smoke")
    assert (
        done.returncode == 1
        and "ZeroDivisionError" in done.stdout
        and "0 made, 1 failed" in done.stdout
    )


@pytest.mark.parametrize(
    "arguments, words",
    [
        (["--run", "gated_fusion:11"], "did you mean gated_fusion:1"),
        (["--scale", "papr", "--run", "all"], "did you mean paper"),
        (["--run", "all", "--task", "sst-2"], "did you mean sst2"),
        (["--commands"], "go with --run"),
        (["--gpus", "2"], "go with --run"),
        (["--ray-grows"], "go with --run"),
        (
            ["--run", "bcwi:cost", "--scale", "smoke", "--ray-grows", "--gpus", "1"],
            "--ray-grows goes with --ray and with --gpus",
        ),
        (
            ["--run", "bcwi:cost", "--scale", "smoke", "--ray", "auto", "--ray-grows"],
            "with --gpus, as the nodes",
        ),
        (["--memory", "24"], "go with --plan"),
        (["--device", "a100"], "go with --plan"),
        (["--plan", "--memory", "24GB"], "not a valid float"),
        (["--plan", "--memory", "nan"], "a memory of nan GiB: give a number"),
        (["--plan", "--memory", "inf"], "a memory of inf GiB: give a number"),
        (["--plan", "--device", "b200"], "device 'b200' is not one of h100, a100"),
        (["--plan", "--scale", "mini"], "at the paper scale"),
        (["--plan", "--scale", "papr"], "at the paper scale"),
        (["--plan", "--only", "bcwi:mian"], "did you mean bcwi:main"),
        (["--plan", "--task", "imagnet"], "did you mean imagenet"),
        (["--run", "all", "--verify"], "two things"),
        (
            ["--run", "bcwi:cost", "--scale", "smoke", "--ray", "127.0.0.1:1"],
            "no Ray cluster answers at 127.0.0.1:1",
        ),
        (["--run", "bcwi:cost", "--scale", "smoke", "--ray", "somewhere"], "give host:port"),
        (["--verify", "--only", "nothing"], "there is no table 'nothing'"),
        (["--verify", "--only", "bcwi:mian"], "did you mean bcwi:main"),
        (["--verify", "--only", "gated_fusion:6"], "nothing of gated_fusion:6 is kept"),
        (["--run", "bcwi:cost", "--scale", "smoke", "--gpus", "9"], "9 GPUs are asked for"),
        (["--run", "bcwi:cost", "--scale", "smoke", "--gpus", "0.5"], "a whole GPU"),
    ],
)
def test_bad_input_is_status_2_with_a_sentence(project, arguments, words):
    done = cli(*arguments)
    assert done.returncode == 2 and words in done.stderr and len(done.stderr.splitlines()) == 1, (
        done.stdout + done.stderr
    )


def test_paper_scale_without_a_gpu_is_said_before_it_begins(monkeypatch, capsys):
    begun = []
    monkeypatch.setattr(
        tables, "run_jobs", lambda wanted, **given: iter(begun.extend(wanted) or ())
    )
    for scale, shown, told in (("paper", "", 1), ("paper", "0", 0), ("mini", "", 0)):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", shown)
        wanted = jobs(["bcwi:cost"], scale, ["banking77"])
        assert command._make(wanted, 1, 0, "", 1, None) == 0
        assert capsys.readouterr().err.count("no GPU is shown here") == told
    assert len(begun) == 3


def test_outside_the_project(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = cli("--run", "bcwi:cost")
    assert (
        done.returncode == 2
        and "start this in the project's folder" in done.stderr + done.stdout
        or "COMPATKIT_RESULTS" in done.stderr
    )


def test_a_full_disk_fails_the_job_and_leaves_nothing_half_made(project):
    resource = pytest.importorskip("resource")
    tables.source('open("big.bin", "wb").write(b"0" * 3_000_000)')

    def limit():
        return resource.setrlimit(resource.RLIMIT_FSIZE, (2_000_000, 2_000_000))

    done = subprocess.run(MAKE_COSTS, capture_output=True, text=True, timeout=120, preexec_fn=limit)
    assert done.returncode == 1 and "failed" in done.stdout
    assert find(kind="table") == [] and not any((project / "runs" / "unfinished").iterdir())


@pytest.fixture
def own_ray(monkeypatch):
    """Ray in a folder of its own: it leaves clusters of this machine alone, running or stale, and
    they are not taken for the test's. Its sockets' paths must be short, hence not tmp_path.
    """
    pytest.importorskip("ray")
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    with tempfile.TemporaryDirectory(prefix="ray", ignore_cleanup_errors=True) as folder:
        monkeypatch.setenv("RAY_TMPDIR", folder)
        yield Path(folder)


def test_a_cluster_of_two_nodes_with_one_killed_in_the_middle(project, own_ray):
    """Each job runs on, or again, and each run is computed once: what the killed node had
    finished is found.
    """
    from ray.cluster_utils import Cluster

    cluster = _patiently(
        lambda: Cluster(
            initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False}
        )
    )
    try:
        nodes = [_patiently(lambda: cluster.add_node(num_cpus=1)) for _ in range(2)]
        cluster.wait_for_nodes()
        assert [*own_ray.rglob("ray_current_cluster")], "it is written where no other cluster looks"
        wanted = [one_job(f"bcwi:{table}") for table in ("cost", "soup", "fisher", "ensemble")]

        def work(job, where, threads):
            import os
            import time
            from pathlib import Path

            from compatkit.experiments.running.runs import run_once

            def part(name, seconds):
                def compute(folder):
                    time.sleep(seconds)
                    with open(Path(where).parent / "computed.txt", "a") as file:
                        file.write(f"{name} {os.getpid()}\n")
                    return {}

                return run_once({"kind": "part", "name": name}, compute, where)

            part(f"{job.entry.table} first", 0.2)
            (Path(where).parent / f"half-{job.entry.table}").touch()
            part(f"{job.entry.table} second", 3)
            return part(job.entry.table, 0)

        outcomes = []
        for outcome in _while_running(
            run_jobs_on_ray(wanted, cluster.address, project / "runs", work=work),
            project,
            lambda: cluster.remove_node(nodes[0], allow_graceful=False),
        ):
            outcomes.append(outcome)
        assert sorted(one.job.entry.table for one in outcomes) == sorted(
            job.entry.table for job in wanted
        )
        assert all(one.run is not None for one in outcomes), [one.error for one in outcomes]
        computed = [
            line.rsplit(" ", 1)[0] for line in (project / "computed.txt").read_text().splitlines()
        ]
        assert sorted(computed) == sorted(
            {f"{job.entry.table}{ending}" for job in wanted for ending in (" first", " second", "")}
        )
    finally:
        cluster.shutdown()


def _patiently(start, times=3):
    """Start a node, again where it was too slow: it has 30 seconds and its agents 15, which no
    option changes, and that is short on a machine with other work. What it has begun is ended
    first: it would stay until all tests are done, and take the time that the next attempt needs.
    """
    from ray._private.node import Node

    begin, begun = Node.start_ray_processes, []

    def noted(node):
        begun.append(node)
        begin(node)

    for attempt in range(times):
        try:
            with patch.object(Node, "start_ray_processes", noted):
                return start()
        except Exception as error:
            while begun:
                begun.pop().kill_all_processes(check_alive=False, allow_graceful=False, wait=True)
            if attempt == times - 1 or "timed out during startup" not in str(error):
                raise


def _while_running(outcomes, project, kill):
    """The outcomes; `kill` is called as soon as two jobs are half done."""
    import threading

    def watch():
        while len(list(project.glob("half-*"))) < 2:
            time.sleep(0.05)
        kill()

    threading.Thread(target=watch, daemon=True).start()
    yield from outcomes


# taking them away


def table(**numbers):
    row = Row(
        "old model",
        "as it is",
        3,
        **(
            {"accuracy": (0.8, 0.01), "nfr": (0.0, 0.0), "pfr": (0.0, 0.0), "as_old": (1.0, 0.0)}
            | numbers
        ),
    )
    return ResultTable("made-up", (row,), command="papermill nbs/bcwi.ipynb -p table cost")


def test_kept_tables_are_written_for_papers_and_spreadsheets(project):
    keep_table(table(), "bcwi-pydoc-smoke-cost")
    done = cli("--export", "out")
    assert done.returncode == 0 and done.stdout == "4 files in out\n"
    assert "old model,as it is,3,0.8" in (project / "out" / "bcwi-pydoc-smoke-cost.csv").read_text()
    assert r"\begin{tabular}" in (project / "out" / "bcwi-pydoc-smoke-cost.tex").read_text()
    assert "*not run*" in (project / "out" / "claims.md").read_text()
    assert cli("--export", "out").returncode == 0, "an export may be made again"


def test_an_export_replaces_no_file_of_anybody_else(project):
    keep_table(table(), "bcwi-pydoc-smoke-cost")
    (project / "mine").mkdir()
    (project / "mine" / "claims.md").write_text("my own claims")
    done = cli("--export", "mine")
    assert done.returncode == 2 and "mine holds files that no export wrote" in done.stderr
    assert [file.read_text() for file in (project / "mine").iterdir()] == ["my own claims"]
