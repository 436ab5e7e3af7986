"""A notebook through papermill whose kernel branches off a process that has its imports already.

A kernel that starts by itself imports torch and transformers anew, which takes longer than most
notebooks at smoke scale. All else is as on the command line: papermill's own command, the engine
of this project, and a kernel in a process of its own, with an environment of its own, which is
spoken to through its connection file.
"""

import os
import signal
import sys
from multiprocessing import get_context

BEGINNING = ["-m", "ipykernel_launcher"]  # of the command that starts a kernel


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
