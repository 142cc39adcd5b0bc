"""The inner half: namespaces, the main process, its orphans."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import termios
import traceback

from .kernel import (
    CAP_MKNOD,
    CLONE_NEWIPC,
    CLONE_NEWNS,
    CLONE_NEWUTS,
    PR_CAPBSET_DROP,
    PR_SET_CHILD_SUBREAPER,
    PR_SET_NO_NEW_PRIVS,
    PR_SET_PDEATHSIG,
    StartFailed,
    check,
    kill_descendants,
    libc,
    micros,
    prctl,
    set_oom_score,
    setns,
    unshare,
)
from .private import LANDLOCK, MOUNTS, USER_MOUNTS, drop_capabilities, enter_view, keep_apart, restrict
from .root import build_root

TYPE_CHECKING = False  # as `typing` has it, whose import would cost every container's start
if TYPE_CHECKING:
    from typing import Any, NoReturn

    from .attached import Streams


def be_inner(plan: dict[str, Any], parent: int, streams: Streams, report: int) -> NoReturn:
    status = 0
    try:
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL if plan.get("pid_namespace") else signal.SIGTERM)
        if os.getppid() not in (0, parent):  # it died before we could ask to be told
            os._exit(0)
        prctl(PR_SET_CHILD_SUBREAPER, 1)
        main_code(plan, parent, streams, report)
    except StartFailed as failure:
        say(report, {"error": str(failure)})
    except BaseException:
        say(report, {"error": traceback.format_exc(limit=3).strip().splitlines()[-1]})
        status = 1
    finally:
        os._exit(status)


def say(report: int, fact: dict[str, object]) -> None:
    os.write(report, json.dumps(fact).encode() + b"\n")


def main_code(plan: dict[str, Any], parent: int, streams: Streams, report: int) -> None:
    enter_namespaces(plan)
    failed_read, failed_write = os.pipe()
    main = os.fork()
    if main == 0:
        os.close(failed_read)
        become_main(plan, streams, failed_write)
    streams.close_theirs()
    os.close(failed_write)

    def forward(*_: object) -> None:
        if os.getppid() not in (0, parent):  # the outer half was killed: there is no one left to report to
            kill_descendants(None)
            os._exit(0)
        with contextlib.suppress(ProcessLookupError):
            os.kill(main, signal.SIGTERM)

    signal.signal(signal.SIGTERM, forward)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})  # one that came meanwhile is handed on now
    failure = os.read(failed_read, 4096)  # empty when exec closed it
    os.close(failed_read)
    if failure:
        os.waitpid(main, 0)
        raise StartFailed(failure.decode())
    say(report, {"started": micros()})
    while True:
        pid, status = os.waitpid(-1, 0)
        if pid == main:
            break
    code = os.waitstatus_to_exitcode(status)
    say(report, {"exitCode": 128 - code if code < 0 else code, "signal": -code if code < 0 else 0})
    if os.getpid() != 1:  # PID 1 takes its namespace along when it exits
        kill_descendants(None)


def become_main(plan: dict[str, Any], streams: Streams, failed: int) -> NoReturn:
    try:
        os.setsid()
        set_oom_score(0)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD, signal.SIGPIPE):
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
        if streams.terminal:
            fcntl.ioctl(streams.stdin, termios.TIOCSCTTY, 0)
            with contextlib.suppress(OSError):
                os.fchown(streams.stdin, plan.get("user") or -1, -1)
        # above 2 first: one of them may already be where another belongs
        for place, held in enumerate([os.dup(one) for one in (streams.stdin, streams.stdout, streams.stderr)]):
            os.dup2(held, place)
        os.set_inheritable(failed, False)
        for name in os.listdir("/proc/self/fd"):
            if int(name) > 2 and int(name) != failed:
                with contextlib.suppress(OSError):
                    os.close(int(name))
        where = plan.get("cwd") or "/"
        os.makedirs(where, exist_ok=True)
        os.chdir(where)
        os.umask(0o022)
        take_identity(plan)
        execute(plan["argv"], plan["env"])
    except BaseException as error:
        os.write(failed, str(error).encode()[:4000] or b"cannot start")
    finally:
        os._exit(127)


def take_identity(plan: dict[str, Any]) -> None:
    """Become the user that the security context names; gaining rights afterwards may be forbidden."""
    if plan.get("capabilities") is not None:
        drop_capabilities(plan["capabilities"])
    elif plan.get("root"):  # NVIDIA's library would make the nodes of GPUs that are not the container's
        with contextlib.suppress(OSError):  # an ordinary user cannot make any
            prctl(PR_CAPBSET_DROP, CAP_MKNOD)
    user, group, groups = plan.get("user"), plan.get("group"), plan.get("groups") or []
    if groups or user is not None or group is not None:
        os.setgroups(groups)
    if group is not None:
        os.setresgid(group, group, group)
    if user is not None:
        os.setresuid(user, user, user)
    if plan.get("no_new_privileges"):
        prctl(PR_SET_NO_NEW_PRIVS, 1)
    if plan.get("view") == LANDLOCK:
        restrict(plan)
    elif plan.get("view"):
        keep_apart()


def execute(argv: list[str], env: dict[str, str]) -> NoReturn:
    """Become argv, or raise with the words that users know from container runtimes."""
    name = argv[0]
    candidates = (
        [name] if "/" in name else [os.path.join(d or ".", name) for d in env.get("PATH", "/usr/bin:/bin").split(":")]
    )
    refusal = None
    for path in candidates:
        try:
            os.execve(path, argv, env)
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            refusal = refusal or error
    if refusal is not None:
        where = os.strerror(refusal.errno or 0).lower()
    else:
        where = "no such file or directory" if "/" in name else "executable file not found in $PATH"
    raise StartFailed(f'unable to start container process: exec: "{name}": {where}')


def enter_namespaces(plan: dict[str, Any]) -> None:
    if plan.get("net_namespace"):
        setns(plan["net_namespace"])
    if plan.get("root"):
        unshare(CLONE_NEWNS | CLONE_NEWUTS | CLONE_NEWIPC)
        name = plan["hostname"].encode()
        check(libc.sethostname(name, len(name)), "sethostname")
        build_root(plan["root"], plan.get("mounts", []), plan)
    elif plan.get("view") in (MOUNTS, USER_MOUNTS):
        enter_view(plan)
