"""Notebooks through papermill whose kernels branch off a process that has its imports already.

A kernel that starts by itself imports torch and transformers anew, which takes longer than most
notebooks at smoke scale. All else is as on the command line: papermill's own command, the engine
of this project, and a kernel in a process of its own, with an environment of its own, which is
spoken to through its connection file. What most notebooks import is loaded once, before the
workers of notebooks.py and grid.py branch off.
"""

import gc
import os
import signal
import sys
from multiprocessing import get_context
from multiprocessing.connection import wait

BEGINNING = ["-m", "ipykernel_launcher"]  # of the command that starts a kernel
# of a kernel that ended before a line of the notebook ran: jupyter_client chooses its ports, lets
# them go and tells the kernel, and in between another kernel may take one
NEVER_BEGAN = "Kernel died before replying to kernel_info"


def wait_and_be_a_kernel(orders, ready):
    """Wait for the command that starts a kernel, then be that kernel."""
    os.setsid()  # so that a signal to the kernel's group reaches nobody else
    ready.send(os.getpid())
    try:
        command, environment, folder, log = orders.recv()
    except EOFError:  # papermill has ended without a kernel
        return
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder or ".")
    if log:
        os.dup2(os.open(log, os.O_WRONLY | os.O_APPEND), sys.stderr.fileno())
    from ipykernel.kernelapp import launch_new_instance

    launch_new_instance(argv=command)


class KernelInWaiting:
    """A process that becomes a kernel when jupyter_client starts one.

    It branches off before papermill begins, whose threads and event loops it must not inherit.
    What jupyter_client knows of it is what it knows of subprocess.Popen.
    """

    stdin = stdout = stderr = None

    def __init__(self):
        context = get_context("fork")
        orders, self.orders = context.Pipe(duplex=False)
        told, ready = context.Pipe(duplex=False)
        self.process = context.Process(target=self._begin, args=(orders, ready))
        self.process.start()
        orders.close()
        self.pid = told.recv()

    def _begin(self, orders, ready):
        self.orders.close()  # so that the pipe ends with papermill
        wait_and_be_a_kernel(orders, ready)

    def launch(self, command, env=None, cwd=None, stderr=None, **others):
        """In place of jupyter_client's launch_kernel: this process is the kernel from now on."""
        start = command.index(BEGINNING[0])
        if command[start : start + 2] != BEGINNING:
            raise ValueError(f"a kernel is not started by {' '.join(command)}")
        log = getattr(stderr, "name", None)
        self.orders.send((command[start + 2 :], dict(env or os.environ), cwd, log))
        return self

    def poll(self):
        """The exit status, None while it runs."""
        return self.process.exitcode

    def wait(self, timeout=None):
        """The exit status, once it has ended."""
        self.process.join(timeout)
        return self.process.exitcode

    def send_signal(self, number):
        """As os.kill."""
        os.kill(self.pid, number)

    def kill(self):
        """End it at once."""
        self.send_signal(signal.SIGKILL)

    def terminate(self):
        """Ask it to end."""
        self.send_signal(signal.SIGTERM)


def papermill(arguments, environment, said):
    """Run papermill's command in this process, which is good for nothing else afterwards, with
    all that it says in the file `said`: whether it passed.
    """
    import traceback
    from unittest.mock import patch

    from jupyter_client.provisioning import local_provisioner
    from papermill.cli import papermill as command

    os.environ.clear()
    os.environ.update(environment)
    file = os.open(said, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(file, sys.stdout.fileno())
    os.dup2(file, sys.stderr.fileno())
    kernel = KernelInWaiting()
    try:
        with patch.object(local_provisioner, "launch_kernel", kernel.launch):
            command(arguments, standalone_mode=False)
        return True
    except BaseException:  # sys.exit among them, by which the engine refuses parameters
        traceback.print_exc()
        return False
    finally:
        sys.stdout.flush()
        kernel.orders.close()
        kernel.wait(10)


def load_packages():
    """What most notebooks import. Nothing is computed that starts threads: they do not survive the
    branching.
    """
    import datasets  # noqa: F401
    import ipykernel.ipkernel  # noqa: F401
    import ipykernel.kernelapp  # noqa: F401
    import matplotlib.pyplot  # noqa: F401
    import matplotlib_inline.backend_inline  # noqa: F401
    import nbdev.test  # noqa: F401
    import papermill.cli  # noqa: F401
    import peft  # noqa: F401
    import polars.io  # noqa: F401
    import scipy.stats  # noqa: F401
    import sklearn.datasets  # noqa: F401
    import transformers.models.bert.modeling_bert  # noqa: F401
    import transformers.models.llama.modeling_llama  # noqa: F401

    import compatkit.compare.verdict  # noqa: F401
    import compatkit.experiments.studies.language_study  # noqa: F401
    import compatkit.experiments.studies.study  # noqa: F401
    import compatkit.training.loop  # noqa: F401


def load_data():
    """The embedded data, which is made once a process and the same in all notebooks."""
    from compatkit.language.tasks import load_questions
    from compatkit.training.tasks import load_task

    for made in (load_task("pydoc"), load_task("digits"), load_questions("arithmetic")):
        made.fingerprint  # noqa: B018  # it is kept


def branch_off(task, into):
    """The outcome of a task, into a pipe."""
    into.send(task())


def begin(task):
    """A process for a task: (the end of the pipe where its outcome comes out, process, task)."""
    context = get_context("fork")
    out, into = context.Pipe(duplex=False)
    process = context.Process(target=branch_off, args=(task, into))
    process.start()
    into.close()  # so that a process that dies closes the pipe
    return out, process, task


def run_all(tasks, said=None):
    """The outcomes (passed, one line) of all tasks, each a call in a process of its own, as many
    at a time as cores; `said` is told each line as it comes. A notebook whose kernel never began
    is tried once more.
    """
    gc.collect()
    gc.freeze()  # the collector of garbage leaves alone what all share
    waiting, running, again, outcomes = list(tasks), {}, [], []
    while waiting or running:
        while waiting and len(running) < (os.cpu_count() or 1):
            out, *begun = begin(waiting.pop(0))
            running[out] = begun
        for out in wait(running):
            process, task = running.pop(out)
            try:
                outcome = out.recv()
            except EOFError:
                outcome = False, f"FAILED    0 s  {task}: its process died"
            process.join()
            if not outcome[0] and NEVER_BEGAN in outcome[1] and task not in again:
                again.append(task)
                waiting.append(task)
                continue
            outcomes.append(outcome)
            if said:
                said(outcomes[-1][1])
    return outcomes
