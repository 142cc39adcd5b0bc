"""Which namespaces this machine gives, found by doing in a child what a container's start does.

Asking for a namespace is not enough: a machine may give one and refuse the mounts, the processes or the bridge in it.
Called for `shoal doctor` and for the choice of a sandbox, so that what is promised is what works.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from pathlib import Path

from shoal.local.nodes.runtime.shim.kernel import (
    CLONE_NEWIPC,
    CLONE_NEWNET,
    CLONE_NEWNS,
    CLONE_NEWPID,
    CLONE_NEWUTS,
    MS_PRIVATE,
    MS_REC,
    mount,
    unshare,
)
from shoal.local.nodes.sandbox import netlink

CAP_NET_ADMIN = 12


def own_root(network: bool = False) -> bool:
    """Whether a container would get files and processes of its own and, where asked, a network."""
    return works(lambda: _enter(network))


def changes_network() -> bool:
    """Whether this process may add a bridge to the network that it is in."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        status = Path("/proc/self/status").read_text()
        return bool(int(status.partition("CapEff:")[2].split()[0], 16) >> CAP_NET_ADMIN & 1)
    return False


def works(attempt: Callable[[], None]) -> bool:
    """Whether this goes well in a child, which ends with it."""
    pid = os.fork()
    if pid == 0:
        try:
            attempt()
            os._exit(0)
        except BaseException:
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def _enter(network: bool) -> None:
    unshare(CLONE_NEWPID | (CLONE_NEWNET if network else 0))
    if network and not netlink.may_add_bridge("shoaltry"):
        raise OSError("no bridge")
    if not works(_build):
        raise OSError("no root")


def _build() -> None:
    unshare(CLONE_NEWNS | CLONE_NEWUTS | CLONE_NEWIPC)
    mount("none", "/", None, MS_REC | MS_PRIVATE)
    mount("tmpfs", "/tmp", "tmpfs")
    os.mkdir("/tmp/proc")
    mount("proc", "/tmp/proc", "proc")
