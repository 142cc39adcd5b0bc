"""The machine's network, changed by netlink instead of the `ip` program: bridges, veth pairs, addresses, namespaces.

Called by the netns sandbox, always in its one thread that may change namespaces. Needs CAP_NET_ADMIN and CAP_SYS_ADMIN,
from root or from a user namespace of our own. What is there already, or gone already, is no error.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import socket
import struct
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from shoal.errors import ShoalError

if TYPE_CHECKING:
    from pyroute2 import IPRoute

T = TypeVar("T")

CLONE_NEWNET = 0x40000000
MS_BIND, MS_REC, MS_SHARED = 4096, 16384, 1 << 20
MNT_DETACH = 2
SIOCGIFFLAGS, SIOCSIFFLAGS, SIOCBRADDBR, IFF_UP = 0x8913, 0x8914, 0x89A0, 1
PREFIX = 16
_libc = ctypes.CDLL(None, use_errno=True)


class NetworkFailed(ShoalError):
    """The machine refused a change to its network."""


def add_bridge(name: str, address: str) -> None:
    """A bridge that is up and has this address."""
    with _netlink(f"bridge {name}") as netlink:
        with _tolerating(errno.EEXIST):
            netlink.link("add", ifname=name, kind="bridge")
        index = socket.if_nametoindex(name)
        with _tolerating(errno.EEXIST):
            netlink.addr("add", index=index, address=address, prefixlen=PREFIX)
        netlink.link("set", index=index, state="up")


def remove_link(name: str) -> None:
    with _netlink(f"interface {name}") as netlink, contextlib.suppress(OSError):  # the name is unknown
        index = socket.if_nametoindex(name)
        with _tolerating(errno.ENODEV):
            netlink.link("del", index=index)


def change_addresses(name: str, add: Iterable[str], remove: Iterable[str]) -> None:
    """Single addresses of an interface."""
    with _netlink(f"addresses of {name}") as netlink:
        index = socket.if_nametoindex(name)
        for address in add:
            with _tolerating(errno.EEXIST):
                netlink.addr("add", index=index, address=address, prefixlen=32)
        for address in remove:
            with _tolerating(errno.EADDRNOTAVAIL):
                netlink.addr("del", index=index, address=address, prefixlen=32)


def add_namespace(path: Path) -> None:
    """A network namespace that lives as long as this file does, as the `ip` program makes them."""
    _share(path.parent)
    path.touch(mode=0o444)
    try:
        with _back_home():
            _check(_libc.unshare(CLONE_NEWNET), "unshare")
            _mount("/proc/thread-self/ns/net", path, MS_BIND)
            loopback_up()
    except OSError as error:
        remove_namespace(path)
        raise NetworkFailed(f"cannot make network namespace {path.name}: {error}; run shoal doctor") from error


def remove_namespace(path: Path) -> None:
    _libc.umount2(os.fsencode(path), MNT_DETACH)
    path.unlink(missing_ok=True)


def connect_namespace(path: Path, bridge: str, outside: str, address: str, gateway: str) -> None:
    """Join a namespace to a bridge: `eth0` inside, `outside` on the machine."""
    with open(path) as namespace, _netlink(f"network of {path.name}") as netlink:
        peer = {"ifname": "eth0", "net_ns_fd": namespace.fileno()}
        netlink.link("add", ifname=outside, kind="veth", peer=peer)
        master = socket.if_nametoindex(bridge)
        netlink.link("set", index=socket.if_nametoindex(outside), master=master, state="up")
    within(path, lambda: _configure(address, gateway))


def _configure(address: str, gateway: str) -> None:
    with _netlink(f"address {address}") as netlink:
        index = socket.if_nametoindex("eth0")
        netlink.addr("add", index=index, address=address, prefixlen=PREFIX)
        netlink.link("set", index=index, state="up")
        netlink.route("add", dst="default", gateway=gateway)


def within(namespace: Path | str, make: Callable[[], T]) -> T:
    """Do something in a network namespace. A socket stays where it was made."""
    with _back_home(), open(namespace) as there:
        _check(_libc.setns(there.fileno(), 0), f"enter {namespace}")
        return make()


def loopback_up() -> None:
    """Switch on `lo` of the namespace this thread is in."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        flags = struct.unpack_from("16xh", fcntl.ioctl(asked, SIOCGIFFLAGS, struct.pack("16s24x", b"lo")))[0]
        fcntl.ioctl(asked, SIOCSIFFLAGS, struct.pack("16sh22x", b"lo", flags | IFF_UP))


def may_add_bridge(name: str) -> bool:
    """Try it by the old call, which needs no library; the caller's namespace is thrown away."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        try:
            fcntl.ioctl(asked, SIOCBRADDBR, struct.pack("16s", name.encode()))
        except OSError:
            return False
    return True


@contextlib.contextmanager
def _back_home() -> Iterator[None]:
    """The thread is put back whatever happens."""
    with open("/proc/thread-self/ns/net") as home:
        try:
            yield
        finally:
            if _libc.setns(home.fileno(), 0) != 0:
                os.abort()  # a thread lost in a pod's network would answer for the wrong one


@contextlib.contextmanager
def _netlink(what: str) -> Iterator[IPRoute]:
    from pyroute2 import IPRoute
    from pyroute2.netlink.exceptions import NetlinkError

    try:
        with IPRoute() as netlink:
            yield netlink
    except NetlinkError as error:
        raise NetworkFailed(f"the kernel refused to change {what}: {error.args[-1]}; run shoal doctor") from error


@contextlib.contextmanager
def _tolerating(number: int) -> Iterator[None]:
    from pyroute2.netlink.exceptions import NetlinkError

    try:
        yield
    except NetlinkError as error:
        if error.code != number:
            raise


def _share(directory: Path) -> None:
    """Mounts below become visible, and go, in every mount namespace: else an old one would keep a namespace alive."""
    directory.mkdir(parents=True, exist_ok=True)
    try:
        _mount("", directory, MS_SHARED | MS_REC)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        _mount(str(directory), directory, MS_BIND | MS_REC)
        _mount("", directory, MS_SHARED | MS_REC)


def _mount(source: str, target: Path, flags: int) -> None:
    done = _libc.mount(source.encode(), os.fsencode(target), b"none", ctypes.c_ulong(flags), None)
    _check(done, f"mount {target}")


def _check(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
