"""The netns and mounts sandboxes for ordinary users: the whole cluster moves into a user namespace, where it is root.

`shoal up` calls `enter`, or `enter_mounts`, before it starts anything. The API server's socket and the broker are made
before, in the machine's network, so that kubectl reaches the cluster as always and pods get out. A later `shoal up`
enters the namespaces that the pods of a killed one still hold.
"""

from __future__ import annotations

import ctypes
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

from shoal.errors import ShoalError
from shoal.local.nodes.runtime.identity import ProcessIdentity, alive
from shoal.local.nodes.runtime.process import recorded_identity
from shoal.local.nodes.sandbox import broker, netlink, trials
from shoal.local.nodes.sandbox.outward import Brokered, Outward

CLONE_NEWNS, CLONE_NEWUSER, CLONE_NEWNET = 0x00020000, 0x10000000, 0x40000000
MS_REC, MS_PRIVATE = 16384, 1 << 18
_NAMESPACES = "/run/netns"
_libc = ctypes.CDLL(None, use_errno=True)


class OwnSpace(NamedTuple):
    """What a process in namespaces of its own keeps of the machine's network."""

    listener: socket.socket
    """Where the API server answers: bound before the move."""
    outward: Outward
    page: socket.socket | None = None
    """Where the page is served, if it is."""


class CannotEnter(ShoalError):
    """The machine refused the namespaces, although it had allowed them when asked."""


def permitted(network: bool = True) -> bool:
    """Whether this user may have a user namespace with mounts and, where asked, networks of its own."""

    def attempt() -> None:
        _make(network)
        if not trials.own_root(network):
            raise OSError("no root")

    return trials.works(attempt)


def enter(pods: Path, port: int, page_port: int | None = None) -> OwnSpace:
    """Move this process, which must have one thread only, into namespaces of its own. `page_port` None: no page."""
    listener = socket.create_server(("127.0.0.1", port), backlog=512)
    page = _page_listener(page_port) if page_port is not None else None
    channel = _start_broker()
    _move(pods, network=True)
    return OwnSpace(listener, Brokered(channel), page)


def _page_listener(port: int) -> socket.socket:
    """A port that is taken is replaced by another."""
    try:
        return socket.create_server(("127.0.0.1", port), backlog=128)
    except OSError:
        return socket.create_server(("127.0.0.1", 0), backlog=128)


def enter_mounts(pods: Path) -> None:
    """The same where there are no network namespaces: this process stays in the machine's network."""
    _move(pods, network=False)


def _move(pods: Path, network: bool) -> None:
    held = _held_by(pods)
    try:
        if held is not None:
            _join(held, ("user", "mnt", "net") if network else ("user", "mnt"))
        else:
            _make(network)
    except OSError as error:
        raise CannotEnter(f"the kernel refused a user namespace: {error}; use --sandbox loopback") from error


def _make(network: bool) -> None:
    user, group = os.geteuid(), os.getegid()
    _check(_libc.unshare(CLONE_NEWUSER | CLONE_NEWNS | (CLONE_NEWNET if network else 0)), "unshare")
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"0 {user} 1")
    Path("/proc/self/gid_map").write_text(f"0 {group} 1")
    _mount("none", "/", None, MS_REC | MS_PRIVATE)
    if not network:
        return
    # Network namespaces have their names here. Where the directory is missing only a whole /run of our own can have it.
    _mount("tmpfs", _NAMESPACES if os.path.isdir(_NAMESPACES) else "/run", "tmpfs", 0)
    os.makedirs(_NAMESPACES, exist_ok=True)
    netlink.loopback_up()


def _join(other: ProcessIdentity, kinds: tuple[str, ...]) -> None:
    """The namespaces of a pod's outer shim are those that its cluster lived in."""
    spaces = [os.open(f"/proc/{other.pid}/ns/{space}", os.O_RDONLY) for space in kinds]
    try:
        if not alive(other):
            raise ProcessLookupError(f"process {other.pid} is gone")
        for descriptor in spaces:
            _check(_libc.setns(descriptor, 0), "setns")
    finally:
        for descriptor in spaces:
            os.close(descriptor)
    os.chdir("/")


def _held_by(pods: Path) -> ProcessIdentity | None:
    """A process of an earlier start that still lives in a namespace of its own."""
    mine = os.stat("/proc/self/ns/user").st_ino
    for run in sorted(pods.glob("*/containers/*/*")):
        found = recorded_identity(run)
        if found is not None and alive(found) and os.stat(f"/proc/{found.pid}/ns/user").st_ino != mine:
            return found
    return None


def _start_broker() -> socket.socket:
    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with there:
        subprocess.Popen(
            [sys.executable, "-I", "-S", broker.__file__, str(there.fileno())],
            pass_fds=(there.fileno(),),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
    return here


def _mount(source: str, target: str, kind: str | None, flags: int) -> None:
    done = _libc.mount(source.encode(), target.encode(), kind and kind.encode(), ctypes.c_ulong(flags), None)
    _check(done, f"mount {target}")


def _check(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
