"""How the cluster's credentials are kept from pods that share the machine's root, as the loopback sandbox has them.

The best way that the machine allows is found by trying it in a child: mounts of root's own, mounts in a user namespace,
Landlock. Where there is none, pods are trusted, and `shoal up` and `shoal doctor` say so.
"""

from __future__ import annotations

import os
import sys
from functools import cache
from pathlib import Path

from shoal.local.nodes.runtime.shim import private
from shoal.local.nodes.runtime.shim.private import LANDLOCK, MOUNTS, USER_MOUNTS

LEAST_LANDLOCK = 2
"""The first version under which files can be moved between directories."""

TRUSTED = (
    "pods are trusted: they run as you and can read the cluster's credentials, because this machine allows neither "
    "mount namespaces nor Landlock"
)


@cache
def best() -> str:
    """The way that pods get; empty where there is none."""
    if sys.platform != "linux":
        return ""
    if os.geteuid() == 0 and _works(MOUNTS):
        return MOUNTS
    if os.geteuid() != 0 and _works(USER_MOUNTS):
        return USER_MOUNTS
    return LANDLOCK if private.landlock_version() >= LEAST_LANDLOCK and _works(LANDLOCK) else ""


def described(view: str) -> str:
    """What pods get, in the words of `shoal doctor`."""
    if not view:
        return TRUSTED
    how = {MOUNTS: "mount namespaces", USER_MOUNTS: "mounts in user namespaces", LANDLOCK: "Landlock"}[view]
    others = " and each other's files" if private.landlock_version() >= LEAST_LANDLOCK else ""
    return f"pods do not see the cluster's credentials{others} ({how})"


def _works(view: str) -> bool:
    """Whether a process of ours can hide a directory so; tried in a child, on one of its own."""
    hidden = str(Path(private.__file__).parent)
    pid = os.fork()
    if pid == 0:
        try:
            plan = {"view": view, "hidden": [hidden]}
            private.restrict(plan) if view == LANDLOCK else private.enter_view(plan)
            os._exit(1 if _readable(os.path.join(hidden, "private.py")) else 0)
        except BaseException:
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def _readable(path: str) -> bool:
    try:
        os.close(os.open(path, os.O_RDONLY))
    except OSError:
        return False
    return True
