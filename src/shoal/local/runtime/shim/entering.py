"""A command inside a running container: probes, hooks, `kubectl exec`."""

import fcntl
import json
import os
import signal
import sys
import termios

from .inner import execute, take_identity
from .kernel import PR_SET_CHILD_SUBREAPER, PR_SET_PDEATHSIG, StartFailed, check, libc, prctl, start_time


def enter(directory, argv):
    """Run argv where the container of DIR runs, with its environment; stdin, stdout and stderr are the caller's."""
    with open(os.path.join(directory, "plan.json"), encoding="utf-8") as file:
        plan = json.load(file)
    with open(os.path.join(directory, "state.json"), encoding="utf-8") as file:
        state = json.load(file)
    inner = state["inner"]
    if start_time(inner) != state["innerStart"]:
        raise StartFailed("the container is not running")
    spaces = [
        s
        for s, on in (
            ("net", plan.get("net_namespace")),
            ("uts", plan.get("root")),
            ("ipc", plan.get("root")),
            ("pid", plan.get("pid_namespace")),
            ("mnt", plan.get("root")),
        )
        if on
    ]
    held = [os.open(f"/proc/{inner}/ns/{space}", os.O_RDONLY) for space in spaces]
    for descriptor in held:
        check(libc.setns(descriptor, 0), "enter the container")
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    child = os.fork()
    if child == 0:
        try:
            prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
            for descriptor in held:
                os.close(descriptor)
            environment = plan["env"]
            if os.isatty(0):  # a session of its own, with this terminal
                os.setsid()
                fcntl.ioctl(0, termios.TIOCSCTTY, 0)
                environment = {"TERM": "xterm", **environment}
            os.chdir(plan.get("cwd") or "/")
            take_identity(plan)
            execute(argv, environment)
        except BaseException as error:
            os.write(2, (str(error) + "\n").encode())
        finally:
            os._exit(126)
    while True:
        pid, status = os.waitpid(-1, 0)
        if pid == child:
            code = os.waitstatus_to_exitcode(status)
            sys.exit(128 - code if code < 0 else code)
